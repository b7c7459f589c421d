"""What each refusal of `parallel.preflight` keeps out: the wrong number, seen with it off.

A test that fails here after an upgrade of megatron-core says that upstream has changed: look
whether the number is right now, and drop the refusal.
"""

import math
from typing import Any

import pytest

from genomoe.parallel.preflight import KNOWN
from tests.distributed.preflight_run import Job, run_jobs
from tests.distributed.ranks import run_ranks

pytestmark = pytest.mark.timeout(180)

# FP32 sums in another order; the largest seen here is 1e-7.
SAME = 1e-5
# BF16 keeps 8 bits: a rounded number is off by 2^-9 of itself at most.
BF16 = 2**-8

# Weights so large that the experts have a good part of the gradient (an eighth of its square).
LOUD = {"init_method_std": 0.2}
BARE = {**LOUD, "moe_aux_loss_coeff": 0.0, "moe_z_loss_coeff": 0.0}
SUMS = {"calculate_per_token_loss": False}
COMM = {"megatron_fsdp_grad_comm_dtype": "bfloat16"}
NO_SHARD = {"data_parallel_sharding_strategy": "no_shard"}

# The rows once at full weight, then 16 times at 1/1024 of it: each less than half of a BF16
# gradient's last bit, together 1.6 % of the gradient.
FAINT = 1 / 1024
FADING = (1.0, *[FAINT] * 16)

# Options that our router does not read, one at a time (with what upstream's own checks demand).
UNREAD: dict[str, dict[str, Any]] = {
    "moe_router_load_balancing_type": {"moe_router_load_balancing_type": "aux_loss"},
    "moe_aux_loss_coeff": {
        "moe_aux_loss_coeff": 1.0,
        "moe_router_load_balancing_type": "global_aux_loss",
    },
    "moe_z_loss_coeff": {"moe_z_loss_coeff": 1.0},
    "moe_router_enable_expert_bias": {
        "moe_router_enable_expert_bias": True,
        "moe_router_score_function": "sigmoid",
    },
    "moe_router_score_function": {"moe_router_score_function": "sigmoid"},
    "moe_router_pre_softmax": {"moe_router_pre_softmax": True},
    "moe_router_group_topk": {"moe_router_group_topk": 1, "moe_router_num_groups": 2},
    "moe_router_topk_scaling_factor": {
        "moe_router_topk_scaling_factor": 2.0,
        "moe_router_pre_softmax": True,
    },
    "moe_router_fusion": {"moe_router_fusion": True},
    "moe_expert_capacity_factor": {"moe_expert_capacity_factor": 0.5},
}


def aux(kind: str, coefficient: float, **job: Any) -> Job:
    """A step with upstream's own router and balance loss."""
    upstream = {"moe_router_load_balancing_type": kind, "moe_aux_loss_coeff": coefficient}
    return Job(upstream=upstream, upstream_router=True, model=BARE, **job)


ALONE = {
    "right": Job(wrap="fsdp", model=LOUD, watch_weights=True),
    "right bare": Job(model=BARE),
    "sums, one micro-batch": Job(model=LOUD, upstream=SUMS),
    "sums, two micro-batches": Job(model=LOUD, upstream=SUMS, accumulation=2),
    "comm": Job(wrap="fsdp", model=LOUD, wrapper=COMM),
    "comm, two micro-batches": Job(wrap="fsdp", model=LOUD, wrapper=COMM, accumulation=2),
    "decoupled": Job(
        wrap="fsdp",
        model=LOUD,
        wrapper={"megatron_fsdp_use_decoupled_grad": True},
        watch_weights=True,
    ),
    "fp32 main grads": Job(wrap="fsdp", dtype="bfloat16", weights=FADING),
    "bf16 main grads": Job(
        wrap="fsdp",
        dtype="bfloat16",
        weights=FADING,
        wrapper={"megatron_fsdp_main_grads_dtype": None},
    ),
    "bf16 ddp grads": Job(dtype="bfloat16", weights=FADING, wrapper={"grad_reduce_in_fp32": False}),
    "global aux": aux("global_aux_loss", 1.0),
    "global aux, half": aux("global_aux_loss", 0.5),
    "aux": aux("aux_loss", 1.0),
    "aux, two micro-batches": aux("aux_loss", 1.0, accumulation=2),
    "capacity": Job(
        model=LOUD,
        upstream={"moe_expert_capacity_factor": 0.5, "moe_pad_expert_input_to_capacity": True},
    ),
    "unchanged": Job(model=LOUD),
    **{name: Job(model=LOUD, upstream=options) for name, options in UNREAD.items()},
}

TWO = {
    "right": Job(wrap="fsdp", ep=2, model=LOUD),
    "right bare": Job(wrap="fsdp", ep=2, model=BARE),
    "comm": Job(wrap="fsdp", ep=2, model=LOUD, wrapper=COMM),
    "no_shard": Job(wrap="fsdp", ep=2, model=LOUD, wrapper=NO_SHARD),
    "no_shard, EP 1": Job(wrap="fsdp", model=LOUD, wrapper=NO_SHARD),
    "sums, ddp": Job(ep=2, model=BARE, upstream=SUMS, accumulation=2),
    "sums, fsdp": Job(wrap="fsdp", ep=2, model=BARE, upstream=SUMS, accumulation=2),
    "global aux": aux("global_aux_loss", 1.0),
}


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return run_ranks(run_jobs, 1, tmp_path_factory.mktemp("alone"), ALONE)[0]


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return run_ranks(run_jobs, 2, tmp_path_factory.mktemp("two"), TWO)


