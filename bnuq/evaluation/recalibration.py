"""The recalibrations of a run: which points they are fitted to, the halves of a cross-fit, and what is said of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from bnuq import metrics
from bnuq.config import Recalibration, recalibration_of
from bnuq.data import Masks, Points
from bnuq.errors import RequestError
from bnuq.evaluation.datasets import held_out_rows
from bnuq.evaluation.subject import VALIDATION, Subject
from bnuq.findings import Finding, note, warning
from bnuq.metrics import LogitMaps
from bnuq.sampling import counter_rng

LEAST_POINTS = 20  # labelled test points of a cross-fit: ten a half
LEAST_POINTS_OF_PARAMETER = 10


@dataclass(frozen=True)
class Recalibrated:
    """The maps of one method's logits, fitted to `points` points: that of all of them and, cross-fitted, those of each
    half of the test set, of which these are the `second`. A test point then has that of the half without it."""

    scale: Float[np.ndarray, "map class"]
    shift: Float[np.ndarray, "map class"]
    points: int
    second: Bool[np.ndarray, " point"] | None = None

    def of(self, name: str, points: Points) -> LogitMaps:
        """The maps of the points of the set of this name; perturbed points have those of the test points."""
        crossed = self.second if name.partition("+")[0] == "test" and len(points) == self.points else None
        numbers = np.zeros(len(points), int) if crossed is None else np.where(crossed, 1, 2)
        return LogitMaps(self.scale, self.shift, numbers)


def fitted(
    kind: Recalibration,
    pll: Float[np.ndarray, "temperature point"],
    samples: Callable[[], Float[Tensor, "sample point class"]],
    y: Int64[np.ndarray, " point"] | Masks,
    second: Bool[np.ndarray, " point"] | None = None,
) -> Recalibrated:
    """The recalibration of points with this PLL by temperature, these raw samples and labels; with `second` also that
    of both halves."""
    if kind == "temperature":
        rows_of = [...] if second is None else [..., ~second, second]
        scales = np.array([[1 / metrics.fitted_temperature(pll[:, rows])] for rows in rows_of])
        return Recalibrated(scales, np.zeros_like(scales), pll.shape[1], second)
    assert not isinstance(y, Masks)  # pixels have a temperature alone
    logits = samples()
    maps = [metrics.fitted_vector(logits, y, metrics.fitted_temperature(pll))]
    for half in () if second is None else (~second, second):
        rows = np.flatnonzero(half)
        maps.append(metrics.fitted_vector(logits[:, rows], y[rows], metrics.fitted_temperature(pll[:, rows])))
    scales, shifts = map(np.stack, zip(*maps, strict=True))
    return Recalibrated(scales, shifts, len(y), second)


def second_half(points: Points, seed: int) -> Bool[np.ndarray, " point"]:
    """Whether each point is in the second of two random halves; groups stay together."""
    rows = held_out_rows(len(points), fraction=0.5, seed=seed, group=points.group, purpose=counter_rng.HALVES)
    return np.isin(np.arange(len(points)), rows)


def check_calibration(subject: Subject) -> None:
    """RequestError where the recalibration that a run asks for cannot be fitted."""
    if subject.run.calibrate not in (None, "off"):
        _check_asked(subject, subject.run.calibrate)
    if "vector" in subject.run.scoring.recalibration:
        _check_vector(subject)


def _check_asked(subject: Subject, asked: str) -> None:
    test, validation = subject.sets["test"], subject.sets.get(VALIDATION)
    if subject.todo.task == "regression":
        raise RequestError(
            f"--calibrate {asked} fits a temperature to the logits of a classifier, and this is a regression, whose "
            "observation noise is fitted as [scoring] says. Leave --calibrate out."
        )
    if not (subject.classifies or subject.todo.image):
        raise RequestError(
            f"--calibrate {asked} fits one temperature to the logits of one class per point, and here there are "
            "several labels per point. Leave --calibrate out."
        )
    if asked == "validation" and validation is None:
        raise RequestError(
            "--calibrate validation: there are no validation points to fit a temperature to. Name points that were "
            "held out of training (--validation REF), or fit it on halves of the test set (--calibrate cross)."
        )
    if asked == "validation" and validation is not None and validation.sha256 == test.sha256:
        raise RequestError(
            f"--calibrate validation: the validation points {validation.reference} are the test set, and a temperature "
            "fitted to the labels that judge it looks better than it is. Name other points (--validation REF), or "
            "fit it on halves of the test set (--calibrate cross)."
        )
    if asked == "cross" and test.targets is None:
        raise RequestError(
            f"--calibrate cross fits a temperature to the labels of the test set, and {test.reference} has none. Fit "
            "it to validation points (--validation REF --calibrate validation), or leave --calibrate out."
        )
    if asked == "cross" and (count := len(test if test.group is None else np.unique(test.group))) < LEAST_POINTS:
        raise RequestError(
            f"--calibrate cross: the test set {test.reference} has {count} "
            f"{'points' if test.group is None else 'groups of points'}"
            f"{'' if subject.run.limit is None else f' with --limit {subject.run.limit}'}; "
            f"expected at least {LEAST_POINTS}, for two halves. Fit the temperature to validation points (--validation "
            "REF --calibrate validation), or leave --calibrate out."
        )


def _check_vector(subject: Subject) -> None:
    """RequestError where there is no class to scale, nothing to fit to, or too little."""
    text, leave_out = "--recalibration vector fits a scale and a shift to each class", "Leave vector out."
    if not subject.classifies:
        labels = subject.todo.task == "classification"
        what = "there are several labels per point" if labels else f"this is a {subject.todo.task}"
        raise RequestError(f"{text}, and here {what}. {leave_out}")
    if subject.fitted_to is None:
        raise RequestError(
            f"{text}, and there are no points to fit them to. Name points that were held out of training "
            "(--validation REF), or fit them on halves of the test set (--calibrate cross)."
        )
    points, of_set = subject.sets[subject.fitted_to], "validation points"
    count, expected = len(points), 2 * subject.todo.outputs * LEAST_POINTS_OF_PARAMETER
    if subject.fitted_to == "test":
        second = int(second_half(points, subject.run.seed).sum())
        count, of_set = min(second, count - second), "points in a half of the test set"
    if count < expected:
        raise RequestError(
            f"{text}, {2 * subject.todo.outputs} numbers for {subject.todo.outputs} classes, and there are {count} "
            f"{of_set} ({points.reference}); expected at least {expected}. Name more points, or fit only a temperature "
            "(--recalibration temperature)."
        )


def findings(fits: Mapping[str, Recalibrated]) -> Iterator[Finding]:
    """How the logits of these methods were recalibrated, and which temperatures lie at an end of their range."""
    if not fits:
        return
    temperatures: list[list[Any]] = []
    vectors: list[list[Any]] = []
    for method, fit in fits.items():
        if recalibration_of(method) == "vector":
            vectors.append([method, fit.scale[0].tolist(), fit.shift[0].tolist()])
        else:
            used = fit.scale[1:] if len(fit.scale) > 1 else fit.scale
            temperatures.append([method, *(1 / used[:, 0]).tolist()])
    points = next(iter(fits.values())).points
    if any(fit.second is not None for fit in fits.values()):
        made = (
            note("temperature-cross-fitted", temperatures=temperatures, points=points),
            note("vector-cross-fitted", maps=vectors, points=points),
        )
    else:
        made = (
            note("temperature-fitted", temperatures=temperatures, points=points),
            note("vector-fitted", maps=vectors, points=points),
        )
    yield from (finding for finding, of in zip(made, (temperatures, vectors), strict=True) if of)
    range_ends = metrics.TEMPERATURES[0], metrics.TEMPERATURES[-1]
    ends = {method: end for method, *values in temperatures for end in values if end in range_ends}
    if ends:
        yield warning("temperature-at-end", temperatures=[list(item) for item in ends.items()])
