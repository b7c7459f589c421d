"""From the pieces of a split to documents in blocks, and from blocks to shards. Pure.

A block is one sample of a shard: up to 2^20 letters of consecutive documents. A longer piece is
cut into segments, which are documents of consecutive blocks; short documents share a block. No
document is cut to fill a block.
"""

from dataclasses import dataclass

import numpy as np

from genomoe.data import splits

MAX_BLOCK_LETTERS = 1 << 20
_BYTES_PER_BLOCK = 8 << 10
"""Tar headers, array headers and padding of one block, roughly."""
_BYTES_PER_DOCUMENT = 256
"""Row of the document table and metadata of one document, roughly."""

OFFSET, LENGTH, RECORD, START, SCORED_BEGIN, SCORED_END = range(6)
"""Columns of a document table: offset in the block, letters, record, coordinate of the first letter
in the record, and the scored range relative to the document."""


@dataclass(frozen=True, kw_only=True)
class BlockPlan:
    """The blocks of one split."""

    documents: np.ndarray
    """int64 [d, 6], the document table of all blocks, in order."""
    first_document: np.ndarray
    """int64 [b + 1]: where each block begins in ``documents``."""

    @property
    def num_blocks(self) -> int:
        """How many blocks there are."""
        return len(self.first_document) - 1

    @property
    def num_letters(self) -> int:
        """How many letters they hold."""
        return int(self.documents[:, LENGTH].sum())

    def block_documents(self, block: int) -> np.ndarray:
        """Return the document table of one block."""
        return self.documents[self.first_document[block] : self.first_document[block + 1]]

    def part(self, begin: int, end: int) -> "BlockPlan":
        """Return the blocks [begin, end) as a plan of their own."""
        first = self.first_document[begin : end + 1]
        return BlockPlan(
            documents=self.documents[first[0] : first[-1]], first_document=first - first[0]
        )

    def block_letters(self) -> np.ndarray:
        """Return the letters in each block, int64 [b]."""
        last = self.documents[self.first_document[1:] - 1]
        return last[:, OFFSET] + last[:, LENGTH]


def plan_blocks(pieces: np.ndarray, max_letters: int = MAX_BLOCK_LETTERS) -> BlockPlan:
    """Lay the pieces of a split (see ``splits``) out in blocks."""
    lengths = pieces[:, splits.END] - pieces[:, splits.START]
    counts = -(-lengths // max_letters)
    piece = np.repeat(np.arange(len(pieces)), counts)
    number = np.arange(len(piece)) - (np.cumsum(counts) - counts)[piece]
    start = pieces[piece, splits.START] + number * max_letters
    length = np.minimum(pieces[piece, splits.END] - start, max_letters)
    documents = np.zeros((len(piece), 6), dtype=np.int64)
    documents[:, LENGTH] = length
    documents[:, RECORD] = pieces[piece, splits.RECORD]
    documents[:, START] = start
    for column, source in ((SCORED_BEGIN, splits.SCORED_START), (SCORED_END, splits.SCORED_END)):
        documents[:, column] = np.clip(pieces[piece, source] - start, 0, length)
    first_document, documents[:, OFFSET] = _fill_blocks(length.tolist(), max_letters)
    return BlockPlan(documents=documents, first_document=first_document)


def plan_shards(plan: BlockPlan, shard_bytes: int) -> list[tuple[int, int]]:
    """Return the (first, last + 1) block of each shard, of about ``shard_bytes`` or less."""
    documents = np.diff(plan.first_document)
    sizes = plan.block_letters() + _BYTES_PER_BLOCK + documents * _BYTES_PER_DOCUMENT
    shards = []
    begin = 0
    filled = 0
    for block, size in enumerate(sizes.tolist()):
        if block > begin and filled + size > shard_bytes:
            shards.append((begin, block))
            begin, filled = block, 0
        filled += size
    if plan.num_blocks:
        shards.append((begin, plan.num_blocks))
    return shards


def estimate_bytes(plan: BlockPlan) -> int:
    """Return roughly how many bytes the shards and the index of a split take."""
    return (
        plan.num_letters
        + plan.num_blocks * _BYTES_PER_BLOCK
        + len(plan.documents) * _BYTES_PER_DOCUMENT
    )


def _fill_blocks(lengths: list[int], max_letters: int) -> tuple[np.ndarray, np.ndarray]:
    """Fill blocks in order; a document that does not fit opens the next block."""
    firsts = []
    offsets = []
    filled = max_letters
    for document, length in enumerate(lengths):
        if filled + length > max_letters:
            firsts.append(document)
            filled = 0
        offsets.append(filled)
        filled += length
    firsts.append(len(lengths))
    return np.array(firsts, np.int64), np.array(offsets, np.int64)
