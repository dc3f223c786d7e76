"""Findings on the result of an evaluation, and what else follows from it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from bnuq.evaluation.datasets import RunData
from bnuq.evaluation.ensemble import findings_on_members
from bnuq.evaluation.estimates import MIN_SAMPLES
from bnuq.evaluation.runner import RunnerResult
from bnuq.evaluation.subject import Subject
from bnuq.findings import Finding, warning
from bnuq.methods import DETERMINISTIC, method_named
from bnuq.metrics.replicates import independent_units
from bnuq.records.approximation import approximations
from bnuq.records.evaluation import Result
from bnuq.records.shift_analysis import shift_of

FEW = 20  # points, below which what is fitted to them is not to be trusted


def findings_on_outcome(subject: Subject, outcome: RunnerResult, data: RunData) -> Iterator[Finding]:
    if any(not site.tracked for site in subject.sites.live_batchnorms):
        yield warning("deterministic-from-reference")
    sizes = {"test": data.test} | data.ood
    if few := [name for name, points in sizes.items() if independent_units(len(points), points.group) < 2]:
        yield warning("too-few-points", sets=few)
    if (error := outcome.methods[DETERMINISTIC].sets["test"].estimates.get("mae")) is not None:
        yield from _findings_on_scale(data, error.value)
    fitted_to = data.validation
    if fitted_to is not None and len(fitted_to) < FEW:
        yield warning("few-validation-points", points=len(fitted_to))
    yield from outcome.findings
    yield from findings_on_members(subject, outcome.methods)
    if subject.draws.methods is None and not any(not method_named(name).is_single for name in outcome.methods):
        yield warning("nothing-stochastic")
    elif outcome.samples < MIN_SAMPLES and any(not method_named(name).is_single for name in outcome.methods):
        yield warning("few-samples", samples=outcome.samples, minimum=MIN_SAMPLES)


def analysed(result: Result) -> Result:
    """The result with what follows from its estimates and points: the analysis of a shift of its inputs, and warnings
    about noise models."""
    findings = (*result.findings, *_findings_on_noise_models(result))
    return replace(result, findings=findings, shift=shift_of(result))


def _findings_on_noise_models(result: Result) -> Iterator[Finding]:
    """Warnings about noise models that differ from MCBN, or cannot be compared with it."""
    compared = approximations(result)
    for model in compared:
        ratio = float(model.ratio["test"].value)
        if model.understates:
            yield warning("noise-model-understates", method=model.method, ratio=ratio)
        if model.overstates:
            yield warning("noise-model-overstates", method=model.method, ratio=ratio)
    if names := [name for name in result.methods if method_named(name).approximates and not compared]:
        yield warning("noise-model-unchecked", methods=names)


def _findings_on_scale(data: RunData, error: float) -> Iterator[Finding]:
    """Warnings where the targets of the sets, or the network's errors, are of different magnitude."""
    sets = {"test": data.test, "validation": data.validation, "the training set": data.train}
    spread = {
        name: float(np.std(np.asarray(points.targets, dtype=np.float64)))
        for name, points in sets.items()
        if points is not None and points.targets is not None
    }
    if len(data.test) >= FEW and error > 1.5 * spread["test"] > 0:
        yield warning("worse-than-the-mean", error=float(error), sd=spread["test"])
    for name, deviation in spread.items():
        if deviation == 0 and len(data.test) >= FEW:
            yield warning("constant-targets", set=name)
        elif spread["test"] > 0 and not 0.1 < deviation / spread["test"] < 10:
            yield warning("targets-of-another-scale", set=name, sd=deviation, test_sd=spread["test"])
