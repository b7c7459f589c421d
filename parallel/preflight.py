"""Options that run and are wrong, refused by upstream's name with the reason and the fix.

megatron-core 0.19.2 computes some combinations wrongly in silence, and takes others and does
nothing. `wrap` reads the options from the very objects that upstream is about to get and passes
them through `upstream_errors`, so that no later change can bring one back. Every entry of `KNOWN`
has a test that switches the refusal off and sees the wrong number on CPU ranks
(`tests/distributed/test_preflight_numbers.py`): when that fails, upstream has changed and the
entry can go. The exception is `moe_single_grouped_weight`, refused by name alone: it runs with
Transformer Engine on a Blackwell GPU only.

Not listed is what stops by itself: biases and other parameters without a canonical name
(`models/names.py`), context parallelism (`models/attention.py`); `topology` makes no tensor
parallel groups.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any


@dataclass(frozen=True, kw_only=True)
class ModelOptions:
    """Fields of upstream's `TransformerConfig`, under its names; types as torch prints them."""

    params_dtype: str
    calculate_per_token_loss: bool
    num_moe_experts: int | None
    moe_router_load_balancing_type: str | list[str]
    moe_aux_loss_coeff: float | list[float]
    moe_z_loss_coeff: float | None
    moe_router_enable_expert_bias: bool
    moe_router_score_function: str
    moe_router_pre_softmax: bool
    moe_router_group_topk: int | None
    moe_router_topk_scaling_factor: float | None
    moe_router_fusion: bool
    moe_expert_capacity_factor: float | None
    moe_single_grouped_weight: bool


@dataclass(frozen=True, kw_only=True)
class WrapOptions:
    """Fields of upstream's `DistributedDataParallelConfig`, likewise."""

    use_megatron_fsdp: bool
    data_parallel_sharding_strategy: str
    grad_reduce_in_fp32: bool
    megatron_fsdp_main_grads_dtype: str | None
    megatron_fsdp_grad_comm_dtype: str | None
    megatron_fsdp_use_decoupled_grad: bool


@dataclass(frozen=True, kw_only=True)
class UpstreamOptions:
    """All that decides whether upstream computes the right thing.

    Attributes:
        model: Of the model.
        wrap: Of its wrapper.
        dp_size: Data-parallel ranks.
        ep_size: Expert-parallel ranks.
    """

    model: ModelOptions
    wrap: WrapOptions
    dp_size: int
    ep_size: int

    @property
    def has_experts(self) -> bool:
        """Whether the model has a router."""
        return bool(self.model.num_moe_experts)

    @property
    def has_single_rank_group(self) -> bool:
        """Whether some gradients are 'reduced' over a group of one rank."""
        return self.dp_size == 1 or self.dp_size == self.ep_size

    @property
    def shards_gradients(self) -> bool:
        """Whether Megatron-FSDP spreads the gradients over the ranks."""
        strategy = self.wrap.data_parallel_sharding_strategy
        return self.wrap.use_megatron_fsdp and strategy in ("optim_grads", "optim_grads_params")

    def kept_as(self, dtype: str | None) -> str:
        """The type that None stands for: that of the parameters."""
        return dtype or self.model.params_dtype


def read_options(
    model_config: Any, ddp_config: Any, *, dp_size: int, ep_size: int
) -> UpstreamOptions:
    """Read the options from upstream's objects.

    Args:
        model_config: `TransformerConfig` of the model.
        ddp_config: `DistributedDataParallelConfig` of its wrapper.
        dp_size: Data-parallel ranks.
        ep_size: Expert-parallel ranks.
    """
    return UpstreamOptions(
        model=ModelOptions(**_named(ModelOptions, model_config)),
        wrap=WrapOptions(**_named(WrapOptions, ddp_config)),
        dp_size=dp_size,
        ep_size=ep_size,
    )


def _named(wanted: type, config: Any) -> dict[str, Any]:
    values = {field.name: getattr(config, field.name) for field in fields(wanted)}
    return {
        name: str(value) if name.endswith("dtype") and value is not None else value
        for name, value in values.items()
    }


@dataclass(frozen=True, kw_only=True)
class Known:
    """One thing that upstream gets wrong.

    Attributes:
        option: Upstream's name of the option to blame.
        applies: Whether options ask for it.
        wrong: What comes out.
        fix: What to do instead.
    """

    option: str
    applies: Callable[[UpstreamOptions], bool]
    wrong: str
    fix: str

    def error(self, options: UpstreamOptions) -> str:
        """Say it in one line."""
        holder = options.model if hasattr(options.model, self.option) else options.wrap
        value = getattr(holder, self.option)
        return f"megatron-core's {self.option} is {value!r}: {self.wrong}: {self.fix}"


