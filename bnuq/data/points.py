"""Points: the inputs of a set with what is known of them, all in one layout whatever file they came in."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from bnuq.data.decoded import Decoded, InArray, Kept, Room, sides
from bnuq.data.masks import Masks, masks_of_array
from bnuq.data.resizing import Pixels, Size
from bnuq.errors import DataError
from bnuq.files.mapped import is_mapped
from bnuq.findings import Finding, note, warning
from bnuq.packing import Layout
from bnuq.progress import Progress, silent

_CHANNELS = (1, 3, 4)
_LARGEST_TARGET = 1e150
MULTILABEL_KEY = 'outputs = "multilabel" under [model] of the run file'
_BLOCK = 64 * 2**20  # bytes looked at in one go
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


@dataclass(frozen=True)
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


@dataclass(frozen=True, eq=False)
class Points:
    """The points of one set, in order.

    `targets` are labels (int64: (n,), or `Masks` (n, H, W) for segmentation) or floats (n, Q), or None where there are
    none; `classes` are their names, numbered by the reader where `classes_sorted`, as in `Contents`.
    `listed` points are not read whole: their digest is that of the listing. `group` tells which points are not
    independent of each other, by number; `group_names` are what the file has for these numbers. `findings` say what was
    found out while reading; `target_by_position` is that of `Contents`. `rows` are the points' numbers in the source
    (None: 0, 1, 2, …), and `names` their files or ids, where they have any. Points of several inputs are packed, as
    `layout` says. `all_targets` are those of the whole set where these points are a sample of it. `part` are the places
    of a subset in the set that it was taken from, and the size of that.
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
    part: tuple[NDArray[np.int64], int] | None = field(default=None, repr=False)

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
    def places(self) -> NDArray[np.int64]:
        """Each point's place in the set as it was named, of `total` points, also of a subset."""
        return np.arange(len(self)) if self.part is None else self.part[0]

    @property
    def total(self) -> int:
        """The points of the set as it was named."""
        return len(self) if self.part is None else self.part[1]

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
        the names and sizes of their files count, or their numbers and the first of them.
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
                digest.update(f"{inputs.dtype.str}{inputs.shape}".encode() + inputs[0].tobytes())
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

    def raw(self, indices: Any) -> NDArray[Any]:
        """The points at `indices` before normalisation: float32 (float64 where the data are), uint8 scaled to 0–1."""
        return _scaled(self.inputs[indices])

    def changed(self, indices: Any, size: Size, change: Callable[[int, Pixels], Pixels]) -> NDArray[Any]:
        """The pictures at `indices` as they are stored, not resized, each made of this `size` by `change`, which is
        also given its place among them; then as `raw`."""
        inputs = self.inputs
        if not isinstance(inputs, Decoded):
            array = inputs[indices]
            indices = np.arange(len(array))
            inputs = Decoded(InArray(array, self.reference), indices, array.shape[1:], array.dtype)
        return _scaled(inputs.changed(indices, size, change))

    def keeping(self, room: Room) -> Points:
        """These points, of which those that are decoded or made by user code stay in memory while there is `room`."""
        inputs, masks = self.inputs, self.masks
        if isinstance(inputs, Decoded) and not isinstance(inputs.source, InArray):
            inputs = replace(inputs, kept=Kept(room))
        return replace(self, inputs=inputs, targets=self.targets if masks is None else masks.keeping(room))

    def subset(self, indices: Any) -> Points:
        """These points alone, in the order of `indices`."""
        at = np.asarray(indices)
        return replace(
            self,
            inputs=self.inputs.picked(at) if isinstance(self.inputs, Decoded) else self.inputs[at],
            targets=_rows(self.targets, at) if self.masks is None else self.masks.picked(at),
            group=_rows(self.group, at),
            rows=self.index[at],
            part=(self.places[at], self.total),
            names=_rows(self.names, at),
        )


def points_of(contents: Contents, *, name: str, reference: str, where: str | None = None) -> Points:
    """The points in `contents`, in the common layout.

    Raises DataError, which begins with `where`, for an empty set, shapes that do not fit together, numbers that are
    not finite, and inputs or targets that are no numbers.
    """
    where = where or reference
    inputs, findings = contents.inputs, ()
    if contents.layout is None:
        inputs, findings = _channel_first(inputs, where)
    n = inputs.shape[0]
    targets = contents.targets
    if targets is not None and not isinstance(targets, Masks):
        contents = _with_numbers(contents, np.asarray(targets), where)
        targets = _common_targets(np.asarray(contents.targets), n, where)
    group, group_names = (None, ()) if contents.group is None else _codes(np.asarray(contents.group), n, where)
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


