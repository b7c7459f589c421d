"""Our model config as Mixtral's or Llama's, and back.

Experts make a Mixtral, dense layers a Llama. A k-mer stem is in neither: such a model is of a
type of its own (`tools/modeling_genomoe.py`) with the same fields and two more. A config that our
model cannot be is refused by the name and value of the field.
"""

from collections.abc import Mapping
from typing import Any

from genomoe.models.config import ModelConfig

STEM_TYPES = {"mixtral": "genomoe", "llama": "genomoe_dense"}
"""Type of a model with a k-mer stem, by the type that it extends."""

_ARCHITECTURES = {
    "mixtral": "MixtralForCausalLM",
    "llama": "LlamaForCausalLM",
    "genomoe": "GenomoeForCausalLM",
    "genomoe_dense": "GenomoeDenseForCausalLM",
}
# A JSON file can hold numbers that no float can.
_LARGEST = 1 << 31
_MOE_TYPES = ("mixtral", "genomoe")
# Mistral is Llama's arithmetic where its sliding window is off.
_READABLE = (*_ARCHITECTURES, "mistral")

# What our model is, whatever a config may say; transformers takes an absent field for the same.
# A field whose default is not the same for all types and versions must be there.
_FIXED: dict[str, Any] = {
    "hidden_act": "silu",
    "attention_bias": False,
    "mlp_bias": False,
    "sliding_window": None,
    "attention_dropout": 0.0,
    "router_jitter_noise": 0.0,
    "partial_rotary_factor": 1.0,
    "quantization_config": None,
    "pretraining_tp": 1,
}


def hf_config(
    config: ModelConfig, *, vocab_size: int, seq_length: int, pad: int, bos: int, eos: int
) -> dict[str, Any]:
    """Describe a model as the config.json that transformers reads, without its dtype.

    Args:
        config: Shape.
        vocab_size: Real rows of the vocabulary.
        seq_length: Tokens of the rows it was trained on.
        pad: Token ids.
        bos: Likewise.
        eos: Likewise.
    """
    base = "mixtral" if config.is_moe else "llama"
    kind = STEM_TYPES[base] if config.stem_kmer_orders else base
    described: dict[str, Any] = {
        "architectures": [_ARCHITECTURES[kind]],
        "model_type": kind,
        "vocab_size": vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.ffn_hidden_size,
        "num_hidden_layers": config.num_blocks,
        "num_attention_heads": config.num_attention_heads,
        "num_key_value_heads": config.num_query_groups,
        "head_dim": config.kv_channels,
        "hidden_act": "silu",
        "max_position_embeddings": seq_length,
        "initializer_range": config.init_method_std,
        "rms_norm_eps": config.layernorm_epsilon,
        "rope_theta": float(config.rotary_base),
        "rope_scaling": _rope_scaling(config.rotary_position_scale),
        "attention_dropout": 0.0,
        "tie_word_embeddings": config.share_embeddings_and_output_weights,
        "use_cache": True,
        "pad_token_id": pad,
        "bos_token_id": bos,
        "eos_token_id": eos,
    }
    if config.is_moe:
        described |= {
            "intermediate_size": config.moe_ffn_hidden_size,
            "num_local_experts": config.num_moe_experts,
            "num_experts_per_tok": config.moe_router_topk,
            "router_aux_loss_coef": config.moe_aux_loss_coeff,
            "router_jitter_noise": 0.0,
            "output_router_logits": False,
            "sliding_window": None,
        }
    else:
        described |= {"attention_bias": False, "mlp_bias": False}
    if config.stem_kmer_orders:
        described |= {
            "kmer_orders": list(config.stem_kmer_orders),
            "kmer_buckets": config.stem_kmer_buckets,
        }
    return described


def _rope_scaling(scale: float) -> dict[str, Any] | None:
    """Positions times `scale` are, in transformers' words, frequencies divided by 1 / scale."""
    return None if scale == 1.0 else {"rope_type": "linear", "factor": 1.0 / scale}


