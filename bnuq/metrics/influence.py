"""What each point contributes to an estimate, to first order: how far a difference of two estimates can be trusted.

The influence of a point is the derivative of the estimate by that point's share of all; it is 0 in the mean. For other
points of the same kind the estimate is θ + mean(influence) to first order. So `standard_error(influence, group=…)` is
its error over points, and `standard_error(influence_a − influence_b, group=…)` that of the difference of two estimates
of the same points, at the cost of a sort, where a paired bootstrap takes a thousand. Of a mean it is x − mean, and
needs no function here.

All is worked out in float64 by numpy, wherever the values come from, and needs at least one point. Where an estimate is
undefined, so are its influences: NaN.

Source: Hampel 1974, The Influence Curve and Its Role in Robust Estimation.
"""

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from array_api_compat import array_namespace
from jaxtyping import Float, Integer, Shaped

from bnuq.metrics.arrays import Array, as_float64
from bnuq.metrics.bounds import normalized
from bnuq.metrics.detection import DetectionScores, detection_of_counts
from bnuq.metrics.estimates import group_index

_TPR = 0.95  # of `fpr95` and `fpr95_id_positive`
_NORMAL = np.array([NormalDist().inv_cdf((k + 0.5) / 63) for k in range(63)])  # equally probable, …
_NORMAL /= np.std(_NORMAL)  # … of sd 1


def rmse_influence(squared_error: Float[Array, "point"]) -> Float[np.ndarray, "point"]:
    """(e² − mse)/(2 rmse) of each point, in the unit of e; no direction.

    0 where all errors are, NaN where the rmse is not finite.

    Source: the slope of the root, as `rmse` has it; Hampel 1974.
    """
    squared = as_float64(squared_error)
    mse = float(np.mean(squared))
    if mse == 0 or not math.isfinite(mse):
        return np.full(squared.shape, 0.0 if mse == 0 else math.nan)
    return (squared - mse) / (2 * math.sqrt(mse))


def normalized_influence(
    score: Float[Array, "point"], constant: Float[Array, "point"], optimum: Float[Array, "point"]
) -> Float[np.ndarray, "point"]:
    """Of `normalized` of three means over the same points, in percent; no direction.

    100 (S − C − (O − C) θ/100)/mean(O − C), of a ratio of means θ. NaN where that is NaN or infinite.

    Source: Teye, Azizpour & Smith 2018, §4.1, a ratio of means over the test set; Cochran 1977, Sampling Techniques,
    §2.11, the error of a ratio.
    """
    own, low, high = (as_float64(values) for values in (score, constant, optimum))
    share = normalized(*(float(np.mean(values)) for values in (own, low, high)))
    if not math.isfinite(share):
        return np.full(own.shape, math.nan)
    room = high - low
    return (100 * (own - low) - share * room) / float(np.mean(room))


def ece_influence(
    confidence: Float[Array, "point"],
    correct: Float[Array, "point"],
    *,
    bins: int = 15,
    group: Shaped[Array, "point"] | None = None,
) -> Float[np.ndarray, "point"]:
    """w_k (correct − confidence) of each point in bin k, less the mean of that over all; no direction.

    w_k = erf(gap_k/se_k) is the slope of E|gap_k + noise| by gap_k, the bin's sum of correct − confidence, where the
    noise is normal with the variance se²/2: half of that of the sum, by `group` where points of one group may be
    correlated. The ECE's own slope is the sign of the gap, which w_k is where the gap is wide: there this is the ECE's
    derivative. But |gap| has a kink at 0, and varies less than the gap where that is within its noise, as it is for
    calibrated networks: with the sign errors are up to twice too large, with all of se² down to 0.84 of what they
    should be where two networks are nearly the same. With half of it they are 0.95 to 1.23, in a difference too, and a
    one-sided test at 5 % errs in 2 to 7 % (93 settings of ten classes, n = 300 to 5000). A bin of one point or group
    tells no noise and keeps the sign, which makes its error too large, never too small.

    Bins are those of `calibration_bins`. An ECE of few points is biased upwards; of that the difference of two ECEs
    keeps little.

    Source: the derivative of Guo et al. 2017, eq. 3, Hampel 1974; E|X| of a normal X, whose slope by the mean is erf,
    Leone, Nelson & Nottingham 1961, The Folded Normal Distribution.
    """
    xp, stated, hits = array_namespace(confidence), as_float64(confidence), as_float64(correct)
    edges = as_float64(xp.asarray([k / bins for k in range(bins + 1)], dtype=confidence.dtype))  # as `calibration_bins`
    cell = np.searchsorted(edges[1:-1], stated, "left")
    over = hits - stated
    gap = np.bincount(cell, weights=over, minlength=bins)
    mean = gap / np.maximum(np.bincount(cell, minlength=bins), 1)
    noise = _sd_of_sums(over - mean[cell], cell, bins, group)
    slope = np.sign(gap)
    known = noise > 0
    slope[known] = [math.erf(steps) for steps in gap[known] / noise[known]]
    own = slope[cell] * over
    return own - np.mean(own)


