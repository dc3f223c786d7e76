"""Scales and biases of channels with noise: like BatchNorm's, or with a learned distribution."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from bnuq.nn import standard_normal
from experiments.layers.learned import LearnedNoise, check_choice, check_positive, gaussian_kl, positive, unconstrained

PRIOR_MEAN, PRIOR_SD = 1.0, 10.0


class StochasticScale(LearnedNoise):
    """Scale and bias of the channels of a normalised pre-activation h, with noise.

    - `noise="none"`: h·s + b.
    - `noise="scale"`: h·S + b with S ~ N(s, σ_S²), of prior N(1, 10²); s and σ_S are learned.
    - `noise="batch"`: (h + V)·U·s + b with V ~ N(0, 1/n) and U ~ √n χ⁻¹ of n − 1 degrees of freedom, as mini-batches
      of n independent values have it; n is `effective_size`. `shift_sd` is the standard deviation of V, if it is not
      1/√n: a number, or one for each channel.

    Noise is drawn for each channel, or with `per="layer"` once for all of them; a Bayesian scale of a layer is one
    number, beside a deterministic `gain` of each channel. In training mode each point has noise of its own; in
    evaluation mode there is none, and bnuq draws it once for every sample, shared by points and positions.

    `channels` are along `channel_axis` of the input (1, or −1 for rows of a product). Parameters: `scale` s,
    `scale_u` (σ_S = `positive(u)`), `gain`, `bias`.

    Source: Shekhovtsov & Flach 2018, section 3.5.
    """

    is_scale = True

    def __init__(
        self,
        channels: int,
        *,
        noise: str = "scale",
        per: str = "channel",
        effective_size: float | None = None,
        shift_sd: float | Tensor | None = None,
        initial_sd: float = 0.1,
        bias: bool = True,
        channel_axis: int = 1,
    ) -> None:
        super().__init__()
        check_choice(noise, "noise", ("none", "batch", "scale"))
        check_choice(per, "per", ("channel", "layer"))
        if (noise == "batch") != (effective_size is not None):
            raise ValueError(
                f'noise is {noise!r} and effective_size is {effective_size}; expected the latter with noise="batch", '
                "and only there: the number of independent values behind a batch statistic."
            )
        if effective_size is not None and not effective_size >= 16:
            raise ValueError(f"effective_size is {effective_size}; expected at least 16 values.")
        check_positive(initial_sd, "initial_sd")
        self.shift_sd = shift_sd
        self.channels, self.noise, self.per, self.effective_size = channels, noise, per, effective_size
        self.channel_axis, self._draws = channel_axis, 1 if per == "layer" else channels
        is_per_layer = noise == "scale" and per == "layer"
        self.scale = nn.Parameter(torch.ones(1 if is_per_layer else channels))
        self.gain = nn.Parameter(torch.ones(channels)) if is_per_layer else None
        self.bias = nn.Parameter(torch.zeros(channels)) if bias else None
        self.scale_u = None
        if noise == "scale":
            self.scale_u = nn.Parameter(torch.full((self._draws,), unconstrained(initial_sd)))

    def forward(self, h: Tensor) -> Tensor:
        """Input and output of shape (point, channel, position …), or (point, …, channel) where channels are last."""
        scale, bias = self._along(self.scale, h), None if self.bias is None else self._along(self.bias, h)
        if self.scale_u is not None:
            scale = scale + self._along(positive(self.scale_u), h) * self._noise(h)
            scale = scale if self.gain is None else scale * self._along(self.gain, h)
        elif self.effective_size is not None:
            shift_sd = self.effective_size**-0.5 if self.shift_sd is None else self.shift_sd
            h = h + self._noise(h) * (self._along(shift_sd, h) if isinstance(shift_sd, Tensor) else shift_sd)
            scale = scale * inverse_chi(self._noise(h), self.effective_size)
        return h * scale if bias is None else torch.addcmul(bias, h, scale)

    def _along(self, values: Tensor, h: Tensor) -> Tensor:
        return values if self.channel_axis == -1 else values.view(-1, *[1] * (h.dim() - 2))

    def _noise(self, h: Tensor) -> Tensor:
        """In training mode for each point and channel, in evaluation mode for each channel."""
        if not self.training:
            return self._along(standard_normal(self.scale.new_empty(self._draws), training=False), h)
        shape = [h.shape[0], *[1] * (h.dim() - 1)]
        shape[self.channel_axis] = self._draws
        return standard_normal(h.new_empty(shape), training=True)

    def affine(self) -> tuple[Tensor, Tensor]:
        """Scale and bias of each channel without noise: two tensors (channel,)."""
        scale = self.scale if self.gain is None else self.scale * self.gain
        return scale, torch.zeros_like(scale) if self.bias is None else self.bias

    def kl(self) -> Tensor:
        """KL divergence of q(S) from N(1, 10²), in nats; 0 if nothing about the noise is learned."""
        if self.scale_u is None:
            return self.scale.new_zeros(())
        return gaussian_kl(self.scale, positive(self.scale_u), prior_mean=PRIOR_MEAN, prior_sd=PRIOR_SD)

    def extra_repr(self) -> str:
        size = "" if self.effective_size is None else f", effective_size={self.effective_size:g}"
        return f"{self.channels}, noise={self.noise!r}, per={self.per!r}{size}"


def inverse_chi(z: Tensor, n: float) -> Tensor:
    """U = σ/S of n normal values, √n χ⁻¹ of n − 1 degrees of freedom, from standard normal `z`; 1 where z is exactly 0.

    U falls as z grows. The quantile of χ² is that of Wilson & Hilferty 1931: for |z| ≤ 3, U is right to 1.3 % at
    n = 16, to 0.3 % at n = 32, to 0.1 % at n = 64. Zero stands for no noise: as with population statistics, U is 1.
    """
    width = 2 / (9 * (n - 1))
    chi2 = (n - 1) * (1 - width + width**0.5 * z).clamp(min=0.1) ** 3
    return torch.where(z == 0, 1.0, (n / chi2).sqrt())
