"""Start a training run: resolve the command, refuse what cannot work, start the ranks.

    python -m genomoe.training.launch [PRESET] --data DIR --run DIR [--section.field VALUE]

Without a preset an existing run goes on with its own config, and a new one gets `bacterium`
(`protein` for proteins). Nothing is written before every check has passed.
"""

import dataclasses
import json
import logging
import os
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from genomoe.data.command_line import choose, fail, parse
from genomoe.data.dataset import DataSet
from genomoe.data.errors import InputError
from genomoe.data.json_codec import encode
from genomoe.data.manifest import MANIFEST_NAME, verify_shards
from genomoe.parallel.config import Engine, layout_errors
from genomoe.parallel.preflight import engine_errors
from genomoe.parallel.threads import set_thread_environment
from genomoe.training.config import (
    LaunchConfig,
    PretrainConfig,
    num_microbatches,
)
from genomoe.training.plan import describe, memory_error, memory_per_rank
from genomoe.training.presets import PRESETS
from genomoe.training.rows import row_source
from genomoe.training.run_folder import RunLock, read_config

if TYPE_CHECKING:  # torch is slow to import, and most mistakes are found without it
    from torch.distributed.launcher.api import LaunchConfig as ElasticConfig

MAX_DEFAULT_PROCS = 8
# Checksums of larger data sets would hold a start up for long: there sizes are compared alone.
MAX_VERIFIED_BYTES = 8 << 30
INTERRUPTED = "interrupted; run the same command to go on"


def main(arguments: Sequence[str] | None = None) -> int:
    """Launch, or print what would be launched; returns the exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        config = resolve(words)
        dry_run = config.launch.dry_run
        there = (config.data / MANIFEST_NAME).exists()
        dataset = DataSet.open(config.data) if there or not dry_run else None
        config = place(config)
        check(config)
        if dry_run or dataset is None:
            print(json.dumps(describe(config, dataset, world_size(config)), indent=1))
            return 0
        check_here(config, dataset)
        return start(config)
    except InputError as error:
        return fail(error)
    except KeyboardInterrupt:
        return fail(Exception(INTERRUPTED), 1)


def resolve(words: list[str]) -> PretrainConfig:
    """Turn the command's words into a config: preset first, flags over it.

    Raises:
        InputError: For an unknown preset or flag, or values that no run can have.
    """
    name = words.pop(0) if words and not words[0].startswith("-") else "auto"
    choose(name, ["auto", *PRESETS], "preset")
    base = _base_config(words) if name == "auto" else PRESETS[name]
    saved = _saved_config(words)
    if name != "auto" and saved.exists() and _value_of(words, "--data") is None:
        base = dataclasses.replace(base, data=read_config(saved).data)  # a run knows its data
    return parse(
        PretrainConfig,
        words,
        default=base,
        prog="python -m genomoe.training.launch [PRESET]",
        description=f"Train, or go on with the run that is there. Presets: {', '.join(PRESETS)}.",
    )


def _base_config(words: list[str]) -> PretrainConfig:
    """Where no preset is said: the run's own config, or the usual one for the data."""
    saved = _saved_config(words)
    if saved.exists():
        return dataclasses.replace(read_config(saved), launch=LaunchConfig())
    if {"-h", "--help"} & set(words):
        return PRESETS["bacterium"]
    dataset = DataSet.open(Path(_value_of(words, "--data") or PretrainConfig().data))
    return PRESETS["protein" if dataset.tokenizer.name == "protein" else "bacterium"]


def _saved_config(words: list[str]) -> Path:
    """Where the run that a command names keeps its config, if it is there already."""
    run = Path(_value_of(words, "--run") or PretrainConfig().run)
    if (run / "checkpoint.json").exists():
        raise InputError(
            f"{run}: a checkpoint, not a run folder: it can be scored (tools/eval_perplexity.py), "
            "not trained in; give another RUN"
        )
    return run / "config.json"


def _value_of(words: list[str], flag: str) -> str | None:
    for word, following in zip(words, [*words[1:], None], strict=True):
        if word == flag:
            return following
        if word.startswith(f"{flag}="):
            return word.removeprefix(f"{flag}=")
    return None


def place(config: PretrainConfig) -> PretrainConfig:
    """Fill in the ranks and the engine from what the machine has.

    Raises:
        InputError: If GPUs are asked for that are not there.
    """
    launch = config.launch
    present = _count_gpus()
    gpus = present if launch.gpus is None and launch.procs is None else launch.gpus or 0
    if gpus < 0 or (gpus > present and not launch.dry_run):
        raise InputError(
            f"GPUS={gpus}: this machine has {present} usable NVIDIA GPU(s); "
            f"use GPUS={present}" + ("" if present else " (CPU ranks)")
        )
    engine: Engine = "gpu" if gpus else "cpu"
    procs = gpus or (_default_procs(config) if launch.procs is None else launch.procs)
    if procs < 1 or launch.nodes < 1:
        raise InputError(f"NODES={launch.nodes} PROCS={procs}: use 1 or more of each")
    backend = config.model.expert_backend
    if backend == "auto":
        backend = "te_grouped" if gpus and config.model.is_moe else "sequential"
    return dataclasses.replace(
        config,
        model=dataclasses.replace(config.model, expert_backend=backend),
        data=config.data.resolve(),
        run=config.run.resolve(),
        launch=dataclasses.replace(launch, gpus=gpus, procs=procs),
        parallel=dataclasses.replace(config.parallel, engine=engine),
    )


