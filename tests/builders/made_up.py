"""Results made up of numbers: what `check` compares, without a network."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from bnuq.estimates import Estimate
from bnuq.metrics import bootstrap_error, draw_weights, jackknife_error, standard_error
from bnuq.records.evaluation import EvaluatedSet, MethodResult, Result, SetResult

RESAMPLES = 100


def estimate_of_mean(samples: np.ndarray, *, group: np.ndarray | None = None, stepped: bool = False) -> Estimate:
    """The mean of (T, n) values, with the errors and replicates that an evaluation gives it."""
    draws = draw_weights(len(samples), resamples=RESAMPLES, seed=0)
    replicates = (draws.weights @ samples).mean(1)
    jackknife, bootstrap = replicates[draws.jackknife], replicates[draws.bootstrap]
    error = bootstrap_error(bootstrap, samples=len(samples)) if stepped else jackknife_error(jackknife)
    return Estimate(
        value=float(samples.mean()),
        se=standard_error(samples.mean(0), group=group),
        mc_se=float(error) if len(samples) >= 8 else None,
        jackknife=jackknife,
        bootstrap=bootstrap,
    )


def plain_estimate(points: np.ndarray) -> Estimate:
    """The mean of per-point values of the network as it is, which no draw moves."""
    return Estimate(value=float(points.mean()), se=standard_error(points))


def result(
    *,
    mcbn: Mapping[str, np.ndarray],
    plain: Mapping[str, np.ndarray] | None = None,
    group: np.ndarray | None = None,
    path: str = "current.h5",
    method: str = "mcbn",
    **sampling: Any,
) -> Result:
    """A result whose estimates are means on the test set: of (T, n) values of mcbn, or of `method`
    in its place, and of (n,) values of the network."""
    (samples, points) = next(iter(mcbn.values())).shape
    plain = plain or {"pll": np.zeros(points)}
    methods = {
        "deterministic": _method({name: plain_estimate(values) for name, values in plain.items()}, dict(plain)),
        method: _method(
            {name: estimate_of_mean(values, group=group, stepped=name == "accuracy") for name, values in mcbn.items()},
            {name: values.mean(0) for name, values in mcbn.items()},
        ),
    }
    drawn = {"samples": samples, "bank": None, "batch_size": 16, "seed": 0, "device": "cpu"}
    drawn |= {"precision": "float32"} | sampling
    return Result(
        run={"data": {}, "sampling": {"layers": "all"}},
        model={"path": "model.pt", "sha256": "0" * 64, "task": "classification"},
        sampling=drawn,
        sets={"test": EvaluatedSet("test", "test", "test.npz", "1" * 64, points, group=group)},
        methods=methods,
        findings=(),
        seconds={"total": 1.0},
        provenance={"bnuq": "0.1.0", "time": "2026-01-01T00:00:00+00:00", "reference_sha256": "2" * 64},
        path=Path(path),
    )


def _method(estimates: Mapping[str, Estimate], points: Mapping[str, np.ndarray]) -> MethodResult:
    n = len(next(iter(points.values())))
    one = SetResult(estimates=estimates, points=points, predicted=np.zeros(n, dtype=np.int64))
    return MethodResult(sets={"test": one}, ood={}, convergence={}, calibration={}, risk={})


def with_estimate(given: Result, method: str, metric: str, **changes: Any) -> Result:
    """`given` with an estimate of its test set changed, and its points to that value; left out for `value=None`."""
    found = given.methods[method]
    one = found.sets["test"]
    estimates = dict(one.estimates)
    if changes == {"value": None}:
        del estimates[metric]
    else:
        estimates[metric] = replace(estimates[metric], **changes)
    points = dict(one.points)
    if changes.get("value") is not None:
        points[metric] = np.full(len(points[metric]), changes["value"])
    sets = {**found.sets, "test": replace(one, estimates=estimates, points=points)}
    return replace(given, methods={**given.methods, method: replace(found, sets=sets)})


def changed(result: Result, method: str, **changes: object) -> Result:
    """The result, with these fields of one method replaced."""
    return replace(result, methods=dict(result.methods) | {method: replace(result.methods[method], **changes)})


def with_test(result: Result, method: str, **changes: object) -> Result:
    """The result, with these fields of one method on the test set replaced."""
    sets = result.methods[method].sets
    return changed(result, method, sets=dict(sets) | {"test": replace(sets["test"], **changes)})


def with_estimates(result: Result, method: str, **estimates: Estimate) -> Result:
    return with_test(result, method, estimates=dict(result.methods[method].sets["test"].estimates) | estimates)
