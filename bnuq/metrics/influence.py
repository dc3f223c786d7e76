"""The influence of each point on an estimate, to first order, from which the error of a difference follows.

The influence of a point is the derivative of the estimate by the point's weight; its mean is 0. For another sample of
points the estimate is θ + mean(influence) to first order. So `standard_error(influence, group=…)` is its error over
points, and `standard_error(influence_a − influence_b, group=…)` that of the difference of two estimates on the same
points. This costs a single sort, where a paired bootstrap takes a thousand. The influence on a mean is x − mean, and
needs no function here.

All is computed in float64 by numpy for all array types, and needs at least one point. Where an estimate is undefined,
its influences are NaN.

Source: Hampel 1974, The Influence Curve and Its Role in Robust Estimation.
"""

import math
from statistics import NormalDist

import numpy as np

from bnuq.frozen import frozen
from bnuq.metrics.arrays import Array, as_float64, ties_of_rows
from bnuq.metrics.bounds import normalized
from bnuq.metrics.calibration import edges_of, equal_mass
from bnuq.metrics.detection import DetectionScores, detection_of_ladders, single
from bnuq.metrics.replicates import group_index
from bnuq.metrics.selective import COVERAGE, SelectiveScores
from bnuq.shapes import Float, Integer, Shaped

TPR = 0.95  # that of `fpr95` and `fpr95_id_positive`
NORMAL = np.array([NormalDist().inv_cdf((k + 0.5) / 63) for k in range(63)])  # equally probable normal quantiles, …
NORMAL /= np.std(NORMAL)  # … scaled to sd 1


def rmse_influence(squared_error: Float[Array, "point"]) -> Float[np.ndarray, "point"]:
    """(e² − mse)/(2 rmse) of each point, in the unit of e; no direction.

    0 if all errors are 0, NaN if the rmse is not finite.

    Source: the slope of the root in `rmse`; Hampel 1974.
    """
    squared = as_float64(squared_error)
    mse = float(np.mean(squared))
    if mse == 0 or not math.isfinite(mse):
        return np.full(squared.shape, 0.0 if mse == 0 else math.nan)
    return (squared - mse) / (2 * math.sqrt(mse))


def normalized_influence(
    score: Float[Array, "point"], constant: Float[Array, "point"], optimum: Float[Array, "point"]
) -> Float[np.ndarray, "point"]:
    """The influence on `normalized` of three means over the same points, in percent; no direction.

    100 (S − C − (O − C) θ/100)/mean(O − C), for the ratio of means θ. NaN if θ is NaN or infinite.

    Source: Teye, Azizpour & Smith 2018, §4.1, a ratio of means over the test set; Cochran 1977, Sampling Techniques,
    §2.11, the error of a ratio.
    """
    scores, low, high = (as_float64(values) for values in (score, constant, optimum))
    share = normalized(*(float(np.mean(values)) for values in (scores, low, high)))
    if not math.isfinite(share):
        return np.full(scores.shape, math.nan)
    span = high - low
    return (100 * (scores - low) - share * span) / float(np.mean(span))


def ece_influence(
    confidence: Float[Array, "point"],
    correct: Float[Array, "point"],
    *,
    bins: int = 15,
    group: Shaped[Array, "point"] | None = None,
) -> Float[np.ndarray, "point"]:
    """w_k (correct − confidence) of each point in bin k, less its mean over all points; no direction.

    w_k = erf(gap_k/se_k) is the slope of E|gap_k + noise| by gap_k, the bin's sum of correct − confidence, where the
    noise is normal with variance se²/2, half of that of the sum (by `group` where points of one group may be
    correlated). The derivative of the ECE is the sign of the gap, and w_k equals it where the gap is wide. But |gap|
    has a kink at 0, and varies less than the gap where the gap is within its noise, as for calibrated networks. With
    the sign, errors would be up to twice too large; with all of se² they would be down to 0.84 of the correct value
    where two networks are nearly the same. With half of it they are 0.95 to 1.23 times the correct value, also for a
    difference, and a one-sided test at 5 % rejects in 2 to 7 % (93 settings of ten classes, n = 300 to 5000). A bin of
    a single point or group has no noise estimate and keeps the sign, which makes its error too large, never too small.

    Bins are those of `calibration_bins`. An ECE of few points is biased upwards; this bias mostly cancels in the
    difference of two ECEs.

    Source: the derivative of Guo et al. 2017, eq. 3, Hampel 1974; E|X| of a normal X, whose slope by the mean is erf,
    Leone, Nelson & Nottingham 1961, The Folded Normal Distribution.
    """
    cell, over = _gaps(confidence, correct, bins)
    contributions = _slopes(over, cell, bins, group)[cell] * over
    return contributions - np.mean(contributions)


