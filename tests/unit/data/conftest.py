"""Data sets for the tests of ``data``: built in this process, from a few synthetic records."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from genomoe.data.dataset import DataSet
from genomoe.data.options import PreprocessOptions
from genomoe.data.pipeline import preprocess
from genomoe.data.preprocess import main
from genomoe.data.synthetic import markov_genome, markov_proteins, write_fasta

# Time limits per example fail on a busy machine and prove nothing.
settings.register_profile("no deadline", deadline=None)
settings.load_profile("no deadline")

Command = Callable[..., tuple[int, dict[str, Any], str]]


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    """Run the command line in this process; returns (status, summary, stderr)."""

    def run(*arguments: object) -> tuple[int, dict[str, Any], str]:
        capsys.readouterr()
        try:
            status = main([str(argument) for argument in arguments])
        except SystemExit as exit_request:
            status = int(exit_request.code or 0)
        captured = capsys.readouterr()
        return status, json.loads(captured.out or "{}"), captured.err

    return run


@pytest.fixture
def build(command: Command, tmp_path: Path) -> Callable[..., DataSet]:
    """Make a data set from files and options, and open it."""

    def make(*arguments: object, out: str = "out") -> DataSet:
        folder = tmp_path / out
        status, _, error = command(*arguments, "--out", folder)
        assert status == 0, error
        return DataSet.open(folder)

    return make


@pytest.fixture(scope="session")
def genome(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A genome of two contigs with soft-masked stretches, a gap and some ambiguity codes."""
    letters = markov_genome(80_000, 2, 5)
    first = letters[:30_000] + letters[30_000:50_000].replace("GAT", "gat")
    first = first[:20_000] + "N" * 37 + first[20_000:35_000] + "RYKNN" + first[35_000:]
    second = "NNN" + letters[50_000:] + "NN"
    path = tmp_path_factory.mktemp("genome") / "genome.fa"
    return write_fasta(path, [("c1 first contig", first), ("c2", second)])


@pytest.fixture(scope="session")
def proteome(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two hundred proteins."""
    path = tmp_path_factory.mktemp("proteome") / "proteins.fa.gz"
    records = [(f"P{i:03d} protein", s) for i, s in enumerate(markov_proteins(200, 60, 3))]
    return write_fasta(path, records)


@pytest.fixture(scope="session")
def small_blocks() -> tuple[str, ...]:
    """Options that give a small genome enough blocks."""
    return ("--block-length", "1000", "--guard", "100", "--min-length", "200")


@pytest.fixture(scope="session")
def dna(genome: Path) -> DataSet:
    """The genome as a data set, not to be changed."""
    out = genome.parent / "dna"
    preprocess(
        PreprocessOptions(paths=(genome,), out=out, block_length=1000, guard=100, min_length=200)
    )
    return DataSet.open(out)


@pytest.fixture(scope="session")
def proteins(proteome: Path) -> DataSet:
    """The proteins as a data set, not to be changed."""
    out = proteome.parent / "proteins"
    preprocess(PreprocessOptions(paths=(proteome,), out=out, alphabet="protein"))
    return DataSet.open(out)
