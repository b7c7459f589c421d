"""Checkpoints: complete or absent, independent of the layout, plain safetensors and JSON.

    RUN/checkpoints/iter_0000100/
        checkpoint.json                 iteration, data position, config, versions, layout facts
        index.json                      tensor -> shape, type, chunks; file -> checksum
        state-00000-of-00004.safetensors  what rank 0 of 4 owned, and so on

Everything is written under a temporary name, synced, and renamed once: a folder that is visible
is whole. Loading compares every name, shape and type with the model's and proves that each row
is there exactly once. Nothing is unpickled.
"""

import hashlib
import json
import os
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from genomoe.data.errors import InputError
from genomoe.data.json_codec import decode, encode
from genomoe.training.chunks import (
    Chunk,
    StoredFile,
    StoredTensor,
    check_coverage,
    check_same_tensors,
    plan_reads,
)
from genomoe.training.run_folder import write_json
from genomoe.training.state import Piece

SCHEMA_VERSION = 1


@dataclass(frozen=True, kw_only=True)
class Index:
    """Contents of index.json."""

    tensors: dict[str, StoredTensor]
    files: dict[str, StoredFile]


def checkpoint_folder(run: Path, iteration: int) -> Path:
    """Where the checkpoint of an iteration lies."""
    return run / "checkpoints" / f"iter_{iteration:07d}"


def list_checkpoints(run: Path) -> list[tuple[int, Path]]:
    """Complete checkpoints of a run, oldest first, with their iterations."""
    found = []
    for path in (run / "checkpoints").glob("iter_*"):
        match = re.fullmatch(r"iter_(\d+)", path.name)
        if match and (path / "checkpoint.json").exists():
            found.append((int(match[1]), path))
    return sorted(found)


def save(run: Path, iteration: int, pieces: Sequence[Piece], facts: dict[str, Any]) -> Path:
    """Write a checkpoint; every rank calls this.

    Args:
        run: Run folder.
        iteration: Steps taken.
        pieces: What this rank holds; it writes those it owns.
        facts: JSON values for checkpoint.json.

    Raises:
        InputError: On every rank, if any could not write.
    """
    final = checkpoint_folder(run, iteration)
    partial = final.with_name(f".{final.name}.partial")
    main = dist.get_rank() == 0
    refused = _make_empty(partial) if main else None
    dist.barrier()
    written, failure = _write_own(partial, pieces)
    failure = refused or failure
    gathered: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, (written, failure))
    if main and not any(problem for _, problem in gathered):
        failure = _publish(partial, final, [entry for entry, _ in gathered], facts)
    problems: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(problems, failure)
    if problem := next((p for p in problems if p), None):
        if main:
            shutil.rmtree(partial, ignore_errors=True)
        raise InputError(f"{final}: not written: {problem}; earlier checkpoints are untouched")
    return final


def _make_empty(folder: Path) -> str | None:
    try:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
    except OSError as error:
        return str(error)
    return None


def _write_own(
    folder: Path, pieces: Sequence[Piece]
) -> tuple[list[tuple[str, tuple[int, ...], str, Chunk]], str | None]:
    name = f"state-{dist.get_rank():05d}-of-{dist.get_world_size():05d}.safetensors"
    tensors, entries = {}, []
    for piece in pieces:
        if piece.owned and piece.data.numel():
            key = f"{piece.name}@{piece.row_start}"
            tensors[key] = piece.data.detach().cpu().contiguous()
            chunk = Chunk(file=name, key=key, row_start=piece.row_start, rows=len(piece.data))
            entries.append((piece.name, piece.shape, _dtype_name(piece.data.dtype), chunk))
    try:
        if tensors:
            save_file(tensors, folder / name)
            _sync(folder / name)
    except (OSError, SafetensorError) as error:
        return [], str(error)
    return entries, None


def _publish(
    partial: Path, final: Path, entries: Sequence[Any], facts: dict[str, Any]
) -> str | None:
    """Write the two JSON files and make the checkpoint visible; returns what went wrong."""
    tensors: dict[str, StoredTensor] = {}
    for name, shape, dtype, chunk in (entry for rank in entries for entry in rank):
        before = tensors[name].chunks if name in tensors else ()
        tensors[name] = StoredTensor(shape=shape, dtype=dtype, chunks=(*before, chunk))
    try:
        for name, tensor in tensors.items():
            check_coverage(name, tensor)
        files = {p.name: _describe(p) for p in sorted(partial.glob("*.safetensors"))}
        index = {
            "tensors": {name: encode(tensor) for name, tensor in tensors.items()},
            "files": {name: encode(file) for name, file in files.items()},
        }
        write_json(partial / "index.json", index)
        write_json(partial / "checkpoint.json", {"schema_version": SCHEMA_VERSION, **facts})
        _sync(partial)
        if final.exists():
            shutil.rmtree(final)
        partial.rename(final)
        _sync(final.parent)
    except (OSError, InputError) as error:
        return str(error)
    return None


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


