"""Influences: derivatives by a point's share, whose errors are those of the bootstrap, and of many samples."""

import math
from dataclasses import astuple, fields

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from bnuq import metrics

laws = settings(max_examples=25, deadline=None)
FIELDS = [field.name for field in fields(metrics.DetectionScores)]
SMOOTH = ["auroc", "aupr_out", "aupr_in"]
COPIES = 64  # of every point, so that one more is a small step

few = st.integers(-3, 3).map(float)  # with ties
some = st.one_of(few, st.floats(-100, 100))
scores = st.lists(some, min_size=1, max_size=8).map(np.array)


def columns(*elements, min_size=1, max_size=8):
    """One array for each kind of element, all of one length."""
    rows = st.lists(st.tuples(*elements), min_size=min_size, max_size=max_size)
    return rows.map(lambda rows: tuple(np.array(column) for column in zip(*rows, strict=True)))


def slopes(estimate, *data):
    """An estimate's derivative by each point's share, 0 in the mean: what one copy of many does, more or less."""
    points, found = len(data[0]), []
    for point in range(points):
        times = np.full((2, points), COPIES)
        times[:, point] += 1, -1
        more, less = (estimate(*(np.repeat(column, row, axis=0) for column in data)) for row in times)
        found.append((more - less) / 2 * points * COPIES)
    return np.array(found) - np.mean(found, axis=0)


def copied(*data):
    return [np.repeat(column, COPIES, axis=0) for column in data]


def ece(confidence, correct):
    return float(metrics.ece_of_bins(metrics.calibration_bins(confidence, correct)))


def share(score, constant, optimum):
    return metrics.normalized(float(score.mean()), float(constant.mean()), float(optimum.mean()))


def error(influence, test_group=None, ood_group=None):
    over_test, over_ood = influence
    return math.hypot(
        metrics.standard_error(over_test, group=test_group), metrics.standard_error(over_ood, group=ood_group)
    )


# ── the derivative by a point's share ────────────────────────────────────────────────────────────────────────────────


@laws
@given(columns(st.floats(0.01, 10)))
def test_rmse_moves_with_a_points_share_by_its_influence(data):
    found = metrics.rmse_influence(*copied(*data))
    assert found[::COPIES] == pytest.approx(
        slopes(lambda squared: math.sqrt(squared.mean()), *data), abs=1e-2, rel=1e-2
    )
    assert found.mean() == pytest.approx(0, abs=1e-9)


@laws
@given(columns(st.floats(-3, 3), st.floats(-3, 3), st.floats(0.5, 3)))
def test_a_ratio_of_means_moves_with_a_points_share_by_its_influence(data):
    score, constant, room = data
    data = score, constant, constant + room
    found = metrics.normalized_influence(*copied(*data))
    assert found[::COPIES] == pytest.approx(slopes(share, *data), abs=1, rel=1e-2)  # in percent
    assert found.mean() == pytest.approx(0, abs=1e-9)


stated_and_correct = columns(
    st.integers(0, 30).map(lambda k: np.float32(k / 30)), st.sampled_from([0.0, 1.0]), min_size=2
)


def gaps(confidence, correct):
    """Of each bin of `calibration_bins` the sum of correct − confidence, and its sd."""
    cell = np.clip(np.ceil(confidence.astype(np.float64) * 15 - 1e-6).astype(int) - 1, 0, 14)
    over = [(correct - confidence.astype(np.float64))[cell == k] for k in range(15)]
    return [(one.sum(), math.sqrt(one.size * one.var(ddof=1))) for one in over if one.size > 1]


@laws
@given(stated_and_correct)
def test_ece_moves_with_a_points_share_by_its_influence_where_gaps_are_wide(data):
    assume(all(abs(gap) > 4 * noise for gap, noise in gaps(*copied(*data))))
    found = metrics.ece_influence(*copied(*data))
    assert found[::COPIES] == pytest.approx(slopes(ece, *data), abs=1e-3)
    assert found.mean() == pytest.approx(0, abs=1e-12)


