"""Everything that a run is told, frozen once parsed. Torch-free."""

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import tyro

from genomoe.models.config import ModelConfig
from genomoe.parallel.config import ParallelConfig


@dataclass(frozen=True, kw_only=True)
class LaunchConfig:
    """Which processes the run starts. None of it is compared on resume."""

    nodes: int = 1
    """Machines. Above 1 each starts the same command with NODE_RANK and MASTER_ADDR set."""
    gpus: int | None = None
    """GPUs of each machine; 0 for CPU ranks; default: all there are."""
    procs: int | None = None
    """CPU ranks of each machine when there are no GPUs; default: one for each core, up to 8,
    as far as the expert-parallel size and the global batch allow."""
    dry_run: bool = False
    """Print the resolved config, parameters, memory and tokens per step; start nothing."""


@dataclass(frozen=True, kw_only=True)
class RowConfig:
    """How training rows are cut from the data set."""

    seq_length: int = 512
    """Tokens of one row: BOS and letters, or several short documents with a BOS each."""
    reverse_complement: float | None = None
    """Chance that a row is read from the other strand; default 0.5 for DNA and RNA, 0 for
    proteins (where nothing else is possible)."""
    mask_weight: float = 1.0
    """Weight of soft-masked (lower-case) letters in the training loss; never in scores."""

    def __post_init__(self) -> None:
        """Refuse values that no run can have."""
        _require(self.seq_length >= 2, "rows.seq-length", self.seq_length, "2 or more")
        chance = self.reverse_complement
        _require(chance is None or 0 <= chance <= 1, "rows.reverse-complement", chance, "0 to 1")
        _require(0 <= self.mask_weight <= 1, "rows.mask-weight", self.mask_weight, "0 to 1")


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """AdamW with linear warm-up and cosine decay."""

    lr: float = 2e-3
    """Peak learning rate."""
    min_lr_fraction: float = 0.1
    """The rate at the end, as a fraction of the peak."""
    warmup_fraction: float = 0.03
    """Share of the iterations over which the rate rises."""
    weight_decay: float = 0.1
    """Decoupled; on matrices, not on norms, embeddings or the router."""
    adam_beta1: float = 0.9
    """Decay of the first moment."""
    adam_beta2: float = 0.95
    """Decay of the second moment."""
    adam_eps: float = 1e-8
    """Added to the root of the second moment."""
    clip_grad: float = 1.0
    """Largest norm of all gradients together."""

    def __post_init__(self) -> None:
        """Refuse values that no run can have."""
        for field_name in ("lr", "weight_decay"):
            value = getattr(self, field_name)
            _require(0 <= value < math.inf, f"optimizer.{field_name}", value, "0 or more")
        for field_name in ("min_lr_fraction", "warmup_fraction"):
            value = getattr(self, field_name)
            _require(0 <= value <= 1, f"optimizer.{field_name}", value, "0 to 1")
        for field_name in ("adam_beta1", "adam_beta2"):
            value = getattr(self, field_name)
            _require(0 <= value < 1, f"optimizer.{field_name}", value, "0 to below 1")
        for field_name in ("adam_eps", "clip_grad"):
            value = getattr(self, field_name)
            _require(0 < value < math.inf, f"optimizer.{field_name}", value, "a number above 0")


@dataclass(frozen=True, kw_only=True)
class TrainingConfig:
    """Length, batch, seeds, and what happens every so many iterations."""

    seed: int = 1
    """Of weights, dropout masks, sample order, strands and window offsets."""
    global_batch_size: int = 32
    """Rows of one optimizer step, over all ranks."""
    micro_batch_size: int = 32
    """Rows that one rank computes at a time, at most; the rest is gradient accumulation."""
    train_epochs: float = 20.0
    """Passes over the training rows; sets the iterations where `train_iters` does not."""
    train_iters: int | None = None
    """Optimizer steps; overrides `train_epochs`."""
    eval_interval: int = 200
    """Iterations between validations (also: at the end)."""
    eval_windows: int = 256
    """Windows of the validation split (and as many of train) scored at each validation, spread
    evenly; fewer where the split has fewer."""
    early_stop_evals: int = 5
    """Validations without an improvement of 0.001 bits after which the run ends; 0: never."""
    save_interval: int = 200
    """Iterations between checkpoints (also: at the end)."""
    keep_checkpoints: int = 2
    """Newest checkpoints kept, besides the best by validation."""
    log_interval: int = 10
    """Iterations between lines of the log; metrics.jsonl has every iteration."""

    def __post_init__(self) -> None:
        """Refuse values that no run can have."""
        for field_name in (
            "global_batch_size",
            "micro_batch_size",
            "train_iters",
            "eval_interval",
            "eval_windows",
            "save_interval",
            "keep_checkpoints",
            "log_interval",
        ):
            value = getattr(self, field_name)
            _require(value is None or value >= 1, f"training.{field_name}", value, "1 or more")
        for field_name in ("seed", "early_stop_evals"):
            value = getattr(self, field_name)
            _require(0 <= value < 2**63, f"training.{field_name}", value, "0 or more")
        epochs = self.train_epochs
        _require(0 < epochs < math.inf, "training.train-epochs", epochs, "a number above 0")