def load(checkpoint: Path, pieces: Sequence[Piece], *, kinds: Sequence[str] | None = None) -> None:
    """Fill this rank's pieces from a checkpoint; every rank reads what it needs by itself.

    Args:
        checkpoint: Folder.
        pieces: What to fill, all of it.
        kinds: Prefixes of the names to take ("weights"); default: every tensor must have a place.

    Raises:
        InputError: If file, name, shape, type or coverage is not as it must be.
    """
    index = _read_index(checkpoint)
    stored = {
        name: tensor
        for name, tensor in index.tensors.items()
        if kinds is None or name.split("/")[0] in kinds
    }
    wanted = {p.name: (p.shape, _dtype_name(p.data.dtype)) for p in pieces}
    everywhere: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everywhere, wanted)  # experts live on some ranks only
    check_same_tensors(
        stored, {n: w for ranks in everywhere for n, w in ranks.items()}, str(checkpoint)
    )
    for name, tensor in stored.items():
        check_coverage(name, tensor)
        for chunk in tensor.chunks:
            if chunk.file not in index.files:
                raise InputError(f"{checkpoint}: {name} is in {chunk.file}, which has no checksum")
    verify_files(checkpoint, index)
    _fill(checkpoint, stored, pieces)


def _read_index(checkpoint: Path) -> Index:
    path = checkpoint / "index.json"
    try:
        raw = json.loads(path.read_text())
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


def verify_files(checkpoint: Path, index: Index) -> None:
    """Compare size, checksum and keys of every file; the ranks share the files out.

    Raises:
        InputError: On every rank, naming the first file that differs.
    """
    rank, world = dist.get_rank(), dist.get_world_size()
    keys: dict[str, set[str]] = {name: set() for name in index.files}
    for tensor in index.tensors.values():
        for chunk in tensor.chunks:
            keys.setdefault(chunk.file, set()).add(chunk.key)
    problem = None
    for number, (name, expected) in enumerate(sorted(index.files.items())):
        if number % world == rank and problem is None:
            path = checkpoint / name
            if not path.is_file():
                problem = f"{path}: missing"
            elif _describe(path) != expected:
                problem = f"{path}: not the file that was saved (size or checksum differs)"
            elif stray := _keys(path) ^ keys[name]:
                problem = f"{path}: {min(stray)} is not both here and in index.json"
    problems: list[Any] = [None] * world
    dist.all_gather_object(problems, problem)
    if found := next((p for p in problems if p), None):
        raise InputError(f"{found}; use another checkpoint")


@torch.no_grad()
def _fill(checkpoint: Path, stored: dict[str, StoredTensor], pieces: Sequence[Piece]) -> None:
    by_file: dict[str, list[tuple[Piece, Any]]] = {}
    for piece in pieces:
        for read in plan_reads(stored[piece.name], piece.row_start, len(piece.data)):
            by_file.setdefault(read.chunk.file, []).append((piece, read))
    for name, reads in by_file.items():
        try:
            with safe_open(checkpoint / name, framework="pt") as file:
                for piece, read in reads:
                    kept = file.get_slice(read.chunk.key)
                    rows = kept[read.source : read.source + read.rows]
                    shape = [read.chunk.rows, *piece.shape[1:]]
                    if kept.get_shape() != shape or rows.dtype != piece.data.dtype:
                        raise InputError(
                            f"{checkpoint / name}: {read.chunk.key} is {kept.get_shape()} "
                            f"{kept.get_dtype()}, not what index.json says; use another checkpoint"
                        )
                    piece.data[read.target : read.target + read.rows].copy_(rows)
        except SafetensorError as error:
            raise InputError(f"{checkpoint / name}: {error}; use another checkpoint") from None


def prune(run: Path, keep: int, best: int | None) -> None:
    """Delete all but the newest `keep` checkpoints and the best; called on one rank."""
    for iteration, path in list_checkpoints(run)[:-keep]:
        if iteration != best:
            # Renamed first, so that a half-deleted folder is never taken for a checkpoint.
            doomed = path.with_name(f".{path.name}.pruned")
            path.rename(doomed)
            shutil.rmtree(doomed)


def _keys(path: Path) -> set[str]:
    try:
        with safe_open(path, framework="pt") as file:
            return set(file.keys())
    except SafetensorError:
        return set()


def _describe(path: Path) -> StoredFile:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return StoredFile(sha256=digest, bytes=path.stat().st_size)


def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
