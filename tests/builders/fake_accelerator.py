"""A fake accelerator, the device "pretend:0": bnuq's CUDA code runs on it on a machine without a GPU.

Its tensors are plain `torch.Tensor`s of torch's PrivateUse1 backend over host memory. The dispatcher treats them as it
treats CUDA tensors: composite operations are decomposed above the backend, dispatch modes see the same calls, and
`.numpy()` is refused. Every operation that reaches the backend goes through one boxed fallback, which

- refuses CPU operands of one dimension or more (index tensors excepted), as CUDA does;
- counts kernels, and every time the host waits for the device, with the innermost line of bnuq that caused it;
- raises `torch.OutOfMemoryError` beyond `memory.capacity`;
- inside `rounding_to_tf32()` rounds the factors of float32 products where torch's switches let CUDA do so;
- copies from pinned memory in a stream of its own as late as can be, when the copy is first read;
- refuses a tensor that another stream copied and that this thread's stream has not waited for;
- computes the result on the CPU.

Where $TRITON_INTERPRET says so, kernels of Triton run in its interpreter, and count as one each.

Memory that a stream of its own copied to and that another stream used is to be recorded there, or counts as a race.

`standing_in_for_cuda()` makes bnuq take its CUDA branches for this device: in its functions the constant "cuda" becomes
"pretend", `torch.cuda.f` becomes `torch.pretend.f`, and tables with a "cuda" entry get another.

Not modelled: time (every operation is synchronous), other races, the order of sums and the choice of algorithms of
cuDNN and cuBLAS, memory that libraries take, generators, and whether CUDA has a kernel for an operation and a dtype.
Written for torch 2.13.0, whose `_setup_privateuseone_for_python_backend` is experimental.
"""

from __future__ import annotations

import gc
import importlib
import os
import pkgutil
import sys
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cache, partial
from types import CodeType, FunctionType
from typing import Any

import torch
from torch import library as registry
from torch.utils import backend_registration

NAME = "pretend"
AVAILABLE = hasattr(backend_registration, "_setup_privateuseone_for_python_backend")
aten = torch.ops.aten


@dataclass
class Log:
    """What happened on the device since the last `clear`."""

    kernels: Counter[str] = field(default_factory=Counter)  # by operation
    waits: Counter[tuple[str, str, str]] = field(default_factory=Counter)  # by (kind, operation, place)
    copies: int = 0  # to the device that the host did not wait for
    races: int = 0

    def clear(self) -> None:
        self.kernels.clear()
        self.waits.clear()
        self.copies = self.races = 0

    def wait(self, kind: str, operation: str) -> None:
        self.waits[kind, operation, _place()] += 1

    def report(self) -> str:
        waits = (f"  {n:6d} {kind:12} {op:24} {place}" for (kind, op, place), n in self.waits.most_common(25))
        return "\n".join((f"{self.kernels.total()} kernels, {self.waits.total()} waits of the host", *waits))


def _place() -> str:
    """The innermost line of bnuq on the stack; prefixed with "thread" outside the main thread."""
    frame: Any = sys._getframe(1)
    while frame is not None and frame.f_globals.get("__name__", "").split(".")[0] != "bnuq":
        frame = frame.f_back
    if frame is None:
        return "elsewhere"
    name = frame.f_code.co_filename.rpartition("/bnuq/")[2]
    thread = "" if threading.current_thread() is threading.main_thread() else "thread "
    return f"{thread}{name}:{frame.f_lineno} {frame.f_code.co_qualname}"


@dataclass
class Memory:
    """Bytes that tensors of the device hold, the most that they held, and the most that they may hold."""

    capacity: int = 8 * 2**30
    held: int = 0
    peak: int = 0

    def take(self, size: int) -> None:
        if 0 < size > self.capacity - self.held:
            raise torch.OutOfMemoryError(f"CUDA out of memory. Tried to allocate {size} bytes ({NAME}).")
        self.held += size
        self.peak = max(self.peak, self.held)

    def reset_peak(self) -> None:
        self.peak = self.held


log, memory = Log(), Memory()


class Stream:
    """A queue of the device; the work of different streams is ordered by `wait_stream` alone."""

    def __init__(self, device: Any = None) -> None:  # noqa: ARG002 - torch gives it
        self.written: list[weakref.ref[_Lane]] = []  # in this stream

    def wait_stream(self, other: Stream) -> None:
        for lane in (of() for of in other.written):
            if lane is not None:
                lane.ordered.add(self)
        other.written.clear()


