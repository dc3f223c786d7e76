"""The best of many scores that separate OOD sets, and what the choice is worth on points that it was not made on."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Mapping, Sequence

import numpy as np

from bnuq.estimates import Estimate
from bnuq.frozen import frozen
from bnuq.methods import method_named
from bnuq.metrics import auroc
from bnuq.metrics.replicates import independent_units
from bnuq.records.evaluation import EvaluatedSet, Result
from bnuq.shapes import Bool, Float

FALSE_ALARMS = 0.05  # share of test points that are taken for foreign
_LEAST_POINTS = 20  # of each set, or groups: ten a half
_LEAST_JUDGED = 10  # of fewer a perfect separation is likely to be chance where the AUROC of all is 0.9
Key = tuple[str, str]  # a method and a score
Scores = Mapping[str, Float[np.ndarray, " point"]]  # of the points of each set, "test" first


@frozen
class CrossFit:
    """What scores are worth on the half of the points that they were not chosen on, means of both halves: the AUROC of
    each set, and the share of its points above the threshold, which `false_alarms` of the test points exceed."""

    aurocs: Mapping[str, float]
    false_alarms: float
    caught: Mapping[str, float]


@frozen
class BestScore:
    """The score with the largest mean AUROC, on all points, of all that were `tried`. `crossfitted` is None of a single
    score, which is not chosen, and of too few points."""

    method: str
    score: str
    tried: int
    crossfitted: CrossFit | None

    def auroc(self, result: Result, name: str) -> Estimate:
        """The AUROC of a set, cross-fitted where it can be, with the interval of all points around it."""
        estimate = result.methods[self.method].ood[name][self.score]["auroc"]
        if self.crossfitted is None:
            return estimate
        shift = self.crossfitted.aurocs[name] - estimate.value
        ends = (None if end is None else min(max(end + shift, 0.0), 1.0) for end in (estimate.low, estimate.high))
        low, high = ends
        return Estimate(estimate.value + shift, estimate.se, estimate.mc_se, low=low, high=high)


def aurocs_of(result: Result, names: Sequence[str]) -> dict[Key, dict[str, Estimate]]:
    """By method and score, those that all sets have, and that a point has by itself: the AUROC of each set."""
    aurocs: dict[Key, dict[str, Estimate]] = {}
    for method, each in result.methods.items():
        if method_named(method).normalizes_jointly:
            continue
        for name in names:
            for score, estimates in each.ood.get(name, {}).items():
                if score in each.sets["test"].points and math.isfinite(estimates["auroc"].value):
                    aurocs.setdefault((method, score), {})[name] = estimates["auroc"]
    return {key: by_set for key, by_set in aurocs.items() if len(by_set) == len(names)}


def can_be_judged(result: Result, name: str) -> bool:
    """Whether the test set and this set have enough points, or groups, for a conclusion on their separation."""
    return _fewest(result, [name]) >= _LEAST_JUDGED


def _fewest(result: Result, names: Sequence[str]) -> int:
    chosen = [result.sets[name] for name in ("test", *names)]
    return min(independent_units(each.n, each.group) for each in chosen)


def best_score(result: Result, names: Sequence[str], keys: Collection[Key]) -> BestScore:
    """The best of these scores, by the mean over the sets of these names."""
    aurocs = aurocs_of(result, names)
    best = max(keys, key=lambda key: np.mean([each.value for each in aurocs[key].values()]))
    are_many = len(keys) > 1 and _fewest(result, names) >= _LEAST_POINTS
    crossfitted = _crossfitted(result, names, keys) if are_many else None
    return BestScore(*best, len(keys), crossfitted)


def caught(scores: Scores, threshold: float) -> tuple[float, dict[str, float]]:
    """The share of test points above a threshold, and that of the points of each other set."""
    shares = {name: float(np.mean(each > threshold)) for name, each in scores.items()}
    return shares.pop("test"), shares


def threshold_of(test: Float[np.ndarray, " point"]) -> float:
    """The threshold that few of these test points exceed."""
    return float(np.sort(test)[math.ceil((1 - FALSE_ALARMS) * len(test)) - 1])


def scores_of(result: Result, key: Key, names: Sequence[str]) -> dict[str, Float[np.ndarray, " point"]]:
    """The scores of the test set, and of the sets of these names."""
    method, score = key
    pairs = {name: result.methods[method].ranked(score, name) for name in names}
    test = next(inside for inside, _ in pairs.values())  # the same for all OOD sets
    return {"test": test, **{name: outside for name, (_, outside) in pairs.items()}}


def _crossfitted(result: Result, names: Sequence[str], keys: Collection[Key]) -> CrossFit:
    aurocs = {key: [_aurocs_of_halves(result, key, name) for name in names] for key in keys}  # by set and half
    rows = {name: _rows_of_first_half(result, name) for name in ("test", *names)}
    judged: list[tuple[list[float], float, dict[str, float]]] = []
    for half in (0, 1):  # which is judged; the best of the other one
        key = max(keys, key=lambda key: np.mean([both[1 - half] for both in aurocs[key]]))
        scores = scores_of(result, key, names)
        threshold = threshold_of(scores["test"][rows["test"] == (half == 1)])
        here = {name: each[rows[name] == (half == 0)] for name, each in scores.items()}
        judged.append(([both[half] for both in aurocs[key]], *caught(here, threshold)))
    (first, alarms, shares), (second, other_alarms, other_shares) = judged
    return CrossFit(
        {name: (first[i] + second[i]) / 2 for i, name in enumerate(names)},
        (alarms + other_alarms) / 2,
        {name: (shares[name] + other_shares[name]) / 2 for name in names},
    )


def _aurocs_of_halves(result: Result, key: Key, name: str) -> tuple[float, float]:
    """The AUROC of a set within each half, computed once while the record lives: sentences of one set and of all choose
    among the same scores."""
    known: dict[tuple[Key, str], tuple[float, float]] = result.computed.setdefault("aurocs of halves", {})
    if (key, name) not in known:
        scores = scores_of(result, key, [name])
        rows = {each: _rows_of_first_half(result, each) for each in scores}
        first, second = (
            auroc(*(values[rows[each] == is_first] for each, values in scores.items())) for is_first in (True, False)
        )
        known[key, name] = first, second
    return known[key, name]


def _rows_of_first_half(result: Result, name: str) -> Bool[np.ndarray, " point"]:
    halves: dict[str, np.ndarray] = result.computed.setdefault("halves", {})
    if name not in halves:
        halves[name] = first_half(result.sets[name])
    return halves[name]


def first_half(evaluated: EvaluatedSet) -> Bool[np.ndarray, " point"]:
    """A random half of the points of a set, the same in every report: it depends on their digest alone; groups stay
    together."""
    numbers = np.arange(evaluated.n) if evaluated.group is None else np.unique(evaluated.group, return_inverse=True)[1]
    units = int(numbers.max()) + 1
    seed = hashlib.sha256(evaluated.sha256.encode()).digest()[:8]
    words = np.random.Philox(key=int.from_bytes(seed, "little")).random_raw(units)
    return np.isin(numbers, np.argsort(words, kind="stable")[: units // 2])
