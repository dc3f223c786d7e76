"""The class numbers of several sets by the names of their classes: a class has one number in all sets; and the
points that sets share."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bnuq.data.decoded import Decoded
from bnuq.data.masks import Masks
from bnuq.data.points import Points
from bnuq.data.target_checks import labelled
from bnuq.errors import DataError
from bnuq.findings import listed, note
from bnuq.frozen import frozen

_CHOICE = "--classes NAME,NAME or --classes names.txt (a name on each line), or classes = [...] under [data]"
_LISTED = 20  # names in a message
_READ = 2**28  # bytes of files that one comparison reads
_OPENED = 2**14  # bytes that could be read while a file is opened


@frozen
class Numbering:
    """The names of the classes from 0, what names them, and whether that is their sorted order alone."""

    names: tuple[str, ...]
    source: str
    is_sorted: bool = False


def in_one_numbering(
    sets: Mapping[str, Points | None], classes: Sequence[str] | None = None, *, ignore: int = 255
) -> dict[str, Any]:
    """These labelled sets with the class numbers of `classes`, or else of "train"; where it names none, of the set that
    names most. `classes` also names the classes of sets that have no names. Pixels of masks that are `ignore` stay so.

    DataError for a class that the numbering lacks, for sorted names that are fewer than the numbers of a set without
    names, and for `classes` that are not distinct.
    """
    if classes is not None and not 0 < len({*classes}) == len(classes):
        twice = next((repr(name) for name in classes if list(classes).count(name) > 1), "no class")
        raise DataError(f"data.classes names {twice}{' twice' * bool(classes)}; expected the name of each class once.")
    named = {key: points for key, points in sets.items() if points is not None and _has_names(points)}
    if classes is not None:
        numbering = Numbering(tuple(classes), "data.classes")
    elif named:
        key = "train" if "train" in named else max(named, key=lambda name: len(named[name].classes or ()))
        source, names = named[key], named[key].classes or ()
        named[key] = _with_notes(source, alone=key != "train")
        numbering = Numbering(names, f"{key} ({source.reference})", source.classes_sorted)
        for name, points in sets.items():
            if numbering.is_sorted and points is not None and name not in named:
                _check_enough(numbering, points, name=name)
    else:
        return dict(sets)
    result = dict(sets) | {key: renumbered(points, numbering, name=key, ignore=ignore) for key, points in named.items()}
    for key, points in result.items() if classes is not None else ():
        if points is not None and points.classes is None:
            result[key] = replace(points, classes=numbering.names)
    return result


def _check_enough(numbering: Numbering, points: Points, *, name: str) -> None:
    """DataError where `points`, which have numbers alone, have more classes than the numbering, whose names were
    numbered in sorted order: which numbers these names have is not known then."""
    labels = points.targets
    if not isinstance(labels, np.ndarray) or _is_matrix(labels):
        return
    numbers = np.unique(labels)
    if len(numbers) > len(numbering.names) and bool((numbers == np.floor(numbers)).all()):
        shown = listed([f"{number:g}" for number in numbers], most=_LISTED)
        raise DataError(
            f"{points.reference}: {name} numbers {len(numbers)} classes, {shown}, and {numbering.source} names only "
            f"{len(numbering.names)}, {listed(numbering.names, most=_LISTED)}: which number each name has is not "
            f"known. List all names in the order of the network's outputs: {_CHOICE}."
        )


def _has_names(points: Points) -> bool:
    """Whether there are names, each of one class."""
    return points.classes is not None and len({*points.classes}) == len(points.classes)


def _with_notes(points: Points, *, alone: bool) -> Points:
    """`points` with notes on the order of their classes, where they were sorted by name."""
    names = list(points.classes or ())
    if not points.classes_sorted:
        return points
    if (natural := natural_order(names)) != names:
        finding = note("class-order", names=names, natural=natural)
    elif alone:
        finding = note("class-numbers", names=names)
    else:
        return points
    return replace(points, findings=(*points.findings, finding))


def natural_order(names: Sequence[str]) -> list[str]:
    """The names in timm's order, of class folders: numbers in them by value, and letters without regard to case."""
    return sorted(names, key=_natural_key)


def _natural_key(name: str) -> list[Any]:
    """Texts and numbers in turn, these by their length first: names of any length are compared without parsing."""
    parts = re.split(r"0*([0-9]+)", name.lower())
    return [(len(part), part) if position % 2 else part for position, part in enumerate(parts)]


def renumbered(points: Points, numbering: Numbering, *, name: str, ignore: int) -> Points:
    """`points`, of the set called `name`, with the class numbers that their names have in the numbering.

    DataError for a class that occurs and is not in the numbering.
    """
    names = points.classes or ()
    numbers = {name: number for number, name in enumerate(numbering.names)}
    table = np.array([numbers.get(name, -1) for name in names], dtype=np.int64)
    if points.masks is not None and 0 <= ignore < len(table):
        table[ignore] = ignore
    result = replace(points, classes=numbering.names, classes_sorted=numbering.is_sorted)
    if np.array_equal(table, np.arange(len(table))):
        return result
    points = labelled(points)  # of a Dataset
    if unknown := [name for number, name in enumerate(names) if table[number] < 0 and _occurs(number, points.targets)]:
        raise DataError(
            f"{points.reference}: {name} has the class{'es' * (len(unknown) > 1)} "
            f"{listed([repr(name) for name in unknown])}, which {numbering.source} lacks. A class keeps its number by "
            f"its name, and the names of {name} are {listed(names, most=_LISTED)}; those of {numbering.source} are "
            f"{listed(numbering.names, most=_LISTED)}. Name the classes alike, or list all names in the order of the "
            f"network's outputs: {_CHOICE}."
        )
    findings = points.findings
    if points.targets is not None:
        known = {name: int(table[number]) for number, name in enumerate(names) if table[number] >= 0}
        findings += (note("classes-by-name", numbers=known, source=numbering.source),)
    return replace(result, targets=_mapped(points, table), findings=findings)


