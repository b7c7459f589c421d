import dataclasses
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from genomoe.models.names import (
    ExpertSlice,
    NameScheme,
    canonical_name,
    decays,
    is_expert,
    is_norm,
)
from tests.unit.models import tiny
from tests.unit.models.expected_names import expected_shapes

ALL = ExpertSlice(ep_rank=0, num_local_experts=4)


def grouped(name: str) -> str:
    """The name that Transformer Engine's grouped layers would give the same parameter."""
    return re.sub(r"local_experts\.(\d+)\.(linear_fc[12])\.weight$", r"\2.weight\1", name)


EXPERTS_OF = [
    *[({"num_moe_experts": 8}, ep_size) for ep_size in (1, 2, 4)],
    ({"num_moe_experts": 0, "ffn_hidden_size": 80}, 1),
]
# Fields of the config, expert-parallel ranks.
SHAPES: list[tuple[dict[str, Any], int]] = [
    ({**feed_forward, **tying, **stem}, ep_size)
    for feed_forward, ep_size in EXPERTS_OF
    for tying in ({}, {"share_embeddings_and_output_weights": True})
    for stem in ({}, {"stem_kmer_orders": ()}, {"stem_kmer_orders": (2, 7), "num_blocks": 1})
] + [({"num_blocks": 11, "num_moe_experts": 12}, 4)]


@pytest.mark.parametrize("scheme", ["local", "te"])
@pytest.mark.parametrize(("shape", "ep_size"), SHAPES)
def test_one_to_one_over_all_parameters_of_all_ranks(
    shape: dict[str, Any], ep_size: int, scheme: NameScheme, topology: Any
) -> None:
    """A rank's module tree is that of a model with its share of the experts."""
    config = dataclasses.replace(tiny.MODEL, **shape)
    want = expected_shapes(config, tiny.VOCAB)
    dense = {name for name in want if ".experts." not in name}
    share = config.num_moe_experts // ep_size
    held = tiny.build(topology, **{**shape, "num_moe_experts": share}).module
    parameters = [(n, tuple(p.shape)) for n, p in held.named_parameters()]
    parts: list[set[str]] = []
    for rank in range(ep_size):
        experts = ExpertSlice(ep_rank=rank, num_local_experts=share)
        mine = {}
        for name, size in parameters:
            canonical = canonical_name(grouped(name) if scheme == "te" else name, scheme, experts)
            assert canonical not in mine, f"two parameters are called {canonical}"
            # The router alone knows of all experts.
            router = canonical.endswith("router.weight")
            mine[canonical] = (config.num_moe_experts, size[1]) if router else size
        assert mine == {name: want[name] for name in mine}
        assert {name for name in mine if ".experts." not in name} == dense
        parts.append(set(mine) - dense)
    assert sum(len(part) for part in parts) == len(set().union(*parts)), "an expert is held twice"
    assert set().union(dense, *parts) == set(want)


def test_both_schemes_give_one_name(topology: Any) -> None:
    built = tiny.build(topology)
    local = [name for name, _ in built.module.named_parameters()]
    te = [grouped(name) for name in local]
    assert len(set(te) - set(local)) == 2 * 4 * 2  # all experts are called otherwise
    assert [canonical_name(n, "te", ALL) for n in te] == [
        canonical_name(n, "local", ALL) for n in local
    ]


layer = st.integers(0, 199)
expert = st.integers(0, 63)
PARTS = (
    "embedding.word_embeddings.weight",
    "decoder.final_norm.weight",
    "output_layer.weight",
)
OF_A_LAYER = {
    0: ("input_layernorm", "self_attention.linear_qkv", "self_attention.linear_proj"),
    1: ("pre_mlp_layernorm", "mlp.linear_fc1", "mlp.linear_fc2", "mlp.router"),
}
EXPERTS = {
    "local": "mlp.experts.local_experts.{expert}.{matrix}.weight",
    "te": "mlp.experts.{matrix}.weight{expert}",
}


