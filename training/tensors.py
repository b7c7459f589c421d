"""Whole tensors of a checkpoint, in one process: read by rows, written one after the other.

For tools that convert. However many ranks wrote a checkpoint, its tensors are read by canonical
name with the same strict checks as a resumed run's, and one tensor at a time.
"""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from genomoe.data.errors import InputError
from genomoe.training.checkpoint_files import (
    Entry,
    check_chunks,
    dtype_name,
    file_problem,
    read_index,
    read_rows,
    sync,
    write_index,
)
from genomoe.training.chunks import Chunk, check_same_tensors, plan_reads

WEIGHTS = "weights/"
FILE_BYTES = 1 << 30


class StoredWeights:
    """The weights of a checkpoint, FP32, by canonical name."""

    def __init__(
        self,
        checkpoint: Path,
        shapes: dict[str, tuple[int, ...]],
        progress: Callable[[str], None] = lambda name: None,
    ) -> None:
        """Check everything that is going to be read.

        Args:
            checkpoint: Folder.
            shapes: Shape of every weight that the model has.
            progress: Told each file before it is verified.

        Raises:
            InputError: If a name, shape, type, row, size or checksum is not as it must be.
        """
        self._folder = checkpoint
        index = read_index(checkpoint)
        self._stored = {n: t for n, t in index.tensors.items() if n.startswith(WEIGHTS)}
        wanted = {f"{WEIGHTS}{name}": (shape, "float32") for name, shape in shapes.items()}
        check_same_tensors(self._stored, wanted, str(checkpoint))
        check_chunks(checkpoint, index, self._stored)
        for name in sorted(index.files):
            progress(name)
            if problem := file_problem(checkpoint, index, name):
                raise InputError(f"{problem}; use another checkpoint")

    def read(self, name: str, rows: Iterable[tuple[int, int]]) -> torch.Tensor:
        """Read ranges (first row, number of rows) of a weight, one after the other.

        Raises:
            InputError: If a file does not hold what its index says.
        """
        tensor = self._stored[WEIGHTS + name]
        ranges = list(rows)
        result = torch.empty(sum(count for _, count in ranges), *tensor.shape[1:])
        start = 0
        for first, count in ranges:
            for read in plan_reads(tensor, first, count):
                target = slice(start + read.target, start + read.target + read.rows)
                source = slice(read.source, read.source + read.rows)
                result[target] = self._read(read.chunk, result, source)
            start += count
        return result

    def _read(self, chunk: Chunk, like: torch.Tensor, rows: slice) -> torch.Tensor:
        path = self._folder / chunk.file
        try:
            with safe_open(path, framework="pt") as file:
                return read_rows(file, path, chunk, like, rows)
        except SafetensorError as error:
            raise InputError(f"{path}: {error}; use another checkpoint") from None


def write_weights(
    folder: Path,
    tensors: Iterable[tuple[str, torch.Tensor]],
    facts: dict[str, Any],
    *,
    file_bytes: int = FILE_BYTES,
) -> None:
    """Fill a folder with a checkpoint of weights alone, as loading expects it.

    Args:
        folder: Empty, and not yet under its final name.
        tensors: Canonical names and FP32 tensors; at most a file's worth is in memory.
        facts: JSON values for checkpoint.json.
        file_bytes: A file is closed when the next tensor would make it larger.

    Raises:
        OSError: If the disk refuses.
    """
    entries: list[Entry] = []
    waiting: dict[str, torch.Tensor] = {}

    def flush() -> None:
        if waiting:
            path = folder / f"weights-{len(list(folder.glob('*.safetensors'))):05d}.safetensors"
            save_file(waiting, path)
            sync(path)
            entries.extend(_entry(path.name, key, tensor) for key, tensor in waiting.items())
            waiting.clear()

    for name, tensor in tensors:
        if waiting and sum(t.nbytes for t in waiting.values()) + tensor.nbytes > file_bytes:
            flush()
        waiting[WEIGHTS + name] = tensor.contiguous()
    flush()
    write_index(folder, entries, facts)


def _entry(file: str, name: str, tensor: torch.Tensor) -> Entry:
    return Entry(
        name=name,
        shape=tuple(tensor.shape),
        dtype=dtype_name(tensor.dtype),
        chunk=Chunk(file=file, key=name, row_start=0, rows=len(tensor)),
    )
