"""Finds a network's stochastic sites: its BatchNorms and dropouts in execution order, and what cannot be sampled."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn.modules import module as module_hooks
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.nn.parameter import is_lazy

from bnuq import devices
from bnuq.errors import RequestError, SamplingError
from bnuq.forms import check_form, original_name
from bnuq.randomness import states_outside_torch
from bnuq.sampling.interception import (
    BatchNormCall,
    DropoutCall,
    Mode,
    NoiseCall,
    copied,
    forward,
    noise_call,
    positional,
    remember_noise,
    stochastic_call,
    tensors_in,
    undisturbed,
    with_autograd_if_needed,
)


@dataclass(frozen=True)
class Site:
    """One call of a BatchNorm or of a dropout in the network's evaluation-mode forward.

    `name` is the layer's module path; the second call of a layer in the same forward is `path#2`. `reason` says why a
    site is not stochastic, empty where it is. `order` counts the calls of its kind, `place` those of both kinds.
    """

    kind: ClassVar[Literal["batchnorm", "dropout", "learned"]]
    name: str
    order: int
    reason: str = ""
    place: int = field(default=0, kw_only=True)

    @property
    def stochastic(self) -> bool:
        return not self.reason


@dataclass(frozen=True)
class BatchNormSite(Site):
    """A BatchNorm. A call is identified by `address`, that of its running mean, and `occurrence` in the forward."""

    kind = "batchnorm"
    channels: int = 0
    positions: int = 1  # values per channel that one point contributes: z, 1 after a dense layer
    eps: float = 0.0
    momentum: float | None = 0.0  # torch's; None where the layer keeps a cumulative average
    tracked: bool = True  # evaluation mode uses running statistics
    never_trained: bool = False  # running statistics still at (0, 1)
    unscaled: int = 0  # channels that vary over points, and whose running variance is 0
    running_mean: Tensor | None = field(default=None, repr=False, compare=False)
    running_var: Tensor | None = field(default=None, repr=False, compare=False)
    address: int = field(default=0, repr=False, compare=False)
    occurrence: int = field(default=0, repr=False, compare=False)
    calls: Mapping[int, int] = field(default_factory=dict, repr=False, compare=False)  # of the network, by address

    @property
    def key(self) -> tuple[int, int]:
        """The key that identifies the call while the network runs."""
        return self.address, self.occurrence

    @property
    def is_frozen(self) -> bool:
        return self.reason.startswith("frozen")

    @property
    def is_differentiated(self) -> bool:
        return self.reason == _DIFFERENTIATED


_DIFFERENTIATED = "the forward differentiates through it, in training through the statistics of its mini-batch too"


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


_FIXED_PATH = "bnuq needs a network whose path depends neither on its input nor on the number of points."


@dataclass(frozen=True)
class DropoutSite(Site):
    """A dropout; its call is identified by its order."""

    kind = "dropout"
    p: float = 0.0
    variety: str = ""
    batch_axis: int | None = None  # the axis along which points lie; None where no axis grows with them
    rows: int = 1  # entries along that axis that one point contributes
    interleaved: bool = False  # the first entries of all points come before the second entries


@dataclass(frozen=True)
class NoiseSite(Site):
    """Random numbers that a layer draws in evaluation mode too, such as those of weights with a learned deviation; a
    call is identified by its order. `shape` is that of one call, for two points."""

    kind = "learned"
    family: Literal["normal", "uniform", "bernoulli"] = "normal"
    shape: tuple[int, ...] = ()
    batch_axis: int | None = None  # the axis along which points lie; None where all points share the numbers
    rows: int = 1  # entries along that axis that one point contributes


@dataclass(frozen=True)
class Sites:
    """The sites of one network, and the randomness of training that cannot be reproduced here: BatchNorms that are out
    of reach, and dropout and other noise that is `hidden`; (layer, reason) each."""

    batchnorms: tuple[BatchNormSite, ...]
    dropouts: tuple[DropoutSite, ...]
    noises: tuple[NoiseSite, ...] = ()
    unreachable_batchnorms: tuple[tuple[str, str], ...] = ()
    hidden: tuple[tuple[str, str], ...] = ()

    @property
    def unreachable(self) -> tuple[tuple[str, str], ...]:
        return self.unreachable_batchnorms + self.hidden

    @property
    def live_batchnorms(self) -> tuple[BatchNormSite, ...]:
        return tuple(site for site in self.batchnorms if site.stochastic)

    def left_out(self, fixed: Sequence[tuple[str, str]]) -> Iterator[tuple[str, str]]:
        """The layers that cannot be sampled, with the reason: the unreachable ones, and those in `fixed`."""
        yield from self.unreachable
        named = {layer for layer, _ in self.unreachable}
        yield from ((layer, reason) for layer, reason in fixed if layer not in named)

    @property
    def live_noises(self) -> tuple[NoiseSite, ...]:
        return tuple(site for site in self.noises if site.stochastic)

    @property
    def live_dropouts(self) -> tuple[DropoutSite, ...]:
        return tuple(site for site in self.dropouts if site.stochastic)


def having(sites: Sequence[Site]) -> str:
    """`its only dropout layer has` or `its 3 dropout layers have`, for a sentence on sites of one kind."""
    kind = "dropout" if sites[0].kind == "dropout" else "BatchNorm"
    return f"its only {kind} layer has" if len(sites) == 1 else f"its {len(sites)} {kind} layers have"


def select_layers(sites: Sequence[BatchNormSite], layers: str | Sequence[str]) -> tuple[BatchNormSite, ...]:
    """The sites that `layers` picks: "all", "first:k", "last:k" (in execution order), or glob patterns over names.

    Raises RequestError where a pattern matches nothing or k is out of range. Source: Teye et al. 2018, §4.4, sample
    the first blocks only.
    """
    if layers == "all":
        return tuple(sites)
    patterns = [layers] if isinstance(layers, str) else list(layers)
    if not patterns:
        raise RequestError('layers is empty; expected "all", "first:k", "last:k" or glob patterns over layer names.')
    if len(patterns) == 1 and patterns[0].partition(":")[0] in ("first", "last"):
        end, _, count = patterns[0].partition(":")
        if not count.isdecimal() or len(count) > 9 or not 1 <= int(count) <= len(sites):
            raise RequestError(
                f'layers is "{patterns[0]}"; expected {end}:k with k from 1 to {len(sites)}, '
                f"the number of stochastic BatchNorm layers."
            )
        return tuple(sites[: int(count)] if end == "first" else sites[-int(count) :])
    for pattern in patterns:
        if not any(fnmatchcase(site.name, pattern) for site in sites):
            raise RequestError(
                f'layers: "{pattern}" matches no stochastic BatchNorm layer; expected "all", "first:k", "last:k" or '
                f"glob patterns over these names: {', '.join(site.name for site in sites)}."
            )
    return tuple(site for site in sites if any(fnmatchcase(site.name, pattern) for pattern in patterns))


def find_sites(model: nn.Module, example: Tensor, *, compare_with_training: bool = True) -> Sites:
    """The BatchNorm and dropout sites of `model`, found by running it on a few points of `example` (b, *input).

    With `compare_with_training`, a copy of the network is also run in training mode, to name the randomness that cannot
    be sampled: dropout inside an LSTM or an attention, stochastic depth, manually frozen layers.
    """
    if not len(example):
        raise SamplingError("there are no points to run the network on; expected at least one.")
    check_form(model)
    for name, module in model.named_modules():
        if any(is_lazy(p) for p in (*module.parameters(recurse=False), *module.buffers(recurse=False))):
            raise SamplingError(
                f"layer {name or type(module).__name__} is lazy and not initialised; run the network once on a batch, "
                "or load a checkpoint, before sampling from it."
            )
    points = torch.cat([example] * 3)[:3]
    if points.is_floating_point() and bool((points == points.flatten()[:1].view([1] * points.ndim)).all()):
        # of points that are all one value, the order of rows could not be seen
        points = points + torch.linspace(0, 0.01, points.numel(), device=points.device).view_as(points).to(points.dtype)
    two, three = points[:2], points[:3]
    remember_noise(model, is_noisy=True)  # until that is known
    with undisturbed(model):
        calls = with_autograd_if_needed(lambda: _recorded_calls(model, two.clone()))
        again = _recorded_calls(model, three)
    remember_noise(model, is_noisy=any(isinstance(call.call, NoiseCall) for call in calls))
    if [(type(call.call), call.layer) for call in calls] != [(type(call.call), call.layer) for call in again]:
        raise SamplingError(
            "the network calls different BatchNorm or dropout layers when the number of points changes; "
            "bnuq needs a network whose path does not depend on the batch size."
        )
    training = _training_calls(model, two) if compare_with_training else None
    frozen = {t.layer for t in training or () if isinstance(t.call, BatchNormCall) and not t.call.training}

    batchnorms: list[BatchNormSite] = []
    dropouts: list[DropoutSite] = []
    noises: list[NoiseSite] = []
    modules = dict(model.named_modules())
    names: Counter[tuple[str, str]] = Counter()
    calls_by_address = Counter(traced.call.address for traced in calls if isinstance(traced.call, BatchNormCall))
    for traced, other in zip(calls, again, strict=True):
        if isinstance(traced.call, str) or isinstance(other.call, str):
            continue
        names[type(traced.call).__name__, traced.layer] += 1
        turn = names[type(traced.call).__name__, traced.layer]
        name = traced.layer if turn == 1 else f"{traced.layer}#{turn}"
        place = len(batchnorms) + len(dropouts) + len(noises)
        if isinstance(traced.call, BatchNormCall):
            earlier = sum(site.address == traced.call.address for site in batchnorms)
            site = _batchnorm_site(name, len(batchnorms), traced, other, earlier, calls_by_address)
            if getattr(modules.get(traced.layer), "momentum", 0.0) is None:  # the call itself shows a momentum of 0
                site = replace(site, momentum=None)
            if traced.layer in frozen and site.stochastic:
                site = replace(site, reason="frozen: it keeps its running statistics in training mode too")
            batchnorms.append(replace(site, place=place))
        elif isinstance(traced.call, DropoutCall):
            assert isinstance(other.call, DropoutCall)
            dropouts.append(replace(_dropout_site(name, len(dropouts), traced.call, other.call), place=place))
        else:
            assert isinstance(other.call, NoiseCall)
            noises.append(replace(_noise_site(name, len(noises), traced.call, other.call), place=place))
    return Sites(
        tuple(batchnorms),
        tuple(dropouts),
        tuple(noises),
        _unreachable_batchnorms(model, calls),
        _hidden(calls, training),
    )


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
        f"in evaluation mode the network calls its BatchNorms more often for {len(batch)} points than for {largest}: "
        f"it normalises slices of its batch{training}. Use mini-batches of at most {largest} points (--batch-size "
        f"{largest})."
    )


def slices_in_training(model: nn.Module, batch: Tensor, largest: int) -> bool | None:
    """Whether training mode, too, makes more BatchNorm calls for `batch` than for `largest` of its points; None where
    that cannot be determined."""
    addresses = {tensor.data_ptr() for tensor in (*model.parameters(), *model.buffers())}
    call_counts: Counter[int] = Counter()  # calls that normalise by their batch, by the number of points

    class Watch(Mode):
        def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
            call = stochastic_call(func, args, kwargs or {})
            if isinstance(call, BatchNormCall) and call.training and call.address not in addresses:
                call_counts[points] += 1
            return func(*args, **(kwargs or {}))

    points = 0
    try:
        twin = copied(model).train()
        for points in (largest, len(batch)):
            with undisturbed(twin, evaluation=False), Watch():
                forward(twin, batch[:points].clone())
    except Exception:  # as in _training_calls
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

    class Watch(Mode):
        def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
            call = stochastic_call(func, args, kwargs or {})
            if isinstance(call, BatchNormCall):
                calls.key(call)
            return func(*args, **(kwargs or {}))

    try:
        with Watch():
            forward(model, inputs.clone())
        calls.check_complete()
    except OtherCallsError:
        return False
    return True


@dataclass(frozen=True)
class _RecordedCall:
    """A recorded call: a BatchNorm, a dropout, noise, or the name of another operation that draws random numbers."""

    layer: str
    call: BatchNormCall | DropoutCall | NoiseCall | str
    depends_on_input: bool
    differentiated: bool = False  # the forward went through it backwards


def _recorded_calls(model: nn.Module, inputs: Tensor) -> list[_RecordedCall]:
    recorder, before = _CallRecorder(model, inputs), states_outside_torch()
    with _hooked(recorder.enter, recorder.leave), recorder:
        forward(model, inputs)
    calls = [replace(call, differentiated=recorder.differentiates(call.call)) for call in recorder.calls]
    if states_outside_torch() == before:
        return calls
    watch = _GeneratorWatch(recorder.paths)  # in another forward: reading the states costs more than a small layer
    with _hooked(watch.enter, watch.leave):
        forward(model, inputs)
    return [
        *calls,
        *(_RecordedCall(layer, f"random numbers of {name}", False) for layer, name in watch.uses),
    ]


@contextmanager
def _hooked(enter: Callable[..., None], leave: Callable[..., None]) -> Iterator[None]:
    hooks = (
        module_hooks.register_module_forward_pre_hook(enter),
        module_hooks.register_module_forward_hook(leave, always_call=True),
    )
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


class _GeneratorWatch:
    """Records which modules draw from the global generators of Python and numpy during a forward."""

    def __init__(self, paths: Mapping[int, str]) -> None:
        self._paths, self._inside, self._states = paths, [""], states_outside_torch()
        self.uses: dict[tuple[str, str], None] = {}

    def enter(self, module: nn.Module, args: Any) -> None:  # noqa: ARG002 - torch calls it so
        self._look()
        self._inside.append(self._paths.get(id(module), self._inside[-1]))

    def leave(self, module: nn.Module, args: Any, output: Any) -> None:  # noqa: ARG002
        self._look()
        self._inside.pop()

    def _look(self) -> None:
        before, self._states = self._states, states_outside_torch()
        self.uses |= {(self._inside[-1], name): None for name in before if before[name] != self._states[name]}


class _CallRecorder(Mode):
    """Records the stochastic calls of one forward, their layers, and whether they depend on the input."""

    def __init__(self, model: nn.Module, inputs: Tensor) -> None:
        super().__init__()
        self.calls: list[_RecordedCall] = []
        self.paths = {id(module): original_name(name) for name, module in model.named_modules(remove_duplicate=True)}
        self._owners = {
            tensor.data_ptr(): original_name(name.rpartition(".")[0])
            for name, tensor in (*model.named_parameters(), *model.named_buffers())
            if not is_lazy(tensor) and tensor.numel()
        }
        self._inside: list[str] = [""]
        self._data = {inputs.untyped_storage()._cdata}  # storages that depend on the input
        self._alive: list[Tensor] = []  # so that no address is reused
        self._backwards: set[int] = set()  # addresses of all that BatchNorms were given in backward passes

    def enter(self, module: nn.Module, args: Any) -> None:  # noqa: ARG002 - torch calls it so
        self._inside.append(self.paths.get(id(module), self._inside[-1]))

    def leave(self, module: nn.Module, args: Any, output: Any) -> None:  # noqa: ARG002
        self._inside.pop()

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if func.overloadpacket.__name__.endswith("batch_norm_backward"):
            self._backwards |= {tensor.data_ptr() for tensor in tensors_in((args, kwargs))}
        depends = any(t.untyped_storage()._cdata in self._data for t in tensors_in((args, kwargs)))
        if depends:
            for tensor in tensors_in(result):
                self._data.add(tensor.untyped_storage()._cdata)
                self._alive.append(tensor)
        call = (
            stochastic_call(func, args, kwargs)
            or noise_call(func, args, kwargs)
            or _hidden_randomness(func, args, kwargs)
        )
        if call is not None:
            layer = self._owners.get(call.address) if isinstance(call, BatchNormCall) and call.address else None
            self.calls.append(_RecordedCall(layer or self._inside[-1] or _anonymous(call), call, depends))
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


def _training_calls(model: nn.Module, inputs: Tensor) -> list[_RecordedCall] | None:
    try:
        twin = copied(model)
        with undisturbed(twin, evaluation=False):
            twin.train()
            calls = _recorded_calls(twin, inputs)
    except Exception:  # the network cannot be copied, or cannot run in training mode
        return None
    batchnorms = [traced.call for traced in calls if isinstance(traced.call, BatchNormCall)]
    if isinstance(model, torch.jit.ScriptModule) and not any(call.training for call in batchnorms):
        return None  # the mode of a traced network is fixed: train() has no effect
    addresses = {tensor.data_ptr() for tensor in (*model.parameters(), *model.buffers())}
    if any(call.address in addresses for call in batchnorms):
        return None  # a function with a reference to the original runs the original's layers
    return calls


def _batchnorm_site(
    name: str, order: int, traced: _RecordedCall, other: _RecordedCall, occurrence: int, calls: Mapping[int, int]
) -> BatchNormSite:
    call = traced.call
    assert isinstance(call, BatchNormCall) and isinstance(other.call, BatchNormCall)
    mean, var = call.running_mean, call.running_var
    channels = call.input.shape[1]
    reason = "" if traced.depends_on_input else "it normalises weights, not data"
    if traced.differentiated:
        reason = _DIFFERENTIATED
    if mean is not None and call.input.dtype != mean.dtype and call.input.dtype in (torch.float16, torch.bfloat16):
        kinds = [str(tensor.dtype).removeprefix("torch.") for tensor in (call.input, mean)]
        reason = f"it is given {kinds[0]} and its statistics are {kinds[1]}: autocast, or layers in half precision"
    if other.call.input.shape[1] != channels:
        reason = "its channels grow with the number of points: it normalises each point separately"
    grown = other.call.input.numel() - call.input.numel()  # by one point
    return BatchNormSite(
        name=name,
        order=order,
        reason=reason,
        channels=channels,
        positions=max(1, grown // channels),
        eps=call.eps,
        momentum=call.momentum,
        tracked=mean is not None and not call.training,
        running_mean=mean,
        running_var=var,
        never_trained=mean is not None and var is not None and bool((mean == 0).all() and (var == 1).all()),
        unscaled=_unscaled(call),
        address=call.address,
        occurrence=occurrence,
        calls=calls,
    )


def _unscaled(call: BatchNormCall) -> int:
    """The channels whose running variance is 0 although their input deviates from the running mean, by more than ε
    explains: a channel that is constant in training, as behind a dead ReLU, does not."""
    if call.running_mean is None or call.running_var is None or call.training or bool(call.running_var.all()):
        return 0
    centred = call.input.detach().movedim(1, -1).flatten(0, -2) - call.running_mean
    return int(((call.running_var == 0) & (centred.square().mean(0) > call.eps)).sum())


def _dropout_site(name: str, order: int, two: DropoutCall, three: DropoutCall) -> DropoutSite:
    """The site of a dropout. Its point axis is the one that grows from two points to three."""
    reason = "its rate is 0" if two.p == 0 else ""
    grown = [axis for axis, (a, b) in enumerate(zip(two.input.shape, three.input.shape, strict=True)) if a != b]
    axis = grown[0] if len(grown) == 1 else None
    rows = 1 if axis is None else three.input.shape[axis] - two.input.shape[axis]
    if len(grown) > 1 or (axis is not None and two.input.shape[axis] != 2 * rows):
        reason = reason or "its size does not grow in proportion to the number of points"
    return DropoutSite(
        name=name,
        order=order,
        reason=reason,
        p=two.p,
        variety=two.variety,
        batch_axis=axis,
        rows=rows,
        interleaved=not reason and axis is not None and rows > 1 and _interleaved(two.input, three.input, axis, rows),
    )


def _noise_site(name: str, order: int, two: NoiseCall, three: NoiseCall) -> NoiseSite:
    """The site of noise. Its point axis is the one that grows from two points to three."""
    grown = [axis for axis, (a, b) in enumerate(zip(two.shape, three.shape, strict=True)) if a != b]
    axis = grown[0] if len(grown) == 1 else None
    rows = 1 if axis is None else three.shape[axis] - two.shape[axis]
    proportional = len(grown) <= 1 and (axis is None or two.shape[axis] == 2 * rows)
    reason = "" if proportional else "its size does not grow in proportion to the number of points"
    return NoiseSite(name, order, reason, family=two.family, shape=two.shape, batch_axis=axis, rows=rows)


def _interleaved(two: Tensor, three: Tensor, axis: int, rows: int) -> bool:
    """Whether the rows of one point are interleaved with those of other points."""
    a, b = two.detach().movedim(axis, 0), three.detach().movedim(axis, 0)
    together = _close(a, b[: 2 * rows])
    return not together and _close(a.unflatten(0, (rows, 2)), b.unflatten(0, (rows, 3))[:, :2])


def _close(a: Tensor, b: Tensor) -> bool:
    return torch.allclose(a, b, rtol=1e-3, atol=1e-5 * float(a.abs().max()))


def _unreachable_batchnorms(model: nn.Module, calls: Sequence[_RecordedCall]) -> tuple[tuple[str, str], ...]:
    unreachable: dict[tuple[str, str], None] = {}
    called = {traced.layer for traced in calls if isinstance(traced.call, BatchNormCall)}
    for name, module in ((original_name(name), module) for name, module in model.named_modules()):
        if "Frozen" in type(module).__name__ and "running_mean" in module._buffers:
            unreachable[name, f"{type(module).__name__}: its statistics are constants and cannot be sampled"] = None
        elif isinstance(module, _BatchNorm) and name not in called:
            unreachable[name, "a BatchNorm that the evaluation-mode forward never calls"] = None
    batchnorms = [traced.call for traced in calls if isinstance(traced.call, BatchNormCall)]
    read = {
        tensor.data_ptr()
        for call in batchnorms
        for tensor in (call.running_mean, call.running_var)
        if tensor is not None
    }
    named_layers = {layer for layer, _ in unreachable}
    for name, buffer in model.named_buffers():
        layer, _, leaf = name.rpartition(".")
        if leaf in ("running_mean", "running_var") and layer not in named_layers and buffer.data_ptr() not in read:
            reason = "it uses its running statistics by custom operations, not by a BatchNorm call"
            if isinstance(module := model.get_submodule(layer), _InstanceNorm):
                reason = f"{type(module).__name__} with running statistics: training normalises each point separately"
            unreachable[layer, reason] = None
    return tuple(unreachable)


def _hidden(calls: Sequence[_RecordedCall], training: Sequence[_RecordedCall] | None) -> tuple[tuple[str, str], ...]:
    hidden: dict[tuple[str, str], None] = {}
    evaluation_calls = Counter(traced.layer for traced in calls if isinstance(traced.call, DropoutCall))
    for traced in calls:
        if isinstance(traced.call, str):
            hidden[traced.layer, f"{traced.call} in evaluation mode too: estimates are not reproducible"] = None
    always = {(traced.layer, traced.call) for traced in calls if isinstance(traced.call, str)}
    noise_calls = Counter(traced.layer for traced in calls if isinstance(traced.call, NoiseCall))
    for traced in training or ():
        if isinstance(traced.call, NoiseCall):
            noise_calls[traced.layer] -= 1
            if noise_calls[traced.layer] < 0:
                hidden[traced.layer, f"random numbers ({traced.call.name}) in training only"] = None
        elif isinstance(traced.call, str):
            if (traced.layer, traced.call) not in always:
                hidden[traced.layer, f"{traced.call} in training only"] = None
        elif isinstance(traced.call, DropoutCall):
            evaluation_calls[traced.layer] -= 1
            if evaluation_calls[traced.layer] < 0 and traced.call.p > 0:
                hidden[traced.layer, "a dropout that is called in training mode only"] = None
    return tuple(hidden)


def fingerprint(model: nn.Module) -> str:
    """SHA-256 over the names, shapes and a sample of the values of the network's parameters and buffers."""
    tensors = {
        name: tensor.detach()
        for name, tensor in model.state_dict().items()
        if isinstance(tensor, Tensor) and not name.endswith("num_batches_tracked")
    }
    digest = hashlib.sha256()
    some = {name: t.reshape(-1)[:: max(1, t.numel() // 256)].to(torch.float32) for name, t in tensors.items()}
    for name, values in devices.fetch(some).items():
        digest.update(f"{original_name(name)}{tuple(tensors[name].shape)}".encode())
        digest.update(values.tobytes())
    return digest.hexdigest()
