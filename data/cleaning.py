"""From records to pieces: what is kept of each record, in the record's own coordinates.

Records are split at long runs of N (assembly gaps), N at the ends is trimmed, and pieces that are
too short or too ambiguous are dropped. Every drop is counted by reason. The work is done over a
file's whole token stream at once, so many short records cost no more than one long one.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from genomoe.data.intervals import RunJoiner, empty_intervals, runs_of
from genomoe.data.spool import Spool
from genomoe.data.tokenizer import Tokenizer


@dataclass(frozen=True, kw_only=True)
class CleaningRules:
    """What is dropped."""

    n_run: int
    """A run of so many N or more splits a record."""
    max_ambiguous: float
    """A piece with a larger share of letters that are never scored is dropped."""
    min_length: int
    """Shorter records and pieces are dropped, letters."""


@dataclass(frozen=True, kw_only=True)
class CleanPieces:
    """The pieces kept, and what was dropped."""

    pieces: np.ndarray
    """int64 [p, 3]: record, start, end in the record; in input order."""
    dropped: dict[str, int]
    """Number of records or pieces dropped, by reason."""
    dropped_letters: dict[str, int]
    """Letters dropped, by reason."""


def clean_records(spool: Spool, tokenizer: Tokenizer, rules: CleaningRules) -> CleanPieces:
    """Return the pieces of all records of the spool that pass the rules."""
    records = spool.records
    pieces = np.zeros((0, 3), dtype=np.int64)
    ambiguous = np.zeros(0, dtype=np.int64)
    for file in range(len(spool.names)):
        first, last = np.searchsorted(records["file"], [file, file + 1])
        begins = records["offset"][first:last]
        ends = begins + records["length"][first:last]
        if first == last:
            continue
        gaps = empty_intervals()
        if tokenizer.gap_id is not None:
            gaps = find_gaps(
                spool.file_chunks(file), begins, ends, tokenizer.gap_id, n_run=rules.n_run
            )
        kept = between(begins, ends, gaps)
        holder = np.searchsorted(begins, kept[:, 0], side="right") - 1
        ambiguous = np.append(
            ambiguous, count_inside(spool.file_chunks(file), kept, ~tokenizer.is_scored)
        )
        rows = np.column_stack([holder + first, kept - begins[holder][:, None]])
        pieces = np.concatenate([pieces, rows])
    return _apply_rules(records["length"], pieces, ambiguous, rules)


def find_gaps(
    chunks: Iterator[tuple[int, np.ndarray]],
    begins: np.ndarray,
    ends: np.ndarray,
    gap_id: int,
    *,
    n_run: int,
) -> np.ndarray:
    """Return the runs of N that split a record or stand at one of its ends.

    Args:
        chunks: (offset, letters) of a token stream, in order and without holes.
        begins: int64, where each record begins in the stream, increasing.
        ends: int64, where each record ends.
        gap_id: the token of N.
        n_run: runs at least this long split; shorter ones count at a record's ends only.
    """
    joiner = RunJoiner()
    kept = []

    def keep(runs: np.ndarray) -> None:
        at_end = np.isin(runs[:, 0], begins) | np.isin(runs[:, 1], ends)
        kept.append(runs[(runs[:, 1] - runs[:, 0] >= n_run) | at_end])

    for offset, letters in chunks:
        low, high = np.searchsorted(begins, [offset, offset + letters.size])
        starts = begins[low:high] - offset
        runs = runs_of(letters == gap_id, starts) + offset
        keep(joiner.push(runs, joins=not (starts.size and starts[0] == 0)))
    keep(joiner.flush())
    return np.concatenate(kept)


def between(begins: np.ndarray, ends: np.ndarray, gaps: np.ndarray) -> np.ndarray:
    """Return what the gaps leave of the records, as an interval array over the stream.

    Gaps lie inside records, so begins and ends pair up in sorted order; a gap at a record's end
    leaves an empty interval, which is removed.
    """
    left = np.sort(np.concatenate([begins, gaps[:, 1]]))
    right = np.sort(np.concatenate([ends, gaps[:, 0]]))
    pieces = np.stack([left, right], axis=1)
    return pieces[left < right]


def count_inside(
    chunks: Iterator[tuple[int, np.ndarray]], intervals: np.ndarray, table: np.ndarray
) -> np.ndarray:
    """Return how many letters of each interval ``table`` (bool [256]) marks, int64."""
    counts = np.zeros(len(intervals), dtype=np.int64)
    for offset, letters in chunks:
        positions = np.flatnonzero(table[letters]) + offset
        if positions.size == 0:
            continue
        end = offset + letters.size
        first = int(np.searchsorted(intervals[:, 1], offset, side="right"))
        last = int(np.searchsorted(intervals[:, 0], end, side="left"))
        low = np.searchsorted(positions, intervals[first:last, 0])
        high = np.searchsorted(positions, intervals[first:last, 1])
        counts[first:last] += high - low
    return counts


def _apply_rules(
    record_lengths: np.ndarray, pieces: np.ndarray, ambiguous: np.ndarray, rules: CleaningRules
) -> CleanPieces:
    lengths = pieces[:, 2] - pieces[:, 1]
    is_short_record = record_lengths < rules.min_length
    in_short_record = is_short_record[pieces[:, 0]]
    is_short = (lengths < rules.min_length) & ~in_short_record
    is_ambiguous = (ambiguous > rules.max_ambiguous * lengths) & ~is_short & ~in_short_record
    is_kept = ~(in_short_record | is_short | is_ambiguous)
    return CleanPieces(
        pieces=pieces[is_kept],
        dropped={
            "ambiguous_pieces": int(is_ambiguous.sum()),
            "short_pieces": int(is_short.sum()),
            "short_records": int(is_short_record.sum()),
        },
        dropped_letters={
            "ambiguous_pieces": int(lengths[is_ambiguous].sum()),
            "gaps": int(record_lengths[~is_short_record].sum() - lengths[~in_short_record].sum()),
            "short_pieces": int(lengths[is_short].sum()),
            "short_records": int(record_lengths[is_short_record].sum()),
        },
    )