def _occurs(number: int, targets: Any) -> bool:
    """Whether a class may occur; masks are not read for it."""
    if targets is None or isinstance(targets, Masks):
        return targets is not None
    if _is_matrix(targets):
        return number < targets.shape[1] and bool(targets[:, number].any())
    return bool((targets == number).any())


def _is_matrix(targets: NDArray[Any]) -> bool:
    return targets.ndim == 2 and targets.shape[1] > 1


def _mapped(points: Points, table: NDArray[np.int64]) -> Any:
    """The targets with the numbers of the table, or with their columns in its order."""
    y = points.targets
    if y is None:
        return None
    if isinstance(y, Masks):
        return y.renumbered(table)
    if _is_matrix(y):  # one-hot rows, or several labels
        return y if sorted(table) != list(range(y.shape[1])) else y[:, np.argsort(table)]
    outside = (y < 0) | (y >= len(table)) | (y != np.floor(y))
    if outside.any():
        raise DataError(
            f"{points.reference}: has the label {y[outside][0]:g}, which is none of its {len(table)} classes "
            f"({listed(points.classes or (), most=_LISTED)}), numbered from 0."
        )
    return table[y.astype(np.int64)].astype(y.dtype)


class Fingerprints:
    """A set whose points are to be compared with those of others: the hash of each row of an array, in float32 unless
    that merges points, or by its bytes; and the files of a size, of which only those are read that another set has of
    the same size."""

    def __init__(self, points: Points) -> None:
        self._points, self._inputs = points, points.inputs
        self._contents: dict[int, int] = {}
        self._hashed: dict[type, list[int]] = {}  # of each row, in this type
        self._sets: dict[type, set[int]] = {}

    def shared_with(self, others: Fingerprints) -> tuple[int, int]:
        """How many of these points are among the `others`, and how many were compared: none where one of the two is
        neither an array nor files, and a random part of many files."""
        if isinstance(self._inputs, np.ndarray) and isinstance(others._inputs, np.ndarray):
            kinds = {self._inputs.dtype, others._inputs.dtype}
            are_wide = kinds == {np.dtype(np.float64)} and (self._merges or others._merges)
            dtype = np.float64 if are_wide else np.uint8 if kinds == {np.dtype(np.uint8)} else np.float32
            rows, known = self._rows(dtype), others._distinct(dtype)
            return sum(row in known for row in rows), len(rows)
        matches = list(self._matching_files(others))
        return sum(matches), len(matches)

    def _matching_files(self, others: Fingerprints) -> Iterator[bool]:
        budget = _READ
        if self._sizes and others._sizes:
            sizes = [(row, size) for size, rows in self._sizes.items() for row in rows]
            for number in np.random.default_rng(0).permutation(len(sizes)):
                row, size = sizes[number]
                candidates = others._sizes.get(size, [])
                unread = sum(other not in others._contents for other in candidates) + bool(candidates)
                budget -= unread * (size + _OPENED)
                if budget < 0:
                    return
                yield bool(candidates) and self._content(row) in [others._content(other) for other in candidates]

    def _rows(self, dtype: type) -> list[int]:
        if dtype not in self._hashed:
            blocks = (raw.astype(dtype, copy=False) + dtype(0) for raw in self._points.raw_blocks())  # −0 is 0
            if self._points.layout is not None or dtype is np.uint8:  # packed inputs, and pixels of both sets
                blocks = iter([np.asarray(self._inputs)])
            self._hashed[dtype] = [hash(row.tobytes()) for block in blocks for row in block]
        return self._hashed[dtype]

    @property
    def _merges(self) -> bool:
        """Whether points that differ have the same values in float32, as times in seconds do."""
        return len(self._distinct(np.float32)) < len(self._distinct(np.float64))

    def _distinct(self, dtype: type) -> set[int]:
        if dtype not in self._sets:
            self._sets[dtype] = {*self._rows(dtype)}
        return self._sets[dtype]

    @cached_property
    def _sizes(self) -> dict[int, list[int]]:
        """The files of each size; empty where the points are not in files."""
        sizes: dict[int, list[int]] = defaultdict(list)
        if isinstance(self._inputs, Decoded) and self._inputs.source.encoded:
            rows: NDArray[np.int64] = self._inputs.rows
            for row, line in zip(rows.tolist(), self._inputs.listing(), strict=True):
                sizes[int(line.rpartition(b"\0")[2])].append(row)
        return sizes

    def _content(self, row: int) -> int:
        if row not in self._contents:
            assert isinstance(self._inputs, Decoded)
            self._contents[row] = hash(self._inputs.source.content(row))
        return self._contents[row]
