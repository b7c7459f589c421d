"""Core attention through PyTorch's scaled-dot-product kernels.

megatron's own local attention materialises the scores [batch, heads, sequence, sequence]; the
kernel does not, and is several times faster on a CPU. Used where Transformer Engine is not.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


class SdpaAttention(torch.nn.Module):
    """Causal attention, with an optional mask that keeps packed documents apart."""

    def __init__(self, config: Any, softmax_scale: float | None = None, **_: Any) -> None:
        super().__init__()
        if config.attention_dropout != 0.0 or config.context_parallel_size != 1:
            raise ValueError("SdpaAttention: no attention dropout, no context parallelism")
        self.softmax_scale = softmax_scale

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        /,
        *,
        attn_mask_type: Any = None,
        attention_bias: Tensor | None = None,
        packed_seq_params: Any = None,
    ) -> Tensor:
        """Attend.

        Args:
            query: [sequence, batch, query heads, head width].
            key: [sequence, batch, query groups, head width].
            value: Like `key`.
            attention_mask: [batch, 1, sequence, sequence], True where attention is forbidden (it
                replaces the causal mask, so it must contain it); None for plain causal.
            attn_mask_type: Ignored: always causal.
            attention_bias: Must be None.
            packed_seq_params: Must be None; packing is by mask here.

        Returns:
            [sequence, batch, query heads x head width].
        """
        if attention_bias is not None or packed_seq_params is not None:
            raise ValueError("SdpaAttention takes no bias and no packed_seq_params")
        q, k, v = (tensor.permute(1, 2, 0, 3) for tensor in (query, key, value))
        out = F.scaled_dot_product_attention(
            q,
            k,
            v,
            attn_mask=None if attention_mask is None else ~attention_mask,
            is_causal=attention_mask is None,
            scale=self.softmax_scale,
            enable_gqa=q.shape[1] != k.shape[1],
        )
        return out.permute(2, 0, 1, 3).flatten(2)


def document_mask(document_BS: Tensor) -> Tensor | None:
    """Build the mask of packed rows, or None where plain causal attention is the same.

    Args:
        document_BS: Document number of each position [batch, sequence], rising along a row; the
            padding at a row's end counts as a document of its own.

    Returns:
        [batch, 1, sequence, sequence], True where a position may not look.
    """
    if bool((document_BS == document_BS[:, :1]).all()):
        return None
    other = document_BS[:, None, :, None] != document_BS[:, None, None, :]
    length = document_BS.shape[1]
    future = torch.ones(length, length, dtype=torch.bool, device=document_BS.device).triu(1)
    return other | future
