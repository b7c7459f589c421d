"""One optimizer step, and one rank's view of the loss.

The loss is the weighted sum of the targets' nats over the global sum of weights, whatever the
micro-batches, ranks and packing. megatron divides all gradients once by the global number of
tokens that the loss function reports. Reported are the routed (non-padding) tokens, so that the
balance losses, which are sums over them, come out as means; the letters' sum is multiplied by
N / W, tokens over weights of the global batch, so that it comes out divided by W.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from megatron.core.distributed import finalize_model_grads
from megatron.core.pipeline_parallel import get_forward_backward_func

from genomoe.models.balance import BalanceReport
from genomoe.models.build import BuiltModel
from genomoe.parallel.topology import Topology
from genomoe.training.batch import MicroBatch, global_totals


@dataclass(frozen=True, kw_only=True)
class StepResult:
    """What one step did, the same on every rank.

    Attributes:
        loss: Nats of a scored target, weighted mean over the global batch; None: nothing scored.
        grad_norm: Norm of all gradients before clipping.
        num_tokens: Non-padding tokens of the global batch.
        balance: The routers' doings; None for a dense model.
    """

    loss: float | None
    grad_norm: float
    num_tokens: int
    balance: BalanceReport | None


class TrainStep:
    """Runs forward and backward passes through megatron's schedule, then the optimizer."""

    def __init__(self, built: BuiltModel, wrapped: Any, optimizer: Any, topology: Topology) -> None:
        self._built, self._wrapped = built, wrapped
        self._optimizer, self._topology = optimizer, topology
        config = built.module.config
        config.finalize_model_grads_func = partial(
            finalize_model_grads, pg_collection=topology.groups
        )
        config.grad_scale_func = None
        config.no_sync_func = wrapped.no_sync
        self._forward_backward = get_forward_backward_func()

    def __call__(self, batches: Sequence[MicroBatch]) -> StepResult:
        """Take a step on this rank's micro-batches of the global batch.

        Raises:
            FloatingPointError: If the loss is not finite (the weights are as before) or the
                gradient is not (the weights are lost).
        """
        topology = self._topology
        tokens, weight = global_totals(batches, topology.groups.dp, topology.device)
        if weight == 0.0:
            return StepResult(loss=None, grad_norm=0.0, num_tokens=tokens, balance=None)
        self._wrapped.train()
        self._wrapped.zero_grad_buffer()
        self._optimizer.zero_grad()
        sums = self._backward(batches, scale=tokens / weight)
        total = torch.stack(sums).sum()
        dist.all_reduce(total, group=topology.groups.dp)
        loss = float(total) / weight
        if not torch.isfinite(total):
            raise FloatingPointError(f"the loss is {loss}")
        _, grad_norm, _ = self._optimizer.step()
        if not math.isfinite(grad_norm):
            raise FloatingPointError(f"the gradient norm is {float(grad_norm)}")
        balance = self._built.balance
        return StepResult(
            loss=loss,
            grad_norm=float(grad_norm),
            num_tokens=tokens,
            balance=balance.finish_step(topology.groups.dp) if balance else None,
        )

    def _backward(self, batches: Sequence[MicroBatch], scale: float) -> list[torch.Tensor]:
        """Accumulate gradients; returns the weighted nats of each micro-batch, FP64."""
        sums: list[torch.Tensor] = []

        def forward_step(iterator: Iterator[MicroBatch], model: Any) -> tuple[Any, Any]:
            batch = next(iterator)
            self._built.dropout.samples = batch.samples
            nats = model(
                batch.tokens,
                None,
                batch.attention_mask,
                labels=batch.labels,
                padding_mask=batch.padding_mask,
            )
            return nats, partial(_loss, batch, scale, sums)

        self._forward_backward(
            forward_step_func=forward_step,
            data_iterator=iter(batches),
            model=[self._wrapped],
            num_microbatches=len(batches),
            seq_length=batches[0].tokens.shape[1],
            micro_batch_size=batches[0].tokens.shape[0],
            forward_only=False,
        )
        return sums


def _loss(
    batch: MicroBatch, scale: float, sums: list[torch.Tensor], nats: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, dict[str, torch.Tensor]]:
    weighted = nats.float() * batch.weights
    sums.append(weighted.detach().sum(dtype=torch.float64))
    count = torch.tensor(batch.num_tokens, dtype=torch.int, device=nats.device)
    return weighted.sum() * scale, count, {}
