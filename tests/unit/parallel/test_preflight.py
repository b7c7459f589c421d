import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from genomoe.parallel.config import ParallelConfig
from genomoe.parallel.preflight import (
    KNOWN,
    UpstreamOptions,
    engine_errors,
    read_options,
    upstream_errors,
)

BF16, FP32 = "torch.bfloat16", "torch.float32"


@pytest.fixture(scope="module")
def asked(topology: Any) -> Callable[..., UpstreamOptions]:
    """What `build` and `wrap` really ask for, with fields changed; by default 4 ranks, EP 2."""
    from genomoe.parallel.wrap import wrapper_config
    from tests.unit.models import tiny

    model = {0: tiny.build(topology, num_moe_experts=0), 4: tiny.build(topology)}

    def options(*, kind: str = "fsdp", dp: int = 4, ep: int = 2, **fields: Any) -> UpstreamOptions:
        experts = fields.pop("experts", 4)
        config = model[experts].module.config
        read = read_options(config, wrapper_config(kind), dp_size=dp, ep_size=ep)
        parts = {}
        for part in ("model", "wrap"):
            known = {field.name for field in dataclasses.fields(getattr(read, part))}
            mine = {name: fields.pop(name) for name in sorted(known & set(fields))}
            parts[part] = dataclasses.replace(getattr(read, part), **mine)
        assert not fields, f"{fields} is read nowhere"
        return dataclasses.replace(read, **parts)

    return options


NO_SHARD = {"data_parallel_sharding_strategy": "no_shard"}
COMM = {"megatron_fsdp_grad_comm_dtype": BF16}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"kind": "ddp"},
        {"dp": 1, "ep": 1},
        {"ep": 4},
        {"experts": 0, "ep": 1},
        {"kind": "ddp", "experts": 0, "ep": 1},
        {"params_dtype": BF16},
        {"params_dtype": BF16, "kind": "ddp"},
        {"moe_z_loss_coeff": 0.0},
        # Wrong with expert parallelism alone.
        {**NO_SHARD, "ep": 1},
        # Wrong only where a gradient is reduced over a group of one rank, and differs in type.
        COMM,
        {"megatron_fsdp_grad_comm_dtype": FP32, "ep": 4},
        # Wrong only where gradients are sharded.
        {**COMM, "data_parallel_sharding_strategy": "optim", "ep": 4},
        {**COMM, "kind": "ddp", "ep": 4},
        # FP32 weights keep FP32 gradients.
        {"megatron_fsdp_main_grads_dtype": None},
        {"kind": "ddp", "grad_reduce_in_fp32": False},
        # A wrapper's option that the other wrapper does not read.
        {"grad_reduce_in_fp32": False, "params_dtype": BF16},
        {"kind": "ddp", "params_dtype": BF16, "megatron_fsdp_main_grads_dtype": BF16},
        {"kind": "ddp", "megatron_fsdp_use_decoupled_grad": True},
        {"kind": "ddp", "moe_single_grouped_weight": True},
    ],
)
def test_right_options(changes: dict[str, Any], asked: Callable[..., UpstreamOptions]) -> None:
    assert upstream_errors(asked(**changes)) == []


