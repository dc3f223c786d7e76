"""The trend of results over time, `bnuq report … --trend`: each estimate from result to result, and the line through
them."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from bnuq.errors import RequestError
from bnuq.findings import listed
from bnuq.frozen import frozen
from bnuq.gate.baseline import why_not
from bnuq.gate.change_errors import Error, Errors
from bnuq.gate.comparing import Line, line_through
from bnuq.gate.pairing import under_one_name
from bnuq.gate.settings import GateSettings
from bnuq.metrics import METRICS
from bnuq.metrics.registry import metric_of
from bnuq.records.addresses import address_of, estimates_of
from bnuq.records.as_json import SCHEMA, json_number
from bnuq.records.contributions import PointContributions
from bnuq.records.evaluation import Result
from bnuq.records.history import copy_of, in_order, made_at
from bnuq.report import drawing
from bnuq.report.document import Cell, Picture, Report, ReportSection, Table, explanations
from bnuq.report.numbers import digits_of, full_command, headed, named, number, signed
from bnuq.report.plotting import label_of, line_styles
from bnuq.store.table import Row

_FEWEST = 3  # results that a line with an error can be put through
_SCORES = ("", "mutual_information", "predictive_entropy", "variance")  # of estimates that are shown unasked
_PARTS = ("label", "class", "group", "bound")


@frozen
class TrendLine:
    """One estimate in every result, oldest first; `since_first` are the errors of its changes since the first, over
    points and draws, paired where these are the same."""

    rows: tuple[Row, ...]
    since_first: tuple[float, ...]
    line: Line

    @property
    def values(self) -> np.ndarray:
        return np.array([row.estimate.value for row in self.rows])

    @property
    def place(self) -> tuple[str, str, str]:
        """What one picture shows: metric, set and score; a line for each method."""
        row = self.rows[-1]
        return row["metric"], row["set"], row["score"]


@frozen
class Trend:
    """Results on the same points, oldest first, and those that were left out, with the reason; what is shown of them:
    every estimate of one metric, or those that the gate tests by default."""

    results: tuple[Result, ...]
    left_out: tuple[tuple[str, str], ...]
    lines: tuple[TrendLine, ...]


def trend(results: Iterable[Result], metric: str | None = None) -> Trend:
    """The trend of results in any order. RequestError for fewer than three that can be compared with the last, and for
    a metric that they do not have."""
    kept, left_out = _comparable(results)
    tables = [estimates_of(result) for result in kept]
    chosen = [address for address, row in tables[-1].items() if _is_shown(row, metric)]
    chosen = [address for address in chosen if all(address in table for table in tables)]
    if not chosen:
        known = sorted({row["metric"] for row in tables[-1].values() if row["metric"] != "count"})
        asked, of = (f"--by {metric}: ", " of that") if metric else ("", "")
        raise RequestError(f"{asked}the results have no estimate{of} in common. They have {listed(known)}.")
    points = [PointContributions(result) for result in kept]
    errors = Errors((kept[-1], *kept[:-1]), (points[-1], *points[:-1]))
    pairs = [Errors((result, kept[0]), (own, points[0])) for result, own in zip(kept[1:], points[1:], strict=True)]
    lines = []
    for address in chosen:
        rows = tuple(table[address] for table in tables)
        since_first = [
            Error.together(pair.over_points(row), pair.over_draws((row, rows[0]))).value
            for pair, row in zip(pairs, rows[1:], strict=True)
        ]
        lines.append(TrendLine(rows, (0.0, *since_first), line_through((rows[-1], *rows[:-1]), errors)))
    return Trend(kept, left_out, tuple(lines))


def _comparable(results: Iterable[Result]) -> tuple[tuple[Result, ...], tuple[tuple[str, str], ...]]:
    """The results in the order of time that can be compared with the last, and why others cannot. RequestError for
    fewer than three."""
    *others, last = in_order(results)
    others = [under_one_name(last, other) for other in others]
    allow = GateSettings(allow=("missing:*",))
    later = [(other, [*others[row + 1 :], last]) for row, other in enumerate(others)]
    reasons = [(other, copy_of(other, after) or why_not(last, other, allow)) for other, after in later]
    kept = (*(other for other, reason in reasons if reason is None), last)
    left_out = tuple((_name(other), reason) for other, reason in reasons if reason is not None)
    if len(kept) < _FEWEST:
        why = "".join(f"\n  - {name}: {reason}" for name, reason in left_out)
        raise RequestError(f"a trend needs three results that can be compared; there are {len(kept)}.{why}")
    return kept, left_out


def _is_shown(row: Row, metric: str | None) -> bool:
    if metric is not None:
        return row["metric"] == metric and not row["bound"]
    known = METRICS.get(row["metric"])
    gated = known is not None and bool(known.tolerance) and not any(row[part] for part in _PARTS)
    return gated and row["score"] in _SCORES and (not row["score"] or row["metric"] == "auroc")


def _name(result: Result) -> str:
    return "a result" if result.path is None else result.path.name


# ── as a report, JSON and CSV ────────────────────────────────────────────────────────────────────────────────────────


def report(made: Trend, *, columns: int = 100) -> Report:  # noqa: ARG001 - every report has it
    """The report: the estimates, those with the clearest trend first, then a picture of each."""
    steepest = max(made.lines, key=lambda line: _steepness(line) if math.isfinite(_steepness(line)) else -1.0)
    first, last = (made_at(result) for result in (made.results[0], made.results[-1]))
    legend = (
        "line: how far a straight line through all results, equally far apart, rises or falls from the first to the "
        "last, ± its standard error; SE: the same in units of that.",
    )
    whole = [line for line in made.lines if not any(line.rows[-1][part] for part in _PARTS)]
    places = dict.fromkeys(line.place for line in whole)
    pictures = (_picture(made, [line for line in whole if line.place == place]) for place in places)
    return Report(
        command=f"bnuq report: the trend of {len(made.results)} results",
        facts=(
            *(("result", f"{_name(result)}, {_time(result)}") for result in made.results),
            *(("left out", f"{name}: {reason}") for name, reason in made.left_out),
        ),
        summary=(
            f"The clearest trend: {_label(steepest.rows[-1])}, {steepest.rows[-1]['method']}, "
            f"{' ± '.join(filter(None, _moved(steepest)))} along the line.",
            "Nothing is judged here. `bnuq check NEW --history DIR` tests for a decline.",
        ),
        sections=(
            ReportSection("Trends", (_table(made.lines), *explanations(legend))),
            ReportSection("Over time", tuple(pictures), only_on_page=True),
        ),
        line=f"{len(made.results)} results, {first:%Y-%m-%d} to {last:%m-%d}"
        + (f", without {len(made.left_out)} others (see `--full`)" if made.left_out else ""),
        one_screen=(_table(made.lines), *explanations(legend)),
        rest=full_command((result.path for result in made.results), "bnuq", " --trend"),
    )


def _table(lines: Sequence[TrendLine]) -> Table:
    """The estimates of one method below each other."""
    groups: dict[str, list[tuple[str, tuple[Cell, ...]]]] = {}
    for line in lines:
        values, row = line.values, line.rows[-1]
        digits = digits_of(row["metric"], values)
        ends = (Cell(number(float(value), digits)) for value in (values[0], values[-1]))
        change, error = _moved(line)
        steep = _steepness(line)
        cells = (*ends, Cell(change, error and f"±{error}"), Cell("–" if math.isnan(steep) else f"{steep:.1f}"))
        groups.setdefault(row["method"], []).append((f"  {_label(row)}", cells))
    rows = [row for method, own in groups.items() for row in ((method, ()), *own)]
    return Table(("first", "last", "line", "SE"), tuple(rows), stacks=True)


def _moved(line: TrendLine) -> tuple[str, str]:
    """The change along the line, and its error."""
    digits, error = digits_of(line.rows[-1]["metric"], line.values), line.line.error.value
    return signed(line.line.change, digits), "" if math.isnan(error) else number(error, digits)


def _steepness(line: TrendLine) -> float:
    """The change along the line in standard errors; NaN where that is not known."""
    error = line.line.error.value
    return abs(line.line.change) / error if error > 0 else math.nan


def _label(row: Row) -> str:
    score = f" by {named(row['score'], roomy=False)}" if row["score"] else ""
    parts = [f"{part} {row[part]}" for part in _PARTS if row[part]]
    return ", ".join((headed(row["metric"], roomy=False), (row["set"] or "test") + score, *parts))


def _time(result: Result) -> str:
    return f"{made_at(result):%Y-%m-%d %H:%M} UTC"


def summary(made: Trend) -> dict[str, Any]:
    """The results, and of every estimate its values, the errors of its changes, and the line, as JSON values."""
    return {
        "schema": SCHEMA,
        "command": "report",
        "kind": "trend",
        "results": [{"result": _name(result), "time": result.provenance["time"]} for result in made.results],
        "left_out": [{"result": name, "reason": reason} for name, reason in made.left_out],
        "trends": {
            address_of(line.rows[-1].coordinates): {
                "values": [json_number(value) for value in line.values.tolist()],
                "se_since_first": [json_number(value) for value in line.since_first],
                "line": {"change": json_number(line.line.change), "se": json_number(line.line.error.value)},
            }
            for line in made.lines
        },
    }


def trend_csv(made: Trend) -> bytes:
    """A row for every estimate in every result, as CSV."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("result", "time", "address", "value", "se", "mc_se", "change_since_first", "se_of_change"))
    for line in made.lines:
        address = address_of(line.rows[-1].coordinates)
        for result, row, error in zip(made.results, line.rows, line.since_first, strict=True):
            found = row.estimate
            change = found.value - line.rows[0].estimate.value
            writer.writerow(
                (_name(result), result.provenance["time"], address, found.value, found.se, found.mc_se, change, error)
            )
    return text.getvalue().encode("utf-8", "backslashreplace")


