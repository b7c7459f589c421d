"""Wrap a model for data-parallel training: Megatron-FSDP (ZeRO-3) or DDP.

The one place that chooses upstream's options. Two of them decide whether gradients are right:
`calculate_per_token_loss` in the model's config (no scaling inside the buffers; the sum is
divided once by the global token count) and FP32 main gradients without another communication
type. What 0.19.2 computes wrongly in silence is refused here, on the very objects that upstream
is about to get: see `preflight`.
"""

from typing import Any, Literal

import torch

from genomoe.parallel.config import ParallelConfig
from genomoe.parallel.preflight import read_options, upstream_errors
from genomoe.parallel.topology import Topology


def wrap(model: torch.nn.Module, config: ParallelConfig, topology: Topology) -> Any:
    """Wrap `model` so that its gradients are summed over the data-parallel ranks.

    Args:
        model: A megatron-core model on `topology.device`, with its `config` attribute.
        config: Layout of the run.
        topology: Process groups.

    Returns:
        megatron-core's wrapper: call it as the model; it owns the gradient buffers.

    Raises:
        ValueError: If upstream would compute something wrong with these options.
    """
    ddp_config = wrapper_config(config.wrap_for(topology.info.world_size))
    check_options(model, ddp_config, topology)
    return (_fsdp if ddp_config.use_megatron_fsdp else _ddp)(model, ddp_config, topology)


def wrapper_config(kind: Literal["ddp", "fsdp"]) -> Any:
    """Choose upstream's options: its `DistributedDataParallelConfig`."""
    from megatron.core.distributed import DistributedDataParallelConfig

    if kind == "ddp":
        return DistributedDataParallelConfig(
            grad_reduce_in_fp32=True,
            use_distributed_optimizer=False,
            overlap_grad_reduce=False,
            average_in_collective=False,
        )
    return DistributedDataParallelConfig(
        use_megatron_fsdp=True,
        use_distributed_optimizer=True,
        data_parallel_sharding_strategy="optim_grads_params",
        overlap_grad_reduce=True,
        overlap_param_gather=True,
        average_in_collective=False,
        # `grad_reduce_in_fp32` does not reach FSDP's buffers; this does.
        megatron_fsdp_main_grads_dtype=torch.float32,
        megatron_fsdp_main_params_dtype=torch.float32,
    )


def check_options(model: Any, ddp_config: Any, topology: Topology) -> None:
    """Refuse what upstream is known to compute wrongly.

    Raises:
        ValueError: With the first reason.
    """
    options = read_options(
        model.config, ddp_config, dp_size=topology.dp_size, ep_size=topology.ep_size
    )
    for error in upstream_errors(options):
        raise ValueError(error)


def _ddp(model: Any, ddp_config: Any, topology: Topology) -> Any:
    from megatron.core.distributed import DistributedDataParallel

    wrapped = DistributedDataParallel(
        model.config, ddp_config, model, pg_collection=topology.groups
    )
    wrapped.broadcast_params()
    return wrapped


def _fsdp(model: Any, ddp_config: Any, topology: Topology) -> Any:
    from megatron.core.distributed.fsdp.mcore_fsdp_adapter import FullyShardedDataParallel

    return FullyShardedDataParallel(
        config=model.config,
        ddp_config=ddp_config,
        module=model,
        device=topology.device,
        pg_collection=topology.groups,
    )
