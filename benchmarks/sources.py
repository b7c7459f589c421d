"""Do experts part along hidden sources, and does that pay? MoE against its dense twin.

    python benchmarks/sources.py [--order 3] [--seeds 1 2 3] [--at-once 2] [--out FILE]

Each row comes from one of several hidden Markov sources of one order; nothing in it says which.
A model must find out while it reads. The mixture's own optimum is computed exactly, so a score
says how far from perfect it is. Rows of the record go to FILE as JSON, tables to stdout.
"""

import json
import math
import multiprocessing
import os
import platform
import statistics
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
import tyro

from genomoe.data.synthetic import MarkovSource
from genomoe.data.tokenizer import BOS_ID, FIRST_LETTER_ID, PAD_ID, VOCAB_SIZE
from genomoe.models.config import ModelConfig
from genomoe.models.flops import count_parameters
from genomoe.parallel import topology
from genomoe.parallel.config import ParallelConfig
from genomoe.training.batch import MicroBatch, to_micro_batch
from genomoe.training.config import OptimizerConfig, PretrainConfig
from genomoe.training.presets import dense_twin

_HELD_OUT = 0  # stream of the scored rows; training draws from the streams after it


@dataclass(frozen=True, kw_only=True)
class SourceOptions:
    """What to compare."""

    order: int = 3
    """Letters that the next one depends on."""
    sources: int = 4
    """Hidden sources; as many rows of a batch come from each."""
    seeds: tuple[int, ...] = (1, 2, 3)
    """Of weights; the letters are the same for all."""
    steps: int = 4000
    """Of training."""
    rows: int = 32
    """Rows of a batch."""
    row_length: int = 128
    """Letters of a row."""
    scored_rows: int = 1024
    """Held-out rows."""
    hidden_size: int = 32
    """Of both models."""
    expert_size: int = 8
    """Width of an expert; the dense twin's layers are twice as wide, as a token visits two."""
    lr: float = 3e-3
    """Peak learning rate of both."""
    at_once: int = 1
    """Models trained at the same time, one core each."""
    out: Path | None = None
    """File for the record."""


@dataclass(frozen=True)
class Mixture:
    """Hidden sources, drawn in turn."""

    sources: tuple[MarkovSource, ...]

    def rows(self, count: int, length: int, stream: int) -> np.ndarray:
        """Letter numbers [count, length]; row r is from source r modulo their number."""
        number = len(self.sources)
        letters = np.empty((count, length), dtype=np.int64)
        for index, source in enumerate(self.sources):
            lanes = len(range(index, count, number))
            letters[index::number] = source.sample(length, lanes, index + 1, 100 + stream).T
        return letters

    def optimal_bits(self, letters: np.ndarray) -> np.ndarray:
        """Bits that the best possible reader pays for each letter, NaN where context lacks.

        The reader knows the sources but not which one a row is from: it holds a probability for
        each, by Bayes's rule from the row's letters so far. No model can do better on average.

        Args:
            letters: Letter numbers [rows, length].
        """
        order = self.sources[0].order
        rows, length = letters.shape
        context = np.zeros(rows, dtype=np.int64)
        for letter in letters[:, :order].T:
            context = self.sources[0].next_context(context, letter)
        belief = np.stack([source.first_contexts()[context] for source in self.sources])
        bits = np.full((rows, length), np.nan)
        for position in range(order, length):
            belief /= belief.sum(axis=0)
            letter = letters[:, position]
            belief *= np.stack([s.transitions[context, letter] for s in self.sources])
            bits[:, position] = -np.log2(belief.sum(axis=0))
            context = self.sources[0].next_context(context, letter)
        return bits


def main() -> None:
    """Train all models, print the tables, write the record."""
    options = tyro.cli(SourceOptions, description=__doc__)
    jobs = [(options, seed, dense) for seed in options.seeds for dense in (False, True)]
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(options.at_once, mp_context=context, max_tasks_per_child=1) as pool:
        models = []
        for row in pool.map(train_and_score, *zip(*jobs, strict=True)):
            print(f"{row['model']} seed {row['seed']}: {row['bits']:.4f}", file=sys.stderr)
            models.append(row)
    record = {"machine": machine(), "options": plain(options), **floor(options), "models": models}
    if options.out is not None:
        options.out.write_text(json.dumps(record, indent=1) + "\n")
    print(score_table(record))
    print(source_table(record))