# ── the pictures ─────────────────────────────────────────────────────────────────────────────────────────────────────


def _picture(made: Trend, lines: Sequence[TrendLine]) -> Picture:
    how = (
        "Each band is 1 standard error of the change since the first result: the examples are the same, so what is "
        "hard for all results moves the whole line and not its shape."
    )
    return Picture(("trend", *filter(None, lines[0].place)), partial(_draw, made, lines), how)


def _draw(made: Trend, lines: Sequence[TrendLine], path: Path) -> None:
    metric, set_name, score = lines[0].place
    of = (set_name or "test") + (f" by {named(score)}" if score else "")
    title = f"{named(metric)[:1].upper()}{named(metric)[1:]}, {of}"
    styles = line_styles(made.results[-1])
    with drawing.picture(path, title=title, about=f"{len(made.results)} results, oldest first") as (axes,):
        places = np.arange(len(made.results))
        for line in lines:
            name, values, errors = line.rows[-1]["method"], line.values, np.nan_to_num(line.since_first)
            axes.fill_between(
                places, values - errors, values + errors, color=styles[name].colour, alpha=0.18, linewidth=0
            )
            axes.plot(places, values, **styles[name].plotted, label=name)
        times = [f"{made_at(result):%m-%d}" for result in made.results]
        step = math.ceil(len(times) / 8)
        axes.set_xticks(places[::step], times[::step])
        axes.set_ylabel(label_of(metric) if metric in METRICS else metric_of(metric).label)
        axes.set_xlabel("result, by the day it was made")
