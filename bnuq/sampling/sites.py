"""What in a network can be stochastic: its BatchNorm and dropout sites in execution order, and what is out of reach."""

from __future__ import annotations

import copy
import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn.modules import module as module_hooks
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parameter import is_lazy

from bnuq.errors import RequestError, SamplingError
from bnuq.sampling.interception import (
    BatchNormCall,
    DropoutCall,
    Mode,
    forward,
    positional,
    stochastic_call,
    tensors_in,
    undisturbed,
)


@dataclass(frozen=True)
class Site:
    """One call of a BatchNorm or of a dropout in the network's evaluation-mode forward.

    `name` is the layer's module path; a layer called again in the same forward is `path#2`. `reason` says why a site
    is not stochastic, empty where it is. `order` counts the calls of its kind, `place` those of both.
    """

    kind: ClassVar[Literal["batchnorm", "dropout"]]
    name: str
    order: int
    reason: str = ""
    place: int = field(default=0, kw_only=True)

    @property
    def stochastic(self) -> bool:
        return not self.reason


@dataclass(frozen=True)
class BatchNormSite(Site):
    """A BatchNorm. A call is told apart by `address`, where its running mean lies, and its `occurrence` in the pass."""

    kind = "batchnorm"
    channels: int = 0
    positions: int = 1  # values of a channel that one point contributes: z, 1 behind a dense layer
    eps: float = 0.0
    momentum: float = 0.0  # torch's; 0 where the layer keeps a cumulative average
    tracked: bool = True  # evaluation mode uses running statistics
    never_trained: bool = False  # running statistics still at (0, 1)
    running_mean: Tensor | None = field(default=None, repr=False, compare=False)
    running_var: Tensor | None = field(default=None, repr=False, compare=False)
    address: int = field(default=0, repr=False, compare=False)
    occurrence: int = field(default=0, repr=False, compare=False)

    @property
    def key(self) -> tuple[int, int]:
        """What tells the call apart while the network runs."""
        return self.address, self.occurrence


@dataclass(frozen=True)
class DropoutSite(Site):
    """A dropout; its call is told by its order."""

    kind = "dropout"
    p: float = 0.0
    variety: str = ""
    batch_axis: int | None = None  # the axis along which points lie; None where no axis grows with them
    rows: int = 1  # entries along that axis that one point contributes
    interleaved: bool = False  # they lie apart, the first of every point before the second of any


