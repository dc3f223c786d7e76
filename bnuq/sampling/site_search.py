"""Finds a network's stochastic sites by running it on a few points, and what cannot be sampled."""

from __future__ import annotations

import os
import sys
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Literal, TypeVar
from weakref import WeakValueDictionary

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.nn.parameter import is_lazy

from bnuq.errors import BnuqError, SamplingError
from bnuq.forms import check_form, original_name
from bnuq.sampling.deviation import difference
from bnuq.sampling.interception import (
    BatchNormCall,
    DropoutCall,
    NoiseCall,
    remember_noise,
    undisturbed,
    with_autograd_if_needed,
)
from bnuq.sampling.noise import Learned
from bnuq.sampling.plain_loop import PlainLoop
from bnuq.sampling.recorded_calls import RecordedCall, recorded_calls, training_calls
from bnuq.sampling.sites import DIFFERENTIATED, BatchNormSite, DropoutSite, NoiseSite, Site, Sites


def find_sites(model: nn.Module, example: Tensor, *, compare_with_training: bool = True) -> Sites:
    """The BatchNorm and dropout sites of `model`, found by running it on a few points of `example` (b, *input).

    With `compare_with_training`, a copy of the network is also run in training mode, to name the randomness that cannot
    be sampled: dropout inside an LSTM or an attention, stochastic depth, manually frozen layers.
    """
    if not len(example):
        raise SamplingError("there are no examples to run the network on; expected at least one.")
    check_form(model)
    _check_initialised(model)
    three = _three_points(example)
    two = three[:2]
    calls, again = _calls_of_both(model, two, three)
    training = training_calls(model, two) if compare_with_training else None
    # The call itself shows a momentum of 0 where the layer keeps a cumulative average.
    cumulative = {name for name, module in model.named_modules() if getattr(module, "momentum", 0.0) is None}
    frozen = {t.layer for t in training or () if isinstance(t.call, BatchNormCall) and not t.call.training}

    sites: list[Site] = []
    calls_by_address = Counter(traced.call.address for traced in calls if isinstance(traced.call, BatchNormCall))
    for name, traced, other in _named_calls(calls, again):
        if isinstance(traced.call, BatchNormCall):
            batchnorms = _of_kind(BatchNormSite, sites)
            earlier = sum(site.address == traced.call.address for site in batchnorms)
            site = _batchnorm_site(name, len(batchnorms), traced, other, earlier, calls_by_address)
            if traced.layer in cumulative:
                site = replace(site, momentum=None)
            if traced.layer in frozen and site.stochastic:
                site = replace(site, reason="frozen: it keeps its running statistics in training mode too")
        elif isinstance(traced.call, DropoutCall):
            assert isinstance(other.call, DropoutCall)
            site = _dropout_site(name, len(_of_kind(DropoutSite, sites)), traced.call, other.call)
        else:
            assert isinstance(traced.call, NoiseCall) and isinstance(other.call, NoiseCall)
            site = _noise_site(name, len(_of_kind(NoiseSite, sites)), traced.call, other.call)
        sites.append(replace(site, place=len(sites)))
    found = Sites(
        _of_kind(BatchNormSite, sites),
        _of_kind(DropoutSite, sites),
        _of_kind(NoiseSite, sites),
        _unreachable_batchnorms(model, calls),
        _hidden(calls, training),
    )
    return _in_order(model, found, three)


