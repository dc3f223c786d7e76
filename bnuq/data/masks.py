"""Masks, a class number for each pixel: read when they are asked for, like the pictures that they belong to."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bnuq.data.decoded import Decoded, InArray, ItemCache, ItemSizes, MemoryBudget
from bnuq.data.resizing import Fit
from bnuq.frozen import frozen

INT64 = np.dtype(np.int64)


@frozen(eq=False)
class Masks:
    """The masks of points, in order: shape (n, H, W), int64. Indexing by rows reads these rows, and nothing is kept but
    by `keeping`. `numbers` are those that the stored classes have here; values beyond are left as they are."""

    items: Decoded
    numbers: NDArray[np.int64] | None = None
    ndim = 3
    dtype = INT64

    @property
    def shape(self) -> tuple[int, int, int]:
        n, _, height, width = self.items.shape
        return n, height, width

    @property
    def encoded(self) -> bool:
        """Whether they are in files, whose bytes stand for them in a digest."""
        return self.items.source.encoded

    @property
    def in_memory(self) -> bool:
        """Whether they are in an array."""
        return isinstance(self.items.source, InArray)

    @property
    def stored(self) -> Masks:
        """These masks as they are stored, not resized."""
        return replace(self, items=replace(self.items, fit=None))

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, indices: Any) -> NDArray[np.int64]:
        values = self.items[indices][..., 0, :, :].astype(np.int64, copy=False)
        if self.numbers is None:
            return values
        named = (values >= 0) & (values < len(self.numbers))
        return np.where(named, self.numbers[np.where(named, values, 0)], values)

    def renumbered(self, numbers: NDArray[np.int64]) -> Masks:
        """These masks with other numbers for their classes."""
        return replace(self, numbers=numbers)

    def name(self, row: int) -> str:
        """What the mask of this row is called in messages: its file, or its number in an array."""
        return self.items.source.name(int(self.items.rows[row]))

    def picked(self, indices: Any) -> Masks:
        """The masks of these rows alone."""
        return replace(self, items=self.items.picked(indices))

    def fitted(self, fit: Fit, ignore: int) -> Masks:
        """These masks in the geometry of pictures that go through `fit`; `ignore` pads them."""
        nearest = replace(fit, interpolation="nearest", channels=None, fill=ignore)
        return replace(self, items=replace(self.items, fit=nearest))

    def keeping(self, budget: MemoryBudget) -> Masks:
        """These masks, of which those in files stay in memory while `budget` lasts."""
        if self.in_memory:
            return self
        return replace(self, items=replace(self.items, cache=ItemCache(budget)))

    def survey(self) -> ItemSizes:
        """A look at every mask; DataError for the first that is damaged, or in a form that masks do not have."""
        return self.items.survey()

    def digested(self, *, listed: bool) -> Iterator[bytes]:
        """What a digest covers of masks that are read as needed: what they mean, then their listing or their
        bytes."""
        yield getattr(self.items.source, "meaning", b"")
        if self.numbers is not None:
            yield self.numbers.tobytes()
        if listed:
            yield from self.items.listing()
            return
        for content in self.items.contents():
            yield len(content).to_bytes(8, "little") + content


def masks_of_array(values: NDArray[Any], where: str) -> Masks:
    """The masks in an array (n, H, W) of whole numbers."""
    if values.dtype.kind == "b":
        values = values.view(np.uint8)
    elif values.dtype == np.uint64 or not values.dtype.isnative:
        values = values.astype(np.int64)
    source = InArray(values[:, None], where, "mask")
    return Masks(Decoded(source, np.arange(len(values)), (1, *values.shape[1:]), INT64))
