"""Order-k baselines: what the last few letters alone say about the next one.

    p_k(x | c) = (n(c, x) + a_k * p_{k-1}(x | c')) / (n(c) + a_k),    p_{-1} uniform

n counts words of the training letters, c is the k letters before x, and c' is c without its
oldest letter (Jelinek-Mercer interpolation with the strength of a Dirichlet prior: MacKay and
Peto 1995, "A hierarchical Dirichlet language model"). The strengths a_k and the order called
best are chosen on validation letters, never on the letters that are reported.

A document is an array of symbols 0 to A - 1; -1 marks a letter that is nowhere counted or scored
and that ends the contexts after it. A letter with fewer than k letters of context is given the
longest context that it has, as a model is at the start of its window.

Worked number: after counting "AAAB" over {A, B}, n(A) = 3 and n(B) = 1, so with a_0 = 2 order 0
gives p(A) = (3 + 2 * 0.5) / (4 + 2) = 2/3.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

STRENGTHS = tuple(0.5 * 2.0**i for i in range(11))
"""Candidates for a_k: 0.5 to 512 imagined observations."""
_BATCH_LETTERS = 1 << 22
_BREAK = np.full(1, -1, dtype=np.int8)


@dataclass(frozen=True, kw_only=True)
class Document:
    """A contiguous stretch of letters.

    Attributes:
        symbols: int8 [n], 0 to A - 1, or -1.
        begin: First letter to count or score; those before it are context.
        end: End of the letters to count or score.
    """

    symbols: np.ndarray
    begin: int
    end: int


@dataclass(frozen=True, kw_only=True)
class Counts:
    """Word counts of every order.

    Attributes:
        alphabet_size: A.
        tables: For each order k, int64 [A**k, A]: how often each letter follows each context.
            The number of a context has the oldest letter as its highest digit.
    """

    alphabet_size: int
    tables: tuple[np.ndarray, ...]

    @property
    def max_order(self) -> int:
        """Highest order counted."""
        return len(self.tables) - 1


@dataclass(frozen=True, kw_only=True)
class OrderK:
    """Interpolated models of order 0 to the highest, and the order that validation prefers.

    Attributes:
        counts: Of the training letters.
        strengths: a_k of each order.
        valid_nats: Mean over the validation letters under each order.
    """

    counts: Counts
    strengths: tuple[float, ...]
    valid_nats: tuple[float, ...]

    @property
    def best_order(self) -> int:
        """The lowest of the orders that are best on validation."""
        return int(np.argmin(self.valid_nats))

    def nats(
        self, documents: Iterable[Document], contexts: np.ndarray | None = None
    ) -> Iterator[np.ndarray]:
        """Score letters with every order at once, a few million letters at a time.

        Args:
            documents: Letters to score.
            contexts: Letters of context that each scored letter may use, int64, in the order of
                the letters; by default all before it in its document.

        Yields:
            Nats, float64 [orders, letters], letters in order; NaN where a letter is -1.
        """
        counts = self.counts
        for batch in _batches(documents, counts.max_order, contexts):
            rows = []
            probability = np.full(len(batch.symbols), 1.0 / counts.alphabet_size)
            for order, words in batch.words(counts.alphabet_size, counts.max_order):
                evidence = _look_up(counts.tables[order], words, batch.usable >= order)
                probability = evidence.mix(self.strengths[order], probability)
                rows.append(np.where(batch.symbols >= 0, -np.log(probability), np.nan))
            yield np.stack(rows)


def count(
    documents: Iterable[Document],
    *,
    alphabet_size: int,
    max_order: int,
    complement: Sequence[int] | None = None,
) -> Counts:
    """Count words of the training letters.

    Args:
        documents: Training letters.
        alphabet_size: A.
        max_order: Highest order; the largest table has A**(max_order + 1) entries.
        complement: Complementary symbol of each; given, the words of both strands are counted.
    """
    size = alphabet_size
    # Words cut short by the start of a document, by order; whole ones are all in the last.
    tables = [np.zeros(size ** (order + 1), dtype=np.int64) for order in range(max_order + 1)]
    for batch in _batches(documents, max_order, None):
        for order, words in batch.words(size, max_order):
            here = words[(batch.usable == order) & (batch.symbols >= 0)]
            tables[order] += np.bincount(here, minlength=len(tables[order]))
    for order in range(max_order - 1, -1, -1):
        tables[order] += tables[order + 1].reshape(size, -1).sum(axis=0)
    if complement is not None:
        tables = [table + _other_strand(table, complement) for table in tables]
    return Counts(alphabet_size=size, tables=tuple(table.reshape(-1, size) for table in tables))


def choose(
    counts: Counts, valid: Iterable[Document], *, strengths: Sequence[float] = STRENGTHS
) -> OrderK:
    """Choose the strength of each order on validation letters, from order 0 upwards.

    Args:
        counts: Of the training letters.
        valid: Validation letters.
        strengths: Candidates.

    Raises:
        ValueError: If no validation letter can be scored.
    """
    batches = [batch.only_scored() for batch in _batches(valid, counts.max_order, None)]
    letters = sum(len(batch.symbols) for batch in batches)
    if not letters:
        raise ValueError("no validation letter can be scored")
    walks = [batch.words(counts.alphabet_size, counts.max_order) for batch in batches]
    lower = [np.full(len(batch.symbols), 1.0 / counts.alphabet_size) for batch in batches]
    chosen, means = [], []
    for order, table in enumerate(counts.tables):
        evidence = [
            _look_up(table, next(walk)[1], batch.usable >= order)
            for walk, batch in zip(walks, batches, strict=True)
        ]
        totals = [
            sum(-float(np.log(p).sum()) for p in _mix_all(evidence, strength, lower))
            for strength in strengths
        ]
        best = int(np.argmin(totals))
        lower = list(_mix_all(evidence, strengths[best], lower))
        chosen.append(float(strengths[best]))
        means.append(totals[best] / letters)
    return OrderK(counts=counts, strengths=tuple(chosen), valid_nats=tuple(means))


@dataclass(frozen=True, kw_only=True)
class _Evidence:
    """What the counts of one order say about some letters."""

    seen: np.ndarray
    """How often the letter followed its context."""
    total: np.ndarray
    """How often the context occurred."""
    applies: np.ndarray
    """Whether the letter has so much context."""

    def mix(self, strength: float, lower: np.ndarray) -> np.ndarray:
        """Interpolate with the probabilities of the order below."""
        mixed = (self.seen + strength * lower) / (self.total + strength)
        return np.where(self.applies, mixed, lower)


def _mix_all(
    evidence: Sequence[_Evidence], strength: float, lower: Sequence[np.ndarray]
) -> Iterator[np.ndarray]:
    for item, below in zip(evidence, lower, strict=True):
        yield item.mix(strength, below)


def _look_up(table: np.ndarray, words: np.ndarray, applies: np.ndarray) -> _Evidence:
    totals = table.sum(axis=1)
    return _Evidence(
        seen=table.ravel()[words], total=totals[words // table.shape[1]], applies=applies
    )


def _other_strand(table: np.ndarray, complement: Sequence[int]) -> np.ndarray:
    """Move the count of every word to its reverse complement.

    Args:
        table: [A**n], by word.
        complement: Complementary symbol of each.
    """
    size = len(complement)
    length = round(np.log(len(table)) / np.log(size))
    moved = table.reshape((size,) * length).transpose()
    for axis in range(length):
        moved = np.take(moved, complement, axis=axis)
    return moved.ravel()


@dataclass(frozen=True, kw_only=True)
class _Batch:
    """Letters to count or score, and where to find those before them."""

    history: np.ndarray
    """int8: stretches of documents, each preceded by one -1."""
    positions: np.ndarray
    """int64 [m]: where the letters are in the history."""
    usable: np.ndarray
    """int64 [m]: letters of context, at most the highest order."""

    @property
    def symbols(self) -> np.ndarray:
        """The letters, int8 [m]."""
        return self.history[self.positions]

    def only_scored(self) -> "_Batch":
        """Leave out letters that are -1."""
        keep = self.symbols >= 0
        return _Batch(
            history=self.history, positions=self.positions[keep], usable=self.usable[keep]
        )

    def words(self, size: int, max_order: int) -> Iterator[tuple[int, np.ndarray]]:
        """Yield (k, number of the word of context and letter, int64 [m]) for k = 0, 1, ...

        Letters that may not be used count as 0 in the number; so does -1.
        """
        words = np.maximum(self.symbols, 0).astype(np.int64)
        yield 0, words
        for order in range(1, max_order + 1):
            before = self.history[np.maximum(self.positions - order, 0)].astype(np.int64)
            words = words + np.where(self.usable >= order, before, 0) * size**order
            yield order, words


def _batches(
    documents: Iterable[Document], max_order: int, contexts: np.ndarray | None
) -> Iterator[_Batch]:
    """Cut documents into batches of bounded size without shortening any context."""
    stretches: list[np.ndarray] = []
    targets: list[np.ndarray] = []
    length = done = 0
    for document in documents:
        for begin in range(document.begin, document.end, _BATCH_LETTERS):
            end = min(document.end, begin + _BATCH_LETTERS)
            stretch = document.symbols[max(0, begin - max_order) : end]
            length += 1 + len(stretch)
            stretches += [_BREAK, stretch]
            targets.append(np.arange(length - (end - begin), length))
            if length >= _BATCH_LETTERS:
                batch = _batch(stretches, targets, max_order, contexts, done)
                done += len(batch.positions)
                stretches, targets, length = [], [], 0
                yield batch
    if targets:
        yield _batch(stretches, targets, max_order, contexts, done)


def _batch(
    stretches: Sequence[np.ndarray],
    targets: Sequence[np.ndarray],
    max_order: int,
    contexts: np.ndarray | None,
    done: int,
) -> _Batch:
    history = np.concatenate(stretches)
    positions = np.concatenate(targets)
    places = np.arange(len(history))
    last_break = np.maximum.accumulate(np.where(history < 0, places, 0))
    usable = np.minimum(positions - 1 - last_break[positions - 1], max_order)
    if contexts is not None:
        usable = np.minimum(usable, contexts[done : done + len(positions)])
    return _Batch(history=history, positions=positions, usable=usable)
