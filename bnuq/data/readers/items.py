"""Points from the user's own code: a torch Dataset, whose items are read one at a time, or an iterable of batches."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bnuq.data.common_layout import points_of
from bnuq.data.decoded import Decoded
from bnuq.data.masks import INT64, Masks
from bnuq.data.points import Contents, Points, sample_of
from bnuq.data.readers.common import TARGETS
from bnuq.data.resizing import Size
from bnuq.errors import DataError
from bnuq.findings import note
from bnuq.frozen import frozen
from bnuq.packing import Layout, difference, pack
from bnuq.trust import running

_KEPT = 2**30  # bytes of a Dataset that is read whole and kept


@frozen(eq=False)
class Piece:
    """The inputs and the labels of a point, of a batch or of a whole set; several inputs are packed, as `layout` says.
    `unused` counts the parts of a tuple that are neither, and `dropped` are the entries of a dictionary that are."""

    inputs: NDArray[Any]
    label: NDArray[Any] | None
    layout: Layout | None = None
    unused: int = 0
    dropped: tuple[str, ...] = ()


def contents_of(pieces: Sequence[Piece], inputs: NDArray[Any], labels: NDArray[Any] | None) -> Contents:
    findings = (note("parts-unused", parts=pieces[0].unused),) if pieces[0].unused else ()
    findings += (note("entries-unused", names=list(pieces[0].dropped)),) if pieces[0].dropped else ()
    return Contents(inputs, labels, findings=findings, layout=pieces[0].layout)


def is_mask(label: NDArray[Any]) -> bool:
    """Whether this is a mask (H, W) or (1, H, W) of whole numbers."""
    whole = label.dtype.kind in "iub" or (label.dtype.kind == "f" and bool(np.all(label == np.floor(label))))
    return whole and (label.ndim == 2 or (label.ndim == 3 and len(label) == 1))


def whole_arrays(spec: str, data: Any) -> Piece | None:
    """The set that is given as whole arrays: the inputs alone; in a dictionary, as x or by their names; or as a tuple
    of arrays of one length, the last of which are the labels. A tuple is never batches of inputs: its labels would be
    taken for inputs without a word. DataError where its arrays have several lengths."""
    tensors = _tensors_of_set(data)
    data = data if tensors is None else tensors[0] if len(tensors) == 1 else tensors
    if isinstance(data, np.ndarray) or hasattr(data, "detach") or hasattr(data, "iloc"):  # of numpy, torch, pandas
        return piece_of(spec, data, single=False)
    if isinstance(data, Mapping):
        are_parts = all(_axes(part) or isinstance(part, Mapping) for part in data.values())
        is_named = are_parts and all(isinstance(name, str) for name in data)
        return piece_of(spec, data, single=False) if is_named else None
    if not isinstance(data, tuple) or len(data) < 2 or not all(map(_is_array, data[1:])):
        return None
    if not hasattr(inputs := data[0], "ndim"):
        label = as_array(data[1])
        is_set = len(data) == 2 and label.ndim >= 1 and _are_several(inputs, label, single=False)
        return piece_of(spec, data, single=False) if is_set else None
    lengths = [len(part) if _axes(part) else 1 for part in data]
    if len(set(lengths)) > 1:
        raise DataError(
            f"{spec}: a tuple of arrays is (inputs, targets), and these have {', '.join(map(str, lengths))} examples; "
            "expected as many of each. Batches of inputs alone are a list or an iterator."
        )
    return piece_of(spec, data, single=False)


def _is_array(value: Any) -> bool:
    """Whether this is an array, or a list of numbers or texts, nested or not."""
    if not isinstance(value, list):
        return hasattr(value, "ndim")
    first = next(iter(value), None)
    return _is_array(first) if isinstance(first, list) else isinstance(first, int | float | str)


def _tensors_of_set(data: Any) -> tuple[Any, ...] | None:
    """The tensors of a TensorDataset, and arrays of a part of one; None of any other Dataset."""
    kind = f"{type(data).__module__}.{type(data).__qualname__}".removeprefix("torch.utils.data.dataset.")
    if kind == "TensorDataset":
        return tuple(data.tensors)
    if kind == "Subset" and (tensors := _tensors_of_set(data.dataset)) is not None:
        return tuple(as_array(tensor)[as_array(data.indices)] for tensor in tensors)
    return None


def gives_single_points(data: Any) -> bool:
    """Whether items are single points rather than batches; checked without importing torch."""
    if isinstance(data, Sequence) and data:  # a list of points, with a label each
        _, label = _of_dictionary(data[0]) if isinstance(data[0], Mapping) else (None, None)
        if isinstance(data[0], tuple | list) and len(data[0]) >= 2:
            label = data[0][-1]
        return label is not None and as_array(label).ndim == 0
    if any(kind.__name__ == "IterableDataset" for kind in type(data).__mro__):
        return True
    return hasattr(data, "__getitem__") and hasattr(data, "__len__") and not isinstance(data, Sequence)


def piece_of(spec: str, value: Any, *, single: bool, first: Piece | None = None) -> Piece:
    """The inputs and the labels in what was given: a point where it is `single`, otherwise a batch, like the `first`
    one. DataError for several inputs that are not those of the first."""
    inputs, label, unused = _split(value, single)
    dropped: tuple[str, ...] = ()
    if isinstance(inputs, Mapping):
        dropped = tuple(name for name, part in inputs.items() if _is_no_input(name, part, single))
        inputs = {name: part for name, part in inputs.items() if name not in dropped}
        inputs = next(iter(inputs.values())) if isinstance(value, Mapping) and len(inputs) == 1 and dropped else inputs
    label = None if label is None else as_array(label)
    plain = first is not None and first.layout is None and not isinstance(inputs, Mapping)
    if plain or not _are_several(inputs, label, single=single):
        piece = Piece(as_array(inputs), label, None, unused, dropped)
    else:
        named = isinstance(inputs, Mapping)
        arrays = [
            _part_as_array(part)[None] if single else _part_as_array(part)
            for part in (inputs.values() if named else inputs)
        ]
        rows, layout = pack(dict(zip(inputs, arrays, strict=True)) if named else arrays, spec)
        piece = Piece(rows[0] if single else rows, label, layout, unused, dropped)
    if first is not None:
        check_same(spec, piece, first.layout)
    return piece


def check_same(spec: str, piece: Piece, layout: Layout | None) -> None:
    if wrong := difference(piece.layout, layout):
        raise DataError(f"{spec}: gives {wrong}; expected the same inputs throughout. Pad sequences to one length.")


def _split(value: Any, single: bool) -> tuple[Any, Any, int]:
    """(inputs, label or None, parts that are neither) of a point or a batch: of three parts or more, the last one is
    the label where one before it, beside the first, holds more than a number for each point."""
    if isinstance(value, Mapping):
        return *_of_dictionary(value), 0
    if not isinstance(value, tuple | list) or not value:
        return value, None, 0
    if len(value) > 2 and any(_axes(part) > (not single) for part in value[1:-1]):
        return tuple(map(_part_as_array, value[:-1])), value[-1], 0
    inputs, *others = list(value)
    return inputs, others[0] if others else None, max(0, len(others) - 1)


def _is_no_input(name: Any, part: Any, single: bool) -> bool:
    """Whether an entry of a dictionary is text, or numbers the points, and so is not an input of a network."""
    first = part
    while isinstance(first, list | tuple) and first:
        first = first[0]
    if isinstance(first, str | bytes) or (isinstance(part, np.ndarray) and part.dtype.kind in "SU"):
        return True
    return bool(re.search(r"(^|_)(id|idx|index)$", str(name).lower())) and _axes(part) <= (not single)


def _of_dictionary(value: Mapping[Any, Any]) -> tuple[Any, Any]:
    """(inputs, label or None) of a dictionary; one entry beside the label is the input itself."""
    key = next((name for name in TARGETS if name in value), None)
    inputs = {name: part for name, part in value.items() if name != key}
    return next(iter(inputs.values())) if len(inputs) == 1 else inputs, None if key is None else value[key]


def _are_several(inputs: Any, label: NDArray[Any] | None, *, single: bool) -> bool:
    """Whether these are several inputs: a dictionary, or arrays in a tuple or a list; of a batch, each as long as the
    labels are."""
    if isinstance(inputs, Mapping):
        return True
    if not isinstance(inputs, tuple | list) or len(inputs) < 2:
        return False
    axes = [0 if isinstance(part, tuple | list) else _axes(part) for part in inputs]  # lists are one nested array
    if single or label is None or label.ndim == 0:
        return any(axes) if single else all(axes)
    return all(axes) and all(len(part) == len(label) for part in inputs)


def _axes(value: Any) -> int:
    """The number of axes of an array, of nested lists, or of a picture."""
    if isinstance(value, tuple | list):
        return 1 + _axes(next(iter(value), None))
    return getattr(value, "ndim", 2 if hasattr(value, "__array_interface__") else 0)


def _part_as_array(value: Any) -> NDArray[Any]:
    """`value` as an array; of objects where it is lists of several lengths."""
    try:
        return as_array(value)
    except ValueError:
        return np.array([None], dtype=object)


def as_array(value: Any) -> NDArray[Any]:
    if hasattr(value, "detach"):
        value = value.detach().cpu()
        value = value.float() if str(value.dtype) == "torch.bfloat16" else value
        return value.numpy()
    return np.asarray(value)


def concatenated(spec: str, parts: Sequence[NDArray[Any]], single: bool) -> NDArray[Any]:
    shapes = {part.shape if single else part.shape[1:] for part in parts}
    if len(shapes) > 1 or (not single and any(part.ndim == 0 for part in parts)):
        shown = " and ".join(str(shape) for shape in sorted(shapes)[:2])
        raise DataError(f"{spec}: gives examples of different shapes, {shown or 'or none'}; expected one shape.")
    return np.stack(parts) if single else np.concatenate(parts)


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
    with running(spec, "reading its examples"):
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
        raise DataError(f"{spec}: gave no examples; expected at least one.")
    labels = [piece.label for piece in pieces if piece.label is not None]
    if labels and len(labels) < len(pieces):
        raise DataError(f"{spec}: gives targets with some examples and not with others.")
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
                f"{spec}: has given {points:,} examples ({size / 1e9:.2g} GB) and does not end within {why}. "
                "Let it end, or give fewer examples."
            )
    return pieces
