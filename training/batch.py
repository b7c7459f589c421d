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
    document = document_of_each(document, padding)
    return MicroBatch(
        samples=[int(s) for s in samples],
        tokens=tokens,
        labels=torch.from_numpy(rows["labels"]).to(device),
        weights=torch.from_numpy(rows["weights"]).to(device),
        attention_mask=document_mask(document),
        padding_mask=padding if bool(padding.any()) else None,
    )


def document_of_each(document_BS: torch.Tensor, padding_BS: torch.Tensor) -> torch.Tensor:
    """Number the documents of rows so that no letter looks at padding.

    Padding at a row's end, where nothing real can look at it, counts as part of the last document:
    rows of one document then need no mask and stay on the fast causal path. Any other padding is
    a document of its own.

    Args:
        document_BS: Document number of each position [rows, sequence].
        padding_BS: True for padding [rows, sequence].

    Returns:
        Document numbers [rows, sequence], for `document_mask`.
    """
    index = torch.arange(document_BS.shape[1], device=document_BS.device)
    last_real = torch.where(padding_BS, 0, index).amax(dim=1, keepdim=True)
    at_end = padding_BS & (index > last_real)
    own = document_BS.amin() - 1
    document = torch.where(padding_BS, own, document_BS)
    return torch.where(at_end, document.gather(1, last_real), document)


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