@laws
@given(stated_and_correct)
def test_the_ece_expected_under_noise_moves_by_the_influence_whatever_the_gaps(data):
    noises = [noise for _, noise in gaps(*copied(*data))]

    def expected(confidence, correct):  # the mean of |X|, X normal (Leone, Nelson & Nottingham 1961), of half the noise
        total = 0.0
        for (gap, _), sd in zip(gaps(confidence, correct), noises, strict=True):
            noise = sd / math.sqrt(2)
            steps = gap / max(noise, 1e-9)
            total += noise * math.sqrt(2 / math.pi) * math.exp(-(steps**2) / 2) + gap * math.erf(steps / math.sqrt(2))
        return total / correct.size

    found = metrics.ece_influence(*copied(*data))
    assert found[::COPIES] == pytest.approx(slopes(expected, *data), abs=3e-3)
    assert found.mean() == pytest.approx(0, abs=1e-12)


@laws
@given(columns(some, st.floats(0, 10)))
def test_aurc_moves_with_a_points_share_by_its_influence(data):
    found = metrics.aurc_influence(*copied(*data))
    assert found[::COPIES] == pytest.approx(slopes(metrics.aurc, *data), abs=0.05, rel=0.02)
    assert found.mean() == pytest.approx(0, abs=1e-9)
    assert metrics.aurc_influence(*data).mean() == pytest.approx(0, abs=1e-9)


@laws
@given(columns(some, st.floats(0, 1)))
def test_augrc_moves_with_a_points_share_by_its_influence(data):
    found = metrics.selective_influence(*copied(*data)).augrc
    expected = slopes(lambda *parts: metrics.selective(*parts).augrc, *data)
    assert found[::COPIES] == pytest.approx(expected, abs=0.05, rel=0.02)
    assert found.mean() == pytest.approx(0, abs=1e-9)


def test_the_influences_of_single_points_and_of_all_tied_points():
    one = metrics.selective_influence(np.array([1.0]), np.array([1.0]))
    assert one.augrc == one.risk_at_80 == 0
    loss = np.array([0.0, 1.0, 1.0, 0.0, 1.0])
    tied = metrics.selective_influence(np.zeros(5), loss)
    assert tied.augrc == pytest.approx((loss - 0.6) / 2)  # it is half the mean loss
    assert tied.risk_at_80 == pytest.approx(loss - 0.6)
    assert np.isnan(tied.coverage_at_5).all()
    for function in (metrics.ece_adaptive_influence, metrics.ece_debiased_influence):
        assert function(np.array([0.7]), np.array([1.0])) == 0
        assert function(np.full(4, 0.7), np.ones(4)) == pytest.approx(0)


@laws
@given(columns(some, some, min_size=2))
def test_rank_correlation_moves_with_a_points_share_by_its_influence(data):
    assume(not math.isnan(metrics.spearman(*data)))
    found = metrics.spearman_influence(*copied(*data))
    assert found[::COPIES] == pytest.approx(slopes(metrics.spearman, *data), abs=5e-3)
    assert found.mean() == pytest.approx(0, abs=1e-9)


@laws
@given(scores, scores)
def test_detection_moves_with_a_points_share_by_its_influence(test, ood):
    many_test, many_ood = copied(test), copied(ood)
    found = metrics.detection_influence(*many_test, *many_ood)
    # What makes up the quantile moves it in steps: there only the other set is held to it.
    by_test = slopes(lambda test: np.array(astuple(metrics.detection(test, *many_ood))), test)
    by_ood = slopes(lambda ood: np.array(astuple(metrics.detection(*many_test, ood))), ood)
    for place, expected, held in ((0, by_test, [*SMOOTH, "fpr95"]), (1, by_ood, [*SMOOTH, "fpr95_id_positive"])):
        for field in held:
            one = getattr(found, field)[place][::COPIES]
            assert one == pytest.approx(expected[:, FIELDS.index(field)], abs=5e-3), field


@laws
@given(scores, scores)
def test_influences_on_detection_are_0_in_the_mean_in_both_sets(test, ood):
    found = metrics.detection_influence(test, ood)
    for field in FIELDS:
        over_test, over_ood = getattr(found, field)
        assert over_test.shape == test.shape and over_ood.shape == ood.shape
        assert over_test.mean() == pytest.approx(0, abs=1e-12) and over_ood.mean() == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize(("power", "slope"), [(1, 1), (2, 1 / (2 * math.sqrt(0.05)))])
