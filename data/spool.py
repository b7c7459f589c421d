"""First pass: one FASTA file becomes flat files that any part can be read from at random.

For file number i the spool folder holds ``i.tokens`` (one byte per letter, all records back to
back), ``i.case_begin`` and ``i.case_end`` (int64, lower-case intervals in letters of the file) and
``i.headers`` (the headers back to back). The record table ties them together. Nothing here depends
on how the file was chunked, and memory does not grow with the length of a record.
"""

import hashlib
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from genomoe.data.errors import InputError
from genomoe.data.fasta import FastaChunk, FastaReader
from genomoe.data.intervals import RunJoiner, clip, empty_intervals
from genomoe.data.tokenizer import ILLEGAL, Tokenizer

RECORD = np.dtype(
    [
        ("file", "<i8"),
        ("line", "<i8"),  # 1-based line of the header
        ("offset", "<i8"),  # first letter in the file's tokens
        ("length", "<i8"),
        ("case_begin", "<i8"),  # range of the record's lower-case intervals
        ("case_end", "<i8"),
        ("lower_case", "<i8"),  # lower-case letters as read
        ("header_begin", "<i8"),
        ("header_end", "<i8"),
        ("id_bytes", "<i8"),  # the id is the first so many bytes of the header
        ("id_hash", "<u8"),
    ]
)
READ_LETTERS = 1 << 22
MAX_LOWER_CASE = 0.95
"""A record with more lower case than this carries no soft mask: it is simply written small."""
_RECORDS_NAME = "records.npy"
_NUCLEIC_SHARE = 0.99
_NUCLEIC_MIN_LETTERS = 200


@dataclass(frozen=True, kw_only=True)
class SpooledFile:
    """What was found in one input file."""

    name: str
    sha256: str
    num_bytes: int
    num_records: int
    """Records that hold at least one letter."""
    num_empty: int
    num_letters: int
    letters: dict[str, int]
    """Occurrences of every letter, upper and lower case together."""
    lower_case: int
    """Lower-case letters."""
    mask_dropped: int
    """Records almost all in lower case, whose mask was dropped."""
    trimmed_stops: int
    """Records that ended in a stop sign, which was trimmed."""
    records: np.ndarray
    """Table of dtype ``RECORD``."""


def spool_file(
    path: Path,
    name: str,
    index: int,
    folder: Path,
    tokenizer: Tokenizer,
    on_bytes: Callable[[int], None] | None = None,
) -> SpooledFile:
    """Read one FASTA file into the spool.

    Args:
        path: the file.
        name: what to call it in metadata; messages use the path.
        index: its number among the inputs.
        folder: the spool folder.
        tokenizer: the alphabet.
        on_bytes: see ``FastaReader``.

    Raises:
        InputError: see ``FastaReader``; or a protein file that holds only bases.
    """
    stem = folder / f"{index:06d}"
    letter_counts = np.zeros(256, dtype=np.int64)
    with (
        FastaReader(path, str(path), tokenizer, on_bytes=on_bytes) as reader,
        stem.with_suffix(".tokens").open("wb") as tokens,
        stem.with_suffix(".headers").open("wb") as headers,
        _CaseWriter(stem) as case,
    ):
        builder = _RecordBuilder(headers)
        for chunk in reader:
            tokens.write(chunk.tokens)
            new_intervals = case.append(chunk, builder.num_letters)
            builder.append(chunk, new_intervals)
            letter_counts += chunk.letter_counts
    letters = _fold_case(letter_counts)
    if not tokenizer.complement_letters:
        _refuse_bases(str(path), letters)
    records, trimmed = builder.finish(index, _stop_id(tokenizer))
    full = records[records["length"] > 0]
    unmasked = full["lower_case"] > MAX_LOWER_CASE * full["length"]
    full["case_end"][unmasked] = full["case_begin"][unmasked]
    return SpooledFile(
        name=name,
        sha256=reader.sha256,
        num_bytes=reader.num_bytes,
        num_records=len(full),
        num_empty=len(records) - len(full),
        num_letters=int(letter_counts.sum()),
        letters=letters,
        lower_case=int(letter_counts[ord("a") : ord("z") + 1].sum()),
        mask_dropped=int(unmasked.sum()),
        trimmed_stops=trimmed,
        records=full,
    )


def write_records(folder: Path, tables: Sequence[np.ndarray]) -> None:
    """Write the record tables of all files, in input order, as one."""
    np.save(folder / _RECORDS_NAME, np.concatenate(tables), allow_pickle=False)


