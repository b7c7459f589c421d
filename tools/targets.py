"""What is scored: a split of a data set, or the records of a FASTA file."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from genomoe.data.errors import InputError
from genomoe.data.fasta import FastaReader
from genomoe.data.intervals import empty_intervals
from genomoe.data.pieces import Piece
from genomoe.data.tokenizer import Tokenizer


def read_fasta(path: Path, tokenizer: Tokenizer) -> list[Piece]:
    """Read whole records, every letter to be scored.

    Raises:
        InputError: If the file is not FASTA of this alphabet.
    """
    ids: list[str] = []
    parts: list[list[bytes]] = []
    with FastaReader(path, str(path), tokenizer) as reader:
        for chunk in reader:
            ends = [*chunk.starts.tolist(), len(chunk.tokens)]
            if parts:  # the record that the last chunk left open
                parts[-1].append(chunk.tokens[: ends[0]])
            for header, begin, end in zip(chunk.headers, ends, ends[1:], strict=False):
                ids.append(header.id)
                parts.append([chunk.tokens[begin:end]])
    return [
        _whole_record(path, number, record_id, b"".join(pieces))
        for number, (record_id, pieces) in enumerate(zip(ids, parts, strict=True))
    ]


def _whole_record(path: Path, number: int, record_id: str, tokens: bytes) -> Piece:
    return Piece(
        record_id=record_id,
        record=number,
        file=path.name,
        start=0,
        tokens=np.frombuffer(tokens, dtype=np.uint8),
        scored_begin=0,
        scored_end=len(tokens),
        lower_intervals=empty_intervals(),
    )


def scored_mask(pieces: Sequence[Piece], tokenizer: Tokenizer) -> np.ndarray:
    """Whether each letter in the scored ranges counts, bool, in scoring order."""
    parts = [p.tokens[p.scored_begin : p.scored_end] for p in pieces]
    letters = np.concatenate(parts) if parts else np.zeros(0, dtype=np.uint8)
    return tokenizer.is_scored[letters]


def count_skipped(pieces: Sequence[Piece], tokenizer: Tokenizer) -> dict[str, int]:
    """Count the letters that are read but not scored, by reason."""
    scored = np.zeros(256, dtype=np.int64)
    guard = 0
    for piece in pieces:
        targets = piece.tokens[piece.scored_begin : piece.scored_end]
        scored += np.bincount(targets, minlength=256)
        guard += len(piece.tokens) - len(targets)
    skipped = {
        tokenizer.decode([token]): int(number)
        for token, number in enumerate(scored)
        if number and not tokenizer.is_scored[token]
    }
    return {f"letter {letter}": number for letter, number in skipped.items()} | (
        {"guard": guard} if guard else {}
    )


def require_letters(mask: np.ndarray, skipped: dict[str, int], what: str, unit: str) -> None:
    """Refuse to report on nothing.

    Raises:
        InputError: If no letter is scored, with the reason.
    """
    if mask.any():
        return
    reasons = ", ".join(f"{reason}: {number:,}" for reason, number in skipped.items())
    raise InputError(
        f"{what}: no {unit} to score ({reasons or 'it has no letters'}); "
        f"only the {'four bases' if unit == 'base' else 'twenty amino acids'} are scored"
    )
