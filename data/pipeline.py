"""The steps of preprocessing: plan, write, publish."""

import shutil
from pathlib import Path
from typing import Any

from genomoe.data.blocks import estimate_bytes, plan_shards
from genomoe.data.errors import InputError
from genomoe.data.options import PreprocessOptions
from genomoe.data.plan import Plan, input_names, make_plan
from genomoe.data.shards import WrittenShard
from genomoe.data.splits import SPLITS
from genomoe.data.spool import Spool
from genomoe.data.workfolder import WorkFolder
from genomoe.data.writing import write_dataset


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
        shards = write_dataset(plan, options, work.dataset)
        work.publish()
    return _summary(plan, options, shards)


def _summary(
    plan: Plan, options: PreprocessOptions, shards: dict[str, list[WrittenShard]]
) -> dict[str, Any]:
    splits = {}
    for split in SPLITS:
        blocks = plan.blocks[split]
        splits[split] = {
            "tokens": blocks.num_letters,
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
