"""The whole job on the bundled genome, on CPU: preprocess, train, score, report.

    make demo        (or: python -m genomoe.tools.demo --out DIR)

Each part is the command that a user would type, shown before it runs. An interrupted demo goes
on where it stopped.
"""

import shlex
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from genomoe.data.command_line import fail, parse
from genomoe.data.errors import InputError
from genomoe.tools.summary import print_summary
from genomoe.training.run_folder import SCORES


@dataclass(frozen=True, kw_only=True)
class DemoOptions:
    """Where the demo works and how long it trains."""

    out: Path = Path("build/demo")
    """Folder for the data set, the run, the score and the report."""
    genome: Path = Path("examples/helicobacter_pylori_g27.fasta.gz")
    """FASTA file; the default is the bundled Helicobacter pylori G27."""
    preset: str = "bacterium"
    """Recipe."""
    epochs: float = 2.5
    """Passes over the training rows: 2.5 take about five minutes on 2 cores."""


def main() -> int:
    """Run the demo; returns the exit code."""
    try:
        options = parse(DemoOptions, sys.argv[1:], prog="genomoe.tools.demo")
        if not options.genome.exists():
            raise InputError(f"{options.genome}: no such file; run from the repository's root")
    except InputError as error:
        return fail(error)
    data, run = options.out / "data", options.out / "run"
    options.out.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    say("The whole job on one bacterium, on CPU: under 8 minutes on 2 cores.")
    if not (data / "manifest.json").exists():
        words = (str(options.genome), "--out", str(data))
        step("1/4 preprocess (a second)", "data.preprocess", *words)
    step(
        "2/4 train (about five minutes)",
        "training.launch",
        options.preset,
        *("--data", str(data), "--run", str(run), "--gpus", "0"),
        *("--training.train-epochs", str(options.epochs)),
    )
    step("3/4 score the held-out test split (a few seconds)", "tools.eval_perplexity", str(run))
    step("4/4 write the report", "tools.report", str(run))
    print_summary(run, run / SCORES / "test.json")
    say(f"{time.monotonic() - began:.0f} seconds in all")
    return 0


def say(text: str) -> None:
    """Print on stderr."""
    print(text, file=sys.stderr, flush=True)


def step(title: str, module: str, *words: str) -> None:
    """Show a command and run it; a failure has said its own line and ends the demo.

    Args:
        title: What it does, and how long it takes.
        module: Below `genomoe`.
        words: Its arguments.
    """
    say(f"\n{title}\n  python -m genomoe.{module} {shlex.join(words)}")
    command = [sys.executable, "-m", f"genomoe.{module}", *words]
    # The JSON of each command is for programs; what people read is on stderr.
    code = subprocess.run(command, check=False, stdout=subprocess.DEVNULL).returncode
    if code:
        sys.exit(code)


if __name__ == "__main__":
    sys.exit(main())
