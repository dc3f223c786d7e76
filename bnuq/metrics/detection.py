"""Separation of out-of-distribution points from test points by a score: larger is more uncertain, OOD is positive.

Scores are ranked in float64 by numpy, for all array types. An empty set or a NaN score is a ValueError.
"""

import math
from statistics import NormalDist
from typing import Generic, Literal, TypeVar

import numpy as np

from bnuq.frozen import frozen
from bnuq.metrics.arrays import Array, as_float64, ties_of_rows
from bnuq.metrics.replicates import standard_error
from bnuq.metrics.resampling import blocks, cells_of, counts_in_blocks, running_counts
from bnuq.shapes import Float, Integer, Shaped

_AT_ONCE = 2**15  # rungs of the resamples in memory at once, which stay in the cache
_WIDEST = 3.0  # half-width of an interval of AUROC on the logit scale

Value = TypeVar("Value", float, np.ndarray, tuple[np.ndarray, np.ndarray])


@frozen
class DetectionScores(Generic[Value]):
    """How well a score separates a pair of sets, each value in [0, 1]: floats, or arrays with one value per
    resample."""

    auroc: Value
    aupr_out: Value
    aupr_in: Value
    fpr95: Value
    fpr95_id_positive: Value


def auroc(test: Float[Array, "test"], ood: Float[Array, "ood"]) -> float:
    """Area under the ROC curve, P(ood > test) + ½ P(ood = test), in [0, 1]; higher is better, ½ is chance.

    Source: Hanley & McNeil 1982, The Meaning and Use of the Area under a ROC Curve; Hendrycks & Gimpel 2017.
    """
    return float(np.mean(_placements(*_checked(test, ood))))


def label_auroc(score: Float[Array, "point"], y: Integer[Array, "point"]) -> float:
    """AUROC of one label of several: how well `score` ranks the points that have it (y = 1) above those that do not,
    in [0, 1]; higher is better, ½ is chance.

    ValueError if all points have the label, or none.

    Source: Hanley & McNeil 1982; the mean over labels is the macro AUROC of Tsoumakas, Katakis & Vlahavas 2010, Mining
    Multi-label Data.
    """
    scores, has = as_float64(score), as_float64(y) == 1
    return auroc(scores[~has], scores[has])


def error_auroc(uncertainty: Float[Array, "point"], correct: Float[Array, "point"]) -> float:
    """AUROC of errors: how well the uncertainty ranks wrong predictions above right ones, in [0, 1]; higher is better,
    ½ is chance. NaN if no prediction is wrong, or none is right, or an uncertainty is NaN.

    Source: Hendrycks & Gimpel 2017, A Baseline for Detecting Misclassified and Out-of-Distribution Examples, §3.1;
    Jaeger et al. 2023, A Call to Reflect on Evaluation Practices for Failure Detection in Image Classification, §2.
    """
    scores, wrong = as_float64(uncertainty), as_float64(correct) == 0
    defined = 0 < wrong.sum() < wrong.size and not np.isnan(scores).any()
    return auroc(scores[~wrong], scores[wrong]) if defined else math.nan


def error_auroc_of_replicates(
    uncertainty: Float[Array, "replicate point"], correct: Float[Array, "replicate point"]
) -> Float[np.ndarray, "replicate"]:
    """The results of `error_auroc` for each row.

    Source: as `error_auroc`.
    """
    ties, wrong = ties_of_rows(as_float64(uncertainty)), as_float64(correct) == 0
    errors, row = ties.sums(wrong.astype(np.float64)), np.repeat(np.arange(len(wrong)), ties.number)
    right = ties.count - errors
    rights = np.cumsum(right) - right / 2  # those of the rows before, those below, and half of those tied
    below = rights - np.concatenate([[0], np.cumsum((~wrong).sum(1))])[row]
    unknown = np.isnan(as_float64(uncertainty)).any(1)
    with np.errstate(invalid="ignore"):
        area = np.bincount(row, errors * below, len(wrong)) / (wrong.sum(1) * (~wrong).sum(1))
    return np.where(unknown, math.nan, area)


def label_score(
    least_confidence: Float[np.ndarray, "*any"], predicted: Shaped[np.ndarray, "*any"]
) -> Float[np.ndarray, "*any"]:
    """A score that orders points as the probability of a label does, also where that rounds to 1; no direction.

    The logarithm of the smaller of the probabilities of yes and no, with the opposite sign where yes is predicted.

    Source: definition.
    """
    smaller = np.log(np.maximum(least_confidence, np.finfo(least_confidence.dtype).tiny))
    return np.where(predicted == 1, -smaller, smaller)


