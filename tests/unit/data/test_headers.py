import json
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from genomoe.data.dataset import DataSet
from genomoe.data.headers import CIRCULAR, LINEAR, UNKNOWN, parse_header
from genomoe.data.synthetic import markov_genome, write_fasta


@pytest.mark.parametrize(
    ("header", "topology"),
    [
        (b"a topology=circular", CIRCULAR),
        (b"a [organism=X] [topology=circular] [completeness=complete]", CIRCULAR),
        (b"a [Topology = Linear]", LINEAR),
        (b"1 length=5000000 depth=1.00x circular=true", CIRCULAR),
        (b"a|topology=linear|x", LINEAR),
        (b"a circular", UNKNOWN),
        (b"a circular RNA, complete genome", UNKNOWN),
        (b"a topology=circularised", UNKNOWN),
        (b"a mytopology=circular", UNKNOWN),
        (b"a circular=false", UNKNOWN),
        (b"a x=1", UNKNOWN),
    ],
)
def test_only_an_explicit_word_tells_the_topology(header: bytes, topology: int) -> None:
    assert parse_header(header, 1, "x.fa").topology == topology


def test_shards_tell_the_topology_of_each_record(
    build: Callable[..., DataSet], tmp_path: Path, small_blocks: tuple[str, ...]
) -> None:
    letters = markov_genome(40_000, 2, 5)
    headers = {"c": "c [topology=circular]", "l": "l topology=linear", "u": "u a circle"}
    records = [(headers[name], letters[10_000 * i :][:10_000]) for i, name in enumerate("clu")]
    dataset = build(write_fasta(tmp_path / "x.fa", records), *small_blocks)
    found = {}
    for shard in dataset.manifest.splits["train"].shards:
        with tarfile.open(dataset.folder / shard.name) as archive:
            for member in archive.getmembers():
                if member.name.endswith(".json"):
                    metadata = json.load(archive.extractfile(member))  # type: ignore[arg-type]
                    found |= {doc["id"]: doc["topology"] for doc in metadata["docs"]}
    assert found == {"c": "circular", "l": "linear", "u": "unknown"}