def _sd_of_sums(
    deviation: Float[np.ndarray, "point"],
    cell: Integer[np.ndarray, "point"],
    cells: int,
    group: Shaped[Array, "point"] | None,
) -> Float[np.ndarray, "cell"]:
    """The sd of each cell's sum, from how its points, or groups, are spread; 0 where there are fewer than two.

    √(G/(G−1) Σ_g (Σ_{i∈g} dᵢ)²), as `standard_error` has it.
    """
    totals, of = deviation, cell
    if group is not None:
        part = group_index(group) * cells + cell
        held = np.flatnonzero(np.bincount(part))
        totals, of = np.bincount(part, weights=deviation)[held], held % cells
    count = np.bincount(of, minlength=cells)
    scale = np.where(count > 1, count / np.maximum(count - 1, 1), 0)
    return np.sqrt(scale * np.bincount(of, weights=totals**2, minlength=cells))


def aurc_influence(uncertainty: Float[Array, "point"], loss: Float[Array, "point"]) -> Float[np.ndarray, "point"]:
    """Of `aurc`, in the loss's unit; no direction.

    A point weighs in by its loss wherever it is kept, and by sending later points on to less coverage. Written with the
    same harmonic numbers as the estimate, so that the mean is 0; ties count with the mean loss of theirs.

    Source: the derivative of ∫₀¹ risk(c) dc, Geifman, Uziel & El-Yaniv 2019; Hampel 1974.
    """
    losses = as_float64(loss)
    rung, count = _rungs(as_float64(uncertainty))
    mean = np.bincount(rung, weights=losses) / count
    through = np.cumsum(count)
    harmonic = np.concatenate([[0.0], np.cumsum(1 / np.arange(1, losses.size + 1))])
    across = harmonic[through] - harmonic[through - count]  # Σ 1/k over the places k of each tie
    after = harmonic[-1] - harmonic[through]
    own = after + across + 1 - through * across / count  # Σ 1/k from a point's place on, in the mean over its tie
    of_rung = mean * (after - own) - (_from_here_on(mean * across) - mean * across)
    area = float(np.sum(mean * count * own)) / losses.size
    return own[rung] * losses + of_rung[rung] + float(np.mean(losses)) - area


def _rungs(values: Float[np.ndarray, "point"]) -> tuple[Integer[np.ndarray, "point"], Integer[np.ndarray, "rung"]]:
    """The rung of each point on the ladder of distinct values, the smallest first, and how many points are on each."""
    _, rung, count = np.unique(values, return_inverse=True, return_counts=True)
    return rung, count


def _from_here_on(values: Float[np.ndarray, "rung"]) -> Float[np.ndarray, "rung"]:
    """At each rung the sum of its value and of all behind it."""
    return np.cumsum(values[::-1])[::-1]


def spearman_influence(a: Float[Array, "point"], b: Float[Array, "point"]) -> Float[np.ndarray, "point"]:
    """Of `spearman`, the rank correlation, without unit; no direction.

    A point counts by its own two ranks and by moving the ranks of all others. Ties have the mean of their ranks. NaN
    where `spearman` is.

    Source: Croux & Dehon 2010, Influence Functions of the Spearman and Kendall Correlation Measures; with ties by the
    mid-distribution function, which they do not need.
    """
    first, second = as_float64(a), as_float64(b)
    undefined = np.full(first.shape, math.nan)
    if np.isnan(first).any() or np.isnan(second).any():
        return undefined
    rungs, others = _rungs(first), _rungs(second)
    x, y = _centred_ranks(*rungs), _centred_ranks(*others)
    both, of_x, of_y = (float(np.mean(product)) for product in (x * y, x * x, y * y))
    if of_x == 0 or of_y == 0:
        return undefined
    together = x * y - 3 * both + _moved(*rungs, y) + _moved(*others, x)
    alone = (x * x - 3 * of_x + 2 * _moved(*rungs, x)) / of_x + (y * y - 3 * of_y + 2 * _moved(*others, y)) / of_y
    size = math.sqrt(of_x) * math.sqrt(of_y)
    return together / size - both / size / 2 * alone


