"""Held-out perplexity and bits per letter of a trained model, beside its baselines.

    python tools/eval_perplexity.py RUN [--split test | --fasta FILE] [--window N] [--stride N]

Every letter is scored once, in windows that slide over whole contigs. A table and the progress
go to stderr, one JSON object to stdout. Under torchrun the ranks share the windows out; the
number is the same for any of them. Exit 2 with one line when nothing can be scored.
"""

import logging
import os
import sys
import warnings
from collections.abc import Sequence

from genomoe.data.command_line import fail, parse
from genomoe.data.errors import InputError
from genomoe.parallel.threads import set_thread_environment
from genomoe.tools.eval_options import EvalOptions


def main(arguments: Sequence[str] | None = None) -> int:
    """Evaluate; returns the exit code."""
    words = sys.argv[1:] if arguments is None else arguments
    try:
        options = parse(EvalOptions, words, prog="eval_perplexity")
        set_thread_environment(1)
        _silence()
        # Imports torch, which must see the threads.
        from genomoe.tools.evaluation import evaluate

        evaluate(options)
    except InputError as error:
        # Every rank meets the same mistake; one of them says so.
        return fail(error) if os.environ.get("RANK", "0") == "0" else 2
    except FloatingPointError as error:
        return fail(error, 1)
    except KeyboardInterrupt:
        return fail(Exception("interrupted"), 1)
    return 0


def _silence() -> None:
    """megatron-core warns about every optional package that a plain install lacks."""
    warnings.filterwarnings("ignore", module=r"megatron\..*|torch\..*")
    for name in ("megatron", "torch.utils.cpp_extension"):
        logging.getLogger(name).setLevel(logging.ERROR)


if __name__ == "__main__":
    sys.exit(main())
