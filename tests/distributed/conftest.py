import subprocess
import sys
from pathlib import Path

import pytest

from genomoe.data.synthetic import markov_genome, write_fasta


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
