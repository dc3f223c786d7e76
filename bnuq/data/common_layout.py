"""Brings what a reader found into the common layout of points."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bnuq.data.decoded import sides
from bnuq.data.masks import Masks, masks_of_array
from bnuq.data.points import Contents, Inputs, Points, blocks
from bnuq.errors import DataError
from bnuq.findings import Finding, note

_CHANNELS = (1, 3, 4)


def points_of(contents: Contents, *, name: str, reference: str, where: str | None = None) -> Points:
    """The points in `contents`, in the common layout.

    Raises DataError, which begins with `where`, for an empty set, shapes that do not fit together, numbers that are
    not finite, and inputs or targets that are not numbers.
    """
    where = where or reference
    inputs, findings = contents.inputs, ()
    if contents.layout is None:
        inputs, findings = _channel_first(inputs, where)
    n = inputs.shape[0]
    targets = contents.targets
    if targets is not None and not isinstance(targets, Masks):
        contents = with_numbers(contents, np.asarray(targets), where)
        targets = common_targets(np.asarray(contents.targets), n, where)
    group, group_names = (None, ()) if contents.group is None else group_codes(np.asarray(contents.group), n, where)
    _check_finite(inputs, "x", where)
    if isinstance(targets, Masks):
        _check_masks_fit(targets, inputs, where)
    elif targets is not None and targets.dtype.kind == "f":
        _check_finite(targets, "y", where)
    findings = (*contents.findings, *findings)
    return Points(
        name,
        reference,
        inputs,
        targets,
        group,
        contents.classes,
        findings,
        contents.classes_sorted,
        group_names,
        contents.target_by_position,
        rows=contents.index,
        names=None if contents.names is None else np.array(contents.names, dtype=np.object_),
        layout=contents.layout,
    )


def with_numbers(contents: Contents, targets: NDArray[Any], where: str) -> Contents:
    """`contents` with these targets; texts, one for each point, have the numbers of their names in the file, or else
    those of `_numbered_texts`."""
    kind = targets.dtype.kind
    texts = kind in "SU" or (kind == "O" and all(isinstance(value, str | bytes) for value in targets.flat))
    if not texts or targets.ndim != 1:
        return replace(contents, targets=targets)
    words = [(text.decode(errors="replace") if isinstance(text, bytes) else text).strip() for text in targets.tolist()]
    numbers = {name: number for number, name in enumerate(contents.classes or ())}
    if numbers.keys() >= {*words}:
        return replace(contents, targets=np.array([numbers[word] for word in words], dtype=np.int64))
    labels, classes, findings = _numbered_texts(where, words)
    return replace(
        contents,
        targets=labels,
        classes=classes or contents.classes,
        classes_sorted=classes is not None,
        findings=(*contents.findings, *findings),
    )


def _numbered_texts(
    where: str, texts: Sequence[str]
) -> tuple[NDArray[Any], tuple[str, ...] | None, tuple[Finding, ...]]:
    """Whole numbers as they are, other numbers as targets of a regression; other texts are classes, numbered in sorted
    order. DataError for a point without a label."""
    if "" in texts:
        raise DataError(f"{where}: row {texts.index('')} (counted from 0) has no label.")
    if all(re.fullmatch(r"[+-]?\d{1,18}", text) for text in texts):
        return np.array([int(text) for text in texts], dtype=np.int64), None, ()
    if all(re.fullmatch(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,3})?", text) for text in texts):
        return np.array([float(text) for text in texts]), None, ()
    classes, numbers = np.unique(np.array(texts, dtype=object), return_inverse=True)
    return numbers.astype(np.int64), tuple(classes), (note("class-names", names=[str(name)[:50] for name in classes]),)


def _channel_first(inputs: Inputs, where: str) -> tuple[Inputs, tuple[Finding, ...]]:
    shape, kind = tuple(inputs.shape), inputs.dtype.kind
    if len(shape) == 0 or 0 in shape:
        raise DataError(f"{where}: holds no examples (x has shape {shape}); expected at least one.")
    if kind not in "fiub":
        raise DataError(f"{where}: x holds {inputs.dtype} values; expected numbers: uint8 or float.")
    if not isinstance(inputs, np.ndarray):  # pictures in files come channel-first
        return inputs, ()
    x, findings = inputs, list[Finding]()
    if x.dtype.itemsize > 8 or not x.dtype.isnative:
        x = x.astype(np.float64 if kind == "f" and x.dtype.itemsize >= 8 else x.dtype.newbyteorder("="))
    if kind in "iu" and x.dtype != np.uint8:
        if x.ndim > 2:
            raise DataError(
                f"{where}: x holds {x.dtype} images of {value_range(x)}; expected uint8 (0 to 255, scaled to 0–1 here) "
                "or float (not scaled). Convert it to the one that the network was trained on."
            )
        findings.append(note("inputs-as-they-are", dtype=str(x.dtype)))
        x = x.astype(np.float64 if x.dtype.itemsize > 3 else np.float32)
    if x.ndim == 1:
        findings.append(note("no-feature-axis"))
        return x[:, None], tuple(findings)
    if x.ndim == 3 and x.dtype == np.uint8:
        findings.append(note("no-channel-axis"))
        return x[:, None], tuple(findings)
    if x.ndim == 3:  # as likely sequences as pictures
        findings.append(note("floats-without-channel-axis"))
    if x.ndim == 4:
        x, layout = _picture_layout(x)
        findings += [layout] if layout else []
    return x, tuple(findings)


def _picture_layout(x: NDArray[Any]) -> tuple[NDArray[Any], Finding | None]:
    _, a, b, c = x.shape
    first, last = a in _CHANNELS, c in _CHANNELS
    if first and last:
        # Pictures are mostly square; where that decides nothing, torch's own layout.
        last = a == b and b != c
        layout = note("ambiguous-layout", shape=list(x.shape), channel="last" if last else "first")
    elif last:
        layout = note("channel-last")
    else:
        layout = None if first else note("no-axis-like-channels", shape=list(x.shape))
    return (np.moveaxis(x, 3, 1) if last else x), layout


def _check_masks_fit(masks: Masks, inputs: Inputs, where: str) -> None:
    """DataError where masks in arrays have another size than the pictures."""
    if len(inputs.shape) == 4 and masks.shape[1:] != inputs.shape[2:]:
        raise DataError(
            f"{where}: the images are {sides(*inputs.shape[2:])} pixels and their masks {sides(*masks.shape[1:])}; "
            "expected a mask of the size of its image, with one number for each pixel."
        )


def common_targets(y: NDArray[Any], n: int, where: str) -> NDArray[Any] | Masks:
    if y.dtype.kind in "OSU":
        raise DataError(
            f"{where}: y holds texts or objects in an array of shape {y.shape}; expected whole numbers from 0 or the "
            "name of a class (labels), one for each example, or floats."
        )
    if y.dtype.kind not in "fiub":
        raise DataError(f"{where}: y holds {y.dtype} values; expected whole numbers from 0 (labels) or floats.")
    if y.ndim == 0 or y.shape[0] != n:
        raise DataError(f"{where}: x has {n} examples and y has {y.shape[0] if y.ndim else 'only one number'}.")
    if y.size == 0:
        raise DataError(f"{where}: y has shape {y.shape}; expected at least one target per example.")
    if y.ndim == 4 and 1 in (y.shape[1], y.shape[3]):
        y = y[:, 0] if y.shape[1] == 1 else y[..., 0]
    labels = y.dtype.kind in "iub"
    if y.ndim == 1:
        return y.astype(np.int64) if labels or integral(y) else y.astype(np.float64)[:, None]
    if y.ndim == 2:
        return y[:, 0].astype(np.int64) if labels and y.shape[1] == 1 else y.astype(np.float64)
    if y.ndim == 3 and (labels or integral(y)):
        return masks_of_array(y if labels else y.astype(np.int64), where)
    raise DataError(f"{where}: y has shape {y.shape}; expected labels (n,) or (n, H, W), or numbers (n, Q).")


def group_codes(group: NDArray[Any], n: int, where: str) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """The number of each point's group, and the names of all groups in the order of these numbers."""
    texts = group.dtype.kind == "O" and all(isinstance(value, str) for value in group.flat)
    if group.size != n or not (texts or group.dtype.kind in "fiubUS"):
        raise DataError(
            f"{where}: group has shape {group.shape} of {group.dtype}; expected one value for each of {n} examples."
        )
    for row, value in enumerate(group.flat if group.dtype.kind in "fSUO" else ()):
        if value != value or (isinstance(value, str | bytes) and not value.strip()):  # NaN is not itself
            raise DataError(f"{where}: row {row} (counted from 0) has no group.")
    values, codes = np.unique(group.reshape(n), return_inverse=True)
    return codes.reshape(n).astype(np.int64), tuple(map(_group_name, values.tolist()))


def _group_name(value: Any) -> str:
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def _check_finite(values: Inputs, name: str, where: str) -> None:
    if not isinstance(values, np.ndarray) or values.dtype.kind != "f":
        return
    for start, block in blocks(values):
        bad = ~np.isfinite(block).reshape(len(block), -1).all(axis=1)
        if bad.any():
            row = start + int(bad.argmax())
            raise DataError(
                f"{where}: {name} holds NaN or infinity, first in row {row} (counted from 0). Remove or fill such rows."
            )


def integral(y: NDArray[Any]) -> bool:
    return bool(np.all(np.isfinite(y)) and np.all(np.abs(y) < 2**53) and np.all(y == np.floor(y)))


def value_range(values: NDArray[Any]) -> str:
    return f"values from {values.min()} to {values.max()}"
