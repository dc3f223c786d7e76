"""Against a history: its mean is the baseline, and a slow decline is found that no two neighbours show."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime, timedelta
from itertools import pairwise

import made_up
import numpy as np
import pytest
from check_all import check

from bnuq.errors import RequestError
from bnuq.gate import CheckVerdict, GateSettings
from bnuq.metrics import standard_error
from bnuq.records.evaluation import Result
from bnuq.report.trend import report, summary, trend, trend_csv

POINTS, SAMPLES = 300, 16
ALONE = GateSettings.of(tolerances=["pll=0.01", "deterministic.*=off"])


def nights(
    random: np.random.Generator, means: Sequence[float], *, spread: float = 0.1, seeds: Sequence[int] | None = None
) -> list[Result]:
    """Results of a night each, oldest first: on the same points, whose values differ from network to network."""
    point = random.normal(size=POINTS)
    start = datetime.fromisoformat("2026-01-01T00:00:00+00:00")
    results = []
    for night, mean in enumerate(means):
        values = mean + point + random.normal(0, spread, POINTS) + random.normal(0, 1e-3, (SAMPLES, 1))
        one = made_up.result(mcbn={"pll": values}, path=f"night{night}.h5", seed=0 if seeds is None else seeds[night])
        one.provenance["time"] = (start + timedelta(days=night)).isoformat()  # type: ignore[index]
        results.append(one)
    return results


def outcomes(verdict: CheckVerdict) -> dict[bool, str]:
    return {one.slope: one.outcome for one in verdict.comparisons if one.outcome != "not gated"}


def test_a_history_of_one_is_a_baseline() -> None:
    baseline, current = nights(np.random.default_rng(0), [0.0, -0.03])
    one, other = check(current, baseline, ALONE), check(current, settings=ALONE, history=[baseline])
    assert one.comparisons == other.comparisons and len(other.history) == 1 and not one.history


def test_the_baseline_is_the_mean_of_the_history_paired_over_points() -> None:
    *history, current = nights(np.random.default_rng(1), [0.0] * 6)
    found = next(one for one in check(current, settings=ALONE, history=history).comparisons if one.method == "mcbn")
    points = [result.methods["mcbn"].sets["test"].points["pll"] for result in (*history, current)]
    moved = points[-1] - np.mean(points[:-1], axis=0)
    assert found.change == pytest.approx(moved.mean(), abs=1e-12)
    assert found.se_points == pytest.approx(standard_error(moved))
    assert found.se_draws is not None and 0 < found.se_draws < 1e-3


def test_draws_of_other_seeds_add_up_as_independent_errors() -> None:
    results = nights(np.random.default_rng(2), [0.0] * 4, seeds=[1, 1, 2, 3])
    found = next(
        one
        for one in check(results[-1], settings=ALONE, history=results[:-1]).comparisons
        if one.se_draws and not one.slope
    )
    estimates = [result.methods["mcbn"].sets["test"].estimates["pll"] for result in results]
    together = np.std(estimates[0].jackknife + estimates[1].jackknife) * math.sqrt(SAMPLES - 1) / 3
    others = estimates[3].mc_se, (estimates[2].mc_se or 0) / 3
    assert found.se_draws == pytest.approx(math.hypot(together, *(each or 0 for each in others)))


def test_a_slow_decline_is_found_that_no_two_neighbours_show() -> None:
    results = nights(np.random.default_rng(6), [-0.005 * night for night in range(9)])
    for before, after in pairwise(results):
        assert check(after, before, ALONE).passed
    verdict = check(results[-1], settings=ALONE, history=results[:-1])
    assert outcomes(verdict)[True] == "worse" and not verdict.passed
    (slope,) = [one for one in verdict.worse if one.slope]
    assert slope.change == pytest.approx(-0.04, abs=0.015) and slope.detectable is not None
    assert outcomes(check(results[0], settings=ALONE, history=results[:0:-1]))[True] == "better"


@pytest.mark.nightly
@pytest.mark.parametrize("varying", [0.0, 0.02])  # how much networks differ for good from night to night
def test_a_history_without_a_decline_has_a_slope_by_chance_as_often_as_the_level(varying: float) -> None:
    random, tried = np.random.default_rng(4), 150
    settings = GateSettings.of(tolerances=["pll=0", "deterministic.*=off"])
    found = 0
    for _ in range(tried):
        *history, current = nights(random, random.normal(0, varying, 6))
        verdict = check(current, settings=settings, history=history)
        found += any(one.slope and one.p_value is not None and one.p_value < 0.05 for one in verdict.comparisons)
    assert found <= 15, found / tried  # 0.05 ± 0.018, and at most what the excess makes of it


def test_the_trend_has_the_line_that_the_check_tests_and_every_value() -> None:
    results = nights(np.random.default_rng(5), [-0.008 * night for night in range(6)])
    made = trend(reversed(results), "pll")
    assert [result.path for result in made.results] == [result.path for result in results]
    told = summary(made)["trends"]["mcbn.sets.test.pll"]
    verdict = check(results[-1], settings=ALONE, history=results[:-1])
    (slope,) = [one for one in verdict.comparisons if one.slope and one.method == "mcbn"]
    assert (told["line"]["change"], told["line"]["se"]) == pytest.approx((slope.change, slope.se))
    assert told["values"] == [result.methods["mcbn"].sets["test"].estimates["pll"].value for result in results]
    assert (
        told["se_since_first"][0] == 0 and told["se_since_first"][1] == check(results[1], results[0]).comparisons[0].se
    )
    lines = trend_csv(made).decode().splitlines()
    assert len(lines) == 1 + 2 * 6 and lines[0].startswith("result,time,address,value")
    assert [picture.kind for picture in report(made).pictures] == [("trend", "pll", "test")]


def test_a_trend_leaves_out_other_points_and_refuses_what_has_none() -> None:
    results = nights(np.random.default_rng(6), [0.0] * 4)
    results[0].sets["test"] = made_up.replace(results[0].sets["test"], sha256="f" * 64)  # type: ignore[index]
    assert [name for name, _ in trend(results, "pll").left_out] == ["night0.h5"]
    for few, metric, complaint in (
        (results[2:], "pll", "there are 2"),
        (results[:3], "pll", "(?s)there are 2.*night0.h5: its test set is not the same"),
        (results, "crps", "--by crps: the results have no estimate of that in common. They have pll"),
    ):
        with pytest.raises(RequestError, match=complaint):
            trend(few, metric)
