"""Start gloo ranks for a test and bring back what each returned."""

import json
import multiprocessing
import os
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch.multiprocessing as mp

from genomoe.parallel.topology import RankInfo


def run_ranks(
    function: Callable[..., Any], world_size: int, folder: Path, *arguments: Any
) -> list[Any]:
    """Call `function(info, rendezvous, *arguments)` on `world_size` processes of their own.

    Returns:
        JSON-able results by rank. A rank that raises fails the test with its traceback.
    """
    folder.mkdir(parents=True, exist_ok=True)
    multiprocessing.set_forkserver_preload(["tests.distributed.preloaded"])
    mp.start_processes(
        _entry,
        args=(function, world_size, str(folder), arguments),
        nprocs=world_size,
        start_method="forkserver",
    )
    results = [json.loads((folder / f"{rank}.json").read_text()) for rank in range(world_size)]
    for rank, result in enumerate(results):
        assert "error" not in result, f"rank {rank}:\n{result['error']}"
    return [result["value"] for result in results]


def _entry(
    rank: int, function: Callable[..., Any], world: int, folder: str, arguments: tuple[Any, ...]
) -> None:
    os.environ["OMP_NUM_THREADS"] = "1"
    info = RankInfo(rank=rank, local_rank=rank, world_size=world, local_world_size=world)
    try:
        value = function(info, f"file://{folder}/rendezvous", *arguments)
        result = {"value": value}
    except Exception:
        result = {"error": traceback.format_exc()}
    Path(folder, f"{rank}.json").write_text(json.dumps(result))
