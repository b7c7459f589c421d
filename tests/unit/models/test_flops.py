import dataclasses
from typing import Any

import pytest
from torch.utils.flop_counter import FlopCounterMode

from genomoe.models.config import ModelConfig
from genomoe.models.flops import count_parameters, flops_per_token, kmer_rows
from genomoe.models.names import is_expert
from tests.unit.models import tiny

SHAPES: dict[str, dict[str, Any]] = {
    "moe": {"stem_kmer_orders": ()},
    "moe, stem": {},
    "one group": {"num_query_groups": 1, "stem_kmer_orders": (1,)},
    "every head its own group": {"num_query_groups": 4},
    "top 3 of 6": {"num_moe_experts": 6, "moe_router_topk": 3},
    "dense": {"num_moe_experts": 0, "ffn_hidden_size": 80},
    "tied": {"share_embeddings_and_output_weights": True},
    "tied, no stem": {
        "share_embeddings_and_output_weights": True,
        "stem_kmer_orders": (),
    },
    "hashed k-mers": {"stem_kmer_orders": (3, 9), "stem_kmer_buckets": 100},
    "padded vocabulary": {"make_vocab_size_divisible_by": 48},
}


@pytest.mark.parametrize("name", SHAPES)
def test_count_equals_the_built_model(name: str, topology: Any) -> None:
    config = dataclasses.replace(tiny.MODEL, **SHAPES[name])
    built = tiny.build(topology, **SHAPES[name])
    sizes = {built.canonical(n): p.numel() for n, p in built.module.named_parameters()}
    counted = count_parameters(config, tiny.VOCAB)
    embedding = ("embedding.", "output.")
    experts = sum(size for n, size in sizes.items() if is_expert(n))
    assert counted.total == sum(sizes.values())
    assert counted.experts == experts
    assert counted.embedding == sum(s for n, s in sizes.items() if n.startswith(embedding))
    if config.is_moe:
        visited = config.moe_router_topk / config.num_moe_experts
        assert counted.active == counted.total - experts * (1 - visited)
    else:
        assert counted.active == counted.total


def test_count_by_hand() -> None:
    counted = count_parameters(tiny.MODEL, 32)
    # Letters and output 2 x 32 x 32; 16 + 256 rows of k-mers.
    assert counted.embedding == 2 * 1024 + 272 * 32 == 10_752
    # A block: qkv 64 x 32, projection 32 x 32, two norms of 32, router 4 x 32; and
    # the final norm.
    assert counted.dense == 2 * (2048 + 1024 + 64 + 128) + 32 == 6_560
    # Two blocks of four experts of three 32 x 48 matrices.
    assert counted.experts == 2 * 4 * 4_608 == 36_864
    assert counted.active == 10_752 + 6_560 + 2 * 2 * 4_608


def test_mixtral_has_its_well_known_size() -> None:
    mixtral = ModelConfig(
        num_blocks=32,
        hidden_size=4096,
        num_attention_heads=32,
        num_query_groups=8,
        num_moe_experts=8,
        moe_ffn_hidden_size=14336,
    )
    counted = count_parameters(mixtral, 32_000)
    assert counted.total == 46_702_792_704
    assert counted.active == 12_879_925_248


def test_kmer_rows() -> None:
    assert [kmer_rows(k, 4096) for k in (1, 6, 7, 16)] == [4, 4096, 4096, 4096]


def test_flops_by_hand() -> None:
    # Multiply-adds of a token: 2 blocks of (attention 3,072, two experts 9,216, scores 32 x 24),
    # and the output matrix 1,024; two operations each, three times for forward and backward.
    multiply_adds = 2 * (3_072 + 9_216 + 768) + 1_024
    assert flops_per_token(tiny.MODEL, 32, 24) == 6 * multiply_adds == 162_816


@pytest.mark.parametrize("shape", [{}, {"num_moe_experts": 0, "ffn_hidden_size": 80}])
def test_flops_equal_what_torch_counts(shape: dict[str, Any], topology: Any) -> None:
    config = dataclasses.replace(tiny.MODEL, **shape)
    module = tiny.build(topology, **shape).module.eval()
    batch = tiny.batch_of([tiny.documents_row([tiny.random_letters(24, seed=1)], 24)])
    with FlopCounterMode(display=False) as counter:
        tiny.nats(module, batch)
    by_operator = counter.get_flop_counts()["Global"]
    matrices = sum(n for operator, n in by_operator.items() if "attention" not in str(operator))
    router = 2 * 24 * config.num_blocks * config.hidden_size * config.num_moe_experts
    scores = 2 * 24 * config.num_blocks * config.hidden_size * 24
    forward = flops_per_token(config, tiny.VOCAB, 24) * 24 / 3
    assert matrices - router == forward - scores


def test_flops_do_not_grow_with_experts_that_are_not_visited() -> None:
    more = dataclasses.replace(tiny.MODEL, num_moe_experts=64)
    assert flops_per_token(more, 32, 24) == flops_per_token(tiny.MODEL, 32, 24)
