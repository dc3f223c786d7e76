"""Recommends the mini-batch size with the highest criterion, and says how far the others are behind."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from bnuq import metrics
from bnuq.config import SizeCriterion
from bnuq.data import Points
from bnuq.estimates import Estimate
from bnuq.records.sweep import Protocol, Recommended
from bnuq.sweeping.elbo import LowerBound, with_interval
from bnuq.sweeping.sizes import AtSize


@dataclass(frozen=True)
class Candidate:
    """A size of one network that may be recommended."""

    model: int
    at_size: AtSize
    bound: LowerBound | None


@dataclass(frozen=True)
class CriterionData:
    """The points that a criterion is computed on: the set's name, the points, and the OOD sets."""

    name: str
    points: Points
    ood: Mapping[str, Points]


def recommend(
    candidates: Sequence[Candidate],
    criterion: SizeCriterion,
    protocol: Protocol,
    *,
    data: CriterionData,
    score: str,
) -> Recommended | None:
    """The best candidate (in ascending order of size) by the criterion; None where fewer than two can be compared.

    Differences are paired by draw and by point, which all sizes share. Their error over points and draws together
    is √(se² + mc_se²), an upper bound.
    """
    not_degenerate = [candidate for candidate in candidates if not candidate.at_size.degenerate]
    if criterion == "pll":
        not_degenerate = [candidate for candidate in not_degenerate if "pll" in candidate.at_size.points[data.name]]
    elif criterion == "elbo":
        not_degenerate = [
            candidate
            for candidate in not_degenerate
            if candidate.bound is not None and candidate.at_size.batch_size in candidate.bound.at
        ]
    if len(not_degenerate) < 2:
        return None
    values = {
        "elbo": lambda candidate: candidate.bound.at[candidate.at_size.batch_size].elbo.value,
        "pll": lambda candidate: _pll(candidate, data).mean(),
        "auroc": lambda candidate: float(np.mean([_auroc(candidate, data, name, score).mean() for name in data.ood])),
    }[criterion]
    best = max(not_degenerate, key=values)
    behind_of: dict[str, Callable[[Candidate], Estimate]] = {
        "elbo": lambda candidate: _elbo_behind(candidate, best),
        "pll": lambda candidate: _pll_behind(candidate, best, data),
        "auroc": lambda candidate: _auroc_behind(candidate, best, data, score),
    }
    behind = {
        candidate.at_size.batch_size: behind_of[criterion](candidate)
        for candidate in not_degenerate
        if candidate is not best
    }
    behind[best.at_size.batch_size] = Estimate(0.0, se=0.0, mc_se=0.0, low=0.0, high=0.0)
    behind = dict(sorted(behind.items()))
    sizes = list(behind)
    size = best.at_size.batch_size
    decided: Literal["likelihood and prior", "prior", "data"] = "data"
    if criterion == "elbo":
        decided = "prior" if _likelihood_is_flat(not_degenerate) else "likelihood and prior"
    return Recommended(
        batch_size=size,
        model=best.model,
        protocol=protocol,
        criterion=criterion,
        of="train" if criterion == "elbo" else data.name,
        behind=behind,
        within=within_one_error(behind),
        decided_by=decided,
        predicted_batch_size=best.bound.terms.predicted if best.bound and protocol == "single" else None,
        at_end="smallest" if size == sizes[0] else "largest" if size == sizes[-1] else "",
    )


def within_one_error(behind: Mapping[int, Estimate]) -> tuple[int, ...]:
    """The sizes that lie behind the best one by at most the error of that difference."""
    return tuple(
        size
        for size, difference in behind.items()
        if -difference.value <= math.hypot(difference.se or 0.0, difference.mc_se or 0.0)
    )


def _likelihood_is_flat(not_degenerate: Sequence[Candidate]) -> bool:
    """Whether the expected log-likelihood changes over the sizes by less than the error of that change."""

    def value(candidate: Candidate) -> float:
        return float(candidate.at_size.log_likelihood.mean())  # pyright: ignore[reportOptionalMemberAccess] - it has an ELBO

    difference = _likelihood_difference(min(not_degenerate, key=value), max(not_degenerate, key=value))
    return abs(difference.value) < math.hypot(difference.se or 0.0, difference.mc_se or 0.0)


def _likelihood_difference(first: Candidate, second: Candidate) -> Estimate:
    (a, c), (b, d) = ((x.at_size.log_likelihood, x.at_size.of_training_points) for x in (first, second))
    assert first.bound is not None and a is not None and b is not None and c is not None and d is not None
    errors = first.bound.errors
    return Estimate(
        errors.train_size * float(a.mean() - b.mean()),
        se=errors.train_size * errors.of_mean(c - d),
        mc_se=errors.train_size * metrics.standard_error(a - b),
    )


def _elbo_behind(candidate: Candidate, best: Candidate) -> Estimate:
    assert candidate.bound is not None and best.bound is not None
    difference = _likelihood_difference(candidate, best)
    kl = candidate.bound.at[candidate.at_size.batch_size].kl - best.bound.at[best.at_size.batch_size].kl
    return with_interval(difference.value - kl, difference.se or 0.0, difference.mc_se or 0.0)


def _pll(candidate: Candidate, data: CriterionData) -> np.ndarray:
    return candidate.at_size.points[data.name]["pll"]


def _pll_behind(candidate: Candidate, best: Candidate, data: CriterionData) -> Estimate:
    difference = _pll(candidate, data) - _pll(best, data)
    se = metrics.standard_error(difference.mean(0), group=data.points.group)
    return with_interval(float(difference.mean()), se, metrics.standard_error(difference.mean(1)))


def _auroc(candidate: Candidate, data: CriterionData, name: str, score: str) -> np.ndarray:
    """The AUROC of each draw set."""
    pairs = zip(candidate.at_size.points[data.name][score], candidate.at_size.points[name][score], strict=True)
    return np.array([metrics.auroc(inside, outside) for inside, outside in pairs])


def _auroc_behind(candidate: Candidate, best: Candidate, data: CriterionData, score: str) -> Estimate:
    """The difference of the mean AUROC over OOD sets; the mean of their errors over points is an upper bound."""
    differences = {name: _auroc(candidate, data, name, score) - _auroc(best, data, name, score) for name in data.ood}
    difference = np.mean(list(differences.values()), axis=0)
    errors = []
    for name, points in data.ood.items():
        pairs = [
            (x.at_size.points[data.name][score].mean(0), x.at_size.points[name][score].mean(0))
            for x in (candidate, best)
        ]
        variance = metrics.delong_difference_variance(
            pairs[0], pairs[1], test_group=data.points.group, ood_group=points.group
        )
        errors.append(math.sqrt(variance))
    return with_interval(float(difference.mean()), float(np.mean(errors)), metrics.standard_error(difference))
