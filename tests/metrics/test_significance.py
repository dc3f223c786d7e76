"""Tests over runs: scipy's t, the common stars, and who keeps the level when splits overlap."""

import math

import numpy as np
import pytest
import scipy.stats
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from bnuq import metrics

laws = settings(max_examples=30, deadline=None)
scores = hnp.arrays(np.float64, st.integers(2, 30), elements=st.floats(-50, 50).map(lambda x: round(x, 3)))
SPLITS = np.repeat(np.arange(5), 5)


@laws
@given(scores.filter(lambda values: np.ptp(values) > 0))
def test_t_p_and_interval_are_those_of_scipy(values):
    ours, theirs = metrics.t_test(values), scipy.stats.ttest_1samp(values, 0)
    assert (ours.mean, ours.df) == (pytest.approx(values.mean(), abs=1e-12), values.size - 1)
    assert ours.t == pytest.approx(theirs.statistic, rel=1e-9, abs=1e-12)
    assert ours.p == pytest.approx(theirs.pvalue, rel=1e-7, abs=1e-12)
    for level in (0.95, 0.5):
        interval = theirs.confidence_interval(level)
        assert ours.interval(level=level) == pytest.approx((interval.low, interval.high), rel=1e-9, abs=1e-9)
    assert metrics.t_test(torch.from_numpy(values)) == ours


@laws
@given(hnp.arrays(np.float64, 25, elements=st.floats(-50, 50)), st.floats(0.01, 1), st.permutations(range(25)))
def test_split_means_are_what_the_corrected_test_sees(values, share, order):
    means = values.reshape(5, 5).mean(1)
    if np.ptp(means) < 1e-6:
        return
    plain, corrected = metrics.t_test(means), metrics.nadeau_bengio(values, SPLITS, test_share=share)
    assert corrected.se == pytest.approx(means.std(ddof=1) * math.sqrt(1 / 5 + share))
    assert corrected.p >= plain.p * (1 - 1e-9) and corrected.df == 4
    shuffled = metrics.nadeau_bengio(values[order], np.array(list("vwxyz"))[SPLITS][order], test_share=share)
    assert shuffled.t == pytest.approx(corrected.t, rel=1e-6, abs=1e-9)


def test_scores_that_all_agree_are_surely_not_0_unless_they_are():
    for score, t, p in ((0.1, math.inf, 0.0), (-0.1, -math.inf, 0.0)):
        for found in (
            metrics.t_test(np.full(25, score)),
            metrics.nadeau_bengio(np.full(25, score), SPLITS, test_share=0.25),
        ):
            assert (found.mean, found.se, found.t, found.p, found.stars) == (score, 0, t, p, "****")
            assert found.interval() == (score, score)
    none = metrics.t_test(np.zeros(3))
    assert math.isnan(none.t) and math.isnan(none.p) and none.stars == "n/a"


def test_fewer_than_two_runs_or_splits_are_not_tested():
    one = np.array([3.0])
    assert metrics.t_test(one) is None and metrics.t_test(one[:0]) is None
    for values in (one[:0], one, np.array([1.0, 2.0])):
        assert metrics.nadeau_bengio(values, np.zeros(values.size, dtype=np.int64), test_share=0.25) is None


def test_a_run_without_a_score_leaves_no_test():
    for missing in (math.nan, math.inf, -math.inf):
        values = np.array([1.0, 2.0, missing])
        found = metrics.t_test(values)
        assert math.isnan(found.t) and math.isnan(found.p) and found.stars == "n/a"
        assert math.isnan(metrics.nadeau_bengio(values, np.array([0, 0, 1]), test_share=0.25).p)


def test_stars_are_the_common_ones():
    marks = {0.9: "ns", 0.051: "ns", 0.05: "*", 0.011: "*", 0.01: "**", 0.001: "***", 1.1e-4: "***", 1e-4: "****"}
    assert {p: metrics.stars(p) for p in marks} == marks
    assert metrics.stars(0.0) == "****" and metrics.stars(math.nan) == "n/a"


def test_where_splits_overlap_only_the_corrected_test_keeps_its_level():
    """Five random 80/20 splits of 200 points whose scores are 0 in the mean, five seeds each."""
    rng = np.random.default_rng(0)
    trials, rejected = 1000, {"runs": 0, "split means": 0, "corrected": 0}
    for _ in range(trials):
        points = rng.normal(size=200)
        of_split = [points[rng.permutation(200)[:40]].mean() for _ in range(5)]
        runs = np.repeat(of_split, 5) + 0.05 * rng.normal(size=25)
        rejected["runs"] += metrics.t_test(runs).p <= 0.05
        rejected["split means"] += metrics.t_test(np.array(of_split)).p <= 0.05
        rejected["corrected"] += metrics.nadeau_bengio(runs, SPLITS, test_share=0.25).p <= 0.05
    share = {name: count / trials for name, count in rejected.items()}
    assert share["runs"] > 0.4
    assert 0.08 < share["split means"] < 0.2
    assert 0.03 < share["corrected"] < 0.07  # 0.05 ± 3 standard errors of 0.0069