@dataclass(frozen=True)
class Sites:
    """The sites of one network, and what training makes random that cannot be made random here."""

    batchnorms: tuple[BatchNormSite, ...]
    dropouts: tuple[DropoutSite, ...]
    unreachable: tuple[tuple[str, str], ...] = ()  # (layer, why)

    @property
    def live_batchnorms(self) -> tuple[BatchNormSite, ...]:
        return tuple(site for site in self.batchnorms if site.stochastic)

    @property
    def live_dropouts(self) -> tuple[DropoutSite, ...]:
        return tuple(site for site in self.dropouts if site.stochastic)


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
        if not count.isdigit() or not 1 <= int(count) <= len(sites):
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

    With `compare_with_training`, a copy of the network is also run in training mode, to name what is random there and
    not here: dropout inside an LSTM or an attention, stochastic depth, layers frozen by hand.
    """
    if not len(example):
        raise SamplingError("there are no points to run the network on; expected at least one.")
    for name, module in model.named_modules():
        if any(is_lazy(p) for p in (*module.parameters(recurse=False), *module.buffers(recurse=False))):
            raise SamplingError(
                f"layer {name or type(module).__name__} is lazy and has not seen data; run the network once on a "
                "batch, or load a checkpoint, before sampling from it."
            )
    two, three = (torch.cat([example] * 3)[:count] for count in (2, 3))
    with undisturbed(model):
        calls = _trace(model, two)
        again = _trace(model, three)
    if [type(call.call) for call in calls] != [type(call.call) for call in again]:
        raise SamplingError(
            "the network calls other BatchNorm or dropout layers when the number of points changes; "
            "bnuq needs a network whose path does not depend on the size of the batch."
        )
    training = _training_trace(model, two) if compare_with_training else None
    frozen = {t.layer for t in training or () if isinstance(t.call, BatchNormCall) and not t.call.training}

    batchnorms: list[BatchNormSite] = []
    dropouts: list[DropoutSite] = []
    names: Counter[tuple[str, str]] = Counter()
    addresses: Counter[int] = Counter()
    for traced, other in zip(calls, again, strict=True):
        if isinstance(traced.call, str) or isinstance(other.call, str):
            continue
        kind = "batchnorm" if isinstance(traced.call, BatchNormCall) else "dropout"
        names[kind, traced.layer] += 1
        turn = names[kind, traced.layer]
        name = traced.layer if turn == 1 else f"{traced.layer}#{turn}"
        if isinstance(traced.call, BatchNormCall):
            address = traced.call.address
            site = _batchnorm_site(name, len(batchnorms), traced, other, address, addresses[address])
            addresses[address] += 1
            if traced.layer in frozen and site.stochastic:
                site = replace(site, reason="frozen: it keeps its running statistics in training mode too")
            batchnorms.append(replace(site, place=len(batchnorms) + len(dropouts)))
        else:
            assert isinstance(other.call, DropoutCall)
            site = _dropout_site(name, len(dropouts), traced.call, other.call)
            dropouts.append(replace(site, place=len(batchnorms) + len(dropouts)))
    return Sites(tuple(batchnorms), tuple(dropouts), _unreachable(model, calls, training))


@dataclass(frozen=True)
class _Traced:
    """A call seen in a trace: a BatchNorm, a dropout, or the name of another operation that draws random numbers."""

    layer: str
    call: BatchNormCall | DropoutCall | str
    depends_on_input: bool


def _trace(model: nn.Module, inputs: Tensor) -> list[_Traced]:
    trace = _Trace(model, inputs)
    hooks = (
        module_hooks.register_module_forward_pre_hook(trace.enter),
        module_hooks.register_module_forward_hook(trace.leave, always_call=True),
    )
    try:
        with trace:
            forward(model, inputs)
    finally:
        for hook in hooks:
            hook.remove()
    return trace.calls


class _Trace(Mode):
    """Records the stochastic calls of one forward, in which layer they were, and whether they see the input at all."""

    def __init__(self, model: nn.Module, inputs: Tensor) -> None:
        super().__init__()
        self.calls: list[_Traced] = []
        self._paths = {id(module): name for name, module in model.named_modules(remove_duplicate=True)}
        self._owners = {
            tensor.data_ptr(): name.rpartition(".")[0]
            for name, tensor in (*model.named_parameters(), *model.named_buffers())
            if not is_lazy(tensor) and tensor.numel()
        }
        self._inside: list[str] = [""]
        self._data = {inputs.untyped_storage()._cdata}  # storages that depend on the input
        self._alive: list[Tensor] = []  # so that no address is used twice

    def enter(self, module: nn.Module, args: Any) -> None:  # noqa: ARG002 - torch calls it so
        self._inside.append(self._paths.get(id(module), self._inside[-1]))

    def leave(self, module: nn.Module, args: Any, output: Any) -> None:  # noqa: ARG002
        self._inside.pop()

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        depends = any(t.untyped_storage()._cdata in self._data for t in tensors_in((args, kwargs)))
        if depends:
            for tensor in tensors_in(result):
                self._data.add(tensor.untyped_storage()._cdata)
                self._alive.append(tensor)
        call = stochastic_call(func, args, kwargs) or _hidden_randomness(func, args, kwargs)
        if call is not None:
            layer = self._owners.get(call.address) if isinstance(call, BatchNormCall) and call.address else None
            self.calls.append(_Traced(layer or self._inside[-1] or _anonymous(call), call, depends))
        return result


def _hidden_randomness(func: Any, args: tuple, kwargs: dict) -> str | None:
    """The name of an operation that is random in a way that cannot be redrawn here, where this one is."""
    name = func.overloadpacket.__name__
    given = dict(zip((a.name for a in func._schema.arguments), positional(func, args, kwargs), strict=True))
    rate = given.get("dropout", given.get("dropout_p"))
    if isinstance(rate, float):
        return f"dropout inside {name}" if rate > 0 and given.get("train", True) else None
    if torch.Tag.nondeterministic_seeded in func.tags and "dropout" not in name:
        return f"random numbers ({name})"
    return None


def _anonymous(call: BatchNormCall | DropoutCall | str) -> str:
    return (
        "batch_norm" if isinstance(call, BatchNormCall) else "dropout" if isinstance(call, DropoutCall) else "forward"
    )


def _training_trace(model: nn.Module, inputs: Tensor) -> list[_Traced] | None:
    try:
        twin = copy.deepcopy(model)
        with undisturbed(twin, evaluation=False):
            twin.train()
            calls = _trace(twin, inputs)
    except Exception:  # a network that cannot be copied, or trains otherwise, tells nothing here
        return None
    batchnorms = [traced.call for traced in calls if isinstance(traced.call, BatchNormCall)]
    if isinstance(model, torch.jit.ScriptModule) and not any(call.training for call in batchnorms):
        return None  # a traced network has its mode written into it: train() does nothing
    return calls


def _batchnorm_site(
    name: str, order: int, traced: _Traced, other: _Traced, address: int, occurrence: int
) -> BatchNormSite:
    call = traced.call
    assert isinstance(call, BatchNormCall) and isinstance(other.call, BatchNormCall)
    mean, var = call.running_mean, call.running_var
    channels = call.input.shape[1]
    reason = "" if traced.depends_on_input else "it normalises weights, not data"
    if other.call.input.shape[1] != channels:
        reason = "its channels grow with the number of points: it normalises each point by itself"
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
        address=address,
        occurrence=occurrence,
    )


def _dropout_site(name: str, order: int, two: DropoutCall, three: DropoutCall) -> DropoutSite:
    """The points' axis is the one that grows when two points become three."""
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


