"""The main job as a user runs it, by subprocess: preprocess, train, kill -9, go on, score."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from genomoe.data.errors import InputError
from genomoe.training import launch
from genomoe.training.run_folder import RunLock

ROOT = Path(__file__).parents[2]
LAST, SAVED = 24, 10  # iterations of the run, and between its checkpoints
RECIPE = [
    *("--rows.seq-length", "256", "--training.global-batch-size", "32"),
    *("--training.train-iters", str(LAST), "--training.save-interval", str(SAVED)),
    *("--training.eval-interval", str(SAVED), "--model.dropout", "0.1", "--gpus", "0"),
]
COMPARED = ("consumed_samples", "loss_nats", "grad_norm", "aux_loss", "z_loss", "expert_load")

pytestmark = pytest.mark.timeout(300)


def run(*words: object, **options: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False, **options)


def training(data: Path, folder: Path, *words: str) -> list[str]:
    common = ["--data", str(data), "--run", str(folder), *RECIPE]
    return ["-m", "genomoe.training.launch", "debug", *common, *words]


def start(*words: str, **environment: str) -> subprocess.Popen[str]:
    """Start a command as the leader of its own process group."""
    return subprocess.Popen(
        [sys.executable, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, **environment},
    )


def metrics(folder: Path) -> list[dict[str, Any]]:
    path = folder / "metrics.jsonl"
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text.split("\n")[:-1]]


def wait_for(condition: Callable[[], bool], seconds: float, what: str) -> None:
    limit = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < limit, what
        time.sleep(0.01)


def kill_in_between(process: subprocess.Popen[str], folder: Path, kill: Callable[[], None]) -> int:
    """Kill a run between two checkpoints; return the last iteration that it told of."""

    def is_between() -> bool:
        assert process.poll() is None, process.communicate()
        return len(metrics(folder)) >= SAVED + 3

    wait_for(is_between, 120, "the run did not get so far")
    kill()
    process.communicate()
    told = metrics(folder)[-1]["iteration"]
    assert SAVED < told < 2 * SAVED, "not between two checkpoints"
    assert [p.name for p in (folder / "checkpoints").glob("iter_*")] == [f"iter_{SAVED:07d}"]
    return told


def final_files(folder: Path) -> dict[str, bytes]:
    last = folder / "checkpoints" / f"iter_{LAST:07d}"
    return {path.name: path.read_bytes() for path in last.glob("*.safetensors")}


def same_course(got: Path, want: Path, relative: float) -> None:
    ours, theirs = metrics(got), metrics(want)
    assert [record["iteration"] for record in ours] == list(range(1, LAST + 1))
    for mine, other in zip(ours, theirs, strict=True):
        for name in COMPARED:
            flat = (mine[name], other[name])
            if name == "expert_load":
                flat = tuple([x for row in value for x in row] for value in flat)
            assert flat[0] == pytest.approx(flat[1], rel=relative), (name, mine["iteration"])
    assert ours[-1]["valid_bits"] == pytest.approx(theirs[-1]["valid_bits"], rel=relative)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("data") / "lambda"
    genome = ROOT / "examples" / "phage_lambda.fasta.gz"
    blocks = ("--block-length", "1000", "--guard", "100")
    done = run("-m", "genomoe.data.preprocess", genome, "--out", out, *blocks)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["records"] == 1
    return out


@pytest.fixture(scope="module")
def straight(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An uninterrupted run on one rank."""
    folder = tmp_path_factory.mktemp("straight") / "run"
    done = run(*training(data, folder, "--procs", "1"))
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert summary["iteration"] == summary["iterations"] == LAST
    assert "validation at epoch" in done.stderr and "left" in done.stderr
    told = metrics(folder)
    assert told[-1]["valid_bits"] < told[SAVED - 1]["valid_bits"] < 2.2, "the run does not learn"
    return folder


