"""The report of several evaluations: settings that differ, then the estimates that do, largest difference first.

A column is a result, by its name; a row is an estimate; a dash stands for what a result has not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bnuq.catalogue import advised
from bnuq.estimates import Estimate
from bnuq.findings import warnings
from bnuq.frozen import frozen
from bnuq.gate.change_errors import Error, Errors
from bnuq.metrics.registry import metric_of
from bnuq.records import identity
from bnuq.records.addresses import estimates_of
from bnuq.records.contributions import PointContributions
from bnuq.records.evaluation import Result
from bnuq.records.identity import words_of
from bnuq.records.summary import SCHEMA
from bnuq.records.summary import summary as summary_of
from bnuq.report.document import BulletList, Cell, Heading, Part, Report, ReportSection, Table, explanations, section
from bnuq.report.numbers import count, digits_of, named, number, of_reference, with_error
from bnuq.store.table import Row

_MOST = 20  # estimates on one screen
_PARTS = "label", "class", "group", "bound"


def report(results: Results, *, columns: int = 100) -> Report:  # noqa: ARG001 - every report has it
    """The report; without `--full` a terminal shows the estimates that differ most."""
    rows = pivot(results)
    differing = [row for row in rows if row.differs]
    settings = BulletList(tuple(_settings(compared(results))))
    legend = tuple(explanations(_legend(results)))
    brief: tuple[Part, ...] = (Heading("Settings"), settings)
    if differing:
        title = "Estimates that differ" if len(differing) <= _MOST else f"The {_MOST} estimates that differ most"
        brief = (*brief, Heading(title), table(results, differing[:_MOST]), *legend)
    warned = (
        (f"{name}: {text}", code, todo)
        for name, result in results.items()
        for text, code, todo in advised(result.findings)
    )
    same = [row for row in rows if not row.differs]
    return Report(
        command=f"bnuq report: {len(results)} results side by side",
        facts=tuple((name, ", ".join(_facts(result))) for name, result in results.items()),
        summary=tuple(_summary(rows, differing)),
        sections=(
            ReportSection("Settings", (settings,)),
            *section("Estimates that differ", (table(results, differing), *legend) if differing else ()),
            *section("Estimates that are the same", (table(results, same),) if same else (), folded=True),
        ),
        warnings=tuple(warned),
        one_screen=brief,
    )


def summary(results: Results) -> dict[str, Any]:
    """All summaries by name, and settings that differ, as JSON values."""
    differences = [
        {"what": setting.what, "values": dict(setting.values)} for setting in compared(results) if setting.differs
    ]
    return {
        "schema": SCHEMA,
        "command": "report",
        "results": {name: summary_of(result) for name, result in results.items()},
        "differences": differences,
    }


def table(results: Results, rows: Sequence[EstimateAcross]) -> Table:
    """The estimates with their errors, a column for each result, and how far they differ."""
    lines = []
    for row in rows:
        digits = digits_of(row.row["metric"], (estimate.value for estimate in row.estimates if estimate))
        cells = (with_error(estimate, digits) for estimate in row.estimates)
        deviation = Cell("–" if math.isnan(row.deviation) else number(row.deviation, 1))
        lines.append((f"{metric_of(row.row['metric']).arrow} {_label(row.row)}", (*cells, deviation)))
    return Table((*results, "SE"), tuple(lines), stacks=True)


def _label(row: Row) -> str:
    """As "AUROC, svhn by MI, mcbn": what is measured, of which points, by which method."""
    score = f" by {named(row['score'], roomy=False)}" if row["score"] else ""
    parts = (f"{kind} {row[kind]}" for kind in _PARTS if row[kind])
    return ", ".join((named(row["metric"], roomy=False), (row["set"] or "test") + score, *parts, row["method"]))


def _summary(rows: Sequence[EstimateAcross], differing: Sequence[EstimateAcross]) -> Iterator[str]:
    if not differing:
        yield f"All {count(len(rows), 'estimate')} are the same."
        return
    yield f"{len(differing)} of {count(len(rows), 'estimate')} differ.{_most(differing)}"
    yield (
        "Nothing is judged here. To test whether one result is significantly worse than another, use "
        "`bnuq check CURRENT BASELINE`."
    )


def _most(differing: Sequence[EstimateAcross]) -> str:
    """Which differs most, in standard errors: of those that `bnuq check` tests where any does, as they are better or
    worse."""
    known = [each for each in differing if not math.isnan(each.deviation)]
    whole = [each for each in known if not any(each.row[part] for part in _PARTS)]
    tested = [each for each in whole if metric_of(each.row["metric"]).tolerance]
    if not (largest := (tested or known)[:1]):
        return ""
    of = "Of those that `bnuq check` tests, the" if tested else "The"
    return f" {of} largest difference is {number(largest[0].deviation, 1)} standard errors: {_label(largest[0].row)}."


def _settings(settings: Sequence[Difference]) -> Iterator[str]:
    """A sentence for each setting that differs, and one for those that do not."""
    for setting in settings:
        if setting.differs:
            names: dict[str, list[str]] = {}
            for name, value in setting.values.items():
                names.setdefault(value, []).append(name)
            values = "; ".join(f"{value} in {' and '.join(results)}" for value, results in names.items())
            other = "; estimates on it are from different points" if setting.other_points else ""
            yield f"{setting.what}: {values}{other}."
    shared = [f"{setting.what} {next(iter(setting.values.values()))}" for setting in settings if not setting.differs]
    if shared:
        yield f"The same in all: {'; '.join(shared)}."


def _legend(results: Results) -> Iterator[str]:
    first = next(iter(results))
    yield "± standard error over points and samples together. ↑ higher, ↓ lower is better."
    yield (
        f"SE: the largest difference from {first} in standard errors of the difference, which pair points and "
        "draws where these are the same; – where unknown."
    )


def _facts(result: Result) -> Iterator[str]:
    yield Path(str(result.model["path"])).name
    yield f"{result.sets['test'].n} test points"
    if warned := warnings(result.findings):
        yield count(len(warned), "warning")
    if result.path is not None:
        yield str(result.path)


_ROUNDING = 1e-10  # relative: what differs by less was added up in another order


@frozen
class EstimateAcross:
    """An estimate in each of several results, None where a result lacks it.

    `deviation` is its largest difference from that of the first result in standard errors; NaN if that is unknown.
    """

    row: Row  # of the first result that has it
    estimates: tuple[Estimate | None, ...]
    deviation: float

    @property
    def differs(self) -> bool:
        """Whether it is not the same in all results."""
        return not all(_same(estimate, self.estimates[0]) for estimate in self.estimates)


def pivot(results: Mapping[str, Result]) -> list[EstimateAcross]:
    """Every estimate of any of the results: the largest deviation first, then those whose deviation is unknown."""
    first, *others = results.values()
    tables = [estimates_of(result) for result in results.values()]
    points = PointContributions(first)
    errors = [Errors((other, first), (PointContributions(other), points)) for other in others]
    rows = []
    for address in dict.fromkeys(address for table in tables for address in table):
        across = [table.get(address) for table in tables]
        estimates = tuple(None if row is None else row.estimate for row in across)
        first_row = next(row for row in across if row is not None)
        rows.append(EstimateAcross(first_row, estimates, max(_deviations(across, errors), default=math.nan)))
    return sorted(rows, key=lambda row: -1.0 if math.isnan(row.deviation) else row.deviation, reverse=True)


def _deviations(rows: Sequence[Row | None], errors: Sequence[Errors]) -> Iterator[float]:
    """The known deviations of the other results from the first, with the error that `bnuq check` gives a change."""
    first = rows[0]
    for row, change_errors in zip(rows[1:], errors, strict=True):
        if first is None or row is None:
            continue
        difference = abs(row.estimate.value - first.estimate.value)
        if _same(row.estimate, first.estimate):
            yield 0.0
        elif math.isfinite(difference):
            error = Error.together(change_errors.over_points(row), change_errors.over_draws((row, first))).value
            if error > _ROUNDING * difference:  # without one, as many temperatures, unknown
                yield difference / error


def _same(estimate: Estimate | None, first: Estimate | None) -> bool:
    if estimate is None or first is None:
        return estimate is first
    a, b = estimate.value, first.value
    return math.isclose(a, b, rel_tol=_ROUNDING, abs_tol=1e-15) or (math.isnan(a) and math.isnan(b))


Results = Mapping[str, Result]  # by name, in the order of the columns; all of one task
_File = tuple[str, str]  # what a file is called, and its hash


@frozen
class Difference:
    """A setting: its value in each result, in words, and whether they are not all the same. Estimates of sets with
    `other_points` cannot be compared."""

    what: str
    values: Mapping[str, str]
    differs: bool
    other_points: bool = False


def compared(results: Results) -> list[Difference]:
    """Every setting that any of the results has, in the order of a report."""

    def by_result(value: Callable[[Result], Any]) -> dict[str, Any]:
        return {name: value(result) for name, result in results.items()}

    settings = [_by_hash("checkpoint", by_result(_checkpoint))]
    sets = {name: evaluated.kind for result in results.values() for name, evaluated in result.sets.items()}
    for name, kind in sorted(sets.items(), key=lambda item: item[0] != "test"):
        files = by_result(lambda result, name=name: _points(result, name))
        settings.append(_by_hash(name if name == kind else f"{kind} {name}", files, are_points=True))
    settings.append(_by_hash("reference", by_result(_reference)))
    if any(by_result(lambda result: result.task.is_dense).values()):  # all are of one task
        classes = by_result(lambda result: ", ".join(result.sets["test"].classes) or None)
        settings.append(_by_value("classes of pixels", classes))
    for name, values in identity.compared([*results.values()], all_set=True).items():
        settings.append(_by_value(name, dict(zip(results, values, strict=True))))
    settings.append(_by_value("bnuq", by_result(lambda result: result.provenance["bnuq"])))
    return [setting for setting in settings if setting.differs or set(setting.values.values()) != {"none"}]


def _checkpoint(result: Result) -> _File:
    return Path(str(result.model["path"])).name, str(result.model.get("sha256", ""))


def _points(result: Result, name: str) -> _File | None:
    evaluated = result.sets.get(name)
    if evaluated is None:
        return None
    return f"{of_reference(evaluated.reference)} of {count(evaluated.n, 'point')}", evaluated.sha256


def _reference(result: Result) -> _File | None:
    train, sha256 = result.run.get("data", {}).get("train"), result.provenance.get("reference_sha256")
    return None if not train or not sha256 else (of_reference(str(train)), str(sha256))


def _by_hash(name: str, files: Mapping[str, _File | None], *, are_points: bool = False) -> Difference:
    """Files are the same where their hashes are, whatever they are called."""
    hashes = {file and file[1] for file in files.values()}
    names = {file[0] for file in files.values() if file is not None}
    ambiguous = len(hashes - {None}) > len(names)  # of one name, but not the same
    words = {
        name: "none" if file is None else f"{file[0]} ({file[1][:8]})" if ambiguous else file[0]
        for name, file in files.items()
    }
    return Difference(name, words, len(hashes) > 1, are_points and len(hashes) > 1 and None not in hashes)


def _by_value(name: str, values: Mapping[str, Any]) -> Difference:
    first, *others = values.values()
    differs = any(value != first for value in others)
    return Difference(name, dict(zip(values, words_of([*values.values()]), strict=True)), differs)