def _slopes(
    over: Float[np.ndarray, "point"],
    cell: Integer[np.ndarray, "point"],
    cells: int,
    group: Shaped[Array, "point"] | None,
) -> Float[np.ndarray, "cell"]:
    """The slope of E|gap + noise| by the gap of each cell, the sum of `over` there; see `ece_influence`."""
    gap = np.bincount(cell, weights=over, minlength=cells)
    mean = gap / np.maximum(np.bincount(cell, minlength=cells), 1)
    noise = _sd_of_sums(over - mean[cell], cell, cells, group)
    slope = np.sign(gap)
    known = noise > 0
    slope[known] = [math.erf(steps) for steps in gap[known] / noise[known]]
    return slope


def ece_adaptive_influence(
    confidence: Float[Array, "point"],
    correct: Float[Array, "point"],
    *,
    bins: int = 15,
    group: Shaped[Array, "point"] | None = None,
) -> Float[np.ndarray, "point"]:
    """The influence on `ece_adaptive`, as that of `ece_influence` on the ECE; no direction. The bins are as given.

    Source: as `ece_influence`.
    """
    stated, hits = as_float64(confidence), as_float64(correct)
    ties = ties_of_rows(stated[None])
    # The order of the points of a tie decides which bins they are in: it must be the same on every machine.
    order, start, count = np.argsort(stated, kind="stable"), ties.start, ties.count
    over = hits - stated
    cell = np.repeat(np.arange(bins), np.diff(equal_mass(stated.size, bins)))
    ordered_group = None if group is None else group_index(group)[order]
    slope = _slopes(over[order], cell, bins, ordered_group)[cell]
    influence = np.empty_like(over)
    influence[order] = np.repeat(np.add.reduceat(slope, start) / count, count)
    contributions = influence * over
    return contributions - np.mean(contributions)


def ece_debiased_influence(
    confidence: Float[Array, "point"], correct: Float[Array, "point"], *, bins: int = 15
) -> Float[np.ndarray, "point"]:
    """The influence on `ece_debiased_of_bins`, in its unit; no direction.

    That on the mean square, over twice the root; where the root is less than its own noise, over twice that noise.

    Source: the derivative of the debiased estimator of Kumar, Liang & Ma 2019; Hampel 1974.
    """
    hits = as_float64(correct)
    cell, over = _gaps(confidence, correct, bins)
    count = np.bincount(cell, minlength=bins)
    gap = np.where(count > 1, np.bincount(cell, weights=over, minlength=bins) / np.maximum(count, 1), 0)
    accuracy = np.bincount(cell, weights=hits, minlength=bins) / np.maximum(count, 1)
    noise = float(count @ (accuracy * (1 - accuracy) / np.maximum(count - 1, 1))) / cell.size
    size = max(float(count @ gap**2) / cell.size - noise, noise)
    if size == 0:
        return np.zeros(cell.size)
    square = (2 * gap[cell] * over) - gap[cell] ** 2
    return (square - np.mean(square)) / (2 * math.sqrt(size))


def _gaps(
    confidence: Float[Array, "point"], correct: Float[Array, "point"], bins: int
) -> tuple[Integer[np.ndarray, "point"], Float[np.ndarray, "point"]]:
    """The bin of each point, as in `calibration_bins`, and by how much it is more right than stated."""
    stated = as_float64(confidence)
    return np.searchsorted(edges_of(confidence, bins)[1:-1], stated, "left"), as_float64(correct) - stated


