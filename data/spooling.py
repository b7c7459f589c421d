"""First pass: one FASTA file becomes flat files that any part can be read from at random.

See ``spool`` for the files. Nothing here depends on how the input was chunked, and memory does not
grow with the length of a record.
"""

import hashlib
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np

from genomoe.data.errors import InputError
from genomoe.data.fasta import FastaChunk, FastaReader
from genomoe.data.intervals import RunJoiner
from genomoe.data.spool import CASE_BEGIN, CASE_END, HEADERS, RECORD, TOKENS, spool_path
from genomoe.data.tokenizer import ILLEGAL, Tokenizer

MAX_LOWER_CASE = 0.95
"""A record with more lower case than this carries no soft mask: it is simply written small."""
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
    letter_counts = np.zeros(256, dtype=np.int64)
    with (
        FastaReader(path, str(path), tokenizer, on_bytes=on_bytes) as reader,
        spool_path(folder, index, TOKENS).open("wb") as tokens,
        spool_path(folder, index, HEADERS).open("wb") as headers,
        _CaseWriter(folder, index) as case,
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


class _CaseWriter:
    """Writes lower-case intervals, joined over chunk borders, as two columns."""

    def __init__(self, folder: Path, file: int) -> None:
        self._begin: BinaryIO = spool_path(folder, file, CASE_BEGIN).open("wb")
        self._end: BinaryIO = spool_path(folder, file, CASE_END).open("wb")
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
        self._columns = {
            name: array("q") for name in ("line", "topology", "offset", "case", "lower_case")
        }
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
            columns["topology"].extend(header.topology for header in chunk.headers)
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
        records["topology"] = columns["topology"]
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
