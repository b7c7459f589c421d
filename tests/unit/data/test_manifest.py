import json
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from genomoe.data.dataset import DataSet
from genomoe.data.errors import InputError
from genomoe.data.manifest import TOOL_VERSION, load_manifest, verify_shards

Build = Callable[..., DataSet]


@pytest.fixture
def dataset(build: Build, genome: Path, small_blocks: tuple[str, ...]) -> DataSet:
    return build(genome, *small_blocks)


def test_it_survives_a_round_trip(dataset: DataSet) -> None:
    raw = (dataset.folder / "manifest.json").read_bytes()
    manifest = load_manifest(dataset.folder)
    assert manifest == dataset.manifest
    assert manifest.to_bytes() == raw
    value = json.loads(raw)
    assert list(value) == sorted(value)
    assert str(dataset.folder.parent).encode() not in raw


def test_the_version_is_that_of_the_package() -> None:
    project = Path(__file__).parents[3] / "pyproject.toml"
    assert tomllib.loads(project.read_text())["project"]["version"] == TOOL_VERSION


def test_a_folder_without_a_manifest_says_how_to_make_one(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "none"):
        with pytest.raises(InputError, match=r"genomoe\.data\.preprocess FASTA --out"):
            load_manifest(folder)


def _change(dataset: DataSet, change: Callable[[dict[str, Any]], None]) -> None:
    path = dataset.folder / "manifest.json"
    value = json.loads(path.read_bytes())
    change(value)
    path.write_text(json.dumps(value, sort_keys=True, indent=1) + "\n")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda m: m.update(schema_version=2), "schema_version is 2, this program reads 1"),
        (lambda m: m.pop("schema_version"), "schema_version is None"),
        (lambda m: m.pop("splits"), "manifest.splits is missing"),
        (lambda m: m.update(extra=1), "manifest.extra is unknown"),
        (lambda m: m["options"].update(seed="1"), "manifest.options.seed is '1', expected int"),
        (lambda m: m["options"].update(seed=True), "manifest.options.seed is True"),
        (lambda m: m["inputs"][0].pop("sha256"), "manifest.inputs[0].sha256 is missing"),
        (lambda m: m.update(inputs={}), "manifest.inputs is {}"),
        (lambda m: m["splits"].update(test=[]), "manifest.splits.test is []"),
        (lambda m: m.update(tokenizer_fingerprint="0"), "tokenizer_fingerprint"),
        (lambda m: m.update(alphabet="xna"), "'xna'"),
    ],
)
def test_what_is_wrong_is_named(
    dataset: DataSet, change: Callable[[dict[str, Any]], None], words: str
) -> None:
    _change(dataset, change)
    with pytest.raises(InputError) as caught:
        DataSet.open(dataset.folder)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "1", '{"a": NaN}', '{"a": 1, "a": 1}', "\xff", "[" * 10**5]
)
def test_what_is_not_json_is_refused(dataset: DataSet, text: str) -> None:
    (dataset.folder / "manifest.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(InputError, match=r"manifest\.json"):
        DataSet.open(dataset.folder)


def test_edits_are_noticed(dataset: DataSet) -> None:
    path = dataset.folder / "manifest.json"
    path.write_bytes(path.read_bytes() + b" ")
    with pytest.raises(InputError, match="edited"):
        DataSet.open(dataset.folder)


@pytest.mark.parametrize(
    "name", ["train/shard-000000.tar", "index/test.blocks.npy", "index/records.json", "splits.tsv"]
)
def test_every_file_is_checked(dataset: DataSet, name: str) -> None:
    path = dataset.folder / name
    raw = path.read_bytes()
    verify_shards(dataset.folder, dataset.manifest, full=True)
    for damaged in (raw[: len(raw) * 7 // 10], raw + b"x", b""):
        path.write_bytes(damaged)
        with pytest.raises(InputError, match=f"{name}: damaged"):
            DataSet.open(dataset.folder)
    flipped = bytearray(raw)
    flipped[len(raw) // 2] ^= 1
    path.write_bytes(flipped)
    DataSet.open(dataset.folder)
    with pytest.raises(InputError, match=f"{name}: damaged .wrong sha256"):
        verify_shards(dataset.folder, dataset.manifest, full=True)
    path.unlink()
    with pytest.raises(InputError, match=f"{name}: cannot be read"):
        DataSet.open(dataset.folder)
    DataSet.open(dataset.folder, verify=False)
