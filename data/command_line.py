"""Parse commands: presets first, overrides after, one line for a mistake."""

import contextlib
import difflib
import io
import itertools
import re
import sys
from collections.abc import Sequence

import tyro

from genomoe.data.errors import InputError


def parse[T](
    kind: type[T],
    arguments: Sequence[str],
    *,
    default: T | None = None,
    prog: str,
    description: str | None = None,
) -> T:
    """Parse flags into a frozen dataclass.

    Args:
        kind: The dataclass.
        arguments: Words after the program's name.
        default: Values of the flags that are not given.
        prog: Program name for `--help`.
        description: What it does, for `--help`; by default the dataclass's docstring.

    Raises:
        InputError: For an unknown flag or a value that does not parse, in one line.
        SystemExit: With 0, after `--help`.
    """
    complaint = io.StringIO()
    try:
        with contextlib.redirect_stderr(complaint):
            words = list(arguments)
            if default is None:
                return tyro.cli(kind, args=words, prog=prog, description=description)
            return tyro.cli(kind, args=words, default=default, prog=prog, description=description)
    except SystemExit as stop:
        if stop.code in (0, None):
            raise
        raise InputError(f"{_one_line(complaint.getvalue())} (see --help)") from None
    except ValueError as error:  # a dataclass refused its own values
        raise InputError(str(error)) from None


def choose(name: str, known: Sequence[str], what: str) -> str:
    """Return `name` if it is known.

    Raises:
        InputError: Naming what is known and what may have been meant.
    """
    if name in known:
        return name
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"; did you mean {near[0]}?" if near else ""
    raise InputError(f"{what} {name!r} is unknown: use one of {', '.join(known)}{hint}")


def _one_line(message: str) -> str:
    """Take the frame off tyro's message; keep its first paragraph and what may have been meant."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", message)
    lines = [line.strip("│ ") for line in text.splitlines()]
    # A title and a rule, then the sentence, then more rules; where the output is not UTF-8 there
    # is no frame, and the rules are of hyphens.
    body = list(itertools.dropwhile(lambda line: not _is_rule(line), lines))[1:]
    first = list(itertools.takewhile(lambda line: line and not _is_rule(line), body))
    sentence = " ".join(first).rstrip(".") or "the command line could not be parsed"
    sentence = re.sub(r"^Error parsing \w+: ", "", sentence)  # a section refused its values
    meant = itertools.dropwhile(lambda line: not line.startswith("Perhaps you meant"), lines)
    flags = (line.split()[0] for line in meant if line.startswith("--") and not _is_rule(line))
    hint = next(flags, None)
    return f"{sentence}; did you mean {hint}?" if hint else sentence


def _is_rule(line: str) -> bool:
    return "───" in line or line.startswith("-----")


def fail(error: Exception, code: int = 2) -> int:
    """Print the one line of a user's mistake; returns the exit code."""
    print(f"error: {error}", file=sys.stderr, flush=True)
    return code
