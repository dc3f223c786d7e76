"""Learned noise: the random numbers that a network draws in evaluation mode, such as those of Bayesian layers.

They are the numbers that layers ask `bnuq.nn.standard_normal` for, and every normal, uniform or Bernoulli number that
torch is asked for in a forward. A deterministic pass has their means in their place.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from bnuq import devices
from bnuq.errors import SamplingError
from bnuq.files.limits import available_memory
from bnuq.sampling import counter_rng
from bnuq.sampling.dropout import Draws
from bnuq.sampling.interception import NoiseCall
from bnuq.sampling.sites import NoiseSite

_KEPT_BYTES = 2**28  # of numbers that all points share, where free memory is not known
_HOST = torch.device("cpu")


class Learned(Draws):
    """Noise that the network's own layers ask for, drawn once for each of `samples` samples.

    All points and positions share the numbers, so that a sample is one function; a layer that draws numbers for each
    of its points gets independent ones.

    Source: Blundell et al. 2015 (weights); Shekhovtsov & Flach 2018, §3.5 (scales).
    """


class Noise:
    """Draws the numbers of a network's noise. Those that points share are kept for the next chunk, which spares a core
    of the host their drawing: on the device as far as its memory allows, then on the host."""

    def __init__(self, learned: Learned) -> None:
        self._learned = learned
        self._kept: dict[tuple[int, int, torch.dtype, torch.device], Tensor] = {}
        self._room: dict[torch.device, int] = {}  # bytes that may still be kept there, by device
        self._halved = 0

    def drawn(self, call: NoiseCall, site: NoiseSite, draw: int, start: int) -> Tensor:
        """The result of this call under sample `draw`, for points number `start`, `start` + 1, … of their set."""
        dtype = call.dtype if call.dtype.is_floating_point else torch.float32
        return answered(call, self.numbers(site, call.shape, draw, start, dtype, call.device))

    def numbers(
        self, site: NoiseSite, shape: tuple[int, ...], draw: int, start: int, dtype: torch.dtype, device: torch.device
    ) -> Tensor:
        """Standard normal numbers, or uniform ones between 0 and 1."""
        axis = site.batch_axis
        if axis is not None:
            others = shape[:axis] + shape[axis + 1 :]
            first = start * site.rows * math.prod(others)
            values = self._values(site, math.prod(shape), draw, first).reshape(-1, site.rows, *others)
            values = (values.swapaxes(0, 1) if site.interleaved else values).reshape(shape[axis], *others)
            return devices.upload(_tensor(np.moveaxis(values, 0, axis), dtype), device)
        key = (draw, site.order, dtype, device)
        if key not in self._kept:
            numbers = _tensor(self._values(site, math.prod(shape), draw).reshape(shape), dtype)
            place = next((place for place in (device, _HOST) if self._has_room(place, numbers.nbytes)), None)
            if place is None:
                return devices.upload(numbers, device)
            self._kept[key] = devices.upload(numbers, place)
        return devices.upload(self._kept[key], device)

    def shrink(self) -> None:
        """Forget what is kept, and keep about half as much from now on."""
        self._kept.clear()
        self._room.clear()
        self._halved += 1

    def _has_room(self, place: torch.device, needed: int) -> bool:
        """Whether so many more bytes may be kept there, a quarter of what is free at first; they are then taken."""
        if place not in self._room:
            free = available_memory() if devices.is_host(place) else devices.free_bytes(place)
            self._room[place] = (_KEPT_BYTES if free is None else free // 4) >> self._halved
        has_room = needed <= self._room[place]
        self._room[place] -= needed if has_room else 0
        return has_room

    def _values(self, site: NoiseSite, count: int, draw: int, first: int = 0) -> np.ndarray:
        """So many numbers of a draw, from number `first` on."""
        number = self._learned.first + draw
        uniform = counter_rng.uniform(
            self._learned.seed, number, counter_rng.LEARNED, count, site=site.order, first=first
        )
        if site.family != "normal":
            return uniform
        from scipy.special import ndtri  # late: a sixth of a second

        return ndtri(uniform)


def answered(call: NoiseCall, numbers: Tensor) -> Tensor:
    """The result of this call where its standard normal numbers, or uniform ones between 0 and 1, are these."""
    if call.family == "bernoulli":
        return call.result((numbers < call.first).to(numbers.dtype))
    width = call.second if call.family == "normal" else call.second - call.first
    return call.result(call.first + width * numbers)


def _tensor(values: np.ndarray, dtype: torch.dtype) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(values)).to(dtype)


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
