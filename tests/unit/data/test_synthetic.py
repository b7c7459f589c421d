import gzip
from pathlib import Path

from genomoe.data.synthetic import markov_genome, markov_proteins, write_fasta


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
