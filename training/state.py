"""The tensors of a run under canonical names: what this rank holds of each, and where it sits.

DDP ranks hold whole tensors; Megatron-FSDP ranks hold whole rows of them. Both become `Piece`s,
so a checkpoint knows nothing of the layout that wrote it.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from genomoe.models import names
from genomoe.models.build import BuiltModel
from genomoe.parallel.topology import Topology
from genomoe.training.optimizer import torch_optimizers

MOMENTS = ("exp_avg", "exp_avg_sq")


@dataclass(frozen=True, kw_only=True)
class Piece:
    """Whole rows of a tensor, as a view of this rank's memory.

    Attributes:
        name: `weights/NAME`, `exp_avg/NAME`, `exp_avg_sq/NAME`, or a name of its own.
        data: [rows here, ...], writable in place.
        shape: Of the whole tensor.
        row_start: First row that is here.
        owned: Whether this rank is the one that saves it (copies are saved once).
    """

    name: str
    data: torch.Tensor
    shape: tuple[int, ...]
    row_start: int
    owned: bool


@dataclass(frozen=True, kw_only=True)
class _Shard:
    name: str
    parameter: torch.nn.Parameter
    weight: torch.Tensor
    row_start: int
    shape: tuple[int, ...]
    owned: bool


def collect(built: BuiltModel, wrapped: Any, optimizer: Any, topology: Topology) -> list[Piece]:
    """List the weights and moments that this rank holds.

    Before the first step there are no moments; `allocate_moments` makes them.

    Args:
        built: The model.
        wrapped: Its wrapper.
        optimizer: Its optimizer, or None for the weights alone.
        topology: Process groups.
    """
    states: dict[torch.Tensor, dict[str, torch.Tensor]] = {}
    for part in torch_optimizers(optimizer) if optimizer is not None else []:
        states.update(part.state)
    pieces = []
    for shard in _shards(built, wrapped, topology):
        tensors = {"weights": shard.weight}
        for moment in MOMENTS:
            if moment in states.get(shard.parameter, {}):
                tensors[moment] = _local(states[shard.parameter][moment])
        for kind, tensor in tensors.items():
            pieces.append(
                Piece(
                    name=f"{kind}/{shard.name}",
                    data=tensor.view(-1, *shard.shape[1:]),
                    shape=shard.shape,
                    row_start=shard.row_start,
                    owned=shard.owned,
                )
            )
    return pieces


def allocate_moments(optimizer: Any) -> None:
    """Give every parameter with local rows the zero moments that AdamW starts with."""
    for part in torch_optimizers(optimizer):
        for group in part.param_groups:
            for parameter in group["params"]:
                if _local(parameter).numel() and not part.state[parameter]:
                    moments = {moment: torch.zeros_like(parameter) for moment in MOMENTS}
                    part.state[parameter].update(moments)


def set_step(optimizer: Any, step: int) -> None:
    """Tell AdamW how many steps it has taken (its bias correction depends on it)."""
    for part in torch_optimizers(optimizer):
        if isinstance(part, torch.optim.AdamW):
            for state in part.state.values():
                state["step"] = torch.tensor(float(step))
        else:  # Transformer Engine's FusedAdam counts by group
            for group in part.param_groups:
                group["step"] = step


def install_weights(wrapped: Any, optimizer: Any) -> None:
    """Make loaded weights the ones that the next forward pass uses."""
    if wrapped.ddp_config.use_megatron_fsdp:
        wrapped.module.install_optimized_model_weights()
    elif wrapped.config.bf16:
        for part in getattr(optimizer, "chained_optimizers", [optimizer]):
            part._copy_main_params_to_model_params()


def _shards(built: BuiltModel, wrapped: Any, topology: Topology) -> Iterator[_Shard]:
    if wrapped.ddp_config.use_megatron_fsdp:
        return _fsdp_shards(built, wrapped)
    return _ddp_shards(built, wrapped, topology)


def _ddp_shards(built: BuiltModel, wrapped: Any, topology: Topology) -> Iterator[_Shard]:
    dense = (topology.dp_rank, topology.dp_size)
    expert = (topology.expert_dp_rank, topology.dp_size // topology.ep_size)
    for index, (name, parameter) in enumerate(wrapped.named_parameters()):
        canonical = built.canonical(name)
        rank, copies = expert if names.is_expert(canonical) else dense
        main = getattr(parameter, "main_param", parameter)  # FP32 behind BF16 weights
        yield _Shard(
            name=canonical,
            parameter=main,
            weight=main.data,
            row_start=0,
            shape=tuple(parameter.shape),
            owned=index % copies == rank,
        )


def _fsdp_shards(built: BuiltModel, wrapped: Any) -> Iterator[_Shard]:
    buffer = wrapped.param_and_grad_buffer
    optimizer_parameters = dict(buffer.optimizer_named_parameters)
    for group in buffer.parameter_groups:
        weights = group.main_weight_buffer or group.model_weight_buffer
        for index, original in enumerate(group.params):
            name = buffer.param_to_name[original]
            parameter = optimizer_parameters[name]
            local = _local(parameter.data)
            row = max(1, parameter.shape[1:].numel())
            start, end = weights._get_item_slice_in_shard(index)
            if start % row or end - start != local.numel():
                raise RuntimeError(f"{name}: the FSDP shard is not made of whole rows")
            yield _Shard(
                name=built.canonical(name),
                parameter=parameter,
                weight=local,
                row_start=start // row,
                shape=tuple(parameter.shape),
                owned=True,
            )


def _local(tensor: torch.Tensor) -> torch.Tensor:
    """The rows of a DTensor that are here; any other tensor is whole."""
    return getattr(tensor, "_local_tensor", tensor)
