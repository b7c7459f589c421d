"""What several folders of tests share: one-rank process groups, and small data sets."""

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

# megatron-core's remarks about packages that a plain install lacks, and about its own plans.
_UPSTREAM_REMARKS = (
    "Apex is not installed",
    "Transformer Engine",
    "MimoModelConfig is experimental",
    "full scope is deprecated",
    "MLP requires ffn_hidden_size",
    "Warning. tp_group is None",
    "`torch.jit.script_method` is deprecated",
    "The following imports from `dynamic_context.py`",
)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the switch with which a GPU machine shows that nothing was skipped."""
    parser.addoption(
        "--require-gpu", action="store_true", help="fail, rather than skip, without a GPU"
    )


@pytest.fixture(scope="session")
def require_gpu(request: pytest.FixtureRequest) -> None:
    """Skip, or with --require-gpu fail, where there is no GPU with Transformer Engine."""
    import torch

    missing = [] if torch.cuda.is_available() else ["an NVIDIA GPU"]
    missing += [] if find_spec("transformer_engine") else ["Transformer Engine"]
    if missing and request.config.getoption("--require-gpu"):
        pytest.fail(f"--require-gpu: {' and '.join(missing)} missing")
    if missing:
        pytest.skip(f"needs {' and '.join(missing)}")


def pytest_configure(config: pytest.Config) -> None:
    """Keep the summary of warnings for our own."""
    for remark in _UPSTREAM_REMARKS:
        config.addinivalue_line("filterwarnings", f"ignore:{remark}")


@pytest.fixture(scope="session")
def topology() -> Iterator[Any]:
    """Process groups of this process alone, on the CPU engine."""
    import torch

    from genomoe.parallel import topology as ranks
    from genomoe.parallel.config import ParallelConfig

    torch.set_num_threads(1)
    alone = ranks.RankInfo(rank=0, local_rank=0, world_size=1, local_world_size=1)
    yield ranks.start(ParallelConfig(), alone)
    ranks.stop()


@pytest.fixture(scope="session")
def dna_set(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data set of 40 kb of synthetic sequence; never written to."""
    from genomoe.data.preprocess import main
    from genomoe.data.synthetic import markov_genome, write_fasta

    folder = tmp_path_factory.mktemp("dna")
    fasta = write_fasta(folder / "genome.fa", [("chromosome", markov_genome(40_000, 2, seed=5))])
    out = folder / "set"
    options = ["--out", str(out), "--block-length", "500", "--guard", "50", "--workers", "1"]
    assert main([str(fasta), *options]) == 0
    return out
