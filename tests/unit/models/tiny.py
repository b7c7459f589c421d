"""A tiny model and batches for it, on one rank."""

import dataclasses
from typing import Any

import numpy as np
import torch

from genomoe.models.config import ModelConfig
from genomoe.parallel.config import ParallelConfig
from genomoe.training.batch import MicroBatch, to_micro_batch

PAD, BOS, FIRST_LETTER, VOCAB = 0, 1, 3, 32

MODEL = ModelConfig(
    num_blocks=2,
    hidden_size=32,
    num_attention_heads=4,
    num_query_groups=2,
    num_moe_experts=4,
    moe_ffn_hidden_size=48,
    dropout=0.0,
    stem_kmer_orders=(2, 4),
)


def build(topology: Any, *, vocab: int = VOCAB, seed: int = 3, **changes: Any) -> Any:
    """Build the tiny model, with fields of its config changed."""
    from genomoe.models.build import LetterIds, build_model

    return build_model(
        dataclasses.replace(MODEL, **changes),
        ParallelConfig(),
        letters=LetterIds(vocab_size=vocab, bos=BOS, first_letter=FIRST_LETTER),
        seq_length=64,
        seed=seed,
        groups=topology.groups,
        device=topology.device,
        dtype=torch.float32,
    )


def documents_row(documents: list[list[int]], length: int) -> dict[str, np.ndarray]:
    """One row that holds documents of letter ids one after the other, then padding."""
    row = {
        "tokens": np.full((1, length), PAD, dtype=np.int64),
        "labels": np.full((1, length), PAD, dtype=np.int64),
        "weights": np.zeros((1, length), dtype=np.float32),
        "document": np.full((1, length), len(documents), dtype=np.int32),
    }
    cursor = 0
    for number, letters in enumerate(documents):
        here = slice(cursor, cursor + len(letters))
        row["tokens"][0, here] = [BOS, *letters[:-1]]
        row["labels"][0, here] = letters
        row["weights"][0, here] = 1.0
        row["document"][0, here] = number
        cursor += len(letters)
    return row


def random_letters(length: int, seed: int) -> list[int]:
    """Ids of plain letters."""
    return (np.random.default_rng(seed).integers(0, 4, length) + FIRST_LETTER).tolist()


def batch_of(rows: list[dict[str, np.ndarray]]) -> MicroBatch:
    """Rows as one micro-batch of samples 0, 1, ..."""
    arrays = {name: np.concatenate([row[name] for row in rows]) for name in rows[0]}
    return to_micro_batch(arrays, range(len(rows)), pad=PAD, device=torch.device("cpu"))


def nats(module: Any, batch: MicroBatch) -> torch.Tensor:
    """Loss of every label [rows, sequence], without gradients."""
    with torch.no_grad():
        return module(
            batch.tokens,
            None,
            batch.attention_mask,
            labels=batch.labels,
            padding_mask=batch.padding_mask,
        )
