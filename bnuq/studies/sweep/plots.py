"""The picture of a sweep: Figure 1 of Mukhoti et al. 2020, with AUROC and ELBO below it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from bnuq.estimates import Estimate
from bnuq.metrics import METRICS
from bnuq.report import drawing
from bnuq.report.drawing import short
from bnuq.report.numbers import error_of, named, three_digits
from bnuq.studies.sweep.lines import (
    SweepLine,
    auroc_of,
    behind_best,
    choice_of,
    disagreement_of,
    estimate_of,
    lines_of,
    names_of,
    score_name,
)
from bnuq.studies.sweep.record import Sweep, SweepPoint

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def draw(sweep: Sweep, path: Path) -> None:
    """Draw the picture to `path`: mean mutual information (variance, of a regression) against the size, below it the
    AUROC and the ELBO, if there are any; the two protocols beside each other.

    Source: the layout is that of Teye, Azizpour & Smith 2018, Fig. 1.
    """
    lines = lines_of(sweep)
    single, matched = ([line for line in lines if (line.model is None) is is_matched] for is_matched in (False, True))
    columns = [column for column in (single, matched) if column]
    ood = [name for name in names_of(sweep, "ood") if any(auroc_of(sweep, point, name) for point in sweep.points)]
    bounded = any(len(behind_best(sweep, line)) > 1 for line in lines)
    rows = [_draw_disagreement, *([_draw_auroc] if ood else []), *([_draw_elbo] if bounded else [])]
    networks = sweep.models[0].name if len(sweep.models) == 1 else f"{len(sweep.models)} networks"
    about = f"{networks}, up to {sweep.draw_sets} × {sweep.samples} samples per size; bars: 1 standard error"
    with drawing.picture(
        path,
        title="Uncertainty over the mini-batch size",
        about=about,
        columns=len(columns),
        heights=(1.0, 0.8, 0.8)[: len(rows)],
        size=(5.6, 3.4),
        apart=True,
        legend="own",
    ) as panels:
        for row, draw_row in enumerate(rows):
            row_panels = panels[row * len(columns) : (row + 1) * len(columns)]
            for axes, column in zip(row_panels, columns, strict=True):
                _size_axis(axes, sweep, column)
                draw_row(axes, sweep, column)
                if row == len(rows) - 1:
                    axes.set_xlabel("mini-batch size b" if column[0].model else "mini-batch size b, as in training")
            if draw_row is not _draw_elbo:  # two scales of what is compared would mislead
                lows, highs = zip(*(axes.get_ylim() for axes in row_panels), strict=True)
                for axes in row_panels:
                    axes.set_ylim(min(lows), max(highs))
        for axes, column in zip(panels, columns, strict=False):
            axes.set_title(column[0].title if len(column) == 1 else "One network at several sizes")


def _size_axis(axes: Axes, sweep: Sweep, column: Sequence[SweepLine]) -> None:
    sizes = sorted({point.batch_size for point in sweep.points})
    drawing.sizes_across(axes, sizes[:: math.ceil(len(sizes) / 9)])
    axes.set_xlim(sizes[0] / 1.25, sizes[-1] * 1.25)
    if chosen := next(filter(None, (choice_of(sweep, line) for line in column)), None):
        label = f"recommended: b = {chosen.batch_size:,}"
        axes.axvline(chosen.batch_size, color=drawing.PALE, linewidth=5, alpha=0.6, zorder=0, label=label)


def _looks(sweep: Sweep, column: Sequence[SweepLine]) -> dict[tuple[int, str], drawing.LineStyle]:
    """How a line of a column and a set are drawn: its colour tells the set, dashes and marker too if they can."""
    set_styles = drawing.line_styles(["", *names_of(sweep, "test", "ood")])
    line_looks = list(drawing.line_styles(["", *map(str, range(len(column)))]).values())[1:]
    return {
        (number, name): look if len(column) == 1 else drawing.LineStyle(look.colour, line_look.dashes, line_look.marker)
        for number, line_look in enumerate(line_looks)
        for name, look in set_styles.items()
    }


def _label(column: Sequence[SweepLine], line: SweepLine, name: str) -> str:
    if len(column) == 1 or line.model is None:
        return short(name, 30)
    return short(f"{line.model.name}, {name}" if name else line.model.name, 40)


def _draw_bars(
    axes: Axes, points: Sequence[SweepPoint], estimates: Sequence[Estimate | None], look: drawing.LineStyle, label: str
) -> None:
    known = [
        (point.batch_size, estimate.value, error_of(estimate) or 0.0)
        for point, estimate in zip(points, estimates, strict=True)
        if estimate is not None and math.isfinite(estimate.value)
    ]
    if not known:
        return
    sizes, values, errors = (np.array(column) for column in zip(*known, strict=True))
    errors = np.where(np.isfinite(errors), errors, 0.0)
    axes.errorbar(sizes, values, yerr=errors, **look.plotted, capsize=2.5, elinewidth=1, label=label)


def _draw_disagreement(axes: Axes, sweep: Sweep, column: Sequence[SweepLine]) -> None:
    metric, looks = disagreement_of(sweep), _looks(sweep, column)
    names = names_of(sweep, "test", "ood")
    every = [
        estimate.value
        for line in lines_of(sweep)
        for point in line.random
        for name in names
        if (estimate := estimate_of(point, metric, name)) is not None and math.isfinite(estimate.value)
    ]
    logarithmic = bool(every) and min(every) > 0
    for index, line in enumerate(column):
        for name in names:
            estimates = [estimate_of(point, metric, name) for point in line.random]
            _draw_bars(axes, line.random, estimates, looks[index, name], _label(column, line, name))
    if logarithmic:
        drawing.factors_up(axes, min(every) / 1.8, max(every) * 1.8, whole=1000, ticks=20)
    fixed_sizes = sorted({point.batch_size for line in column for point in line.points if point.degenerate})
    if fixed_sizes:
        at_bottom = axes.get_xaxis_transform()
        axes.plot(
            fixed_sizes, [0.0] * len(fixed_sizes), linestyle="", marker="o", markerfacecolor="white",
            color=drawing.GREY, transform=at_bottom, clip_on=False, zorder=5, label="exactly 0: nothing is random",
        )  # fmt: skip
    unit = METRICS[metric].unit
    axes.set_ylabel(f"mean {named(metric)} ({unit})")


def _draw_auroc(axes: Axes, sweep: Sweep, column: Sequence[SweepLine]) -> None:
    looks = _looks(sweep, column)
    axes.axhline(0.5, color=drawing.GREY, linewidth=1, linestyle=":", zorder=1)
    for index, line in enumerate(column):
        for name in names_of(sweep, "ood"):
            aurocs = [auroc_of(sweep, point, name) for point in line.random]
            estimates = [None if auroc is None else auroc.estimate for auroc in aurocs]
            _draw_bars(axes, line.random, estimates, looks[index, name], _label(column, line, name))
    axes.set_ylabel(f"AUROC by {score_name(sweep.score)}, against test")


def _draw_elbo(axes: Axes, sweep: Sweep, column: Sequence[SweepLine]) -> None:
    """How far each size lies behind the best of its line, with b*."""
    lowest, highest = axes.get_xlim()
    looks = list(drawing.line_styles(["", *map(str, range(len(column)))]).values())[1:]
    for line, look in zip(column, looks, strict=True):
        look = drawing.LineStyle(drawing.INK, "-", "o") if len(column) == 1 else look
        behind = behind_best(sweep, line)
        points = [line.points[index] for index in behind]
        _draw_bars(axes, points, list(behind.values()), look, _label(column, line, "") or "_")
        if line.model is None or line.model.elbo is None:
            continue
        predicted = line.model.elbo.predicted
        if predicted is not None and math.isfinite(predicted.value):
            prefix = "" if len(column) == 1 else f"{short(line.model.name, 20)}: "
            at = f"{prefix}b* = {three_digits(predicted.value)}"
            if lowest < predicted.value < highest:
                colour = drawing.GREY if len(column) == 1 else look.colour
                axes.axvline(predicted.value, color=colour, linestyle="--", linewidth=1.2, label=at)
            else:
                axes.plot([], [], " ", label=f"{at}, outside")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.10g}".replace("-", "−"))
    axes.set_ylabel("ELBO − best ELBO (nats)")
