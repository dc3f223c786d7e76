"""Monte Carlo dropout: masks in which every entry depends on (seed, draw, site, point) alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from jaxtyping import Int64, UInt8
from torch import Tensor

from bnuq.errors import SamplingError
from bnuq.sampling import counter_rng
from bnuq.sampling.interception import DropoutCall
from bnuq.sampling.sites import DropoutSite

_ALPHA = 1.7580993408473766  # −α′ of SELU, the value that alpha dropout sends dropped entries to


@dataclass(frozen=True)
class Dropout:
    """Dropout kept active at prediction, in `samples` passes: an independent mask for every point and pass.

    The passes are draws number `first`, `first` + 1, … of the seed, so that a run can be extended.

    Source: Gal & Ghahramani 2016, as compared with MCBN by Teye et al. 2018.
    """

    samples: int
    seed: int = 0
    first: int = 0

    def __post_init__(self) -> None:
        if self.samples < 1:
            raise SamplingError(f"samples is {self.samples}; expected a whole number of at least 1.")
        if self.first < 0:
            raise SamplingError(f"first is {self.first}; expected a whole number of at least 0.")
        check_seed(self.seed)


def check_seed(seed: int) -> None:
    """Raise SamplingError for an invalid seed: the keys of the random numbers, and the files, have 63 bits."""
    if not isinstance(seed, int | np.integer) or not 0 <= seed < 2**63:
        raise SamplingError(f"seed is {seed}; expected a whole number from 0 to 2**63 - 1.")


def dropped(call: DropoutCall, site: DropoutSite, dropout: Dropout, draws: Sequence[int], start: int) -> Tensor:
    """The input of this call after dropout, where it holds the same points once for each of `draws`, block by block.

    The points are numbers `start`, `start` + 1, … of the evaluated set; `draws` are positions 0 … `samples` − 1. Along
    the axis of points the blocks follow one another: (draw, point, row), or (row, draw, point) where the site is
    interleaved. An input without such an axis serves a single draw.

    A kept entry is scaled by 1/(1 − p); p = 1 gives zeros. Feature dropout masks whole channels; alpha dropout keeps
    mean and variance as `torch.nn.AlphaDropout` does.
    """
    x = call.input
    if site.p == 1:
        return x.zero_() if call.in_place else torch.zeros_like(x)
    scaled = _kept(x, site, dropout, draws, start).to(x.dtype)  # from uint8: several times as fast as from bool
    if not site.variety.endswith("alpha_dropout"):
        scaled.mul_(1 / (1 - site.p))
        if call.in_place:
            return x.mul_(scaled)
        alike = scaled.shape == x.shape and scaled.stride() == x.stride()
        return scaled.mul_(x) if alike else x * scaled  # the first spares memory, the second keeps the layout of x
    a = ((_ALPHA**2 * site.p + 1) * (1 - site.p)) ** -0.5
    scaled.mul_(a)
    shift = (scaled - a * (1 - site.p)).mul_(_ALPHA)
    return x.mul_(scaled).add_(shift) if call.in_place else (x * scaled).add_(shift)


def _kept(x: Tensor, site: DropoutSite, dropout: Dropout, draws: Sequence[int], start: int) -> Tensor:
    """1 for kept and 0 for dropped entries (uint8), of a shape that broadcasts to that of x."""
    shape = list(x.shape)
    if site.variety.startswith("feature"):
        shape[2:] = [1] * len(shape[2:])
    axis = site.batch_axis
    numbers = [dropout.first + draw for draw in draws]
    stream = dropout.seed, numbers, site.order, site.p, x.device
    if axis is None:  # the same entries for all points: one mask a pass
        return _kept_entries(*stream, 0, math.prod(shape)).view(shape)
    points = x.shape[axis] // (len(draws) * site.rows)
    others = shape[:axis] + shape[axis + 1 :]
    if site.variety.startswith("feature") and axis > 1:  # every channel runs over all points: one mask a pass
        kept = _kept_entries(*stream, 0, math.prod(others)).view(len(draws), 1, 1, *others)
        kept = kept.expand(-1, points, site.rows, *others)
    else:
        of_a_point = site.rows * math.prod(others)
        kept = _kept_entries(*stream, start * of_a_point, points * of_a_point)
        kept = kept.view(len(draws), points, site.rows, *others)
    if site.interleaved:
        kept = kept.movedim(2, 0)
    return kept.reshape(-1, *others).movedim(0, axis)


def _kept_entries(
    seed: int, draws: Sequence[int], site: int, p: float, device: torch.device, first: int, count: int
) -> UInt8[Tensor, "draw entry"]:
    """1 with probability 1 − p and 0 otherwise, for entries number `first`, `first` + 1, … of a site, under each draw.

    Each is a function of (seed, draw, site, its number): any run of them, and so any tile of points, can be drawn on
    its own. On CUDA another function is used, which the device computes; other devices receive masks drawn on the CPU.
    """
    if device.type == "cuda":
        return _kept_by_squares(_squares_keys_on(device, seed, tuple(draws), site), p, first, count)
    return torch.from_numpy(_kept_by_philox(seed, draws, site, p, first, count)).to(device)


def _kept_by_philox(
    seed: int, draws: Sequence[int], site: int, p: float, first: int, count: int
) -> UInt8[np.ndarray, "draw entry"]:
    """Exact to 2⁻⁸⁰: a uniform number of 80 bits is compared with p, its last 64 drawn only where 16 do not decide."""
    high = int(p * 2**16)
    low = int((p * 2**16 - high) * 2**64)
    bits = counter_rng.quarters(seed, draws, counter_rng.MASK, first, count, site=site)
    kept = bits > high
    for tie in np.flatnonzero(bits == high).tolist():  # one entry in 65,536
        k, i = divmod(tie, count)
        kept[k, i] = counter_rng.words(seed, draws[k], counter_rng.MASK_TIE, 1, site=site, block=first + i)[0] >= low
    return kept.view(np.uint8)


def _squares_keys(seed: int, draws: Sequence[int], site: int) -> Int64[np.ndarray, " draw"]:
    """Odd 64-bit numbers, as the generator wants them, in the signed type that torch has."""
    keys = [counter_rng.words(seed, draw, counter_rng.MASK_KEY, 1, site=site)[0] | np.uint64(1) for draw in draws]
    return np.array(keys, dtype=np.uint64).view(np.int64)


@lru_cache(maxsize=256)
def _squares_keys_on(device: torch.device, seed: int, draws: tuple[int, ...], site: int) -> Int64[Tensor, " draw"]:
    """Kept from chunk to chunk, as the host waits for the device where they are copied there."""
    return torch.from_numpy(_squares_keys(seed, draws, site)).to(device)


_AT_ONCE = 2**22  # entries
_BYTES_AT_ONCE = 32  # of an entry, while it is drawn: four temporaries


def _kept_by_squares(keys: Int64[Tensor, " draw"], p: float, first: int, count: int) -> UInt8[Tensor, "draw entry"]:
    """Exact to 2⁻³³: 32 bits are compared with p. Entry by entry on the keys' device, whose integers wrap.

    Source: Widynski 2020, "Squares: A Fast Counter-Based RNG", arXiv 2004.06278, squares32.
    """
    kept = torch.empty((len(keys), count), dtype=torch.bool, device=keys.device)
    together = max(1, _AT_ONCE // max(1, count))  # draws
    for start in range(first, first + count, _AT_ONCE):
        counter = torch.arange(start, min(start + _AT_ONCE, first + count), device=keys.device)
        columns = kept[:, start - first : start - first + len(counter)]
        for key, block in zip(keys[:, None].split(together), columns.split(together), strict=True):
            y = key * counter
            z = y + key
            x = torch.addcmul(y, y, y)
            other = torch.empty_like(x)
            for summand in (z, y, z):
                _swap_halves(x, other)
                torch.addcmul(summand, x, x, out=x)
            x >>= 32  # uniform from −2³¹, since a shift to the right keeps the sign
            torch.ge(x, round(p * 2**32) - 2**31, out=block)
    return kept.view(torch.uint8)


def _swap_halves(x: Tensor, other: Tensor) -> None:
    torch.bitwise_right_shift(x, 32, out=other).bitwise_and_(0xFFFFFFFF)
    x <<= 32
    x |= other


def bytes_of_mask(entries: int, itemsize: int, device: torch.device) -> int:
    """The approximate peak bytes of a mask of so many entries, while it is drawn and while it is applied."""
    drawing = _BYTES_AT_ONCE * min(entries, _AT_ONCE) if device.type == "cuda" else 2 * entries
    return entries + max(drawing, itemsize * entries)
