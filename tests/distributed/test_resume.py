"""A run continues from its last checkpoint: bit-equal in the same layout, equal in any other."""

import shutil
from pathlib import Path

import pytest

from tests.distributed.ranks import run_ranks
from tests.distributed.real_run import metrics, train_runs

SAVED = 3  # the run was killed between iterations 3 and 6: 3 is its last checkpoint
COMPARED = ("loss_nats", "grad_norm", "aux_loss", "z_loss")


def cut_back(run: Path, into: Path) -> Path:
    """Copy a finished run as a kill after iteration 4 would have left it."""
    shutil.copytree(run, into)
    for checkpoint in (into / "checkpoints").glob("iter_*"):
        if int(checkpoint.name.removeprefix("iter_")) > SAVED:
            shutil.rmtree(checkpoint)
    lines = (into / "metrics.jsonl").read_text().splitlines(keepends=True)
    (into / "metrics.jsonl").write_text("".join(lines[:4]) + '{"iteration": 5, "loss')
    (into / "checkpoints" / ".iter_0000006.partial").mkdir()
    return into


def same_course(got: Path, want: Path, relative: float) -> None:
    for ours, theirs in zip(metrics(got), metrics(want), strict=True):
        assert ours["consumed_samples"] == theirs["consumed_samples"]
        for name in COMPARED:
            assert ours[name] == pytest.approx(theirs[name], rel=relative), ours["iteration"]
    ours, theirs = metrics(got)[-1], metrics(want)[-1]
    assert ours["valid_bits"] == pytest.approx(theirs["valid_bits"], rel=relative)


def final_files(run: Path) -> dict[str, bytes]:
    folder = sorted((run / "checkpoints").glob("iter_*"))[-1]
    return {p.name: p.read_bytes() for p in sorted(folder.glob("*.safetensors"))}


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory, small_data: Path) -> dict[str, Path]:
    """Uninterrupted runs: one rank, and (4, 2) under FSDP."""
    folder = tmp_path_factory.mktemp("straight")
    runs = {"one": folder / "one", "four": folder / "four"}
    job = {"data": str(small_data), "run": str(runs["one"])}
    run_ranks(train_runs, 1, folder / "w1", [job])
    job = {
        "data": str(small_data),
        "run": str(runs["four"]),
        "parallel": {"expert_model_parallel_size": 2, "wrap": "fsdp"},
    }
    run_ranks(train_runs, 4, folder / "w4", [job])
    return runs


def test_layouts_take_the_same_course(straight: dict[str, Path]) -> None:
    same_course(straight["four"], straight["one"], relative=1e-5)


@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    ("source", "world", "layouts"),
    [
        ("one", 1, [(1, "ddp"), (1, "fsdp")]),
        ("one", 2, [(2, "fsdp"), (1, "ddp")]),
        ("four", 1, [(1, "ddp")]),
        ("four", 4, [(2, "fsdp"), (4, "fsdp"), (1, "fsdp"), (2, "ddp")]),
    ],
)
def test_resume(
    source: str,
    world: int,
    layouts: list[tuple[int, str]],
    straight: dict[str, Path],
    small_data: Path,
    tmp_path: Path,
) -> None:
    jobs = []
    for ep, wrap in layouts:
        run = cut_back(straight[source], tmp_path / f"ep{ep}-{wrap}")
        parallel = {"expert_model_parallel_size": ep, "wrap": wrap}
        jobs.append({"data": str(small_data), "run": str(run), "parallel": parallel})
    run_ranks(train_runs, world, tmp_path / "ranks", jobs)
    for (ep, wrap), job in zip(layouts, jobs, strict=True):
        run = Path(job["run"])
        same_course(run, straight[source], relative=1e-5)
        same_layout = (source, world, ep, wrap) in (("one", 1, 1, "ddp"), ("four", 4, 2, "fsdp"))
        if same_layout:
            assert final_files(run) == final_files(straight[source])
            assert metrics(run)[-1]["loss_nats"] == metrics(straight[source])[-1]["loss_nats"]