@st.composite
def module_names(draw: Any, scheme: NameScheme) -> str:
    """A name that a model of some size has: attention in even layers, the rest in odd ones."""
    place = draw(st.sampled_from(["alone", "kmers", "layer", "expert"]))
    number = draw(layer)
    if place == "alone":
        return draw(st.sampled_from(PARTS))
    if place == "kmers":
        return f"embedding.word_embeddings.kmers.{draw(st.integers(1, 16))}.weight"
    if place == "layer":
        return f"decoder.layers.{number}.{draw(st.sampled_from(OF_A_LAYER[number % 2]))}.weight"
    matrix = draw(st.sampled_from(["linear_fc1", "linear_fc2"]))
    rest = EXPERTS[scheme].format(expert=draw(expert), matrix=matrix)
    return f"decoder.layers.{number | 1}.{rest}"


@pytest.mark.parametrize("scheme", ["local", "te"])
@settings(deadline=None)
@given(data=st.data(), rank=st.integers(0, 7))
def test_two_parameters_never_share_a_name(scheme: NameScheme, data: Any, rank: int) -> None:
    held = ExpertSlice(ep_rank=rank, num_local_experts=64)
    names = data.draw(st.lists(module_names(scheme), min_size=2, max_size=40, unique=True))
    canonical = [canonical_name(name, scheme, held) for name in names]
    assert len(set(canonical)) == len(names)
    for name, ours in zip(names, canonical, strict=True):
        assert canonical_name(f"module.module.{name}", scheme, held) == ours
        if is_expert(ours):
            assert 64 * rank <= int(ours.split(".")[4]) < 64 * (rank + 1)


@pytest.mark.parametrize("scheme", ["local", "te"])
@settings(deadline=None)
@given(data=st.data(), text=st.text("abclmnorwy_.0123456789", min_size=1, max_size=12))
def test_a_name_with_more_or_less_in_it_is_foreign(
    scheme: NameScheme, data: Any, text: str
) -> None:
    name = data.draw(module_names(scheme))
    for foreign in (name + "." + text, text + "." + name, name[:-1], name + "_extra_state"):
        # A grouped expert's number may be cut short or go on, and stay a number.
        if scheme == "te" and re.fullmatch(r".*\.linear_fc[12]\.weight\d+", foreign):
            continue
        with pytest.raises(KeyError):
            canonical_name(foreign, scheme, ALL)


def test_prefixes_of_wrappers_are_dropped() -> None:
    assert canonical_name("module.module.output_layer.weight", "local", ALL) == "output.weight"


@pytest.mark.parametrize(
    ("name", "scheme"),
    [
        ("decoder.layers.0.self_attention.linear_qkv.bias", "local"),
        ("decoder.layers.0.self_attention.linear_qkv.layer_norm_weight", "te"),
        ("decoder.layers.1.mlp.experts.linear_fc1._extra_state", "te"),
        ("decoder.layers.1.mlp.experts.linear_fc1.weight0", "local"),
        ("decoder.layers.1.mlp.experts.local_experts.0.linear_fc1.weight", "te"),
        ("decoder.layers.1.mlp.router.expert_bias", "local"),
        ("decoder.layers.0.self_attention.linear_qkv.weights", "local"),
        ("decoder.layers.x.mlp.router.weight", "local"),
        ("xoutput_layer.weight", "local"),
        ("output.weight", "local"),
        ("", "local"),
    ],
)
def test_a_name_that_no_model_has(name: str, scheme: Any) -> None:
    with pytest.raises(KeyError):
        canonical_name(name, scheme, ALL)


def test_classes_of_names() -> None:
    names = set(expected_shapes(tiny.MODEL, tiny.VOCAB))
    norms = {n for n in names if is_norm(n)}
    assert len(norms) == 5
    assert {n for n in names if is_expert(n)} == {n for n in names if ".experts." in n}
    undecayed = {n for n in names if not decays(n)}
    embeddings = {n for n in names if n.startswith("embedding.")}
    routers = {f"blocks.{b}.mlp.router.weight" for b in range(2)}
    assert undecayed == norms | embeddings | routers
