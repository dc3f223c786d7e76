"""What a check says that it can see is what it finds, and what it could not see is not passed off as the same."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import made_up
import numpy as np
import pytest
from check_all import check
from findings_of import values_of, warned

from bnuq import score
from bnuq.errors import RequestError, ResultError
from bnuq.gate import EstimateComparison, GateSettings
from bnuq.gate.power import Sight
from bnuq.metrics import exact_interval, holm, student_quantile
from bnuq.records.evaluation import Result
from bnuq.records.evaluation_file import read

POINTS, SAMPLES = 200, 16
ALONE = GateSettings.of(tolerances=["pll=0.01", "deterministic.*=off"])


def moved(random: np.random.Generator, worsening: float, *, spread: float = 0.3) -> tuple[Result, Result]:
    """Two networks whose values differ from point to point, by `worsening` in the mean of all points there are."""
    flat = np.zeros((SAMPLES, POINTS))
    current = flat + random.normal(-worsening, spread, POINTS)
    return made_up.result(mcbn={"pll": current}), made_up.result(mcbn={"pll": flat}, path="baseline.h5")


def only(current: Result, baseline: Result, settings: GateSettings = ALONE) -> EstimateComparison:
    (found,) = [one for one in check(current, baseline, settings).comparisons if one.outcome != "not gated"]
    return found


@pytest.mark.nightly
@pytest.mark.parametrize("tolerance", [0.01, 0.08])  # the error decides, and the tolerance does
def test_a_worsening_of_what_can_be_seen_is_found_four_times_in_five(tolerance: float) -> None:
    random = np.random.default_rng(0)
    settings = GateSettings.of(tolerances=[f"pll={tolerance}", "deterministic.*=off"])
    seen = np.median([only(*moved(random, 0.0), settings).detectable or math.nan for _ in range(20)])
    tried = 200
    found = sum(only(*moved(random, float(seen)), settings).outcome == "worse" for _ in range(tried))
    low, high = exact_interval(found, tried, 0.99)
    assert low <= 0.8 <= high, found / tried


@pytest.mark.parametrize("n", [50, 400])
def test_an_accuracy_that_did_not_change_tells_what_it_could_have_seen(n: int) -> None:
    """A worsening by k points has an error of √k/n, so that the t of k of them is about √k."""
    hits = np.ones((SAMPLES, n))
    verdict = check(
        made_up.result(mcbn={"accuracy": hits}), made_up.result(mcbn={"accuracy": hits}, path="b.h5"), ALONE
    )
    (found,) = [one for one in verdict.comparisons if one.metric == "accuracy"]
    needed = student_quantile(1 - 0.05 / verdict.gated, math.inf) + student_quantile(0.8, math.inf)
    assert found.se == 0 and found.detectable == pytest.approx(needed**2 / n, rel=0.01)
    (of_values,) = [
        one for one in check(*2 * [moved(np.random.default_rng(1), 0)[1]], ALONE).comparisons if one.p_value
    ]
    assert of_values.detectable is None  # nothing changed: what the error of a change would be is not known


def test_more_points_or_samples_would_decide_and_whichever_is_less_work_is_named() -> None:
    common = {"df": math.inf, "level": 0.05}
    needed = (1.6449 + 0.8416) * 0.1  # of an error of 0.1
    for points, samples, more in (
        (0.2, 0.0, ((("test", 4000),), None)),
        (0.0, 0.2, ((), 64)),
        (0.02, 0.2, ((), 67)),
        (0.3, 0.3, ((("test", 18000),), 290)),
    ):
        found = Sight(se_points=points, se_draws=samples, **common).decisive(needed, {"test": 1000}, 16)
        assert found is not None and (found.points, found.samples) == more
    assert Sight(se_points=math.nan, se_draws=0.0, **common).decisive(1.0, {"test": 1000}, 16) is None


def test_what_is_beyond_its_tolerance_and_not_significant_is_inconclusive_and_fails_where_it_is_to() -> None:
    current, baseline = moved(np.random.default_rng(3), 0.04)
    verdict = check(current, baseline, ALONE)
    found = only(current, baseline)
    assert (found.outcome, verdict.passed, warned(verdict)) == ("inconclusive", True, ["inconclusive"])
    assert values_of(verdict, "inconclusive") == {"estimates": ["mcbn.sets.test.pll"], "gated": 1}
    assert found.decisive is not None and dict(found.decisive.points)["test"] > POINTS
    strict = check(current, baseline, replace(ALONE, inconclusive_fails=True))
    assert not strict.passed and strict.failed and strict.failing == strict.inconclusive != ()


def test_a_change_of_its_tolerance_up_to_rounding_is_within_it() -> None:
    assert 0.716 - 0.711 > 0.005
    results = [
        made_up.result(mcbn={"accuracy": np.tile(np.arange(1000) < right, (SAMPLES, 1)) * 1.0}, path=f"{right}.h5")
        for right in (711, 716)
    ]
    (found,) = [item for item in check(*results, ALONE).comparisons if item.metric == "accuracy"]
    assert found.degradation > 0.005 and found.outcome == "same"


def test_a_comparison_without_the_power_that_is_asked_for_is_refused_but_no_regression_is() -> None:
    random = np.random.default_rng(4)
    blind = replace(ALONE, power=0.8)
    with pytest.raises(
        ResultError, match=r"1 of 1 gated .* with probability 0\.8:\n  - mcbn\.sets\.test\.pll: its tol"
    ):
        check(*moved(random, 0.0), blind)
    assert check(
        *moved(random, 0.0), replace(GateSettings.of(tolerances=["pll=0.1", "deterministic.*=off"]), power=0.8)
    ).passed
    assert check(*moved(random, 0.5), blind).worse
    with pytest.raises(ResultError, match="its error is not known"):
        check(*[made_up.result(mcbn={"pll": np.zeros((4, POINTS))}, path=f"{name}.h5") for name in "ab"], blind)


@pytest.mark.parametrize("section", [{"power": 1.0}, {"power": 0.0}, {"inconclusive": "pass"}])
def test_what_is_no_power_and_no_choice_is_refused(section: dict[str, object]) -> None:
    import bnuq

    with pytest.raises(RequestError, match="expected"):
        bnuq.check("now.h5", "base.h5", **section)


def test_a_share_of_the_level_is_left_to_the_others_once_it_is_spent() -> None:
    """Weighted Holm is the closed test whose intersections split the level by the weights of their hypotheses."""
    random = np.random.default_rng(0)
    for _ in range(50):
        p, weights = random.uniform(0, 0.2, 4), random.choice([1.0, 8.0], 4)
        subsets = [[k for k in range(4) if code >> k & 1] for code in range(1, 16)]
        joint = {tuple(each): min(p[k] * weights[each].sum() / weights[k] for k in each) for each in subsets}
        closed = [max(value for each, value in joint.items() if number in each) for number in range(4)]
        np.testing.assert_allclose(holm(p, weights), np.minimum(closed, 1), rtol=1e-12)


@pytest.mark.nightly
@pytest.mark.parametrize("points", [300, 1000])
def test_a_worsening_of_a_calibration_error_near_zero_is_found_as_often_as_stated(points: int, tmp_path: Path) -> None:
    random, settings = np.random.default_rng(0), GateSettings.of(estimates=["ece"])

    def overconfident(gap: float) -> EstimateComparison:
        stated = random.uniform(0.6, 0.9, points)
        right = (random.random(points) < stated).astype(int)
        for name, p in (("current", stated + gap), ("baseline", stated)):
            p = np.minimum(p, 0.999)
            score(np.stack([1 - p, p], 1), right, out=tmp_path / name, calibrate="off")
        return only(read(tmp_path / "current"), read(tmp_path / "baseline"), settings)

    seen = float(np.median([overconfident(0.02).detectable or math.nan for _ in range(15)]))
    found = np.mean([overconfident(seen).outcome == "worse" for _ in range(80)])
    assert 0.6 < found < 0.95, (seen, found)
