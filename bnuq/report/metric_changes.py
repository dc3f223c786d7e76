"""What a method is compared with, and by how much its metrics differ."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Literal

import numpy as np

from bnuq.estimates import Estimate
from bnuq.findings import Finding, verdict
from bnuq.frozen import frozen
from bnuq.methods import DETERMINISTIC, NETWORKS, POPULATION, method_named
from bnuq.metrics import METRICS, jackknife_error, standard_error
from bnuq.records.evaluation import Result, SetResult
from bnuq.records.reference import draws_mini_batches
from bnuq.report.method_names import plain_sampled
from bnuq.shapes import Float

_NEGLIGIBLE = 1e-6  # of a value: rounding in float32
PerPoint = Float[np.ndarray, " point"]
Verdict = Literal["better", "as-well", "worse", "unknown"]


@frozen
class MetricChange:
    """A metric before and after; `error` is that of the difference, over points and samples, None if it is unknown.

    `normalised` says how far between constant and optimal uncertainty the metric lies, in percent.
    """

    metric: str
    before: float
    after: float
    error: float | None
    normalised: Estimate | None = None

    @property
    def verdict(self) -> Verdict:
        """Better or worse where the difference exceeds twice its error and is not negligible beside the values."""
        gain = (self.after - self.before) * (-1 if METRICS[self.metric].direction == "lower" else 1)
        if self.error is None:
            return "unknown"
        if abs(gain) < 2 * self.error or abs(gain) <= _NEGLIGIBLE * abs(self.before):
            return "as-well"
        return "better" if gain > 0 else "worse"


def compared_with(method: str, result: Result) -> str:
    """The deterministic network that a sampled method is compared with.

    MCBN normalises by statistics of the reference. Where the running statistics do not fit it, that alone changes
    estimates, without any gain from uncertainty: MCBN is then compared with the network under the population statistics
    of its mini-batches. A recalibrated method is compared with a network that is recalibrated so, too.
    """
    network = POPULATION if POPULATION in result.methods and draws_mini_batches(method) else DETERMINISTIC
    return network + method.removeprefix(method_named(method).plain.name)


def metric_change(
    metric: str,
    before: Estimate,
    points: PerPoint | None,
    test: SetResult,
    name: str,
    result: Result,
    normalised: Any = None,
) -> MetricChange:
    """A metric of a method's `test` set compared with `before`, of which `points` are what each point contributes.

    The error is that of the difference, paired over points and over samples; the networks of an ensemble are given.
    """
    after, error = test.estimates[metric], math.nan
    given = "networks" in method_named(name).differs_by
    over_samples = 0.0 if given else after.mc_se
    if points is not None and after.se is not None and over_samples is not None and math.isfinite(before.value):
        over_points = standard_error(_difference(points, test.points[metric]), group=result.sets["test"].group)
        if not given and after.jackknife is not None and METRICS[metric].mc_error == "jackknife":
            shared = 0 if before.jackknife is None else before.jackknife
            over_samples = float(jackknife_error(after.jackknife - shared))
        error = math.hypot(over_points, over_samples)
    known = math.isfinite(error) and math.isfinite(after.value)
    return MetricChange(metric, before.value, after.value, error if known else None, normalised)


def _difference(before: PerPoint, after: PerPoint) -> PerPoint:
    with np.errstate(invalid="ignore"):  # of two PLLs of −∞ it is NaN
        return after - before


def population_change(result: Result, metric: str) -> Iterator[Finding]:
    """What the population statistics of the reference change by themselves, where the reference check failed."""
    if POPULATION not in result.methods:
        return
    before, after = (result.methods[name].sets["test"] for name in NETWORKS)
    difference = _difference(before.points[metric], after.points[metric])
    yield verdict(
        "population-statistics",
        before=before.estimates,
        after=after.estimates,
        change=float(np.mean(difference)),
        error=standard_error(difference, group=result.sets["test"].group),
        methods=tuple(filter(draws_mini_batches, plain_sampled(result))),
    )
