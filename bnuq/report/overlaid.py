"""Pictures of several evaluations: a panel for each method, and in it a line for each result."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bnuq.report import drawing
from bnuq.report.beside import Results, best_score, is_regression, methods_of, ood_names
from bnuq.report.drawing import GREY, INK, Format, Line, picture, short
from bnuq.report.figures import Drawn, draw_all, roc_curve, words_of
from bnuq.report.numbers import number
from bnuq.results.result import MethodResult

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_PANEL = (4.4, 3.9)


def draw_figures(results: Results, folder: Path, kind: Format = "svg") -> tuple[Path, ...]:
    """Draw every picture that the results have together into `folder`, which is made where it is missing; their paths.

    Raises RequestError without matplotlib, or where `folder` is a file, ResultError where one cannot be written.
    """
    return tuple(path for _, path in draw_all(pictures_of(results), folder, kind))


@dataclass(frozen=True)
class _Curve:
    """A curve that every method of a result may have: under which name and key, and how it is drawn."""

    title: str
    held: Callable[[MethodResult], Mapping[str, np.ndarray]]
    key: str
    draw: Callable[[Axes, Results, str, MethodResult, Line], None]

    def within(self, results: Results, method: str) -> dict[str, MethodResult]:
        """The results that have it."""
        ours = {name: one.methods[method] for name, one in results.items() if method in one.methods}
        return {name: found for name, found in ours.items() if len(self.held(found).get(self.key, ())) > 1}


def pictures_of(results: Results) -> Iterator[tuple[tuple[str, ...], Drawn]]:
    """What each picture shows (its kind, and of which set), and what draws it to a path."""
    curves = {
        "calibration": _Curve("Reliability", lambda one: one.calibration, "confidence", _reliability),
        "interval_calibration": _Curve("Calibration of intervals", lambda one: one.calibration, "level", _intervals),
        "risk_coverage": _Curve("Error of the most certain points", lambda one: one.risk, "risk", _risk),
        "convergence": _Curve("PLL of the first passes", lambda one: one.convergence, "pll", _convergence),
    }
    for name, curve in curves.items():
        if methods := [method for method in methods_of(results) if curve.within(results, method)]:
            yield (name,), partial(_draw, results, methods, curve)
    for name in ood_names(results):
        yield ("roc", name), partial(_roc, results, name)


def _lines(results: Results) -> dict[str, Line]:
    looks = list(drawing.lines_of(["", *map(str, range(len(results)))]).values())[1:]
    return dict(zip(results, looks, strict=True))


def _under(results: Results, name: str) -> dict[str, Any]:
    """Widths that leave an edge of a line to be seen where another lies upon it."""
    above = len(results) - 1 - list(results).index(name)
    return {"linewidth": 1.5 + 0.8 * min(above, 3), "markersize": 4 + 1.5 * min(above, 3)}


def _draw(results: Results, methods: Sequence[str], curve: _Curve, path: Path) -> None:
    lines, about = _lines(results), ", ".join(results)
    with picture(path, title=curve.title, about=about, columns=len(methods), size=_PANEL, apart=True) as panels:
        for method, axes in zip(methods, panels, strict=True):
            axes.set_title(method)
            for name, found in curve.within(results, method).items():
                curve.draw(axes, results, name, found, lines[name])
            axes.legend(loc="best")


def _reliability(axes: Axes, results: Results, name: str, found: MethodResult, line: Line) -> None:
    _as_stated(axes)
    curve = found.calibration
    enough = int(np.clip(results[name].sets["test"].n / 100, 2, 10))  # points of a bin whose accuracy says something
    many = curve["count"] >= enough
    label = f"{short(name, 24)}, ECE {100 * found.sets['test'].figures['ece'].value:.1f} %"
    x, y = curve["confidence"][many], curve["accuracy"][many]
    axes.plot(x, y, **line.plotted, **_under(results, name), label=label)
    axes.set_xlabel("stated confidence")
    axes.set_ylabel("accuracy")


def _intervals(axes: Axes, results: Results, name: str, found: MethodResult, line: Line) -> None:
    _as_stated(axes)
    curve = found.calibration
    axes.plot(curve["level"], curve["coverage"], **line.plotted, **_under(results, name), label=short(name, 24))
    axes.set_xlabel("central interval, stated probability")
    axes.set_ylabel("share of the targets inside")


def _as_stated(axes: Axes) -> None:
    if not axes.get_lines():
        axes.plot([0, 1], [0, 1], color=INK, linewidth=1)
        axes.set_xlim(0, 1)
        axes.set_ylim(-0.02, 1.02)


def _risk(axes: Axes, results: Results, name: str, found: MethodResult, line: Line) -> None:
    curve, regression = found.risk, is_regression(results)
    look = {"color": line.colour, "linestyle": line.dashes, "linewidth": _under(results, name)["linewidth"]}
    axes.plot(curve["coverage"], curve["risk"], **look, label=short(name, 24))
    order, risk = ("predicted σ", "mean |error| (target unit)") if regression else ("predictive entropy", "error rate")
    axes.set_xlim(0, 1)
    most = max(float(np.nanmax(one.get_ydata())) for one in axes.get_lines())
    axes.set_ylim(0, 1.05 * most or 1.0)
    axes.set_xlabel(f"share of the test points kept, least {order} first")
    axes.set_ylabel(risk)


def _convergence(axes: Axes, results: Results, name: str, found: MethodResult, line: Line) -> None:
    values = found.convergence["pll"]
    axes.plot(found.convergence["samples"], values, **line.plotted, **_under(results, name), label=short(name, 24))
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:.0f}")
    axes.set_xlabel("passes")
    axes.set_ylabel("PLL (nats)")


def _roc(results: Results, name: str, path: Path) -> None:
    """For each method the score of largest mean AUROC, the same for all results."""
    lines = _lines(results)
    told = {m: best for m in methods_of(results) if (best := best_score(results, name, m)) is not None}
    about = f"{', '.join(results)}; of each method the score of largest mean AUROC"
    with picture(
        path, title=f"ROC, {short(name, 24)} against the test sets", about=about, columns=len(told), size=_PANEL,
        apart=True,
    ) as panels:  # fmt: skip
        for (method, (score, aurocs)), axes in zip(told.items(), panels, strict=True):
            axes.set_title(f"{method}, {words_of(score)}")
            axes.plot([0, 1], [0, 1], color=GREY, linewidth=0.8)
            for result, auroc in aurocs.items():
                sets = results[result].methods[method].sets
                curve = roc_curve(sets["test"].points[score], sets[name].points[score])
                look, width = lines[result], _under(results, result)["linewidth"]
                label = f"{short(result, 24)}, AUROC {number(auroc, 3)}"
                axes.plot(*curve, color=look.colour, linestyle=look.dashes, linewidth=width, label=label)
            axes.set_xlim(0, 1)
            axes.set_ylim(-0.02, 1.02)
            axes.set_xlabel("share of test points taken for OOD")
            axes.set_ylabel("share of OOD points found")
            axes.legend(loc="lower right")
