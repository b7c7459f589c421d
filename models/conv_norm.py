"""A norm followed by a short causal convolution: cheap sight of the letters just before.

Each channel mixes its own last few positions, which spares attention the work of finding the
neighbours (Allen-Zhu 2025, "Physics of Language Models: Part 4.1", calls such layers Canon;
So et al. 2021, Primer, arXiv 2109.08668, puts them behind the projections). The taps stop at the
document's BOS, so packed documents stay apart.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from genomoe.models.document_positions import DocumentPositions


class ConvNorm(torch.nn.Module):
    """Takes the place of a layer's input norm: h = norm(x), then h + conv(h)."""

    def __init__(
        self, norm: torch.nn.Module, *, hidden_size: int, width: int, positions: DocumentPositions
    ) -> None:
        super().__init__()
        self.norm = norm
        self.conv = DepthwiseConv(hidden_size, width, positions)

    def forward(self, x_SBH: Tensor) -> Tensor:
        """Normalise and mix [sequence, batch, hidden]."""
        h = self.norm(x_SBH)
        return h + self.conv(h)


class DepthwiseConv(torch.nn.Module):
    """A causal convolution of each channel alone; tap 0 is the position itself."""

    def __init__(self, hidden_size: int, width: int, positions: DocumentPositions) -> None:
        super().__init__()
        self._positions = positions
        self.weight = torch.nn.Parameter(torch.empty(width, hidden_size))

    def forward(self, x_SBH: Tensor) -> Tensor:
        """Mix the last `width` positions of each document [sequence, batch, hidden]."""
        width, length = len(self.weight), len(x_SBH)
        padded = F.pad(x_SBH, (0, 0, 0, 0, width - 1, 0))
        out = x_SBH * self.weight[0]
        for back in range(1, width):
            tap = padded[width - 1 - back : width - 1 - back + length]
            if self._positions.packed:  # in a row of one document the padding is mask enough
                inside = back <= self._positions.since_bos_BS.T
                tap = tap * inside[..., None]
            out = out + tap * self.weight[back]
        return out