def _sd_of_sums(
    deviation: Float[np.ndarray, "point"],
    cell: Integer[np.ndarray, "point"],
    cells: int,
    group: Shaped[Array, "point"] | None,
) -> Float[np.ndarray, "cell"]:
    """The sd of each cell's sum, from the spread of its points or groups; 0 for fewer than two.

    √(G/(G−1) Σ_g (Σ_{i∈g} dᵢ)²), as in `standard_error`.
    """
    totals, cell_of_total = deviation, cell
    if group is not None:
        part = group_index(group) * cells + cell
        present = np.flatnonzero(np.bincount(part))
        totals, cell_of_total = np.bincount(part, weights=deviation)[present], present % cells
    count = np.bincount(cell_of_total, minlength=cells)
    scale = np.where(count > 1, count / np.maximum(count - 1, 1), 0)
    return np.sqrt(scale * np.bincount(cell_of_total, weights=totals**2, minlength=cells))


def aurc_influence(uncertainty: Float[Array, "point"], loss: Float[Array, "point"]) -> Float[np.ndarray, "point"]:
    """The influence on `aurc`, in the unit of the loss; no direction.

    A point counts by its loss at every coverage that includes it, and by shifting later points to higher coverage.
    Computed with the same harmonic numbers as the estimate, so that the mean is 0; ties count with their mean loss.

    Source: the derivative of ∫₀¹ risk(c) dc, Geifman, Uziel & El-Yaniv 2019; Hampel 1974.
    """
    losses = as_float64(loss)
    rung, count = _rungs(as_float64(uncertainty))
    mean = np.bincount(rung, weights=losses) / count
    through = np.cumsum(count)
    harmonic = np.concatenate([[0.0], np.cumsum(1 / np.arange(1, losses.size + 1))])
    across = harmonic[through] - harmonic[through - count]  # Σ 1/k over the places k of each tie
    after = harmonic[-1] - harmonic[through]
    place_weight = (
        after + across + 1 - through * across / count
    )  # Σ 1/k from a point's place on, in the mean over its tie
    rung_influence = mean * (after - place_weight) - (_from_here_on(mean * across) - mean * across)
    area = float(np.sum(mean * count * place_weight)) / losses.size
    return place_weight[rung] * losses + rung_influence[rung] + float(np.mean(losses)) - area


def selective_influence(uncertainty: Float[Array, "point"], loss: Float[Array, "point"]) -> SelectiveScores[np.ndarray]:
    """The influences on `selective`, each in its unit; no direction.

    AUGRC is a mean over pairs of points. The risk at 80 % coverage also moves with the threshold, by the mean loss near
    it: that of the √(n c (1 − c)) places before and after it, which is how far a share c varies. The coverage at 5 %
    risk moves in jumps that have no slope: its influences are NaN.

    Source: Hampel 1974; Hoeffding 1948, A Class of Statistics with Asymptotically Normal Distribution; Woodruff 1952,
    Confidence Intervals for Medians and Other Position Measures.
    """
    losses = as_float64(loss)
    rung, count = _rungs(as_float64(uncertainty))
    n, total = losses.size, np.bincount(rung, weights=losses)
    before = np.cumsum(count) - count
    after = n - before - count / 2  # points that are less certain, and half of those that are as certain
    lost = np.cumsum(total) - total / 2
    pairs = (losses * after[rung] + lost[rung]) / n
    retained = math.ceil(COVERAGE * n - 1e-9)
    reach = max(1, round(math.sqrt(retained * (n - retained) / n)))
    near = np.repeat(total / count, count)[max(0, retained - reach) : retained + reach]
    risk = np.clip((retained - before) / count, 0, 1)[rung] * (losses - np.mean(near)) * n / retained
    return SelectiveScores(
        aurc=aurc_influence(uncertainty, loss),
        augrc=pairs - np.mean(pairs),
        risk_at_80=risk - np.mean(risk),
        coverage_at_5=np.full(n, math.nan),
    )


def _rungs(values: Float[np.ndarray, "point"]) -> tuple[Integer[np.ndarray, "point"], Integer[np.ndarray, "rung"]]:
    """The rung of each point on the ladder of distinct values, the smallest first, and the number of points per
    rung."""
    _, rung, count = np.unique(values, return_inverse=True, return_counts=True)
    return rung, count


