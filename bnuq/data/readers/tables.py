"""Tables: one row a point, one column a feature, the last column being the target."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bnuq.data.points import Contents
from bnuq.data.readers.common import check_declared, readable
from bnuq.errors import DataError


def read_csv(path: Path) -> Contents:
    """A text table separated by commas, semicolons or tabs; its first line may name the columns."""
    with readable(path, "a table"), path.open(encoding="utf-8-sig", newline=None) as file:
        first = file.readline()
        separator = next((mark for mark in (",", ";", "\t") if mark in first), None)
        if separator is None:
            raise DataError(f"{path}: its first line has no comma, semicolon or tab; expected a table of numbers.")
        fields = [field.strip().strip('"') for field in first.rstrip("\n").split(separator)]
        named = not all(map(_is_number, fields))
        rows = [line for line in file if line.strip()] if named else [first, *(line for line in file if line.strip())]
        if not rows:
            raise DataError(f"{path}: holds no rows; expected at least one point.")
        try:
            table = np.loadtxt(rows, delimiter=separator, ndmin=2, comments=None, quotechar='"', dtype=np.float64)
        except ValueError as error:
            said = str(error).partition(";")[0].rstrip(".")
            raise DataError(
                f"{path}: {said} (rows are counted from 0 without the header). Expected numbers only."
            ) from error
    if table.shape[1] != len(fields):
        raise DataError(f"{path}: the header names {len(fields)} columns and the rows have {table.shape[1]}.")
    names = fields if named else [f"column {index}" for index in range(len(fields))]
    return _contents(path, table, names)


def read_parquet(path: Path) -> Contents:
    """A parquet table of numeric columns."""
    try:
        import pyarrow.parquet as parquet
    except ImportError as error:
        raise DataError(
            f'{path}: reading parquet needs pyarrow. Install it with `pip install "bnuq[parquet]"`, or convert to .csv.'
        ) from error
    with readable(path, "parquet"):
        with parquet.ParquetFile(path) as file:
            shape = (file.metadata.num_rows, file.metadata.num_columns)
            check_declared(path, 8 * shape[0] * shape[1], path.stat().st_size)
            read = file.read(use_threads=False)
        columns = []
        for name in read.column_names:
            try:
                columns.append(np.asarray(read.column(name).to_numpy(), dtype=np.float64))
            except (ValueError, TypeError, NotImplementedError) as error:
                raise DataError(f"{path}: column {name!r} does not hold numbers; expected numbers only.") from error
        table = np.stack(columns, axis=1) if columns else np.empty((0, 0))
    return _contents(path, table, list(read.column_names))


def _contents(path: Path, table: NDArray[Any], names: list[str]) -> Contents:
    group = None
    if "group" in names:
        at = names.index("group")
        group, table = table[:, at], np.delete(table, at, axis=1)
        names = [name for name in names if name != "group"]
    if len(names) < 2:
        raise DataError(f"{path}: has only {len(names)} column(s); expected features and, last, the target.")
    notes = (f"the target is the last column, {names[-1]!r}",)
    return Contents(table[:, :-1], table[:, -1:], group, notes=notes)


def _is_number(field: str) -> bool:
    try:
        float(field)
    except ValueError:
        return False
    return True
