"""Periodic scores of fixed windows, of the validation split and of train, side by side."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from genomoe.data.dataset import DataSet
from genomoe.data.errors import InputError
from genomoe.data.tokenizer import BOS_ID, PAD_ID
from genomoe.data.windows import Window, plan_windows
from genomoe.parallel.topology import Topology
from genomoe.training.metrics import bits
from genomoe.training.scoring import score_windows


@dataclass(frozen=True, kw_only=True)
class ScoreSet:
    """Fixed windows of one split.

    Attributes:
        letters: Token ids of the pieces.
        windows: Chosen windows.
        keep: Whether each scored letter counts (ACGT, or the 20 residues).
    """

    letters: list[np.ndarray]
    windows: list[Window]
    keep: np.ndarray


def choose_windows(dataset: DataSet, split: str, *, width: int, count: int) -> ScoreSet:
    """Take up to `count` windows of a split, spread evenly, each letter at most once.

    Raises:
        InputError: If the split has nothing to score.
    """
    pieces = dataset.pieces(split)
    ranges = [(p.scored_begin, p.scored_end) for p in pieces]
    windows = plan_windows(ranges, window=width, stride=width)
    if len(windows) > count:
        picks = np.linspace(0, len(windows) - 1, count).round().astype(int)
        windows = [windows[i] for i in picks]
    letters = [p.tokens for p in pieces]
    scored = dataset.tokenizer.is_scored
    targets = [letters[w.piece][w.scored : w.end] for w in windows]
    keep = scored[np.concatenate(targets)] if targets else np.zeros(0, dtype=bool)
    if not keep.any():
        raise InputError(f"{dataset.folder}: the {split} split has no letter to score")
    return ScoreSet(letters=letters, windows=windows, keep=keep)


def score_set_bits(
    model: Any, chosen: ScoreSet, *, width: int, batch_size: int, topology: Topology
) -> float:
    """Bits of a letter of the chosen windows: mean over letters."""
    nats = score_windows(
        model,
        chosen.letters,
        chosen.windows,
        width=width,
        batch_size=batch_size,
        bos=BOS_ID,
        pad=PAD_ID,
        topology=topology,
    )
    return bits(float(nats[chosen.keep].mean(dtype=np.float64)))
