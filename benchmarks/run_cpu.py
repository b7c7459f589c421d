"""Time the CPU path on this machine: preprocessing, loading, training steps by layout.

    make bench        (or: python benchmarks/run_cpu.py [--genome FILE] [--iterations N])

All arms run one after the other on the same rows; machines are noisy, so compare the ratios of
one run. JSON on stdout, a table on stderr. Needs a quiet machine.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tyro
from seeds import machine

from genomoe.data.dataset import DataSet
from genomoe.training.presets import PRESETS
from genomoe.training.rows import row_source

ARMS: dict[str, tuple[int, int, list[str]]] = {
    # name: (ranks, threads of each, flags)
    "1 rank, 1 thread": (1, 1, []),
    "1 rank, 2 threads": (1, 2, []),
    "2 ranks, DDP": (2, 1, ["--parallel.wrap", "ddp"]),
    "2 ranks, FSDP": (2, 1, ["--parallel.wrap", "fsdp"]),
    "2 ranks, FSDP, EP 2, alltoall": (2, 1, ["--parallel.expert-model-parallel-size", "2"]),
    "2 ranks, FSDP, EP 2, allgather": (
        2,
        1,
        ["--parallel.expert-model-parallel-size", "2", "--parallel.dispatcher", "allgather"],
    ),
}


@dataclass(frozen=True, kw_only=True)
class BenchOptions:
    """What to time."""

    genome: Path = Path("examples/helicobacter_pylori_g27.fasta.gz")
    """FASTA file to preprocess."""
    preset: str = "bacterium"
    """Recipe to train."""
    iterations: int = 60
    """Training iterations of each arm; the first third is warm-up."""


def main() -> None:
    """Run all arms and print the record."""
    options = tyro.cli(BenchOptions)
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder, "data")
        record = {
            "machine": machine(),
            "preprocess": time_preprocess(options.genome, data),
            "loader": time_loader(data, options.preset),
            "training": {
                name: time_training(options, data, Path(folder, f"run{number}"), arm)
                for number, (name, arm) in enumerate(ARMS.items())
            },
        }
    print(json.dumps(record, indent=1))
    training = record["training"]
    first = next(iter(training.values()))["tokens_per_second"]
    for name, row in training.items():
        rate = row["tokens_per_second"]
        print(f"  {name:32} {rate:9,.0f} tokens/s  {rate / first:5.2f}x", file=sys.stderr)


def time_preprocess(genome: Path, out: Path) -> dict[str, float]:
    """Seconds of the whole command, process start included, and of its work alone."""
    command = [sys.executable, "-m", "genomoe.data.preprocess", str(genome), "--out", str(out)]
    began = time.perf_counter()
    done = subprocess.run(command, check=True, capture_output=True)
    summary = json.loads(done.stdout)
    return {
        "command_seconds": time.perf_counter() - began,
        "work_seconds": summary["seconds"],
        "letters": summary["letters"],
    }


def time_loader(data: Path, preset: str) -> dict[str, float]:
    """Tokens a second of one reader, median of five passes over 2,000 rows."""
    config = PRESETS[preset]
    rows = row_source(config, DataSet.open(data))
    rates = []
    for turn in range(5):
        samples = np.arange(turn * 2000, turn * 2000 + 2000)
        began = time.perf_counter()
        for first in range(0, len(samples), 8):
            rows.batch(samples[first : first + 8])
        rates.append(len(samples) * config.rows.seq_length / (time.perf_counter() - began))
    return {"tokens_per_second": statistics.median(rates)}


def time_training(
    options: BenchOptions, data: Path, run: Path, arm: tuple[int, int, list[str]]
) -> dict[str, Any]:
    """Tokens a second of one layout: median over the iterations after warm-up."""
    ranks, threads, flags = arm
    command = [sys.executable, "-m", "genomoe.training.launch", options.preset]
    command += ["--data", str(data), "--run", str(run), "--gpus", "0", "--procs", str(ranks)]
    command += ["--training.train-iters", str(options.iterations), *flags]
    command += ["--training.eval-windows", "8"]
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    subprocess.run(command, check=True, capture_output=True, env=environment)
    lines = (run / "metrics.jsonl").read_text().splitlines()
    rates = [json.loads(line)["tokens_per_second"] for line in lines[options.iterations // 3 :]]
    spread = statistics.quantiles(rates, n=10)
    return {
        "tokens_per_second": statistics.median(rates),
        "p10": spread[0],
        "p90": spread[-1],
    }


if __name__ == "__main__":
    main()
