"""How far a score can be trusted: a bootstrap over units that are nearly independent.

Neighbouring letters are alike, so letters or windows as units would make the interval many times
too narrow. Units are whole records where there are enough, else blocks of 10,000 letters. Two
scores are compared on the same resampled units, which removes what makes a unit hard for both.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

BLOCK_LETTERS = 10_000
RECORDS_ENOUGH = 20
UNITS_NEEDED = 10
RESAMPLES = 2_000
LEVEL = 0.95


@dataclass(frozen=True, kw_only=True)
class Units:
    """Which unit each stretch of scored letters belongs to.

    Attributes:
        name: What a unit is.
        count: How many units there are.
        lengths: int64 [m], letters of each stretch, in scoring order.
        owners: int64 [m], the unit of each stretch.
    """

    name: str
    count: int
    lengths: np.ndarray
    owners: np.ndarray

    def of_letters(self, begin: int, end: int) -> np.ndarray:
        """Units of the letters `begin` to `end` in scoring order, int64 [end - begin]."""
        ends = np.cumsum(self.lengths)
        return self.owners[np.searchsorted(ends, np.arange(begin, end), side="right")]


@dataclass(frozen=True, kw_only=True)
class Interval:
    """A value and its bootstrap interval."""

    value: float
    low: float
    high: float

    @property
    def excludes_zero(self) -> bool:
        """Whether zero lies outside."""
        return self.low > 0 or self.high < 0


def make_units(records: Sequence[int], lengths: Sequence[int], *, may_cut: bool) -> Units:
    """Choose the units for pieces of records.

    Args:
        records: Record number of each piece.
        lengths: Letters scored in each piece.
        may_cut: Whether a record may be cut into blocks (DNA, not proteins).
    """
    _, numbers = np.unique(np.asarray(records, dtype=np.int64), return_inverse=True)
    num_records = int(numbers.max()) + 1 if len(numbers) else 0
    if num_records >= RECORDS_ENOUGH or not may_cut:
        return Units(
            name="record",
            count=num_records,
            lengths=np.asarray(lengths, dtype=np.int64),
            owners=numbers.astype(np.int64),
        )
    blocks = [_cut(length) for length in lengths]
    flat = np.array([size for sizes in blocks for size in sizes], dtype=np.int64)
    return Units(name="10 kb block", count=len(flat), lengths=flat, owners=np.arange(len(flat)))


def _cut(length: int) -> list[int]:
    """Cut a length into even blocks of about BLOCK_LETTERS."""
    count = max(1, round(length / BLOCK_LETTERS))
    edges = np.linspace(0, length, count + 1).round().astype(int)
    return np.diff(edges).tolist()


def resampled_means(
    sums: np.ndarray, counts: np.ndarray, *, resamples: int = RESAMPLES, seed: int = 1
) -> np.ndarray:
    """Mean of every column over resampled units: the ratio of sums, not the mean of means.

    Args:
        sums: float64 [units, columns], summed nats of each unit under each model.
        counts: int64 [units], scored letters of each unit.
        resamples: How often to draw.
        seed: Of the draws.

    Returns:
        float64 [resamples, columns]; row i of every column comes from the same units.
    """
    units = len(counts)
    random = np.random.Generator(np.random.Philox(seed))
    means = np.empty((resamples, sums.shape[1]))
    for row in range(resamples):
        times = np.bincount(random.integers(units, size=units), minlength=units)
        letters = int(times @ counts)
        means[row] = times @ sums / letters if letters else np.nan
    return means


def interval(value: float, resampled: np.ndarray) -> Interval:
    """Take the percentile interval of a resampled value."""
    tail = 100 * (1 - LEVEL) / 2
    low, high = np.nanpercentile(resampled, [tail, 100 - tail])
    return Interval(value=value, low=float(low), high=float(high))
