"""The points that are worst by a score, as a section of an evaluation's report."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from bnuq.records.evaluation import Result
from bnuq.records.points import (
    chosen_method,
    chosen_score,
    lowest_is_worst,
    methods_with,
    points_table,
    scores_of,
    worst_first,
)
from bnuq.report.document import Cell, Report, ReportSection, Table
from bnuq.report.numbers import count, decimals, named, number

_LONGEST_NAME = 48  # letters of a name in the table; the CSV file has all of them


def points_section(result: Result, *, points: int, by: str | None, set: str, method: str | None) -> ReportSection:  # noqa: A002
    """At most so many points of a set: the worst where one direction of the score is better, else those if it is
    largest. RequestError for what the result lacks."""
    method = chosen_method(result, method)
    table = points_table(result, set=set, method=method)
    score = chosen_score(scores_of(result, set=set, method=method), by, methods=methods_with(result, by, set=set))
    rows = worst_first(score, table[score])[:points]
    score_names = {*scores_of(result, set=set, method=method)} - {"max_probability"}
    columns = {name: column[rows] for name, column in table.items() if name not in score_names}
    columns |= {score: table[score][rows]}
    first = "name" if "name" in columns else "index"  # what rows are called
    labels = [_shortened(str(value)) if first == "name" else f"example {value}" for value in columns.pop(first)]
    cells = zip(*map(_cells, columns.values()), strict=True)
    header = tuple("confidence" if name == "max_probability" else named(name) for name in columns)
    end = "lowest" if lowest_is_worst(score) else "largest"
    title = f"{count(len(rows), 'example')} of {set} with the {end} {named(score)}, {method}"
    return ReportSection(title, (Table(header, tuple(zip(labels, cells, strict=True))),))


def alone(report: Report, section: ReportSection) -> Report:
    """The report with nothing but this section, and the path of its result."""
    return replace(report, facts=(), summary=(), sections=(section,), warnings=(), notes=(), one_screen=None)


def _cells(values: np.ndarray) -> list[Cell]:
    if values.dtype.kind != "f":
        return [Cell(str(value)) for value in values]
    digits = decimals(values.tolist())
    return [Cell(number(float(value), digits)) for value in values]


def _shortened(name: str) -> str:
    return name if len(name) <= _LONGEST_NAME else f"…{name[1 - _LONGEST_NAME :]}"
