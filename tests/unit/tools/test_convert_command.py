"""The words of the command: help at every level, one line for a mistake."""

import subprocess
import sys

import pytest

from genomoe.tools.convert_checkpoint import COMMANDS, main

Capture = pytest.CaptureFixture[str]


@pytest.mark.parametrize("flag", ["--help", "-h"])
@pytest.mark.parametrize("words", [[], ["hf"]])
def test_help_names_the_commands_below(words: list[str], flag: str, capsys: Capture) -> None:
    with pytest.raises(SystemExit) as stop:
        main([*words, flag])
    assert stop.value.code == 0
    printed = capsys.readouterr().out
    for command in COMMANDS:
        assert " ".join(command.words) in printed
        assert command.summary in printed


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["hf", "export"], ["RUN", "OUT", "--dtype", "float32,bfloat16", "--dry-run"]),
        (["hf", "import"], ["HF_FOLDER", "OUT", "--alphabet", "dna,rna,protein", "--dry-run"]),
    ],
)
def test_help_of_a_command(words: list[str], named: list[str], capsys: Capture) -> None:
    with pytest.raises(SystemExit) as stop:
        main([*words, "--help"])
    assert stop.value.code == 0
    printed = capsys.readouterr().out
    for word in named:
        assert word in printed


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ([], "convert_checkpoint: give one of hf (see --help)"),
        (["hf"], "convert_checkpoint hf: give one of export, import (see --help)"),
        (["fh"], "convert_checkpoint: command 'fh' is unknown: use one of hf"),
        (["hf", "exprot"], "'exprot' is unknown: use one of export, import; did you mean export?"),
        (["hf", "export"], "(see --help)"),
        (["hf", "export", "run"], "(see --help)"),
        (["hf", "export", "run", "out", "--dtype", "int8"], "(see --help)"),
        (["hf", "export", "run", "out", "--dtyp", "float32"], "did you mean --dtype?"),
        (["hf", "import", "a", "b", "c"], "(see --help)"),
        (["hf", "import", "a", "b", "--alphabet", "klingon"], "(see --help)"),
    ],
)
def test_a_mistake_is_one_line(words: list[str], line: str, capsys: Capture) -> None:
    assert main(words) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    (said,) = printed.err.splitlines()
    assert said.startswith("error: ") and line in said


def test_help_and_mistakes_answer_without_torch() -> None:
    code = (
        "import sys; from genomoe.tools.convert_checkpoint import main; "
        "assert main(['hf', 'export']) == 2; assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
