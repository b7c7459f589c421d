"""Streaming FASTA reader: plain or gzip, any line length, bounded memory, exact error positions.

The file is read in chunks of a few MiB. In each, headers are found by a vectorised search and all
sequence between them is turned into token ids by ``bytes.translate`` in one go, so that a file of
millions of short records costs about as much per byte as one long contig. A line is never held:
a 3 Gb single-line record passes through like any other.

Accepted: CRLF, blank lines, ragged lines, blanks, lower case, a UTF-8 byte order mark, a missing
last line end, gzip with any number of members (recognised by content, not name). Everything else
is an ``InputError`` that names file, line and column.
"""

import gzip
import hashlib
import io
import zlib
from collections.abc import Buffer, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

import numpy as np

from genomoe.data.errors import InputError
from genomoe.data.headers import Header, parse_header
from genomoe.data.intervals import empty_intervals, runs_of
from genomoe.data.tokenizer import ILLEGAL, Tokenizer, illegal_hint

CHUNK_BYTES = 1 << 22
MAX_HEADER_BYTES = 1 << 20
_BLANKS = b" \t\r\n"
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_FOREIGN_COMPRESSION = {
    b"BZh": "bzip2",
    b"\xfd7zXZ": "xz",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"PK\x03\x04": "zip",
}


@dataclass(frozen=True, kw_only=True)
class FastaChunk:
    """The letters of one chunk of a file, with the records that begin in it."""

    tokens: bytes
    """Token ids, one byte per letter."""
    lower_case: np.ndarray
    """Interval array of lower-case letters in chunk coordinates, cut at record starts."""
    headers: list[Header]
    starts: np.ndarray
    """int64 [len(headers)]: where in ``tokens`` each of these records begins."""
    letter_counts: np.ndarray
    """int64 [256]: occurrences of every byte among the letters, as written in the file."""


