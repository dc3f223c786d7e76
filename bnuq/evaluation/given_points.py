"""The points that given predictions are of: their labels, ids and groups, matched with the predictions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bnuq.config import ScoreSection
from bnuq.data import Points, check_label_matrix, check_labels, check_targets, load_points
from bnuq.data.readers.columns import Columns, read_columns
from bnuq.data.readers.common import listed
from bnuq.errors import DataError, RequestError
from bnuq.evaluation.given import GROUPS, IDS, LABELS, GivenSet, column_of
from bnuq.files.content import exists
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
        return Truth(f"{labels}", points.targets, "labels", None, points.group, tuple(points.classes or ()))
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
    group = None if section.groups not in (None, *columns.values) else column_of(columns, section.groups, GROUPS)
    ids = None if section.ids not in (None, *columns.values) else column_of(columns, section.ids, IDS)
    classes = columns.values.get("classes")
    names = () if classes is None or classes.dtype.kind != "U" else tuple(classes.tolist())
    return Truth(columns.source, columns[name], f"{name!r}" if name else "its array", ids, group, names)


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
    ids = None if section.ids not in (None, *columns.values) else column_of(columns, section.ids, IDS)
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


def _rows_by_id(ids: NDArray[Any], wanted: NDArray[Any], source: str, labels: str) -> Int64[np.ndarray, " point"]:
    """The row of each id that is wanted; DataError where ids occur twice, or are not the same."""
    for name, texts in ((source, ids), (labels, wanted)):
        values, counts = np.unique(texts, return_counts=True)
        if counts.max() > 1:
            raise DataError(
                f"{name}: the id {str(values[counts > 1][0])!r} occurs {counts.max()} times; expected once."
            )
    for name, other, there, needed in ((source, labels, ids, wanted), (labels, source, wanted, ids)):
        if (missing := np.setdiff1d(needed, there)).size:
            raise DataError(
                f"{name}: {len(missing)} of the ids of {other} are not there, first {str(missing[0])!r}; expected the "
                "same ids in both."
            )
    order = np.argsort(ids, kind="stable")
    return order[np.searchsorted(ids[order], wanted)]


def labelled_points(
    truth: Truth, given: GivenSet, task: Task, section: ScoreSection, *, name: str, classes: Sequence[str]
) -> Points:
    """The points with these labels, in the numbers of the classes; DataError for labels that do not fit."""
    outputs, group, findings = given.values.shape[2], _group(truth, given, section), ()
    values: Any = truth.values
    if values.dtype.kind not in "fiub" or (task.classifies_points and values.ndim == 1 and _are_texts(classes)):
        values, classes = _numbered(values, classes, outputs, truth)
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        row = int(np.argwhere(~np.isfinite(values))[0][0])
        raise DataError(f"{truth.source}: {truth.found} has no finite number in row {row} (counted from 0).")
    numbers, names = (None, ()) if group is None else (group[1], group[0])
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


def _group(truth: Truth, given: GivenSet, section: ScoreSection) -> tuple[tuple[str, ...], NDArray[np.int64]] | None:
    """The names of the groups, and the group of each point; RequestError where those that were named are nowhere."""
    values = truth.group
    if values is None and section.groups is not None:
        columns, column = (given.columns, section.groups)
        if section.groups not in columns.values:
            columns, column = columns_at(section.groups)
            column = column or columns.named(GROUPS) or next(iter(columns.values), "")
        values = columns[column]
    if values is None and (name := given.columns.named(GROUPS)) is not None and given.columns.source == truth.source:
        values = given.columns[name]
    if values is None:
        return None
    if len(values) != len(truth.values):
        raise RequestError(
            f"--groups: there are {len(values)} groups and {len(truth.values)} labels; expected as many."
        )
    names, numbers = np.unique(_texts(values), return_inverse=True)
    return tuple(names.tolist()), numbers.astype(np.int64)


def unlabelled_points(given: GivenSet, name: str, section: ScoreSection) -> Points:
    """The points of a set that is to be separated from the test set."""
    ids = None if section.ids not in (None, *given.columns.values) else column_of(given.columns, section.ids, IDS)
    texts = None if ids is None or len(ids) != len(given) else _texts(ids)
    inputs = np.arange(len(given)) if texts is None else texts
    return Points(name, given.columns.source, inputs, names=None if texts is None else texts.astype(object))


def read_notes(sets: dict[str, GivenSet], truth: Truth) -> Iterator[Finding]:
    """A note on what was taken for the predictions and the labels."""
    for name, given in sets.items():
        file = Path(given.columns.source).name
        yield note("predictions-found", file=file, of=name, found=given.found, shape=list(given.values.shape))
    yield note("labels-found", file=Path(truth.source).name, found=truth.found)
