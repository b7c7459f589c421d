"""Opens a data set folder and reads letters from it without unpacking the shards.

Opening costs a manifest and a few file sizes. Index and shards are memory-mapped when first used,
and a ``DataSet`` that travels to another process opens them there anew.
"""

import json
from collections import OrderedDict
from pathlib import Path
from typing import Any, Self

import numpy as np

from genomoe.data import index
from genomoe.data.blocks import LENGTH, OFFSET, RECORD, SCORED_BEGIN, SCORED_END, START
from genomoe.data.errors import InputError
from genomoe.data.intervals import clip
from genomoe.data.manifest import Manifest, load_manifest, verify_shards
from genomoe.data.pieces import Piece, PieceBuilder
from genomoe.data.tokenizer import Tokenizer, tokenizer_for

_MAX_OPEN_SHARDS = 64


class DataSet:
    """One data set folder, open for reading."""

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        """Use a checked manifest; see ``open``."""
        self.folder = folder
        self.manifest = manifest
        self.tokenizer: Tokenizer = tokenizer_for(manifest.alphabet)
        self._tables: dict[str, np.ndarray] = {}
        self._shards: OrderedDict[tuple[str, int], np.ndarray] = OrderedDict()
        self._records: list[dict[str, Any]] | None = None

    @classmethod
    def open(cls, folder: Path, *, verify: bool = True) -> Self:
        """Open a data set.

        Args:
            folder: where the manifest is.
            verify: check that every file has the size that the manifest says.

        Raises:
            InputError: the folder is not a complete data set that this version can read.
        """
        manifest = load_manifest(folder)
        if verify:
            verify_shards(folder, manifest, full=False)
        return cls(folder, manifest)

    def __getstate__(self) -> dict[str, Any]:
        """Leave memory maps behind when pickled."""
        return {"folder": self.folder, "manifest": self.manifest}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Open anew after unpickling."""
        self.__init__(state["folder"], state["manifest"])  # type: ignore[misc]

    def blocks(self, split: str) -> np.ndarray:
        """Return the block index of a split; columns in ``genomoe.data.index``."""
        return self._table(split, index.blocks_name(split))

    def documents(self, split: str) -> np.ndarray:
        """Return the document index of a split; columns in ``genomoe.data.index``."""
        return self._table(split, index.documents_name(split))

    def block_tokens(self, split: str, block: int) -> np.ndarray:
        """Return the letters of a block, a read-only map of uint8."""
        row = self.blocks(split)[block]
        begin = int(row[index.TOKENS_AT])
        data = self._shard(split, int(row[index.SHARD]))
        return data[begin : begin + int(row[index.NUM_TOKENS])]

    def block_lower_case(self, split: str, block: int) -> np.ndarray:
        """Return the soft-masked intervals of a block, a read-only map of int64 [m, 2]."""
        row = self.blocks(split)[block]
        begin = int(row[index.CASE_AT])
        data = self._shard(split, int(row[index.SHARD]))
        end = begin + 16 * int(row[index.NUM_INTERVALS])
        return data[begin:end].view("<i8").reshape(-1, 2)

    def records(self) -> list[dict[str, Any]]:
        """Return id, header, file and length of every input record, in input order."""
        if self._records is None:
            path = self.folder / index.RECORDS_NAME
            self._records = json.loads(path.read_bytes())
        return self._records

    def pieces(self, split: str) -> list[Piece]:
        """Return the contiguous pieces of a split in input order, whole.

        Segments of a piece that was cut to fit into blocks are joined again; other pieces are
        read-only maps of the shard.
        """
        records = self.records()
        builders: list[PieceBuilder] = []
        for block, row in enumerate(self.blocks(split)):
            tokens = self.block_tokens(split, block)
            lower_case = self.block_lower_case(split, block)
            first = int(row[index.FIRST_DOCUMENT])
            documents = self.documents(split)[first : first + int(row[index.NUM_DOCUMENTS])]
            for document in documents.tolist():
                begin, end = document[OFFSET], document[OFFSET] + document[LENGTH]
                number, start = document[RECORD], document[START]
                if not (builders and builders[-1].is_continued_by(number, start)):
                    record = records[number]
                    builders.append(
                        PieceBuilder(
                            record_id=record["id"], record=number, file=record["file"], start=start
                        )
                    )
                builders[-1].append(
                    tokens[begin:end],
                    clip(lower_case, begin, end),
                    document[SCORED_BEGIN],
                    document[SCORED_END],
                )
        return [builder.build() for builder in builders]

    def _table(self, split: str, name: str) -> np.ndarray:
        if split not in self.manifest.splits:
            known = ", ".join(sorted(self.manifest.splits))
            raise InputError(f"{self.folder}: no split {split!r}; choose one of {known}")
        if name not in self._tables:
            self._tables[name] = np.load(self.folder / name, mmap_mode="r", allow_pickle=False)
        return self._tables[name]

    def _shard(self, split: str, number: int) -> np.ndarray:
        """Map a shard, keeping the most recently used ones open."""
        key = (split, number)
        if key in self._shards:
            self._shards.move_to_end(key)
            return self._shards[key]
        path = self.folder / self.manifest.splits[split].shards[number].name
        try:
            data = np.memmap(path, dtype=np.uint8, mode="r")
        except OSError as error:
            raise InputError(f"{path}: cannot be read ({error.strerror}); restore it") from None
        self._shards[key] = data
        if len(self._shards) > _MAX_OPEN_SHARDS:
            self._shards.popitem(last=False)
        return data
