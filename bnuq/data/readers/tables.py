"""Tables: one row a point, one column a feature and one the target, by its name or the last; one may name groups."""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bnuq.data.points import Contents
from bnuq.data.readers.common import GROUP, TARGETS, is_index, readable
from bnuq.data.readers.delimited import WORDS_IN_TABLES, Words, column_named, delimited, missing
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
        words = {names.index(group): Words(group)} if text.named and group in names else {}
        columns = [at for at in range(len(names)) if at not in (*words, *index)]
        target_at, is_named = _target_at(path, [names[at] for at in columns], target, needs_target)
        if target_at is not None and text.has_word(columns[target_at]):
            words[columns[target_at]] = Words("label")
        table = text.numbers({at: column.number for at, column in words.items()} | dict.fromkeys(index, lambda _: 0.0))
    if names.count(group) > 1:
        raise DataError(f"{path}: has {names.count(group)} columns called {group!r}; expected one.")
    group_columns = [at for at in words if at not in columns]
    groups = [_group_of_texts(list(words[at].codes))[table[:, at].astype(np.intp)] for at in group_columns]

    def read_target(at: int) -> tuple[NDArray[Any], None]:
        column = table[:, [columns[at]]]
        if (texts := words.get(columns[at])) is not None:
            column = np.array(list(texts.codes), dtype=object)[column[:, 0].astype(np.intp)]
        return column, None

    contents = _contents(
        path,
        lambda chosen: table.take([columns[at] for at in chosen], axis=1),
        [names[at] for at in columns],
        next(iter(groups), None),
        (target_at, is_named),
        read_target,
    )
    return _without_index(contents, [names[at] for at in index])


def read_parquet(path: Path, *, group: str = GROUP, target: str | None = None, needs_target: bool = True) -> Contents:
    """A parquet table of numeric columns; those of the groups and the targets may hold words. `target` and
    `needs_target` are those of `read_csv`."""
    header, groups = header_of(path), None
    with readable(path, "parquet"):
        names = header["names"]
        index = [name for at, name in enumerate(names) if is_index(name, at)]
        numeric = [name for name in names if name not in (group, *index)]
        target_at, is_named = _target_at(path, numeric, target, needs_target)
        label = None if target_at is None else numeric[target_at]
        if wrong := [name for name in header["not numbers"] if name not in (group, label, *index)]:
            raise DataError(f"{path}: column {wrong[0][:200]!r} does not hold numbers. {WORDS_IN_TABLES}")
        check_size(path, header["bytes"], stored=path.stat().st_size, error=DataError, memory=False)
        check_memory(path, bytes_in_memory(8 * header["rows"] * len(numeric)), error=DataError)

        def read(columns: list[int]) -> NDArray[Any]:
            return ask("parquet numbers", str(path.absolute()), [numeric[at] for at in columns], header["bytes"])

        if group in names:
            words, codes = ask("parquet values", str(path.absolute()), group, header["bytes"])
            values = [words[at] for at in codes]  # texts that occur often are kept once
            absent = next((row for row, value in enumerate(values) if value is None or value != value), None)
            if absent is not None:
                raise DataError(f"{path}: row {absent} (counted from 0) has no {group}.")
            groups = _group_of_values(values)

        def read_target(at: int) -> tuple[NDArray[Any], tuple[str, ...] | None]:
            labels, classes = labels_in_column(path, numeric[at], header)
            return labels if labels.dtype == object else labels[:, None], classes

        contents = _contents(path, read, numeric, groups, (target_at, is_named), read_target)
        return _without_index(contents, index)


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


def _group_of_texts(texts: Sequence[str]) -> NDArray[Any]:
    """Whole numbers where every text is one as it is written, else the texts: 1, 01 and 1.0 are three groups."""
    try:
        numbers = [int(text) for text in texts]
    except ValueError:
        numbers = []
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


def _contents(
    path: Path,
    read: Callable[[list[int]], NDArray[Any]],
    names: Sequence[str],
    groups: NDArray[Any] | None,
    chosen: tuple[int | None, bool],
    read_target: Callable[[int], tuple[NDArray[Any], tuple[str, ...] | None]],
) -> Contents:
    """The points of a table, of which `read` gives columns by their numbers, and `read_target` that of the targets,
    with the names of its classes; `chosen` is as `_target_at` gives it. DataError for missing numbers."""
    target, is_named = chosen
    columns = [at for at in range(len(names)) if at != target]
    inputs = read(columns)
    _check_all_there(path, inputs, [names[at] for at in columns])
    if target is None:
        return Contents(inputs, None, groups)
    targets, classes = read_target(target)
    if targets.dtype.kind == "f":
        _check_all_there(path, targets.reshape(len(targets), -1), [names[target]])
    return Contents(
        inputs,
        targets,
        groups,
        classes,
        findings=(note("target-column", column=names[target], last=target == len(names) - 1),),
        target_by_position=not is_named,
    )


def _check_all_there(path: Path, values: NDArray[Any], names: Sequence[str]) -> None:
    rows = np.isfinite(values).all(axis=1)
    if not rows.all():
        row = int(rows.argmin())
        at = int(np.isfinite(values[row]).argmin())
        raise DataError(f"{path}: {missing(column_named(names[at]), row, values[row, at])}")


def _without_index(contents: Contents, index: Sequence[str]) -> Contents:
    """The points of a table with notes on the columns that were left out."""
    findings = (*(note("index-column", column=name) for name in index), *contents.findings)
    return replace(contents, findings=findings)


def _target_at(path: Path, names: Sequence[str], requested: str | None, needs_target: bool) -> tuple[int | None, bool]:
    """The column of the target, None where there is none and none is needed; and whether its name says so."""
    if requested is not None and requested not in names and not needs_target:
        return None, False
    if len(names) < 2:
        raise DataError(f"{path}: has only {len(names)} column(s); expected features and, last, the target.")
    return _target(path, names) if requested is None else (_requested(path, names, requested), True)


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


def _requested(path: Path, names: Sequence[str], target: str) -> int:
    """The column that is called `target`; DataError where there is none, or more than one."""
    if (count := names.count(target)) != 1:
        shown = ", ".join(repr(name[:50]) for name in names[:20]) + ", …" * (len(names) > 20)
        called = "no column is" if count == 0 else f"{count} columns are"
        raise DataError(f"{path}: --target is {target!r}, and {called} called so; expected one of {shown}.")
    return names.index(target)
