"""A run that four ranks sharded, by way of Hugging Face to a score: one model all along."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from genomoe.data.synthetic import markov_genome, write_fasta
from genomoe.training import launch
from genomoe.training.scorer import find_checkpoint
from tests.distributed.ranks import run_ranks
from tests.distributed.real_run import train_runs
from tests.unit.tools.exported import (
    assert_same,
    export,
    exported_tensors,
    imported,
    opened,
    our_logits,
    some_ids,
    stored,
)

pytestmark = pytest.mark.timeout(240)


@pytest.fixture(scope="module")
def run(dna_set: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Nine steps of a k-mer stem, experts and norms at 4 ranks, EP 2, under FSDP."""
    folder = tmp_path_factory.mktemp("sharded")
    layout = {"expert_model_parallel_size": 2, "wrap": "fsdp"}
    job = {"data": str(dna_set), "run": str(folder / "run"), "parallel": layout}
    run_ranks(train_runs, 4, folder / "ranks", [job])
    return folder / "run"


@pytest.fixture(scope="module")
def hf(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export(run, tmp_path_factory.mktemp("hf") / "out")


def test_ranks_leave_no_trace(topology: Any, run: Path, hf: Path, tmp_path: Path) -> None:
    """The export is that of the same weights gathered on one rank, byte for byte."""
    from genomoe.training.checkpoint import save
    from genomoe.training.checkpoint_files import read_facts
    from genomoe.training.state import collect

    checkpoint = find_checkpoint(run)
    assert len(list(checkpoint.glob("state-*-of-00004.safetensors"))) == 4
    built, wrapped = opened(checkpoint, topology)
    facts = read_facts(checkpoint)
    iteration = facts["state"]["iteration"]
    one = save(tmp_path, iteration, collect(built, wrapped, None, topology), facts)
    assert len(list(one.glob("*.safetensors"))) == 1
    again = export(one, tmp_path / "hf")
    assert {p.name: p.read_bytes() for p in again.iterdir()} == {
        p.name: p.read_bytes() for p in hf.iterdir()
    }


def test_trained_weights_give_the_same_logits(topology: Any, run: Path, hf: Path) -> None:
    built, _ = opened(find_checkpoint(run), topology)
    theirs = AutoModelForCausalLM.from_pretrained(hf, trust_remote_code=True).eval()
    norms = [value for name, value in exported_tensors(hf).items() if "norm" in name]
    assert all((norm != 1).all() for norm in norms), "the training did not reach the norms"
    with torch.no_grad():
        logits = theirs(some_ids()).logits
    # Logits below 2: sums in another order differ by 1e-6 at most.
    assert (logits - our_logits(built.module, some_ids())).abs().max() < 5e-6


def test_the_imported_model_scores_the_same(run: Path, hf: Path, tmp_path: Path) -> None:
    checkpoint, back = find_checkpoint(run), imported(hf, tmp_path / "back")
    assert_same(stored(back), stored(checkpoint))
    fasta = write_fasta(tmp_path / "new.fa", [("new", markov_genome(3_000, 2, seed=9))])
    scores = []
    for model in (checkpoint, back):
        command = [sys.executable, "-m", "genomoe.tools.eval_perplexity", str(model)]
        done = subprocess.run(
            [*command, "--fasta", str(fasta)], check=True, capture_output=True, text=True
        )
        scores.append(json.loads(done.stdout))
    assert scores[0]["scored"] == scores[1]["scored"] == 3_000
    assert scores[0]["nll_nats"] == scores[1]["nll_nats"]


def test_an_imported_model_is_not_trained_further(
    dna_set: Path, hf: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    back = imported(hf, tmp_path / "back")
    words = ["debug", "--data", str(dna_set), "--gpus", "0", "--procs", "1", "--run"]
    capsys.readouterr()
    assert launch.main([*words, str(back)]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert "a checkpoint, not a run folder: it can be scored" in line
    run = tmp_path / "run"
    placed = run / "checkpoints" / "iter_0000009"
    placed.parent.mkdir(parents=True)
    back.rename(placed)
    done = subprocess.run(
        [sys.executable, "-m", "genomoe.training.launch", *words, str(run)],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2, done.stderr
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert "it holds weights alone, without the optimizer's moments" in line
    assert "Traceback" not in done.stderr
