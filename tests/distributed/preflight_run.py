"""One step of a tiny model with upstream's options changed behind the preflight's back."""

import contextlib
import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

from genomoe.parallel import topology as ranks
from genomoe.parallel.config import ParallelConfig
from genomoe.training.batch import MicroBatch, to_micro_batch
from genomoe.training.config import OptimizerConfig
from tests.unit.models.tiny import BOS, FIRST_LETTER, MODEL, PAD, VOCAB

ROWS, LENGTH = 8, 24


@dataclass(frozen=True, kw_only=True)
class Job:
    """One step on the same letters in any layout.

    Attributes:
        wrap: `ddp` or `fsdp`.
        ep: Expert-parallel ranks.
        model: Fields of our config.
        upstream: Fields of upstream's TransformerConfig, set as they are.
        wrapper: Fields of upstream's DistributedDataParallelConfig; types by name.
        upstream_router: Choose experts by upstream's router instead of ours.
        dtype: Of the parameters.
        accumulation: Micro-batches that the rows are split into.
        weights: The rows come once for each, with this loss weight.
        lr: Rate of the step.
        watch_weights: Report how far they move.
    """

    wrap: Any = "ddp"
    ep: int = 1
    model: dict[str, Any] = field(default_factory=dict)
    upstream: dict[str, Any] = field(default_factory=dict)
    wrapper: dict[str, Any] = field(default_factory=dict)
    upstream_router: bool = False
    dtype: str = "float32"
    accumulation: int = 1
    weights: tuple[float, ...] = (1.0,)
    lr: float = 1e-2
    watch_weights: bool = False


def run_jobs(info: ranks.RankInfo, rendezvous: str, jobs: dict[str, Job]) -> dict[str, Any]:
    """Take one step for each job.

    Returns:
        By job: `loss`, `norm`, and with `watch_weights` `moved`: the largest change of a weight.
    """
    torch.set_num_threads(1)
    results = {}
    for number, (name, job) in enumerate(jobs.items()):
        parallel = ParallelConfig(wrap=job.wrap, expert_model_parallel_size=job.ep)
        topology = ranks.start(parallel, info, rendezvous=f"{rendezvous}.{number}")
        with _asked_for(job):
            results[name] = _step(job, parallel, topology)
        ranks.stop()
    return results


@contextlib.contextmanager
def _asked_for(job: Job) -> Iterator[None]:
    """Change what upstream is handed, with the refusal switched off."""
    from megatron.core.transformer.moe.router import TopKRouter

    from genomoe.models import build
    from genomoe.models.router import BalancedRouter
    from genomoe.parallel import wrap

    real_model, real_wrapper = build.TransformerConfig, wrap.wrapper_config

    def model_config(**options: Any) -> Any:
        return real_model(**{**options, **job.upstream})

    def wrapper_config(kind: Any) -> Any:
        changes = {
            name: getattr(torch, value) if name.endswith("dtype") and value else value
            for name, value in job.wrapper.items()
        }
        return dataclasses.replace(real_wrapper(kind), **changes)

    with contextlib.ExitStack() as stack:
        stack.enter_context(patch.object(build, "TransformerConfig", model_config))
        stack.enter_context(patch.object(wrap, "wrapper_config", wrapper_config))
        stack.enter_context(patch.object(wrap, "upstream_errors", lambda options: []))
        if job.upstream_router:
            stack.enter_context(patch.object(BalancedRouter, "routing", TopKRouter.routing))
        yield


def _step(job: Job, parallel: ParallelConfig, topology: ranks.Topology) -> dict[str, Any]:
    from genomoe.models.build import LetterIds, build_model
    from genomoe.parallel.wrap import wrap
    from genomoe.training.optimizer import build_optimizer, set_schedule
    from genomoe.training.step import TrainStep

    built = build_model(
        dataclasses.replace(MODEL, **job.model),
        parallel,
        letters=LetterIds(vocab_size=VOCAB, bos=BOS, first_letter=FIRST_LETTER),
        seq_length=LENGTH,
        seed=3,
        groups=topology.groups,
        device=topology.device,
        dtype=getattr(torch, job.dtype),
    )
    wrapped = wrap(built.module, parallel, topology)
    config = OptimizerConfig(lr=job.lr, clip_grad=1e9)  # never clips: the norm is looked at
    optimizer = build_optimizer(config, built, wrapped, topology)
    set_schedule(optimizer, config, 0, 1)

    before = _weights(built, wrapped, topology) if job.watch_weights else {}
    result = TrainStep(built, wrapped, optimizer, topology)(list(_micro_batches(job, topology)))
    reply: dict[str, Any] = {"loss": result.loss, "norm": result.grad_norm}
    if job.watch_weights:
        after = _weights(built, wrapped, topology)
        reply["moved"] = max(float((after[name] - old).abs().max()) for name, old in before.items())
    return reply


def _weights(built: Any, wrapped: Any, topology: ranks.Topology) -> dict[str, torch.Tensor]:
    from genomoe.training.state import collect

    pieces = collect(built, wrapped, None, topology)
    return {piece.name: piece.data.detach().clone() for piece in pieces if piece.data.numel()}


def _micro_batches(job: Job, topology: ranks.Topology) -> Iterator[MicroBatch]:
    random = np.random.default_rng(11)
    labels = random.choice(4, size=(ROWS, LENGTH), p=[0.5, 0.3, 0.15, 0.05]) + FIRST_LETTER
    arrays = {
        "tokens": np.concatenate([np.full((ROWS, 1), BOS), labels[:, :-1]], axis=1),
        "labels": labels,
        "document": np.zeros((ROWS, LENGTH), dtype=np.int32),
    }
    size = ROWS // topology.dp_size // job.accumulation
    for weight in job.weights:
        arrays["weights"] = np.full((ROWS, LENGTH), weight, dtype=np.float32)
        for part in range(job.accumulation):
            first = (part * topology.dp_size + topology.dp_rank) * size
            mine = {name: array[first : first + size].copy() for name, array in arrays.items()}
            samples = range(first, first + size)
            yield to_micro_batch(mine, samples, pad=PAD, device=topology.device)
