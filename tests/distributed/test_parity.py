"""Every layout computes the same: loss, gradient norm and balance losses against one rank.

The tiny run has dropout, unequal loads, clipping at work, balance losses, packing, padding, and
rows with no and with little weight.
"""

from pathlib import Path

import pytest

from tests.distributed.ranks import run_ranks
from tests.distributed.tiny_run import train_tiny

# FP32 sums taken in another order; the largest seen in these runs is 3e-6.
RELATIVE = 2e-5


def jobs_for(world: int) -> list[dict]:
    jobs = []
    for ep in [size for size in (1, 2, 4) if size <= world]:
        for wrap in ("ddp", "fsdp"):
            for dispatcher, accumulation in (("alltoall", 1), ("allgather", 2)):
                jobs.append(
                    {
                        "parallel": {
                            "expert_model_parallel_size": ep,
                            "wrap": wrap,
                            "dispatcher": dispatcher,
                        },
                        "accumulation": accumulation,
                    }
                )
    return jobs


@pytest.fixture(scope="module")
def one_rank(tmp_path_factory: pytest.TempPathFactory) -> list[list[float]]:
    folder = tmp_path_factory.mktemp("one")
    job = {"parallel": {"wrap": "ddp"}}
    return run_ranks(train_tiny, 1, folder, [job])[0][0]


@pytest.mark.timeout(180)
@pytest.mark.parametrize("world", [1, 2, 4])
def test_every_layout_equals_one_rank(world: int, one_rank: list, tmp_path: Path) -> None:
    jobs = jobs_for(world)
    jobs.append({"parallel": {"recompute": "full"}, "accumulation": 2})
    by_rank = run_ranks(train_tiny, world, tmp_path, jobs)
    for job, result in zip(jobs, by_rank[0], strict=True):
        for step, (got, want) in enumerate(zip(result, one_rank, strict=True)):
            assert got == pytest.approx(want, rel=RELATIVE), (job, step)
    assert all(result == by_rank[0] for result in by_rank), "ranks disagree about the step"
    losses = [step[0] for step in one_rank]
    assert losses[-1] < losses[0], "the run does not learn"
    assert max(step[1] for step in one_rank) > 0.5, "clipping was never active"


@pytest.mark.timeout(120)
def test_dense_model_in_every_layout(tmp_path: Path) -> None:
    dense = {"num_moe_experts": 0, "ffn_hidden_size": 96}
    jobs = [{"model": dense, "parallel": {"wrap": w}} for w in ("ddp", "fsdp")]
    alone = run_ranks(train_tiny, 1, tmp_path / "one", jobs)[0]
    both = run_ranks(train_tiny, 2, tmp_path / "two", jobs)[0]
    for result in [*alone, *both]:
        for got, want in zip(result, alone[0], strict=True):
            assert got == pytest.approx(want, rel=RELATIVE)
