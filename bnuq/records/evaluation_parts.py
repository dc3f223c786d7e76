"""Checks that the parts of one evaluated set, method or image fit together."""

from __future__ import annotations

import numpy as np

from bnuq.perturbations import change_in
from bnuq.records.evaluation import (
    LARGEST,
    LARGEST_MAP,
    NOT_SCORED,
    OF_POINTS,
    PARTS,
    ImageMaps,
    MethodResult,
    Result,
)


def check_sets(result: Result) -> None:
    if any(evaluated.kind == "ood" and name == "validation" for name, evaluated in result.sets.items()):
        raise ValueError("a set out of distribution is called validation")
    perturbed = [name for name, evaluated in result.sets.items() if evaluated.kind == "perturbed"]
    if any(change_in(name) is None for name in perturbed):
        raise ValueError("a perturbed set has another name")
    for evaluated in result.sets.values():
        point_values = (getattr(evaluated, name) for name in ("labels", "targets", "group", "index", "names"))
        if any(len(values) != evaluated.n for values in point_values if values is not None):
            raise ValueError(f"the labels, targets, groups or names of {evaluated.name} are not as many as its points")
        numbers = np.arange(len(evaluated.group_names))
        if evaluated.group is not None and numbers.size and not np.isin(evaluated.group, numbers).all():
            raise ValueError(f"a group of {evaluated.name} has no name")
        if evaluated.names is not None and not all(isinstance(name, str) for name in evaluated.names):
            raise ValueError(f"the names of the points of {evaluated.name} are not strings")


def check_gallery(result: Result) -> None:
    for shown in result.gallery:
        evaluated = result.sets.get(shown.set)
        if evaluated is None or shown.method not in result.methods or len(shown.points) != len(shown.pixels):
            raise ValueError(f"the images of {shown.set} are not those of a set and a method")
        if shown.points.size and not 0 <= shown.points.min() <= shown.points.max() < evaluated.n:
            raise ValueError(f"an image of {shown.set} is of no point")
        if shown.pixels.shape[3] not in (1, 3) or 0 in shown.pixels.shape or max(shown.pixels.shape) > LARGEST:
            raise ValueError(f"the images of {shown.set} are of another shape")


def check_image_maps(result: Result, shown: ImageMaps) -> None:
    """Raise ValueError if the maps of images are not those of the test set of a segmentation, or of their size."""
    shape, classes = shown.predicted.shape, result.model.get("classes", 0)
    if shown.method not in result.methods or not result.task.is_dense or "predictive_entropy" not in (shown.scores):
        raise ValueError("the maps of images are not those of a method")
    if not shown.points.size or not 0 <= shown.points.min() <= shown.points.max() < result.sets["test"].n:
        raise ValueError("a map belongs to no image")
    maps = [shown.predicted, *shown.scores.values(), *(() if shown.truth is None else (shown.truth,))]
    if 0 in shape or max(shape[1:]) > LARGEST_MAP or any(values.shape != shape for values in maps):
        raise ValueError("the maps of images are of another shape")
    if shown.pixels is not None and (shown.pixels.shape[:3] != shape or shown.pixels.shape[3] not in (1, 3)):
        raise ValueError("the images with maps are of another shape")
    for classes_shown, lowest in ((shown.predicted, 0), (shown.truth, NOT_SCORED)):
        if classes_shown is not None and not lowest <= classes_shown.min() <= classes_shown.max() < classes:
            raise ValueError("a map has unknown classes")


def further_axes(result: Result) -> tuple[int, ...]:
    """The length of the axis that predictions have beside that of the points, if they have one: outputs of a
    regression, or labels."""
    key = "outputs" if result.task.is_regression else "labels"
    return () if result.model.get(key) is None else (result.model[key],)


