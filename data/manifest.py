"""The manifest: what a data set holds, how it was made, and the checksums to prove it.

Strict JSON with sorted keys. It names no absolute path and no time, so the same input and options
give the same bytes on any machine. It is written last; a folder without one is not a data set.
"""

import dataclasses
import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from genomoe.data.errors import InputError
from genomoe.data.json_codec import decode
from genomoe.data.tokenizer import tokenizer_for

MANIFEST_NAME = "manifest.json"
SCHEMA_VERSION = 1
TOOL_VERSION = "0.1.0"
_HASH_CHUNK_BYTES = 1 << 22


@dataclass(frozen=True, kw_only=True)
class FileInfo:
    """Size and checksum of a file."""

    sha256: str
    bytes: int


@dataclass(frozen=True, kw_only=True)
class InputInfo:
    """One input file."""

    name: str
    sha256: str
    bytes: int
    records: int
    empty_records: int
    letters: dict[str, int]
    """Occurrences of every letter as written, upper and lower case together."""
    lower_case_letters: int
    mask_dropped_records: int
    """Records almost all in lower case, whose soft mask was therefore dropped."""
    trimmed_stops: int
    """Proteins whose final stop sign was removed."""


@dataclass(frozen=True, kw_only=True)
class ShardInfo:
    """One shard; the path is relative to the data set."""

    name: str
    sha256: str
    bytes: int
    samples: int
    tokens: int


@dataclass(frozen=True, kw_only=True)
class SplitInfo:
    """Totals and shards of one split."""

    shards: tuple[ShardInfo, ...]
    documents: int
    tokens: int
    """Letters stored, guards included."""
    scored_tokens: int
    """Letters that are targets: in no guard and not ambiguous."""
    soft_masked_tokens: int
    token_sha256: str
    """SHA-256 over the bytes of all token arrays in order."""


@dataclass(frozen=True, kw_only=True)
class BuildOptions:
    """Every option that changes what is written."""

    split: str
    block_length: int | None
    guard: int | None
    valid_fraction: float
    test_fraction: float
    min_length: int
    max_ambiguous: float
    n_run: int
    seed: int
    shard_bytes: int


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """The whole manifest."""

    schema_version: int
    tool_version: str
    alphabet: str
    tokenizer_fingerprint: str
    vocab_size: int
    options: BuildOptions
    inputs: tuple[InputInfo, ...]
    records: int
    letters: int
    dropped: dict[str, int]
    """Records or pieces dropped, by reason."""
    dropped_letters: dict[str, int]
    """Letters dropped, by reason."""
    splits: dict[str, SplitInfo]
    files: dict[str, FileInfo]
    """All other files of the data set."""
    warning: str | None = None
    """What a reader of scores from this data set must know."""

    def to_bytes(self) -> bytes:
        """Return the bytes of the manifest file."""
        text = json.dumps(dataclasses.asdict(self), sort_keys=True, indent=1, allow_nan=False)
        return text.encode("ascii") + b"\n"

    @property
    def digest(self) -> str:
        """SHA-256 of the manifest file."""
        return hashlib.sha256(self.to_bytes()).hexdigest()


def load_manifest(folder: Path) -> Manifest:
    """Read and check the manifest of a data set.

    Raises:
        InputError: it is missing, of an unknown version, malformed, or of another vocabulary.
    """
    path = folder / MANIFEST_NAME
    try:
        raw = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        raise InputError(
            f"{path}: no such file, so {folder} is not a data set; make one with "
            f"python -m genomoe.data.preprocess FASTA --out {folder}"
        ) from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from None
    try:
        value = json.loads(raw, object_pairs_hook=_unique_keys, parse_constant=_no_constants)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: not valid JSON ({error}); make the data set anew") from None
    version = value.get("schema_version") if isinstance(value, dict) else None
    if version != SCHEMA_VERSION:
        raise InputError(
            f"{path}: schema_version is {version!r}, this program reads {SCHEMA_VERSION}; "
            f"make the data set anew with this version"
        )
    try:
        manifest = decode(Manifest, value, "manifest")
    except ValueError as error:
        raise InputError(f"{path}: {error}; make the data set anew") from None
    if manifest.to_bytes() != raw:
        raise InputError(f"{path}: edited after it was written; make the data set anew")
    if tokenizer_for(manifest.alphabet).fingerprint != manifest.tokenizer_fingerprint:
        raise InputError(
            f"{path}: tokenizer_fingerprint is not that of this program's {manifest.alphabet} "
            f"vocabulary; make the data set anew with this version"
        )
    return manifest


def verify_shards(folder: Path, manifest: Manifest, *, full: bool) -> None:
    """Check every shard and index file against the manifest.

    Args:
        folder: the data set.
        manifest: its manifest.
        full: compare checksums, not only sizes.

    Raises:
        InputError: a file is missing or damaged.
    """
    expected = dict(manifest.files)
    for split in manifest.splits.values():
        for shard in split.shards:
            expected[shard.name] = FileInfo(sha256=shard.sha256, bytes=shard.bytes)
    for name, info in expected.items():
        path = folder / name
        try:
            size = path.stat().st_size
            damaged = size != info.bytes or (full and file_info(path) != info)
        except OSError as error:
            raise InputError(
                f"{path}: cannot be read ({error.strerror}); copy it again or make the data set "
                f"anew"
            ) from None
        if damaged:
            what = f"{size} bytes instead of {info.bytes}" if size != info.bytes else "wrong sha256"
            raise InputError(f"{path}: damaged ({what}); copy it again or make the data set anew")


def file_info(path: Path) -> FileInfo:
    """Return size and checksum of a file."""
    digest = hashlib.sha256()
    size = 0
    with path.open("rb") as file:
        while chunk := file.read(_HASH_CHUNK_BYTES):
            digest.update(chunk)
            size += len(chunk)
    return FileInfo(sha256=digest.hexdigest(), bytes=size)


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError("a key occurs twice")
    return result


def _no_constants(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")
