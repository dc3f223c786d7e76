"""Points that are made when they are asked for: decoded, resized and cropped one by one, in a small pool of threads."""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from bnuq.data.resizing import Fit, Pixels, Size, with_channels
from bnuq.errors import DataError
from bnuq.frozen import frozen

A = TypeVar("A")
B = TypeVar("B")
_IN_FLIGHT = 256  # items of one round of the pool, which bounds memory
OTHER_SIZE = "expected one size. Make it one: --resize 256 --crop 224, or resize and crop in [data]."


@frozen
class ItemSizes:
    """What a look at every item found: whether any has colour, the number of the first item of each size, and the size
    of each item."""

    colour: bool
    first_of_size: dict[Size, int]
    sizes: NDArray[np.int32]  # (items, 2)


class Source(Protocol):
    """Items by number. Where it is `parallel`, several threads may read at once; where it is `encoded`, an item's bytes
    stand for it in a digest."""

    @property
    def parallel(self) -> bool: ...
    @property
    def encoded(self) -> bool: ...
    def name(self, index: int, *, short: bool = False) -> str:
        """What the item is called in messages: in full, or below the set's folder."""
        ...

    def item(self, index: int, channels: int | None) -> NDArray[Any]:
        """The item, channel-first; a picture in a file with this number of channels (None: its own)."""
        ...

    def looked_at(self, index: int) -> tuple[bool, Size]:
        """Whether the item has colour, and its size; DataError for a damaged one."""
        ...

    def content(self, index: int) -> bytes:
        """The item's bytes, where it is encoded."""
        ...

    def listed(self, index: int) -> bytes:
        """What is known of the item without reading it."""
        ...


class MemoryBudget:
    """Bytes of memory that several sets share."""

    def __init__(self, size: int) -> None:
        self._left, self._lock = size, threading.Lock()

    def take(self, size: int) -> bool:
        """Whether so many bytes are left, which are then taken."""
        with self._lock:
            fits = size <= self._left
            self._left -= size * fits
        return fits


class ItemCache:
    """The items of one set that were decoded, as long as the budget lasts: the first ones stay, and every later pass
    decodes only the others."""

    def __init__(self, budget: MemoryBudget) -> None:
        self._budget, self._items = budget, dict[tuple[str, int], NDArray[Any]]()

    def item(self, key: tuple[str, int], make: Callable[[], NDArray[Any]]) -> NDArray[Any]:
        """The item of this key, made where it is not in the cache."""
        if (item := self._items.get(key)) is None:
            item = make()
            if self._budget.take(item.nbytes):
                item = item.copy(order="K")  # user code may use its array again
                item.flags.writeable = False
                self._items[key] = item
        return item


