"""Promises about future points from finitely many validation points that are independent of them and of each other.

A promise has a `risk`, the largest error that it allows, and a `confidence`: the probability over the validation points
that it holds. Candidates and levels must not depend on the validation points.
"""

import math
from bisect import bisect_left

import numpy as np

from bnuq.metrics.arrays import Array, as_float64
from bnuq.metrics.replicates import group_index
from bnuq.shapes import Bool, Float, Integer, Shaped

_STARTS = 4  # at most so many candidates are tested for their own sake
_ROOM = 1.5  # at the first of them: expected points, of the fewest that can be enough


def points_needed(risk: float, confidence: float) -> int:
    """The fewest points, all without an error, that keep a promise: the smallest n with (1 − risk)ⁿ ≤ 1 − confidence.

    Source: the binomial bound at no error; Clopper & Pearson 1934, The Use of Confidence or Fiducial Limits.
    """
    return math.ceil(math.log1p(-confidence) / math.log1p(-risk) - 1e-9)


def binomial_p_value(
    errors: Integer[np.ndarray, "*any"], points: Integer[np.ndarray, "*any"], risk: float
) -> Float[np.ndarray, "*any"]:
    """P(Bin(points, risk) ≤ errors), the p-value of "the error rate is above `risk`"; 1 where there are no points.

    Source: Clopper & Pearson 1934; Angelopoulos et al. 2021, Learn then Test, §2.3 (exact for errors of 0 or 1).
    """
    import scipy.special  # late: `bnuq.metrics` is light

    return np.asarray(scipy.special.bdtr(errors, points, risk), dtype=np.float64)


def hoeffding_bentkus_p_value(
    mean: Float[np.ndarray, "*any"] | float, units: int, risk: float
) -> Float[np.ndarray, "*any"]:
    """The p-value of "the expected loss is above `risk`" from the mean of independent losses in [0, 1].

    Source: Bates et al. 2021, Distribution-Free, Risk-Controlling Prediction Sets, thm. 4; Learn then Test, prop. 2.
    """
    import scipy.special

    loss = np.clip(np.asarray(mean, dtype=np.float64), 0.0, 1.0)
    low = np.minimum(loss, risk)
    divergence = scipy.special.xlogy(low, low / risk) + scipy.special.xlogy(1 - low, (1 - low) / (1 - risk))
    tail = math.e * scipy.special.bdtr(np.ceil(units * loss - 1e-9), units, risk)
    return np.asarray(np.minimum(1.0, np.minimum(np.exp(-units * divergence), tail)))


def rejected_in_order(
    p_values: Float[np.ndarray, " hypothesis"], levels: Float[np.ndarray, " hypothesis"]
) -> Bool[np.ndarray, " hypothesis"]:
    """Which hypotheses are rejected, in their order, at levels that sum to the error rate of all together.

    Each has its own level and that with which the one before it was rejected. With one level above 0 this is
    fixed-sequence testing; with several, it rejects all that fixed-sequence tests from several starts reject, and more.

    Source: Wiens & Dmitrienko 2005, The Fallback Procedure for Evaluating a Single Family of Hypotheses.
    """
    rejected, level = np.zeros(len(p_values), dtype=bool), 0.0
    for number, (p, own) in enumerate(zip(p_values, levels, strict=True)):
        level += own
        rejected[number] = level > 0 and p <= level
        level = level if rejected[number] else 0.0
    return rejected


def start_levels(candidates: int, points: int, risk: float, confidence: float) -> Float[np.ndarray, " candidate"]:
    """The levels of thresholds that accept ever more of the points, up to all: equal shares of 1 − confidence at a few
    starts, the first where enough points are expected to be accepted, the last where all are.

    Source: the starts of Learn then Test, §3 (fixed-sequence testing with several starts).
    """
    level, levels = 1 - confidence, np.zeros(candidates)
    first = _ROOM * points_needed(risk, 1 - level / _STARTS) / max(points, 1)
    starts = min(_STARTS, 1 + math.ceil(math.log2(1 / first))) if first < 1 else 1
    if starts == 1:  # too few points to share the level
        first = min(1.0, _ROOM * points_needed(risk, confidence) / max(points, 1))
    shares = np.geomspace(first, 1.0, starts)
    np.add.at(levels, np.ceil(shares * candidates - 1e-9).astype(int) - 1, level / starts)
    return levels


