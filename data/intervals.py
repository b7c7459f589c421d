"""Runs of letters as half-open intervals, over streams that arrive in chunks.

An interval array is int64 [m, 2] with columns begin, end: sorted, disjoint, never empty.
Soft-masked letters and assembly gaps are both kept this way.
"""

import numpy as np


def empty_intervals() -> np.ndarray:
    """Return an interval array without intervals."""
    return np.zeros((0, 2), dtype=np.int64)


def runs_of(mask: np.ndarray, cuts: np.ndarray) -> np.ndarray:
    """Return the maximal runs of True in ``mask``, cut where a position of ``cuts`` lies inside.

    Args:
        mask: bool [n].
        cuts: int64, sorted positions in [0, n]; a run never crosses one of them.
    """
    if mask.size == 0:
        return empty_intervals()
    edges = np.flatnonzero(mask[1:] != mask[:-1]) + 1
    head = [0] if mask[0] else []
    tail = [mask.size] if mask[-1] else []
    edges = np.concatenate([np.array(head, np.int64), edges, np.array(tail, np.int64)])
    return cut_at(edges.reshape(-1, 2).astype(np.int64, copy=False), cuts)


def cut_at(intervals: np.ndarray, cuts: np.ndarray) -> np.ndarray:
    """Split the intervals at every position of ``cuts`` that lies strictly inside one."""
    if len(intervals) == 0 or len(cuts) == 0:
        return intervals
    cuts = np.unique(cuts)
    holder = np.searchsorted(intervals[:, 0], cuts, side="left") - 1
    inside = cuts[(holder >= 0) & (cuts < intervals[holder, 1])]
    if inside.size == 0:
        return intervals
    begins = np.sort(np.concatenate([intervals[:, 0], inside]))
    ends = np.sort(np.concatenate([intervals[:, 1], inside]))
    return np.stack([begins, ends], axis=1)


def clip(intervals: np.ndarray, begin: int, end: int) -> np.ndarray:
    """Return the part of the intervals inside [begin, end), relative to ``begin``."""
    first = int(np.searchsorted(intervals[:, 1], begin, side="right"))
    last = int(np.searchsorted(intervals[:, 0], end, side="left"))
    return np.clip(intervals[first:last], begin, end) - begin


def to_mask(intervals: np.ndarray, length: int) -> np.ndarray:
    """Return bool [length], True inside the intervals."""
    steps = np.zeros(length + 1, dtype=np.int8)
    steps[intervals[:, 0]] += 1
    # Touching intervals share a position, where the steps cancel.
    np.subtract.at(steps, intervals[:, 1], 1)
    return np.cumsum(steps[:-1], dtype=np.int8).astype(bool)


class RunJoiner:
    """Joins the runs of consecutive chunks where one goes on across the border."""

    def __init__(self) -> None:
        """Start with nothing pending."""
        self._pending = empty_intervals()

    def push(self, runs: np.ndarray, *, joins: bool) -> np.ndarray:
        """Take the runs of the next chunk and return those that are now complete.

        Args:
            runs: interval array in coordinates of the whole stream.
            joins: whether a run may go on across the chunk's left border (no record starts there).
        """
        if len(runs) == 0:
            return empty_intervals()
        pending = self._pending
        if joins and len(pending) and pending[0, 1] == runs[0, 0]:
            runs = runs.copy()
            runs[0, 0] = pending[0, 0]
            pending = empty_intervals()
        self._pending = runs[-1:]
        return np.concatenate([pending, runs[:-1]])

    def flush(self) -> np.ndarray:
        """Return the last run, which no further chunk can extend."""
        pending, self._pending = self._pending, empty_intervals()
        return pending
