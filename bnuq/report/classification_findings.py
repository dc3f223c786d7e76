"""The findings of the test set of a classification."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import NormalDist

import numpy as np

from bnuq.findings import Finding, verdict
from bnuq.records.evaluation import FEWEST_POINTS, Result, Scored
from bnuq.records.verdict import is_mismatched
from bnuq.report.method_names import plain_sampled
from bnuq.report.metric_changes import compared_with, metric_change, population_change

_FAR, _CHANCE = 0.25, 0.001  # below the mean accuracy, and the chance that any class is so far below it
_NAMED = 3  # classes in a sentence


def classification_findings(result: Result) -> Iterator[Finding]:
    test = result.methods[result.first].sets["test"].estimates
    if "accuracy" not in test:  # of points without labels
        return
    if not isinstance(result, Scored):
        yield verdict("deterministic-classification", accuracy=test["accuracy"], pll=test["pll"])
    yield from _collapsed(result)
    if isinstance(result, Scored):  # the verdict compares the files
        return
    yield from population_change(result, "pll")
    yield from (_labels(name, result) for name in plain_sampled(result))


def _labels(name: str, result: Result) -> Finding:
    network = compared_with(name, result)
    after, before = (result.methods[method].sets["test"] for method in (name, network))
    metrics = "pll", "accuracy"
    pll, accuracy = (metric_change(m, before.estimates[m], before.points[m], after, name, result) for m in metrics)
    ece = (before.estimates["ece"].value, after.estimates["ece"].value)
    outcome = "unjudged" if pll.verdict == "better" and is_mismatched(result) else pll.verdict
    return verdict(f"explains-labels-{outcome}", method=name, network=network, pll=pll, accuracy=accuracy, ece=ece)


def _collapsed(result: Result) -> Iterator[Finding]:
    """The classes of which far fewer points are right than of all, under the method where most are: more than a quarter
    of the points fewer, and more than chance gives to any of so many classes."""
    test = result.sets["test"]
    if test.labels is None or test.labels.ndim > 1:
        return
    classes, point_class, count = np.unique(test.labels, return_inverse=True, return_counts=True)
    candidates: dict[str, tuple[np.ndarray, np.ndarray, float]] = {}
    for name, method in result.methods.items():
        right = method.sets["test"].points["accuracy"]
        with np.errstate(over="ignore", invalid="ignore"):  # in a file that was spoiled
            mean, class_accuracy = float(right.mean()), np.bincount(point_class, weights=right) / count
            limit = NormalDist().inv_cdf(1 - _CHANCE / len(classes)) * np.sqrt(max(0.0, mean * (1 - mean)) / count)
            below = (mean - class_accuracy > np.maximum(limit, _FAR)) & (count >= FEWEST_POINTS)
        candidates[name] = np.flatnonzero(below), class_accuracy, mean
    name = max(candidates, key=lambda name: len(candidates[name][0]))
    collapsed, class_accuracy, mean = candidates[name]
    if not len(collapsed):
        return
    worst = collapsed[np.argsort(class_accuracy[collapsed], kind="stable")][:_NAMED]
    names = [test.classes[k] if k < len(test.classes) else str(k) for k in classes[worst].tolist()]
    shown = [[each, float(class_accuracy[at]), int(count[at])] for each, at in zip(names, worst.tolist(), strict=True)]
    yield verdict("classes-far-below", method=name, classes=shown, collapsed=len(collapsed), mean=mean)
