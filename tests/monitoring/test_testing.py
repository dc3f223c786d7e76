"""The test of a batch and the bet on a stream: valid for any points and any number of looks, and not blind."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import integrate, stats

from bnuq.studies.monitor.testing import POWERS, Wealth, absorbed, choices, compared, random_rows

STARTS, LAYERS = [0, 6, 12], [0, 1]


def points(random: np.random.Generator, count: int, *, shift: float = 0.0) -> np.ndarray:
    """Codes of points whose coordinates depend on each other and are skewed; a shift moves those of one block."""
    rows = random.standard_gamma(2.0, (count, 13)) - 2.0
    rows[:, 6:12] += rows[:, :6] + shift
    return np.clip(np.round(16 * rows), -127, 127).astype(np.int8)


def p_value(batch: np.ndarray, bag: np.ndarray, step: int = 0, resamples: int = 99) -> float:
    return compared(batch, bag, STARTS, LAYERS, resamples=resamples, seed=3, step=step).p_value


@pytest.mark.parametrize(("rows", "bag"), [(2, 80), (40, 80), (60, 20)])
def test_p_values_of_exchangeable_batches_are_uniform_however_few_points_there_are(rows, bag):
    random = np.random.default_rng(rows)
    found = np.array([p_value(points(random, rows), points(random, bag), step) for step in range(600)])
    uniform = (found * 100 - random.uniform(size=600)) / 100  # between the steps of 1/100
    assert stats.kstest(uniform, "uniform").pvalue > 0.01
    assert found.min() == 0.01


def test_the_corrected_p_values_of_blocks_are_at_least_that_of_the_batch_and_one_of_all_equals_it():
    random = np.random.default_rng(0)
    found = compared(points(random, 30), points(random, 90), STARTS, LAYERS, resamples=199, seed=0, step=1)
    assert min([*found.blocks, found.together]) == found.p_value
    assert len(found.blocks) == 3


def test_only_the_block_that_was_moved_is_said_to_differ():
    random = np.random.default_rng(1)
    others = 0
    for step in range(30):
        asked = {"resamples": 199, "seed": 0, "step": step}
        found = compared(points(random, 60, shift=1.5), points(random, 200), STARTS, LAYERS, **asked)
        assert found.blocks[1] <= 0.01
        others += bool((found.blocks[[0, 2]] <= 0.05).any())
    assert others <= 5  # at most 5 % expected, exactly 6 or more of 30 has a probability of 0.3 %


def test_a_p_value_is_repeated_by_its_step_and_depends_on_the_order_of_points_by_chance_alone():
    random = np.random.default_rng(2)
    batch, bag = points(random, 20), points(random, 50)
    assert p_value(batch, bag, step=4) == p_value(batch, bag, step=4)
    turned = (p_value(part, bag, step=4, resamples=3999) for part in (batch, batch[::-1]))
    assert next(turned) == pytest.approx(next(turned), abs=0.035)  # three standard errors


def test_coordinates_that_never_vary_say_nothing():
    batch, bag = np.zeros((5, 13), np.int8), np.zeros((20, 13), np.int8)
    assert p_value(batch, bag) == 1.0


def test_every_point_is_chosen_equally_often_and_choices_have_the_size_of_the_batch():
    chosen = np.concatenate(list(choices(11, 4, 3000, seed=0, step=0)))
    assert chosen.shape == (3000, 11) and set(chosen.sum(axis=1)) == {4.0}
    assert stats.chisquare(chosen.sum(axis=0)).pvalue > 0.01


# ── the stream ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_wealth_is_by_hand_what_one_p_value_makes_of_it():
    p = 0.02
    expected = np.mean([0.5 * power * p ** (power - 1) for power in POWERS]) + 0.5
    assert Wealth().e_value == 1.0
    assert Wealth().after(p).e_value == pytest.approx(expected)


def test_no_game_is_favourable_while_p_values_are_uniform():
    """The mean over p of the wealth after the next batch is that before it; p = u²⁰ tames the integrand at 0."""
    for steps in (0, 1, 7):
        before = Wealth(steps, (0.3, 0.0, 2.0, 0.1))
        mean, _ = integrate.quad(lambda u, start=before: start.after(u**20).e_value * 20 * u**19, 1e-9, 1)
        assert mean == pytest.approx(before.e_value, rel=1e-6)


def test_false_alarms_of_endless_looking_stay_below_the_level():
    """Ville: of 2,000 streams of 300 batches with uniform p-values at most 5 % ever reach 20."""
    p = np.random.default_rng(5).uniform(size=(2000, 300))
    bets, reached = np.zeros((2000, len(POWERS))), np.zeros(2000, bool)
    for number in range(1, 301):
        bets = (bets + 1 / (number * (number + 1))) * POWERS * p[:, number - 1, None] ** (np.array(POWERS) - 1)
        reached |= bets.mean(axis=1) + 1 / (number + 1) >= 20
    again = Wealth()
    for value in p[0]:
        again = again.after(float(value))
    assert again.bets == pytest.approx(tuple(bets[0]))
    assert stats.binomtest(int(reached.sum()), 2000, 0.05, alternative="greater").pvalue > 0.01


def test_a_change_after_a_hundred_quiet_batches_is_still_found_within_a_few():
    random, wealth = np.random.default_rng(6), Wealth()
    for _ in range(100):
        wealth = wealth.after(float(random.uniform()))
    quiet = wealth.e_value
    for _ in range(4):
        wealth = wealth.after(0.001)
    assert quiet < 5 and wealth.e_value >= 100


def streams(count: int, length: int, *, grows: bool) -> tuple[np.ndarray, np.ndarray]:
    """The p-values of streams of batches as large as their reference, and whether evidence ever reached 20."""
    found, reached = np.zeros((count, length)), np.zeros(count, bool)
    for number in range(count):
        random = np.random.default_rng(1000 + number)
        bag, wealth = points(random, 25), Wealth()
        for step in range(length):
            batch = points(random, 25)
            found[number, step] = compared(batch, bag, STARTS, LAYERS, resamples=99, seed=number, step=step).p_value
            wealth = wealth.after(float(found[number, step]))
            reached[number] |= wealth.e_value >= 20
            if grows:
                bag = absorbed(bag, batch, most=60, seed=number, step=step)
    return found, reached


@pytest.mark.nightly  # over many streams
def test_p_values_of_a_stream_are_independent_only_because_the_bag_takes_its_batches_in():
    growing, reached = streams(120, 12, grows=True)
    fixed, _ = streams(120, 12, grows=False)

    def dependence(p: np.ndarray) -> float:
        """The correlation of successive p-values."""
        return float(np.corrcoef(p[:, :-1].ravel(), p[:, 1:].ravel())[0, 1])

    assert abs(dependence(growing)) < 0.08  # 1,320 pairs: two and a half standard errors or more
    assert dependence(fixed) > 0.1  # the chance error of a small reference, in every batch
    assert stats.binomtest(int(reached.sum()), 120, 0.05, alternative="greater").pvalue > 0.01


def test_the_bag_of_a_stream_is_a_random_part_of_all_that_came():
    bag, batch = np.zeros((40, 1), np.int8), np.ones((40, 1), np.int8)
    kept = [absorbed(bag, batch, most=50, seed=0, step=step) for step in range(60)]
    assert {len(part) for part in kept} == {50}
    assert np.mean([part.mean() for part in kept]) == pytest.approx(0.5, abs=0.03)
    assert len(absorbed(bag, batch, most=500, seed=0, step=0)) == 80


def test_random_rows_are_in_order_and_each_once():
    rows = random_rows(30, 12, seed=1, step=2)
    assert (np.diff(rows) > 0).all() and len(rows) == 12 and rows[-1] < 30
