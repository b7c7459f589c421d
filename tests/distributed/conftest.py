import subprocess
import sys
from pathlib import Path

import pytest

from genomoe.data.synthetic import markov_genome, write_fasta
from tests.distributed.hardware import Hardware


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let `pytest tests/distributed --engine gpu --expert-backend te_grouped` run the same tests.

    Known only where this folder is named on the command line; elsewhere the defaults hold.
    """
    group = parser.getgroup("genomoe")
    group.addoption("--engine", choices=("cpu", "gpu"), default="cpu")
    group.addoption("--expert-backend", choices=("sequential", "te_grouped"), default="sequential")


@pytest.fixture(scope="session")
def hardware(request: pytest.FixtureRequest) -> Hardware:
    """What the layouts under test run on; the reference they are compared with never changes."""
    option = request.config.getoption
    return Hardware(
        engine=option("engine", default="cpu"),
        expert_backend=option("expert_backend", default="sequential"),
    )


@pytest.fixture(scope="session")
def small_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data set of 40 kb of synthetic sequence."""
    folder = tmp_path_factory.mktemp("data")
    fasta = folder / "genome.fa"
    write_fasta(fasta, [("chromosome", markov_genome(40_000, order=2, seed=5))])
    out = folder / "set"
    arguments = [str(fasta), "--out", str(out), "--block-length", "500", "--guard", "50"]
    subprocess.run([sys.executable, "-m", "genomoe.data.preprocess", *arguments], check=True)
    return out
