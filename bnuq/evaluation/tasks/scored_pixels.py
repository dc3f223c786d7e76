"""Which pixels of an image are scored."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from bnuq import devices
from bnuq.frozen import frozen
from bnuq.shapes import Bool, Int64


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
        """Every so many of the pixels that pass."""
        return replace(self, rows=self.rows[::every], numbers=self.numbers[::every])

    def within(self, pixels: slice) -> Int64[Tensor, " kept"]:
        """Which of these pixels pass."""
        return self.numbers[self._numbers(pixels)] - pixels.start

    def places(self, pixels: slice, every: int) -> slice:
        """Which of those `within` these pixels are among every so many of all that pass."""
        return slice(-self._numbers(pixels).start % every, None, every)

    def _numbers(self, pixels: slice) -> slice:
        return slice(*np.searchsorted(self.rows, [pixels.start, pixels.stop]).tolist())
