"""megatron-core's top-k router with the balance losses of `balance`.

Import only after the engine has been chosen: this module imports megatron-core.
"""

from typing import Any

import torch
from megatron.core.transformer.moe.moe_utils import (
    MoEAuxLossAutoScaler,
    topk_routing_with_score_function,
)
from megatron.core.transformer.moe.router import TopKRouter
from torch import Tensor

from genomoe.models.balance import LoadBalance


class BalancedRouter(TopKRouter):
    """Top-k of FP32 logits, softmax over the chosen (Mixtral), losses attached in training."""

    def __init__(self, config: Any, pg_collection: Any = None, is_mtp_layer: bool = False) -> None:
        super().__init__(config, pg_collection=pg_collection, is_mtp_layer=is_mtp_layer)
        self._balance: LoadBalance | None = None
        self._layer = 0

    def bind(self, balance: LoadBalance, layer: int) -> None:
        """Say where this router's losses and counts go."""
        self._balance, self._layer = balance, layer

    def routing(self, logits: Tensor, padding_mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Choose experts.

        Args:
            logits: [sequence, batch, experts], FP32.
            padding_mask: [sequence, batch], True for padding (upstream's polarity).

        Returns:
            Weights of the chosen experts and the routing map, both [tokens, experts].
        """
        logits = logits.view(-1, self.config.num_moe_experts)
        probs, routing_map = topk_routing_with_score_function(
            logits, self.topk, use_pre_softmax=False, score_function="softmax"
        )
        # Under activation recompute the first pass runs without gradients and is not counted.
        if self.training and torch.is_grad_enabled() and self._balance is not None:
            real = None if padding_mask is None else ~padding_mask.reshape(-1)
            losses = self._balance.losses(self._layer, logits, routing_map, real)
            probs = MoEAuxLossAutoScaler.apply(probs, losses)
        return probs, routing_map
