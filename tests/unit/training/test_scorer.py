import json
from pathlib import Path
from typing import Any

import pytest

from genomoe.data.errors import InputError
from genomoe.data.json_codec import encode
from genomoe.data.tokenizer import tokenizer_for
from genomoe.training.presets import PRESETS
from genomoe.training.scorer import find_checkpoint, read_checkpoint


def make(run: Path, iteration: int, **changes: Any) -> Path:
    """A checkpoint without tensors."""
    folder = run / "checkpoints" / f"iter_{iteration:07d}"
    folder.mkdir(parents=True)
    facts = {
        "schema_version": 1,
        "state": {"iteration": iteration},
        "config": encode(PRESETS["debug"]),
        "manifest_digest": "d" * 64,
        "alphabet": "dna",
        "tokenizer_fingerprint": tokenizer_for("dna").fingerprint,
        **changes,
    }
    (folder / "checkpoint.json").write_text(json.dumps(facts))
    return folder


def test_the_best_of_a_run_else_its_newest(tmp_path: Path) -> None:
    first, second = make(tmp_path, 9), make(tmp_path, 10)
    assert find_checkpoint(tmp_path) == second
    (tmp_path / "best.json").write_text(json.dumps({"iteration": 9}))
    assert find_checkpoint(tmp_path) == first
    assert find_checkpoint(first) == first
    (first / "checkpoint.json").unlink()
    assert find_checkpoint(tmp_path) == second


def test_nothing_to_score(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such run or checkpoint folder"):
        find_checkpoint(tmp_path / "none")
    (tmp_path / "checkpoints" / "iter_0000003").mkdir(parents=True)
    with pytest.raises(InputError, match="no complete checkpoint in it; train first"):
        find_checkpoint(tmp_path)


def test_what_a_checkpoint_says_of_itself(tmp_path: Path) -> None:
    facts = read_checkpoint(make(tmp_path, 9))
    assert facts.iteration == 9
    assert facts.config == PRESETS["debug"]
    assert facts.tokenizer.name == "dna"
    assert facts.manifest_digest == "d" * 64


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"tokenizer_fingerprint": "0" * 64}, "trained with the tokenizer 000000000000"),
        ({"config": {}}, "is missing; of another version"),
        ({"state": {}}, "of another version"),
        ({"state": None}, "of another version"),
        ({"alphabet": "klingon"}, "klingon"),
        ({"schema_version": 2}, "schema_version is 2"),
    ],
)
def test_one_of_another_version(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        read_checkpoint(make(tmp_path, 9, **changes))


def test_a_damaged_best_file_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "best.json").write_text("{oops")
    with pytest.raises(InputError, match=r"best\.json: damaged; delete it"):
        find_checkpoint(tmp_path)
