"""Steps of sampled sites: what a BatchNorm, a dropout or a layer's noise computes under each draw."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from bnuq.sampling.dropout import Dropout, dropped
from bnuq.sampling.interception import DropoutCall, noise_request
from bnuq.sampling.noise import Noise
from bnuq.sampling.program import Step, StepContext, plain_step
from bnuq.sampling.sites import DropoutSite, NoiseSite
from bnuq.sampling.trace import Operation


def folded_step(position: int, operation: Operation, arguments: tuple, function: Any) -> Step:
    """A layer with the BatchNorm after it folded into its weights."""
    source, rest, result = arguments[0].number, arguments[3:], operation.outputs[0]

    def compute(values: list[Any], context: StepContext) -> None:
        values[result] = function(values[source], *context.folded[position], *rest)

    return compute


def affine_step(source: int, result: int, scale: Tensor, shift: Tensor) -> Step:
    """A sampled BatchNorm of (n, C) values, whose scale and shift are (T, C)."""
    scales, shifts = scale.unbind(), shift.unbind()

    def compute(values: list[Any], context: StepContext) -> None:
        t = context.draws[0]
        values[result] = _affine(values[source], scales[t], shifts[t])

    return compute


def batchnorm_step(
    source: int, result: int, eps: float, parameters: Sequence[Tensor | None], statistics: tuple[Tensor, Tensor]
) -> Step:
    """A sampled BatchNorm of images or sequences, in one kernel of torch."""
    (weight, bias), (mean, var) = parameters, statistics

    def compute(values: list[Any], context: StepContext) -> None:
        t = context.draws[0]
        values[result] = torch.batch_norm(
            values[source], weight, bias, mean[t], var[t], False, 0.0, eps, torch.backends.cudnn.enabled
        )

    return compute


def stacked_affine_step(source: int, result: int, scale: Tensor, shift: Tensor, shape: tuple[int, ...]) -> Step:
    """A sampled BatchNorm of draws that are stacked along the row axis; `shape` is that of their scales."""

    def compute(values: list[Any], context: StepContext) -> None:
        x = values[source].unflatten(0, (shape[0], -1))
        scales, shifts = scale[context.index].view(shape), shift[context.index].view(shape)
        values[result] = _affine(x, scales, shifts).flatten(0, 1)

    return compute


def _affine(x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """`x` · `scale` + `shift` in the dtype of scale and shift, rounded once to that of `x`."""
    if x.dtype == scale.dtype:
        return torch.addcmul(shift, x, scale)
    return torch.addcmul(shift, x, scale, out=torch.empty_like(x))


def dropout_step(operation: Operation, dropout: Dropout) -> Step:
    """A dropout with the masks of the draws."""
    source, result, site = operation.arguments[0].number, operation.outputs[0], operation.site
    assert isinstance(site, DropoutSite)
    in_place = bool(operation.writes)

    def compute(values: list[Any], context: StepContext) -> None:
        call = DropoutCall(values[source], site.p, site.variety, in_place, training=False)
        values[result] = dropped(call, site, dropout, context.draws, context.start)

    return compute


def noise_step(operation: Operation, noise: Noise) -> Step:
    """Noise that all points share: nothing of its arguments depends on the number of rows."""
    site, function = operation.site, operation.function
    assert isinstance(site, NoiseSite)

    def recorded_call(*arguments: Any, **named: Any) -> Any:
        return noise_request(function, arguments, named)

    run = plain_step(function, operation.arguments, operation.result, recorded_call)
    (result,) = operation.outputs

    def compute(values: list[Any], context: StepContext) -> None:
        run(values, context)
        values[result] = noise.drawn(values[result], site, context.draws[0], context.start)

    return compute
