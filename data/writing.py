"""Writes a planned data set: shards, index, split table and, last, the manifest."""

import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from genomoe.data import index
from genomoe.data.blocks import BlockPlan, plan_shards
from genomoe.data.jobs import run_jobs
from genomoe.data.manifest import (
    MANIFEST_NAME,
    SCHEMA_VERSION,
    TOOL_VERSION,
    InputInfo,
    Manifest,
    ShardInfo,
    SplitInfo,
    file_info,
)
from genomoe.data.options import PreprocessOptions
from genomoe.data.plan import Plan
from genomoe.data.progress import Progress
from genomoe.data.shards import ShardJob, WrittenShard, write_shard
from genomoe.data.splits import SPLITS, split_table
from genomoe.data.spooling import SpooledFile


def write_dataset(
    plan: Plan, options: PreprocessOptions, folder: Path
) -> dict[str, list[WrittenShard]]:
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
    total = sum(blocks.num_letters for blocks in plan.blocks.values())
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
