"""Train presets with several seeds on one genome and score each: the record behind the claims.

    python benchmarks/seeds.py --data DIR --out DIR [--presets bacterium bacterium-dense]
        [--seeds 1 2 3] [--epochs 6] [--procs 2] [--at-once 1]

Every run is the product's own command. Rows go to OUT/rows.json and, as a table, to stdout.
"""

import json
import os
import platform
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
import tyro


@dataclass(frozen=True, kw_only=True)
class SeedOptions:
    """What to train."""

    data: Path
    """Data set folder."""
    out: Path
    """Folder for runs and rows; finished runs in it are not trained again."""
    presets: tuple[str, ...] = ("bacterium", "bacterium-dense")
    """Recipes."""
    seeds: tuple[int, ...] = (1, 2, 3)
    """Of weights, order and masks."""
    epochs: float = 6.0
    """Passes over the training rows."""
    procs: int = 2
    """CPU ranks of one run, one thread each."""
    gpus: int = 0
    """GPUs of one run, instead of CPU ranks; several runs at once share them."""
    at_once: int = 1
    """Runs at the same time; needs `procs` cores for each."""
    flags: tuple[str, ...] = ()
    """Further flags for the training command, without their dashes: model.dropout=0."""


def main() -> None:
    """Train, score, and print the table."""
    options = tyro.cli(SeedOptions)
    options.out.mkdir(parents=True, exist_ok=True)
    jobs = [(preset, seed) for seed in options.seeds for preset in options.presets]
    rows: list[dict[str, Any]] = []
    with ThreadPoolExecutor(options.at_once) as pool:
        for row in pool.map(lambda job: run(options, *job), jobs):
            rows.append(row)
            record = {"machine": machine(), "gpus": options.gpus}
            record["procs"] = 0 if options.gpus else options.procs
            text = json.dumps({**record, "epochs": options.epochs, "rows": rows}, indent=1)
            (options.out / "rows.json").write_text(text + "\n")
            print(f"{row['preset']} seed {row['seed']}: {row['bits']:.4f}", file=sys.stderr)
    print(table(rows))


def run(options: SeedOptions, preset: str, seed: int) -> dict[str, Any]:
    """Train and score one preset with one seed."""
    folder = options.out / f"{preset}-{seed}"
    began = time.monotonic()
    train = [sys.executable, "-m", "genomoe.training.launch", preset]
    train += ["--data", str(options.data), "--run", str(folder), "--training.seed", str(seed)]
    if options.gpus:
        train += ["--gpus", str(options.gpus)]
    else:
        train += ["--gpus", "0", "--procs", str(options.procs)]
    train += ["--training.train-epochs", str(options.epochs)]
    train += [f"--{flag}" for flag in options.flags]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    log = folder.with_suffix(".log")
    with log.open("w") as file:
        subprocess.run(train, check=True, stdout=file, stderr=file, env=environment)
        minutes = (time.monotonic() - began) / 60
        score = [sys.executable, "-m", "genomoe.tools.eval_perplexity", str(folder)]
        output = subprocess.run(score, check=True, stdout=subprocess.PIPE, stderr=file).stdout
    result = json.loads(output)
    last = json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1])
    return {
        "preset": preset,
        "seed": seed,
        "bits": result["bits"],
        "scored": result["scored"],
        "best_order_k_bits": result["baselines"]["best"],
        "chosen_iteration": result["iteration"],
        "iterations": last["iteration"],
        "epochs": last["epoch"],
        "train_minutes": minutes,
        "expert_load": last.get("expert_load"),
    }


def machine() -> dict[str, Any]:
    """What the figures depend on."""
    model = next(
        (
            line.split(":")[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.processor(),
    )
    names = ["torch", "megatron-core", "numpy"]
    names += ["transformer-engine"] if find_spec("transformer_engine") else []
    return {
        "cpu": model,
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        **{name: version(name) for name in names},
    }


def table(rows: list[dict[str, Any]]) -> str:
    """Markdown: a line a preset, mean and spread over its seeds."""
    lines = ["| preset | test bits/base by seed | mean | sd | best order-k | minutes |"]
    lines.append("|---|---|---|---|---|---|")
    for preset in dict.fromkeys(row["preset"] for row in rows):
        mine = [row for row in rows if row["preset"] == preset]
        bits = [row["bits"] for row in mine]
        spread = f"{statistics.stdev(bits):.4f}" if len(bits) > 1 else "-"
        minutes = statistics.mean(row["train_minutes"] for row in mine)
        lines.append(
            f"| {preset} | {', '.join(f'{b:.4f}' for b in bits)} | {statistics.mean(bits):.4f} "
            f"| {spread} | {mine[0]['best_order_k_bits']:.4f} | {minutes:.1f} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