def _from_here_on(values: Float[np.ndarray, "rung"]) -> Float[np.ndarray, "rung"]:
    """At each rung the sum of its value and of all later ones."""
    return np.cumsum(values[::-1])[::-1]


def spearman_influence(a: Float[Array, "point"], b: Float[Array, "point"]) -> Float[np.ndarray, "point"]:
    """The influence on `spearman`, the rank correlation, without unit; no direction.

    A point counts by its own two ranks and by its effect on the ranks of the other points. Ties have their mean rank.
    NaN if `spearman` is NaN.

    Source: Croux & Dehon 2010, Influence Functions of the Spearman and Kendall Correlation Measures; with ties by the
    mid-distribution function, which they do not need.
    """
    first, second = as_float64(a), as_float64(b)
    undefined = np.full(first.shape, math.nan)
    if np.isnan(first).any() or np.isnan(second).any():
        return undefined
    rungs, other_rungs = _rungs(first), _rungs(second)
    x, y = _centred_ranks(*rungs), _centred_ranks(*other_rungs)
    covariance, variance_x, variance_y = (float(np.mean(product)) for product in (x * y, x * x, y * y))
    if variance_x == 0 or variance_y == 0:
        return undefined
    together = x * y - 3 * covariance + _moved(*rungs, y) + _moved(*other_rungs, x)
    alone = (x * x - 3 * variance_x + 2 * _moved(*rungs, x)) / variance_x
    alone += (y * y - 3 * variance_y + 2 * _moved(*other_rungs, y)) / variance_y
    size = math.sqrt(variance_x) * math.sqrt(variance_y)
    return together / size - covariance / size / 2 * alone


def _centred_ranks(
    rung: Integer[np.ndarray, "point"], count: Integer[np.ndarray, "rung"]
) -> Float[np.ndarray, "point"]:
    """The share of points below each point, ties counting half, less ½; the mean is 0."""
    twice = 2 * np.cumsum(count) - count
    return ((twice - rung.size) / (2 * rung.size))[rung]


def _moved(
    rung: Integer[np.ndarray, "point"], count: Integer[np.ndarray, "rung"], values: Float[np.ndarray, "point"]
) -> Float[np.ndarray, "point"]:
    """The effect of each point on mean(rank × values) by raising the ranks above it, and half of those tied with it."""
    totals = np.bincount(rung, weights=values, minlength=count.size)
    return ((_from_here_on(totals) - totals / 2) / rung.size)[rung]


def label_auroc_influence(score: Float[Array, "point"], y: Integer[Array, "point"]) -> Float[np.ndarray, "point"]:
    """The influence of each point on `label_auroc`; no direction. The points that have the label are random, too.

    Source: DeLong, DeLong & Clarke-Pearson 1988; Hampel 1974.
    """
    scores, has = as_float64(score), as_float64(y) == 1
    ranked = RankedScores.of(scores[~has], scores[has])
    of_label, of_others = (values[::-1] for values in Curve.of(ranked.test, ranked.ood).reversed().area())
    parts = of_others[ranked.test_rung], of_label[ranked.ood_rung]
    result = np.empty(has.size)
    for rows, part in zip((~has, has), parts, strict=True):
        result[rows] = part * (has.size / len(part))
    return result


def error_auroc_influence(
    uncertainty: Float[Array, "point"], correct: Float[Array, "point"]
) -> Float[np.ndarray, "point"]:
    """The influence of each point on `error_auroc`; no direction. NaN if that is NaN.

    Source: as `label_auroc_influence`.
    """
    scores, wrong = as_float64(uncertainty), as_float64(correct) == 0
    defined = 0 < wrong.sum() < wrong.size and not np.isnan(scores).any()
    return label_auroc_influence(scores, wrong.astype(np.int64)) if defined else np.full(wrong.size, math.nan)


