"""The loss by its formula, without schedule, packing, padding or ranks: an oracle, and its rows.

Rows are described by their documents. The oracle reads every document alone, as a row of its own
that is exactly as long; the runs under test read the rows.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

from genomoe.models.config import ModelConfig
from genomoe.parallel import topology as ranks
from tests.distributed import tiny_run
from tests.distributed.tiny_run import BOS, FIRST_LETTER, PAD, Rows, TinyRun, each_job

LENGTH = 24


@dataclass(frozen=True, kw_only=True)
class Row:
    """Documents one after the other, with padding before and after.

    Attributes:
        lengths: Letters of each document.
        front: Positions of padding before the first.
        weight: Loss weight of every letter.
        unscored: Letters of each document, from its third on, that have weight 0.
    """

    lengths: tuple[int, ...]
    front: int = 0
    weight: float = 1.0
    unscored: int = 0


# Eight rows each. Masked, at weight 0.1 (lower case), with N inside, padded at either end.
APART = (
    Row(lengths=(LENGTH,), weight=0.0),
    Row(lengths=(LENGTH,), weight=0.1),
    Row(lengths=(LENGTH,)),
    Row(lengths=(15,)),
    Row(lengths=(LENGTH,), unscored=7),
    Row(lengths=()),
    Row(lengths=(LENGTH,)),
    Row(lengths=(1,)),
)
PACKED = (
    Row(lengths=(LENGTH,), weight=0.0),
    Row(lengths=(LENGTH,), weight=0.1),
    Row(lengths=(7, 9, 8)),
    Row(lengths=(1, 10, 6)),
    Row(lengths=(18,), front=6),
    Row(lengths=(9, 8), front=3),
    Row(lengths=(LENGTH,), unscored=7),
    Row(lengths=(3, 12), front=2, weight=0.1),
)


@dataclass(frozen=True, kw_only=True)
class Document:
    """One document of a row: letters and weights [letters], and where it starts."""

    row: int
    start: int
    letters: np.ndarray
    weights: np.ndarray

    @property
    def tokens(self) -> np.ndarray:
        """What the model reads: BOS, then every letter but the last."""
        return np.concatenate([[BOS], self.letters[:-1]])


def documents(rows: tuple[Row, ...]) -> Iterator[Document]:
    """Make up the letters of the rows."""
    random = np.random.default_rng(11)
    for number, row in enumerate(rows):
        start = row.front
        for length in row.lengths:
            letters = random.choice(4, size=length, p=[0.5, 0.3, 0.15, 0.05]) + FIRST_LETTER
            weights = np.full(length, row.weight, dtype=np.float32)
            weights[2 : 2 + row.unscored] = 0.0
            yield Document(row=number, start=start, letters=letters, weights=weights)
            start += length


def scored_only(made: list[Document], first: int, of: int) -> list[Document]:
    """The same documents with but one in `of` letters scored, from letter `first` on."""
    number, changed = 0, []
    for document in made:
        index = np.arange(number, number + len(document.letters))
        kept = (index >= first) & ((index - first) % of == 0)
        changed.append(replace(document, weights=kept.astype(np.float32)))
        number += len(index)
    return changed


def as_rows(made: list[Document], count: int = 8) -> Rows:
    """Lay documents out in rows of a global batch, each in its place."""
    rows = {
        "tokens": np.full((count, LENGTH), PAD),
        "labels": np.full((count, LENGTH), PAD),
        "weights": np.zeros((count, LENGTH), dtype=np.float32),
        "document": np.zeros((count, LENGTH), dtype=np.int32),
    }
    for number, document in enumerate(made):
        here = document.row, slice(document.start, document.start + len(document.letters))
        rows["tokens"][here], rows["labels"][here] = document.tokens, document.letters
        rows["weights"][here], rows["document"][here] = document.weights, number + 1
    return rows


def by_formula(
    info: ranks.RankInfo, rendezvous: str, jobs: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Worker, one rank: loss and gradients of the documents of each job by their definition.

    A job has `documents` in place of data; `balance_alone`, whether the letters are left out; and
    `save`, where the gradients go for `course.gathered`.
    """
    torch.set_num_threads(1)
    results = []
    for job, topology in each_job(info, rendezvous, jobs):
        built = tiny_run.build(job, topology)
        results.append(_defined(built, job, replace(tiny_run.MODEL, **job["model"])))
        gradients = {
            f"{built.canonical(name)}@0": torch.zeros_like(p) if p.grad is None else p.grad
            for name, p in built.module.named_parameters()
        }
        folder = Path(job["save"], "gradients")
        folder.mkdir(parents=True)
        save_file(gradients, folder / "0.safetensors")
    return results


