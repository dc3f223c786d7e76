"""The test of a change on few points: by the changes that results swapped at random points would show.

Where two results are equally good, the values that one has of a point could as well be the other's. So p is the share
of all swaps with a change at least as large; 1 where nothing changed. Points of a group are swapped together. Of at
most 12 that differ all swaps are made, and otherwise 2,000 with a fixed seed, beside the results as they are. Of an
accuracy the changes are binomial, and it is tested so on any number of points: McNemar's exact test.

Source: Fisher 1935, The Design of Experiments, §21; McNemar 1947; Phipson & Smyth 2010, Permutation P-values Should
Never Be Zero.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

import numpy as np

from bnuq import metrics
from bnuq.frozen import frozen
from bnuq.records.certificate import ACCEPTED, WIDTH
from bnuq.records.contributions import PointContributions, sets_of
from bnuq.store.table import Row

_FEW, _SWAPS, _ALL_OF, _ROUNDING = 300, 2000, 12, 1e-9


@frozen
class Swaps:
    """The change that is seen, the changes that swaps give, and the probability of each."""

    seen: float
    changes: np.ndarray
    shares: np.ndarray

    def p_value(self, sign: float, explained: float, noise: float, df: float) -> float:
        """The probability of a change, times `sign`, of at least the one that is seen, less what is `explained`; with
        an independent error `noise` of Student's distribution with `df` degrees of freedom.

        Where no random swap reaches it, p is at most that of a sum of random signs of this spread.

        Source: Bentkus & Dzindzalieta 2015, A Tight Gaussian Bound for Weighted Sums of Rademacher Random Variables; it
        holds for means, and for other estimates as far as these are means to first order.
        """
        beyond = sign * (self.changes - self.seen) + explained
        if noise == 0:
            p = float(self.shares @ (beyond >= -_ROUNDING * np.abs(self.changes).max()))
        else:
            import scipy.special  # late: it takes longer to import than two small results to be compared

            p = float(self.shares @ scipy.special.stdtr(df, beyond / noise))
        if len(self.changes) == _SWAPS + 1 and p < 1.5 / _SWAPS:
            spread = math.sqrt(noise**2 + float(self.shares @ self.changes**2))
            p = min(p, 3.18 * metrics.student_cdf((explained - sign * self.seen) / spread, df if noise else math.inf))
        return min(1.0, p)


def swaps(row: Row, points: Sequence[PointContributions], shared: Collection[str]) -> Swaps | None:
    """The changes of an estimate of two results; None of a history, of sets that are not `shared`, of what also depends
    on validation points, where a swap gives no number, of fewer than 12 groups, whose swaps are too few, and of more
    than 300 points of all its sets: of equal models that are right on 95 % of their points, p of ECE by its error is
    below .05 in 19 % on 12 points, 11 % on 50, 7 % on 200, and 5 % on 300 (1,000 pairs each)."""
    now, before = points[0].source(row), points[-1].source(row)
    is_paired = len(points) == 2 and {*sets_of(row)} <= {*shared}
    if now is None or before is None or not is_paired or row["metric"] in (ACCEPTED, WIDTH):
        return None
    units, own, first = {}, points[0].rows(row), 0
    for name in sets_of(row):
        evaluated = points[0].result.sets[name]
        unit = np.arange(evaluated.n) if evaluated.group is None or row["group"] else evaluated.group
        units[name] = first + (unit if own is None else unit[own])
        first = int(units[name].max()) + 1
        if len(np.unique(units[name])) < min(_ALL_OF, len(units[name])):
            return None
    pairs = {key: (units[key[0]], values, before.points[key]) for key, values in now.points.items()}
    many = len(moving := np.unique(np.concatenate([unit[new != old] for unit, new, old in pairs.values()])))
    if row["metric"] == "accuracy" and len(pairs) == 1:
        ((_, new, old),) = pairs.values()
        steps = np.abs(new - old)[new != old]
        if len(steps) == many and len({*steps.tolist()}) <= 1:
            up, size = np.arange(1, many + 1), steps.sum() / len(new)
            shares = np.exp(np.cumsum([-many * math.log(2), *np.log((many - up + 1) / up)]))
            return Swaps(float(np.mean(new - old)), np.linspace(-size, size, many + 1), shares)
    if sum(map(len, units.values())) > _FEW:
        return None
    chosen = _chosen(many)
    swapped = np.zeros((len(chosen), first), dtype=bool)
    swapped[:, moving] = chosen
    with np.errstate(all="ignore"):
        given, taken = (
            now.of_rows({key: np.where(at[:, unit], new, old) for key, (unit, new, old) in pairs.items()})
            for at in (~swapped, swapped)
        )
        changes = given - taken
    return _equally_likely(changes) if np.isfinite(changes).all() else None


def swaps_of_mean(differences: np.ndarray) -> Swaps | None:
    """The same of a mean over independent points that two results share, by the difference of each."""
    if len(differences) > _FEW:
        return None
    moved = differences[differences != 0]
    return _equally_likely((1 - 2 * _chosen(len(moved))) @ moved / len(differences))


def _chosen(many: int) -> np.ndarray:
    """Which of so many points are swapped, in each of the swaps; none in the first, the results as they are."""
    if many <= _ALL_OF:
        return np.arange(2**many)[:, None] >> np.arange(many) & 1
    chosen = np.random.default_rng(0).integers(2, size=(_SWAPS + 1, many))
    chosen[0] = 0
    return chosen


def _equally_likely(changes: np.ndarray) -> Swaps:
    return Swaps(float(changes[0]), changes, np.full(len(changes), 1 / len(changes)))
