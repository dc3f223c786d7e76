"""Failure detection: errors by their uncertainty, alone and together with OOD points; values from outside first."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from bnuq import metrics
from bnuq.metrics import estimands
from bnuq.metrics.registry import metric_of

laws = settings(max_examples=40, deadline=None)
COPIES = 64  # of every point, so that one more is a small step

few = st.integers(-3, 3).map(float)  # with ties
points = st.lists(st.tuples(few, st.booleans()), min_size=2, max_size=10)
some = st.lists(few, min_size=1, max_size=6).map(np.array)


def parts(pairs):
    uncertainty, correct = (np.array(column, float) for column in zip(*pairs, strict=True))
    return uncertainty, correct


def replicated(*columns, rows=5, seed=0):
    """Rows of the same points, each with some values exchanged."""
    random = np.random.default_rng(seed)
    return [np.stack([column, *(random.permutation(column) for _ in range(rows - 1))]) for column in columns]


# ── errors ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@laws
@given(points)
def test_the_auroc_of_errors_is_scikit_learns(pairs):
    uncertainty, correct = parts(pairs)
    value = metrics.error_auroc(uncertainty, correct)
    if len({*correct}) < 2:
        assert math.isnan(value) and np.isnan(metrics.error_auroc_influence(uncertainty, correct)).all()
    else:
        assert value == pytest.approx(roc_auc_score(1 - correct, uncertainty), abs=1e-12)


@laws
@given(points, st.integers(0, 99))
def test_the_auroc_of_errors_of_replicates_is_that_of_each(pairs, seed):
    uncertainty, correct = replicated(*parts(pairs), seed=seed)
    correct[-1] = 1  # nothing is wrong in one of them
    found = metrics.error_auroc_of_replicates(uncertainty, correct)
    expected = [metrics.error_auroc(*row) for row in zip(uncertainty, correct, strict=True)]
    assert math.isnan(found[-1]) and found == pytest.approx(expected, abs=1e-12, nan_ok=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(estimands, "_AT_ONCE", 2 * len(pairs))  # two rows at once, and then one
        np.testing.assert_array_equal(estimands.errors_by("s").values({"s": uncertainty, "accuracy": correct}), found)


@laws
@given(points)
def test_the_auroc_of_errors_and_augrc_say_the_same_of_one_network(pairs):
    """AUGRC is (1 − AUROC) a (1 − a) + (1 − a)²/2 at accuracy a (Traub et al. 2024)."""
    uncertainty, correct = parts(pairs)
    accuracy = correct.mean()
    if 0 < accuracy < 1:
        auroc = metrics.error_auroc(uncertainty, correct)
        expected = (1 - auroc) * accuracy * (1 - accuracy) + (1 - accuracy) ** 2 / 2
        assert metrics.selective(uncertainty, 1 - correct).augrc == pytest.approx(expected, abs=1e-12)


def test_the_error_of_the_auroc_of_errors_is_that_of_the_bootstrap():
    random = np.random.default_rng(0)
    uncertainty = random.normal(size=400).round(1)
    correct = (random.normal(size=400) > uncertainty - 1).astype(float)
    rows = random.integers(400, size=(1000, 400))
    resampled = metrics.error_auroc_of_replicates(uncertainty[rows], correct[rows])
    se = metrics.standard_error(metrics.error_auroc_influence(uncertainty, correct))
    assert se == pytest.approx(np.std(resampled), rel=0.08)


def test_no_auroc_of_errors_is_made_of_an_uncertainty_that_is_no_number():
    assert math.isnan(metrics.error_auroc(np.array([0.0, math.nan]), np.array([0.0, 1.0])))


# ── errors and OOD points ────────────────────────────────────────────────────────────────────────────────────────────


@laws
@given(points)
def test_without_ood_points_the_area_is_aurc(pairs):
    uncertainty, correct = parts(pairs)
    area = metrics.aurc(uncertainty, 1 - correct)
    assert metrics.scod(uncertainty, 1 - correct, np.empty(0)) == pytest.approx(area, abs=1e-12)


@laws
@given(points, some)
def test_the_area_is_the_mean_over_coverage_of_errors_and_accepted_ood_points(pairs, ood):
    """By hand, point by point: the k least uncertain of all, a tie with the mean of its points."""
    test, correct = parts(pairs)
    both = [*zip(test, 1 - correct, strict=True), *((score, 1.0) for score in ood)]
    mean_of_tie = {score: np.mean([loss for other, loss in both if other == score]) for score, _ in both}
    losses = [mean_of_tie[score] for score, _ in sorted(both)]
    expected = np.mean([np.mean(losses[:k]) for k in range(1, len(losses) + 1)])
    assert metrics.scod(test, 1 - correct, ood) == pytest.approx(expected, abs=1e-12)


def test_the_area_of_a_network_that_is_always_right_and_sees_every_ood_point_is_that_of_the_optimum():
    test, ood = np.zeros(6), np.ones(2)
    expected = (1 / 7 + 2 / 8) / 8  # only the last two of eight are errors
    assert metrics.scod(test, np.zeros(6), ood) == pytest.approx(expected)
    assert metrics.scod(np.zeros(6), np.zeros(6), np.zeros(2)) == pytest.approx(2 / 8)  # all tied: their share


@laws
@given(points, some, st.integers(0, 99))
def test_the_areas_of_replicates_are_those_of_each(pairs, ood, seed):
    uncertainty, correct, outside = replicated(*parts(pairs), ood, seed=seed)
    found = metrics.scod_of_replicates(uncertainty, 1 - correct, outside)
    expected = [metrics.scod(*row) for row in zip(uncertainty, 1 - correct, outside, strict=True)]
    assert found == pytest.approx(expected, abs=1e-12)


@laws
@given(points, some)
def test_the_area_moves_with_a_points_share_of_its_set_by_its_influence(pairs, ood):
    """One point of many is replaced by another, which leaves the sizes of both sets as they are."""
    test, correct = parts(pairs)
    columns = [np.repeat(column, COPIES) for column in (test, 1 - correct, ood)]
    inside, outside = metrics.scod_influence(*columns)
    before = metrics.scod(*columns)
    for place in range(0, len(columns[0]), COPIES):
        moved = [column.copy() for column in columns]
        moved[0][place], moved[1][place] = columns[0][-1], columns[1][-1]
        change = (inside[-1] - inside[place]) / len(inside)
        assert metrics.scod(*moved) - before == pytest.approx(change, abs=2e-3)
    for place in range(0, len(columns[2]), COPIES):
        moved = columns[2].copy()
        moved[place] = columns[2][-1]
        change = (outside[-1] - outside[place]) / len(outside)
        assert metrics.scod(*columns[:2], moved) - before == pytest.approx(change, abs=2e-3)
    assert inside.mean() == pytest.approx(0, abs=1e-12) and outside.mean() == pytest.approx(0, abs=1e-12)


def test_the_error_of_the_area_is_that_of_resampling_each_set():
    random = np.random.default_rng(1)
    test, ood = random.normal(size=300), random.normal(1, size=200)
    loss = (random.normal(size=300) < test - 1).astype(float)
    rows, others = random.integers(300, size=(600, 300)), random.integers(200, size=(600, 200))
    resampled = metrics.scod_of_replicates(test[rows], loss[rows], ood[others])
    se = math.hypot(*map(metrics.standard_error, metrics.scod_influence(test, loss, ood)))
    assert se == pytest.approx(np.std(resampled), rel=0.1)


# ── the parts of the PLL ─────────────────────────────────────────────────────────────────────────────────────────────


def test_calibration_and_refinement_loss_make_the_negative_pll():
    random = np.random.default_rng(2)
    values = {"pll": -random.exponential(size=50), "pll_recalibrated": -random.exponential(size=50)}
    calibration, refinement = (metric_of(f"{part}_loss").computed for part in ("calibration", "refinement"))
    assert calibration.value(values) + refinement.value(values) == pytest.approx(-values["pll"].mean())
    together = calibration.influence(values, None) + refinement.influence(values, None)
    assert together == pytest.approx(values["pll"].mean() - values["pll"])


def test_a_mean_of_a_sum_of_values_of_which_one_is_infinite_has_no_error():
    formula = estimands.mean_of_sum(a=1, b=-1)
    values = {"a": np.array([0.0, -math.inf]), "b": np.zeros(2)}
    assert formula.value(values) == -math.inf and np.isnan(formula.influence(values, None)[1])
