"""Header lines of FASTA: the id, the text, and what they say about the molecule's ends."""

import re
from dataclasses import dataclass

from genomoe.data.errors import InputError

TOPOLOGIES = ("unknown", "linear", "circular")
UNKNOWN, LINEAR, CIRCULAR = range(3)
# NCBI writes [topology=circular], Unicycler circular=true. The bare word proves nothing: it is
# also part of names ("circular RNA").
_STATED = re.compile(rb"(?:^|[\s\[;,|])(?:topology *= *(linear|circular)|(circular) *= *true)\b")


@dataclass(frozen=True, kw_only=True)
class Header:
    """One header line."""

    id: str
    text: str
    """The whole header without ">" and surrounding blanks."""
    line: int
    """1-based line number."""
    topology: int = UNKNOWN
    """Index into ``TOPOLOGIES``."""


def parse_header(raw: bytes, line: int, name: str) -> Header:
    """Return the header that a line says, the ">" left out.

    Args:
        raw: the line's bytes after ">".
        line: 1-based line number.
        name: the file, for messages.

    Raises:
        InputError: there is no id, or a carriage return inside.
    """
    content = raw.strip()
    if b"\r" in content:
        raise InputError(
            f"{name}:{line}: a carriage return inside the header; "
            f"convert the file's line ends to LF or CRLF"
        )
    if not content:
        raise InputError(f"{name}:{line}: the record has no id; write one after '>'")
    # Split as bytes: only ASCII blanks end an id, whatever the encoding of the rest.
    record_id = content.split(maxsplit=1)[0]
    return Header(
        id=record_id.decode("utf-8", "backslashreplace"),
        text=content.decode("utf-8", "backslashreplace"),
        line=line,
        topology=stated_topology(content),
    )


def stated_topology(header: bytes) -> int:
    """Return what a header says about the molecule's ends, an index into ``TOPOLOGIES``."""
    found = _STATED.search(header.lower()) if b"=" in header else None
    return TOPOLOGIES.index((found[1] or found[2]).decode()) if found else UNKNOWN