def check_labels(result: Result, method: str, name: str) -> None:
    """Raise ValueError if the parts of a result with several labels per point do not fit together."""
    set_result, truth = result.methods[method].sets[name], result.sets[name].labels
    labels = further_axes(result) if truth is not None and result.task.is_classification else ()
    shape, names = (result.sets[name].n, *labels), tuple(set_result.by_label)
    if (len(names),) != (labels or (0,)) or names != tuple(result.methods[result.first].sets[name].by_label):
        raise ValueError(f"the labels of {method} on {name} are not those of the result")
    if truth is not None and truth.shape != shape:
        raise ValueError(f"the labels of {name} are of another shape")
    for label, estimates in set_result.by_label.items():
        if missing := {"pll", "accuracy", "ece"} - set(estimates):
            raise ValueError(f"estimate {min(missing)} of label {label} of {method} is missing")
    needed = {"pll", "accuracy", "max_probability", "least_confidence"} if labels else set()
    if missing := needed - set(set_result.label_points):
        raise ValueError(f"the {min(missing)} of the points of {method} by label are missing")
    if any(values.shape != shape for values in set_result.label_points.values()):
        raise ValueError(f"the points of {method} by label are of another shape")


def check_parts(result: Result, method: str, name: str) -> None:
    """Raise ValueError if the estimates by class or group are not those of the set's classes and groups."""
    evaluated, first = result.sets[name], result.methods[result.first].sets[name]
    parts = evaluated.parts
    for kind, field_name in PARTS.items():
        estimates = getattr(result.methods[method].sets[name], field_name)
        dense = result.task.is_dense
        is_of_points = not estimates or dense or tuple(estimates) == tuple(parts.get(kind, ()))
        if tuple(estimates) != tuple(getattr(first, field_name)) or not is_of_points:
            raise ValueError(f"the estimates by {kind} of {method} on {name} are not those of its points")
        needed = {"count", "accuracy", *(("iou", "dice") if dense else ("pll",))}
        known = needed | (set() if dense else {*OF_POINTS})
        if any(not needed <= set(values) <= known for values in estimates.values()):
            raise ValueError(f"an estimate by {kind} of {method} on {name} is missing or unknown")


def check_log_likelihoods(result: Result) -> None:
    """Raise ValueError if a PLL over draws has not those that it is the mean of."""
    if result.task.is_dense:  # of pixels none are kept
        return
    mixture = result.run.get("scoring", {}).get("pll", "mixture") == "mixture"
    for method, method_result in result.methods.items():
        labels = further_axes(result) if result.task.is_classification else ()
        test, shape = method_result.sets["test"], (result.samples_of(method), result.sets["test"].n, *labels)
        sampled = not result.is_single(method) and "pll" in test.points
        complete = test.log_likelihood is not None and test.log_likelihood.shape == shape
        if sampled and not complete and (mixture or result.task.is_classification):
            raise ValueError(f"the log-likelihoods of {method} are missing, or of another shape")


def check_regression(method: str, result: MethodResult) -> None:
    """Raise ValueError if only some of the estimates that belong together are present."""
    estimates = result.sets["test"].estimates
    together = {"crps", *(("coverage50", "coverage95") if "tau" in estimates else ())}  # of quantiles some are unknown
    if {"tau", "coverage50", "coverage95"} & set(estimates) and not together <= set(estimates):
        raise ValueError(f"of tau, crps and coverage of {method} some are missing")
    if any("crps" not in bound for bound in result.bounds.values()):
        raise ValueError(f"a bound of {method} has no CRPS")
    if set(result.normalized) - {"pll_without_exact"} - set(result.bounds.get("constant", ())):
        raise ValueError(f"a normalised score of {method} has no bounds")
    if result.calibration and not {"level", "coverage"} <= set(result.calibration):
        raise ValueError(f"the calibration of {method} is incomplete")
    if set(result.uncertainty_error) != {"rank", "sigma", "error", "running_error"}:
        raise ValueError(f"the errors over uncertainty of {method} are incomplete")
