from typing import Any

import numpy as np
import pytest
import torch

from genomoe.training.batch import global_totals, to_micro_batch
from tests.unit.models import tiny

LENGTH = 12


def test_a_padded_row_of_one_document_needs_no_mask() -> None:
    """Padding ends a row, where nothing real looks at it: the fast causal path stays open."""
    batch = tiny.batch_of(
        [tiny.documents_row([tiny.random_letters(n, n)], LENGTH) for n in (12, 7)]
    )
    assert batch.attention_mask is None
    assert batch.padding_mask is not None
    assert batch.padding_mask.sum(dim=1).tolist() == [0, 5]
    assert batch.num_tokens == 19


def test_a_full_batch_has_neither_mask() -> None:
    batch = tiny.batch_of([tiny.documents_row([tiny.random_letters(LENGTH, 1)], LENGTH)])
    assert batch.attention_mask is None and batch.padding_mask is None
    assert batch.num_tokens == LENGTH


def test_packed_documents_are_masked_from_each_other() -> None:
    documents = [tiny.random_letters(n, n) for n in (5, 4)]
    batch = tiny.batch_of([tiny.documents_row(documents, LENGTH)])
    assert batch.attention_mask is not None
    seen = ~batch.attention_mask[0, 0]
    assert seen[4].nonzero().flatten().tolist() == [0, 1, 2, 3, 4]
    assert seen[8].nonzero().flatten().tolist() == [5, 6, 7, 8]
    # Padding looks at the last document; a row without a place to look at would be no number.
    assert seen.any(dim=1).all()


def test_a_row_of_nothing_but_padding() -> None:
    batch = tiny.batch_of([tiny.documents_row([], LENGTH)])
    assert batch.num_tokens == 0
    assert batch.attention_mask is None


def test_samples_keep_their_numbers() -> None:
    rows = tiny.documents_row([tiny.random_letters(LENGTH, 1)], LENGTH)
    batch = to_micro_batch(rows, np.array([70]), pad=tiny.PAD, device=torch.device("cpu"))
    assert batch.samples == [70] and type(batch.samples[0]) is int


def test_totals(topology: Any) -> None:
    made = [tiny.documents_row([tiny.random_letters(n, n)], LENGTH) for n in (12, 7)]
    made[1]["weights"] *= 0.1
    batches = [tiny.batch_of([row]) for row in made]
    tokens, weight = global_totals(batches, topology.groups.dp, topology.device)
    assert tokens == 19
    assert weight == pytest.approx(12 + 0.7)