class FastaReader:
    """Iterates over the chunks of one FASTA file."""

    def __init__(
        self,
        path: Path,
        name: str,
        tokenizer: Tokenizer,
        *,
        chunk_bytes: int = CHUNK_BYTES,
        on_bytes: Callable[[int], None] | None = None,
    ) -> None:
        """Open the file.

        Args:
            path: the file.
            name: what to call it in messages.
            tokenizer: the alphabet to read.
            chunk_bytes: how much uncompressed text to take at a time, 3 or more.
            on_bytes: called with the number of (compressed) bytes read since the last call.

        Raises:
            InputError: the file is missing, a directory, unreadable, empty or of a foreign format.
        """
        self.name = name
        self._tokenizer = tokenizer
        self._chunk_bytes = chunk_bytes
        self._raw = _HashingFile(_open(path, name), on_bytes)
        self._stream = self._open_stream()
        self._encode = tokenizer.encode_table.tobytes()
        self._illegal = tokenizer.encode_table == ILLEGAL
        self._line = 1
        self._column = 0
        self._started = False
        self._record_id = ""

    def __enter__(self) -> Self:
        """Return the reader itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close the file."""
        self._raw.close()

    @property
    def sha256(self) -> str:
        """SHA-256 of the bytes read so far; of the whole file once the iteration has ended."""
        return self._raw.digest.hexdigest()

    @property
    def num_bytes(self) -> int:
        """Bytes of the (compressed) file read so far."""
        return self._raw.num_bytes

    def __iter__(self) -> Iterator[FastaChunk]:
        """Yield the chunks of the file in order.

        Raises:
            InputError: the content is not FASTA of this alphabet, or the gzip data is damaged.
        """
        carry = b""
        while block := self._read():
            data = carry + block
            if not self._started:
                data = self._skip_to_first_header(data)
                if not data:
                    continue
            data, carry = self._split_open_header(data)
            yield self._parse(data)
        if carry:
            yield self._parse(carry)
        if not self._started:
            what = "holds only blank lines" if self._line > 1 or self._column else "is empty"
            raise InputError(f"{self.name}: the file {what}; FASTA starts with '>'")

    def _open_stream(self) -> BinaryIO:
        buffered = io.BufferedReader(self._raw, buffer_size=1 << 20)
        magic = buffered.peek(8)[:8]
        for signature, kind in _FOREIGN_COMPRESSION.items():
            if magic.startswith(signature):
                raise InputError(
                    f"{self.name}: the file is compressed with {kind}; "
                    f"only plain and gzip files are read, decompress it first"
                )
        if magic.startswith(b"\x1f\x8b"):
            return gzip.GzipFile(fileobj=buffered, mode="rb")  # type: ignore[return-value]
        return buffered

    def _read(self) -> bytes:
        try:
            return self._stream.read(self._chunk_bytes)
        except EOFError:
            fault = "the gzip data is truncated"
        except (gzip.BadGzipFile, zlib.error) as error:
            fault = f"the gzip data is damaged ({error})"
        except OSError as error:
            raise InputError(f"{self.name}: cannot be read ({error.strerror})") from None
        raise InputError(f"{self.name}:{self._line}: {fault}; fetch or compress the file again")

    def _skip_to_first_header(self, data: bytes) -> bytes:
        if self._line == 1 and self._column == 0:
            data = data.removeprefix(_BYTE_ORDER_MARK)
        text = data.lstrip(_BLANKS)
        self._advance(data[: len(data) - len(text)])
        if not text:
            return b""
        if not text.startswith(b">"):
            raise InputError(
                f"{self.name}:{self._line}: not FASTA: line {self._line} starts with "
                f"{_excerpt(text)} instead of '>'{_format_hint(text)}"
            )
        self._started = True
        self._column = 0
        return text

    def _split_open_header(self, data: bytes) -> tuple[bytes, bytes]:
        """Cut off a header line whose end has not been read yet."""
        last_break = data.rfind(b"\n")
        at_line_start = last_break >= 0 or self._column == 0
        if not at_line_start or data[last_break + 1 : last_break + 2] != b">":
            return data, b""
        header = data[last_break + 1 :]
        if len(header) > MAX_HEADER_BYTES:
            line = self._line + data.count(b"\n")
            raise InputError(
                f"{self.name}:{line}: the header is longer than {MAX_HEADER_BYTES} bytes; "
                f"shorten it, or check the file's line ends"
            )
        return data[: last_break + 1], header

    def _parse(self, data: bytes) -> FastaChunk:
        headers, regions = self._split_headers(data)
        sequences = [data[begin:end] for begin, end, _ in regions]
        # One separator per header survives the removal of blanks and marks where records begin.
        stripped = b">".join(sequences).translate(None, _BLANKS)
        starts = np.zeros(0, dtype=np.int64)
        letters = stripped
        if headers:
            separators = np.flatnonzero(np.frombuffer(stripped, np.uint8) == ord(">"))
            letters = stripped.translate(None, b">")
            starts = separators - np.arange(len(separators))
        counts = count_bytes(letters)
        if len(starts) != len(headers) or counts[self._illegal].any():
            self._raise_illegal_letter(data, headers, regions)
        lower_case = empty_intervals()
        if counts[ord("a") :].any():
            lower_case = runs_of(np.frombuffer(letters, np.uint8) >= ord("a"), starts)
        self._advance(data)
        if headers:
            self._record_id = headers[-1].id
        return FastaChunk(
            tokens=letters.translate(self._encode),
            lower_case=lower_case,
            headers=headers,
            starts=starts,
            letter_counts=counts,
        )

    def _split_headers(self, data: bytes) -> tuple[list[Header], list[tuple[int, int, int]]]:
        """Return the headers, and (begin, end, first line) of the sequence before and after each.

        There is one region more than there are headers.
        """
        codes = np.frombuffer(data, np.uint8)
        marks = np.flatnonzero(codes == ord(">"))
        at_line_start = codes[marks - 1] == ord("\n")
        if marks.size and marks[0] == 0:
            at_line_start[0] = self._column == 0
        headers = []
        regions = []
        line = self._line
        cursor = 0
        for mark in marks[at_line_start].tolist():
            regions.append((cursor, mark, line))
            line += data.count(b"\n", cursor, mark)
            end = data.find(b"\n", mark)
            end = len(data) if end < 0 else end
            headers.append(parse_header(data[mark + 1 : end], line, self.name))
            line += 1
            cursor = min(end + 1, len(data))
        regions.append((cursor, len(data), line))
        return headers, regions

    def _raise_illegal_letter(
        self, data: bytes, headers: list[Header], regions: list[tuple[int, int, int]]
    ) -> None:
        flags = (self._illegal & ~np.isin(np.arange(256), list(_BLANKS))).astype(np.uint8)
        for number, (begin, end, line) in enumerate(regions):
            region = data[begin:end]
            offset = region.translate(flags.tobytes()).find(b"\x01")
            if offset < 0:
                continue
            line_begin = region.rfind(b"\n", 0, offset) + 1
            column = offset - line_begin + 1
            if number == 0 and line_begin == 0:
                column += self._column
            record_id = headers[number - 1].id if number else self._record_id
            alphabet = self._tokenizer.name
            letter = chr(region[offset])
            shown = repr(letter) if " " < letter <= "~" else f"byte 0x{region[offset]:02x}"
            raise InputError(
                f"{self.name}:{line + region.count(b'\n', 0, offset)}: letter {shown} at column "
                f"{column} is not in the {alphabet} alphabet (record {record_id})"
                f"{illegal_hint(letter, alphabet)}"
            )
        raise AssertionError("an illegal letter was counted but not found")

    def _advance(self, data: bytes) -> None:
        """Move the line and column of the reading position past ``data``."""
        breaks = data.count(b"\n")
        self._line += breaks
        if breaks:
            self._column = len(data) - data.rfind(b"\n") - 1
        else:
            self._column += len(data)


