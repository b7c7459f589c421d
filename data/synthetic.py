"""Small seeded genomes and proteins with structure that a model can learn; for tests and demos.

Letters come from a Markov chain whose transition table is drawn from the seed. Raw Philox output is
used, which is the same in every numpy version.
"""

import gzip
from collections.abc import Iterable
from pathlib import Path

import numpy as np

_LANES = 64
_AMINO_ACIDS = "ACDEFGHIKLMNPQRSTVWY"


class MarkovSource:
    """A chain in which each letter depends on the ``order`` letters before it.

    Attributes:
        order: letters that the next one depends on.
        transitions: probability of each next letter, [size**order contexts, size]. A context is
            the number that its letters spell, the oldest first.
    """

    def __init__(self, order: int, seed: int, size: int = 4) -> None:
        self.order, self._size = order, size
        shape = (size**order, size)
        # Squared exponential weights: some transitions are likely, none is impossible.
        weights = np.log(_uniform(seed, 2, shape[0] * size)).reshape(shape) ** 2
        self.transitions = weights / weights.sum(axis=1, keepdims=True)

    def sample(self, length: int, lanes: int, seed: int, stream: int) -> np.ndarray:
        """Draw stretches of letter numbers side by side, [length, lanes].

        Each starts ``order`` letters after a context of zeros, which are not returned.
        """
        draws = _uniform(seed, stream, lanes * (length + self.order)).reshape(-1, lanes)
        limits = np.cumsum(self.transitions, axis=1)[:, :-1]
        letters = np.zeros((length + self.order, lanes), dtype=np.int64)
        context = np.zeros(lanes, dtype=np.int64)
        for step, draw in enumerate(draws):
            letters[step] = (draw[:, None] >= limits[context]).sum(axis=1)
            context = self.next_context(context, letters[step])
        return letters[self.order :]

    def next_context(self, context: np.ndarray, letter: np.ndarray) -> np.ndarray:
        """Context after a letter has followed."""
        return (context * self._size + letter) % len(self.transitions)

    def advance(self, share: np.ndarray) -> np.ndarray:
        """Probability of each context one letter later, given it now; both [contexts]."""
        contexts = np.arange(len(self.transitions))
        follows = self.next_context(contexts[:, None], np.arange(self._size))
        flow = share[:, None] * self.transitions
        return np.bincount(follows.ravel(), flow.ravel(), minlength=len(contexts))

    def first_contexts(self) -> np.ndarray:
        """Probability that a stretch of `sample` begins with each context, [contexts]."""
        share = np.eye(len(self.transitions))[0]
        for _ in range(2 * self.order):
            share = self.advance(share)
        return share

    def entropy_bits(self) -> float:
        """Bits of a letter when the letters before it are known: no model can do better.

        Mean over the contexts' stationary distribution (Shannon 1948, section 7).
        """
        share = np.full(len(self.transitions), 1.0 / len(self.transitions))
        for _ in range(10_000):
            after = self.advance(share)
            if np.abs(after - share).max() < 1e-15:
                break
            share = after
        return float(-(share[:, None] * self.transitions * np.log2(self.transitions)).sum())


def markov_genome(length: int, order: int, seed: int) -> str:
    """Return ``length`` bases in which each depends on the ``order`` bases before it.

    Sixty-four stretches are drawn side by side and joined, so the dependence is broken at 63
    places.
    """
    return _markov(length, "ACGT", order, seed)


def markov_proteins(count: int, mean_length: int, seed: int) -> list[str]:
    """Return proteins of 10 to ``2 * mean_length`` residues, each starting with M."""
    spread = _uniform(seed, 1, count)
    lengths = 10 + (spread * (2 * mean_length - 10)).astype(np.int64)
    residues = _markov(int(lengths.sum()), _AMINO_ACIDS, 1, seed)
    ends = np.cumsum(lengths)
    pairs = zip(ends - lengths, ends, strict=True)
    return ["M" + residues[begin + 1 : end] for begin, end in pairs]


def write_fasta(path: Path, records: Iterable[tuple[str, str]], width: int = 70) -> Path:
    """Write (header, sequence) records; compressed when the name ends in ``.gz``.

    Args:
        path: the file.
        records: headers without ">", and sequences.
        width: letters per line; 0 for one line per record.
    """
    lines = []
    for header, sequence in records:
        step = width or max(1, len(sequence))
        lines.append(f">{header}\n")
        lines += [sequence[i : i + step] + "\n" for i in range(0, len(sequence), step)]
    data = "".join(lines).encode("ascii")
    path.write_bytes(gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)
    return path


def _markov(length: int, alphabet: str, order: int, seed: int) -> str:
    source = MarkovSource(order, seed, size=len(alphabet))
    numbers = source.sample(-(-length // _LANES), _LANES, seed, stream=3).T.ravel()[:length]
    return np.frombuffer(alphabet.encode("ascii"), np.uint8)[numbers].tobytes().decode("ascii")


def _uniform(seed: int, stream: int, count: int) -> np.ndarray:
    """Return numbers in (0, 1)."""
    raw = np.random.Philox(key=np.array([seed, stream], dtype=np.uint64)).random_raw(count)
    return ((raw >> np.uint64(11)).astype(np.float64) + 0.5) / 2.0**53
