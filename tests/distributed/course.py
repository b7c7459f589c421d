"""The comparison of a run with its reference: by step, and by every tensor's name."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from tests.distributed.hardware import Tolerance

Tensors = dict[str, torch.Tensor]


def gathered(folder: Path) -> Tensors:
    """Put together what the ranks of one run saved under a folder.

    Every row must be there, and copies on several ranks must be equal to the last bit.
    """
    pieces: dict[str, dict[int, torch.Tensor]] = {}
    for path in sorted(folder.glob("*.safetensors")):
        for key, tensor in load_file(path).items():
            name, start = key.rsplit("@", 1)
            if tensor.numel():
                seen = pieces.setdefault(name, {}).setdefault(int(start), tensor)
                assert torch.equal(seen, tensor), f"{name}: copies differ between ranks"
    return {name: _joined(name, parts) for name, parts in sorted(pieces.items())}


def _joined(name: str, parts: dict[int, torch.Tensor]) -> torch.Tensor:
    end = 0
    for start, tensor in sorted(parts.items()):
        assert start == end, f"{name}: rows {end} to {start} are nowhere, or twice"
        end += len(tensor)
    return torch.cat([tensor for _, tensor in sorted(parts.items())])


def steps_apart(got: list[list[float]], want: list[list[float]]) -> float:
    """Largest relative difference between the numbers of two courses, step by step."""
    assert len(got) == len(want)
    return max(
        abs(a - b) / abs(b) if a != b else 0.0
        for ours, theirs in zip(got, want, strict=True)
        for a, b in zip(ours, theirs, strict=True)
    )


def tensors_apart(got: Tensors, want: Tensors) -> tuple[float, str]:
    """Largest difference between tensors of one name, over the largest entry; and that name.

    A tensor that is all zeros in the reference must be so in the other: any difference is then
    infinite.
    """
    assert sorted(got) == sorted(want), set(got) ^ set(want)
    worst, where = 0.0, ""
    for name, theirs in want.items():
        assert got[name].shape == theirs.shape, name
        apart = float((got[name].double() - theirs.double()).abs().max())
        scale = float(theirs.abs().max())
        relative = apart / scale if scale else (float("inf") if apart else 0.0)
        if not relative <= worst:
            worst, where = relative, name
    return worst, where


@dataclass(frozen=True, kw_only=True)
class Difference:
    """How far a run is from its reference, in units of what is tolerated.

    Attributes:
        course: Losses and gradient norms of all steps.
        gradients: Of the last step, before clipping; and the tensor that is farthest off.
        weights: After the last step; and the tensor that is farthest off.
        routing: Whether some step sent another number of tokens to some expert.
    """

    course: float
    gradients: tuple[float, str]
    weights: tuple[float, str]
    routing: bool

    @property
    def largest(self) -> float:
        """The one number that must not be above 1."""
        return max(self.course, self.gradients[0], self.weights[0])


def difference(
    by_rank: list[dict[str, Any]],
    want: dict[str, Any],
    folders: tuple[Path, Path],
    tolerance: Tolerance,
) -> Difference:
    """Compare a run of `tiny_run.train` with its reference.

    Args:
        by_rank: What the ranks of the run under test returned.
        want: What the reference returned.
        folders: Where each saved its tensors.
        tolerance: What differences are measured in.

    Raises:
        AssertionError: If the ranks disagree with each other about a step or a tensor.
    """
    apart = gradients_and_steps(by_rank, want, folders, tolerance)
    weights, name = tensors_apart(*(gathered(folder / "weights") for folder in folders))
    relative = 0.0 if tolerance.weights is None else weights / tolerance.weights
    return replace(apart, weights=(relative, name))


def gradients_and_steps(
    by_rank: list[dict[str, Any]],
    want: dict[str, Any],
    folders: tuple[Path, Path],
    tolerance: Tolerance,
) -> Difference:
    """Compare all but the weights; see `difference`."""
    got = by_rank[0]
    assert all(other == got for other in by_rank), "the ranks disagree about a step"
    gradients, name = tensors_apart(*(gathered(folder / "gradients") for folder in folders))
    return Difference(
        course=steps_apart(got["steps"], want["steps"]) / tolerance.course,
        gradients=(gradients / tolerance.gradients, name),
        weights=(0.0, ""),
        routing=got["loads"] != want["loads"],
    )