def _calls_of_both(model: nn.Module, two: Tensor, three: Tensor) -> tuple[list[RecordedCall], list[RecordedCall]]:
    """The calls of a forward of two points and of one of three; SamplingError where they are of other layers."""
    remember_noise(model, is_noisy=True)  # until that is known
    with undisturbed(model):
        calls = with_autograd_if_needed(lambda: recorded_calls(model, two.clone()))
        again = recorded_calls(model, three)
    remember_noise(model, is_noisy=any(map(_is_random, calls)))
    if [(type(call.call), call.layer) for call in calls] != [(type(call.call), call.layer) for call in again]:
        raise SamplingError(
            "the network calls different BatchNorm or dropout layers when the number of examples changes; "
            "bnuq needs a network whose path does not depend on the batch size."
        )
    for traced, other in zip(calls, again, strict=True):  # the tensors of both are alive
        if isinstance(traced.call, BatchNormCall) and traced.call.address != getattr(other.call, "address", 0):
            raise SamplingError(
                f"the running statistics of BatchNorm {traced.layer} are computed in the forward, anew in each: its "
                "calls cannot be told from those of others. Give it the network's own buffers."
            )
    return calls, again


def _is_random(call: RecordedCall) -> bool:
    return isinstance(call.call, NoiseCall | str) or (isinstance(call.call, DropoutCall) and call.call.training)


def _in_order(model: nn.Module, sites: Sites, three: Tensor) -> Sites:
    """`sites`, the noise of several rows a point interleaved where two points get the same outputs as of three with
    that order alone. The order is seen by nothing else: random numbers are asked for by their shape."""
    if not any(site.stochastic and site.rows > 1 for site in sites.noises):
        return sites
    for order in (sites, replace(sites, noises=tuple(replace(s, interleaved=s.rows > 1) for s in sites.noises))):
        with suppress(BnuqError):  # which another pass will raise
            loop = PlainLoop(model, order, learned=Learned(1))
            if difference(loop.passes(three[:2])[0], loop.passes(three)[0, :2]).is_within(_SAME):
                return order
    return sites


def _named_calls(
    calls: Sequence[RecordedCall], again: Sequence[RecordedCall]
) -> Iterator[tuple[str, RecordedCall, RecordedCall]]:
    """The calls that can be sites, of both forwards; the second call of a layer is `path#2`."""
    turns: Counter[tuple[str, str]] = Counter()
    for traced, other in zip(calls, again, strict=True):
        if not isinstance(traced.call, str) and not isinstance(other.call, str):
            key = type(traced.call).__name__, traced.layer
            turns[key] += 1
            yield traced.layer if turns[key] == 1 else f"{traced.layer}#{turns[key]}", traced, other


def _check_initialised(model: nn.Module) -> None:
    for name, module in model.named_modules():
        if any(is_lazy(p) for p in (*module.parameters(recurse=False), *module.buffers(recurse=False))):
            raise SamplingError(
                f"layer {name or type(module).__name__} is lazy and not initialised; run the network once on a batch, "
                "or load a checkpoint, before sampling from it."
            )


def _three_points(example: Tensor) -> Tensor:
    """Three points that are not all one value, of which the order of rows could not be seen."""
    points = torch.cat([example] * 3)[:3]
    if points.is_floating_point() and bool((points == points.flatten()[:1].view([1] * points.ndim)).all()):
        return points + torch.linspace(0, 0.01, points.numel(), device=points.device).view_as(points).to(points.dtype)
    return points


S = TypeVar("S", bound=Site)
_SAME = 1e-2  # of the spread: values of the same rows in two forwards


def _of_kind(kind: type[S], sites: Sequence[Site]) -> tuple[S, ...]:
    return tuple(site for site in sites if isinstance(site, kind))


