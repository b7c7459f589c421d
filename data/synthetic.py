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
    size = len(alphabet)
    num_contexts = size**order
    # Squared exponential weights: some transitions are likely, none is impossible.
    weights = np.log(_uniform(seed, 2, num_contexts * size)).reshape(num_contexts, size) ** 2
    limits = np.cumsum(weights / weights.sum(axis=1, keepdims=True), axis=1)[:, :-1]
    steps = -(-length // _LANES)
    draws = _uniform(seed, 3, _LANES * (steps + order)).reshape(steps + order, _LANES)
    letters = np.zeros((steps + order, _LANES), dtype=np.int64)
    context = np.zeros(_LANES, dtype=np.int64)
    for step in range(steps + order):
        letters[step] = (draws[step][:, None] >= limits[context]).sum(axis=1)
        context = (context * size + letters[step]) % num_contexts
    codes = np.frombuffer(alphabet.encode("ascii"), np.uint8)[letters[order:].T.ravel()[:length]]
    return codes.tobytes().decode("ascii")


def _uniform(seed: int, stream: int, count: int) -> np.ndarray:
    """Return numbers in (0, 1)."""
    raw = np.random.Philox(key=np.array([seed, stream], dtype=np.uint64)).random_raw(count)
    return ((raw >> np.uint64(11)).astype(np.float64) + 0.5) / 2.0**53
