"""Monte Carlo dropout: masks in which every entry depends only on (seed, draw, site, point)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor

from bnuq import devices
from bnuq.errors import SamplingError
from bnuq.frozen import frozen
from bnuq.sampling import counter_rng, kernels
from bnuq.sampling.counter_rng import MaskKey
from bnuq.sampling.interception import DropoutCall
from bnuq.sampling.sites import DropoutSite
from bnuq.shapes import UInt8

# Masks of entries number `first`, `first` + 1, …, `count` of them, of each draw: 1 for kept, 0 for dropped ones.
Entries = Callable[[int, int], UInt8[Tensor, "draw entry"]]

_ALPHA = 1.7580993408473766  # −α′ of SELU, the value that alpha dropout sends dropped entries to


@frozen
class Draws:
    """The draws number `first`, `first` + 1, … of a seed, one for each of `samples` samples: a run can be extended."""

    samples: int
    seed: int = 0
    first: int = 0

    def __post_init__(self) -> None:
        if self.samples < 1:
            raise SamplingError(f"samples is {self.samples}; expected a whole number of at least 1.")
        if self.first < 0:
            raise SamplingError(f"first is {self.first}; expected a whole number of at least 0.")
        check_seed(self.seed)


class Dropout(Draws):
    """Dropout that stays active at prediction, for `samples` samples: an independent mask for every point and sample.

    Source: Gal & Ghahramani 2016, as compared with MCBN by Teye et al. 2018.
    """


def check_seed(seed: int) -> None:
    """Raise SamplingError for an invalid seed: random keys and files hold 63 bits."""
    if not isinstance(seed, int | np.integer) or not 0 <= seed < 2**63:
        raise SamplingError(f"seed is {seed}; expected a whole number from 0 to 2**63 - 1.")


def dropped(call: DropoutCall, site: DropoutSite, dropout: Dropout, draws: Sequence[int], start: int) -> Tensor:
    """The input of this call after dropout. It holds the same points once for each of `draws`, block by block.

    The points are numbers `start`, `start` + 1, … of the evaluated set; `draws` are positions 0 … `samples` − 1. Along
    the point axis the blocks follow each other: (draw, point, row), or (row, draw, point) where the site is
    interleaved. An input without a point axis holds a single draw.

    A kept entry is scaled by 1/(1 − p); p = 1 gives zeros. Feature dropout masks whole channels; alpha dropout keeps
    mean and variance as `torch.nn.AlphaDropout` does.
    """
    key = MaskKey(dropout.seed, tuple(dropout.first + draw for draw in draws), site.order, site.p)
    made = _dropped_at_once(call, site, key, start)
    entries = partial(_keep_entries, key, call.input.device)
    return dropped_by(call, site, entries, len(draws), start) if made is None else made


def _dropped_at_once(call: DropoutCall, site: DropoutSite, key: MaskKey, start: int) -> Tensor | None:
    """The same in one kernel, without a mask in memory; None where none computes it."""
    x = call.input
    follows_points = site.batch_axis == 0 and not site.interleaved
    if site.variety != "dropout" or site.p == 1 or x.requires_grad or not follows_points:
        return None
    first, out = start * site.rows * math.prod(x.shape[1:]), x if call.in_place else None
    return kernels.masked(x, key, first=first, scale=1 / (1 - site.p), out=out)


def dropped_by(call: DropoutCall, site: DropoutSite, entries: Entries, draws: int, start: int) -> Tensor:
    """`dropped`, with any source of masks; `draws` is their number."""
    x = call.input
    if site.p == 1:
        return x.zero_() if call.in_place else torch.zeros_like(x)
    scaled = _keep_mask(x, site, entries, draws, start).to(x.dtype)  # from uint8: several times as fast as from bool
    if not site.variety.endswith("alpha_dropout"):
        scaled.mul_(1 / (1 - site.p))
        if call.in_place:
            return x.mul_(scaled)
        same_layout = scaled.shape == x.shape and scaled.stride() == x.stride()
        return scaled.mul_(x) if same_layout else x * scaled  # saves memory; or keeps the layout of x
    a = ((_ALPHA**2 * site.p + 1) * (1 - site.p)) ** -0.5
    scaled.mul_(a)
    shift = (scaled - a * (1 - site.p)).mul_(_ALPHA)
    return x.mul_(scaled).add_(shift) if call.in_place else (x * scaled).add_(shift)


def _keep_mask(x: Tensor, site: DropoutSite, entries: Entries, draws: int, start: int) -> Tensor:
    """A mask (uint8) with 1 for kept and 0 for dropped entries, broadcastable to the shape of x."""
    shape = list(x.shape)
    if site.variety.startswith("feature"):
        shape[2:] = [1] * len(shape[2:])
    axis = site.batch_axis
    if axis is None:  # no point axis: one mask per draw
        return entries(0, math.prod(shape)).view(shape)
    points = x.shape[axis] // (draws * site.rows)
    other_sizes = shape[:axis] + shape[axis + 1 :]
    if site.variety.startswith("feature") and axis > 1:  # each channel spans all points: one mask per draw
        mask = entries(0, math.prod(other_sizes)).view(draws, 1, 1, *other_sizes)
        mask = mask.expand(-1, points, site.rows, *other_sizes)
    else:
        entries_per_point = site.rows * math.prod(other_sizes)
        mask = entries(start * entries_per_point, points * entries_per_point)
        mask = mask.view(draws, points, site.rows, *other_sizes)
    if site.interleaved:
        mask = mask.movedim(2, 0)
    return mask.reshape(-1, *other_sizes).movedim(0, axis)


def _keep_entries(key: MaskKey, device: torch.device, first: int, count: int) -> UInt8[Tensor, "draw entry"]:
    """`counter_rng.kept` on the device: drawn there if it has the kernel, otherwise copied from the CPU."""
    made = kernels.kept(key, first, count, device)
    return devices.upload(torch.from_numpy(counter_rng.kept(key, first, count)), device) if made is None else made


def bytes_of_mask(entries: int, itemsize: int) -> int:
    """The approximate peak bytes of a mask of `entries` entries, while it is drawn and while it is applied."""
    return entries * (1 + max(2, itemsize))
