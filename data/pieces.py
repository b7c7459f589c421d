"""Contiguous pieces of records, as evaluation and baselines read them."""

from dataclasses import dataclass, field

import numpy as np

from genomoe.data.intervals import to_mask


@dataclass(frozen=True, kw_only=True)
class Piece:
    """One contiguous stretch of a record."""

    record_id: str
    record: int
    """Number of the record in ``index/records.json``."""
    file: str
    """Input file of the record; documents of one file are one group."""
    start: int
    """0-based coordinate in the record of the first letter."""
    tokens: np.ndarray
    """uint8 [n] letters, context included; read-only."""
    scored_begin: int
    """Only letters in [scored_begin, scored_end) may be targets, of those the tokenizer scores."""
    scored_end: int
    lower_intervals: np.ndarray
    """int64 [m, 2] soft-masked intervals in the piece."""

    @property
    def lower_case(self) -> np.ndarray:
        """Whether each letter is soft-masked, bool [n]."""
        return to_mask(self.lower_intervals, len(self.tokens))


@dataclass(kw_only=True)
class PieceBuilder:
    """Joins the consecutive segments of one piece."""

    record_id: str
    record: int
    file: str
    start: int
    _length: int = 0
    _tokens: list[np.ndarray] = field(default_factory=list)
    _intervals: list[np.ndarray] = field(default_factory=list)
    _scored: list[tuple[int, int]] = field(default_factory=list)

    def is_continued_by(self, record: int, start: int) -> bool:
        """Return whether a document is the next segment of this piece.

        Different pieces of a record never touch: gaps or other splits lie between them.
        """
        return record == self.record and start == self.start + self._length

    def append(
        self, tokens: np.ndarray, lower_intervals: np.ndarray, scored_begin: int, scored_end: int
    ) -> None:
        """Add the next segment; intervals and scored range are relative to it."""
        self._tokens.append(tokens)
        self._intervals.append(lower_intervals + self._length)
        if scored_begin < scored_end:
            self._scored.append((scored_begin + self._length, scored_end + self._length))
        self._length += len(tokens)

    def build(self) -> Piece:
        """Return the piece."""
        return Piece(
            record_id=self.record_id,
            record=self.record,
            file=self.file,
            start=self.start,
            tokens=self._tokens[0] if len(self._tokens) == 1 else np.concatenate(self._tokens),
            scored_begin=self._scored[0][0] if self._scored else 0,
            scored_end=self._scored[-1][1] if self._scored else 0,
            lower_intervals=np.concatenate(self._intervals),
        )