WRONG: list[tuple[str, dict[str, Any]]] = [
    ("calculate_per_token_loss", {"calculate_per_token_loss": False}),
    ("calculate_per_token_loss", {"calculate_per_token_loss": False, "kind": "ddp"}),
    ("data_parallel_sharding_strategy", NO_SHARD),
    ("megatron_fsdp_grad_comm_dtype", {**COMM, "ep": 4}),
    ("megatron_fsdp_grad_comm_dtype", {**COMM, "dp": 1, "ep": 1}),
    (
        "megatron_fsdp_grad_comm_dtype",
        {**COMM, "ep": 4, "data_parallel_sharding_strategy": "optim_grads"},
    ),
    ("megatron_fsdp_main_grads_dtype", {"megatron_fsdp_main_grads_dtype": BF16}),
    (
        "megatron_fsdp_main_grads_dtype",
        {"megatron_fsdp_main_grads_dtype": None, "params_dtype": BF16},
    ),
    (
        "grad_reduce_in_fp32",
        {"kind": "ddp", "grad_reduce_in_fp32": False, "params_dtype": BF16},
    ),
    ("megatron_fsdp_use_decoupled_grad", {"megatron_fsdp_use_decoupled_grad": True}),
    ("moe_single_grouped_weight", {"moe_single_grouped_weight": True}),
    ("moe_router_load_balancing_type", {"moe_router_load_balancing_type": "aux_loss"}),
    ("moe_router_load_balancing_type", {"moe_router_load_balancing_type": ["global_aux_loss"]}),
    ("moe_aux_loss_coeff", {"moe_aux_loss_coeff": 1e-2}),
    ("moe_aux_loss_coeff", {"moe_aux_loss_coeff": [1e-2]}),
    ("moe_z_loss_coeff", {"moe_z_loss_coeff": 1e-3}),
    ("moe_router_enable_expert_bias", {"moe_router_enable_expert_bias": True}),
    ("moe_router_score_function", {"moe_router_score_function": "sigmoid"}),
    ("moe_router_pre_softmax", {"moe_router_pre_softmax": True}),
    ("moe_router_group_topk", {"moe_router_group_topk": 2}),
    ("moe_router_topk_scaling_factor", {"moe_router_topk_scaling_factor": 2.0}),
    ("moe_router_fusion", {"moe_router_fusion": True}),
    ("moe_expert_capacity_factor", {"moe_expert_capacity_factor": 1.0}),
]


@pytest.mark.parametrize(("option", "changes"), WRONG)
def test_options_that_are_silently_wrong_upstream(
    option: str, changes: dict[str, Any], asked: Callable[..., UpstreamOptions]
) -> None:
    (error,) = upstream_errors(asked(**changes))
    assert error.startswith(f"megatron-core's {option} is {changes[option]!r}: ")
    assert error.count(": ") == 2 and "\n" not in error, "one line: what, why, the fix"


def test_every_entry_is_tried() -> None:
    assert {known.option for known in KNOWN} == {option for option, _ in WRONG}
    assert len({known.option for known in KNOWN}) == len(KNOWN)


@pytest.mark.parametrize(("option", "changes"), WRONG)
def test_wrap_looks_at_what_upstream_is_handed(
    option: str, changes: dict[str, Any], topology: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Options set on upstream's own objects, whoever sets them, do not get past `wrap`."""
    import torch

    from genomoe.parallel import wrap
    from tests.unit.models import tiny

    module = tiny.build(topology).module
    kind = changes.get("kind", "fsdp")
    ddp_config = wrap.wrapper_config(kind)
    for name, value in changes.items():
        if name not in ("kind", "dp", "ep"):
            holder = module.config if hasattr(module.config, name) else ddp_config
            assert hasattr(holder, name)
            dtype = name.endswith("dtype") and value is not None
            setattr(holder, name, getattr(torch, value.split(".")[1]) if dtype else value)
    monkeypatch.setattr(wrap, "wrapper_config", lambda kind: ddp_config)
    sizes = {"dp": changes.get("dp", 4), "ep": changes.get("ep", 2)}
    ranks = Ranks(info=topology.info, groups=topology.groups, **sizes)
    with pytest.raises(ValueError, match=f"^megatron-core's {option} is "):
        wrap.wrap(module, ParallelConfig(wrap=kind), ranks)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ranks:
    """A topology of several ranks as `wrap` sees it before it refuses: sizes alone."""

    info: Any
    groups: Any
    dp: int
    ep: int

    @property
    def dp_size(self) -> int:
        return self.dp

    @property
    def ep_size(self) -> int:
        return self.ep


def test_engines() -> None:
    assert engine_errors("cpu", "sequential", has_transformer_engine=False) == []
    assert engine_errors("gpu", "te_grouped", has_transformer_engine=True) == []
    (error,) = engine_errors("cpu", "te_grouped", has_transformer_engine=True)
    assert "model.expert-backend te_grouped" in error and "use sequential" in error
    (error,) = engine_errors("gpu", "te_grouped", has_transformer_engine=False)
    assert "not installed" in error and "--model.expert-backend sequential" in error
