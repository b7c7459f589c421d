"""The end of a run on one screen: score table, expert load, where the report is, what is next."""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from genomoe.tools.score import read_score
from genomoe.tools.score_table import heading, table
from genomoe.training.metrics import read_metrics

_BAR_WIDTH = 28
_MOST_BARS = 48
# A share this far below an even one means that an expert is hardly used.
_STARVED_FRACTION = 0.25
_RECENT_ITERATIONS = 50


def print_summary(run: Path, score_path: Path) -> None:
    """Print the summary of a scored run on stderr.

    Args:
        run: Run folder.
        score_path: JSON that the evaluation printed.

    Raises:
        InputError: If the score cannot be read.
    """
    score = read_score(score_path)
    records = read_metrics(run / "metrics.jsonl")
    lines = ["", heading(score), *table(score), "", f"Verdict: {score['verdict']}."]
    lines += validation_lines(records, score["unit"])
    lines += load_lines(recent_load(records))
    report = run / "report.html"
    if report.exists():
        lines += ["", f"Report: {report}"]
    lines += ["", "What to do next:", *(f"  - {step}" for step in next_steps(score, records))]
    print("\n".join(lines), file=sys.stderr, flush=True)


def recent_load(records: Sequence[Mapping[str, Any]]) -> list[list[float]]:
    """Share of the tokens that each expert took, mean of the latest iterations.

    Returns:
        [layers][experts]; [] for a dense model.
    """
    loads = [r["expert_load"] for r in records if "expert_load" in r][-_RECENT_ITERATIONS:]
    if not loads:
        return []
    count = len(loads)
    return [
        [sum(shares) / count for shares in zip(*layer, strict=True)]
        for layer in zip(*loads, strict=True)
    ]


def load_lines(load: Sequence[Sequence[float]]) -> list[str]:
    """Bars of the expert load, one line for each expert (for each layer where they are many)."""
    if not load:
        return []
    lines = ["", f"Expert load, mean of the last {_RECENT_ITERATIONS} iterations (even: |):"]
    if sum(map(len, load)) > _MOST_BARS:
        return lines + [
            f"  layer {number:<3} {len(layer)} experts, {min(layer):.1%} to {max(layer):.1%} "
            f"(even: {1 / len(layer):.1%})"
            for number, layer in enumerate(load, start=1)
        ]
    for number, layer in enumerate(load, start=1):
        even = 1.0 / len(layer)
        scale = _BAR_WIDTH / max(2 * even, *layer)
        for expert, share in enumerate(layer, start=1):
            bar = list("#" * max(1, round(share * scale)))
            bar += " " * (_BAR_WIDTH - len(bar))
            bar[min(_BAR_WIDTH - 1, round(even * scale))] = "|"
            name = f"layer {number}" if expert == 1 else ""
            starved = "  hardly used" if share < _STARVED_FRACTION * even else ""
            lines.append(f"  {name:9} expert {expert:<3} {''.join(bar)} {share:6.1%}{starved}")
    return lines


def validation_lines(records: Sequence[Mapping[str, Any]], unit: str) -> list[str]:
    """Train and validation bits side by side at the last validation."""
    scored = [r for r in records if "valid_bits" in r]
    if not scored:
        return []
    last = scored[-1]
    best = min(scored, key=lambda r: r["valid_bits"])
    return [
        f"Last validation, epoch {last['epoch']:.1f}: train {last['train_bits']:.4f}, "
        f"valid {last['valid_bits']:.4f} bits/{unit}; best valid {best['valid_bits']:.4f} "
        f"at iteration {best['iteration']}."
    ]


def next_steps(score: Mapping[str, Any], records: Sequence[Mapping[str, Any]]) -> list[str]:
    """What a user would sensibly do now, most urgent first."""
    steps = list(_BY_STANDING[score["standing"]])
    scored = [r for r in records if "valid_bits" in r]
    if len(scored) >= 3:
        best = min(range(len(scored)), key=lambda i: scored[i]["valid_bits"])
        if best == len(scored) - 1 and score["standing"] not in ("suspicious", "train"):
            steps.append("validation was still falling at the end: give it more epochs")
        elif scored[-1]["train_bits"] < scored[best]["train_bits"] and best < len(scored) - 2:
            steps.append(
                "validation rose while train fell (overfitting): more dropout, a smaller model, "
                "or more genomes"
            )
    load = recent_load(records)
    if load and score["standing"] == "beyond":
        steps.append("train the dense twin of this preset before saying that the experts helped")
    if any(share < _STARVED_FRACTION / len(layer) for layer in load for share in layer):
        steps.append("an expert is hardly used: raise model.moe-aux-loss-coeff")
    return steps


_BY_STANDING = {
    "broken": ("look at train.log and metrics.jsonl: does the loss fall at all?",),
    "little": ("train longer (--training.train-epochs), in a new RUN",),
    "short": ("train longer (--training.train-epochs), in a new RUN",),
    "level": ("train longer (--training.train-epochs), in a new RUN",),
    "beyond": ("score a genome of your own: python tools/eval_perplexity.py RUN --fasta FILE",),
    "suspicious": (
        "search the test letters in the train split (both strands) before believing the score",
    ),
    "unknown": ("score with --data DIR, so that there are baselines to compare with",),
    "train": ("score the held-out letters: --split test",),
}