def _centred_ranks(
    rung: Integer[np.ndarray, "point"], count: Integer[np.ndarray, "rung"]
) -> Float[np.ndarray, "point"]:
    """The share of points below each, ties counting half, less ½; 0 in the mean."""
    twice = 2 * np.cumsum(count) - count
    return ((twice - rung.size) / (2 * rung.size))[rung]


def _moved(
    rung: Integer[np.ndarray, "point"], count: Integer[np.ndarray, "rung"], other: Float[np.ndarray, "point"]
) -> Float[np.ndarray, "point"]:
    """What each point adds to mean(rank × other) by raising the ranks of those above it, and by half those of ties."""
    held = np.bincount(rung, weights=other, minlength=count.size)
    return ((_from_here_on(held) - held / 2) / rung.size)[rung]


def detection_influence(
    test: Float[Array, "test"], ood: Float[Array, "ood"]
) -> DetectionScores[tuple[np.ndarray, np.ndarray]]:
    """Of all that `detection` gives, from one sort: each a pair, over test points (test,) and over OOD points (ood,).

    Both sets are sampled by themselves: an error is √(se(over test)² + se(over OOD)²), and that of a difference takes
    the differences of both parts. AUROC: DeLong's structural components, so that the error is `delong_variance`'s, 0 at
    an AUROC of 0 or 1. AUPR: both sizes are given, as in the estimate. An FPR at 95 % TPR is a quantile's, its error
    that of the bootstrap: it holds the slope of the ROC curve, which few points tell badly. It is 5 % too large in the
    mean for 1000 points in the set that is found, 10 to 30 % for 200, and itself uncertain to 20 and 30 %; for scores
    of few distinct values it can be twice or half what it should. An empty set or a NaN score is a ValueError.

    Source: DeLong, DeLong & Clarke-Pearson 1988; the derivative of the average precision of `aupr`, Hampel 1974; Hsieh
    & Turnbull 1996, Nonparametric and Semiparametric Estimation of the ROC Curve; Woodruff 1952, Confidence Intervals
    for Medians and Other Position Measures.
    """
    return Ladder.of(test, ood).influence()


