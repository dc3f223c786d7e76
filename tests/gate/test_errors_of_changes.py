"""The errors of changes are what repeating all would show: over points and draws, paired where they are shared."""

from __future__ import annotations

import math

import made_up
import numpy as np
import pytest
from check_all import check

from bnuq.gate import EstimateComparison
from bnuq.metrics import jackknife_error, standard_error

POINTS, SAMPLES = 120, 16


def only(verdict, metric: str = "pll", method: str = "mcbn") -> EstimateComparison:
    (found,) = [one for one in verdict.comparisons if (one.metric, one.method) == (metric, method)]
    return found


def two_way(random: np.random.Generator, *, point: np.ndarray, draw: np.ndarray, noise: float = 1.0) -> np.ndarray:
    """Values (T, n) of which a part is the point's, a part the draw's, and a part of both."""
    return point[None, :] + draw[:, None] + noise * random.normal(size=(len(draw), len(point)))


def test_on_shared_points_and_draws_the_error_is_that_of_the_differences() -> None:
    random = np.random.default_rng(0)
    ours, theirs = (two_way(random, point=random.normal(size=POINTS), draw=random.normal(size=SAMPLES)) for _ in "ab")
    found = only(check(made_up.result(mcbn={"pll": ours}), made_up.result(mcbn={"pll": theirs}, path="b.h5")))
    assert found.change == pytest.approx(ours.mean() - theirs.mean(), abs=1e-12)
    assert found.se_points == pytest.approx(standard_error((ours - theirs).mean(0)))
    moved = ours - theirs
    assert found.se_draws == pytest.approx(jackknife_error((moved.mean(1).sum() - moved.mean(1)) / (SAMPLES - 1)))
    assert found.se == pytest.approx(math.hypot(found.se_points or 0, found.se_draws or 0))


def test_with_another_seed_the_monte_carlo_errors_add_up() -> None:
    random = np.random.default_rng(1)
    ours, theirs = (two_way(random, point=random.normal(size=POINTS), draw=random.normal(size=SAMPLES)) for _ in "ab")
    one, other = made_up.result(mcbn={"pll": ours}, seed=1), made_up.result(mcbn={"pll": theirs}, path="b.h5")
    found = only(check(one, other))
    parts = [of.methods["mcbn"].sets["test"].estimates["pll"].mc_se for of in (one, other)]
    assert found.se_draws == pytest.approx(math.hypot(*(part or 0 for part in parts)))


@pytest.mark.parametrize("paired", [True, False])
@pytest.mark.nightly
def test_without_a_change_p_is_below_a_level_about_as_often_as_the_level(paired: bool) -> None:
    """Same network, same points: the draws differ, or are shared and the networks differ from draw to draw."""
    random = np.random.default_rng(2)
    p, points_only = [], []
    for _ in range(200):
        point = random.normal(size=POINTS)
        shared = random.normal(size=SAMPLES)
        values = []
        for _ in "ab":
            draw = 0.3 * random.normal(size=SAMPLES) + (shared if paired else random.normal(size=SAMPLES))
            values.append(two_way(random, point=point + 0.5 * random.normal(size=POINTS), draw=draw))
        ours, theirs = (
            made_up.result(mcbn={"pll": one}, seed=seed if not paired else 0, path=f"{seed}.h5")
            for seed, one in enumerate(values)
        )
        found = only(check(ours, theirs))
        assert found.p_value is not None and found.se_points is not None
        p.append(found.p_value)
        points_only.append(-found.change / found.se_points > 1.645)
    share = np.mean(np.array(p) < 0.05)
    assert 0.02 <= share <= 0.07, share  # 0.05 ± 0.011; counting the interaction twice makes it a little less
    assert np.mean(points_only) > 2 * share  # what a test over points alone would make of it


def test_groups_of_points_count_as_one() -> None:
    random = np.random.default_rng(3)
    group = np.repeat(np.arange(POINTS // 4), 4)
    point = np.repeat(random.normal(size=POINTS // 4), 4)
    flat = np.zeros(SAMPLES)
    ours, theirs = (two_way(random, point=one, draw=flat, noise=0.0) for one in (point, 0 * point))
    grouped = only(
        check(
            made_up.result(mcbn={"pll": ours}, group=group),
            made_up.result(mcbn={"pll": theirs}, group=group, path="b.h5"),
        )
    )
    alone = only(check(made_up.result(mcbn={"pll": ours}), made_up.result(mcbn={"pll": theirs}, path="b.h5")))
    assert grouped.se_points == pytest.approx(2 * (alone.se_points or 0), rel=0.02)


def test_the_network_as_it_is_has_no_error_over_draws() -> None:
    random = np.random.default_rng(4)
    plain = [{"pll": random.normal(size=POINTS)} for _ in "ab"]
    values = np.zeros((SAMPLES, POINTS))
    ours, theirs = (made_up.result(mcbn={"pll": values}, plain=one, path=f"{id(one)}.h5") for one in plain)
    found = only(check(ours, theirs), method="deterministic")
    assert found.se_draws == 0
    assert found.se == pytest.approx(standard_error(plain[0]["pll"] - plain[1]["pll"]))


def test_steps_take_the_bootstrap_replicates() -> None:
    random = np.random.default_rng(5)
    hits = [(random.random((SAMPLES, POINTS)) < 0.9).astype(float) for _ in "ab"]
    ours, theirs = (made_up.result(mcbn={"accuracy": one}, path=f"{place}.h5") for place, one in enumerate(hits))
    found = only(check(ours, theirs), "accuracy")
    rows = [one.methods["mcbn"].sets["test"].estimates["accuracy"].bootstrap for one in (ours, theirs)]
    assert found.se_draws == pytest.approx(np.std(rows[0] - rows[1], ddof=1) * math.sqrt(SAMPLES / (SAMPLES - 1)))


def test_dropout_beside_a_bank_rests_on_its_own_draws() -> None:
    """Of a bank of 96 mini-batches MCBN's points use their own; dropout's 8 draws stay 8."""
    random = np.random.default_rng(6)
    values = [random.normal(size=(8, POINTS)) for _ in "ab"]
    verdicts = [
        check(
            made_up.result(mcbn={"pll": values[0]}, method="mcdo", seed=1, bank=bank),
            made_up.result(mcbn={"pll": values[1]}, method="mcdo", bank=bank, path="b.h5"),
        )
        for bank in (None, 96)
    ]
    alone, beside = (only(verdict, method="mcdo") for verdict in verdicts)
    assert alone.p_value == beside.p_value
