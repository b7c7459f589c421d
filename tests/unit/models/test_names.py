import re
from collections.abc import Iterator
from typing import Any

import pytest

from genomoe.models.names import ExpertSlice, canonical_name, decays, is_expert, is_norm
from tests.unit.models import tiny

ALL = ExpertSlice(ep_rank=0, num_local_experts=4)


def documented_names() -> Iterator[str]:
    """The list at the top of `names`, written out for the tiny model."""
    yield from ("embedding.letters.weight", "embedding.kmers.2.weight", "embedding.kmers.4.weight")
    yield from ("final_norm.weight", "output.weight")
    for block in range(2):
        for part in ("norm", "linear_qkv", "linear_proj"):
            yield f"blocks.{block}.attention.{part}.weight"
        for part in ("norm", "router"):
            yield f"blocks.{block}.mlp.{part}.weight"
        for expert in range(4):
            for matrix in ("linear_fc1", "linear_fc2"):
                yield f"blocks.{block}.mlp.experts.{expert}.{matrix}.weight"


def grouped(name: str) -> str:
    """The name that Transformer Engine's grouped layers would give the same parameter."""
    return re.sub(r"local_experts\.(\d+)\.(linear_fc[12])\.weight$", r"\2.weight\1", name)


def test_a_built_model_has_exactly_the_documented_names(topology: Any) -> None:
    built = tiny.build(topology)
    names = [built.canonical(name) for name, _ in built.module.named_parameters()]
    assert sorted(names) == sorted(documented_names())


@pytest.mark.parametrize(
    "shape",
    [
        {"num_moe_experts": 0, "ffn_hidden_size": 80},
        {"share_embeddings_and_output_weights": True},
        {"stem_kmer_orders": ()},
        {"num_blocks": 11, "num_moe_experts": 12},
    ],
)
def test_one_to_one_over_all_parameters(shape: dict[str, Any], topology: Any) -> None:
    built = tiny.build(topology, **shape)
    parameters = dict(built.module.named_parameters())
    names = {built.canonical(name) for name in parameters}
    assert len(names) == len(parameters)
    if shape.get("share_embeddings_and_output_weights"):
        assert "output.weight" not in names


def test_the_shapes_are_those_of_the_list(topology: Any) -> None:
    built = tiny.build(topology)
    shapes = {built.canonical(n): tuple(p.shape) for n, p in built.module.named_parameters()}
    assert shapes["embedding.letters.weight"] == (32, 32)
    assert shapes["embedding.kmers.4.weight"] == (256, 32)
    assert shapes["blocks.1.attention.linear_qkv.weight"] == (32 + 2 * 16, 32)
    assert shapes["blocks.0.mlp.router.weight"] == (4, 32)
    assert shapes["blocks.0.mlp.experts.3.linear_fc1.weight"] == (2 * 48, 32)
    assert shapes["blocks.0.mlp.experts.3.linear_fc2.weight"] == (32, 48)


def test_both_schemes_give_one_name(topology: Any) -> None:
    built = tiny.build(topology)
    local = [name for name, _ in built.module.named_parameters()]
    te = [grouped(name) for name in local]
    assert len(set(te) - set(local)) == 2 * 4 * 2  # all experts are called otherwise
    assert [canonical_name(n, "te", ALL) for n in te] == [
        canonical_name(n, "local", ALL) for n in local
    ]


@pytest.mark.parametrize("ep_size", [2, 4])
def test_experts_of_other_ranks_have_other_names(ep_size: int) -> None:
    share = 4 // ep_size
    seen: list[str] = []
    for rank in range(ep_size):
        held = ExpertSlice(ep_rank=rank, num_local_experts=share)
        for local in range(share):
            one = canonical_name(
                f"decoder.layers.3.mlp.experts.local_experts.{local}.linear_fc2.weight",
                "local",
                held,
            )
            assert one == canonical_name(
                f"decoder.layers.3.mlp.experts.linear_fc2.weight{local}", "te", held
            )
            seen.append(one)
    assert seen == [f"blocks.1.mlp.experts.{e}.linear_fc2.weight" for e in range(4)]


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
    names = set(documented_names())
    norms = {n for n in names if is_norm(n)}
    assert len(norms) == 5
    assert {n for n in names if is_expert(n)} == {n for n in names if ".experts." in n}
    undecayed = {n for n in names if not decays(n)}
    embeddings = {n for n in names if n.startswith("embedding.")}
    routers = {f"blocks.{b}.mlp.router.weight" for b in range(2)}
    assert undecayed == norms | embeddings | routers