def square(result: dict[str, Any]) -> float:
    return result["norm"] ** 2


def experts_square(two: list[dict[str, Any]]) -> float:
    """Squared norm of all experts' gradients at (2, 2), from what no_shard leaves out by rank."""
    return sum(square(rank["right"]) - square(rank["no_shard"]) for rank in two)


def test_every_refusal_has_its_number() -> None:
    here = {option for job in [*ALONE.values(), *TWO.values()] for option in job.upstream}
    here |= {option for job in [*ALONE.values(), *TWO.values()] for option in job.wrapper}
    # What needs Transformer Engine and a newer GPU is refused by name alone.
    assert {known.option for known in KNOWN} - here == {"moe_single_grouped_weight"}


def test_the_right_number_is_that_of_any_layout(
    alone: dict[str, Any], two: list[dict[str, Any]]
) -> None:
    for name in ("right", "right bare"):
        assert two[0][name]["norm"] == pytest.approx(alone[name]["norm"], rel=SAME)
    assert alone["right"]["moved"] > 1e-3


def test_without_per_token_loss_the_balance_losses_grow_with_the_tokens(
    alone: dict[str, Any],
) -> None:
    one, half = alone["sums, one micro-batch"], alone["sums, two micro-batches"]
    excess = square(one) - square(alone["right"]), square(half) - square(alone["right"])
    assert one["norm"] > 1.1 * alone["right"]["norm"]
    assert 0 < 4 * excess[1] < excess[0], "micro-batches no longer matter"


def test_without_per_token_loss_fsdp_scales_earlier_micro_batches_again(
    two: list[dict[str, Any]],
) -> None:
    right, ddp, fsdp = (two[0][name] for name in ("right bare", "sums, ddp", "sums, fsdp"))
    assert ddp["norm"] == pytest.approx(right["norm"], rel=SAME)
    # The first of two like halves counts 1/2: the experts have 3/4 of their gradient.
    want = square(right) - (1 - 0.75**2) * experts_square(two)
    assert fsdp["norm"] == pytest.approx(math.sqrt(want), rel=1e-3)
    assert fsdp["norm"] < 0.98 * right["norm"]


def test_no_shard_leaves_other_ranks_experts_out_of_the_norm(two: list[dict[str, Any]]) -> None:
    norms = [rank["no_shard"]["norm"] for rank in two]
    assert all(norm < 0.99 * two[0]["right"]["norm"] for norm in norms)
    assert abs(norms[0] - norms[1]) > 0.02 * norms[0], "the ranks agree about the norm"
    # Upstream is right without expert parallelism.
    assert two[0]["no_shard, EP 1"]["norm"] == pytest.approx(two[0]["right"]["norm"], rel=SAME)


def test_another_communication_type_doubles_gradients_of_a_one_rank_group(
    alone: dict[str, Any], two: list[dict[str, Any]]
) -> None:
    right = alone["right"]["norm"]
    assert alone["comm"]["norm"] == pytest.approx(2 * right, rel=BF16)
    assert alone["comm, two micro-batches"]["norm"] > 2.9 * right
    # At (2, 2) the experts alone are in a group of one: 4 times their share of the square.
    want = square(two[0]["right"]) + 3 * experts_square(two)
    assert two[0]["comm"]["norm"] == pytest.approx(math.sqrt(want), rel=BF16)


def test_gradients_kept_in_bf16_lose_faint_micro_batches(alone: dict[str, Any]) -> None:
    right, fsdp, ddp = (
        alone[name]["norm"] for name in ("fp32 main grads", "bf16 main grads", "bf16 ddp grads")
    )
    first_alone = right / (1 + 16 * FAINT)
    assert fsdp == pytest.approx(first_alone, rel=BF16 / 4)
    assert ddp == pytest.approx(first_alone, rel=BF16 / 2)  # the norm itself is rounded to BF16


def test_with_decoupled_gradients_nothing_is_trained(alone: dict[str, Any]) -> None:
    assert alone["decoupled"]["loss"] == pytest.approx(alone["right"]["loss"], rel=SAME)
    assert alone["decoupled"]["norm"] == 0.0
    assert alone["decoupled"]["moved"] == 0.0


@pytest.mark.parametrize("option", UNREAD)
def test_a_router_option_that_does_nothing(option: str, alone: dict[str, Any]) -> None:
    assert alone[option]["loss"] == alone["unchanged"]["loss"]
    assert alone[option]["norm"] == alone["unchanged"]["norm"]


def test_padding_experts_to_capacity_drops_tokens(alone: dict[str, Any]) -> None:
    assert abs(alone["capacity"]["loss"] - alone["right"]["loss"]) > 0.05


def test_upstreams_balance_losses_depend_on_the_layout(
    alone: dict[str, Any], two: list[dict[str, Any]]
) -> None:
    one, half = alone["global aux"]["norm"], alone["global aux, half"]["norm"]
    assert one > 1.05 * half, "the balance loss has no say here"
    assert two[0]["global aux"]["norm"] == pytest.approx(half, rel=SAME), "not 1 / ranks"
    parted = alone["aux, two micro-batches"]["norm"]
    assert abs(alone["aux"]["norm"] - parted) > 1e-3 * parted, "micro-batches no longer matter"
