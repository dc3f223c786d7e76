"""Selective prediction: ties are an expectation over their orders, whatever is resampled."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bnuq import metrics
from bnuq.metrics import resampling

laws = settings(max_examples=25, deadline=None)


@st.composite
def predictions(draw, max_size=20):
    points = draw(st.integers(1, max_size))
    uncertainty = draw(st.lists(st.integers(0, 4), min_size=points, max_size=points))
    loss = draw(st.lists(st.floats(0, 10), min_size=points, max_size=points))
    return np.array(uncertainty, dtype=float), np.array(loss)


@laws
@given(predictions(max_size=5))
def test_risk_is_its_expectation_over_all_orders_of_the_ties(predictions):
    uncertainty, loss = predictions
    curves = []
    for order in itertools.permutations(range(loss.size)):
        if (np.diff(uncertainty[list(order)]) >= 0).all():
            curves.append(np.cumsum(loss[list(order)]) / np.arange(1, loss.size + 1))
    coverage, risk = metrics.risk_coverage(uncertainty, loss)
    assert coverage == pytest.approx(np.arange(1, loss.size + 1) / loss.size)
    assert risk == pytest.approx(np.mean(curves, axis=0))


@laws
@given(predictions())
def test_area_is_the_mean_of_the_risks(predictions):
    assert metrics.aurc(*predictions) == pytest.approx(np.mean(metrics.risk_coverage(*predictions)[1]), abs=1e-12)


@laws
@given(predictions())
def test_no_order_beats_that_of_the_loss_itself(predictions):
    assert metrics.aurc(*predictions) >= metrics.aurc(predictions[1], predictions[1]) - 1e-12


@laws
@given(predictions())
def test_an_uncertainty_that_says_nothing_has_the_mean_loss_at_every_coverage(predictions):
    loss = predictions[1]
    assert metrics.risk_coverage(np.zeros_like(loss), loss)[1] == pytest.approx(np.full(loss.size, loss.mean()))
    assert metrics.aurc(np.zeros_like(loss), loss) == pytest.approx(loss.mean())


@laws
@given(predictions(), st.randoms(use_true_random=False))
def test_the_order_of_points_does_not_matter(predictions, random):
    uncertainty, loss = predictions
    order = random.sample(range(loss.size), loss.size)
    assert metrics.aurc(uncertainty[order], loss[order]) == pytest.approx(metrics.aurc(uncertainty, loss), abs=1e-12)


@laws
@given(predictions())
def test_torch_gives_what_numpy_gives_in_its_own_kind(predictions):
    uncertainty, loss = predictions
    theirs = metrics.risk_coverage(torch.from_numpy(uncertainty), torch.from_numpy(loss))
    for ours, curve in zip(metrics.risk_coverage(uncertainty, loss), theirs, strict=True):
        assert isinstance(curve, torch.Tensor)
        assert curve.numpy() == pytest.approx(ours)
    assert metrics.aurc(torch.from_numpy(uncertainty), torch.from_numpy(loss)) == metrics.aurc(uncertainty, loss)


@laws
@given(predictions(), st.integers(0, 100), st.booleans())
def test_bootstrap_replicates_are_the_areas_of_copied_points(predictions, seed, grouped):
    uncertainty, loss = predictions
    group = np.arange(loss.size) // 3 if grouped else None
    drawn = metrics.selective_bootstrap(uncertainty, loss, resamples=4, seed=seed, group=group)
    order = np.argsort(np.argsort(uncertainty, kind="stable"))
    times = resampling.resampled_counts(
        np.random.default_rng(seed), 4, bin_of_point=order, bins=loss.size, group=group
    )[:, order]
    for at, row in enumerate(times):
        of_copies = vars(metrics.selective(np.repeat(uncertainty, row), np.repeat(loss, row)))
        assert {name: values[at] for name, values in vars(drawn).items()} == pytest.approx(of_copies, abs=1e-9)


def test_area_by_hand():
    # Errors at the 1st and 4th place: risks 1, 1/2, 1/3, 1/2.
    uncertainty, loss = np.array([0.4, 0.1, 0.2, 0.3]), np.array([1.0, 1.0, 0.0, 0.0])
    assert metrics.aurc(uncertainty, loss) == pytest.approx((1 + 1 / 2 + 1 / 3 + 1 / 2) / 4)
    assert metrics.aurc(loss, loss) == pytest.approx((1 / 3 + 1 / 2) / 4)  # errors last


def test_bootstrap_is_reproducible_whatever_the_blocks(monkeypatch):
    generator = np.random.default_rng(0)
    uncertainty, loss = generator.normal(size=300), generator.integers(0, 2, 300).astype(float)
    first = metrics.selective_bootstrap(uncertainty, loss, resamples=40, seed=5).aurc
    monkeypatch.setattr(resampling, "_BLOCK_ENTRIES", 1000)
    assert (metrics.selective_bootstrap(uncertainty, loss, resamples=40, seed=5).aurc == first).all()
    assert (metrics.selective_bootstrap(uncertainty, loss, resamples=40, seed=6).aurc != first).any()


def test_bootstrap_spread_is_the_spread_over_new_points():
    def draw(seed):
        generator = np.random.default_rng(seed)
        uncertainty = generator.uniform(size=200)
        return uncertainty, (generator.uniform(size=200) < uncertainty).astype(float)

    spread = np.std([metrics.aurc(*draw(seed)) for seed in range(400)], ddof=1)
    errors = [np.std(metrics.selective_bootstrap(*draw(seed), resamples=200).aurc, ddof=1) for seed in range(20)]
    assert np.mean(errors) == pytest.approx(spread, rel=0.15)


def by_loops(uncertainty, loss):
    """AUGRC, risk at 80 % coverage and coverage at 5 % risk; a tie counts with its mean loss at each of its places."""
    order = sorted(range(len(loss)), key=lambda i: uncertainty[i])
    n, placed = len(order), []
    for i in order:
        tied = [loss[j] for j in order if uncertainty[j] == uncertainty[i]]
        placed.append(sum(tied) / len(tied))
    area = sum(sum(placed[:k]) + placed[k] / 2 for k in range(n)) / n**2
    risks = [sum(placed[:k]) / k for k in range(1, n + 1)]
    kept = next(k for k in range(1, n + 1) if k >= 0.8 * n - 1e-9)
    covered = max((k for k in range(1, n + 1) if risks[k - 1] <= 0.05 + 1e-9 / k), default=0)
    return {"augrc": area, "risk_at_80": risks[kept - 1], "coverage_at_5": covered / n}


def check_against_loops(uncertainty, loss):
    found, expected = vars(metrics.selective(uncertainty, loss)), by_loops(uncertainty, loss)
    assert {name: found[name] for name in expected} == pytest.approx(expected, abs=1e-9)


@laws
@given(predictions())
def test_area_risk_and_coverage_are_those_of_loops(predictions):
    uncertainty, loss = predictions
    check_against_loops(uncertainty, np.minimum(loss, 1.0))
    check_against_loops(uncertainty, (loss > 5).astype(float))


@pytest.mark.parametrize("coarse", [False, True])
def test_area_risk_and_coverage_of_many_points_are_those_of_loops(coarse):
    generator = np.random.default_rng(3)
    uncertainty = generator.uniform(size=200)
    loss = (generator.uniform(size=200) < 0.4 * uncertainty**2).astype(float)
    check_against_loops(np.ceil(8 * uncertainty) / 8 if coarse else uncertainty, loss)


@pytest.mark.parametrize("points", [1, 30])
@pytest.mark.parametrize("tied", [False, True])
def test_where_all_are_right_nothing_is_lost_and_where_all_are_wrong_nothing_is_covered(points, tied):
    uncertainty = np.zeros(points) if tied else np.arange(points, dtype=float)
    right = metrics.selective(uncertainty, np.zeros(points))
    assert (right.augrc, right.risk_at_80, right.coverage_at_5) == (0, 0, 1)
    wrong = metrics.selective(uncertainty, np.ones(points))
    assert (wrong.augrc, wrong.risk_at_80, wrong.coverage_at_5) == pytest.approx((0.5, 1, 0))


def test_the_generalised_area_is_that_of_the_auroc_against_errors():
    generator = np.random.default_rng(4)
    uncertainty, loss = generator.integers(0, 20, 300) / 20, generator.integers(0, 2, 300).astype(float)
    wrong, right = uncertainty[loss == 1], uncertainty[loss == 0]
    auroc = np.mean((wrong[:, None] > right) + (wrong[:, None] == right) / 2)
    accuracy = 1 - loss.mean()
    expected = (1 - auroc) * accuracy * (1 - accuracy) + (1 - accuracy) ** 2 / 2
    assert metrics.selective(uncertainty, loss).augrc == pytest.approx(expected, abs=1e-12)


def test_five_errors_of_a_hundred_are_a_risk_of_5_percent():
    loss = np.zeros(100)
    loss[[10, 30, 50, 70, 90]] = 1
    assert metrics.selective(np.arange(100.0), loss).coverage_at_5 == 1
    assert metrics.selective(np.zeros(100), loss).coverage_at_5 == 1


@pytest.mark.parametrize("coarse", [2, 1000])
def test_rows_are_scored_as_if_one_by_one(coarse):
    random = np.random.default_rng(0)
    uncertainty = random.integers(coarse, size=(9, 40)) / coarse
    loss = random.integers(2, size=(9, 40)).astype(np.float64)
    rows = metrics.selective_of_replicates(uncertainty, loss)
    alone = [metrics.selective(*row) for row in zip(uncertainty, loss, strict=True)]
    for name, values in vars(rows).items():
        assert values.tolist() == [getattr(scores, name) for scores in alone]
    adaptive = metrics.ece_adaptive_of_replicates(uncertainty, loss)
    assert adaptive.tolist() == [metrics.ece_adaptive(*row) for row in zip(uncertainty, loss, strict=True)]
