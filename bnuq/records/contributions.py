"""Recomputes estimates from the points in a result file, and the contribution of each point to each estimate.

To first order an estimate is a mean of the contributions of the points (`metrics.influence`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache, lru_cache

import numpy as np

from bnuq import metrics
from bnuq.files.keys import Key
from bnuq.frozen import frozen
from bnuq.metrics.estimands import errors_by, mean_of, mean_over_pixels
from bnuq.metrics.influence import RankedScores
from bnuq.metrics.registry import SEPARATIONS, metric_of
from bnuq.records.evaluation import ERRORS, PARTS, PIXEL_MEANS, WITH_ERRORS, Result, of_label
from bnuq.shapes import Float
from bnuq.store.table import Row

LEAPING = tuple(name for name, estimand in metrics.METRICS.items() if estimand.leaps)
_TEST = "test"
_OF_PIXELS = "pixel_"  # the separation of pixels, not of images
_KEPT, _LEAST_KEPT = 2**19, 2  # points whose contributions to a separation are kept, and separations at least


@frozen
class Source:
    """What an estimate is computed from: the values of points, by set and name; the function that gives it of each row
    of such values, (replicate, n) each; and one that gives the contributions of the points, by set."""

    points: Mapping[tuple[str, str], np.ndarray]
    of_rows: Callable[[Mapping[tuple[str, str], np.ndarray]], np.ndarray]
    influences: Callable[[], dict[str, np.ndarray]]


class PointContributions:
    """The contribution of each point to the estimates of one result, computed on first use."""

    def __init__(self, result: Result) -> None:
        self._result = result
        most = max(_LEAST_KEPT, _KEPT // max(1, sum(evaluated.n for evaluated in result.sets.values())))
        self._ladder = lru_cache(_LEAST_KEPT)(
            lambda method, name, score: RankedScores.of(*result.methods[method].ranked(score, name))
        )
        self._influence = lru_cache(most)(lambda *key: vars(self._ladder(*key).influence()))
        self._point_values = lru_cache(_LEAST_KEPT)(self._values_of)
        self._separation = cache(lambda *key: vars(self._ladder(*key).scores()))
        self.parts = cache(lambda name: result.sets[name].parts)
        self.of_label = cache(lambda label: PointContributions(of_label(result, label)))

    @property
    def result(self) -> Result:
        return self._result

    def value(self, row: Row) -> float | None:
        """The estimate of this row; None if the file lacks the values it is computed from."""
        if row["metric"] in SEPARATIONS:
            return self._separation(row["method"], row["set"], row["score"])[row["metric"]]
        if row["metric"] == "count" and (rows := self.rows(row)) is not None:
            return float(len(rows))
        if (source := self.source(row)) is None:
            return None
        return float(source.of_rows({key: values[None] for key, values in source.points.items()})[0])

    def contributions(self, row: Row) -> dict[str, np.ndarray] | None:
        """The contributions to first order, by set; None if the file lacks the values they are computed from."""
        source = self.source(row)
        return None if source is None else source.influences()

    def source(self, row: Row) -> Source | None:
        """What the estimate of this row is computed from; None if the file lacks it."""
        metric, sets, method = row["metric"], sets_of(row), self._result.methods[row["method"]]
        if metric in SEPARATIONS or metric == WITH_ERRORS:
            inside, outside = method.ranked(row["score"], row["set"])
            key = row["method"], row["set"], row["score"]
            if metric in SEPARATIONS:
                return Source(
                    {(sets[0], "score"): inside, (sets[1], "score"): outside},
                    lambda rows: vars(metrics.detection_of_replicates(*rows.values()))[metric],
                    lambda: dict(zip(sets, self._influence(*key)[metric], strict=True)),
                )
            loss = 1 - method.sets[_TEST].points["accuracy"]
            return Source(
                {(sets[0], "score"): inside, (sets[0], "loss"): loss, (sets[1], "score"): outside},
                lambda rows: metrics.scod_of_replicates(*rows.values()),
                lambda: dict(zip(sets, metrics.scod_influence(inside, loss, outside), strict=True)),
            )
        if metric.startswith(_OF_PIXELS):
            key = Key(metric, row["score"])
            test_part = method.sets[_TEST].contributions.get(Key(key, row["set"]))
            before = {} if test_part is None else {_TEST: test_part - np.mean(test_part)}
            return _of_parts(before, row["set"], method.sets[row["set"]].contributions.get(key))
        if row["class"] and row["class"] not in self.parts(row["set"]).get("class", ()):  # of pixels
            return _of_parts({}, row["set"], method.sets[row["set"]].contributions.get(Key(metric, row["class"])))
        if labels := [] if row["class"] or row["group"] else self._labels(row):
            parts = [(points.value(own), points.contributions(own)) for points, own in labels]
            known = [value + part[sets[0]] for value, part in parts if value is not None and part is not None]
            return _of_parts({}, sets[0], np.mean(known, axis=0) if len(known) == len(parts) else None)
        return self._of_formula(row)

    def rows(self, row: Row) -> np.ndarray | None:
        """The points of the class or group that an estimate is of; None if it is of none, or of pixels."""
        kind = next((kind for kind in PARTS if row[kind]), None)
        return None if kind is None else self.parts(row["set"]).get(kind, {}).get(row[kind])

    def _labels(self, row: Row) -> list[tuple[PointContributions, Row]]:
        """The labels that an estimate is of, or the mean of, each with its own row; none if it is of points."""
        method, set_name, metric = row["method"], row["set"], row["metric"]
        names = [row["label"]] if row["label"] else []
        of_labels = metric_of(metric).by_label and metric_of(metric).formula is not None  # no mean over points
        if not names and of_labels and set_name in self._result.methods[method].sets:
            by_label = self._result.methods[method].sets[set_name].by_label
            names = [label for label, estimates in by_label.items() if metric in estimates]
        coordinates = {"method": method, "set": set_name, "metric": metric}
        return [(self.of_label(name), replace(row, coordinates=coordinates)) for name in names]

    def _of_formula(self, row: Row) -> Source | None:
        method, metric, name = row["method"], row["metric"], row["set"] or _TEST
        if name not in self._result.methods[method].sets:
            return None
        points = self._point_values(method, name)
        if row["bound"]:
            formula = mean_of(f"{metric}_{row['bound']}")
        elif not row["set"]:
            formula = metric_of(metric).computed
        elif "pixels" in points:  # of each image
            formula = mean_over_pixels(metric) if metric in PIXEL_MEANS else mean_of(metric)
        elif row["score"]:
            formula = errors_by(row["score"])
        elif metric in self._result.methods[method].sets[name].points:
            formula = mean_of(metric)
        else:
            formula = metric_of(metric).computed
        if not formula.needs <= points.keys():
            return None
        evaluated, own = self._result.sets[name], self.rows(row)
        values = {key: points[key] if own is None else points[key][own] for key in formula.needs}

        def influences() -> dict[str, np.ndarray]:
            if own is None:
                return {name: formula.influence(values, evaluated.group)}
            influence = np.zeros(evaluated.n)
            influence[own] = formula.influence(values, None) * (evaluated.n / len(own))
            return {name: influence}

        keyed = {(name, key): of for key, of in values.items()}
        return Source(keyed, lambda rows: formula.values({key: of for (_, key), of in rows.items()}), influences)

    def _values_of(self, method: str, set_name: str) -> dict[str, np.ndarray]:
        """The values of each point. The file of a classification has no per-point bounds: they follow from whether each
        prediction is right."""
        method_result = self._result.methods[method]
        set_result, evaluated = method_result.sets[set_name], self._result.sets[set_name]
        points = {**set_result.points, **set_result.contributions}
        if set_result.sigma is not None:
            points["predictive_sd"] = predictive_sd(set_result.sigma)
        if evaluated.targets is not None:
            points["distance"] = distance(evaluated.targets - set_result.predicted)
        if evaluated.labels is not None and evaluated.labels.ndim == 1 and "least_confidence" in points:
            points["label"] = evaluated.labels
            points["label_score"] = metrics.label_score(points["least_confidence"], set_result.predicted)
        recalibrated = self._result.methods.get(f"{method}+temperature")
        if recalibrated is not None and "pll" in recalibrated.sets[set_name].points:
            points["pll_recalibrated"] = recalibrated.sets[set_name].points["pll"]
        fitted = method_result.bounds.get("constant", {}).get("confidence")
        if set_name == _TEST and fitted is not None and "accuracy" in points:
            bounds = metrics.pll_bounds(points["accuracy"], fitted.value, int(self._result.model["classes"]))
            points |= zip(("pll_constant", "pll_optimum"), bounds, strict=True)
        return points


def sets_of(row: Row) -> tuple[str, ...]:
    """The sets that an estimate is computed from: its own, the test set of a bound, or both of a separation."""
    return (_TEST, row["set"]) if row["score"] and row["metric"] != ERRORS else (row["set"] or _TEST,)


def predictive_sd(sigma: Float[np.ndarray, "point output"]) -> Float[np.ndarray, " point"]:
    """One predictive sd per point: the root mean square over outputs, rounded to float32 so that rounding errors do not
    break ties."""
    return distance(sigma).astype(np.float32).astype(np.float64)


def distance(errors: Float[np.ndarray, "point output"]) -> Float[np.ndarray, " point"]:
    """The distance of the prediction from the target: the root mean square over outputs."""
    return np.sqrt((errors**2).mean(-1))


def _of_parts(others: Mapping[str, np.ndarray], name: str, own: np.ndarray | None) -> Source | None:
    """Of what the points of its set contribute to an estimate, and those of `others`, whose mean is 0."""
    if own is None:
        return None
    parts = {(other, "part"): part for other, part in others.items()} | {(name, "part"): own}
    influences = {**others, name: own - np.mean(own)}
    return Source(parts, lambda rows: np.sum([part.mean(1) for part in rows.values()], axis=0), lambda: influences)
