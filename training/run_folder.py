"""A run's folder: its files, its config, and the lock that keeps a second run out."""

import fcntl
import json
import os
from pathlib import Path
from types import TracebackType
from typing import Any

from genomoe.data.errors import InputError
from genomoe.data.json_codec import decode, encode
from genomoe.training.config import PretrainConfig

SCORES = "scores"
"""Folder of a run with the last score of each split, where the report finds it."""


class RunLock:
    """Holds RUN/.lock; the kernel releases it when the process ends, however it ends."""

    def __init__(self, run: Path) -> None:
        self._path = run / ".lock"
        self._descriptor: int | None = None

    def __enter__(self) -> "RunLock":
        """Take the lock.

        Raises:
            InputError: If another process holds it, or it cannot be made.
        """
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise InputError(
                f"{self._path.parent}: no run folder can be here ({error.strerror}); "
                "give another RUN"
            ) from None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            raise InputError(
                f"{self._path.parent}: another process is training in this run folder; "
                "wait for it, stop it, or give another RUN"
            ) from None
        self._descriptor = descriptor
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Release the lock."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def write_json(path: Path, value: Any) -> None:
    """Write strict JSON by way of a temporary name, so that the file is whole or absent."""
    temporary = path.with_name(f".{path.name}.partial")
    text = json.dumps(value, indent=1, sort_keys=True, allow_nan=False) + "\n"
    with temporary.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.rename(path)


def read_config(path: Path) -> PretrainConfig:
    """Read a config that a run or a checkpoint saved.

    Raises:
        InputError: If it is missing, not JSON, or of another version.
    """
    try:
        return decode(PretrainConfig, json.loads(path.read_text()))
    except FileNotFoundError:
        raise InputError(f"{path}: no such file; this is not a run or checkpoint folder") from None
    except (json.JSONDecodeError, ValueError) as error:
        raise InputError(f"{path}: {error}; it was written by another version or edited") from None


def write_config(path: Path, config: PretrainConfig) -> None:
    """Save the resolved config."""
    write_json(path, encode(config))
