"""Of equal models at most one check in twenty fails, also on few points; and what is really worse fails there."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from statistics import NormalDist

import made_up
import numpy as np
import pytest

from bnuq import metrics
from bnuq.estimates import Estimate
from bnuq.gate import CheckVerdict, GateSettings, check, swapping
from bnuq.records.evaluation import EvaluatedSet, Result, SetResult

ZERO = GateSettings.of(tolerances=["*=0"])


def model(right: np.ndarray, sure: np.ndarray, far: np.ndarray, path: str, **test: object) -> Result:
    """A model of 4 classes that is so `sure` of its predictions on the test set, and of those `far` from it."""
    wrong = 1 - right
    entropy, away = (-(p * np.log(p) + (1 - p) * np.log((1 - p) / 3)) for p in (sure, far))
    points = {"accuracy": right, "pll": np.log(np.where(right == 1, sure, (1 - sure) / 3))}
    points["brier"] = (1 - sure) ** 2 / 3 * 4 + wrong * (2 * sure - 2 * (1 - sure) / 3)
    estimates = {name: made_up.plain_estimate(values) for name, values in points.items()}
    estimates["ece"] = Estimate(float(metrics.ece_of_bins(metrics.calibration_bins(sure, right))), se=0.1)
    estimates["aurc"] = Estimate(metrics.aurc(entropy, wrong), se=0.1)
    points |= {"max_probability": sure, "predictive_entropy": entropy}
    ood = {"far": {"predictive_entropy": {"auroc": Estimate(metrics.auroc(entropy, away), se=0.1)}}}
    sets = {"test": SetResult(estimates, points, right), "far": SetResult({}, {"predictive_entropy": away}, away)}
    made = made_up.result(mcbn={"pll": np.zeros((8, len(right)))}, path=path, **test)
    method = replace(made.methods["deterministic"], sets=sets, ood=ood)
    evaluated = {**made.sets, "far": EvaluatedSet("far", "ood", "far.npz", "2" * 64, len(far))}
    return replace(made, sets=evaluated, methods={"deterministic": method})


def verdict(random: np.random.Generator, n: int, accuracies: tuple[float, float], *, sure: bool) -> CheckVerdict:
    """Of two models whose values of a point are alike, or, where they are always as sure, independent."""
    shared, far = random.normal(size=(2, n)), random.normal(size=n)
    common, sides = 0.0 if sure else 0.8, []
    for accuracy in accuracies:
        own = [common * of + math.sqrt(1 - common**2) * random.normal(size=n) for of in (*shared, far)]
        right = own[0] < NormalDist().inv_cdf(min(accuracy, 1 - 1e-12))
        confidence, away = (0.28 + 0.71 / (1 + np.exp(of)) for of in (own[0] + own[1] - 2, own[2]))
        sides.append(model(right * 1.0, np.full(n, 0.9) if sure else confidence, away, f"{len(sides)}.h5"))
    return check(*sides, ZERO)


@pytest.mark.parametrize("accuracy", [0.5, 0.95, 1.0])
@pytest.mark.parametrize("n", [12, 24, 50, 200])
@pytest.mark.nightly
def test_of_equal_models_at_most_one_check_in_twenty_fails(
    n: int, accuracy: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(swapping, "_SWAPS", 400)  # the level is that of any number
    assert_level(n, accuracy, [True, False] * 500)


def assert_level(n: int, accuracy: float, pairs: list[bool]) -> None:
    random = np.random.default_rng(n)
    failed = sum(not verdict(random, n, (accuracy, accuracy), sure=sure).passed for sure in pairs)
    print(n, accuracy, failed, len(pairs))
    assert metrics.exact_interval(failed, len(pairs))[0] <= 0.05, failed


def test_on_twelve_points_so_too_by_day_and_a_model_that_is_worse_fails() -> None:
    assert_level(12, 0.95, [True] * 60)  # of which 12 failed by the errors over points
    start = time.perf_counter()
    assert {one.metric for one in verdict(np.random.default_rng(0), 150, (0.6, 0.9), sure=False).worse} >= {"accuracy"}
    assert time.perf_counter() - start < 5  # a fraction of a second where nothing else runs
