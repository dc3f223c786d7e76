"""What user code gives for a point, a batch or a whole set: its inputs and its label, as arrays."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bnuq.data.points import Contents
from bnuq.data.readers.common import TARGETS
from bnuq.errors import DataError
from bnuq.findings import note
from bnuq.frozen import frozen
from bnuq.packing import Layout, difference, pack


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
        is_named = all(
            isinstance(name, str) and (_axes(part) or isinstance(part, Mapping)) for name, part in data.items()
        )
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
            f"{spec}: a tuple of arrays is (inputs, targets), and these have {', '.join(map(str, lengths))} points; "
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
        raise DataError(f"{spec}: gives {wrong}; expected the same inputs for all points. Pad sequences to one length.")


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
        raise DataError(f"{spec}: gives points of different shapes, {shown or 'or none'}; expected one shape.")
    return np.stack(parts) if single else np.concatenate(parts)
