import math
from typing import Any

import pytest

from genomoe.models.config import ModelConfig


@pytest.mark.parametrize(
    ("fields", "start", "fix"),
    [
        ({"num_blocks": 0}, "model.num-blocks is 0: use", "1 or more"),
        ({"hidden_size": 0}, "model.hidden-size is 0: use", "1 or more"),
        ({"num_attention_heads": 0}, "model.num-attention-heads is 0: use", "1 or more"),
        ({"moe_ffn_hidden_size": 0}, "model.moe-ffn-hidden-size is 0: use", "1 or more"),
        ({"ffn_hidden_size": -8}, "model.ffn-hidden-size is -8: use", "1 or more"),
        ({"rotary_base": 0}, "model.rotary-base is 0: use", "1 or more"),
        ({"stem_kmer_buckets": 0}, "model.stem-kmer-buckets is 0: use", "1 or more"),
        (
            {"make_vocab_size_divisible_by": 0},
            "model.make-vocab-size-divisible-by is 0: use",
            "1 or more",
        ),
        ({"moe_z_loss_coeff": -1.0}, "model.moe-z-loss-coeff is -1.0: use", "0 or more"),
        ({"moe_aux_loss_coeff": math.nan}, "model.moe-aux-loss-coeff is nan: use", "0 or more"),
        ({"init_method_std": math.inf}, "model.init-method-std is inf: use", "0 or more"),
        ({"layernorm_epsilon": 0.0}, "model.layernorm-epsilon is 0.0: use", "above 0"),
        ({"dropout": math.nan}, "model.dropout is nan: use", "0 to below 1"),
        (
            {"hidden_size": 30, "num_attention_heads": 4, "num_query_groups": 4},
            "model.num-attention-heads is 4: use",
            "divisor of hidden-size 30",
        ),
        (
            # Heads of width 3: rotary embedding turns pairs of channels.
            {"hidden_size": 12, "num_attention_heads": 4, "num_query_groups": 4},
            "model.num-attention-heads is 4: use",
            "even head width",
        ),
        (
            {"num_attention_heads": 4, "num_query_groups": 3},
            "model.num-query-groups is 3: use",
            "divisor of num-attention-heads 4",
        ),
        ({"num_query_groups": 0}, "model.num-query-groups is 0: use", "divisor"),
        ({"num_moe_experts": -1}, "model.num-moe-experts is -1: use", "2 or more, 0 for dense"),
        ({"num_moe_experts": 1}, "model.num-moe-experts is 1: use", "2 or more, 0 for dense"),
        ({"moe_router_topk": 1}, "model.moe-router-topk is 1: use", "2 to 4"),
        (
            {"num_moe_experts": 4, "moe_router_topk": 5},
            "model.moe-router-topk is 5: use",
            "2 to 4",
        ),
        ({"moe_router_topk": 0}, "model.moe-router-topk is 0: use", "2 to 4"),
        ({"dropout": 1.0}, "model.dropout is 1.0: use", "0 to below 1"),
        ({"dropout": -0.1}, "model.dropout is -0.1: use", "0 to below 1"),
        (
            {"rotary_position_scale": 0.0},
            "model.rotary-position-scale is 0.0: use",
            "a number above 0",
        ),
        (
            {"stem_kmer_orders": (3, 17)},
            "model.stem-kmer-orders is (3, 17): use",
            "between 1 and 16",
        ),
    ],
)
def test_a_shape_that_no_model_can_have(fields: dict[str, Any], start: str, fix: str) -> None:
    with pytest.raises(ValueError) as caught:
        ModelConfig(**fields)
    assert str(caught.value).startswith(start)
    assert fix in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_dense_model_has_no_use_for_topk() -> None:
    assert not ModelConfig(num_moe_experts=0, moe_router_topk=2).is_moe


@pytest.mark.parametrize(
    ("unit", "vocab", "padded"), [(32, 32, 32), (32, 33, 64), (32, 1, 32), (128, 32, 128)]
)
def test_padded_vocabulary(unit: int, vocab: int, padded: int) -> None:
    assert ModelConfig(make_vocab_size_divisible_by=unit).padded_vocab_size(vocab) == padded


def test_layer_pattern() -> None:
    assert ModelConfig(num_blocks=3).layer_pattern == "*E*E*E"
    assert ModelConfig(num_blocks=2, num_moe_experts=0).layer_pattern == "*-*-"
