"""Write shards: plain USTAR archives with the same bytes on every machine.

One block is four adjacent members, ``KEY.tokens.npy``, ``KEY.docs.npy``, ``KEY.case.npy`` and
``KEY.json``. Owner, mode and time are fixed, and array headers are written here, since numpy's own
differ between versions. Array data lies at multiples of 64 bytes, so that it can be mapped.
"""

import hashlib
import json
import os
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from genomoe.data import blocks
from genomoe.data.blocks import BlockPlan
from genomoe.data.headers import TOPOLOGIES
from genomoe.data.intervals import empty_intervals
from genomoe.data.spool import Spool
from genomoe.data.tokenizer import Tokenizer

_TAR_UNIT = 512
_TAR_RECORD = 20 * _TAR_UNIT
_NPY_MAGIC = b"\x93NUMPY\x01\x00"
_NPY_ALIGN = 64


@dataclass(frozen=True, kw_only=True)
class WrittenShard:
    """One finished shard."""

    name: str
    sha256: str
    num_bytes: int
    num_samples: int
    num_tokens: int
    num_scored: int
    """Tokens that are targets: scored letters outside the guards."""
    num_soft_masked: int
    block_rows: np.ndarray
    """int64 [samples, 4]: byte offset of the tokens, tokens, byte offset of the intervals, and
    intervals of each block."""


@dataclass(frozen=True, kw_only=True)
class ShardJob:
    """What one shard shall hold."""

    split: str
    number: int
    first_block: int
    plan: BlockPlan
    """The blocks of this shard alone."""

    @property
    def name(self) -> str:
        """Path of the shard inside the data set."""
        return f"{self.split}/shard-{self.number:06d}.tar"


def write_shard(job: ShardJob, spool: Spool, folder: Path, tokenizer: Tokenizer) -> WrittenShard:
    """Write one shard below ``folder``, and make sure that it is on disk."""
    rows = []
    num_scored = 0
    num_soft_masked = 0
    path = folder / job.name
    with path.open("wb") as file:
        archive = _TarWriter(file)
        for index in range(job.plan.num_blocks):
            key = f"{job.split}-{job.first_block + index:08d}"
            documents = job.plan.block_documents(index)
            tokens = spool.tokens(
                documents[:, blocks.RECORD], documents[:, blocks.START], documents[:, blocks.LENGTH]
            )
            case = _block_case(documents, spool)
            tokens_at = archive.add_array(f"{key}.tokens.npy", tokens)
            archive.add_array(f"{key}.docs.npy", documents)
            case_at = archive.add_array(f"{key}.case.npy", case)
            metadata = _block_metadata(job.split, documents, spool, tokenizer)
            archive.add(f"{key}.json", canonical_json(metadata))
            rows.append((tokens_at, tokens.size, case_at, len(case)))
            num_scored += _count_scored(documents, tokens, tokenizer)
            num_soft_masked += int((case[:, 1] - case[:, 0]).sum())
        archive.finish()
        file.flush()
        os.fsync(file.fileno())
    return WrittenShard(
        name=job.name,
        sha256=archive.digest.hexdigest(),
        num_bytes=archive.position,
        num_samples=len(rows),
        num_tokens=sum(row[1] for row in rows),
        num_scored=num_scored,
        num_soft_masked=num_soft_masked,
        block_rows=np.array(rows, np.int64),
    )


def canonical_json(value: Any) -> bytes:
    """Return the one JSON text of a value: sorted keys, ASCII, no blanks."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return text.encode("ascii")


def npy_bytes(array: np.ndarray) -> tuple[bytes, bytes]:
    """Return (header, data) of an array in numpy's file format 1.0, little-endian, C order."""
    array = np.ascontiguousarray(array)
    kind = array.dtype.newbyteorder("<").str
    description = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {array.shape}, }}"
    text = description.encode("ascii")
    padding = -(len(_NPY_MAGIC) + 2 + len(text) + 1) % _NPY_ALIGN
    text += b" " * padding + b"\n"
    data = array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()
    return _NPY_MAGIC + len(text).to_bytes(2, "little") + text, data


class _TarWriter:
    """Writes members one after the other and hashes all of it."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.position = 0
        self.digest = hashlib.sha256()

    def add(self, name: str, data: bytes, header: bytes = b"") -> int:
        """Add a member of ``header`` and ``data``, and return the byte offset of the data."""
        info = tarfile.TarInfo(name)
        info.size = len(header) + len(data)
        info.mode = 0o644
        self._write(info.tobuf(format=tarfile.USTAR_FORMAT) + header)
        data_at = self.position
        self._write(data)
        self._write(bytes(-self.position % _TAR_UNIT))
        return data_at

    def add_array(self, name: str, array: np.ndarray) -> int:
        """Add an array as ``.npy``, and return the byte offset of its data."""
        header, data = npy_bytes(array)
        return self.add(name, data, header)

    def finish(self) -> None:
        """Close the archive as tar does: two empty units, padded to a record."""
        self._write(bytes(2 * _TAR_UNIT))
        self._write(bytes(-self.position % _TAR_RECORD))

    def _write(self, data: bytes) -> None:
        self._file.write(data)
        self.digest.update(data)
        self.position += len(data)


def _block_case(documents: np.ndarray, spool: Spool) -> np.ndarray:
    has_mask = spool.records["case_begin"] < spool.records["case_end"]
    parts = [empty_intervals()]
    for offset, length, record, start, _, _ in documents.tolist():
        if has_mask[record]:
            parts.append(spool.lower_case(record, start, length) + offset)
    return np.concatenate(parts)


def _count_scored(documents: np.ndarray, tokens: np.ndarray, tokenizer: Tokenizer) -> int:
    running = np.append(0, np.cumsum(tokenizer.is_scored[tokens]))
    offsets = documents[:, blocks.OFFSET]
    ends = running[offsets + documents[:, blocks.SCORED_END]]
    return int((ends - running[offsets + documents[:, blocks.SCORED_BEGIN]]).sum())


def _block_metadata(
    split: str, documents: np.ndarray, spool: Spool, tokenizer: Tokenizer
) -> dict[str, Any]:
    records = documents[:, blocks.RECORD]
    files = spool.records["file"][records].tolist()
    topologies = spool.records["topology"][records].tolist()
    described = [
        {
            "id": record_id,
            "header": header,
            "file": spool.names[file],
            "group": spool.names[file],
            "start": row[blocks.START],
            "end": row[blocks.START] + row[blocks.LENGTH],
            "strand": "+",
            "topology": TOPOLOGIES[topology],
        }
        for (record_id, header), file, topology, row in zip(
            spool.headers(records), files, topologies, documents.tolist(), strict=True
        )
    ]
    return {"split": split, "alphabet": tokenizer.name, "docs": described}
