"""Results of real evaluations held against each other: every estimate is looked at, and its error is the paired one."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from check_all import check
from findings_of import warned

from bnuq import metrics
from bnuq.gate import CheckVerdict, EstimateComparison, GateSettings
from bnuq.records.addresses import AT_THRESHOLD, estimates_of
from bnuq.records.evaluation import Result

Evaluated = Callable[..., Result]
ALLOWED = GateSettings.of(allow=["data"])


def at(verdict: CheckVerdict, address: str) -> EstimateComparison:
    (found,) = [one for one in verdict.comparisons if one.address == address]
    return found


@pytest.mark.held
def test_every_estimate_of_both_is_compared_and_every_directed_one_gated(evaluated: Evaluated) -> None:
    current, baseline = evaluated("other-seed", seed=1), evaluated("seed")
    verdict = check(current, baseline)
    compared = {address for address, row in estimates_of(current).items() if row["metric"] != "count"}
    assert {one.address for one in verdict.comparisons if one.score != AT_THRESHOLD} == compared
    for one in (one for one in verdict.comparisons if one.score != AT_THRESHOLD):
        gated = metrics.METRICS[one.metric].tolerance != "" and not (one.of_class and one.metric != "accuracy")
        assert (one.outcome != "not gated") == gated, one.address
        assert (one.p_value is not None) == (one.tolerance is not None) == gated
        assert one.se is not None or one.metric in ("mce", "coverage_at_5"), one.address
    separations = [one for one in verdict.comparisons if one.score and one.metric in metrics.SEPARATIONS]
    assert len(separations) == len(metrics.SEPARATIONS) * sum(
        len(method.ood["other"]) for method in current.methods.values()
    )
    assert verdict.gated > len(separations) and all(one.outcome != "not gated" for one in separations)


def test_the_same_seed_gives_changes_of_exactly_0(evaluated: Evaluated) -> None:
    verdict = check(evaluated("again"), evaluated("seed"))
    assert verdict.passed
    assert {one.change for one in verdict.comparisons} == {0.0}
    assert warned(verdict) == []


def test_another_seed_passes_and_leaves_the_network_as_it_is_alone(evaluated: Evaluated) -> None:
    verdict = check(evaluated("other-seed", seed=1), evaluated("seed"))
    assert verdict.passed
    of_network = [one for one in verdict.comparisons if one.method == "deterministic"]
    assert {one.change for one in of_network} == {0.0}
    assert any(one.change for one in verdict.comparisons if one.method == "mcbn")


def test_the_error_of_an_auroc_is_delongs_for_correlated_curves(evaluated: Evaluated) -> None:
    current, baseline = evaluated("other-seed", seed=1), evaluated("seed")
    pairs = [
        tuple(one.methods["mcbn"].sets[name].points["mutual_information"] for name in ("test", "other"))
        for one in (current, baseline)
    ]
    found = at(check(current, baseline), "mcbn.ood.other.mutual_information.auroc")
    assert found.se_points == pytest.approx(math.sqrt(metrics.delong_difference_variance(*pairs)))
    assert found.change == pytest.approx(metrics.auroc(*pairs[0]) - metrics.auroc(*pairs[1]))


@pytest.mark.held
def test_every_estimate_of_a_regression_is_compared_with_an_error(regression: Evaluated) -> None:
    current, baseline = regression("other-seed", seed=1), regression("seed")
    verdict = check(current, baseline)
    without = {one.metric for one in verdict.comparisons if one.se is None}
    assert without <= {"tau", "sigma"}  # fitted to validation points: they have no error over test points
    gated = {one.metric for one in verdict.comparisons if one.outcome != "not gated" and one.score != AT_THRESHOLD}
    of_ood = {"auroc", "aupr_out", "aupr_in", "fpr95", "fpr95_id_positive"}
    assert (
        gated
        == {"rmse", "mae", "pll", "crps", "coverage95", "spearman"} | {"normalized_pll", "normalized_crps"} | of_ood
    )
    rmse = at(verdict, "mcbn.sets.test.rmse")
    assert rmse.tolerance == pytest.approx(0.01 * rmse.baseline)
    normalized = at(verdict, "mcbn.normalized.crps")
    assert (normalized.unit, normalized.tolerance) == ("percent", 5)


def test_points_that_are_grouped_otherwise_are_other_data(evaluated: Evaluated) -> None:
    baseline = evaluated("seed")
    test = replace(baseline.sets["test"], group=np.arange(baseline.sets["test"].n))  # whose errors are the same
    grouped = replace(baseline, sets={**baseline.sets, "test": test})
    with pytest.raises(Exception, match="data: test holds examples with other groups"):
        check(grouped, baseline)
    assert check(grouped, grouped).passed


def test_the_normalised_pll_of_a_classification_is_paired_by_points_too(evaluated: Evaluated) -> None:
    """Its bounds follow from where the network is right: what the file's own error over points rests on."""
    more = {"validation": "other_test.npz", "methods": ("mcbn",), "ood": ()}
    current, baseline = evaluated("bounds-seed", seed=1, **more), evaluated("bounds", **more)
    found = at(check(current, baseline), "mcbn.normalized.pll")
    own = [one.methods["mcbn"].normalized["pll"].se for one in (current, baseline)]
    assert found.se_points is not None
    assert 0 < found.se_points < 0.8 * math.hypot(*(error or 0 for error in own))
    assert at(check(current, baseline), "deterministic.normalized.pll").se == 0
    for one in (current, baseline):
        alone = check(one, replace(one, sets={**one.sets, "test": replace(one.sets["test"], sha256="e" * 64)}), ALLOWED)
        unpaired = at(alone, "mcbn.normalized.pll")
        assert unpaired.se_points == pytest.approx(math.sqrt(2) * (one.methods["mcbn"].normalized["pll"].se or 0))
