"""Scores of windows by a real model: the same for any batch size, and only what was asked for."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from genomoe.data.dataset import DataSet
from genomoe.data.errors import InputError
from genomoe.data.windows import plan_windows
from genomoe.parallel.config import ParallelConfig
from tests.unit.models import tiny

WIDTH = 16


@pytest.fixture(scope="module")
def model(topology: Any) -> Any:
    from genomoe.parallel.wrap import wrap

    built = tiny.build(topology, init_method_std=0.3, dropout=0.2)
    return wrap(built.module, ParallelConfig(), topology).train()


LETTERS = [np.array(tiny.random_letters(n, n), dtype=np.uint8) for n in (40, 9, 23)]
WINDOWS = plan_windows([(5, 40), (0, 9), (3, 20)], window=WIDTH, stride=6)


def score(model: Any, topology: Any, batch_size: int, seen: list[int] | None = None) -> np.ndarray:
    from genomoe.training.scoring import score_windows

    return score_windows(
        model,
        LETTERS,
        WINDOWS,
        width=WIDTH,
        batch_size=batch_size,
        bos=tiny.BOS,
        pad=tiny.PAD,
        topology=topology,
        progress=(lambda rows: None) if seen is None else seen.append,
    )


def test_every_letter_against_a_window_of_its_own(model: Any, topology: Any) -> None:
    wanted = []
    model.eval()
    for item in WINDOWS:
        ids = LETTERS[item.piece][item.start : item.end].tolist()
        tokens = torch.tensor([[tiny.BOS, *ids[:-1]]])
        with torch.no_grad():
            nats = model(tokens, None, None, labels=torch.tensor([ids]))
        wanted += nats[0, item.scored - item.start :].tolist()
    model.train()
    got = score(model, topology, 4)
    assert len(got) == 35 + 9 + 17
    assert got == pytest.approx(np.array(wanted), abs=1e-5)


@pytest.mark.parametrize("batch_size", [1, 3, 100])
def test_the_batch_size_does_not_matter(model: Any, topology: Any, batch_size: int) -> None:
    reference = score(model, topology, 5)
    assert score(model, topology, batch_size) == pytest.approx(reference, abs=1e-5)


def test_the_model_goes_on_as_it_was(model: Any, topology: Any) -> None:
    before = {name: parameter.clone() for name, parameter in model.named_parameters()}
    seen: list[int] = []
    first = score(model, topology, 4, seen)
    assert sum(seen) == len(WINDOWS)
    assert model.training
    assert (score(model, topology, 4) == first).all(), "dropout is at work"
    assert all(torch.equal(p, before[n]) for n, p in model.named_parameters())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_windows_of_validation(dna_set: Path) -> None:
    from genomoe.training.validation import choose_windows

    dataset = DataSet.open(dna_set)
    whole = choose_windows(dataset, "valid", width=64, count=10_000)
    scored = sum(w.end - w.scored for w in whole.windows)
    assert scored == len(whole.keep)
    assert int(whole.keep.sum()) == dataset.manifest.splits["valid"].scored_tokens
    part = choose_windows(dataset, "valid", width=64, count=5)
    assert len(part.windows) == 5
    places = {(w.piece, w.scored) for w in part.windows}
    assert len(places) == 5 and places <= {(w.piece, w.scored) for w in whole.windows}
    assert part.windows[0] == whole.windows[0] and part.windows[-1] == whole.windows[-1]


def test_a_split_without_a_letter_to_score(dna_set: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from genomoe.training.validation import choose_windows

    dataset = DataSet.open(dna_set)
    monkeypatch.setattr(dataset, "pieces", lambda split: [])
    with pytest.raises(InputError, match="the valid split has no letter to score"):
        choose_windows(dataset, "valid", width=64, count=5)


def test_the_score_of_a_set_is_the_mean_over_its_letters(model: Any, topology: Any) -> None:
    from genomoe.training.validation import ScoreSet, score_set_bits

    nats = score(model, topology, 5)
    keep = np.arange(len(nats)) % 3 != 0
    chosen = ScoreSet(letters=LETTERS, windows=WINDOWS, keep=keep)
    got = score_set_bits(model, chosen, width=WIDTH, batch_size=5, topology=topology)
    assert got == pytest.approx(float(nats[keep].mean()) / np.log(2), rel=1e-6)
