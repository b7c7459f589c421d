"""Entry point: FASTA files to a data set.

python -m genomoe.data.preprocess genome.fa.gz --out datasets/genome
"""

import json
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import BrokenExecutor
from contextlib import contextmanager
from types import FrameType

from genomoe.data.command_line import parse
from genomoe.data.errors import InputError
from genomoe.data.options import PreprocessOptions
from genomoe.data.pipeline import preprocess

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status."""
    words = sys.argv[1:] if arguments is None else arguments
    start = time.monotonic()
    try:
        options = parse(PreprocessOptions, words, prog="python -m genomoe.data.preprocess")
        with _interruptible():
            summary = preprocess(options)
    except InputError as error:
        return _fail(f"error: {error}", 2)
    except BrokenExecutor:
        return _fail("error: a worker process died, maybe out of memory; lower --workers", 1)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        return _fail(f"error: {where}{error.strerror or error}; nothing was written", 1)
    except KeyboardInterrupt as interrupt:
        number = interrupt.args[0] if interrupt.args else signal.SIGINT
        return _fail("interrupted; nothing was written", 128 + number)
    if summary["warning"]:
        print(
            f"warning: {summary['warning']}: similar sequences may lie in train and in a held-out "
            f"split, so held-out scores look too good",
            file=sys.stderr,
        )
    print(json.dumps({**summary, "seconds": round(time.monotonic() - start, 3)}))
    return 0


def _fail(line: str, status: int) -> int:
    print(line, file=sys.stderr)
    return status


@contextmanager
def _interruptible() -> Iterator[None]:
    """Turn the first signal into an exception, so that the working folder is removed."""
    before = {number: signal.signal(number, _interrupt) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _interrupt(number: int, frame: FrameType | None) -> None:
    # A second signal must not stop the removal.
    for other in _SIGNALS:
        signal.signal(other, signal.SIG_IGN)
    raise KeyboardInterrupt(number)


if __name__ == "__main__":
    sys.exit(main())
