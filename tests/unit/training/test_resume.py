"""Which runs may go on with what: the comparison alone. Going on is in tests/distributed."""

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from genomoe.data.errors import InputError
from genomoe.data.json_codec import encode
from genomoe.training.presets import PRESETS


@pytest.fixture
def trainer(topology: Any) -> Any:
    """As much of a trainer as the comparison looks at."""
    dataset = SimpleNamespace(
        folder=Path("datasets/mine"), manifest=SimpleNamespace(digest="b" * 64)
    )
    config = dataclasses.replace(PRESETS["debug"], run=Path("runs/mine"))
    return SimpleNamespace(config=config, dataset=dataset)


def facts(**changes: Any) -> dict[str, Any]:
    from genomoe.training.resume import LAYOUT

    config = encode(PRESETS["debug"])
    return {"config": config, "manifest_digest": "b" * 64, "layout": LAYOUT, **changes}


def check(trainer: Any, found: dict[str, Any]) -> None:
    from genomoe.training.resume import check_same_run

    check_same_run(trainer, found)


def test_the_same_run(trainer: Any) -> None:
    check(trainer, facts())


def test_another_data_set(trainer: Any) -> None:
    with pytest.raises(InputError) as caught:
        check(trainer, facts(manifest_digest="a" * 64))
    message = str(caught.value)
    assert message.startswith("runs/mine: it was trained on another data set")
    assert "a" * 12 in message and "b" * 12 in message and "datasets/mine" in message


def test_another_recipe(trainer: Any) -> None:
    found = facts()
    found["config"]["optimizer"]["lr"] = 0.5
    with pytest.raises(InputError) as caught:
        check(trainer, found)
    assert str(caught.value).startswith(
        "runs/mine: optimizer.lr: the run has 0.5, the command 0.01; use the run's own value"
    )


def test_tensors_that_are_laid_out_otherwise(trainer: Any) -> None:
    with pytest.raises(InputError, match="runs/mine: tensors are laid out as"):
        check(trainer, facts(layout={"linear_fc1_rows": "interleaved"}))
