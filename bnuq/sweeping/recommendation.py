"""Which mini-batch size: the one that a criterion is the highest at, and how far the others lie behind it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from bnuq import metrics
from bnuq.config import SizeCriterion
from bnuq.data import Points
from bnuq.records import Figure
from bnuq.results.sweep import Protocol, Recommended
from bnuq.sweeping.elbo import LowerBound, with_interval
from bnuq.sweeping.passes import AtSize


@dataclass(frozen=True)
class Candidate:
    """A size that may be chosen, of one network; its points in the order in which they were scored."""

    model: int
    found: AtSize
    bound: LowerBound | None


@dataclass(frozen=True)
class Judged:
    """The points that a criterion is taken on: the set's name, the points, and the OOD sets."""

    name: str
    points: Points
    ood: Mapping[str, Points]


def recommended(
    candidates: Sequence[Candidate],
    criterion: SizeCriterion,
    protocol: Protocol,
    *,
    judged: Judged,
    score: str,
) -> Recommended | None:
    """The best of the candidates (ascending sizes) by the criterion; None where fewer than two can be compared.

    Differences are taken draw by draw and point by point: sizes share both. Their error over points and draws together
    is √(se² + mc_se²), an upper bound.
    """
    random = [one for one in candidates if not one.found.degenerate]
    if criterion == "pll":
        random = [one for one in random if "pll" in one.found.points[judged.name]]
    elif criterion == "elbo":
        random = [one for one in random if one.bound is not None and one.found.batch_size in one.bound.at]
    if len(random) < 2:
        return None
    values = {
        "elbo": lambda one: one.bound.at[one.found.batch_size].elbo.value,
        "pll": lambda one: _pll(one, judged).mean(),
        "auroc": lambda one: float(np.mean([_auroc(one, judged, name, score).mean() for name in judged.ood])),
    }[criterion]
    best = max(random, key=values)
    behind_of: dict[str, Callable[[Candidate], Figure]] = {
        "elbo": lambda one: _elbo_behind(one, best),
        "pll": lambda one: _pll_behind(one, best, judged),
        "auroc": lambda one: _auroc_behind(one, best, judged, score),
    }
    behind = {one.found.batch_size: behind_of[criterion](one) for one in random if one is not best}
    behind[best.found.batch_size] = Figure(0.0, se=0.0, mc_se=0.0, low=0.0, high=0.0)
    behind = dict(sorted(behind.items()))
    sizes = list(behind)
    within = tuple(size for size, one in behind.items() if -one.value <= math.hypot(one.se or 0.0, one.mc_se or 0.0))
    size = best.found.batch_size
    decided: Literal["likelihood and prior", "prior", "data"] = "data"
    if criterion == "elbo":
        decided = "prior" if _likelihood_is_flat(random) else "likelihood and prior"
    return Recommended(
        batch_size=size,
        model=best.model,
        protocol=protocol,
        criterion=criterion,
        of="train" if criterion == "elbo" else judged.name,
        behind=behind,
        within=within,
        decided_by=decided,
        predicted_batch_size=best.bound.terms.predicted if best.bound and protocol == "single" else None,
        at_end="smallest" if size == sizes[0] else "largest" if size == sizes[-1] else "",
    )


def _likelihood_is_flat(random: Sequence[Candidate]) -> bool:
    """Whether the expected log-likelihood changes over the sizes by less than the error of that change."""

    def value(one: Candidate) -> float:
        return float(one.found.log_likelihood.mean())  # pyright: ignore[reportOptionalMemberAccess] - it has an ELBO

    difference = _likelihood_difference(min(random, key=value), max(random, key=value))
    return abs(difference.value) < math.hypot(difference.se or 0.0, difference.mc_se or 0.0)


def _likelihood_difference(one: Candidate, other: Candidate) -> Figure:
    (a, c), (b, d) = ((x.found.log_likelihood, x.found.of_training_points) for x in (one, other))
    assert one.bound is not None and a is not None and b is not None and c is not None and d is not None
    errors = one.bound.errors
    return Figure(
        errors.train_size * float(a.mean() - b.mean()),
        se=errors.train_size * errors.of_mean(c - d),
        mc_se=errors.train_size * metrics.standard_error(a - b),
    )


def _elbo_behind(one: Candidate, best: Candidate) -> Figure:
    assert one.bound is not None and best.bound is not None
    difference = _likelihood_difference(one, best)
    kl = one.bound.at[one.found.batch_size].kl - best.bound.at[best.found.batch_size].kl
    return with_interval(difference.value - kl, difference.se or 0.0, difference.mc_se or 0.0)


def _pll(one: Candidate, judged: Judged) -> np.ndarray:
    return one.found.points[judged.name]["pll"]


def _pll_behind(one: Candidate, best: Candidate, judged: Judged) -> Figure:
    difference = _pll(one, judged) - _pll(best, judged)
    se = metrics.standard_error(difference.mean(0), group=judged.points.group)
    return with_interval(float(difference.mean()), se, metrics.standard_error(difference.mean(1)))


def _auroc(one: Candidate, judged: Judged, name: str, score: str) -> np.ndarray:
    """By draw set."""
    pairs = zip(one.found.points[judged.name][score], one.found.points[name][score], strict=True)
    return np.array([metrics.auroc(inside, outside) for inside, outside in pairs])


def _auroc_behind(one: Candidate, best: Candidate, judged: Judged, score: str) -> Figure:
    """Of the mean over OOD sets; the mean of their errors over points is an upper bound of its own."""
    of_sets = {name: _auroc(one, judged, name, score) - _auroc(best, judged, name, score) for name in judged.ood}
    difference = np.mean(list(of_sets.values()), axis=0)
    errors = []
    for name, points in judged.ood.items():
        pairs = [(x.found.points[judged.name][score].mean(0), x.found.points[name][score].mean(0)) for x in (one, best)]
        variance = metrics.delong_difference_variance(
            pairs[0], pairs[1], test_group=judged.points.group, ood_group=points.group
        )
        errors.append(math.sqrt(variance))
    return with_interval(float(difference.mean()), float(np.mean(errors)), metrics.standard_error(difference))
