"""Checks the targets of a set against what the network gives: labels, a label matrix, masks or numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bnuq.data.common_layout import common_targets, integral, value_range, with_numbers
from bnuq.data.decoded import Decoded
from bnuq.data.points import Contents, Points, blocks
from bnuq.errors import DataError
from bnuq.findings import note, warning
from bnuq.progress import Progress, silent

_LARGEST_TARGET = 1e150
MULTILABEL_KEY = 'outputs = "multilabel" under [model] of the run file'


def labelled(points: Points) -> Points:
    """`points` with the labels of a Dataset that has no list of them, for which its items are read."""
    inputs = points.inputs
    if points.targets is not None or not isinstance(inputs, Decoded) or not hasattr(inputs.source, "labels"):
        return points
    if (labels := inputs.source.labels(inputs.rows)) is None:  # pyrefly: ignore
        return points
    contents = with_numbers(Contents(inputs, classes=points.classes), labels, points.reference)
    return replace(
        points,
        targets=common_targets(np.asarray(contents.targets), len(points), points.reference),
        classes=contents.classes,
        classes_sorted=contents.classes_sorted or points.classes_sorted,
        findings=(*points.findings, *contents.findings),
    )


def check_labels(points: Points, classes: int) -> Points:
    """`points` with int64 labels in 0 … classes − 1; integral floats and one-hot rows of `classes` are converted.

    Raises DataError for labels that are missing, out of range or no whole numbers, and for masks (n, H, W).
    """
    points = labelled(points)
    _check_whole_set(points, check_labels, classes)
    name, y = f"{points.reference}: the labels of {points.name!r}", points.targets
    if y is None:
        raise DataError(f"{name} are missing; expected a whole number from 0 to {classes - 1} per example.")
    # A table's last column was only assumed to be the label: where another looks like it, ask rather than score noise.
    if points.target_by_position and _all_of(points.inputs[:, 0], classes) and not _all_of(y, classes):
        raise DataError(
            f"{points.reference}: the last column was taken for the label and holds {value_range(y)}; the first column "
            f"holds each of {classes} classes. Name the column of the label with --target COLUMN, or target under "
            "[data]; a table without a header line needs one, or the label in its last column."
        )
    if y.ndim > 2:
        raise DataError(f"{name} have shape {y.shape}; expected a whole number from 0 to {classes - 1} per example.")
    if y.dtype.kind == "f":
        column = y[:, 0] if y.shape[1] == 1 else y
        if y.shape[1] == classes > 1 and np.all((y == 0) | (y == 1)) and np.all(y.sum(axis=1) == 1):
            findings = (*points.findings, note("one-hot-targets", classes=classes))
            return replace(points, targets=y.argmax(axis=1), findings=findings)
        if y.shape[1] != 1:
            several = np.all((y == 0) | (y == 1))
            hint = f" Several labels per example are scored with --outputs multilabel, or {MULTILABEL_KEY}."
            raise DataError(
                f"{name} have {y.shape[1]} columns of {value_range(y)}; expected one whole number from 0 to "
                f"{classes - 1} per example, or one-hot rows of {classes}.{hint if several else ''}"
            )
        if not integral(column):
            raise DataError(f"{name} are not whole numbers, but {value_range(y)}. Is this a regression set?")
        y = column.astype(np.int64)
    if y.min() < 0 or y.max() >= classes:
        low, high = int(y.min()), int(y.max())
        hint = "Is this the set that the network was trained for?"
        if low >= 1 and high == classes:
            hint = "They look one-based: subtract 1."
        elif low < 0 and high < classes:
            hint = "Negative numbers often mark examples without a label: leave these out."
        raise DataError(f"{name} run from {low} to {high}; expected 0 to {classes - 1} for {classes} classes. {hint}")
    return replace(points, targets=y)


def _check_whole_set(points: Points, check: Callable[[Points, int], Points], count: int) -> None:
    """Check the targets of the whole set, where the points are a sample of it."""
    if points.all_targets is not None:
        check(replace(points, targets=points.all_targets, all_targets=None), count)


def check_label_matrix(points: Points, labels: int) -> Points:
    """`points` with int64 labels (n, labels), 1 where a point has the label and 0 elsewhere.

    Raises DataError for labels that are missing, of another shape, neither 0 nor 1, and where no point has any.
    """
    points = labelled(points)
    _check_whole_set(points, check_label_matrix, labels)
    name, y = f"{points.reference}: the labels of {points.name!r}", points.targets
    count = len(points) if y is None else len(y)
    expected = f"expected a matrix ({count}, {labels}) of 0 and 1, one column a label: outputs is multilabel"
    if y is None:
        raise DataError(f"{name} are missing; {expected}.")
    if y.shape != (count, labels):
        hint = " With one class per example, leave --outputs multilabel out." if y.ndim == 1 else ""
        raise DataError(f"{name} have shape {y.shape}; {expected}.{hint}")
    if not np.all((y == 0) | (y == 1)):
        raise DataError(f"{name} are {value_range(y)}, not only 0 and 1; {expected}.")
    if points.all_targets is None and not y.any():  # of a sample they may be
        raise DataError(f"{name} are all 0: no example has any of them. Is this the matrix of the labels?")
    return replace(points, targets=y.astype(np.int64))


def check_masks(points: Points, classes: int, ignore: int, progress: Progress = silent) -> Points:
    """`points` with masks of 0 … classes − 1 and `ignore`, all of which are read once; a warning names those that are
    wholly ignored, and there are as many names of classes as `classes`, or none.

    Raises DataError for targets that are missing or no masks, for other values, for sets in which every pixel is
    ignored, and for names of fewer classes.
    """
    masks, name = points.masks, f"{points.reference}: the masks of {points.name!r}"
    expected = f"expected a mask for each image, of class numbers from 0 to {classes - 1}, or {ignore} (ignored)"
    if masks is None:
        problem = "are missing" if points.targets is None else f"are labels of shape {points.targets.shape}"
        forms = "Two folders are named as IMAGES:MASKS, arrays as FILE.npz:INPUTS,MASKS."
        raise DataError(f"{name} {problem}; {expected}. {forms}")
    if points.classes is not None and len(points.classes) < classes:
        raise DataError(
            f"{points.reference}: {len(points.classes)} classes are named ({', '.join(points.classes[:20])}), and the "
            f"network has {classes}. Add lines to the class file, in the order of the network's outputs."
        )
    # All masks are read before anything is reported: how many are wrong says whether it is one file or the numbering.
    ignored, wrong, seen = [], dict[int, dict[int, int]](), set[int]()
    with progress(f"masks of {points.name}", len(points)) as advance:
        for start, block in blocks(masks):
            for row, mask in enumerate(block, start):
                counts = _counts(mask)
                seen.update(counts)
                outside = {value: count for value, count in counts.items() if value not in (*range(classes), ignore)}
                if outside:
                    wrong[row] = outside
                if counts.keys() == {ignore}:
                    ignored.append(row)
                advance(1)
    if wrong:
        row, values = next(iter(wrong.items()))
        first = list(values.items())[:6]
        shown = ", ".join(f"{count:,} pixel{'s' * (count != 1)} of {value}" for value, count in first)
        others = f"; {len(wrong) - 1} more of {len(points)} masks have such values" * (len(wrong) > 1)
        distinct = {value for counts in wrong.values() for value in counts}
        option = f"--ignore {min(distinct)}" if len(distinct) == 1 else "--ignore N"
        raise DataError(
            f"{masks.name(row)}: has {shown}{others}; expected 0 to {classes - 1}, or {ignore} (ignored). Pixels of "
            f"one value are left out by {option}, or ignore under [data]; the others have to be renumbered."
        )
    if len(ignored) == len(points):
        raise DataError(f"{name} are all {ignore}, which is ignored: no pixel can be scored. Check --ignore.")
    if classes == 2 and ignore == 255 and seen == {0, 255}:
        raise DataError(
            f"{name} hold 0 and 255 alone, and 255 is ignored: no pixel of class 1 would be scored. If 255 is class 1, "
            "list the classes in a file with the lines `background 0 0 0` and `foreground 255 255 255`, --palette FILE."
        )
    findings = points.findings
    if ignored:
        names = [masks.name(row) for row in ignored[:5]]
        findings += (warning("masks-ignored", count=len(ignored), names=names, ignore=ignore),)
    return replace(points, findings=findings, classes=None if points.classes is None else points.classes[:classes])


def check_targets(points: Points, outputs: int) -> Points:
    """`points` with float64 targets (n, outputs) of a regression; labels are numbers like others.

    Raises DataError for targets that are missing or of another shape.
    """
    points = labelled(points)
    _check_whole_set(points, check_targets, outputs)
    y = points.targets
    if y is None:
        raise DataError(f"{points.reference}: the targets of {points.name!r} are missing; expected numbers.")
    if y.ndim > 2 or y.size != len(y) * outputs:
        raise DataError(
            f"{points.reference}: the targets of {points.name!r} have shape {y.shape}; expected "
            f"({len(y)}, {outputs}), one column an output of the network."
        )
    if not (largest := float(np.abs(y).max())) < _LARGEST_TARGET:
        raise DataError(
            f"{points.reference}: the targets of {points.name!r} go up to {largest:.3g}, whose square float64 does not "
            f"hold; expected numbers below {_LARGEST_TARGET:g}. Scale them, or fix missing values there."
        )
    return replace(points, targets=y.reshape(len(y), outputs).astype(np.float64))


def _counts(mask: NDArray[np.int64]) -> dict[int, int]:
    """How many pixels have each value."""
    if mask.min() >= 0 and mask.max() < 2**16:
        counts = np.bincount(mask.ravel())
        return {value: int(counts[value]) for value in np.flatnonzero(counts).tolist()}
    values, counts = np.unique(mask, return_counts=True)
    return dict(zip(values.tolist(), counts.tolist(), strict=True))


def _all_of(values: NDArray[Any], classes: int) -> bool:
    """Whether these are labels in which every class occurs, numbered from 0 or from 1."""
    distinct = np.unique(values)
    numbers = np.arange(classes)
    return distinct.size == classes > 1 and any(np.array_equal(distinct, start + numbers) for start in (0, 1))
