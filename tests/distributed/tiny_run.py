"""A tiny model trained on made-up rows, in any layout: the worker of the parity tests."""

import dataclasses
from typing import Any

import numpy as np
import torch

from genomoe.models.config import ModelConfig
from genomoe.parallel import topology as ranks
from genomoe.parallel.config import ParallelConfig
from genomoe.training.config import OptimizerConfig

PAD, BOS, FIRST_LETTER, VOCAB = 0, 1, 3, 32

MODEL = ModelConfig(
    num_blocks=2,
    hidden_size=32,
    num_attention_heads=4,
    num_query_groups=2,
    num_moe_experts=4,
    moe_ffn_hidden_size=48,
    moe_aux_loss_coeff=1e-2,
    dropout=0.1,
    stem_kmer_orders=(2, 4),
)
OPTIMIZER = OptimizerConfig(lr=1e-2, clip_grad=0.5)


def rows(step: int, batch: int, length: int) -> dict[str, np.ndarray]:
    """One global batch: rows of skewed letters; one all masked, one at weight 0.1, one packed,
    one with padding at its end."""
    random = np.random.default_rng([7, step])
    letters = random.choice(4, size=(batch, length), p=[0.5, 0.3, 0.15, 0.05]) + FIRST_LETTER
    tokens = np.concatenate([np.full((batch, 1), BOS), letters[:, :-1]], axis=1)
    labels = letters.copy()
    weights = np.ones((batch, length), dtype=np.float32)
    document = np.zeros((batch, length), dtype=np.int32)
    weights[0] = 0.0
    weights[1] = 0.1
    tokens[2, length // 2], document[2, length // 2 :] = BOS, 1
    tokens[3, -5:], labels[3, -5:], weights[3, -5:], document[3, -5:] = PAD, PAD, 0.0, 1
    return {"tokens": tokens, "labels": labels, "weights": weights, "document": document}


def train_tiny(
    info: ranks.RankInfo, rendezvous: str, jobs: list[dict[str, Any]]
) -> list[list[list[float]]]:
    """Run each job; for every step return loss, gradient norm, and the balance losses.

    A job's keys: `model`, `parallel` (overrides), `accumulation`, `steps`.
    """
    results = []
    for number, job in enumerate(jobs):
        parallel = ParallelConfig(**job.get("parallel", {}))
        topology = ranks.start(parallel, info, rendezvous=f"{rendezvous}.{number}")
        results.append(_train(parallel, topology, job))
        ranks.stop()
    return results


def _train(parallel: ParallelConfig, topology: ranks.Topology, job: dict[str, Any]) -> list[Any]:
    from genomoe.models.build import LetterIds, build_model
    from genomoe.parallel.wrap import wrap
    from genomoe.training.batch import to_micro_batch
    from genomoe.training.optimizer import build_optimizer, set_schedule
    from genomoe.training.step import TrainStep

    torch.set_num_threads(1)
    batch, length, steps = 8, 24, job.get("steps", 3)
    config = dataclasses.replace(MODEL, **job.get("model", {}))
    built = build_model(
        config,
        parallel,
        letters=LetterIds(vocab_size=VOCAB, bos=BOS, first_letter=FIRST_LETTER),
        seq_length=length,
        seed=3,
        groups=topology.groups,
        device=topology.device,
        dtype=torch.float32,
    )
    wrapped = wrap(built.module, parallel, topology)
    optimizer = build_optimizer(OPTIMIZER, built, wrapped, topology)
    step = TrainStep(built, wrapped, optimizer, topology)
    record = []
    for iteration in range(steps):
        set_schedule(optimizer, OPTIMIZER, iteration, steps)
        data = rows(iteration, batch, length)
        size = batch // topology.dp_size // job.get("accumulation", 1)
        micro = []
        for part in range(job.get("accumulation", 1)):
            first = (part * topology.dp_size + topology.dp_rank) * size
            pick = slice(first, first + size)
            samples = [iteration * batch + row for row in range(first, first + size)]
            mine = {name: np.ascontiguousarray(array[pick]) for name, array in data.items()}
            micro.append(to_micro_batch(mine, samples, pad=PAD, device=topology.device))
        result = step(micro)
        balance = result.balance
        record.append(
            [result.loss, result.grad_norm]
            + ([balance.aux_loss, balance.z_loss] if balance is not None else [])
        )
    return record
