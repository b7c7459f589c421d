"""One optimizer step on one rank."""

import math
from typing import Any

import numpy as np
import pytest
import torch

from genomoe.parallel.config import ParallelConfig
from genomoe.training.batch import MicroBatch
from genomoe.training.config import OptimizerConfig
from tests.unit.models import tiny

LENGTH = 24


class Machine:
    """A tiny model with its optimizer, ready to take steps."""

    def __init__(self, topology: Any, optimizer: OptimizerConfig, **shape: Any) -> None:
        from genomoe.parallel.wrap import wrap
        from genomoe.training.optimizer import build_optimizer
        from genomoe.training.step import TrainStep

        self.config = optimizer
        self.built = tiny.build(topology, **shape)
        self.wrapped = wrap(self.built.module, ParallelConfig(), topology)
        self.optimizer = build_optimizer(optimizer, self.built, self.wrapped, topology)
        self.step = TrainStep(self.built, self.wrapped, self.optimizer, topology)

    def take(self, batches: list[MicroBatch], iteration: int = 0, total: int = 100) -> Any:
        from genomoe.training.optimizer import set_schedule

        set_schedule(self.optimizer, self.config, iteration, total)
        return self.step(batches)

    def weights(self) -> dict[str, torch.Tensor]:
        return {
            self.built.canonical(name): parameter.detach().clone()
            for name, parameter in self.wrapped.named_parameters()
        }


def rows(count: int = 8, *, weight: float = 1.0) -> list[dict[str, np.ndarray]]:
    made = [
        tiny.documents_row([tiny.random_letters(LENGTH, seed)], LENGTH) for seed in range(count)
    ]
    for row in made:
        row["weights"] *= weight
    return made


@pytest.mark.parametrize("shape", [{}, {"num_moe_experts": 0, "ffn_hidden_size": 80}])
def test_one_batch_is_learned_by_heart(shape: dict[str, Any], topology: Any) -> None:
    machine = Machine(topology, OptimizerConfig(lr=1e-2, weight_decay=0.0), **shape)
    # Each row has its own first letter, which nothing can foretell: it is not scored.
    made = [
        tiny.documents_row([[tiny.FIRST_LETTER + row, *tiny.random_letters(23, row)]], LENGTH)
        for row in range(4)
    ]
    for row in made:
        row["weights"][0, 0] = 0.0
    batch = tiny.batch_of(made)
    losses = []
    for iteration in range(150):
        losses.append(machine.take([batch], iteration, 150).loss)
        if losses[-1] < 0.05:
            break
    assert losses[0] == pytest.approx(math.log(32), abs=0.05)
    assert losses[-1] < 0.05, losses[::15]


def test_every_parameter_changes(topology: Any) -> None:
    machine = Machine(topology, OptimizerConfig(lr=1e-3))
    before = machine.weights()
    result = machine.take([tiny.batch_of(rows())])
    assert result.balance is not None
    assert min(min(layer) for layer in result.balance.load) > 0, "an expert saw no token"
    for name, after in machine.weights().items():
        assert not torch.equal(after, before[name]), name
        # Adam's first step moves an entry by the rate at most, decay aside.
        moved = (after - before[name] * (1 - 1e-3 * 0.1)).abs().max().item()
        assert moved <= 1e-3 * 1.5, name


def test_nothing_scored_changes_nothing(topology: Any) -> None:
    machine = Machine(topology, OptimizerConfig(lr=1e-2))
    machine.take([tiny.batch_of(rows())])  # so that the optimizer has momentum to coast on
    before = machine.weights()
    result = machine.take([tiny.batch_of(rows(weight=0.0))], 1)
    assert result.loss is None and result.grad_norm == 0.0
    assert result.num_tokens == 8 * LENGTH
    assert all(torch.equal(after, before[name]) for name, after in machine.weights().items())
    assert machine.take([tiny.batch_of(rows())], 2).loss is not None


def test_the_loss_is_the_weighted_mean_over_letters(topology: Any) -> None:
    # Two machines: the balance loss of a second step would see the load of the first.
    machine = Machine(topology, OptimizerConfig(lr=0.0), init_method_std=0.3)
    other = Machine(topology, OptimizerConfig(lr=0.0), init_method_std=0.3)
    made = rows(4)
    made[0]["weights"][:] = 0.0
    made[1]["weights"][:] = 0.1
    batch = tiny.batch_of(made)
    nats = tiny.nats(machine.built.module.eval(), batch).double()
    wanted = float((nats * batch.weights).sum() / batch.weights.sum())
    together = machine.take([batch])
    apart = other.take([tiny.batch_of(made[:2]), tiny.batch_of(made[2:])])
    assert together.loss == pytest.approx(wanted, rel=1e-6)
    assert apart.loss == pytest.approx(wanted, rel=1e-6)
    assert apart.grad_norm == pytest.approx(together.grad_norm, rel=1e-5)