def test_killed_and_scored(data: Path, straight: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    command = training(data, folder, "--procs", "1")
    process = start(*command)
    kill_in_between(process, folder, lambda: os.killpg(process.pid, signal.SIGKILL))
    done = run(*command)
    assert done.returncode == 0, done.stderr
    assert f"resuming iter_{SAVED:07d}" in done.stderr
    assert final_files(folder) == final_files(straight) != {}
    same_course(folder, straight, relative=0.0)
    assert not list(folder.rglob("*.partial"))

    scored = run(ROOT / "tools" / "eval_perplexity.py", folder, "--split", "test")
    assert scored.returncode == 0, scored.stderr
    result = json.loads(scored.stdout)
    assert result["unit"] == "base" and result["scored"] > 3000
    assert 1.5 < result["bits"] < 2.2
    assert result["nll_nats"] == pytest.approx(result["bits"] * 0.6931471805599453)
    assert result["perplexity"] == pytest.approx(2 ** result["bits"])
    assert result["baselines"]["uniform"] == pytest.approx(2.0)
    assert {"order-0", "order-1", "best"} <= set(result["baselines"])
    assert str(folder) in result["checkpoint"]


def children(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for task in tasks for child in task.read_text().split()]


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def is_free(folder: Path) -> bool:
    try:
        with RunLock(folder):
            return True
    except InputError:
        return False


@pytest.mark.skipif(sys.platform != "linux", reason="ranks end with their launcher on Linux only")
def test_two_ranks_whose_launcher_is_killed(data: Path, straight: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    split = ("--parallel.expert-model-parallel-size", "2", "--parallel.wrap", "fsdp")
    command = training(data, folder, "--procs", "2", *split)
    process = start(*command)
    ranks: list[int] = []

    def kill_launcher() -> None:
        ranks.extend(children(process.pid))
        assert not is_free(folder)
        process.kill()

    kill_in_between(process, folder, kill_launcher)
    assert len(ranks) >= 2
    wait_for(lambda: not any(map(is_running, ranks)), 10, "a rank outlived its launcher")
    wait_for(lambda: is_free(folder), 5, "the lock outlived its launcher")

    mistaken = run(*command, "--optimizer.lr", "0.5")
    assert mistaken.returncode == 2
    (line,) = mistaken.stderr.splitlines()
    assert line.startswith(f"error: {folder}: optimizer.lr: the run has 0.01, the command 0.5")

    done = run(*command)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["iteration"] == LAST
    same_course(folder, straight, relative=1e-5)


@pytest.mark.parametrize("ranks", ["1", "2"])
def test_interrupted(ranks: str, data: Path, tmp_path: Path) -> None:
    """Ctrl-C, which goes to the whole group."""
    folder = tmp_path / "run"
    process = start(*training(data, folder, "--procs", ranks))
    wait_for(lambda: len(metrics(folder)) >= 2, 120, "the run did not get so far")
    os.killpg(process.pid, signal.SIGINT)
    _, told = process.communicate(timeout=60)
    assert process.returncode == 1
    assert told.splitlines()[-1] == "error: interrupted; run the same command to go on"
    assert "Traceback" not in told
    wait_for(lambda: is_free(folder), 5, "the lock outlived its launcher")


def test_two_nodes(data: Path, straight: Path, tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    command = training(data, tmp_path / "run", "--nodes", "2", "--procs", "1")
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    nodes = [start(*command, NODE_RANK=str(rank), **place) for rank in range(2)]
    told = [node.communicate() for node in nodes]
    assert [node.returncode for node in nodes] == [0, 0], told
    assert json.loads(told[0][0])["iteration"] == LAST
    assert told[1][0] == "", "one JSON object, from the first node"
    same_course(tmp_path / "run", straight, relative=1e-5)


def test_make_hands_its_variables_on(data: Path, tmp_path: Path) -> None:
    variables = ["GPUS=0", "PROCS=4", "EP=2", "NODES=1", "PRESET=clade", f"DATA={data}"]
    more = [f"RUN={tmp_path / 'run'}", "ARGS=--training.train-iters 5"]
    shown = subprocess.run(
        ["make", "--no-print-directory", "-n", "train", *variables, *more],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    command = shown.stdout.splitlines()[-1]
    config = launch.resolve(command.partition("genomoe.training.launch")[2].split())
    assert config.data == data and config.run == tmp_path / "run"
    assert (config.launch.gpus, config.launch.procs, config.launch.nodes) == (0, 4, 1)
    assert config.parallel.expert_model_parallel_size == 2
    assert config.model.num_blocks == 6 and config.training.train_iters == 5
