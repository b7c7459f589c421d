"""The evaluation with a stub model: exact numbers, every letter once, and one line for mistakes."""

import dataclasses
import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from genomoe.data.dataset import DataSet
from genomoe.data.preprocess import main as preprocess
from genomoe.data.synthetic import markov_genome, markov_proteins, write_fasta
from genomoe.data.tokenizer import tokenizer_for
from genomoe.tools import evaluation
from genomoe.tools.eval_options import EvalOptions
from genomoe.tools.eval_perplexity import main
from tests.unit.tools.stub_run import SEQ_LENGTH, StubScorer, write_run

DNA = tokenizer_for("dna")
# One power of two for each base, so that sums are exact.
NATS = {"A": 0.5, "C": 1.0, "G": 2.0, "T": 4.0}


def by_letter(letters: np.ndarray, piece: int, positions: np.ndarray) -> np.ndarray:
    table = np.full(256, 1000.0)  # N and others: seen in the sum at once
    for letter, nats in NATS.items():
        table[DNA.id_of(letter)] = nats
    return table[letters[positions]]


@pytest.fixture
def stub(monkeypatch):
    monkeypatch.setattr(evaluation, "open_scorer", lambda facts, engine: StubScorer(by_letter))
    monkeypatch.setattr(evaluation.ranks, "stop", lambda: None)


@pytest.fixture
def run(tmp_path: Path, dna_set: Path) -> Path:
    return write_run(tmp_path / "run", dna_set)


def evaluate(capsys, *words) -> dict:
    code = main([str(word) for word in words])
    captured = capsys.readouterr()
    assert code == 0, captured.err
    return json.loads(captured.out)


def refused(capsys, *words) -> str:
    code = main([str(word) for word in words])
    captured = capsys.readouterr()
    assert code == 2
    assert captured.out == ""
    lines = captured.err.splitlines()
    assert len(lines) == 1, captured.err
    assert lines[0].startswith("error: ")
    return lines[0]


def test_split_gives_exact_numbers_beside_baselines(capsys, run, dna_set, stub):
    score = evaluate(capsys, run)
    pieces = DataSet.open(dna_set).pieces("test")
    targets = np.concatenate([p.tokens[p.scored_begin : p.scored_end] for p in pieces])
    expected = sum(nats * int((targets == DNA.id_of(x)).sum()) for x, nats in NATS.items())
    assert score["scored"] == len(targets)
    assert score["nll_nats"] == pytest.approx(expected / len(targets), rel=1e-15)
    assert score["bits"] == pytest.approx(score["nll_nats"] / math.log(2), rel=1e-15)
    assert score["perplexity"] == pytest.approx(math.exp(score["nll_nats"]), rel=1e-15)
    assert score["skipped"] == {"guard": sum(len(p.tokens) for p in pieces) - len(targets)}
    assert list(score["baselines"]) == ["uniform", *(f"order-{k}" for k in range(11)), "best"]
    assert score["baselines"]["uniform"] == 2.0
    assert score["baselines"]["best"] == score["baselines"][f"order-{score['best_order']}"]
    # The sequence is an order-2 chain, on one strand; the counts are of both.
    assert score["baselines"]["best"] < score["baselines"]["order-1"] - 0.05
    assert (score["unit"], score["split"], score["fasta"]) == ("base", "test", None)
    assert (score["window"], score["stride"], score["strand"]) == (SEQ_LENGTH, 24, "forward")
    assert score["checkpoint"].endswith("run/checkpoints/iter_0000020")
    assert score["data"]["manifest_digest"] == DataSet.open(dna_set).manifest.digest


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    lengths=st.lists(st.integers(1, 150), min_size=1, max_size=4),
    window=st.integers(1, SEQ_LENGTH),
    data=st.data(),
)
def test_every_letter_once_for_any_window_and_stride(tmp_path_factory, run, lengths, window, data):
    stride = data.draw(st.integers(1, window))
    folder = tmp_path_factory.mktemp("fasta")
    letters = data.draw(st.randoms(use_true_random=False))
    texts = ["".join(letters.choices("ACGTNRacgt", k=length)) for length in lengths]
    fasta = write_fasta(folder / "x.fa", [(f"r{i}", text) for i, text in enumerate(texts)])
    options = EvalOptions(run=run, fasta=fasta, window=window, stride=stride)
    if not any(set(text.upper()) & set("ACGT") for text in texts):
        return
    job = evaluation.prepare(options)
    seen = [(w.piece, position) for w in job.windows for position in range(w.scored, w.end)]
    assert seen == [(i, p) for i, length in enumerate(lengths) for p in range(length)]
    assert all(w.end - w.start <= window for w in job.windows)
    nats = StubScorer(by_letter).nats(
        [p.tokens for p in job.pieces], job.windows, batch_size=1, progress=lambda n: None
    )
    job = dataclasses.replace(job, dataset=None)  # quick: no baselines
    score = evaluation.summarize(job, nats)
    joined = "".join(texts).upper()
    scored = sum(joined.count(x) for x in NATS)
    assert score["scored"] == scored
    total = sum(nats * joined.count(x) for x, nats in NATS.items())
    assert score["nll_nats"] == pytest.approx(total / scored, rel=1e-12)
    assert sum(score["skipped"].values()) == len(joined) - scored


