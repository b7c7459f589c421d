"""The loss, its balance terms and all gradients are what the formula says, in every layout.

The loss of a global batch is the weighted sum of the targets' nats over the sum of weights; the
balance losses are means over its letters, scored or not. `loss_rule_run.by_formula` computes that
by autograd on the bare model, document by document.
"""

import itertools
import math
from pathlib import Path
from typing import Any

import pytest

from tests.distributed.course import gathered, gradients_and_steps, tensors_apart
from tests.distributed.hardware import Hardware
from tests.distributed.loss_rule_run import (
    APART,
    PACKED,
    Document,
    as_rows,
    by_formula,
    documents,
    every_batch,
    scored_only,
    weights_around_steps,
)
from tests.distributed.ranks import run_ranks
from tests.distributed.tiny_run import OPTIMIZER

# No dropout: the oracle's documents stand at other places than those of the rows.
SHARED: dict[str, Any] = {
    "model": {
        "dropout": 0.0,
        "init_method_std": 0.1,
        "moe_aux_loss_coeff": 0.05,
        "moe_z_loss_coeff": 0.01,
    },
    "previous_load": [[0.4, 0.3, 0.2, 0.1], [0.1, 0.1, 0.3, 0.5]],
}
# (expert-parallel size, wrap, micro-batches) by ranks: the eight rows as 1x8, 2x4 and 8x1 on one
# rank, and whatever divides them on several.
LAYOUTS = {
    1: [(1, "ddp", 1), (1, "ddp", 2), (1, "fsdp", 8)],
    2: [(1, "fsdp", 1), (2, "ddp", 2), (2, "fsdp", 4)],
    4: [(1, "ddp", 1), (2, "fsdp", 2), (4, "ddp", 2), (4, "fsdp", 1)],
}
PLAIN = list(documents(PACKED))
BATCHES: dict[str, list[Document]] = {
    "rows of one document": list(documents(APART)),
    "packed": PLAIN,
    # Only one rank of several has something to score.
    "one target": scored_only(PLAIN, first=100, of=1000),
}
# The balance losses alone, whose gradient may know nothing of which letters are scored.
FRACTIONS = {
    "balance, all scored": scored_only(PLAIN, first=0, of=1),
    "balance, half": scored_only(PLAIN, first=1, of=2),
    "balance, an eighth": scored_only(PLAIN, first=3, of=8),
    "balance, one target": scored_only(PLAIN, first=100, of=1000),
}
Formula = dict[str, tuple[dict[str, Any], Path]]


@pytest.fixture(scope="module")
def formula(tmp_path_factory: pytest.TempPathFactory) -> Formula:
    """Result and folder of the oracle by batch."""
    folder = tmp_path_factory.mktemp("formula")
    jobs = {
        name: {
            **SHARED,
            "documents": made,
            "balance_alone": name in FRACTIONS,
            "save": str(folder / name),
        }
        for name, made in {**BATCHES, **FRACTIONS}.items()
    }
    results = run_ranks(by_formula, 1, folder / "ranks", list(jobs.values()))[0]
    return {name: (result, folder / name) for name, result in zip(jobs, results, strict=True)}


@pytest.mark.parametrize("world", [1, 2, 4])
@pytest.mark.timeout(180)
def test_losses_and_gradients_are_those_of_the_formula(
    world: int, formula: Formula, tmp_path: Path, hardware: Hardware
) -> None:
    hardware.require(world)
    batches = {**BATCHES, **FRACTIONS}
    jobs = {}
    for ep, wrap, accumulation in LAYOUTS[world]:
        name = f"ep{ep}-{wrap}-{accumulation}"
        job = {
            **SHARED,
            "optimizer": {"lr": 0.0},
            "data": [as_rows(made) for made in batches.values()],
            "batches": list(batches),
            "balance_alone": list(FRACTIONS),
            "parallel": {"expert_model_parallel_size": ep, "wrap": wrap},
            "accumulation": accumulation,
            "save": str(tmp_path / name),
        }
        jobs[name] = hardware.on(job)
    by_rank = run_ranks(every_batch, world, tmp_path / "ranks", list(jobs.values()))
    for name, *results in zip(jobs, *by_rank, strict=True):
        for batch in batches:
            want, saved = formula[batch]
            got = [result[batch] for result in results]
            folders = tmp_path / name / batch, saved
            apart = gradients_and_steps(got, want, folders, hardware.tolerance)
            print(name, batch, apart)
            assert apart.largest <= 1.0, (name, batch, apart)
            assert hardware.engine == "gpu" or not apart.routing, "a tie: choose other rows"
        if hardware.engine == "cpu":
            first, *others = (gathered(tmp_path / name / f / "gradients") for f in FRACTIONS)
            assert [tensors_apart(other, first)[0] for other in others] == [0.0] * 3, name


def small_jobs(world: int, data: list[list[Document]], hardware: Hardware) -> list[dict[str, Any]]:
    rows = [as_rows(made) for made in data]
    layouts = itertools.product((1, 2, 4), ("ddp", "fsdp"))
    return [
        hardware.on(
            {
                "data": rows,
                "steps": len(rows),
                "parallel": {"expert_model_parallel_size": ep, "wrap": wrap},
            }
        )
        for ep, wrap in layouts
        if ep <= world
    ]


@pytest.mark.parametrize("world", [1, 2, 4])
@pytest.mark.timeout(180)
def test_a_step_moves_every_parameter_and_one_without_targets_none(
    world: int, tmp_path: Path, hardware: Hardware
) -> None:
    hardware.require(world)
    nothing = scored_only(PLAIN, first=10_000, of=1)
    jobs = small_jobs(world, [PLAIN, nothing, PLAIN], hardware)
    for courses in zip(*run_ranks(weights_around_steps, world, tmp_path, jobs), strict=True):
        moved: list[dict[str, float]] = [{}, {}, {}]
        for course in courses:
            assert course[0]["loss"] == pytest.approx(math.log(32), abs=0.05)  # a guess
            assert course[1]["loss"] is None and course[1]["norm"] == 0.0
            for step, largest in zip(course, moved, strict=True):
                for name, change in step["moved"].items():
                    largest[name] = max(largest.get(name, 0.0), change)
        # Two blocks of four experts with two matrices each and five more, five around them.
        assert len(moved[0]) == 2 * (4 * 2 + 5) + 5, sorted(moved[0])
        for name in moved[0]:
            # Adam's first step moves an entry by the rate at most, decay aside.
            assert 0.0 < moved[0][name] <= 1.1 * OPTIMIZER.lr, name
            assert moved[1][name] == 0.0, name
            assert moved[2][name] > 0.0, name
