import dataclasses
import math
from typing import Any

import pytest
import torch

from genomoe.models.initialize import initialize
from genomoe.models.names import ExpertSlice
from tests.unit.models import tiny

QKV = "decoder.layers.0.self_attention.linear_qkv.weight"
PROJ = "decoder.layers.0.self_attention.linear_proj.weight"


class Parameters:
    """As much of a model as `initialize` asks for."""

    def __init__(self, shapes: dict[str, tuple[int, ...]]) -> None:
        self.held = {name: torch.full(shape, torch.nan) for name, shape in shapes.items()}

    def named_parameters(self) -> list[tuple[str, torch.Tensor]]:
        return list(self.held.items())


def filled(
    shapes: dict[str, tuple[int, ...]], *, seed: int = 3, scheme: Any = "local", **held: int
) -> dict[str, torch.Tensor]:
    model: Any = Parameters(shapes)
    experts = ExpertSlice(**{"num_local_experts": 4, **held})
    initialize(model, tiny.MODEL, seed=seed, scheme=scheme, experts=experts)
    return model.held


def expert(index: int) -> str:
    return f"decoder.layers.1.mlp.experts.local_experts.{index}.linear_fc1.weight"


def test_any_share_of_the_experts_starts_with_the_same_weights() -> None:
    shape = (96, 32)
    whole = filled({expert(index): shape for index in range(4)})
    assert len({tensor.sum().item() for tensor in whole.values()}) == 4
    for ep_size in (2, 4):
        share = 4 // ep_size
        for rank in range(ep_size):
            shapes = {expert(index): shape for index in range(share)}
            part = filled(shapes, ep_rank=rank, num_local_experts=share)
            for index in range(share):
                assert torch.equal(part[expert(index)], whole[expert(rank * share + index)])
    te = filled({"decoder.layers.1.mlp.experts.linear_fc1.weight2": shape}, scheme="te")
    assert torch.equal(next(iter(te.values())), whole[expert(2)])


def test_neither_order_nor_company_matters() -> None:
    shapes = {QKV: (64, 32), PROJ: (32, 32), "output_layer.weight": (32, 32)}
    forward = filled(shapes)
    backward = filled(dict(reversed(shapes.items())))
    alone = filled({PROJ: (32, 32)})
    assert all(torch.equal(forward[name], backward[name]) for name in shapes)
    assert torch.equal(forward[PROJ], alone[PROJ])
    assert not torch.equal(forward[PROJ], forward["output_layer.weight"])


def test_the_seed_matters_and_the_process_generator_does_not() -> None:
    torch.manual_seed(1)
    first = filled({QKV: (64, 32)})[QKV]
    torch.manual_seed(2)
    assert torch.equal(filled({QKV: (64, 32)})[QKV], first)
    assert not torch.equal(filled({QKV: (64, 32)}, seed=4)[QKV], first)


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        (QKV, 0.02),
        ("decoder.layers.1.mlp.router.weight", 0.02),
        ("embedding.word_embeddings.weight", 0.02),
        (PROJ, 0.02 / math.sqrt(2 * 2)),
        ("decoder.layers.1.mlp.linear_fc2.weight", 0.02 / math.sqrt(2 * 2)),
        (expert(0), 0.02),
        (expert(0).replace("fc1", "fc2"), 0.02 / math.sqrt(2 * 2)),
    ],
)
def test_standard_deviations(name: str, wanted: float) -> None:
    values = filled({name: (500, 400)})[name]
    assert values.std().item() == pytest.approx(wanted, rel=0.01)
    assert values.mean().item() == pytest.approx(0.0, abs=wanted * 0.01)


def test_norms_start_at_one() -> None:
    norm = "decoder.layers.0.input_layernorm.weight"
    assert torch.equal(filled({norm: (32,)})[norm], torch.ones(32))


def test_a_built_model_is_filled_everywhere(topology: Any) -> None:
    built, again = tiny.build(topology), tiny.build(topology)
    other = tiny.build(topology, seed=4)
    values = dict(again.module.named_parameters())
    others = dict(other.module.named_parameters())
    for name, parameter in built.module.named_parameters():
        assert torch.isfinite(parameter).all() and parameter.abs().max() > 0
        assert torch.equal(parameter, values[name])
        assert torch.equal(parameter, others[name]) == name.endswith("norm.weight"), name


def test_depth_scales_residual_outputs_down() -> None:
    deep = dataclasses.replace(tiny.MODEL, num_blocks=8)
    model: Any = Parameters({PROJ: (500, 400)})
    initialize(model, deep, seed=1, scheme="local", experts=ExpertSlice())
    assert model.held[PROJ].std().item() == pytest.approx(0.02 / 4, rel=0.01)
