"""Wrap a model for data-parallel training: Megatron-FSDP (ZeRO-3) or DDP.

The one place that chooses upstream's options. Two of them decide whether gradients are right:
`calculate_per_token_loss` in the model's config (no scaling inside the buffers; the sum is
divided once by the global token count) and FP32 main gradients without another communication
type. Other combinations of 0.19.2 give wrong gradients silently: see `preflight`.
"""

from typing import Any

import torch

from genomoe.parallel.config import ParallelConfig
from genomoe.parallel.preflight import GradientOptions, Sharding, gradient_errors
from genomoe.parallel.topology import Topology


def wrap(model: torch.nn.Module, config: ParallelConfig, topology: Topology) -> Any:
    """Wrap `model` so that its gradients are summed over the data-parallel ranks.

    Args:
        model: A megatron-core model on `topology.device`, with its `config` attribute.
        config: Layout of the run.
        topology: Process groups.

    Returns:
        megatron-core's wrapper: call it as the model; it owns the gradient buffers.
    """
    if config.wrap_for(topology.info.world_size) == "ddp":
        return _ddp(model, topology)
    return _fsdp(model, topology)


def _ddp(model: Any, topology: Topology) -> Any:
    from megatron.core.distributed import (
        DistributedDataParallel,
        DistributedDataParallelConfig,
    )

    check_gradients(model, topology, sharding=None)
    ddp_config = DistributedDataParallelConfig(
        grad_reduce_in_fp32=True,
        use_distributed_optimizer=False,
        overlap_grad_reduce=False,
        average_in_collective=False,
    )
    wrapped = DistributedDataParallel(
        model.config, ddp_config, model, pg_collection=topology.groups
    )
    wrapped.broadcast_params()
    return wrapped


def _fsdp(model: Any, topology: Topology) -> Any:
    from megatron.core.distributed import DistributedDataParallelConfig
    from megatron.core.distributed.fsdp.mcore_fsdp_adapter import FullyShardedDataParallel

    check_gradients(model, topology, sharding="optim_grads_params")
    ddp_config = DistributedDataParallelConfig(
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
    return FullyShardedDataParallel(
        config=model.config,
        ddp_config=ddp_config,
        module=model,
        device=topology.device,
        pg_collection=topology.groups,
    )


def check_gradients(model: Any, topology: Topology, *, sharding: Sharding | None) -> None:
    """Refuse options whose gradients upstream computes wrongly.

    Raises:
        ValueError: With the first reason.
    """
    options = GradientOptions(
        sharding=sharding,
        per_token_loss=model.config.calculate_per_token_loss,
        main_grads_dtype="torch.float32",
        grad_comm_dtype=None,
        dp_size=topology.dp_size,
        ep_size=topology.ep_size,
        num_microbatches=2,  # accumulation may change on resume: always ask for it
    )
    for error in gradient_errors(options):
        raise ValueError(error)
