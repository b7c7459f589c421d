"""The index of a data set: where every block and document lies, as plain arrays that can be mapped.

``index/SPLIT.blocks.npy``, int64 [blocks, 7], columns: shard number; byte offset of the first token
in the shard; tokens; byte offset of the first soft-masked interval in the shard; intervals (two
int64 each); first document; documents.

``index/SPLIT.documents.npy``, int64 [documents, 6], columns as in ``KEY.docs.npy``: offset in the
block; letters; record; coordinate of the first letter in the record; begin and end of the scored
range, relative to the document.

``index/records.json``: a list with id, header, file and length of every record, in input order;
the column "record" counts in it.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from genomoe.data.blocks import BlockPlan
from genomoe.data.shards import WrittenShard, canonical_json, npy_bytes
from genomoe.data.spool import Spool

(
    SHARD,
    TOKENS_AT,
    NUM_TOKENS,
    CASE_AT,
    NUM_INTERVALS,
    FIRST_DOCUMENT,
    NUM_DOCUMENTS,
) = range(7)
"""Columns of ``SPLIT.blocks.npy``."""


def blocks_name(split: str) -> str:
    """Path of the block index inside the data set."""
    return f"index/{split}.blocks.npy"


def documents_name(split: str) -> str:
    """Path of the document index inside the data set."""
    return f"index/{split}.documents.npy"


RECORDS_NAME = "index/records.json"
SPLITS_NAME = "splits.tsv"


def block_table(plan: BlockPlan, shards: list[WrittenShard]) -> np.ndarray:
    """Return the rows of ``SPLIT.blocks.npy``."""
    table = np.zeros((plan.num_blocks, 7), dtype=np.int64)
    table[:, SHARD] = np.repeat(np.arange(len(shards)), [shard.num_samples for shard in shards])
    table[:, TOKENS_AT : NUM_INTERVALS + 1] = np.concatenate([s.block_rows for s in shards])
    table[:, FIRST_DOCUMENT] = plan.first_document[:-1]
    table[:, NUM_DOCUMENTS] = np.diff(plan.first_document)
    return table


def write_split_index(folder: Path, split: str, plan: BlockPlan, table: np.ndarray) -> None:
    """Write the two index arrays of a split."""
    for name, array in ((blocks_name(split), table), (documents_name(split), plan.documents)):
        (folder / name).write_bytes(b"".join(npy_bytes(array)))


def write_records(folder: Path, spool: Spool) -> None:
    """Write ``index/records.json``, one record a line."""
    records = np.arange(len(spool.records))
    columns = zip(
        spool.headers(records),
        spool.records["file"].tolist(),
        spool.records["length"].tolist(),
        strict=True,
    )
    with (folder / RECORDS_NAME).open("wb") as file:
        for record, ((record_id, header), number, length) in enumerate(columns):
            row = {
                "id": record_id,
                "header": header,
                "file": spool.names[number],
                "length": length,
            }
            file.write((b"[\n" if record == 0 else b",\n") + canonical_json(row))
        file.write(b"\n]\n")


def write_splits(folder: Path, spool: Spool, table: np.ndarray, names: Sequence[str]) -> None:
    """Write ``splits.tsv``: record id, start, end (0-based, half-open) and split.

    Args:
        folder: the data set.
        spool: where the record ids are.
        table: int64 [n, 4] of record, start, end and the number of a name.
        names: the names.
    """
    rows = zip(spool.headers(table[:, 0]), table[:, 1:].tolist(), strict=True)
    with (folder / SPLITS_NAME).open("w", encoding="utf-8", newline="\n") as file:
        file.write("record\tstart\tend\tsplit\n")
        for (record_id, _), (start, end, name) in rows:
            file.write(f"{record_id}\t{start}\t{end}\t{names[name]}\n")
