"""A folder that appears whole or not at all."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from genomoe.data.errors import InputError
from genomoe.training.checkpoint_files import sync


def check_output(out: Path) -> None:
    """Refuse a place where something is.

    Raises:
        InputError: If `out` is anything but absent or an empty folder.
    """
    try:
        is_empty = out.is_dir() and not out.is_symlink() and not any(out.iterdir())
    except OSError as error:
        raise InputError(f"{out}: cannot be read ({error.strerror}); give another OUT") from None
    if os.path.lexists(out) and not is_empty:
        raise InputError(f"{out}: exists and is not an empty folder; give another OUT")


@contextmanager
def new_folder(out: Path) -> Iterator[Path]:
    """Give a hidden folder beside `out` to fill; it becomes `out` when the block ends well.

    Remains of an earlier command for the same place, which was killed, are removed.

    Raises:
        InputError: If `out` is taken, or nothing can be written beside it.
    """
    check_output(out)
    target = out.resolve()  # OUT may be "."
    partial = target.with_name(f".{target.name}.partial")
    made = [parent for parent in partial.parents if not parent.exists()]
    try:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
    except OSError as error:
        _remove_empty(made)
        raise InputError(f"{out}: cannot be written ({error.strerror}); give another OUT") from None
    try:
        yield partial
        for file in sorted(partial.iterdir()):
            sync(file)
        sync(partial)
        if target.is_dir():
            target.rmdir()
        partial.rename(target)
        sync(partial.parent)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        _remove_empty(made)
        raise


def _remove_empty(folders: list[Path]) -> None:
    for folder in folders:  # the innermost first
        if folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()
