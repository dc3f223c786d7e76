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
from bnuq.findings import all_of
from bnuq.metrics.registry import ALARMS, estimates_of_task
from bnuq.perturbations import KINDS, change_in, change_of
from bnuq.records.evaluation import Result
from bnuq.records.shift import LEVEL, MethodShift, Shift
from bnuq.records.shift_analysis import limit_of, shift_of
from bnuq.records.words import plain
from bnuq.report.document import Cell, Heading, Part, Picture, Row, Table, explanation, explanations
from bnuq.report.drawing import PALE, picture
from bnuq.report.method_names import method_label, network_in_words, plain_methods
from bnuq.report.numbers import count, decimals, digits_of, headed, named, number, with_error
from bnuq.report.plotting import about_test_set, evaluation_picture, label_of, line_styles

_ON_A_SCREEN = 6  # families beside another table
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
    """The answer of `bnuq shift`: of how many changes a score warns before the loss, of which after it, or never, and
    which lose too little."""
    if not is_asked_for(result) or (shift := result.shift or shift_of(result)) is None:
        return
    scores = dict.fromkeys(named(score) for of in shift.methods.values() if (score := first_alarm(of)))
    if not scores:
        yield "No method has a score that can warn of these changes of the inputs."
        return
    groups: dict[str, list[str]] = {"seen": [], "late": [], "unseen": [], "kept": []}
    for place, family in enumerate(shift.families):
        if not shift.changes[shift.sets[shift.places(family)[0]]].is_severity:
            continue
        _, alarm, loss = _first_warning(result, shift, family)
        by_any = any((of.alarm[:, place] <= of.loss[place]).any() for of in shift.methods.values())
        group = "kept" if math.isnan(loss) else "seen" if alarm <= loss else "late" if by_any else "unseen"
        groups[group].append(family)
    losing = sum(map(len, groups.values())) - len(groups["kept"])
    if losing:
        yield (
            f"Watch the mean {all_of(scores, 'or')} of {shift.window} examples, without labels: it leaves its usual "
            f"range before {_loss_in_words(result, shift)} in {len(groups['seen'])} of {count(losing, 'change')}."
        )
    texts = {
        "late": "Too late for {}; by another score of `--full` in time.",
        "unseen": "No score warns in time of {}.",
        "kept": "No loss by {}.",
    }
    if rest := [text.format(all_of(groups[group])) for group, text in texts.items() if groups[group]]:
        yield " ".join(rest)


def short_table(result: Result) -> Iterator[Part]:
    """Of each family, those first that change the first metric of the first method most: that metric for the strongest
    set, and the severities of the loss and of the earliest warning before it."""
    shift = result.shift or shift_of(result)
    if shift is None:
        return
    metric, first = next(iter(estimates_of_task(result.task.name, shown="sensitivity"))), next(iter(shift.methods))
    rows: list[tuple[float, Row]] = []
    unchanged = result.methods[first].sets["test"].estimates.get(metric)
    for family in shift.families:
        name = shift.sets[shift.places(family)[-1]]
        estimate = result.methods[first].sets[name].estimates.get(metric)
        method, alarm, loss = _first_warning(result, shift, family)
        value = "–" if estimate is None else number(estimate.value, 3)
        by = "–" if not method or math.isnan(alarm) else method_label(method)
        cells = (value, _at(loss), _at(alarm) if method else "–", by)
        change = 0.0 if estimate is None or unchanged is None else -abs(estimate.value - unchanged.value)
        rows.append((change, (change_of(name), tuple(map(Cell, cells)))))
    shown = [row for _, row in sorted(rows, key=lambda row: row[0])]
    if not is_asked_for(result):
        shown = shown[:_ON_A_SCREEN]
    yield Table((plain(metric), "loss at", "warned at", "by"), tuple(shown))
    before = "" if unchanged is None else f"; {number(unchanged.value, 3)} without a change"
    yield explanation(
        f"{plain(metric)}: of {network_in_words(first)} for the strongest change, @ its severity{before}. loss at: the "
        f"severity at which {_loss_in_words(result, shift)}; warned at: that at which the mean score of {shift.window} "
        "examples leaves its usual range; by: the method of that score; never: not within these severities."
    )


def _first_warning(result: Result, shift: Shift, family: str) -> tuple[str, float, float]:
    """The method whose score warns longest before the loss, or, where nothing is lost, first; "" if none has a score.
    And the severities of its warning and of the loss."""
    methods = [method for method in plain_methods(result) if first_alarm(shift.methods[method])]
    ends = {method: _lead(shift, method, family)[:2] for method in methods}
    losing = {method: each for method, each in ends.items() if not math.isnan(each[1])} or ends
    leads = {method: np.nan_to_num(loss) - alarm for method, (alarm, loss) in losing.items()}
    method = max(leads, key=lambda each: -math.inf if math.isnan(leads[each]) else leads[each], default="")
    return (method, *ends.get(method, _lead(shift, next(iter(shift.methods)), family)[:2]))


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


def _loss_in_words(result: Result, shift: Shift) -> str:
    limit = limit_of(shift, result)
    words = {"rmse": "the RMSE has risen by {:g} %", "accuracy": "accuracy has fallen by {:g} points"}
    return words[result.task.headline].format(100 * limit)


def _legend_of_leads(result: Result, shift: Shift) -> str:
    score = dict.fromkeys(named(score) for of in shift.methods.values() if (score := first_alarm(of)))
    text = (
        f"Alarm: the severity from which the mean of {' or '.join(score) or 'a score'} over {shift.window} unlabelled "
        f"examples leaves the {100 * LEVEL:.0f} % band of unchanged examples. Loss: the severity at which "
        f"{_loss_in_words(result, shift)}. Lead: from the one to the other, ± its standard error over examples; below "
        "0, the alarm comes too late. Between severities along a line; 0 is unchanged."
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
        "changed set is the error of its difference to the unchanged one, on the same examples and draws. AUROC: "
        "probability that a random changed example is more uncertain than a random test example."
    )
    yield from (f"{text}." for text in noted([each for each in result.findings if each.code == "attacked-through"]))


# ── pictures ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _pictures(result: Result, shift: Shift) -> Iterator[Picture]:
    for family in shift.families:
        if len(shift.places(family)) > 1:
            yield evaluation_picture("shift", family, draw=partial(_family, result, shift, family))


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
