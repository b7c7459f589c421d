import json
import math

import numpy as np
import pytest

from genomoe.data.errors import InputError
from genomoe.tools.bootstrap import Interval, make_units
from genomoe.tools.score import UnitScores, assemble, judge, read_score
from genomoe.tools.score_table import heading, table

BASELINES = {"uniform": 2.0, "order-0": 1.96, "order-5": 1.84, "order-8": 1.83, "best": 1.83}
SURE = Interval(value=-0.02, low=-0.03, high=-0.01)
UNSURE = Interval(value=-0.001, low=-0.01, high=0.01)
FACTS = {
    "checkpoint": "RUN/checkpoints/iter_0000100",
    "chosen": "best by validation",
    "split": "test",
    "fasta": None,
    "window": 256,
    "stride": 128,
}


@pytest.mark.parametrize(
    ("bits", "difference", "source", "standing", "words"),
    [
        (2.01, SURE, "held-out", "broken", "no better than guessing"),
        (2.01, SURE, "file", "broken", "unlike the training data"),
        (1.90, SURE, "held-out", "little", "above order-5 (1.8400): it has learnt little yet"),
        (1.835, SURE, "held-out", "short", "between order-5 and the best order-k"),
        (1.829, UNSURE, "held-out", "level", "the interval includes 0"),
        (1.81, SURE, "held-out", "beyond", "0.0200 bits below the best order-k"),
        (1.81, None, "held-out", "beyond", "no interval says how sure"),
        (1.679, SURE, "held-out", "suspicious", "look for a leak first"),
        (1.2, SURE, "train", "train", "TRAIN DATA"),
    ],
)
def test_verdict_in_words(bits, difference, source, standing, words):
    found, sentence = judge(bits, BASELINES, difference, unit="base", source=source)
    assert found == standing
    assert words in sentence


def test_verdict_without_baselines():
    standing, sentence = judge(1.7, {"uniform": 2.0}, None, unit="base", source="file")
    assert standing == "unknown"
    assert "--data" in sentence


def test_verdict_of_proteins_names_their_own_orders():
    baselines = {"uniform": math.log2(20), "order-0": 4.19, "order-1": 4.18, "best": 4.18}
    assert judge(4.25, baselines, None, unit="residue", source="held-out")[1].startswith(
        "above order-0"
    )


def scores(units: int) -> UnitScores:
    letters = np.full(units, 10_000)
    hard = np.linspace(0.95, 1.05, units) * math.log(2) * 10_000
    return UnitScores(
        units=make_units([0] * units, [10_000] * units, may_cut=True),
        letters=letters,
        model=1.80 * hard,
        baselines={
            "uniform": letters * math.log(4),
            "order-0": 1.95 * hard,
            "order-1": 1.85 * hard,
        },
    )


def summed(units: int) -> dict:
    return assemble(
        scores(units),
        unit="base",
        skipped={"guard": 7},
        best_order=1,
        source="held-out",
        facts=FACTS,
    )


def test_known_sums_give_exact_numbers():
    score = summed(12)
    assert score["scored"] == 120_000
    assert score["bits"] == pytest.approx(1.80)
    assert score["nll_nats"] == pytest.approx(1.80 * math.log(2))
    assert score["perplexity"] == pytest.approx(2**1.80)
    assert score["baselines"] == pytest.approx(
        {"uniform": 2.0, "order-0": 1.95, "order-1": 1.85, "best": 1.85}
    )
    low, high = score["interval"]["bits"]
    assert low < 1.80 < high
    value, low, high = score["interval"]["differences"]["best"]
    assert low < value < high < 0
    assert value == pytest.approx(-0.05)
    assert score["interval"]["units"] == 12
    assert score["standing"] == "beyond"
    json.dumps(score, allow_nan=False)


def test_too_few_units_give_no_interval_and_say_so():
    score = summed(9)
    assert score["interval"]["bits"] is None
    assert score["interval"]["differences"] == {}
    assert "9 of 10 units needed" in score["interval"]["note"]
    assert "9 of 10 units needed" in "\n".join(table(score))


def test_table_is_sorted_and_marks_the_model():
    lines = table(summed(12))
    names = [line[2:28].strip() for line in lines[1:-1]]
    assert names == ["uniform", "order-0", "order-1 (best on valid)", "model"]
    assert lines[4].startswith("> model")
    assert "1.8000" in lines[4]
    assert "-0.0500  [" in lines[3]


def test_heading_labels_train_data():
    assert "TRAIN DATA" not in heading(summed(12))
    assert "TRAIN DATA" in heading({**summed(12), "split": "train"})


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "cannot be read"),
        ("{", "not JSON"),
        ("[]", "no 'bits'"),
        ('{"bits": 1}', "no 'perplexity'"),
    ],
)
def test_reading_something_else(tmp_path, content, words):
    path = tmp_path / "score.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(InputError, match=words):
        read_score(path)
