"""Checkpoints: complete or absent, independent of the layout, plain safetensors and JSON.

    RUN/checkpoints/iter_0000100/
        checkpoint.json                 iteration, data position, config, versions, layout facts
        index.json                      tensor -> shape, type, chunks; file -> checksum
        state-00000-of-00004.safetensors  what rank 0 of 4 owned, and so on

Everything is written under a temporary name, synced, and renamed once: a folder that is visible
is whole. Loading compares every name, shape and type with the model's and proves that each row
is there exactly once. Nothing is unpickled.
"""

import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from genomoe.data.errors import InputError
from genomoe.training.checkpoint_files import (
    Entry,
    Index,
    check_chunks,
    dtype_name,
    file_problem,
    read_index,
    read_rows,
    sync,
    write_index,
)
from genomoe.training.chunks import Chunk, StoredTensor, check_same_tensors, plan_reads
from genomoe.training.state import Piece


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


def _write_own(folder: Path, pieces: Sequence[Piece]) -> tuple[list[Entry], str | None]:
    name = f"state-{dist.get_rank():05d}-of-{dist.get_world_size():05d}.safetensors"
    tensors, entries = {}, []
    for piece in pieces:
        if piece.owned and piece.data.numel():
            key = f"{piece.name}@{piece.row_start}"
            tensors[key] = piece.data.detach().cpu().contiguous()
            chunk = Chunk(file=name, key=key, row_start=piece.row_start, rows=len(piece.data))
            dtype = dtype_name(piece.data.dtype)
            entries.append(Entry(name=piece.name, shape=piece.shape, dtype=dtype, chunk=chunk))
    try:
        if tensors:
            save_file(tensors, folder / name)
            sync(folder / name)
    except (OSError, SafetensorError) as error:
        return [], str(error)
    return entries, None


def _publish(
    partial: Path, final: Path, entries: Sequence[Any], facts: dict[str, Any]
) -> str | None:
    """Write the two JSON files and make the checkpoint visible; returns what went wrong."""
    try:
        write_index(partial, [entry for rank in entries for entry in rank], facts)
        sync(partial)
        if final.exists():
            shutil.rmtree(final)
        partial.rename(final)
        sync(final.parent)
    except (OSError, InputError) as error:
        return str(error)
    return None


def load(checkpoint: Path, pieces: Sequence[Piece], *, kinds: Sequence[str] | None = None) -> None:
    """Fill this rank's pieces from a checkpoint; every rank reads what it needs by itself.

    Args:
        checkpoint: Folder.
        pieces: What to fill, all of it.
        kinds: Prefixes of the names to take ("weights"); default: every tensor must have a place.

    Raises:
        InputError: If file, name, shape, type or coverage is not as it must be.
    """
    index = read_index(checkpoint)
    stored = {
        name: tensor
        for name, tensor in index.tensors.items()
        if kinds is None or name.split("/")[0] in kinds
    }
    wanted = {p.name: (p.shape, dtype_name(p.data.dtype)) for p in pieces}
    everywhere: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everywhere, wanted)  # experts live on some ranks only
    check_same_tensors(
        stored, {n: w for ranks in everywhere for n, w in ranks.items()}, str(checkpoint)
    )
    check_chunks(checkpoint, index, stored)
    verify_files(checkpoint, index)
    _fill(checkpoint, stored, pieces)


def verify_files(checkpoint: Path, index: Index) -> None:
    """Compare size, checksum and keys of every file; the ranks share the files out.

    Raises:
        InputError: On every rank, naming the first file that differs.
    """
    rank, world = dist.get_rank(), dist.get_world_size()
    problem = None
    for number, name in enumerate(sorted(index.files)):
        if number % world == rank and problem is None:
            problem = file_problem(checkpoint, index, name)
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
                    rows = slice(read.source, read.source + read.rows)
                    found = read_rows(file, checkpoint / name, read.chunk, piece.data, rows)
                    piece.data[read.target : read.target + read.rows].copy_(found)
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
