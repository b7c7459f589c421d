from pathlib import Path

import numpy as np
import pytest

from genomoe.data import fasta, spooling
from genomoe.data.errors import InputError
from genomoe.data.intervals import to_mask
from genomoe.data.spool import Spool, refuse_duplicate_ids, write_records
from genomoe.data.spooling import SpooledFile, spool_file
from genomoe.data.synthetic import write_fasta
from genomoe.data.tokenizer import tokenizer_for


def spooled(folder: Path, *contents: str, alphabet: str = "dna") -> tuple[Spool, list[SpooledFile]]:
    files = []
    for number, content in enumerate(contents):
        path = folder / f"f{number}.fa"
        path.write_text(content)
        files.append(spool_file(path, path.name, number, folder, tokenizer_for(alphabet)))
    write_records(folder, [file.records for file in files])
    return Spool(folder, [file.name for file in files]), files


def text(spool: Spool, record: int, start: int, end: int, alphabet: str = "dna") -> str:
    """Return letters [start, end) of a record with their case."""
    tokens = spool.tokens(np.array([record]), np.array([start]), np.array([end - start]))
    lower = to_mask(spool.lower_case(record, start, end - start), end - start)
    letters = tokenizer_for(alphabet).decode(tokens)
    return "".join(x.lower() if low else x for x, low in zip(letters, lower, strict=True))


@pytest.fixture(params=[3, 5, 1 << 22])
def chunk_bytes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(
        fasta.FastaReader.__init__,
        "__kwdefaults__",
        {"chunk_bytes": request.param, "on_bytes": None},
    )
    return request.param


@pytest.mark.parametrize("max_read_intervals", [0, 1 << 12])
def test_any_part_of_any_record_can_be_read(
    tmp_path: Path, chunk_bytes: int, max_read_intervals: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("genomoe.data.spool._MAX_READ_INTERVALS", max_read_intervals)
    first = "ACgtnNNacGTTTTacgACGT"
    second = "acgtACGTacgtAC"
    spool, _ = spooled(
        tmp_path, f">a x\n{first[:7]}\n{first[7:]}\n>e\n>b\n{second}", ">c y z\nacGT\n"
    )
    expected = [first, second, "acGT"]
    assert spool.records["length"].tolist() == [len(record) for record in expected]
    for record, sequence in enumerate(expected):
        for start in range(len(sequence)):
            for end in range(start + 1, len(sequence) + 1):
                assert text(spool, record, start, end) == sequence[start:end]
    assert list(spool.headers(np.array([2, 0]))) == [("c", "c y z"), ("a", "a x")]
    assert spool.records["line"].tolist() == [1, 5, 1]


def test_stretches_are_joined_in_the_order_asked(tmp_path: Path) -> None:
    spool, _ = spooled(tmp_path, ">a\nAACC\n>b\nGGTT\n")
    tokens = spool.tokens(np.array([1, 0, 1]), np.array([2, 1, 0]), np.array([2, 2, 1]))
    assert tokenizer_for("dna").decode(tokens) == "TTACG"


def test_counts_of_a_file(tmp_path: Path, chunk_bytes: int) -> None:
    _, (file,) = spooled(tmp_path, ">a\nACgt\n>e\n\n>b\nNNRa\n>f\n")
    assert (file.num_records, file.num_empty, file.num_letters) == (2, 2, 8)
    assert file.letters == {"A": 2, "C": 1, "G": 1, "N": 2, "R": 1, "T": 1}
    assert file.lower_case == 3


def test_a_record_all_in_lower_case_has_no_mask(tmp_path: Path, chunk_bytes: int) -> None:
    shouted, whispered, mixed = "A" * 40, "a" * 99 + "A", "a" * 94 + "A" * 6
    spool, (file,) = spooled(tmp_path, f">s\n{shouted}\n>w\n{whispered}\n>m\n{mixed}\n")
    assert file.mask_dropped == 1
    assert text(spool, 0, 0, 40) == shouted
    assert text(spool, 1, 0, 100) == whispered.upper()
    assert text(spool, 2, 0, 100) == mixed


def test_a_final_stop_is_trimmed_once(tmp_path: Path, chunk_bytes: int) -> None:
    spool, (file,) = spooled(
        tmp_path, ">a\nMKV*\n>b\nM*K\n>c\nMK**\n>d\n*\n>e\nMKb\n*\n", alphabet="protein"
    )
    assert file.trimmed_stops == 4
    assert file.num_empty == 1
    found = [text(spool, i, 0, n, "protein") for i, n in enumerate(spool.records["length"])]
    assert found == ["MKV", "M*K", "MK*", "MKx"]


def test_dna_read_as_protein_is_noticed(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"f0\.fa: 1000 of 1000 letters.*--alphabet dna"):
        spooled(tmp_path, ">a\n" + "ACGTN" * 200, alphabet="protein")
    spooled(tmp_path, ">a\n" + "ACGTN" * 9, alphabet="protein")


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        ((">a\nAC\n>b\nAC\n>a x\nAC\n",), "f0.fa:5: record id 'a' was already used at f0.fa:1"),
        ((">a\nAC\n", "\n>b\nA\n>a\nAC\n"), "f1.fa:4: record id 'a' was already used at f0.fa:1"),
        ((">> seq 1\nA\n>> seq 2\nA\n",), "f0.fa:3: record id '>' was already used at f0.fa:1"),
    ],
)
def test_ids_must_be_unique(tmp_path: Path, contents: tuple[str, ...], message: str) -> None:
    spool, _ = spooled(tmp_path, *contents)
    with pytest.raises(InputError) as caught:
        refuse_duplicate_ids(spool)
    assert str(caught.value).startswith(message)


def test_equal_hashes_of_different_ids_are_not_duplicates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Constant:
        def __init__(self, *_: object, **__: object) -> None: ...

        def digest(self) -> bytes:
            return bytes(8)

    monkeypatch.setattr(spooling.hashlib, "blake2b", Constant)
    spool, _ = spooled(tmp_path, ">a\nAC\n>b\nAC\n")
    assert spool.records["id_hash"].tolist() == [0, 0]
    refuse_duplicate_ids(spool)


def test_many_files_need_few_descriptors(tmp_path: Path) -> None:
    contents = [f">r{i}\n{'ACGT' * (i + 1)}\n" for i in range(100)]
    spool, _ = spooled(tmp_path, *contents)
    with spool:
        for record in range(100):
            assert len(text(spool, record, 0, 4 * record + 4)) == 4 * record + 4
        assert len(spool._open) <= 64


def test_fasta_writer_and_reader_agree(tmp_path: Path) -> None:
    path = write_fasta(tmp_path / "x.fa.gz", [("a", "ACGT" * 50), ("b", "")], width=7)
    file = spool_file(path, "x", 0, tmp_path, tokenizer_for("dna"))
    assert file.records["length"].tolist() == [200]
    assert file.num_empty == 1
