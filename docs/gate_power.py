"""What `bnuq check` finds of worsenings of which the truth is known, against what it says that it can see.

All from the scores that real networks gave real points: the points are drawn anew, with replacement, so that what all
points of a test set give is the truth. Pure functions of results; `make_gate.py` makes the results, and writes down
what these give.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from gate_measures import EVERYTHING, recomputed_with

from bnuq.gate import CheckVerdict, EstimateComparison, GateSettings, check
from bnuq.gate.comparing import LEVEL
from bnuq.methods import DETERMINISTIC
from bnuq.metrics import exact_interval
from bnuq.records.addresses import estimates_of
from bnuq.records.evaluation import Result, SetResult

Rows = Mapping[str, np.ndarray]  # the points that are taken, by set
_PILOTS = 10  # checks that tell how many points are needed
_MOST = 60_000  # points of a set that are drawn


@dataclass(frozen=True)
class Found:
    """In how many of `tried` checks something was found; of an estimate also by the strictest level of Holm's method,
    at which the power is stated."""

    found: int
    tried: int
    strictly: int = 0

    def interval(self, strictly: bool = False) -> tuple[float, float]:
        """The exact 95 % interval of the share."""
        return exact_interval(self.strictly if strictly else self.found, self.tried, 0.95)


@dataclass(frozen=True)
class Power:
    """A true worsening of an estimate, the points at which the check says it can see just that, and what it found."""

    address: str
    worsening: float
    points: int
    stated: float
    found: Found


# ── points that are drawn anew ───────────────────────────────────────────────────────────────────────────────────────


def taken(result: Result, rows: Rows) -> Result:
    """The deterministic network on these points, in this order."""
    method = result.methods[DETERMINISTIC]
    sets = {name: _rows_of(method.sets[name], own) for name, own in rows.items()}
    evaluated = {}
    for name, own in rows.items():
        points = result.sets[name]
        labels = None if points.labels is None else points.labels[own]
        evaluated[name] = replace(points, n=len(own), labels=labels, index=None, names=None, group=None)
    return recomputed_with(replace(result, sets=evaluated, gallery=(), certification=None), method, sets)


def _rows_of(one: SetResult, rows: np.ndarray) -> SetResult:
    points = {name: values[rows] for name, values in one.points.items()}
    return replace(one, points=points, predicted=one.predicted[rows], log_likelihood=None)


def of_scores(result: Result, scores: Sequence[str]) -> Result:
    """The result with the separations by these scores alone, which takes less time."""
    method = result.methods[DETERMINISTIC]
    ood = {name: {score: known[score] for score in scores} for name, known in method.ood.items()}
    return replace(result, methods={DETERMINISTIC: replace(method, ood=ood)})


def drawn(result: Result, points: int, random: np.random.Generator) -> Rows:
    """So many points of each set, with replacement."""
    return {name: random.integers(0, one.n, points) for name, one in result.sets.items()}


def mixed(own: Result, other: Result, coins: Rows) -> Result:
    """The scores of `own`, but of `other` for the points whose coin says so."""
    method, foreign = own.methods[DETERMINISTIC], other.methods[DETERMINISTIC]
    sets = {}
    for name, coin in coins.items():
        one, two = method.sets[name], foreign.sets[name]
        points = {score: np.where(coin, two.points[score], one.points[score]) for score in one.points}
        sets[name] = replace(one, points=points, predicted=np.where(coin, two.predicted, one.predicted))
    return recomputed_with(own, method, sets)


def exchanged_in_part(own: Result, other: Result, share: float, random: np.random.Generator) -> Result:
    """The scores of `own`, but of `other` for about this share of the points."""
    return mixed(own, other, {name: random.random(one.n) < share for name, one in own.sets.items()})


def with_worse_class(result: Result, number: int, share: float, random: np.random.Generator) -> Result:
    """One class worse: so many of its points, as a share, get the scores of a point of it that is classified wrong."""
    test, method = result.sets["test"], result.methods[DETERMINISTIC]
    one = method.sets["test"]
    assert test.labels is not None
    of_class = test.labels == number
    right, wrong = (np.flatnonzero(of_class & (one.points["accuracy"] == value)) for value in (1, 0))
    rows = np.arange(test.n)
    chosen = random.choice(right, round(share * of_class.sum()), replace=False)
    rows[chosen] = random.choice(wrong, len(chosen))
    return recomputed_with(result, method, {**method.sets, "test": _rows_of(one, rows)})


# ── what is found ────────────────────────────────────────────────────────────────────────────────────────────────────


def power_of(pair: tuple[Result, Result], address: str, *, tried: int, seed: int) -> Power:
    """What is found of the true worsening of an estimate, by as many points as let the check say it can see that."""
    random = np.random.default_rng(seed)
    current, baseline = (estimates_of(one)[address].estimate.value for one in pair)
    worsening = abs(current - baseline)
    points = 2000
    for _ in range(3):  # what can be seen falls with √n, but not below the tolerance
        seen = float(np.median([_seen(one) for one in _checks(pair, address, points, random, _PILOTS)]))
        points = max(200, min(_MOST, round(points * (seen / worsening) ** 2)))
        if abs(seen / worsening - 1) < 0.03:
            break
    entries = [*_checks(pair, address, points, random, tried)]
    comparisons = [one for one, _ in entries]
    strictly = sum(
        one.outcome == "worse" and one.p_value is not None and one.p_value < LEVEL / gated for one, gated in entries
    )
    stated = float(np.median([_seen(entry) for entry in entries]))
    found = Found(sum(one.outcome == "worse" for one in comparisons), tried, strictly)
    return Power(address, worsening, points, stated, found)


def _checks(
    pair: tuple[Result, Result],
    address: str,
    points: int,
    random: np.random.Generator,
    times: int,
    gate: GateSettings = EVERYTHING,
) -> Iterator[tuple[EstimateComparison, int]]:
    for _ in range(times):
        rows = drawn(pair[0], points, random)
        verdict = check(taken(pair[0], rows), taken(pair[1], rows), gate)
        (found,) = [one for one in verdict.comparisons if one.address == address]
        yield found, verdict.gated


def _seen(entry: tuple[EstimateComparison, int]) -> float:
    return math.nan if entry[0].detectable is None else entry[0].detectable


def seen_by_size(
    pair: tuple[Result, Result], metrics: Sequence[str], sizes: Sequence[int], *, tried: int, seed: int
) -> dict[int, dict[str, list[float]]]:
    """By the points of a set and the metric, the smallest worsening of the network that is found in four of five
    checks: where it is gated alone, by what is gated by default, and where everything is; medians over checks."""
    found: dict[int, dict[str, list[float]]] = {}
    pair = _without_classes(pair[0]), _without_classes(pair[1])  # of which few points have none
    for points in sizes:
        for metric in metrics:
            address, random = f"{DETERMINISTIC}.sets.test.{metric}", np.random.default_rng(seed)
            alone = GateSettings(estimates=(address,))
            seen = [
                [_seen(entry) for entry in _checks(pair, address, points, random, tried, gate)]
                for gate in (alone, GateSettings(), GateSettings(estimates=("*",)))
            ]
            found.setdefault(points, {})[metric] = [float(np.median(each)) for each in seen]
    return found


def _without_classes(result: Result) -> Result:
    method = result.methods[DETERMINISTIC]
    sets = {name: replace(one, by_class={}) for name, one in method.sets.items()}
    return replace(result, methods={DETERMINISTIC: replace(method, sets=sets)})


def of_requests(
    network: Result, as_good: Result, number: int, *, points: int, share: float, tried: int, seed: int
) -> dict[str, Found]:
    """Pull requests that change a network to one as good, half of whose points have the scores of another, and those
    that also make one class worse by `share`: how many of them fail, and of the latter by that class."""
    random = np.random.default_rng(seed)

    def verdicts(change: Callable[[Result], Result]) -> Iterator[CheckVerdict]:
        for _ in range(tried):
            rows = drawn(network, points, random)
            one, other = taken(network, rows), taken(as_good, rows)
            coins = {name: random.random(own.n) < 0.5 for name, own in one.sets.items()}
            yield check(change(mixed(one, other, coins)), mixed(other, one, coins), EVERYTHING)

    same = [verdict.passed for verdict in verdicts(lambda result: result)]
    worse = [*verdicts(lambda result: with_worse_class(result, number, share, random))]
    address = f"{DETERMINISTIC}.sets.test.by_class.{number}.accuracy"
    named = [any(one.address == address for one in verdict.worse) for verdict in worse]
    return {
        "passes": Found(sum(same), tried),
        "fails": Found(sum(not verdict.passed for verdict in worse), tried),
        "names it": Found(sum(named), tried),
    }


def of_histories(
    network: Result, as_good: Result, worse: Result, share: float, *, points: int, nights: int, tried: int, seed: int
) -> dict[str, Found]:
    """Histories of networks that are as good, and of those that decline by `share` of what `worse` is worse: in how
    many the line through all of them fails, the whole check, and any check of two neighbours."""
    random = np.random.default_rng(seed)
    counts = dict.fromkeys(("line", "check", "neighbours"), 0)
    for _ in range(tried):
        rows = drawn(network, points, random)
        one, other, bad = (taken(each, rows) for each in (network, as_good, worse))
        late = {name: random.random(own.n) for name, own in one.sets.items()}
        results = []
        for night in range(nights):
            declined = share * night / (nights - 1)
            own = exchanged_in_part(one, other, 0.5, random)
            made = mixed(own, bad, {name: when < declined for name, when in late.items()})
            time = f"2026-01-{night + 1:02}T00:00:00+00:00"
            results.append(replace(made, provenance={**made.provenance, "time": time}))
        verdict = check(results[-1], settings=EVERYTHING, history=results[:-1])
        counts["check"] += not verdict.passed
        counts["line"] += any(found.slope for found in verdict.worse)
        counts["neighbours"] += _any_fails(results)
    return {name: Found(count, tried) for name, count in counts.items()}


def _any_fails(results: Sequence[Result]) -> bool:
    return any(not check(after, before, EVERYTHING).passed for before, after in pairwise(results))
