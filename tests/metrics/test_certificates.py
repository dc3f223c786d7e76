"""Formulas of certificates: laws by enumeration, and values from MAPIE, scipy and the papers."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import product

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from bnuq.metrics import certificates


@pytest.mark.parametrize(("risk", "confidence", "expected"), [(0.05, 0.95, 59), (0.01, 0.95, 299), (0.5, 0.5, 1)])
def test_the_points_that_are_needed_are_those_of_the_rule_of_three(risk, confidence, expected):
    assert certificates.points_needed(risk, confidence) == expected
    assert (1 - risk) ** expected <= 1 - confidence + 1e-12 < (1 - risk) ** (expected - 1) + 1e-9


def test_the_binomial_p_value_is_the_tail_that_scipy_gives() -> None:
    errors, points = np.array([0, 4, 8, 0]), np.array([200, 200, 200, 0])
    given_tails = certificates.binomial_p_value(errors, points, 0.05)
    np.testing.assert_allclose(given_tails, scipy.stats.binom.cdf(errors, points, 0.05), rtol=1e-12)
    assert given_tails[-1] == 1


@pytest.mark.parametrize(
    ("units", "risk", "expected"),  # by MAPIE 1.6.0, compute_hoeffding_bentkus_p_value, of these means
    [
        (100, 0.05, [0.005920529220334054, 0.08427963823809466, 0.6135892440859615, 1.0, 1.0]),
        (1000, 0.05, [5.2918227477453207e-23, 7.605204989374995e-12, 0.003471430513793329, 1.0, 1.0]),
        (40, 0.2, [0.0001329227995784916, 0.0007171694432052263, 0.005518724254486543, 0.04182974376259008, 1.0]),
    ],
)
def test_the_hoeffding_bentkus_p_value_is_that_of_mapie(units: int, risk: float, expected: list[float]) -> None:
    means = np.array([0.0, 0.01, 0.03, 0.06, 0.2])
    np.testing.assert_allclose(certificates.hoeffding_bentkus_p_value(means, units, risk), expected, rtol=1e-9)


def test_tests_in_order_reject_what_those_of_mapie_reject() -> None:
    """MAPIE 1.6.0, FWERFixedSequenceTesting(n_starts).run(p, 0.05)."""
    p = np.array([0.001, 0.009, 0.2, 0.004, 0.012, 0.02, 0.3, 0.0001])
    for starts, expected in ((1, [0, 1]), (2, [0, 1, 4, 5]), (4, [0, 1, 4])):
        levels = np.zeros(8)
        levels[:: 8 // starts] = 0.05 / starts
        rejected = certificates.rejected_in_order(p, levels).nonzero()[0].tolist()
        assert {*expected} <= {*rejected}
        assert starts == 4 or rejected == expected  # of four, the level of the start at 4 is passed on


@given(st.integers(0, 2**32 - 1), st.integers(1, 8))
def test_tests_in_order_reject_all_that_each_start_alone_rejects(seed: int, hypotheses: int) -> None:
    random = np.random.default_rng(seed)
    p, levels = random.random(hypotheses) ** 4, 0.1 * random.random(hypotheses) * (random.random(hypotheses) < 0.5)
    together = certificates.rejected_in_order(p, levels)
    for start, level in enumerate(levels):
        for number in range(start, len(p)):
            if level == 0 or p[number] > level:
                break
            assert together[number]


@given(st.integers(1, 400), st.integers(0, 5000), st.floats(0.01, 0.5), st.floats(0.5, 0.99))
def test_levels_sum_to_that_of_the_promise(candidates: int, points: int, risk: float, confidence: float) -> None:
    levels = certificates.start_levels(candidates, points, risk, confidence)
    assert levels.sum() == pytest.approx(1 - confidence)
    assert (levels >= 0).all()


# ── exact probabilities of a broken promise, by enumeration ──────────────────────────────────────────────────────────


def compositions(total: int, kinds: int) -> Iterator[tuple[int, ...]]:
    """All ways to have so many points of so many kinds."""
    if kinds == 1:
        yield (total,)
        return
    for first in range(total + 1):
        for rest in compositions(total - first, kinds - 1):
            yield first, *rest


def probability(counts: tuple[int, ...], shares: np.ndarray) -> float:
    """By the multinomial law."""
    orders = math.factorial(sum(counts)) / math.prod(map(math.factorial, counts))
    return float(orders * np.prod(shares ** np.array(counts)))


@pytest.mark.parametrize("error_rates", [(0.1, 0.4, 0.9), (0.39, 0.41, 0.41), (0.41, 0.1, 0.6), (0.0, 0.7, 0.0)])
@pytest.mark.nightly
def test_a_selective_promise_is_broken_as_rarely_as_promised(error_rates: tuple[float, ...]) -> None:
    """Three scores, right or wrong, nine points: 2002 outcomes, each with its exact probability."""
    risk, confidence = 0.4, 0.8
    of_score, candidates = np.array([0.5, 0.3, 0.2]), np.array([0.5, 1.5, math.inf])
    errors = np.array(error_rates)
    shares = np.concatenate([of_score * errors, of_score * (1 - errors)])
    true_risks = np.cumsum(of_score * errors) / np.cumsum(of_score)
    scores, losses = np.tile(np.arange(3.0), 2), np.repeat([1.0, 0.0], 3)
    broken = kept = 0.0
    for counts in compositions(9, 6):
        threshold = certificates.certified_threshold(
            np.repeat(scores, counts), np.repeat(losses, counts), candidates, risk=risk, confidence=confidence
        )
        if threshold > -math.inf:
            at = candidates.tolist().index(threshold)
            broken += probability(counts, shares) * (true_risks[at] > risk)
            kept += probability(counts, shares) * (true_risks[at] <= risk)
    assert broken <= 1 - confidence
    assert kept > 0.2 or min(true_risks) > 0.35


def test_a_promise_about_groups_is_broken_as_rarely_as_promised() -> None:
    """Groups of two points that are both right or both wrong: as single points, they would count twice."""
    risk, confidence, error_rate, groups = 0.3, 0.8, 0.31, 12
    broken = alone = 0.0
    for wrong in range(groups + 1):
        losses = np.repeat(np.arange(groups) < wrong, 2).astype(float)
        settings_of = {"risk": risk, "confidence": confidence}
        candidates, scores = np.array([math.inf]), np.zeros(2 * groups)
        chance = float(scipy.stats.binom.pmf(wrong, groups, error_rate))
        group = np.repeat(np.arange(groups), 2)
        broken += chance * (
            certificates.certified_threshold(scores, losses, candidates, group=group, **settings_of) == math.inf
        )
        alone += chance * (certificates.certified_threshold(scores, losses, candidates, **settings_of) == math.inf)
    assert broken <= 1 - confidence < alone


@pytest.mark.parametrize(("points", "risk", "confidence"), [(30, 0.1, 0.9), (100, 0.05, 0.95), (59, 0.05, 0.95)])
def test_a_width_covers_as_often_as_promised_and_no_rank_less_would(points, risk, confidence):
    """Coverage by the k-th of n is Beta(k, n + 1 − k): that it is enough has an exact probability."""
    rank = certificates.conformal_rank(points, risk, confidence)
    assert rank is not None
    assert scipy.stats.beta.sf(1 - risk, rank, points + 1 - rank) >= confidence - 1e-12
    assert scipy.stats.beta.sf(1 - risk, rank - 1, points + 2 - rank) < confidence
    assert certificates.certified_width(np.arange(float(points))[::-1], risk=risk, confidence=confidence) == rank - 1
    mean, low, high = certificates.coverage_law(rank, points)
    assert mean == pytest.approx(rank / (points + 1))
    np.testing.assert_allclose(scipy.stats.beta.cdf([low, high], rank, points + 1 - rank), [0.025, 0.975], rtol=1e-9)


def test_a_point_less_than_needed_gives_no_width() -> None:
    assert certificates.conformal_rank(58, 0.05, 0.95) is None
    assert certificates.certified_width(np.arange(58.0), risk=0.05, confidence=0.95) == math.inf
    assert certificates.certified_width(np.arange(59.0), risk=0.05, confidence=0.95) == 58


def test_a_width_of_groups_is_the_smallest_whose_misses_are_certified() -> None:
    random = np.random.default_rng(0)
    group = np.repeat(np.arange(200), 3)
    scores = np.abs(random.normal(size=200)[group] + 0.1 * random.normal(size=600))
    width = certificates.certified_width(scores, risk=0.2, confidence=0.9, group=group)

    def p_value(reach: float) -> float:
        return float(certificates.hoeffding_bentkus_p_value(float(np.mean(scores > reach)), 200, 0.2))

    ranked = np.sort(scores)
    assert p_value(width) <= 0.1 < p_value(ranked[np.flatnonzero(ranked == width)[0] - 1])
    assert width > certificates.certified_width(scores, risk=0.2, confidence=0.9)


def test_the_loss_of_a_future_image_is_controlled_in_expectation_exactly() -> None:
    """All sequences of four images of three kinds, the last one being the future image."""
    kinds = np.array([[0.0, 0.2, 1.0], [0.0, 0.0, 0.5], [0.1, 0.6, 0.6]])  # losses by candidate
    shares, risk = np.array([0.3, 0.5, 0.2]), 0.4
    expected = chosen = 0.0
    for images in product(range(3), repeat=5):
        chance = float(np.prod(shares[list(images)]))
        index = certificates.risk_controlling_index(kinds[list(images[:4])], risk)
        expected += chance * (kinds[images[4], index] if index >= 0 else 0.0)
        chosen += chance * (index >= 0)
    assert expected <= risk
    assert chosen > 0.5


def test_no_candidate_is_chosen_where_no_image_is_enough() -> None:
    assert certificates.risk_controlling_index(np.zeros((3, 5)), 0.2) == -1
    assert certificates.risk_controlling_index(np.zeros((4, 5)), 0.2) == 4


# ── ties, and single cases ───────────────────────────────────────────────────────────────────────────────────────────


@settings(deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 4))
def test_a_threshold_does_not_depend_on_the_order_of_points_or_on_ties_apart(seed: int, levels: int) -> None:
    random = np.random.default_rng(seed)
    scores = random.integers(0, levels, 300).astype(float)
    losses = (random.random(300) < 0.05 * (1 + scores)).astype(float)
    candidates = np.append(np.arange(levels - 1) + 0.5, math.inf)
    first, again = (
        certificates.certified_threshold(scores[rows], losses[rows], candidates, risk=0.15, confidence=0.9)
        for rows in (slice(None), random.permutation(300))
    )
    assert first == again
    assert first == -math.inf or first in candidates


def test_all_points_are_accepted_where_all_are_right() -> None:
    scores, candidates = np.arange(100.0), np.append(np.arange(0, 99, 9) + 0.5, math.inf)
    assert certificates.certified_threshold(scores, np.zeros(100), candidates, risk=0.05, confidence=0.95) == math.inf
    assert certificates.certified_threshold(scores, np.ones(100), candidates, risk=0.05, confidence=0.95) == -math.inf


@pytest.mark.parametrize(("errors", "points"), [(0, 10), (3, 10), (10, 10), (0, 0)])
def test_the_exact_interval_is_that_of_scipy(errors: int, points: int) -> None:
    low, high = certificates.exact_interval(errors, points)
    if not points:
        assert (low, high) == (0.0, 1.0)
        return
    expected = scipy.stats.binomtest(errors, points).proportion_ci(0.95, method="exact")
    assert (low, high) == pytest.approx((expected.low, expected.high))
