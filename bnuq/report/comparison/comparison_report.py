"""The report of several evaluations: settings that differ, then the estimates that do, largest difference first.

A column is a result, by its name; a row is an estimate; a dash stands for what a result has not.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bnuq.catalogue import advised
from bnuq.estimates import Estimate
from bnuq.findings import all_of, warnings
from bnuq.frozen import frozen
from bnuq.gate.change_errors import Error, Errors
from bnuq.metrics import METRICS
from bnuq.metrics.registry import metric_of
from bnuq.records.addresses import estimates_of
from bnuq.records.as_json import SCHEMA
from bnuq.records.contributions import PointContributions
from bnuq.records.decision_sentences import plain
from bnuq.records.evaluation import Result
from bnuq.records.summary import summary as summary_of
from bnuq.report.comparison.settings import Difference, Results, compared
from bnuq.report.document import BulletList, Cell, Part, Report, ReportSection, Table, explanations, section
from bnuq.report.numbers import count, digits_of, full_command, named, number, with_error
from bnuq.store.table import Row

_ROUNDING = 1e-10  # relative: what differs by less was added up in another order
_MOST = 8  # estimates on one screen
_PARTS = "label", "class", "group", "bound"


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


def report(results: Results, *, columns: int = 100) -> Report:  # noqa: ARG001 - every report has it
    """The report; without `--full` a terminal shows the estimates that differ most."""
    rows = pivot(results)
    differing = [row for row in rows if row.differs]
    *changed, shared = _settings(compared(results))
    legend = tuple(explanations(_legend(results)))
    of_test = [each for each in differing if each.row["metric"] in METRICS and not each.row["score"]]
    first = [each for each in of_test if "headline" in METRICS[each.row["metric"]].shown]
    most = (_tested(first) or differing)[:_MOST]
    warned = (
        (f"{name}: {text}", code, todo)
        for name, result in results.items()
        for text, code, todo in advised(result.findings)
    )
    same = [row for row in rows if not row.differs]
    return Report(
        command=f"bnuq report: {len(results)} results side by side",
        facts=tuple((name, ", ".join(_facts(result))) for name, result in results.items()),
        summary=(*changed, *_summary(rows, differing)),
        sections=(
            ReportSection("Settings", (BulletList((*changed, shared)),)),
            *section("Estimates that differ", (table(results, differing), *legend) if differing else ()),
            *section("Estimates that are the same", (table(results, same),) if same else (), folded=True),
        ),
        warnings=tuple(warned),
        line=f"{len(results)} results side by side: {all_of(results)}",
        one_screen=(table(results, most), *_words(most), *legend) if most else (),
        rest=full_command(result.path for result in results.values()),
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
    tested = _tested(known)
    if not (largest := (tested or known)[:1]):
        return ""
    of = "Of those that `bnuq check` tests, the" if tested else "The"
    return f" {of} largest difference is {number(largest[0].deviation, 1)} standard errors: {_label(largest[0].row)}."


def _tested(rows: Sequence[EstimateAcross]) -> list[EstimateAcross]:
    """Those that `bnuq check` tests: they are better or worse, and not of a part of the points."""
    whole = [each for each in rows if not any(each.row[part] for part in _PARTS)]
    return [each for each in whole if metric_of(each.row["metric"]).tolerance]


def _settings(settings: Sequence[Difference]) -> Iterator[str]:
    """A sentence for each setting that differs, and at last one for those that do not."""
    for setting in settings:
        if setting.differs:
            names: dict[str, list[str]] = {}
            for name, value in setting.values.items():
                names.setdefault(value, []).append(name)
            values = "; ".join(f"{value} in {' and '.join(results)}" for value, results in names.items())
            other = "; estimates on it are from different examples" if setting.other_points else ""
            yield f"{setting.what}: {values}{other}."
    shared = [f"{setting.what} {next(iter(setting.values.values()))}" for setting in settings if not setting.differs]
    yield f"The same in all: {'; '.join(shared) or 'none'}."


def _legend(results: Results) -> Iterator[str]:
    first = next(iter(results))
    yield (
        f"↑ higher, ↓ lower is better. SE: the largest difference from {first} in units of its standard error; – where "
        "unknown. ± standard error."
    )


def _words(rows: Sequence[EstimateAcross]) -> Iterator[Part]:
    """The metrics of these rows that are abbreviated there, in plain words."""
    names = {named(row.row["metric"], roomy=False): plain(row.row["metric"]) for row in rows}
    if texts := [f"{name}: {words}" for name, words in names.items() if name != words]:
        yield from explanations([f"{'; '.join(texts)}."])


def _facts(result: Result) -> Iterator[str]:
    yield Path(str(result.model["path"])).name
    yield f"{result.sets['test'].n} test examples"
    if warned := warnings(result.findings):
        yield count(len(warned), "warning")
    if result.path is not None:
        yield str(result.path)
