"""Where a run stands, and how it is saved and found again."""

import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from genomoe.data.errors import InputError
from genomoe.data.json_codec import decode, encode
from genomoe.data.manifest import TOOL_VERSION
from genomoe.training import checkpoint
from genomoe.training.checkpoint_files import LAYOUT, read_facts, read_index
from genomoe.training.config import resume_conflicts
from genomoe.training.run_folder import write_json
from genomoe.training.state import (
    MOMENTS,
    Piece,
    allocate_moments,
    collect,
    install_weights,
    set_step,
)
from genomoe.training.trainer import RunState, Trainer


def save_run(trainer: Trainer) -> None:
    """Write a checkpoint of a run and drop those that are no longer kept."""
    state, config = trainer.state, trainer.config
    facts = {
        "state": encode(state),
        "config": encode(config),
        "manifest_digest": trainer.dataset.manifest.digest,
        "alphabet": trainer.dataset.tokenizer.name,
        "tokenizer_fingerprint": trainer.dataset.tokenizer.fingerprint,
        "layout": LAYOUT,
        "versions": {
            "genomoe": TOOL_VERSION,
            **{name: version(name) for name in ("torch", "megatron-core", "safetensors")},
        },
    }
    checkpoint.save(config.run, state.iteration, _pieces(trainer), facts)
    if trainer.topology.is_main:
        checkpoint.prune(config.run, config.training.keep_checkpoints, state.best_iteration)
        if state.best_iteration is not None:
            write_json(
                config.run / "best.json",
                {"iteration": state.best_iteration, "valid_bits": state.best_valid_bits},
            )


def restore_run(trainer: Trainer) -> bool:
    """Load the newest complete checkpoint of the run, if there is one.

    Returns:
        Whether there was one.

    Raises:
        InputError: If it belongs to another config or data set.
    """
    found = checkpoint.list_checkpoints(trainer.config.run)
    if not found:
        return False
    path = found[-1][1]
    facts = read_facts(path)
    check_resumable(path)
    check_same_run(trainer, facts)
    trainer.state = decode(RunState, facts["state"], "state")
    allocate_moments(trainer.optimizer)
    checkpoint.load(path, _pieces(trainer))
    set_step(trainer.optimizer, trainer.state.iteration)
    install_weights(trainer.wrapped, trainer.optimizer)
    if trainer.topology.is_main:
        print(f"resuming {path.name} of {trainer.config.run}", file=sys.stderr, flush=True)
    return True


def check_resumable(path: Path) -> None:
    """Refuse to train on from a checkpoint of weights alone, such as an imported one.

    Raises:
        InputError: If it has no optimizer moments.
    """
    if not any(name.split("/")[0] in MOMENTS for name in read_index(path).tensors):
        raise InputError(
            f"{path}: it holds weights alone, without the optimizer's moments: it can be scored "
            "(tools/eval_perplexity.py), not trained further; give another RUN"
        )


def check_same_run(trainer: Trainer, facts: dict[str, Any]) -> None:
    """Refuse to continue a run with other data or another recipe.

    Raises:
        InputError: Naming the first difference, with both values.
    """
    run = trainer.config.run
    for conflict in resume_conflicts(facts["config"], encode(trainer.config)):
        raise InputError(f"{run}: {conflict}; use the run's own value, or another RUN")
    if facts["manifest_digest"] != trainer.dataset.manifest.digest:
        raise InputError(
            f"{run}: it was trained on another data set (manifest {facts['manifest_digest'][:12]}) "
            f"than {trainer.dataset.folder} ({trainer.dataset.manifest.digest[:12]}); "
            "give that data set, or another RUN"
        )
    if facts["layout"] != LAYOUT:
        raise InputError(f"{run}: tensors are laid out as {facts['layout']}, here as {LAYOUT}")


def _pieces(trainer: Trainer) -> list[Piece]:
    pieces = collect(trainer.built, trainer.wrapped, trainer.optimizer, trainer.topology)
    balance = trainer.built.balance
    if balance is not None:
        load: torch.Tensor = balance.previous_load
        pieces.append(
            Piece(
                name="balance/previous_load",
                data=load,
                shape=tuple(load.shape),
                row_start=0,
                owned=trainer.topology.is_main,
            )
        )
    return pieces
