"""A score is the same number whatever the number of ranks and the batch size."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.timeout(200)


def score(run: Path, ranks: int, *flags: str) -> dict[str, Any]:
    command = [sys.executable, "-m"]
    if ranks > 1:
        command += ["torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks), "-m"]
    command += ["genomoe.tools.eval_perplexity", str(run), *flags]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return json.loads(done.stdout)


def test_any_rank_count_and_batch_size(dna_set: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    command = [sys.executable, "-m", "genomoe.training.launch", "debug", "--data", str(dna_set)]
    command += ["--run", str(run), "--gpus", "0", "--procs", "1", "--training.train-iters", "6"]
    subprocess.run(command, check=True, capture_output=True)
    alone = score(run, 1)
    assert alone["scored"] == 4000  # eight blocks of 500 letters
    for other in (score(run, 4), score(run, 2, "--batch-size", "3")):
        assert other["scored"] == alone["scored"]
        assert other["nll_nats"] == pytest.approx(alone["nll_nats"], rel=1e-6)
        assert other["baselines"] == alone["baselines"]