class _Lane:
    """Memory that a stream of its own is to `copy` to: the streams that may read it, those that did, and those that its
    release waits for."""

    def __init__(self, stream: Stream, copy: Callable[[], object]) -> None:
        self.copies: list[Callable[[], object]] = [copy]  # one, until it is done
        self.ordered, self.used, self.recorded = {stream}, set[Stream](), {stream}
        stream.written.append(weakref.ref(self))

    def copy(self) -> None:
        while self.copies:
            self.copies.pop()()

    def released(self) -> None:
        log.races += bool(self.used - self.recorded)


_DEFAULT, _here = Stream(), threading.local()


def _current(device: Any = None) -> Stream:  # noqa: ARG001 - torch gives it
    return getattr(_here, "stream", _DEFAULT)


@contextmanager
def _in_stream(stream: Stream) -> Iterator[None]:
    before, _here.stream = _current(), stream
    try:
        yield
    finally:
        _here.stream = before


class _Module:
    """`torch.pretend`: the part of `torch.cuda` that bnuq uses."""

    rounds = False
    stands_in = False  # elsewhere torch itself must not choose this device, as nn.DataParallel does
    is_available = classmethod(lambda cls: cls.stands_in)
    is_initialized = staticmethod(lambda: True)
    device_count = staticmethod(lambda: 1)
    current_device = staticmethod(lambda: 0)
    _is_in_bad_fork = staticmethod(lambda: False)
    manual_seed_all = set_rng_state = staticmethod(lambda *_, **__: None)
    get_rng_state = staticmethod(lambda device=None: torch.zeros(16, dtype=torch.uint8))  # noqa: ARG005
    synchronize = staticmethod(lambda device=None: log.wait("synchronize", "synchronize"))  # noqa: ARG005
    mem_get_info = staticmethod(lambda device=None: (memory.capacity - memory.held, memory.capacity))  # noqa: ARG005
    memory_allocated = memory_reserved = staticmethod(lambda device=None: memory.held)  # noqa: ARG005
    max_memory_allocated = staticmethod(lambda device=None: memory.peak)  # noqa: ARG005
    reset_peak_memory_stats = staticmethod(lambda device=None: memory.reset_peak())  # noqa: ARG005
    Stream, stream, current_stream = Stream, staticmethod(_in_stream), staticmethod(_current)
    capability = (9, 0)  # of an H100
    get_device_capability = classmethod(lambda cls, device=None: cls.capability)  # noqa: ARG005
    get_device_name = staticmethod(lambda device=None: "Fake accelerator")  # noqa: ARG005


_SET = aten.set_.source_Storage_storage_offset
_CPU_KEYS = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)  # whose kernel of set_ only changes sizes and storage
_device_storages: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()  # by host storage


