"""Which rows go where, against lists written by hand; which configs are the same model."""

import dataclasses
import json
from typing import Any

import pytest

from genomoe.models.config import CODON_PHASE, ModelConfig
from genomoe.models.mixtral import TensorMap, count_part_values, tensor_maps
from genomoe.models.mixtral_config import hf_config, model_config
from tests.unit.models.expected_names import expected_shapes

IDS = {"vocab_size": 32, "pad": 0, "bos": 1, "eos": 2}

MODEL = ModelConfig(
    num_blocks=2,
    hidden_size=24,
    num_attention_heads=6,
    num_query_groups=2,
    num_moe_experts=3,
    moe_ffn_hidden_size=5,
)
CHANGES: dict[str, dict[str, Any]] = {
    "as it is": {},
    "dense": {"num_moe_experts": 0, "ffn_hidden_size": 7},
    "tied": {"share_embeddings_and_output_weights": True},
    "stem": {"stem_kmer_orders": (2, 6), "stem_kmer_buckets": 100},
    "dense stem": {"stem_kmer_orders": (3,), "num_moe_experts": 0},
    "padded": {"make_vocab_size_divisible_by": 80},
    "codons": {"rotary_position_scale": CODON_PHASE, "rotary_base": 500},
    "stretched": {"rotary_position_scale": 0.25},
    "epsilon": {"layernorm_epsilon": 1e-6, "init_method_std": 0.3, "moe_aux_loss_coeff": 0.5},
    "top-3": {"moe_router_topk": 3},
    "one group": {"num_query_groups": 1},
}


def changed(name: str) -> ModelConfig:
    return dataclasses.replace(MODEL, **CHANGES[name])


def found(maps: list[TensorMap], name: str) -> TensorMap:
    return next(tensor for tensor in maps if tensor.name == name)


def rows_by_name(maps: list[TensorMap], name: str) -> dict[str, tuple[tuple[int, int], ...]]:
    return {part.name: part.rows for part in found(maps, name).parts}


@pytest.mark.parametrize("name", CHANGES)
def test_every_tensor_of_the_model_and_no_other(name: str) -> None:
    model = changed(name)
    maps = tensor_maps(model, 32)
    assert len({tensor.name for tensor in maps}) == len(maps)
    assert {tensor.name: tensor.shape for tensor in maps} == expected_shapes(model, 32)
    parts = [part.name for tensor in maps for part in tensor.parts]
    assert len(set(parts)) == len(parts)


@pytest.mark.parametrize("name", CHANGES)
def test_every_row_goes_to_one_place(name: str) -> None:
    for tensor in tensor_maps(changed(name), 32):
        rows = [
            row
            for part in tensor.parts
            for first, count in part.rows
            for row in range(first, first + count)
        ]
        is_vocabulary = tensor.name in ("embedding.letters.weight", "output.weight")
        assert sorted(rows) == list(range(32 if is_vocabulary else tensor.shape[0])), tensor.name


def test_queries_keys_and_values_lie_by_group() -> None:
    """Two groups of three query heads, four wide: 12 rows of queries, 4 of keys, 4 of values."""
    assert rows_by_name(tensor_maps(MODEL, 32), "blocks.1.attention.linear_qkv.weight") == {
        "model.layers.1.self_attn.q_proj.weight": ((0, 12), (20, 12)),
        "model.layers.1.self_attn.k_proj.weight": ((12, 4), (32, 4)),
        "model.layers.1.self_attn.v_proj.weight": ((16, 4), (36, 4)),
    }


def test_the_gate_comes_first() -> None:
    assert rows_by_name(tensor_maps(MODEL, 32), "blocks.0.mlp.experts.2.linear_fc1.weight") == {
        "model.layers.0.block_sparse_moe.experts.2.w1.weight": ((0, 5),),
        "model.layers.0.block_sparse_moe.experts.2.w3.weight": ((5, 5),),
    }
    assert rows_by_name(tensor_maps(changed("dense"), 32), "blocks.0.mlp.linear_fc1.weight") == {
        "model.layers.0.mlp.gate_proj.weight": ((0, 7),),
        "model.layers.0.mlp.up_proj.weight": ((7, 7),),
    }


def test_padding_of_the_vocabulary_stays_behind() -> None:
    maps = tensor_maps(changed("padded"), 32)
    assert found(maps, "output.weight").shape == (80, 24)
    assert rows_by_name(maps, "output.weight") == {"lm_head.weight": ((0, 32),)}
    assert rows_by_name(maps, "embedding.letters.weight") == {
        "model.embed_tokens.weight": ((0, 32),)
    }
    assert count_part_values(maps) == count_part_values(tensor_maps(MODEL, 32))


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("nested", [False, True], ids=["transformers 4", "transformers 5"])
def test_a_config_comes_back(name: str, nested: bool) -> None:
    """Through JSON, in the spelling of both versions; what does not shape the model is lost."""
    model = changed(name)
    described = json.loads(json.dumps(hf_config(model, seq_length=64, **IDS)))
    if nested:
        scaling = described.pop("rope_scaling") or {"rope_type": "default"}
        theta = described.pop("rope_theta")
        described["rope_parameters"] = {**scaling, "rope_theta": theta}
    back = model_config(described, vocab_size=32)
    assert back.rotary_position_scale == pytest.approx(model.rotary_position_scale, rel=1e-15)
    lost: dict[str, Any] = {
        "dropout": 0.0,
        "make_vocab_size_divisible_by": 32,
        "rotary_position_scale": back.rotary_position_scale,
    }
    if model.is_moe:
        lost["ffn_hidden_size"] = ModelConfig.ffn_hidden_size
    else:
        lost |= {n: getattr(ModelConfig, n) for n in ("moe_ffn_hidden_size", "moe_router_topk")}
    assert back == dataclasses.replace(model, **lost)


