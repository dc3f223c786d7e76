"""Delimited text: separators, headers and cells in one place, for points, lists of pictures and predictions."""

from __future__ import annotations

import contextlib
import csv
import itertools
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bnuq.data.readers.common import TARGETS, readable
from bnuq.errors import DataError
from bnuq.findings import listed

_LOOKED_AT = 20  # lines that the separator is seen from


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
        """Whether the cell of the first row in this column is not a number."""
        return column < len(self.first) and not _is_number(self.first[column])

    def rows(self) -> Iterator[list[str]]:
        """The cells of each row, without the space around them."""
        for row in csv.reader(self.lines, delimiter=self.separator or ",", strict=True):
            yield [cell.strip() for cell in row]

    def numbers(self, converters: Mapping[int, Callable[[str], float]]) -> NDArray[np.float64]:
        """The rows as numbers; DataError for uneven rows, and for cells that no converter makes a finite number, which
        names all columns of such."""
        converting: Any = converters  # numpy's types know no functions of texts
        options: dict[str, Any] = {"comments": None, "quotechar": '"', "encoding": None, "ndmin": 2}
        try:
            table = np.loadtxt(self.lines, delimiter=self.separator or ",", converters=converting, **options)
        except UnicodeDecodeError:
            raise
        except ValueError as error:
            problems = [*self._problems(converters)] or [(str(error).partition(";")[0], "")]
            raise DataError(unusable(self.path, problems)) from error
        if table.shape[1] != len(self.names):
            halves = " Is a comma a decimal one? Write numbers with a point." * (table.shape[1] == 2 * len(self.names))
            raise DataError(
                f"{self.path}: the header names {len(self.names)} columns and the rows have {table.shape[1]}.{halves}"
            )
        if not np.isfinite(table).all() and (problems := [*self._problems(converters)]):
            raise DataError(unusable(self.path, problems))
        return table

    def _problems(self, converters: Mapping[int, Callable[[str], float]]) -> Iterator[tuple[str, str]]:
        """What is wrong with rows of more or fewer cells, or else with each column that holds something else than
        numbers, by the lines of such cells, and what to do; from the file, as `lines` can be read once."""
        uneven, bad = dict[int, list[int]](), dict[tuple[int, str], tuple[str, list[int]]]()
        rows = numbered_rows(self.path, self.separator)
        for line, row in itertools.islice(rows, int(self.named), None):
            if len(row) != len(self.names):
                uneven.setdefault(len(row), []).append(line)
            for at, cell in enumerate(row[: len(self.names)]):
                if not _is_read(cell, converters.get(at, float)):
                    bad.setdefault((at, _kind(cell)), (cell, []))[1].append(line)
        for cells, lines in uneven.items():
            first = "the header names" if self.named else "the first has"
            yield f"{places('line', lines)} with {cells} cells, where {first} {len(self.names)}", "Give all as many."
        for (at, kind), (text, lines) in sorted(bad.items()) if not uneven else ():
            column = column_named(self.names[at])
            if kind == "comma":
                by_pandas = f"as pandas does after read_csv(FILE, sep={self.separator!r}, decimal=',')"
                remedy = f"A decimal comma, or one of thousands: write numbers with a point, {by_pandas}."
                yield f"{column} has {text[:50]!r} in {places('line', lines)}", remedy
            elif kind != "words":
                yield f"{column} has {kind} in {places('line', lines)}", MISSING_VALUES
            else:
                yield f"{column} holds words, first {text[:50]!r}, in {places('line', lines)}", WORDS_IN_TABLES


def numbered_rows(path: Path, separator: str | None) -> Iterator[tuple[int, list[str]]]:
    """The cells of each row that is not blank, and the line on which it ends, as an editor numbers lines."""
    with path.open(encoding="utf-8-sig") as file:
        numbered, last = ((at, line) for at, line in enumerate(file, 1) if line.strip("\n ")), [0]

        def lines() -> Iterator[str]:
            for last[0], line in numbered:
                yield line

        for row in csv.reader(lines(), delimiter=separator or ",", strict=True):
            yield last[0], [cell.strip() for cell in row]


def places(word: str, numbers: Sequence[int]) -> str:
    """`line 3`; `lines 3, 5, 8 and 40 more`."""
    return f"{word}{'s' * (len(numbers) > 1)} {listed(numbers, most=3)}"


def _kind(cell: str) -> str:
    """Why a cell is not read as a number: a decimal comma, words, or what is there in place of a finite number."""
    if _DECIMAL_COMMA.fullmatch(cell):
        return "comma"
    return "no value" if cell.lower() in _MISSING else str(float(cell)) if _is_number(cell) else "words"


def unusable(path: Path, problems: Sequence[tuple[str, str]]) -> str:
    """The message on columns that cannot be used: what is wrong with each, and what to do."""
    remedies = " ".join(dict.fromkeys(remedy for _, remedy in problems))
    if len(problems) == 1:
        return f"{path}: {problems[0][0]}. {remedies}".rstrip()
    return "\n".join([f"{path}: {len(problems)} problems:", *(f"  - {problem}" for problem, _ in problems), remedies])


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
            raise DataError(f"{path}: holds no rows; expected at least one example.")
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
            "have no names, and may be an example as well. Name the columns there, or take the line out."
        )
    *features, last = fields
    if not features or not all(map(_is_number, features)):
        return not all(map(_is_number, fields))
    return not _is_number(last) and (last.lower() in TARGETS or features == list(map(str, range(len(features)))))


_DECIMAL_COMMA = re.compile(r"[+-]?\d+(,\d+)+([eE][+-]?\d+)?")


def _is_number(text: str) -> bool:
    """Whether a cell is a number, also one with a decimal comma, which is not a word."""
    try:
        float(text)
    except ValueError:
        return _DECIMAL_COMMA.fullmatch(text.strip()) is not None
    return True


def _is_read(cell: str, read: Callable[[str], float]) -> bool:
    try:
        return math.isfinite(read(cell))
    except ValueError:
        return False


_MISSING = ("", "nan", "na", "n/a", "#n/a", "<na>", "null", "none", "nil", "?", "-", "--", ".")
MISSING_VALUES = "Fill in what was used in training, or leave the rows without a value, or the column, out."
WORDS_IN_TABLES = (
    "Leave a column of words out, or encode it as in training (one-hot) in a function that gives (x, y): --test "
    "file.py:function. If it is the target, or names groups of examples, name it: --target COLUMN, --group COLUMN."
)


def column_named(name: str) -> str:
    """A column in a message: `column 'age'`, or `column 3` where the table names none."""
    return name if re.fullmatch(r"column \d+", name) else f"column {name[:200]!r}"