def _defined(built: Any, job: dict[str, Any], model: ModelConfig) -> dict[str, Any]:
    """Sum of weight x nats over the sum of weights, plus balance and z-loss, means over letters."""
    logits = _logits_of(built.module)
    built.module.train()
    nats, weights = [], []
    for document in job["documents"]:
        tokens, labels = (torch.tensor(a)[None] for a in (document.tokens, document.letters))
        nats.append(built.module(tokens, None, None, labels=labels)[0])
        weights.append(torch.tensor(document.weights))
    weight = torch.cat(weights).double()
    letters = (torch.cat(nats).double() * weight).sum() / weight.sum()

    letters = 0.0 * letters if job["balance_alone"] else letters
    loss = letters
    aux, z_loss, loads = [], [], []
    for layer, parts in enumerate(logits):
        scores = torch.cat(parts)
        probs = torch.softmax(scores, dim=1).mean(dim=0)
        square = torch.logsumexp(scores, dim=1).square().mean()
        before = torch.tensor(job["previous_load"][layer])
        balance = model.num_moe_experts * (before * probs).sum()
        loss = loss + model.moe_aux_loss_coeff * balance + model.moe_z_loss_coeff * square
        best = scores.topk(model.moe_router_topk, dim=1).indices.flatten()
        load = torch.bincount(best, minlength=model.num_moe_experts).double() / len(best)
        aux.append(float(model.num_moe_experts * (load * probs).sum()))
        z_loss.append(float(square))
        loads.append(load.tolist())
    loss.backward()
    found = [p.grad for p in built.module.parameters() if p.grad is not None]
    norm = sum(float(gradient.double().square().sum()) for gradient in found) ** 0.5
    step = [float(letters), norm, sum(aux) / len(aux), sum(z_loss) / len(z_loss)]
    return {"steps": [step], "loads": [loads]}


def _logits_of(module: Any) -> list[list[torch.Tensor]]:
    """Switch the product's balance losses off, and note each router's logits [tokens, experts]."""
    kept: list[list[torch.Tensor]] = []
    for layer in module.decoder.layers[1::2]:
        router, here = layer.mlp.router, []
        router._balance = None
        _note(router, here)
        kept.append(here)
    return kept


def _note(router: Any, here: list[torch.Tensor]) -> None:
    route = router.routing

    def routing(logits: torch.Tensor, **rest: Any) -> Any:
        here.append(logits.flatten(0, -2))
        return route(logits, **rest)

    router.routing = routing


def every_batch(
    info: ranks.RankInfo, rendezvous: str, jobs: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Worker: a step on each batch of each job, all on the same weights (the rate must be 0).

    A job has `batches`, names in the order of `data`, and `balance_alone`, those of them on which
    the letters' part of every gradient is exactly zero. Gradients go to folder `save`/batch.

    Returns:
        For each job, by batch: what `tiny_run.train` returns.
    """
    return [_every_batch(job, topology) for job, topology in each_job(info, rendezvous, jobs)]


def _every_batch(job: dict[str, Any], topology: ranks.Topology) -> dict[str, Any]:
    letters = torch.ones((), device=topology.device)

    def scaled(built: Any) -> None:
        built.module.register_forward_hook(lambda module, inputs, nats: letters * nats)

    run = TinyRun({**job}, topology, scaled)
    run.before_update(lambda: run.save("gradients", run.gradients()))
    load = torch.tensor(job["previous_load"], device=topology.device)
    results = {}
    for iteration, batch in enumerate(job["batches"]):
        letters.fill_(0.0 if batch in job["balance_alone"] else 1.0)
        run.built.balance.previous_load = load
        run.job["save"] = str(Path(job["save"], batch))
        result = run.take(iteration)
        balance = result.balance
        step = [result.loss, result.grad_norm, balance.aux_loss, balance.z_loss]
        results[batch] = {"steps": [step], "loads": [balance.load]}
    return results


def weights_around_steps(
    info: ranks.RankInfo, rendezvous: str, jobs: list[dict[str, Any]]
) -> list[list[dict[str, Any]]]:
    """Worker: the steps of each job with the largest change of every local piece of a weight."""
    courses = []
    for job, topology in each_job(info, rendezvous, jobs):
        run, course = TinyRun(job, topology), []
        for iteration in range(run.steps):
            before = {name: piece.clone() for name, (_, piece) in run.weights().items()}
            result = run.take(iteration)
            moved = {
                name: float((piece - before[name]).abs().max())
                for name, (_, piece) in run.weights().items()
                if piece.numel()
            }
            course.append({"loss": result.loss, "norm": result.grad_norm, "moved": moved})
        courses.append(course)
    return courses