def test_fasta_of_whole_contigs(capsys, tmp_path, run, stub):
    text = "ACGT" * 40 + "NNNNRY" + "acgtacgt"
    fasta = write_fasta(tmp_path / "x.fa.gz", [("a", text), ("b", "A")])
    score = evaluate(capsys, run, "--fasta", fasta)
    assert score["scored"] == 169
    assert score["skipped"] == {"letter N": 4, "letter R": 1, "letter Y": 1}
    assert score["nll_nats"] == pytest.approx((42 * 7.5 + 0.5) / 169)
    assert score["fasta"] == str(fasta)
    assert score["split"] is None
    assert score["interval"]["bits"] is None  # 2 units
    assert "order-10" in score["baselines"]


def test_fasta_when_the_data_set_is_gone(capsys, tmp_path, dna_set, stub):
    copy = tmp_path / "set"
    copy.mkdir()
    run = write_run(tmp_path / "run", dna_set)
    for path in run.rglob("*.json"):
        path.write_text(path.read_text().replace(str(dna_set), str(copy)))
    fasta = write_fasta(tmp_path / "x.fa", [("a", "ACGTAC" * 30)])
    score = evaluate(capsys, run, "--fasta", fasta)
    assert list(score["baselines"]) == ["uniform"]
    assert score["best_order"] is None
    assert score["data"] is None
    line = refused(capsys, run)
    assert str(copy) in line
    assert "--data DIR" in line
    assert evaluate(capsys, run, "--data", dna_set)["scored"] > 0


def test_train_is_labelled(capsys, run, stub):
    assert main([str(run), "--split", "train"]) == 0
    captured = capsys.readouterr()
    assert captured.err.count("TRAIN DATA") == 2
    assert json.loads(captured.out)["verdict"].startswith("TRAIN DATA")


def test_best_checkpoint_before_the_newest(capsys, tmp_path, dna_set, stub):
    run = write_run(tmp_path / "run", dna_set, iterations=(20, 40, 60))
    assert evaluate(capsys, run)["chosen"] == "newest"
    (run / "best.json").write_text('{"iteration": 40, "valid_bits": 1.9}')
    score = evaluate(capsys, run)
    assert (score["iteration"], score["chosen"]) == (40, "best by validation")
    score = evaluate(capsys, run / "checkpoints" / "iter_0000020")
    assert (score["iteration"], score["chosen"]) == (20, "as given")


def test_proteins(capsys, tmp_path, monkeypatch):
    records = [(f"p{i}", text) for i, text in enumerate(markov_proteins(200, 60, seed=3))]
    fasta = write_fasta(tmp_path / "p.fa", records)
    out = tmp_path / "set"
    assert preprocess([str(fasta), "--out", str(out), "--alphabet", "protein"]) == 0
    run = write_run(tmp_path / "run", out)
    half = StubScorer(lambda letters, piece, positions: np.full(len(positions), 0.5))
    monkeypatch.setattr(evaluation, "open_scorer", lambda facts, engine: half)
    monkeypatch.setattr(evaluation.ranks, "stop", lambda: None)
    capsys.readouterr()
    score = evaluate(capsys, run)
    assert score["unit"] == "residue"
    assert score["nll_nats"] == 0.5
    assert score["baselines"]["uniform"] == pytest.approx(math.log2(20))
    assert list(score["baselines"]) == ["uniform", *(f"order-{k}" for k in range(4)), "best"]
    assert score["interval"]["unit"] == "record"
    assert score["data"]["warning"]


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--stride", "0"], "--stride is 0"),
        (["--stride", "49"], "--stride is 49"),
        (["--window", "49"], "--window is 49: use 1 to 48"),
        (["--window", "0"], "--window is 0"),
        (["--batch-size", "0"], "--batch-size is 0"),
        (["--split", "dev"], "no split 'dev'"),
        (["--split", "test", "--fasta", "x.fa"], "exclude each other"),
        (["--fasta", "nowhere.fa"], "nowhere.fa: no such file"),
        (["--data", "nowhere"], "nowhere"),
    ],
)
def test_mistakes_in_the_command(capsys, run, words, named):
    assert named in refused(capsys, run, *words)


def test_mistakes_in_files(capsys, tmp_path, run, dna_set):
    assert "no such run or checkpoint" in refused(capsys, tmp_path / "nothing")
    (tmp_path / "empty").mkdir()
    assert "no complete checkpoint" in refused(capsys, tmp_path / "empty")
    protein = write_fasta(tmp_path / "p.fa", [("p", "MKVLE")])
    line = refused(capsys, run, "--fasta", protein)
    assert "p.fa:2" in line
    assert "dna alphabet" in line
    unknown = write_fasta(tmp_path / "n.fa", [("n", "NNNNRY")])
    line = refused(capsys, run, "--fasta", unknown)
    assert "n.fa: no base to score (letter N: 4, letter R: 1, letter Y: 1)" in line
    other = write_fasta(tmp_path / "o.fa", [("o", markov_genome(40_000, 1, seed=8))])
    preprocess(
        [str(other), "--out", str(tmp_path / "other"), "--block-length", "500", "--guard", "50"]
    )
    capsys.readouterr()
    assert "not the one this run was trained on" in refused(
        capsys, run, "--data", tmp_path / "other"
    )


def test_a_model_that_diverged(capsys, run, monkeypatch):
    stub = StubScorer(lambda letters, piece, positions: np.full(len(positions), np.nan))
    monkeypatch.setattr(evaluation, "open_scorer", lambda facts, engine: stub)
    monkeypatch.setattr(evaluation.ranks, "stop", lambda: None)
    assert main([str(run)]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "no finite probability" in captured.err.splitlines()[-1]
