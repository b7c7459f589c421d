import gzip
from pathlib import Path

import numpy as np
import pytest

from genomoe.data.synthetic import MarkovSource, markov_genome, markov_proteins, write_fasta


def test_genomes_depend_on_the_seed_alone() -> None:
    assert markov_genome(10_000, 3, 1) == markov_genome(10_000, 3, 1)
    assert markov_genome(10_000, 3, 1) != markov_genome(10_000, 3, 2)
    assert markov_genome(40, 2, 7) == "TCACGGGGGAGCCGCACTTGCGGGGGGAAACCTCAAGTCG"
    for length in (1, 63, 64, 65, 1000):
        genome = markov_genome(length, 2, 3)
        assert len(genome) == length
        assert set(genome) <= set("ACGT")


def test_genomes_can_be_learned() -> None:
    genome = markov_genome(200_000, 1, 4)
    pairs = [genome[i : i + 2] for i in range(len(genome) - 1)]
    counts = {pair: pairs.count(pair) for pair in set(pairs)}
    assert max(counts.values()) > 3 * min(counts.values())


def test_the_entropy_of_a_source() -> None:
    # By hand: of order 0, and of order 1 over two letters, whose stationary shares are known.
    p = MarkovSource(0, 2).transitions[0]
    assert MarkovSource(0, 2).entropy_bits() == pytest.approx(-(p * np.log2(p)).sum(), abs=1e-12)
    two = MarkovSource(1, 6, size=2)
    (_, to_1), (to_0, _) = two.transitions
    share = np.array([to_0, to_1]) / (to_0 + to_1)
    rows = -(two.transitions * np.log2(two.transitions)).sum(axis=1)
    assert two.entropy_bits() == pytest.approx(float(share @ rows), abs=1e-12)


@pytest.mark.parametrize("order", [1, 3])
def test_a_sample_follows_its_source(order: int) -> None:
    source = MarkovSource(order, 5)
    letters = source.sample(2_000, 100, seed=1, stream=9)
    assert letters.shape == (2_000, 100)
    assert (letters == source.sample(2_000, 100, seed=1, stream=9)).all()
    assert (letters != source.sample(2_000, 100, seed=1, stream=10)).mean() > 0.5
    context = np.zeros(100, dtype=np.int64)
    counts = np.zeros((4**order, 4))
    for step, letter in enumerate(letters):
        if step >= order:
            np.add.at(counts, (context, letter), 1)
        context = source.next_context(context, letter)
    seen = counts.sum(axis=1, keepdims=True)
    # Five standard errors of a share, entry by entry.
    limit = 5 * np.sqrt(source.transitions * (1 - source.transitions) / seen) + 1e-3
    assert (np.abs(counts / seen - source.transitions) < limit).all()
    bits = -(counts * np.log2(source.transitions)).sum() / counts.sum()
    assert bits == pytest.approx(source.entropy_bits(), abs=0.01)


def test_the_contexts_that_samples_begin_with() -> None:
    source = MarkovSource(1, 3)
    first = source.sample(1, 200_000, seed=4, stream=1)[0]
    shares = np.bincount(first, minlength=4) / len(first)
    assert shares == pytest.approx(source.first_contexts(), abs=0.005)
    assert source.first_contexts() == pytest.approx(
        np.linalg.matrix_power(source.transitions, 2)[0], abs=1e-12
    )


def test_proteins() -> None:
    proteins = markov_proteins(50, 80, 1)
    assert proteins == markov_proteins(50, 80, 1)
    assert {protein[0] for protein in proteins} == {"M"}
    lengths = [len(protein) for protein in proteins]
    assert min(lengths) >= 10
    assert 60 < sum(lengths) / 50 < 110


def test_fasta_files(tmp_path: Path) -> None:
    records = [("a b", "ACGTA"), ("c", "")]
    plain = write_fasta(tmp_path / "x.fa", records, width=2).read_bytes()
    assert plain == b">a b\nAC\nGT\nA\n>c\n"
    packed = write_fasta(tmp_path / "x.fa.gz", records, width=0).read_bytes()
    assert gzip.decompress(packed) == b">a b\nACGTA\n>c\n"
    assert packed == write_fasta(tmp_path / "y.fa.gz", records, width=0).read_bytes()
