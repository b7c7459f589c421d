"""The micro-batches of one step on one rank, and the two numbers that all ranks share."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from genomoe.models.attention import document_mask


@dataclass(frozen=True, kw_only=True)
class MicroBatch:
    """Rows that one rank computes at once, on its device.

    Attributes:
        samples: Global sample index of each row.
        tokens: Input ids [rows, sequence].
        labels: Targets [rows, sequence].
        weights: Loss weight of each target [rows, sequence]; 0 is not scored.
        attention_mask: [rows, 1, sequence, sequence], True where forbidden; None: plain causal.
        padding_mask: [rows, sequence], True for padding; None if there is none.
    """

    samples: list[int]
    tokens: torch.Tensor
    labels: torch.Tensor
    weights: torch.Tensor
    attention_mask: torch.Tensor | None
    padding_mask: torch.Tensor | None

    @property
    def num_tokens(self) -> int:
        """Tokens that are not padding."""
        padding = 0 if self.padding_mask is None else int(self.padding_mask.sum())
        return self.tokens.numel() - padding


def to_micro_batch(
    rows: dict[str, np.ndarray], samples: Sequence[int], *, pad: int, device: torch.device
) -> MicroBatch:
    """Move the loader's arrays to the device and build their masks.

    Args:
        rows: `tokens`, `labels`, `weights`, `document`, each [rows, sequence].
        samples: Global sample index of each row.
        pad: Id of padding.
        device: Where the model is.
    """
    tokens = torch.from_numpy(rows["tokens"]).to(device)
    padding = tokens == pad
    document = torch.from_numpy(rows["document"]).to(device)
    # Padding ends a row, where nothing real can look at it: as part of the last document it
    # needs no mask, and rows of one document stay on the fast causal path.
    last_real = (~padding).sum(dim=1, keepdim=True).clamp(min=1) - 1
    last_document = document.gather(1, last_real)
    document = torch.where(padding, last_document, document)
    return MicroBatch(
        samples=[int(s) for s in samples],
        tokens=tokens,
        labels=torch.from_numpy(rows["labels"]).to(device),
        weights=torch.from_numpy(rows["weights"]).to(device),
        attention_mask=document_mask(document),
        padding_mask=padding if bool(padding.any()) else None,
    )


def global_totals(
    batches: Sequence[MicroBatch], group: Any, device: torch.device
) -> tuple[int, float]:
    """Routed tokens and summed loss weights of the global batch, over all ranks."""
    totals = torch.tensor(
        [
            float(sum(b.num_tokens for b in batches)),
            float(sum(b.weights.sum(dtype=torch.float64) for b in batches)),
        ],
        dtype=torch.float64,
        device=device,
    )
    dist.all_reduce(totals, group=group)
    return int(totals[0]), float(totals[1])
