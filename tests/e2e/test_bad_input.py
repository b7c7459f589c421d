"""A user's mistake: one line that names it, exit 2, nothing written."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from genomoe.data.json_codec import encode
from genomoe.training import launch
from genomoe.training.presets import PRESETS
from genomoe.training.run_folder import RunLock


@pytest.fixture
def data(dna_set: Path, tmp_path: Path) -> Path:
    """A copy of the small data set, to be damaged."""
    return shutil.copytree(dna_set, tmp_path / "data")


@pytest.fixture
def refused(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Any:
    """Run the main command in this process; return its one line."""

    def started(config: Any) -> int:
        raise AssertionError("the ranks were started")

    monkeypatch.setattr(launch, "start", started)
    for name in ("NODE_RANK", "MASTER_ADDR"):
        monkeypatch.delenv(name, raising=False)

    def run(*words: str, preset: str = "debug", on_cpu: bool = True) -> str:
        before = listing(tmp_path)
        ranks = ("--gpus", "0") if on_cpu else ()
        common = ("--data", str(data), "--run", str(tmp_path / "run"), *ranks)
        assert launch.main([preset, *common, *words]) == 2
        captured = capsys.readouterr()
        assert captured.out == ""
        assert listing(tmp_path) == before, "something was written"
        return one_line(captured.err)

    return run


def listing(folder: Path) -> dict[str, int]:
    return {str(path): path.stat().st_mtime_ns for path in sorted(folder.rglob("*"))}


def one_line(text: str) -> str:
    lines = text.splitlines()
    assert len(lines) == 1, text
    assert lines[0].startswith("error: "), text
    return lines[0]


def test_the_command_without_a_mistake_would_start(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "start", lambda config: 7)
    words = ["debug", "--data", str(data), "--run", str(tmp_path / "run"), "--gpus", "0"]
    assert launch.main([*words, "--procs", "1"]) == 7
    assert not (tmp_path / "run").exists()


def test_unknown_preset(refused: Any) -> None:
    line = refused(preset="bacterum")
    assert "preset 'bacterum' is unknown" in line
    assert "did you mean bacterium?" in line


def test_unknown_flag(refused: Any) -> None:
    line = refused("--training.train-iter", "5")
    assert "--training.train-iter" in line
    assert "did you mean --training.train-iters?" in line


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("--rows.seq-length", "long"), ("--rows.seq-length", "long")),
        (("--rows.seq-length", "1"), ("rows.seq-length is 1", "2 or more")),
        (("--rows.seq-length", "-64"), ("rows.seq-length is -64", "2 or more")),
        (("--training.global-batch-size", "0"), ("training.global-batch-size is 0",)),
        (("--training.eval-interval", "0"), ("training.eval-interval is 0",)),
        (("--optimizer.lr", "nan"), ("optimizer.lr is nan",)),
        (("--model.num-query-groups", "3"), ("model.num-query-groups is 3",)),
        (("--model.num-attention-heads", "0"), ("model.num-attention-heads is 0",)),
        (("--model.moe-router-topk", "9"), ("model.moe-router-topk is 9", "2 to 4")),
        (("--parallel.wrap", "zero"), ("--parallel.wrap", "zero")),
        (("--parallel.timeout-seconds", "0"), ("parallel.timeout-seconds is 0",)),
        (("--model.expert-backend", "te_grouped"), ("te_grouped", "use sequential")),
        (("--procs", "0"), ("PROCS=0",)),
        (("--nodes", "0"), ("NODES=0",)),
        (
            ("--parallel.expert-model-parallel-size", "0"),
            ("parallel.expert-model-parallel-size is 0", "1 or more"),
        ),
    ],
)
def test_a_value_out_of_range(refused: Any, words: tuple[str, ...], named: tuple[str]) -> None:
    line = refused(*words)
    assert all(word in line for word in named), line


def test_expert_parallelism_that_does_not_divide_the_experts(refused: Any) -> None:
    line = refused("--procs", "3", "--parallel.expert-model-parallel-size", "3")
    assert "expert-model-parallel-size 3 does not divide the 4 experts" in line
    assert "[1, 2, 4]" in line


def test_expert_parallelism_that_does_not_divide_the_ranks(refused: Any) -> None:
    line = refused("--procs", "2", "--parallel.expert-model-parallel-size", "4")
    assert "expert-model-parallel-size 4 does not divide the 2 rank(s)" in line


def test_expert_parallelism_of_a_dense_model(refused: Any) -> None:
    dense = ("--model.num-moe-experts", "0")
    line = refused("--procs", "2", "--parallel.expert-model-parallel-size", "2", *dense)
    assert "the model is dense" in line


def test_a_batch_that_the_ranks_do_not_divide(refused: Any) -> None:
    line = refused("--procs", "3")
    assert "training.global-batch-size 16 is not a multiple of the 3 rank(s): use 18" in line


def test_gpus_that_are_not_there(refused: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "_count_gpus", lambda: 0)
    line = refused("--gpus", "2", on_cpu=False)
    assert "GPUS=2" in line and "0 usable NVIDIA GPU(s)" in line and "GPUS=0" in line
    monkeypatch.setattr(launch, "_count_gpus", lambda: 4)
    assert "use GPUS=4" in refused("--gpus", "8", on_cpu=False)
    assert "GPUS=-1" in refused("--gpus", "-1", on_cpu=False)


@pytest.mark.parametrize("given", [{}, {"NODE_RANK": "0"}, {"MASTER_ADDR": "here"}])
def test_several_nodes_without_their_places(
    refused: Any, given: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    line = refused("--nodes", "2", "--procs", "1")
    assert "NODES=2" in line and "NODE_RANK" in line and "MASTER_ADDR" in line


def test_no_data_set(refused: Any, data: Path) -> None:
    shutil.rmtree(data)
    line = refused()
    assert str(data) in line and "genomoe.data.preprocess" in line
    assert str(data) in refused(preset="auto")


def edit_manifest(data: Path, **changes: Any) -> None:
    path = data / "manifest.json"
    manifest = {**json.loads(path.read_text()), **changes}
    path.write_text(json.dumps(manifest, sort_keys=True, indent=1) + "\n")


def test_a_data_set_of_another_tokenizer(refused: Any, data: Path) -> None:
    edit_manifest(data, tokenizer_fingerprint="0" * 64)
    line = refused()
    assert "manifest.json: tokenizer_fingerprint" in line and "anew" in line


def test_a_data_set_of_another_version(refused: Any, data: Path) -> None:
    edit_manifest(data, schema_version=99)
    line = refused()
    assert "manifest.json: schema_version is 99" in line


def test_an_unfinished_data_set(refused: Any, data: Path) -> None:
    (data / "manifest.json").unlink()
    assert "is not a data set" in refused()


@pytest.mark.parametrize("name", ["train/shard-000000.tar", "valid/shard-000000.tar"])
def test_a_damaged_shard(refused: Any, data: Path, name: str) -> None:
    content = (data / name).read_bytes()
    (data / name).write_bytes(content[:-512])
    line = refused()
    assert f"{name}: damaged" in line
    (data / name).unlink()
    assert f"{name}: cannot be read" in refused()


def test_a_run_folder_in_use(refused: Any, tmp_path: Path) -> None:
    with RunLock(tmp_path / "run"):
        line = refused()
    assert f"{tmp_path / 'run'}: another process is training" in line


def test_a_run_folder_that_is_a_file(refused: Any, tmp_path: Path) -> None:
    (tmp_path / "run").write_text("mine")
    assert str(tmp_path / "run") in refused()


def test_a_run_whose_config_was_edited(refused: Any, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    config = {**encode(PRESETS["debug"]), "novelty": 1}
    (tmp_path / "run" / "config.json").write_text(json.dumps(config))
    line = refused(preset="auto")
    assert "config.json: config.novelty is unknown" in line
