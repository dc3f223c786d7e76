"""A linear layer whose weights are multiplied by inputs of a normalising flow (MNF)."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bnuq.nn import standard_normal
from experiments.layers.learned import LearnedNoise, check_positive, gaussian_kl, positive, unconstrained
from experiments.layers.mean_field import root


class MNFLinear(LearnedNoise, nn.Linear):
    """An `nn.Linear` with weights W_ji ~ N(z_i·M_ji, σ_ji²), where z ~ q(z) is a normal vector sent through a flow.

    `transforms` masked affine transformations of one hidden layer each (RealNVP), of `hidden_features` units, make up
    q(z), and as many the auxiliary r(z|W); both start as identities and z at 1, so that the layer starts as an
    `nn.Linear`. In training mode each point has a z of its own, and its pre-activations are drawn (local
    reparameterisation). In evaluation mode there is no noise; bnuq draws z and W once for every sample.

    Parameters: `weight` M and `bias` are the means; `positive(weight_u)` and `positive(bias_u)` the standard
    deviations, which start at `initial_sd` and are at most `max_sd`. Weights and biases have the prior N(0, prior_sd²).
    Sizes are given as to `nn.Linear`, all else by name. Needs zuko (`pip install zuko`).

    Source: Louizos & Welling 2017, Multiplicative normalizing flows for variational Bayesian neural networks.
    """

    def __init__(
        self,
        *sizes: Any,
        transforms: int = 2,
        hidden_features: int = 50,
        prior_sd: float = 1.0,
        initial_sd: float = 0.05,
        max_sd: float = 0.5,
        device: Any = None,
        dtype: Any = None,
        **layer: Any,
    ) -> None:
        super().__init__(*sizes, **layer)
        check_positive(prior_sd, "prior_sd")
        check_positive(max_sd, "max_sd")
        u, like = unconstrained(initial_sd), self.weight
        self.prior_sd, self.max_sd = prior_sd, max_sd
        self.weight_u = nn.Parameter(torch.full_like(like, u))
        self.bias_u = None if self.bias is None else nn.Parameter(torch.full_like(self.bias, u))
        self.z_mean = nn.Parameter(like.new_ones(self.in_features))
        self.z_u = nn.Parameter(like.new_full((self.in_features,), u))
        self.flow = _identity_flow(self.in_features, transforms, hidden_features).to(like)
        self.auxiliary_flow = _identity_flow(self.in_features, transforms, hidden_features).to(like)
        self.auxiliary_rows = nn.Parameter(0.1 * torch.randn_like(like[0]))  # c, b₁ and b₂ of the paper
        self.auxiliary_mean = nn.Parameter(0.1 * torch.randn_like(like[0]))
        self.auxiliary_log_variance = nn.Parameter(0.1 * torch.randn_like(like[0]))
        self.to(device=device, dtype=dtype)

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - the name in torch
        sd, bias_sd = self.sds()
        if self.training:
            z, _ = self.multipliers(torch.empty_like(input), training=True)
            mean = F.linear(input * z, self.weight, self.bias)
            variance = F.linear(input**2, sd**2, None if bias_sd is None else bias_sd**2)
            return mean + root(variance) * standard_normal(mean, training=True)
        z, _ = self.multipliers(self.z_mean, training=False)
        weight = self.weight * z + sd * standard_normal(self.weight, training=False)
        if self.bias is None or bias_sd is None:
            return F.linear(input, weight)
        return F.linear(input, weight, self.bias + bias_sd * standard_normal(self.bias, training=False))

    def sds(self) -> tuple[Tensor, Tensor | None]:
        """Standard deviations of the weights, given z, and of the biases."""
        sd = positive(self.weight_u).clamp(max=self.max_sd)
        return sd, None if self.bias_u is None else positive(self.bias_u).clamp(max=self.max_sd)

    def multipliers(self, like: Tensor, *, training: bool) -> tuple[Tensor, Tensor]:
        """Draws of z in the shape of `like` (…, input), and ln q(z) of each (…)."""
        noise = standard_normal(like, training=training)
        z, log_slope = _through(self.flow, self.z_mean + positive(self.z_u) * noise)
        return z, _log_normal(noise, positive(self.z_u).log()).sum(-1) - log_slope

    def kl(self, draws: int = 1) -> Tensor:
        """An unbiased estimate from `draws` draws of an upper bound of KL(q(W, b) ‖ prior), in nats.

        The bound is E[KL(q(W|z) ‖ p(W)) + ln q(z) − ln r(z|W)]. It is drawn by torch in
        either mode.
        """
        sd, bias_sd = self.sds()
        z, log_q = self.multipliers(self.z_mean.expand(draws, -1), training=True)
        variance_ratio = (sd / self.prior_sd) ** 2
        given_z = 0.5 * (variance_ratio - 1 - variance_ratio.log()).sum()
        given_z = given_z + 0.5 * (z**2 @ (self.weight**2).sum(0)) / self.prior_sd**2
        bound = (given_z + log_q - self._log_auxiliary(z, sd)).mean()
        if self.bias is None or bias_sd is None:
            return bound
        return bound + gaussian_kl(self.bias, bias_sd, prior_mean=0.0, prior_sd=self.prior_sd)

    def _log_auxiliary(self, z: Tensor, sd: Tensor) -> Tensor:
        """ln r(z|W) of each z (draw, input), with W drawn from q(W|z): only W·c is needed, which is normal."""
        mean = F.linear(z * self.auxiliary_rows, self.weight)
        rows = mean + root(F.linear(self.auxiliary_rows**2, sd**2)) * standard_normal(mean, training=True)
        activation = rows.tanh().mean(-1, keepdim=True)
        end, log_slope = _through(self.auxiliary_flow, z)
        log_sd = 0.5 * activation * self.auxiliary_log_variance
        return _log_normal((end - activation * self.auxiliary_mean) / log_sd.exp(), log_sd).sum(-1) + log_slope

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, transforms={len(self.flow)}, prior_sd={self.prior_sd:g}"


def _log_normal(standardised: Tensor, log_sd: Tensor) -> Tensor:
    """Log density of a normal number, of which (x − mean)/sd is given."""
    return -0.5 * (standardised**2 + LOG_2_PI) - log_sd


LOG_2_PI = 1.8378770664093453


def _through(flow: nn.ModuleList, z: Tensor) -> tuple[Tensor, Tensor]:
    """The flow's output for each z (…, input), and the log determinant of its Jacobian (…)."""
    log_slope = z.new_zeros(z.shape[:-1])
    for transform in flow:
        z, change = transform().call_and_ladj(z)
        log_slope = log_slope + change
    return z, log_slope


def _identity_flow(features: int, transforms: int, hidden_features: int) -> nn.ModuleList:
    """Masked affine transformations, each of one half of the features given the other, by turns; all are identities."""
    try:
        from zuko.flows import MaskedAutoregressiveTransform
        from zuko.transforms import MonotonicAffineTransform
    except ImportError as error:
        raise ImportError("MNFLinear needs zuko, which is not installed: pip install zuko") from error
    if transforms < 1 or hidden_features < 1:
        raise ValueError(
            f"transforms is {transforms}, hidden_features is {hidden_features}; expected at least 1 of each."
        )
    order: Any = torch.arange(features)
    flow = nn.ModuleList(
        MaskedAutoregressiveTransform(
            features,
            passes=2,
            order=order if number % 2 == 0 else order.flip(0),
            univariate=partial(MonotonicAffineTransform, slope=0.1),  # steeper ones let training run away
            hidden_features=(hidden_features,),
        )
        for number in range(transforms)
    )
    for transform in flow:
        last = list(transform.parameters())[-2:]  # of the network that gives scales and shifts, or these themselves
        for parameter in last:
            nn.init.zeros_(parameter)
    return flow
