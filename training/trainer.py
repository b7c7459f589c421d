"""The parts of a run and its position, assembled in one place.

Import only after the engine has been chosen: this module imports megatron-core.
"""

from dataclasses import dataclass, field
from typing import Any

import torch

from genomoe.data.dataset import DataSet
from genomoe.data.loader import RowSource
from genomoe.data.tokenizer import BOS_ID, FIRST_LETTER_ID, Tokenizer
from genomoe.models.build import BuiltModel, LetterIds, build_model
from genomoe.parallel.topology import Topology
from genomoe.parallel.wrap import wrap
from genomoe.training.config import PretrainConfig, train_iterations
from genomoe.training.metrics import MetricsWriter
from genomoe.training.optimizer import build_optimizer
from genomoe.training.rows import row_source
from genomoe.training.validation import ScoreSet


@dataclass(kw_only=True)
class RunState:
    """Position of a run. Masks, order and schedule are pure functions of it and the config."""

    iteration: int = 0
    """Optimizer steps taken."""
    consumed_samples: int = 0
    """Rows read: the whole state of the loader."""
    best_valid_bits: float | None = None
    """Best validation so far, bits per letter."""
    best_iteration: int | None = None
    """Iteration of that validation; its checkpoint is kept."""
    gained_valid_bits: float | None = None
    """Validation from which the next gain counts: early stop looks at gains, not at the best."""
    evals_without_gain: int = 0
    """Validations since that one."""
    stopped_early: bool = False
    """Whether early stop has ended the run."""


@dataclass(kw_only=True)
class Trainer:
    """The parts of a run, and where it stands."""

    config: PretrainConfig
    dataset: DataSet
    rows: RowSource
    built: BuiltModel
    wrapped: Any
    optimizer: Any
    topology: Topology
    state: RunState = field(default_factory=RunState)
    metrics: MetricsWriter | None = None
    score_sets: dict[str, ScoreSet] = field(default_factory=dict)

    @property
    def total_iterations(self) -> int:
        """Optimizer steps of the whole run."""
        return train_iterations(self.config.training, self.rows.num_rows)


def assemble(config: PretrainConfig, dataset: DataSet, topology: Topology) -> Trainer:
    """Build, initialise and wrap the model, its optimizer and its rows."""
    dtype = torch.float32 if topology.device.type == "cpu" else torch.bfloat16
    built = build_from_config(config, dataset.tokenizer, topology, dtype)
    wrapped = wrap(built.module, config.parallel, topology)
    return Trainer(
        config=config,
        dataset=dataset,
        rows=row_source(config, dataset),
        built=built,
        wrapped=wrapped,
        optimizer=build_optimizer(config.optimizer, built, wrapped, topology),
        topology=topology,
    )


def build_from_config(
    config: PretrainConfig, tokenizer: Tokenizer, topology: Topology, dtype: torch.dtype
) -> BuiltModel:
    """Build the model that a config describes, for a tokenizer."""
    letters = LetterIds(
        vocab_size=tokenizer.vocab_size,
        bos=BOS_ID,
        first_letter=FIRST_LETTER_ID,
    )
    return build_model(
        config.model,
        config.parallel,
        letters=letters,
        seq_length=config.rows.seq_length,
        seed=config.training.seed,
        groups=topology.groups,
        device=topology.device,
        dtype=dtype,
    )
