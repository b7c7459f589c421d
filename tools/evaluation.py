"""The evaluation from the options to the score; all ranks run it, the first one speaks."""

import json
import math
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from genomoe.data.dataset import DataSet
from genomoe.data.errors import InputError
from genomoe.data.pieces import Piece
from genomoe.data.tokenizer import Tokenizer
from genomoe.data.windows import Window, context_lengths, plan_windows
from genomoe.parallel import topology as ranks
from genomoe.tools import baselines
from genomoe.tools.bootstrap import make_units
from genomoe.tools.eval_options import EvalOptions, WindowPlan, plan_sizes
from genomoe.tools.meter import Meter
from genomoe.tools.score import UnitScores, assemble
from genomoe.tools.score_table import heading, table
from genomoe.tools.targets import count_skipped, read_fasta, require_letters, scored_mask
from genomoe.training.run_folder import SCORES, write_json
from genomoe.training.scorer import CheckpointFacts, find_checkpoint, open_scorer, read_checkpoint


@dataclass(frozen=True, kw_only=True)
class Job:
    """What is scored, once every input has been checked.

    Attributes:
        facts: Of the checkpoint.
        chosen: How the checkpoint was found, in words.
        dataset: The run's data set; None when it is not at hand.
        split: Scored split, or None.
        fasta: Scored file, or None.
        pieces: Letters.
        sizes: Window, stride and batch.
        windows: Over the pieces.
        mask: Whether each letter in the scored ranges counts, bool, in scoring order.
        skipped: Letters that do not count, by reason.
    """

    facts: CheckpointFacts
    chosen: str
    dataset: DataSet | None
    split: str | None
    fasta: Path | None
    pieces: list[Piece]
    sizes: WindowPlan
    windows: list[Window]
    mask: np.ndarray
    skipped: dict[str, int]

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's letters."""
        return self.facts.tokenizer


def evaluate(options: EvalOptions) -> None:
    """Score, then print the table on stderr and the JSON on stdout from the first rank.

    Raises:
        InputError: If checkpoint, data and options do not fit together.
        FloatingPointError: If a score is not finite.
    """
    job = prepare(options)
    scorer = open_scorer(job.facts, engine="gpu" if torch.cuda.is_available() else "cpu")
    is_main = scorer.topology.is_main
    meter = Meter(letters=len(job.mask), windows=len(job.windows), enabled=is_main)
    nats = scorer.nats(
        [piece.tokens for piece in job.pieces],
        job.windows,
        batch_size=job.sizes.batch_size,
        progress=meter.add,
    )
    ranks.stop()
    if not is_main:
        return
    meter.finish()
    if not np.isfinite(nats[job.mask]).all():
        raise FloatingPointError(
            f"{job.facts.path}: the model gives a letter no finite probability; its weights are "
            "damaged or training diverged"
        )
    if job.dataset is not None:
        print(f"baselines: counting words of {job.dataset.folder}", file=sys.stderr, flush=True)
    score = summarize(job, nats)
    print("\n".join(["", heading(score), *table(score), score["verdict"]]), file=sys.stderr)
    print(json.dumps(score, allow_nan=False), flush=True)
    if job.split is not None and job.facts.path != options.run:
        keep(options.run / SCORES / f"{job.split}.json", score)


def keep(path: Path, score: dict[str, Any]) -> None:
    """Leave a run's score where the report finds it.

    Raises:
        InputError: If the run folder cannot be written.
    """
    try:
        path.parent.mkdir(exist_ok=True)
        write_json(path, score)
    except OSError as error:
        raise InputError(f"{path}: not written ({error.strerror}); the score is above") from None


def prepare(options: EvalOptions) -> Job:
    """Check every input and read the letters, before any model is built.

    Raises:
        InputError: With the first thing that is wrong.
    """
    if options.split is not None and options.fasta is not None:
        raise InputError("--split and --fasta exclude each other: give one of them")
    path = find_checkpoint(options.run)
    facts = read_checkpoint(path)
    sizes = plan_sizes(options, facts.config.rows.seq_length)
    dataset = open_dataset(options, facts)
    split = None if options.fasta is not None else options.split or "test"
    if options.fasta is not None:
        pieces, what = read_fasta(options.fasta, facts.tokenizer), str(options.fasta)
    else:
        assert dataset is not None and split is not None
        pieces, what = dataset.pieces(split), f"{dataset.folder}: {split} split"
    mask = scored_mask(pieces, facts.tokenizer)
    skipped = count_skipped(pieces, facts.tokenizer)
    require_letters(mask, skipped, what, facts.tokenizer.unit)
    return Job(
        facts=facts,
        chosen=_how_chosen(options.run, path),
        dataset=dataset,
        split=split,
        fasta=options.fasta,
        pieces=pieces,
        sizes=sizes,
        windows=plan_windows(
            [(piece.scored_begin, piece.scored_end) for piece in pieces],
            window=sizes.window,
            stride=sizes.stride,
        ),
        mask=mask,
        skipped=skipped,
    )


