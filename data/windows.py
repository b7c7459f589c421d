"""Sliding windows for scoring: every letter once, each with as much context as is promised.

A piece's scored letters are cut into segments of `stride` letters. The window of a segment ends
where the segment ends and reaches back over at most `window` letters, so every letter but those
near the piece's start sees at least `window - stride` letters before it. Letters before the
scored range (guards) serve as context only. The plan depends on nothing but these numbers: not
on batch size, rank or order.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from genomoe.data.errors import InputError


@dataclass(frozen=True, kw_only=True)
class Window:
    """Letters `start` to `end` of a piece; those from `scored` on are scored here."""

    piece: int
    start: int
    scored: int
    end: int


def plan_windows(ranges: Sequence[tuple[int, int]], *, window: int, stride: int) -> list[Window]:
    """Plan the windows of several pieces.

    Args:
        ranges: For each piece, begin and end of its scored letters, in letters from its start.
        window: Letters that one window holds at most (the model sees BOS before them).
        stride: Letters scored by one window; 1 to `window`.

    Raises:
        InputError: If the stride does not fit the window.
    """
    if not 1 <= stride <= window:
        raise InputError(f"--stride is {stride}: use 1 to the window, {window}")
    return [
        Window(piece=index, start=max(0, end - window), scored=scored, end=end)
        for index, (begin, last) in enumerate(ranges)
        for scored in range(begin, last, stride)
        for end in [min(last, scored + stride)]
    ]


def window_rows(
    letters: Sequence[np.ndarray], windows: Sequence[Window], *, width: int, bos: int, pad: int
) -> tuple[np.ndarray, np.ndarray]:
    """Lay windows out as model input.

    Args:
        letters: Token ids of each piece.
        windows: Rows wanted.
        width: Tokens of a row: at least the longest window.
        bos: Id that starts every row.
        pad: Id that fills the rest.

    Returns:
        Input ids and labels, both int64 [windows, width]: input i predicts label i.
    """
    tokens = np.full((len(windows), width), pad, dtype=np.int64)
    labels = np.full((len(windows), width), pad, dtype=np.int64)
    for row, item in enumerate(windows):
        ids = letters[item.piece][item.start : item.end]
        tokens[row, 0] = bos
        tokens[row, 1 : len(ids)] = ids[:-1]
        labels[row, : len(ids)] = ids
    return tokens, labels


def context_lengths(windows: Sequence[Window]) -> np.ndarray:
    """Letters of context before each scored letter, in the order of the windows (int64)."""
    if not windows:
        return np.zeros(0, dtype=np.int64)
    return np.concatenate([np.arange(w.scored - w.start, w.end - w.start) for w in windows])