def _checked(
    test: Float[Array, "*replicate test"], ood: Float[Array, "*replicate ood"]
) -> tuple[np.ndarray, np.ndarray]:
    return _checked_scores(test, "test"), _checked_scores(ood, "ood")


def _checked_scores(scores: Float[Array, "*replicate point"], name: str) -> Float[np.ndarray, "*replicate point"]:
    scores = as_float64(scores)
    if scores.size == 0:
        raise ValueError(f"{name} holds no scores; expected at least one example in each set.")
    if missing := int(np.isnan(scores).sum()):
        raise ValueError(f"{name} holds {missing} NaN among {scores.size} scores; expected numbers only.")
    return scores


def _placements(below: Float[np.ndarray, "below"], points: Float[np.ndarray, "point"]) -> Float[np.ndarray, "point"]:
    """The share of `below` that each point exceeds, ties counting half."""
    ranked, order, twice = np.sort(below), np.argsort(points), np.empty(points.size, np.intp)
    rising = points[order]  # looked up one after the other, most of which are in the cache
    twice[order] = np.searchsorted(ranked, rising, "left") + np.searchsorted(ranked, rising, "right")
    return twice / (2 * below.size)


def aupr(test: Float[Array, "test"], ood: Float[Array, "ood"], *, positive: Literal["ood", "test"] = "ood") -> float:
    """Area under the precision–recall curve as average precision, in (0, 1]; higher is better.

    Σ_k (R_k − R_{k−1}) P_k over distinct thresholds, ties in one step; chance is the share of positives. "ood" is
    AUPR-out; "test" is AUPR-in, with test points as positives, ranked by the negative score.

    Source: Hendrycks & Gimpel 2017 (in and out); Davis & Goadrich 2006 on why not the trapezoid (optimistic).
    """
    ranked = _Ranked.of_scores(test, ood)
    return float((ranked if positive == "ood" else ranked.reversed()).aupr()[0])


def fpr_at_tpr(
    test: Float[Array, "test"], ood: Float[Array, "ood"], *, tpr: float = 0.95, positive: Literal["ood", "test"] = "ood"
) -> float:
    """Smallest false-positive rate at a true-positive rate of at least `tpr`, in [0, 1]; lower is better.

    Thresholds are the scores themselves: if all scores are tied, the rate is 1. "test" makes test points the positives,
    ranked by the negative score; the two rates can differ widely on skewed scores, so always state which one is meant.

    Source: Liang, Li & Srikant 2018, ODIN (test positive); Yang et al. 2022, OpenOOD (OOD positive).
    """
    ranked = _Ranked.of_scores(test, ood)
    return float((ranked if positive == "ood" else ranked.reversed()).fpr(tpr)[0])


def detection(test: Float[Array, "test"], ood: Float[Array, "ood"]) -> DetectionScores[float]:
    """AUROC, both AUPR and both FPR at 95 % TPR from one sort, each in [0, 1]; lower FPR, higher others are better.

    Source: as `auroc`, `aupr` and `fpr_at_tpr`.
    """
    return single(_Ranked.of_scores(test, ood).scores())


def single(scores: DetectionScores[np.ndarray]) -> DetectionScores[float]:
    """The scores of the only ladder."""
    return DetectionScores(**{name: value.item() for name, value in vars(scores).items()})


def detection_of_replicates(
    test: Float[Array, "replicate test"], ood: Float[Array, "replicate ood"]
) -> DetectionScores[np.ndarray]:
    """The results of `detection` for each row of the scores, each of shape (replicate,), as if computed one by one.

    Source: as `detection`.
    """
    test, ood = _checked(test, ood)
    result, start = np.empty((5, len(test))), 0
    for rows in blocks(len(test), width=test.shape[1] + ood.shape[1]):
        here = slice(start, start := start + rows)
        result[:, here] = list(vars(_Ranked.of_scores(test[here], ood[here]).scores()).values())
    return DetectionScores(*result)


def detection_of_ladders(
    test: Shaped[np.ndarray, "*replicate rung"], ood: Shaped[np.ndarray, "*replicate rung"]
) -> DetectionScores[np.ndarray]:
    """The result of `detection`, each of shape (*replicate,), from the number of points of each set at each distinct
    score, the largest first; rungs may be empty.

    Source: as `detection`.
    """
    scores = vars(_Ranked.of(*(count.reshape(-1, count.shape[-1]) for count in (test, ood))).scores())
    return DetectionScores(**{name: values.reshape(test.shape[:-1]) for name, values in scores.items()})


