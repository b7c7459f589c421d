"""Where each position of a batch stands in its document: shared by the layers that look back."""

import torch
from torch import Tensor


class DocumentPositions:
    """Set from the token ids at the start of a forward pass, read by the layers above.

    Attributes:
        since_bos_BS: Positions since the last BOS [batch, sequence], 0 at it.
        packed: Whether any row has a BOS past its first position.
    """

    def __init__(self, bos_id: int) -> None:
        self._bos_id = bos_id
        self.since_bos_BS = torch.zeros((0, 0), dtype=torch.long)
        self.packed = False

    def set(self, ids_BS: Tensor) -> None:
        """Find the documents of a batch of token ids [batch, sequence]."""
        is_bos = ids_BS == self._bos_id
        index = torch.arange(ids_BS.shape[1], device=ids_BS.device).expand_as(ids_BS)
        self.since_bos_BS = index - torch.where(is_bos, index, 0).cummax(dim=1).values
        self.packed = bool(is_bos[:, 1:].any())
