"""How the documents of one block become rows of a fixed number of targets. Pure.

A document has as many targets as letters, and one more for the end where that is trained. With
S = ``seq_length``:

- More than S targets: windows. With n = (q - 1) S + r targets, 0 < r <= S, the first window ends
  at an offset o drawn anew every epoch, and the others follow at steps of S, so that every target
  is in exactly one window. Where r <= S / 2 there are q windows (o in [r, S]), else q + 1 (o in
  [1, r - 1]): the number of rows is the same in every epoch. Example: S = 4, n = 10 gives q = 3,
  r = 2, so three windows, and o = 3 cuts [0, 3) [3, 7) [7, 10).
- At most S targets: packed in order, each row taking documents until one does not fit.

The rows of a block are the windows of its long documents, then the packed rows.
"""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, kw_only=True)
class Span:
    """Targets [begin, end) of one document, which is number ``document`` of its block."""

    document: int
    begin: int
    end: int


@dataclass(frozen=True, kw_only=True)
class BlockLayout:
    """Which documents make up each row of one block."""

    long_documents: np.ndarray
    """int64 [l]: documents cut into windows."""
    first_window: np.ndarray
    """int64 [l + 1]: the row of each one's first window; the last entry is the first packed row."""
    short_documents: np.ndarray
    """int64 [s]: documents packed whole."""
    first_packed: np.ndarray
    """int64 [p + 1]: where each packed row begins in ``short_documents``."""

    @property
    def num_rows(self) -> int:
        """How many rows the block gives."""
        return int(self.first_window[-1]) + len(self.first_packed) - 1


def window_count(targets: np.ndarray, seq_length: int) -> np.ndarray:
    """Return the windows that documents of more than ``seq_length`` targets are cut into."""
    full = -(-targets // seq_length)
    rest = targets - (full - 1) * seq_length
    return full + (rest > seq_length // 2)


def offset_range(targets: int, seq_length: int) -> tuple[int, int]:
    """Return the least and the greatest end of the first window."""
    full = -(-targets // seq_length)
    rest = targets - (full - 1) * seq_length
    return (rest, seq_length) if rest <= seq_length // 2 else (1, rest - 1)


def window(targets: int, seq_length: int, offset: int, number: int) -> tuple[int, int]:
    """Return the targets [begin, end) of one window, given where the first one ends."""
    begin = offset + (number - 1) * seq_length
    return max(0, begin), min(targets, begin + seq_length)


def lay_out(targets: np.ndarray, seq_length: int, *, pack: bool) -> BlockLayout:
    """Lay the documents of one block out in rows.

    Args:
        targets: int64 [documents], targets of each.
        seq_length: targets per row.
        pack: whether short documents share rows.
    """
    is_long = targets > seq_length
    long_documents = np.flatnonzero(is_long)
    short_documents = np.flatnonzero(~is_long)
    windows = window_count(targets[long_documents], seq_length)
    if pack:
        firsts = _next_fit(targets[short_documents], seq_length)
    else:
        firsts = np.arange(len(short_documents) + 1)
    return BlockLayout(
        long_documents=long_documents,
        first_window=np.append(0, np.cumsum(windows)),
        short_documents=short_documents,
        first_packed=firsts,
    )


def rows_per_block(
    targets: np.ndarray, first_document: np.ndarray, seq_length: int, *, pack: bool
) -> np.ndarray:
    """Return how many rows each of many blocks gives, int64 [b]; equals ``lay_out`` on each.

    All blocks advance together, one packed row at a time.

    Args:
        targets: int64 [documents], of all blocks.
        first_document: int64 [b + 1], where each block begins.
        seq_length: targets per row.
        pack: whether short documents share rows.
    """
    is_long = targets > seq_length
    rows = np.zeros(len(targets), dtype=np.int64)
    rows[is_long] = window_count(targets[is_long], seq_length)
    if not pack:
        rows[~is_long] = 1
    counts = np.diff(np.append(0, np.cumsum(rows))[first_document])
    if not pack:
        return counts
    short = np.flatnonzero(~is_long)
    filled = np.append(0, np.cumsum(targets[short]))
    cursor = np.searchsorted(short, first_document[:-1])
    end = np.searchsorted(short, first_document[1:])
    active = np.flatnonzero(cursor < end)
    while active.size:
        reach = filled[cursor[active]] + seq_length
        cursor[active] = np.searchsorted(filled, reach, side="right") - 1
        counts[active] += 1
        active = active[cursor[active] < end[active]]
    return counts


def _next_fit(sizes: np.ndarray, seq_length: int) -> np.ndarray:
    """Return where each row begins when rows take documents in order until one does not fit."""
    filled = np.append(0, np.cumsum(sizes))
    reach = (np.searchsorted(filled, filled[:-1] + seq_length, side="right") - 1).tolist()
    firsts = []
    cursor = 0
    while cursor < len(sizes):
        firsts.append(cursor)
        cursor = reach[cursor]
    firsts.append(len(sizes))
    return np.array(firsts, dtype=np.int64)
