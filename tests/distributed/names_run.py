"""What the ranks of a layout hold under which names: the workers of `test_names_everywhere`."""

import dataclasses
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from genomoe.parallel import topology as ranks
from tests.distributed.real_run import tiny_config
from tests.distributed.tiny_run import TinyRun, each_job

STEPS = 2


def held_pieces(
    info: ranks.RankInfo, rendezvous: str, jobs: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """List what this rank holds after one step of each job.

    Returns:
        For each job `ep_rank` and `pieces`: name, shape, first row, rows here, whether owned.
    """
    held = []
    for job, topology in each_job(info, rendezvous, jobs):
        from genomoe.training.state import collect

        run = TinyRun(job, topology)
        run.take(0)
        pieces = [
            (piece.name, piece.shape, piece.row_start, len(piece.data), piece.owned)
            for piece in collect(run.built, run.wrapped, run.optimizer, topology)
        ]
        held.append({"ep_rank": topology.ep_rank, "pieces": pieces})
    return held


def train_or_restore(
    info: ranks.RankInfo, rendezvous: str, job: dict[str, Any]
) -> dict[str, list[float]]:
    """Bring a run of the product's own loop to its last step and write down what is in memory.

    The run is trained if `job["run"]` has no checkpoint yet, and restored from it otherwise.

    Args:
        info: This rank.
        rendezvous: Where the ranks meet.
        job: `data`, `run`, `parallel` (overrides), and `into`: a folder for `course.gathered`.

    Returns:
        `steps` that the optimizer says it has taken, one number for all parameters.
    """
    torch.set_num_threads(1)
    config = tiny_config(Path(job["data"]), Path(job["run"]), **job["parallel"])
    training = dataclasses.replace(config.training, train_iters=STEPS)
    config = dataclasses.replace(config, training=training)
    topology = ranks.start(config.parallel, info, rendezvous=rendezvous)
    from genomoe.data.dataset import DataSet
    from genomoe.training.loop import train
    from genomoe.training.optimizer import torch_optimizers
    from genomoe.training.resume import restore_run
    from genomoe.training.state import collect
    from genomoe.training.trainer import assemble

    config.run.mkdir(exist_ok=True)
    trainer = assemble(config, DataSet.open(config.data), topology)
    if not restore_run(trainer):
        train(trainer)
    pieces = collect(trainer.built, trainer.wrapped, trainer.optimizer, topology)
    here = {f"{p.name}@{p.row_start}": p.data.detach().clone() for p in pieces}
    here["balance/previous_load@0"] = trainer.built.balance.previous_load.clone()
    save_file(here, Path(job["into"], f"{info.rank}.safetensors"))
    parts = torch_optimizers(trainer.optimizer)
    steps = {float(state["step"]) for part in parts for state in part.state.values()}
    ranks.stop()
    return {"steps": sorted(steps)}
