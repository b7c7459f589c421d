"""megatron-core on CPU ranks: every assumption of a CUDA device, answered in one place.

megatron-core 0.19 asks for `device="cuda"`, CUDA streams and NCCL-only reductions in a few dozen
places. `install()` gives the already imported `megatron.*` modules a stand-in for the name
`torch` that answers those calls with CPU tensors and no-op streams and passes everything else
through. Only megatron sees the stand-in: the rest of the process keeps the real torch, and no
per-call interception slows the hot path. What megatron asks of tensors themselves (`Tensor.cuda`,
`Tensor.record_stream`) is answered on the class.

Inert unless `install()` is called, which start-up does once when the CPU engine is chosen.
"""

import contextlib
import functools
import importlib
import os
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

# Modules that megatron imports inside functions: they must be loaded before the stand-in is
# handed out, or they would pick up the real torch later.
_LAZY_MODULES = (
    "megatron.core.distributed",
    "megatron.core.distributed.finalize_model_grads",
    "megatron.core.distributed.fsdp.mcore_fsdp_adapter",
    "megatron.core.models.hybrid.hybrid_block",
    "megatron.core.models.hybrid.hybrid_model",
    "megatron.core.models.gpt.moe_module_specs",
    "megatron.core.models.mimo.model.base",
    "megatron.core.optimizer",
    "megatron.core.optimizer.clip_grads",
    "megatron.core.optimizer.distrib_optimizer",
    "megatron.core.pipeline_parallel.schedules",
    "megatron.core.transformer.multi_token_prediction",
    "megatron.core.transformer.moe.moe_layer",
    "megatron.core.transformer.moe.token_dispatcher",
)


class _CpuDevice(str):
    """What `torch.cuda.current_device()` returns: "cpu" as a device, 0 in an f-string index."""

    def __format__(self, spec: str) -> str:
        # megatron builds f"cuda:{current_device()}"; the factory wrappers turn that into "cpu".
        return "0"


class _Stream:
    """A CUDA stream on a machine that runs everything in order: waiting is free."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def wait_stream(self, stream: Any) -> None:
        pass

    def wait_event(self, event: Any) -> None:
        pass

    def synchronize(self) -> None:
        pass

    def record_event(self, event: Any = None) -> "_Event":
        return _Event()


class _Event:
    """A CUDA event that has always happened."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def record(self, stream: Any = None) -> None:
        pass

    def wait(self, stream: Any = None) -> None:
        pass

    def synchronize(self) -> None:
        pass

    def query(self) -> bool:
        return True


class _PassThrough(types.ModuleType):
    """A module that answers some names itself and takes the others from a real module."""

    def __init__(self, real: types.ModuleType, **answers: Any) -> None:
        super().__init__(real.__name__)
        self.__dict__.update(answers, _real=real)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_real"], name)


def _on_cpu(device: Any) -> Any:
    return "cpu" if device is not None and "cuda" in str(device) else device


