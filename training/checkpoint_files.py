"""The files of a checkpoint: their index, its facts, and the proof that they are what was saved.

    checkpoint.json                   iteration, config, versions, layout facts
    index.json                        tensor -> shape, type, chunks; file -> checksum
    *.safetensors                     rows of tensors under canonical names

No process groups here: `checkpoint` saves and loads with the ranks of a run, `tensors` reads and
writes whole tensors in one process. Nothing is unpickled.
"""

import hashlib
import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from genomoe.data.errors import InputError
from genomoe.data.json_codec import decode, encode
from genomoe.training.chunks import (
    Chunk,
    StoredFile,
    StoredTensor,
    check_coverage,
    check_plain_name,
)
from genomoe.training.run_folder import write_json

SCHEMA_VERSION = 1

# Facts about stored tensors that their shapes do not show.
LAYOUT = {"linear_fc1_rows": "gate_then_up", "linear_qkv_rows": "by_query_group"}


@dataclass(frozen=True, kw_only=True)
class Index:
    """Contents of index.json."""

    tensors: dict[str, StoredTensor]
    files: dict[str, StoredFile]


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One chunk that was written, and the whole tensor that it belongs to."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    chunk: Chunk


def write_index(folder: Path, entries: Iterable[Entry], facts: dict[str, Any]) -> None:
    """Write index.json and checkpoint.json beside the tensors of a folder.

    Args:
        folder: Not yet visible under its final name.
        entries: Every chunk in it.
        facts: JSON values for checkpoint.json.

    Raises:
        InputError: If a tensor is not whole.
        OSError: If the disk refuses.
    """
    tensors: dict[str, StoredTensor] = {}
    for entry in entries:
        before = tensors[entry.name].chunks if entry.name in tensors else ()
        tensors[entry.name] = StoredTensor(
            shape=entry.shape, dtype=entry.dtype, chunks=(*before, entry.chunk)
        )
    for name, tensor in tensors.items():
        check_coverage(name, tensor)
    files = {p.name: describe_file(p) for p in sorted(folder.glob("*.safetensors"))}
    index = {
        "tensors": {name: encode(tensor) for name, tensor in tensors.items()},
        "files": {name: encode(file) for name, file in files.items()},
    }
    write_json(folder / "index.json", index)
    write_json(folder / "checkpoint.json", {"schema_version": SCHEMA_VERSION, **facts})


def read_facts(checkpoint: Path) -> dict[str, Any]:
    """Read checkpoint.json.

    Raises:
        InputError: If this is no checkpoint or one of another schema.
    """
    path = checkpoint / "checkpoint.json"
    try:
        facts = json.loads(path.read_text())
    except FileNotFoundError:
        raise InputError(f"{checkpoint}: not a checkpoint (no checkpoint.json)") from None
    except json.JSONDecodeError as error:
        raise InputError(f"{path}:{error.lineno}: not JSON: {error.msg}") from None
    version = facts.get("schema_version") if isinstance(facts, dict) else None
    if version != SCHEMA_VERSION:
        raise InputError(
            f"{path}: schema_version is {version}, this version reads {SCHEMA_VERSION}"
        )
    return facts


def read_index(checkpoint: Path) -> Index:
    """Read index.json.

    Raises:
        InputError: If it is missing or damaged.
    """
    path = checkpoint / "index.json"
    try:
        raw = json.loads(path.read_text())
        for name in raw["files"]:
            check_plain_name(name, "files")
        return Index(
            tensors={n: _stored_tensor(t, n) for n, t in raw["tensors"].items()},
            files={n: decode(StoredFile, f, f"files.{n}") for n, f in raw["files"].items()},
        )
    except FileNotFoundError:
        raise InputError(f"{path}: missing; the checkpoint is not whole") from None
    except (json.JSONDecodeError, KeyError, AttributeError, TypeError, ValueError) as error:
        raise InputError(f"{path}: damaged: {error}") from None


def _stored_tensor(raw: dict[str, Any], name: str) -> StoredTensor:
    chunks = tuple(decode(Chunk, chunk, f"tensors.{name}.chunks") for chunk in raw["chunks"])
    return StoredTensor(shape=tuple(raw["shape"]), dtype=raw["dtype"], chunks=chunks)


def check_chunks(checkpoint: Path, index: Index, stored: dict[str, StoredTensor]) -> None:
    """Prove that the chunks of tensors cover them, in files that have a checksum.

    Raises:
        InputError: At the first that does not.
    """
    for name, tensor in stored.items():
        check_coverage(name, tensor)
        for chunk in tensor.chunks:
            if chunk.file not in index.files:
                raise InputError(f"{checkpoint}: {name} is in {chunk.file}, which has no checksum")


def file_problem(checkpoint: Path, index: Index, name: str) -> str | None:
    """Compare size, checksum and keys of one file with the index; say what differs."""
    path = checkpoint / name
    if not path.is_file():
        return f"{path}: missing"
    if describe_file(path) != index.files[name]:
        return f"{path}: not the file that was saved (size or checksum differs)"
    keys = {c.key for t in index.tensors.values() for c in t.chunks if c.file == name}
    if stray := _keys(path) ^ keys:
        return f"{path}: {min(stray)} is not both here and in index.json"
    return None


def read_rows(file: Any, path: Path, chunk: Chunk, like: torch.Tensor, rows: slice) -> torch.Tensor:
    """Read rows of a chunk from an open safetensors file.

    Args:
        file: From `safe_open`.
        path: Its path, for messages.
        chunk: What index.json says is there.
        like: A tensor of the type and of the inner shape that it must have.
        rows: Of the chunk.

    Raises:
        InputError: If the file holds another shape or type.
    """
    kept = file.get_slice(chunk.key)
    found = kept[rows]
    if kept.get_shape() != [chunk.rows, *like.shape[1:]] or found.dtype != like.dtype:
        raise InputError(
            f"{path}: {chunk.key} is {kept.get_shape()} "
            f"{kept.get_dtype()}, not what index.json says; use another checkpoint"
        )
    return found


def _keys(path: Path) -> set[str]:
    try:
        with safe_open(path, framework="pt") as file:
            return set(file.keys())
    except SafetensorError:
        return set()


def describe_file(path: Path) -> StoredFile:
    """Size and checksum of a file, read in pieces."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return StoredFile(sha256=digest, bytes=path.stat().st_size)


def dtype_name(dtype: torch.dtype) -> str:
    """Name of a type as index.json has it."""
    return str(dtype).removeprefix("torch.")


def sync(path: Path) -> None:
    """Make a file or the names in a folder survive a power failure."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
