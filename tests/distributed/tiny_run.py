"""A tiny model on made-up rows, in any layout: what the workers of these tests are made of.

A job is a dictionary that a worker's process can be sent; every key may be left out:

    model, parallel, optimizer   overrides of the configs below
    accumulation                 micro-batches of a step on one rank
    steps, batch, length         steps of the run, rows of a global batch, tokens of a row
    data                         the global batches themselves, else `rows` makes them
    previous_load                [blocks][experts], the load that the first step's balance loss sees
    save                         folder for the last step's gradients and the final weights
"""

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

from genomoe.models.config import ModelConfig
from genomoe.parallel import topology as ranks
from genomoe.parallel.config import ParallelConfig
from genomoe.training.config import OptimizerConfig

PAD, BOS, FIRST_LETTER, VOCAB = 0, 1, 3, 32
Rows = dict[str, np.ndarray]

MODEL = ModelConfig(
    num_blocks=2,
    hidden_size=32,
    num_attention_heads=4,
    num_query_groups=2,
    num_moe_experts=4,
    moe_ffn_hidden_size=48,
    moe_aux_loss_coeff=1e-2,
    dropout=0.1,
    stem_kmer_orders=(2, 4),
)
OPTIMIZER = OptimizerConfig(lr=1e-2, clip_grad=0.5)


