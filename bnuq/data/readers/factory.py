"""Points from the user's own code: a torch Dataset, or an iterable of batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from bnuq.data.masks import Masks
from bnuq.data.points import Contents
from bnuq.data.readers.items import DatasetItems, items_of
from bnuq.data.readers.pieces import (
    Piece,
    concatenated,
    contents_of,
    gives_single_points,
    piece_of,
    whole_arrays,
)
from bnuq.errors import DataError
from bnuq.findings import note
from bnuq.trust import running

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