def test_a_threshold_moves_the_false_positives_by_the_slope_of_the_curve(power, slope):
    points = 20_000
    even = (np.arange(points) + 0.5) / points
    test, ood = even, even ** (1 / power)  # TPR is 1 − score^power where FPR is 1 − score
    found = metrics.detection_influence(test, ood).fpr95
    assert metrics.standard_error(found[1]) == pytest.approx(slope * math.sqrt(0.0475 / points), rel=0.03)
    fpr = metrics.fpr_at_tpr(test, ood)
    assert metrics.standard_error(found[0]) == pytest.approx(math.sqrt(fpr * (1 - fpr) / points), rel=1e-3)
    mirrored = metrics.detection_influence(-ood, -test).fpr95_id_positive
    assert mirrored[0] == pytest.approx(found[1]) and mirrored[1] == pytest.approx(found[0])


@pytest.mark.parametrize("found", [94, 96])
def test_a_threshold_in_a_wide_tie_moves_by_whole_steps(found):
    test, ood = np.repeat([0.0, 1.0, 2.0], [50, 30, 20]), np.repeat([1.0, 2.0], [100 - found, found])
    influences = metrics.detection_influence(test, ood).fpr95
    replicates = metrics.detection_bootstrap(test, ood, resamples=4000).fpr95
    assert error(influences) == pytest.approx(np.std(replicates), rel=0.2)
    assert metrics.standard_error(influences[1]) > 0.1  # the step is 0.3


