"""Entry point: FASTA files to a data set.

python -m genomoe.data.preprocess genome.fa.gz --out datasets/genome
"""

import json
import signal
import sys
import time
from types import FrameType

import tyro

from genomoe.data.errors import InputError
from genomoe.data.options import PreprocessOptions
from genomoe.data.pipeline import preprocess


def main() -> int:
    """Run the command; return its exit status."""
    options = tyro.cli(PreprocessOptions)
    start = time.monotonic()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    try:
        summary = preprocess(options)
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        print(f"error: {where}{error.strerror or error}; nothing was written", file=sys.stderr)
        return 1
    except KeyboardInterrupt as interrupt:
        print("interrupted; nothing was written", file=sys.stderr)
        return 128 + (interrupt.args[0] if interrupt.args else signal.SIGINT)
    if summary["warning"]:
        print(
            f"warning: {summary['warning']}: similar sequences may lie in train and in a "
            f"held-out split, so held-out scores look too good",
            file=sys.stderr,
        )
    print(json.dumps({**summary, "seconds": round(time.monotonic() - start, 3)}))
    return 0


def _interrupt(number: int, frame: FrameType | None) -> None:
    # Once: a second signal must not stop the removal of the working folder.
    for other in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(other, signal.SIG_IGN)
    raise KeyboardInterrupt(number)


if __name__ == "__main__":
    sys.exit(main())
