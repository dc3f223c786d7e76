"""Points from the user's own code: a torch Dataset, whose items are read one at a time, or an iterable of batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
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
    concatenated,
    contents_of,
    gives_single_points,
    is_mask,
    piece_of,
    whole_arrays,
)
from bnuq.data.resizing import Size
from bnuq.errors import DataError
from bnuq.findings import note
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


_MOST = 20_000_000  # points, or batches, that are taken one by one
_NESTED = 4  # Datasets within Datasets: a DataLoader of a part of one
_OBJECT = 200  # bytes of an array beside its numbers


def read_factory(
    spec: str, factory: Callable[[], Any], *, free_bytes: int | None = None, whole: bool = True
) -> Contents:
    """The points of what the factory gives, see `read_object`."""
    contents = read_object(spec, factory(), free_bytes=free_bytes, whole=whole)
    return replace(contents, findings=(note("read-from-factory", factory=spec), *contents.findings))


def read_object(spec: str, data: Any, *, free_bytes: int | None = None, whole: bool = True) -> Contents:
    """The points of `data`, see `_read_object`; a Dataset of class folders also names the classes."""
    contents = _read_object(spec, data, free_bytes=free_bytes, whole=whole)
    with running(spec, "reading the names of its classes"):
        names = _class_folders(data)
    if names is None or contents.classes is not None or isinstance(contents.targets, Masks):
        return contents
    return replace(contents, classes=names, classes_sorted=list(names) == sorted(names))


def _class_folders(data: Any) -> tuple[str, ...] | None:
    """The classes of torchvision's ImageFolder and its like, of a part of one, or of its DataLoader, where nothing
    changes the numbers that it gives them."""
    for _ in range(_NESTED):
        data = getattr(data, "dataset", data)
    names, numbers = getattr(data, "classes", None), getattr(data, "class_to_idx", None)
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        return None
    changed = getattr(data, "target_transform", None) is not None
    is_of_folders = hasattr(data, "samples") and numbers == {name: number for number, name in enumerate(names)}
    return tuple(names) if is_of_folders and not changed else None


def _read_object(spec: str, data: Any, *, free_bytes: int | None = None, whole: bool = True) -> Contents:
    """All points that a Dataset holds, or the batches of an iterable joined, or arrays; tensors become arrays. A tuple
    of arrays is (inputs, targets); batches of inputs alone are a list or an iterator.

    Inputs are one array, or several: a dictionary, a tuple, or all parts but the last of (a, b, label). A dictionary
    may hold the label too; one other entry is the input itself.
    The items of a Dataset are read as they are needed where it is not to be read `whole`, or is large. DataError where
    all others take more than `free_bytes` bytes while they are joined, or never end.
    """
    with running(spec, "reading its points"):
        if (whole_set := whole_arrays(spec, data)) is not None:
            return contents_of([whole_set], whole_set.inputs, whole_set.label)
        single = gives_single_points(data)
        if single and hasattr(data, "__getitem__") and hasattr(data, "__len__"):
            read = []
            if not isinstance(data, Sequence) and len(data):
                read = [DatasetItems(spec, data, None).raw(0)]
                if (items := items_of(spec, data, read[0], whole)) is not None:
                    return items
            others = (data[index] for index in range(len(read), len(data)))
            pieces = _pieces_of(spec, others, single, free_bytes, read)
        elif isinstance(data, Iterable):
            pieces = _pieces_of(spec, data, single, free_bytes)
        else:
            raise DataError(
                f"{spec}: gave a {type(data).__name__}; expected a torch Dataset or an iterable of batches, "
                "(x, y) or x alone."
            )
    if not pieces:
        raise DataError(f"{spec}: gave no points; expected at least one.")
    labels = [piece.label for piece in pieces if piece.label is not None]
    if labels and len(labels) < len(pieces):
        raise DataError(f"{spec}: gives targets with some points and not with others.")
    inputs = concatenated(spec, [piece.inputs for piece in pieces], single)
    if isinstance(data, list) and len(data) == 2 and not labels and len({len(part) for part in data}) == 1:
        pair = note("list-is-batches", points=len(data[0]))
        return replace(contents_of(pieces, inputs, None), findings=(pair,))
    return contents_of(pieces, inputs, concatenated(spec, labels, single) if labels else None)


def _pieces_of(
    spec: str, data: Iterable[Any], single: bool, free_bytes: int | None, read: Sequence[Piece] = ()
) -> list[Piece]:
    pieces = [*read]
    points = size = 0
    for value in data:
        piece = piece_of(spec, value, single=single, first=pieces[0] if pieces else None)
        pieces.append(piece)
        points += 1 if single or piece.inputs.ndim == 0 else len(piece.inputs)
        size += sum(part.nbytes + _OBJECT for part in (piece.inputs, piece.label) if part is not None)
        if len(pieces) >= _MOST or (free_bytes is not None and 2 * size > free_bytes):
            why = f"{_MOST:,} pieces" if len(pieces) >= _MOST else "the free memory"
            raise DataError(
                f"{spec}: has given {points:,} points ({size / 1e9:.2g} GB) and gives more, beyond {why}. Does it ever "
                "end? Let it give a part of them."
            )
    return pieces
