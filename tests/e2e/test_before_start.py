"""What the launcher settles before a rank is started: data, plans, memory, damage."""

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from genomoe.data.json_codec import encode
from genomoe.training import launch
from genomoe.training.config import PretrainConfig
from genomoe.training.plan import memory_error, memory_per_rank
from genomoe.training.presets import PRESETS


@pytest.fixture
def data(dna_set: Path, tmp_path: Path) -> Path:
    return shutil.copytree(dna_set, tmp_path / "data")


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[PretrainConfig]:
    """Configs with which the ranks would have been started."""
    configs: list[PretrainConfig] = []

    def start(config: PretrainConfig) -> int:
        configs.append(config)
        return 0

    monkeypatch.setattr(launch, "start", start)
    return configs


def existing_run(folder: Path, data: Path) -> Path:
    folder.mkdir()
    config = dataclasses.replace(PRESETS["debug"], data=data, run=folder)
    (folder / "config.json").write_text(json.dumps(encode(config)))
    return folder


@pytest.mark.parametrize("preset", [[], ["debug"]])
def test_a_run_knows_its_data(
    preset: list[str], data: Path, tmp_path: Path, started: list[PretrainConfig]
) -> None:
    run = existing_run(tmp_path / "run", data)
    assert launch.main([*preset, "--run", str(run), "--gpus", "0", "--procs", "1"]) == 0
    assert started[0].data == data
    assert started[0].model.hidden_size == PRESETS["debug"].model.hidden_size


def test_a_plan_for_hardware_and_data_that_are_not_here(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    words = ["mixtral-8x7b", "--data", str(tmp_path / "none"), "--run", str(tmp_path / "run")]
    words += ["--gpus", "8", "--parallel.expert-model-parallel-size", "8", "--dry-run"]
    assert launch.main(words) == 0
    plan: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert plan["ranks"] == 8 and plan["config"]["parallel"]["engine"] == "gpu"
    assert plan["parameters_total"] == 46_441_697_280
    assert "iterations" not in plan
    assert not (tmp_path / "run").exists()


def test_one_changed_byte_in_a_shard(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], started: list[PretrainConfig]
) -> None:
    shard = next((data / "train").glob("*.tar"))
    raw = bytearray(shard.read_bytes())
    raw[len(raw) // 2] ^= 1
    shard.write_bytes(raw)
    words = ["debug", "--data", str(data), "--run", str(tmp_path / "run"), "--gpus", "0"]
    assert launch.main(words) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and f"{shard.name}: damaged (wrong sha256)" in error
    assert not started and not (tmp_path / "run").exists()


def test_a_data_set_is_no_run_folder(
    data: Path, capsys: pytest.CaptureFixture[str], started: list[PretrainConfig]
) -> None:
    words = ["debug", "--data", str(data), "--run", str(data), "--gpus", "0"]
    assert launch.main(words) == 2
    assert f"{data}: is a data set" in capsys.readouterr().err
    assert not started


def test_a_run_that_cannot_fit(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], started: list[PretrainConfig]
) -> None:
    words = ["mixtral-8x7b", "--data", str(data), "--run", str(tmp_path / "run")]
    assert launch.main([*words, "--gpus", "0", "--procs", "2"]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "not enough memory: 2 rank(s) would need about" in error
    assert not started and not (tmp_path / "run").exists()


def test_memory_is_compared_with_all_ranks_that_share_it() -> None:
    plan = memory_per_rank(PRESETS["debug"], 1)
    assert memory_error(plan, ranks=2, available_bytes=2 * plan["total"]) is None
    error = memory_error(plan, ranks=2, available_bytes=2 * plan["total"] - 1)
    assert error is not None and "2 rank(s)" in error and "activations" in error