def certified_threshold(
    scores: Float[Array, "point"],
    losses: Float[Array, "point"],
    candidates: Float[np.ndarray, " candidate"],
    *,
    risk: float,
    confidence: float,
    group: Shaped[Array, "point"] | None = None,
) -> float:
    """The largest of ascending candidates λ that is certified: with this confidence, the error rate of future points
    with a score of at most λ is at most `risk`; −∞ if none is. Losses are 0 or 1.

    Given how many points are accepted, their errors are binomial. With `group`, whose points depend on each other,
    groups are the units, and each counts alike however many points it has: the promise is of a point of a future group.

    Source: Angelopoulos et al. 2021, Learn then Test; for groups the bound of Bates et al. 2021 on the loss
    accepted · (error − risk) + risk, whose mean is above `risk` where the error rate of accepted points is.
    """
    values, errors = as_float64(scores), as_float64(losses)
    if group is None:
        order = np.argsort(values, kind="stable")
        accepted = np.searchsorted(values[order], candidates, "right")
        wrong = np.concatenate([[0], np.cumsum(errors[order])]).round().astype(np.int64)
        p_values, units = binomial_p_value(wrong[accepted], accepted, risk), len(values)
    else:
        number = group_index(group)
        size = np.bincount(number)
        units = len(size)
        means = [
            float(np.mean(np.bincount(number, np.where(values <= threshold, errors - risk, 0.0)) / size))
            for threshold in candidates
        ]
        p_values = hoeffding_bentkus_p_value(np.array(means) + risk, units, risk)
    rejected = rejected_in_order(p_values, start_levels(len(candidates), units, risk, confidence))
    return float(candidates[rejected.nonzero()[0][-1]]) if rejected.any() else -math.inf


def exact_interval(errors: int, points: int, level: float = 0.95) -> tuple[float, float]:
    """The exact two-sided interval of a rate, from 0 to 1; the whole range for no points.

    Source: Clopper & Pearson 1934.
    """
    tail = (1 - level) / 2
    if errors in (0, points):  # in closed form: most commands need no other, and scipy takes a fifth of a second
        reach = math.log(tail) / points if points and tail else -math.inf
        return (0.0, -math.expm1(reach)) if errors == 0 else (math.exp(reach), 1.0)
    import scipy.special

    low = float(scipy.special.betaincinv(errors, points - errors + 1, tail))
    high = float(scipy.special.betaincinv(errors + 1, points - errors, 1 - tail))
    return low, high


# ── intervals of a regression ────────────────────────────────────────────────────────────────────────────────────────


def conformal_rank(points: int, risk: float, confidence: float) -> int | None:
    """The smallest rank k whose order statistic of n scores covers a future one with a probability of at least
    1 − risk, with this confidence over the n points; None if not even the largest does.

    Source: Vovk 2012, Conditional Validity of Inductive Conformal Predictors, prop. 2a: coverage is Beta(k, n + 1 − k),
    and exceeds 1 − risk as often as Bin(n, 1 − risk) is below k.
    """
    import scipy.special

    below = scipy.special.bdtr(np.arange(points), points, 1 - risk)  # P(Bin ≤ k − 1) of k = 1, …, n
    rank = int(np.searchsorted(below, confidence - 1e-12)) + 1
    return rank if rank <= points else None


def coverage_law(rank: int, points: int, level: float = 0.95) -> tuple[float, float, float]:
    """Mean, and the ends of the central interval, of the coverage of an interval by the `rank`-th of n scores: the law
    Beta(k, n + 1 − k), exact for scores without ties, which have more. The mean is the marginal coverage.

    Source: Vovk 2012; Angelopoulos & Bates 2021, A Gentle Introduction to Conformal Prediction, §3.2.
    """
    import scipy.special

    ends = scipy.special.betaincinv(rank, points + 1 - rank, [(1 - level) / 2, (1 + level) / 2])
    return rank / (points + 1), float(ends[0]), float(ends[1])


def certified_width(
    scores: Float[Array, "point"], *, risk: float, confidence: float, group: Shaped[Array, "point"] | None = None
) -> float:
    """The smallest of the scores that at most a share `risk` of future scores exceeds, with this confidence; +∞ if none
    is certified. With `group`, groups are the units, each counts alike, and the bound is not exact.

    Source: Vovk 2012; for groups Bates et al. 2021, whose bound needs no correction because misses fall with the width.
    """
    values = np.sort(as_float64(scores))
    if group is None:
        rank = conformal_rank(len(values), risk, confidence)
        return math.inf if rank is None else float(values[rank - 1])
    number, unsorted = group_index(group), as_float64(scores)
    size = np.bincount(number)

    def is_certified(width: float) -> bool:
        missed = float(np.mean(np.bincount(number, unsorted > width) / size))
        return float(hoeffding_bentkus_p_value(missed, len(size), risk)) <= 1 - confidence

    first = bisect_left(values, True, key=is_certified)
    return math.inf if first == len(values) else float(values[first])


# ── losses of images, in expectation ─────────────────────────────────────────────────────────────────────────────────


def risk_controlling_index(losses: Float[np.ndarray, "image candidate"], risk: float) -> int:
    """The last of the candidates, by which losses from 0 to 1 rise, at which the loss of a future image is at most
    `risk` in expectation, over the n images and that one; −1 if there is none.

    Source: Angelopoulos et al. 2022, Conformal Risk Control, thm. 1: (n·mean loss + 1)/(n + 1) ≤ risk.
    """
    bound = (losses.sum(axis=0) + 1) / (len(losses) + 1)
    return int(np.searchsorted(bound, risk + 1e-12, "right")) - 1
