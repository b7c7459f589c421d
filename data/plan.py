"""What a data set will hold: all input read, cleaned and split, before anything is written."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from genomoe.data.blocks import BlockPlan, plan_blocks
from genomoe.data.cleaning import CleaningRules, CleanPieces, clean_records
from genomoe.data.digests import record_digests
from genomoe.data.errors import InputError
from genomoe.data.jobs import run_jobs
from genomoe.data.manifest import BuildOptions
from genomoe.data.options import PreprocessOptions, block_rules
from genomoe.data.progress import Progress
from genomoe.data.splits import SPLITS, split_by_blocks, split_by_records
from genomoe.data.spool import Spool, refuse_duplicate_ids, write_records
from genomoe.data.spooling import SpooledFile, spool_file
from genomoe.data.tokenizer import Tokenizer, tokenizer_for

HOMOLOGUES_STRADDLE = "HOMOLOGUES STRADDLE"


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Everything that is known before the first shard is written."""

    tokenizer: Tokenizer
    options: BuildOptions
    files: list[SpooledFile]
    spool: Spool
    clean: CleanPieces
    splits: dict[str, np.ndarray]
    blocks: dict[str, BlockPlan]

    @property
    def warning(self) -> str | None:
        """What a reader of scores must know about the splits."""
        by_record = self.options.split == "records"
        return HOMOLOGUES_STRADDLE if by_record and self.tokenizer.name == "protein" else None

    @property
    def dropped(self) -> dict[str, int]:
        """Records and pieces dropped, by reason."""
        empty = sum(file.num_empty for file in self.files)
        return {"empty_records": empty, **self.clean.dropped}


def make_plan(options: PreprocessOptions, spool: Spool) -> Plan:
    """Read all input into the spool and decide where every letter goes."""
    tokenizer = tokenizer_for(options.alphabet)
    files = _read(options, spool, tokenizer)
    write_records(spool.folder, [file.records for file in files])
    refuse_duplicate_ids(spool)
    num_letters = sum(file.num_letters for file in files)
    build = options.resolve(tokenizer.unit, num_letters)
    clean = clean_records(
        spool,
        tokenizer,
        CleaningRules(
            n_run=build.n_run, max_ambiguous=build.max_ambiguous, min_length=build.min_length
        ),
    )
    if len(clean.pieces) == 0:
        _refuse_nothing_left(options.paths, files, clean, build)
    if build.split == "blocks":
        splits = split_by_blocks(clean.pieces, block_rules(build))
    else:
        records = np.unique(clean.pieces[:, 0])
        splits = split_by_records(
            clean.pieces,
            records,
            record_digests(spool, records, tokenizer.complement),
            valid_fraction=build.valid_fraction,
            test_fraction=build.test_fraction,
            seed=build.seed,
        )
    return Plan(
        tokenizer=tokenizer,
        options=build,
        files=files,
        spool=spool,
        clean=clean,
        splits=splits,
        blocks={name: plan_blocks(splits[name]) for name in SPLITS},
    )


def input_names(paths: Sequence[Path]) -> list[str]:
    """Return a name for each input: its file name, with as many folders as tell it from the others.

    Raises:
        InputError: a file is named twice.
    """
    parts = [path.absolute().parts[1:] for path in paths]
    seen: dict[tuple[str, ...], int] = {}
    for number, part in enumerate(parts):
        if part in seen:
            raise InputError(f"{paths[number]}: the file is named twice; name it once")
        seen[part] = number
    names = []
    for number, part in enumerate(parts):
        others = parts[:number] + parts[number + 1 :]
        depth = 1
        while any(other[-depth:] == part[-depth:] for other in others):
            depth += 1
        names.append("/".join(part[-depth:]))
    return names


def _read(options: PreprocessOptions, spool: Spool, tokenizer: Tokenizer) -> list[SpooledFile]:
    total = sum(path.stat().st_size for path in options.paths if path.is_file())
    progress = Progress("reading", total, "B")
    num_workers = options.num_workers(total)
    in_process = num_workers == 1 or len(options.paths) == 1
    files = []
    try:
        jobs = [
            (path, name, number, spool.folder, tokenizer, progress.add if in_process else None)
            for number, (path, name) in enumerate(zip(options.paths, spool.names, strict=True))
        ]
        for file in run_jobs(spool_file, jobs, num_workers):
            files.append(file)
            if not in_process:
                progress.add(file.num_bytes)
    finally:
        progress.close()
    return files


def _refuse_nothing_left(
    paths: Sequence[Path], files: list[SpooledFile], clean: CleanPieces, build: BuildOptions
) -> None:
    counts = {
        "empty records": sum(file.num_empty for file in files),
        f"records shorter than --min-length {build.min_length}": clean.dropped["short_records"],
        f"pieces shorter than --min-length {build.min_length}": clean.dropped["short_pieces"],
        f"pieces over --max-ambiguous {build.max_ambiguous}": clean.dropped["ambiguous_pieces"],
        "letters in gaps": clean.dropped_letters["gaps"],
    }
    shown = ", ".join(f"{count} {what}" for what, count in counts.items() if count)
    raise InputError(
        f"{', '.join(str(path) for path in paths)}: nothing is left after cleaning ({shown}); "
        f"check the files or lower the limits"
    )
