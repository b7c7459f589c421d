"""Open a checkpoint for scoring, on any number of ranks, with no word about the old layout."""

import dataclasses
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from genomoe.data.errors import InputError
from genomoe.data.json_codec import decode
from genomoe.data.tokenizer import BOS_ID, PAD_ID, Tokenizer, tokenizer_for
from genomoe.data.windows import Window
from genomoe.parallel import topology as ranks
from genomoe.parallel.config import Engine, ParallelConfig
from genomoe.training.checkpoint_files import read_facts
from genomoe.training.config import PretrainConfig


@dataclass(frozen=True, kw_only=True)
class CheckpointFacts:
    """What a checkpoint says of itself.

    Attributes:
        path: Its folder.
        config: Config of the run at that time.
        tokenizer: The letters it was trained on.
        manifest_digest: Of the data set it was trained on.
        iteration: Steps taken.
    """

    path: Path
    config: PretrainConfig
    tokenizer: Tokenizer
    manifest_digest: str
    iteration: int


class Scorer:
    """A model in evaluation mode; all ranks of the process group call it together."""

    def __init__(self, facts: CheckpointFacts, wrapped: Any, topology: ranks.Topology) -> None:
        self.facts, self.topology = facts, topology
        self._wrapped = wrapped

    def nats(
        self,
        letters: Sequence[np.ndarray],
        windows: Sequence[Window],
        *,
        batch_size: int,
        progress: Callable[[int], None] = lambda rows: None,
    ) -> np.ndarray:
        """Negative log-likelihood of each scored letter, in the order of the windows (FP32)."""
        from genomoe.training.scoring import score_windows

        return score_windows(
            self._wrapped,
            letters,
            windows,
            width=max((w.end - w.start for w in windows), default=1),
            batch_size=batch_size,
            bos=BOS_ID,
            pad=PAD_ID,
            topology=self.topology,
            progress=progress,
        )


def find_checkpoint(path: Path) -> Path:
    """Take a checkpoint folder as it is; of a run, its best by validation, else its newest.

    Raises:
        InputError: If there is none.
    """
    if (path / "checkpoint.json").exists():
        return path
    if not path.is_dir():
        raise InputError(f"{path}: no such run or checkpoint folder")
    best = path / "best.json"
    if best.exists():
        try:
            iteration = int(json.loads(best.read_text())["iteration"])
        except (ValueError, KeyError, TypeError):
            raise InputError(
                f"{best}: damaged; delete it, and the newest checkpoint is taken"
            ) from None
        found = path / "checkpoints" / f"iter_{iteration:07d}"
        if (found / "checkpoint.json").exists():
            return found
    complete = sorted((path / "checkpoints").glob("iter_*/checkpoint.json"))
    if not complete:
        raise InputError(f"{path}: no complete checkpoint in it; train first (make train RUN=...)")
    return complete[-1].parent


def read_checkpoint(path: Path, tokenizer_name: str | None = None) -> CheckpointFacts:
    """Read what a checkpoint says of itself, without its tensors.

    Args:
        path: Checkpoint folder.
        tokenizer_name: Alphabet, where the caller knows it; by default the recorded one.

    Raises:
        InputError: If it is not whole or of another version.
    """
    facts = read_facts(path)
    try:
        config = decode(PretrainConfig, facts["config"])
        tokenizer = tokenizer_for(tokenizer_name or facts["alphabet"])
        recorded = facts["tokenizer_fingerprint"]
        digest, iteration = facts["manifest_digest"], int(facts["state"]["iteration"])
    except (KeyError, ValueError, TypeError) as error:
        raise InputError(f"{path / 'checkpoint.json'}: {error}; of another version?") from None
    if tokenizer.fingerprint != recorded:
        raise InputError(
            f"{path}: trained with the tokenizer {recorded[:12]}, the {tokenizer.name} alphabet "
            f"here is {tokenizer.fingerprint[:12]}"
        )
    return CheckpointFacts(
        path=path,
        config=config,
        tokenizer=tokenizer,
        manifest_digest=digest,
        iteration=iteration,
    )


def open_scorer(facts: CheckpointFacts, *, engine: Engine = "cpu") -> Scorer:
    """Start the process groups and load the weights.

    Args:
        facts: From `read_checkpoint`.
        engine: Where to compute.
    """
    parallel = ParallelConfig(engine=engine, wrap="ddp")
    topology = ranks.start(parallel, ranks.rank_info())
    # These import megatron-core, which must come after the engine has been chosen.
    from genomoe.parallel.wrap import wrap
    from genomoe.training.checkpoint import load
    from genomoe.training.state import collect
    from genomoe.training.trainer import build_from_config

    # The reference experts in FP32, whatever the run was trained with: a score is a measurement.
    model = dataclasses.replace(facts.config.model, expert_backend="sequential")
    config = dataclasses.replace(facts.config, model=model, parallel=parallel)
    built = build_from_config(config, facts.tokenizer, topology, torch.float32)
    wrapped = wrap(built.module, parallel, topology)
    load(facts.path, collect(built, wrapped, None, topology), kinds=("weights",))
    return Scorer(facts, wrapped, topology)
