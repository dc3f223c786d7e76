"""The temperatures of a run: which points they are fitted to, the halves of a cross-fit, and what is said of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float

from bnuq import metrics
from bnuq.data import Points
from bnuq.errors import RequestError
from bnuq.evaluation.datasets import held_out_rows
from bnuq.evaluation.subject import VALIDATION, Subject
from bnuq.findings import Finding, note
from bnuq.sampling import counter_rng

LEAST_POINTS = 20  # labelled test points of a cross-fit: ten a half


@dataclass(frozen=True)
class Temperatures:
    """The temperature of one method, fitted to `points` points. Cross-fitted, `halves` are those fitted to each half of
    the test set, and `of_test` is that of every test point, fitted to the half without it."""

    of_all: float
    points: int
    halves: tuple[float, float] | None = None
    of_test: Float[np.ndarray, " point"] | None = None

    def of(self, name: str, points: Points) -> Float[np.ndarray, " point"]:
        """The temperature of each point of the set of this name."""
        crossed = self.of_test if name == "test" else None
        return np.full(len(points), self.of_all) if crossed is None else crossed


def fitted(pll: Float[np.ndarray, "temperature point"]) -> Temperatures:
    """The temperature of validation points with this PLL."""
    return Temperatures(metrics.fitted_temperature(pll), pll.shape[1])


def cross_fitted(pll: Float[np.ndarray, "temperature point"], second: Bool[np.ndarray, " point"]) -> Temperatures:
    """The temperatures of both halves of test points with this PLL, of which these are the `second`, and of all."""
    halves = metrics.fitted_temperature(pll[:, ~second]), metrics.fitted_temperature(pll[:, second])
    return Temperatures(metrics.fitted_temperature(pll), pll.shape[1], halves, np.where(second, *halves))


def second_half(points: Points, seed: int) -> Bool[np.ndarray, " point"]:
    """Whether each point is in the second of two random halves; groups stay together."""
    rows = held_out_rows(len(points), fraction=0.5, seed=seed, group=points.group, purpose=counter_rng.HALVES)
    return np.isin(np.arange(len(points)), rows)


def check_calibration(subject: Subject) -> None:
    """RequestError where the temperature that a run asks for cannot be fitted."""
    asked, test, validation = subject.run.calibrate, subject.sets["test"], subject.sets.get(VALIDATION)
    if asked is None or asked == "off":
        return
    if subject.todo.task == "regression":
        raise RequestError(
            f"--calibrate {asked} fits a temperature to the logits of a classifier, and this is a regression, whose "
            "observation noise is fitted as [scoring] says. Leave --calibrate out."
        )
    if not subject.classifies:
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
            f"{'points' if test.group is None else 'groups of points'}; expected at least {LEAST_POINTS}, for two "
            "halves. Fit the temperature to validation points (--validation REF --calibrate validation), or leave "
            "--calibrate out."
        )


def findings(temperatures: Mapping[str, Temperatures]) -> Iterator[Finding]:
    """How the temperatures of these methods were fitted, and which lie at an end of their range."""
    if not temperatures:
        return
    points = next(iter(temperatures.values())).points
    by_method = [[method, *(each.halves or (each.of_all,))] for method, each in temperatures.items()]
    if any(each.halves for each in temperatures.values()):
        yield note("temperature-cross-fitted", temperatures=by_method, points=points)
    else:
        yield note("temperature-fitted", temperatures=by_method, points=points)
    range_ends = metrics.TEMPERATURES[0], metrics.TEMPERATURES[-1]
    ends = {method: end for method, *values in by_method for end in values if end in range_ends}
    if ends:
        yield note("temperature-at-end", temperatures=[list(item) for item in ends.items()])
