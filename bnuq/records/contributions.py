"""Recomputes estimates from the points in a result file, and the contribution of each point to each estimate.

To first order an estimate is a mean of the contributions of the points (`metrics.influence`).
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache, lru_cache

import numpy as np

from bnuq import metrics
from bnuq.frozen import frozen
from bnuq.metrics.estimands import Formula, PointValues, errors_by, mean_of, mean_over_pixels
from bnuq.metrics.influence import RankedScores
from bnuq.metrics.registry import metric_of
from bnuq.records.evaluation import ERRORS, PARTS, PIXEL_MEANS, WITH_ERRORS, Result, of_label
from bnuq.shapes import Float
from bnuq.store.table import Row

LEAPING = tuple(name for name, estimand in metrics.METRICS.items() if estimand.leaps)
_TEST = "test"
_OF_PIXELS = "pixel_"  # the separation of pixels, not of images
_KEPT, _LEAST_KEPT = 2**19, 2  # points whose contributions to a separation are kept, and separations at least


class PointContributions:
    """The contribution of each point to the estimates of one result, computed on first use."""

    def __init__(self, result: Result) -> None:
        self._result = result
        most = max(_LEAST_KEPT, _KEPT // max(1, sum(evaluated.n for evaluated in result.sets.values())))
        self._ladder = lru_cache(_LEAST_KEPT)(self._sorted)
        self._influence = lru_cache(most)(lambda *key: vars(self._ladder(*key).influence()))
        self._point_values = lru_cache(_LEAST_KEPT)(self._values_of)
        self._separation = cache(lambda *key: vars(self._ladder(*key).scores()))
        self.parts = cache(self._points_of_parts)
        self.of_label = cache(lambda label: PointContributions(of_label(result, label)))

    @property
    def result(self) -> Result:
        return self._result

    def value(self, row: Row) -> float | None:
        """The estimate of this row; None if the file lacks the values it is computed from."""
        if row["metric"].startswith(_OF_PIXELS):
            parts = self._of_pixels(row)
            return None if parts is None else float(np.mean(parts[row["set"]]))
        if row["metric"] == WITH_ERRORS:
            return metrics.scod(*self._with_errors(row))
        if row["score"] and row["metric"] != ERRORS:
            return self._separation(row["method"], row["set"], row["score"]).get(row["metric"])
        if row["class"] and self._is_dense:
            values = self._of_class(row)
            return None if values is None else float(np.mean(values))
        if (rows := self.rows(row)) is not None:
            part = self._of_part(row, rows)
            if row["metric"] == "count":
                return float(len(rows))
            return None if part is None else part.of.value(part.points)
        if labels := self._labels(row):
            values = [points.value(label_row) for points, label_row in labels]
            return None if None in values else float(np.mean(values))  # type: ignore[arg-type]
        computed = self._source(row)
        return None if computed is None else computed.of.value(computed.points)

    def contributions(self, row: Row) -> dict[str, np.ndarray] | None:
        """The contributions to first order, by set; None if the file lacks the values they are computed from."""
        if row["metric"].startswith(_OF_PIXELS):
            parts = self._of_pixels(row)
            return None if parts is None else {name: part - np.mean(part) for name, part in parts.items()}
        if row["metric"] == WITH_ERRORS:
            return dict(zip(sets_of(row), metrics.scod_influence(*self._with_errors(row)), strict=True))
        if row["score"] and row["metric"] != ERRORS:
            parts = self._influence(row["method"], row["set"], row["score"]).get(row["metric"])
            return None if parts is None else dict(zip(sets_of(row), parts, strict=True))
        if row["class"] and self._is_dense:
            values = self._of_class(row)
            return None if values is None else {row["set"]: values - np.mean(values)}
        if (rows := self.rows(row)) is not None:
            if (part := self._of_part(row, rows)) is None:
                return None
            influence = np.zeros(self._result.sets[row["set"]].n)
            influence[rows] = part.of.influence(part.points, part.group) * (len(influence) / len(rows))
            return {row["set"]: influence}
        if labels := self._labels(row):
            label_parts = [points.contributions(label_row) for points, label_row in labels]
            if None in label_parts:
                return None
            return {name: np.mean([part[name] for part in label_parts if part], axis=0) for name in sets_of(row)}
        computed = self._source(row)
        return None if computed is None else {computed.set_name: computed.of.influence(computed.points, computed.group)}

    @property
    def _is_dense(self) -> bool:
        """Whether the points are images, whose pixels were classified."""
        return self._result.task.is_dense

    def _of_pixels(self, row: Row) -> dict[str, np.ndarray] | None:
        """What the images contribute to the separation of their pixels, by set."""
        sets, key = self._result.methods[row["method"]].sets, f"{row['metric']}.{row['score']}"
        test_part, ood_part = (
            sets[_TEST].contributions.get(f"{key}.{row['set']}"),
            sets[row["set"]].contributions.get(key),
        )
        if ood_part is None:
            return None
        return {row["set"]: ood_part} if test_part is None else {_TEST: test_part, row["set"]: ood_part}

    def _of_class(self, row: Row) -> np.ndarray | None:
        """What the images contribute to an estimate of a class of pixels."""
        contributions = self._result.methods[row["method"]].sets[row["set"]].contributions
        return contributions.get(f"{row['metric']}.{row['class']}")

    def rows(self, row: Row) -> np.ndarray | None:
        """The points of the class or group that an estimate is of; None if it is of none, or of pixels."""
        if self._is_dense:
            return None
        kind = next((kind for kind in PARTS if row[kind]), None)
        return None if kind is None else self.parts(row["set"])[kind][row[kind]]

    def _of_part(self, row: Row, rows: np.ndarray) -> _EstimateSource | None:
        """What an estimate of these points of a class or group is computed from."""
        source = self._source(row)
        if source is None:
            return None
        return replace(source, points={name: source.points[name][rows] for name in source.of.needs})

    def _with_errors(self, row: Row) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """A score of the test points, their loss, and the score of the points of an OOD set."""
        method = self._result.methods[row["method"]]
        inside, outside = method.ranked(row["score"], row["set"])
        return inside, 1 - method.sets[_TEST].points["accuracy"], outside

    def _points_of_parts(self, set_name: str) -> dict[str, dict[str, np.ndarray]]:
        return self._result.sets[set_name].parts

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

    def _sorted(self, method: str, set_name: str, score: str) -> RankedScores:
        return RankedScores.of(*self._result.methods[method].ranked(score, set_name))

    def _source(self, row: Row) -> _EstimateSource | None:
        method, metric, name = row["method"], row["metric"], row["set"] or _TEST
        if name not in self._result.methods[method].sets:
            return None
        points = self._point_values(method, name)
        if row["bound"]:
            formula = mean_of(f"{metric}_{row['bound']}")
        elif not row["set"]:
            formula = metric_of(metric).computed
        elif self._is_dense:
            formula = mean_over_pixels(metric) if metric in PIXEL_MEANS else mean_of(metric)
        elif row["score"]:
            formula = errors_by(row["score"])
        elif metric in self._result.methods[method].sets[name].points:
            formula = mean_of(metric)
        else:
            formula = metric_of(metric).computed
        if not formula.needs <= points.keys():
            return None
        return _EstimateSource(name, formula, points, self._result.sets[name].group)

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


@frozen
class _EstimateSource:
    set_name: str
    of: Formula
    points: PointValues
    group: np.ndarray | None