# ── DeLong ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@laws
@given(scores, scores, scores, scores, st.booleans())
def test_the_error_of_an_auroc_and_of_a_difference_is_delongs(test, ood, other_test, other_ood, grouped):
    other_test, other_ood = np.resize(other_test, test.size), np.resize(other_ood, ood.size)
    groups = [np.arange(part.size) // 2 if grouped else None for part in (test, ood)]
    one = metrics.detection_influence(test, ood).auroc
    other = metrics.detection_influence(other_test, other_ood).auroc
    named = {"test_group": groups[0], "ood_group": groups[1]}
    expected = metrics.delong_variance(test, ood, **named)
    assert error(one, *groups) ** 2 == pytest.approx(expected, rel=1e-9, abs=1e-24, nan_ok=True)
    expected = metrics.delong_difference_variance((test, ood), (other_test, other_ood), **named)
    between = one[0] - other[0], one[1] - other[1]
    assert error(between, *groups) ** 2 == pytest.approx(expected, rel=1e-9, abs=1e-24, nan_ok=True)


# ── against the bootstrap over points ────────────────────────────────────────────────────────────────────────────────


def normal(generator, group):
    """Values of which those of one group are correlated by ½, where there is more than one point in it."""
    _, index, size = np.unique(group, return_inverse=True, return_counts=True)
    common = math.sqrt(0.5) if size.max() > 1 else 0.0
    return common * generator.normal(size=size.size)[index] + math.sqrt(1 - common**2) * generator.normal(
        size=index.size
    )


def two_scores(seed, points, *, shift, size, coarse):
    """The same points scored in two ways, of which the second tells them apart a little worse; and their groups."""
    generator = np.random.default_rng(seed)
    group = np.arange(points) // size
    shared = normal(generator, group)
    pair = [0.8 * shared + 0.6 * generator.normal(size=points) + shift * share for share in (1.0, 0.85)]
    return ([np.round(3 * one) for one in pair] if coarse else pair), group


CASES = [((400, 400), 1, False), ((846, 2000), 4, True), ((2000, 300), 1, True), ((2000, 300), 4, False)]


@pytest.mark.parametrize(("points", "size", "coarse"), CASES)
def test_errors_of_detection_and_of_its_differences_are_the_bootstraps(points, size, coarse):
    tests, test_group = two_scores(1, points[0], shift=0.0, size=size, coarse=coarse)
    oods, ood_group = two_scores(2, points[1], shift=1.2, size=size, coarse=coarse)
    pairs = [*zip(tests, oods, strict=True)]
    one, other = (metrics.detection_influence(*pair) for pair in pairs)
    groups = {"test_group": test_group, "ood_group": ood_group}
    drawn = [metrics.detection_bootstrap(*pair, resamples=600, **groups) for pair in pairs]
    for field in FIELDS:
        replicates = [getattr(each, field) for each in drawn]
        within = 0.12 if field in SMOOTH else 0.3
        (a, b), (c, d) = getattr(one, field), getattr(other, field)
        assert error((a, b), *groups.values()) == pytest.approx(np.std(replicates[0], ddof=1), rel=within), field
        between = error((a - c, b - d), *groups.values())
        assert between == pytest.approx(np.std(replicates[0] - replicates[1], ddof=1), rel=within), field


def two_classifiers(seed, points, *, size, temperatures, coarse):
    """Confidences and hits of two networks on the same points of ten classes, and the groups of the points."""
    generator = np.random.default_rng(seed)
    group = np.arange(points) // size
    logits = 2.2 * np.stack([normal(generator, group) for _ in range(10)], axis=-1)
    p = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    label = (p.cumsum(-1) > generator.random((points, 1))).argmax(-1)
    found = []
    for temperature in temperatures:
        stated = np.exp(temperature * (logits + 0.3 * generator.normal(size=logits.shape)))
        stated /= stated.sum(-1, keepdims=True)
        confidence = np.ceil(stated.max(-1) * 20) / 20 if coarse else stated.max(-1)
        found.append((confidence, (stated.argmax(-1) == label).astype(float)))
    return found, group


@pytest.mark.parametrize(("size", "coarse"), [(1, False), (4, True)])
def test_errors_of_selective_scores_and_of_their_differences_are_the_bootstraps(size, coarse):
    found, group = two_classifiers(3, 1200, size=size, temperatures=(1.0, 1.2), coarse=coarse)
    pairs = [(-confidence, 1 - correct) for confidence, correct in found]
    influences = [metrics.selective_influence(*pair) for pair in pairs]
    bootstraps = [metrics.selective_bootstrap(*pair, resamples=600, group=group) for pair in pairs]
    for name, within in (("aurc", 0.12), ("augrc", 0.15), ("risk_at_80", 0.15)):
        one, other = (getattr(each, name) for each in influences)
        drawn = [getattr(each, name) for each in bootstraps]
        assert metrics.standard_error(one, group=group) == pytest.approx(np.std(drawn[0], ddof=1), rel=0.12), name
        between = metrics.standard_error(one - other, group=group)
        assert between == pytest.approx(np.std(drawn[0] - drawn[1], ddof=1), rel=within), name


def test_errors_of_adaptive_and_debiased_errors_are_the_bootstraps_where_gaps_are_wide():
    found, _ = two_classifiers(4, 3000, size=1, temperatures=(2.0, 1.8), coarse=False)
    generator = np.random.default_rng(0)
    rows = [generator.integers(3000, size=3000) for _ in range(200)]
    for value, influence in (
        (metrics.ece_adaptive, metrics.ece_adaptive_influence),
        (lambda *pair: metrics.ece_debiased_of_bins(metrics.calibration_bins(*pair)), metrics.ece_debiased_influence),
    ):
        one, other = (influence(*pair) for pair in found)
        drawn = [np.array([float(value(stated[row], right[row])) for row in rows]) for stated, right in found]
        assert metrics.standard_error(one) == pytest.approx(np.std(drawn[0], ddof=1), rel=0.15)
        assert metrics.standard_error(one - other) == pytest.approx(np.std(drawn[0] - drawn[1], ddof=1), rel=0.2)


@pytest.mark.parametrize("size", [1, 4])
def test_errors_of_ece_and_of_its_differences_are_the_bootstraps_where_gaps_are_wide(size):
    found, group = two_classifiers(4, 6000, size=size, temperatures=(2.0, 1.8), coarse=False)
    one, other = (metrics.ece_influence(*pair, group=group) for pair in found)
    drawn = [metrics.ece_of_bins(metrics.calibration_bootstrap(*pair, resamples=400, group=group)) for pair in found]
    assert metrics.standard_error(one, group=group) == pytest.approx(np.std(drawn[0], ddof=1), rel=0.12)
    assert metrics.standard_error(one - other, group=group) == pytest.approx(
        np.std(drawn[0] - drawn[1], ddof=1), rel=0.15
    )


@pytest.mark.parametrize(("size", "coarse"), [(1, True), (4, False)])
def test_errors_of_a_root_a_ratio_and_a_rank_correlation_are_the_bootstraps(size, coarse):
    generator = np.random.default_rng(5)
    points = 800
    group = np.arange(points) // size
    spread = np.exp(0.5 * normal(generator, group))
    data = []
    for noise in (0.3, 0.4):
        away = np.abs(spread * normal(generator, group) + noise * generator.normal(size=points))
        stated = spread * np.exp(noise * generator.normal(size=points))
        stated, away = (np.ceil(4 * stated), np.ceil(4 * away)) if coarse else (stated, away)
        data.append((stated, away))

    def bounds(stated, away):
        return -np.log(stated) - (away / stated) ** 2 / 2, -(away**2) / 4 - 1.5, -np.log(away) - 0.5

    estimates = [
        (lambda *pair: math.sqrt((pair[1] ** 2).mean()), lambda *pair: metrics.rmse_influence(pair[1] ** 2)),
        (metrics.spearman, metrics.spearman_influence),
        (lambda *pair: share(*bounds(*pair)), lambda *pair: metrics.normalized_influence(*bounds(*pair))),
    ]
    members = np.arange(points).reshape(-1, size)
    rows = [members[generator.integers(len(members), size=len(members))].ravel() for _ in range(300)]
    for estimate, influence in estimates:
        drawn = np.array([[estimate(stated[row], away[row]) for row in rows] for stated, away in data])
        one, other = (influence(*pair) for pair in data)
        assert metrics.standard_error(one, group=group) == pytest.approx(np.std(drawn[0], ddof=1), rel=0.12)
        expected = np.std(drawn[0] - drawn[1], ddof=1)
        assert metrics.standard_error(one - other, group=group) == pytest.approx(expected, rel=0.12)


# ── against many samples ─────────────────────────────────────────────────────────────────────────────────────────────


def test_the_error_of_a_difference_is_that_of_many_samples():
    differences, stated = {field: [] for field in FIELDS}, {field: [] for field in FIELDS}
    for seed in range(300):
        tests, _ = two_scores(2 * seed, 400, shift=0.0, size=1, coarse=True)
        oods, _ = two_scores(2 * seed + 1, 500, shift=1.2, size=1, coarse=True)
        estimates = [metrics.detection(*pair) for pair in zip(tests, oods, strict=True)]
        one, other = (metrics.detection_influence(*pair) for pair in zip(tests, oods, strict=True))
        for field in FIELDS:
            differences[field].append(getattr(estimates[0], field) - getattr(estimates[1], field))
            (a, b), (c, d) = getattr(one, field), getattr(other, field)
            stated[field].append(error((a - c, b - d)) ** 2)
    for field in FIELDS:
        within = 0.12 if field in SMOOTH else 0.25
        spread = np.std(differences[field], ddof=1)
        assert math.sqrt(np.mean(stated[field])) == pytest.approx(spread, rel=within), field


def many_eces(samples, points, *, size, temperatures):
    """Over samples of points: both ECEs, their stated errors, and the stated error of their difference."""
    eces, errors, between = np.empty((samples, 2)), np.empty((samples, 2)), np.empty(samples)
    for seed in range(samples):
        found, group = two_classifiers(seed, points, size=size, temperatures=temperatures, coarse=False)
        influences = [metrics.ece_influence(*pair, group=group) for pair in found]
        eces[seed] = [ece(*pair) for pair in found]
        errors[seed] = [metrics.standard_error(one, group=group) for one in influences]
        between[seed] = metrics.standard_error(influences[0] - influences[1], group=group)
    return eces, errors, between


def root_mean_square(values):
    return np.sqrt(np.mean(values**2, axis=0))


@pytest.mark.parametrize(("points", "size"), [(300, 4), (1500, 1)])
def test_errors_of_the_eces_of_calibrated_networks_are_those_of_many_samples(points, size):
    eces, errors, between = many_eces(200, points, size=size, temperatures=(1.0, 1.0))  # every gap is noise
    moved = eces[:, 0] - eces[:, 1]
    for ratio in (*(root_mean_square(errors) / eces.std(axis=0)), root_mean_square(between) / moved.std()):
        assert 0.85 < ratio < 1.2
    assert 0.01 < (np.abs(moved / between) > 1.645).mean() / 2 < 0.09  # of a test at 5 %, to the one side or the other


def test_errors_of_the_eces_of_sharp_networks_are_those_of_many_samples():
    eces, errors, between = many_eces(200, 1000, size=1, temperatures=(2.0, 1.8))
    assert root_mean_square(errors) / eces.std(axis=0) == pytest.approx(1, abs=0.12)
    assert root_mean_square(between) / (eces[:, 0] - eces[:, 1]).std() == pytest.approx(1, abs=0.12)


@pytest.mark.parametrize("size", [1, 3])
def test_the_error_of_an_ece_of_single_points_or_groups_is_not_too_small(size):
    generator = np.random.default_rng(7)
    confidence, group = np.repeat((np.arange(15) + 0.5) / 15, size), np.repeat(np.arange(15), size)
    eces, errors = [], []
    for _ in range(200):
        correct = (np.repeat(generator.random(15), size) < confidence).astype(float)  # a group is right or wrong
        eces.append(ece(confidence, correct))
        errors.append(metrics.standard_error(metrics.ece_influence(confidence, correct, group=group), group=group))
    assert root_mean_square(np.array(errors)) > np.std(eces)


# ── laws and edges ───────────────────────────────────────────────────────────────────────────────────────────────────


@laws
@given(columns(some, some, st.floats(0, 10)), scores)
def test_only_the_order_of_scores_matters(data, ood):
    def stretched(x):
        return np.unique(np.concatenate([data[0], data[1], ood]), return_inverse=True)[1].astype(float)[x] ** 3

    points = len(data[0])
    a, b, c = (stretched(part) for part in (slice(points), slice(points, 2 * points), slice(2 * points, None)))
    assert (metrics.aurc_influence(a, data[2]) == metrics.aurc_influence(data[0], data[2])).all()
    assert metrics.spearman_influence(a, b) == pytest.approx(metrics.spearman_influence(*data[:2]), nan_ok=True)
    for field in FIELDS:
        for ours, theirs in zip(
            getattr(metrics.detection_influence(a, c), field),
            getattr(metrics.detection_influence(data[0], ood), field),
            strict=True,
        ):
            assert (ours == theirs).all()


@laws
@given(scores, scores)
def test_detection_mirrored_is_detection_with_the_sets_exchanged(test, ood):
    found, mirrored = metrics.detection_influence(test, ood), metrics.detection_influence(-ood, -test)
    for field, other in [("auroc", "auroc"), ("aupr_out", "aupr_in"), ("fpr95", "fpr95_id_positive")]:
        for ours, theirs in zip(getattr(found, field), reversed(getattr(mirrored, other)), strict=True):
            assert ours == pytest.approx(theirs, abs=1e-12)


def test_scores_that_say_nothing_and_single_points_leave_nothing_to_contribute():
    for test, ood in (
        (np.zeros(5), np.zeros(3)),
        (np.array([1.0]), np.array([2.0])),
        (np.array([2.0]), np.array([1.0])),
    ):
        found = metrics.detection_influence(test, ood)
        assert all((part == 0).all() for field in FIELDS for part in getattr(found, field))
    assert metrics.rmse_influence(np.array([4.0])) == metrics.aurc_influence(np.array([1.0]), np.array([0.3])) == 0
    assert metrics.ece_influence(np.array([0.7]), np.array([1.0])) == 0
    loss = np.array([0.0, 1.0, 1.0, 0.0, 0.5])
    assert metrics.aurc_influence(np.zeros(5), loss) == pytest.approx(loss - 0.5)  # all tied: the mean loss


@pytest.mark.parametrize(("low", "high"), [("test", "ood"), ("ood", "test")])
def test_a_perfect_order_has_no_error_over_the_area(low, high):
    sets = {low: np.linspace(0, 1, 30), high: np.linspace(2, 3, 40)}
    found = metrics.detection_influence(sets["test"], sets["ood"])
    assert error(found.auroc) == 0
    assert error(found.fpr95) == error(found.fpr95_id_positive) == 0
    assert (error(found.aupr_out) == 0) == (high == "ood")


def test_an_infinite_score_is_a_score():
    found = metrics.detection_influence(np.array([-np.inf, 0.0, np.inf]), np.array([0.0, 1.0, np.inf]))
    same = metrics.detection_influence(np.array([-9.0, 0.0, 9.0]), np.array([0.0, 1.0, 9.0]))
    for field in FIELDS:
        assert all((a == b).all() for a, b in zip(getattr(found, field), getattr(same, field), strict=True))


def test_a_estimate_that_is_undefined_has_no_influences():
    one, two = np.arange(4.0), np.array([1.0, 2.0, math.nan, 0.0])
    for a, b in ((one, np.ones(4)), (np.ones(4), one), (one, two), (two, one), (one[:1], one[:1])):
        assert np.isnan(metrics.spearman_influence(a, b)).all()
    assert np.isnan(metrics.normalized_influence(one, one, one)).all()
    assert np.isnan(metrics.normalized_influence(np.array([-math.inf, 0.0]), np.zeros(2), np.ones(2))).all()
    assert np.isnan(metrics.normalized_influence(np.zeros(2), np.zeros(2), np.array([math.inf, 1.0]))).all()
    assert np.isnan(metrics.rmse_influence(np.array([1.0, math.inf]))).all()
    assert (metrics.rmse_influence(np.zeros(3)) == 0).all()


def test_a_bin_without_a_gap_adds_nothing():
    confidence, correct = np.array([0.5, 0.5, 0.9]), np.array([0.0, 1.0, 1.0])
    assert metrics.ece_influence(confidence, correct) == pytest.approx([-0.1 / 3, -0.1 / 3, 0.2 / 3])


@pytest.mark.parametrize("group", [None, ["a", "b", "a", "a"]])
def test_a_bin_that_tells_no_noise_keeps_the_sign_of_its_gap(group):
    group = None if group is None else np.array(group)
    confidence, correct = np.array([0.1, 0.5, 0.9, 0.9]), np.array([1.0, 0.0, 1.0, 1.0])  # one, one, and two alike
    away = np.array([0.9, 0.5, 0.1, 0.1])
    assert metrics.ece_influence(confidence, correct, group=group) == pytest.approx(away - away.mean())
    together = metrics.ece_influence(confidence, np.array([1.0, 0.0, 1.0, 0.0]), group=group)
    gap, noise = -0.8, 0.0 if group is not None else 1.0  # 0.1 and −0.9: two points, or one group
    slope = -1.0 if group is not None else math.erf(gap / noise)
    own = np.array([0.9, 0.5, 0.1 * slope, -0.9 * slope])
    assert together == pytest.approx(own - own.mean())


@laws
@given(stated_and_correct)
def test_a_group_of_copies_counts_as_one_point(data):
    points = len(data[0])
    alone = metrics.ece_influence(*data)
    copies = [np.repeat(column, 3) for column in data]
    of = np.repeat(np.arange(points), 3)
    assert metrics.ece_influence(*copies, group=of) == pytest.approx(alone[of], abs=1e-12)
    assert metrics.ece_influence(*data, group=np.arange(points)[::-1]) == pytest.approx(alone, abs=1e-12)


def test_groups_widen_the_noise_of_a_gap_and_so_lessen_its_slope():
    confidence = np.full(40, 0.5)
    correct = np.repeat([1.0, 0.0, 1.0, 0.0, 1.0, 1.0, 0.0, 1.0], 5)  # gap 5, noise 3.1, by groups of five 7.3
    for group, noise in ((None, math.sqrt(40 / 39 * 9.375)), (np.arange(40) // 5, math.sqrt(8 / 7 * 46.875))):
        assert np.ptp(metrics.ece_influence(confidence, correct, group=group)) == pytest.approx(math.erf(5 / noise))


def test_an_ece_of_an_unknown_confidence_has_no_influences():
    found = metrics.ece_influence(np.array([0.3, math.nan, 0.99, 0.98]), np.array([0.0, 1.0, 1.0, 0.0]))
    assert np.isnan(found).all()


def test_empty_sets_and_nans_are_told():
    for test, ood, told in (
        ([], [1.0], "0 test and 1 OOD scores hold 0 NaN"),
        ([1.0, 2.0], [], "2 test and 0 OOD scores"),
        ([1.0, math.nan], [1.0], "2 test and 1 OOD scores hold 1 NaN; expected at least one score in each set"),
    ):
        with pytest.raises(ValueError, match=told):
            metrics.detection_influence(np.array(test), np.array(ood))


def test_torch_gives_what_numpy_gives():
    a, b, c = np.random.default_rng(6).random((3, 50)).astype(np.float32)
    hits = (b > 0.5).astype(np.float32)
    for function, data in (
        (metrics.rmse_influence, (a,)),
        (metrics.normalized_influence, (a, b, c)),
        (metrics.ece_influence, (a, hits)),
        (metrics.aurc_influence, (a, hits)),
        (metrics.ece_adaptive_influence, (a, hits)),
        (metrics.ece_debiased_influence, (a, hits)),
        (metrics.spearman_influence, (a, b)),
    ):
        ours, theirs = function(*data), function(*(torch.from_numpy(values) for values in data))
        assert ours.dtype == theirs.dtype == np.float64
        assert (ours == theirs).all()
    ours, theirs = (
        metrics.detection_influence(a, b),
        metrics.detection_influence(torch.from_numpy(a), torch.from_numpy(b)),
    )
    assert all((x == y).all() for f in FIELDS for x, y in zip(getattr(ours, f), getattr(theirs, f), strict=True))
