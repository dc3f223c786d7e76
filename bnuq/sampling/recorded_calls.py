"""Records the stochastic calls of one forward: their layers, and whether they depend on the input."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from bnuq.forms import original_name
from bnuq.frozen import frozen
from bnuq.randomness import states_outside_torch
from bnuq.sampling.interception import (
    BatchNormCall,
    DropoutCall,
    Mode,
    NoiseCall,
    addresses_of,
    copied,
    forward,
    is_seeded,
    noise_call,
    positional,
    stochastic_call,
    storages_of,
    tensors_in,
    undisturbed,
)


@frozen
class RecordedCall:
    """A recorded call: a BatchNorm, a dropout, noise, or the name of another operation that draws random numbers."""

    layer: str
    call: BatchNormCall | DropoutCall | NoiseCall | str
    depends_on_input: bool
    differentiated: bool = False  # the forward went through it backwards


def recorded_calls(model: nn.Module, inputs: Tensor) -> list[RecordedCall]:
    recorder, before = _CallRecorder(model, inputs), states_outside_torch()
    with hooked(model, recorder.enter, recorder.leave), recorder:
        forward(model, inputs)
    calls = [replace(call, differentiated=recorder.differentiates(call.call)) for call in recorder.calls]
    if states_outside_torch() == before:
        return calls
    watch = _GeneratorWatch()  # in another forward: reading the states costs more than a small layer
    with hooked(model, watch.enter, watch.leave):
        forward(model, inputs)
    return [
        *calls,
        *(RecordedCall(layer, f"random numbers of {name}", False) for layer, name in watch.uses),
    ]


@contextmanager
def hooked(
    model: nn.Module, enter: Callable[[str, Any], object], leave: Callable[[str, Any], object]
) -> Iterator[None]:
    """Call these before and after the forward of every module of `model`, also where it raises an error, with the path
    of the module and what it is given, or gives. Forwards of other threads and of other networks do not meet them."""
    this_thread = threading.get_ident()

    def before(path: str, module: nn.Module, args: Any) -> None:  # noqa: ARG001 - torch calls it so
        if threading.get_ident() == this_thread:
            enter(path, args)

    def after(path: str, module: nn.Module, args: Any, output: Any) -> None:  # noqa: ARG001
        if threading.get_ident() == this_thread:
            leave(path, output)

    with ExitStack() as hooks:
        for path, module in model.named_modules():
            hook = nn.Module.register_forward_pre_hook(module, partial(before, path), prepend=True)  # scripted ones too
            hooks.callback(hook.remove)
            hook = nn.Module.register_forward_hook(module, partial(after, path), prepend=True, always_call=True)
            hooks.callback(hook.remove)
        yield


class _GeneratorWatch:
    """Records which modules draw from the global generators of Python and numpy during a forward."""

    def __init__(self) -> None:
        self._inside, self._states = [""], states_outside_torch()
        self.uses: dict[tuple[str, str], None] = {}

    def enter(self, path: str, args: Any) -> None:  # noqa: ARG002
        self._look()
        self._inside.append(original_name(path))

    def leave(self, path: str, output: Any) -> None:  # noqa: ARG002
        self._look()
        self._inside.pop()

    def _look(self) -> None:
        before, self._states = self._states, states_outside_torch()
        self.uses |= {(self._inside[-1], name): None for name in before if before[name] != self._states[name]}


class _CallRecorder(Mode):
    """Records the stochastic calls of one forward, their layers, and whether they depend on the input."""

    def __init__(self, model: nn.Module, inputs: Tensor) -> None:
        super().__init__()
        self.calls: list[RecordedCall] = []
        self._owners = {
            tensor.data_ptr(): original_name(name.rpartition(".")[0])
            for name, tensor in (*model.named_parameters(), *model.named_buffers())
            if tensor.layout is torch.strided and not is_lazy(tensor) and tensor.numel()
        }
        self._inside: list[str] = [""]
        self._data = {inputs.untyped_storage()._cdata}  # storages that depend on the input
        self._alive: list[Tensor] = []  # so that no address is reused
        self._backwards: set[int] = set()  # addresses of all that BatchNorms were given in backward passes

    def enter(self, path: str, args: Any) -> None:  # noqa: ARG002
        self._inside.append(original_name(path))

    def leave(self, path: str, output: Any) -> None:  # noqa: ARG002
        self._inside.pop()

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if func.overloadpacket.__name__.endswith("batch_norm_backward"):
            self._backwards |= {tensor.data_ptr() for tensor in tensors_in((args, kwargs))}
        depends = not self._data.isdisjoint(storages_of((args, kwargs)))
        if depends:
            self._data |= storages_of(result)
            self._alive += tensors_in(result)
        call = (
            stochastic_call(func, args, kwargs)
            or noise_call(func, args, kwargs)
            or (None if is_seeded() else _hidden_randomness(func, args, kwargs))
        )
        if call is not None:
            layer = self._owners.get(call.address) if isinstance(call, BatchNormCall) and call.address else None
            self.calls.append(RecordedCall(layer or self._inside[-1] or _anonymous(call), call, depends))
        return result

    def differentiates(self, call: BatchNormCall | DropoutCall | NoiseCall | str) -> bool:
        """Whether the forward went backwards through this call of a BatchNorm."""
        return isinstance(call, BatchNormCall) and bool({call.address, call.input.data_ptr()} & self._backwards - {0})


def _hidden_randomness(func: Any, args: tuple, kwargs: dict) -> str | None:
    """The name of this operation where it is random in a way that bnuq cannot control, otherwise None."""
    name = func.overloadpacket.__name__
    arguments = dict(zip((a.name for a in func._schema.arguments), positional(func, args, kwargs), strict=True))
    rate = arguments.get("dropout", arguments.get("dropout_p"))
    if isinstance(rate, float):
        return f"dropout inside {name}" if rate > 0 and arguments.get("train", True) else None
    is_active = arguments.get("training", arguments.get("train", True))
    if torch.Tag.nondeterministic_seeded in func.tags and is_active is not False:
        return f"random numbers ({name})"
    return None


def _anonymous(call: BatchNormCall | DropoutCall | NoiseCall | str) -> str:
    if isinstance(call, str):
        return ""
    return {BatchNormCall: "batch_norm", DropoutCall: "dropout", NoiseCall: "noise"}[type(call)]


def training_calls(model: nn.Module, inputs: Tensor) -> list[RecordedCall] | None:
    try:
        twin = copied(model)
        with undisturbed(twin, evaluation=False):
            twin.train()
            calls = recorded_calls(twin, inputs)
    except Exception:  # the network cannot be copied, or cannot run in training mode
        return None
    batchnorms = [traced.call for traced in calls if isinstance(traced.call, BatchNormCall)]
    if isinstance(model, torch.jit.ScriptModule) and not any(call.training for call in batchnorms):
        return None  # the mode of a traced network is fixed: train() has no effect
    if any(call.address in addresses_of(model) for call in batchnorms):
        return None  # a function with a reference to the original runs the original's layers
    return calls
