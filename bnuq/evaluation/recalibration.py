"""The recalibrations of a run: which points they are fitted to, the halves of a cross-fit, and what is said of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from bnuq import metrics
from bnuq.data import Points
from bnuq.errors import RequestError
from bnuq.evaluation.subject import LEAST_POINTS, VALIDATION, ScoredSubject
from bnuq.findings import Finding, note
from bnuq.frozen import frozen
from bnuq.methods import Method, Recalibration
from bnuq.metrics import LogitMaps
from bnuq.metrics.arrays import Array, array_namespace, as_numpy
from bnuq.metrics.replicates import independent_units
from bnuq.perturbations import change_in
from bnuq.sampling import counter_rng
from bnuq.sampling.counter_rng import held_out_rows
from bnuq.shapes import Bool, Float, Int64

LEAST_POINTS_OF_PARAMETER = 10
_PART = 2**20  # logits of the points that a search begins with


@frozen
class Recalibrated:
    """The maps of one method's logits, fitted to `points` points: that of all of them and, cross-fitted, those of each
    half of the test set, of which these are the `second`. A test point then has that of the half without it."""

    scale: Float[np.ndarray, "map class"]
    shift: Float[np.ndarray, "map class"]
    points: int
    second: Bool[np.ndarray, " point"] | None = None
    errors: float | None = None  # of the fit with the fewest, where they say how closely a temperature is held near 1

    def of(self, name: str, points: Points) -> LogitMaps:
        """The maps of the points of the set of this name; perturbed points have those of the test points."""
        is_test = name == "test" or change_in(name) is not None
        crossed = self.second if is_test and len(points) == self.points else None
        numbers = np.zeros(len(points), int) if crossed is None else np.where(crossed, 1, 2)
        return LogitMaps(self.scale, self.shift, numbers)


def fitted(
    kinds: Sequence[Recalibration],
    blocks: Callable[[], Iterator[Float[Array, "sample chunk class"]]],
    y: Int64[np.ndarray, " point"],
    second: Bool[np.ndarray, " point"] | None = None,
) -> dict[Recalibration, Recalibrated]:
    """The recalibrations of points whose raw samples come in these blocks; with `second` also those of both halves."""
    rows_of_fits = [np.full(len(y), fill_value=True), *(() if second is None else (~second, second))]
    temperatures, weights = _temperatures(blocks, y, rows_of_fits)
    maps: dict[Recalibration, Recalibrated] = {}
    if "temperature" in kinds:
        maps["temperature"] = _of_temperatures(temperatures, len(y), second, weights)
    if "vector" in kinds:
        parts = [*blocks()]
        logits = array_namespace(*parts).concat(parts, axis=1)
        numbers = zip(map(np.flatnonzero, rows_of_fits), map(float, temperatures), weights, strict=True)
        fits = [metrics.fitted_vector(logits[:, rows], y[rows], *numbers_of) for rows, *numbers_of in numbers]
        scales, shifts = map(np.stack, zip(*fits, strict=True))
        maps["vector"] = Recalibrated(scales, shifts, len(y), second)
    return maps


def fitted_to_images(
    by_temperature: Float[np.ndarray, "likelihood image"], second: Bool[np.ndarray, " image"] | None
) -> Recalibrated:
    """The temperature of images with these likelihoods by temperature, as `TaskScorer.by_temperature` has them; with
    `second` also those of both halves."""
    count = len(metrics.TEMPERATURES)
    pll, own, errors = np.split(by_temperature, [count, 2 * count])
    rows_of_fits = [..., *(() if second is None else (~second, second))]
    weights = [metrics.pseudo_weight(errors[:, rows]) for rows in rows_of_fits]
    held = zip(rows_of_fits, weights, strict=True)
    temperatures = np.array([metrics.fitted_temperature((pll + weight * own)[:, rows]) for rows, weight in held])
    return _of_temperatures(temperatures, pll.shape[1], second, weights)


def _of_temperatures(
    temperatures: Float[np.ndarray, " map"],
    points: int,
    second: Bool[np.ndarray, " point"] | None,
    weights: Sequence[float],
) -> Recalibrated:
    """Of temperatures as they are printed, to three digits, so that these give the same outputs."""
    scales = np.array([[1 / float(f"{temperature:.3g}")] for temperature in temperatures])
    return Recalibrated(scales, np.zeros_like(scales), points, second, metrics.PSEUDO_ERRORS / max(weights))


def _temperatures(
    blocks: Callable[[], Iterator[Float[Array, "sample chunk class"]]],
    y: Int64[np.ndarray, " point"],
    rows_of_fits: Sequence[Bool[np.ndarray, " point"]],
) -> tuple[Float[np.ndarray, " fit"], list[float]]:
    """The temperature of each choice of rows, and the weight that holds it near 1. A grid over the points of a part
    says which maximum is the largest, as the mean of several samples may have more than one; a few passes over all
    points find it, drawn towards 1 by `metrics.pseudo_weight`."""
    part, errors, first, step = list[Array](), list[np.ndarray](), 0, 0
    for block in blocks():
        step = step or max(1, len(block) * len(y) * block.shape[2] // _PART)
        errors.append(metrics.errors_of_points(block, y[first : first + block.shape[1]]))
        part.append(block[:, -first % step :: step])  # every point whose number is a multiple of the step
        first += block.shape[1]
    xp = array_namespace(*part)
    logits = xp.astype(xp.concat(part, axis=1), xp.float64)
    pll = as_numpy(metrics.pll_by_temperature(logits, np.array(y[::step])))
    chosen = [rows[::step] if rows[::step].any() else ... for rows in rows_of_fits]
    start = [metrics.fitted_temperature(pll[:, rows]) for rows in chosen]
    weights = [metrics.pseudo_weight(np.concatenate(errors, axis=1)[:, rows]) for rows in rows_of_fits]

    def slopes(temperatures: Float[np.ndarray, " fit"]) -> Float[np.ndarray, "2 fit"]:
        totals, first = np.zeros((2, len(temperatures))), 0
        for block in blocks():
            chunk = slice(first, first + block.shape[1])
            for fit, (rows, temperature) in enumerate(zip(rows_of_fits, temperatures, strict=True)):
                inside = np.flatnonzero(rows[chunk])
                point_logits, labels = block[:, inside], y[chunk][inside]
                totals[:, fit] += metrics.pll_slopes(point_logits, labels, float(temperature), weights[fit])
            first = chunk.stop
        return totals

    return metrics.refined_temperatures(start, slopes), weights


def second_half(points: Points, seed: int) -> Bool[np.ndarray, " point"]:
    """Whether each point is in the second of two random halves; groups stay together."""
    rows = held_out_rows(len(points), fraction=0.5, seed=seed, group=points.group, purpose=counter_rng.HALVES)
    return np.isin(np.arange(len(points)), rows)


def check_calibration(subject: ScoredSubject) -> None:
    """RequestError where the recalibration that a run asks for cannot be fitted."""
    if subject.run.calibrate not in (None, "off"):
        _check_asked(subject, subject.run.calibrate)
    if "vector" in subject.run.scoring.recalibration:
        _check_vector(subject)


def _check_asked(subject: ScoredSubject, asked: str) -> None:
    test, validation = subject.sets["test"], subject.sets.get(VALIDATION)
    task = subject.plan.task
    is_regression = task.is_regression
    what = "τ and the constant σ" if is_regression else "a temperature"
    if not (task.recalibrations or is_regression):
        raise RequestError(
            f"--calibrate {asked} fits one temperature to the logits of one class per example, and here there are "
            "several labels per example. Leave --calibrate out."
        )
    if asked == "validation" and validation is None:
        raise RequestError(
            f"--calibrate validation: no validation examples to fit {what} to. Name examples that were held out of "
            "training (--validation REF), or fit to halves of the test set (--calibrate cross)."
        )
    if asked == "validation" and validation is not None and validation.sha256 == test.sha256 and not is_regression:
        raise RequestError(
            f"--calibrate validation: the validation examples {validation.reference} are the test set; a temperature "
            "fitted to it would look better than it is. Name other examples (--validation REF), or "
            "fit it on halves of the test set (--calibrate cross)."
        )
    if asked == "cross" and test.targets is None:
        raise RequestError(
            f"--calibrate cross fits {what} to the labels of the test set, and {test.reference} has none. Fit to "
            "validation examples (--validation REF --calibrate validation), or leave --calibrate out."
        )
    if asked == "cross" and (count := independent_units(len(test), test.group)) < LEAST_POINTS:
        raise RequestError(
            f"--calibrate cross: the test set {test.reference} has {count} "
            f"{'examples' if test.group is None else 'groups of examples'}"
            f"{'' if subject.run.limit is None else f' with --limit {subject.run.limit}'}; "
            f"expected at least {LEAST_POINTS}, for two halves. Fit {what} to validation examples (--validation REF "
            "--calibrate validation), or leave --calibrate out."
        )


def _check_vector(subject: ScoredSubject) -> None:
    """RequestError where there is no class to scale, nothing to fit to, or too little."""
    text, leave_out = "--recalibration vector fits a scale and a shift to each class", "Leave vector out."
    task = subject.plan.task
    if "vector" not in task.recalibrations:
        what = "there are several labels per example" if task.outputs == "labels" else f"this is a {task}"
        raise RequestError(f"{text}, and here {what}. {leave_out}")
    if subject.fitted_to is None:
        raise RequestError(
            f"{text}, and there are no examples to fit them to. Name examples that were held out of training "
            "(--validation REF), or fit them on halves of the test set (--calibrate cross)."
        )
    points, noun = subject.sets[subject.fitted_to], "validation examples"
    count, expected = len(points), 2 * subject.plan.outputs * LEAST_POINTS_OF_PARAMETER
    if subject.fitted_to == "test":
        second = int(second_half(points, subject.run.seed).sum())
        count, noun = min(second, count - second), "examples in a half of the test set"
    if count < expected:
        raise RequestError(
            f"{text}, {2 * subject.plan.outputs} numbers for {subject.plan.outputs} classes, and there are {count} "
            f"{noun} ({points.reference}); expected at least {expected}. Name more examples, or fit only a temperature "
            "(--recalibration temperature)."
        )


def findings(fits: Mapping[Method, Recalibrated]) -> Iterator[Finding]:
    """How the logits of these methods were recalibrated, and which temperatures lie at an end of their range."""
    if not fits:
        return
    temperatures: list[list[Any]] = []
    vectors: list[list[Any]] = []
    for method, fit in fits.items():
        if method.recalibration == "vector":
            vectors.append([method.name, fit.scale[0].tolist(), fit.shift[0].tolist()])
        else:
            used = fit.scale[1:] if len(fit.scale) > 1 else fit.scale
            temperatures.append([method.name, *(1 / used[:, 0]).tolist()])
    points = next(iter(fits.values())).points
    errors = min((fit.errors for fit in fits.values() if fit.errors is not None), default=None)
    whole = [float(1 / fit.scale[0, 0]) for method, fit in fits.items() if method.recalibration == "temperature"]
    if any(fit.second is not None for fit in fits.values()):
        made = (
            note("temperature-cross-fitted", temperatures=temperatures, points=points, whole=whole, errors=errors),
            note("vector-cross-fitted", maps=vectors, points=points),
        )
    else:
        made = (
            note("temperature-fitted", temperatures=temperatures, points=points, whole=whole, errors=errors),
            note("vector-fitted", maps=vectors, points=points),
        )
    yield from (finding for finding, of in zip(made, (temperatures, vectors), strict=True) if of)
    limits = metrics.TEMPERATURES[[0, -1]]
    ends = {method: value for method, *values in temperatures for value in values if np.isclose(value, limits).any()}
    if ends:
        yield note("temperature-at-end", temperatures=[list(item) for item in ends.items()])
