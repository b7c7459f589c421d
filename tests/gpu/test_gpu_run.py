"""The main job on one GPU: the same course as CPU ranks, grouped experts, exact resume.

Run on a GPU machine with `pytest -m gpu --require-gpu`, which turns a missing GPU into a failure.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]

# BF16 against FP32: the largest difference seen over 20 steps of the debug preset is 1.2e-3.
BF16_RELATIVE = 5e-3


def train(data: Path, run: Path, *flags: str, cpu: bool = False) -> list[dict[str, Any]]:
    command = [sys.executable, "-m", "genomoe.training.launch", "debug", "--data", str(data)]
    command += ["--run", str(run), "--training.save-interval", "5", *flags]
    command += ["--gpus", "0", "--procs", "1"] if cpu else ["--gpus", "1"]
    environment = {**os.environ, **({"CUDA_VISIBLE_DEVICES": ""} if cpu else {})}
    subprocess.run(command, check=True, env=environment, capture_output=True)
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory, require_gpu: None) -> Path:
    out = tmp_path_factory.mktemp("gpu") / "data"
    genome = Path(__file__).parents[2] / "examples" / "helicobacter_pylori_g27.fasta.gz"
    command = [sys.executable, "-m", "genomoe.data.preprocess", str(genome), "--out", str(out)]
    subprocess.run(command, check=True, capture_output=True)
    return out


@pytest.fixture(scope="module")
def on_cpu(data: Path, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return train(data, tmp_path_factory.mktemp("cpu") / "run", cpu=True)


@pytest.mark.parametrize("wrap", ["ddp", "fsdp"])
@pytest.mark.parametrize("backend", ["sequential", "te_grouped"])
def test_gpu_follows_the_cpu(
    backend: str, wrap: str, data: Path, on_cpu: list[dict[str, Any]], tmp_path: Path
) -> None:
    flags = ["--model.expert-backend", backend, "--parallel.wrap", wrap]
    got = train(data, tmp_path / "run", *flags)
    for ours, theirs in zip(got, on_cpu, strict=True):
        assert ours["consumed_samples"] == theirs["consumed_samples"]
        assert ours["loss_nats"] == pytest.approx(theirs["loss_nats"], rel=BF16_RELATIVE)
    assert got[-1]["valid_bits"] == pytest.approx(on_cpu[-1]["valid_bits"], rel=BF16_RELATIVE)


@pytest.mark.parametrize("wrap", ["ddp", "fsdp"])
def test_resume_on_the_gpu(wrap: str, data: Path, tmp_path: Path) -> None:
    flags = ["--parallel.wrap", wrap]
    straight = train(data, tmp_path / "straight", *flags)
    again = tmp_path / "again"
    shutil.copytree(tmp_path / "straight", again)
    for checkpoint in (again / "checkpoints").glob("iter_*"):
        if int(checkpoint.name.removeprefix("iter_")) > 10:
            shutil.rmtree(checkpoint)
    resumed = train(data, again, *flags)
    for ours, theirs in zip(resumed, straight, strict=True):
        assert ours["loss_nats"] == pytest.approx(theirs["loss_nats"], rel=1e-3)


def test_a_gpu_checkpoint_goes_on_on_the_cpu(data: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    train(data, run, "--parallel.wrap", "fsdp")
    for checkpoint in (run / "checkpoints").glob("iter_*"):
        if int(checkpoint.name.removeprefix("iter_")) > 10:
            shutil.rmtree(checkpoint)
    before = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    after = train(data, run, "--parallel.wrap", "ddp", cpu=True)
    for ours, theirs in zip(after, before, strict=True):
        assert ours["loss_nats"] == pytest.approx(theirs["loss_nats"], rel=BF16_RELATIVE)
