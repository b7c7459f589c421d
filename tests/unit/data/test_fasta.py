import gzip
import hashlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from genomoe.data.errors import InputError
from genomoe.data.fasta import MAX_HEADER_BYTES, FastaReader, count_bytes
from genomoe.data.intervals import to_mask
from genomoe.data.tokenizer import tokenizer_for

Records = list[tuple[str, str, int]]


def read(path: Path, alphabet: str = "dna", chunk_bytes: int = 1 << 22) -> Records:
    """Return (header, sequence with its case, line) of every record."""
    tokenizer = tokenizer_for(alphabet)
    letters, headers, starts, lower = "", [], [], []
    with FastaReader(path, path.name, tokenizer, chunk_bytes=chunk_bytes) as reader:
        for chunk in reader:
            starts += [len(letters) + start for start in chunk.starts.tolist()]
            headers += chunk.headers
            letters += tokenizer.decode(np.frombuffer(chunk.tokens, np.uint8))
            lower += to_mask(chunk.lower_case, len(chunk.tokens)).tolist()
        assert reader.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
        assert reader.num_bytes == path.stat().st_size
    cased = "".join(x.lower() if low else x for x, low in zip(letters, lower, strict=True))
    ends = [*starts[1:], len(cased)]
    return [
        (header.text, cased[begin:end], header.line)
        for header, begin, end in zip(headers, starts, ends, strict=True)
    ]


def fails(path: Path, content: bytes, alphabet: str = "dna") -> str:
    path.write_bytes(content)
    with pytest.raises(InputError) as caught:
        read(path, alphabet)
    message = str(caught.value)
    assert message.startswith("x.fa")
    assert "\n" not in message
    return message


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "x.fa"


@pytest.mark.parametrize(
    "content",
    [
        b">a one\nACGTAC\nGTn\n>b\nTTT\n",
        b">a one\r\nACGTAC\r\nGTn\r\n>b\r\nTTT\r\n",
        b">a one\nACGTACGTn\n>b\nTTT",
        b">a one  \nACG \t\n\n\nTACGTn\n\n\n>b\n\nT\nT\nT\n\n\n",
        b"\xef\xbb\xbf>a one\nACGTACGTn\n>b\nTTT\n",
        b"\n \r\n> a one\nACG TACGTn\n>b\nTTT\n",
    ],
)
@pytest.mark.parametrize("chunk_bytes", [3, 4, 7, 1 << 22])
def test_layout_of_the_file_does_not_matter(path: Path, content: bytes, chunk_bytes: int) -> None:
    for data in (
        content,
        gzip.compress(content),
        gzip.compress(content[:9]) + gzip.compress(content[9:]),
    ):
        path.write_bytes(data)
        records = read(path, chunk_bytes=chunk_bytes)
        assert [record[:2] for record in records] == [("a one", "ACGTACGTn"), ("b", "TTT")]


def test_header_lines_are_counted(path: Path) -> None:
    path.write_bytes(b"\n>a\nAC\n\nGT\n>b\n>c\nA\n")
    for chunk_bytes in (1, 5, 100):
        assert read(path, chunk_bytes=chunk_bytes) == [
            ("a", "ACGT", 2),
            ("b", "", 6),
            ("c", "A", 7),
        ]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(
    records=st.lists(st.text("ACGTNacgtnRy", max_size=40), min_size=1, max_size=5),
    width=st.integers(1, 12),
    chunk_bytes=st.integers(1, 40),
    line_end=st.sampled_from(["\n", "\r\n"]),
)
def test_any_records_come_back(
    path: Path, records: list[str], width: int, chunk_bytes: int, line_end: str
) -> None:
    text = ""
    for number, sequence in enumerate(records):
        lines = [f">r{number} >not a header"]
        lines += [sequence[i : i + width] for i in range(0, len(sequence), width)]
        text += line_end.join(lines) + line_end
    path.write_bytes(text.encode())
    found = read(path, chunk_bytes=chunk_bytes)
    assert [sequence for _, sequence, _ in found] == records
    assert [header for header, _, _ in found] == [
        f"r{number} >not a header" for number in range(len(records))
    ]


def test_letters_are_counted_as_written(path: Path) -> None:
    path.write_bytes(b">a\nMKbz\nu*\n")
    with FastaReader(path, "x.fa", tokenizer_for("protein")) as reader:
        (chunk,) = reader
    expected = dict.fromkeys(b"MKbzu*", 1)
    assert {i: n for i, n in enumerate(chunk.letter_counts.tolist()) if n} == expected


@given(st.binary(max_size=300))
def test_count_bytes(data: bytes) -> None:
    assert np.array_equal(count_bytes(data), np.bincount(list(data), minlength=256))


def test_headers_may_be_long_and_not_unicode(path: Path) -> None:
    header = b"id " + b"x" * (MAX_HEADER_BYTES - 100) + b"\xff"
    path.write_bytes(b">" + header + b"\nACGT\n")
    for chunk_bytes in (1000, 1 << 22):
        ((text, sequence, _),) = read(path, chunk_bytes=chunk_bytes)
        assert text.endswith("x\\xff")
        assert sequence == "ACGT"
    path.write_bytes(b">" + header * 3 + b"\nACGT\n")
    with pytest.raises(InputError, match=r"x\.fa:1: the header is longer"):
        read(path, chunk_bytes=1000)