def mixture(options: SourceOptions) -> Mixture:
    """Build the sources; they depend on the order alone."""
    return Mixture(tuple(MarkovSource(options.order, seed) for seed in range(options.sources)))


def floor(options: SourceOptions) -> dict[str, float]:
    """Bits of the best reader on the scored letters, and of one that is told the source."""
    made = mixture(options)
    bits = made.optimal_bits(held_out(options))
    return {
        "entropy_bits": statistics.mean(source.entropy_bits() for source in made.sources),
        "optimal_bits": float(np.nanmean(bits)),
        "optimal_late_bits": float(bits[:, options.row_length // 2 :].mean()),
    }


def held_out(options: SourceOptions) -> np.ndarray:
    """Draw the letters that are scored."""
    return mixture(options).rows(options.scored_rows, options.row_length, _HELD_OUT)


def config(options: SourceOptions, *, dense: bool) -> PretrainConfig:
    """Shape and rate; no k-mer stem, which would spare the layers most of the work."""
    shape = ModelConfig(
        num_blocks=2,
        hidden_size=options.hidden_size,
        num_attention_heads=4,
        num_query_groups=4,
        num_moe_experts=4,
        moe_router_topk=2,
        moe_ffn_hidden_size=options.expert_size,
        dropout=0.0,
        stem_kmer_orders=(),
    )
    moe = PretrainConfig(model=shape, optimizer=OptimizerConfig(lr=options.lr))
    return dense_twin(moe) if dense else moe


def train_and_score(options: SourceOptions, seed: int, dense: bool) -> dict[str, Any]:
    """Train one model on one core; runs in a process of its own."""
    torch.set_num_threads(1)
    alone = topology.RankInfo(rank=0, local_rank=0, world_size=1, local_world_size=1)
    parallel = ParallelConfig()
    ranks = topology.start(parallel, alone)
    # megatron-core is imported after the engine has been chosen.
    from genomoe.models.build import LetterIds, build_model
    from genomoe.parallel.wrap import wrap
    from genomoe.training.optimizer import build_optimizer, set_schedule
    from genomoe.training.step import TrainStep

    chosen = config(options, dense=dense)
    built = build_model(
        chosen.model,
        parallel,
        letters=LetterIds(vocab_size=VOCAB_SIZE, bos=BOS_ID, first_letter=FIRST_LETTER_ID),
        seq_length=options.row_length,
        seed=seed,
        groups=ranks.groups,
        device=ranks.device,
        dtype=torch.float32,
    )
    wrapped = wrap(built.module, parallel, ranks)
    optimizer = build_optimizer(chosen.optimizer, built, wrapped, ranks)
    step = TrainStep(built, wrapped, optimizer, ranks)
    drawn = mixture(options)
    for iteration in range(options.steps):
        set_schedule(optimizer, chosen.optimizer, iteration, options.steps)
        letters = drawn.rows(options.rows, options.row_length, 1 + iteration)
        step([to_batch(letters, ranks.device)])
    scored = score(built.module, options, ranks.device)
    topology.stop()
    return {
        "model": "dense" if dense else "moe",
        "seed": seed,
        "parameters_active": count_parameters(chosen.model, VOCAB_SIZE).active,
        **scored,
    }


def to_batch(letters: np.ndarray, device: torch.device) -> MicroBatch:
    """Rows of letter numbers as one micro-batch of single documents."""
    labels = letters + FIRST_LETTER_ID
    begin = np.full((len(labels), 1), BOS_ID)
    rows = {
        "tokens": np.concatenate([begin, labels[:, :-1]], axis=1),
        "labels": labels,
        "weights": np.ones(labels.shape, dtype=np.float32),
        "document": np.zeros(labels.shape, dtype=np.int32),
    }
    return to_micro_batch(rows, range(len(labels)), pad=PAD_ID, device=device)


def score(module: Any, options: SourceOptions, device: torch.device) -> dict[str, Any]:
    """Bits on the held-out letters, and which experts each source's letters visit."""
    from genomoe.models.router import BalancedRouter

    letters = held_out(options)
    chosen: dict[str, list[torch.Tensor]] = {}
    for name, part in module.named_modules():
        if isinstance(part, BalancedRouter):
            visits = chosen.setdefault(name, [])
            part.register_forward_hook(lambda _part, _inputs, out, to=visits: to.append(out[1]))
    module.eval()
    batch = to_batch(letters, device)
    with torch.no_grad():
        nats = module(batch.tokens, None, batch.attention_mask, labels=batch.labels)
    bits = nats.cpu().double().numpy() / math.log(2)
    half = options.row_length // 2
    source = np.arange(len(letters)) % options.sources
    # The routing map is [sequence x rows, experts]. A reader needs some letters to tell the
    # source, so only the second half of a row counts.
    layers = [
        visits.view(options.row_length, len(letters), -1)[half:].float().mean(dim=0).numpy()
        for (visits,) in chosen.values()
    ]
    shares = [np.stack([x[source == s].mean(0) for s in range(options.sources)]) for x in layers]
    return {
        "bits": float(bits[:, options.order :].mean()),
        "late_bits": float(bits[:, half:].mean()),
        "visits": [layer.round(4).tolist() for layer in shares],
        "source_information": [information(layer) for layer in shares],
    }


def information(shares: np.ndarray) -> float:
    """Bits that the expert of one visit tells about the source (mutual information).

    At most 1 where each source has two of four experts to itself; 0 if all visit alike.

    Args:
        shares: Mean visits of a letter to each expert, [sources, experts].
    """
    joint = shares / shares.sum()
    apart = joint.sum(axis=1, keepdims=True) * joint.sum(axis=0, keepdims=True)
    used = joint > 0
    return float((joint[used] * np.log2(joint[used] / apart[used])).sum())


def plain(options: SourceOptions) -> dict[str, Any]:
    """Options that the figures depend on."""
    return {
        k: v for k, v in vars(replace(options, out=None)).items() if k not in ("out", "at_once")
    }


def machine() -> dict[str, Any]:
    """What the figures were measured with."""
    names = ("torch", "megatron-core", "numpy")
    return {
        "cores": len(os.sched_getaffinity(0)),
        "architecture": platform.machine(),
        "python": platform.python_version(),
        **{name: version(name) for name in names},
    }


def score_table(record: dict[str, Any]) -> str:
    """Markdown: bits of each pair of models above the best reader."""
    best, late = record["optimal_bits"], record["optimal_late_bits"]
    lines = [
        f"best reader {best:.4f} bits, {late:.4f} in the second half; source told: "
        f"{record['entropy_bits']:.4f}",
        "",
        "| seed | MoE | dense twin | MoE - dense | above the best: MoE, dense "
        "| second half: MoE, dense | source told by an expert, layer 1, 2 (bits) |",
        "|---|---|---|---|---|---|---|",
    ]
    for seed in record["options"]["seeds"]:
        moe, dense = pair(record, seed)
        told = ", ".join(f"{bits:.3f}" for bits in moe["source_information"])
        lines.append(
            f"| {seed} | {moe['bits']:.4f} | {dense['bits']:.4f} "
            f"| {moe['bits'] - dense['bits']:+.4f} "
            f"| {moe['bits'] - best:.4f}, {dense['bits'] - best:.4f} "
            f"| {moe['late_bits']:.4f}, {dense['late_bits']:.4f} | {told} |"
        )
    return "\n".join(lines) + "\n"


def source_table(record: dict[str, Any]) -> str:
    """Markdown: visits of a letter to each expert of the last layer, by source, first seed."""
    moe, _ = pair(record, record["options"]["seeds"][0])
    shares = moe["visits"][-1]
    heads = [f"expert {index}" for index in range(len(shares[0]))]
    lines = [f"| source | {' | '.join(heads)} |", "|---" * (1 + len(heads)) + "|"]
    for source, visits in enumerate(shares):
        lines.append(f"| {source} | {' | '.join(f'{share:.2f}' for share in visits)} |")
    return "\n".join(lines)


def pair(record: dict[str, Any], seed: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """The two models of one seed."""
    of = {row["model"]: row for row in record["models"] if row["seed"] == seed}
    return of["moe"], of["dense"]


if __name__ == "__main__":
    main()
