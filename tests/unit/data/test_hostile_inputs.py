"""Every mistake of a user: status 2, one line that names the place, and nothing left behind."""

import gzip
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from genomoe.data.synthetic import markov_genome, write_fasta

_GENOME = markov_genome(30_000, 2, 1)
_GOOD = f">good\n{_GENOME}\n".encode()

_CASES = {
    "empty": (b"", "the file is empty"),
    "empty_gz": (gzip.compress(b""), "the file is empty"),
    "blank": (b"\n\n", "only blank lines"),
    "truncated_gz": (gzip.compress(_GOOD)[:-900], "truncated"),
    "not_fasta": (b"ACGT\nACGT\n", "input.fa:1: not FASTA: line 1 starts with 'ACGT'"),
    "html": (b"<!DOCTYPE html>\n<html></html>\n", "input.fa:1: not FASTA"),
    "binary": (bytes(range(200, 256)), "input.fa:1: not FASTA"),
    "letter": (_GOOD + b">x\nACGT\nAC?T\n", "input.fa:5: letter '?' at column 3"),
    "uracil": (b">x\nACGU\n", "--alphabet rna"),
    "protein": (b">x\nMKLE\n", "--alphabet protein"),
    "duplicate": (_GOOD + b">x\nAC\n>good\nAC\n", "input.fa:5: record id 'good'"),
    "no_id": (b">\nACGT\n", "input.fa:1: the record has no id"),
    "header_only": (b">x\n", "nothing is left after cleaning (1 empty records)"),
    "too_short": (b">x\nACGT\n", "1 records shorter than --min-length 1000"),
    "all_gap": (b">x\n" + b"N" * 5000 + b"\n", "5000 letters in gaps"),
    "all_ambiguous": (b">x\n" + b"RY" * 5000 + b"\n", "1 pieces over --max-ambiguous 0.05"),
    "small": (b">x\n" + b"ACGT" * 1000 + b"\n", "no room for a validation split"),
}


def assert_refused(status: int, error: str, words: str, folder: Path, left: list[str]) -> None:
    assert status == 2, error
    assert error.count("\n") == 1
    assert error.startswith("error: ")
    assert words in error
    assert sorted(path.name for path in folder.iterdir()) == sorted(left)


@pytest.mark.parametrize("workers", ["1", None])
@pytest.mark.parametrize("case", _CASES)
def test_bad_files(command: Callable, tmp_path: Path, case: str, workers: str | None) -> None:
    content, words = _CASES[case]
    path = tmp_path / "input.fa"
    path.write_bytes(content)
    options = ("--workers", workers) if workers else ()
    status, _, error = command(path, "--out", tmp_path / "deep" / "out", *options)
    assert_refused(status, error, words, tmp_path, ["input.fa"])
    assert "no room" in error or "input.fa" in error


@pytest.mark.parametrize("case", ["letter", "truncated_gz"])
def test_an_error_in_a_worker_is_the_same_line(
    command: Callable, tmp_path: Path, case: str
) -> None:
    good = write_fasta(tmp_path / "good.fa", [("g", _GENOME)])
    bad = tmp_path / "input.fa"
    bad.write_bytes(_CASES[case][0])
    lines = []
    for workers in ("1", "2"):
        status, _, error = command(
            good, bad, tmp_path / "none.fa", "--out", tmp_path / "out", "--workers", workers
        )
        assert_refused(status, error, _CASES[case][1], tmp_path, ["good.fa", "input.fa"])
        lines.append(error)
    assert lines[0] == lines[1]


def test_bad_paths(command: Callable, tmp_path: Path) -> None:
    good = write_fasta(tmp_path / "good.fa", [("g", _GENOME)])
    for paths, words in (
        ([tmp_path / "none.fa"], "none.fa: no such file"),
        ([tmp_path / "*.fa"], "left to the shell"),
        ([tmp_path], f"{tmp_path}: is a directory"),
        ([good, good], "good.fa: the file is named twice"),
        ([good, good / "x"], "x: cannot be opened (Not a directory)"),
        ([], "PATHS: no input file"),
    ):
        status, _, error = command(*paths, "--out", tmp_path / "out")
        assert_refused(status, error, words, tmp_path, ["good.fa"])


def test_ids_are_unique_over_files(command: Callable, tmp_path: Path) -> None:
    paths = [write_fasta(tmp_path / name, [("g", _GENOME)]) for name in ("a.fa", "b.fa")]
    status, _, error = command(*paths, "--out", tmp_path / "out")
    assert_refused(
        status,
        error,
        "b.fa:1: record id 'g' was already used at a.fa:1",
        tmp_path,
        ["a.fa", "b.fa"],
    )


def test_bad_destinations(command: Callable, tmp_path: Path) -> None:
    good = write_fasta(tmp_path / "good.fa", [("g", _GENOME)])
    full = tmp_path / "full"
    full.mkdir()
    (full / "precious.txt").write_text("x")
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "nowhere")
    left = ["full", "good.fa", "link"]
    for out, flags, words in (
        (full, (), "full: exists"),
        (full, ("--force",), "full: is not a data set"),
        (good, ("--force",), "good.fa: is not a data set"),
        (link, (), "link: exists"),
        (link, ("--force",), "link: is not a data set"),
        (good / "out", (), "cannot write beside it"),
    ):
        status, _, error = command(good, "--out", out, *flags)
        assert_refused(status, error, f"--out {tmp_path}", tmp_path, left)
        assert words in error
    assert (full / "precious.txt").read_text() == "x"


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--guard", "-1"), "--guard -1: give 0 or more"),
        (("--block-length", "0"), "--block-length 0"),
        (("--guard", "10000"), "--guard 10000 is not less than half of --block-length 20000"),
        (("--valid-fraction", "0"), "--valid-fraction 0.0"),
        (("--test-fraction", "0.5"), "--test-fraction 0.5"),
        (("--max-ambiguous", "nan"), "--max-ambiguous nan"),
        (("--n-run", "0"), "--n-run 0"),
        (("--alphabet", "protein", "--split", "blocks"), "--split blocks: proteins are not cut"),
        (("--workers", "0"), "--workers 0"),
        (("--min-length", "0"), "--min-length 0"),
        (("--shard-bytes", "-5"), "--shard-bytes -5"),
    ],
)
def test_options_out_of_range(
    command: Callable, tmp_path: Path, flags: tuple[str, ...], words: str
) -> None:
    good = write_fasta(tmp_path / "good.fa", [("g", _GENOME)])
    status, _, error = command(good, "--out", tmp_path / "out", *flags)
    assert_refused(status, error, words, tmp_path, ["good.fa"])


@pytest.mark.parametrize("flags", [("--bogus",), ("--seed", "x"), ("--alphabet", "xna"), ()])
def test_flags_that_do_not_parse(command: Callable, tmp_path: Path, flags: tuple[str, ...]) -> None:
    out = ("--out", tmp_path / "out") if flags else ()
    status, _, error = command(tmp_path / "x.fa", *out, *flags)
    assert status == 2
    assert "Traceback" not in error
    assert list(tmp_path.iterdir()) == []


def test_as_a_program(tmp_path: Path) -> None:
    path = tmp_path / "x.fa"
    path.write_bytes(b">a\nAC-T\n")
    done = subprocess.run(
        [sys.executable, "-m", "genomoe.data.preprocess", path, "--out", tmp_path / "out"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"error: {path}:2: letter '-' at column 3 is not in the dna")
    assert done.stderr.count("\n") == 1
