"""Linear and convolutional layers whose weights are independent and normal."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from bnuq.nn import standard_normal
from experiments.layers.learned import (
    LearnedNoise,
    apply_weights,
    check_choice,
    check_positive,
    gaussian_kl,
    positive,
    unconstrained,
)


class _MeanField(LearnedNoise):
    """See `MeanFieldLinear`."""

    weight: Tensor
    bias: Tensor | None

    def __init__(
        self,
        *sizes: Any,
        prior_sd: float = 1.0,
        initial_sd: float = 0.05,
        per: str = "point",
        device: Any = None,
        dtype: Any = None,
        **layer: Any,
    ) -> None:
        super().__init__(*sizes, **layer)
        check_choice(per, "per", ("point", "batch"))
        check_positive(prior_sd, "prior_sd")
        u = unconstrained(initial_sd)
        self.per, self.prior_sd = per, prior_sd
        self.weight_u = nn.Parameter(torch.full_like(self.weight, u))
        self.bias_u = None if self.bias is None else nn.Parameter(torch.full_like(self.bias, u))
        self.to(device=device, dtype=dtype)

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - the name in torch
        sd, bias_sd = self.sds()
        if self.training and self.per == "point":
            mean = apply_weights(self, input, self.weight, self.bias)
            variance = apply_weights(self, input**2, sd**2, None if bias_sd is None else bias_sd**2)
            return mean + root(variance) * standard_normal(mean, training=True)
        weight = self.weight + sd * standard_normal(self.weight, training=self.training)
        if self.bias is None or bias_sd is None:
            return apply_weights(self, input, weight, None)
        noise = standard_normal(self.bias, training=self.training)
        return apply_weights(self, input, weight, self.bias + bias_sd * noise)

    def sds(self) -> tuple[Tensor, Tensor | None]:
        """Standard deviations of `weight` and `bias`."""
        return positive(self.weight_u), None if self.bias_u is None else positive(self.bias_u)

    def kl(self) -> Tensor:
        sd, bias_sd = self.sds()
        total = gaussian_kl(self.weight, sd, prior_mean=0.0, prior_sd=self.prior_sd)
        if self.bias is None or bias_sd is None:
            return total
        return total + gaussian_kl(self.bias, bias_sd, prior_mean=0.0, prior_sd=self.prior_sd)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, prior_sd={self.prior_sd:g}"


class MeanFieldLinear(_MeanField, nn.Linear):  # pyrefly: ignore - torch says that its bias is never None
    """An `nn.Linear` whose weights and biases are independent, normal, and have the prior N(0, prior_sd²).

    In training mode each pre-activation is drawn (local reparameterisation), independently for each point and position;
    with `per="batch"` the weights are drawn once for the whole mini-batch.
    In evaluation mode the weights are their means; bnuq draws them once for every sample. Parameters: `weight` and
    `bias` are the means, as in `nn.Linear`; `positive(weight_u)` and `positive(bias_u)` the standard deviations, which
    start at `initial_sd`. `kl()` is the closed form, in nats. Sizes are given as to `nn.Linear`, all else by name.

    Source: Kingma, Salimans & Welling 2015, Variational dropout and the local reparameterization trick.
    """


class MeanFieldConv1d(_MeanField, nn.Conv1d):
    """An `nn.Conv1d` with the distribution of `MeanFieldLinear`."""


class MeanFieldConv2d(_MeanField, nn.Conv2d):
    """An `nn.Conv2d` with the distribution of `MeanFieldLinear`."""


class MeanFieldConv3d(_MeanField, nn.Conv3d):
    """An `nn.Conv3d` with the distribution of `MeanFieldLinear`."""


class DropoutLinear(LearnedNoise, nn.Linear):  # pyrefly: ignore - torch says that its bias is never None
    """An `nn.Linear` before which inputs are dropped with probability `rate`; those that are kept grow by 1/(1 − rate).

    In training mode they are dropped for each point, with `per="batch"` for all of a mini-batch at once. In evaluation
    mode none is, and bnuq draws them once for every sample. `kl()` is that of Gal & Ghahramani 2016 from the prior
    N(0, prior_sd²), without the entropy of the masks, which is constant: (1 − rate)/(2 prior_sd²) of the squared
    weights, in the scale in which they are kept.
    """

    def __init__(self, inputs: int, outputs: int, *, rate: float, prior_sd: float, per: str = "point") -> None:
        super().__init__(inputs, outputs)
        check_choice(per, "per", ("point", "batch"))
        check_positive(prior_sd, "prior_sd")
        self.rate, self.prior_sd, self.per = rate, prior_sd, per
        self.threshold = math.sqrt(2) * float(torch.erfinv(torch.tensor(2 * rate - 1)))  # of a normal value

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - the name in torch
        shared = input.new_empty(input.shape[1:])
        noise = standard_normal(input if self.training and self.per == "point" else shared, training=self.training)
        kept = torch.where(noise == 0, 1.0, (noise > self.threshold) / (1 - self.rate))  # exactly 0 stands for no noise
        return apply_weights(self, input * kept, self.weight, self.bias)

    def kl(self) -> Tensor:
        total = (self.weight**2).sum() / (1 - self.rate)
        return (total if self.bias is None else total + (self.bias**2).sum()) / (2 * self.prior_sd**2)


def root(variance: Tensor) -> Tensor:
    """The square root, with gradient 0 if the variance is 0."""
    return variance.clamp(min=torch.finfo(variance.dtype).tiny).sqrt()
