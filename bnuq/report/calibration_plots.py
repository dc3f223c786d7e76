"""The pictures of calibration: reliability, coverage of intervals, and errors over σ."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bnuq.methods import method_named
from bnuq.metrics.replicates import independent_units
from bnuq.records.evaluation import MethodResult, Result
from bnuq.report import drawing
from bnuq.report.document import Picture
from bnuq.report.drawing import GREY, INK, PALE, PANEL, picture
from bnuq.report.method_names import lowered_by, plain_methods, plain_sampled
from bnuq.report.plotting import about_test_set, evaluation_picture, line_styles, unit_square

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_HALF, _MOST = 0.6744897501960817, 1.959963984540054  # sd to the ends of the central 50 and 95 % of a Gaussian
_DARK, _LIGHT = "#9ecae1", "#dbe9f4"  # their bands
_FEWEST_PIXELS, _MOST_CLASSES = 50, 24  # of a bin that is drawn, and of a legend


def calibration(result: Result) -> Iterator[Picture]:
    """Accuracy over confidence, or the coverage of central intervals, if they were computed."""
    if all("confidence" in each.calibration for each in result.methods.values()):
        yield evaluation_picture("reliability", draw=partial(_reliability, result))
    elif calibrated := {name: each for name, each in result.methods.items() if "level" in each.calibration}:
        yield evaluation_picture("interval_calibration", draw=partial(_interval_calibration, result, calibrated))


def class_calibration(result: Result) -> Iterator[Picture]:
    """The reliability of each class of pixels, of the deterministic network and of the first sampled method."""
    names = [result.first, *plain_sampled(result)][:2]
    if curves := {name: each.class_calibration for name in names if (each := result.methods[name]).class_calibration}:
        yield evaluation_picture("class_reliability", draw=partial(_class_calibration, result, curves))


def uncertainty_error(result: Result) -> Iterator[Picture]:
    """Of each method whose σ varies, errors over points sorted by σ."""
    for name, method in result.methods.items():
        sigma = method.uncertainty_error.get("sigma", ())
        if len(sigma) > 1 and np.ptp(sigma) > 0:
            yield evaluation_picture("uncertainty_error", name, draw=partial(_uncertainty_error, result, name))


def _uncertainty_error(result: Result, name: str, path: Path) -> None:
    """Teye, Azizpour & Smith 2018, Fig. 2: points by predicted σ, what it lets expect, and how large the errors are."""
    method = result.methods[name]
    curve = method.uncertainty_error
    rank, sigma = 1 + curve["rank"], curve["sigma"]
    single = result.model.get("outputs") == 1
    fitted = result.given_distribution or "tau" in method.sets["test"].estimates
    half, most = (f"{share} % of errors expected" if single and fitted else f"{factor} σ" for share, factor in
                  ((50, "0.67"), (95, "1.96")))  # fmt: skip
    about = about_test_set(result) + ("" if fitted else "; σ of the samples alone, without observation noise")
    with picture(path, title=f"Uncertainty and error, {name}", about=about, size=(PANEL[0], 4.4)) as [axes]:
        axes.grid(visible=False)
        axes.fill_between(rank, 0, _MOST * sigma, color=_LIGHT, linewidth=0, label=most)
        axes.fill_between(rank, 0, _HALF * sigma, color=_DARK, linewidth=0, label=half)
        size = 14 if len(rank) <= 300 else 5
        axes.scatter(rank, curve["error"], s=size, color=GREY, alpha=0.7, linewidths=0, label="|error| of an example")
        axes.plot(rank, curve["running_error"], color="#D55E00", label="running mean of |error|")
        constant = method.bounds.get("constant", {}).get("sigma")
        if constant is not None:
            axes.axhline(constant.value, color=INK, linestyle="--", linewidth=1.2, label="constant σ")
        axes.set_xlim(rank[0] - 0.5, rank[-1] + 0.5)
        axes.set_ylim(0, 1.05 * float(max(curve["error"].max(), min(_MOST * sigma.max(), 2 * curve["error"].max()))))
        axes.set_xlabel("test examples, sorted by predicted σ")
        axes.set_ylabel("|error| (target unit)" if single else "|error|, rms of the outputs (target unit)")


def _interval_calibration(result: Result, calibrated: Mapping[str, MethodResult], path: Path) -> None:
    lines = line_styles(result)
    test = result.sets["test"]
    points = independent_units(test.n, test.group)
    with picture(path, title="Calibration of intervals", about=about_test_set(result), size=(5.2, 4.8)) as [axes]:
        level = np.linspace(0, 1, 101)
        chance = _MOST * np.sqrt(level * (1 - level) / points)
        low, high = np.clip(level - chance, 0, 1), np.clip(level + chance, 0, 1)
        axes.fill_between(level, low, high, color=PALE, linewidth=0, label=f"95 % by chance, {points} examples")
        axes.plot([0, 1], [0, 1], color=INK, linewidth=1, label="perfect calibration")
        for name, method in calibrated.items():
            curve = method.calibration
            axes.plot(curve["level"], curve["coverage"], **lines[name].plotted, label=name)
        unit_square(axes)
        axes.set_xlabel("nominal probability of the central interval")
        axes.set_ylabel("observed coverage")


def _reliability(result: Result, path: Path) -> None:
    lines = line_styles(result)
    # Points that a bin needs for its accuracy to say something: 2 % of all, but 2 to 20.
    enough = int(np.clip(result.sets["test"].n / 50, 2, 20))
    about = f"{about_test_set(result)}; hollow: bins of fewer than {enough} examples"
    with picture(path, title="Reliability", about=about, size=(5.2, 4.4), heights=(1.0, 0.32)) as [axes, below]:
        axes.plot([0, 1], [0, 1], color=INK, linewidth=1, label="perfect calibration")
        plain, worse = plain_methods(result), lowered_by(result)
        for name, method in result.methods.items():
            if name not in plain and (method_named(name).plain.name != result.first or name in worse):
                continue
            curve = method.calibration
            ece = method.sets["test"].estimates["ece"].value
            draw_bins(axes, curve, enough, label=f"{name}, ECE {100 * ece:.1f} %", **lines[name].plotted)
            edges = np.linspace(0, 1, len(curve["count"]) + 1)
            share = curve["count"] / max(1, curve["count"].sum())
            below.stairs(100 * share, edges, color=lines[name].colour, linestyle=lines[name].dashes, linewidth=1.4)
        unit_square(axes)
        axes.set_ylabel("accuracy")
        below.set_xlim(0, 1)
        below.set_xlabel("confidence")
        below.set_ylabel(f"{result.task.unit} (%)")


def _class_calibration(result: Result, curves: Mapping[str, Mapping[str, np.ndarray]], path: Path) -> None:
    names, colours = result.sets["test"].classes, drawing.colours_of(int(result.model["classes"]))
    with picture(
        path, title="Reliability by class", about=about_test_set(result), columns=len(curves), size=(4.6, 4.4),
        apart=True,
    ) as panels:  # fmt: skip
        for (method, curve), axes in zip(curves.items(), panels, strict=True):
            axes.plot([0, 1], [0, 1], color=INK, linewidth=1)
            for k in np.flatnonzero(curve["count"].any(1)):
                filled = curve["count"][k] >= _FEWEST_PIXELS
                label = names[k] if k < len(names) else f"class {k}"
                label = label if len(curve["count"]) <= _MOST_CLASSES else "_"
                shares = (curve[name][k][filled] for name in ("confidence", "accuracy"))
                axes.plot(*shares, color=tuple(colours[k]), marker=".", linewidth=1.2, label=label)
            unit_square(axes)
            axes.set_xlabel(f"probability of the class, {method}")
            axes.set_ylabel("share of these pixels that are of the class")


def draw_bins(axes: Axes, curve: Mapping[str, np.ndarray], enough: int, *, label: str, **look: Any) -> None:
    """Accuracy over confidence: bins of `enough` points joined by a line, those of fewer hollow and by themselves."""
    many, few = curve["count"] >= enough, (curve["count"] > 0) & (curve["count"] < enough)
    x, y = curve["confidence"], curve["accuracy"]
    axes.plot(x[many], y[many], **(look | {"markerfacecolor": look["color"]}), label=label)
    if few.any():
        hollow: dict[str, Any] = {**look, "linestyle": "", "markerfacecolor": "none", "markeredgewidth": 0.8}
        axes.plot(x[few], y[few], **hollow, alpha=0.6)
