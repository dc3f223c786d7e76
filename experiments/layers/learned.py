"""The base of all layers with learned noise: standard deviations, and the divergence from the prior."""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor, nn


class LearnedNoise(nn.Module):
    """A module whose own weights or scales have a learned distribution. Submodules answer for themselves."""

    is_scale: ClassVar[bool] = False

    def kl(self) -> Tensor:
        """KL divergence of the distribution from its prior, in nats, as a tensor without axes."""
        raise NotImplementedError


def kl(module: nn.Module, *, doubled_scales: bool = False) -> Tensor:
    """KL divergence of all learned noise in `module` from its prior, in nats: a tensor without axes, 0 without noise.

    A layer that is used twice counts once. The divergence of an `MNFLinear` is one draw of an upper bound, made by
    torch in either mode. With `doubled_scales` that of every Bayesian scale counts twice, as in the formula of the
    paper (Shekhovtsov & Flach 2018, section 3.5), which is twice the true divergence up to a constant.
    """
    total = next((torch.zeros((), dtype=p.dtype, device=p.device) for p in module.parameters()), torch.zeros(()))
    for layer in module.modules():
        if isinstance(layer, LearnedNoise):
            total = total + (2 if doubled_scales and layer.is_scale else 1) * layer.kl()
    return total


def positive(u: Tensor) -> Tensor:
    """The standard deviation of an unconstrained parameter: e^u for u < 0, u + 1 for u ≥ 0.

    Source: Shekhovtsov & Flach 2018, section 3.5.
    """
    return torch.where(u < 0, u.clamp(max=0).exp(), u + 1)


def unconstrained(sd: float, name: str = "initial_sd") -> float:
    """The parameter whose `positive` is `sd`. Raises ValueError unless `sd` is positive and finite."""
    check_positive(sd, name)
    return math.log(sd) if sd < 1 else sd - 1


def unconstrained_of(sds: Tensor) -> Tensor:
    """The parameters whose `positive` are these standard deviations."""
    return torch.where(sds < 1, sds.log(), sds - 1)


def gaussian_kl(mean: Tensor, sd: Tensor, *, prior_mean: float, prior_sd: float) -> Tensor:
    """KL divergence of independent N(mean, sd²) from N(prior_mean, prior_sd²), in nats, summed over all entries."""
    ratio, shift = sd / prior_sd, (mean - prior_mean) / prior_sd
    return (0.5 * (ratio**2 + shift**2 - 1) - ratio.log()).sum()


def check_positive(value: float, name: str) -> None:
    if not 0 < value < math.inf:
        raise ValueError(f"{name} is {value}; expected a positive, finite number.")


def check_choice(value: str, name: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ValueError(f"{name} is {value!r}; expected {', '.join(map(repr, choices[:-1]))} or {choices[-1]!r}.")


def apply_weights(layer: nn.Module, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """The product or the convolution of `layer`, an `nn.Linear` or `nn.Conv{1,2,3}d`, with other weights."""
    if isinstance(layer, nn.Linear):
        return nn.functional.linear(x, weight, bias)
    if x.dim() != weight.dim():
        raise ValueError(
            f"the input of {type(layer).__name__} has shape {tuple(x.shape)}; expected {weight.dim()} axes: points, "
            "channels and positions."
        )
    return layer._conv_forward(x, weight, bias)  # pyrefly: ignore - with the layer's padding
