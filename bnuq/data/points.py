"""Points: the inputs of a set with what is known of them, all in one layout whatever file they came in."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import field, replace
from functools import cached_property
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from bnuq.data.decoded import Decoded, InArray, ItemCache, MemoryBudget
from bnuq.data.masks import Masks
from bnuq.data.resizing import Pixels, Size
from bnuq.files.mapped import is_mapped
from bnuq.findings import Finding
from bnuq.frozen import frozen
from bnuq.packing import Layout

_BLOCK = 64 * 2**20  # bytes looked at in one go
_SMALLEST = 8  # pixels of a side: what is smaller is no picture
_SAMPLE = 256  # items of a Dataset, or files
Targets = Any  # an array or None; or `Masks`, which `Points.masks` gives by their type


class Inputs(Protocol):
    """Points in a row, channel-first: an array, or pictures that are decoded when they are asked for."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> np.dtype[Any]: ...
    def __getitem__(self, indices: Any, /) -> NDArray[Any]: ...


@runtime_checkable
class Computed(Protocol):
    """Points that are computed from others when they are asked for, and known by what they are computed from."""

    @property
    def sha256(self) -> str: ...


@frozen
class Contents:
    """What a reader found, as it lay in the file; `classes` names the labels from 0 where the file does, and
    `classes_sorted` where it has only names, which are numbered in sorted order.

    `target_by_position`: the last column of a table was taken as the target, not chosen by its name.
    `index` are the points' numbers in the source, where they are not all of it; `names` what the source calls them.
    Several inputs are packed, as `layout` says.
    """

    inputs: Inputs
    targets: Targets = None
    group: NDArray[Any] | None = None
    classes: tuple[str, ...] | None = None
    findings: tuple[Finding, ...] = ()
    classes_sorted: bool = False
    target_by_position: bool = False
    index: NDArray[np.int64] | None = None
    names: Sequence[str] | None = None
    layout: Layout | None = None