def _interleaved(two: Tensor, three: Tensor, axis: int, rows: int) -> bool:
    """Whether the rows of two points are found again among those of three only if they lie apart."""
    a, b = two.movedim(axis, 0), three.movedim(axis, 0)
    together = _close(a, b[: 2 * rows])
    return not together and _close(a.unflatten(0, (rows, 2)), b.unflatten(0, (rows, 3))[:, :2])


def _close(a: Tensor, b: Tensor) -> bool:
    return torch.allclose(a, b, rtol=1e-3, atol=1e-5 * float(a.abs().max()))


def _unreachable(
    model: nn.Module, calls: Sequence[_Traced], training: Sequence[_Traced] | None
) -> tuple[tuple[str, str], ...]:
    found: dict[tuple[str, str], None] = {}
    seen = {traced.layer for traced in calls if isinstance(traced.call, BatchNormCall)}
    for name, module in model.named_modules():
        if "Frozen" in type(module).__name__:
            found[name, f"{type(module).__name__}: its statistics are constants, nothing is left to sample"] = None
        elif isinstance(module, _BatchNorm) and name not in seen:
            found[name, "a BatchNorm that the evaluation-mode forward never calls"] = None
    visible = Counter(traced.layer for traced in calls if isinstance(traced.call, DropoutCall))
    for traced in calls:
        if isinstance(traced.call, str):
            found[traced.layer, f"{traced.call} in evaluation mode too: its figures are not reproducible"] = None
    always = {(traced.layer, traced.call) for traced in calls if isinstance(traced.call, str)}
    for traced in training or ():
        if isinstance(traced.call, str):
            if (traced.layer, traced.call) not in always:
                found[traced.layer, f"{traced.call} in training only"] = None
        elif isinstance(traced.call, DropoutCall):
            visible[traced.layer] -= 1
            if visible[traced.layer] < 0 and traced.call.p > 0:
                found[traced.layer, "a dropout that is called in training mode only"] = None
    return tuple(found)


def fingerprint(model: nn.Module) -> str:
    """SHA-256 over the names, shapes and a sample of the values of the network's parameters and buffers."""
    digest = hashlib.sha256()
    for name, tensor in model.state_dict().items():
        if not isinstance(tensor, Tensor) or name.endswith("num_batches_tracked"):
            continue
        flat = tensor.detach().reshape(-1)
        step = max(1, flat.numel() // 256)
        digest.update(f"{name}{tuple(tensor.shape)}".encode())
        digest.update(flat[::step].to("cpu", torch.float32).numpy().tobytes())
    return digest.hexdigest()