@dataclass(frozen=True, kw_only=True)
class PretrainConfig:
    """One training run."""

    data: Path = Path("datasets/genome")
    """Data set folder made by `make preprocess`."""
    run: Path = Path("runs/genome")
    """Run folder; one that exists is resumed."""
    # Flags without a prefix: `--gpus`, `--dry-run`.
    launch: Annotated[LaunchConfig, tyro.conf.arg(name="")] = field(default_factory=LaunchConfig)
    rows: RowConfig = field(default_factory=RowConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    parallel: ParallelConfig = field(default_factory=ParallelConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)


def _require(condition: bool, name: str, value: object, wanted: str) -> None:
    if not condition:
        raise ValueError(f"{name.replace('_', '-')} is {value}: use {wanted}")


# What may change when a run is resumed: where it runs, and what is only looked at.
_FREE_ON_RESUME = (
    "data",  # the manifest's digest is compared instead of the path
    "run",
    "launch",
    "parallel",
    "model.expert_backend",
    "training.micro_batch_size",
    "training.log_interval",
    "training.keep_checkpoints",
    "training.save_interval",
)


def resume_conflicts(saved: object, asked: object, path: str = "") -> list[str]:
    """Compare two encoded configs field by field; list what a resumed run may not change.

    Args:
        saved: The run's config, as JSON values.
        asked: The new command's, likewise.
        path: Where in the config this is.
    """
    if path in _FREE_ON_RESUME:
        return []
    if isinstance(saved, dict) and isinstance(asked, dict):
        conflicts = []
        for key in sorted(set(saved) | set(asked)):
            inner = f"{path}.{key}" if path else key
            conflicts += resume_conflicts(saved.get(key), asked.get(key), inner)
        return conflicts
    return [] if saved == asked else [f"{path}: the run has {saved}, the command {asked}"]


def num_microbatches(config: TrainingConfig, dp_size: int) -> tuple[int, int]:
    """Split the global batch over ranks and accumulation.

    Args:
        config: Batch sizes.
        dp_size: Data-parallel ranks.

    Returns:
        Rows of a micro-batch (the largest size not above `micro_batch_size` that divides) and
        the number of micro-batches.

    Raises:
        ValueError: If the ranks do not divide the global batch.
    """
    if config.global_batch_size % dp_size:
        raise ValueError(
            f"training.global-batch-size {config.global_batch_size} is not a multiple of the "
            f"{dp_size} rank(s): use {-(-config.global_batch_size // dp_size) * dp_size}"
        )
    rows = config.global_batch_size // dp_size
    largest = max(1, min(rows, config.micro_batch_size))
    micro = next(size for size in range(largest, 0, -1) if rows % size == 0)
    return micro, rows // micro


def train_iterations(config: TrainingConfig, num_rows: int) -> int:
    """Optimizer steps of the whole run.

    Args:
        config: Length of the run.
        num_rows: Rows of one epoch.
    """
    if config.train_iters is not None:
        return config.train_iters
    return max(1, round(config.train_epochs * num_rows / config.global_batch_size))


def learning_rate(config: OptimizerConfig, iteration: int, total: int) -> float:
    """Rate of the step that leads from `iteration` (0-based) to the next.

    Linear warm-up, then a cosine to `min_lr_fraction` of the peak at the last step.
    """
    warmup = max(1, round(config.warmup_fraction * total))
    if iteration < warmup:
        return config.lr * (iteration + 1) / warmup
    progress = min(1.0, (iteration + 1 - warmup) / max(1, total - warmup))
    low = config.min_lr_fraction
    return config.lr * (low + (1.0 - low) * 0.5 * (1.0 + math.cos(math.pi * progress)))
