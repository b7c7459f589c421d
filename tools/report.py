"""RUN/report.html: the score beside its baselines, the learning curves, the experts, the data.

    python -m genomoe.tools.report RUN [--score FILE.json]

One file without outside parts: figures are inlined as SVG. It works for dense models and for
runs that have not been validated or scored yet, and says what is missing.
"""

import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
import tyro

from genomoe.data.command_line import fail, parse
from genomoe.data.errors import InputError
from genomoe.data.manifest import TOOL_VERSION, Manifest, load_manifest
from genomoe.data.tokenizer import VOCAB_SIZE, tokenizer_for
from genomoe.models.flops import count_parameters
from genomoe.tools import figures
from genomoe.tools.score import read_score
from genomoe.tools.score_table import Row, rows
from genomoe.tools.summary import next_steps, recent_load
from genomoe.training.config import PretrainConfig
from genomoe.training.metrics import read_metrics
from genomoe.training.run_folder import SCORES, read_config


@dataclass(frozen=True, kw_only=True)
class ReportOptions:
    """Write RUN/report.html."""

    run: tyro.conf.Positional[Path]
    """Run folder."""
    score: Path | None = None
    """JSON that eval_perplexity printed; default: the run's last score of its test split."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the report; returns the exit code."""
    words = sys.argv[1:] if arguments is None else arguments
    try:
        options = parse(ReportOptions, words, prog="report")
        page = render(collect(options.run, options.score))
        path = options.run / "report.html"
        partial = path.with_name(f".{path.name}.partial")
        partial.write_text(page)
        partial.rename(path)
    except InputError as error:
        return fail(error)
    print(json.dumps({"report": str(path), "bytes": len(page.encode())}))
    return 0


def collect(run: Path, score_path: Path | None) -> dict[str, Any]:
    """Read everything that the page shows.

    Args:
        run: Run folder.
        score_path: Score of the run, if there is one.

    Raises:
        InputError: If the run or the score cannot be read.
    """
    config = read_config(run / "config.json")
    saved = run / SCORES / "test.json"
    if score_path is None and saved.exists():
        score_path = saved
    score = None if score_path is None else read_score(score_path)
    records = read_metrics(run / "metrics.jsonl")
    manifest = _manifest(config)
    unit = _unit(score, manifest)
    uniform = math.log2(4 if unit == "base" else 20)
    return {
        "title": run.resolve().name,
        "version": TOOL_VERSION,
        "unit": unit,
        "score": score,
        "rows": rows(score) if score else [],
        "figures": draw(score, records, unit, uniform),
        "last_validation": next((r for r in reversed(records) if "valid_bits" in r), None),
        "best_validation": min(
            (r for r in records if "valid_bits" in r), key=lambda r: r["valid_bits"], default=None
        ),
        "last": records[-1] if records else None,
        "recipe": recipe(config),
        "data": manifest,
        "data_folder": config.data,
        "steps": next_steps(score, records) if score else [],
    }


def draw(
    score: Mapping[str, Any] | None,
    records: Sequence[Mapping[str, Any]],
    unit: str,
    uniform: float,
) -> dict[str, str]:
    """Draw the figures for which there are numbers, as SVG by name."""
    drawn = {}
    if score is not None:
        shown: list[Row] = rows(score)
        drawn["score"] = figures.score_figure(shown, score["interval"]["bits"], unit)
    if records:
        drawn["learning"] = figures.learning_figure(records, unit, uniform)
        drawn["steps"] = figures.steps_figure(records)
    if load := recent_load(records):
        drawn["load"] = figures.load_figure(load)
        drawn["evolution"] = figures.evolution_figure(records)
        drawn["entropy"] = figures.entropy_figure(records)
    return drawn


def recipe(config: PretrainConfig) -> list[tuple[str, str]]:
    """The config in a dozen lines: name and value."""
    model, training, optimizer = config.model, config.training, config.optimizer
    count = count_parameters(model, VOCAB_SIZE)
    layers = (
        f"{model.num_blocks} blocks, hidden {model.hidden_size}, {model.num_attention_heads} heads"
    )
    if model.is_moe:
        inner = (
            f"{model.num_moe_experts} experts of inner width {model.moe_ffn_hidden_size}, "
            f"{model.moe_router_topk} a token"
        )
    else:
        inner = f"dense, inner width {model.ffn_hidden_size}"
    length = training.train_iters or f"{training.train_epochs:g} epochs"
    return [
        ("Parameters", f"{count.total:,} in all, {count.active:,} active a token"),
        ("Layers", layers),
        ("Feed-forward", inner),
        ("Dropout", f"{model.dropout:g}"),
        ("Sequence length", f"{config.rows.seq_length:,}"),
        ("Batch", f"{training.global_batch_size:,} rows"),
        ("Length", f"{length} iterations" if training.train_iters else str(length)),
        ("Peak learning rate", f"{optimizer.lr:g}"),
        ("Weight decay", f"{optimizer.weight_decay:g}"),
        ("Seed", str(training.seed)),
        ("Engine", config.parallel.engine),
        ("Expert parallel size", str(config.parallel.expert_model_parallel_size)),
    ]


def render(context: Mapping[str, Any]) -> str:
    """Fill the template."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("report.html.j2").render(context)


def _manifest(config: PretrainConfig) -> Manifest | None:
    try:
        return load_manifest(config.data)
    except InputError:  # the data set has moved; the page says so
        return None


def _unit(score: Mapping[str, Any] | None, manifest: Manifest | None) -> str:
    if score is not None:
        return str(score["unit"])
    return tokenizer_for(manifest.alphabet).unit if manifest is not None else "base"


if __name__ == "__main__":
    sys.exit(main())