def test_the_scale_of_the_weights_does_not_matter(topology: Any) -> None:
    full = Machine(topology, OptimizerConfig(lr=0.0), init_method_std=0.3)
    tenth = Machine(topology, OptimizerConfig(lr=0.0), init_method_std=0.3)
    a = full.take([tiny.batch_of(rows())])
    b = tenth.take([tiny.batch_of(rows(weight=0.1))])
    assert b.loss == pytest.approx(a.loss, rel=1e-6)
    assert b.grad_norm == pytest.approx(a.grad_norm, rel=1e-5)


def test_padding_counts_nowhere(topology: Any) -> None:
    letters = tiny.random_letters(16, 1)
    padded, bare = (
        Machine(topology, OptimizerConfig(lr=0.0), init_method_std=0.3).take(
            [tiny.batch_of([tiny.documents_row([letters], length)])]
        )
        for length in (LENGTH, 16)
    )
    assert padded.num_tokens == bare.num_tokens == 16
    assert padded.loss == pytest.approx(bare.loss, rel=1e-5)
    assert padded.grad_norm == pytest.approx(bare.grad_norm, rel=1e-5)
    assert padded.balance.load == bare.balance.load


def test_a_loss_that_is_not_finite_leaves_the_weights(topology: Any) -> None:
    machine = Machine(topology, OptimizerConfig(lr=1e-2))
    broken = dict(machine.wrapped.named_parameters())
    name = next(n for n in broken if n.endswith("output_layer.weight"))
    with torch.no_grad():
        broken[name][5] = torch.inf
    before = machine.weights()
    with pytest.raises(FloatingPointError, match=r"the loss is (nan|inf)"):
        machine.take([tiny.batch_of(rows())])
    assert all(torch.equal(after, before[n]) for n, after in machine.weights().items())


def test_clipping_bounds_the_step_and_reports_the_norm_before(topology: Any) -> None:
    # Adam hides the size of a gradient, so look at what it is given.
    free = Machine(topology, OptimizerConfig(lr=0.0, clip_grad=1e9), init_method_std=0.3)
    clipped = Machine(topology, OptimizerConfig(lr=0.0, clip_grad=0.1), init_method_std=0.3)
    batch = tiny.batch_of(rows())
    norm = free.take([batch]).grad_norm
    assert norm > 0.2
    assert clipped.take([batch]).grad_norm == pytest.approx(norm, rel=1e-6)
    ours, theirs = (_first_moments(machine) for machine in (clipped, free))
    for name, moment in theirs.items():
        assert torch.allclose(ours[name], moment * (0.1 / norm), rtol=1e-3, atol=1e-9), name


def _first_moments(machine: Machine) -> dict[str, torch.Tensor]:
    from genomoe.training.optimizer import torch_optimizers

    found = {}
    for part in torch_optimizers(machine.optimizer):
        for parameter, state in part.state.items():
            found[parameter] = state["exp_avg"]
    named = machine.wrapped.named_parameters()
    return {name: found[parameter] for name, parameter in named}


def test_decay_acts_on_matrices_alone(topology: Any) -> None:
    from genomoe.models.names import decays
    from genomoe.training.optimizer import set_schedule, torch_optimizers

    machine = Machine(topology, OptimizerConfig(lr=1e-2, weight_decay=0.3))
    set_schedule(machine.optimizer, machine.config, 0, 1)
    names = {p: machine.built.canonical(n) for n, p in machine.wrapped.named_parameters()}
    seen = set()
    for part in torch_optimizers(machine.optimizer):
        for group in part.param_groups:
            for parameter in group["params"]:
                wanted = 0.3 if decays(names[parameter]) else 0.0
                assert group["weight_decay"] == wanted, names[parameter]
                assert group["lr"] == pytest.approx(1e-2)
                seen.add(names[parameter])
    assert seen == set(names.values())
    assert any(decays(name) for name in seen) and not all(decays(name) for name in seen)
