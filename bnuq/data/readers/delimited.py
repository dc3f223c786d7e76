"""Delimited text: separators, headers and cells in one place, for points, lists of pictures and predictions."""

from __future__ import annotations

import contextlib
import csv
import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bnuq.data.readers.common import TARGETS, readable
from bnuq.errors import DataError

_LOOKED_AT = 20  # lines that the separator is seen from
_NO_NUMBER = re.compile(r"could not convert string '(.*)' to float64 at row (\d+), column (\d+)\.?", re.DOTALL)


class NoNumberError(DataError):
    """A cell that is no number, and its column."""

    def __init__(self, message: str, text: str, column: int) -> None:
        super().__init__(message)
        self.text, self.column = text, column


@dataclass
class Words:
    """A column of words, which are numbered as they occur."""

    what: str
    codes: dict[str, int] = field(default_factory=dict)

    def number(self, text: str) -> float:
        if not text.strip():
            raise ValueError(f"a row without a {self.what}")
        return self.codes.setdefault(text.strip(), len(self.codes))

    def of(self, numbers: NDArray[np.float64]) -> NDArray[Any]:
        """The words of these numbers."""
        return np.array(list(self.codes), dtype=object)[numbers.astype(np.intp)]


@dataclass
class Delimited:
    """An open text: the `names` of its columns, and whether its first line says them; the cells of its `first` row; and
    the `lines` of all rows, which are read once. Without a `separator` a line is one cell."""

    path: Path
    separator: str | None
    names: list[str]
    named: bool
    first: list[str]
    lines: Iterator[str]

    def has_word(self, column: int) -> bool:
        """Whether the cell of the first row in this column is no number."""
        return column < len(self.first) and not _is_number(self.first[column])

    def rows(self) -> Iterator[list[str]]:
        """The cells of each row, without the space around them."""
        for row in csv.reader(self.lines, delimiter=self.separator or ",", strict=True):
            yield [cell.strip() for cell in row]

    def numbers(self, converters: Mapping[int, Callable[[str], float]]) -> NDArray[np.float64]:
        """The rows as numbers; NoNumberError for a cell that no converter makes one, DataError for uneven rows."""
        converting: Any = converters  # numpy's types know no functions of texts
        options: dict[str, Any] = {"comments": None, "quotechar": '"', "encoding": None, "ndmin": 2}
        try:
            table = np.loadtxt(self.lines, delimiter=self.separator or ",", converters=converting, **options)
        except UnicodeDecodeError:
            raise
        except ValueError as error:
            raise self._no_number(str(error)) from error
        if table.shape[1] != len(self.names):
            halves = " Is a comma a decimal one? Write numbers with a point." * (table.shape[1] == 2 * len(self.names))
            raise DataError(
                f"{self.path}: the header names {len(self.names)} columns and the rows have {table.shape[1]}.{halves}"
            )
        return table

    def _no_number(self, reason: str) -> DataError:
        """What numpy could not read as a number, by its `reason`, with its column and its row, and what to do."""
        if (match := _NO_NUMBER.fullmatch(reason)) is None:
            reason = reason.partition(";")[0].rstrip(".")
            return DataError(f"{self.path}: {reason} (rows are counted from 0 without the header).")
        text, row, at = match[1].strip(), match[2], int(match[3]) - 1
        column = column_named(self.names[at] if at < len(self.names) else f"column {at}")
        if text.lower() in _MISSING:
            return DataError(f"{self.path}: {missing(column, row)}")
        where = f"{text[:50]!r} in row {row} (counted from 0 without the header)"
        if _DECIMAL_COMMA.fullmatch(text):
            return DataError(
                f"{self.path}: {column} has {where}: a decimal comma, or one of thousands. Write numbers with a point, "
                f"as pandas does after read_csv(FILE, sep={self.separator!r}, decimal=',')."
            )
        words = f"{self.path}: {column} holds words, first {where}; expected numbers. {WORDS_IN_TABLES}"
        return NoNumberError(words, text, at)


@contextlib.contextmanager
def delimited(
    path: Path, what: str = "a table", *, is_header: Callable[[Sequence[str]], bool] | None = None
) -> Iterator[Delimited]:
    """The text at `path`, open; DataError where it has no rows. `is_header` says whether the fields of the first line
    name the columns, which is else seen from them."""
    with readable(path, what), path.open(encoding="utf-8-sig") as file:
        rest = (line for line in file if line.strip("\n "))
        head = list(itertools.islice(rest, _LOOKED_AT))
        separator, lines = _separator(head), itertools.chain(head, rest)
        fields, taken = _row(lines, separator)
        fields = [field.strip().strip('"') for field in fields]
        named = is_header(fields) if is_header else _are_names(path, fields)
        first, taken = _row(lines, separator) if named else (fields, taken)
        if not taken:
            raise DataError(f"{path}: holds no rows; expected at least one point.")
        names = fields if named else [f"column {number}" for number in range(len(fields))]
        yield Delimited(path, separator, names, named, first, itertools.chain(taken, lines))


def _row(lines: Iterator[str], separator: str | None) -> tuple[list[str], list[str]]:
    """The cells of the next row, and the lines that it takes; none at the end."""
    taken: list[str] = []

    def noted() -> Iterator[str]:
        for line in lines:
            taken.append(line)
            yield line

    return next(csv.reader(noted(), delimiter=separator or ",", strict=True), []), taken


def _separator(head: Sequence[str]) -> str | None:
    """The separator that gives all lines as many cells, of several one that leaves numbers alone; where none does, one
    of the first line."""
    tables = {}
    for separator in (mark for mark in "\t,;" if any(mark in line for line in head)):  # `csv` refuses endless cells
        rows = list(csv.reader(head, delimiter=separator))[: len(head) - (len(head) == _LOOKED_AT)]
        if rows and len(rows[0]) > 1 and len({*map(len, rows)}) == 1:
            tables[separator] = rows
    numeric = (mark for mark, rows in tables.items() if all(map(_is_number, itertools.chain(*rows[1:] or rows))))
    present = (mark for mark in (",", ";", "\t") if head and mark in head[0])
    return next(itertools.chain(numeric, tables, present), None)


def _are_names(path: Path, fields: Sequence[str]) -> bool:
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


_DECIMAL_COMMA = re.compile(r"[+-]?\d+(,\d+)+([eE][+-]?\d+)?")


def _is_number(text: str) -> bool:
    """Whether a cell is a number, also one with a decimal comma, which is no word."""
    try:
        float(text)
    except ValueError:
        return _DECIMAL_COMMA.fullmatch(text.strip()) is not None
    return True


_MISSING = ("", "na", "n/a", "#n/a", "<na>", "null", "none", "nil", "?", "-", "--", ".")
WORDS_IN_TABLES = (
    "Leave the column out, or encode it as in training (one-hot) in a function that gives (x, y): --test "
    "file.py:function. If it is the target, or names groups of points, say so: --target COLUMN, --group COLUMN."
)


def missing(column: str, row: int | str, value: float = np.nan) -> str:
    """The message on a number that is not there."""
    return (
        f"{column} has {'no value' if np.isnan(value) else value} in row {row} (counted from 0 without the header). "
        "Fill in what was used in training, or leave the row, or the column, out."
    )


def column_named(name: str) -> str:
    """A column in a message: `column 'age'`, or `column 3` where the table names none."""
    return name if re.fullmatch(r"column \d+", name) else f"column {name[:200]!r}"
