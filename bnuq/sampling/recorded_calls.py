"""Records the stochastic calls of one forward: their layers, and whether they depend on the input; and
counts its BatchNorm calls, which must be those of the forward that found the sites."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from bnuq.errors import SamplingError
from bnuq.forms import original_name
from bnuq.frozen import frozen
from bnuq.randomness import states_outside_torch
from bnuq.sampling.interception import (
    BatchNormCall,
    CallObserver,
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
from bnuq.sampling.sites import BatchNormSite


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
    return [*calls, *(RecordedCall(layer, f"random numbers of {name}", False) for layer, name in watch.uses)]


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
            self.calls.append(RecordedCall(layer or self._inside[-1] or _ANONYMOUS.get(type(call), ""), call, depends))
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


# The names of calls outside all layers.
_ANONYMOUS: dict[type, str] = {BatchNormCall: "batch_norm", DropoutCall: "dropout", NoiseCall: "noise"}


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


class OtherCallsError(SamplingError):
    """A forward calls different BatchNorms than the first forward, or calls them more or less often."""


class BatchNormCalls:
    """Counts the BatchNorm calls of one forward, which must match those of the forward that found `sites`.

    Without this check, additional calls (virtual batches, loops of varying length, early exits) would silently use
    running statistics.
    """

    def __init__(self, sites: Sequence[BatchNormSite]) -> None:
        self._expected = sites[0].calls if sites else None
        self._names = {site.address: site.name for site in sites if not site.occurrence}
        self._counts: Counter[int] = Counter()

    def key(self, call: BatchNormCall) -> tuple[int, int]:
        """The site's key of this call; OtherCallsError where there is no such site."""
        address, occurrence = call.address, self._counts[call.address]
        self._counts[address] += 1
        if self._expected is not None and occurrence >= self._expected.get(address, 0):
            raise OtherCallsError(
                f"{self._name(address)} is called more often than in the first forward. {_FIXED_PATH}"
            )
        return address, occurrence

    def check_complete(self) -> None:
        """Raise OtherCallsError where the forward skipped a call."""
        for address, count in (self._expected or {}).items():
            if self._counts[address] < count:
                raise OtherCallsError(
                    f"{self._name(address)} was called {self._counts[address]} times in a forward, and {count} times "
                    f"in the first one. {_FIXED_PATH}"
                )

    def _name(self, address: int) -> str:
        return f"BatchNorm {self._names[address]}" if address in self._names else "a BatchNorm"


_FIXED_PATH = "bnuq needs a network whose path depends neither on its input nor on the number of examples."


_SMALLEST_SLICE = 4  # points; smaller slices are implausible, so the cause must be another one


def other_calls(model: nn.Module, sites: Sequence[BatchNormSite], batch: Tensor) -> OtherCallsError:
    """The error for a `model` whose BatchNorm calls for `batch` differ from those for a few points; call it inside
    `undisturbed`."""
    largest = largest_batch(model, sites, batch, len(batch))
    if largest == len(batch) or largest < _SMALLEST_SLICE:
        return OtherCallsError(f"the number of BatchNorm calls depends on the network's input. {_FIXED_PATH}")
    training = {
        True: ", in training mode too, so its training noise is that of a slice",
        False: ", but the whole batch in training mode",
        None: "",
    }[slices_in_training(model, batch, largest)]
    return OtherCallsError(
        f"in evaluation mode the network calls its BatchNorms more often for {len(batch)} examples than for {largest}: "
        f"it normalises slices of its batch{training}. Use mini-batches of at most {largest} examples (--batch-size "
        f"{largest})."
    )


def slices_in_training(model: nn.Module, batch: Tensor, largest: int) -> bool | None:
    """Whether training mode, too, makes more BatchNorm calls for `batch` than for `largest` of its points; None where
    that cannot be determined."""
    addresses = addresses_of(model)
    call_counts: Counter[int] = Counter()  # calls that normalise by their batch, by the number of points

    def seen(call: object) -> None:
        if isinstance(call, BatchNormCall) and call.training and call.address not in addresses:
            call_counts[points] += 1

    points = 0
    try:
        twin = copied(model).train()
        for points in (largest, len(batch)):
            with undisturbed(twin, evaluation=False), CallObserver(seen):
                forward(twin, batch[:points].clone())
    except Exception:  # the copy may not run, which says nothing
        return None
    return call_counts[len(batch)] > call_counts[largest] if call_counts else None


def smallest_batch(sites: Sequence[BatchNormSite]) -> int:
    """The fewest points of which every BatchNorm has a variance: one where each point has several positions."""
    return 1 if all(site.positions > 1 for site in sites) else 2


def largest_batch(model: nn.Module, sites: Sequence[BatchNormSite], example: Tensor, limit: int) -> int:
    """The largest number of points, up to `limit`, for which `model` calls each BatchNorm as often as for two points.

    It is below `limit` where the network normalises slices of its batch (virtual batches). Calls that depend on the
    data have no effect, because two points of `example` are repeated. Call it inside `undisturbed`.
    """
    repeated = example[:2].repeat(limit // len(example[:2]) + 1, *[1] * (example.ndim - 1))

    def same(points: int) -> bool:
        return _same_calls(model, sites, repeated[:points])

    if same(limit) or not same(2):
        return limit
    fits, too_many = min(2, limit), limit
    while too_many - fits > 1:
        middle = (fits + too_many) // 2
        fits, too_many = (middle, too_many) if same(middle) else (fits, middle)
    return fits


def _same_calls(model: nn.Module, sites: Sequence[BatchNormSite], inputs: Tensor) -> bool:
    calls = BatchNormCalls(sites)

    try:
        with CallObserver(lambda call: calls.key(call) if isinstance(call, BatchNormCall) else None):
            forward(model, inputs.clone())
        calls.check_complete()
    except OtherCallsError:
        return False
    return True
