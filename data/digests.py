"""Digests of sequences, the same for a sequence and its reverse complement."""

import hashlib
from collections.abc import Iterator

import numpy as np

from genomoe.data.spool import READ_LETTERS, Spool


def record_digests(spool: Spool, records: np.ndarray, complement: np.ndarray | None) -> np.ndarray:
    """Return the SHA-256 of each record's letters, uint8 [n, 32].

    Args:
        spool: where the letters are.
        records: int64 [n], numbers of the records.
        complement: where given, the lesser digest of the two strands is taken.
    """
    digests = np.zeros((len(records), 32), dtype=np.uint8)
    lengths = spool.records["length"][records].tolist()
    for row, (record, length) in enumerate(zip(records.tolist(), lengths, strict=True)):
        digest = _hash(_read(spool, record, begin, end) for begin, end in _ranges(length))
        if complement is not None:
            backward = (
                complement[_read(spool, record, length - end, length - begin)[::-1]]
                for begin, end in _ranges(length)
            )
            digest = min(digest, _hash(backward))
        digests[row] = np.frombuffer(digest, np.uint8)
    return digests


def _read(spool: Spool, record: int, begin: int, end: int) -> np.ndarray:
    return spool.tokens(np.array([record]), np.array([begin]), np.array([end - begin]))


def _ranges(length: int) -> Iterator[tuple[int, int]]:
    for begin in range(0, length, READ_LETTERS):
        yield begin, min(length, begin + READ_LETTERS)


def _hash(parts: Iterator[np.ndarray]) -> bytes:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return digest.digest()
