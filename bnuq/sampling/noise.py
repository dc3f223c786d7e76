"""Learned noise: the random numbers that a network draws in evaluation mode, such as those of Bayesian layers.

They are the numbers that layers of `bnuq.nn` ask for, and every normal, uniform or Bernoulli number that torch is asked
for in a forward. A deterministic pass has their means in their place.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from bnuq.errors import SamplingError
from bnuq.sampling import counter_rng
from bnuq.sampling.dropout import Draws
from bnuq.sampling.interception import NoiseCall
from bnuq.sampling.sites import NoiseSite

_KEPT_BYTES = 2**28  # of numbers that all points share


class Learned(Draws):
    """Noise that the network's own layers ask for, drawn once for each of `samples` samples.

    All points and positions share the numbers, so that a sample is one function; a layer that draws numbers for each
    of its points gets independent ones.

    Source: Blundell et al. 2015 (weights); Shekhovtsov & Flach 2018, §3.5 (scales).
    """


class Noise:
    """Draws the numbers of a network's noise. Numbers that points share are kept for the next chunk, as far as memory
    allows."""

    def __init__(self, learned: Learned) -> None:
        self._learned = learned
        self._kept: dict[tuple[int, int, torch.dtype, torch.device], Tensor] = {}
        self._bytes = 0

    def drawn(self, call: NoiseCall, site: NoiseSite, draw: int, start: int) -> Tensor:
        """The result of this call under sample `draw`, for points number `start`, `start` + 1, … of their set."""
        dtype = call.dtype if call.dtype.is_floating_point else torch.float32
        return answered(call, self.numbers(site, call.shape, draw, start, dtype, call.device))

    def numbers(
        self, site: NoiseSite, shape: tuple[int, ...], draw: int, start: int, dtype: torch.dtype, device: torch.device
    ) -> Tensor:
        """Standard normal numbers, or uniform ones between 0 and 1."""
        key, axis = (draw, site.order, dtype, device), site.batch_axis
        if axis is None and key in self._kept:
            return self._kept[key]
        per_point = 1 if axis is None else site.rows * math.prod(shape[:axis] + shape[axis + 1 :])
        seed, number, first = self._learned.seed, self._learned.first + draw, 0 if axis is None else start * per_point
        uniform = counter_rng.uniform(seed, number, counter_rng.LEARNED, math.prod(shape), site=site.order, first=first)
        from scipy.special import ndtri  # late: a sixth of a second

        values = ndtri(uniform) if site.family == "normal" else uniform
        if axis is None:
            numbers = _on(values.reshape(shape), dtype, device)
            self._bytes += numbers.nbytes
            if self._bytes <= _KEPT_BYTES:
                self._kept[key] = numbers
            return numbers
        others = shape[:axis] + shape[axis + 1 :]
        return _on(np.moveaxis(values.reshape(shape[axis], *others), 0, axis), dtype, device)


def answered(call: NoiseCall, numbers: Tensor) -> Tensor:
    """The result of this call where its standard normal numbers, or uniform ones between 0 and 1, are these."""
    if call.family == "bernoulli":
        return call.result((numbers < call.first).to(numbers.dtype))
    width = call.second if call.family == "normal" else call.second - call.first
    return call.result(call.first + width * numbers)


def _on(values: np.ndarray, dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(values)).to(device, dtype)


class NoiseCalls:
    """Counts the noise calls of one forward, which must be those of the forward that found `sites`."""

    def __init__(self, sites: tuple[NoiseSite, ...]) -> None:
        self._sites = sites
        self._count = 0

    def site(self, call: NoiseCall) -> NoiseSite:
        """The site of this call; SamplingError where there is none."""
        number, self._count = self._count, self._count + 1
        site = self._sites[number] if number < len(self._sites) else None
        if site is None or (site.family, _shared(site, site.shape)) != (call.family, _shared(site, call.shape)):
            raise SamplingError(_OTHER_NOISE)
        return site

    def check_complete(self) -> None:
        """Raise SamplingError where the forward skipped a call."""
        if self._count < len(self._sites):
            raise SamplingError(_OTHER_NOISE)


def _shared(site: NoiseSite, shape: tuple[int, ...]) -> list[int]:
    """The sizes of the axes along which no points lie."""
    return [size for axis, size in enumerate(shape) if axis != site.batch_axis]


_OTHER_NOISE = (
    "the network drew different noise from the first time; bnuq needs a network whose path does not depend on its "
    "input."
)
