"""Digests of sequences, the same for a sequence and its reverse complement."""

import hashlib
from collections.abc import Iterator

import numpy as np

from genomoe.data.spool import READ_LETTERS, Spool


def record_digests(
    spool: Spool, records: np.ndarray, complement: np.ndarray | None
) -> dict[int, bytes]:
    """Return the SHA-256 of each record's letters.

    Args:
        spool: where the letters are.
        records: numbers of the records.
        complement: where given, the lesser digest of the two strands is taken.
    """
    return {record: _digest(spool, record, complement) for record in records.tolist()}


def _digest(spool: Spool, record: int, complement: np.ndarray | None) -> bytes:
    length = int(spool.records["length"][record])
    forward = _hash(spool.tokens(record, begin, end) for begin, end in _ranges(length))
    if complement is None:
        return forward
    backward = _hash(
        complement[spool.tokens(record, length - end, length - begin)[::-1]]
        for begin, end in _ranges(length)
    )
    return min(forward, backward)


def _ranges(length: int) -> Iterator[tuple[int, int]]:
    for begin in range(0, length, READ_LETTERS):
        yield begin, min(length, begin + READ_LETTERS)


def _hash(parts: Iterator[np.ndarray]) -> bytes:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(np.ascontiguousarray(part))
    return digest.digest()
