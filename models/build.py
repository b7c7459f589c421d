"""Build a model: our config to megatron-core's HybridModel, initialised, on its device.

Import only after the engine has been chosen: this module imports megatron-core.
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from megatron.core.models.hybrid.hybrid_model import HybridModel
from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed
from megatron.core.transformer.transformer_config import TransformerConfig

from genomoe.models import names
from genomoe.models.balance import LoadBalance
from genomoe.models.config import ModelConfig
from genomoe.models.dropout import EmbeddingDropout, SampleDropout, bias_dropout_add
from genomoe.models.initialize import initialize
from genomoe.models.spec import name_scheme, stack_spec
from genomoe.models.stem import LetterStem
from genomoe.parallel.config import ParallelConfig


@dataclass(frozen=True, kw_only=True)
class LetterIds:
    """What a model must know of the tokenizer."""

    vocab_size: int
    bos: int
    first_letter: int


@dataclass(frozen=True, kw_only=True)
class BuiltModel:
    """A model and the parts of it that the training loop talks to.

    Attributes:
        module: megatron-core's HybridModel, not yet wrapped.
        dropout: Told the samples of each batch before the forward pass.
        balance: Load balance of the experts; None for a dense model.
        scheme: Names of its layers.
        experts: This rank's share of the experts.
    """

    module: Any
    dropout: SampleDropout
    balance: LoadBalance | None
    scheme: names.NameScheme
    experts: names.ExpertSlice

    def canonical(self, name: str) -> str:
        """Canonical name of one of this rank's parameters."""
        return names.canonical_name(name, self.scheme, self.experts)


def transformer_config(
    config: ModelConfig, parallel: ParallelConfig, dtype: torch.dtype
) -> TransformerConfig:
    """Translate our config into megatron-core's, every choice of consequence spelled out."""
    moe: dict[str, Any] = {}
    if config.is_moe:
        moe = {
            "num_moe_experts": config.num_moe_experts,
            "moe_router_topk": config.moe_router_topk,
            "moe_ffn_hidden_size": config.moe_ffn_hidden_size,
            "moe_grouped_gemm": config.expert_backend == "te_grouped",
            "moe_router_dtype": "fp32",
            # The balance losses are BalancedRouter's, not megatron's: see `balance`.
            "moe_router_load_balancing_type": "none",
            "moe_aux_loss_coeff": 0.0,
            "moe_token_dispatcher_type": parallel.dispatcher,
            "expert_model_parallel_size": parallel.expert_model_parallel_size,
            "expert_tensor_parallel_size": 1,
        }
    local = config.expert_backend != "te_grouped"
    return TransformerConfig(
        num_layers=len(config.layer_pattern),
        is_hybrid_model=True,
        hidden_size=config.hidden_size,
        ffn_hidden_size=config.ffn_hidden_size,
        num_attention_heads=config.num_attention_heads,
        num_query_groups=config.num_query_groups,
        kv_channels=config.kv_channels,
        normalization="RMSNorm",
        layernorm_epsilon=config.layernorm_epsilon,
        add_bias_linear=False,
        gated_linear_unit=True,
        activation_func=F.silu,
        hidden_dropout=config.dropout,
        attention_dropout=0.0,
        perform_initialization=False,
        params_dtype=dtype,
        bf16=dtype == torch.bfloat16,
        calculate_per_token_loss=True,
        persist_layer_norm=False,
        bias_dropout_fusion=False,
        bias_activation_fusion=not local,
        apply_rope_fusion=not local,
        masked_softmax_fusion=False,
        gradient_accumulation_fusion=False,
        **_recompute(parallel),
        **moe,
    )


def _recompute(parallel: ParallelConfig) -> dict[str, Any]:
    if parallel.recompute == "none":
        return {}
    if parallel.recompute == "full":
        return {
            "recompute_granularity": "full",
            "recompute_method": "uniform",
            "recompute_num_layers": 1,
        }
    return {"recompute_granularity": "selective", "recompute_modules": [parallel.recompute]}


def build_model(
    config: ModelConfig,
    parallel: ParallelConfig,
    *,
    letters: LetterIds,
    seq_length: int,
    seed: int,
    groups: Any,
    device: torch.device,
    dtype: torch.dtype,
) -> BuiltModel:
    """Build and initialise this rank's part of the model.

    Args:
        config: Shape.
        parallel: Layout; the experts are split over its expert-parallel ranks.
        letters: Vocabulary facts.
        seq_length: Longest row, in tokens.
        seed: Of weights and dropout masks.
        groups: megatron-core's process groups.
        device: Where the parameters live.
        dtype: Of the parameters and of most arithmetic; the router is FP32 in any case.
    """
    # megatron's layers insist on forking generators of its tracker; no weight comes from them.
    model_parallel_cuda_manual_seed(seed, force_reset_rng=True)
    module = HybridModel(
        transformer_config(config, parallel, dtype),
        stack_spec(config.expert_backend),
        vocab_size=config.padded_vocab_size(letters.vocab_size),
        max_sequence_length=seq_length,
        hybrid_layer_pattern=config.layer_pattern,
        position_embedding_type="rope",
        rotary_base=config.rotary_base,
        # megatron divides positions by this factor.
        seq_len_interpolation_factor=1.0 / config.rotary_position_scale,
        share_embeddings_and_output_weights=config.share_embeddings_and_output_weights,
        pg_collection=groups,
    )
    _install_stem(module, config, letters)
    dropout = _install_dropout(module, config, seed)
    balance = _install_balance(module, config, device)
    module.to(device=device, dtype=dtype)
    experts = names.ExpertSlice(
        ep_rank=groups.ep.rank(),
        num_local_experts=config.num_moe_experts // parallel.expert_model_parallel_size,
    )
    scheme = name_scheme(config.expert_backend)
    initialize(module, config, seed=seed, scheme=scheme, experts=experts)
    return BuiltModel(
        module=module, dropout=dropout, balance=balance, scheme=scheme, experts=experts
    )


def _install_stem(module: Any, config: ModelConfig, letters: LetterIds) -> None:
    if config.stem_kmer_orders:
        module.embedding.word_embeddings = LetterStem(
            module.embedding.word_embeddings,
            hidden_size=config.hidden_size,
            kmer_orders=config.stem_kmer_orders,
            kmer_buckets=config.stem_kmer_buckets,
            bos_id=letters.bos,
            first_letter_id=letters.first_letter,
        )


def _install_dropout(module: Any, config: ModelConfig, seed: int) -> SampleDropout:
    dropout = SampleDropout(config.dropout, seed)
    module.embedding.embedding_dropout = EmbeddingDropout(dropout)
    for symbol, layer in zip(config.layer_pattern, module.decoder.layers, strict=True):
        branch = "self_attn_bda" if symbol == "*" else "mlp_bda"
        setattr(layer, branch, bias_dropout_add(dropout, layer.layer_number))
    return dropout


def _install_balance(module: Any, config: ModelConfig, device: torch.device) -> LoadBalance | None:
    if not config.is_moe:
        return None
    balance = LoadBalance(
        num_layers=config.num_blocks,
        num_experts=config.num_moe_experts,
        topk=config.moe_router_topk,
        aux_loss_coeff=config.moe_aux_loss_coeff,
        z_loss_coeff=config.moe_z_loss_coeff,
        device=device,
    )
    routers = [layer.mlp.router for layer in module.decoder.layers[1::2]]
    for index, router in enumerate(routers):
        router.bind(balance, index)
    return balance
