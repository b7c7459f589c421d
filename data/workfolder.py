"""A data set is built in a hidden working folder beside its destination and published by a rename.

Whatever goes wrong, the destination is either as it was or complete. The folder of a process that
died is removed by the next run for the same destination: a lock tells whether its owner lives, on
shared disks and in containers too, where process numbers do not.
"""

import errno
import fcntl
import os
import shutil
from pathlib import Path
from types import TracebackType
from typing import Self

from genomoe.data.errors import InputError
from genomoe.data.manifest import MANIFEST_NAME

_LOCK_NAME = "lock"


class WorkFolder:
    """Owns the working folder of one run; use it as a context manager."""

    def __init__(self, out: Path, *, force: bool) -> None:
        """Describe the run.

        Args:
            out: the data set to be.
            force: replace a data set that is there.
        """
        self._out = out.absolute()
        self._shown = out
        self._force = force
        self._folder = self._beside("partial")
        self._created_parents: list[Path] = []
        self._lock = -1

    @property
    def spool(self) -> Path:
        """Where intermediate files go."""
        return self._folder / "spool"

    @property
    def dataset(self) -> Path:
        """The folder that will become the data set."""
        return self._folder / "dataset"

    def __enter__(self) -> Self:
        """Make the folder.

        Raises:
            InputError: the destination exists and may not be replaced, or cannot be written.
        """
        self._check_destination()
        try:
            self._make_parents()
            self._clear_remains()
            self._folder.mkdir()
            self._lock = os.open(self._folder / _LOCK_NAME, os.O_CREAT | os.O_RDWR, 0o600)
            _try_lock(self._lock)
            self.spool.mkdir()
            self.dataset.mkdir()
        except OSError as error:
            self._remove()
            raise InputError(
                f"--out {self._shown}: cannot write beside it ({error.strerror}); "
                f"choose another place"
            ) from None
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Remove what is left of the folder."""
        self._remove()

    def publish(self) -> None:
        """Move the finished data set to its destination; a replaced one is removed last."""
        _sync_folders(self.dataset)
        self._check_destination()
        replaced = self._beside("replaced")
        if os.path.lexists(self._out):
            self._out.rename(replaced)
        try:
            self.dataset.rename(self._out)
        except BaseException:
            if os.path.lexists(replaced):
                replaced.rename(self._out)
            raise
        _sync(self._out.parent)
        self._created_parents.clear()
        shutil.rmtree(replaced, ignore_errors=True)

    def _beside(self, role: str) -> Path:
        return self._out.parent / f".{self._out.name}.{role}-{os.getpid()}"

    def _check_destination(self) -> None:
        if not os.path.lexists(self._out):
            return
        if not self._force:
            raise InputError(f"--out {self._shown}: exists; choose another place or add --force")
        is_dataset = self._out.is_dir() and not self._out.is_symlink()
        if is_dataset and ((self._out / MANIFEST_NAME).is_file() or not any(self._out.iterdir())):
            return
        raise InputError(
            f"--out {self._shown}: is not a data set (no {MANIFEST_NAME}), so --force does not "
            f"replace it; choose another place"
        )

    def _make_parents(self) -> None:
        missing = [folder for folder in self._out.parents if not folder.exists()]
        for folder in reversed(missing):
            folder.mkdir(exist_ok=True)
            self._created_parents.append(folder)

    def _clear_remains(self) -> None:
        """Remove what runs that died left for this destination."""
        for folder in self._out.parent.glob(f".{glob_escape(self._out.name)}.partial-*"):
            if not _is_alive(folder):
                shutil.rmtree(folder, ignore_errors=True)
        for folder in self._out.parent.glob(f".{glob_escape(self._out.name)}.replaced-*"):
            # The run died between its two renames, or before it removed the old data set.
            if os.path.lexists(self._out):
                shutil.rmtree(folder, ignore_errors=True)
            else:
                folder.rename(self._out)
                self._check_destination()

    def _remove(self) -> None:
        if self._lock >= 0:
            shutil.rmtree(self._folder, ignore_errors=True)
            os.close(self._lock)
            self._lock = -1
        for folder in reversed(self._created_parents):
            try:
                folder.rmdir()
            except OSError:
                break
        self._created_parents.clear()


def glob_escape(name: str) -> str:
    """Return a pattern that matches ``name`` only."""
    return "".join(f"[{letter}]" if letter in "*?[" else letter for letter in name)


def _is_alive(folder: Path) -> bool:
    """Return whether the process that owns a working folder still runs."""
    pid = folder.name.rpartition("-")[2]
    try:
        lock = os.open(folder / _LOCK_NAME, os.O_RDWR)
    except OSError:
        # Not locked yet: its owner is between two calls, or died there.
        return _is_running(pid)
    try:
        is_free = _try_lock(lock)
    finally:
        os.close(lock)
    return _is_running(pid) if is_free is None else not is_free


def _try_lock(descriptor: int) -> bool | None:
    """Lock a file; return False if another process holds it, None where locks do not work."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return False if error.errno in (errno.EWOULDBLOCK, errno.EACCES) else None
    return True


def _is_running(pid: str) -> bool:
    if not pid.isdecimal() or int(pid) == os.getpid():
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def _sync_folders(root: Path) -> None:
    for folder, _, _ in os.walk(root):
        _sync(Path(folder))


def _sync(folder: Path) -> None:
    """Make the names in a folder survive a power failure, where the file system can."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError:
        pass
    finally:
        os.close(descriptor)
