"""Tables: one row a point, one column a feature and one the target, by its name or the last; one may name groups."""

from __future__ import annotations

import contextlib
import csv
import importlib.util
import itertools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bnuq.data.points import Contents
from bnuq.data.readers.common import GROUP, TARGETS, is_index, readable
from bnuq.errors import DataError
from bnuq.files.apart import ask
from bnuq.files.limits import check_memory, check_size
from bnuq.files.mapped import bytes_in_memory
from bnuq.findings import note

_NUMBER_PER_BYTE = 4  # "0," is two bytes of a table, and eight in memory


def read_csv(path: Path, *, group: str = GROUP, target: str | None = None, needs_target: bool = True) -> Contents:
    """A text table separated by commas, semicolons or tabs; its first line may name the columns. `target` names that of
    the targets, which may be words; where the table has none, DataError if it `needs_target`."""
    with readable(path, "a table"), path.open(encoding="utf-8-sig", newline=None) as file:
        check_memory(path, _NUMBER_PER_BYTE * path.stat().st_size, error=DataError)
        first = file.readline()
        separator, fields = fields_of(path, first)
        named = are_names(path, fields)
        rows = (line for line in itertools.chain(() if named else (first,), file) if line.strip())
        if (top := next(rows, None)) is None:
            raise DataError(f"{path}: holds no rows; expected at least one point.")
        names = fields if named else [f"column {index}" for index in range(len(fields))]
        index = [at for at, field in enumerate(fields) if named and is_index(field, at)]
        words = {fields.index(group): Words(group)} if named and group in fields else {}
        columns = [at for at in range(len(names)) if at not in (*words, *index)]
        target_at, is_named = _target_at(path, [names[at] for at in columns], target, needs_target)
        if target_at is not None and is_word(next(csv.reader([top], delimiter=separator)), columns[target_at]):
            words[columns[target_at]] = Words("label")
        converters = {at: column.number for at, column in words.items()} | dict.fromkeys(index, lambda _: 0.0)
        table = numbers_of(path, itertools.chain((top,), rows), separator, converters, names)
    _check_columns(path, table, names, group)
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


def _check_columns(path: Path, table: NDArray[Any], names: Sequence[str], group: str) -> None:
    if table.shape[1] != len(names):
        raise DataError(f"{path}: the header names {len(names)} columns and the rows have {table.shape[1]}.")
    if names.count(group) > 1:
        raise DataError(f"{path}: has {names.count(group)} columns called {group!r}; expected one.")


def is_word(values: Sequence[str], at: int) -> bool:
    return at < len(values) and not _is_number(values[at])


def fields_of(path: Path, line: str) -> tuple[str, list[str]]:
    """The separator of a table and the fields of its first line."""
    for separator in (",", ";", "\t"):
        if separator in line:
            return separator, [field.strip().strip('"') for field in line.rstrip("\n").split(separator)]
    raise DataError(f"{path}: its first line has no comma, semicolon or tab; expected a table of numbers.")


def numbers_of(
    path: Path, lines: Iterable[str], separator: str, converters: Mapping[int, Callable[[str], float]], names: list[str]
) -> NDArray[np.float64]:
    """The rows of a table as numbers; DataError for a text that no converter makes one."""
    converting: Any = converters  # numpy's types know no functions of texts
    try:
        return np.loadtxt(
            lines,
            delimiter=separator,
            ndmin=2,
            comments=None,
            quotechar='"',
            dtype=np.float64,
            converters=converting,
            encoding=None,
        )
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: is not a text in UTF-8 ({error.reason}). Save the table as UTF-8.") from error
    except ValueError as error:
        raise DataError(f"{path}: {_what_is_no_number(str(error), names)}") from error


@dataclass
class Words:
    """A column of words, which are numbered as they occur."""

    what: str
    codes: dict[str, int] = field(default_factory=dict)

    def number(self, text: str) -> float:
        if not text.strip():
            raise ValueError(f"a row without a {self.what}")
        return self.codes.setdefault(text.strip(), len(self.codes))


def are_names(path: Path, fields: Sequence[str]) -> bool:
    """Whether the first line names the columns; numbers and a last word, such as the class of a flower, are a row.
    DataError where it may be either."""
    if len(fields) > 2 and fields == list(map(str, range(len(fields)))):  # a pair, 0 and 1, is as likely a row
        raise DataError(
            f"{path}: its first line numbers the columns from 0 to {len(fields) - 1}, as pandas does where they "
            "have no names, and may be a point as well. Name the columns there, or take the line out."
        )
    *features, last = fields
    if not features or not all(map(_is_number, features)):
        return not all(map(_is_number, fields))
    return not _is_number(last) and (last.lower() in TARGETS or features == list(map(str, range(len(features)))))


def _what_is_no_number(reason: str, names: Sequence[str]) -> str:
    """What numpy could not read as a number, by its `reason`, with its column and its row, and what to do."""
    match = re.fullmatch(r"could not convert string '(.*)' to float64 at row (\d+), column (\d+)\.?", reason, re.DOTALL)
    if match is None:
        return f"{reason.partition(';')[0].rstrip('.')} (rows are counted from 0 without the header)."
    text, row, at = match[1].strip(), match[2], int(match[3]) - 1
    column = _column(names[at] if at < len(names) else f"column {at}")
    if text.lower() in _MISSING:
        return _missing(column, row)
    return (
        f"{column} holds words, first {text[:50]!r} in row {row} (counted from 0 without the header); expected "
        f"numbers. {WORDS_IN_TABLES}"
    )


_MISSING = ("", "na", "n/a", "#n/a", "<na>", "null", "none", "nil", "?", "-", "--", ".")
WORDS_IN_TABLES = (
    "Leave the column out, or encode it as in training (one-hot) in a function that gives (x, y): --test "
    "file.py:function. If it is the target, or names groups of points, say so: --target COLUMN, --group COLUMN."
)


def _missing(column: str, row: int | str, value: float = np.nan) -> str:
    return (
        f"{column} has {'no value' if np.isnan(value) else value} in row {row} (counted from 0 without the header). "
        "Fill in what was used in training, or leave the row, or the column, out."
    )


def _column(name: str) -> str:
    """A column in a message: `column 'age'`, or `column 3` where the table names none."""
    return name if re.fullmatch(r"column \d+", name) else f"column {name[:200]!r}"


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
        raise DataError(f"{path}: {_missing(_column(names[at]), row, values[row, at])}")


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


def _is_number(field: str) -> bool:
    try:
        float(field)
    except ValueError:
        return False
    return True
