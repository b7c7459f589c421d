"""AdamW through megatron-core, with our parameter groups and schedule.

Weight decay acts on matrices alone: not on norms, embeddings or the router. The rate is a pure
function of the iteration, so a resumed run needs no scheduler state.
"""

from typing import Any

import torch
from megatron.core.optimizer import OptimizerConfig as MegatronOptimizerConfig
from megatron.core.optimizer import get_megatron_optimizer
from megatron.core.optimizer.optimizer_config import ParamKey

from genomoe.models import names
from genomoe.models.build import BuiltModel
from genomoe.parallel.topology import Topology
from genomoe.training.config import OptimizerConfig, learning_rate


def build_optimizer(
    config: OptimizerConfig, built: BuiltModel, wrapped: Any, topology: Topology
) -> Any:
    """Build megatron-core's optimizer over a wrapped model.

    Args:
        config: Rates and decays.
        built: The model, for its names.
        wrapped: The same model in its DDP or FSDP wrapper.
        topology: Process groups and device.
    """
    dtype = torch.float32 if topology.device.type == "cpu" else torch.bfloat16
    megatron = MegatronOptimizerConfig(
        optimizer="adam",
        lr=config.lr,
        weight_decay=config.weight_decay,
        adam_beta1=config.adam_beta1,
        adam_beta2=config.adam_beta2,
        adam_eps=config.adam_eps,
        clip_grad=config.clip_grad,
        use_distributed_optimizer=wrapped.ddp_config.use_distributed_optimizer,
        bf16=dtype == torch.bfloat16,
        params_dtype=dtype,
    )

    def undecayed(_: torch.nn.Parameter, name: str) -> bool:
        return not names.decays(built.canonical(name))

    return get_megatron_optimizer(
        megatron,
        [wrapped],
        config_overrides={_key(undecayed): {"wd_mult": 0.0}},
        use_gloo_process_groups=False,
        pg_collection=topology.groups,
    )


def _key(predicate: Any) -> ParamKey:
    from megatron.core.optimizer.optimizer_config import ParamWithNamePredicate

    return ParamKey(with_name_predicate=ParamWithNamePredicate(name="undecayed", fn=predicate))


def torch_optimizers(optimizer: Any) -> list[torch.optim.Optimizer]:
    """The PyTorch optimizers inside (megatron makes one for dense and one for expert weights)."""
    parts = getattr(optimizer, "chained_optimizers", [optimizer])
    return [part.optimizer for part in parts if part.optimizer is not None]


def set_schedule(optimizer: Any, config: OptimizerConfig, iteration: int, total: int) -> float:
    """Set rate and decay for one step; returns the rate.

    Args:
        optimizer: Built by `build_optimizer`.
        config: Rates and decays.
        iteration: Steps taken so far.
        total: Steps of the whole run.
    """
    rate = learning_rate(config, iteration, total)
    for part in torch_optimizers(optimizer):
        for group in part.param_groups:
            group["lr"] = rate * group["lr_mult"]
            group["weight_decay"] = config.weight_decay * group["wd_mult"]
    return rate
