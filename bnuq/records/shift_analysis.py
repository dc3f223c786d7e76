"""How the results change as the inputs do: curves over severity, the alarms of scores, and accuracy without labels.

Everything follows from the points of the result: the changed sets are the test set on common random numbers and the
same draws, so that differences to it are paired.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from statistics import NormalDist
from typing import Any

import numpy as np

from bnuq import metrics
from bnuq.config import ScoringSection
from bnuq.estimates import Estimate
from bnuq.frozen import frozen
from bnuq.metrics.registry import SCORES, metric_of
from bnuq.perturbations import change_in
from bnuq.records.contributions import PointContributions
from bnuq.records.evaluation import Result
from bnuq.records.shift import FORECASTS, LEVEL, MethodShift, Shift
from bnuq.shapes import Float

LIMITS = {"accuracy": 0.05, "rmse": 0.1}  # what counts as a loss if nothing else is asked for: of RMSE, relatively
_RESAMPLES = 200  # of the points


def shift_of(result: Result) -> Shift | None:
    """The analysis of a result; None without changed sets."""
    changes = {
        name: change
        for name, evaluated in result.sets.items()
        if evaluated.kind == "perturbed" and (change := change_in(name)) is not None
    }
    if not changes:
        return None
    families = tuple(dict.fromkeys(change.family for change in changes.values()))
    order = sorted(changes, key=lambda name: (families.index(changes[name].family), changes[name].strength))
    asked = result.run.get("scoring") or {}
    window = asked.get("shift_window", ScoringSection().shift_window)
    shift = Shift(tuple(order), families, window, limit=asked.get("shift_loss"))
    points, weights = PointContributions(result), _resampled(result)
    methods = {method: _OfMethod(result, shift, method, points, weights).shift() for method in result.methods}
    return replace(shift, methods=methods)


def limit_of(shift: Shift, result: Result) -> float:
    """What counts as a loss."""
    return shift.limit or LIMITS[result.task.headline]


def _resampled(result: Result) -> Float[np.ndarray, "resample point"]:
    """Weights of the test points, or of their groups, which depend on their number alone; each row has the sum 1."""
    test, generator = result.sets["test"], np.random.default_rng(0)
    group = np.arange(test.n) if test.group is None else np.unique(test.group, return_inverse=True)[1]
    units = int(group.max()) + 1
    counts = generator.multinomial(units, np.full(units, 1 / units), size=_RESAMPLES)[:, group].astype(np.float64)
    return counts / counts.sum(1, keepdims=True)


@frozen
class _OfMethod:
    """Computes the analysis of one method."""

    result: Result
    whole: Shift
    method: str
    points: PointContributions
    weights: Float[np.ndarray, "resample point"]

    def shift(self) -> MethodShift:
        names, changes = self._changes()
        change, se, mc_se = (np.array([row[k] for row in changes]).reshape(-1, len(self.whole.sets)) for k in range(3))
        scores = self._scores()
        mean, band, moved = self._alarms(scores)
        loss, lost = self._losses()
        sizes = np.array([change.strength for change in self.whole.changes.values()])
        strengths = [sizes[self.whole.places(family)] for family in self.whole.families]
        half = (band[:, 1] - band[:, 0]) / 2
        alarm, lead, lead_se = (np.full((len(scores), len(strengths)), math.nan) for _ in range(3))
        losses = np.full(len(strengths), math.nan)
        for number, (family, at) in enumerate(zip(self.whole.families, strengths, strict=True)):
            places = self.whole.places(family)
            losses[number] = crossing(at, loss[places], 1.0)
            lost_at = crossing(at, lost[:, places], 1.0)
            for row, replicates in enumerate(moved):
                alarm[row, number] = crossing(at, np.abs(mean[row, places] - band[row].mean()), half[row])
                lead[row, number] = losses[number] - alarm[row, number]
                leads = lost_at - crossing(at, np.abs(replicates[:, places]), half[row])
                if np.isfinite(lead[row, number]) and np.isfinite(leads).mean() > 0.9:
                    lead_se[row, number] = np.std(leads[np.isfinite(leads)], ddof=1)
        forecasts, predicted, error_se, errors = self._forecasts()
        z = _z()
        breaks = np.full((len(forecasts), len(strengths)), math.nan)
        for number, (family, at) in enumerate(zip(self.whole.families, strengths, strict=True)):
            for row in range(len(forecasts)):
                places = self.whole.places(family)
                beyond = np.flatnonzero(np.abs(errors[row, places]) > z * error_se[row, places])
                breaks[row, number] = at[beyond[0]] if beyond.size else math.nan
        return MethodShift(
            names, change, se, mc_se, scores, mean, band, alarm, lead, lead_se, losses, forecasts, predicted, error_se,
            breaks,
        )  # fmt: skip

    def _estimate(self, name: str, metric: str) -> Estimate | None:
        return self.result.methods[self.method].sets[name].estimates.get(metric)

    def _contributions(self, name: str, metric: str) -> np.ndarray | None:
        """What the points of a set contribute to a metric, around 0; None if the file has not the values."""
        from bnuq.store.table import Row

        estimate = self._estimate(name, metric)
        assert estimate is not None
        row = Row("", {"method": self.method, "set": name, "metric": metric}, "", estimate)
        parts = self.points.contributions(row)
        return None if parts is None else parts[name] - np.mean(parts[name])

    def _changes(self) -> tuple[tuple[str, ...], list[tuple[list[float], list[float], list[float]]]]:
        """The metrics that all sets have, and of each its changes with their errors over points and draws."""
        sets = ("test", *self.whole.sets)
        names = [
            metric
            for metric in self.result.methods[self.method].sets["test"].estimates
            if not metric_of(metric).is_fitted and all(self._estimate(name, metric) for name in sets)
        ]
        rows = []
        for metric in names:
            base, before = self._estimate("test", metric), self._contributions("test", metric)
            columns: tuple[list[float], list[float], list[float]] = ([], [], [])
            for name in self.whole.sets:
                estimate, after = self._estimate(name, metric), self._contributions(name, metric)
                assert base is not None and estimate is not None
                with np.errstate(invalid="ignore", over="ignore"):  # a PLL of −∞, whose change is not known
                    columns[0].append(estimate.value - base.value)
                    known = before is not None and after is not None
                    group = self.result.sets["test"].group
                    columns[1].append(metrics.standard_error(after - before, group=group) if known else math.nan)
                columns[2].append(self._over_draws(metric, estimate, base))
            rows.append(columns)
        return tuple(names), rows

    def _over_draws(self, metric: str, estimate: Estimate, base: Estimate) -> float:
        """The Monte Carlo error of a difference, by the replicates of the same draws; 0 without draws."""
        if self.method not in self.result.sampled:
            return 0.0
        if estimate.jackknife is None or base.jackknife is None or len(estimate.jackknife) != len(base.jackknife):
            return math.nan
        with np.errstate(invalid="ignore"):
            if metric_of(metric).mc_error == "bootstrap" and estimate.bootstrap is not None is not base.bootstrap:
                moved = estimate.bootstrap - base.bootstrap
                samples = self.result.samples_of(self.method)
                return float(metrics.bootstrap_error(moved, samples=samples, bank=len(base.jackknife)))
            return float(metrics.jackknife_error(estimate.jackknife - base.jackknife))

    def _scores(self) -> tuple[str, ...]:
        """The scores that all changed sets have."""
        sets = [self.result.methods[self.method].sets[name].points for name in ("test", *self.whole.sets)]
        sampled = self.method in self.result.sampled
        return tuple(
            score
            for score, estimand in SCORES.items()
            if estimand.score is not None
            and (sampled or not estimand.score.needs_samples)
            and all(score in points and np.isfinite(points[score]).all() for points in sets)
        )

    def _alarms(self, scores: Sequence[str]) -> tuple[np.ndarray, np.ndarray, list[np.ndarray]]:
        """The mean of each score in each changed set; the band of its mean over a window of unchanged points; and under
        each resample how far the mean of each set is from that of the unchanged points."""
        sets, n = self.result.methods[self.method].sets, self.result.sets["test"].n
        mean, band, moved = np.empty((len(scores), len(self.whole.sets))), np.empty((len(scores), 2)), []
        for row, score in enumerate(scores):
            before = sets["test"].points[score]
            after = np.stack([sets[name].points[score] for name in self.whole.sets])
            mean[row] = after.mean(1)
            half = (
                _z() * (float(np.std(before, ddof=1)) if n > 1 else math.nan) * math.sqrt(1 / self.whole.window + 1 / n)
            )
            band[row] = before.mean() - half, before.mean() + half
            moved.append(self.weights @ (after - before).T)
        return mean, band, moved

    def _losses(self) -> tuple[np.ndarray, np.ndarray]:
        """The loss in each changed set, in units of what counts as one, and under each resample of the points."""
        metric = self.result.task.headline
        base, count = self._estimate("test", metric), len(self.whole.sets)
        if base is None or any(self._estimate(name, metric) is None for name in self.whole.sets):
            return np.full(count, math.nan), np.full((_RESAMPLES, count), math.nan)
        limit = limit_of(self.whole, self.result)
        unit = limit * {"accuracy": -1.0, "rmse": base.value}[metric]
        before = self._contributions("test", metric)
        loss, lost = np.empty(count), np.full((_RESAMPLES, count), math.nan)
        for place, name in enumerate(self.whole.sets):
            estimate, after = self._estimate(name, metric), self._contributions(name, metric)
            assert estimate is not None
            loss[place] = (estimate.value - base.value) / unit
            if before is not None and after is not None:  # to first order, around the value
                lost[:, place] = loss[place] + self.weights @ (after - before) / unit
        return loss, lost

    def _forecasts(self) -> tuple[tuple[str, ...], np.ndarray, np.ndarray, np.ndarray]:
        """The accuracy of each changed set as its confidences say it, the error of the difference to the accuracy, and
        that difference; none but for classes of points whose truth is known."""
        sets, count = self.result.methods[self.method].sets, len(self.whole.sets)
        needed, test = ("max_probability", "accuracy"), sets["test"].points
        if self.result.task.unit != "examples" or not all(
            {*needed} <= sets[name].points.keys() for name in ("test", *self.whole.sets)
        ):
            none = np.empty((0, count))
            return (), none, none, none
        confidence, correct = (test[name] for name in needed)
        order, accuracy = np.argsort(confidence, kind="stable"), self.weights @ correct
        # The share of points below the threshold is the error rate: of all points, and of each resample.
        share = np.cumsum(self.weights[:, order], axis=1)
        number = np.array([np.searchsorted(row, 1 - a - 1e-9) for row, a in zip(share, accuracy, strict=True)])
        thresholds = np.where(accuracy < 1, confidence[order][np.minimum(number, len(order) - 1)], -math.inf)
        wrong = round(len(correct) * (1 - correct.mean()))
        threshold = confidence[order][wrong - 1] if wrong else -math.inf
        predicted, error_se, errors = (np.empty((len(FORECASTS), count)) for _ in range(3))
        for place, name in enumerate(self.whole.sets):
            after, truth = (sets[name].points[key] for key in needed)
            above = (self.weights * (after > thresholds[:, None])).sum(1)
            lowered = accuracy + self.weights @ (after - confidence)
            values = float((after > threshold).mean()), float(correct.mean() + (after - confidence).mean())
            for row, (value, replicates) in enumerate(zip(values, (above, lowered), strict=True)):
                predicted[row, place], errors[row, place] = value, value - truth.mean()
                error_se[row, place] = np.std(replicates - self.weights @ truth, ddof=1)
        return FORECASTS, predicted, error_se, errors


def _z() -> float:
    return NormalDist().inv_cdf((1 + LEVEL) / 2)


def crossing(
    strengths: Float[np.ndarray, " size"], values: Float[np.ndarray, "*any size"], limit: float
) -> Any:  # a number, or one for each row
    """The strength at which values that begin at 0 first reach the limit, between sizes along a line; NaN: never."""
    at = np.concatenate([[0.0], strengths])
    curve = np.concatenate([np.zeros((*values.shape[:-1], 1)), values], axis=-1)
    reached = curve >= limit
    last = np.maximum(reached.argmax(-1), 1)
    low, high = (np.take_along_axis(curve, (last - k)[..., None], -1)[..., 0] for k in (1, 0))
    with np.errstate(invalid="ignore", divide="ignore"):
        share = np.where(high > low, (limit - low) / (high - low), 0.0)
    result = at[last - 1] + share * (at[last] - at[last - 1])
    result = np.where(reached.any(-1), result, math.nan)
    return float(result) if result.ndim == 0 else result


# ── as JSON ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def summary(result: Result) -> dict[str, Any]:
    """`families` and `lead` as JSON has them, and what they are of; None for what does not happen or is not known."""
    shift = result.shift
    assert shift is not None
    return {
        "families": {family: [*_sets(result, shift, family)] for family in shift.families},
        "lead": {
            family: {method: _lead(of, number) for method, of in shift.methods.items()}
            for number, family in enumerate(shift.families)
        },
        "shift_window": shift.window,
        "shift_loss": limit_of(shift, result),
    }


def _sets(result: Result, shift: Shift, family: str) -> Iterator[dict[str, Any]]:
    changes = [*shift.changes.values()]
    for place in shift.places(family):
        name, change = shift.sets[place], changes[place]
        methods = {}
        for method, of in shift.methods.items():
            estimates = result.methods[method].sets[name].estimates
            of_metrics = {
                metric: {
                    "value": _number(estimates[metric].value),
                    **{key: _number(getattr(of, key)[row, place]) for key in ("change", "se", "mc_se")},
                }
                for row, metric in enumerate(of.metrics)
            }
            forecasts = {
                forecast: {"value": _number(of.predicted[row, place]), "error_se": _number(of.error_se[row, place])}
                for row, forecast in enumerate(of.forecasts)
            }
            scores = {score: _number(of.mean[row, place]) for row, score in enumerate(of.scores)}
            methods[method] = {"metrics": of_metrics, "scores": scores, "accuracy_without_labels": forecasts}
        yield {"severity" if change.is_severity else "size": change.size, "set": name, "methods": methods}


def _lead(of: MethodShift, family: int) -> dict[str, Any]:
    return {
        "loss_at": _number(of.loss[family]),
        "scores": {
            score: {
                "alarm_at": _number(of.alarm[row, family]),
                "lead": _number(of.lead[row, family]),
                "se": _number(of.lead_se[row, family]),
            }
            for row, score in enumerate(of.scores)
        },
        "accuracy_without_labels": {
            forecast: {"breaks_at": _number(of.breaks[row, family])} for row, forecast in enumerate(of.forecasts)
        },
    }


def _number(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None
