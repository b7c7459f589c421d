"""Dropout whose mask is a pure function of (seed, sample, place in the model).

A mask drawn from a per-rank generator depends on how many ranks there are and on what they did
before. Here each sample of a batch seeds its own mask, so a run continues on any number of ranks,
with any micro-batch size, exactly as it would have gone on without the change, and there is no
generator state to save.
"""

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import torch


class SampleDropout:
    """The dropout of one model; `samples` is set before each forward pass."""

    def __init__(self, probability: float, seed: int) -> None:
        self.probability = probability
        self.seed = seed
        self.samples: Sequence[int] = ()

    def apply(self, x_SBH: torch.Tensor, place: int) -> torch.Tensor:
        """Drop entries of `x` and scale up the rest.

        Args:
            x_SBH: Activations [sequence, batch, hidden]; column b belongs to `samples[b]`.
            place: Which dropout of the model this is.

        Raises:
            ValueError: If the batch is not the announced one.
        """
        if self.probability == 0.0:
            return x_SBH
        sequence, batch, hidden = x_SBH.shape
        if batch != len(self.samples):
            raise ValueError(f"dropout: {batch} rows in the batch, {len(self.samples)} announced")
        keep = 1.0 - self.probability
        mask = torch.empty((batch, sequence, hidden), dtype=x_SBH.dtype, device=x_SBH.device)
        for row, sample in enumerate(self.samples):
            generator = torch.Generator(device=x_SBH.device)
            generator.manual_seed(_mask_seed(self.seed, sample, place))
            mask[row].bernoulli_(keep, generator=generator)
        return x_SBH * mask.transpose(0, 1).div_(keep)


def _mask_seed(seed: int, sample: int, place: int) -> int:
    digest = hashlib.blake2b(f"dropout {seed} {sample} {place}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


class EmbeddingDropout(torch.nn.Module):
    """Takes the place of megatron's `embedding_dropout`."""

    def __init__(self, dropout: SampleDropout) -> None:
        super().__init__()
        self._dropout = dropout

    def forward(self, x_SBH: torch.Tensor) -> torch.Tensor:
        """Drop in training, pass in evaluation."""
        return self._dropout.apply(x_SBH, 0) if self.training else x_SBH


def bias_dropout_add(dropout: SampleDropout, place: int) -> Callable[[bool, bool], Any]:
    """Build megatron's bias-dropout-add for one residual branch (biases are off here).

    Args:
        dropout: The model's dropout.
        place: Which branch this is, above 0.
    """

    def handler(training: bool, fused: bool) -> Callable[..., torch.Tensor]:
        def add(
            x_with_bias: tuple[torch.Tensor, torch.Tensor | None],
            residual: torch.Tensor,
            probability: float,
        ) -> torch.Tensor:
            branch = x_with_bias[0]
            return residual + (dropout.apply(branch, place) if training else branch)

        return add

    return handler