def _factory(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a tensor factory so that `device="cuda"` means the CPU."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if "device" in kwargs:
            kwargs["device"] = _on_cpu(kwargs["device"])
        return function(*args, **kwargs)

    return call


def _device(spec: Any = "cpu", index: int | None = None) -> torch.device:
    return torch.device(_on_cpu(spec)) if index is None else torch.device(_on_cpu(spec), index)


def _cuda() -> _PassThrough:
    stream = _Stream()

    def seed(value: Any) -> None:
        torch.default_generator.manual_seed(int(value))

    return _PassThrough(
        torch.cuda,
        current_device=lambda: _CpuDevice("cpu"),
        Stream=_Stream,
        Event=_Event,
        current_stream=lambda *args, **kwargs: stream,
        default_stream=lambda *args, **kwargs: stream,
        stream=lambda stream: contextlib.nullcontext(),
        synchronize=lambda *args, **kwargs: None,
        set_device=lambda *args, **kwargs: None,
        empty_cache=lambda: None,
        memory_allocated=lambda *args, **kwargs: 0,
        memory_reserved=lambda *args, **kwargs: 0,
        # The CPU generator stands in for the device's: seeding and RNG trackers keep working.
        manual_seed=seed,
        get_rng_state=lambda *args, **kwargs: torch.get_rng_state(),
        set_rng_state=lambda state, *args, **kwargs: torch.set_rng_state(state),
    )


class _PremulSum:
    """gloo has no PREMUL_SUM: the factor is applied to the input, then summed."""

    def __init__(self, factor: Any) -> None:
        self.factor = factor


class _Done(_Event):
    """The handle of a collective that ran to its end before it was handed out."""

    def is_completed(self) -> bool:
        return True


def _in_order(collective: Callable[..., Any]) -> Callable[..., Any]:
    """Make a collective wait for its end, even where megatron asks for an asynchronous one.

    On a GPU the order of a stream keeps a buffer alive while a collective works on it. Here
    nothing does: Megatron-FSDP frees and resizes buffers that gloo's threads would still write
    to, which corrupts the heap after some hundred steps.
    """

    @functools.wraps(collective)
    def call(*args: Any, async_op: bool = False, **kwargs: Any) -> Any:
        collective(*args, **kwargs)
        return _Done() if async_op else None

    return call


@contextlib.contextmanager
def _uncoalesced(*args: Any, **kwargs: Any) -> Iterator[_Done]:
    """Stand in for the coalescing manager: the collectives inside run one by one, in order."""
    yield _Done()


def _split_sizes(split: Any) -> list[int] | None:
    # gloo wants Python integers; megatron's all-to-all dispatcher may hand over a tensor.
    if split is None:
        return None
    return split.tolist() if isinstance(split, torch.Tensor) else [int(n) for n in split]


def _all_to_all_single(
    output: torch.Tensor,
    input: torch.Tensor,  # megatron names it so
    output_split_sizes: Any = None,
    input_split_sizes: Any = None,
    group: Any = None,
) -> None:
    out, inp = _split_sizes(output_split_sizes), _split_sizes(input_split_sizes)
    dist.all_to_all_single(output, input, out, inp, group=group)


def _all_reduce(tensor: torch.Tensor, op: Any = dist.ReduceOp.SUM, group: Any = None) -> None:
    if isinstance(op, _PremulSum):
        tensor.mul_(op.factor)
        op = dist.ReduceOp.SUM
    dist.all_reduce(tensor, op=op, group=group)


def _reduce_scatter_tensor(
    output: torch.Tensor, input: torch.Tensor, op: Any = dist.ReduceOp.SUM, group: Any = None
) -> None:
    if isinstance(op, _PremulSum):
        input.mul_(op.factor)
        op = dist.ReduceOp.SUM
    dist.reduce_scatter_tensor(output, input, op=op, group=group)


def _distributed() -> _PassThrough:
    collectives: dict[str, Any] = {
        "all_to_all_single": _all_to_all_single,
        "all_reduce": _all_reduce,
        "reduce_scatter_tensor": _reduce_scatter_tensor,
        "all_gather_into_tensor": dist.all_gather_into_tensor,
        "broadcast": dist.broadcast,
        "all_gather": dist.all_gather,
    }
    return _PassThrough(
        dist,
        _make_nccl_premul_sum=_PremulSum,
        **{name: _in_order(collective) for name, collective in collectives.items()},
    )


def _stand_in() -> _PassThrough:
    factories = ("tensor", "zeros", "ones", "empty", "full", "arange", "rand", "randn", "eye")
    return _PassThrough(
        torch,
        cuda=_cuda(),
        distributed=_distributed(),
        device=_device,
        **{name: _factory(getattr(torch, name)) for name in factories},
    )


def _clip_by_norm(
    parameters: Any, max_norm: float, total_norm: float, use_decoupled_grad: bool = False
) -> None:
    """Scale gradients in place: upstream's version asserts `torch.cuda.FloatTensor`."""
    if use_decoupled_grad:
        raise ValueError("decoupled gradients do not exist on the CPU engine")
    coefficient = max_norm / (float(total_norm) + 1.0e-6)
    if coefficient >= 1.0:
        return
    for parameter in [parameters] if isinstance(parameters, torch.Tensor) else parameters:
        if parameter.grad is not None:
            parameter.grad.mul_(coefficient)


def _mesh_on_cpu(group: Any, device_type: str, *args: Any, **kwargs: Any) -> DeviceMesh:
    return DeviceMesh.from_group(group, "cpu", *args, **kwargs)


def install() -> None:
    """Let the megatron-core of this process run on CPU tensors and gloo. Call once, first."""
    # A GPU machine too can have CPU ranks: megatron must find neither its device nor Transformer
    # Engine, whose kernels and optimizer it would take.
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    sys.modules.setdefault("transformer_engine", None)  # type: ignore[arg-type]
    from megatron.core import jit

    # `jit_fuser` is torch.compile: on a CPU it would call a C++ compiler at run time.
    jit.disable_jit_fuser()
    for name in _LAZY_MODULES:
        importlib.import_module(name)
    stand_in = _stand_in()
    for module in list(_megatron_modules()):
        names = vars(module)
        for name, value in list(names.items()):
            if value is torch:
                names[name] = stand_in
            elif value is dist:
                names[name] = stand_in.distributed
    _patch_single_names()
    torch.Tensor.cuda = lambda self, *args, **kwargs: self  # type: ignore[method-assign]
    torch.Tensor.record_stream = lambda self, s: None  # type: ignore[method-assign]


def _megatron_modules() -> Iterator[types.ModuleType]:
    for name, module in sorted(sys.modules.items()):
        if name.startswith("megatron.") and isinstance(module, types.ModuleType):
            yield module


def _patch_single_names() -> None:
    from megatron.core.distributed.fsdp import mcore_fsdp_adapter
    from megatron.core.distributed.fsdp.src.megatron_fsdp import param_and_grad_buffer
    from megatron.core.models.hybrid import hybrid_block
    from megatron.core.optimizer import clip_grads, optimizer
    from megatron.core.tensor_parallel import random
    from megatron.core.transformer.torch_norm import WrappedTorchNorm

    # The final norm of a hybrid stack is hard-wired to Transformer Engine's.
    hybrid_block.TENorm = WrappedTorchNorm
    # FSDP builds its meshes for "cuda".
    mcore_fsdp_adapter.DeviceMesh = types.SimpleNamespace(from_group=_mesh_on_cpu)
    param_and_grad_buffer._coalescing_manager = _uncoalesced
    clip_grads.clip_grad_by_total_norm_fp32 = _clip_by_norm
    optimizer.clip_grad_by_total_norm_fp32 = _clip_by_norm
    # These two reach into torch._C for the CUDA generator.
    random._get_cuda_rng_state = lambda *args, **kwargs: torch.get_rng_state()
    random._set_cuda_rng_state = lambda state, *args, **kwargs: torch.set_rng_state(state)
