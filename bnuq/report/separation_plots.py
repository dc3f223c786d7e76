"""The pictures of how well an OOD set is separated: histograms of a score, and ROC curves."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from bnuq.metrics import METRICS
from bnuq.records.evaluation import Result
from bnuq.report.document import Picture
from bnuq.report.drawing import PALE, picture, short
from bnuq.report.method_names import network_in_words, plain_methods
from bnuq.report.numbers import named, number
from bnuq.report.ood import column_score, score_named
from bnuq.report.plotting import evaluation_picture, label_of, line_styles, unit_square
from bnuq.shapes import Float

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_BINS = (12, 40)  # fewest and most of a histogram
_MOST = 4  # ROC curves in a picture


def separation(result: Result, name: str) -> Iterator[Picture]:
    """The score of the decisions on the test set and on an OOD set, and ROC curves."""
    yield evaluation_picture("ood", name, draw=partial(_separation, result, name))
    yield evaluation_picture("roc", name, draw=partial(_roc, result, name))


def _separation(result: Result, name: str, path: Path) -> None:
    """The score that the decisions name, on the test set and on the OOD set."""
    method, score = score_named(result, name)
    auroc = result.methods[method].ood[name][score]["auroc"].value
    values = dict(zip(("test", name), result.methods[method].ranked(score, name), strict=True))
    about = f"{Path(str(result.model['path'])).name}, AUROC {number(auroc, 3)}; {len(values['test'])} "
    about += f"test and {len(values[name])} other examples"
    of = network_in_words(method)
    with picture(path, title=f"{short(name, 24)} against the test set: {named(score)} of {of}", about=about) as [axes]:
        draw_histograms(axes, values["test"], values[name], score, name)


def draw_histograms(
    axes: Axes, test: Float[np.ndarray, " test"], ood: Float[np.ndarray, " ood"], score: str, name: str
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
    axes.set_ylabel("examples of the set (%)")


def _roc(result: Result, name: str, path: Path) -> None:
    """A curve a method, by the score that the table of methods has; of many those of the largest AUROC."""
    lines, score = line_styles(result), column_score(result)
    having = {method: of for method, each in plain_methods(result).items() if score in (of := each.ood.get(name, {}))}
    aurocs = {method: of[score]["auroc"].value for method, of in having.items()}
    model, points = Path(str(result.model["path"])).name, {s: result.sets[s].n for s in ("test", name)}
    about = f"{model}, {points['test']} test and {points[name]} other examples"
    about += f"; {_MOST} of {len(aurocs)} methods" if len(aurocs) > _MOST else ""
    with picture(path, title=f"ROC, {short(name, 24)} against the test set", about=about, size=(5.2, 5.2)) as [axes]:
        axes.plot([0, 1], [0, 1], color=PALE, linewidth=1.2)
        for method in sorted(aurocs, key=lambda method: -aurocs[method])[:_MOST]:
            curve = roc_curve(*result.methods[method].ranked(score, name))
            label = f"{method}, {named(score)}: {number(aurocs[method], 3)}"
            axes.plot(*curve, **lines[method].plotted, markevery=0.3, label=label)
        unit_square(axes)
        axes.set_xlabel("test examples taken for OOD")
        axes.set_ylabel("OOD examples found")


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