def _count_gpus() -> int:
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def _default_procs(config: PretrainConfig) -> int:
    cores = min(len(os.sched_getaffinity(0)), MAX_DEFAULT_PROCS)
    ep = max(1, config.parallel.expert_model_parallel_size)  # below 1 is refused later
    batch = config.training.global_batch_size
    for procs in range(max(cores, ep), 0, -1):
        if procs % ep == 0 and batch % (procs * max(1, config.launch.nodes)) == 0:
            return procs
    return 1


def world_size(config: PretrainConfig) -> int:
    """Ranks of the whole run, once placed."""
    assert config.launch.procs is not None
    return config.launch.nodes * config.launch.procs


def check(config: PretrainConfig) -> None:
    """Refuse a config that cannot run or is known to give wrong results.

    Raises:
        InputError: With the first reason.
    """
    world = world_size(config)
    errors = layout_errors(
        config.parallel, world_size=world, num_moe_experts=config.model.num_moe_experts
    )
    errors += engine_errors(
        config.parallel.engine,
        config.model.expert_backend,
        has_transformer_engine=config.launch.dry_run or find_spec("transformer_engine") is not None,
    )
    try:
        num_microbatches(config.training, world)
    except ValueError as error:
        errors.append(str(error))
    if config.launch.nodes > 1 and not {"NODE_RANK", "MASTER_ADDR"} <= set(os.environ):
        errors.append(
            f"NODES={config.launch.nodes} needs NODE_RANK (0 to {config.launch.nodes - 1}) and "
            "MASTER_ADDR (the first node's address) in the environment of each node"
        )
    if errors:
        raise InputError(errors[0])


def check_here(config: PretrainConfig, dataset: DataSet) -> None:
    """Refuse what this machine or this data cannot give, before a rank is started.

    Raises:
        InputError: With the first reason.
    """
    row_source(config, dataset)
    if (config.run / MANIFEST_NAME).exists():
        raise InputError(f"{config.run}: is a data set; give a folder of its own as RUN")
    plan = memory_per_rank(config, world_size(config))
    procs = config.launch.procs or 1
    if error := memory_error(plan, **_memory_here(config.parallel.engine, procs)):
        raise InputError(error)
    if config.run.exists():
        with RunLock(config.run):  # only to say so early; the run's first rank holds it
            pass
    size = sum(path.stat().st_size for path in config.data.rglob("*.tar"))
    if size <= MAX_VERIFIED_BYTES:
        verify_shards(config.data, dataset.manifest, full=True)


def _memory_here(engine: Engine, procs: int) -> dict[str, int]:
    """Ranks that share one memory, and its size: the machine's, or one GPU's."""
    if engine == "gpu":
        import torch

        return {"ranks": 1, "available_bytes": torch.cuda.get_device_properties(0).total_memory}
    page, pages = os.sysconf("SC_PAGE_SIZE"), os.sysconf("SC_PHYS_PAGES")
    return {"ranks": procs, "available_bytes": page * pages}


def start(config: PretrainConfig) -> int:
    """Run the ranks of this node and wait for them; returns the exit code."""
    set_thread_environment(config.launch.procs or 1)
    command = [sys.executable, "-m", "genomoe.training.pretrain", json.dumps(encode(config))]
    if world_size(config) == 1:
        os.execv(sys.executable, command)
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import elastic_launch

    # Its account of which rank ended how; ours is below.
    for name in ("agent.server.api", "multiprocessing.api"):
        logging.getLogger(f"torch.distributed.elastic.{name}").setLevel(logging.CRITICAL)
    try:
        elastic_launch(_elastic_config(config), command[0])(*command[1:])
    except SignalException:
        return fail(Exception(INTERRUPTED), 1)
    except ChildFailedError as error:
        failures = sorted(error.failures.values(), key=lambda failure: failure.timestamp)
        for failure in failures:
            if "code" in failure.error_file_data:
                return fail(Exception(failure.message), failure.error_file_data["code"])
        first = failures[0]
        if first.exitcode != 1:  # an exception has been printed by its rank
            fail(Exception(f"rank {first.local_rank} ended with exit code {first.exitcode}"))
        return 1
    return 0


def _elastic_config(config: PretrainConfig) -> "ElasticConfig":
    from torch.distributed.launcher.api import LaunchConfig as ElasticConfig

    nodes, procs = config.launch.nodes, config.launch.procs or 1
    backend, endpoint, extra = "c10d", "localhost:0", {}
    if nodes > 1:
        port = os.environ.get("MASTER_PORT", "29500")
        backend, endpoint = "static", f"{os.environ['MASTER_ADDR']}:{port}"
        extra = {"rank": int(os.environ["NODE_RANK"])}
    return ElasticConfig(
        min_nodes=nodes,
        max_nodes=nodes,
        nproc_per_node=procs,
        run_id=config.run.name,
        max_restarts=0,
        rdzv_backend=backend,
        rdzv_endpoint=endpoint,
        rdzv_configs=extra,
    )


if __name__ == "__main__":
    sys.exit(main())
