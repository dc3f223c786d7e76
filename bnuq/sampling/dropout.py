"""Monte Carlo dropout: masks that depend on (seed, draw, site, tile of points) alone."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from bnuq.errors import SamplingError
from bnuq.sampling import keyed
from bnuq.sampling.interception import DropoutCall
from bnuq.sampling.sites import Site

TILE = 64  # points whose masks are drawn together; part of what a seed means, so never changed

_ALPHA = 1.7580993408473766  # −α′ of SELU, the value that alpha dropout sends dropped entries to


@dataclass(frozen=True)
class Dropout:
    """Dropout kept active at prediction, in `samples` passes: an independent mask for every point and pass.

    Source: Gal & Ghahramani 2016, as compared with MCBN by Teye et al. 2018.
    """

    samples: int
    seed: int = 0

    def __post_init__(self) -> None:
        if self.samples < 1:
            raise SamplingError(f"samples is {self.samples}; expected a whole number of at least 1.")
        check_seed(self.seed)


def check_seed(seed: int) -> None:
    """Raise SamplingError for what is no seed: the keys of the random numbers, and the files, hold 63 bits."""
    if not isinstance(seed, int | np.integer) or not 0 <= seed < 2**63:
        raise SamplingError(f"seed is {seed}; expected a whole number from 0 to 2**63 - 1.")


def dropped(call: DropoutCall, site: Site, dropout: Dropout, draw: int, start: int) -> Tensor:
    """The input of this call after dropout, where its points are numbers `start`, `start` + 1, … of the evaluated set.

    A kept entry is scaled by 1/(1 − p); p = 1 gives zeros. Feature dropout masks whole channels; alpha dropout keeps
    mean and variance as `torch.nn.AlphaDropout` does.
    """
    x = call.input
    keep = _keep_mask(x, site, dropout, draw, start).to(x.dtype)
    if site.variety.endswith("alpha_dropout"):
        if site.p == 1:
            result = torch.zeros_like(x)
        else:
            a = ((_ALPHA**2 * site.p + 1) * (1 - site.p)) ** -0.5
            result = a * (x * keep - _ALPHA * (1 - keep)) + a * _ALPHA * site.p
    else:
        result = x * keep if site.p == 1 else x * keep / (1 - site.p)
    return x.copy_(result) if call.in_place else result


def _keep_mask(x: Tensor, site: Site, dropout: Dropout, draw: int, start: int) -> Tensor:
    shape = list(x.shape)
    if site.variety.startswith("feature"):
        shape[2:] = [1] * len(shape[2:])
    axis = site.batch_axis
    if axis is None:  # the same entries for all points: one mask a pass
        return _tile(shape, site, dropout, draw, 0, x.device)
    points = shape[axis] // site.rows
    others = shape[:axis] + shape[axis + 1 :]
    tiles = range(start // TILE, (start + points - 1) // TILE + 1)
    drawn = torch.cat([_tile([TILE * site.rows, *others], site, dropout, draw, tile, x.device) for tile in tiles])
    first = (start - tiles[0] * TILE) * site.rows
    mask = drawn[first : first + points * site.rows]
    if site.interleaved:
        mask = mask.unflatten(0, (points, site.rows)).transpose(0, 1).flatten(0, 1)
    return mask.movedim(0, axis)


def _tile(shape: list[int], site: Site, dropout: Dropout, draw: int, tile: int, device: torch.device) -> Tensor:
    generator = torch.Generator(device).manual_seed(keyed.mask_seed(dropout.seed, draw, site=site.order, tile=tile))
    return torch.empty(shape, device=device).bernoulli_(1 - site.p, generator=generator)