def open_dataset(options: EvalOptions, facts: CheckpointFacts) -> DataSet | None:
    """Open the data set that the run was trained on.

    Returns:
        None when it is not where the run says, and a FASTA file can be scored without it.

    Raises:
        InputError: If it is missing or another one where it is needed.
    """
    folder = options.data or facts.config.data
    hint = "" if options.data else "; give --data DIR, where the data set of the run is now"
    try:
        dataset = DataSet.open(folder)
        if dataset.tokenizer.fingerprint != facts.tokenizer.fingerprint:
            raise InputError(
                f"{folder}: of the {dataset.tokenizer.name} alphabet, the checkpoint reads "
                f"{facts.tokenizer.name}"
            )
        if dataset.manifest.digest != facts.manifest_digest:
            raise InputError(
                f"{folder}: manifest {dataset.manifest.digest[:12]} is not the one this run was "
                f"trained on, {facts.manifest_digest[:12]}"
            )
    except InputError as error:
        if options.fasta is not None and options.data is None:
            print(f"no order-k baselines: {error}{hint}", file=sys.stderr)
            return None
        raise InputError(f"{error}{hint}") from None
    return dataset


def _how_chosen(given: Path, found: Path) -> str:
    if found == given:
        return "as given"
    best = given / "best.json"
    if best.exists() and json.loads(best.read_text())["iteration"] == _iteration(found):
        return "best by validation"
    return "newest"


def _iteration(checkpoint: Path) -> int:
    return int(checkpoint.name.removeprefix("iter_"))


def summarize(job: Job, nats: np.ndarray) -> dict[str, Any]:
    """Sum up, score the baselines on the same letters, and build the JSON object.

    Args:
        job: What was scored.
        nats: Of every letter in the scored ranges, in scoring order.
    """
    unit = job.tokenizer.unit
    units = make_units(
        [piece.record for piece in job.pieces],
        [piece.scored_end - piece.scored_begin for piece in job.pieces],
        may_cut=unit == "base",
    )
    owners = units.of_letters(0, len(nats))[job.mask]
    letters = np.bincount(owners, minlength=units.count)
    rows = {"uniform": letters * math.log(job.tokenizer.num_scored)}
    best_order = None
    if job.dataset is not None:
        order_k = baselines.fit(job.dataset)
        best_order = order_k.best_order
        sums = baselines.unit_sums(
            order_k,
            job.pieces,
            job.tokenizer,
            contexts=context_lengths(job.windows),
            units=units,
        )
        rows |= {f"order-{order}": column for order, column in enumerate(sums.T)}
    scores = UnitScores(
        units=units,
        letters=letters,
        # FP64, in the order of the letters.
        model=np.bincount(owners, nats[job.mask].astype(np.float64), minlength=units.count),
        baselines=rows,
    )
    return assemble(
        scores,
        unit=unit,
        skipped=job.skipped,
        best_order=best_order,
        source="file" if job.fasta else "train" if job.split == "train" else "held-out",
        facts=_facts(job),
    )


def _facts(job: Job) -> dict[str, Any]:
    data = None
    if job.dataset is not None:
        data = {
            "name": job.dataset.folder.resolve().name,
            "manifest_digest": job.dataset.manifest.digest,
            "warning": job.dataset.manifest.warning,
        }
    return {
        "checkpoint": str(job.facts.path),
        "iteration": job.facts.iteration,
        "chosen": job.chosen,
        "split": job.split,
        "fasta": None if job.fasta is None else str(job.fasta),
        "window": job.sizes.window,
        "stride": job.sizes.stride,
        "strand": "forward",
        "precision": "fp32",
        "data": data,
    }