@frozen
class _Ranked:
    """The rungs of one ladder after the other: the number of positive and negative points on each, and on it or before,
    the most positive score first; where each ladder starts, and its numbers of points.

    Whole numbers, stored as floats: they are exact, and dividing integers is several times slower.
    """

    positive: Float[np.ndarray, "rung"]
    negative: Float[np.ndarray, "rung"]
    positive_until: Float[np.ndarray, "rung"]
    negative_until: Float[np.ndarray, "rung"]
    start: Integer[np.ndarray, "ladder"]
    positives: Float[np.ndarray, "ladder"]
    negatives: Float[np.ndarray, "ladder"]

    @staticmethod
    def of_scores(test: Float[Array, "*ladder test"], ood: Float[Array, "*ladder ood"]) -> "_Ranked":
        """The ladders of distinct scores, the largest first, of which OOD points are the positives."""
        test, ood = (np.atleast_2d(scores) for scores in _checked(test, ood))
        tests, points = test.shape[1], test.shape[1] + ood.shape[1]
        scores = -np.concatenate([test, ood], axis=1)
        order = np.argsort(scores, axis=1)
        ranked = np.take_along_axis(scores, order, axis=1)
        ends = np.ones(ranked.shape, bool)  # the last place of each distinct score
        np.not_equal(ranked[:, 1:], ranked[:, :-1], out=ends[:, :-1])
        ood_until = np.cumsum(order >= tests, axis=1)[ends]
        rungs = ends.sum(1)
        until = np.flatnonzero(ends) + 1 - points * np.repeat(np.arange(len(test)), rungs)
        sizes = (np.full(len(test), float(size)) for size in (points - tests, tests))
        return _Ranked._of_until(ood_until, until - ood_until, np.cumsum(rungs) - rungs, *sizes)

    @staticmethod
    def of(test: Shaped[np.ndarray, "ladder rung"], ood: Shaped[np.ndarray, "ladder rung"]) -> "_Ranked":
        """The ladders of these numbers of points, the largest score first, of which OOD points are the positives."""
        oods, tests = (np.cumsum(count, axis=1, dtype=np.float64) for count in (ood, test))
        start = np.arange(len(test)) * test.shape[1]
        return _Ranked._of_until(oods.ravel(), tests.ravel(), start, oods[:, -1], tests[:, -1])

    @staticmethod
    def _of_until(ood: np.ndarray, test: np.ndarray, start: np.ndarray, *sizes: np.ndarray) -> "_Ranked":
        until = [side.astype(np.float64) for side in (ood, test)]
        counts = [np.diff(side, prepend=0) for side in until]
        for count, size in zip(counts, sizes, strict=True):
            count[start[1:]] += size[:-1]
        return _Ranked(counts[0], counts[1], until[0], until[1], start, sizes[0], sizes[1])

    def reversed(self) -> "_Ranked":
        """The same with positive and negative points exchanged, and their numbers on each rung or after."""
        positive_from = self._on_rungs(self.positives) - self.positive_until + self.positive
        negative_from = self._on_rungs(self.negatives) - self.negative_until + self.negative
        sizes = self.negatives, self.positives
        return _Ranked(self.negative, self.positive, negative_from, positive_from, self.start, *sizes)

    def _on_rungs(self, values: Float[np.ndarray, "ladder"]) -> Float[np.ndarray, "rung"]:
        return np.repeat(values, np.diff(self.start, append=self.positive.size))

    def scores(self) -> DetectionScores[np.ndarray]:
        mirrored = self.reversed()
        return DetectionScores(
            auroc=self.auroc(),
            aupr_out=self.aupr(),
            aupr_in=mirrored.aupr(),
            fpr95=self.fpr(0.95),
            fpr95_id_positive=mirrored.fpr(0.95),
        )

    def auroc(self) -> Float[Array, "ladder"]:
        twice = np.add.reduceat(self.negative * (2 * self.positive_until - self.positive), self.start)
        return twice / (2 * self.positives * self.negatives)

    def aupr(self) -> Float[Array, "ladder"]:
        called = np.maximum(self.positive_until + self.negative_until, 1)  # 0 only where nothing is added
        return np.add.reduceat(self.positive * self.positive_until / called, self.start) / self.positives

    def fpr(self, tpr: float) -> Float[Array, "ladder"]:
        needed, negatives = map(self._on_rungs, (_needed(tpr, self.positives), self.negatives))
        reached = np.where(self.positive_until >= needed, self.negative_until, negatives)
        return np.minimum.reduceat(reached, self.start) / self.negatives