class Spool:
    """Random access to a finished spool; cheap to send to another process."""

    def __init__(self, folder: Path, names: Sequence[str]) -> None:
        """Describe the spool.

        Args:
            folder: where ``spool_file`` and ``write_records`` wrote.
            names: name of each input file.
        """
        self.folder = folder
        self.names = tuple(names)

    def __getstate__(self) -> dict[str, Any]:
        """Leave the record table behind when pickled."""
        return {"folder": self.folder, "names": self.names}

    @cached_property
    def records(self) -> np.ndarray:
        """The table of dtype ``RECORD`` of all files, in input order."""
        return np.load(self.folder / _RECORDS_NAME, mmap_mode="r", allow_pickle=False)

    def tokens(self, record: int, begin: int, end: int) -> np.ndarray:
        """Return the letters [begin, end) of a record, uint8."""
        row = self.records[record]
        return self.file_tokens(int(row["file"]), int(row["offset"]) + begin, end - begin)

    def file_tokens(self, file: int, offset: int, count: int) -> np.ndarray:
        """Return ``count`` letters of a file's token stream, uint8."""
        # Plain reads: pages of a memory map would count as resident memory of this process.
        path = self.folder / f"{file:06d}.tokens"
        return np.fromfile(path, dtype=np.uint8, count=count, offset=offset)

    def file_chunks(self, file: int) -> Iterator[tuple[int, np.ndarray]]:
        """Yield (offset, letters) over a file's whole token stream."""
        size = (self.folder / f"{file:06d}.tokens").stat().st_size
        for offset in range(0, size, READ_LETTERS):
            yield offset, self.file_tokens(file, offset, min(READ_LETTERS, size - offset))

    def lower_case(self, record: int, begin: int, end: int) -> np.ndarray:
        """Return the soft-masked intervals inside [begin, end) of a record, relative to begin."""
        row = self.records[record]
        first, last = int(row["case_begin"]), int(row["case_end"])
        if first == last:
            return empty_intervals()
        stem = self.folder / f"{int(row['file']):06d}"
        begins = np.memmap(stem.with_suffix(".case_begin"), dtype="<i8", mode="r")[first:last]
        ends = np.memmap(stem.with_suffix(".case_end"), dtype="<i8", mode="r")[first:last]
        offset = int(row["offset"])
        low = int(np.searchsorted(ends, offset + begin, side="right"))
        high = int(np.searchsorted(begins, offset + end, side="left"))
        intervals = np.stack([begins[low:high], ends[low:high]], axis=1)
        return clip(intervals - offset, begin, end)

    def header(self, record: int) -> tuple[str, str]:
        """Return (id, whole header) of a record."""
        row = self.records[record]
        begin, end = int(row["header_begin"]), int(row["header_end"])
        with (self.folder / f"{int(row['file']):06d}.headers").open("rb") as file:
            file.seek(begin)
            raw = file.read(end - begin)
        return raw[: int(row["id_bytes"])].decode("utf-8"), raw.decode("utf-8")


def refuse_duplicate_ids(spool: Spool) -> None:
    """Check that no id occurs twice over all files.

    Raises:
        InputError: the first repeated id, with both places.
    """
    hashes = spool.records["id_hash"]
    order = np.argsort(hashes, kind="stable")
    repeated = np.flatnonzero(hashes[order][1:] == hashes[order][:-1]) + 1
    first_seen: dict[str, int] = {}
    suspects = np.unique(np.concatenate([order[repeated], order[repeated - 1]]))
    for record in suspects.tolist():
        record_id, _ = spool.header(record)
        if record_id in first_seen:
            here, there = spool.records[[record, first_seen[record_id]]]
            raise InputError(
                f"{spool.names[here['file']]}:{here['line']}: record id {record_id!r} was already "
                f"used at {spool.names[there['file']]}:{there['line']}; make the ids unique"
            )
        first_seen[record_id] = record


class _CaseWriter:
    """Writes lower-case intervals, joined over chunk borders, as two columns."""

    def __init__(self, stem: Path) -> None:
        self._begin: BinaryIO = stem.with_suffix(".case_begin").open("wb")
        self._end: BinaryIO = stem.with_suffix(".case_end").open("wb")
        self._joiner = RunJoiner()
        self._last_end = -1

    def __enter__(self) -> "_CaseWriter":
        return self

    def __exit__(self, *_: object) -> None:
        self._write(self._joiner.flush())
        self._begin.close()
        self._end.close()

    def append(self, chunk: FastaChunk, offset: int) -> np.ndarray:
        """Take a chunk that begins ``offset`` letters into the file.

        Returns:
            int64 [headers + 1]: intervals added to the running record and to each new one.
        """
        runs = chunk.lower_case + offset
        joins = not (len(chunk.starts) and chunk.starts[0] == 0)
        holder = np.searchsorted(chunk.starts, chunk.lower_case[:, 0], side="right")
        added = np.bincount(holder, minlength=len(chunk.starts) + 1)
        if len(runs):
            if joins and runs[0, 0] == self._last_end:
                added[0] -= 1
            self._last_end = int(runs[-1, 1])
            self._write(self._joiner.push(runs, joins=joins))
        return added

    def _write(self, runs: np.ndarray) -> None:
        self._begin.write(runs[:, 0].astype("<i8").tobytes())
        self._end.write(runs[:, 1].astype("<i8").tobytes())