def count_bytes(data: bytes) -> np.ndarray:
    """Return how often each byte occurs, int64 [256].

    Counting pairs of bytes halves the work of ``bincount``; both halves of a pair are then added.
    """
    pairs = np.frombuffer(data, np.uint16, count=len(data) // 2)
    table = np.bincount(pairs, minlength=1 << 16).reshape(256, 256)
    counts = table.sum(axis=0) + table.sum(axis=1)
    if len(data) % 2:
        counts[data[-1]] += 1
    return counts


class _HashingFile(io.RawIOBase):
    """A raw file that hashes and counts what is read from it."""

    def __init__(self, file: io.FileIO, on_bytes: Callable[[int], None] | None) -> None:
        self._file = file
        self._on_bytes = on_bytes
        self.digest = hashlib.sha256()
        self.num_bytes = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Buffer, /) -> int:
        count = self._file.readinto(buffer) or 0
        self.digest.update(memoryview(buffer)[:count])
        self.num_bytes += count
        if self._on_bytes is not None:
            self._on_bytes(count)
        return count

    def close(self) -> None:
        self._file.close()
        super().close()


def _open(path: Path, name: str) -> io.FileIO:
    if path.is_dir():
        raise InputError(f"{name}: is a directory; name the FASTA files in it one by one")
    try:
        return io.FileIO(path)
    except FileNotFoundError:
        is_pattern = any(letter in name for letter in "*?[")
        fix = "patterns are left to the shell, do not quote it" if is_pattern else "check the path"
        raise InputError(f"{name}: no such file; {fix}") from None
    except OSError as error:
        raise InputError(f"{name}: cannot be opened ({error.strerror})") from None


def _excerpt(text: bytes) -> str:
    return repr(text[:20].split(b"\n", 1)[0].rstrip().decode("latin-1"))


def _format_hint(text: bytes) -> str:
    start = text[:200].lower()
    if start.startswith((b"<!doctype", b"<html", b"<?xml", b"<")):
        return "; this looks like a web page, fetch the sequence itself"
    if start.startswith(b"@"):
        return "; this looks like FASTQ, convert it to FASTA"
    if start.startswith(b"locus"):
        return "; this looks like GenBank, convert it to FASTA"
    if start.startswith(b"id "):
        return "; this looks like EMBL or UniProt, convert it to FASTA"
    if start.startswith(b";"):
        return "; comment lines are not read, remove them"
    return "; give a FASTA file"