@frozen(eq=False)
class Points:
    """The points of one set, in order.

    `targets` are labels (int64: (n,), or `Masks` (n, H, W) for segmentation) or floats (n, Q), or None where there are
    none; `classes` are their names, numbered by the reader where `classes_sorted`, as in `Contents`.
    `listed` points are not read whole: their digest is that of the listing. `group` tells which points are not
    independent of each other, by number; `group_names` are what the file has for these numbers. `findings` say what was
    found out while reading; `target_by_position` is that of `Contents`. `rows` are the points' numbers in the source
    (None: 0, 1, 2, …), and `names` their files or ids, where they have any. Points of several inputs are packed, as
    `layout` says. `all_targets` are those of the whole set where these points are a sample of it.
    """

    name: str
    reference: str
    inputs: Inputs = field(repr=False)
    targets: Targets = field(default=None, repr=False)
    group: NDArray[np.int64] | None = field(default=None, repr=False)
    classes: tuple[str, ...] | None = field(default=None, repr=False)
    findings: tuple[Finding, ...] = ()
    classes_sorted: bool = False
    group_names: tuple[str, ...] = field(default=(), repr=False)
    target_by_position: bool = field(default=False, repr=False)
    listed: bool = False
    rows: NDArray[np.int64] | None = field(default=None, repr=False)
    names: NDArray[np.object_] | None = field(default=None, repr=False)
    layout: Layout | None = None
    all_targets: Targets = field(default=None, repr=False)

    def __len__(self) -> int:
        return self.inputs.shape[0]

    @property
    def point_shape(self) -> tuple[int, ...]:
        """The shape of one point: (channels, height, width) of a picture, (features,) of a row."""
        return tuple(self.inputs.shape[1:])

    @property
    def masks(self) -> Masks | None:
        """The targets, where they are masks."""
        return self.targets if isinstance(self.targets, Masks) else None

    @property
    def form(self) -> str:
        """The shape of one point, or its inputs, for a message."""
        return str(self.layout or self.point_shape)

    @property
    def index(self) -> NDArray[np.int64]:
        """Each point's number in the source, from 0, also of a subset."""
        return np.arange(len(self)) if self.rows is None else self.rows

    @property
    def group_of_point(self) -> NDArray[Any]:
        """The name of each point's group, of points that have groups; its number where it has no name."""
        assert self.group is not None
        return np.array(self.group_names)[self.group] if self.group_names else self.group.astype(str)

    @property
    def is_user_code(self) -> bool:
        """Whether reading them runs the user's code, which may not be for threads: a Dataset's, or the network's."""
        if isinstance(self.inputs, Decoded):
            return not self.inputs.source.parallel
        return not isinstance(self.inputs, np.ndarray)

    @property
    def read_in_threads(self) -> bool:
        """Whether reading them takes time that a thread can use: pictures in files, resized ones, and mapped arrays."""
        inputs = self.inputs
        return inputs.source.parallel if isinstance(inputs, Decoded) else is_mapped(inputs)

    @cached_property
    def sha256(self) -> str:
        """The SHA-256 of inputs and targets, the same whatever container and layout held the arrays.

        Pictures and masks in files count by their bytes: decoders differ in the last bit. For `listed` points,
        the names and sizes of their files count, or their numbers and a `sample` of them.
        """
        digest, inputs = hashlib.sha256(str(self.layout or "").encode()), self.inputs
        if isinstance(inputs, Computed):
            return inputs.sha256
        if isinstance(inputs, Decoded) and isinstance(inputs.source, InArray):
            inputs = inputs.source.array[inputs.rows]
        if not isinstance(inputs, Decoded):
            _update(digest, inputs)
        elif self.listed:
            if not inputs.source.encoded:
                digest.update(f"{inputs.dtype.str}{inputs.shape}".encode())
                for content in inputs.picked(sample_of(len(self))).contents():
                    digest.update(content)
            for line in inputs.listing():
                digest.update(line)
        elif inputs.source.encoded:
            for content in inputs.contents():
                digest.update(len(content).to_bytes(8, "little") + content)
        else:
            _update(digest, inputs)
        if (masks := self.masks) is None:
            if self.targets is not None:
                _update(digest, self.targets)
        elif masks.encoded or (self.listed and not masks.in_memory):
            for part in masks.digested(listed=self.listed):
                digest.update(part)
        else:
            _update(digest, masks.stored)
        return digest.hexdigest()

    @cached_property
    def identity(self) -> str:
        """The SHA-256 of all that is known of the points: their groups, names, classes and numbers too, and, where they
        are `listed`, the bytes of a `sample` of the files."""
        digest = hashlib.sha256(self.sha256.encode())
        if self.listed and isinstance(self.inputs, Decoded) and self.inputs.source.encoded:
            for content in self.inputs.picked(sample_of(len(self))).contents():
                digest.update(content)
        for values in (self.group_names, self.classes, self.names):
            digest.update(json.dumps(None if values is None else list(map(str, values))).encode())
        for numbers in (self.index, np.zeros(0) if self.group is None else self.group):
            _update(digest, np.asarray(numbers))
        return digest.hexdigest()

    @property
    def is_picture(self) -> bool:
        """Whether points have the shape of pictures that can be shown."""
        shape = self.point_shape
        return self.layout is None and len(shape) == 3 and shape[0] in (1, 3) and min(shape[1:]) >= _SMALLEST

    def raw(self, indices: Any) -> NDArray[Any]:
        """The points at `indices` before normalisation: float32 (float64 where the data are), uint8 scaled to 0–1."""
        return _scaled(self.inputs[indices])

    def raw_blocks(self) -> Iterator[NDArray[Any]]:
        """All points as `raw` gives them, block by block."""
        return (_scaled(block) for _, block in blocks(self.inputs))

    def changed(self, indices: Any, size: Size, change: Callable[[int, Pixels], Pixels]) -> NDArray[Any]:
        """The pictures at `indices` as they are stored, not resized, each made of this `size` by `change`, which is
        also given its place among them; then as `raw`."""
        inputs = self.inputs
        if not isinstance(inputs, Decoded):
            array = inputs[indices]
            indices = np.arange(len(array))
            inputs = Decoded(InArray(array, self.reference), indices, array.shape[1:], array.dtype)
        return _scaled(inputs.changed(indices, size, change))

    def keeping(self, budget: MemoryBudget) -> Points:
        """These points, of which those that are decoded or made by user code stay in memory while `budget` lasts."""
        inputs, masks = self.inputs, self.masks
        if isinstance(inputs, Decoded) and not isinstance(inputs.source, InArray):
            inputs = replace(inputs, cache=ItemCache(budget))
        return replace(self, inputs=inputs, targets=self.targets if masks is None else masks.keeping(budget))

    def subset(self, indices: Any) -> Points:
        """These points alone, in the order of `indices`."""
        rows = np.asarray(indices)
        return replace(
            self,
            inputs=self.inputs.picked(rows) if isinstance(self.inputs, Decoded) else self.inputs[rows],
            targets=_rows(self.targets, rows) if self.masks is None else self.masks.picked(rows),
            group=_rows(self.group, rows),
            rows=self.index[rows],
            names=_rows(self.names, rows),
        )


def sample_of(count: int) -> NDArray[np.int64]:
    """Some of so many items that stand for all: all of a few, else 256 at random, always the same."""
    if count <= _SAMPLE:
        return np.arange(count)
    return np.sort(np.random.default_rng(count).choice(count, _SAMPLE, replace=False))


def _rows(values: Any, rows: NDArray[Any]) -> Any:
    return None if values is None else values[rows]


def _scaled(values: NDArray[Any]) -> NDArray[Any]:
    if values.dtype == np.uint8:
        return np.divide(values, np.float32(255), dtype=np.float32, order="C")
    return np.ascontiguousarray(values, dtype=np.float64 if values.dtype == np.float64 else np.float32)


def _update(digest: Any, values: Inputs) -> None:
    digest.update(f"{values.dtype.str}{tuple(values.shape)}".encode())
    for _, block in blocks(values):
        digest.update(np.ascontiguousarray(block).data)


def blocks(values: Inputs) -> Iterator[tuple[int, NDArray[Any]]]:
    n = values.shape[0]
    rows = max(1, _BLOCK * n // max(1, int(np.prod(values.shape)) * values.dtype.itemsize))
    for start in range(0, n, rows):
        yield start, values[start : start + rows]
