"""The figures of a result, drawn from its record."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float

from bnuq.methods import DETERMINISTIC, method_named
from bnuq.metrics import METRICS
from bnuq.metrics.registry import ALARMS, estimates_of_task
from bnuq.perturbations import KINDS, kind_and_size
from bnuq.records.evaluation import BAND, MethodResult, Result
from bnuq.report import drawing
from bnuq.report.document import Part, Picture
from bnuq.report.drawing import GREY, INK, PALE, PANEL, Line, picture, short
from bnuq.report.evaluation_findings import network_in_words
from bnuq.report.numbers import named, number
from bnuq.report.ood import best_score_of
from bnuq.report.tasks import points_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_HALF, _MOST = 0.6744897501960817, 1.959963984540054  # sd to the ends of the central 50 and 95 % of a Gaussian
_DARK, _LIGHT = "#9ecae1", "#dbe9f4"  # their bands
_BINS = (12, 40)  # fewest and most of a histogram
_FEWEST_PIXELS, _MOST_CLASSES = 50, 24  # of a bin that is drawn, and of a legend
_UNITS = ("nats", "target unit", "target unit²")  # others go without saying

_DIAGONAL = (
    "On the diagonal, confidence equals accuracy; below it the network is overconfident, above it underconfident."
)
HOW = {
    "reliability": f"{_DIAGONAL} The histogram below shows how many points have which confidence.",
    "calibration": _DIAGONAL,
    "interval_calibration": (
        "On the diagonal, a central interval covers as many targets as it should; below it the intervals are too "
        "narrow, above it too wide. Within the band, chance alone explains the difference."
    ),
    "class_reliability": (
        "On the diagonal, as many of the pixels with this probability of a class are of it as the probability says; "
        "below it the class is predicted too often. Bins of fewer than 50 pixels are left out."
    ),
    "risk_coverage": (
        "Error of the retained points when the most uncertain ones are deferred: the lower the curve, the better "
        "the uncertainty identifies errors. A flat curve means that uncertain points are wrong no more often "
        "than others."
    ),
    "ood": (
        "The less the two overlap, the better OOD points are separated from test points. Shown is the score with "
        "the largest AUROC."
    ),
    "roc": (
        "Up and to the left is better; the diagonal is chance. Each step is a threshold on the score, and the "
        "area under a curve is its AUROC."
    ),
    "pavpu": (
        "A pixel is certain where its predictive entropy is up to the threshold. PAvPU is the share of pixels that are "
        "either right and certain or wrong and uncertain: the higher its curve, the better the entropy tells right "
        "pixels from wrong ones."
    ),
    "boundary": (
        "Means over the test pixels at this distance from the nearest boundary between two classes of the masks; the "
        "last point has all pixels that are further away. If samples differ where objects end, the curve of the mutual "
        "information falls."
    ),
    "convergence": (
        "The same estimates from the first samples alone: once a curve is flat, more samples would change little."
    ),
    "sensitivity": (
        "At 0 the inputs are unchanged. Uncertainty that is an alarm rises where accuracy falls: AUROC is the "
        "probability that a random changed point is more uncertain than a random test point, and 0.5 is chance."
    ),
    "uncertainty_error": (
        "Points sorted by their predicted σ. Where the running mean of the errors rises with the bands, σ "
        "separates large errors from small ones; dots far above the bands are unexpected errors."
    ),
}


def calibration(result: Result) -> Iterator[Picture]:
    """Accuracy over confidence, or the coverage of central intervals, if they were computed."""
    if all("confidence" in each.calibration for each in result.methods.values()):
        yield _picture("reliability", draw=partial(_reliability, result))
    elif calibrated := {name: each for name, each in result.methods.items() if "level" in each.calibration}:
        yield _picture("interval_calibration", draw=partial(_interval_calibration, result, calibrated))


def class_calibration(result: Result) -> Iterator[Picture]:
    """The reliability of each class of pixels, of the deterministic network and of the first sampled method."""
    names = [DETERMINISTIC, *(name for name in result.sampled if method_named(name).recalibration is None)][:2]
    if curves := {name: each.class_calibration for name in names if (each := result.methods[name]).class_calibration}:
        yield _picture("class_reliability", draw=partial(_class_calibration, result, curves))


def risk_coverage(result: Result) -> Iterator[Picture]:
    """The error of the most certain points over how many they are."""
    if ranked := {name: each for name, each in result.methods.items() if len(each.risk.get("risk", ())) > 1}:
        yield _picture("risk_coverage", draw=partial(_risk_coverage, result, ranked))


def boundary(result: Result) -> Iterator[Picture]:
    """Uncertainty and error rate of pixels over their distance from the nearest class boundary."""
    curves = {name: each.boundary for name, each in result.methods.items() if method_named(name).recalibration is None}
    if any(np.isfinite(curve["error_rate"]).sum() > 1 for curve in curves.values() if curve):
        yield _picture("boundary", draw=partial(_boundary, result, curves))


def pavpu(result: Result) -> Iterator[Picture]:
    """The accuracy of certain pixels and the uncertainty of wrong ones over thresholds of the entropy."""
    if curves := {name: each.pavpu for name, each in result.methods.items() if each.pavpu}:
        yield _picture("pavpu", draw=partial(_pavpu, result, curves))


def separation(result: Result, name: str) -> Iterator[Picture]:
    """The best score on the test set and on an OOD set, and the ROC curves of all scores."""
    yield _picture("ood", name, draw=partial(_separation, result, name))
    yield _picture("roc", name, draw=partial(_roc, result, name))


def perturbed(result: Result) -> list[tuple[str, float, str]]:
    """Kind, size and name of each set that is the test set with changed inputs, by kind and size."""
    names = [name for name, each in result.sets.items() if each.kind == "perturbed"]
    return sorted((*change, name) for name in names if (change := kind_and_size(name)))


def sensitivity(result: Result) -> Iterator[Picture]:
    """Metrics and the AUROC of the uncertainty over the size of each kind of change that has several sizes."""
    found = perturbed(result)
    for kind in dict.fromkeys(kind for kind, _, _ in found):
        if len(sizes := {size: name for of, size, name in found if of == kind}) > 1:
            yield _picture("sensitivity", kind, draw=partial(_sensitivity, result, kind, {0.0: "test", **sizes}))


def convergence(result: Result, instead: Iterable[Part]) -> Iterator[Picture]:
    """Estimates over the number of samples, where any are finite."""
    metrics = [
        metric
        for metric in estimates_of_task(result.task.name, shown="curve")
        if any(np.isfinite(method.convergence.get(metric, [math.nan])).all() for method in result.methods.values())
    ]
    if metrics:
        yield _picture("convergence", draw=partial(_convergence, result, metrics), instead=instead)


def uncertainty_error(result: Result, instead: Iterable[Part]) -> Iterator[Picture]:
    """Of each method whose σ varies, errors over points sorted by σ; `instead` stands for all of them together."""
    for name, method in result.methods.items():
        sigma = method.uncertainty_error.get("sigma", ())
        if len(sigma) > 1 and np.ptp(sigma) > 0:
            yield _picture("uncertainty_error", name, draw=partial(_uncertainty_error, result, name), instead=instead)
            instead = ()


def _picture(*kind: str, draw: Callable[[Path], None], instead: Iterable[Part] = ()) -> Picture:
    return Picture(kind, draw, HOW[kind[0]], tuple(instead))


def _about(result: Result, *, sampled: bool = True) -> str:
    model, test = Path(str(result.model["path"])).name, result.sets["test"]
    passes = f", {result.sampling['samples']} samples" if sampled and result.sampled else ""
    return f"{model}, test set, {test.n} {points_of(result)}{passes}"


def _lines(result: Result) -> dict[str, Line]:
    return drawing.lines_of(list(result.methods))


def label_of(metric: str, title: str | None = None) -> str:
    """A metric as it stands along an axis, with its unit."""
    unit = METRICS[metric].unit
    return (title or named(metric)) + (f" ({unit})" if unit in _UNITS else "")


# ── regression ───────────────────────────────────────────────────────────────────────────────────────────────────────


def _uncertainty_error(result: Result, name: str, path: Path) -> None:
    """Teye, Azizpour & Smith 2018, Fig. 2: points by predicted σ, what it lets expect, and how large the errors are."""
    method = result.methods[name]
    curve = method.uncertainty_error
    rank, sigma = 1 + curve["rank"], curve["sigma"]
    single = result.model.get("outputs") == 1
    fitted = "tau" in method.sets["test"].estimates
    half, most = (f"{share} % of errors expected" if single and fitted else f"{factor} σ" for share, factor in
                  ((50, "0.67"), (95, "1.96")))  # fmt: skip
    about = _about(result) + ("" if fitted else "; σ of the samples alone, without observation noise")
    with picture(path, title=f"Uncertainty and error, {name}", about=about, size=(PANEL[0], 4.4)) as [axes]:
        axes.grid(visible=False)
        axes.fill_between(rank, 0, _MOST * sigma, color=_LIGHT, linewidth=0, label=most)
        axes.fill_between(rank, 0, _HALF * sigma, color=_DARK, linewidth=0, label=half)
        size = 14 if len(rank) <= 300 else 5
        axes.scatter(rank, curve["error"], s=size, color=GREY, alpha=0.7, linewidths=0, label="|error| of a point")
        axes.plot(rank, curve["running_error"], color="#D55E00", label="running mean of |error|")
        constant = method.bounds.get("constant", {}).get("sigma")
        if constant is not None:
            axes.axhline(constant.value, color=INK, linestyle="--", linewidth=1.2, label="constant σ")
        axes.set_xlim(rank[0] - 0.5, rank[-1] + 0.5)
        axes.set_ylim(0, 1.05 * float(max(curve["error"].max(), min(_MOST * sigma.max(), 2 * curve["error"].max()))))
        axes.set_xlabel("test points, sorted by predicted σ")
        axes.set_ylabel("|error| (target unit)" if single else "|error|, rms of the outputs (target unit)")
        _legend_below(axes, columns=3)


def _interval_calibration(result: Result, calibrated: Mapping[str, MethodResult], path: Path) -> None:
    lines = _lines(result)
    test = result.sets["test"]
    points = test.n if test.group is None else len(np.unique(test.group))
    with picture(path, title="Calibration of intervals", about=_about(result), size=(5.2, 4.8)) as [axes]:
        level = np.linspace(0, 1, 101)
        chance = _MOST * np.sqrt(level * (1 - level) / points)
        low, high = np.clip(level - chance, 0, 1), np.clip(level + chance, 0, 1)
        axes.fill_between(level, low, high, color=PALE, linewidth=0, label=f"95 % by chance, {points} points")
        axes.plot([0, 1], [0, 1], color=INK, linewidth=1, label="perfect calibration")
        for name, method in calibrated.items():
            curve = method.calibration
            axes.plot(curve["level"], curve["coverage"], **lines[name].plotted, label=name)
        _unit_square(axes)
        axes.set_xlabel("nominal probability of the central interval")
        axes.set_ylabel("observed coverage")
        axes.legend(loc="upper left")


# ── classification ───────────────────────────────────────────────────────────────────────────────────────────────────


def _reliability(result: Result, path: Path) -> None:
    lines = _lines(result)
    enough = enough_points(result)
    about = f"{_about(result)}; hollow: bins of fewer than {enough} points"
    with picture(path, title="Reliability", about=about, size=(5.2, 4.4), heights=(1.0, 0.32)) as [axes, below]:
        axes.plot([0, 1], [0, 1], color=INK, linewidth=1, label="perfect calibration")
        for name, method in result.methods.items():
            curve = method.calibration
            ece = method.sets["test"].estimates["ece"].value
            draw_bins(axes, curve, enough, label=f"{name}, ECE {100 * ece:.1f} %", **lines[name].plotted)
            edges = np.linspace(0, 1, len(curve["count"]) + 1)
            share = curve["count"] / max(1, curve["count"].sum())
            below.stairs(100 * share, edges, color=lines[name].colour, linestyle=lines[name].dashes, linewidth=1.4)
        _unit_square(axes)
        axes.set_ylabel("accuracy")
        if drawing.on_page():
            drawing.legend_apart(axes)
        else:
            axes.legend(loc="lower right")
        below.set_xlim(0, 1)
        below.set_xlabel("confidence")
        below.set_ylabel("pixels (%)" if points_of(result) == "images" else "points (%)")


def _class_calibration(result: Result, curves: Mapping[str, Mapping[str, np.ndarray]], path: Path) -> None:
    names, colours = result.sets["test"].classes, drawing.colours_of(int(result.model["classes"]))
    with picture(
        path, title="Reliability by class", about=_about(result), columns=len(curves), size=(4.6, 4.4), apart=True,
    ) as panels:  # fmt: skip
        for (method, curve), axes in zip(curves.items(), panels, strict=True):
            axes.plot([0, 1], [0, 1], color=INK, linewidth=1)
            for k in np.flatnonzero(curve["count"].any(1)):
                kept = curve["count"][k] >= _FEWEST_PIXELS
                label = names[k] if k < len(names) else f"class {k}"
                shares = (curve[name][k][kept] for name in ("confidence", "accuracy"))
                axes.plot(*shares, color=tuple(colours[k]), marker=".", linewidth=1.2, label=label)
            _unit_square(axes)
            axes.set_xlabel(f"probability of the class, {method}")
            axes.set_ylabel("share of these pixels that are of the class")
            if len(curve["count"]) <= _MOST_CLASSES:
                axes.legend(loc="upper left", fontsize="x-small", ncols=2)


def enough_points(result: Result) -> int:
    """How many test points a bin needs for its accuracy to say something: 2 %, but 2 to 20."""
    return int(np.clip(result.sets["test"].n / 50, 2, 20))


def draw_bins(axes: Axes, curve: Mapping[str, np.ndarray], enough: int, *, label: str, **look: Any) -> None:
    """Accuracy over confidence: bins of `enough` points joined by a line, those of fewer hollow and by themselves."""
    many, few = curve["count"] >= enough, (curve["count"] > 0) & (curve["count"] < enough)
    x, y = curve["confidence"], curve["accuracy"]
    axes.plot(x[many], y[many], **look, label=label)
    if few.any():
        hollow: dict[str, Any] = {**look, "linestyle": "", "markerfacecolor": "none", "markeredgewidth": 0.8}
        axes.plot(x[few], y[few], **hollow, alpha=0.6)


# ── both ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _risk_coverage(result: Result, ranked: Mapping[str, MethodResult], path: Path) -> None:
    lines = _lines(result)
    regression = result.task.is_regression
    order, risk = ("predicted σ", "mean |error| (target unit)") if regression else ("predictive entropy", "error rate")
    with picture(path, title="Error of the retained points", about=_about(result)) as [axes]:
        for name, method in ranked.items():
            line = lines[name]
            curve = method.risk
            axes.plot(curve["coverage"], curve["risk"], color=line.colour, linestyle=line.dashes, label=name)
        axes.set_xlim(0, 1)
        axes.set_ylim(bottom=0)
        axes.set_xlabel(f"share of the test points retained, lowest {order} first")
        axes.set_ylabel(risk)
        axes.legend(loc="best")


def _boundary(result: Result, curves: Mapping[str, Mapping[str, np.ndarray]], path: Path) -> None:
    lines = _lines(result)
    labels = {"mutual_information": "", "predictive_entropy": "", "error_rate": "error rate"}
    known = {key: text or label_of(key) for key, text in labels.items() if any(key in each for each in curves.values())}
    with picture(
        path, title="Distance from the nearest class boundary", about=_about(result), columns=len(known),
        size=(3.9, 3.6), apart=True,
    ) as panels:  # fmt: skip
        for (key, label), axes in zip(known.items(), panels, strict=True):
            for name, curve in curves.items():
                if key in curve:
                    axes.plot(curve["distance"], curve[key], **lines[name].plotted, label=name)
            axes.axvline(BAND, color=PALE, linewidth=1.2, zorder=0)
            last = int(max(curve["distance"][-1] for curve in curves.values() if curve))
            ticks = [*range(0, last, 4), last]
            axes.set_xticks(ticks, [*map(str, ticks[:-1]), f"≥ {last}"])
            axes.set_ylim(bottom=0)
            axes.set_xlabel("distance from the nearest class boundary (pixels)")
            axes.set_ylabel(label)
            axes.legend(loc="best")


def _pavpu(result: Result, curves: Mapping[str, Mapping[str, np.ndarray]], path: Path) -> None:
    lines = _lines(result)
    labels = {
        "accurate_if_certain": "share of certain pixels that are right",
        "uncertain_if_inaccurate": "share of wrong pixels that are uncertain",
        "pavpu": "PAvPU",
    }
    with picture(
        path, title="Certain and accurate pixels", about=_about(result), columns=len(labels), size=(3.9, 3.6),
        apart=True,
    ) as panels:  # fmt: skip
        for (key, label), axes in zip(labels.items(), panels, strict=True):
            for name, curve in curves.items():
                axes.plot(curve["threshold"], curve[key], **lines[name].plotted, label=name)
            axes.set_xlabel("certain up to this predictive entropy (nats)")
            axes.set_ylabel(label)
        panels[0].legend(loc="best")


def _convergence(result: Result, metrics: list[str], path: Path) -> None:
    """What more passes would change: estimates of the first 1, 2, 4, … draws, and of the network as it is."""
    lines = _lines(result)
    with picture(
        path, title="Estimates over the number of samples", about=_about(result, sampled=False), columns=len(metrics),
        size=(4.2, 3.6), apart=True,
    ) as panels:  # fmt: skip
        for metric, axes in zip(metrics, panels, strict=True):
            for name, method in result.methods.items():
                values = method.convergence.get(metric)
                plain = method.sets["test"].estimates.get(metric)
                if values is not None and np.isfinite(values).all():
                    axes.plot(method.convergence["samples"], values, **lines[name].plotted, label=name)
                elif method_named(name).is_single and plain is not None and math.isfinite(plain.value):
                    axes.axhline(plain.value, color=lines[name].colour, linestyle=lines[name].dashes, label=name)
            axes.set_xscale("log", base=2)
            axes.xaxis.set_major_formatter(lambda value, _: f"{value:.0f}")
            axes.set_xlabel("samples")
            axes.set_ylabel(label_of(metric))
        panels[0].legend(loc="best")


def _sensitivity(result: Result, kind: str, sizes: Mapping[float, str], path: Path) -> None:
    """A panel a metric, a line a method: the estimates over the size of the change."""
    methods = {name: each for name, each in result.methods.items() if method_named(name).recalibration is None}
    lines = drawing.lines_of([*methods])
    shown: dict[str, dict[str, list[float]]] = {}
    for metric in estimates_of_task(result.task.name, shown="sensitivity"):
        having = {
            name: [method.sets[s].estimates.get(metric) for s in sizes.values()] for name, method in methods.items()
        }
        shown[label_of(metric)] = {name: [e.value for e in each if e] for name, each in having.items() if all(each)}
    for score in ALARMS:
        of_sets = {n: [m.ood[s].get(score) for s in [*sizes.values()][1:]] for n, m in methods.items()}
        aurocs = {name: [0.5, *(e["auroc"].value for e in each if e)] for name, each in of_sets.items() if all(each)}
        shown[f"AUROC, {named(score)}"] = aurocs
    shown = {label: curves for label, curves in shown.items() if curves}
    with picture(
        path, title=f"Sensitivity to the input: {kind}", about=_about(result), columns=len(shown), size=(3.4, 3.6),
        apart=True,
    ) as panels:  # fmt: skip
        for (label, curves), axes in zip(shown.items(), panels, strict=True):
            for name, values in curves.items():
                axes.plot([*sizes], values, **lines[name].plotted, label=name)
            axes.set_xlabel(KINDS[kind].axis if kind in KINDS else "size of the change")
            axes.set_ylabel(label)
        panels[0].legend(loc="best")


def _separation(result: Result, name: str, path: Path) -> None:
    """The score of largest AUROC, on the test set and on the OOD set."""
    method, score, auroc = best_score_of(result, name)
    values = {s: result.methods[method].sets[s].points[score] for s in ("test", name)}
    about = f"{Path(str(result.model['path'])).name}, AUROC {number(auroc, 3)}, the best score; {len(values['test'])} "
    about += f"test and {len(values[name])} other points"
    of = network_in_words(method)
    words = named(score).capitalize()
    with picture(path, title=f"{short(name, 24)} against the test set: {words.lower()} of {of}", about=about) as [axes]:
        draw_histograms(axes, values["test"], values[name], score, name)


def draw_histograms(
    axes: Axes,
    test: Float[np.ndarray, " test"],
    ood: Float[np.ndarray, " ood"],
    score: str,
    name: str,
) -> None:
    """How the score is spread over the test set and over the OOD set `name`, in percent of each."""
    edges, logarithmic = _edges(np.concatenate([test, ood]))
    for values, colour, label in ((test, "#0072B2", "test set"), (ood, "#D55E00", short(name))):
        share = np.histogram(np.clip(values, edges[0], edges[-1]), edges)[0] / len(values)
        axes.stairs(100 * share, edges, fill=True, color=colour, alpha=0.35)
        axes.stairs(100 * share, edges, color=colour, linewidth=1.4, label=label)
    if logarithmic:
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set_ylim(bottom=0)
    words = named(score).capitalize()
    axes.set_xlabel(label_of(score, words) if score in METRICS else words)
    axes.set_ylabel("points of the set (%)")
    axes.legend(loc="best")


def _roc(result: Result, name: str, path: Path) -> None:
    """Every score of every method: the colour tells the method, the dashes the score."""
    lines = _lines(result)
    scores = list(dict.fromkeys(score for each in result.methods.values() for score in each.ood[name]))
    dashes = dict(zip(scores, ("-", "--", "-.", ":"), strict=False))
    model, points = Path(str(result.model["path"])).name, {s: result.sets[s].n for s in ("test", name)}
    about = f"{model}, {points['test']} test and {points[name]} other points"
    with picture(path, title=f"ROC, {short(name, 24)} against the test set", about=about, size=(5.2, 5.2)) as [axes]:
        axes.plot([0, 1], [0, 1], color=PALE, linewidth=1.2)
        for method, each in result.methods.items():
            aurocs = [estimates["auroc"].value for estimates in each.ood[name].values()]
            for score in each.ood[name]:
                curve = roc_curve(*(each.sets[s].points[score] for s in ("test", name)))
                axes.plot(*curve, color=lines[method].colour, linestyle=dashes.get(score, "-"), linewidth=1.4)
            if aurocs:
                label = f"{method}, AUROC {'up to ' if len(aurocs) > 1 else ''}{number(max(aurocs), 3)}"
                axes.plot([], [], color=lines[method].colour, linewidth=3, label=label)
        for score in scores if len(scores) > 1 else ():
            axes.plot([], [], color=INK, linestyle=dashes.get(score, "-"), linewidth=1.4, label=named(score))
        _unit_square(axes)
        axes.set_xlabel("test points classified as OOD (false positive rate)")
        axes.set_ylabel("OOD points detected (true positive rate)")
        drawing.legend_apart(axes)


def roc_curve(
    test: Float[np.ndarray, " test"], ood: Float[np.ndarray, " ood"]
) -> tuple[Float[np.ndarray, " step"], Float[np.ndarray, " step"]]:
    """False- and true-positive rates from (0, 0) to (1, 1), OOD positive and the largest score first, ties in one step.

    At most a thousand steps are kept: no picture shows more.
    """
    values, rung = np.unique(-np.concatenate([test, ood]), return_inverse=True)
    rates = [
        np.append(0.0, np.cumsum(np.bincount(part, minlength=len(values))) / len(part))
        for part in (rung[: len(test)], rung[len(test) :])
    ]
    false, true = rates
    along = np.searchsorted(false + true, np.linspace(0, 2, 1000)) if len(false) > 1000 else np.arange(len(false))
    steps = np.unique(np.append(np.clip(along, 0, len(false) - 1), len(false) - 1))
    return false[steps], true[steps]


def _edges(values: Float[np.ndarray, " point"]) -> tuple[Float[np.ndarray, " edge"], bool]:
    """Edges of bins, and whether they are spaced by factors: where most points would share the first bin otherwise."""
    low, high = float(values.min()), float(values.max())
    if not high > low:
        return np.array([low - 0.5, low + 0.5]), False
    bins = int(np.clip(2 * math.sqrt(len(values)), *_BINS))
    positive = values[values > 0]
    least = float(np.quantile(positive, 0.005)) if len(positive) > 0.98 * len(values) else math.inf
    if high > 100 * least and float(np.median(values)) < low + (high - low) / 20:
        return np.geomspace(least, high, bins + 1), True
    return np.linspace(low, high, bins + 1), False


def _unit_square(axes: Axes) -> None:
    axes.set_xlim(0, 1)
    axes.set_ylim(-0.02, 1.02)


def _legend_below(axes: Axes, *, columns: int) -> None:
    columns = min(columns, 2) if drawing.on_page() else columns
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=columns, columnspacing=1.4)
