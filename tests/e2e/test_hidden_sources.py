"""Experts part along hidden sources, and a MoE thereby beats its dense twin."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks.sources import Mixture, information
from genomoe.data.synthetic import MarkovSource


def test_a_reader_of_one_source_pays_what_the_source_pays() -> None:
    source = MarkovSource(2, 1)
    letters = Mixture((source,)).rows(50, 40, stream=0)
    bits = Mixture((source,)).optimal_bits(letters)
    assert np.isnan(bits[:, :2]).all()
    contexts = letters[:, :-2] * 4 + letters[:, 1:-1]
    assert bits[:, 2:] == pytest.approx(-np.log2(source.transitions[contexts, letters[:, 2:]]))


def test_the_best_reader_beats_any_other_guess() -> None:
    sources = tuple(MarkovSource(2, seed) for seed in range(3))
    mixture = Mixture(sources)
    letters = mixture.rows(600, 60, stream=0)
    best = np.nanmean(mixture.optimal_bits(letters))
    contexts = letters[:, :-2] * 4 + letters[:, 1:-1]
    each = np.stack([s.transitions[contexts, letters[:, 2:]] for s in sources])
    told = -np.log2(each[np.arange(600) % 3, np.arange(600)]).mean()
    assert told < best < -np.log2(each.mean(axis=0)).mean()
    # By the chain rule the whole row's bits are those of the mixture of whole-row probabilities.
    first = np.stack([s.first_contexts()[contexts[:, 0]] for s in sources])
    joint = np.log(first) + np.log(each).sum(axis=2)
    whole = -(np.logaddexp.reduce(joint, axis=0) - np.log(first.sum(axis=0))) / np.log(2)
    assert np.nansum(mixture.optimal_bits(letters), axis=1) == pytest.approx(whole)


def test_what_an_expert_tells_about_the_source() -> None:
    assert information(np.full((4, 4), 0.5)) == 0.0
    assert information(np.repeat(np.eye(2), 2, axis=0).repeat(2, axis=1)) == pytest.approx(1.0)
    assert information(np.eye(4)) == pytest.approx(2.0)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_mixture_of_experts_beats_its_dense_twin(tmp_path: Path) -> None:
    out = tmp_path / "record.json"
    command = [
        sys.executable,
        "benchmarks/sources.py",
        "--seeds",
        "1",
        "--at-once",
        "2",
        "--out",
        str(out),
    ]
    subprocess.run(command, check=True)
    record = json.loads(out.read_text())
    of = {model["model"]: model for model in record["models"]}
    moe, dense = of["moe"], of["dense"]
    # The router's own weights: hidden x experts in each of two blocks.
    assert moe["parameters_active"] - dense["parameters_active"] == 2 * 32 * 4
    assert record["optimal_bits"] < moe["bits"]
    # Three seeds gave -0.013, -0.011 and -0.016 (second half: -0.009, -0.007 and -0.013), and
    # 0.17, 0.10 and 0.11 bits: benchmarks/sources.md. Half of the least must be there.
    assert moe["bits"] < dense["bits"] - 0.005
    assert moe["late_bits"] < dense["late_bits"] - 0.003
    assert moe["source_information"][-1] > 0.05