@frozen(eq=False)
class Decoded:
    """The items `rows` of a source, of one shape: that of the first one, `first_shape`, after `fit`.

    `surveyed` items were all looked at. Those in `cache` are not decoded again.
    """

    source: Source
    rows: NDArray[np.int64]
    first_shape: tuple[int, ...]
    dtype: np.dtype[Any]
    fit: Fit | None = None
    surveyed: bool = False
    cache: ItemCache | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        if self.fit is None:
            return (len(self.rows), *self.first_shape)
        channels, *size = self.first_shape
        return (len(self.rows), self.fit.channels or channels, *self.fit.size_of(*size))

    def __getitem__(self, indices: Any) -> NDArray[Any]:
        rows = self.rows[indices]
        return self._fitted(0, rows) if rows.ndim == 0 else self._stacked(self.shape[1:], rows, self._fitted)

    def changed(self, indices: Any, size: Size, change: Callable[[int, Pixels], Pixels]) -> NDArray[Any]:
        """The pictures at `indices` as they are in the source, each made of this `size` by `change`, which is also
        given its place among them."""
        channels = self.shape[1]

        def changed(position: int, index: Any) -> Pixels:
            item = self._cached(int(index), "stored", self._item)
            if len(item) > channels:  # colour in a set that began grey
                raise self._refusal(int(index), item)
            return change(position, with_channels(item, channels))

        return self._stacked((channels, *size), self.rows[indices], changed)

    def picked(self, indices: Any) -> Decoded:
        """These items alone."""
        return replace(self, rows=self.rows[indices])

    def survey(self) -> ItemSizes:
        """A look at every item; DataError for the first that is damaged."""
        sizes: dict[Size, int] = {}
        colour, all_sizes = False, np.empty((len(self.rows), 2), np.int32)
        looked_at = zip(self.rows, self._each(self.source.looked_at, self.rows), strict=True)
        for position, (index, (has_colour, size)) in enumerate(looked_at):
            colour |= has_colour
            sizes.setdefault(size, int(index))
            all_sizes[position] = size
        return ItemSizes(colour, sizes, all_sizes)

    def contents(self) -> Iterator[bytes]:
        """The bytes of each item, in order."""
        return self._each(self.source.content, self.rows)

    def listing(self) -> Iterator[bytes]:
        """What is known of each item without reading it, in order."""
        return (self.source.listed(int(index)) for index in self.rows)

    def _each(self, work: Callable[[int], A], rows: Iterable[Any]) -> Iterator[A]:
        return each(lambda index: work(int(index)), list(rows), parallel=self.source.parallel)

    def _stacked(
        self, shape: tuple[int, ...], rows: NDArray[np.int64], make: Callable[[int, Any], NDArray[Any]]
    ) -> NDArray[Any]:
        stacked = np.empty((len(rows), *shape), self.dtype)

        def put(position: int) -> None:
            stacked[position] = make(position, rows[position])

        for _ in each(put, range(len(rows)), parallel=self.source.parallel):
            pass
        return stacked

    def _cached(self, index: int, form: str, make: Callable[[int], NDArray[Any]]) -> NDArray[Any]:
        if self.cache is None:
            return make(index)
        return self.cache.item((f"{form} {self.shape[1:2]}", index), lambda: make(index))

    def _item(self, index: int) -> NDArray[Any]:
        channels = self.first_shape[0] if self.surveyed or self.first_shape[0] == 3 else None
        return self.source.item(index, (self.fit.channels if self.fit else None) or channels)

    def _fitted(self, _: int, index: Any) -> NDArray[Any]:
        return self._cached(int(index), "fitted", self._made)

    def _made(self, index: int) -> NDArray[Any]:
        item = self._item(index)
        values = item if self.fit is None else self.fit(item)
        if values.shape != self.shape[1:]:
            raise self._refusal(index, item)
        return values

    def _refusal(self, index: int, item: NDArray[Any]) -> DataError:
        shown = _shown(item, len(item) != self.first_shape[0])
        return DataError(f"{self.source.name(index)}: is {shown}, and {self._before(item, self.shape[1:])}")

    def _before(self, item: NDArray[Any], expected: tuple[int, ...]) -> str:
        if self.surveyed:
            return (
                f"was {sides(*self.first_shape[1:])} when it was looked at first. Run it again once nothing changes "
                "the images."
            )
        if item.ndim != len(expected):
            return f"others have shape {expected}; expected one shape."
        return f"{self.source.name(0, short=True)} is {sides(*self.first_shape[1:])}; {OTHER_SIZE}"


def _shown(item: NDArray[Any], channels: bool) -> str:
    text = f"{sides(*item.shape[1:])} pixels{f' of {len(item)} channels' * channels}"
    return text if item.ndim == 3 else f"of shape {item.shape}"


def sides(*size: int) -> str:
    return " × ".join(map(str, reversed(size)))  # width first, as viewers of pictures show it


@frozen(eq=False)
class InArray:
    """Pictures (or other `items`) in an array, channel-first: a source of pictures that are to be resized."""

    array: NDArray[Any]
    where: str
    items: str = "picture"
    parallel = True
    encoded = False

    def name(self, index: int, *, short: bool = False) -> str:
        return f"{self.items} {index}" if short else f"{self.where}: {self.items} {index}"

    def item(self, index: int, channels: int | None) -> NDArray[Any]:
        del channels
        return self.array[index]

    def looked_at(self, index: int) -> tuple[bool, Size]:
        _, height, width = self.array[index].shape
        return len(self.array[index]) > 1, (height, width)

    def content(self, index: int) -> bytes:
        return self.array[index].tobytes()

    def listed(self, index: int) -> bytes:
        return self.content(index)


def each(work: Callable[[A], B], items: Sequence[A], *, parallel: bool) -> Iterator[B]:
    """`work` of every item, in order, in the pool's threads where it may be `parallel`."""
    if not parallel or len(items) < 2:
        yield from map(work, items)
        return
    for start in range(0, len(items), _IN_FLIGHT):
        yield from _pool().map(work, items[start : start + _IN_FLIGHT])


@functools.cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max_workers=min(8, os.cpu_count() or 1), thread_name_prefix="decoding")


def ahead(
    makers: Iterable[Callable[[], A]], within: Callable[[], AbstractContextManager[object]] = nullcontext
) -> Iterator[A]:
    """What the makers make, in order; the next one is made in a thread, `within` a context, while the current one is in
    use."""

    def made(make: Callable[[], A]) -> A:
        with within():
            return make()

    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="prefetch") as thread:
        following = None
        for make in makers:
            current, following = following, thread.submit(made, make)
            if current is not None:
                yield current.result()
        if following is not None:
            yield following.result()