def test_positions_times_a_scale_are_frequencies_divided_by_its_inverse() -> None:
    described = hf_config(changed("codons"), seq_length=64, **IDS)
    assert described["rope_scaling"] == {"rope_type": "linear", "factor": 1 / CODON_PHASE}
    assert described["rope_theta"] == 500.0
    assert hf_config(MODEL, seq_length=64, **IDS)["rope_scaling"] is None


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("as it is", {"model_type": "gpt2"}, "model_type is 'gpt2': use one of mixtral, llama"),
    ("as it is", {"model_type": None}, "model_type is None"),
    ("as it is", {"vocab_size": 32000}, "vocab_size is 32000: the alphabets here have 32 ids"),
    ("as it is", {"hidden_act": "gelu"}, "hidden_act is 'gelu': a genomoe model has 'silu'"),
    ("as it is", {"sliding_window": 4096}, "sliding_window is 4096"),
    ("as it is", {"router_jitter_noise": 0.1}, "router_jitter_noise is 0.1"),
    ("as it is", {"attention_dropout": 0.1}, "attention_dropout is 0.1"),
    ("as it is", {"quantization_config": {"bits": 4}}, "quantization_config is"),
    ("as it is", {"layer_types": ["full_attention", "sliding_attention"]}, "sliding_attention"),
    ("as it is", {"num_local_experts": 1}, "num_local_experts is 1: use 2 or more"),
    ("as it is", {"num_local_experts": None}, "num_local_experts is None: use a whole number"),
    ("as it is", {"num_experts_per_tok": 1}, "num_experts_per_tok is 1: use 2 or more"),
    ("as it is", {"num_experts_per_tok": 4}, "moe-router-topk is 4: use 2 to 3"),
    ("as it is", {"num_key_value_heads": 4}, "num-query-groups is 4: use a divisor"),
    ("as it is", {"num_key_value_heads": None}, "num_key_value_heads is None: use a whole number"),
    ("as it is", {"head_dim": 8}, "head_dim is 8: use hidden_size / num_attention_heads"),
    ("as it is", {"rope_theta": None}, "rope_theta is None: use a whole number"),
    ("as it is", {"rope_theta": 10000.5}, "rope_theta is 10000.5: use a whole number"),
    ("as it is", {"rope_scaling": {"rope_type": "yarn", "factor": 2.0}}, "rope_type is 'yarn'"),
    ("as it is", {"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "rope_type is 'dynamic'"),
    ("as it is", {"rope_scaling": {"rope_type": "linear", "factor": 0}}, "rope factor is 0"),
    ("as it is", {"partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5"),
    ("as it is", {"rope_parameters": {"full_attention": {}}}, "use one object for all layers"),
    ("dense", {"attention_bias": True}, "attention_bias is True: a genomoe model has False"),
    ("dense", {"mlp_bias": True}, "mlp_bias is True: a genomoe model has False"),
    ("dense", {"pretraining_tp": 2}, "pretraining_tp is 2"),
    ("dense", {"model_type": "mistral"}, "sliding_window is missing"),
    ("dense", {"model_type": "mistral", "sliding_window": 4096}, "sliding_window is 4096"),
    ("stem", {"kmer_orders": "23"}, "kmer_orders is '23': use a list of whole numbers"),
    ("stem", {"kmer_orders": [17]}, "stem-kmer-orders is (17,)"),
    ("stem", {"kmer_buckets": 0}, "stem-kmer-buckets is 0"),
]


@pytest.mark.parametrize(("name", "changes", "words"), REFUSED, ids=[r[2] for r in REFUSED])
def test_what_our_model_cannot_be(name: str, changes: dict[str, Any], words: str) -> None:
    described = {**hf_config(changed(name), seq_length=64, **IDS), **changes}
    with pytest.raises(ValueError) as refused:
        model_config(described, vocab_size=32)
    assert words in str(refused.value)


def test_mistral_without_its_window_is_llama() -> None:
    described = hf_config(changed("dense"), seq_length=64, **IDS)
    as_mistral = {**described, "model_type": "mistral", "sliding_window": None}
    assert model_config(as_mistral, vocab_size=32) == model_config(described, vocab_size=32)


ODD: list[Any] = [None, True, -1, 0, 1, 0.5, 1e400, 10**30, "8", "", [], [1], [[]], {}, {"a": 1}]


@pytest.mark.parametrize("name", ["as it is", "dense", "stem"])
def test_odd_values_of_any_field_are_a_model_or_refused_in_words(name: str) -> None:
    """Never another exception: ValueError is what the command turns into one line."""
    described = hf_config(changed(name), seq_length=64, **IDS)
    for field in [*described, "layer_types", "rope_parameters", "partial_rotary_factor"]:
        for value in [*ODD, {"rope_type": "linear", "factor": "2"}, {"rope_type": []}]:
            try:
                model = model_config({**described, field: value}, vocab_size=32)
            except ValueError as error:
                assert str(error) and "\n" not in str(error)
            else:
                assert tensor_maps(model, 32)
        without = {key: kept for key, kept in described.items() if key != field}
        try:
            model_config(without, vocab_size=32)
        except ValueError as error:
            assert field in str(error)
