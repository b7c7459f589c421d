"""Load balance of the experts over the global batch, whatever the layout.

The balance loss of a layer is E * sum_e f_e * P_e (Fedus et al. 2021, Switch Transformers,
arXiv 2101.03961, eq. 4-6): f_e the share of the routed tokens that expert e got, P_e its mean
router probability. Only P carries a gradient, so f can come from elsewhere, and here it is that
of the *previous* global batch. Taking f from the batch at hand would need every micro-batch's
routing before the first backward pass; taking it from the micro-batch at hand would make the
gradient depend on ranks and accumulation (and megatron-core 0.19's `global_aux_loss` is divided
by the data-parallel size besides). One batch of delay costs nothing: the load moves slowly, and
one all-reduce a step replaces one a layer. The loss that is *reported* uses the f and P of the
same batch.

Sums, not means, go into the gradient: megatron divides all gradients by the global number of
routed tokens at the end of the step.
"""

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class BalanceReport:
    """What the routers of all layers did with one global batch.

    Attributes:
        load: Share of the assignments by layer and expert, rows sum to 1 [layers, experts].
        entropy: Mean entropy of a token's router probabilities by layer, in nats [layers].
        aux_loss: Balance loss, mean over layers, before its coefficient; 1.0 is balanced.
        z_loss: Mean squared log-sum-exp of the router logits, mean over layers.
    """

    load: list[list[float]]
    entropy: list[float]
    aux_loss: float
    z_loss: float


class LoadBalance:
    """Balance and z-loss of every expert layer of one model."""

    def __init__(
        self,
        *,
        num_layers: int,
        num_experts: int,
        topk: int,
        aux_loss_coeff: float,
        z_loss_coeff: float,
        device: torch.device,
    ) -> None:
        self.num_experts = num_experts
        self.topk = topk
        self.aux_loss_coeff = aux_loss_coeff
        self.z_loss_coeff = z_loss_coeff
        shape = (num_layers, num_experts)
        self.previous_load = torch.full(shape, 1.0 / num_experts, device=device)
        # One buffer, so that one all-reduce serves the step: by layer [assignments by expert,
        # probability by expert, squared log-sum-exp, entropy, tokens]. FP64: counts stay exact.
        self._sums = torch.zeros(
            (num_layers, 2 * num_experts + 3), dtype=torch.float64, device=device
        )

    def losses(
        self,
        layer: int,
        logits_TE: Tensor,
        routing_map_TE: Tensor,
        real_T: Tensor | None,
    ) -> Tensor:
        """Add one micro-batch of one layer to the sums and return its two losses, summed.

        Args:
            layer: Index among the expert layers.
            logits_TE: Router logits [tokens, experts], FP32.
            routing_map_TE: Chosen experts [tokens, experts], bool.
            real_T: False for padding [tokens]; None if there is none.

        Returns:
            Scalar: coefficient times loss, times the number of real tokens.
        """
        log_z = torch.logsumexp(logits_TE, dim=-1)
        probs = torch.exp(logits_TE - log_z[:, None])
        square = log_z.square()
        routed = routing_map_TE
        if real_T is not None:
            probs = probs * real_T[:, None]
            square = square * real_T
            routed = routed & real_T[:, None]
        prob_sum = probs.sum(dim=0)
        self._count(layer, logits_TE, log_z, probs, square, routed, real_T)
        aux = self.num_experts * torch.dot(self.previous_load[layer], prob_sum)
        return self.aux_loss_coeff * aux + self.z_loss_coeff * square.sum()

    @torch.no_grad()
    def _count(
        self,
        layer: int,
        logits_TE: Tensor,
        log_z: Tensor,
        probs: Tensor,
        square: Tensor,
        routed: Tensor,
        real_T: Tensor | None,
    ) -> None:
        experts = self.num_experts
        sums = self._sums[layer]
        sums[:experts] += routed.sum(dim=0)
        sums[experts : 2 * experts] += probs.sum(dim=0)
        sums[-3] += square.sum()
        # Entropy = log Z - sum p * logit; padding rows have p = 0 and are left out of log Z.
        weight = log_z if real_T is None else log_z * real_T
        sums[-2] += weight.sum() - (probs * logits_TE).sum()
        sums[-1] += len(log_z) if real_T is None else real_T.sum()

    def finish_step(self, group: dist.ProcessGroup) -> BalanceReport:
        """Sum over the data-parallel ranks, keep the load for the next step, start anew.

        Args:
            group: All ranks that routed tokens of this global batch.
        """
        dist.all_reduce(self._sums, group=group)
        experts = self.num_experts
        tokens = self._sums[:, -1].clamp(min=1.0)
        load = self._sums[:, :experts] / (tokens * self.topk)[:, None]
        mean_prob = self._sums[:, experts : 2 * experts] / tokens[:, None]
        report = BalanceReport(
            load=load.tolist(),
            entropy=(self._sums[:, -2] / tokens).tolist(),
            aux_loss=float((experts * (load * mean_prob).sum(dim=1)).mean()),
            z_loss=float((self._sums[:, -3] / tokens).mean()),
        )
        if float(self._sums[:, -1].min()) > 0:
            self.previous_load = load.float()
        self._sums.zero_()
        return report
