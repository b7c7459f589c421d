import hashlib
import json
import pickle
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import webdataset

from genomoe.data import blocks
from genomoe.data import dataset as dataset_module
from genomoe.data.dataset import DataSet
from genomoe.data.errors import InputError
from genomoe.data.pieces import Piece

Build = Callable[..., DataSet]
_SPLITS = ("train", "valid", "test")


@pytest.fixture
def cut(build: Build, genome: Path, monkeypatch: pytest.MonkeyPatch) -> DataSet:
    """The same genome in blocks so small that pieces are cut, over many shards."""
    monkeypatch.setattr(blocks.plan_blocks, "__defaults__", (700,))
    options = ("--block-length", "1000", "--guard", "100", "--min-length", "200")
    return build(genome, *options, "--shard-bytes", "20000", out="cut")


def sequences(path: Path) -> dict[str, str]:
    parts = path.read_text().split(">")[1:]
    return {part.split(None, 1)[0]: "".join(part.split("\n")[1:]) for part in parts}


def spelled(dataset: DataSet, piece: Piece) -> str:
    letters = dataset.tokenizer.decode(piece.tokens)
    return "".join(
        x.lower() if low else x for x, low in zip(letters, piece.lower_case.tolist(), strict=True)
    )


def test_pieces_spell_the_input(dna: DataSet, genome: Path) -> None:
    source = sequences(genome)
    targets = {name: np.zeros(len(sequence), dtype=int) for name, sequence in source.items()}
    for split in _SPLITS:
        pieces = dna.pieces(split)
        for piece in pieces:
            end = piece.start + len(piece.tokens)
            assert spelled(dna, piece) == source[piece.record_id][piece.start : end]
            begin = piece.start + piece.scored_begin
            targets[piece.record_id][begin : piece.start + piece.scored_end] += 1
            assert piece.file == "genome.fa"
            assert dna.records()[piece.record]["id"] == piece.record_id
        scored = sum(
            int(dna.tokenizer.is_scored[p.tokens[p.scored_begin : p.scored_end]].sum())
            for p in pieces
        )
        info = dna.manifest.splits[split]
        assert scored == info.scored_tokens
        assert sum(len(piece.tokens) for piece in pieces) == info.tokens
        assert sum(int(piece.lower_case.sum()) for piece in pieces) == info.soft_masked_tokens
    assert max(counts.max() for counts in targets.values()) == 1
    assert dna.manifest.splits["train"].soft_masked_tokens > 0


def test_pieces_cut_into_blocks_are_joined_again(dna: DataSet, cut: DataSet) -> None:
    assert len(cut.blocks("train")) > 5 * len(dna.blocks("train"))
    assert len(cut.manifest.splits["train"].shards) > 2
    for split in _SPLITS:
        whole, joined = dna.pieces(split), cut.pieces(split)
        assert len(whole) == len(joined)
        for one, other in zip(whole, joined, strict=True):
            assert spelled(dna, one) == spelled(cut, other)
            assert (one.record_id, one.start) == (other.record_id, other.start)
            assert (one.scored_begin, one.scored_end) == (other.scored_begin, other.scored_end)


@pytest.mark.parametrize("which", ["dna", "cut"])
def test_the_stock_reader_sees_the_same_samples(which: str, request: pytest.FixtureRequest) -> None:
    dataset: DataSet = request.getfixturevalue(which)
    for split in _SPLITS:
        info = dataset.manifest.splits[split]
        shards = [str(dataset.folder / shard.name) for shard in info.shards]
        digest = hashlib.sha256()
        documents = []
        stock = webdataset.WebDataset(sorted(shards), shardshuffle=False).decode()
        for number, sample in enumerate(stock):
            assert sample["__key__"].endswith(f"{split}-{number:08d}")
            assert sample["tokens.npy"].dtype == np.uint8
            assert np.array_equal(sample["tokens.npy"], dataset.block_tokens(split, number))
            assert np.array_equal(sample["case.npy"], dataset.block_lower_case(split, number))
            digest.update(sample["tokens.npy"].tobytes())
            documents.append(sample["docs.npy"])
            assert sample["json"]["split"] == split
            for row, meta in zip(sample["docs.npy"].tolist(), sample["json"]["docs"], strict=True):
                record = dataset.records()[row[blocks.RECORD]]
                assert (meta["id"], meta["header"]) == (record["id"], record["header"])
                assert meta["start"] == row[blocks.START]
                assert meta["end"] - meta["start"] == row[blocks.LENGTH]
                assert (meta["strand"], meta["topology"]) == ("+", "unknown")
        assert digest.hexdigest() == info.token_sha256
        assert number + 1 == sum(shard.samples for shard in info.shards)
        assert np.array_equal(np.concatenate(documents), dataset.documents(split))


def test_shards_are_plain_archives(cut: DataSet) -> None:
    keys = []
    for split in _SPLITS:
        for shard in cut.manifest.splits[split].shards:
            # The limit asked for, and the padding at the end of an archive.
            assert shard.samples == 1 or shard.bytes <= 20_000 + 10_240
            with tarfile.open(cut.folder / shard.name) as archive:
                members = archive.getmembers()
            for member in members:
                assert (member.mtime, member.uid, member.gid, member.mode) == (0, 0, 0, 0o644)
                assert (member.uname, member.gname) == ("", "")
            names = [member.name for member in members]
            for index in range(0, len(names), 4):
                key = names[index].split(".")[0]
                suffixes = ("tokens.npy", "docs.npy", "case.npy", "json")
                assert names[index : index + 4] == [f"{key}.{suffix}" for suffix in suffixes]
                keys.append(key)
    assert len(keys) == len(set(keys))


def test_the_index_is_plain_numbers(dna: DataSet) -> None:
    for split in _SPLITS:
        for kind in ("blocks", "documents"):
            table = np.load(dna.folder / "index" / f"{split}.{kind}.npy", allow_pickle=False)
            assert table.dtype == np.int64
    rows = (dna.folder / "splits.tsv").read_text().splitlines()
    assert rows[0] == "record\tstart\tend\tsplit"
    assert {row.split("\t")[3] for row in rows[1:]} == {"train", "valid", "test", "guard"}
    records = json.loads((dna.folder / "index" / "records.json").read_bytes())
    assert [record["length"] for record in records] == [50_042, 30_005]


def test_it_travels_to_other_processes(dna: DataSet) -> None:
    dna.pieces("valid")
    raw = pickle.dumps(dna)
    assert len(raw) < 20_000
    copy: DataSet = pickle.loads(raw)
    assert spelled(copy, copy.pieces("valid")[0]) == spelled(dna, dna.pieces("valid")[0])


def test_only_so_many_shards_stay_open(cut: DataSet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dataset_module, "_MAX_OPEN_SHARDS", 2)
    before = [cut.block_tokens("train", block).tobytes() for block in range(25)]
    for block in (24, 0, 20, 1, 24):
        assert cut.block_tokens("train", block).tobytes() == before[block]
    assert len(cut._shards) == 2


def test_letters_cannot_be_changed(dna: DataSet) -> None:
    with pytest.raises(ValueError, match="read-only"):
        dna.pieces("test")[0].tokens[0] = 1


def test_unknown_split_is_named(dna: DataSet) -> None:
    with pytest.raises(InputError, match="no split 'dev'; choose one of test, train, valid"):
        dna.pieces("dev")