def model_config(described: Mapping[str, Any], *, vocab_size: int) -> ModelConfig:
    """Build the model config of a config.json; the vocabulary has no padding.

    Args:
        described: Its values, in the spelling of transformers 4 or 5.
        vocab_size: Rows that the vocabulary must have.

    Raises:
        ValueError: If our model cannot be that, naming the field and its value.
    """
    kind = _choice(described, "model_type", _READABLE)
    _check_fixed(described)
    if _integer(described, "vocab_size") != vocab_size:
        raise ValueError(
            f"vocab_size is {described['vocab_size']}: the alphabets here have {vocab_size} ids"
        )
    heads = _integer(described, "num_attention_heads")
    hidden = _integer(described, "hidden_size")
    width = described.get("head_dim")
    if width is not None and _integer(described, "head_dim") * heads != hidden:
        raise ValueError(f"head_dim is {width}: use hidden_size / num_attention_heads")
    base, scale = _rotary(described)
    feed_forward = _integer(described, "intermediate_size")
    shape: dict[str, Any] = {
        "num_blocks": _integer(described, "num_hidden_layers"),
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "num_query_groups": _integer(described, "num_key_value_heads"),
        "dropout": 0.0,
        "rotary_base": base,
        "rotary_position_scale": scale,
        "share_embeddings_and_output_weights": bool(described.get("tie_word_embeddings", False)),
        "layernorm_epsilon": _number(described, "rms_norm_eps"),
        "init_method_std": _number(described, "initializer_range", 0.02),
        "make_vocab_size_divisible_by": vocab_size,
    }
    if kind in _MOE_TYPES:
        shape |= {
            "num_moe_experts": _integer(described, "num_local_experts"),
            "moe_router_topk": _integer(described, "num_experts_per_tok"),
            "moe_ffn_hidden_size": feed_forward,
            "moe_aux_loss_coeff": _number(described, "router_aux_loss_coef", 1e-3),
        }
        if shape["num_moe_experts"] < 2:
            found = shape["num_moe_experts"]
            raise ValueError(f"num_local_experts is {found}: use 2 or more, or a dense model type")
        if shape["moe_router_topk"] < 2:  # megatron-core's router normalises over two or more
            raise ValueError(f"num_experts_per_tok is {shape['moe_router_topk']}: use 2 or more")
    else:
        shape |= {"num_moe_experts": 0, "ffn_hidden_size": feed_forward}
    if kind in STEM_TYPES.values():
        shape |= _stem(described)
    return ModelConfig(**shape)


def _check_fixed(described: Mapping[str, Any]) -> None:
    for field, wanted in _FIXED.items():
        found = described.get(field, wanted)
        if found != wanted:
            raise ValueError(f"{field} is {found!r}: a genomoe model has {wanted!r}")
    if described["model_type"] == "mistral" and "sliding_window" not in described:
        raise ValueError("sliding_window is missing, which transformers takes for 4096: use null")
    layers = described.get("layer_types")
    if layers is not None and (
        not isinstance(layers, list) or any(layer != "full_attention" for layer in layers)
    ):
        raise ValueError(f"layer_types is {layers!r}: a genomoe model has full_attention alone")


def _rotary(described: Mapping[str, Any]) -> tuple[int, float]:
    """Read base and position scale: `rope_theta` and `rope_scaling`, or `rope_parameters`."""
    nested = described.get("rope_parameters") or {}
    scaling = nested or described.get("rope_scaling") or {}
    if not isinstance(scaling, dict) or any(isinstance(v, dict) for v in scaling.values()):
        raise ValueError(f"rope_parameters is {scaling!r}: use one object for all layers")
    base: Any = nested.get("rope_theta", described.get("rope_theta"))
    if type(base) not in (int, float) or not 1 <= base <= _LARGEST or base != int(base):
        raise ValueError(f"rope_theta is {base!r}: use a whole number")
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if kind not in ("default", "linear"):
        raise ValueError(f"rope_type is {kind!r}: use default or linear")
    if scaling.get("partial_rotary_factor", 1.0) != 1.0:
        raise ValueError(f"partial_rotary_factor is {scaling['partial_rotary_factor']!r}: use 1.0")
    factor = scaling.get("factor", 1.0) if kind == "linear" else 1.0
    if type(factor) not in (int, float) or not 1 / _LARGEST <= factor <= _LARGEST:
        raise ValueError(f"rope factor is {factor!r}: use a number above 0")
    return int(base), 1.0 / factor


def _stem(described: Mapping[str, Any]) -> dict[str, Any]:
    orders = described.get("kmer_orders")
    if not isinstance(orders, list) or not orders or any(type(k) is not int for k in orders):
        raise ValueError(f"kmer_orders is {orders!r}: use a list of whole numbers")
    return {
        "stem_kmer_orders": tuple(orders),
        "stem_kmer_buckets": _integer(described, "kmer_buckets"),
    }


def _choice(described: Mapping[str, Any], field: str, known: tuple[str, ...]) -> str:
    found = described.get(field)
    if found not in known:
        raise ValueError(f"{field} is {found!r}: use one of {', '.join(known)}")
    return str(found)


def _integer(described: Mapping[str, Any], field: str) -> int:
    found = described.get(field)
    if type(found) is not int or not 0 <= found <= _LARGEST:
        raise ValueError(f"{field} is {found!r}: use a whole number")
    return found


def _number(described: Mapping[str, Any], field: str, default: float | None = None) -> float:
    found = described.get(field, default)
    if type(found) not in (int, float) or not -_LARGEST <= found <= _LARGEST:
        raise ValueError(f"{field} is {found!r}: use a number")
    return float(found)
