"""The networks of the experiments on learned noise."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from experiments.bn_noise import PUBLISHED
from experiments.layers import AnalyticSequential, MeanFieldLinear, NormalizedConv2d, data_moments

SLOPE = 0.01  # of a leaky ReLU
_STRIDES, _SIZES = (1, 1, 2, 1, 1, 2, 1, 1, 1), (3, 3, 3, 3, 3, 3, 3, 1, 1)


def all_cnn(images: Tensor, *, normalization: str, noise: str, width: int, classes: int = 10) -> nn.Sequential:
    """The nine convolutions of the All-CNN (Springenberg et al. 2015), the first three of `width` channels, then twice
    as many. `images` are those of the training set.

    Noise like BatchNorm's has the σ_U of the paper's layers, by n = 1/(2σ_U²).
    """
    channels = images.shape[1]
    layers: list[nn.Module] = []
    for place, (stride, size) in enumerate(zip(_STRIDES, _SIZES, strict=True)):
        outputs = classes if place == len(_SIZES) - 1 else width if place < 3 else 2 * width
        values: dict[str, Any] = {
            "stride": stride,
            "padding": size // 2,
            "normalization": normalization,
            "noise": noise,
        }
        if noise == "batch":
            values["effective_size"] = 1 / (2 * PUBLISHED.sigma_u[place] ** 2)
        layers += [NormalizedConv2d(channels, outputs, size, **values), nn.LeakyReLU(SLOPE)]
        channels = outputs
    layers = [*layers[:-1], nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    if normalization == "analytic":
        return AnalyticSequential(*layers, data=data_moments(images))
    return nn.Sequential(*layers)


def dense(images: Tensor, *, batch_norm: bool, units: int, classes: int = 10) -> nn.Sequential:
    """Two hidden mean-field layers of `units` each, with or without BatchNorm before each ReLU. Weights start at a
    standard deviation of .05, their prior is N(0, 1/inputs), the scale that networks are initialised at."""
    layers: list[nn.Module] = [nn.Flatten()]
    inputs = images[0].numel()
    for _ in range(2):
        layers.append(MeanFieldLinear(inputs, units, prior_sd=inputs**-0.5, initial_sd=0.3 * inputs**-0.5))
        layers += [nn.BatchNorm1d(units)] * batch_norm + [nn.ReLU()]
        inputs = units
    return nn.Sequential(
        *layers, MeanFieldLinear(inputs, classes, prior_sd=inputs**-0.5, initial_sd=0.3 * inputs**-0.5)
    )
