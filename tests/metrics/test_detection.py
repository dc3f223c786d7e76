"""OOD detection: laws, scikit-learn, brute force, and simulation for the errors."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score, roc_auc_score, roc_curve

from bnuq import metrics
from bnuq.metrics import resampling

laws = settings(max_examples=25, deadline=None)
FIELDS = ["auroc", "aupr_out", "aupr_in", "fpr95", "fpr95_id_positive"]

values = st.one_of(st.integers(-3, 3).map(float), st.floats(-1e6, 1e6))  # the small integers make ties
scores = st.lists(values, min_size=1, max_size=30).map(np.array)


def normal_scores(seed, points=60, shift=1.0):
    generator = np.random.default_rng(seed)
    return generator.normal(size=points), generator.normal(size=points) + shift


def grouped_scores(seed, groups=100, size=4, correlation=0.5):
    generator = np.random.default_rng(seed)
    common = math.sqrt(correlation) * generator.normal(size=(2, groups, 1))
    x = common + math.sqrt(1 - correlation) * generator.normal(size=(2, groups, size))
    return x[0].ravel(), x[1].ravel() + 1, np.repeat(np.arange(groups), size)


# Laws


@laws
@given(scores, scores)
def test_auroc_is_the_share_of_pairs_in_the_right_order(test, ood):
    pairs = [(o > t) + 0.5 * (o == t) for o in ood for t in test]
    assert metrics.auroc(test, ood) == pytest.approx(np.mean(pairs), abs=1e-12)


@laws
@given(scores, scores)
def test_auroc_of_a_score_and_of_its_negative_add_up_to_1(test, ood):
    assert metrics.auroc(test, ood) + metrics.auroc(-test, -ood) == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize("decimals", [0, 2, 12])  # many ties, some, none
def test_replicates_are_scored_to_the_bit_as_one_by_one(decimals, monkeypatch):
    monkeypatch.setattr(resampling, "_BLOCK_ENTRIES", 500)
    random = np.random.default_rng(0)
    test, ood = (random.normal(size=(9, n)).round(decimals) for n in (70, 190))
    together = vars(metrics.detection_of_replicates(test, ood))
    alone = [vars(metrics.detection(*row)) for row in zip(test, ood, strict=True)]
    for name in FIELDS:
        assert together[name].tolist() == [each[name] for each in alone]


@laws
@given(scores, scores)
def test_detection_agrees_with_scikit_learn(test, ood):
    is_ood, score = np.repeat([0, 1], [test.size, ood.size]), np.concatenate([test, ood])
    assert metrics.auroc(test, ood) == pytest.approx(roc_auc_score(is_ood, score))
    assert metrics.aupr(test, ood) == pytest.approx(average_precision_score(is_ood, score))
    assert metrics.aupr(test, ood, positive="test") == pytest.approx(average_precision_score(1 - is_ood, -score))
    for tpr in (0.5, 0.8, 0.95, 1.0):
        false, true, _ = roc_curve(is_ood, score, drop_intermediate=False)
        assert metrics.fpr_at_tpr(test, ood, tpr=tpr) == pytest.approx(false[true >= tpr].min())
        false, true, _ = roc_curve(1 - is_ood, -score, drop_intermediate=False)
        assert metrics.fpr_at_tpr(test, ood, tpr=tpr, positive="test") == pytest.approx(false[true >= tpr].min())


@laws
@given(scores, scores)
def test_detection_is_all_estimates_at_once(test, ood):
    together = metrics.detection(test, ood)
    assert all(isinstance(getattr(together, field), float) for field in FIELDS)
    assert together.auroc == pytest.approx(metrics.auroc(test, ood), abs=1e-12)
    assert together.aupr_out == metrics.aupr(test, ood)
    assert together.aupr_in == metrics.aupr(test, ood, positive="test")
    assert together.fpr95 == metrics.fpr_at_tpr(test, ood)
    assert together.fpr95_id_positive == metrics.fpr_at_tpr(test, ood, positive="test")


@laws
@given(scores, scores, st.randoms(use_true_random=False))
def test_the_order_of_points_does_not_matter(test, ood, random):
    shuffled = [np.array(random.sample(list(part), part.size)) for part in (test, ood)]
    assert metrics.detection(*shuffled) == metrics.detection(test, ood)
    assert metrics.delong_variance(*shuffled) == pytest.approx(metrics.delong_variance(test, ood), nan_ok=True)


@laws
@given(scores, scores)
def test_torch_scores_give_what_numpy_scores_give(test, ood):
    assert metrics.detection(torch.from_numpy(test), torch.from_numpy(ood)) == metrics.detection(test, ood)


@laws
@given(st.integers(0, 10**6), st.integers(1, 40))
def test_auroc_does_not_depend_on_how_points_are_batched(seed, chunk):
    p = np.random.default_rng(seed).dirichlet(np.ones(4), size=(5, 80))
    whole = metrics.mutual_information(p)
    chunks = np.concatenate([metrics.mutual_information(p[:, k : k + chunk]) for k in range(0, 80, chunk)])
    assert metrics.detection(chunks[:40], chunks[40:]) == metrics.detection(whole[:40], whole[40:])


@laws
@given(st.integers(0, 10**6), st.integers(2, 12), st.integers(2, 12), st.booleans())
def test_delong_variance_is_that_of_the_structural_components(seed, tests, oods, grouped):
    generator = np.random.default_rng(seed)
    test, ood = generator.integers(0, 6, tests).astype(float), generator.integers(2, 8, oods).astype(float)
    test_group = generator.integers(0, 4, tests) if grouped else np.arange(tests)
    ood_group = generator.integers(0, 4, oods) if grouped else np.arange(oods)
    wins = (ood[:, None] > test) + 0.5 * (ood[:, None] == test)
    expected = 0.0
    for components, group in ((wins.mean(1), ood_group), (wins.mean(0), test_group)):
        labels = set(group)
        sums = [(components[group == label] - wins.mean()).sum() for label in labels]
        factor = len(labels) / (len(labels) - 1) if len(labels) > 1 else math.nan
        expected += factor * np.sum(np.square(sums)) / components.size**2
    variance = metrics.delong_variance(
        test, ood, test_group=test_group if grouped else None, ood_group=ood_group if grouped else None
    )
    assert variance == pytest.approx(expected, abs=1e-12, nan_ok=True)


# Values and edges


def test_all_tied_scores_are_chance_at_full_false_alarm():
    tied = metrics.detection(np.zeros(3), np.zeros(1))
    assert (tied.auroc, tied.aupr_out, tied.aupr_in, tied.fpr95, tied.fpr95_id_positive) == (0.5, 0.25, 0.75, 1, 1)


def test_the_false_positive_rates_of_the_two_sides_differ_on_skewed_scores():
    test, ood = np.zeros(100), np.repeat([10.0, -1.0], [94, 6])
    assert metrics.fpr_at_tpr(test, ood) == 1
    assert metrics.fpr_at_tpr(test, ood, positive="test") == 0.06


def test_19_of_20_is_a_true_positive_rate_of_95_percent():
    assert metrics.fpr_at_tpr(np.ones(5), np.repeat([2.0, 0.0], [19, 1])) == 0
    assert metrics.fpr_at_tpr(np.ones(5), np.repeat([2.0, 0.0], [18, 2])) == 1


def test_infinite_scores_are_ranked():
    assert metrics.auroc(np.array([-math.inf, 0.0]), np.array([1.0, math.inf])) == 1


def test_scores_are_ranked_in_float64_whatever_they_come_in():
    assert (
        metrics.auroc(torch.tensor([1.0], dtype=torch.bfloat16), torch.tensor([1.0 + 1e-12], dtype=torch.float64)) == 1
    )


@pytest.mark.parametrize("estimate", [metrics.auroc, metrics.aupr, metrics.fpr_at_tpr, metrics.detection])
def test_an_empty_set_or_a_nan_score_is_an_error(estimate):
    with pytest.raises(ValueError, match=r"^ood holds no scores; expected at least one example in each set\.$"):
        estimate(np.zeros(2), np.array([]))
    with pytest.raises(ValueError, match=r"^test holds 1 NaN among 2 scores; expected numbers only\.$"):
        estimate(np.array([0.0, math.nan]), np.zeros(2))
    for errors in (metrics.delong_variance, metrics.detection_bootstrap):
        with pytest.raises(ValueError, match="no scores"):
            errors(np.array([]), np.zeros(2))


# The errors of the AUROC


def test_delong_variance_is_the_spread_of_the_auroc():
    drawn = [normal_scores(seed) for seed in range(400)]
    spread = np.var([metrics.auroc(*scores) for scores in drawn], ddof=1)
    assert np.mean([metrics.delong_variance(*scores) for scores in drawn]) / spread == pytest.approx(1, abs=0.15)


def test_clustered_variance_is_the_spread_of_the_auroc_of_correlated_groups_and_the_plain_one_is_too_small():
    drawn = [grouped_scores(seed) for seed in range(400)]
    spread = np.var([metrics.auroc(test, ood) for test, ood, _ in drawn], ddof=1)
    clustered = [metrics.delong_variance(test, ood, test_group=g, ood_group=g) for test, ood, g in drawn]
    plain = [metrics.delong_variance(test, ood) for test, ood, _ in drawn]
    assert np.mean(clustered) / spread == pytest.approx(1, abs=0.2)
    assert np.mean(plain) / spread < 0.7


def test_delong_variance_is_zero_at_perfect_separation_and_absent_for_one_point():
    assert metrics.delong_variance(np.array([0.0, 1.0]), np.array([2.0, 3.0])) == 0
    assert math.isnan(metrics.delong_variance(np.array([0.0]), np.array([2.0, 3.0])))
    one_group = np.zeros(2, dtype=int)
    assert math.isnan(metrics.delong_variance(np.array([0.0, 1.0]), np.array([0.5, 3.0]), ood_group=one_group))


def test_the_interval_is_normal_on_the_logit_scale():
    low, high = metrics.auroc_interval(0.9, 0.03)
    half = 1.959963984540054 * 0.03 / 0.09
    assert math.log(low / (1 - low)) == pytest.approx(math.log(9) - half)
    assert math.log(high / (1 - high)) == pytest.approx(math.log(9) + half)
    narrow_low, narrow_high = metrics.auroc_interval(0.9, 0.03, level=0.5)
    assert low < narrow_low < 0.9 < narrow_high < high


def test_the_interval_is_a_point_where_delong_says_nothing_and_never_fails():
    assert metrics.auroc_interval(1.0, 0.0) == (1.0, 1.0)
    assert metrics.auroc_interval(0.0, 0.1) == (0.0, 0.0)
    assert metrics.auroc_interval(0.7, 0.0) == (0.7, 0.7)
    assert all(math.isnan(end) for end in metrics.auroc_interval(0.7, math.nan))
    assert metrics.auroc_interval(1 - 1e-12, 0.3) == pytest.approx((0.0, 1.0), abs=1e-9)


def test_near_1_a_large_error_widens_the_interval_and_does_not_explode_it():
    low, high = metrics.auroc_interval(0.9925, math.hypot(0.006, 0.022))
    assert 0.7 < low < 0.9 and 0.9925 < high < 1
    ends = [metrics.auroc_interval(0.97, se) for se in (0.01, 0.02, 0.0445, 0.0446, 0.1, 0.3)]
    for (low, high), (lower, higher) in itertools.pairwise(ends):
        assert lower < low < 0.97 < high <= higher < 1
    assert ends[2] == pytest.approx(ends[3], abs=2e-3), "without a jump where the half-width is 3"
    mirrored = [1 - end for end in metrics.auroc_interval(0.9925, 0.0228)]
    assert metrics.auroc_interval(0.0075, 0.0228) == pytest.approx(mirrored[::-1])


def test_the_logit_interval_covers_a_high_auroc_better_than_the_plain_one():
    true = 0.983  # Φ(3/√2), with 60 + 60 points
    covered = {"logit": [], "plain": []}
    for seed in range(500):
        test, ood = normal_scores(seed, shift=3.0)
        value, se = metrics.auroc(test, ood), math.sqrt(metrics.delong_variance(test, ood))
        low, high = metrics.auroc_interval(value, se)
        covered["logit"].append(low <= true <= high)
        covered["plain"].append(abs(value - true) <= 1.96 * se)
    assert np.mean(covered["logit"]) > 0.91
    assert np.mean(covered["plain"]) < 0.89


# Bootstrap


@laws
@given(scores, scores, st.integers(0, 100), st.booleans())
def test_bootstrap_replicates_are_the_estimates_of_copied_points(test, ood, seed, grouped):
    groups = [np.arange(part.size) // 3 if grouped else None for part in (test, ood)]
    drawn = metrics.detection_bootstrap(test, ood, resamples=4, seed=seed, test_group=groups[0], ood_group=groups[1])
    copies = []
    for part, child, group in zip((test, ood), np.random.SeedSequence(seed).spawn(2), groups, strict=True):
        times = resampling.resampled_counts(
            np.random.default_rng(child), 4, bin_of_point=np.arange(part.size), bins=part.size, group=group
        )
        copies.append([np.repeat(part, row) for row in times])
    for row, scores in enumerate(zip(*copies, strict=True)):
        expected = metrics.detection(*scores)
        for field in FIELDS:
            assert getattr(drawn, field)[row] == pytest.approx(getattr(expected, field), abs=1e-12)


def test_bootstrap_depends_on_its_seed_alone(monkeypatch):
    test, ood = normal_scores(0)
    first = metrics.detection_bootstrap(test, ood, resamples=50, seed=3)
    monkeypatch.setattr(resampling, "_BLOCK_ENTRIES", 700)  # other blocks
    again = metrics.detection_bootstrap(test, ood, resamples=50, seed=3)
    other = metrics.detection_bootstrap(test, ood, resamples=50, seed=4)
    for field in FIELDS:
        assert getattr(first, field).shape == (50,)
        assert (getattr(first, field) == getattr(again, field)).all()
    assert (first.auroc != other.auroc).any()


def test_bootstrap_draws_the_same_points_for_every_score_and_every_ood_set():
    test, ood = normal_scores(0)
    first = metrics.detection_bootstrap(test, ood, resamples=20)
    assert (first.auroc == metrics.detection_bootstrap(np.exp(test), np.exp(ood), resamples=20).auroc).all()
    # OOD points that are all alike add no spread of their own: what is left is which test points were drawn.
    a_few = [metrics.detection_bootstrap(test, np.full(size, 0.5), resamples=20).auroc for size in (1, 7)]
    assert a_few[0] == pytest.approx(a_few[1])


def test_bootstrap_draws_whole_groups():
    group = np.repeat([0, 1, 2], [1, 2, 5])
    times = resampling.resampled_counts(np.random.default_rng(0), 200, bin_of_point=np.arange(8), bins=8, group=group)
    assert (times[:, 1] == times[:, 2]).all()
    assert (times[:, 3:] == times[:, 3:4]).all()
    assert (times[:, 0] + times[:, 1] + times[:, 3] == 3).all()
    assert times[:, [0, 1, 3]].mean(0) == pytest.approx([1, 1, 1], abs=0.2)


def test_bootstrap_spread_is_the_delong_error_with_groups_and_without():
    test, ood, group = grouped_scores(1, groups=150)
    plain = np.std(metrics.detection_bootstrap(test, ood).auroc, ddof=1)
    clustered = np.std(metrics.detection_bootstrap(test, ood, test_group=group, ood_group=group).auroc, ddof=1)
    assert plain == pytest.approx(math.sqrt(metrics.delong_variance(test, ood)), rel=0.1)
    expected = math.sqrt(metrics.delong_variance(test, ood, test_group=group, ood_group=group))
    assert clustered == pytest.approx(expected, rel=0.1)
    assert clustered > 1.2 * plain


# ── differences of two AUROCs on the same points ─────────────────────────────────────────────────────────────────────


def test_scores_that_rank_alike_have_no_variance_between_them() -> None:
    random = np.random.default_rng(0)
    test, ood = random.normal(size=40), random.normal(1.0, 1.0, 30)
    assert metrics.delong_difference_variance((test, ood), (np.exp(test), np.exp(ood))) == 0


def test_against_a_score_that_ranks_nothing_the_variance_is_delongs() -> None:
    random = np.random.default_rng(1)
    test, ood = random.normal(size=40), random.normal(1.0, 1.0, 30)
    nothing = np.zeros(40), np.zeros(30)
    for groups in ({}, {"test_group": np.arange(40) // 4, "ood_group": np.arange(30) // 3}):
        found = metrics.delong_difference_variance((test, ood), nothing, **groups)
        assert found == pytest.approx(metrics.delong_variance(test, ood, **groups))


def test_the_variance_of_a_difference_is_that_of_many_samples() -> None:
    random = np.random.default_rng(2)
    differences, stated = [], []
    for _ in range(300):
        shared, own = random.normal(size=130), random.normal(size=(2, 130))
        pairs = [(one[:70], one[70:]) for one in shared + 0.7 * own + np.where(np.arange(130) < 70, 0.0, 1.0)]
        differences.append(metrics.auroc(*pairs[0]) - metrics.auroc(*pairs[1]))
        stated.append(metrics.delong_difference_variance(*pairs))
    assert np.mean(stated) == pytest.approx(np.var(differences, ddof=1), rel=0.25)
