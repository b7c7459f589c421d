import json
from pathlib import Path
from typing import Any

import pytest

from genomoe.training.metrics import MetricsWriter, Progress, bits, read_metrics


def write(run: Path, iterations: range, *, resume: int = 0, loss: float = 1.0) -> None:
    writer = MetricsWriter(run, resume_iteration=resume)
    for iteration in iterations:
        writer.write({"iteration": iteration, "loss": loss, "load": [[0.5, 0.5]], "none": None})
    writer.close()


def test_one_object_a_line(tmp_path: Path) -> None:
    write(tmp_path, range(1, 4))
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["iteration"] for line in lines] == [1, 2, 3]
    assert read_metrics(tmp_path / "metrics.jsonl")[0]["load"] == [[0.5, 0.5]]


def test_a_resumed_run_drops_what_it_does_again(tmp_path: Path) -> None:
    write(tmp_path, range(1, 8), loss=1.0)
    write(tmp_path, range(5, 10), resume=4, loss=2.0)
    records = read_metrics(tmp_path / "metrics.jsonl")
    assert [record["iteration"] for record in records] == list(range(1, 10))
    assert [record["loss"] for record in records] == [1.0] * 4 + [2.0] * 5


def test_a_run_from_the_start_keeps_nothing(tmp_path: Path) -> None:
    write(tmp_path, range(1, 8))
    write(tmp_path, range(1, 3))
    assert [r["iteration"] for r in read_metrics(tmp_path / "metrics.jsonl")] == [1, 2]


@pytest.mark.parametrize("tail", ['{"iteration": 4, "lo', '{"iteration": 4, "loss": 1.0', "{"])
def test_half_a_line_is_left_out(tmp_path: Path, tail: str) -> None:
    path = tmp_path / "metrics.jsonl"
    write(tmp_path, range(1, 4))
    with path.open("a") as file:
        file.write(tail)
    assert [record["iteration"] for record in read_metrics(path)] == [1, 2, 3]
    write(tmp_path, range(4, 6), resume=3)
    lines = path.read_text().splitlines()
    assert [json.loads(line)["iteration"] for line in lines] == [1, 2, 3, 4, 5]


def test_no_file_no_records(tmp_path: Path) -> None:
    assert read_metrics(tmp_path / "metrics.jsonl") == []


def test_a_number_that_json_lacks_is_refused(tmp_path: Path) -> None:
    writer = MetricsWriter(tmp_path, resume_iteration=0)
    with pytest.raises(ValueError):
        writer.write({"iteration": 1, "loss": float("nan")})
    writer.close()


def test_tensorboard_gets_the_numbers(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    write(tmp_path, range(1, 4), loss=2.5)
    board = EventAccumulator(str(tmp_path / "tensorboard"))
    board.Reload()
    assert board.Tags()["scalars"] == ["loss"]
    assert [(event.step, event.value) for event in board.Scalars("loss")] == [
        (1, 2.5),
        (2, 2.5),
        (3, 2.5),
    ]


def test_progress(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    clock: Any = iter([100.0, 110.0])
    monkeypatch.setattr("genomoe.training.metrics.time.monotonic", lambda: next(clock))
    progress = Progress(total=1000, start=500, enabled=True)
    progress.line(600, "loss 1.9")  # 100 in 10 seconds: 400 more take 40
    captured = capsys.readouterr()
    assert captured.err == "[ 600/1000] loss 1.9  0:40 left\n"
    assert captured.out == ""


def test_what_is_said_is_also_logged(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    for _ in range(2):  # a resumed run goes on in the same log
        progress = Progress(total=10, start=0, enabled=True, log=log)
        progress.line(10, "x")
        progress.say("y")
    assert log.read_text() == "[10/10] x  0:00 left\ny\n" * 2


def test_other_ranks_are_silent(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    progress = Progress(total=10, start=0, enabled=False, log=tmp_path / "train.log")
    progress.line(1, "x")
    progress.say("y")
    assert capsys.readouterr().err == ""
    assert list(tmp_path.iterdir()) == []


def test_bits() -> None:
    assert bits(0.6931471805599453) == pytest.approx(1.0)