def _unread(option: str, *neutral: Any) -> Known:
    """An option of upstream's router that ours, which chooses experts itself, never reads."""
    return Known(
        option=option,
        applies=lambda o: o.has_experts and getattr(o.model, option) not in neutral,
        wrong="models/router.py does not read it, so that nothing happens",
        fix=f"leave it at {neutral[0]!r}",
    )


KNOWN = (
    Known(
        option="calculate_per_token_loss",
        applies=lambda o: not o.model.calculate_per_token_loss,
        wrong="the balance losses, sums over tokens, are not divided by their number; and "
        "Megatron-FSDP scales the earlier micro-batches of a one-rank group again",
        fix="keep it True",
    ),
    Known(
        option="data_parallel_sharding_strategy",
        applies=lambda o: (
            o.wrap.use_megatron_fsdp
            and o.wrap.data_parallel_sharding_strategy == "no_shard"
            and o.ep_size > 1
        ),
        wrong="with expert parallelism the gradient norm leaves out the other ranks' experts and "
        "differs between ranks, so that they clip differently",
        fix="use wrap ddp, or fsdp with sharding",
    ),
    Known(
        option="megatron_fsdp_grad_comm_dtype",
        applies=lambda o: (
            o.shards_gradients
            and o.has_single_rank_group
            and o.wrap.megatron_fsdp_grad_comm_dtype is not None
            and o.wrap.megatron_fsdp_grad_comm_dtype
            != o.kept_as(o.wrap.megatron_fsdp_main_grads_dtype)
        ),
        wrong="unlike the type of the gradients, it doubles those of a one-rank group",
        fix="leave it None",
    ),
    Known(
        option="megatron_fsdp_main_grads_dtype",
        applies=lambda o: (
            o.wrap.use_megatron_fsdp
            and o.kept_as(o.wrap.megatron_fsdp_main_grads_dtype) != "torch.float32"
        ),
        wrong="gradients are accumulated in 8 bits of mantissa, where small ones vanish",
        fix="use torch.float32",
    ),
    Known(
        option="grad_reduce_in_fp32",
        applies=lambda o: (
            not o.wrap.use_megatron_fsdp
            and not o.wrap.grad_reduce_in_fp32
            and o.model.params_dtype != "torch.float32"
        ),
        wrong="gradients are accumulated in 8 bits of mantissa, where small ones vanish",
        fix="use True",
    ),
    Known(
        option="megatron_fsdp_use_decoupled_grad",
        applies=lambda o: o.wrap.use_megatron_fsdp and o.wrap.megatron_fsdp_use_decoupled_grad,
        wrong="the optimizer looks for gradients elsewhere, and no weight moves",
        fix="leave it False",
    ),
    Known(
        option="moe_single_grouped_weight",
        applies=lambda o: o.wrap.use_megatron_fsdp and o.model.moe_single_grouped_weight,
        wrong="under Megatron-FSDP the experts never train",
        fix="leave it False",
    ),
    Known(
        option="moe_router_load_balancing_type",
        applies=lambda o: o.has_experts and o.model.moe_router_load_balancing_type != "none",
        wrong="models/router.py has the balance losses and does not read it; with upstream's "
        "router global_aux_loss is divided by the ranks, and aux_loss depends on micro-batches",
        fix="use 'none' and model.moe-aux-loss-coeff",
    ),
    _unread("moe_aux_loss_coeff", 0.0),
    _unread("moe_z_loss_coeff", None, 0.0),
    _unread("moe_router_enable_expert_bias", False),
    _unread("moe_router_score_function", "softmax"),
    _unread("moe_router_pre_softmax", False),
    _unread("moe_router_group_topk", None),
    _unread("moe_router_topk_scaling_factor", None),
    _unread("moe_router_fusion", False),
    Known(
        option="moe_expert_capacity_factor",
        applies=lambda o: o.has_experts and o.model.moe_expert_capacity_factor is not None,
        wrong="models/router.py does not read it, so that nothing happens; with "
        "moe_pad_expert_input_to_capacity tokens are dropped unseen",
        fix="leave it None",
    ),
)


def upstream_errors(options: UpstreamOptions) -> list[str]:
    """List what megatron-core 0.19.2 gets wrong about these options."""
    return [known.error(options) for known in KNOWN if known.applies(options)]


def engine_errors(engine: str, expert_backend: str, *, has_transformer_engine: bool) -> list[str]:
    """List what an engine cannot run.

    Args:
        engine: `cpu` or `gpu`.
        expert_backend: Resolved: `sequential` or `te_grouped`.
        has_transformer_engine: Whether it is installed.
    """
    if expert_backend != "te_grouped":
        return []
    if engine == "cpu":
        return [
            "model.expert-backend te_grouped needs a GPU and Transformer Engine: "
            "use sequential on CPU ranks"
        ]
    if not has_transformer_engine:
        return [
            "model.expert-backend te_grouped needs Transformer Engine, which is not installed: "
            'install the "gpu" extra, or use --model.expert-backend sequential'
        ]
    return []
