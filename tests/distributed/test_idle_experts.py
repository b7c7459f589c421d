"""Experts, whole ranks of experts, and whole ranks of rows without a single token or target."""

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch

from genomoe.training.config import learning_rate
from tests.distributed.course import Tensors, difference, gathered
from tests.distributed.hardware import Hardware
from tests.distributed.ranks import run_ranks
from tests.distributed.tiny_run import (
    OPTIMIZER,
    PAD,
    Rows,
    TinyRun,
    each_job,
    rows,
    train,
    train_courses,
)

STEPS, BATCH, LENGTH = 3, 8, 24
LAYOUTS = [(2, 2), (4, 2), (4, 4)]  # (ranks, expert-parallel size)
ALL_KINDS = list(itertools.product(("ddp", "fsdp"), ("allgather", "alltoall")))
IDLE = (2, 3)  # at EP 2 all experts of the second rank, at EP 4 those of two ranks
SHARED: dict[str, Any] = {
    "steps": STEPS,
    "batch": BATCH,
    "length": LENGTH,
    # Adam's first steps move an entry whose gradient is noise by the whole rate; this keeps it.
    "optimizer": {"adam_eps": 1e-3},
}
NO_DROPOUT = {"dropout": 0.0}  # it would drop the entry that decides
# A rank that waits for another fails the test instead of the whole session.
TIMEOUT = {"timeout_seconds": 60}


def train_on_two_experts(
    info: Any, rendezvous: str, jobs: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Worker: `train` each job after every router has been made to choose experts 0 and 1."""
    courses = []
    for job, topology in each_job(info, rendezvous, jobs):
        run = TinyRun(job, topology, _choose_two)
        if job["save_initial"]:
            run.save("initial", run.weights())
        courses.append(train(run))
    return courses


def _choose_two(built: Any) -> None:
    """One entry of every embedding is large, and alone decides between the pairs of experts."""
    with torch.no_grad():
        for name, parameter in built.module.named_parameters():
            canonical = built.canonical(name)
            if canonical == "embedding.letters.weight":
                parameter[:, 0] = 1.0
            elif canonical.endswith("router.weight"):
                parameter[:2, 0], parameter[2:, 0] = 1.0, -1.0


def jobs_for(
    world: int, kinds: list[tuple[str, str]], folder: Path, hardware: Hardware, **more: Any
) -> list[dict[str, Any]]:
    """Jobs of each kind (wrap, dispatcher) in every layout of so many ranks."""
    jobs = []
    for ranks, ep in LAYOUTS:
        for wrap, dispatcher in kinds if ranks == world else []:
            job = {
                **SHARED,
                **more,
                "parallel": {
                    "expert_model_parallel_size": ep,
                    "wrap": wrap,
                    "dispatcher": dispatcher,
                    **TIMEOUT,
                },
                "save": str(folder / f"ep{ep}-{wrap}-{dispatcher}"),
            }
            jobs.append(hardware.on(job))
    return jobs


def is_idle(name: str) -> bool:
    return any(f".experts.{expert}." in name for expert in IDLE)


def decayed(weight: torch.Tensor) -> torch.Tensor:
    """What AdamW's decay alone makes of a matrix over the run."""
    for iteration in range(STEPS):
        weight = weight * (
            1.0 - learning_rate(OPTIMIZER, iteration, STEPS) * OPTIMIZER.weight_decay
        )
    return weight


def check_idle(gradients: Tensors, initial: Tensors, final: Tensors) -> None:
    """Nothing reached the idle experts: no gradient, and no update but the decay."""
    assert any(is_idle(name) for name in gradients)
    for name, gradient in gradients.items():
        assert bool((gradient != 0).any()) != is_idle(name), name
        if is_idle(name):
            assert torch.allclose(final[name], decayed(initial[name]), rtol=1e-6, atol=0.0), name
        else:
            assert not torch.allclose(final[name], decayed(initial[name]), rtol=1e-4), name


@pytest.fixture(scope="module")
def two_experts(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Path]:
    """The reference: one rank, where two of four experts are idle too."""
    folder = tmp_path_factory.mktemp("two experts")
    alone = {"model": NO_DROPOUT, "parallel": {"wrap": "ddp"}, "save_initial": True}
    job = {**SHARED, **alone, "save": str(folder)}
    course = run_ranks(train_on_two_experts, 1, folder / "ranks", [job])[0][0]
    return course, folder


def test_on_one_rank_two_experts_get_nothing(two_experts: Any) -> None:
    course, folder = two_experts
    for load in course["loads"]:
        assert load == [[0.5, 0.5, 0.0, 0.0]] * 2
    check_idle(*(gathered(folder / kind) for kind in ("gradients", "initial", "weights")))


@pytest.mark.parametrize("world", [2, 4])
@pytest.mark.timeout(180)
def test_a_rank_whose_experts_get_nothing(
    world: int, two_experts: Any, tmp_path: Path, hardware: Hardware
) -> None:
    hardware.require(world)
    want, saved = two_experts
    jobs = jobs_for(world, ALL_KINDS, tmp_path, hardware, model=NO_DROPOUT, save_initial=False)
    by_rank = run_ranks(train_on_two_experts, world, tmp_path / "ranks", jobs)
    for job, *got in zip(jobs, *by_rank, strict=True):
        folder = Path(job["save"])
        assert got[0]["loads"] == want["loads"]
        apart = difference(got, want, (folder, saved), hardware.tolerance)
        print(world, folder.name, apart)
        assert apart.largest <= 1.0, (folder.name, apart)
        gradients, final = gathered(folder / "gradients"), gathered(folder / "weights")
        check_idle(gradients, gathered(saved / "initial"), final)


def without_last_half(what: str) -> list[Rows]:
    """Batches whose last rows, one rank of two or two ranks of four, have nothing to learn from."""
    batches = []
    for step in range(STEPS):
        made = rows(step, BATCH, LENGTH)
        last = slice(BATCH // 2, None)
        made["weights"][last] = 0.0
        if what == "padding":
            made["tokens"][last], made["labels"][last] = PAD, PAD
        batches.append(made)
    return batches


@pytest.mark.parametrize("world", [2, 4])
@pytest.mark.timeout(180)
def test_a_rank_whose_rows_are_all_padding_or_unscored(
    world: int, tmp_path: Path, hardware: Hardware
) -> None:
    hardware.require(world)
    jobs, wanted = [], []
    for what, kinds in (
        ("padding", [("ddp", "alltoall"), ("fsdp", "allgather")]),
        ("unscored", [("ddp", "allgather"), ("fsdp", "alltoall")]),
    ):
        data = without_last_half(what)
        alone = {**SHARED, "data": data, "parallel": {"wrap": "ddp"}, "save": str(tmp_path / what)}
        wanted.append(alone)
        jobs += jobs_for(world, kinds, tmp_path / f"{what} ranks", hardware, data=data)
    want = run_ranks(train_courses, 1, tmp_path / "alone", wanted)[0]
    by_rank = run_ranks(train_courses, world, tmp_path / "ranks", jobs)
    each = len(jobs) // len(wanted)
    for number, (job, *got) in enumerate(zip(jobs, *by_rank, strict=True)):
        folders = Path(job["save"]), Path(wanted[number // each]["save"])
        apart = difference(got, want[number // each], folders, hardware.tolerance)
        print(world, folders[0], apart)
        assert apart.largest <= 1.0, (folders[0], apart)
