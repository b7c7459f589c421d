import pytest

from genomoe.data import progress
from genomoe.data.progress import Progress


def test_lines_are_sparse_and_tell_what_is_left(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    stage = Progress("reading", 100_000_000, "B")
    for second in range(1, 25):
        now[0] = float(second)
        stage.add(1_000_000)
    stage.close()
    lines = capsys.readouterr().err.splitlines()
    assert lines == [
        "reading: 10.0 MB, 1.0 MB/s, 10%, about 90 s left",
        "reading: 20.0 MB, 1.0 MB/s, 20%, about 80 s left",
    ]


def test_an_unknown_total_has_no_share(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    stage = Progress("reading", 0, "B")
    now[0] = 20.0
    stage.add(4_000_000)
    assert capsys.readouterr().err == "reading: 4.0 MB, 0.2 MB/s\n"


def test_a_terminal_gets_a_bar(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress.sys.stderr, "isatty", lambda: True, raising=False)
    stage = Progress("writing", 10, "B")
    stage.add(10)
    stage.close()
    assert "writing" in capsys.readouterr().err