def scod_influence(
    test: Float[Array, "test"], loss: Float[Array, "test"], ood: Float[Array, "ood"]
) -> tuple[Float[np.ndarray, "test"], Float[np.ndarray, "ood"]]:
    """The influences on `scod`, over test and over OOD points; no direction. The sizes of both sets are fixed.

    Those on the area of all points together, centred within each set and times its share of the points.

    Source: as `aurc_influence`.
    """
    losses, tests = as_float64(loss), len(test)
    both = np.concatenate([as_float64(test), as_float64(ood)])
    pooled = aurc_influence(both, np.concatenate([losses, np.ones(len(ood))]))
    inside, outside = ((part - np.mean(part)) * (len(part) / both.size) for part in np.split(pooled, [tests]))
    return inside, outside


def detection_influence(
    test: Float[Array, "test"], ood: Float[Array, "ood"]
) -> DetectionScores[tuple[np.ndarray, np.ndarray]]:
    """The influences on all values of `detection`, from one sort: each a pair, over test (test,) and OOD points (ood,).

    Both sets are sampled independently: an error is √(se(over test)² + se(over OOD)²), and that of a difference uses
    the differences of both parts. AUROC: DeLong's structural components, so that the error is that of
    `delong_variance`, 0 at an AUROC of 0 or 1. AUPR: the sizes of both sets are fixed, as in the estimate. The FPR at
    95 % TPR depends on a quantile, and its error agrees with the bootstrap: it contains the slope of the ROC curve,
    which is hard to estimate from few points. It is on average 5 % too large for 1000 positive points, 10 to 30 % for
    200, with an uncertainty of 20 and 30 %; for scores with few distinct values it can be off by a factor of 2. Raises
    ValueError for an empty set or a NaN score.

    Source: DeLong, DeLong & Clarke-Pearson 1988; the derivative of the average precision of `aupr`, Hampel 1974; Hsieh
    & Turnbull 1996, Nonparametric and Semiparametric Estimation of the ROC Curve; Woodruff 1952, Confidence Intervals
    for Medians and Other Position Measures.
    """
    return RankedScores.of(test, ood).influence()


