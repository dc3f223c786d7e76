"""How a result changes with the inputs: when scores raise an alarm, when accuracy is lost, and every metric between."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from bnuq.catalogue import noted
from bnuq.estimates import Estimate
from bnuq.metrics.registry import ALARMS, estimates_of_task
from bnuq.perturbations import KINDS, change_in, change_of
from bnuq.records.evaluation import Result
from bnuq.records.shift import LEVEL, MethodShift, Shift, limit_of, shift_of
from bnuq.report.document import Cell, Heading, Part, Picture, Row, Table, explanation, explanations
from bnuq.report.drawing import GREY, PALE, picture
from bnuq.report.method_names import method_label, plain_methods
from bnuq.report.numbers import decimals, digits_of, headed, named, number, with_error
from bnuq.report.plotting import about_test_set, evaluation_picture, label_of, line_styles

_ON_A_SCREEN = 6  # families, or sets
_COMMAND = re.compile(r"(?:^|[/\\])(?:bnuq(?:\.exe)?|__main__\.py) (?:--debug )?([\w-]+)(?: |$)")  # in a command line
_ALARM = "mean score (half-widths of its band)"
_FORECASTS = {"thresholded_confidence": "ATC", "difference_of_confidences": "DoC"}


def parts(result: Result, *, roomy: bool) -> Iterator[Part]:
    """A picture of all families and one of each; the severities of alarm and loss; a table for each metric, and for the
    AUROC of the uncertainty: a row a set, a column a method. Nothing without changed sets."""
    shift = result.shift or shift_of(result)
    if shift is None:
        return
    yield from _pictures(result, shift)
    yield from explanations(_silent(result, shift))
    yield Heading("Alarm and loss")
    yield _leads(result, shift, roomy=roomy)
    yield explanation(_legend_of_leads(result, shift))
    methods = plain_methods(result)
    for metric in estimates_of_task(result.task.name, shown="sensitivity"):
        rows = {name: [_paired(result, shift, method, name, metric) for method in methods] for name in _names(shift)}
        if known := [estimate.value for row in rows.values() for estimate in row if estimate]:
            digits = decimals(known) if digits_of(metric, known) is None else digits_of(metric, known)
            yield Heading(headed(metric).strip())
            yield _table(result, {name: tuple(with_error(e, digits) for e in row) for name, row in rows.items()})
    for score in ALARMS:
        cells = {
            name: tuple(with_error(method.ood[name].get(score, {}).get("auroc")) for method in methods.values())
            for name in shift.sets
        }
        if any(cell.value != "–" for row in cells.values() for cell in row):
            yield Heading(f"↑ AUROC against the test set by {named(score, roomy=roomy)}")
            yield _table(result, cells)
    yield from explanations(_legend(result, shift))


def is_asked_for(result: Result) -> bool:
    """Whether a result is of `bnuq shift`, or of the same families at several severities."""
    changes = [change for name in result.sets if (change := change_in(name)) is not None and change.is_severity]
    command = _COMMAND.search(str(result.provenance.get("command", "")))
    asked = command is not None and command[1] == "shift"
    return bool(changes) and (asked or len({change.family for change in changes}) < len(changes))


def in_short(result: Result) -> Iterator[str]:
    """The answer of `bnuq shift`: the families whose alarm comes before the loss, after it, and never, with both
    severities by the method of the longest lead; and those that lose too little."""
    if not is_asked_for(result) or (shift := result.shift or shift_of(result)) is None:
        return
    methods = [method for method in plain_methods(result) if first_alarm(shift.methods[method])]
    if not methods:
        yield "No method has a score that can raise an alarm under these changes of the inputs."
        return
    seen: list[str] = []
    late: list[str] = []
    unseen: list[str] = []
    kept: list[str] = []
    for place, family in enumerate(shift.families):
        if not shift.changes[shift.sets[shift.places(family)[0]]].is_severity:
            continue
        ends = {method: _lead(shift, method, family)[:2] for method in methods}
        losing = {method: each for method, each in ends.items() if not math.isnan(each[1])}
        leads = {method: np.nan_to_num(loss) - alarm for method, (alarm, loss) in (losing or ends).items()}
        method = max(leads, key=lambda each: -math.inf if math.isnan(leads[each]) else leads[each])
        alarm, loss = ends[method]
        raised = "no alarm" if math.isnan(alarm) else f"{method}: alarm at {_at(alarm)}"
        if not losing:
            kept.append(f"{family} ({raised})")
            continue
        by_any = any((shift.methods[each].alarm[:, place] <= shift.methods[each].loss[place]).any() for each in methods)
        group = seen if alarm <= loss else late if by_any else unseen
        group.append(f"{family} ({raised}, loss at {_at(loss)})")
    groups = {
        "Seen in time": seen,
        "Too late by the score shown, in time by another of `--full`": late,
        "Seen in time by no score": unseen,
        "No loss": kept,
    }
    words = " ".join(f"{name}: {', '.join(families)}." for name, families in groups.items() if families)
    yield f"{words} Numbers are severities; a loss is where {_loss_in_words(result, shift)}."


def short_table(result: Result) -> Iterator[Part]:
    """Of the families that change the first metric most, their strongest sets, or all where they are few: that metric,
    and the severities of the alarm and of the loss."""
    shift = result.shift or shift_of(result)
    if shift is None:
        return
    metric, methods = next(iter(estimates_of_task(result.task.name, shown="sensitivity"))), plain_methods(result)
    rows: list[Row] = [(f"{named(metric, roomy=False)} (alarm, loss at)", ())]
    unchanged = [method.sets["test"].estimates.get(metric) for method in methods.values()]
    rows.append(("unchanged", tuple(Cell("–" if each is None else number(each.value, 3)) for each in unchanged)))
    first = shift.methods[next(iter(methods))]
    largest = {family: shift.places(family)[-1:] for family in shift.families}
    if is_asked_for(result) and len(shift.sets) <= _ON_A_SCREEN:
        largest = {family: shift.places(family) for family in shift.families}
    elif metric in first.metrics:
        changes = np.abs(first.change[first.metrics.index(metric)])
        order = sorted(largest, key=lambda family: -np.nan_to_num(changes[largest[family][-1]], posinf=math.inf))
        largest = {family: places for family, places in largest.items() if family in order[:_ON_A_SCREEN]}
    for family, place in [(family, place) for family, places in largest.items() for place in places]:
        name, cells = shift.sets[place], []
        for method in methods:
            estimate = result.methods[method].sets[name].estimates.get(metric)
            alarm, loss, *_ = _lead(shift, method, family)
            value = "–" if estimate is None else number(estimate.value, 3)
            shown = _at(alarm) if first_alarm(shift.methods[method]) else "–"
            is_last = place == largest[family][-1]
            cells.append(Cell(f"{value} ({shown}, {_at(loss)})" if is_last else value))
        rows.append((change_of(name), tuple(cells)))
    yield Table(tuple(map(method_label, methods)), tuple(rows), stacks=True)
    yield explanation(
        f"In brackets, for a whole family: where the mean score of {shift.window} unlabelled points raises the alarm, "
        f"and where {_loss_in_words(result, shift)} (loss); never: not within these sets."
    )


def _names(shift: Shift) -> tuple[str, ...]:
    return "test", *shift.sets


def _paired(result: Result, shift: Shift, method: str, name: str, metric: str) -> Estimate | None:
    """An estimate, of a changed set with the error of its difference to the unchanged one."""
    estimate, of = result.methods[method].sets[name].estimates.get(metric), shift.methods[method]
    if estimate is None or name == "test" or metric not in of.metrics:
        return estimate
    row, place = of.metrics.index(metric), shift.sets.index(name)
    se, mc_se = float(of.se[row, place]), float(of.mc_se[row, place])
    return Estimate(estimate.value, None if math.isnan(se) else se, None if math.isnan(mc_se) else mc_se)


def _table(result: Result, rows: Mapping[str, tuple[Cell, ...]]) -> Table:
    header = tuple(map(method_label, plain_methods(result)))
    labels = {name: "unchanged" if name == "test" else change_of(name) for name in rows}
    return Table(header, tuple((labels[name], cells) for name, cells in rows.items()), stacks=True)


# ── alarm and loss ───────────────────────────────────────────────────────────────────────────────────────────────────


def first_alarm(of: MethodShift) -> str | None:
    """The score whose alarm a report shows: the first of those that are made for it, and that the method has."""
    return next((score for score in ALARMS if score in of.scores), next(iter(of.scores), None))


def _lead(shift: Shift, method: str, family: str) -> tuple[float, float, float, float]:
    """The severities of the alarm and of the loss, and the lead with its error; NaN where there is none."""
    of, number_of_family = shift.methods[method], shift.families.index(family)
    loss, score = float(of.loss[number_of_family]), first_alarm(of)
    if score is None:
        return math.nan, loss, math.nan, math.nan
    row = of.scores.index(score)
    return (
        float(of.alarm[row, number_of_family]),
        loss,
        float(of.lead[row, number_of_family]),
        float(of.lead_se[row, number_of_family]),
    )


def _at(value: float) -> str:
    return "never" if math.isnan(value) else number(value, 2 if value < 10 else 1)


def _leads(result: Result, shift: Shift, *, roomy: bool) -> Table:
    """A row for each method below its family: alarm, loss, lead, and where the forecasts of accuracy break."""
    rows: list[Row] = []
    forecasts = next(iter(shift.methods.values())).forecasts
    for place, family in enumerate(shift.families):
        rows.append((family, ()))
        for method in plain_methods(result):
            of = shift.methods[method]
            alarm, loss, lead, error = _lead(shift, method, family)
            score = first_alarm(of)
            written = f"{lead:.2f}".replace("-", "−")
            cells = (
                Cell(_at(alarm) if score else "–"),
                Cell(_at(loss)),
                Cell("–") if math.isnan(lead) else Cell(written, "" if math.isnan(error) else f"±{error:.2f}"),
                Cell("–" if score is None else _earliest(of, place)),
                *(Cell(_at(float(of.breaks[row, place]))) for row in range(len(of.forecasts))),
            )
            rows.append((f"  {method_label(method, roomy=roomy)}", cells))
    header = ("alarm", "loss", "lead", "first score", *(f"{_FORECASTS[name]} breaks" for name in forecasts))
    return Table(header, tuple(rows), stacks=True)


def _earliest(of: MethodShift, family: int) -> str:
    """The score of the earliest alarm, and where it is raised."""
    alarms = of.alarm[:, family]
    if np.isnan(alarms).all():
        return "never"
    row = int(np.nanargmin(alarms))
    return f"{named(of.scores[row], roomy=False)} {_at(float(alarms[row]))}"


def _silent(result: Result, shift: Shift) -> Iterator[str]:
    """The families in which accuracy is lost before the alarm, and before that of any score."""
    late, unseen = [], []
    for place, family in enumerate(shift.families):
        methods = [shift.methods[method] for method in plain_methods(result)]
        of_scores = [of for of in methods if of.scores and not math.isnan(of.loss[place])]
        if not of_scores:
            continue
        if all(not (of.alarm[:, place] <= of.loss[place]).any() for of in of_scores):
            unseen.append(family)
        elif all(not of.alarm[of.scores.index(str(first_alarm(of))), place] <= of.loss[place] for of in of_scores):
            late.append(family)
    loss = _loss_in_words(result, shift)
    if unseen:
        yield f"No score of any method raises its alarm before {loss}: {', '.join(unseen)}."
    if late:
        yield f"By the scores of the table, the alarm comes after {loss}: {', '.join(late)}."


def _loss_in_words(result: Result, shift: Shift) -> str:
    limit = limit_of(shift, result)
    if result.task.is_regression:
        return f"the RMSE has risen by {100 * limit:g} %"
    return f"accuracy has fallen by {100 * limit:g} points"


def _legend_of_leads(result: Result, shift: Shift) -> str:
    score = dict.fromkeys(named(score) for of in shift.methods.values() if (score := first_alarm(of)))
    text = (
        f"Alarm: the severity from which the mean of {' or '.join(score) or 'a score'} over {shift.window} unlabelled "
        f"points leaves the {100 * LEVEL:.0f} % band of unchanged points. Loss: the severity at which "
        f"{_loss_in_words(result, shift)}. Lead: from the one to the other, ± its standard error over points; below 0, "
        "the alarm comes too late. Between severities along a line; 0 is unchanged."
    )
    if next(iter(shift.methods.values())).forecasts:
        text += (
            " ATC and DoC tell the accuracy without labels, by the share of confidences above a threshold and by the "
            f"mean confidence; they break where their error is beyond its own {100 * LEVEL:.0f} % band."
        )
    return text


def _legend(result: Result, shift: Shift) -> Iterator[str]:
    kinds = dict.fromkeys(change.kind for change in shift.changes.values() if change.kind in KINDS)
    sizes = {change.kind for change in shift.changes.values() if not change.is_severity}
    names = {kind: f"{kind}:{KINDS[kind].symbol}" if kind in sizes else kind for kind in kinds}
    effects = "; ".join(f"{names[kind]} {KINDS[kind].effect}" for kind in kinds)
    published = [kind for kind in kinds if KINDS[kind].published and kind not in sizes]
    of_published = f" Severities of {', '.join(published)} are those of ImageNet-C, or CIFAR-C." if published else ""
    units = (
        " Sizes are in units of the input before normalisation, of rows in standard deviations where they are "
        "standardised."
    )
    yield (
        f"The test set, changed{': ' if effects else ''}{effects}.{of_published}{units if sizes else ''} ± of a "
        "changed set is the error of its difference to the unchanged one, on the same points and draws. AUROC: "
        "probability that a random changed point is more uncertain than a random test point."
    )
    yield from (f"{text}." for text in noted([each for each in result.findings if each.code == "attacked-through"]))


# ── pictures ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _pictures(result: Result, shift: Shift) -> Iterator[Picture]:
    severities = [family for family in shift.families if shift.changes[shift.sets[shift.places(family)[0]]].is_severity]
    if len(severities) > 1 and any(np.isfinite(of.loss).any() for of in shift.methods.values()):
        yield evaluation_picture("lead", draw=partial(_lead_picture, result, shift, severities))
    for family in shift.families:
        if len(shift.places(family)) > 1:
            yield evaluation_picture("shift", family, draw=partial(_family, result, shift, family))


def _lead_picture(result: Result, shift: Shift, families: list[str], path: Path) -> None:
    """For each family a line from the alarm to the loss, a row a method."""
    methods = [method for method in plain_methods(result) if first_alarm(shift.methods[method])]
    styles, last = line_styles(result), max(c.size for c in shift.changes.values())
    height = 1.2 + len(families) * (0.16 + 0.12 * len(methods))
    with picture(path, title="Alarm and loss", about=about_test_set(result), size=(6.4, height)) as [axes]:
        for place, family in enumerate(families):
            for number_of_method, method in enumerate(methods):
                alarm, loss, *_ = _lead(shift, method, family)
                y, colour = -place - (number_of_method + 0.5) / len(methods) * 0.8 + 0.4, styles[method].colour
                beyond = last + 0.4
                ends = [beyond if math.isnan(end) else end for end in (alarm, loss)]
                axes.plot(ends, [y, y], color=colour if ends[0] <= ends[1] else PALE, linewidth=2.2, zorder=1)
                if not math.isnan(alarm):
                    axes.plot(alarm, y, marker=styles[method].marker, color=colour, linestyle="", zorder=2)
                if not math.isnan(loss):
                    axes.plot(loss, y, marker="|", markersize=9, markeredgewidth=2, color="black", zorder=3)
        for method in methods:
            axes.plot([], [], marker=styles[method].marker, color=styles[method].colour, label=f"alarm, {method}")
        axes.plot([], [], marker="|", markersize=9, markeredgewidth=2, color="black", linestyle="", label="loss")
        axes.axvline(last, color=GREY, linewidth=0.8, linestyle=":")
        axes.set_yticks([-place for place in range(len(families))], families)
        axes.set_xlim(0, last + 0.5)
        axes.set_xlabel("severity (beyond the dotted line: not within these severities)")


def _family(result: Result, shift: Shift, family: str, path: Path) -> None:
    """A panel for each metric, for the alarm and for the accuracy without labels; a line for each method."""
    places, styles, changes = shift.places(family), line_styles(result), [*shift.changes.values()]
    strengths = np.array([0.0, *(changes[place].strength for place in places)])
    panels_shown = {label: curves for label, curves in _curves(result, shift, places) if curves}
    with picture(
        path, title=f"Shift of the inputs: {family}", about=about_test_set(result), columns=len(panels_shown),
        size=(3.4, 3.6), apart=True,
    ) as panels:  # fmt: skip
        for (label, curves), axes in zip(panels_shown.items(), panels, strict=True):
            for method, (values, errors) in curves.items():
                line = styles[method.partition(" ")[0]]
                style: Any = line.plotted | ({"linestyle": "--", "marker": ""} if " " in method else {})
                axes.plot(strengths, values, **style, label=method)
                if errors is not None and np.isfinite(errors).any():
                    reach = 1.96 * np.nan_to_num(errors)
                    axes.fill_between(strengths, values - reach, values + reach, color=line.colour, alpha=0.15, lw=0)
            if label == _ALARM:
                axes.axhspan(-1, 1, color=PALE, zorder=0)
            axes.set_xlabel(changes[places[0]].axis)
            axes.set_ylabel(label)


_Curves = dict[str, tuple[np.ndarray, np.ndarray | None]]  # by method: values, and errors where they are known


def _curves(result: Result, shift: Shift, places: list[int]) -> Iterator[tuple[str, _Curves]]:
    """By panel, the values of the methods at every size, from the unchanged set on."""
    methods = plain_methods(result)
    for metric in estimates_of_task(result.task.name, shown="sensitivity"):
        curves: _Curves = {}
        for method in methods:
            estimates = [_paired(result, shift, method, name, metric) for name in _names(shift)]
            row = [estimates[0], *(estimates[1 + place] for place in places)]
            if all(row):
                errors = [0.0, *(each.se if each and each.se is not None else math.nan for each in row[1:])]
                curves[method] = np.array([each.value for each in row if each]), np.array(errors)
        if metric == "accuracy":
            curves |= _predicted(result, shift, places)
        yield label_of(metric), curves
    alarms: _Curves = {}
    for method in methods:
        of = shift.methods[method]
        if score := first_alarm(of):
            row = of.scores.index(score)
            low, high = of.band[row]
            if high > low:
                alarms[method] = np.array([0.0, *((2 * of.mean[row, places] - low - high) / (high - low))]), None
    yield _ALARM, alarms


def _predicted(result: Result, shift: Shift, places: list[int]) -> _Curves:
    """The accuracy that the confidences of the last plain method tell without labels."""
    method = [*plain_methods(result)][-1]
    of, unchanged = shift.methods[method], result.methods[method].sets["test"].estimates["accuracy"].value
    return {
        f"{method} by {_FORECASTS[name]}": (np.array([unchanged, *of.predicted[row, places]]), None)
        for row, name in enumerate(of.forecasts[:1])
    }
