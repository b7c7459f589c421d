"""How a run is spread over ranks: sizes and rules, without torch.

The model is replicated (DDP) or sharded (Megatron-FSDP, ZeRO-3) over all ranks for its dense
parameters; the experts are first split over `expert_model_parallel_size` ranks and their
remaining copies are sharded over the `world_size / expert_model_parallel_size` others.
"""

from dataclasses import dataclass
from typing import Literal

Engine = Literal["cpu", "gpu"]
Wrap = Literal["auto", "ddp", "fsdp"]
Dispatcher = Literal["allgather", "alltoall"]
Recompute = Literal["none", "core_attn", "moe", "full"]


@dataclass(frozen=True, kw_only=True)
class ParallelConfig:
    """Layout of one run. Nothing here changes what is computed, only where."""

    engine: Engine = "cpu"
    """`gpu`: NCCL and Transformer Engine. `cpu`: gloo, FP32, the same code path."""
    expert_model_parallel_size: int = 1
    """Ranks over which the experts are split; divides both experts and ranks."""
    wrap: Wrap = "auto"
    """`fsdp` shards weights, gradients and optimizer state; `ddp` keeps whole copies. `auto`:
    fsdp on several GPUs, else ddp: on one rank and between CPU ranks sharding only costs."""
    dispatcher: Dispatcher = "alltoall"
    """How tokens reach the experts of other ranks."""
    recompute: Recompute = "none"
    """Activations thrown away in the forward pass and computed again in the backward pass."""
    timeout_seconds: int = 600
    """A collective that waits longer than this ends the run."""

    def wrap_for(self, world_size: int) -> Literal["ddp", "fsdp"]:
        """Resolve `auto` for a number of ranks."""
        if self.wrap != "auto":
            return self.wrap
        return "fsdp" if self.engine == "gpu" and world_size > 1 else "ddp"


def layout_errors(config: ParallelConfig, *, world_size: int, num_moe_experts: int) -> list[str]:
    """Say what about a layout cannot work, one line a fault.

    Args:
        config: The layout.
        world_size: Ranks of the whole run.
        num_moe_experts: Experts of one layer; 0 for a dense model.
    """
    ep = config.expert_model_parallel_size
    errors = []
    if config.timeout_seconds < 1:
        errors.append(f"parallel.timeout-seconds is {config.timeout_seconds}: use 1 or more")
    if ep < 1:
        errors.append(f"parallel.expert-model-parallel-size is {ep}: use 1 or more")
        return errors
    if world_size % ep:
        errors.append(
            f"parallel.expert-model-parallel-size {ep} does not divide the {world_size} rank(s): "
            f"use one of {_divisors(world_size)}, or another number of ranks"
        )
    if num_moe_experts == 0 and ep > 1:
        errors.append(f"parallel.expert-model-parallel-size is {ep}, but the model is dense: use 1")
    elif num_moe_experts % ep:
        errors.append(
            f"parallel.expert-model-parallel-size {ep} does not divide the {num_moe_experts} "
            f"experts: use one of {_divisors(num_moe_experts)}"
        )
    return errors


def _divisors(n: int) -> list[int]:
    return [d for d in range(1, n + 1) if n % d == 0]
