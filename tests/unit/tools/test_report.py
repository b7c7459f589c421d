"""The report and the closing summary, for every kind of run."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from genomoe.models.config import ModelConfig
from genomoe.tools import figures
from genomoe.tools.report import main
from genomoe.tools.summary import load_lines, next_steps, print_summary, recent_load
from genomoe.training.config import PretrainConfig
from genomoe.training.run_folder import write_config
from tests.unit.tools.test_score import summed

VOID = {"meta", "br", "input", "hr", "img", "link"}


class Page(HTMLParser):
    """Checks that tags close, and collects text and what would be fetched."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open, self.fetched, self.words, self.headings = [], [], [], []
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        if tag not in VOID:
            self.open.append(tag)
        for name, value in attrs:
            if name in ("src", "href", "xlink:href") and not value.startswith(("#", "data:")):
                self.fetched.append(value)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)
        if self.open and self.open[-1] == "h2":
            self.headings.append(data)


def record(iteration: int, *, experts: bool, validated: bool) -> dict:
    entry = {
        "iteration": iteration,
        "epoch": iteration / 50,
        "loss_bits": None if iteration == 3 else 2.0 - iteration / 1000,
        "grad_norm": 1.0,
        "lr": 1e-3,
        "tokens_per_second": 1000.0,
    }
    if experts:
        entry |= {
            "expert_load": [[0.4, 0.3, 0.2, 0.1]] * 2,
            "router_entropy_nats": [1.2, 0.8],
            "aux_loss": 1.0,
        }
    if validated:
        bits = 1.95 - iteration / 2000
        entry |= {"train_bits": bits - 0.01, "valid_bits": bits}
    return entry


def make_run(folder: Path, data: Path, *, experts: bool = True, records: int = 60) -> Path:
    folder.mkdir()
    model = ModelConfig() if experts else ModelConfig(num_moe_experts=0)
    write_config(folder / "config.json", PretrainConfig(data=data, run=folder, model=model))
    lines = [
        json.dumps(record(i, experts=experts, validated=i % 20 == 0)) for i in range(1, records + 1)
    ]
    (folder / "metrics.jsonl").write_text("\n".join(lines))
    return folder


def build(run: Path, *words: str) -> tuple[str, Page]:
    assert main([str(run), *words]) == 0
    text = (run / "report.html").read_text()
    page = Page(text)
    assert page.fetched == []
    return text, page


@pytest.fixture
def score_file(tmp_path: Path) -> Path:
    facts = {
        "iteration": 60,
        "strand": "forward",
        "precision": "fp32",
        "data": {"name": "set", "manifest_digest": "0" * 64, "warning": None},
    }
    path = tmp_path / "score.json"
    path.write_text(json.dumps(summed(12) | facts))
    return path


def test_whole_report(tmp_path, dna_set, score_file, capsys):
    run = make_run(tmp_path / "run", dna_set)
    text, page = build(run, "--score", str(score_file))
    assert json.loads(capsys.readouterr().out)["report"] == str(run / "report.html")
    assert page.headings == [
        "Score", "What to do next", "Learning", "Experts", "Recipe", "Data",
    ]  # fmt: skip
    words = re.sub(r"\s+", " ", " ".join(page.words))
    assert "0.0500 bits below the best order-k" in words
    assert "1.8000" in words
    assert "bootstrap intervals over 12 units (10 kb block)" in words
    assert "genome.fa" in words
    assert text.count("<svg") == 6
    again, _ = build(run, "--score", str(score_file))
    assert again == text


def test_dense_run_that_is_not_scored_and_whose_data_has_moved(tmp_path):
    run = make_run(tmp_path / "run", tmp_path / "gone", experts=False)
    text, page = build(run)
    assert page.headings == ["Learning", "Recipe", "Data"]
    assert "Not scored yet" in text
    assert f"not at {tmp_path / 'gone'} any more" in text
    assert "dense, inner width" in text


@pytest.mark.parametrize("records", [0, 1, 15])
def test_run_that_has_just_begun(tmp_path, dna_set, records):
    text, _ = build(make_run(tmp_path / "run", dna_set, records=records))
    assert ("Not validated yet" if records else "No iteration recorded yet") in text


def test_what_files_say_is_escaped(tmp_path, dna_set, score_file):
    score = json.loads(score_file.read_text())
    score_file.write_text(json.dumps(score | {"fasta": "<b>&.fa", "split": None}))
    text, _ = build(make_run(tmp_path / "run", dna_set), "--score", str(score_file))
    assert "&lt;b&gt;&amp;.fa" in text


def test_mistakes(tmp_path, dna_set, capsys):
    assert main([str(tmp_path / "nothing")]) == 2
    assert "not a run or checkpoint folder" in capsys.readouterr().err
    run = make_run(tmp_path / "run", dna_set)
    assert main([str(run), "--score", str(tmp_path / "no.json")]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert not (run / "report.html").exists()


def test_thin_keeps_means_and_extent_keeps_extremes():
    values = [float(i) for i in range(1003)]
    x, y = figures.thin(values, values, limit=10)
    assert len(x) == 10
    assert y[0] == pytest.approx(49.5)
    _, least, most = figures.extent(values, figures.np.array(values), limit=10)
    assert (least[0], most[-1]) == (0.0, 1002.0)
    short, _ = figures.thin([1, 2], [3, 4], limit=10)
    assert short.tolist() == [1, 2]


def test_summary_on_one_screen(tmp_path, dna_set, score_file, capsys):
    run = make_run(tmp_path / "run", dna_set)
    (run / "report.html").write_text("")
    print_summary(run, score_file)
    captured = capsys.readouterr()
    assert captured.out == ""
    for part in ("order-1 (best on valid)", "> model", "Verdict: 0.0500 bits below", "Report: "):
        assert part in captured.err
    assert "layer 1   expert 1" in captured.err
    assert "Last validation, epoch 1.2: train 1.9100, valid 1.9200 bits/base" in captured.err
    assert "  - " in captured.err.split("What to do next:")[1]


def test_expert_bars():
    lines = load_lines([[0.85, 0.10, 0.05]])
    assert "hardly used" not in lines[3]
    assert lines[4].endswith("5.0%  hardly used")
    assert lines[2].count("#") > lines[3].count("#")
    many = load_lines([[1 / 64] * 64] * 3)
    assert len(many) == 5
    assert "64 experts, 1.6% to 1.6%" in many[2]
    assert load_lines([]) == []


def test_recent_load_is_a_mean_and_dense_models_have_none():
    records = [{"expert_load": [[1.0, 0.0]]}, {"expert_load": [[0.5, 0.5]]}, {"loss_bits": 1.0}]
    assert recent_load(records) == [[0.75, 0.25]]
    assert recent_load([{"loss_bits": 1.0}]) == []


def test_next_steps():
    score = {"standing": "short"}
    falling = [{"valid_bits": b, "train_bits": b} for b in (1.9, 1.8, 1.7)]
    assert any("still falling" in step for step in next_steps(score, falling))
    rising = [
        {"valid_bits": v, "train_bits": t}
        for v, t in ((1.9, 1.9), (1.8, 1.8), (1.85, 1.7), (1.9, 1.6))
    ]
    assert any("overfitting" in step for step in next_steps(score, rising))
    assert "believing" in next_steps({"standing": "suspicious"}, falling)[0]


def test_the_score_that_evaluation_left_is_found(tmp_path, dna_set, score_file):
    run = make_run(tmp_path / "run", dna_set)
    (run / "scores").mkdir()
    score_file.rename(run / "scores" / "test.json")
    text, _ = build(run)
    assert "Not scored yet" not in text
