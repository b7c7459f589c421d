"""Every layout computes the same as one rank: loss, norms, balance, gradients and weights.

The run has dropout, unequal loads, clipping at work, balance losses, packing, padding, and rows
with no and with little weight. `test_mutations` shows that this comparison bites.
"""

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.distributed.course import difference, steps_apart
from tests.distributed.hardware import Hardware
from tests.distributed.ranks import run_ranks
from tests.distributed.tiny_run import TinyRun, each_job, train, train_courses

LAYOUTS = [(1, 1), (2, 1), (2, 2), (4, 1), (4, 2), (4, 4)]  # (ranks, expert-parallel size)
ACCUMULATION = (1, 4)
# Four ranks times four micro-batches: sixteen rows.
RUN = {"steps": 20, "batch": 16, "length": 16}
Choice = tuple[str, str, int]  # wrap, dispatcher, accumulation


def all_choices(_layout: int) -> list[Choice]:
    return list(itertools.product(("ddp", "fsdp"), ("allgather", "alltoall"), ACCUMULATION))


def covering_choices(layout: int) -> list[Choice]:
    """Two choices for each layout, so that every pair of values of two factors occurs.

    What takes longest, FSDP with four micro-batches, is left to layouts of fewer ranks.
    """
    turns: list[tuple[Choice, Choice]] = [
        (("ddp", "allgather", 1), ("fsdp", "alltoall", 4)),
        (("ddp", "alltoall", 1), ("fsdp", "allgather", 4)),
        (("ddp", "allgather", 1), ("fsdp", "alltoall", 4)),
        (("ddp", "alltoall", 4), ("fsdp", "allgather", 1)),
        (("ddp", "allgather", 4), ("fsdp", "alltoall", 1)),
        (("ddp", "alltoall", 4), ("fsdp", "allgather", 1)),
    ]
    return list(turns[layout])


def jobs_for(world: int, choices: Any, folder: Path, hardware: Hardware) -> list[dict[str, Any]]:
    jobs = []
    for number, (ranks, ep) in enumerate(LAYOUTS):
        for wrap, dispatcher, accumulation in choices(number) if ranks == world else []:
            layout = {"expert_model_parallel_size": ep, "wrap": wrap, "dispatcher": dispatcher}
            job = {
                **RUN,
                "parallel": layout,
                "accumulation": accumulation,
                "save": str(folder / f"ep{ep}-{wrap}-{dispatcher}-{accumulation}"),
            }
            jobs.append(hardware.on(job))
    return jobs


def watched(info: Any, rendezvous: str, jobs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Worker: `train` each job, and note by how little a token's last expert was chosen."""
    courses = []
    for job, topology in each_job(info, rendezvous, jobs):
        run = TinyRun(job, topology)
        gaps: list[float] = []
        for layer in run.built.module.decoder.layers[1::2]:
            _watch(layer.mlp.router, gaps)
        courses.append({**train(run), "gap": min(gaps)})
    return courses


def _watch(router: Any, gaps: list[float]) -> None:
    route = router.routing

    def routing(logits: torch.Tensor, **rest: Any) -> Any:
        best = logits.detach().flatten(0, -2).topk(router.topk + 1, dim=-1).values
        gaps.append(float((best[:, -2] - best[:, -1]).min()))
        return route(logits, **rest)

    router.routing = routing


@pytest.fixture(scope="module")
def one_rank(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Path]:
    """The reference, on any hardware: one CPU rank, FP32, experts one after the other."""
    folder = tmp_path_factory.mktemp("one")
    job = {**RUN, "parallel": {"wrap": "ddp"}, "save": str(folder / "saved")}
    return run_ranks(watched, 1, folder / "ranks", [job])[0][0], folder / "saved"


def compare(
    world: int,
    jobs: list[dict[str, Any]],
    one_rank: tuple[dict[str, Any], Path],
    folder: Path,
    hardware: Hardware,
) -> None:
    hardware.require(world)
    course, saved = one_rank
    by_rank = run_ranks(train_courses, world, folder / "ranks", jobs)
    for job, *results in zip(jobs, *by_rank, strict=True):
        folders = Path(job["save"]), saved
        apart = difference(results, course, folders, hardware.tolerance)
        print(folders[0].name, apart)
        assert apart.largest <= 1.0, (folders[0].name, apart)
        assert hardware.engine == "gpu" or not apart.routing, folders[0].name


@pytest.mark.timeout(300)
@pytest.mark.parametrize("world", [1, 2, 4])
def test_layouts_equal_one_rank(
    world: int, one_rank: Any, tmp_path: Path, hardware: Hardware
) -> None:
    jobs = jobs_for(world, covering_choices, tmp_path, hardware)
    compare(world, jobs, one_rank, tmp_path, hardware)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("world", [1, 2, 4])
def test_every_layout_equals_one_rank(
    world: int, one_rank: Any, tmp_path: Path, hardware: Hardware
) -> None:
    jobs = jobs_for(world, all_choices, tmp_path, hardware)
    compare(world, jobs, one_rank, tmp_path, hardware)


def test_the_choices_cover_every_pair() -> None:
    def pairs(choices: Any) -> set[tuple[Any, ...]]:
        made = [
            (layout, *choice) for number, layout in enumerate(LAYOUTS) for choice in choices(number)
        ]
        places = itertools.combinations(range(4), 2)
        return {(a, run[a], b, run[b]) for a, b in places for run in made}

    assert pairs(covering_choices) == pairs(all_choices)
    assert len([c for n in range(len(LAYOUTS)) for c in all_choices(n)]) == 48


def test_the_reference_is_worth_comparing_with(one_rank: Any) -> None:
    course, _ = one_rank
    losses = [step[0] for step in course["steps"]]
    assert losses[-1] < 0.6 * losses[0], "the run does not learn"
    clipped = [step[1] > 0.5 for step in course["steps"]]
    assert 5 < sum(clipped) < 20, "clipping must be at work in some steps and not in others"
    shares = torch.tensor(course["loads"])  # [steps, blocks, experts], 0.25 would be even
    assert float(shares.amax(dim=(1, 2)).min()) > 0.3, "loads are even"
    assert float(shares.max()) > 0.4 and float(shares.min()) < 0.15, "loads are even"
    # Router logits are about 1; layouts differ by some 1e-6 of that. No tie is within reach.
    assert course["gap"] > 1e-5, "a tie may fall either way: choose other rows"


@pytest.mark.timeout(120)
def test_recomputation_and_dense_models(tmp_path: Path, hardware: Hardware) -> None:
    dense = {"num_moe_experts": 0, "ffn_hidden_size": 96}
    recompute = {"recompute": "full"}
    kinds = [{"model": dense}, {"parallel": recompute}]
    reference = [{**kind, "parallel": {"wrap": "ddp"}} for kind in ({"model": dense}, {})]
    wanted = run_ranks(train_courses, 1, tmp_path / "one", reference)[0]
    hardware.require(2)
    jobs = [
        hardware.on(
            {**kind, "accumulation": 2, "parallel": {**kind.get("parallel", {}), "wrap": w}}
        )
        for kind in kinds
        for w in ("ddp", "fsdp")
    ]
    got = run_ranks(train_courses, 2, tmp_path / "two", jobs)[0]
    for number, course in enumerate(got):
        apart = steps_apart(course["steps"], wanted[number // 2]["steps"])
        assert apart <= hardware.tolerance.course, jobs[number]
