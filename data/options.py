"""Options of ``python -m genomoe.data.preprocess``."""

import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from genomoe.data.errors import InputError
from genomoe.data.manifest import BuildOptions
from genomoe.data.splits import BlockRules

_MIN_LENGTH = {"base": 1000, "residue": 10}
_SMALL_BLOCK = 20_000
_LARGE_BLOCK = 50_000
_LARGE_INPUT_LETTERS = 20_000_000
_PARALLEL_BYTES = 100_000_000


@dataclass(frozen=True, kw_only=True)
class PreprocessOptions:
    """Turn FASTA files into a data set: cleaned, split, tokenized and sharded.

    Writes progress to stderr and one JSON object to stdout. Exit status: 0 done, 1 failed while
    running, 2 bad input or options.
    """

    paths: tyro.conf.Positional[tuple[Path, ...]]
    """FASTA files, plain or gzip, in the order in which they are stored."""

    out: Path
    """Folder of the data set to make."""

    alphabet: Literal["dna", "rna", "protein"] = "dna"
    """Which letters the files hold."""

    split: Literal["auto", "blocks", "records"] = "auto"
    """How to hold letters out: blocks spread along the records, or whole records by a hash of their
    sequence. auto: blocks for dna and rna, records for protein."""

    block_length: int | None = None
    """Letters in a held-out block. Default: 20,000; 50,000 where the input has over 20 Mb."""

    guard: int = 1000
    """Letters on each side of a held-out block that are nobody's target, but may be context."""

    valid_fraction: float = 0.05
    """Share of the input held out for validation; at least 4 blocks."""

    test_fraction: float = 0.10
    """Share of the input held out for the test; at least 8 blocks."""

    min_length: int | None = None
    """Drop shorter records and pieces, letters. Default: 1,000 bases or 10 residues."""

    max_ambiguous: float = 0.05
    """Drop pieces with a larger share of ambiguous letters, 0 to 1."""

    n_run: int = 10
    """Split records at runs of so many N or more, letters."""

    seed: int = 1
    """Changes which blocks or records are held out."""

    workers: int | None = None
    """Processes that read files and write shards; the data set does not depend on it. Default: the
    processors there are, or 1 where the input has less than 100 MB."""

    shard_bytes: int = 64 << 20
    """Size at which a shard is closed, bytes."""

    force: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Replace the data set at --out."""

    dry_run: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Read and plan everything, print the plan, and leave nothing behind."""

    def resolve(self, unit: str, num_letters: int) -> BuildOptions:
        """Return the options that shape the data set, defaults filled in.

        Args:
            unit: "base" or "residue".
            num_letters: letters in the input.
        """
        split = self.split
        if split == "auto":
            split = "records" if self.alphabet == "protein" else "blocks"
        is_large = num_letters > _LARGE_INPUT_LETTERS
        default_block = _LARGE_BLOCK if is_large else _SMALL_BLOCK
        by_blocks = split == "blocks"
        return BuildOptions(
            split=split,
            block_length=(self.block_length or default_block) if by_blocks else None,
            guard=self.guard if by_blocks else None,
            valid_fraction=self.valid_fraction,
            test_fraction=self.test_fraction,
            min_length=_MIN_LENGTH[unit] if self.min_length is None else self.min_length,
            max_ambiguous=self.max_ambiguous,
            n_run=self.n_run,
            seed=self.seed,
            shard_bytes=self.shard_bytes,
        )

    def num_workers(self, num_bytes: int) -> int:
        """Return how many processes shall work on so many bytes."""
        if self.workers is not None:
            return self.workers
        # Starting processes takes longer than a small input.
        return len(os.sched_getaffinity(0)) if num_bytes >= _PARALLEL_BYTES else 1

    def validate(self) -> None:
        """Check the ranges.

        Raises:
            InputError: the first option that is out of range.
        """
        if not self.paths:
            raise InputError("PATHS: no input file is named; give at least one FASTA file")
        if self.alphabet == "protein" and self.split == "blocks":
            # A block would end inside a protein, where no end may be trained.
            raise InputError("--split blocks: proteins are not cut; use --split records")
        least = {
            "guard": 0,
            "block_length": 1,
            "min_length": 1,
            "n_run": 1,
            "workers": 1,
            "shard_bytes": 1,
        }
        for name, minimum in least.items():
            value = getattr(self, name)
            if value is not None and value < minimum:
                raise InputError(f"--{_flag(name)} {value}: give {minimum} or more")
        for name in ("valid_fraction", "test_fraction"):
            value = getattr(self, name)
            if not 0 < value < 0.5:
                raise InputError(f"--{_flag(name)} {value}: give more than 0 and less than 0.5")
        if not (math.isfinite(self.max_ambiguous) and 0 <= self.max_ambiguous <= 1):
            raise InputError(f"--max-ambiguous {self.max_ambiguous}: give 0 to 1")


def block_rules(options: BuildOptions) -> BlockRules:
    """Return the rules of a split by blocks."""
    if options.block_length is None or options.guard is None:
        raise ValueError("not a split by blocks")
    return BlockRules(
        block_length=options.block_length,
        guard=options.guard,
        valid_fraction=options.valid_fraction,
        test_fraction=options.test_fraction,
        seed=options.seed,
    )


def _flag(name: str) -> str:
    return name.replace("_", "-")
