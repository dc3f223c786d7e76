"""What `bnuq check` says of results of which the truth is known: how often it cries wolf, and how small a change it
finds. Pure functions of results; `make_gate.py` makes the results, and writes down what these give."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import permutations
from typing import Any

import numpy as np
import scipy.special

from bnuq import metrics
from bnuq.estimates import Estimate
from bnuq.gate import CheckVerdict, EstimateComparison, GateSettings, check
from bnuq.gate.change_errors import Error, Errors
from bnuq.gate.comparing import LEVEL
from bnuq.methods import DETERMINISTIC
from bnuq.records.addresses import estimates_of
from bnuq.records.contributions import PointContributions
from bnuq.records.evaluation import MethodResult, Result, SetResult
from bnuq.store.table import Row

EVERYTHING = GateSettings(estimates=("*", "by-class"))  # whatever has a tolerance

Kind = tuple[str, str]  # method, metric


@dataclass(frozen=True)
class Alarms:
    """How often checks of results that differ by chance alone say otherwise, check by check.

    `tolerant` are the checks that fail as they are, `strict` those that would without any tolerance, and `least` the
    smallest adjusted p-value of each; `low` and `of` count, by method and metric, the p-values below .05, not adjusted,
    and all of them, and `drawn` those that would be below .05 by the error over draws alone. `gated` is how many
    estimates one check holds together.
    """

    tolerant: np.ndarray
    strict: np.ndarray
    least: np.ndarray
    gated: int
    low: dict[Kind, np.ndarray]
    drawn: dict[Kind, np.ndarray]
    of: dict[Kind, np.ndarray]


Place = int | tuple[int, int]


def alarms(size: tuple[int, ...], entries: Iterable[tuple[Place, CheckVerdict]]) -> Alarms:
    """Those of verdicts, each entered at its place in arrays of this size.

    A p-value of a change that has no error, the same network's without draws, is not counted.
    """
    tolerant, strict, least, gated = np.zeros(size), np.zeros(size), np.ones(size), 0
    low: dict[Kind, np.ndarray] = {}
    drawn: dict[Kind, np.ndarray] = {}
    of: dict[Kind, np.ndarray] = {}
    for place, verdict in entries:
        gated = verdict.gated
        tolerant[place] = bool(verdict.worse)
        strict[place] = any(alarming(one) for one in verdict.comparisons)
        least[place] = min(one.p_adjusted for one in verdict.comparisons if one.p_adjusted is not None)
        for one in verdict.comparisons:
            if one.p_value is None or not one.se:
                continue
            beyond = _is_beyond_draws(one, samples=verdict.current.samples)
            for table, amount in ((low, one.p_value < LEVEL), (drawn, beyond), (of, 1)):
                table.setdefault((one.method, one.metric), np.zeros(size))[place] += amount
    return Alarms(tolerant, strict, least, gated, low, drawn, of)


def _is_beyond_draws(one: EstimateComparison, *, samples: int) -> bool:
    """Whether the degradation has p < .05 by the Monte Carlo error alone, of two runs of T draws each."""
    return bool(one.se_draws) and scipy.special.stdtr(2 * (samples - 1), -one.degradation / one.se_draws) < LEVEL


def alarming(one: EstimateComparison) -> bool:
    """Whether it would fail a check with tolerance 0: p-values do not depend on tolerances."""
    return one.p_adjusted is not None and one.p_adjusted < LEVEL and one.degradation > 0


def by_chance(results: Sequence[Result]) -> Alarms:
    """The alarms of all ordered pairs of results that differ in nothing but the seed: [current, baseline]."""
    pairs = permutations(range(len(results)), 2)
    return alarms((len(results),) * 2, (((a, b), check(results[a], results[b], EVERYTHING)) for a, b in pairs))


def share_of_pairs(low: np.ndarray, of: np.ndarray | None = None) -> Estimate:
    """Σ low/Σ of over the ordered pairs, as a fraction, with the error over results; of all pairs without `of`.

    A result is in 2(S − 1) pairs, so that pairs are not independent: the error is the jackknife's over the S results,
    each left out with all its pairs. It is 0 where no pair counts, and None where one result is in all that do.
    """
    counted = 1 - np.eye(len(low)) if of is None else of
    kept = [np.ix_(*[np.arange(len(low)) != one] * 2) for one in range(len(low))]
    value = float(low.sum() / counted.sum())
    if not all(counted[pairs].any() for pairs in kept):
        return Estimate(value)
    left_out = np.array([low[pairs].sum() / counted[pairs].sum() for pairs in kept])
    return Estimate(value, se=float(metrics.jackknife_error(left_out)))


def share_of_all(low: np.ndarray, of: np.ndarray | None = None) -> Estimate:
    """The share in independent entries, with its error: that of a ratio of sums."""
    counted = np.ones_like(low) if of is None else of
    value = float(low.sum() / counted.sum())
    return Estimate(value, se=metrics.standard_error(low - value * counted) / float(counted.mean()))


def spread(results: Sequence[Result], address: str) -> tuple[float, float, float]:
    """What a Monte Carlo error is to be and what it is, of one estimate of results that differ in nothing but the seed:
    the sd over results, the root mean square of the errors that they state, and the median of these."""
    estimates = [estimates_of(one)[address].estimate for one in results]
    stated = np.array([math.nan if one.mc_se is None else one.mc_se for one in estimates])
    sd = float(np.std([one.value for one in estimates], ddof=1))
    return sd, float(np.sqrt(np.mean(stated**2))), float(np.median(stated))


def of_one_draw(results: Sequence[Result], address: str) -> float:
    """The share of the Monte Carlo variance of an estimate that one draw carries, the largest, in the median result."""
    shares = []
    for one in results:
        left_out = estimates_of(one)[address].estimate.jackknife
        assert left_out is not None, address
        squares = (left_out - left_out.mean()) ** 2
        shares.append(squares.max() / squares.sum())
    return float(np.median(shares))


def without_draws(result: Result) -> Result:
    """The result as if its estimates had no Monte Carlo error: what a test over points alone takes them for."""
    return replace(result, methods={name: _exact(method) for name, method in result.methods.items()})


def _exact(held: Any) -> Any:
    """A method with the Monte Carlo error of each of its figures 0."""
    if isinstance(held, Estimate):
        if held.mc_se is None or held.jackknife is None or held.bootstrap is None:
            return held
        still = np.full_like(held.jackknife, held.value)
        return replace(held, mc_se=0.0, jackknife=still, bootstrap=np.full_like(held.bootstrap, held.value))
    if isinstance(held, SetResult):
        parts = {name: _exact(getattr(held, name)) for name in ("estimates", "by_class", "by_group", "by_score")}
        return replace(held, **parts, log_likelihood=None)
    if isinstance(held, Mapping):
        return {name: _exact(one) for name, one in held.items()}
    return replace(held, **{name: _exact(getattr(held, name)) for name in ("sets", "ood", "bounds", "normalized")})


# ── two networks that are equally good ───────────────────────────────────────────────────────────────────────────────


def by_exchange(pair: tuple[Result, Result], *, exchanges: int, seed: int) -> Alarms:
    """The alarms of checks of two networks, as they are, whose scores of each point were exchanged by a coin.

    Neither is then better than the other, and the change is as heavy-tailed as the networks make it.
    """
    random = np.random.default_rng(seed)
    return alarms((exchanges,), ((number, check(*exchanged(pair, random), EVERYTHING)) for number in range(exchanges)))


def exchanged(pair: tuple[Result, Result], random: np.random.Generator) -> tuple[Result, Result]:
    """Two results on the same points with the scores of about half of these exchanged, of the networks as they are;
    every estimate is computed anew, without an error of its own."""
    methods = [one.methods[DETERMINISTIC] for one in pair]
    taken = {name: random.random(one.n) < 0.5 for name, one in pair[0].sets.items() if name in methods[0].sets}
    mixed = []
    for own, other in (methods, methods[::-1]):
        sets = {}
        for name, coin in taken.items():
            scores = own.sets[name].points
            points = {score: np.where(coin, other.sets[name].points[score], scores[score]) for score in scores}
            predicted = np.where(coin, other.sets[name].predicted, own.sets[name].predicted)
            sets[name] = replace(own.sets[name], points=points, predicted=predicted, log_likelihood=None)
        mixed.append(sets)
    current, baseline = (
        recomputed_with(one, method, sets) for one, method, sets in zip(pair, methods, mixed, strict=True)
    )
    return current, baseline


def recomputed_with(result: Result, method: MethodResult, sets: Mapping[str, SetResult]) -> Result:
    """The result of the deterministic network alone, with these points, every estimate computed from them anew."""
    ood = {
        name: {score: _detected(sets["test"].points[score], sets[name].points[score]) for score in scores}
        for name, scores in method.ood.items()
    }
    plain = replace(method, sets=sets, ood=ood, bounds={}, normalized={})
    changed = _recomputed(replace(result, methods={DETERMINISTIC: plain}))
    points, plain = PointContributions(changed), changed.methods[DETERMINISTIC]
    with_errors = {}
    for name, scores in method.ood.items():
        with_errors[name] = dict(ood[name])
        for score in (score for score, known in scores.items() if "scod" in known):
            where = {"method": DETERMINISTIC, "set": name, "score": score, "metric": "scod"}
            value = points.value(Row("", where, "1", scores[score]["scod"]))
            with_errors[name][score] = ood[name][score] | ({} if value is None else {"scod": Estimate(value)})
    return replace(changed, methods={DETERMINISTIC: replace(plain, ood=with_errors)})


def _recomputed(result: Result) -> Result:
    """The result with the estimates of each set computed from its points, without errors."""
    points, method = PointContributions(result), result.methods[DETERMINISTIC]

    def anew(known: Mapping[str, Estimate], name: str, **part: str) -> dict[str, Estimate]:
        rows = {
            key: Row("", {"method": DETERMINISTIC, "set": name, "metric": key, **part}, "1", known[key])
            for key in known
        }
        values = {key: points.value(row) for key, row in rows.items()}
        return {key: Estimate(value) for key, value in values.items() if value is not None}

    sets = {
        name: replace(
            one,
            estimates=anew(one.estimates, name),
            by_class={key: anew(known, name, **{"class": key}) for key, known in one.by_class.items()},
            by_group={key: anew(known, name, group=key) for key, known in one.by_group.items()},
            by_score={key: anew(known, name, score=key) for key, known in one.by_score.items()},
        )
        for name, one in method.sets.items()
    }
    return replace(result, methods={DETERMINISTIC: replace(method, sets=sets)})


def _detected(test: np.ndarray, ood: np.ndarray) -> dict[str, Estimate]:
    return {name: Estimate(value) for name, value in vars(metrics.detection(test, ood)).items()}


# ── real changes ─────────────────────────────────────────────────────────────────────────────────────────────────────


def failing(verdicts: Sequence[CheckVerdict]) -> dict[str, int]:
    """In how many of the verdicts each gated estimate got worse, by address; the most frequent first, 0 with them."""
    found: dict[str, int] = {}
    for one in (one for verdict in verdicts for one in verdict.comparisons if one.outcome != "not gated" and one.se):
        found[one.address] = found.get(one.address, 0) + (one.outcome == "worse")
    return dict(sorted(found.items(), key=lambda item: -item[1]))


@dataclass(frozen=True)
class Smallest:
    """The true changes for the worse that a check finds in one of two and in four of five cases, in the metric's unit;
    `tolerated` where a tolerance, and not the error, decides the first."""

    half: float
    most: float
    tolerated: bool


def smallest(se: float, df: float, *, tolerance: float, gated: int) -> Smallest:
    """For a change with this error, of so many degrees of freedom, where so many estimates are gated together.

    An estimate is worse where its degradation is above max(tolerance, t se), with t the quantile at .05/gated, Holm's
    first step; the estimate is taken as normal about the true change.
    """
    needed = float(scipy.special.stdtrit(min(df, 1e9), 1 - LEVEL / gated)) * se
    half = max(tolerance, needed)
    return Smallest(half, half + float(scipy.special.ndtri(0.8)) * se, tolerance > needed)


def errors_of_changes(
    pairs: Iterable[tuple[Result, Result]], addresses: Sequence[str]
) -> dict[str, list[tuple[float, float]]]:
    """The standard error of each change, and its degrees of freedom, by address; one a pair (current, baseline)."""
    found: dict[str, list[tuple[float, float]]] = {address: [] for address in addresses}
    for current, baseline in pairs:
        errors = Errors((current, baseline), (PointContributions(current), PointContributions(baseline)))
        new, old = estimates_of(current), estimates_of(baseline)
        for name in addresses:
            whole = Error.together(errors.over_points(new[name]), errors.over_draws((new[name], old[name])))
            found[name].append((whole.value, whole.df))
    return found


def smallest_in_median(found: Iterable[tuple[float, float]], *, tolerance: float, gated: int) -> Smallest:
    """The median over comparisons of what each could have found."""
    each = [smallest(se, df, tolerance=tolerance, gated=gated) for se, df in found]
    half, most = (float(np.median([getattr(one, name) for one in each])) for name in ("half", "most"))
    return Smallest(half, most, math.isclose(half, tolerance))


def verdicts(currents: Iterable[Result], baselines: Sequence[Result]) -> Iterator[CheckVerdict]:
    """Each of the current results checked against each of the baselines, with the default tolerances, of everything."""
    for current in currents:
        for baseline in baselines:
            yield check(current, baseline, EVERYTHING)
