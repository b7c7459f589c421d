"""Runs of the product's own loop on a small data set, in any layout: the worker of the tests."""

import dataclasses
import json
from pathlib import Path
from typing import Any

from genomoe.data.dataset import DataSet
from genomoe.parallel import topology as ranks
from genomoe.training.config import PretrainConfig
from genomoe.training.presets import PRESETS


def tiny_config(data: Path, run: Path, **parallel: Any) -> PretrainConfig:
    """The debug preset with everything at work that could differ between layouts."""
    base = PRESETS["debug"]
    return dataclasses.replace(
        base,
        data=data,
        run=run,
        model=dataclasses.replace(base.model, dropout=0.1, stem_kmer_orders=(2, 3)),
        parallel=dataclasses.replace(base.parallel, engine="cpu", **parallel),
        training=dataclasses.replace(
            base.training,
            global_batch_size=8,
            micro_batch_size=4,
            train_iters=9,
            eval_interval=3,
            eval_windows=8,
            save_interval=3,
            keep_checkpoints=99,
        ),
    )


def train_runs(info: ranks.RankInfo, rendezvous: str, jobs: list[dict[str, Any]]) -> None:
    """Run each job: `data`, `run`, `parallel` (overrides)."""
    import torch

    torch.set_num_threads(1)
    for number, job in enumerate(jobs):
        config = tiny_config(Path(job["data"]), Path(job["run"]), **job.get("parallel", {}))
        dataset = DataSet.open(config.data)
        topology = ranks.start(config.parallel, info, rendezvous=f"{rendezvous}.{number}")
        from genomoe.training.loop import train
        from genomoe.training.metrics import MetricsWriter
        from genomoe.training.resume import restore_run
        from genomoe.training.trainer import assemble

        config.run.mkdir(parents=True, exist_ok=True)
        trainer = assemble(config, dataset, topology)
        restore_run(trainer)
        if topology.is_main:
            trainer.metrics = MetricsWriter(config.run, resume_iteration=trainer.state.iteration)
        train(trainer)
        if trainer.metrics is not None:
            trainer.metrics.close()
        ranks.stop()


def metrics(run: Path) -> list[dict[str, Any]]:
    """Lines of a run's metrics.jsonl."""
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
