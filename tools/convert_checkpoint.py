"""Convert checkpoints to other forms and back.

    python tools/convert_checkpoint.py hf export RUN_OR_CHECKPOINT OUT [--dtype bfloat16]
    python tools/convert_checkpoint.py hf import HF_FOLDER OUT [--alphabet dna]

Progress goes to stderr, one JSON object to stdout. Exit 2 with one line for what cannot be
converted; OUT is written whole or not at all.
"""

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from safetensors import SafetensorError

from genomoe.data.command_line import choose, fail, parse
from genomoe.data.errors import InputError
from genomoe.parallel.threads import set_thread_environment
from genomoe.tools.hf_options import HfExport, HfImport

PROG = "convert_checkpoint"


@dataclass(frozen=True, kw_only=True)
class Command:
    """One conversion: its words, its options, and how to start it (torch is imported there)."""

    words: tuple[str, ...]
    options: Any
    summary: str
    start: Callable[[Any], dict[str, Any]]


def _export(options: HfExport) -> dict[str, Any]:
    from genomoe.tools.hf_export import export_checkpoint

    return export_checkpoint(options)


def _import(options: HfImport) -> dict[str, Any]:
    from genomoe.tools.hf_import import import_folder

    return import_folder(options)


COMMANDS = (
    Command(
        words=("hf", "export"),
        options=HfExport,
        summary="a run or checkpoint to a folder for Hugging Face transformers",
        start=_export,
    ),
    Command(
        words=("hf", "import"),
        options=HfImport,
        summary="such a folder to a checkpoint of weights",
        start=_import,
    ),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Convert; returns the exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        command = find_command(words)
        prog = " ".join((PROG, *command.words))
        options = parse(command.options, words[len(command.words) :], prog=prog)
        set_thread_environment(1)
        print(json.dumps(command.start(options), allow_nan=False), flush=True)
    except InputError as error:
        return fail(error)
    except (OSError, SafetensorError) as error:
        return fail(Exception(f"not written: {error}"), 1)
    except KeyboardInterrupt:
        return fail(Exception("interrupted; nothing was written"), 1)
    return 0


def find_command(words: Sequence[str]) -> Command:
    """Find the command that the first words name.

    Raises:
        InputError: If they name none.
        SystemExit: With 0, after the help of a level that has commands below it.
    """
    candidates = list(COMMANDS)
    depth = 0
    while len(candidates) > 1 or depth < len(candidates[0].words):
        known = sorted({command.words[depth] for command in candidates})
        word = words[depth] if depth < len(words) else ""
        if word in ("-h", "--help"):
            print(_help(words[:depth], candidates))
            raise SystemExit(0)
        if not word:
            given = " ".join((PROG, *words))
            raise InputError(f"{given}: give one of {', '.join(known)} (see --help)")
        choose(word, known, f"{' '.join((PROG, *words[:depth]))}: command")
        candidates = [command for command in candidates if command.words[depth] == word]
        depth += 1
    return candidates[0]


def _help(given: Sequence[str], candidates: Sequence[Command]) -> str:
    lines = [f"usage: {' '.join((PROG, *given))} COMMAND ... (each has --help)", ""]
    lines += [f"  {' '.join(command.words):<12} {command.summary}" for command in candidates]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
