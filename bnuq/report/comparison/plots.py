"""Pictures of several evaluations: a panel for each method, and in it a line for each result."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bnuq.metrics.registry import estimates_of_task
from bnuq.records.evaluation import MethodResult
from bnuq.report import drawing, ood
from bnuq.report.comparison.lookup import Results, best_score, is_regression, methods_of, ood_names
from bnuq.report.document import Picture
from bnuq.report.drawing import GREY, INK, Line, picture, short
from bnuq.report.numbers import named, number
from bnuq.report.plots import HOW, draw_bins, draw_histograms, enough_points, label_of, roc_curve

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_PANEL = (4.4, 3.9)


@dataclass(frozen=True)
class _Curve:
    """A curve that every method of a result may have: where it is found, and how it is drawn."""

    title: str
    values: Callable[[MethodResult], Mapping[str, np.ndarray]]
    key: str
    draw: Callable[[Axes, Results, str, MethodResult, Line], None]
    remark: Callable[[Results], str] = lambda _: ""  # what the picture says of itself besides the results' names

    def within(self, results: Results, method: str) -> dict[str, MethodResult]:
        """The results that have it."""
        methods = {name: result.methods[method] for name, result in results.items() if method in result.methods}
        return {name: each for name, each in methods.items() if len(self.values(each).get(self.key, ())) > 1}


def pictures(results: Results) -> Iterator[Picture]:
    """Every picture that the results have together."""
    methods = methods_of(results)
    curves = {
        "calibration": _Curve("Reliability", lambda method: method.calibration, "confidence", _reliability, _hollow),
        "interval_calibration": _Curve(
            "Calibration of intervals", lambda method: method.calibration, "level", _intervals
        ),
        "risk_coverage": _Curve("Error of the retained points", lambda method: method.risk, "risk", _risk),
    }
    for name, curve in curves.items():
        if having := [method for method in methods if curve.within(results, method)]:
            yield _picture(name, draw=partial(_draw, results, having, curve))
    metrics = estimates_of_task("regression" if is_regression(results) else "classification", shown="curve")
    converging = [curve for curve in map(_converging, metrics) if any(curve.within(results, m) for m in methods)]
    if having := [method for method in methods if any(curve.within(results, method) for curve in converging)]:
        yield _picture("convergence", draw=partial(_convergence, results, having, converging))
    for name in ood_names(results):
        yield _picture("ood", name, draw=partial(_histograms, results, name))
        yield _picture("roc", name, draw=partial(_roc, results, name))


def _picture(*kind: str, draw: Callable[[Path], None]) -> Picture:
    return Picture(kind, draw, HOW[kind[0]])


def _lines(results: Results) -> dict[str, Line]:
    looks = list(drawing.lines_of(["", *map(str, range(len(results)))]).values())[1:]
    return dict(zip(results, looks, strict=True))


def _under(results: Results, name: str) -> dict[str, Any]:
    """Widths that leave an edge of a line to be seen where another lies upon it."""
    above = len(results) - 1 - list(results).index(name)
    return {"linewidth": 1.5 + 0.8 * min(above, 3), "markersize": 4 + 1.5 * min(above, 3)}


def _draw(results: Results, methods: Sequence[str], curve: _Curve, path: Path) -> None:
    lines, about = _lines(results), ", ".join(results) + curve.remark(results)
    with picture(path, title=curve.title, about=about, columns=len(methods), size=_PANEL, apart=True) as panels:
        for method, axes in zip(methods, panels, strict=True):
            axes.set_title(method)
            for name, values in curve.within(results, method).items():
                curve.draw(axes, results, name, values, lines[name])
            axes.legend(loc="best")


def _reliability(axes: Axes, results: Results, name: str, method: MethodResult, line: Line) -> None:
    _as_stated(axes)
    label = f"{short(name, 24)}, ECE {100 * method.sets['test'].estimates['ece'].value:.1f} %"
    look = {**line.plotted, **_under(results, name)}
    draw_bins(axes, method.calibration, enough_points(results[name]), label=label, **look)
    axes.set_xlabel("confidence")
    axes.set_ylabel("accuracy")


def _hollow(results: Results) -> str:
    least = sorted({enough_points(result) for result in results.values()})
    most = f" to {least[-1]}, by how many there are" if len(least) > 1 else " points"
    return f"; hollow: bins of fewer than {least[0]}{most}"


def _intervals(axes: Axes, results: Results, name: str, method: MethodResult, line: Line) -> None:
    _as_stated(axes)
    curve = method.calibration
    axes.plot(curve["level"], curve["coverage"], **line.plotted, **_under(results, name), label=short(name, 24))
    axes.set_xlabel("nominal probability of the central interval")
    axes.set_ylabel("observed coverage")


def _as_stated(axes: Axes) -> None:
    if not axes.get_lines():
        axes.plot([0, 1], [0, 1], color=INK, linewidth=1)
        axes.set_xlim(0, 1)
        axes.set_ylim(-0.02, 1.02)


def _risk(axes: Axes, results: Results, name: str, method: MethodResult, line: Line) -> None:
    curve, regression = method.risk, is_regression(results)
    look = {"color": line.colour, "linestyle": line.dashes, "linewidth": _under(results, name)["linewidth"]}
    axes.plot(curve["coverage"], curve["risk"], **look, label=short(name, 24))
    order, risk = ("predicted σ", "mean |error| (target unit)") if regression else ("predictive entropy", "error rate")
    axes.set_xlim(0, 1)
    most = max(float(np.nanmax(drawn.get_ydata())) for drawn in axes.get_lines())
    axes.set_ylim(0, 1.05 * most or 1.0)
    axes.set_xlabel(f"share of the test points retained, lowest {order} first")
    axes.set_ylabel(risk)


def _converging(metric: str) -> _Curve:
    """An estimate of the first 1, 2, 4, … passes."""

    def draw(axes: Axes, results: Results, name: str, method: MethodResult, line: Line) -> None:
        look: dict[str, Any] = {**line.plotted, **_under(results, name), "label": short(name, 24)}
        axes.plot(method.convergence["samples"], method.convergence[metric], **look)
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:.0f}")
        axes.set_xlabel("passes")
        axes.set_ylabel(label_of(metric))

    return _Curve(label_of(metric), lambda method: method.convergence, metric, draw)


def _convergence(results: Results, methods: Sequence[str], curves: Sequence[_Curve], path: Path) -> None:
    """A column for each method and in it a panel for each estimate; of a single method, the estimates side by side."""
    lines, alone = _lines(results), len(methods) == 1
    with picture(
        path, title="Estimates over the number of samples", about=", ".join(results), size=(_PANEL[0], 3.3), apart=True,
        columns=len(curves) if alone else len(methods), heights=(1.0,) if alone else (1.0,) * len(curves),
    ) as panels:  # fmt: skip
        for (curve, method), axes in zip(itertools.product(curves, methods), panels, strict=True):
            axes.set_title(method)
            for name, values in curve.within(results, method).items():
                curve.draw(axes, results, name, values, lines[name])
            if axes.get_lines():
                axes.legend(loc="best")


def _histograms(results: Results, name: str, path: Path) -> None:
    """A panel for each result: its score of largest AUROC, on the test set and on the OOD set."""
    best = {key: ood.best_score_of(result, name) for key, result in results.items() if name in ood.names(result)}
    sets = {result: results[result].methods[method].sets for result, (method, _, _) in best.items()}
    points = {r: (sets[r]["test"].points[s], sets[r][name].points[s]) for r, (_, s, _) in best.items()}
    with picture(
        path, title=f"{short(name, 24)} against the test sets", about=", ".join(best),
        columns=len(best), size=(_PANEL[0], 3.3), apart=True,
    ) as panels:  # fmt: skip
        for (result, (method, score, auroc)), axes in zip(best.items(), panels, strict=True):
            same = [pair for other, pair in points.items() if best[other][1] == score]  # whose bins are to be the same
            axes.set_title(f"{short(result, 24)}: {method}, AUROC {number(auroc, 3)}")
            among = np.concatenate([values for pair in same for values in pair])
            draw_histograms(axes, *points[result], score, name, among)


def _roc(results: Results, name: str, path: Path) -> None:
    """For each method the score of largest mean AUROC, the same for all results."""
    lines = _lines(results)
    scores = {m: best for m in methods_of(results) if (best := best_score(results, name, m)) is not None}
    about = f"{', '.join(results)}; of each method the score of largest mean AUROC"
    with picture(
        path, title=f"ROC, {short(name, 24)} against the test sets", about=about, columns=len(scores), size=_PANEL,
        apart=True,
    ) as panels:  # fmt: skip
        for (method, (score, aurocs)), axes in zip(scores.items(), panels, strict=True):
            axes.set_title(f"{method}, {named(score)}")
            axes.plot([0, 1], [0, 1], color=GREY, linewidth=0.8)
            for result, auroc in aurocs.items():
                sets = results[result].methods[method].sets
                curve = roc_curve(sets["test"].points[score], sets[name].points[score])
                look, width = lines[result], _under(results, result)["linewidth"]
                label = f"{short(result, 24)}, AUROC {number(auroc, 3)}"
                axes.plot(*curve, color=look.colour, linestyle=look.dashes, linewidth=width, label=label)
            axes.set_xlim(0, 1)
            axes.set_ylim(-0.02, 1.02)
            axes.set_xlabel("test points classified as OOD (false positive rate)")
            axes.set_ylabel("OOD points detected (true positive rate)")
            axes.legend(loc="lower right")
