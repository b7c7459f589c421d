"""The layers that a model is built of, by expert backend: the seam between CPU and GPU.

Import only after the engine has been chosen: this module imports megatron-core.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

from megatron.core.fusions.fused_bias_dropout import get_bias_dropout_add
from megatron.core.models.backends import LocalSpecProvider
from megatron.core.models.hybrid.hybrid_block import HybridStack, HybridStackSubmodules
from megatron.core.ssm.mlp_layer import MLPLayer
from megatron.core.tensor_parallel.layers import ColumnParallelLinear, RowParallelLinear
from megatron.core.transformer.attention import SelfAttention, SelfAttentionSubmodules
from megatron.core.transformer.enums import AttnMaskType
from megatron.core.transformer.mlp import MLP, MLPSubmodules
from megatron.core.transformer.moe.moe_layer import MoELayer, MoESubmodules
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.torch_norm import WrappedTorchNorm
from megatron.core.transformer.transformer_layer import (
    MoETransformerLayer,
    TransformerLayer,
    TransformerLayerSubmodules,
)

from genomoe.models.attention import SdpaAttention
from genomoe.models.config import ExpertBackend
from genomoe.models.names import NameScheme
from genomoe.models.router import BalancedRouter


def name_scheme(backend: ExpertBackend) -> NameScheme:
    """Which parameter names a backend's layers have."""
    return "te" if backend == "te_grouped" else "local"


def stack_spec(backend: ExpertBackend) -> ModuleSpec:
    """Build megatron's spec of a hybrid stack with attention, expert and dense layers."""
    layers = _te_layers() if backend == "te_grouped" else _local_layers()
    attention = ModuleSpec(
        module=SelfAttention,
        params={"attn_mask_type": AttnMaskType.causal},
        submodules=SelfAttentionSubmodules(
            linear_qkv=layers.column,
            # Not Transformer Engine's: as a causal layer it ignores the mask of packed rows.
            core_attention=SdpaAttention,
            linear_proj=layers.row,
        ),
    )
    dense = MLPSubmodules(linear_fc1=layers.column, linear_fc2=layers.row)
    experts = MoESubmodules(experts=layers.experts, router=BalancedRouter)
    return ModuleSpec(
        module=HybridStack,
        submodules=HybridStackSubmodules(
            attention_layer=ModuleSpec(
                module=TransformerLayer,
                submodules=TransformerLayerSubmodules(
                    input_layernorm=layers.norm,
                    self_attention=attention,
                    self_attn_bda=get_bias_dropout_add,
                ),
            ),
            moe_layer=ModuleSpec(
                module=MoETransformerLayer,
                submodules=TransformerLayerSubmodules(
                    pre_mlp_layernorm=layers.norm,
                    mlp=partial(MoELayer, submodules=experts),
                    mlp_bda=get_bias_dropout_add,
                ),
            ),
            mlp_layer=ModuleSpec(
                module=MLPLayer,
                submodules=TransformerLayerSubmodules(
                    pre_mlp_layernorm=layers.norm,
                    mlp=partial(MLP.as_mlp_submodule, submodules=dense),
                    mlp_bda=get_bias_dropout_add,
                ),
            ),
        ),
    )


@dataclass(frozen=True, kw_only=True)
class _Layers:
    """The building blocks of one backend."""

    norm: Any
    column: Any
    row: Any
    experts: Any


def _local_layers() -> _Layers:
    return _Layers(
        norm=WrappedTorchNorm,
        column=ColumnParallelLinear,
        row=RowParallelLinear,
        experts=LocalSpecProvider().grouped_mlp_modules(moe_use_grouped_gemm=False),
    )


def _te_layers() -> _Layers:
    from megatron.core.extensions.transformer_engine import (
        TEColumnParallelLinear,
        TENorm,
        TERowParallelLinear,
    )
    from megatron.core.extensions.transformer_engine_spec_provider import TESpecProvider

    return _Layers(
        norm=TENorm,
        column=TEColumnParallelLinear,
        row=TERowParallelLinear,
        experts=TESpecProvider().grouped_mlp_modules(True),
    )
