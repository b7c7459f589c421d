"""Tensors in pieces: which file has which rows, and the proof that nothing is missing.

Pure bookkeeping, without torch: a checkpoint's index and the plan for reading it.
"""

from dataclasses import dataclass
from pathlib import PurePosixPath

from genomoe.data.errors import InputError


@dataclass(frozen=True, kw_only=True)
class Chunk:
    """Rows `row_start` to `row_start + rows` of a tensor, in one file under one key."""

    file: str
    key: str
    row_start: int
    rows: int


@dataclass(frozen=True, kw_only=True)
class StoredTensor:
    """A tensor of a checkpoint: global shape, type name, and the chunks that cover it."""

    shape: tuple[int, ...]
    dtype: str
    chunks: tuple[Chunk, ...]


@dataclass(frozen=True, kw_only=True)
class StoredFile:
    """A file of a checkpoint."""

    sha256: str
    bytes: int


@dataclass(frozen=True, kw_only=True)
class Read:
    """Copy `rows` rows of a chunk, from its row `source`, to row `target` of a local piece."""

    chunk: Chunk
    source: int
    target: int
    rows: int


def check_plain_name(file: str, where: str) -> None:
    """Refuse a file name that leads out of the checkpoint's folder, or to a hidden file.

    Raises:
        InputError: If it is not the plain name of a file.
    """
    if not file or PurePosixPath(file).name != file or file.startswith("."):
        raise InputError(f"index.json: {where} names the file {file!r}: not a plain name")


def check_coverage(name: str, tensor: StoredTensor) -> None:
    """Prove that every row of a tensor is in exactly one chunk.

    Raises:
        InputError: If rows are missing or stand twice, or a file name is not a plain name.
    """
    rows = tensor.shape[0] if tensor.shape else 1
    position = 0
    for chunk in sorted(tensor.chunks, key=lambda c: c.row_start):
        check_plain_name(chunk.file, name)
        if chunk.row_start != position or chunk.rows <= 0:
            kind = "missing" if chunk.row_start > position else "stored twice"
            raise InputError(f"index.json: {name}: rows from {position} are {kind}")
        position += chunk.rows
    if position != rows:
        raise InputError(f"index.json: {name} has {rows} rows, its chunks cover {position}")


def plan_reads(tensor: StoredTensor, row_start: int, rows: int) -> list[Read]:
    """Say which rows of which chunks make up rows `row_start` to `row_start + rows`."""
    reads = []
    for chunk in tensor.chunks:
        first = max(row_start, chunk.row_start)
        last = min(row_start + rows, chunk.row_start + chunk.rows)
        if first < last:
            reads.append(
                Read(
                    chunk=chunk,
                    source=first - chunk.row_start,
                    target=first - row_start,
                    rows=last - first,
                )
            )
    return reads


def check_same_tensors(
    stored: dict[str, StoredTensor], wanted: dict[str, tuple[tuple[int, ...], str]], where: str
) -> None:
    """Compare a checkpoint with a model: every name, shape and type, both ways.

    Args:
        stored: The checkpoint's tensors.
        wanted: The model's, as (global shape, type name).
        where: The checkpoint, for messages.

    Raises:
        InputError: At the first difference, with both values.
    """
    for name, (shape, dtype) in wanted.items():
        if name not in stored:
            raise InputError(f"{where}: it has no {name}, which the model needs")
        found = stored[name]
        if found.shape != shape:
            raise InputError(f"{where}: {name} is {found.shape} there, {shape} in the model")
        if found.dtype != dtype:
            raise InputError(f"{where}: {name} is {found.dtype} there, {dtype} in the model")
    if left := sorted(set(stored) - set(wanted)):
        raise InputError(f"{where}: the model has no place for {left[0]}")
