"""Faults that a parallel run could have, put into it: the workers of `test_mutations`."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist

from genomoe.parallel import topology as ranks
from tests.distributed.tiny_run import TinyRun, each_job, train

EXPERT = "blocks.0.mlp.experts.1.linear_fc2.weight"  # on the first rank
DENSE = "blocks.1.attention.linear_proj.weight"
FAULTY_RANK = 1

Fault = Callable[[TinyRun], contextlib.AbstractContextManager[None]]


def train_with_faults(
    info: ranks.RankInfo, rendezvous: str, jobs: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Worker: `train` each job with its `fault` in it; "none" is a run without one."""
    results = []
    for job, topology in each_job(info, rendezvous, jobs):
        run = TinyRun(job, topology)
        with FAULTS[job["fault"]](run):
            results.append(train(run))
    return results


def _after_reduction(run: TinyRun, act: Callable[[], None]) -> None:
    config = run.built.module.config
    finalize = config.finalize_model_grads_func

    def finalized(*arguments: Any, **options: Any) -> None:
        finalize(*arguments, **options)
        act()

    config.finalize_model_grads_func = finalized


def _scale_after_reduction(run: TinyRun, factor: float, chosen: Callable[[str], bool]) -> None:
    def act() -> None:
        for name, (_, gradient) in run.gradients().items():
            if chosen(name):
                gradient.mul_(factor)

    _after_reduction(run, act)


@contextlib.contextmanager
def none(run: TinyRun) -> Iterator[None]:
    """No fault."""
    yield


@contextlib.contextmanager
def one_expert_scaled(run: TinyRun) -> Iterator[None]:
    """The gradient of one matrix of one expert is a hundredth too large."""
    _scale_after_reduction(run, 1.01, lambda name: name == EXPERT)
    yield


@contextlib.contextmanager
def expert_rank_divided(run: TinyRun) -> Iterator[None]:
    """The experts of one expert-parallel rank get their gradient divided by that size."""
    if run.topology.ep_rank == FAULTY_RANK:
        size = run.topology.ep_size
        _scale_after_reduction(run, 1.0 / size, lambda name: ".experts." in name)
    yield


@contextlib.contextmanager
def contribution_lost(run: TinyRun) -> Iterator[None]:
    """One rank's part of one parameter's gradient never reaches the sum."""
    if run.topology.dp_rank == FAULTY_RANK:
        layer = run.built.module.decoder.layers[2].self_attention.linear_proj
        forward = layer.forward

        def without_weight_gradient(x: torch.Tensor) -> Any:
            output, bias = forward(x)
            of_weight = forward(x.detach())[0]
            return output - of_weight + of_weight.detach(), bias

        layer.forward = without_weight_gradient
    yield


@contextlib.contextmanager
def reduction_skipped(run: TinyRun) -> Iterator[None]:
    """One rank keeps its own part of one parameter's gradient (DDP; FSDP reduces on the way)."""
    config = run.built.module.config
    finalize = config.finalize_model_grads_func

    def skipped(*arguments: Any, **options: Any) -> None:
        gradient = run.gradients()[DENSE][1]
        own = gradient.clone()
        finalize(*arguments, **options)
        gradient.copy_(own / arguments[1])  # by now the global number of tokens

    if run.topology.dp_rank == FAULTY_RANK:
        config.finalize_model_grads_func = skipped
    yield


def _changed_loss(run: TinyRun, change: Callable[[Any], Any]) -> Any:
    from genomoe.training import step

    loss = step._loss

    def changed(*arguments: Any) -> Any:
        return change(loss(*arguments))

    faulty = run.topology.dp_rank == FAULTY_RANK
    return patch.object(step, "_loss", changed) if faulty else contextlib.nullcontext()


@contextlib.contextmanager
def tokens_not_in_the_loss(run: TinyRun) -> Iterator[None]:
    """The letters of one rank have no part in the gradient; the reported loss is right."""
    with _changed_loss(run, lambda result: (0.0 * result[0], *result[1:])):
        yield


@contextlib.contextmanager
def tokens_not_counted(run: TinyRun) -> Iterator[None]:
    """The letters of one rank are missing from the counter that divides all gradients."""
    with _changed_loss(run, lambda result: (result[0], 0 * result[1], result[2])):
        yield


@contextlib.contextmanager
def balance_divided(run: TinyRun) -> Iterator[None]:
    """The balance loss is divided by the data-parallel size, as upstream's global one is."""
    run.built.balance.aux_loss_coeff /= run.topology.dp_size
    yield


@contextlib.contextmanager
def balance_of_one_rank(run: TinyRun) -> Iterator[None]:
    """The next step's balance loss sees the load of this rank alone."""
    balance = run.built.balance
    finish = balance.finish_step

    def finish_step(group: Any) -> Any:
        own = balance._sums[:, : balance.num_experts].clone()
        report = finish(group)
        balance.previous_load = (own / own.sum(dim=1, keepdim=True)).float()
        return report

    balance.finish_step = finish_step
    yield


@contextlib.contextmanager
def norm_of_one_rank(run: TinyRun) -> Iterator[None]:
    """Each rank clips by the norm of the gradients that it holds."""
    from megatron.core.optimizer import optimizer

    groups = [dist.new_group([rank]) for rank in range(run.topology.info.world_size)]
    norm = optimizer.get_grad_norm_fp32

    def local(gradients: Any, **options: Any) -> Any:
        here = [getattr(g, "_local_tensor", g) for g in gradients]
        own = groups[run.topology.info.rank]
        return norm(here, **{**options, "grad_stats_parallel_group": own})

    with patch.object(optimizer, "get_grad_norm_fp32", local):
        yield


@contextlib.contextmanager
def dropout_by_rank(run: TinyRun) -> Iterator[None]:
    """Masks follow the place in the rank's batch, not the sample."""
    apply = run.built.dropout.apply

    def by_place(x: torch.Tensor, place: int) -> torch.Tensor:
        run.built.dropout.samples = range(x.shape[1])
        return apply(x, place)

    run.built.dropout.apply = by_place
    yield


FAULTS: dict[str, Fault] = {
    fault.__name__: fault
    for fault in (
        none,
        one_expert_scaled,
        expert_rank_divided,
        contribution_lost,
        reduction_skipped,
        tokens_not_in_the_loss,
        tokens_not_counted,
        balance_divided,
        balance_of_one_rank,
        norm_of_one_rank,
        dropout_by_rank,
    )
}
