"""The findings of an evaluation: of the reference, the test set, OOD sets and noise models."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from bnuq.estimates import Estimate
from bnuq.findings import Finding, verdict
from bnuq.methods import method_named
from bnuq.metrics import delong_difference_variance
from bnuq.records.approximation import approximations
from bnuq.records.best_scores import aurocs_of, best_score, can_be_judged
from bnuq.records.decisions import decided
from bnuq.records.evaluation import ReferenceCheck, Result
from bnuq.records.reference import averages_lag, is_doubtful
from bnuq.records.verdict import OTHER_SCALE, judged, on_another_scale
from bnuq.report import ood
from bnuq.report.classification_findings import classification_findings
from bnuq.report.regression_findings import regression_findings

_FAILED = "reference-mismatch", "reference-differs"
_UNLABELLED = "labels-missing"
_CAUTIONS = _UNLABELLED, *_FAILED, OTHER_SCALE  # stand first, before the verdict


def answers(result: Result, verdicts: Sequence[Finding]) -> tuple[tuple[Finding, ...], int]:
    """The decisions and then the verdicts; and how many of these are the essence: up to the verdict on all methods."""
    decisions = decided(result)
    return (*decisions, *verdicts), len(decisions) + sum(each.code in _CAUTIONS for each in verdicts) + 1


def is_of_one_method(finding: Finding, result: Result) -> bool:
    """Whether it is of one method among several: the verdict on all methods stands before these."""
    if len({method_named(name).plain for name in result.methods}) > 2:
        return finding.code.startswith(("explains-", "sigma-", "intervals-"))
    return finding.code.startswith("explains-labels")


def findings(result: Result) -> Iterator[Finding]:
    """The answers: whether the sets and the reference fit, and whether samples improve on single passes; then on the
    test set, each OOD set and the noise models.

    A set whose inputs are on another scale than the reference's is left out; so is the test set where that is so of the
    validation set, because what was fitted to it enters the scores."""
    check = result.reference_check
    rescaled = on_another_scale(result.findings)
    test, of_first = result.sets["test"], result.methods[result.first].sets["test"].estimates
    if test.labels is None and test.targets is None and "accuracy" not in of_first:  # of images these are not kept
        yield verdict(_UNLABELLED, what="targets" if result.task.is_regression else "labels")
    for name, values in rescaled.items():
        yield verdict(OTHER_SCALE, set=name, sd=values["sd"], reference_sd=values["reference_sd"])
    reference_finding = None if check is None else _of_reference(check, result)
    if reference_finding is not None and reference_finding.code in _FAILED:
        yield reference_finding
    yield from judged(result).findings
    if not rescaled.keys() & {"test", "validation"}:
        yield from regression_findings(result) if result.task.is_regression else classification_findings(result)
    if "test" not in rescaled:
        yield from (_separation(result, name) for name in ood.names(result) if name not in rescaled)
        yield from _noise_models(result)
    if reference_finding is not None and reference_finding.code not in _FAILED:
        yield reference_finding


def _of_reference(check: ReferenceCheck, result: Result) -> Finding:
    """The outcome of the reference check; a mismatch where it failed and one pass differs by the reference's
    statistics."""
    if is_doubtful(check, result.methods):
        return verdict("reference-mismatch", lags=averages_lag(check, result.methods))
    median, worst = (float(statistic(check.ratios, axis=0).max()) for statistic in (np.median, np.max))
    if check.passed:
        return verdict("reference-match", median=median, worst=worst)
    return verdict("reference-differs", median=median, worst=worst, elsewhere=check.fits)


def _separation(result: Result, name: str) -> Finding:
    """How well the best of all scores separates a set from the test set, and how far behind it is the best of the
    others: of those that take several passes if it takes one, and the reverse. Both are judged on other points than
    they are chosen on."""
    keys = aurocs_of(result, [name])
    best = best_score(result, [name], keys)
    is_single = result.is_single(best.method)
    rest = [key for key in keys if result.is_single(key[0]) != is_single]
    other = best_score(result, [name], rest) if rest else None
    auroc = best.auroc(result, name)
    compared = (each for each in judged(result).comparisons if (each.metric, each.set) == ("auroc", name))
    better = {(each.method, each.score) for each in compared if each.is_better}
    may_be_chance = other is not None and not is_single and (best.method, best.score) not in better
    pair = [(each.method, each.score) for each in (best, other) if each is not None]
    return verdict(
        _separation_code(auroc) if can_be_judged(result, name) else "ood-unjudged",
        name=name,
        method=best.method,
        score=best.score,
        auroc=auroc,
        tried=best.tried,
        crossfitted=best.crossfitted is not None,
        other=None if other is None else (*pair[1], other.auroc(result, name).value),
        error=math.nan if other is None else _error_of_difference(result, name, *pair),
        may_be_chance=may_be_chance,
    )


def _error_of_difference(result: Result, name: str, first: tuple[str, str], second: tuple[str, str]) -> float:
    """The error of the difference of two AUROCs of a set, over the same points and over the draws of both."""
    pairs, mc_errors = [], []
    for method, score in (first, second):
        method_result = result.methods[method]
        pairs.append(method_result.ranked(score, name))
        mc_errors.append(method_result.ood[name][score]["auroc"].mc_se or 0.0)
    test, ood = result.sets["test"], result.sets[name]
    variance = delong_difference_variance(pairs[0], pairs[1], test_group=test.group, ood_group=ood.group)
    return math.hypot(math.sqrt(variance), *mc_errors)


def _separation_code(auroc: Estimate) -> str:
    if auroc.low is None or auroc.high is None:
        return "ood-unjudged"
    if auroc.high < 0.5:
        return "ood-more-familiar"
    if auroc.low <= 0.5:
        return "ood-not-separated"
    return f"ood-{'well' if auroc.value >= 0.9 else 'partly' if auroc.value >= 0.7 else 'hardly'}-separated"


def _noise_models(result: Result) -> Iterator[Finding]:
    """How far every analytic noise model is from MCBN, if that was evaluated."""
    compared = approximations(result)
    for model in compared:
        outcome = "understates" if model.understates else "overstates" if model.overstates else "compared"
        yield verdict(f"noise-model-{outcome}", model=model)
    if not compared and (methods := [name for name in result.methods if method_named(name).approximates]):
        yield verdict("noise-model-unchecked", methods=tuple(methods))
