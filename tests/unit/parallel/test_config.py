import pytest

from genomoe.parallel.config import ParallelConfig, layout_errors


def errors(ep: int, world: int, experts: int) -> list[str]:
    config = ParallelConfig(expert_model_parallel_size=ep)
    return layout_errors(config, world_size=world, num_moe_experts=experts)


@pytest.mark.parametrize(
    ("ep", "world", "experts"), [(1, 1, 4), (1, 3, 0), (2, 4, 4), (4, 4, 8), (2, 6, 64)]
)
def test_layouts_that_work(ep: int, world: int, experts: int) -> None:
    assert errors(ep, world, experts) == []


def test_ranks_that_are_not_divided() -> None:
    (error,) = errors(4, 6, 8)
    assert error.startswith("parallel.expert-model-parallel-size 4 does not divide the 6 rank(s)")
    assert "use one of [1, 2, 3, 6]" in error


def test_experts_that_are_not_divided() -> None:
    (error,) = errors(3, 6, 8)
    assert error.startswith("parallel.expert-model-parallel-size 3 does not divide the 8 experts")
    assert "use one of [1, 2, 4, 8]" in error


def test_both_faults_are_told() -> None:
    assert len(errors(5, 6, 8)) == 2


def test_a_dense_model_has_no_experts_to_split() -> None:
    (error,) = errors(2, 4, 0)
    assert "parallel.expert-model-parallel-size is 2" in error and "use 1" in error


@pytest.mark.parametrize("ep", [0, -2])
def test_a_size_below_one(ep: int) -> None:
    (error,) = errors(ep, 4, 8)
    assert error == f"parallel.expert-model-parallel-size is {ep}: use 1 or more"


def test_a_timeout_below_a_second() -> None:
    (error,) = layout_errors(ParallelConfig(timeout_seconds=0), world_size=1, num_moe_experts=4)
    assert error == "parallel.timeout-seconds is 0: use 1 or more"


def test_auto_shards_where_there_is_something_to_share() -> None:
    assert ParallelConfig(engine="gpu").wrap_for(1) == "ddp"
    assert ParallelConfig(engine="gpu").wrap_for(2) == "fsdp"
    assert ParallelConfig(engine="cpu").wrap_for(2) == "ddp"
    assert ParallelConfig(wrap="fsdp").wrap_for(1) == "fsdp"
    assert ParallelConfig(wrap="ddp").wrap_for(8) == "ddp"
