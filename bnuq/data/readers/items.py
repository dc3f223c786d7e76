"""The items of a Dataset of the user's, read one at a time as they are needed."""

from __future__ import annotations

from dataclasses import field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bnuq.data.common_layout import points_of
from bnuq.data.decoded import Decoded
from bnuq.data.masks import INT64, Masks
from bnuq.data.points import Contents, Points, sample_of
from bnuq.data.readers.pieces import (
    Piece,
    as_array,
    check_same,
    contents_of,
    is_mask,
    piece_of,
)
from bnuq.data.resizing import Size
from bnuq.errors import DataError
from bnuq.frozen import frozen
from bnuq.packing import Layout
from bnuq.trust import running

_KEPT = 2**30  # bytes of a Dataset that is read whole and kept


@frozen(eq=False)
class DatasetItems:
    """The items of a Dataset, one at a time. Random transforms of an item get the same random numbers whenever it is
    read, whatever was read before."""

    spec: str
    data: Any
    known_labels: NDArray[Any] | None
    layout: Layout | None = None  # of every item, where it is known
    first: Piece | None = None  # item 0, where it was read already
    labels_read: dict[int, NDArray[Any]] = field(default_factory=dict, repr=False)  # of items, without masks
    parallel = False  # it is the user's code
    encoded = False

    def name(self, index: int, *, short: bool = False) -> str:
        return f"item {index}" if short else f"{self.spec}: item {index}"

    def item(self, index: int, channels: int | None) -> NDArray[Any]:
        del channels
        return self.parts(index)[0].inputs[0]

    def parts(self, index: int) -> tuple[Points, NDArray[Any] | None]:
        """The item as a set of one point in the common layout, and its label (None: it has none)."""
        piece = self.raw(index)
        if piece.label is not None and piece.label.ndim == 0:
            self.labels_read[index] = piece.label.copy()
        contents = contents_of([piece], piece.inputs[None], None)
        return points_of(contents, name="item", reference=self.name(index)), piece.label

    def raw(self, index: int) -> Piece:
        """The item as it is given."""
        from bnuq.randomness import generators_seeded  # which imports torch

        if index == 0 and self.first is not None:
            return self.first
        with running(self.spec, f"reading item {index}"), generators_seeded(index):
            piece = piece_of(self.name(index), self.data[index], single=True)
        if self.layout is not None:
            check_same(self.name(index), piece, self.layout)
        return piece

    def labels(self, rows: NDArray[np.int64]) -> NDArray[Any] | None:
        """The labels of these items; they are read where the Dataset has no list of them."""
        if self.known_labels is not None:
            return self.known_labels[rows]
        labels_read = self.labels_read
        read = (labels_read[index] if index in labels_read else self.parts(index)[1] for index in map(int, rows))
        labels = [label for label in read if label is not None]
        return np.stack(labels) if len(labels) == len(rows) else None

    def looked_at(self, index: int) -> tuple[bool, Size]:
        channels, height, width = self.item(index, None).shape
        return channels > 1, (height, width)

    def content(self, index: int) -> bytes:
        point, label = self.parts(index)
        return np.asarray(point.inputs[0]).tobytes() + (b"" if label is None else label.tobytes())

    def listed(self, index: int) -> bytes:
        return f"{index}\n".encode()


@frozen(eq=False)
class MasksOfItems:
    """The masks that are the labels of a Dataset's items, each of which is read with its item."""

    items: DatasetItems
    parallel = False
    encoded = False

    def name(self, index: int, *, short: bool = False) -> str:
        return self.items.name(index, short=short)

    def item(self, index: int, channels: int | None) -> NDArray[Any]:
        del channels
        label = self.items.raw(index).label
        if label is None or not is_mask(label):
            raise DataError(f"{self.name(index)}: has no mask (H, W) of whole numbers, and the first item has one.")
        return label.reshape(1, *label.shape[-2:]).astype(np.int64)

    def looked_at(self, index: int) -> tuple[bool, Size]:
        _, height, width = self.item(index, None).shape
        return False, (height, width)

    def content(self, index: int) -> bytes:
        return self.item(index, None).tobytes()

    def listed(self, index: int) -> bytes:
        return self.items.listed(index)


def items_of(spec: str, data: Any, raw: Piece, whole: bool) -> Contents | None:
    """The items of a Dataset, to be read as they are needed; None where it is small and read `whole`. `raw` is the
    first."""
    count = len(data)
    label = None if raw.label is None else raw.label.copy()  # user code may use its arrays again
    raw = replace(raw, inputs=raw.inputs.copy(), label=label)
    common, label = DatasetItems(spec, data, None, None, raw).parts(0)
    first = common.inputs[:][0]
    if whole and count * first.nbytes <= _KEPT:
        return None
    items = DatasetItems(spec, data, None, common.layout, raw)
    if label is not None:
        items = replace(items, known_labels=_listed_labels(items))
    inputs = Decoded(items, np.arange(count), first.shape, first.dtype)
    labels: Any = items.known_labels
    if label is not None and labels is None and is_mask(label):
        masks = Decoded(MasksOfItems(items), inputs.rows, (1, *label.shape[-2:]), INT64)
        labels = Masks(masks)
    elif whole:
        labels = items.labels(inputs.rows)
    return Contents(inputs, labels, findings=common.findings, layout=common.layout)


def _listed_labels(items: DatasetItems) -> NDArray[Any] | None:
    """The labels of all items where the Dataset has a list of them, which must be those of a sample of the items: these
    may give others, corrected or made by a transform."""
    data, layout = items.data, items.layout
    subset, position = getattr(data, "indices", None), 1 if layout is None else len(layout.inputs)
    if subset is not None and hasattr(data, "dataset"):
        labels = _listed_labels_of(data.dataset, position)
        labels = None if labels is None else labels[as_array(subset)]
    else:
        labels = _listed_labels_of(data, position)
    if labels is None or len(labels) != len(data):
        return None
    read = ((items.raw(index).label, labels[index]) for index in (0, *sample_of(len(data)).tolist()))
    return labels if all(given is not None and np.array_equal(given, listed) for given, listed in read) else None


def _listed_labels_of(data: Any, position: int) -> NDArray[Any] | None:
    tensors = getattr(data, "tensors", ())
    candidates = [*tensors[position : position + 1], *(getattr(data, name, None) for name in ("targets", "labels"))]
    if getattr(data, "target_transform", None) is not None:
        return None
    arrays = (as_array(labels) for labels in candidates if labels is not None and not callable(labels))
    return next((labels for labels in arrays if labels.ndim and labels.dtype.kind in "fiub"), None)
