"""Networks in sequence through which the moments of the data are propagated, for analytic normalisation."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn

from experiments.layers.moments import Moments, preactivation, relu_moments
from experiments.layers.normalization import _Normalized

_UNCHANGED = (nn.Identity, nn.Flatten, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)
_LINEAR = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
_BATCH_NORM = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


class AnalyticSequential(nn.Sequential):
    """An `nn.Sequential` whose analytically normalised layers receive the moments of their inputs.

    The moments of the data's channels are the buffers `data_mean` and `data_variance`, see `data_moments`. At every
    forward they are propagated by `propagated`, with the present weights and with gradients, so that nothing needs to
    be refreshed. Sequences may be nested. Raises TypeError for a layer through which moments cannot be propagated,
    where an analytic layer follows.
    """

    data_mean: Tensor
    data_variance: Tensor

    def __init__(self, *layers: nn.Module, data: Moments) -> None:
        super().__init__(*layers)
        if data.mean.dim() != 1 or data.mean.shape != data.variance.shape or not bool((data.variance >= 0).all()):
            raise ValueError(
                f"the moments of the data have shapes {tuple(data.mean.shape)} and {tuple(data.variance.shape)}; "
                "expected a mean and a variance of at least 0 for each channel."
            )
        self.register_buffer("data_mean", data.mean.detach().clone())
        self.register_buffer("data_variance", data.variance.detach().clone())

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - the name in torch
        layers = list(_leaves(self))
        last = max([-1, *[i for i, layer in enumerate(layers) if _is_analytic(layer)]])
        moments = Moments(self.data_mean, self.data_variance)
        for position, layer in enumerate(layers):
            output = layer(input, moments) if _is_analytic(layer) else layer(input)
            if position < last:
                moments = propagated(layer, moments)
            input = output  # noqa: A001
        return input


def propagated(layer: Any, moments: Moments) -> Moments:
    """Moments of the channels of the layer's output, for an input of these moments.

    All entries of the input are taken as independent, and as normal where a nonlinearity needs it; noise and padding
    are ignored. Raises TypeError for a layer that is not known.

    Source: Shekhovtsov & Flach 2018, Normalization of neural networks using analytic variance propagation.
    """
    if isinstance(layer, _Normalized):
        return layer.propagated(moments)
    if isinstance(layer, _LINEAR):
        mean, variance = preactivation(layer, moments)
        return Moments(mean if layer.bias is None else mean + layer.bias, variance)
    if isinstance(layer, _BATCH_NORM) and layer.affine:
        return Moments(layer.bias, layer.weight**2)
    if isinstance(layer, (nn.ReLU, nn.LeakyReLU)):
        return relu_moments(moments, getattr(layer, "negative_slope", 0.0))
    if isinstance(layer, _UNCHANGED):
        return moments
    raise TypeError(
        f"moments cannot be propagated through {type(layer).__name__}; expected Linear, Conv, ReLU, LeakyReLU, "
        "BatchNorm, Dropout or Flatten. Elsewhere, call analytic layers with the `moments` of their inputs."
    )


def _leaves(network: nn.Sequential) -> Iterator[nn.Module]:
    for layer in network:
        if type(layer) is nn.Sequential:
            yield from _leaves(layer)
        else:
            yield layer


def _is_analytic(layer: nn.Module) -> bool:
    return isinstance(layer, _Normalized) and layer.normalization == "analytic"
