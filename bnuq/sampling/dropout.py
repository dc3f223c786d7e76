"""Monte Carlo dropout: masks in which every entry depends only on (seed, draw, site, point)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np
import torch
from jaxtyping import Int64, UInt8
from torch import Tensor

from bnuq import devices
from bnuq.errors import SamplingError
from bnuq.frozen import frozen
from bnuq.sampling import counter_rng, kernels
from bnuq.sampling.interception import DropoutCall
from bnuq.sampling.sites import DropoutSite

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
    numbers, device = [dropout.first + draw for draw in draws], call.input.device
    made = _dropped_at_once(call, site, dropout.seed, tuple(numbers), start)
    if made is not None:
        return made

    def entries(first: int, count: int) -> UInt8[Tensor, "draw entry"]:
        return _keep_entries(dropout.seed, numbers, site.order, site.p, device, first, count)

    return dropped_by(call, site, entries, len(draws), start)


def _dropped_at_once(
    call: DropoutCall, site: DropoutSite, seed: int, draws: tuple[int, ...], start: int
) -> Tensor | None:
    """The same in one kernel, without a mask in memory; None where none computes it."""
    x, by_channel = call.input, site.variety == "feature_dropout"
    in_rows = site.batch_axis == 0 and site.rows == 1 and not site.interleaved
    plain = site.p == 1 or not (by_channel or site.variety == "dropout") or x.requires_grad
    if plain or not in_rows or not devices.traits(x.device).draws:
        return None
    entries_per_point = x.shape[1] if by_channel else math.prod(x.shape[1:])
    keys, out = _squares_keys_on(x.device, seed, draws, site.order), x if call.in_place else None
    return kernels.masked(x, keys, p=site.p, first=start * entries_per_point, by_channel=by_channel, out=out)


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


def _keep_entries(
    seed: int, draws: Sequence[int], site: int, p: float, device: torch.device, first: int, count: int
) -> UInt8[Tensor, "draw entry"]:
    """1 with probability 1 − p and 0 otherwise, for entries number `first`, `first` + 1, … of a site, under each draw.

    Each is a function of (seed, draw, site, entry number), so any range of entries, and any tile of points, can be
    drawn independently. CUDA devices compute masks themselves, by another function; other devices use masks from the
    CPU.
    """
    if devices.traits(device).draws:
        return _keep_by_squares(_squares_keys_on(device, seed, tuple(draws), site), p, first, count)
    return torch.from_numpy(_keep_by_philox(seed, draws, site, p, first, count)).to(device)


def _keep_by_philox(
    seed: int, draws: Sequence[int], site: int, p: float, first: int, count: int
) -> UInt8[np.ndarray, "draw entry"]:
    """A mask that is exact to 2⁻⁸⁰: an 80-bit uniform number is compared with p. Its last 64 bits are drawn only where
    the first 16 do not decide."""
    high = int(p * 2**16)
    low = int((p * 2**16 - high) * 2**64)
    bits = counter_rng.quarters(seed, draws, counter_rng.MASK, first, count, site=site)
    mask = bits > high
    for tie in np.flatnonzero(bits == high).tolist():  # one entry in 65,536
        k, i = divmod(tie, count)
        mask[k, i] = counter_rng.words(seed, draws[k], counter_rng.MASK_TIE, 1, site=site, block=first + i)[0] >= low
    return mask.view(np.uint8)


def _squares_keys(seed: int, draws: Sequence[int], site: int) -> Int64[np.ndarray, " draw"]:
    """Odd 64-bit keys, as the generator requires, in torch's signed type."""
    keys = [counter_rng.words(seed, draw, counter_rng.MASK_KEY, 1, site=site)[0] | np.uint64(1) for draw in draws]
    return np.array(keys, dtype=np.uint64).view(np.int64)


@lru_cache(maxsize=256)
def _squares_keys_on(device: torch.device, seed: int, draws: tuple[int, ...], site: int) -> Int64[Tensor, " draw"]:
    """The keys on the device, cached across chunks, because copying them makes the host wait for the device."""
    return torch.from_numpy(_squares_keys(seed, draws, site)).to(device)


_BLOCK_ENTRIES = 2**22  # entries
_BYTES_PER_ENTRY = 32  # of an entry, while it is drawn: four temporaries


def _keep_by_squares(keys: Int64[Tensor, " draw"], p: float, first: int, count: int) -> UInt8[Tensor, "draw entry"]:
    """A mask that is exact to 2⁻³²: 32 bits are compared with p. Computed on the keys' device."""
    mask = torch.empty((len(keys), count), dtype=torch.bool, device=keys.device)
    draws_per_block = max(1, _BLOCK_ENTRIES // max(1, count))  # draws
    for start in range(first, first + count, _BLOCK_ENTRIES):
        counter = torch.arange(start, min(start + _BLOCK_ENTRIES, first + count), device=keys.device)
        columns = mask[:, start - first : start - first + len(counter)]
        for key, block in zip(keys[:, None].split(draws_per_block), columns.split(draws_per_block), strict=True):
            high = kernels.squares(key, counter).view(torch.int32)[:, 1::2]
            torch.ge(high, kernels.threshold(p), out=block)
    return mask.view(torch.uint8)


def bytes_of_mask(entries: int, itemsize: int, device: torch.device) -> int:
    """The approximate peak bytes of a mask of `entries` entries, while it is drawn and while it is applied."""
    drawing = _BYTES_PER_ENTRY * min(entries, _BLOCK_ENTRIES) if devices.traits(device).draws else 2 * entries
    return entries + max(drawing, itemsize * entries)
