"""The comparison of `test_parity` bites: each fault put into a parallel run is seen by it."""

from pathlib import Path
from typing import Any

import pytest

from tests.distributed.course import Difference, difference
from tests.distributed.hardware import Hardware
from tests.distributed.mutations_run import FAULTS, train_with_faults
from tests.distributed.ranks import run_ranks

RUN = {"steps": 3, "batch": 16, "length": 16}
LAYOUTS: dict[str, dict[str, Any]] = {
    "ddp": {"accumulation": 1, "parallel": {"wrap": "ddp", "dispatcher": "allgather"}},
    "fsdp": {"accumulation": 2, "parallel": {"wrap": "fsdp", "dispatcher": "alltoall"}},
}
# Ranks that come apart are told before any number is compared with the reference.
DISAGREE = {("ddp", "reduction_skipped"), ("ddp", "norm_of_one_rank"), ("fsdp", "norm_of_one_rank")}
Runs = dict[tuple[str, str], list[dict[str, Any]]]

CASES = [
    (wrap, fault)
    for wrap in LAYOUTS
    for fault in FAULTS
    if fault != "none" and (wrap, fault) != ("fsdp", "reduction_skipped")
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("mutations")


@pytest.fixture(scope="module")
def one_rank(folder: Path) -> dict[str, Any]:
    job = {**RUN, "fault": "none", "parallel": {"wrap": "ddp"}, "save": str(folder / "one")}
    return run_ranks(train_with_faults, 1, folder / "alone", [job])[0][0]


@pytest.fixture(scope="module")
def runs(folder: Path, hardware: Hardware) -> Runs:
    """By layout and fault: what the two ranks returned."""
    hardware.require_fp32()
    jobs = {}
    for wrap, fault in [*CASES, ("ddp", "none"), ("fsdp", "none")]:
        layout = LAYOUTS[wrap]
        parallel = {"expert_model_parallel_size": 2, **layout["parallel"]}
        save = str(folder / f"{wrap}-{fault}")
        jobs[wrap, fault] = {**RUN, **layout, "parallel": parallel, "fault": fault, "save": save}
    by_rank = run_ranks(train_with_faults, 2, folder / "ranks", list(jobs.values()))
    return {case: list(results) for case, *results in zip(jobs, *by_rank, strict=True)}


def compared(
    case: tuple[str, str], runs: Runs, one_rank: dict[str, Any], folder: Path, hardware: Hardware
) -> Difference:
    saved = folder / "-".join(case), folder / "one"
    apart = difference(runs[case], one_rank, saved, hardware.tolerance)
    print(*case, apart)
    return apart


@pytest.mark.timeout(180)
@pytest.mark.parametrize("wrap", LAYOUTS)
def test_without_a_fault_nothing_is_seen(
    wrap: str, runs: Runs, one_rank: Any, folder: Path, hardware: Hardware
) -> None:
    assert compared((wrap, "none"), runs, one_rank, folder, hardware).largest <= 1.0


@pytest.mark.parametrize("case", CASES, ids="-".join)
def test_a_fault_is_seen(
    case: tuple[str, str], runs: Runs, one_rank: Any, folder: Path, hardware: Hardware
) -> None:
    if case in DISAGREE:
        with pytest.raises(AssertionError, match="the ranks disagree about a step"):
            compared(case, runs, one_rank, folder, hardware)
    else:
        assert compared(case, runs, one_rank, folder, hardware).largest > 10.0
