import dataclasses
import itertools
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from genomoe.data.json_codec import encode
from genomoe.training.config import (
    OptimizerConfig,
    TrainingConfig,
    learning_rate,
    num_microbatches,
    resume_conflicts,
    train_iterations,
)
from genomoe.training.presets import PRESETS

BASE = PRESETS["debug"]


def changed(section: str, **fields: Any) -> Any:
    part = dataclasses.replace(getattr(BASE, section), **fields)
    return encode(dataclasses.replace(BASE, **{section: part}))


@pytest.mark.parametrize(
    ("section", "fields", "name", "saved", "asked"),
    [
        ("model", {"hidden_size": 64}, "model.hidden_size", 32, 64),
        ("optimizer", {"lr": 0.5}, "optimizer.lr", 0.01, 0.5),
        ("rows", {"seq_length": 32}, "rows.seq_length", 64, 32),
        ("rows", {"reverse_complement": 0.25}, "rows.reverse_complement", None, 0.25),
        ("training", {"seed": 2}, "training.seed", 1, 2),
        ("training", {"global_batch_size": 32}, "training.global_batch_size", 16, 32),
        ("training", {"train_iters": 30}, "training.train_iters", 20, 30),
        ("training", {"eval_interval": 5}, "training.eval_interval", 10, 5),
        ("model", {"stem_kmer_orders": (2,)}, "model.stem_kmer_orders", [], [2]),
    ],
)
def test_what_a_resumed_run_may_not_change(
    section: str, fields: dict[str, Any], name: str, saved: Any, asked: Any
) -> None:
    conflicts = resume_conflicts(encode(BASE), changed(section, **fields))
    assert conflicts == [f"{name}: the run has {saved}, the command {asked}"]


@pytest.mark.parametrize(
    ("section", "fields"),
    [
        ("launch", {"procs": 4, "nodes": 2, "gpus": 0}),
        ("parallel", {"expert_model_parallel_size": 2, "wrap": "ddp", "recompute": "full"}),
        ("model", {"expert_backend": "te_grouped"}),
        ("training", {"micro_batch_size": 1, "log_interval": 1, "keep_checkpoints": 9}),
    ],
)
def test_what_it_may_change(section: str, fields: dict[str, Any]) -> None:
    assert resume_conflicts(encode(BASE), changed(section, **fields)) == []


def test_every_conflict_and_unknown_fields_are_told() -> None:
    asked = changed("training", seed=2, train_iters=30)
    asked["novelty"] = 1
    assert len(resume_conflicts(encode(BASE), asked)) == 3


@pytest.mark.parametrize(
    ("section", "field", "value", "fix"),
    [
        ("rows", "seq_length", 1, "2 or more"),
        ("rows", "reverse_complement", 1.5, "0 to 1"),
        ("rows", "mask_weight", math.nan, "0 to 1"),
        ("optimizer", "lr", -1.0, "0 or more"),
        ("optimizer", "lr", math.nan, "0 or more"),
        ("optimizer", "lr", math.inf, "0 or more"),
        ("optimizer", "weight_decay", -0.1, "0 or more"),
        ("optimizer", "min_lr_fraction", 1.1, "0 to 1"),
        ("optimizer", "warmup_fraction", -0.1, "0 to 1"),
        ("optimizer", "adam_beta1", 1.0, "0 to below 1"),
        ("optimizer", "adam_beta2", -0.1, "0 to below 1"),
        ("optimizer", "adam_eps", 0.0, "a number above 0"),
        ("optimizer", "clip_grad", 0.0, "a number above 0"),
        ("training", "global_batch_size", 0, "1 or more"),
        ("training", "micro_batch_size", -1, "1 or more"),
        ("training", "train_iters", 0, "1 or more"),
        ("training", "train_epochs", 0.0, "a number above 0"),
        ("training", "train_epochs", math.nan, "a number above 0"),
        ("training", "eval_interval", 0, "1 or more"),
        ("training", "eval_windows", 0, "1 or more"),
        ("training", "save_interval", 0, "1 or more"),
        ("training", "keep_checkpoints", 0, "1 or more"),
        ("training", "log_interval", 0, "1 or more"),
        ("training", "early_stop_evals", -1, "0 or more"),
        ("training", "seed", -1, "0 or more"),
    ],
)
def test_values_that_no_run_can_have(section: str, field: str, value: Any, fix: str) -> None:
    with pytest.raises(ValueError) as caught:
        changed(section, **{field: value})
    flag = f"{section}.{field.replace('_', '-')}"
    assert str(caught.value) == f"{flag} is {value}: use {fix}"


