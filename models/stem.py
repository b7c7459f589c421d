"""The input stem: each letter's embedding plus those of the k-mers that end there.

A model of single letters spends its first thousands of steps on learning what a table of k-mers
knows at once. No k-mer reaches across a document's BOS, so packed documents stay apart and every
window is scored as if it stood alone.
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
        bos_id: int,
        first_letter_id: int,
    ) -> None:
        super().__init__()
        self.letters = letters
        self._bos_id = bos_id
        self._first_letter_id = first_letter_id
        self._buckets = kmer_buckets
        self.kmers = torch.nn.ModuleDict(
            {
                str(order): torch.nn.Embedding(kmer_rows(order, kmer_buckets), hidden_size)
                for order in kmer_orders
            }
        )

    @property
    def weight(self) -> Tensor:
        """The letter embedding, for a tied output matrix."""
        return self.letters.weight  # type: ignore[return-value]

    def forward(self, ids_BS: Tensor) -> Tensor:
        """Embed token ids [batch, sequence]; returns [batch, sequence, hidden]."""
        x = self.letters(ids_BS)
        since_bos = positions_since(ids_BS, self._bos_id)
        for name, table in self.kmers.items():
            rows, whole = self._rows(ids_BS, since_bos, int(name))
            x = x + table(rows) * whole[..., None].to(x.dtype)
        return x

    def _rows(self, ids_BS: Tensor, since_bos_BS: Tensor, order: int) -> tuple[Tensor, Tensor]:
        """Number the k-mer that ends at each position; say where it is whole and plain ACGT."""
        digits = ids_BS - self._first_letter_id
        plain = (digits >= 0) & (digits < 4)
        digits = digits.clamp(0, 3)
        number = torch.zeros_like(ids_BS)
        whole = since_bos_BS >= order
        for back in range(order):
            number = number + shift_right(digits, back) * 4**back
            whole = whole & shift_right(plain, back)
        rows = kmer_rows(order, self._buckets)
        if 4**order > rows:
            number = (number * _HASH).bitwise_right_shift(20).remainder(rows)
        return number * whole, whole


def positions_since(ids_BS: Tensor, bos_id: int) -> Tensor:
    """Positions since the last BOS [batch, sequence], 0 at it."""
    index = torch.arange(ids_BS.shape[1], device=ids_BS.device).expand_as(ids_BS)
    return index - torch.where(ids_BS == bos_id, index, 0).cummax(dim=1).values


def shift_right(x_BS: Tensor, by: int) -> Tensor:
    """Shift along the sequence: position i gets the value of i - `by`, or 0."""
    length = x_BS.shape[1]
    by = min(by, length)  # a row may be shorter than a word
    return x_BS if by == 0 else F.pad(x_BS[:, : length - by], (by, 0))
