from typing import Any

import pytest

from genomoe.parallel.config import ParallelConfig
from genomoe.parallel.memory import memory_plan

SIZES = {
    "dense_parameters": 1_000,
    "expert_parameters": 8_000,
    "micro_batch_tokens": 100,
    "hidden_size": 16,
    "num_blocks": 4,
    "inner_width": 64,
}


def plan(world: int = 1, **layout: Any) -> dict[str, int]:
    return memory_plan(ParallelConfig(**layout), world_size=world, **SIZES)


@pytest.mark.parametrize("engine", ["cpu", "gpu"])
@pytest.mark.parametrize("wrap", ["ddp", "fsdp"])
@pytest.mark.parametrize(("world", "ep"), [(1, 1), (8, 1), (8, 4), (8, 8)])
def test_the_total_is_the_sum(engine: Any, wrap: Any, world: int, ep: int) -> None:
    parts = plan(world, engine=engine, wrap=wrap, expert_model_parallel_size=ep)
    total = parts.pop("total")
    assert total == sum(parts.values()) > 0
    assert all(isinstance(part, int) and part >= 0 for part in parts.values())


def test_one_rank_by_hand() -> None:
    parts = plan(wrap="ddp", engine="cpu")
    # FP32: 4 bytes of weight, 4 of gradient, 8 of moments for each of 9,000 parameters.
    assert parts["weights"] == 36_000
    assert parts["gradients"] == 36_000
    assert parts["optimizer_moments"] == 72_000
    assert parts["master_weights"] == parts["gathered_weights"] == 0
    parts = plan(wrap="ddp", engine="gpu")
    # BF16 weights with FP32 masters.
    assert parts["weights"] == 18_000
    assert parts["master_weights"] == 36_000


def test_shares_by_hand() -> None:
    # Eight ranks: the dense part in eighths; a quarter of the experts, in halves.
    parts = plan(8, wrap="fsdp", engine="cpu", expert_model_parallel_size=4)
    assert parts["weights"] == 4 * (1_000 // 8 + 8_000 // 4 // 2)
    # Whole copies under DDP: the experts are split by expert parallelism alone.
    parts = plan(8, wrap="ddp", engine="cpu", expert_model_parallel_size=4)
    assert parts["weights"] == 4 * (1_000 + 8_000 // 4)


def test_sharding_and_expert_parallelism_make_a_rank_smaller() -> None:
    whole = plan(8, wrap="ddp")
    sharded = plan(8, wrap="fsdp")
    split = plan(8, wrap="ddp", expert_model_parallel_size=4)
    both = plan(8, wrap="fsdp", expert_model_parallel_size=4)
    assert sharded["total"] < whole["total"]
    assert split["total"] < whole["total"]
    assert both["total"] < sharded["total"]  # only an expert-parallel share is gathered at a time
    assert plan(16, wrap="fsdp")["total"] < sharded["total"]


def test_recomputation_keeps_less() -> None:
    assert plan(recompute="full")["activations"] < plan()["activations"]
    assert plan(recompute="full")["optimizer_moments"] == plan()["optimizer_moments"]


def test_activations_follow_the_micro_batch() -> None:
    double = {**SIZES, "micro_batch_tokens": 200}
    parts = memory_plan(ParallelConfig(), world_size=1, **double)
    assert parts["activations"] == 2 * plan()["activations"]
