"""Checkpoints of made-up pieces on one rank: whole, strict, or absent."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from genomoe.data.errors import InputError
from genomoe.training import checkpoint, checkpoint_files
from genomoe.training.state import Piece

FACTS = {"state": {"iteration": 100}, "note": "x"}
STATE_FILE = "state-00000-of-00001.safetensors"


def pieces(value: float | None = None) -> list[Piece]:
    """A matrix, a vector, an FP64 one and a BF16 one; random, or all of one value."""
    random = torch.Generator().manual_seed(1)
    shapes = {
        "weights/a.weight": ((6, 4), torch.float32),
        "weights/b.weight": ((5,), torch.bfloat16),
        "exp_avg/a.weight": ((6, 4), torch.float32),
        "balance/load": ((2, 3), torch.float64),
    }
    made = []
    for name, (shape, dtype) in shapes.items():
        drawn = torch.randn(shape, generator=random, dtype=torch.float64).to(dtype)
        data = drawn if value is None else torch.full(shape, value, dtype=dtype)
        made.append(Piece(name=name, data=data, shape=shape, row_start=0, owned=True))
    return made


def loaded(folder: Path, **options: Any) -> dict[str, torch.Tensor]:
    target = pieces(value=-7.0)
    checkpoint.load(folder, target, **options)
    return {piece.name: piece.data for piece in target}


@pytest.fixture
def saved(topology: Any, tmp_path: Path) -> Path:
    return checkpoint.save(tmp_path / "run", 100, pieces(), FACTS)


def edit_index(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    path = folder / "index.json"
    index = json.loads(path.read_text())
    change(index)
    path.write_text(json.dumps(index))


def rewrite(folder: Path, change: Callable[[dict[str, torch.Tensor]], None]) -> None:
    """Change the tensors of a file and make size and checksum of the index agree with it."""
    tensors = load_file(folder / STATE_FILE)
    change(tensors)
    save_file(tensors, folder / STATE_FILE)
    described = checkpoint_files.describe_file(folder / STATE_FILE)

    def describe(index: dict[str, Any]) -> None:
        index["files"][STATE_FILE] = {"sha256": described.sha256, "bytes": described.bytes}

    edit_index(folder, describe)


def test_round_trip(saved: Path) -> None:
    assert saved.name == "iter_0000100"
    got = loaded(saved)
    for piece in pieces():
        assert torch.equal(got[piece.name], piece.data), piece.name
    assert checkpoint_files.read_facts(saved) == {"schema_version": 1, **FACTS}


def test_nothing_but_json_and_safetensors(saved: Path) -> None:
    names = sorted(path.name for path in saved.iterdir())
    assert names == ["checkpoint.json", "index.json", STATE_FILE]
    assert [path.name for path in saved.parent.iterdir()] == [saved.name]


def test_same_state_same_bytes(saved: Path, tmp_path: Path) -> None:
    again = checkpoint.save(tmp_path / "other", 100, pieces(), FACTS)
    for path in saved.iterdir():
        assert path.read_bytes() == (again / path.name).read_bytes()


def test_pieces_of_rows(topology: Any, tmp_path: Path) -> None:
    """Two owners of one tensor, and a reader of rows that straddle both."""
    whole = pieces()[0]
    halves = [
        Piece(name="t", data=whole.data[first:last], shape=(6, 4), row_start=first, owned=True)
        for first, last in ((4, 6), (0, 4))
    ]
    copy = Piece(name="t", data=whole.data[1:3], shape=(6, 4), row_start=1, owned=False)
    folder = checkpoint.save(tmp_path, 1, [*halves, copy], {})
    middle = Piece(name="t", data=torch.zeros(3, 4), shape=(6, 4), row_start=2, owned=True)
    checkpoint.load(folder, [middle])
    assert torch.equal(middle.data, whole.data[2:5])


def test_rows_that_nobody_owned_are_not_published(topology: Any, tmp_path: Path) -> None:
    part = Piece(name="t", data=torch.ones(3, 4), shape=(6, 4), row_start=0, owned=True)
    with pytest.raises(InputError, match="t has 6 rows, its chunks cover 3"):
        checkpoint.save(tmp_path, 1, [part], {})
    assert list((tmp_path / "checkpoints").iterdir()) == []


def test_only_the_weights(saved: Path) -> None:
    weights = [piece for piece in pieces(value=-7.0) if piece.name.startswith("weights/")]
    checkpoint.load(saved, weights, kinds=("weights",))
    assert torch.equal(weights[0].data, pieces()[0].data)


def refused(folder: Path, words: str, target: list[Piece] | None = None) -> None:
    with pytest.raises(InputError, match=words) as caught:
        checkpoint.load(folder, pieces(value=-7.0) if target is None else target)
    assert str(folder) in str(caught.value) or "index.json" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_file(saved: Path) -> None:
    (saved / STATE_FILE).unlink()
    refused(saved, "missing; use another checkpoint")


def test_a_truncated_file(saved: Path) -> None:
    content = (saved / STATE_FILE).read_bytes()
    (saved / STATE_FILE).write_bytes(content[:-1])
    refused(saved, "size or checksum differs")


def test_a_flipped_bit(saved: Path) -> None:
    content = bytearray((saved / STATE_FILE).read_bytes())
    content[-1] ^= 1
    (saved / STATE_FILE).write_bytes(content)
    refused(saved, "size or checksum differs")


def test_no_index(saved: Path) -> None:
    (saved / "index.json").unlink()
    refused(saved, r"index.json: missing; the checkpoint is not whole")


@pytest.mark.parametrize("text", ["{", "[]", "null", '{"tensors": 3}', '{"tensors": {}}', "\0"])
def test_an_index_that_is_none(saved: Path, text: str) -> None:
    (saved / "index.json").write_text(text)
    refused(saved, r"index\.json: damaged")


def test_another_dtype_in_the_index(saved: Path) -> None:
    def change(index: dict[str, Any]) -> None:
        index["tensors"]["weights/b.weight"]["dtype"] = "float32"

    edit_index(saved, change)
    refused(saved, "weights/b.weight is float32 there, bfloat16 in the model")


def test_another_dtype_in_the_file(saved: Path) -> None:
    key = "weights/b.weight@0"
    rewrite(saved, lambda tensors: tensors.update({key: tensors[key].float()}))
    refused(saved, r"weights/b\.weight")


def test_fewer_rows_in_the_file_than_the_index_says(saved: Path) -> None:
    key = "weights/a.weight@0"
    rewrite(saved, lambda tensors: tensors.update({key: tensors[key][:5].contiguous()}))
    refused(saved, r"weights/a\.weight")


def test_other_columns_in_the_file(saved: Path) -> None:
    # One column would be broadcast over all four without a complaint.
    key = "weights/a.weight@0"
    rewrite(saved, lambda tensors: tensors.update({key: tensors[key][:, :1].contiguous()}))
    refused(saved, r"weights/a\.weight")


def test_a_key_that_the_file_lacks(saved: Path) -> None:
    rewrite(saved, lambda tensors: tensors.pop("weights/a.weight@0"))
    refused(saved, r"weights/a\.weight")


def test_a_key_that_the_index_does_not_know(saved: Path) -> None:
    rewrite(saved, lambda tensors: tensors.update({"weights/c.weight@0": torch.ones(2)}))
    refused(saved, r"weights/c\.weight")


def test_a_tensor_that_the_model_lacks(saved: Path) -> None:
    refused(saved, "no place for balance/load", [p for p in pieces() if "balance" not in p.name])


def test_a_tensor_that_the_checkpoint_lacks(saved: Path) -> None:
    more = Piece(name="weights/c", data=torch.ones(2), shape=(2,), row_start=0, owned=True)
    refused(saved, "it has no weights/c, which the model needs", [*pieces(), more])


def test_another_shape(saved: Path) -> None:
    first, *rest = pieces()
    wider = Piece(name=first.name, data=torch.zeros(6, 5), shape=(6, 5), row_start=0, owned=True)
    refused(saved, r"weights/a.weight is \(6, 4\) there, \(6, 5\) in the model", [wider, *rest])


def test_rows_twice_in_the_index(saved: Path) -> None:
    def change(index: dict[str, Any]) -> None:
        chunks = index["tensors"]["weights/a.weight"]["chunks"]
        chunks.append(chunks[0])

    edit_index(saved, change)
    refused(saved, "rows from 6 are stored twice")


@pytest.mark.parametrize("name", ["../../other.safetensors", ""])
def test_a_file_outside_of_the_checkpoint(saved: Path, name: str) -> None:
    shutil.copy(saved / STATE_FILE, saved.parents[1] / "other.safetensors")

    def change(index: dict[str, Any]) -> None:
        index["tensors"]["weights/a.weight"]["chunks"][0]["file"] = name

    edit_index(saved, change)
    refused(saved, "not a plain name")


def test_a_file_without_a_checksum(saved: Path) -> None:
    shutil.copy(saved / STATE_FILE, saved / "other.safetensors")

    def change(index: dict[str, Any]) -> None:
        index["tensors"]["weights/a.weight"]["chunks"][0]["file"] = "other.safetensors"

    edit_index(saved, change)
    refused(saved, r"other\.safetensors")


def test_a_chunk_with_a_field_of_another_version(saved: Path) -> None:
    def change(index: dict[str, Any]) -> None:
        index["tensors"]["weights/a.weight"]["chunks"][0]["compression"] = "zstd"

    edit_index(saved, change)
    refused(saved, "compression is unknown")


@pytest.mark.parametrize("version", [0, 2, None, "1"])
def test_another_schema_version(saved: Path, version: Any) -> None:
    path = saved / "checkpoint.json"
    facts = {**json.loads(path.read_text()), "schema_version": version}
    path.write_text(json.dumps(facts))
    with pytest.raises(InputError, match=f"schema_version is {version}, this version reads 1"):
        checkpoint_files.read_facts(saved)


@pytest.mark.parametrize("text", ["{", "[1]", ""])
def test_facts_that_are_none(saved: Path, text: str) -> None:
    (saved / "checkpoint.json").write_text(text)
    with pytest.raises(InputError, match=r"checkpoint\.json"):
        checkpoint_files.read_facts(saved)


def test_an_incomplete_checkpoint_is_not_seen(saved: Path) -> None:
    run = saved.parents[1]
    newer = checkpoint.save(run, 200, pieces(), FACTS)
    (newer / "checkpoint.json").unlink()
    (run / "checkpoints" / ".iter_0000300.partial").mkdir()
    (run / "checkpoints" / "iter_x").mkdir()
    assert checkpoint.list_checkpoints(run) == [(100, saved)]
    with pytest.raises(InputError, match=r"not a checkpoint \(no checkpoint.json\)"):
        checkpoint_files.read_facts(newer)


def test_checkpoints_are_listed_by_number(topology: Any, tmp_path: Path) -> None:
    for iteration in (20, 3, 10_000_000, 9_999_999):
        checkpoint.save(tmp_path, iteration, pieces(), FACTS)
    found = [iteration for iteration, _ in checkpoint.list_checkpoints(tmp_path)]
    assert found == [3, 20, 9_999_999, 10_000_000]


def test_saving_again_replaces(saved: Path) -> None:
    again = checkpoint.save(saved.parents[1], 100, pieces(value=3.0), FACTS)
    assert again == saved
    assert loaded(saved)["weights/a.weight"].unique().tolist() == [3.0]


@pytest.mark.parametrize(
    ("module", "failing"),
    [(checkpoint, "save_file"), (checkpoint_files, "write_json"), (checkpoint, "sync")],
)
def test_a_full_disk_leaves_what_was_there(
    saved: Path, module: Any, failing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = {path.name: path.read_bytes() for path in saved.iterdir()}

    def full(*arguments: Any, **options: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, failing, full)
    for iteration in (100, 200):
        with pytest.raises(InputError, match="No space left on device") as caught:
            checkpoint.save(saved.parents[1], iteration, pieces(value=3.0), FACTS)
        assert "earlier checkpoints are untouched" in str(caught.value)
    assert {path.name: path.read_bytes() for path in saved.iterdir()} == before
    assert list(saved.parent.iterdir()) == [saved]


def test_a_folder_that_cannot_be_made(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def read_only(*arguments: Any, **options: Any) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(Path, "mkdir", read_only)
    with pytest.raises(InputError, match="Read-only file system"):
        checkpoint.save(saved.parents[1], 200, pieces(), FACTS)
    assert list(saved.parent.iterdir()) == [saved]


def test_prune_keeps_the_newest_and_the_best(topology: Any, tmp_path: Path) -> None:
    for iteration in range(1, 7):
        checkpoint.save(tmp_path, iteration, pieces(), FACTS)
    checkpoint.prune(tmp_path, 2, best=3)
    assert [iteration for iteration, _ in checkpoint.list_checkpoints(tmp_path)] == [3, 5, 6]
    checkpoint.prune(tmp_path, 2, best=None)
    assert [iteration for iteration, _ in checkpoint.list_checkpoints(tmp_path)] == [5, 6]
    assert len(list((tmp_path / "checkpoints").iterdir())) == 2


def test_prune_keeps_a_best_that_is_among_the_newest(topology: Any, tmp_path: Path) -> None:
    for iteration in range(1, 5):
        checkpoint.save(tmp_path, iteration, pieces(), FACTS)
    checkpoint.prune(tmp_path, 1, best=4)
    assert [iteration for iteration, _ in checkpoint.list_checkpoints(tmp_path)] == [4]
