"""Points from the user's own code: a torch Dataset, or an iterable of batches."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bnuq.data.decoded import Decoded
from bnuq.data.points import Contents, Points, points_of
from bnuq.data.resizing import Size
from bnuq.errors import DataError
from bnuq.findings import note
from bnuq.trust import running

_MOST = 20_000_000  # points, or batches, that are taken one by one
_KEPT = 2**30  # bytes of a Dataset that is read whole and kept
_OBJECT = 200  # bytes of an array beside its numbers


def read_factory(spec: str, factory: Callable[[], Any], *, room: int | None = None, whole: bool = True) -> Contents:
    """The points of what the factory gives, see `read_object`."""
    contents = read_object(spec, factory(), room=room, whole=whole)
    return replace(contents, findings=(note("read-from-factory", factory=spec), *contents.findings))


def read_object(spec: str, data: Any, *, room: int | None = None, whole: bool = True) -> Contents:
    """All points that a Dataset holds, or the batches of an iterable joined, or arrays; tensors become arrays.

    The items of a Dataset are read as they are needed where it is not to be read `whole`, or is large. DataError where
    all others take more than `room` bytes while they are joined, or never end.
    """
    with running(spec, "reading its points"):
        if (arrays := _arrays(data)) is not None:
            return Contents(arrays[0], arrays[1] if len(arrays) > 1 else None)
        single = _gives_single_points(data)
        if single and hasattr(data, "__getitem__") and hasattr(data, "__len__"):
            read = []
            if not isinstance(data, Sequence) and len(data):
                read = [Items(spec, data, None).raw(0)]
                if (items := _items(spec, data, read[0], whole)) is not None:
                    return items
            others = (data[index] for index in range(len(read), len(data)))
            pieces = _pieces_of(spec, itertools.chain(read, others), single, room)
        elif isinstance(data, Iterable):
            pieces = _pieces_of(spec, data, single, room)
        else:
            raise DataError(
                f"{spec}: gave a {type(data).__name__}; expected a torch Dataset or an iterable of batches, "
                "(x, y) or x alone."
            )
    if not pieces:
        raise DataError(f"{spec}: gave no points; expected at least one.")
    if len({len(piece) for piece in pieces}) > 1:
        raise DataError(f"{spec}: gives targets with some points and not with others.")
    joined = [_joined(spec, part, single) for part in zip(*pieces, strict=True)]
    return Contents(joined[0], joined[1] if len(joined) > 1 else None)


@dataclass(frozen=True, eq=False)
class Items:
    """The items of a Dataset, one at a time. Random transforms of an item get the same random numbers whenever it is
    read, whatever was read before."""

    spec: str
    data: Any
    known_labels: NDArray[Any] | None
    first: tuple[NDArray[Any], ...] | None = None  # item 0, which was read already
    parallel = False  # it is the user's code
    encoded = False

    def name(self, index: int, *, short: bool = False) -> str:
        return f"item {index}" if short else f"{self.spec}: item {index}"

    def item(self, index: int, channels: int | None) -> NDArray[Any]:
        del channels
        return self.parts(index)[0].inputs[0]

    def parts(self, index: int) -> tuple[Points, NDArray[Any] | None]:
        """The item as a set of one point in the common layout, and its label (None: it has none)."""
        inputs, *labels = self.raw(index)
        return points_of(Contents(inputs[None]), name="item", reference=self.name(index)), labels[0] if labels else None

    def raw(self, index: int) -> tuple[NDArray[Any], ...]:
        """The item as it is given, and its label where it has one."""
        from bnuq.randomness import generators_seeded  # which imports torch

        if index == 0 and self.first is not None:
            return self.first
        with running(self.spec, f"reading item {index}"), generators_seeded(index):
            return _parts(self.data[index])

    def labels(self, rows: NDArray[np.int64]) -> NDArray[Any] | None:
        """The labels of these items; they are read where the Dataset has no list of them."""
        if self.known_labels is not None:
            return self.known_labels[rows]
        labels = [label for index in rows if (label := self.parts(int(index))[1]) is not None]
        return np.stack(labels) if len(labels) == len(rows) else None

    def looked_at(self, index: int) -> tuple[bool, Size]:
        channels, height, width = self.item(index, None).shape
        return channels > 1, (height, width)

    def content(self, index: int) -> bytes:
        return self.item(index, None).tobytes()

    def listed(self, index: int) -> bytes:
        return f"{index}\n".encode()


def _items(spec: str, data: Any, raw: tuple[NDArray[Any], ...], whole: bool) -> Contents | None:
    """The items of a Dataset, to be read as they are needed; None where it is small and read `whole`. `raw` is the
    first."""
    count, raw = len(data), tuple(part.copy() for part in raw)  # user code may use its arrays again
    common, label = Items(spec, data, None, raw).parts(0)
    first = common.inputs[:][0]
    if whole and count * first.nbytes <= _KEPT:
        return None
    items = Items(spec, data, None if label is None else _listed_labels(data, label), raw)
    inputs = Decoded(items, np.arange(count), first.shape, first.dtype)
    labels = items.labels(inputs.rows) if whole else items.known_labels
    return Contents(inputs, labels, findings=common.findings)


def _listed_labels(data: Any, first: NDArray[Any]) -> NDArray[Any] | None:
    """The labels of all items where the Dataset has a list of them, which must begin with the `first` item's: a
    transform may make others of them."""
    subset = getattr(data, "indices", None)
    if subset is not None and hasattr(data, "dataset"):
        labels = _listed_labels_of(data.dataset)
        labels = None if labels is None else labels[_array(subset)]
    else:
        labels = _listed_labels_of(data)
    if labels is None or len(labels) != len(data) or not np.array_equal(labels[0], first):
        return None
    return labels


def _listed_labels_of(data: Any) -> NDArray[Any] | None:
    tensors = getattr(data, "tensors", ())
    found = [*tensors[1:2], *(getattr(data, name, None) for name in ("targets", "labels"))]
    if getattr(data, "target_transform", None) is not None:
        return None
    arrays = (_array(labels) for labels in found if labels is not None and not callable(labels))
    return next((labels for labels in arrays if labels.ndim and labels.dtype.kind in "fiub"), None)


def _pieces_of(spec: str, data: Iterable[Any], single: bool, room: int | None) -> list[tuple[NDArray[Any], ...]]:
    pieces: list[tuple[NDArray[Any], ...]] = []
    points = size = 0
    for piece in data:
        parts = _parts(piece)
        pieces.append(parts)
        points += 1 if single or parts[0].ndim == 0 else len(parts[0])
        size += sum(part.nbytes + _OBJECT for part in parts)
        if len(pieces) >= _MOST or (room is not None and 2 * size > room):
            why = f"{_MOST:,} pieces" if len(pieces) >= _MOST else "the free memory"
            raise DataError(
                f"{spec}: has given {points:,} points ({size / 1e9:.2g} GB) and gives more, beyond {why}. Does it ever "
                "end? Let it give a part of them."
            )
    return pieces


def _arrays(data: Any) -> tuple[NDArray[Any], ...] | None:
    """(x,) or (x, y) where the factory gives whole arrays: under these names, or as a tuple of two of one length."""
    if isinstance(data, Mapping) and "x" in data:
        return tuple(_array(data[name]) for name in ("x", "y") if name in data)
    if isinstance(data, tuple) and len(data) == 2 and all(hasattr(part, "ndim") for part in data):
        x, y = map(_array, data)
        return (x, y) if x.ndim > y.ndim >= 1 and len(x) == len(y) else None
    return None


def _gives_single_points(data: Any) -> bool:
    """Whether items are single points rather than batches; checked without importing torch."""
    if isinstance(data, Sequence) and data and isinstance(data[0], tuple | list) and len(data[0]) == 2:
        return _array(data[0][1]).ndim == 0  # a list of (input, label) pairs
    if any(kind.__name__ == "IterableDataset" for kind in type(data).__mro__):
        return True
    return hasattr(data, "__getitem__") and hasattr(data, "__len__") and not isinstance(data, Sequence)


def _parts(piece: Any) -> tuple[NDArray[Any], ...]:
    if isinstance(piece, tuple | list) and len(piece) >= 2:
        return _array(piece[0]), _array(piece[1])
    return (_array(piece[0] if isinstance(piece, tuple | list) and len(piece) == 1 else piece),)


def _array(value: Any) -> NDArray[Any]:
    if hasattr(value, "detach"):
        value = value.detach().cpu()
        value = value.float() if str(value.dtype) == "torch.bfloat16" else value
        return value.numpy()
    return np.asarray(value)


def _joined(spec: str, parts: Sequence[NDArray[Any]], single: bool) -> NDArray[Any]:
    shapes = {part.shape if single else part.shape[1:] for part in parts}
    if len(shapes) > 1 or (not single and any(part.ndim == 0 for part in parts)):
        shown = " and ".join(str(shape) for shape in sorted(shapes)[:2])
        raise DataError(f"{spec}: gives points of different shapes, {shown or 'or none'}; expected one shape.")
    return np.stack(parts) if single else np.concatenate(parts)
