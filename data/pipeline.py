"""The steps of preprocessing: read, clean, split, write, check in, publish."""

import hashlib
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from genomoe.data import index
from genomoe.data.blocks import LENGTH, BlockPlan, estimate_bytes, plan_blocks, plan_shards
from genomoe.data.cleaning import CleaningRules, CleanPieces, clean_records
from genomoe.data.digests import record_digests
from genomoe.data.errors import InputError
from genomoe.data.jobs import run_jobs
from genomoe.data.manifest import (
    MANIFEST_NAME,
    SCHEMA_VERSION,
    TOOL_VERSION,
    BuildOptions,
    InputInfo,
    Manifest,
    ShardInfo,
    SplitInfo,
    file_info,
)
from genomoe.data.options import PreprocessOptions, block_rules
from genomoe.data.progress import Progress
from genomoe.data.shards import ShardJob, WrittenShard, write_shard
from genomoe.data.splits import SPLITS, split_by_blocks, split_by_records, split_table
from genomoe.data.spool import Spool, refuse_duplicate_ids, write_records
from genomoe.data.spooling import SpooledFile, spool_file
from genomoe.data.tokenizer import Tokenizer, tokenizer_for
from genomoe.data.workfolder import WorkFolder

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


def preprocess(options: PreprocessOptions) -> dict[str, Any]:
    """Make a data set, or only its plan with ``dry_run``.

    Returns:
        The summary that the command prints.

    Raises:
        InputError: bad input or options; nothing is left behind.
    """
    options.validate()
    names = input_names(options.paths)
    force = options.force or options.dry_run
    with WorkFolder(options.out, force=force) as work, Spool(work.spool, names) as spool:
        plan = make_plan(options, spool)
        if options.dry_run:
            return _summary(plan, options, {})
        _refuse_full_disk(plan, options.out, work.dataset)
        shards = _write(plan, options, work.dataset)
        work.publish()
    return _summary(plan, options, shards)


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


def _write(plan: Plan, options: PreprocessOptions, folder: Path) -> dict[str, list[WrittenShard]]:
    """Write shards, index, split table and, last, the manifest."""
    (folder / "index").mkdir()
    jobs = []
    for split in SPLITS:
        (folder / split).mkdir()
        for number, (first, last) in enumerate(
            plan_shards(plan.blocks[split], options.shard_bytes)
        ):
            part = plan.blocks[split].part(first, last)
            jobs.append(ShardJob(split=split, number=number, first_block=first, plan=part))
    shards: dict[str, list[WrittenShard]] = {split: [] for split in SPLITS}
    total = sum(_letters(blocks) for blocks in plan.blocks.values())
    num_workers = options.num_workers(total)
    progress = Progress("writing", total, "B")
    try:
        arguments = [(job, plan.spool, folder, plan.tokenizer) for job in jobs]
        for job, shard in zip(jobs, run_jobs(write_shard, arguments, num_workers), strict=True):
            shards[job.split].append(shard)
            progress.add(shard.num_tokens)
    finally:
        progress.close()
    tables = {split: index.block_table(plan.blocks[split], shards[split]) for split in SPLITS}
    for split in SPLITS:
        index.write_split_index(folder, split, plan.blocks[split], tables[split])
    index.write_records(folder, plan.spool)
    index.write_splits(folder, plan.spool, *split_table(plan.splits))
    hashing = [(folder, [s.name for s in shards[split]], tables[split]) for split in SPLITS]
    hashes = dict(zip(SPLITS, run_jobs(hash_tokens, hashing, num_workers), strict=True))
    manifest = _manifest(plan, shards, hashes, folder)
    (folder / MANIFEST_NAME).write_bytes(manifest.to_bytes())
    return shards


