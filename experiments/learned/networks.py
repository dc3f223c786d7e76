"""The networks of the experiments on learned noise."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from experiments.bn_noise import PUBLISHED
from experiments.layers import (
    AnalyticSequential,
    DropoutLinear,
    MeanFieldLinear,
    NormalizedConv2d,
    data_moments,
    start_from_data,
)

SLOPE = 0.01  # of a leaky ReLU
_STRIDES, _SIZES = (1, 1, 2, 1, 1, 2, 1, 1, 1), (3, 3, 3, 3, 3, 3, 3, 1, 1)
_SMALLEST = 27  # pixels a side that nine convolutions without padding leave one of
START_POINTS = 128
DROPOUT = 0.2
SHIFT_RATIO = 0.54  # σ_V/σ_U of BatchNorm's noise: the median over the layers of a ResNet-20, see `bn_noise`


def all_cnn(images: Tensor, *, normalization: str, noise: str, width: int, classes: int = 10) -> nn.Sequential:
    """The nine convolutions of the All-CNN (Springenberg et al. 2015), the first three of `width` channels, then twice
    as many, without padding. `images` are those of the training set.

    Noise like BatchNorm's has the σ_U of the paper's layers, by n = 1/(2σ_U²), and σ_V = 0.54 σ_U. Where nothing, or
    the weights, normalise, the first images start the layers as BatchNorm would.
    """
    channels = images.shape[1]
    layers: list[nn.Module] = []
    for place, (stride, size) in enumerate(zip(_STRIDES, _SIZES, strict=True)):
        outputs = classes if place == len(_SIZES) - 1 else width if place < 3 else 2 * width
        values: dict[str, Any] = {
            "stride": stride,
            "padding": 0 if min(images.shape[2:]) >= _SMALLEST else size // 2,
            "normalization": normalization,
            "noise": noise,
        }
        if noise == "batch":
            sigma_u = PUBLISHED.sigma_u[place]
            values |= {"effective_size": 1 / (2 * sigma_u**2), "shift_sd": SHIFT_RATIO * sigma_u}
        layers += [NormalizedConv2d(channels, outputs, size, **values), nn.LeakyReLU(SLOPE)]
        channels = outputs
    layers = [*layers[:-1], nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    if normalization == "analytic":
        return AnalyticSequential(*layers, data=data_moments(images))
    network = nn.Sequential(*layers)
    if normalization in ("none", "weight"):
        start_from_data(network, images[:START_POINTS])
    return network


def dense(
    images: Tensor, *, batch_norm: bool, units: int, per: str = "point", noise: str = "mean-field", classes: int = 10
) -> nn.Sequential:
    """Two hidden layers of `units` each, with or without BatchNorm before each ReLU. Mean-field weights start at a
    standard deviation of 0.3/√inputs, their prior is N(0, 1/inputs), the scale that networks are initialised at. In
    training they are drawn `per` point, locally reparametrised, or once per mini-batch ("batch"). With
    `noise="dropout"` inputs of the second and third layer are dropped instead; the prior is the same."""
    layers: list[nn.Module] = [nn.Flatten()]
    inputs, rate = images[0].numel(), 0.0
    for _ in range(2):
        layers.append(_noisy(inputs, units, per, noise, rate))
        layers += [nn.BatchNorm1d(units)] * batch_norm + [nn.ReLU()]
        inputs, rate = units, DROPOUT
    return nn.Sequential(*layers, _noisy(inputs, classes, per, noise, rate))


def _noisy(inputs: int, outputs: int, per: str, noise: str, rate: float) -> nn.Module:
    if noise == "dropout":
        return DropoutLinear(inputs, outputs, rate=rate, prior_sd=inputs**-0.5, per=per)
    return MeanFieldLinear(inputs, outputs, prior_sd=inputs**-0.5, initial_sd=0.3 * inputs**-0.5, per=per)
