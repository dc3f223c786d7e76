"""Linear and convolutional layers that are normalised by weights, by moments or by BatchNorm, with a noisy scale."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from experiments.layers.learned import apply_weights, check_choice, check_positive, positive, unconstrained_of
from experiments.layers.moments import Moments, preactivation
from experiments.layers.scales import StochasticScale

NORMALIZATIONS = ("none", "weight", "analytic", "batch")


class BatchNorm(nn.modules.batchnorm._BatchNorm):
    """BatchNorm over axis 1 of inputs (point, channel, position …) whose scale and bias are a `StochasticScale`.

    Options of noise (`noise`, `per`, `effective_size`, `shift_sd`, `initial_sd`) are those of `StochasticScale`.
    """

    def __init__(self, channels: int, *, eps: float = 1e-5, momentum: float | None = 0.1, **noise: Any) -> None:
        super().__init__(channels, eps=eps, momentum=momentum, affine=False)
        self.stochastic = StochasticScale(channels, **noise)

    def _check_input_dim(self, input: Tensor) -> None:  # noqa: A002 - the name in torch
        if input.dim() < 2:
            raise ValueError(f"the input of BatchNorm has shape {tuple(input.shape)}; expected points and channels.")

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - the name in torch
        return self.stochastic(super().forward(input))


class _Normalized(nn.Module):
    """y = ((wᵀx − μ̂)/σ̂)·S + b for an `nn.Linear` or `nn.Conv{1,2,3}d`: see `NormalizedLinear`."""

    weight: Tensor

    def __init__(
        self,
        *sizes: Any,
        bias: bool = True,
        normalization: str = "weight",
        noise: str = "none",
        per: str = "channel",
        effective_size: float | None = None,
        shift_sd: float | None = None,
        initial_sd: float = 0.1,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        device: Any = None,
        dtype: Any = None,
        **layer: Any,
    ) -> None:
        super().__init__(*sizes, bias=False, **layer)
        options: dict[str, Any] = {"noise": noise, "per": per, "effective_size": effective_size, "shift_sd": shift_sd}
        options |= {"initial_sd": initial_sd, "bias": bias}
        check_choice(normalization, "normalization", NORMALIZATIONS)
        check_positive(eps, "eps")
        self.normalization, self.eps = normalization, eps
        channels, linear = self.weight.shape[0], isinstance(self, nn.Linear)
        if normalization == "batch":
            self.stochastic = BatchNorm(channels, eps=eps, momentum=momentum, **options)
        else:
            self.stochastic = StochasticScale(channels, channel_axis=-1 if linear else 1, **options)
        self.to(device=device, dtype=dtype)

    def forward(self, input: Tensor, moments: Moments | None = None) -> Tensor:  # noqa: A002 - as in torch
        """`moments` are those of the input's channels, for analytic normalisation and there alone."""
        if (moments is not None) != (self.normalization == "analytic"):
            raise ValueError(
                "analytic normalisation needs the moments of its input: put the layer into an AnalyticSequential, or "
                "call it with `moments`."
                if moments is None
                else f"moments were given to a layer with normalization={self.normalization!r}; only an analytic one "
                "takes them."
            )
        mean, sd = self.normalizers(moments)
        weight = self.weight if sd is None else self.weight / sd.view(-1, *[1] * (self.weight.dim() - 1))
        bias = None if mean is None or sd is None else -mean / sd
        return self.stochastic(apply_weights(self, input, weight, bias))

    def normalizers(self, moments: Moments | None) -> tuple[Tensor | None, Tensor | None]:
        """μ̂ and σ̂ of each channel; None stands for 0 and for 1."""
        if self.normalization == "weight":
            return None, self.weight.flatten(1).norm(dim=1)
        if self.normalization == "analytic":
            assert moments is not None
            mean, variance = preactivation(self, moments)
            return mean, (variance + self.eps).sqrt()
        return None, None

    def propagated(self, moments: Moments) -> Moments:
        """Moments of the output without noise: (b, s²) where the pre-activation is normalised by moments or batches."""
        scale, bias = self._affine()
        if self.normalization in ("analytic", "batch"):
            return Moments(bias, scale**2)
        _, sd = self.normalizers(moments)
        mean, variance = preactivation(self, moments)
        scale = scale if sd is None else scale / sd
        return Moments(bias + scale * mean, scale**2 * variance)

    def _affine(self) -> tuple[Tensor, Tensor]:
        stochastic = self.stochastic.stochastic if isinstance(self.stochastic, BatchNorm) else self.stochastic
        return stochastic.affine()

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, normalization={self.normalization!r}"