def hash_tokens(folder: Path, shard_names: Sequence[str], table: np.ndarray) -> str:
    """Return the SHA-256 over all token arrays of a split, read back from its shards."""
    digest = hashlib.sha256()
    for number, name in enumerate(shard_names):
        rows = table[table[:, index.SHARD] == number]
        with (folder / name).open("rb") as file:
            for row in rows.tolist():
                file.seek(row[index.TOKENS_AT])
                digest.update(file.read(row[index.NUM_TOKENS]))
    return digest.hexdigest()


def _manifest(
    plan: Plan, shards: dict[str, list[WrittenShard]], hashes: dict[str, str], folder: Path
) -> Manifest:
    others = [index.RECORDS_NAME, index.SPLITS_NAME]
    for split in SPLITS:
        others += [index.blocks_name(split), index.documents_name(split)]
    return Manifest(
        schema_version=SCHEMA_VERSION,
        tool_version=TOOL_VERSION,
        alphabet=plan.tokenizer.name,
        tokenizer_fingerprint=plan.tokenizer.fingerprint,
        vocab_size=plan.tokenizer.vocab_size,
        options=plan.options,
        inputs=tuple(_input_info(file) for file in plan.files),
        records=sum(file.num_records for file in plan.files),
        letters=sum(file.num_letters for file in plan.files),
        dropped=plan.dropped,
        dropped_letters=plan.clean.dropped_letters,
        splits={
            split: _split_info(plan.blocks[split], shards[split], hashes[split]) for split in SPLITS
        },
        files={name: file_info(folder / name) for name in others},
        warning=plan.warning,
    )


def _input_info(file: SpooledFile) -> InputInfo:
    return InputInfo(
        name=file.name,
        sha256=file.sha256,
        bytes=file.num_bytes,
        records=file.num_records,
        empty_records=file.num_empty,
        letters=file.letters,
        lower_case_letters=file.lower_case,
        mask_dropped_records=file.mask_dropped,
        trimmed_stops=file.trimmed_stops,
    )


def _split_info(plan: BlockPlan, shards: list[WrittenShard], token_sha256: str) -> SplitInfo:
    return SplitInfo(
        shards=tuple(
            ShardInfo(
                name=shard.name,
                sha256=shard.sha256,
                bytes=shard.num_bytes,
                samples=shard.num_samples,
                tokens=shard.num_tokens,
            )
            for shard in shards
        ),
        documents=len(plan.documents),
        tokens=sum(shard.num_tokens for shard in shards),
        scored_tokens=sum(shard.num_scored for shard in shards),
        soft_masked_tokens=sum(shard.num_soft_masked for shard in shards),
        token_sha256=token_sha256,
    )


def _letters(plan: BlockPlan) -> int:
    return int(plan.documents[:, LENGTH].sum())


def _summary(
    plan: Plan, options: PreprocessOptions, shards: dict[str, list[WrittenShard]]
) -> dict[str, Any]:
    splits = {}
    for split in SPLITS:
        blocks = plan.blocks[split]
        splits[split] = {
            "tokens": _letters(blocks),
            "documents": len(blocks.documents),
            "blocks": blocks.num_blocks,
            "shards": len(plan_shards(blocks, options.shard_bytes)),
            "disk_bytes": sum(shard.num_bytes for shard in shards.get(split, []))
            or estimate_bytes(blocks),
        }
    return {
        "out": str(options.out),
        "dry_run": options.dry_run,
        "alphabet": plan.tokenizer.name,
        "records": sum(file.num_records for file in plan.files),
        "letters": sum(file.num_letters for file in plan.files),
        "splits": splits,
        "dropped": plan.dropped,
        "dropped_letters": plan.clean.dropped_letters,
        "warning": plan.warning,
    }


def _refuse_full_disk(plan: Plan, out: Path, folder: Path) -> None:
    needed = sum(estimate_bytes(blocks) for blocks in plan.blocks.values())
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise InputError(
            f"--out {out}: the data set takes about {needed} bytes and {free} are free; "
            f"make room or choose another place"
        )


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
