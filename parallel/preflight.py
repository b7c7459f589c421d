"""Combinations that run and are wrong, refused with the reason.

megatron-core 0.19.2 computes wrong gradients in silence for some settings (measured on CPU ranks
against one rank). `wrap` passes what it is about to ask for through `gradient_errors`, so that no
later change can bring one back.
"""

from dataclasses import dataclass
from typing import Literal

Sharding = Literal["no_shard", "optim", "optim_grads", "optim_grads_params"]


@dataclass(frozen=True, kw_only=True)
class GradientOptions:
    """What decides whether upstream's gradients are right.

    Attributes:
        sharding: Megatron-FSDP's strategy; None under DDP.
        per_token_loss: Gradients are sums, divided once by the global token count.
        main_grads_dtype: Type in which gradients are kept, as torch prints it.
        grad_comm_dtype: Type in which they travel; None: as they are kept.
        dp_size: Data-parallel ranks.
        ep_size: Expert-parallel ranks.
        num_microbatches: Accumulation.
    """

    sharding: Sharding | None
    per_token_loss: bool
    main_grads_dtype: str
    grad_comm_dtype: str | None
    dp_size: int
    ep_size: int
    num_microbatches: int

    @property
    def has_single_rank_group(self) -> bool:
        """Whether some gradients are 'reduced' over a group of one rank."""
        return self.dp_size == 1 or self.dp_size == self.ep_size


def gradient_errors(options: GradientOptions) -> list[str]:
    """List what megatron-core 0.19.2 gets wrong about these options."""
    errors = []
    shards_gradients = options.sharding in ("optim_grads", "optim_grads_params")
    if options.sharding == "no_shard" and options.ep_size > 1:
        errors.append(
            "Megatron-FSDP no_shard with expert parallelism computes a wrong gradient norm, so "
            "clipping is wrong: use wrap ddp, or fsdp with sharding"
        )
    if shards_gradients and options.has_single_rank_group:
        if options.grad_comm_dtype not in (None, options.main_grads_dtype):
            errors.append(
                "Megatron-FSDP with another communication type than the gradients' doubles the "
                "gradients of a one-rank group: leave megatron_fsdp_grad_comm_dtype unset"
            )
        if not options.per_token_loss and options.num_microbatches > 1:
            errors.append(
                "Megatron-FSDP with accumulation and without calculate_per_token_loss scales the "
                "earlier micro-batches of a one-rank group twice: keep the per-token loss"
            )
    return errors


def engine_errors(engine: str, expert_backend: str, *, has_transformer_engine: bool) -> list[str]:
    """List what an engine cannot run.

    Args:
        engine: `cpu` or `gpu`.
        expert_backend: Resolved: `sequential` or `te_grouped`.
        has_transformer_engine: Whether it is installed.
    """
    if expert_backend != "te_grouped":
        return []
    if engine == "cpu":
        return [
            "model.expert-backend te_grouped needs a GPU and Transformer Engine: "
            "use sequential on CPU ranks"
        ]
    if not has_transformer_engine:
        return [
            "model.expert-backend te_grouped needs Transformer Engine, which is not installed: "
            'install the "gpu" extra, or use --model.expert-backend sequential'
        ]
    return []
