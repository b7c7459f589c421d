"""A source whose entropy is known is learned down to it."""

import math
from typing import Any

import numpy as np
import pytest
import torch

from genomoe.data.synthetic import MarkovSource
from genomoe.training.batch import MicroBatch, to_micro_batch
from genomoe.training.config import OptimizerConfig
from tests.unit.models import tiny
from tests.unit.training.test_step import Machine

ORDER, LENGTH, ROWS = 3, 64, 32
SOURCE = MarkovSource(ORDER, seed=5)


def letters_of(count: int, stream: int) -> np.ndarray:
    """Rows of letter numbers, [count, LENGTH]; each stream is drawn afresh."""
    return np.ascontiguousarray(SOURCE.sample(LENGTH, count, seed=9, stream=stream).T)


def batch_of(letters: np.ndarray) -> MicroBatch:
    labels = letters + tiny.FIRST_LETTER
    bos = np.full((len(labels), 1), tiny.BOS)
    rows = {
        "tokens": np.concatenate([bos, labels[:, :-1]], axis=1),
        "labels": labels,
        "weights": np.ones(labels.shape, dtype=np.float32),
        "document": np.zeros(labels.shape, dtype=np.int32),
    }
    return to_micro_batch(rows, range(len(labels)), pad=tiny.PAD, device=torch.device("cpu"))


def source_bits(letters: np.ndarray) -> np.ndarray:
    """What the source itself pays for each letter after the first ORDER, [rows, LENGTH - ORDER]."""
    context = np.zeros(len(letters), dtype=np.int64)
    paid = []
    for letter in letters.T:
        paid.append(-np.log2(SOURCE.transitions[context, letter]))
        context = SOURCE.next_context(context, letter)
    return np.stack(paid[ORDER:], axis=1)


@pytest.mark.parametrize(
    ("shape", "rate", "steps"),
    [
        # The k-mer tables hand the model its context; without them attention must collect it.
        pytest.param({}, 1e-2, 300, id="kmer-stem"),
        pytest.param({"stem_kmer_orders": ()}, 5e-3, 600, id="attention-alone"),
    ],
)
def test_an_order_3_source_is_learned_to_its_entropy(
    shape: dict[str, Any], rate: float, steps: int, topology: Any
) -> None:
    machine = Machine(topology, OptimizerConfig(lr=rate), **shape)
    for iteration in range(steps):
        batch = batch_of(letters_of(ROWS, stream=1000 + iteration))
        result = machine.take([batch], iteration, steps)
        if iteration == 0:
            assert result.loss == pytest.approx(math.log(tiny.VOCAB), abs=0.05)

    held_out = letters_of(512, stream=7)
    own = source_bits(held_out)
    # The held-out letters are an ordinary sample of the source: three standard errors.
    error = own.mean(axis=1).std() / math.sqrt(len(own))
    assert own.mean() == pytest.approx(SOURCE.entropy_bits(), abs=3 * error)

    nats = tiny.nats(machine.built.module.eval(), batch_of(held_out)).numpy()
    excess = (nats / math.log(2))[:, ORDER:] - own
    # Letter by letter against the source, so that the luck of the draw cancels. An excess below
    # zero would mean that the model sees what it should foretell.
    assert 0.0 < excess.mean() < 0.02
