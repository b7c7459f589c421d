import io
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import pytest

from genomoe.data.command_line import choose, fail, parse
from genomoe.data.errors import InputError
from genomoe.training.config import PretrainConfig
from genomoe.training.presets import PRESETS


@dataclass(frozen=True, kw_only=True)
class Inner:
    batch_size: int = 4
    kind: Literal["a", "b"] = "a"

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise ValueError(f"inner.batch-size is {self.batch_size}: use 1 or more")


@dataclass(frozen=True, kw_only=True)
class Options:
    """What it does."""

    path: Path = Path("x")
    rate: float = 1.0
    inner: Inner = field(default_factory=Inner)


def refused(*words: str) -> str:
    with pytest.raises(InputError) as caught:
        parse(Options, words, prog="prog")
    message = str(caught.value)
    assert "\n" not in message
    assert not set("│╭╰─\x1b") & set(message), "tyro's frame is still there"
    return message


def test_flags_over_defaults() -> None:
    default = Options(rate=3.0, inner=Inner(batch_size=9))
    parsed = parse(Options, ["--inner.kind", "b", "--path", "p"], default=default, prog="prog")
    assert parsed == Options(path=Path("p"), rate=3.0, inner=Inner(batch_size=9, kind="b"))


def test_an_unknown_flag_names_the_one_that_was_meant() -> None:
    message = refused("--inner.batch-sise", "5")
    assert "--inner.batch-sise" in message
    assert "did you mean --inner.batch-size?" in message
    assert "--help" in message


def test_an_unknown_flag_that_is_like_no_other() -> None:
    message = refused("--zzzz", "5")
    assert "--zzzz" in message
    assert "did you mean" not in message


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--rate", "fast"], ["--rate", "fast"]),
        (["--inner.batch-size", "2.5"], ["--inner.batch-size", "2.5"]),
        (["--inner.kind", "c"], ["--inner.kind", "c"]),
        (["--rate"], ["--rate"]),
        (["stray"], ["stray"]),
    ],
)
def test_a_bad_value_is_named_with_its_flag(words: list[str], named: list[str]) -> None:
    message = refused(*words)
    assert all(word in message for word in named), message


def test_a_value_that_the_dataclass_refuses() -> None:
    assert "inner.batch-size is 0: use 1 or more" in refused("--inner.batch-size", "0")


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
@pytest.mark.parametrize("columns", ["40", "80", "300"])
def test_one_line_whatever_the_terminal(
    encoding: str, columns: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding=encoding))
    message = refused("--inner.batch-sise", "5")
    assert message.startswith("Unrecognized options: --inner.batch-sise, 5")
    assert "did you mean --inner.batch-size?" in message
    assert refused("--rate", "fast").startswith("Error parsing --rate: ")
    assert refused("--inner.batch-size", "0").startswith("inner.batch-size is 0: use 1 or more")


def test_help_is_no_mistake(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        parse(Options, ["--help"], prog="prog", description="Told so.")
    assert stop.value.code in (0, None)
    shown = capsys.readouterr().out
    assert "--inner.batch-size" in shown and "Told so." in shown


def test_flags_of_the_main_command() -> None:
    parsed = parse(
        PretrainConfig,
        ["--gpus", "0", "--dry-run", "--model.num-blocks", "3"],
        default=PRESETS["debug"],
        prog="prog",
    )
    assert parsed.launch.gpus == 0 and parsed.launch.dry_run
    assert parsed.model.num_blocks == 3 and parsed.model.hidden_size == 32


def test_choose() -> None:
    assert choose("clade", ["clade", "genus"], "preset") == "clade"
    with pytest.raises(InputError) as caught:
        choose("clad", ["clade", "genus"], "preset")
    assert str(caught.value) == (
        "preset 'clad' is unknown: use one of clade, genus; did you mean clade?"
    )
    with pytest.raises(InputError) as caught:
        choose("zzz", ["clade", "genus"], "preset")
    assert "did you mean" not in str(caught.value)


def test_fail(capsys: pytest.CaptureFixture[str]) -> None:
    assert fail(InputError("a\nb")) == 2
    assert fail(Exception("late"), 1) == 1
    captured = capsys.readouterr()
    assert captured.err == "error: a b\nerror: late\n"
    assert captured.out == ""