def labelled(points: Points) -> Points:
    """`points` with the labels of a Dataset that has no list of them, for which its items are read."""
    inputs = points.inputs
    if points.targets is not None or not isinstance(inputs, Decoded) or not hasattr(inputs.source, "labels"):
        return points
    if (labels := inputs.source.labels(inputs.rows)) is None:  # pyrefly: ignore
        return points
    contents = _with_numbers(Contents(inputs, classes=points.classes), labels, points.reference)
    return replace(
        points,
        targets=_common_targets(np.asarray(contents.targets), len(points), points.reference),
        classes=contents.classes,
        classes_sorted=contents.classes_sorted or points.classes_sorted,
        findings=(*points.findings, *contents.findings),
    )


def _with_numbers(contents: Contents, targets: NDArray[Any], where: str) -> Contents:
    """`contents` with these targets; texts, one for each point, have the numbers of their names in the file, or else
    those of `_numbered_texts`."""
    texts = targets.dtype.kind in "SU" or (targets.dtype.kind == "O" and _are_texts(targets))
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


def _are_texts(values: NDArray[Any]) -> bool:
    return all(isinstance(value, str | bytes) for value in values.flat)


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


def check_labels(points: Points, classes: int) -> Points:
    """`points` with int64 labels in 0 … classes − 1; integral floats and one-hot rows of `classes` are converted.

    Raises DataError for labels that are missing, out of range or no whole numbers, and for masks (n, H, W).
    """
    points = labelled(points)
    _check_whole_set(points, check_labels, classes)
    name, y = f"{points.reference}: the labels of {points.name!r}", points.targets
    if y is None:
        raise DataError(f"{name} are missing; expected a whole number from 0 to {classes - 1} per point.")
    if points.target_by_position and _all_of(points.inputs[:, 0], classes) and not _all_of(y, classes):
        raise DataError(
            f"{points.reference}: the last column was taken for the label and holds {_shown(y)}; the first column "
            f"holds each of {classes} classes. Name the column of the label with --target COLUMN, or target under "
            "[data]; a table without a header line needs one, or the label in its last column."
        )
    if y.ndim > 2:
        raise DataError(f"{name} have shape {y.shape}; expected a whole number from 0 to {classes - 1} per point.")
    if y.dtype.kind == "f":
        column = y[:, 0] if y.shape[1] == 1 else y
        if y.shape[1] == classes > 1 and np.all((y == 0) | (y == 1)) and np.all(y.sum(axis=1) == 1):
            findings = (*points.findings, note("one-hot-targets", classes=classes))
            return replace(points, targets=y.argmax(axis=1), findings=findings)
        if y.shape[1] != 1:
            several = np.all((y == 0) | (y == 1))
            hint = f" Several labels per point are scored with --outputs multilabel, or {MULTILABEL_KEY}."
            raise DataError(
                f"{name} have {y.shape[1]} columns of {_shown(y)}; expected one whole number from 0 to {classes - 1} a "
                f"point, or one-hot rows of {classes}: one label a point.{hint if several else ''}"
            )
        if not _integral(column):
            raise DataError(f"{name} are not whole numbers, but {_shown(y)}. Is this a regression set?")
        y = column.astype(np.int64)
    if y.min() < 0 or y.max() >= classes:
        low, high = int(y.min()), int(y.max())
        hint = "Is this the set that the network was trained for?"
        if low >= 1 and high == classes:
            hint = "They look one-based: subtract 1."
        elif low < 0 and high < classes:
            hint = "Negative numbers often mark points without a label: leave these out."
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
        one = " With one class per point, leave --outputs multilabel out." if y.ndim == 1 else ""
        raise DataError(f"{name} have shape {y.shape}; {expected}.{one}")
    if not np.all((y == 0) | (y == 1)):
        raise DataError(f"{name} are {_shown(y)}, not only 0 and 1; {expected}.")
    if points.all_targets is None and not y.any():  # of a sample they may be
        raise DataError(f"{name} are all 0: no point has any of them. Is this the matrix of the labels?")
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
        found = "are missing" if points.targets is None else f"are labels of shape {points.targets.shape}"
        forms = "Two folders are named as IMAGES:MASKS, arrays as FILE.npz:INPUTS,MASKS."
        raise DataError(f"{name} {found}; {expected}. {forms}")
    if points.classes is not None and len(points.classes) < classes:
        raise DataError(
            f"{points.reference}: {len(points.classes)} classes are named ({', '.join(points.classes[:20])}), and the "
            f"network has {classes}. Add lines to the class file, in the order of the network's outputs."
        )
    ignored, wrong, seen = [], dict[int, dict[int, int]](), set[int]()
    with progress(f"masks of {points.name}", len(points)) as advance:
        for start, block in _blocks(masks):
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
        distinct = {value for of in wrong.values() for value in of}
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


