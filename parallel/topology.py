"""Start and stop the process groups of a run; the only reader of the launcher's environment."""

import os
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from genomoe.parallel.config import ParallelConfig


@dataclass(frozen=True, kw_only=True)
class RankInfo:
    """Where this process stands, as the launcher says."""

    rank: int
    local_rank: int
    world_size: int
    local_world_size: int


@dataclass(frozen=True, kw_only=True)
class Topology:
    """The process groups of a run, passed explicitly to whoever communicates."""

    info: RankInfo
    device: torch.device
    groups: Any
    """megatron-core's `ProcessGroupCollection`: tp, pp, cp of size one; dp, ep, expt_dp."""

    @property
    def dp_rank(self) -> int:
        """Rank among those that read different samples (all of them: tensor size is 1)."""
        return dist.get_rank(self.groups.dp)

    @property
    def dp_size(self) -> int:
        """Number of ranks that read different samples."""
        return dist.get_world_size(self.groups.dp)

    @property
    def ep_rank(self) -> int:
        """Rank among those that share one set of experts."""
        return dist.get_rank(self.groups.ep)

    @property
    def ep_size(self) -> int:
        """Number of ranks over which the experts are split."""
        return dist.get_world_size(self.groups.ep)

    @property
    def expert_dp_rank(self) -> int:
        """Rank among those that hold the same experts."""
        return dist.get_rank(self.groups.expt_dp)

    @property
    def is_main(self) -> bool:
        """Whether this rank writes logs and files that exist once."""
        return self.info.rank == 0


def rank_info() -> RankInfo:
    """Read the launcher's environment; without one this process is the only rank."""
    read = os.environ.get
    return RankInfo(
        rank=int(read("RANK", "0")),
        local_rank=int(read("LOCAL_RANK", "0")),
        world_size=int(read("WORLD_SIZE", "1")),
        local_world_size=int(read("LOCAL_WORLD_SIZE", "1")),
    )


def start(config: ParallelConfig, info: RankInfo, *, rendezvous: str | None = None) -> Topology:
    """Join the process groups.

    Args:
        config: Engine and expert-parallel size.
        info: This process's place.
        rendezvous: `file://` or `tcp://` address; by default the launcher's environment, or a
            private store when this is the only rank.
    """
    device = _device(config, info)
    if config.engine == "cpu":
        from genomoe.parallel import cpu_engine

        cpu_engine.install()
    backend = "gloo" if config.engine == "cpu" else "nccl"
    arguments: dict[str, Any] = {
        "backend": backend,
        "rank": info.rank,
        "world_size": info.world_size,
        "timeout": timedelta(seconds=config.timeout_seconds),
    }
    if rendezvous is not None:
        arguments["init_method"] = rendezvous
    elif info.world_size == 1:
        arguments["store"] = dist.HashStore()
    dist.init_process_group(**arguments)
    return Topology(info=info, device=device, groups=_megatron_groups(config))


def _device(config: ParallelConfig, info: RankInfo) -> torch.device:
    if config.engine == "cpu":
        return torch.device("cpu")
    device = torch.device("cuda", info.local_rank)
    torch.cuda.set_device(device)
    return device


def _megatron_groups(config: ParallelConfig) -> Any:
    # Megatron-FSDP still reads the global state for expert names, so the groups are made there
    # once and handed on as a collection; nothing else in genomoe touches the globals.
    from megatron.core import parallel_state
    from megatron.core.process_groups_config import ProcessGroupCollection

    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=1,
        pipeline_model_parallel_size=1,
        expert_model_parallel_size=config.expert_model_parallel_size,
        expert_tensor_parallel_size=1,
    )
    return ProcessGroupCollection.use_mpu_process_groups()


def stop() -> None:
    """Leave the process groups, so that another layout can be started in this process."""
    from megatron.core import parallel_state

    parallel_state.destroy_model_parallel()
    dist.destroy_process_group()
