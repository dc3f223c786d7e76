"""Tables: one row a point, one column a feature and one the target, by its name or the last; one may name groups."""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bnuq.data.points import Contents
from bnuq.data.readers.common import GROUP, TARGETS, is_index, position_of, readable
from bnuq.data.readers.delimited import (
    MISSING_VALUES,
    WORDS_IN_TABLES,
    Words,
    column_named,
    delimited,
    places,
    unusable,
)
from bnuq.errors import DataError
from bnuq.files.apart import ask
from bnuq.files.limits import check_memory, check_size
from bnuq.files.mapped import bytes_in_memory
from bnuq.findings import note

_NUMBER_PER_BYTE = 4  # "0," is two bytes of a table, and eight in memory


def read_csv(path: Path, *, group: str = GROUP, target: str | None = None, needs_target: bool = True) -> Contents:
    """A text table separated by commas, semicolons or tabs; its first line may name the columns. `target` names that of
    the targets, which may be words; where the table has none, DataError if it `needs_target`."""
    check_memory(path, _NUMBER_PER_BYTE * path.stat().st_size, error=DataError)
    with delimited(path) as text:
        if text.separator is None:
            raise DataError(f"{path}: its first line has no comma, semicolon or tab; expected a table of numbers.")
        names = text.names
        index = [at for at, name in enumerate(names) if text.named and is_index(name, at)]
        words = {position_of(path, names, group): Words(group)} if text.named and group in names else {}
        columns = [at for at in range(len(names)) if at not in (*words, *index)]
        label, by_position = _target_at(path, names, columns, target, needs_target)
        if label is not None and text.has_word(label):
            words[label] = Words("label")
        table = text.numbers({at: column.number for at, column in words.items()} | dict.fromkeys(index, lambda _: 0.0))
    features = [at for at in columns if at != label]
    targets = None if label is None else words[label].of(table[:, label]) if label in words else table[:, [label]]
    groups = next((_group_of_texts(words[at])[table[:, at].astype(np.intp)] for at in words if at not in columns), None)
    contents = Contents(table.take(features, axis=1), targets, groups, target_by_position=by_position)
    return _checked(path, contents, names, features, label, [names[at] for at in index])


def read_parquet(path: Path, *, group: str = GROUP, target: str | None = None, needs_target: bool = True) -> Contents:
    """A parquet table of numeric columns; those of the groups and the targets may hold words. `target` and
    `needs_target` are those of `read_csv`."""
    header, location, groups, targets, classes = header_of(path), str(path.absolute()), None, None, None
    with readable(path, "parquet"):
        names, size = header["names"], header["bytes"]
        index = [name for at, name in enumerate(names) if is_index(name, at)]
        columns = [at for at, name in enumerate(names) if name not in (group, *index)]
        label, by_position = _target_at(path, names, columns, target, needs_target)
        features = [at for at in columns if at != label]
        if wrong := [names[at] for at in features if names[at] in header["not numbers"]]:
            columns_of_words = [(f"{column_named(name)} does not hold numbers", WORDS_IN_TABLES) for name in wrong]
            raise DataError(unusable(path, columns_of_words))
        check_size(path, size, stored=path.stat().st_size, error=DataError, memory=False)
        check_memory(path, bytes_in_memory(8 * header["rows"] * len(columns)), error=DataError)
        if group in names:
            words, codes = ask("parquet values", location, group, size)
            values = [words[at] for at in codes]  # texts that occur often are kept once
            absent = next((row for row, value in enumerate(values) if value is None or value != value), None)
            if absent is not None:
                raise DataError(f"{path}: row {absent} (counted from 0) has no {group}.")
            groups = _group_of_values(values)
        inputs = ask("parquet numbers", location, [names[at] for at in features], size)
        if label is not None:
            targets, classes = labels_in_column(path, names[label], header)
            targets = targets if targets.dtype == object else targets[:, None]
        contents = Contents(inputs, targets, groups, classes, target_by_position=by_position)
        return _checked(path, contents, names, features, label, index)


def header_of(path: Path) -> dict[str, Any]:
    """What a parquet file declares; DataError where there is no pyarrow to read it with."""
    if not _can_read_parquet():
        raise DataError(
            f'{path}: reading parquet needs pyarrow. Install it with `pip install "bnuq[parquet]"`, or convert to .csv.'
        )
    with readable(path, "parquet"):
        return ask("parquet", str(path.absolute()))


