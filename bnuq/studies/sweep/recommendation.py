"""Recommends the mini-batch size with the highest criterion, says how far the others are behind, and chooses what an
adaptive sweep evaluates next."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Literal

import numpy as np

from bnuq import metrics
from bnuq.config import Samples, SizeCriterion, SweepSection
from bnuq.data import Points
from bnuq.estimates import Estimate
from bnuq.frozen import frozen
from bnuq.metrics.registry import METRICS, metric_of
from bnuq.metrics.replicates import error_of_change, independent_units
from bnuq.records.evaluation import FEWEST_POINTS
from bnuq.studies.sweep.elbo import NORMAL, LowerBound, with_interval
from bnuq.studies.sweep.record import BestOther, Decay, Elbo, Protocol, Recommended, Stopped, decay_rate
from bnuq.studies.sweep.request import samples_of
from bnuq.studies.sweep.sizes import AtSize, present

_IN_TABLE = {name: each for name, each in METRICS.items() if "sensitivity" in each.shown and each.direction != "none"}


@frozen
class SizeCandidate:
    """A size of one network that may be recommended."""

    model: int
    at_size: AtSize
    bound: LowerBound | None

    @property
    def elbo(self) -> Elbo | None:
        return None if self.bound is None else self.bound.at.get(self.at_size.batch_size)


@frozen
class CriterionData:
    """The points that a criterion is computed on: the set's name, the points, the OOD sets, and the score that
    separates them."""

    name: str
    points: Points
    ood: Mapping[str, Points]
    score: str


def recommend(
    candidates: Sequence[SizeCandidate],
    criterion: SizeCriterion,
    protocol: Protocol,
    data: CriterionData,
    test: CriterionData | None = None,
) -> Recommended | None:
    """The best candidate (in ascending order of size) by the criterion; None if fewer than two can be compared. By
    every metric of the `test` set it is compared with the best other one.

    Differences are paired by draw and by point, which all sizes share. Their error over points and draws together
    is √(se² + mc_se²), an upper bound.
    """
    comparable = [
        candidate
        for candidate in candidates
        if not candidate.at_size.degenerate
        and (criterion != "elbo" or candidate.elbo is not None)
        and (criterion != "auroc" or math.isfinite(_auroc(candidate, data)))
        and (criterion != "pll" or "pll" in candidate.at_size.points[data.name])
    ]
    if len(comparable) < 2:
        return None
    value, behind_best = {
        "elbo": (lambda candidate: candidate.elbo.elbo.value, _elbo_behind),
        "pll": (lambda candidate: float(_on_points(candidate, "pll", data)[0].mean()), _difference),
        "auroc": (lambda candidate: _auroc(candidate, data), _auroc_behind),
    }[criterion]
    best = max(comparable, key=value)
    nothing = Estimate(0.0, se=0.0, mc_se=0.0, low=0.0, high=0.0)
    behind = {
        candidate.at_size.batch_size: nothing if candidate is best else behind_best(candidate, best, data)
        for candidate in comparable
    }
    size, sizes = best.at_size.batch_size, list(behind)
    decided: Literal["likelihood and prior", "prior", "data"] = "data"
    if criterion == "elbo":
        lowest, *_, highest = sorted(comparable, key=lambda each: present(each.at_size.log_likelihood).mean())
        change = _likelihood_difference(highest, lowest)
        is_flat = change.value < math.hypot(change.se or 0.0, change.mc_se or 0.0)
        decided = "prior" if is_flat else "likelihood and prior"
    return Recommended(
        batch_size=size,
        model=best.model,
        protocol=protocol,
        criterion=criterion,
        of="train" if criterion == "elbo" else data.name,
        behind=behind,
        decided_by=decided,
        predicted_batch_size=best.bound.terms.predicted if best.bound and protocol == "single" else None,
        at_end="smallest" if size == sizes[0] else "largest" if size == sizes[-1] else "",
        on_test={} if test is None else _beside_others(comparable, best, test),
    )


def _beside_others(
    comparable: Sequence[SizeCandidate], chosen: SizeCandidate, test: CriterionData
) -> dict[str, BestOther]:
    """The chosen size beside the best other one, by each metric of the table that is known at all."""
    few = independent_units(len(test.points), test.points.group) < FEWEST_POINTS
    known = set.intersection(*({*each.at_size.points.get(test.name, ())} for each in comparable))
    found = {}
    for metric, estimand in _IN_TABLE.items():
        if estimand.computed.needs <= known:
            sign = -1 if estimand.direction == "lower" else 1
            others = [(_difference(chosen, each, test, metric), each) for each in comparable if each is not chosen]
            least, best = min(others, key=lambda other: sign * other[0].value)
            se = math.nan if least.low is None or least.high is None else (least.high - least.low) / (2 * NORMAL)
            found[metric] = BestOther(best.at_size.batch_size, least.value, None if few or math.isnan(se) else se)
    return found


def _likelihood_difference(first: SizeCandidate, second: SizeCandidate) -> Estimate:
    (a, c), (b, d) = ((x.at_size.log_likelihood, x.at_size.of_training_points) for x in (first, second))
    assert first.bound is not None and a is not None and b is not None and c is not None and d is not None
    errors = first.bound.errors
    return Estimate(
        errors.train_size * float(a.mean() - b.mean()),
        se=errors.train_size * errors.of_mean(c - d),
        mc_se=errors.train_size * error_of_change(a, b),
    )


def _elbo_behind(candidate: SizeCandidate, best: SizeCandidate, _data: CriterionData) -> Estimate:
    assert candidate.elbo is not None and best.elbo is not None
    difference = _likelihood_difference(candidate, best)
    kl = candidate.elbo.kl - best.elbo.kl
    return with_interval(difference.value - kl, difference.se or 0.0, difference.mc_se or 0.0)


def _difference(first: SizeCandidate, second: SizeCandidate, data: CriterionData, metric: str = "pll") -> Estimate:
    """The difference of an estimate that both have."""
    (a, c), (b, d) = (_on_points(x, metric, data) for x in (first, second))
    se = metrics.standard_error(c - d, group=data.points.group)
    return with_interval(float(a.mean() - b.mean()), se, error_of_change(a, b), draw_sets=min(len(a), len(b)))


def _on_points(candidate: SizeCandidate, metric: str, data: CriterionData) -> tuple[np.ndarray, np.ndarray]:
    """An estimate in each draw set, and what each point contributes to their mean, to first order."""
    formula = metric_of(metric).computed
    scores = {name: candidate.at_size.points[data.name][name] for name in formula.needs}
    of_sets = [{name: values[row] for name, values in scores.items()} for row in range(candidate.at_size.draw_sets)]
    contributions = [formula.influence(of_set, data.points.group) for of_set in of_sets]
    return formula.values(scores), np.mean(contributions, axis=0)


def _auroc(candidate: SizeCandidate, data: CriterionData) -> float:
    """The mean AUROC over draw sets and OOD sets."""
    return float(np.mean([_aurocs(candidate, data, name).mean() for name in data.ood]))


def _aurocs(candidate: SizeCandidate, data: CriterionData, name: str) -> np.ndarray:
    """The AUROC of each draw set."""
    inside, outside = (candidate.at_size.points[set_name][data.score] for set_name in (data.name, name))
    return np.array([metrics.auroc(a, b) for a, b in zip(inside, outside, strict=True)])


def _auroc_behind(candidate: SizeCandidate, best: SizeCandidate, data: CriterionData) -> Estimate:
    """The difference of the mean AUROC over OOD sets; the mean of their errors over points is an upper bound."""
    both, errors = (candidate, best), []
    for name, points in data.ood.items():
        inside, outside = ([x.at_size.points[of][data.score].mean(0) for x in both] for of in (data.name, name))
        groups = {"test_group": data.points.group, "ood_group": points.group}
        errors.append(math.sqrt(metrics.delong_difference_variance(*zip(inside, outside, strict=True), **groups)))
    means = [np.mean([_aurocs(x, data, name) for name in data.ood], axis=0) for x in both]
    value, draw_sets = float(means[0].mean() - means[1].mean()), min(map(len, means))
    return with_interval(value, float(np.mean(errors)), error_of_change(*means), draw_sets=draw_sets)


_FIRST = 2  # draw sets that a size has at first


@frozen
class Grid:
    """What a sweep may evaluate: at each size `draw_sets` of T = `samples` draws, set r the draws r·T … (r + 1)·T − 1.
    With `by_peak`, the criterion has a single peak over the sizes, so that those away from it can be left out.

    An adaptive sweep adds sizes around the best one, then draw sets of what is undecided. That follows from the
    estimates alone, so that an interrupted sweep makes the same choice.
    """

    sizes: tuple[int, ...]
    draw_sets: int
    samples: int
    by_peak: bool

    @staticmethod
    def of(samples: Samples, settings: SweepSection, sizes: tuple[int, ...], *, has_elbo: bool) -> Grid:
        """That of a sweep; RequestError for a number of samples that it cannot have."""
        by_peak = settings.criterion == "elbo" and has_elbo and settings.batch_sizes is None
        return Grid(sizes, settings.draw_sets, samples_of(samples), by_peak)

    @property
    def first(self) -> dict[int, int]:
        """The draw sets of the first round, by size."""
        return dict.fromkeys((self.sizes[0], self.sizes[-1]) if self.by_peak else self.sizes, _FIRST)

    def next(
        self, sets: Mapping[int, int], recommended: Recommended | None, decay: Decay | None
    ) -> tuple[dict[int, int], Stopped]:
        """The draw sets to add by size, and why the sweep ends if there are none. `sets` are those of each size."""
        if missing := self._missing(sets, recommended):
            return dict.fromkeys(missing, _FIRST), "decided"
        rivals = [] if recommended is None else self._rivals(sets, recommended)
        undecided = {*rivals, recommended.batch_size} if recommended is not None and rivals else set()
        if decay is not None and decay_rate(decay.slope.low or math.nan, decay.slope.high or math.nan) in (
            "may-fall-as-inverse",
            "not-clearly-falling",
        ):
            fewest = min(sets[size] for size in decay.sizes)
            undecided |= {size for size in decay.sizes if sets[size] == fewest}
        added = {size: 1 for size in sorted(undecided) if sets[size] < self.draw_sets}
        return added, "draw-sets" if undecided else "decided"

    def _missing(self, sets: Mapping[int, int], recommended: Recommended | None) -> list[int]:
        """The sizes to add: the one nearest to the asymptotic optimum, then those next to the best; all if none is."""
        if recommended is None:
            return [size for size in self.sizes if size not in sets]
        predicted = recommended.predicted_batch_size
        if predicted is not None and predicted.value > 0:
            nearest = min(self.sizes, key=lambda size: abs(math.log(size / predicted.value)))
            if nearest not in sets:
                return [nearest]
        pairs = [pair for pair in pairwise(self.sizes) if recommended.batch_size in pair]
        return sorted({size for pair in pairs for size in pair if size not in sets})

    def _rivals(self, sets: Mapping[int, int], recommended: Recommended) -> list[int]:
        """The sizes that the draw sets that are left could make the best."""
        best, rivals = recommended.batch_size, []
        for size, difference in recommended.behind.items():
            fewest = min(sets[size], sets[best])
            # The mean of n of N draw sets differs from that of all by √(1 − n/N) of its error.
            left = math.sqrt(1 - fewest / self.draw_sets)
            quantile = 2.0 if recommended.criterion == "elbo" else metrics.student_quantile(0.975, fewest - 1)
            if size != best and left and not abs(difference.value) > quantile * left * (difference.mc_se or math.inf):
                rivals.append(size)
        return rivals
