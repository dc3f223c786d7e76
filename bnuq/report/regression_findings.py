"""The findings of the test set of a regression."""

from __future__ import annotations

import math
from collections.abc import Iterator

from bnuq.findings import Finding, verdict
from bnuq.metrics.replicates import independent_units
from bnuq.records.evaluation import Result, Scored
from bnuq.records.verdict import is_mismatched
from bnuq.report.metric_changes import MetricChange, compared_with, metric_change, population_change
from bnuq.report.numbers import total

_PARTLY = 0.2  # rank correlation from which σ partly follows the errors


def regression_findings(result: Result) -> Iterator[Finding]:
    if isinstance(result, Scored):  # the verdict compares the files
        for name in result.methods:
            yield from _intervals(name, result)
        return
    test = result.methods[result.first].sets["test"].estimates
    yield verdict("deterministic-regression", test=test)
    yield from population_change(result, "mae")
    sampled = result.sampled
    if "tau" not in test:
        yield verdict("tau-unknown", sampled=bool(sampled))
    for name in sampled:
        yield from _targets(name, result)
        yield _ranking(name, result)
        yield from _intervals(name, result)


def _targets(name: str, result: Result) -> Iterator[Finding]:
    """Whether the scores are better than those of a constant σ, or if there is none, of a deterministic network."""
    changes = tuple(change for metric in ("crps", "pll") if (change := _score_change(metric, name, result)))
    if changes:
        verdicts = {change.verdict for change in changes}
        if "better" in verdicts and is_mismatched(result):
            verdicts = {"unjudged"}
        outcome = "unknown" if "unknown" in verdicts else verdicts.pop() if len(verdicts) == 1 else "mixed"
        constant = "constant" in result.methods[name].bounds
        network = None if constant else compared_with(name, result)
        yield verdict(f"explains-targets-{outcome}", method=name, network=network, changes=changes)


def _score_change(metric: str, name: str, result: Result) -> MetricChange | None:
    method = result.methods[name]
    test, network = method.sets["test"], result.methods[compared_with(name, result)].sets["test"]
    kind = result.given_distribution or result.run.get("scoring", {}).get("crps")
    if metric not in test.points or (metric == "crps" and kind in ("ensemble", "fair", "quantiles")):
        return None
    if "constant" in method.bounds:
        before, points = method.bounds["constant"][metric], test.points.get(f"{metric}_constant")
    else:
        before, points = network.estimates[metric], network.points.get(metric)
    return metric_change(metric, before, points, test, name, result, method.normalized.get(metric))


def _ranking(name: str, result: Result) -> Finding:
    """Whether errors are larger where σ is."""
    correlation = result.methods[name].sets["test"].estimates.get("spearman")
    if correlation is None or math.isnan(correlation.value):
        code = "sigma-constant"
    elif correlation.low is None or correlation.high is None:
        code = "sigma-unjudged"
    elif correlation.high < 0:
        code = "sigma-opposes-errors"
    elif correlation.low <= 0:  # which shows no correlation only where it leaves no room for one that counts
        code = "sigma-unrelated-to-errors" if correlation.high < _PARTLY else "sigma-unjudged"
    else:
        how = "" if correlation.value >= 0.5 else "partly-" if correlation.value >= _PARTLY else "hardly-"
        code = f"sigma-{how}follows-errors"
    return verdict(code, method=name, correlation=correlation)


def _intervals(name: str, result: Result) -> Iterator[Finding]:
    """Whether central intervals cover as many targets as they should, beyond twice the error and what chance gives."""
    estimates, test = result.methods[name].sets["test"].estimates, result.sets["test"]
    if not {"coverage50", "coverage95"} <= estimates.keys():
        return
    independent = independent_units(test.n, test.group)
    miscalibrated: dict[int, str] = {}
    for level in (50, 95):
        estimate = estimates[f"coverage{level}"]
        excess = estimate.value - level / 100
        chance_error = math.sqrt(level / 100 * (1 - level / 100) / independent)
        if abs(excess) > 2 * max(total(estimate) or 0.0, chance_error):  # an error of 0 is of a coverage of 0 or 1
            miscalibrated[level] = "wide" if excess > 0 else "narrow"
    code = "intervals-miscalibrated" if miscalibrated else "intervals-calibrated"
    yield verdict(code, method=name, test=estimates, wrong=miscalibrated)
