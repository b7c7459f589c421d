"""The model as one piece, on one rank: what a language model of letters must be true to."""

import math
from typing import Any

import pytest
import torch

from tests.unit.models import tiny

LENGTH = 24
DENSE = {"num_moe_experts": 0, "ffn_hidden_size": 80}


def one_row(seed: int = 1) -> Any:
    return tiny.batch_of([tiny.documents_row([tiny.random_letters(LENGTH, seed)], LENGTH)])


@pytest.mark.parametrize("shape", [{}, DENSE, {"make_vocab_size_divisible_by": 80}])
def test_untrained_loss_is_that_of_guessing(shape: dict[str, Any], topology: Any) -> None:
    module = tiny.build(topology, **shape).module.eval()
    padded = shape.get("make_vocab_size_divisible_by", 32)
    rows = [tiny.documents_row([tiny.random_letters(LENGTH, seed)], LENGTH) for seed in range(16)]
    loss = tiny.nats(module, tiny.batch_of(rows)).mean().item()
    assert loss == pytest.approx(math.log(padded), abs=0.05)


@pytest.mark.parametrize("shape", [{}, DENSE, {"num_query_groups": 4, "stem_kmer_orders": ()}])
def test_no_letter_is_seen_before_its_time(shape: dict[str, Any], topology: Any) -> None:
    module = tiny.build(topology, init_method_std=0.3, **shape).module.eval()
    batch = one_row()
    before = tiny.nats(module, batch)
    for changed in range(1, LENGTH):
        edited = batch.tokens.clone()
        edited[0, changed] = (edited[0, changed] - tiny.FIRST_LETTER + 1) % 4 + tiny.FIRST_LETTER
        with torch.no_grad():
            after = module(edited, None, None, labels=batch.labels)
        assert torch.allclose(after[0, :changed], before[0, :changed], atol=1e-5), changed
        assert (after[0, changed:] - before[0, changed:]).abs().max() > 1e-3, changed


@pytest.mark.parametrize("shape", [{}, DENSE])
def test_a_packed_document_is_as_if_alone(shape: dict[str, Any], topology: Any) -> None:
    # Large weights, so that a leak would show.
    module = tiny.build(topology, init_method_std=0.3, **shape).module.eval()
    documents = [tiny.random_letters(n, seed=n) for n in (7, 9, 5)]
    packed = tiny.nats(module, tiny.batch_of([tiny.documents_row(documents, LENGTH)]))
    cursor = 0
    for letters in documents:
        alone = tiny.nats(module, tiny.batch_of([tiny.documents_row([letters], len(letters))]))
        here = packed[0, cursor : cursor + len(letters)]
        assert torch.allclose(here, alone[0], rtol=1e-5, atol=1e-5)
        cursor += len(letters)


def test_rows_of_a_batch_are_apart_and_padding_is_inert(topology: Any) -> None:
    module = tiny.build(topology, init_method_std=0.3).module.eval()
    long, short = tiny.random_letters(LENGTH, 1), tiny.random_letters(9, 2)
    rows = [tiny.documents_row([long], LENGTH), tiny.documents_row([short], LENGTH)]
    together = tiny.nats(module, tiny.batch_of(rows))
    alone = tiny.nats(module, tiny.batch_of([tiny.documents_row([short], len(short))]))
    assert torch.allclose(together[1, :9], alone[0], atol=1e-5)
    assert torch.allclose(together[0], tiny.nats(module, tiny.batch_of(rows[:1]))[0], atol=1e-5)


def test_positions_are_relative(topology: Any) -> None:
    """Rotary embedding: a document in the middle of a row is as one at its start."""
    module = tiny.build(topology, init_method_std=0.3, rotary_position_scale=2.0).module.eval()
    letters = tiny.random_letters(8, 3)
    first = tiny.nats(module, tiny.batch_of([tiny.documents_row([letters, letters], 16)]))
    assert torch.allclose(first[0, :8], first[0, 8:], atol=1e-5)


def test_the_position_scale_reaches_the_rotation(topology: Any) -> None:
    plain = tiny.build(topology, init_method_std=0.3).module.eval()
    scaled = tiny.build(topology, init_method_std=0.3, rotary_position_scale=2.0).module.eval()
    batch = one_row()
    difference = tiny.nats(plain, batch) - tiny.nats(scaled, batch)
    assert difference[0, 0].abs() < 1e-5  # BOS alone: nothing to be far from
    assert difference.abs().max() > 1e-3


def test_dropout_is_off_in_evaluation_and_on_in_training(topology: Any) -> None:
    built = tiny.build(topology, dropout=0.2)
    batch = one_row()
    evaluated = tiny.nats(built.module.eval(), batch)
    assert torch.equal(tiny.nats(built.module, batch), evaluated)
    built.dropout.samples = batch.samples
    trained = tiny.nats(built.module.train(), batch)
    assert not torch.allclose(trained, evaluated, atol=1e-4)
    assert torch.equal(tiny.nats(built.module, batch), trained)
    built.dropout.samples = [5]
    assert not torch.equal(tiny.nats(built.module, batch), trained)
