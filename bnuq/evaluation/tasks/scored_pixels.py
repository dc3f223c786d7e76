"""Which pixels of an image are scored."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from bnuq import devices
from bnuq.frozen import frozen
from bnuq.shapes import Bool, Int64


@lru_cache(maxsize=16)
def one_of(every: int, count: int) -> Int64[np.ndarray, " chosen"]:
    """One of every so many numbers below `count`, in order, each at random and always the same: every so many of them
    would be one column of a periodic image."""
    first = np.arange(0, count, every)
    return first + (np.random.default_rng(0).random(len(first)) * np.minimum(every, count - first)).astype(np.int64)


@frozen
class Region:
    """The pixels of an image: how many are scored; which pass, in the plane and by their numbers; the mask. On the
    device the numbers of those that pass, and the class of each pixel."""

    count: int
    plane: Bool[np.ndarray, "height width"]
    rows: Int64[np.ndarray, " row"]
    mask: Int64[np.ndarray, "height width"] | None
    numbers: Int64[Tensor, " row"]
    truth: Int64[Tensor, " pixel"] | None

    @staticmethod
    def of(
        mask: Int64[np.ndarray, "height width"] | None, valid: Bool[np.ndarray, "height width"], device: torch.device
    ) -> Region:
        """The pixels of an image with this mask, where there is one, of which the `valid` ones are scored."""
        count = int(valid.sum())
        plane = valid if count else np.ones_like(valid)  # only the scores of an ignored image are used
        rows = np.flatnonzero(plane)
        truth = None
        if mask is not None:
            truth = devices.upload(torch.from_numpy(np.where(valid, mask, 0)).flatten(), device)
        return Region(count, plane, rows, mask, devices.upload(torch.from_numpy(rows), device), truth)

    def thinned(self, every: int) -> Region:
        """One of every so many of the pixels that pass."""
        chosen = one_of(every, len(self.rows))
        return replace(self, rows=self.rows[chosen], numbers=self.numbers[torch.from_numpy(chosen)])

    def within(self, pixels: slice) -> Int64[Tensor, " kept"]:
        """Which of these pixels pass."""
        return self.numbers[self._numbers(pixels)] - pixels.start

    def places(self, pixels: slice, every: int) -> Int64[Tensor, " chosen"]:
        """Which of those `within` these pixels are the one of every so many of all that pass."""
        chosen, here = one_of(every, len(self.rows)), self._numbers(pixels)
        return torch.from_numpy(chosen[slice(*np.searchsorted(chosen, [here.start, here.stop]))] - here.start)

    def _numbers(self, pixels: slice) -> slice:
        return slice(*np.searchsorted(self.rows, [pixels.start, pixels.stop]).tolist())
