"""Scores a network on the test set before and after its statistics are replaced."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from bnuq import metrics
from bnuq.config import DrawSettings, Run, ScoreSettings
from bnuq.config.effects import ERRORS, NAMES, data_without_effect
from bnuq.data import Points
from bnuq.errors import ModelError
from bnuq.estimates import Estimate
from bnuq.evaluation.estimates import replicate_weights
from bnuq.evaluation.passes import deterministic_outputs
from bnuq.evaluation.plan import plan_of
from bnuq.evaluation.setup import Prepared, findings_on_labels, findings_on_outputs, scored_sets
from bnuq.evaluation.tasks.scorer import ScoredSet
from bnuq.findings import Finding, note
from bnuq.metrics.registry import metric_of
from bnuq.metrics.replicates import independent_units
from bnuq.progress import Progress
from bnuq.records.evaluation import FEWEST_POINTS, SetResult
from bnuq.sampling.sites import Sites
from bnuq.studies.precise_bn.record import EstimateChange, TestChange

_ESTIMATES = {
    metric: metric_of(metric).direction for metric in ("accuracy", "rmse", "mae", "pll", "crps")
}  # as tasks have


def scoring_of_test_set(
    run: Run, prepared: Prepared, sites: Sites, progress: Progress
) -> tuple[Callable[[], SetResult] | None, tuple[Finding, ...]]:
    """A function that scores the network's current state on the test set; None, and why, where that is not possible."""
    if run.test is None:
        return None, ()
    if run.task == "segmentation":
        return None, (note("no-comparison", reason="they need a classification or a regression"),)
    untracked = next((site for site in sites.live_batchnorms if not site.tracked), None)
    if untracked is not None:
        reason = f"BatchNorm {untracked.name} keeps no running statistics, so the network has no evaluation mode"
        return None, (note("no-comparison", reason=reason),)
    data, model = replace(prepared.data, validation=None), prepared.model
    settings = replace(DrawSettings.of(run), methods=()), ScoreSettings.of(run)
    plan = plan_of(*settings, model, prepared.example, test=data.test, train=data.train)
    try:
        findings_on_outputs(prepared, plan)
    except ModelError as error:
        return None, (note("no-comparison", reason=str(error)),)
    sets, scorer = scored_sets(run, plan, data)
    test, draws = sets["test"], replicate_weights(1)
    scorer = scorer.fitted_to(None, draws)

    def scored() -> SetResult:
        reduction = scorer.reduction(ScoredSet(test, draws, labelled=True))
        with progress(f"Evaluating {len(test)} examples", len(test)) as advance:
            for block in deterministic_outputs(model, prepared.pipeline, test):
                reduction.add(block)
                advance(block.shape[1])
        scores = reduction.scores(group=test.group)
        return scorer.result({"test": scores}, draws).sets["test"]

    idle = data_without_effect(run, sets.values(), plan.task, (ERRORS, NAMES))
    return scored, (*findings_on_labels([test], test=test, outputs=plan.outputs), *idle)


def change_on_test_set(test: Points, old: SetResult, new: SetResult) -> TestChange:
    estimates = {}
    for name, direction in _ESTIMATES.items():
        if name not in old.estimates:
            continue
        with np.errstate(invalid="ignore"):  # a PLL of −∞ makes the error NaN
            influence = metric_of(name).computed.influence
            apart = influence(new.points, test.group) - influence(old.points, test.group)
            change = new.estimates[name].value - old.estimates[name].value
        error: float | None = metrics.standard_error(apart, group=test.group)
        if independent_units(len(test), test.group) < FEWEST_POINTS:
            error = None  # an error from so few is itself by chance
        estimates[name] = EstimateChange(
            old.estimates[name], new.estimates[name], Estimate(change, se=error), direction
        )
    return TestChange(test.reference, test.sha256, len(test), estimates)