def test_id_ends_at_the_first_ascii_blank(path: Path) -> None:
    path.write_bytes(">\t sp|P1\u00a0x\tname\nACGT\n".encode())
    with FastaReader(path, "x.fa", tokenizer_for("dna")) as reader:
        (chunk,) = reader
    assert chunk.headers[0].id == "sp|P1\u00a0x"


@pytest.mark.parametrize("chunk_bytes", [1, 4, 1 << 22])
@pytest.mark.parametrize(
    ("content", "place"),
    [
        (
            b">a\nACGT\nAC-T\n",
            "x.fa:3: letter '-' at column 3 is not in the dna alphabet (record a)",
        ),
        (b"\r\n>a\r\nACGT\r\n>b x\r\nAC!\r\n", "x.fa:5: letter '!' at column 3"),
        (b">a\nAC>b\nAC\n", "x.fa:2: letter '>' at column 3"),
        (b">a\nAC\n >b\nAC\n", "x.fa:3: letter '>' at column 2"),
        (b">a\nACGU", "x.fa:2: letter 'U' at column 4"),
        (b">a\nAC\x00", "x.fa:2: byte 0x00 at column 3".replace("byte", "letter byte")),
        (b">a\nAC\xc3\xa9", "x.fa:2: letter byte 0xc3 at column 3"),
        (b">a\n;comment\nAC", "x.fa:2: letter ';' at column 1"),
        (b">a\nAC\n>b\nA\n>c\nACGTACGTACGTACGT1\n", "x.fa:6: letter '1' at column 17 "),
        (b">a\nA\rC\r*\n", "x.fa:2: letter '*' at column 5"),
    ],
)
def test_wrong_letters_are_located(
    path: Path, content: bytes, place: str, chunk_bytes: int
) -> None:
    path.write_bytes(content)
    with pytest.raises(InputError) as caught:
        read(path, chunk_bytes=chunk_bytes)
    assert str(caught.value).startswith(place)


def test_wrong_letter_far_into_a_single_line(path: Path) -> None:
    path.write_bytes(b">a\n" + b"ACGT" * 50_000 + b"5" + b"ACGT" * 50_000)
    with pytest.raises(InputError, match=r"x\.fa:2: letter '5' at column 200001 .*record a"):
        read(path, chunk_bytes=4096)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is empty"),
        (gzip.compress(b""), "is empty"),
        (b"\n\n  \r\n", "only blank lines"),
        (b"ACGT\n>a\nACGT\n", "not FASTA: line 1 starts with 'ACGT'"),
        (b"\n\nACGT\n", "x.fa:3: not FASTA: line 3"),
        (b"<!DOCTYPE html>\n<html>", "web page"),
        (b"@read1\nACGT\n+\nIIII\n", "FASTQ"),
        (b"LOCUS       X\n", "GenBank"),
        (b";comment\n>a\nACGT\n", "comment"),
        (gzip.compress(b"BAM\x01\x00\x00"), "not FASTA"),
        (b"BZh91AY", "bzip2"),
        (b"\xfd7zXZ\x00", "xz"),
        (b"\x28\xb5\x2f\xfd", "zstd"),
        (b"PK\x03\x04", "zip"),
        (b"\xff\xfe>\x00a\x00", "not FASTA"),
        (b">\nACGT\n", "x.fa:1: the record has no id"),
        (b">a\nAC\n>  \t\nACGT\n", "x.fa:3: the record has no id"),
        (b">a\rACGT\r>b\rACGT\r", "x.fa:1: a carriage return inside the header"),
        (gzip.compress(b">a\n" + b"ACGT" * 5000)[:-20], "truncated"),
        (gzip.compress(b">a\nACGT\n")[:9], "truncated"),
        (gzip.compress(b">a\nACGT\n") + b"garbage", "damaged"),
    ],
)
def test_files_that_are_not_fasta(path: Path, content: bytes, words: str) -> None:
    assert words in fails(path, content)


def test_damaged_gzip_is_refused(path: Path) -> None:
    data = bytearray(
        gzip.compress(b">a\n" + bytes(np.random.default_rng(1).choice(list(b"ACGT"), 9000)))
    )
    data[len(data) // 2] ^= 0xFF
    assert "gzip data is" in fails(path, bytes(data))


def test_what_cannot_be_opened(tmp_path: Path) -> None:
    for name, words in (("none.fa", "no such file"), ("*.fa", "left to the shell")):
        with pytest.raises(InputError, match=words):
            read(tmp_path / name)
    with pytest.raises(InputError, match="is a directory"):
        read(tmp_path)


def test_alphabets_read_their_letters(path: Path) -> None:
    path.write_bytes(b">a\nACGUTacgut\n")
    assert read(path, "rna")[0][1] == "ACGUUacguu"
    path.write_bytes(b">a\nMKX*BZ\n")
    assert read(path, "protein")[0][1] == "MKX*XX"
    assert "--alphabet rna" in fails(path, b">a\nACGU\n")
    assert "--alphabet protein" in fails(path, b">a\nMKLE\n")
    assert "gaps of an alignment" in fails(path, b">a\nMK-LE\n", "protein")