def _rows(values: Any, at: NDArray[Any]) -> Any:
    return None if values is None else values[at]


def _scaled(values: NDArray[Any]) -> NDArray[Any]:
    if values.dtype == np.uint8:
        return np.divide(values, np.float32(255), dtype=np.float32, order="C")
    return np.ascontiguousarray(values, dtype=np.float64 if values.dtype == np.float64 else np.float32)


def _channel_first(inputs: Inputs, where: str) -> tuple[Inputs, tuple[Finding, ...]]:
    shape, kind = tuple(inputs.shape), inputs.dtype.kind
    if len(shape) == 0 or 0 in shape:
        raise DataError(f"{where}: holds no points (x has shape {shape}); expected at least one.")
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
                f"{where}: x holds {x.dtype} images of {_shown(x)}; expected uint8 (0 to 255, scaled to 0–1 here) "
                "or float (taken as it is). Convert it to the one that the network was trained on."
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


def _common_targets(y: NDArray[Any], n: int, where: str) -> NDArray[Any] | Masks:
    if y.dtype.kind in "OSU":
        raise DataError(
            f"{where}: y holds texts or objects in an array of shape {y.shape}; expected whole numbers from 0 or the "
            "name of a class (labels), one for each point, or floats."
        )
    if y.dtype.kind not in "fiub":
        raise DataError(f"{where}: y holds {y.dtype} values; expected whole numbers from 0 (labels) or floats.")
    if y.ndim == 0 or y.shape[0] != n:
        raise DataError(f"{where}: x has {n} points and y has {y.shape[0] if y.ndim else 'only one number'}.")
    if y.size == 0:
        raise DataError(f"{where}: y has shape {y.shape}; expected at least one target a point.")
    if y.ndim == 4 and 1 in (y.shape[1], y.shape[3]):
        y = y[:, 0] if y.shape[1] == 1 else y[..., 0]
    labels = y.dtype.kind in "iub"
    if y.ndim == 1:
        return y.astype(np.int64) if labels or _integral(y) else y.astype(np.float64)[:, None]
    if y.ndim == 2:
        return y[:, 0].astype(np.int64) if labels and y.shape[1] == 1 else y.astype(np.float64)
    if y.ndim == 3 and (labels or _integral(y)):
        return masks_of_array(y if labels else y.astype(np.int64), where)
    raise DataError(f"{where}: y has shape {y.shape}; expected labels (n,) or (n, H, W), or numbers (n, Q).")


def _codes(group: NDArray[Any], n: int, where: str) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """The number of each point's group, and the names of all groups in the order of these numbers."""
    texts = group.dtype.kind == "O" and all(isinstance(value, str) for value in group.flat)
    if group.size != n or not (texts or group.dtype.kind in "fiubUS"):
        raise DataError(
            f"{where}: group has shape {group.shape} of {group.dtype}; expected one value for each of {n} points."
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
    for start, block in _blocks(values):
        bad = ~np.isfinite(block).reshape(len(block), -1).all(axis=1)
        if bad.any():
            row = start + int(bad.argmax())
            raise DataError(
                f"{where}: {name} holds NaN or infinity, first in row {row} (counted from 0). Remove or fill such rows."
            )


def _update(digest: Any, values: Inputs) -> None:
    digest.update(f"{values.dtype.str}{tuple(values.shape)}".encode())
    for _, block in _blocks(values):
        digest.update(np.ascontiguousarray(block).data)


def _blocks(values: Inputs) -> Iterator[tuple[int, NDArray[Any]]]:
    n = values.shape[0]
    rows = max(1, _BLOCK * n // max(1, int(np.prod(values.shape)) * values.dtype.itemsize))
    for start in range(0, n, rows):
        yield start, values[start : start + rows]


def _integral(y: NDArray[Any]) -> bool:
    return bool(np.all(np.isfinite(y)) and np.all(np.abs(y) < 2**53) and np.all(y == np.floor(y)))


def _all_of(values: NDArray[Any], classes: int) -> bool:
    """Whether these are labels in which every class occurs, numbered from 0 or from 1."""
    distinct = np.unique(values)
    return distinct.size == classes > 1 and any(
        np.array_equal(distinct, start + np.arange(classes)) for start in (0, 1)
    )


def _shown(values: NDArray[Any]) -> str:
    return f"values from {values.min()} to {values.max()}"
