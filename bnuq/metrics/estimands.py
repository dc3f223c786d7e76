"""What is known of an estimate beside its value: words, range, formula, whose results have it, where it is shown.

The table of all of them is `registry`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Literal

import numpy as np

from bnuq.estimates import Metric
from bnuq.frozen import frozen
from bnuq.metrics.bounds import normalized
from bnuq.metrics.dense import ratio_contributions
from bnuq.metrics.detection import error_auroc_of_replicates
from bnuq.metrics.influence import error_auroc_influence, normalized_influence, selective_influence
from bnuq.metrics.posthoc import PointScore, Reference
from bnuq.metrics.selective import selective_of_replicates
from bnuq.tasks import TaskName

PointValues = Mapping[str, np.ndarray]  # values of the points of a set, by name
Groups = np.ndarray | None  # the group of each point
# The short report; what changes with perturbed inputs or the batch size; the curve over samples, and its plot; a sweep
# of batch sizes; what a check gates by default, and with most of its level
Place = Literal["headline", "sensitivity", "convergence", "curve", "sweep", "gate", "gate-first"]
_AT_ONCE = 2**18  # entries of replicates
UNBOUNDED, POSITIVE, SHARE = (-math.inf, math.inf), (0.0, math.inf), (0.0, 1.0)


@frozen
class Formula:
    """How an estimate follows, row by row, from several values of each point that it needs, and from one of each the
    contributions of the points, whose mean it is to first order; they are NaN where no such expansion is known."""

    needs: frozenset[str]
    of_rows: Callable[[PointValues], np.ndarray]
    influence: Callable[[PointValues, Groups], np.ndarray]

    def values(self, replicates: PointValues) -> np.ndarray:
        """The value of each replicate, a row of every value that is needed. So many at once as need little memory."""
        rows = {name: replicates[name] for name in self.needs}
        count, points = max(np.shape(values)[:2] for values in rows.values())
        step = max(1, _AT_ONCE // max(1, points))
        blocks = [slice(first, first + step) for first in range(0, max(1, count), step)]
        with np.errstate(invalid="ignore", over="ignore"):
            parts = ({name: v if len(v) == 1 else v[block] for name, v in rows.items()} for block in blocks)
            return np.concatenate([self.of_rows(part) for part in parts])

    def value(self, points: PointValues) -> float:
        """The value of one of each point."""
        return float(self.values({name: points[name][None] for name in self.needs})[0])


@frozen
class Score:
    """That and how an estimand's values of points separate OOD points: larger is more uncertain.

    `source` is what they are computed from: probabilities, logits (of T samples the mean), the last layer of the
    deterministic network, or the outputs of a regression; or they are given, as a column of a file. `needs_samples`: of
    a single sample they are not reported. `of_pixels`: those of the pixels of a segmentation too. `is_alarm`: reports
    of perturbed inputs use it, the first that a method has. `of_layer` gives the scores of the deterministic network's
    points, or, where it needs a reference, `fit` gives such a function, or why there is none. It may need the labels of
    the reference.
    """

    source: Literal["probabilities", "logits", "last layer", "outputs", "column"]
    needs_samples: bool = False
    of_pixels: bool = False
    is_alarm: bool = False
    of_layer: PointScore | None = None
    fit: Callable[[Reference], PointScore | str] | None = None
    needs_labels: bool = False


@frozen
class Estimand(Metric):
    """A metric with all that is known about its estimates.

    `tasks` are those whose results have it as an estimate; none where it is only a score of points. Without a `formula`
    it is the mean of the values of that name over points. `limits` are its smallest and largest value. It may need the
    truth (labels or targets), or several samples; `required` are the tasks whose results always have it where these
    are given. Its error over points is that of the contributions of the points, or by the bootstrap where it is
    `resampled`. `is_fitted`: to validation points, which no file holds. `leaps`: it goes from bin to bin or from point
    to point, so that the error of a change is unknown. `by_label`: of several labels per point each has its own, and
    the estimate is their mean. `by_part`: classes and groups of points have it. `of_mean` gives the values of points
    from the mean prediction (n, K) and the labels, and `of_samples` from the samples (T, n, K) of probabilities, or of
    logits where these are the source of the score.
    """

    tasks: frozenset[TaskName] = frozenset()
    limits: tuple[float, float] = SHARE
    formula: Formula | None = None
    needs_truth: bool = False
    needs_samples: bool = False
    required: frozenset[TaskName] = frozenset()
    resampled: bool = False
    is_fitted: bool = False
    leaps: bool = False
    by_label: bool = False
    by_part: bool = False
    shown: frozenset[Place] = frozenset()
    score: Score | None = None
    of_mean: Callable[[Any, Any], Any] | None = None
    of_samples: Callable[[Any, Any], Any] | None = None

    @property
    def computed(self) -> Formula:
        """Its formula, that of a mean where it has no other."""
        return self.formula or mean_of(self.name)


def mean_of(name: str) -> Formula:
    """The mean of the values of this name over points."""

    def influence(points: PointValues, _: Groups) -> np.ndarray:
        values = np.asarray(points[name], dtype=np.float64)
        with np.errstate(invalid="ignore"):  # a PLL of −∞ makes its error NaN
            return values - values.mean()

    return Formula(frozenset({name}), lambda rows: np.mean(rows[name], axis=1), influence)


def mean_over_pixels(name: str) -> Formula:
    """The mean over the pixels of all images, from the mean and the number of the pixels of each image."""

    def influence(points: PointValues, _: Groups) -> np.ndarray:
        values = ratio_contributions(points[name] * points["pixels"], points["pixels"])
        return values - values.mean()

    return Formula(
        frozenset({name, "pixels"}), lambda p: np.sum(p[name] * p["pixels"], 1) / np.sum(p["pixels"], 1), influence
    )


def normalized_between_bounds(score: str, *, without_exact: bool = False) -> Formula:
    """A score between its bounds; `without_exact` only of the points with a finite optimum."""
    names = score, f"{score}_constant", f"{score}_optimum"

    def of_rows(rows: PointValues) -> np.ndarray:
        used = np.isfinite(rows[names[2]]) | (not without_exact)
        return np.asarray(normalized(*(np.mean(rows[name], axis=1, where=used) for name in names)))

    return Formula(frozenset(names), of_rows, lambda p, _: normalized_influence(*(p[name] for name in names)))


def mean_of_sum(**weights: float) -> Formula:
    """The mean over points of a weighted sum of their values."""

    def contributions(points: PointValues) -> np.ndarray:
        return np.sum([weight * points[name] for name, weight in weights.items()], axis=0)

    def influence(points: PointValues, _: Groups) -> np.ndarray:
        with np.errstate(invalid="ignore"):  # a PLL of −∞ makes its error NaN
            return contributions(points) - np.mean(contributions(points))

    return Formula(frozenset(weights), lambda rows: np.mean(contributions(rows), axis=1), influence)


def errors_by(score: str) -> Formula:
    """How well a score ranks the points that are predicted wrongly above the others."""
    return Formula(
        frozenset({score, "accuracy"}),
        lambda rows: error_auroc_of_replicates(rows[score], rows["accuracy"]),
        lambda p, _: error_auroc_influence(p[score], p["accuracy"]),
    )


def selective_by_entropy(name: str) -> Formula:
    """A score of selective prediction, by predictive entropy."""
    return Formula(
        frozenset({"predictive_entropy", "accuracy"}),
        lambda rows: getattr(selective_of_replicates(rows["predictive_entropy"], 1 - rows["accuracy"]), name),
        lambda p, _: getattr(selective_influence(p["predictive_entropy"], 1 - p["accuracy"]), name),
    )
