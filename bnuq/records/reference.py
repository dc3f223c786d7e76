"""What a failed reference check means: how much one pass changes with the reference's statistics, and why."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from bnuq.estimates import Estimate
from bnuq.methods import NETWORKS, POPULATION, method_named
from bnuq.records.evaluation import FEWEST_POINTS, MEDIAN_LIMIT, WORST_LIMIT, MethodResult, ReferenceCheck

_LIMIT = 2.0  # standard errors, up to which an estimate is as good as unchanged
_OF_TARGETS = "pll", "accuracy", "mae"

Methods = Mapping[str, MethodResult]
Effect = Mapping[str, tuple[float, float, float]]


def draws_mini_batches(method: str) -> bool:
    """Whether the method draws mini-batches of the reference."""
    return method_named(method).draws_mini_batches


def population_effect(methods: Methods) -> Effect:
    """By metric of the test set: its value in one pass with the checkpoint's running statistics, that with the
    population statistics of the reference, and the size of the difference in units of the smaller standard error.

    Empty where the effect is unknown: there is no such pass, or the test set has too few points or no targets.
    """
    if POPULATION not in methods:
        return {}
    before, after = (methods[name].sets["test"] for name in NETWORKS)
    if len(next(iter(before.points.values()))) < FEWEST_POINTS:
        return {}
    return {
        metric: (old.value, new.value, _in_errors(new.value - old.value, min(_se(old), _se(new))))
        for metric in _OF_TARGETS
        if (old := before.estimates.get(metric)) and (new := after.estimates.get(metric))
    }


def _se(estimate: Estimate) -> float:
    return math.nan if estimate.se is None else estimate.se


def _in_errors(difference: float, error: float) -> float:
    return 0.0 if difference == 0 else abs(difference) / error if error > 0 else math.inf


def is_material(methods: Methods) -> bool:
    """Whether one pass differs with the reference's statistics by more than twice the error of some estimate, or may
    do so."""
    effect = population_effect(methods)
    return not effect or any(not times <= _LIMIT for _, _, times in effect.values())


def averages_lag(check: ReferenceCheck, methods: Methods) -> bool:
    """Whether running averages that lag behind the weights are the likely cause of a failed check, by the pattern of
    its layers.

    Another normalisation, augmentation or data set is seen by the first layer at least as well as by those behind it:
    batch normalisation removes an affine change. Averages over weights that move lag in deeper layers most, or in the
    means alone. Statistics of the right reference make the network no worse.
    """
    ratios = check.ratios
    if len(ratios) < 2 or check.unfit:
        return False
    effect = population_effect(methods)
    if any(effect[m][2] > _LIMIT and effect[m][1] < effect[m][0] for m in ("pll", "accuracy") if m in effect):
        return False
    first, deeper = ratios[0], ratios[1:]
    is_deep = first.max() <= WORST_LIMIT and deeper.max() > first.max()
    is_of_means = ratios[:, 1].max() <= MEDIAN_LIMIT < np.median(deeper[:, 0])
    return bool(is_deep or is_of_means)


def is_doubtful(check: ReferenceCheck | None, methods: Methods) -> bool:
    """Whether estimates by mini-batches of the reference may not be those of the network: the check did not pass, and
    that matters. A check that could not be made did not pass."""
    if check is None:
        return POPULATION in methods and is_material(methods)
    return not check.passed and is_material(methods)