def labels_in_column(path: Path, name: str, header: Mapping[str, Any]) -> tuple[NDArray[Any], tuple[str, ...] | None]:
    """The numbers or the texts in a column, and the names of the classes that the schema gives to its numbers."""
    if name not in header["not numbers"]:
        numbers = ask("parquet numbers", str(path.absolute()), [name], header["bytes"])[:, 0]
        classes = header["classes"].get(name)
        return numbers, None if classes is None else tuple(classes)
    values, codes = ask("parquet values", str(path.absolute()), name, header["bytes"])
    texts = ["" if values[code] is None else str(values[code]) for code in codes]
    return np.array(texts, dtype=object), None


def _can_read_parquet() -> bool:
    try:
        return importlib.util.find_spec("pyarrow.parquet") is not None
    except (ImportError, ValueError):
        return False


def _group_of_texts(words: Words) -> NDArray[Any]:
    """Whole numbers where every text is one as it is written, else the texts: 1, 01 and 1.0 are three groups."""
    texts, numbers = list(words.codes), []
    with contextlib.suppress(ValueError):
        numbers = [int(text) for text in texts]
    return _group_of_values(numbers if [str(number) for number in numbers] == texts else texts)


def _group_of_values(values: Sequence[Any]) -> NDArray[Any]:
    """Values of one kind as they are, none rounded to another; texts where numpy has no such kind."""
    if all(isinstance(value, int) for value in values):  # 64 bits: floats tell whole numbers apart below 2^53 alone
        for dtype in (np.int64, np.uint64):
            with contextlib.suppress(OverflowError):
                return np.asarray(values, dtype=dtype)
    if all(isinstance(value, float) for value in values):
        return np.asarray(values, dtype=np.float64)
    return np.array([str(value) for value in values], dtype=object)  # each text has its own length


def _checked(
    path: Path, contents: Contents, names: Sequence[str], features: Sequence[int], label: int | None, index: list[str]
) -> Contents:
    """The points of a table whose inputs are the columns `features`, with notes on its other columns. DataError for
    missing numbers."""
    checked: list[tuple[Any, Sequence[int]]] = [(contents.inputs, features)]
    findings = [note("index-column", column=name) for name in index]
    if label is not None and contents.targets is not None:
        last = label > max(features)
        findings.append(note("target-column", column=names[label], last=last))
        checked += [(contents.targets.reshape(-1, 1), [label])] * (contents.targets.dtype.kind == "f")
    problems = []
    for values, columns in checked:
        finite = np.isfinite(values)
        for at in map(int, np.flatnonzero(~finite.all(axis=0))):
            rows = places("row", np.flatnonzero(~finite[:, at]).tolist())
            problems.append((f"{column_named(names[columns[at]])} has no value in {rows} (from 0)", MISSING_VALUES))
    if problems:
        raise DataError(unusable(path, problems))
    return replace(contents, findings=tuple(findings))


def _target_at(
    path: Path, names: Sequence[str], columns: Sequence[int], requested: str | None, needs_target: bool
) -> tuple[int | None, bool]:
    """Which of these columns is the target, None where there is none and none is needed; and whether its position alone
    says so."""
    among = [names[at] for at in columns]
    if requested is not None and requested not in among and not needs_target:
        return None, False
    if len(among) < 2:
        raise DataError(f"{path}: has only {len(among)} column(s); expected features and, last, the target.")
    at, is_named = _target(path, among) if requested is None else (position_of(path, among, requested), True)
    return columns[at], not is_named


def _target(path: Path, names: Sequence[str]) -> tuple[int, bool]:
    """The column of the target: the last, unless another alone has a target's name; and whether the name says so."""
    last = len(names) - 1
    lower = [name.strip().lower() for name in names]
    called = [at for at, name in enumerate(lower) if name in TARGETS and not (name == "y" and "x" in lower[:at])]
    if (count := names.count(names[last])) > 1 and last in called:
        raise DataError(f"{path}: has {count} columns called {names[last]!r}, a target's name; expected one.")
    if not called or last in called:
        return last, last in called or lower[last] in TARGETS
    if len(called) > 1:
        raise DataError(
            f"{path}: columns {', '.join(repr(names[at]) for at in called)} all have the name of a target; expected "
            "one. Name it with --target COLUMN, or target under [data]; or move it to the last column."
        )
    return called[0], True