def is_on_device(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.device.type == NAME


def _device_storage(host: torch.UntypedStorage) -> torch.UntypedStorage:
    known = _device_storages.get(host._cdata)
    if known is not None and (known.data_ptr(), known.nbytes()) == (host.data_ptr(), host.nbytes()):
        return known  # otherwise an operation has resized its output
    memory.take(host.nbytes())
    made: Any = torch._C._construct_storage_from_data_pointer(host.data_ptr(), torch.device(NAME, 0), host.nbytes())
    made.host = host  # torch keeps the Python object, with this attribute, as long as the storage lives
    weakref.finalize(made, memory.take, -host.nbytes()).atexit = False
    _device_storages[host._cdata] = made
    return made


def _laid_out(tensor: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    storage = _device_storage(like.untyped_storage())
    _SET.redispatch(_CPU_KEYS, tensor, storage, like.storage_offset(), like.shape, like.stride())
    return tensor


def _to_device(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory as a tensor of the device: nothing is copied or counted."""
    return _laid_out(torch._C._acc.create_empty_tensor((0,), tensor.dtype), tensor)


def _to_host(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory as a tensor of the CPU: nothing is copied or counted."""
    storage: Any = tensor.untyped_storage()
    made = torch.empty(0, dtype=tensor.dtype)
    return made.set_(storage.host, tensor.storage_offset(), tensor.shape, tensor.stride())


_TAKE_CPU_INDICES = {"aten::index", "aten::index_put_", "aten::_index_put_impl_", "aten::index_put"}
_DTYPES = {bool: torch.bool, int: torch.int64, float: torch.float64, complex: torch.complex128}


def _tensors(tree: Any) -> list[torch.Tensor]:
    if isinstance(tree, torch.Tensor):
        return [tree]
    children = tree.values() if type(tree) is dict else tree if isinstance(tree, tuple | list) else ()
    return [tensor for child in children if child is not None for tensor in _tensors(child)]


def _mapped(function: Any, tree: Any) -> Any:
    """torch's tree_map for arguments of operations, at a third of its time."""
    if isinstance(tree, tuple | list):
        return type(tree)([_mapped(function, child) for child in tree])
    if isinstance(tree, dict):
        return {key: _mapped(function, child) for key, child in tree.items()}
    return function(tree)


def _with_scalars_as_tensors(argument: Any, value: Any) -> Any:
    is_scalar = type(value) in _DTYPES and str(argument.type) == "Tensor"
    return torch.tensor(value, dtype=_DTYPES[type(value)]) if is_scalar else value


@cache
def _is_view(op: Any) -> bool:
    return any(out.alias_info is not None and not out.alias_info.is_write for out in op._schema.returns)


def _fallback(op: Any, *args: Any, **kwargs: Any) -> Any:
    args = tuple(map(_with_scalars_as_tensors, op._schema.arguments, args))
    given = _tensors((args, kwargs))
    of_cpu = [tuple(tensor.shape) for tensor in given if not is_on_device(tensor) and tensor.dim() > 0]
    if of_cpu and op._schema.name not in _TAKE_CPU_INDICES:
        devices = f"{NAME}:0 and cpu! ({op._schema.name}, {of_cpu}, at {_place()})"
        raise RuntimeError(f"Expected all tensors to be on the same device, but found at least two devices, {devices}")

    def to_host(value: Any) -> Any:
        if isinstance(value, torch.device):
            return torch.device("cpu")
        return _to_host(value) if is_on_device(value) else value

    def to_device(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or id(value) not in argument_of:
            return _to_device(value) if isinstance(value, torch.Tensor) else value
        argument = argument_of[id(value)]  # returned itself, with a new layout after t_() or a resized output
        same = (argument.shape, argument.stride()) == (value.shape, value.stride())
        return argument if same or not is_on_device(argument) else _laid_out(argument, value)

    _check_order(given)
    _count(op)
    arguments, named = _mapped(to_host, (args, kwargs))
    on_host = _tensors((arguments, named))  # which live on, as what they are known by is where they lie
    argument_of = dict(zip(map(id, on_host), given, strict=True))
    if _Module.rounds and _uses_tf32(op):
        arguments = tuple(map(_in_tf32, arguments))
    result = op(*arguments, **named)
    # a view is an inference tensor where its base is
    with torch.inference_mode(False) if _is_view(op) and not given[0].is_inference() else nullcontext():
        return _mapped(to_device, result)


_PRODUCTS = {aten.mm, aten.bmm, aten.addmm, aten.baddbmm}


def _uses_tf32(op: Any) -> bool:
    backends: Any = torch.backends
    if op is aten.convolution.default:
        return backends.cudnn.conv.fp32_precision == "tf32"
    return op.overloadpacket in _PRODUCTS and backends.cuda.matmul.fp32_precision == "tf32"


def _in_tf32(value: Any) -> Any:
    """Values of float32 rounded to 10 bits, to even; a bias, with a single axis, is no factor."""
    if not isinstance(value, torch.Tensor) or value.dtype != torch.float32 or value.dim() < 2:
        return value
    bits = value.view(torch.int32)
    return ((bits + 0xFFF + (bits >> 13 & 1)) & ~0x1FFF).view(torch.float32)


def _check_order(tensors: Iterable[torch.Tensor]) -> None:
    for tensor in filter(is_on_device, tensors):
        lane = getattr(tensor.untyped_storage(), "lane", None)
        if lane is not None:
            lane.copy()
            lane.used.add(_current())
            if _current() not in lane.ordered:
                raise RuntimeError(f"a tensor is used before it was copied, at {_place()}")


def _count(op: Any) -> None:
    name, returns = op._schema.name.removeprefix("aten::"), op._schema.returns
    if _is_view(op) or op in (aten.empty.memory_format, aten.empty_strided.default):
        return
    log.kernels[name] += 1
    if returns and not any("Tensor" in str(out.type) for out in returns):
        log.wait("scalar", name)
    elif torch.Tag.dynamic_output_shape in op.tags and name != "index":  # index calls nonzero, which is counted
        log.wait("sizes", name)


def _copy_from(source: torch.Tensor, target: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    """Between host and device the host waits, unless the copy is non-blocking and the host memory pinned."""
    if is_on_device(source) and is_on_device(target):
        log.kernels["copy_"] += 1
    elif non_blocking and _is_pinned(source):
        log.copies += 1
        if _current() is not _DEFAULT:
            storage: Any = target.untyped_storage()
            storage.lane = lane = _Lane(_current(), partial(_to_host(target).copy_, source))
            weakref.finalize(storage, lane.released).atexit = False
            return target
    else:
        log.wait("to device" if is_on_device(target) else "to host", "copy_")
    if is_on_device(source):
        _check_order([source])
    to, of = (_to_host(tensor) if is_on_device(tensor) else tensor for tensor in (target, source))
    to.copy_(of)
    return target


def _lstm_cell(gates: Any, hidden_gates: Any, cell: Any, *biases: Any) -> tuple[torch.Tensor, ...]:
    gates = gates + hidden_gates + sum(bias for bias in biases if bias is not None)
    i, f, g, o = gates.chunk(4, 1)
    cell = f.sigmoid() * cell + i.sigmoid() * g.tanh()
    return o.sigmoid() * cell.tanh(), cell, gates


def _gru_cell(gates: Any, hidden_gates: Any, hidden: Any, *biases: Any) -> tuple[torch.Tensor, ...]:
    gates, hidden_gates = (
        of if bias is None else of + bias for of, bias in zip((gates, hidden_gates), biases, strict=True)
    )
    r, z, n = zip(gates.chunk(3, 1), hidden_gates.chunk(3, 1), strict=True)
    new = (n[0] + (r[0] + r[1]).sigmoid() * n[1]).tanh()
    return (hidden - new) * (z[0] + z[1]).sigmoid() + new, gates


def _convolution_backward(gradient: Any, x: Any, weight: Any, *geometry: Any) -> Any:
    sizes = [weight.shape[0]] if geometry[-1][2] else None  # of the bias
    return _fallback(aten.convolution_backward.default, gradient, x, weight, sizes, *geometry)


lacking: set[str] = set()  # kernels of cuDNN that refuse


def _count_engine(name: str) -> None:
    if name in lacking:
        raise RuntimeError("GET was unable to find an engine to execute this computation")
    log.kernels[name] += 1


def _convolution_relu(x: Any, weight: Any, bias: Any, *geometry: Any) -> torch.Tensor:
    _count_engine("cudnn_convolution_relu")
    return torch.conv2d(x, weight, bias, *geometry).relu_()


def _convolution_add_relu(x: Any, weight: Any, other: Any, alpha: Any, bias: Any, *geometry: Any) -> torch.Tensor:
    _count_engine("cudnn_convolution_add_relu")
    return torch.conv2d(x, weight, bias, *geometry).add_(other, alpha=alpha).relu_()


KERNELS = {  # that a backend must register itself; the two norms would be decomposed otherwise, unlike on CUDA
    "_copy_from": _copy_from,
    "convolution_overrideable": partial(_fallback, aten.convolution.default),
    "convolution_backward_overrideable": _convolution_backward,
    "native_group_norm": partial(_fallback, aten.native_group_norm.default),
    "native_layer_norm": partial(_fallback, aten.native_layer_norm.default),
    "cudnn_convolution_relu": _convolution_relu,
    "cudnn_convolution_add_relu": _convolution_add_relu,
    "_thnn_fused_lstm_cell": _lstm_cell,
    "_thnn_fused_gru_cell": _gru_cell,
}


def _deep_copied(original: Any, tensor: torch.Tensor, memo: dict) -> torch.Tensor:
    if not is_on_device(tensor):
        return original(tensor, memo)  # which copies the storage; this backend cannot make one
    copied = tensor.detach().clone()
    as_parameter = partial(torch.nn.Parameter, requires_grad=tensor.requires_grad)
    return memo.setdefault(id(tensor), as_parameter(copied) if isinstance(tensor, torch.nn.Parameter) else copied)


def _is_pinned(tensor: torch.Tensor) -> bool:
    return hasattr(tensor.untyped_storage(), "pinned_here")


def _pinned(tensor: torch.Tensor) -> torch.Tensor:
    """As torch's: a copy, unless the memory is pinned already."""
    if _is_pinned(tensor):
        return tensor
    pinned = tensor.clone()
    storage: Any = pinned.untyped_storage()
    storage.pinned_here = True
    return pinned


def _recorded(tensor: torch.Tensor, stream: Stream) -> None:
    storage: Any = tensor.untyped_storage()
    storage.lane.recorded.add(stream)


@cache
def _register() -> tuple[registry.Library, ...]:
    """Register the device with torch, once per process; it cannot be undone. The result keeps the kernels alive."""
    backend_registration._setup_privateuseone_for_python_backend(NAME, backend_module=_Module())
    every, operators = registry.Library("_", "IMPL"), registry.Library("aten", "IMPL")
    every.fallback(_fallback, "PrivateUse1")
    for name, kernel in KERNELS.items():
        operators.impl(name, kernel, "PrivateUse1")
    original = torch.Tensor.__deepcopy__
    torch.Tensor.__deepcopy__ = lambda tensor, memo: _deep_copied(original, tensor, memo)
    return every, operators


def _renamed(value: Any) -> Any:
    """A constant of a function, or its code, with this device in place of CUDA."""
    if isinstance(value, str):
        return value.replace("cuda", NAME) if value == "cuda" or "cuda(" in value else value  # "cuda(:\d+)?"
    if isinstance(value, tuple | frozenset):
        return type(value)(map(_renamed, value))
    if not isinstance(value, CodeType):
        return value
    names = value.co_names
    if "torch" in names and "backends" not in names:  # torch.backends.cuda stays
        names = tuple(NAME if name == "cuda" else name for name in names)
    return value.replace(co_consts=tuple(map(_renamed, value.co_consts)), co_names=names)


def _interpreted(launch: Callable[..., None], kernel: Any, *arguments: Any, **constants: Any) -> None:
    log.kernels[kernel.__name__] += 1
    _check_order(_tensors(arguments))
    launch(kernel, *_mapped(lambda value: _to_host(value) if is_on_device(value) else value, arguments), **constants)


@contextmanager
def standing_in_for_cuda() -> Iterator[Log]:
    """bnuq with this device as its CUDA device: `--device pretend`, and "auto" chooses it."""
    _register()
    for found in pkgutil.walk_packages(importlib.import_module("bnuq").__path__, "bnuq."):
        if not found.name.endswith("__main__"):
            importlib.import_module(found.name)
    modules = [module for name, module in sys.modules.items() if f"{name}.".startswith("bnuq.")]
    functions = [entry for entry in gc.get_objects() if type(entry) is FunctionType]
    codes = [(entry, entry.__code__) for entry in functions if f"{entry.__module__}.".startswith("bnuq.")]
    tables = [table for module in modules for table in vars(module).values() if isinstance(table, dict)]
    tables = [table for table in tables if "cuda" in table]
    replaced = {"pin_memory": _pinned, "is_pinned": _is_pinned, "record_stream": _recorded}
    kernels: Any = importlib.import_module("bnuq.sampling.kernels")
    launch = kernels._launch
    capacity, methods = memory.capacity, {name: getattr(torch.Tensor, name) for name in replaced}
    log.clear()
    memory.reset_peak()
    try:
        for function, code in codes:
            function.__code__ = _renamed(code)
        for table in tables:
            table[NAME] = table["cuda"]
        if os.environ.get("TRITON_INTERPRET") == "1":
            kernels._launch = partial(_interpreted, launch)
        _Module.stands_in = True
        for name, method in replaced.items():
            setattr(torch.Tensor, name, method)
        yield log
    finally:
        _Module.stands_in = False
        kernels._launch = launch
        for name, method in methods.items():
            setattr(torch.Tensor, name, method)
        for function, code in codes:
            function.__code__ = code
        for table in tables:
            table.pop(NAME, None)
        memory.capacity = capacity


@contextmanager
def rounding_to_tf32() -> Iterator[None]:
    """The device as one that rounds the factors of products where torch's switches say so."""
    _Module.rounds = True
    try:
        yield
    finally:
        _Module.rounds = False


if AVAILABLE:
    _register()  # when it is imported: autograd has a queue for each device that is known at the first backward
