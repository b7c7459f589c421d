"""What the evaluation is told. Without torch, so that --help and a wrong flag answer at once."""

from dataclasses import dataclass
from pathlib import Path

import tyro

from genomoe.data.errors import InputError


@dataclass(frozen=True, kw_only=True)
class EvalOptions:
    """Score held-out letters with a trained model, beside baselines from its train split."""

    run: tyro.conf.Positional[Path]
    """Run folder (its best checkpoint by validation, else its newest) or checkpoint folder."""
    split: str | None = None
    """Split of the run's data set: test (default), valid, or train (labelled TRAIN DATA)."""
    fasta: Path | None = None
    """FASTA file to score in place of a split, plain or gzip; whole records."""
    data: Path | None = None
    """Data set folder, when it is no longer where the run was trained from."""
    window: int | None = None
    """Letters that the model sees at once, at most; default: the trained sequence length."""
    stride: int | None = None
    """Letters scored in one window; the others are context. Default: half the window."""
    batch_size: int | None = None
    """Windows of one forward pass on one rank; default: about 16,384 letters. Changes speed and
    memory, not the score."""


@dataclass(frozen=True, kw_only=True)
class WindowPlan:
    """Resolved sizes: letters of a window, letters scored in it, windows of a forward pass."""

    window: int
    stride: int
    batch_size: int


_BATCH_LETTERS = 16_384


def plan_sizes(options: EvalOptions, seq_length: int) -> WindowPlan:
    """Resolve window, stride and batch size.

    Args:
        options: As given.
        seq_length: Letters of a training row.

    Raises:
        InputError: If one of them cannot be.
    """
    window = seq_length if options.window is None else options.window
    if not 1 <= window <= seq_length:
        raise InputError(
            f"--window is {window}: use 1 to {seq_length}, the length this model was trained at"
        )
    stride = max(1, window // 2) if options.stride is None else options.stride
    if not 1 <= stride <= window:
        raise InputError(f"--stride is {stride}: use 1 to the window, {window}")
    batch = max(1, _BATCH_LETTERS // window) if options.batch_size is None else options.batch_size
    if batch < 1:
        raise InputError(f"--batch-size is {batch}: use 1 or more")
    return WindowPlan(window=window, stride=stride, batch_size=batch)