@dataclass(frozen=True)
class Ladder:
    """The scores of two sets, sorted once: the rung of each point on the ladder of distinct scores, the smallest first,
    and how many test and OOD points are on each rung."""

    of_test: Integer[np.ndarray, "test"]
    of_ood: Integer[np.ndarray, "ood"]
    test: Float[np.ndarray, "rung"]
    ood: Float[np.ndarray, "rung"]

    @staticmethod
    def of(test: Float[Array, "test"], ood: Float[Array, "ood"]) -> "Ladder":
        """An empty set or a NaN score is a ValueError."""
        scores = np.concatenate([as_float64(test), as_float64(ood)])
        tests = len(test)
        if tests in (0, scores.size) or np.isnan(scores).any():
            raise ValueError(
                f"{tests} test and {scores.size - tests} OOD scores hold {int(np.isnan(scores).sum())} NaN; expected "
                "at least one score in each set, and numbers only."
            )
        rung, count = _rungs(scores)
        low = np.bincount(rung[:tests], minlength=count.size).astype(np.float64)  # floats are exact and divide faster
        return Ladder(rung[:tests], rung[tests:], low, count - low)

    def scores(self) -> DetectionScores[float]:
        """What `detection` gives."""
        return detection_of_counts(self.test[::-1], self.ood[::-1])

    def influence(self) -> DetectionScores[tuple[np.ndarray, np.ndarray]]:
        """What `detection_influence` gives."""
        rising = _Curve.of(self.test, self.ood)  # test points are the positives: the smallest score comes first
        falling = rising.reversed()

        def of_rising(influence: tuple[np.ndarray, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
            positive, negative = influence
            return positive[self.of_test], negative[self.of_ood]

        def of_falling(influence: tuple[np.ndarray, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
            positive, negative = influence
            return negative[::-1][self.of_test], positive[::-1][self.of_ood]

        return DetectionScores(
            auroc=of_falling(falling.area()),
            aupr_out=of_falling(falling.average_precision()),
            aupr_in=of_rising(rising.average_precision()),
            fpr95=of_falling(falling.fpr95()),
            fpr95_id_positive=of_rising(rising.fpr95()),
        )


@dataclass(frozen=True)
class _Curve:
    """Points on each rung of the ladder of scores, and how many of them are called positive from there.

    What it gives are influences by rung: of a positive point there, and of a negative one.
    """

    positive: Float[np.ndarray, "rung"]
    negative: Float[np.ndarray, "rung"]
    found: Float[np.ndarray, "rung"]
    passed: Float[np.ndarray, "rung"]

    @staticmethod
    def of(positive: Float[np.ndarray, "rung"], negative: Float[np.ndarray, "rung"]) -> "_Curve":
        return _Curve(positive, negative, np.cumsum(positive), np.cumsum(negative))

    def reversed(self) -> "_Curve":
        """The same with positives and negatives changing places, and the other end first."""
        return _Curve.of(self.negative[::-1], self.positive[::-1])

    def area(self) -> tuple[np.ndarray, np.ndarray]:
        """Of the area under the ROC curve: the share of the other set that a point is told apart from."""
        positives, negatives = self.found[-1], self.passed[-1]
        won = (negatives - self.passed + self.negative / 2) / negatives
        lost = (self.found - self.positive / 2) / positives
        area = won @ self.positive / positives
        return won - area, lost - area

    def average_precision(self) -> tuple[np.ndarray, np.ndarray]:
        """Of Σ_k p_k S_k/(S_k + r F_k), where S and F are the shares found and passed, and r the ratio of the sizes.

        A positive point adds the precision of its own rung, and raises S from there on; a negative one raises F.
        """
        positives, negatives = self.found[-1], self.passed[-1]
        called = self.found + self.passed
        precision = self.found / called
        pull = self.positive / called
        pull /= called
        by_negative = _from_here_on(pull * self.found)
        pull *= self.passed
        exchanged = pull @ self.found / positives
        average = precision @ self.positive / positives
        by_positive = _from_here_on(pull)
        by_positive += precision
        by_positive -= average + exchanged
        by_negative *= -negatives / positives
        by_negative += exchanged
        return by_positive, by_negative

    def fpr95(self) -> tuple[np.ndarray, np.ndarray]:
        """Of the false-positive rate at 95 % true positives.

        Positive points move the threshold, negative ones are on one side of it or the other. How far the rate moves
        with the threshold is its sd over thresholds whose TPR is normal about 95 % with that share's sd: on a smooth
        curve the slope times that sd, on a coarse one what its steps make of it. Each positive point gets its part by
        whether it is found: at that end of the threshold's rung which is closer to 95 %, since a wide tie may end at
        100 %, which seems to vary no more.
        """
        positives, negatives = self.found[-1], self.passed[-1]
        threshold = int(self._first(np.array([_TPR]))[0])
        fpr = self.passed[threshold] / negatives
        sd = math.sqrt(_TPR * (1 - _TPR) / positives)
        moved = float(np.std(self.passed[self._first(np.minimum(_TPR + sd * _NORMAL, 1))])) / negatives
        through, above = self.found[threshold], self.found[threshold] - self.positive[threshold]
        closer = through < positives and (above == 0 or through + above <= 2 * _TPR * positives)
        rungs, share = (threshold + 1, through / positives) if closer else (threshold, above / positives)
        slope = moved / math.sqrt(share * (1 - share) / positives) if 0 < share < 1 else 0.0
        return self._split(rungs, slope * (share - 1), slope * share), self._split(threshold + 1, 1 - fpr, -fpr)

    def _first(self, tpr: Float[np.ndarray, "level"]) -> Integer[np.ndarray, "level"]:
        """The rung of the threshold at a TPR of at least `tpr`, compared as a rate, as `fpr_at_tpr` does."""
        positives = self.found[-1]
        needed = np.floor(tpr * positives)
        needed += needed / positives < tpr
        return np.searchsorted(self.found, needed, "left")

    def _split(self, rungs: int, before: float, after: float) -> np.ndarray:
        return np.repeat([before, after], [rungs, self.found.size - rungs])