def rows(step: int, batch: int, length: int) -> Rows:
    """One global batch: rows of skewed letters; one all masked, one at weight 0.1, one packed,
    one with padding at its end."""
    random = np.random.default_rng([7, step])
    letters = random.choice(4, size=(batch, length), p=[0.5, 0.3, 0.15, 0.05]) + FIRST_LETTER
    tokens = np.concatenate([np.full((batch, 1), BOS), letters[:, :-1]], axis=1)
    labels = letters.copy()
    weights = np.ones((batch, length), dtype=np.float32)
    document = np.zeros((batch, length), dtype=np.int32)
    weights[0] = 0.0
    weights[1] = 0.1
    tokens[2, length // 2], document[2, length // 2 :] = BOS, 1
    tokens[3, -5:], labels[3, -5:], weights[3, -5:], document[3, -5:] = PAD, PAD, 0.0, 1
    return {"tokens": tokens, "labels": labels, "weights": weights, "document": document}


def global_batch(job: dict[str, Any], iteration: int) -> Rows:
    """The rows of one step of a job."""
    if "data" in job:
        return job["data"][iteration]
    return rows(iteration, job.get("batch", 8), job.get("length", 24))


def build(job: dict[str, Any], topology: ranks.Topology) -> Any:
    """A job's model, not yet wrapped."""
    from genomoe.models.build import LetterIds, build_model

    built = build_model(
        dataclasses.replace(MODEL, **job.get("model", {})),
        ParallelConfig(**job.get("parallel", {})),
        letters=LetterIds(vocab_size=VOCAB, bos=BOS, first_letter=FIRST_LETTER),
        seq_length=64,
        seed=3,
        groups=topology.groups,
        device=topology.device,
        dtype=torch.float32 if topology.device.type == "cpu" else torch.bfloat16,
    )
    if "previous_load" in job:
        built.balance.previous_load = torch.tensor(job["previous_load"], device=topology.device)
    return built


class TinyRun:
    """One rank of a job: model, wrapper, optimizer and step, all the product's own."""

    def __init__(
        self,
        job: dict[str, Any],
        topology: ranks.Topology,
        prepare: Callable[[Any], None] | None = None,
    ) -> None:
        """Build; `prepare` may change the model before it is wrapped."""
        from genomoe.parallel.wrap import wrap
        from genomoe.training.optimizer import build_optimizer
        from genomoe.training.step import TrainStep

        torch.set_num_threads(1)
        self.job, self.topology = job, topology
        self.steps = job.get("steps", 3)
        self.config = dataclasses.replace(OPTIMIZER, **job.get("optimizer", {}))
        self.built = build(job, topology)
        if prepare is not None:
            prepare(self.built)
        self.wrapped = wrap(self.built.module, ParallelConfig(**job.get("parallel", {})), topology)
        self.optimizer = build_optimizer(self.config, self.built, self.wrapped, topology)
        self.step = TrainStep(self.built, self.wrapped, self.optimizer, topology)

    def take(self, iteration: int) -> Any:
        """Take one step on this rank's share of the global batch."""
        from genomoe.training.optimizer import set_schedule

        set_schedule(self.optimizer, self.config, iteration, self.steps)
        return self.step(self.micro_batches(iteration))

    def micro_batches(self, iteration: int) -> list[Any]:
        """This rank's share, as the product's loop deals the samples out."""
        from genomoe.training.batch import to_micro_batch

        data = global_batch(self.job, iteration)
        batch, accumulation = len(data["tokens"]), self.job.get("accumulation", 1)
        size, rest = divmod(batch, self.topology.dp_size * accumulation)
        assert rest == 0, "ranks and micro-batches must divide the batch"
        micro = []
        for part in range(accumulation):
            first = (part * self.topology.dp_size + self.topology.dp_rank) * size
            mine = {k: np.ascontiguousarray(v[first : first + size]) for k, v in data.items()}
            samples = [iteration * batch + row for row in range(first, first + size)]
            micro.append(to_micro_batch(mine, samples, pad=PAD, device=self.topology.device))
        return micro

    def gradients(self) -> dict[str, tuple[int, torch.Tensor]]:
        """Views of the reduced gradients: canonical name to first row and the rows here."""
        if not self.wrapped.ddp_config.use_megatron_fsdp:
            named = self.wrapped.named_parameters()
            return {self.built.canonical(name): (0, p.main_grad) for name, p in named}
        buffer = self.wrapped.param_and_grad_buffer
        found = {}
        for group in buffer.parameter_groups:
            for index, original in enumerate(group.params):
                start, _ = group.main_grad_buffer._get_item_slice_in_shard(index)
                width = max(1, original.shape[1:].numel())
                here = group.main_grad_buffer.get_item(index, only_shard=True)
                name = self.built.canonical(buffer.param_to_name[original])
                found[name] = (start // width, here.view(-1, *original.shape[1:]))
        return found

    def weights(self) -> dict[str, tuple[int, torch.Tensor]]:
        """Views of the weights, in the form of `gradients`."""
        from genomoe.training.state import collect

        pieces = collect(self.built, self.wrapped, None, self.topology)
        return {p.name.removeprefix("weights/"): (p.row_start, p.data) for p in pieces}

    def before_update(self, act: Callable[[], None]) -> None:
        """Have `act` called between the reduction of the gradients and every update."""
        update = self.optimizer.step

        def step() -> Any:
            act()
            return update()

        self.optimizer.step = step

    def save(self, kind: str, tensors: dict[str, tuple[int, torch.Tensor]]) -> None:
        """Write what this rank holds under the job's folder, for `gathered`."""
        folder = Path(self.job["save"], kind)
        folder.mkdir(parents=True, exist_ok=True)
        here = {f"{name}@{start}": t.float().cpu().clone() for name, (start, t) in tensors.items()}
        save_file(here, folder / f"{self.topology.info.rank}.safetensors")


def each_job(
    info: ranks.RankInfo, rendezvous: str, jobs: list[dict[str, Any]]
) -> Iterator[tuple[dict[str, Any], ranks.Topology]]:
    """Each job with its process groups, one after the other in this process."""
    for number, job in enumerate(jobs):
        parallel = ParallelConfig(**job.get("parallel", {}))
        topology = ranks.start(parallel, info, rendezvous=f"{rendezvous}.{number}")
        yield job, topology
        ranks.stop()


def train(run: TinyRun) -> dict[str, Any]:
    """Take all steps of a run, saving gradients and weights if its job says where.

    Returns:
        `steps`: of each step loss, gradient norm and, with experts, the balance losses; `loads`:
        of each step [blocks][experts], the share of the routed tokens, exact.
    """
    steps, loads = [], []
    for iteration in range(run.steps):
        if iteration == run.steps - 1 and "save" in run.job:
            run.before_update(lambda: run.save("gradients", run.gradients()))
        result = run.take(iteration)
        balance = result.balance
        steps.append([result.loss, result.grad_norm])
        if balance is not None:
            steps[-1] += [balance.aux_loss, balance.z_loss]
            loads.append(balance.load)
    if "save" in run.job:
        run.save("weights", run.weights())
    return {"steps": steps, "loads": loads}


def train_courses(
    info: ranks.RankInfo, rendezvous: str, jobs: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Worker: `train` each job."""
    return [train(TinyRun(job, topology)) for job, topology in each_job(info, rendezvous, jobs)]


def train_tiny(
    info: ranks.RankInfo, rendezvous: str, jobs: list[dict[str, Any]]
) -> list[list[list[float]]]:
    """Worker: the steps alone of each job."""
    return [course["steps"] for course in train_courses(info, rendezvous, jobs)]
