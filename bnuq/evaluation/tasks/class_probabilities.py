"""Estimates that need the probabilities of all classes, once those of all points are known: classwise ECE, and the size
and the coverage of conformal prediction sets.

The mean probabilities of every point are kept while its set is scored, and those of every draw for a number of points
that bounds the time of the Monte Carlo errors, which come from these.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import field

import numpy as np

from bnuq import metrics
from bnuq.evaluation.estimates import RANKED, ranked_rows
from bnuq.files.mapped import Pool
from bnuq.frozen import frozen
from bnuq.metrics import DrawWeights
from bnuq.shapes import Bool, Float, Float32, Int8, Int64

MOST_BYTES = 2**28  # of the mean probabilities of a set
_REPLICATED = 2**25  # replicates × points × classes that Monte Carlo errors are computed from
_BLOCK = 2**17  # probabilities that are looked at in one go
_Score = Callable[[np.ndarray, np.ndarray], np.ndarray]
_KINDS: dict[str, tuple[_Score, _Score]] = {  # score and size of the sets, by how their estimates' names end
    "": (metrics.lac_score, metrics.lac_size),
    "_aps": (metrics.aps_score, metrics.aps_size),
}


def are_kept(points: int, classes: int) -> bool:
    """Whether the probabilities of so many points are kept."""
    return 4 * points * classes <= MOST_BYTES


@frozen
class PredictionSets:
    """How prediction sets are made: with a nominal `coverage`, and by `thresholds` that were fitted to other points, or
    by those of the other half, where some of these points are in a `second` one; none are made where there is neither.
    Of points that only `calibrate` others, nothing but the scores is computed."""

    coverage: float
    thresholds: Mapping[str, float] = field(default_factory=dict)
    second: Bool[np.ndarray, " point"] | None = None
    calibrate: bool = False

    def rows_of_draws(self, points: int, classes: int, draws: DrawWeights) -> Int64[np.ndarray, " kept"]:
        """The points whose probabilities are kept draw by draw; none where there are no replicates."""
        replicates = draws.bootstrap.stop - draws.jackknife.start
        if not replicates or self.calibrate:
            return np.arange(0)
        return ranked_rows(points, most=max(1, _REPLICATED // (replicates * classes)))


@frozen
class Probabilities:
    """The mean probabilities of all points, and those of each draw for the points `rows`; `numbers` are those of their
    draws in a bank, where there is one."""

    mean: Float32[np.ndarray, "point class"]
    draws: Float32[np.ndarray, "sample kept class"]
    rows: Int64[np.ndarray, " kept"]
    numbers: Int64[np.ndarray, "sample kept"] | None = None

    def tiles(self, weights: DrawWeights) -> Iterator[tuple[slice, Float[np.ndarray, "row sample"], np.ndarray]]:
        """Kept points that share their draws, the weights over these, and the row of each replicate in them."""
        if self.numbers is None:
            yield slice(None), weights.weights[: weights.bootstrap.stop], np.arange(weights.bootstrap.stop)
            return
        changes = np.flatnonzero((self.numbers[:, 1:] != self.numbers[:, :-1]).any(0)) + 1
        for start, stop in zip([0, *changes], [*changes, len(self.rows)], strict=True):
            among, rows = weights.among(self.numbers[:, start])
            yield slice(start, stop), among.weights[: among.bootstrap.stop], rows[: weights.bootstrap.stop]


def bytes_of(samples: int, points: int, classes: int) -> int | None:
    """About how many bytes the probabilities of a labelled set take while it is scored; None if they are not kept."""
    of_draws = min(_REPLICATED, samples * min(points, RANKED) * classes)
    return 2 * 4 * (points * classes + of_draws) if are_kept(points, classes) else None  # of units, and joined


@frozen
class ScoredProbabilities:
    """The value of every point, the mean under every replicate, and the scores that sets are made by, by kind; which
    points that are kept draw by draw are covered under the replicates, by the name of their coverage."""

    points: dict[str, Float[np.ndarray, " point"]]
    replicates: dict[str, Float[np.ndarray, " replicate"]]
    conformity: dict[str, Float[np.ndarray, " point"]]
    covered: dict[str, Bool[np.ndarray, "some_replicate kept"]] = field(default_factory=dict)


def scored(
    p: Probabilities, y: Int64[np.ndarray, " point"], sets: PredictionSets, draws: DrawWeights, pool: Pool
) -> ScoredProbabilities:
    """The estimates from the probabilities of points with these labels; the `pool` makes the values of the points."""
    conformity = {}
    if sets.calibrate or sets.second is not None:
        blocks = [*_blocks(np.arange(len(y)), p.mean.shape[1])]
        for kind, (score, _) in _KINDS.items():
            conformity[kind] = np.concatenate([score(p.mean[rows], y[rows]) for rows in blocks])
    if sets.calibrate:
        return ScoredProbabilities({}, {}, conformity)
    fixed = _Fixed(y, metrics.classwise_signs(p.mean, y), _thresholds(sets, conformity, len(y)))
    points: dict[str, np.ndarray] = {}
    for rows in _blocks(np.arange(len(y)), p.mean.shape[1]):
        for name, values in fixed.values(p.mean[rows], rows).items():
            if name not in points:
                points[name] = pool.empty(y.shape, values.dtype)
            points[name][rows] = values
    replicates = {name: np.full(len(draws.weights), values.mean()) for name, values in points.items()}
    covered = {
        name: np.broadcast_to(values[p.rows] > 0, (draws.bootstrap.stop, len(p.rows))).copy()
        for name, values in points.items()
        if name.startswith("set_coverage")
    }
    for name, moved in _moved(p, fixed, draws, covered).items():
        most = p.mean.shape[1] if name.startswith("set_size") else 1
        replicates[name][: draws.bootstrap.stop] = (replicates[name][: draws.bootstrap.stop] + moved).clip(0, most)
    return ScoredProbabilities(points, replicates, conformity, covered)


def fitted_thresholds(conformity: Mapping[str, Float[np.ndarray, " point"]], coverage: float) -> dict[str, float]:
    """The thresholds of each kind of set by the scores of calibration points."""
    return {kind: metrics.conformal_threshold(scores, coverage) for kind, scores in conformity.items()}


def _thresholds(sets: PredictionSets, conformity: Mapping[str, np.ndarray], points: int) -> dict[str, np.ndarray]:
    """Those of every point, by kind."""
    if sets.second is None:
        return {kind: np.full(points, threshold) for kind, threshold in sets.thresholds.items()}
    of_first, of_second = (
        fitted_thresholds({kind: scores[half] for kind, scores in conformity.items()}, sets.coverage)
        for half in (~sets.second, sets.second)
    )
    return {kind: np.where(sets.second, of_first[kind], of_second[kind]) for kind in conformity}


@frozen
class _Fixed:
    """What stays the same whatever draws are weighted: labels, the signs of the gaps of each class, and the thresholds
    of sets, by kind."""

    y: Int64[np.ndarray, " point"]
    signs: Int8[np.ndarray, "point class"]
    thresholds: Mapping[str, Float[np.ndarray, " point"]]

    def values(
        self, p: Float[np.ndarray, "*replicate _ class"], rows: Int64[np.ndarray, " _"]
    ) -> dict[str, Float[np.ndarray, "*replicate _"]]:
        """The values of these points by probabilities `p`."""
        y = self.y[rows]
        values = {"ece_classwise": metrics.ece_classwise(p, y, signs=self.signs[rows])}
        for kind, threshold in self.thresholds.items():
            score, size = _KINDS[kind]
            values[f"set_size{kind}"] = size(p, threshold[rows]).astype(np.float64)
            values[f"set_coverage{kind}"] = (score(p, y) <= threshold[rows]).astype(np.float64)
        return values


def _moved(
    p: Probabilities, fixed: _Fixed, draws: DrawWeights, covered: Mapping[str, Bool[np.ndarray, "replicate kept"]]
) -> dict[str, Float[np.ndarray, " replicate"]]:
    """How far the mean of each value under the replicates is from that of all draws, for the points that are kept draw
    by draw; which of these are `covered` under the replicates is written there."""
    sums: dict[str, np.ndarray] = {}
    for tile, weights, of_replicate in p.tiles(draws) if len(p.rows) else ():
        samples, _, classes = p.draws.shape
        for kept in _blocks(np.arange(len(p.rows))[tile], len(weights) * classes):
            mean = weights @ p.draws[:, kept].reshape(samples, -1).astype(np.float64)
            under = mean.astype(np.float32).reshape(len(weights), len(kept), classes)
            for name, values in fixed.values(under, p.rows[kept]).items():
                sums[name] = sums.get(name, 0.0) + values.sum(1)[of_replicate]
                if name in covered:
                    covered[name][:, kept] = values[of_replicate] > 0
    return {name: (total - total[draws.full.start]) / len(p.rows) for name, total in sums.items()}


def _blocks(rows: Int64[np.ndarray, " _"], width: int) -> Iterator[Int64[np.ndarray, " _"]]:
    """Parts of these points, each of `width` numbers, that are looked at together."""
    step = max(1, _BLOCK // width)
    return (rows[start : start + step] for start in range(0, len(rows), step))
