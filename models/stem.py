"""The input stem: letters, k-mers and a short causal convolution, within one document.

A model of single letters spends its first thousands of steps to learn what a table of k-mers
knows at once. The stem adds to each letter's embedding those of the k-mers that end there and
then mixes the last few positions with a depthwise convolution. Neither looks across a document's
BOS, so packed documents stay apart and every window is scored as if it stood alone.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from genomoe.models.flops import kmer_rows

# Odd constant of Knuth's multiplicative hash (2^64 / golden ratio), as a signed 64-bit number.
_HASH = -7046029254386353131


class LetterStem(torch.nn.Module):
    """Takes the place of megatron's word embedding: ids [batch, sequence] to [.., hidden]."""

    def __init__(
        self,
        letters: torch.nn.Module,
        *,
        hidden_size: int,
        kmer_orders: tuple[int, ...],
        kmer_buckets: int,
        conv_width: int,
        bos_id: int,
        first_letter_id: int,
    ) -> None:
        super().__init__()
        self.letters = letters
        self.bos_id = bos_id
        self.first_letter_id = first_letter_id
        self.kmers = torch.nn.ModuleDict(
            {
                str(order): torch.nn.Embedding(kmer_rows(order, kmer_buckets), hidden_size)
                for order in kmer_orders
            }
        )
        self.conv = DepthwiseConv(hidden_size, conv_width) if conv_width else None

    @property
    def weight(self) -> Tensor:
        """The letter embedding, for a tied output matrix."""
        return self.letters.weight  # type: ignore[return-value]

    def forward(self, ids_BS: Tensor) -> Tensor:  # noqa: N803
        """Embed token ids [batch, sequence]; returns [batch, sequence, hidden]."""
        x = self.letters(ids_BS)
        since_bos = positions_since(ids_BS, self.bos_id)
        for name, table in self.kmers.items():
            rows, whole = self._kmer_rows(ids_BS, since_bos, int(name), table.num_embeddings)
            x = x + table(rows) * whole[..., None]
        return x if self.conv is None else x + self.conv(x, since_bos)

    def _kmer_rows(
        self, ids_BS: Tensor, since_bos: Tensor, order: int, rows: int  # noqa: N803
    ) -> tuple[Tensor, Tensor]:
        """Number the k-mer that ends at each position; say where it is whole and plain ACGT."""
        digits = ids_BS - self.first_letter_id
        plain = (digits >= 0) & (digits < 4)
        digits = digits.clamp(0, 3)
        number = torch.zeros_like(ids_BS)
        whole = since_bos >= order
        for back in range(order):
            number = number + shift_right(digits, back, 0) * 4**back
            whole = whole & shift_right(plain, back, False)
        if 4**order > rows:
            number = (number * _HASH).bitwise_right_shift(20).remainder(rows)
        return number * whole, whole.to(torch.get_default_dtype())


class DepthwiseConv(torch.nn.Module):
    """A causal convolution of each channel alone, with taps that stop at the document's start."""

    def __init__(self, hidden_size: int, width: int) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(width, hidden_size))

    def forward(self, x_BSH: Tensor, since_bos_BS: Tensor) -> Tensor:  # noqa: N803
        """Mix the last `width` positions; tap 0 is the position itself."""
        out = x_BSH * self.weight[0]
        for back in range(1, len(self.weight)):
            inside = (since_bos_BS >= back)[..., None]
            out = out + shift_right(x_BSH, back, 0.0) * inside * self.weight[back]
        return out


def positions_since(ids_BS: Tensor, bos_id: int) -> Tensor:  # noqa: N803
    """Positions since the last BOS, 0 at it (and 0-based from the row's start before any)."""
    index = torch.arange(ids_BS.shape[1], device=ids_BS.device).expand_as(ids_BS)
    last_bos = torch.where(ids_BS == bos_id, index, 0).cummax(dim=1).values
    return index - last_bos


def shift_right(x: Tensor, by: int, fill: float) -> Tensor:
    """Shift along dim 1: position i gets the value of i - `by`, or `fill`."""
    if by == 0:
        return x
    padding = [0, 0] * (x.dim() - 2) + [by, 0]
    return F.pad(x[:, : x.shape[1] - by], padding, value=fill)