def delong_variance(
    test: Float[Array, "test"],
    ood: Float[Array, "ood"],
    *,
    test_group: Shaped[Array, "test"] | None = None,
    ood_group: Shaped[Array, "ood"] | None = None,
) -> float:
    """Variance of the AUROC over points, ≥ 0; lower is better.

    From the structural components: the share of the other set that each point exceeds. With groups, components are
    first summed by group, with G/(G−1) in place of n/(n−1); groups of the two sets are assumed to be unrelated, even
    with equal labels. Exactly 0 at an AUROC of 0 or 1, where it is not meaningful. NaN if a set has fewer than two
    points or groups.

    Source: DeLong, DeLong & Clarke-Pearson 1988, Comparing the Areas under Two or More Correlated ROC Curves;
    Obuchowski 1997, Nonparametric Analysis of Clustered ROC Curve Data, with no cluster in both sets.
    """
    test, ood = _checked(test, ood)
    ood_error = standard_error(_placements(test, ood), group=ood_group)
    test_error = standard_error(_placements(ood, test), group=test_group)
    return ood_error**2 + test_error**2


def delong_difference_variance(
    first: tuple[Float[Array, "test"], Float[Array, "ood"]],
    second: tuple[Float[Array, "test"], Float[Array, "ood"]],
    *,
    test_group: Shaped[Array, "test"] | None = None,
    ood_group: Shaped[Array, "ood"] | None = None,
) -> float:
    """Variance over points of the difference of two AUROCs, ≥ 0; lower is better.

    Each pair holds the scores of the same (test, ood) points by one of two scores. 0 if both rank all points alike;
    groups as in `delong_variance`. NaN if a set has fewer than two points or groups.

    Source: DeLong, DeLong & Clarke-Pearson 1988: the covariance of correlated curves, by components.
    """
    (a, b), (c, d) = _checked(*first), _checked(*second)
    ood_error = standard_error(_placements(a, b) - _placements(c, d), group=ood_group)
    test_error = standard_error(_placements(b, a) - _placements(d, c), group=test_group)
    return ood_error**2 + test_error**2


def auroc_interval(auroc: float, se: float, *, level: float = 0.95) -> tuple[float, float]:
    """Confidence interval of an AUROC, (low, high) within [0, 1]; narrower is better.

    Normal on the logit scale, so that it stays within [0, 1]. Near 0 and 1 an error over draws may be large on that
    scale, where the interval would be all of [0, 1] and its end the AUROC itself. So from a half-width of 3 on, each
    end is that of half-width 3, or that of Wilson's interval of a share with this value and standard error if it is
    further out. Simulated (binormal scores, AUROC 0.9 to 0.99, 20 or 60 points of each set, 20 draws): 92 to 97 %
    coverage, as without this, by intervals down to half as wide. At an AUROC of 0 or 1 and at se 0, where DeLong's
    variance is not meaningful, it is (auroc, auroc); use the bootstrap there. A NaN gives (NaN, NaN).

    Source: Pepe 2003, The Statistical Evaluation of Medical Tests for Classification and Prediction, ch. 5; Wilson
    1927; Newcombe 2006, Statistics in Medicine 25, 559–573, for intervals of an AUROC whose variance changes with it.
    """
    if math.isnan(auroc) or math.isnan(se):
        return math.nan, math.nan
    if auroc <= 0 or auroc >= 1 or se == 0:
        return auroc, auroc
    z, spread = NormalDist().inv_cdf((1 + level) / 2), auroc * (1 - auroc)
    half, centre = z * se / spread, math.log(auroc) - math.log1p(-auroc)
    if half <= _WIDEST:
        return _expit(centre - half), _expit(centre + half)
    odd = (z * se) ** 2 / spread  # z² over the number of points that a share with this error is of
    reach = math.sqrt((z * se) ** 2 + odd**2 / 4)
    low, high = ((auroc + odd / 2 + sign * reach) / (1 + odd) for sign in (-1, 1))
    return max(0.0, min(low, _expit(centre - _WIDEST))), min(1.0, max(high, _expit(centre + _WIDEST)))


def _expit(x: float) -> float:
    return 0.5 * (1 + math.tanh(x / 2))  # no overflow at either end