@pytest.mark.parametrize(
    ("batch", "micro", "ranks", "expected"),
    [
        (32, 32, 1, (32, 1)),
        (32, 32, 4, (8, 1)),
        (32, 4, 2, (4, 4)),
        (24, 5, 2, (4, 3)),  # the largest divisor of 12 that is not above 5
        (14, 3, 2, (1, 7)),
        (8, 100, 8, (1, 1)),
    ],
)
def test_micro_batches(batch: int, micro: int, ranks: int, expected: tuple[int, int]) -> None:
    config = TrainingConfig(global_batch_size=batch, micro_batch_size=micro)
    assert num_microbatches(config, ranks) == expected


@given(st.integers(1, 500), st.integers(1, 64), st.integers(1, 16))
def test_micro_batches_always_make_the_batch(rows: int, micro: int, ranks: int) -> None:
    config = TrainingConfig(global_batch_size=rows * ranks, micro_batch_size=micro)
    size, count = num_microbatches(config, ranks)
    assert size * count * ranks == rows * ranks
    assert 1 <= size <= micro


def test_a_batch_that_the_ranks_do_not_divide() -> None:
    config = TrainingConfig(global_batch_size=10)
    with pytest.raises(ValueError) as caught:
        num_microbatches(config, 4)
    assert str(caught.value) == (
        "training.global-batch-size 10 is not a multiple of the 4 rank(s): use 12"
    )


@pytest.mark.parametrize(
    ("iters", "epochs", "rows", "batch", "expected"),
    [
        (7, 20.0, 100, 10, 7),
        (None, 20.0, 100, 10, 200),
        (None, 1.5, 100, 32, 5),  # 4.69
        (None, 0.01, 100, 32, 1),
    ],
)
def test_train_iterations(
    iters: int | None, epochs: float, rows: int, batch: int, expected: int
) -> None:
    config = TrainingConfig(train_iters=iters, train_epochs=epochs, global_batch_size=batch)
    assert train_iterations(config, rows) == expected


def test_learning_rate_by_hand() -> None:
    config = OptimizerConfig(lr=1.0, min_lr_fraction=0.1, warmup_fraction=0.1)
    rates = [learning_rate(config, iteration, 100) for iteration in range(100)]
    # Ten steps of warm-up, none of them at rate zero.
    assert rates[:10] == pytest.approx([0.1 * (i + 1) for i in range(10)])
    assert max(rates) == rates[9] == 1.0
    # The cosine is half way down, at 0.55, after half of the other 90 steps.
    assert rates[9 + 45] == pytest.approx(0.55)
    assert rates[9 + 30] == pytest.approx(0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi / 3)))
    assert rates[99] == pytest.approx(0.1)
    assert all(a > b for a, b in itertools.pairwise(rates[9:]))


def test_learning_rate_at_the_edges() -> None:
    config = OptimizerConfig(lr=1.0, min_lr_fraction=0.1, warmup_fraction=0.03)
    assert learning_rate(config, 0, 1) == 1.0
    assert learning_rate(config, 0, 2) == 1.0
    assert learning_rate(config, 1, 2) == pytest.approx(0.1)
    assert learning_rate(config, 500, 100) == pytest.approx(0.1)  # past the end it stays
    whole = OptimizerConfig(lr=1.0, warmup_fraction=1.0)
    assert learning_rate(whole, 9, 10) == 1.0