class _RecordBuilder:
    """Collects the record table of one file, chunk by chunk."""

    def __init__(self, headers: BinaryIO) -> None:
        self.num_letters = 0
        self._headers = headers
        self._header_bytes = 0
        self._columns = {name: array("q") for name in ("line", "offset", "case", "lower_case")}
        self._texts = {name: array("q") for name in ("header_begin", "header_end", "id_bytes")}
        self._id_hashes = array("Q")
        self._last_letters = bytearray()
        self._last_letter = 0

    def append(self, chunk: FastaChunk, new_intervals: np.ndarray) -> None:
        """Take the next chunk, with the intervals that it added to each record."""
        sizes = chunk.lower_case[:, 1] - chunk.lower_case[:, 0]
        holder = np.searchsorted(chunk.starts, chunk.lower_case[:, 0], side="right")
        lower = np.zeros(len(chunk.starts) + 1, dtype=np.int64)
        np.add.at(lower, holder, sizes)
        columns = self._columns
        if columns["case"]:
            columns["case"][-1] += int(new_intervals[0])
            columns["lower_case"][-1] += int(lower[0])
        if chunk.headers:
            columns["line"].extend(header.line for header in chunk.headers)
            columns["offset"].extend((chunk.starts + self.num_letters).tolist())
            columns["case"].extend(new_intervals[1:].tolist())
            columns["lower_case"].extend(lower[1:].tolist())
            self._append_headers(chunk)
            # The letter before each start ends the record before; at 0 it is in an older chunk.
            before = bytes([self._last_letter]) + chunk.tokens
            self._last_letters.extend(before[start] for start in chunk.starts.tolist())
        if chunk.tokens:
            self._last_letter = chunk.tokens[-1]
        self.num_letters += len(chunk.tokens)

    def finish(self, file: int, stop_id: int) -> tuple[np.ndarray, int]:
        """Return the table, empty records included, and how many stop signs were trimmed."""
        columns = {name: np.array(values, np.int64) for name, values in self._columns.items()}
        records = np.zeros(len(columns["line"]), dtype=RECORD)
        ends = np.append(columns["offset"][1:], self.num_letters)
        records["file"] = file
        records["line"] = columns["line"]
        records["offset"] = columns["offset"]
        records["length"] = ends - columns["offset"]
        records["case_end"] = np.cumsum(columns["case"])
        records["case_begin"] = records["case_end"] - columns["case"]
        records["lower_case"] = columns["lower_case"]
        for name, values in self._texts.items():
            records[name] = np.array(values, np.int64)
        records["id_hash"] = np.array(self._id_hashes, np.uint64)
        last = np.frombuffer(bytes(self._last_letters[1:]) + bytes([self._last_letter]), np.uint8)
        trimmed = (records["length"] > 0) & (last == stop_id)
        records["length"] -= trimmed
        return records, int(trimmed.sum())

    def _append_headers(self, chunk: FastaChunk) -> None:
        for header in chunk.headers:
            raw_id = header.id.encode("utf-8")
            raw = header.text.encode("utf-8")
            digest = hashlib.blake2b(raw_id, digest_size=8).digest()
            self._id_hashes.append(int.from_bytes(digest, "little"))
            self._texts["id_bytes"].append(len(raw_id))
            self._texts["header_begin"].append(self._header_bytes)
            self._header_bytes += len(raw)
            self._texts["header_end"].append(self._header_bytes)
            self._headers.write(raw)


def _stop_id(tokenizer: Tokenizer) -> int:
    """Return the id of the stop sign, or one that no letter has."""
    return tokenizer.id_of("*") if "*" in tokenizer.letters else ILLEGAL


def _fold_case(letter_counts: np.ndarray) -> dict[str, int]:
    folded = letter_counts.copy()
    folded[ord("A") : ord("Z") + 1] += folded[ord("a") : ord("z") + 1]
    folded[ord("a") : ord("z") + 1] = 0
    return {chr(code): int(folded[code]) for code in np.flatnonzero(folded).tolist()}


def _refuse_bases(name: str, letters: dict[str, int]) -> None:
    """Every base is also an amino acid, so reading DNA as protein would go through unnoticed."""
    total = sum(letters.values())
    bases = sum(letters.get(letter, 0) for letter in "ACGTUN")
    if total >= _NUCLEIC_MIN_LETTERS and bases > _NUCLEIC_SHARE * total:
        raise InputError(
            f"{name}: {bases} of {total} letters are A C G T U N, so this is not protein; "
            f"use --alphabet dna or --alphabet rna"
        )
