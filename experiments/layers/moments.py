"""Mean and variance of each channel, computed through a network from those of the data."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn


class Moments(NamedTuple):
    """Mean and variance of each channel, over data and positions: two tensors (channel,)."""

    mean: Tensor
    variance: Tensor


def data_moments(x: Tensor) -> Moments:
    """Moments of the channels (axis 1) of data (point, channel, position …); the variance is biased."""
    axes = [axis for axis in range(x.dim()) if axis != 1]
    variance, mean = torch.var_mean(x, dim=axes, correction=0)
    return Moments(mean, variance)


def relu_moments(moments: Moments, slope: float = 0.0) -> Moments:
    """Moments of max(y, 0) + slope·min(y, 0) for normal y of these moments.

    Source: Shekhovtsov & Flach 2018, Feed-forward propagation in probabilistic neural networks.
    """
    mean, variance = moments
    sd = variance.clamp(min=torch.finfo(variance.dtype).tiny).sqrt()
    ratio = mean / sd
    above = torch.special.ndtr(ratio)
    density = sd * torch.exp(-0.5 * ratio**2) / math.sqrt(2 * math.pi)
    first = mean * above + density
    second = (mean**2 + variance) * above + mean * density
    output = slope * mean + (1 - slope) * first
    square = slope**2 * (mean**2 + variance) + (1 - slope**2) * second
    return Moments(output, (square - output**2).clamp(min=0))


def preactivation(layer: Any, moments: Moments) -> Moments:
    """Moments of wᵀx for an `nn.Linear` or `nn.Conv{1,2,3}d`, where all entries of x are independent.

    A linear layer after `nn.Flatten` has several inputs of each channel; they share the channel's moments. Padding is
    ignored. Raises ValueError if the channels do not fit.
    """
    weight = layer.weight
    groups = getattr(layer, "groups", 1)
    inputs, given = weight.shape[1] * groups, moments.mean.numel()
    if inputs % given or (inputs != given and not isinstance(layer, nn.Linear)):
        raise ValueError(f"{type(layer).__name__} has {inputs} input channels; the moments are those of {given}.")
    mean, variance = (m.repeat_interleave(inputs // given).view(groups, -1, 1) for m in moments)
    rows = weight.flatten(2).sum(2) if weight.dim() > 2 else weight
    squares = weight.square().flatten(2).sum(2) if weight.dim() > 2 else weight.square()
    grouped = (groups, weight.shape[0] // groups, -1)
    return Moments((rows.view(grouped) @ mean).flatten(), (squares.view(grouped) @ variance).flatten())
