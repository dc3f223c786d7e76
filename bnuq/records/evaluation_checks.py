"""Checks that the parts of an evaluation's result are complete and fit together."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from bnuq.config import ScoringSection
from bnuq.estimates import Estimator, require
from bnuq.methods import DETERMINISTIC, method_named
from bnuq.metrics import METRICS, SEPARATIONS
from bnuq.metrics.estimands import Estimand
from bnuq.records.addresses import estimates_of
from bnuq.records.evaluation import (
    PIXEL_MEANS,
    WITH_ERRORS,
    MethodResult,
    Result,
    Scored,
)
from bnuq.records.evaluation_parts import (
    check_gallery,
    check_image_maps,
    check_labels,
    check_parts,
    check_regression,
    check_sets,
    further_axes,
)
from bnuq.tasks import Task, TaskName


def check_texts(result: Result) -> None:
    """Raise ValueError if something that a report shows is missing; the run is checked when it is run again."""
    counts = dict.fromkeys(("parameters", "batchnorm_layers", "dropout_layers", "learned_layers"), int)
    if isinstance(result, Scored):
        counts = {}
        for file in result.model["files"].values():
            require(file, path=str, sha256=str, samples=int, outputs=str)
    outputs = {"outputs" if result.model.get("task") == "regression" else "classes": int, "labels": int | None}
    require(result.model, path=str, task=TaskName, **counts, **outputs)
    require(
        result.sampling, samples=int, batch_size=int | None, bank=int | None, seed=int, device=str, precision=str,
        mutual_information=Estimator | None,
    )  # fmt: skip
    require(result.seconds, total=float)
    members = result.model.get("members", [])
    if not isinstance(members, list) or not all(isinstance(member, Mapping) for member in members):
        raise ValueError("the networks of the ensemble are not a list")
    for member in members:
        require(member, path=str, sha256=str)
    if not members and any("networks" in method_named(method).differs_by for method in result.methods):
        raise ValueError("the networks of the ensemble are missing")
    require(result.provenance, bnuq=str)
    run = {"data": {}, **result.run}
    if isinstance(scoring := run.get("scoring"), dict):  # a newer version may have settings of its own
        run["scoring"] = {key: scoring[key] for key in scoring if key in ScoringSection.__struct_fields__}
    require(run, data=dict[str, Any], sampling=dict[str, Any] | None, scoring=ScoringSection | None)
    require(run["data"], train=str | None)


def check_complete(result: Result) -> None:
    """Raise ValueError if an estimate is missing that every result has, or is one that this version cannot know."""
    for address, row in estimates_of(result).items():
        if math.isinf(row.estimate.se or 0) or math.isinf(row.estimate.mc_se or 0):
            raise ValueError(f"the error of {address} is infinite")
    expected = next(iter(result.model["files"])) if isinstance(result, Scored) else DETERMINISTIC
    if next(iter(result.methods), None) != expected or "test" not in result.sets:
        raise ValueError("the first method or the test set is missing")
    check_sets(result)
    task, test = result.task, result.sets["test"]
    required = {name: estimand for name, estimand in METRICS.items() if task.name in estimand.required}
    has_truth = {
        "classification": test.labels is not None,
        "segmentation": bool(result.methods[result.first].sets["test"].by_class),
        "regression": test.targets is not None,
    }[task.name]
    if not has_truth and task.is_regression:
        raise ValueError("the truth about the test set is missing")
    points = _required_points(required.values(), task) if has_truth else set()
    ood_sets = {name for name, evaluated in result.sets.items() if evaluated.kind in ("ood", "perturbed")}
    for method, method_result in result.methods.items():
        if set(method_result.sets) != ood_sets | {"test"} or set(method_result.ood) != ood_sets:
            raise ValueError(f"{method} was not evaluated on every set")
        for name in method_result.sets:
            _check_set(result, method, name, required, has_truth=has_truth)
        _check_separations(result, method)
        if task.is_regression:
            check_regression(method, method_result)
        if missing := points - set(method_result.sets["test"].points):
            raise ValueError(f"the {min(missing)} of the points of {method} are missing")
        _check_curves(method, method_result)
    check_gallery(result)
    if result.image_maps is not None:
        check_image_maps(result, result.image_maps)
    if result.reference_check and not result.reference_check.layers:
        raise ValueError("the reference check has no layers")


def _check_set(result: Result, method: str, name: str, required: Mapping[str, Estimand], *, has_truth: bool) -> None:
    """Raise ValueError if an estimate of a method on a set is missing, or is of a truth that is."""
    set_result, evaluated = result.methods[method].sets[name], result.sets[name]
    needing_truth = {key for key, estimand in required.items() if estimand.needs_truth}
    if not has_truth and (scored := needing_truth & {*set_result.estimates}):
        raise ValueError(f"estimate {min(scored)} of {method} on {name} is of labels that are missing")
    is_scored = has_truth and (name == "test" or evaluated.kind == "perturbed")
    needs_samples = {key for key, estimand in required.items() if estimand.needs_samples}
    needed = {*required} - (set() if is_scored else needing_truth)
    needed -= needs_samples if result.samples_of(method) == 1 else set()
    if missing := needed - set(set_result.estimates):
        raise ValueError(f"estimate {min(missing)} of {method} on {name} is missing")
    axes = (int(result.model["classes"]),) if result.task.is_dense else further_axes(result)
    if set_result.predicted.shape != (evaluated.n, *axes):
        raise ValueError(f"the predictions of {method} on {name} are of another shape")
    check_parts(result, method, name)
    if name == "test" or set_result.by_label:
        check_labels(result, method, name)


def _check_separations(result: Result, method: str) -> None:
    """Raise ValueError if a separation from the test set is missing, or the values of points that it is made of."""
    method_result = result.methods[method]
    may_be_empty = result.samples_of(method) == 1 and result.task.is_regression
    for name, scores in method_result.ood.items():
        for score in scores:
            has_values = all(score in method_result.sets[key].points for key in ("test", name))
            if not has_values or any(np.isnan(values).any() for values in method_result.ranked(score, name)):
                raise ValueError(f"the {score} of the points of {method} is missing")
        incomplete = any(set(estimates) - {WITH_ERRORS} != {*SEPARATIONS} for estimates in scores.values())
        if incomplete or not (scores or may_be_empty):
            raise ValueError(f"estimates of {method} on {name} against the test set are missing")


def _check_curves(method: str, result: MethodResult) -> None:
    """Raise ValueError if a curve of a method lacks one of its axes."""
    if result.convergence and "samples" not in result.convergence:
        raise ValueError(f"the convergence of {method} is incomplete")
    if result.class_calibration and set(result.class_calibration) != _OF_CLASSES:
        raise ValueError(f"the reliability of the classes of {method} is incomplete")


def _required_points(estimands: Iterable[Estimand], task: Task) -> set[str]:
    """The values of points that every result of a task has where the truth is known: those that required estimates
    are computed from, of images the means over their pixels."""
    if task.is_dense:
        return {"pixels"} | {
            estimand.name for estimand in estimands if estimand.needs_truth and estimand.name in PIXEL_MEANS
        }
    return {name for estimand in estimands if estimand.needs_truth for name in estimand.computed.needs}


_OF_CLASSES = {"count", "confidence", "accuracy"}
