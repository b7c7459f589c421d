"""The layers that a model is built of, by expert backend: the seam between CPU and GPU.

Import only after the engine has been chosen: this module imports megatron-core.
"""

from functools import partial

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
    return "local" if backend == "sequential" else "te"


def stack_spec(backend: ExpertBackend) -> ModuleSpec:
    """Build megatron's spec of a hybrid stack with attention, expert and dense layers."""
    return _local_stack() if backend == "sequential" else _te_stack()


def _local_stack() -> ModuleSpec:
    linear = MLPSubmodules(linear_fc1=ColumnParallelLinear, linear_fc2=RowParallelLinear)
    attention = ModuleSpec(
        module=SelfAttention,
        params={"attn_mask_type": AttnMaskType.causal},
        submodules=SelfAttentionSubmodules(
            linear_qkv=ColumnParallelLinear,
            core_attention=SdpaAttention,
            linear_proj=RowParallelLinear,
        ),
    )
    experts = LocalSpecProvider().grouped_mlp_modules(moe_use_grouped_gemm=False)
    return ModuleSpec(
        module=HybridStack,
        submodules=HybridStackSubmodules(
            attention_layer=ModuleSpec(
                module=TransformerLayer,
                submodules=TransformerLayerSubmodules(
                    input_layernorm=WrappedTorchNorm,
                    self_attention=attention,
                    self_attn_bda=get_bias_dropout_add,
                ),
            ),
            moe_layer=ModuleSpec(
                module=MoETransformerLayer,
                submodules=TransformerLayerSubmodules(
                    pre_mlp_layernorm=WrappedTorchNorm,
                    mlp=partial(
                        MoELayer, submodules=MoESubmodules(experts=experts, router=BalancedRouter)
                    ),
                    mlp_bda=get_bias_dropout_add,
                ),
            ),
            mlp_layer=ModuleSpec(
                module=MLPLayer,
                submodules=TransformerLayerSubmodules(
                    pre_mlp_layernorm=WrappedTorchNorm,
                    mlp=partial(MLP.as_mlp_submodule, submodules=linear),
                    mlp_bda=get_bias_dropout_add,
                ),
            ),
        ),
    )


def _te_stack() -> ModuleSpec:
    import dataclasses

    from megatron.core.extensions.transformer_engine_spec_provider import TESpecProvider
    from megatron.core.models.hybrid.hybrid_layer_specs import hybrid_stack_spec

    submodules = hybrid_stack_spec.submodules
    layer = submodules.moe_layer
    experts = TESpecProvider().grouped_mlp_modules(True)
    moe = dataclasses.replace(
        layer.submodules,
        mlp=partial(MoELayer, submodules=MoESubmodules(experts=experts, router=BalancedRouter)),
    )
    return ModuleSpec(
        module=HybridStack,
        submodules=dataclasses.replace(
            submodules, moe_layer=ModuleSpec(module=layer.module, submodules=moe)
        ),
    )
