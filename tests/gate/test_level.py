"""Of equal models at most one check in twenty fails, also on few points; and what is really worse fails there."""

from __future__ import annotations

import math
from dataclasses import replace
from statistics import NormalDist

import made_up
import numpy as np
import pytest
import scipy.stats

from bnuq import metrics
from bnuq.estimates import Estimate
from bnuq.gate import CheckVerdict, GateSettings, check, swapping
from bnuq.records.evaluation import EvaluatedSet, Result, SetResult

CASES = [(n, accuracy, [True, False] * 500) for n in (12, 24, 50, 200) for accuracy in (0.5, 0.95, 1.0)]


def model(right: np.ndarray, sure: np.ndarray, far: np.ndarray, path: str) -> Result:
    """A model of 4 classes that is so `sure` of its predictions on the test set, and of those `far` from it."""
    entropy, away = (-(p * np.log(p) + (1 - p) * np.log((1 - p) / 3)) for p in (sure, far))
    points = {"accuracy": right, "pll": np.log(np.where(right, sure, (1 - sure) / 3)), "max_probability": sure}
    estimates = {name: made_up.plain_estimate(points[name]) for name in ("accuracy", "pll")}
    ece = float(metrics.ece_of_bins(metrics.calibration_bins(sure, right)))
    estimates |= {"ece": Estimate(ece, se=0.1), "aurc": Estimate(metrics.aurc(entropy, 1 - right), se=0.1)}
    ood = {"far": {"predictive_entropy": {"auroc": Estimate(metrics.auroc(entropy, away), se=0.1)}}}
    made = made_up.result(mcbn={"pll": np.zeros((8, len(right)))}, path=path)
    points["predictive_entropy"] = entropy
    sets = {"test": SetResult(estimates, points, right), "far": SetResult({}, {"predictive_entropy": away}, away)}
    made.sets["far"] = EvaluatedSet("far", "ood", "far.npz", "2" * 64, len(far))
    return replace(made, methods={"deterministic": replace(made.methods["deterministic"], sets=sets, ood=ood)})


def verdict(random: np.random.Generator, n: int, accuracies: tuple[float, float], *, sure: bool) -> CheckVerdict:
    """Of two models whose values of a point are alike, or, where they are always as sure, independent."""
    common, sides, shared = 0.0 if sure else 0.8, [], random.normal(size=(3, n))
    for accuracy in accuracies:
        own = common * shared + math.sqrt(1 - common**2) * random.normal(size=(3, n))
        right = (own[0] < NormalDist().inv_cdf(min(accuracy, 1 - 1e-12))) * 1.0
        confidence, away = 0.28 + 0.71 / (1 + np.exp([own[0] + own[1] - 2, own[2]]))
        sides.append(model(right, np.full(n, 0.9) if sure else confidence, away, f"{len(sides)}.h5"))
    return check(sides[0], sides[1], GateSettings.of(tolerances=["*=0"]))


@pytest.mark.parametrize(
    ("n", "accuracy", "sure"),
    [(12, 0.95, [True] * 40), *(pytest.param(*case, marks=pytest.mark.nightly) for case in CASES)],  # 8 of 40 by errors
)
def test_of_equal_models_at_most_one_check_in_twenty_fails(n, accuracy, sure, monkeypatch):
    monkeypatch.setattr(swapping, "_SWAPS", 400)  # the level is that of any number
    random, same = np.random.default_rng(n), (accuracy, accuracy)
    failed = sum(not verdict(random, n, same, sure=each).passed for each in sure)
    assert metrics.exact_interval(failed, len(sure))[0] <= 0.05, failed


def test_a_model_that_is_worse_fails_and_the_test_of_its_accuracy_is_exact() -> None:
    assert {one.metric for one in verdict(np.random.default_rng(0), 150, (0.6, 0.9), sure=False).worse} >= {"accuracy"}
    now, before = np.random.default_rng(1).random((2, 1000)) < 0.8
    sides = [made_up.result(mcbn={"pll": np.zeros((8, 1000))}, plain={"accuracy": of * 1.0}) for of in (now, before)]
    (found,) = [one for one in check(*sides).comparisons if one.metric == "accuracy"]
    assert found.p_value == pytest.approx(scipy.stats.binom.sf(sum(before & ~now) - 1, sum(before != now), 0.5))
