"""Which pixels of an image are scored, and how far they are from the class boundaries of its mask."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from bnuq import devices, metrics
from bnuq.frozen import frozen
from bnuq.records.evaluation import BAND, REACH
from bnuq.shapes import Bool, Float, Int64, Integer


@frozen
class Region:
    """The pixels of an image: how many are scored; which pass, in the plane and by their numbers; the mask, and the
    distance of each pixel from the nearest class boundary. On the device the numbers of those that pass, the class of
    each pixel, the whole distance of those that pass, and which of these are near a boundary."""

    count: int
    plane: Bool[np.ndarray, "height width"]
    rows: Int64[np.ndarray, " row"]
    mask: Int64[np.ndarray, "height width"] | None
    distance: Float[np.ndarray, "height width"] | None
    numbers: Int64[Tensor, " row"]
    truth: Int64[Tensor, " pixel"] | None
    cell: Integer[Tensor, " row"] | None
    near: Int64[Tensor, " near"] | None

    @staticmethod
    def of(
        mask: Int64[np.ndarray, "height width"] | None,
        valid: Bool[np.ndarray, "height width"],
        device: torch.device,
        *,
        at_boundaries: bool,
    ) -> Region:
        """The pixels of an image with this mask, where there is one, of which the `valid` ones are scored; with their
        distances where something is estimated `at_boundaries`."""
        distance = metrics.boundary_distance(mask, valid, reach=REACH) if mask is not None and at_boundaries else None
        truth = None if mask is None else np.where(valid, mask, 0)
        count = int(valid.sum())
        plane = valid if count else np.ones_like(valid)  # only the scores of an ignored image are used
        rows = np.flatnonzero(plane)
        cell = None if distance is None else distance[plane].astype(np.int32)
        near = None if distance is None else np.flatnonzero(distance[plane] <= BAND)

        def on_device(values: np.ndarray | None) -> Tensor | None:
            return None if values is None else devices.upload(torch.from_numpy(values).flatten(), device)

        numbers = devices.upload(torch.from_numpy(rows), device)
        return Region(count, plane, rows, mask, distance, numbers, *map(on_device, (truth, cell, near)))

    def thinned(self, every: int) -> Region:
        """Every so many of the pixels that pass."""
        cell = None if self.cell is None else self.cell[::every]
        near = None
        if self.distance is not None and self.near is not None:
            numbers = np.flatnonzero(self.distance[self.plane][::every] <= BAND)
            near = devices.upload(torch.from_numpy(numbers), self.near.device)
        return replace(self, rows=self.rows[::every], numbers=self.numbers[::every], cell=cell, near=near)

    def within(self, pixels: slice) -> Int64[Tensor, " kept"]:
        """Which of these pixels pass."""
        return self.numbers[self._numbers(pixels)] - pixels.start

    def places(self, pixels: slice, every: int) -> slice:
        """Which of those `within` these pixels are among every so many of all that pass."""
        return slice(-self._numbers(pixels).start % every, None, every)

    def _numbers(self, pixels: slice) -> slice:
        return slice(*np.searchsorted(self.rows, [pixels.start, pixels.stop]).tolist())