def detection_bootstrap(
    test: Float[Array, "test"],
    ood: Float[Array, "ood"],
    *,
    resamples: int = 1000,
    seed: int = 0,
    test_group: Shaped[Array, "test"] | None = None,
    ood_group: Shaped[Array, "ood"] | None = None,
) -> DetectionScores[np.ndarray]:
    """Bootstrap replicates over points of `detection`, each of shape (resamples,) in [0, 1].

    Test and OOD points are resampled separately, whole groups where given. Which points of a set are drawn depends on
    (seed, size or groups) alone, so replicates of two scores or two models on the same sets are paired. Of more than
    50,000 points, 16,384 cells of neighbouring ranks are drawn, and points of a cell are tied.

    Source: Efron & Tibshirani 1993, An Introduction to the Bootstrap, ch. 8 (two samples) and 13 (percentiles).
    """
    _, rung, count = np.unique(-np.concatenate(_checked(test, ood)), return_inverse=True, return_counts=True)
    sides = np.split(cells_of(count)[rung], [len(test)])
    pair = _Pair.of(*sides)
    streams = (
        counts_in_blocks(bins, resamples, step=max(16, _AT_ONCE // pair.width), seed=(seed, number), group=groups)
        for number, (bins, groups) in enumerate(zip(sides, (test_group, ood_group), strict=True))
    )
    parts = [vars(pair.scores(*counts)) for counts in zip(*streams, strict=True)]
    return DetectionScores(**{name: np.concatenate([part[name] for part in parts]) for name in parts[0]})


@frozen
class _Pair:
    """Where the rungs of test and OOD points lie on each other's ladders, the largest score first: for each rung of one
    set, the number of rungs of the other set above it, and of those on it or above."""

    test_above_ood: tuple[Integer[np.ndarray, "ood_rung"], Integer[np.ndarray, "ood_rung"]]
    ood_above_test: tuple[Integer[np.ndarray, "test_rung"], Integer[np.ndarray, "test_rung"]]

    @staticmethod
    def of(test_rung: Integer[np.ndarray, "test"], ood_rung: Integer[np.ndarray, "ood"]) -> "_Pair":
        test, ood = np.unique(test_rung), np.unique(ood_rung)
        above_ood, above_test = (
            (np.searchsorted(others, rungs, "left"), np.searchsorted(others, rungs, "right"))
            for others, rungs in ((test, ood), (ood, test))
        )
        return _Pair(above_ood, above_test)

    @property
    def width(self) -> int:
        return max(self.test_above_ood[0].size, self.ood_above_test[0].size)

    def scores(
        self, test: Integer[np.ndarray, "test_rung resample"], ood: Integer[np.ndarray, "ood_rung resample"]
    ) -> DetectionScores[np.ndarray]:
        """The scores of each resample, from its numbers of points on the rungs of each set: `_Ranked.scores`, summed
        over the rungs of the positives alone."""
        test_above, ood_above = running_counts(test), running_counts(ood)
        tests, oods = test_above[-1], ood_above[-1]
        above, until = (ood_above.take(places, axis=0) for places in self.ood_above_test)
        test, ood = test.astype(np.float64), ood.astype(np.float64)
        until += above
        twice = np.einsum("ij,ij->j", test, until)
        below = tests - test_above[:-1]  # test points on a rung or below it
        aupr_in, fpr_id_positive = _positive(test[::-1], below[::-1], (oods - above)[::-1], oods)
        until = test_above.take(self.test_above_ood[1], axis=0)
        aupr_out, fpr95 = _positive(ood, ood_above[1:], until, tests)
        return DetectionScores(twice / (2 * tests * oods), aupr_out, aupr_in, fpr95, fpr_id_positive)


def _positive(
    positives: Float[np.ndarray, "rung resample"],
    positives_until: Float[np.ndarray, "rung resample"],
    negatives_until: Float[np.ndarray, "rung resample"],
    negatives: Float[np.ndarray, "resample"],
) -> tuple[Float[np.ndarray, "resample"], Float[np.ndarray, "resample"]]:
    """AUPR and FPR at 95 % TPR, from the positives on each of their rungs, and the positives and negatives until it."""
    total = positives_until[-1]
    first = np.argmax(positives_until >= _needed(0.95, total), axis=0)
    fpr = negatives_until[first, np.arange(total.size)] / negatives
    called = positives_until + negatives_until
    np.maximum(called, 1, out=called)  # 0 only above the first point, where nothing is added
    np.divide(positives_until, called, out=called)
    return np.einsum("ij,ij->j", positives, called) / total, fpr


def _needed(tpr: float, positives: Float[np.ndarray, "*any"]) -> Float[np.ndarray, "*any"]:
    """The fewest positives that are a share of at least `tpr`."""
    needed = np.floor(tpr * positives)
    return needed + (needed / positives < tpr)  # compared as a rate: 19 of 20 is 0.95, whatever 0.95 × 20 rounds to
