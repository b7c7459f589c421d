"""The spool: all letters, masks and headers of the input as flat files, read at random.

For file number i there are ``i.tokens`` (one byte per letter, all records back to back),
``i.case_begin`` and ``i.case_end`` (int64, lower-case intervals in letters of the file) and
``i.headers`` (the headers back to back). The record table of all files ties them together.

Letters are fetched with plain reads: the pages of a memory map would count as resident memory.
"""

import os
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np

from genomoe.data.errors import InputError
from genomoe.data.intervals import clip, empty_intervals

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
        ("topology", "<i8"),  # index into headers.TOPOLOGIES
    ]
)
TOKENS, CASE_BEGIN, CASE_END, HEADERS = "tokens", "case_begin", "case_end", "headers"
READ_LETTERS = 1 << 22
_RECORDS_NAME = "records.npy"
_MAX_OPEN_FILES = 64
_MAX_READ_INTERVALS = 1 << 12


def spool_path(folder: Path, file: int, part: str) -> Path:
    """Return where one part of the spool of input number ``file`` lies."""
    return folder / f"{file:06d}.{part}"


def write_records(folder: Path, tables: Sequence[np.ndarray]) -> None:
    """Write the record tables of all files, in input order, as one."""
    np.save(folder / _RECORDS_NAME, np.concatenate(tables), allow_pickle=False)


class Spool:
    """Random access to a finished spool; cheap to send to another process."""

    def __init__(self, folder: Path, names: Sequence[str]) -> None:
        """Describe the spool.

        Args:
            folder: where the spooled files and ``write_records`` wrote.
            names: name of each input file.
        """
        self.folder = folder
        self.names = tuple(names)
        self._open: OrderedDict[tuple[int, str], int] = OrderedDict()

    def __enter__(self) -> Self:
        """Return the spool itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the files that are open."""
        while self._open:
            os.close(self._open.popitem()[1])

    def __getstate__(self) -> dict[str, Any]:
        """Leave the record table and open files behind when pickled."""
        return {"folder": self.folder, "names": self.names, "_open": OrderedDict()}

    @cached_property
    def records(self) -> np.ndarray:
        """The table of dtype ``RECORD`` of all files, in input order."""
        table = np.load(self.folder / _RECORDS_NAME, mmap_mode="r", allow_pickle=False)
        # A plain view: element access of the memmap class is several times slower.
        return table.view(np.ndarray)

    def tokens(self, records: np.ndarray, starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        """Return stretches of records joined, uint8 [sum of lengths].

        Args:
            records: int64 [n], the record of each stretch.
            starts: int64 [n], where it begins in the record.
            lengths: int64 [n], how long it is.
        """
        letters = np.empty(int(lengths.sum()), dtype=np.uint8)
        buffer = memoryview(letters)
        files = self.records["file"][records].tolist()
        offsets = (self.records["offset"][records] + starts).tolist()
        begin = 0
        for file, offset, length in zip(files, offsets, lengths.tolist(), strict=True):
            self._read_into(file, TOKENS, offset, buffer[begin : begin + length])
            begin += length
        return letters

    def file_chunks(self, file: int) -> Iterator[tuple[int, np.ndarray]]:
        """Yield (offset, letters) over a file's whole token stream."""
        size = spool_path(self.folder, file, TOKENS).stat().st_size
        for offset in range(0, size, READ_LETTERS):
            letters = np.empty(min(READ_LETTERS, size - offset), dtype=np.uint8)
            self._read_into(file, TOKENS, offset, memoryview(letters))
            yield offset, letters

    def lower_case(self, record: int, start: int, length: int) -> np.ndarray:
        """Return the soft-masked intervals of a stretch of a record, relative to its start."""
        row = self.records[record]
        first, last = int(row["case_begin"]), int(row["case_end"])
        if first == last:
            return empty_intervals()
        file, offset = int(row["file"]), int(row["offset"])
        begins, ends = (self._intervals(file, part, first, last) for part in (CASE_BEGIN, CASE_END))
        low = int(np.searchsorted(ends, offset + start, side="right"))
        high = int(np.searchsorted(begins, offset + start + length))
        intervals = np.stack([begins[low:high], ends[low:high]], axis=1)
        return clip(intervals - offset, start, start + length)

    def headers(self, records: np.ndarray) -> Iterator[tuple[str, str]]:
        """Yield (id, whole header) of each record."""
        rows = self.records[records]
        columns = [rows[name].tolist() for name in ("file", "header_begin", "header_end")]
        for file, begin, end, id_bytes in zip(*columns, rows["id_bytes"].tolist(), strict=True):
            raw = bytearray(end - begin)
            self._read_into(file, HEADERS, begin, memoryview(raw))
            yield raw[:id_bytes].decode("utf-8"), raw.decode("utf-8")

    def _intervals(self, file: int, part: str, first: int, last: int) -> np.ndarray:
        """Return entries [first, last) of one column of a file's lower-case intervals."""
        if last - first > _MAX_READ_INTERVALS:
            # A long record: only what the search touches is read.
            path = spool_path(self.folder, file, part)
            return np.memmap(path, dtype="<i8", mode="r")[first:last].view(np.ndarray)
        column = np.empty(last - first, dtype="<i8")
        self._read_into(file, part, 8 * first, memoryview(column.view(np.uint8)))
        return column

    def _read_into(self, file: int, part: str, offset: int, buffer: memoryview) -> None:
        key = (file, part)
        if key not in self._open:
            self._open[key] = os.open(spool_path(self.folder, file, part), os.O_RDONLY)
            if len(self._open) > _MAX_OPEN_FILES:
                os.close(self._open.popitem(last=False)[1])
        descriptor = self._open[key]
        while buffer:
            count = os.preadv(descriptor, [buffer], offset)
            if count == 0:
                raise OSError(None, "the spool is shorter than its table says")
            buffer = buffer[count:]
            offset += count


def refuse_duplicate_ids(spool: Spool) -> None:
    """Check that no id occurs twice over all files.

    Raises:
        InputError: the first repeated id, with both places.
    """
    hashes = spool.records["id_hash"]
    order = np.argsort(hashes, kind="stable")
    repeated = np.flatnonzero(hashes[order][1:] == hashes[order][:-1]) + 1
    suspects = np.unique(np.concatenate([order[repeated], order[repeated - 1]]))
    first_seen: dict[str, int] = {}
    for record, (record_id, _) in zip(suspects.tolist(), spool.headers(suspects), strict=True):
        if record_id in first_seen:
            here, there = spool.records[[record, first_seen[record_id]]]
            raise InputError(
                f"{spool.names[here['file']]}:{here['line']}: record id {record_id!r} was already "
                f"used at {spool.names[there['file']]}:{there['line']}; make the ids unique"
            )
        first_seen[record_id] = record