class NormalizedLinear(_Normalized, nn.Linear):
    """A linear layer y = ((wᵀx − μ̂)/σ̂)·S + b, in which normalisation and noise are two choices.

    - `normalization="weight"`: μ̂ = 0, σ̂ = ‖w‖; `"analytic"`: moments of the pre-activation, computed from those of
      the data by an `AnalyticSequential`; `"batch"`: BatchNorm; `"none"`: μ̂ = 0, σ̂ = 1.
    - `noise`, `per`, `effective_size`, `shift_sd`, `initial_sd`: of S, see `StochasticScale`. `noise="batch"` with
      BatchNorm comes on top of the noise that BatchNorm itself has in training mode.

    Sizes are given as to `nn.Linear`, all else by name. Parameters: `weight`, and those of `stochastic`. `eps` is added
    to the variance of analytic normalisation and of BatchNorm; `momentum` is BatchNorm's. For ‖w‖ = 1, call `project`
    after each step of the optimiser.

    Source: Shekhovtsov & Flach 2018, Stochastic normalizations as Bayesian learning.
    """


class NormalizedConv1d(_Normalized, nn.Conv1d):
    """An `nn.Conv1d` with the normalisations and the noise of `NormalizedLinear`."""


class NormalizedConv2d(_Normalized, nn.Conv2d):
    """An `nn.Conv2d` with the normalisations and the noise of `NormalizedLinear`."""


class NormalizedConv3d(_Normalized, nn.Conv3d):
    """An `nn.Conv3d` with the normalisations and the noise of `NormalizedLinear`."""


@torch.no_grad()
def start_from_data(network: nn.Sequential, points: Tensor) -> None:
    """Start the layers of a sequence that normalise by weights, or not at all, as BatchNorm would start them on these
    points: outputs of each channel have mean 0 and variance 1, noise of scales and shifts keeps its relative size.
    One pass of the points, in evaluation mode. The mode of the network stays.

    Source: Shekhovtsov & Flach 2018, Stochastic normalizations as Bayesian learning, appendix A.1.
    """
    training = network.training
    network.eval()
    for layer in network:
        if isinstance(layer, _Normalized) and layer.normalization in ("none", "weight"):
            noise: Any = layer.stochastic
            axes = [axis for axis in range(points.dim()) if axis != noise.channel_axis % points.dim()]
            variance, mean = torch.var_mean(layer(points), dim=axes, correction=0)
            sd = variance.clamp(min=1e-12).sqrt()
            if layer.normalization == "none":
                layer.weight /= sd.view(-1, *[1] * (layer.weight.dim() - 1))
            else:
                scale = noise.scale if noise.gain is None else noise.gain
                scale /= sd
                if noise.scale_u is not None and noise.gain is None:
                    noise.scale_u.copy_(unconstrained_of(positive(noise.scale_u) / sd))
                if noise.effective_size is not None:
                    noise.shift_sd = sd * (noise.effective_size**-0.5 if noise.shift_sd is None else noise.shift_sd)
            if noise.bias is not None:
                noise.bias.copy_(-mean / sd)
        points = layer(points)
    network.train(training)


@torch.no_grad()
def project(module: nn.Module) -> None:
    """Scale the weights of every normalised layer in `module` to ‖w‖ = 1, channel by channel, in place.

    To be called after each step of the optimiser. The function of the layer stays as it is up to eps: running
    statistics of BatchNorm are scaled along. Layers with normalization="none" are left alone.

    Source: Shekhovtsov & Flach 2018, Stochastic normalizations as Bayesian learning.
    """
    for layer in module.modules():
        if isinstance(layer, _Normalized) and layer.normalization != "none":
            norm = layer.weight.flatten(1).norm(dim=1)
            layer.weight /= norm.view(-1, *[1] * (layer.weight.dim() - 1))
            statistics: Any = layer.stochastic
            if layer.normalization == "batch" and statistics.running_mean is not None:
                statistics.running_mean /= norm
                statistics.running_var /= norm**2
