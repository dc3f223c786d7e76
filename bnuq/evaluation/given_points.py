"""The points that given predictions are of: their labels, ids and groups, matched with the predictions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bnuq.config import ScoreSection
from bnuq.data import Points, check_label_matrix, check_labels, check_targets, load_points
from bnuq.data.common_layout import group_codes
from bnuq.data.readers.columns import Columns, read_columns
from bnuq.data.readers.common import listed
from bnuq.errors import DataError, RequestError
from bnuq.evaluation.given import GROUPS, IDS, LABELS, GivenSet, column_of
from bnuq.files.content import exists, is_file
from bnuq.files.folders import expanded
from bnuq.findings import Finding, note
from bnuq.frozen import frozen
from bnuq.shapes import Int64
from bnuq.tasks import CLASSIFICATION, MULTILABEL, REGRESSION, Task

Source = Path | str | Columns  # a file, a reference, or what is in memory
_MOST_CLASSES = 1000  # texts that classes are numbered by, where the predictions name none


@frozen
class Truth:
    """Labels or targets with the ids and the groups that stand beside them."""

    source: str
    values: NDArray[Any]
    found: str
    ids: NDArray[Any] | None = None
    group: NDArray[Any] | None = None
    classes: tuple[str, ...] = ()


def columns_at(source: Source) -> tuple[Columns, str | None]:
    """What a file holds, and the column that is named after a colon: FILE:COLUMN."""
    if isinstance(source, Columns):
        return source, None
    path = Path(expanded(str(source)))
    if exists(path):
        return read_columns(path), None
    file, colon, column = str(source).rpartition(":")
    if colon and exists(Path(expanded(file))):
        return read_columns(Path(expanded(file))), column
    return read_columns(path), None


def truth_of(labels: Source | None, first: Columns, section: ScoreSection) -> Truth:
    """The labels of a request, which may stand beside the first predictions; DataError if there are none."""
    if labels is None:
        if (name := first.named(LABELS)) is None:
            raise DataError(
                f"{first.source}: has no array or column of labels; it has {listed(list(first.values))}. "
                + "Its first line names no columns: write one above it, such as prob_cat,prob_dog,label. "
                * ("column 0" in first.values)
                + "Labels of another file are named by --labels REF."
            )
        return _truth(first, name, section)
    if isinstance(labels, str | Path) and not exists(Path(expanded(str(labels).partition(":")[0]))):
        points = load_points(str(labels), name="test", base=Path.cwd(), split_default="test")
        if points.targets is None:
            raise DataError(f"{labels}: has no labels.")
        group = None if points.group is None else points.group_of_point
        return Truth(f"{labels}", points.targets, "labels", None, group, tuple(points.classes or ()))
    columns, column = columns_at(labels)
    name = column or columns.named(LABELS)
    if name is None and len(columns.values) == 1:
        name = next(iter(columns.values))
    if name is None:
        raise DataError(
            f"{columns.source}: no array or column is called label, labels, target or y; name it: FILE:COLUMN."
        )
    return _truth(columns, name, section)


def _truth(columns: Columns, name: str, section: ScoreSection) -> Truth:
    group, ids = _beside(columns, section.groups, GROUPS), _beside(columns, section.ids, IDS)
    classes = columns.values.get("classes")
    names = () if classes is None or classes.dtype.kind != "U" else tuple(classes.tolist())
    return Truth(columns.source, columns[name], f"{name!r}" if name else "its array", ids, group, names)


def _beside(columns: Columns, requested: str | None, names: Sequence[str]) -> NDArray[Any] | None:
    """The column that was requested, or of one of these names; None where this file has none."""
    return None if requested not in (None, *columns.values) else column_of(columns, requested, names)


def task_of(truth: Truth, first: Columns, requested: str | None) -> Task:
    """The task by the labels: a regression for fractions, several labels for columns of 0 and 1."""
    if requested is not None:
        return {"classification": CLASSIFICATION, "multilabel": MULTILABEL, "regression": REGRESSION}[requested]
    values = truth.values
    if values.dtype.kind not in "fiub":
        return CLASSIFICATION
    is_binary = values.ndim == 2 and values.shape[1] > 1 and bool(np.isin(values, (0, 1)).all())
    if is_binary:
        return CLASSIFICATION if bool((values.sum(1) == 1).all()) else MULTILABEL
    finite = values[np.isfinite(values)]
    whole = values.ndim == 1 and bool((finite == np.round(finite)).all())
    spread = (
        first.named(("sigma", "std", "quantiles")) is not None and first.named(("mean", "mu", "levels")) is not None
    )
    return REGRESSION if spread or not whole else CLASSIFICATION


def matched(given: GivenSet, truth: Truth, section: ScoreSection) -> tuple[GivenSet, tuple[Finding, ...]]:
    """The predictions in the order of the labels: by ids where both have them, else row by row; DataError where they
    are of other points."""
    columns, source = given.columns, given.columns.source
    ids = _beside(columns, section.ids, IDS)
    findings: tuple[Finding, ...] = ()
    if ids is not None and truth.ids is not None and len(ids) == len(given):
        given = given.taken(_rows_by_id(_texts(ids), _texts(truth.ids), source, truth.source))
    elif len(given) != len(truth.values):
        raise DataError(
            f"{source}: holds predictions of {len(given)} points ({given.found}), and {truth.source} "
            f"{len(truth.values)} labels; expected as many, in one order, or ids in both (--ids COLUMN)."
        )
    elif section.ids is not None:
        raise DataError(f"--ids {section.ids}: no such column in both {source} and {truth.source}.")
    elif (ids is None) != (truth.ids is None) and source != truth.source:
        findings = (note("ids-in-one-file", file=Path(source if ids is not None else truth.source).name),)
    own = columns.named(LABELS)
    if own is not None and source != truth.source and ids is None and len(columns[own]) == len(truth.values):
        comparable = truth.values.ndim == 1 == columns[own].ndim  # and none of them one-hot rows
        differing = _texts(columns[own]) != _texts(truth.values) if comparable else np.zeros(1, bool)
        if differing.any():
            row = int(np.flatnonzero(differing)[0])
            raise DataError(
                f"{source}: row {row} (counted from 0) has the label {columns[own][row]}, and {truth.source} "
                f"{truth.values[row]}; expected one order, or ids in both (--ids COLUMN)."
            )
    return given, findings


def _texts(values: NDArray[Any]) -> NDArray[Any]:
    """Values as texts, whole numbers without a fraction."""
    if values.dtype.kind == "f" and bool(np.isfinite(values).all()) and bool((values == np.round(values)).all()):
        values = values.astype(np.int64)
    return values.astype(str)


def _rows_by_id(
    ids: NDArray[Any], wanted: NDArray[Any], source: str, labels: str, *, all_of_them: bool = True
) -> Int64[np.ndarray, " point"]:
    """The row of each id that is wanted; DataError where ids occur twice, or are not the same, or only not there."""
    for name, texts in ((source, ids), (labels, wanted)):
        values, counts = np.unique(texts, return_counts=True)
        if counts.max() > 1:
            raise DataError(
                f"{name}: the id {str(values[counts > 1][0])!r} occurs {counts.max()} times; expected once."
            )
    both = (source, labels, ids, wanted), (labels, source, wanted, ids)
    for name, other, there, needed in both if all_of_them else both[:1]:
        if (missing := np.setdiff1d(needed, there)).size:
            raise DataError(
                f"{name}: {len(missing)} of the ids of {other} are not there, first {str(missing[0])!r}; expected the "
                "same ids in both."
            )
    order = np.argsort(ids, kind="stable")
    return order[np.searchsorted(ids[order], wanted)]


def labelled_points(truth: Truth, given: GivenSet, task: Task, *, name: str, classes: Sequence[str]) -> Points:
    """The points with these labels, in the numbers of the classes; DataError for labels that do not fit."""
    outputs, findings = given.values.shape[2], ()
    values: Any = truth.values
    if values.dtype.kind not in "fiub" or (task.classifies_points and values.ndim == 1 and _are_texts(classes)):
        values, classes = _numbered(values, classes, outputs, truth)
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        row = int(np.argwhere(~np.isfinite(values))[0][0])
        raise DataError(f"{truth.source}: {truth.found} has no finite number in row {row} (counted from 0).")
    numbers, names = _numbered_groups(truth.group, len(truth.values), truth.source)
    as_floats = values.dtype.kind == "f" or (task.classifies_points and values.ndim > 1)  # such as one-hot
    points = Points(
        name,
        truth.source,
        np.arange(len(values)) if truth.ids is None else _texts(truth.ids),
        np.atleast_2d(values.T).T.astype(np.float64) if as_floats else values.astype(np.int64),
        numbers,
        tuple(classes) or None,
        findings,
        group_names=names,
        names=None if truth.ids is None else _texts(truth.ids).astype(object),
    )
    if task.is_regression:
        return check_targets(points, 1 if given.levels is not None else outputs)
    return check_labels(points, outputs) if task.classifies_points else check_label_matrix(points, outputs)


def _are_texts(classes: Sequence[str]) -> bool:
    """Whether the names of the classes say which number each is in the labels: 1, 2, 3 do where labels are from 1."""
    return (
        bool(classes)
        and all(name.lstrip("-").isdigit() for name in classes)
        and [*classes] != [*map(str, range(len(classes)))]
    )


def _numbered(
    values: NDArray[Any], classes: Sequence[str], outputs: int, truth: Truth
) -> tuple[NDArray[Any], Sequence[str]]:
    """The class of each label by its name, in the order that the predictions name them, else sorted."""
    texts = _texts(values)
    present, numbers = np.unique(texts, return_inverse=True)
    names = list(classes or truth.classes or (present[:_MOST_CLASSES].tolist() if len(present) == outputs else ()))
    if len(names) != outputs:
        raise DataError(
            f"{truth.source}: {truth.found} holds {len(present)} names, such as {str(present[0])!r}, and the "
            f"predictions have {outputs} columns without them. Name the classes in their order: --classes NAME,NAME."
        )
    if unknown := [text for text in present.tolist() if text not in names]:
        raise DataError(
            f"{truth.source}: {truth.found} holds {unknown[0]!r}, which is no class of the predictions "
            f"({', '.join(names[:20])})."
        )
    return np.array([names.index(text) for text in present.tolist()])[numbers], names


def _numbered_groups(
    values: NDArray[Any] | None, points: int, source: str
) -> tuple[Int64[np.ndarray, " point"] | None, tuple[str, ...]]:
    """The number of the group of each point, and the names of the groups; DataError for a point without one."""
    if values is None:
        return None, ()
    if values.dtype.kind not in "fiubUS":
        values = np.array(["" if value is None or value != value else str(value) for value in values.flat])  # NaN
    return group_codes(values, points, source)


def groups_file(section: ScoreSection, first: Columns) -> Truth | None:
    """The groups in a file of their own, with the ids beside them; None where the request names no such file."""
    reference = section.groups or ""
    files = (Path(expanded(file)) for file in (reference, reference.rpartition(":")[0]) if file)
    if reference in first.values or not any(map(is_file, files)):
        return None
    columns, column = columns_at(reference)
    return _truth(columns, column or columns.named(GROUPS) or next(iter(columns.values), ""), section)


def with_groups(given: GivenSet, section: ScoreSection) -> GivenSet:
    """These predictions with the groups that stand beside them; DataError where these are not one for each point."""
    group = _beside(given.columns, section.groups, GROUPS)
    if group is not None and group.shape != (len(given),):
        shape = f"the groups have shape {group.shape}; expected one for each of {len(given)} points"
        raise DataError(f"{given.columns.source}: {shape} ({given.found}).")
    return replace(given, group=group)


def grouped(
    truth: Truth, predictions: Sequence[GivenSet], elsewhere: Truth | None, section: ScoreSection, *, is_test: bool
) -> Truth:
    """The labels of a set with its groups: those `elsewhere`, by ids where both have them, else of the test set; those
    beside the labels; or beside the first predictions that have any. RequestError where the test set has none of the
    name that the request says."""
    group = next((group for group in (truth.group, *(each.group for each in predictions)) if group is not None), None)
    ids = _beside(predictions[0].columns, section.ids, IDS) if truth.ids is None else truth.ids
    if elsewhere is not None and elsewhere.ids is not None and ids is not None:
        there, wanted = _texts(elsewhere.ids), _texts(ids)
        if is_test or np.isin(wanted, there).all():
            group = elsewhere.values[_rows_by_id(there, wanted, elsewhere.source, truth.source, all_of_them=False)]
    elif elsewhere is not None and is_test:
        group = elsewhere.values
    if group is None and section.groups is not None and is_test:
        files = " and ".join(dict.fromkeys((truth.source, *(each.columns.source for each in predictions))))
        raise RequestError(f"--groups {section.groups}: is neither a file nor a column of {files}.")
    return replace(truth, group=group)


def unlabelled_points(given: GivenSet, name: str, section: ScoreSection) -> Points:
    """The points of a set that is to be separated from the test set."""
    ids = _beside(given.columns, section.ids, IDS)
    texts = None if ids is None or len(ids) != len(given) else _texts(ids)
    inputs = np.arange(len(given)) if texts is None else texts
    names = None if texts is None else texts.astype(object)
    group, group_names = _numbered_groups(given.group, len(given), given.columns.source)
    return Points(name, given.columns.source, inputs, group=group, group_names=group_names, names=names)


def read_notes(sets: dict[str, GivenSet], truth: Truth) -> Iterator[Finding]:
    """A note on what was taken for the predictions and the labels."""
    for name, given in sets.items():
        file = Path(given.columns.source).name
        yield note("predictions-found", file=file, of=name, found=given.found, shape=list(given.values.shape))
    yield note("labels-found", file=Path(truth.source).name, found=truth.found)