@frozen
class RankedScores:
    """The scores of two sets, sorted once: the rung of each point on the ladder of distinct scores, the smallest first,
    and the number of test and OOD points on each rung."""

    test_rung: Integer[np.ndarray, "test"]
    ood_rung: Integer[np.ndarray, "ood"]
    test: Float[np.ndarray, "rung"]
    ood: Float[np.ndarray, "rung"]

    @staticmethod
    def of(test: Float[Array, "test"], ood: Float[Array, "ood"]) -> "RankedScores":
        """The ranked scores of two sets; ValueError for an empty set or a NaN score."""
        scores = np.concatenate([as_float64(test), as_float64(ood)])
        tests = len(test)
        if tests in (0, scores.size) or np.isnan(scores).any():
            raise ValueError(
                f"{tests} test and {scores.size - tests} OOD scores hold {int(np.isnan(scores).sum())} NaN; expected "
                "at least one score in each set, and numbers only."
            )
        rung, count = _rungs(scores)
        low = np.bincount(rung[:tests], minlength=count.size).astype(np.float64)  # floats are exact and divide faster
        return RankedScores(rung[:tests], rung[tests:], low, count - low)

    def scores(self) -> DetectionScores[float]:
        """The result of `detection`."""
        return single(detection_of_ladders(self.test[::-1], self.ood[::-1]))

    def influence(self) -> DetectionScores[tuple[np.ndarray, np.ndarray]]:
        """The result of `detection_influence`."""
        rising = Curve.of(self.test, self.ood)  # test points are the positives: the smallest score comes first
        falling = rising.reversed()

        def from_rising(influence: tuple[np.ndarray, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
            positive, negative = influence
            return positive[self.test_rung], negative[self.ood_rung]

        def from_falling(influence: tuple[np.ndarray, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
            positive, negative = influence
            return negative[::-1][self.test_rung], positive[::-1][self.ood_rung]

        return DetectionScores(
            auroc=from_falling(falling.area()),
            aupr_out=from_falling(falling.average_precision()),
            aupr_in=from_rising(rising.average_precision()),
            fpr95=from_falling(falling.fpr95()),
            fpr95_id_positive=from_rising(rising.fpr95()),
        )


@frozen
class Curve:
    """Positive and negative points on each rung of the ladder of scores, and their cumulative numbers.

    Its methods return influences by rung: of a positive point on the rung, and of a negative one.
    """

    positive: Float[np.ndarray, "rung"]
    negative: Float[np.ndarray, "rung"]
    true_positives: Float[np.ndarray, "rung"]
    false_positives: Float[np.ndarray, "rung"]

    @staticmethod
    def of(positive: Float[np.ndarray, "rung"], negative: Float[np.ndarray, "rung"]) -> "Curve":
        return Curve(positive, negative, np.cumsum(positive), np.cumsum(negative))

    def reversed(self) -> "Curve":
        """The same with positives and negatives exchanged, in reverse order."""
        return Curve.of(self.negative[::-1], self.positive[::-1])

    def area(self) -> tuple[np.ndarray, np.ndarray]:
        """Influences on the area under the ROC curve: the share of the other set that a point is separated from."""
        positives, negatives = self.true_positives[-1], self.false_positives[-1]
        won = (negatives - self.false_positives + self.negative / 2) / negatives
        lost = (self.true_positives - self.positive / 2) / positives
        area = won @ self.positive / positives
        return won - area, lost - area

    def average_precision(self) -> tuple[np.ndarray, np.ndarray]:
        """Influences on Σ_k p_k S_k/(S_k + r F_k), where S and F are the true- and false-positive rates, and r the
        ratio of the sizes.

        A positive point adds the precision of its rung, and raises S from there on; a negative point raises F.
        """
        positives, negatives = self.true_positives[-1], self.false_positives[-1]
        called = self.true_positives + self.false_positives
        precision = self.true_positives / called
        pull = self.positive / called
        pull /= called
        negative_influence = _from_here_on(pull * self.true_positives)
        pull *= self.false_positives
        exchanged = pull @ self.true_positives / positives
        average = precision @ self.positive / positives
        positive_influence = _from_here_on(pull)
        positive_influence += precision
        positive_influence -= average + exchanged
        negative_influence *= -negatives / positives
        negative_influence += exchanged
        return positive_influence, negative_influence

    def fpr95(self) -> tuple[np.ndarray, np.ndarray]:
        """Influences on the false-positive rate at 95 % true positives.

        Positive points move the threshold; negative points are above or below it. The change of the rate with the
        threshold is its sd over thresholds whose TPR is normally distributed around 95 % with the sd of that share: on
        a smooth curve the slope times that sd, on a coarse curve an average over its steps. Each positive point
        contributes by whether it is above the threshold. For a tie at the threshold, the end of its rung that is closer
        to 95 % is used, since a wide tie may end at 100 %, which seems not to vary.
        """
        positives, negatives = self.true_positives[-1], self.false_positives[-1]
        threshold = int(self._first(np.array([TPR]))[0])
        fpr = self.false_positives[threshold] / negatives
        sd = math.sqrt(TPR * (1 - TPR) / positives)
        moved = float(np.std(self.false_positives[self._first(np.minimum(TPR + sd * NORMAL, 1))])) / negatives
        through, above = self.true_positives[threshold], self.true_positives[threshold] - self.positive[threshold]
        closer = through < positives and (above == 0 or through + above <= 2 * TPR * positives)
        rungs, share = (threshold + 1, through / positives) if closer else (threshold, above / positives)
        slope = moved / math.sqrt(share * (1 - share) / positives) if 0 < share < 1 else 0.0
        return self._split(rungs, slope * (share - 1), slope * share), self._split(threshold + 1, 1 - fpr, -fpr)

    def _first(self, tpr: Float[np.ndarray, "level"]) -> Integer[np.ndarray, "level"]:
        """The rung of the threshold at a TPR of at least `tpr`, compared as a rate, as `fpr_at_tpr` does."""
        positives = self.true_positives[-1]
        needed = np.floor(tpr * positives)
        needed += needed / positives < tpr
        return np.searchsorted(self.true_positives, needed, "left")

    def _split(self, rungs: int, before: float, after: float) -> np.ndarray:
        return np.repeat([before, after], [rungs, self.true_positives.size - rungs])