def _batchnorm_site(
    name: str, order: int, traced: RecordedCall, other: RecordedCall, occurrence: int, calls: Mapping[int, int]
) -> BatchNormSite:
    call = traced.call
    assert isinstance(call, BatchNormCall) and isinstance(other.call, BatchNormCall)
    mean, var = call.running_mean, call.running_var
    channels = call.input.shape[1]
    reason = "" if traced.depends_on_input else "it normalises weights, not data"
    if traced.differentiated:
        reason = DIFFERENTIATED
    if mean is not None and call.input.dtype != mean.dtype and call.input.dtype in (torch.float16, torch.bfloat16):
        kinds = [str(tensor.dtype).removeprefix("torch.") for tensor in (call.input, mean)]
        reason = f"it is given {kinds[0]} and its statistics are {kinds[1]}: autocast, or layers in half precision"
    if other.call.input.shape[1] != channels:
        reason = "its channels grow with the number of examples: it normalises each example separately"
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
    if two.input.is_nested:
        return DropoutSite(name, order, "it is given a nested tensor", p=two.p, variety=two.variety)
    grown = [axis for axis, (a, b) in enumerate(zip(two.input.shape, three.input.shape, strict=True)) if a != b]
    axis = grown[0] if len(grown) == 1 else None
    rows = 1 if axis is None else three.input.shape[axis] - two.input.shape[axis]
    if len(grown) > 1 or (axis is not None and two.input.shape[axis] != 2 * rows):
        reason = reason or "its size does not grow in proportion to the number of examples"
    lie = _order(two.input, three.input, axis, rows) if not reason and axis is not None and rows > 1 else "points"
    return DropoutSite(
        name=name,
        order=order,
        reason=reason or ("" if lie else "its rows are not in the order of the examples"),
        p=two.p,
        variety=two.variety,
        batch_axis=axis,
        rows=rows,
        interleaved=lie == "rows",
    )


def _noise_site(name: str, order: int, two: NoiseCall, three: NoiseCall) -> NoiseSite:
    """The site of noise. Its point axis is the one that grows from two points to three."""
    grown = [axis for axis, (a, b) in enumerate(zip(two.shape, three.shape, strict=True)) if a != b]
    axis = grown[0] if len(grown) == 1 else None
    rows = 1 if axis is None else three.shape[axis] - two.shape[axis]
    proportional = len(grown) <= 1 and (axis is None or two.shape[axis] == 2 * rows)
    reason = "" if proportional else "its size does not grow in proportion to the number of examples"
    return NoiseSite(name, order, reason, family=two.family, shape=two.shape, batch_axis=axis, rows=rows)


def _order(two: Tensor, three: Tensor, axis: int, rows: int) -> Literal["points", "rows", ""]:
    """Whether the rows of one point follow each other, or are interleaved with those of other points; empty for any
    other order."""
    a, b = two.detach().movedim(axis, 0), three.detach().movedim(axis, 0)
    if difference(b[: 2 * rows], a).is_within(_SAME):
        return "points"
    return "rows" if difference(b.unflatten(0, (rows, 3))[:, :2].flatten(0, 1), a).is_within(_SAME) else ""


def _unreachable_batchnorms(model: nn.Module, calls: Sequence[RecordedCall]) -> tuple[tuple[str, str], ...]:
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
                reason = f"{type(module).__name__} with running statistics: training normalises each example separately"
            unreachable[layer, reason] = None
    return tuple(unreachable)


def _hidden(calls: Sequence[RecordedCall], training: Sequence[RecordedCall] | None) -> tuple[tuple[str, str], ...]:
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


_PACKAGE = f"{Path(__file__).parents[1]}{os.sep}"
_NAMED = 3  # layers in an error
_warned: WeakValueDictionary[tuple[int, str], nn.Module] = WeakValueDictionary()  # networks, by id and warning


def listed(layers: Iterable[tuple[str, str]]) -> str:
    """The first layers with the reasons, and how many more there are, in one text; empty where there is none."""
    named = [f"{layer or 'the network'}: {reason}" for layer, reason in layers]
    more = [f"{len(named) - _NAMED} more"] if len(named) > _NAMED else []
    return "; ".join(named[:_NAMED] + more)


def warn_of_unsampled(model: nn.Module, layers: Iterable[tuple[str, str]]) -> None:
    """Issue a UserWarning for each layer, at the line that called this package, once per network and text."""
    for layer, reason in layers:
        text = f"{layer or 'the network'} is not sampled: {reason}."
        if _warned.get((id(model), text)) is model:
            continue
        _warned[id(model), text] = model
        level, frame = 1, sys._getframe()
        while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
            level, frame = level + 1, frame.f_back
        warnings.warn(text, stacklevel=level)
