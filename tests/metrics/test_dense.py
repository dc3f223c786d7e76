"""Dense outputs: what is read off histograms of pixels is that of the pixels; images carry the error."""

import math
from dataclasses import asdict

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score, roc_auc_score

from bnuq import metrics

laws = settings(max_examples=20, deadline=None)
COPIES = 64  # of every image, so that one more is a small step
ALL = 2**16
some = st.floats(-(2.0**20), 2.0**20, width=32)


def images(seed, count=6, pixels=40, shift=1.0, levels=12):
    """Coarse histograms of inside and outside pixels of a few images of different sizes, with ties."""
    generator = np.random.default_rng(seed)
    inside, outside = np.zeros((2, count, 1024), np.int64)
    for image in range(count):
        tilt = generator.normal(0, 0.3)
        for counts, mean, size in ((inside, 0, pixels), (outside, shift, pixels // 3)):
            scores = generator.normal(mean + tilt, 1, generator.integers(size // 2, size))
            np.add.at(counts[image], np.clip((scores * levels / 4).astype(int) + 500, 0, 1023), 1)
    return inside, outside


def pixels_of(counts):
    return np.repeat(np.arange(counts.size), counts).astype(float)


def slopes(estimate, *data):
    """An estimate's derivative by each image's share, 0 in the mean: what one copy of many does, more or less."""
    count = len(data[0])
    found = []
    for image in range(count):
        times = np.full((2, count), COPIES)
        times[:, image] += 1, -1
        more, less = (estimate(*((column.T * row).T.sum(0) for column in data)) for row in times)
        found.append((more - less) / 2 * count * COPIES)
    return np.array(found) - np.mean(found)


# ── bins ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


@laws
@given(st.lists(some, min_size=2, max_size=30), st.booleans())
def test_bins_are_in_the_order_of_the_scores_and_the_same_for_tensors(scores, signed):
    ordered = np.sort(np.array(scores, np.float32))
    bins = metrics.score_bins(ordered, signed=signed)
    assert bins.dtype == np.uint16
    assert (np.diff(bins.astype(int)) >= 0).all()
    of_tensor = metrics.score_bins(torch.from_numpy(ordered), signed=signed)
    assert of_tensor.dtype == torch.int32
    assert of_tensor.tolist() == bins.tolist()


@laws
@given(st.floats(2.0**-24, 2.0**7.9), st.floats(2.0**-8, 2.0**7.9), st.sampled_from([-1, 1]))
def test_a_bin_is_a_two_thousandth_of_its_score_wide(score, magnitude, sign):
    assert metrics.bin_values()[metrics.score_bins(np.array(score))] == pytest.approx(score, rel=1 / 4000)
    signed = sign * magnitude
    found = metrics.bin_values(signed=True)[metrics.score_bins(np.array(signed), signed=True)]
    assert found == pytest.approx(signed, rel=1 / 4000)


@pytest.mark.parametrize("signed", [False, True])
def test_the_value_of_each_bin_is_in_that_bin(signed):
    assert (metrics.score_bins(metrics.bin_values(signed=signed), signed=signed) == np.arange(ALL)).all()


def test_the_end_bins_have_all_that_is_beyond():
    low = metrics.score_bins(np.array([-1e-9, -0.0, 0.0, 2.0**-25, 2.0**-24, 1e300, math.inf]))
    assert low.tolist() == [0, 0, 0, 0, 1, ALL - 1, ALL - 1]
    signed = metrics.score_bins(np.array([-math.inf, -1e-9, -0.0, 0.0, 1e-9, 2.0**-8, math.inf]), signed=True)
    assert signed.tolist() == [0, ALL // 2 - 1, ALL // 2, ALL // 2, ALL // 2, ALL // 2 + 1, ALL - 1]


@pytest.mark.parametrize("kind", [np.asarray, torch.from_numpy])
def test_histograms_count_each_row_by_weight(kind):
    generator = np.random.default_rng(0)
    bins = generator.integers(0, ALL, (2, 3, 50))
    valid = generator.random(50) < 0.5
    counts = np.asarray(metrics.histogram(kind(bins), kind(valid)))
    expected = np.zeros((2, 3, ALL), np.int64)
    for place in np.ndindex(bins.shape):
        expected[place[:2]][bins[place]] += valid[place[2]]
    assert counts.dtype == np.int64
    assert (counts == expected).all()
    coarse = np.asarray(metrics.histogram(kind(bins >> 6), kind(valid), size=1024))
    assert (coarse == expected.reshape(2, 3, 1024, 64).sum(-1)).all()
    assert metrics.histogram(kind(bins[0, 0])).sum() == 50


# ── separation ───────────────────────────────────────────────────────────────────────────────────────────────────────


@laws
@given(st.integers(0, 1000), st.floats(-1, 3))
def test_detection_of_histograms_is_that_of_the_pixels(seed, shift):
    generator = np.random.default_rng(seed)
    scores = [np.abs(generator.normal(mean, 1, (2, size))).round(1) for mean, size in ((0, 60), (shift, 25))]
    bins = [metrics.score_bins(score) for score in scores]
    found = metrics.detection_of_histograms(*(metrics.histogram(of) for of in bins))
    for row in range(2):
        low, high = (of[row].astype(float) for of in bins)
        each = {name: value[row] for name, value in vars(found).items()}
        assert each == pytest.approx(asdict(metrics.detection(low, high)), abs=1e-12)
        truth = np.repeat([0, 1], [60, 25])
        assert each["auroc"] == pytest.approx(roc_auc_score(truth, np.concatenate([low, high])))
        assert each["aupr_out"] == pytest.approx(average_precision_score(truth, np.concatenate([low, high])))


def test_images_without_pixels_of_a_kind_have_no_detection_scores():
    inside, outside = images(0, count=3)
    inside[0], outside[1] = 0, 0
    for value in vars(metrics.detection_of_histograms(inside, outside)).values():
        assert np.isnan(value).tolist() == [True, True, False]
    nothing = metrics.detection_of_histograms(0 * inside[0], 0 * outside[0])
    assert all(math.isnan(value) for value in vars(nothing).values())


@laws
@given(st.integers(0, 1000), st.floats(-1, 3))
def test_areas_move_with_an_images_share_by_its_contribution(seed, shift):
    data = images(seed, shift=shift)
    found = {name: sum(parts) for name, parts in vars(metrics.detection_influence_of_images(*data)).items()}
    for name in ("auroc", "aupr_out", "aupr_in"):
        slope = slopes(lambda *of, name=name: getattr(metrics.detection_of_histograms(*of), name), *data)
        assert found[name] == pytest.approx(slope, abs=2e-4)
    for value in found.values():
        assert np.mean(value) == pytest.approx(0, abs=1e-9)


def test_the_auroc_is_linear_in_the_images_of_the_other_side():
    inside, outside = images(1, count=40)
    through_inside, _ = metrics.detection_influence_of_images(inside, outside).auroc
    pooled = pixels_of(outside.sum(0))
    expected = []
    for counts in inside:
        placements = [(np.mean(pooled > score) + np.mean(pooled == score) / 2) for score in pixels_of(counts)]
        expected.append(np.sum(placements))
    pixels = inside.sum(1)
    area = np.sum(expected) / pixels.sum()
    assert through_inside == pytest.approx((np.array(expected) - area * pixels) / pixels.mean())


def error_of_bootstrap(estimate, *data, resamples=600):
    generator = np.random.default_rng(1)
    count = len(data[0])
    drawn = generator.multinomial(count, np.full(count, 1 / count), resamples)
    found = vars(estimate(*(drawn @ of for of in data)))
    return {name: np.std(value, ddof=1) * math.sqrt(count / (count - 1)) for name, value in found.items()}


@pytest.mark.parametrize(("shift", "seed"), [(1.0, 3), (2.5, 4), (0.3, 5)])
@pytest.mark.nightly
def test_errors_of_detection_over_images_are_the_bootstraps(shift, seed):
    data = images(seed, count=120, pixels=300, shift=shift, levels=400)
    found = metrics.detection_influence_of_images(*data)
    expected = error_of_bootstrap(metrics.detection_of_histograms, *data)
    for name, parts in vars(found).items():
        assert metrics.standard_error(sum(parts)) == pytest.approx(expected[name], rel=0.15)


# ── selective prediction ─────────────────────────────────────────────────────────────────────────────────────────────


@laws
@given(st.integers(0, 1000), st.floats(-1, 3))
def test_selective_prediction_from_histograms_is_that_of_the_pixels(seed, shift):
    right, wrong = images(seed, count=3, pixels=500, shift=shift)
    found = metrics.selective_of_histograms(right, wrong)
    for row in range(3):
        certain, uncertain = pixels_of(right[row]), pixels_of(wrong[row])
        loss = np.repeat([0.0, 1.0], [certain.size, uncertain.size])
        expected = metrics.selective(np.concatenate([certain, uncertain]), loss)
        assert {n: value[row] for n, value in vars(found).items()} == pytest.approx(asdict(expected), abs=1e-12)
        coverage, risk = metrics.risk_coverage_of_histograms(right[row], wrong[row])
        covered, risks = metrics.risk_coverage(np.concatenate([certain, uncertain]), loss)
        places = np.round(coverage * loss.size).astype(int) - 1
        assert len(coverage) == min(200, loss.size)
        assert coverage == pytest.approx(covered[places])
        assert risk == pytest.approx(risks[places])


def test_more_pixels_than_a_table_of_harmonic_numbers_holds_change_no_area():
    right, wrong = (of.sum(0) for of in images(2))
    small = metrics.selective_of_histograms(2000 * right, 2000 * wrong)
    large = metrics.selective_of_histograms(20_000 * right, 20_000 * wrong)
    assert 20_000 * right.sum() > 2**20 > 2000 * right.sum()
    assert large.aurc == pytest.approx(float(small.aurc), rel=1e-3)
    count, lost = 20_000 * (right + wrong), 20_000.0 * wrong
    loss = np.repeat(lost / np.maximum(count, 1), count)
    assert large.aurc == pytest.approx(np.mean(np.cumsum(loss) / np.arange(1, loss.size + 1)), rel=1e-9)


def test_errors_of_selective_prediction_over_images_are_the_bootstraps():
    data = images(7, count=120, pixels=300, levels=400)
    values = metrics.selective_of_histograms(*(of.sum(0) for of in data))
    found = metrics.selective_contributions(*data, values=metrics.SelectiveScores(**vars(values)))
    expected = error_of_bootstrap(metrics.selective_of_histograms, *data)
    for name, value in vars(found).items():
        assert np.mean(value) == pytest.approx(vars(values)[name])
        if name != "coverage_at_5":
            assert metrics.standard_error(value) == pytest.approx(expected[name], rel=0.1)


# ── calibration ──────────────────────────────────────────────────────────────────────────────────────────────────────


def stated(seed, count=8, classes=3):
    """Confidences and hits of the pixels of images of different sizes, by class, and their sums by image and bin."""
    generator = np.random.default_rng(seed)
    image = np.repeat(np.arange(count), generator.integers(20, 60, count))
    p = generator.dirichlet(np.ones(classes), image.size)
    hits = (np.array([generator.choice(classes, p=row) for row in p])[:, None] == np.arange(classes)).astype(float)
    sums = np.zeros((count, classes, 3, 15))
    for number in range(count):
        for label in range(classes):
            rows = image == number
            bins = metrics.calibration_bins(p[rows, label], hits[rows, label])
            sums[number, label] = bins.count, bins.confidence, bins.correct
    return image, p, hits, sums


def test_the_contributions_to_calibration_errors_are_the_influences_of_pixels_summed_by_image():
    image, p, hits, sums = stated(0)
    values = []
    for label in range(3):
        found = metrics.ece_contributions(sums[:, label])
        value = float(metrics.ece_of_bins(metrics.calibration_bins(p[:, label], hits[:, label])))
        influence = metrics.ece_influence(p[:, label], hits[:, label], group=image)
        assert found == pytest.approx(value + np.bincount(image, weights=influence) * 8 / image.size)
        values.append(found)
    assert metrics.classwise_ece(sums.sum(0)) == pytest.approx(np.mean(values))
    assert metrics.classwise_ece_contributions(sums) == pytest.approx(np.mean(values, axis=0))


@laws
@given(st.lists(st.tuples(st.integers(0, 30), st.integers(1, 30)), min_size=2, max_size=8))
def test_a_ratio_moves_with_an_images_share_by_its_contribution(rows):
    total, count = np.array(rows).T.astype(float)
    found = metrics.ratio_contributions(total, count)
    assert np.mean(found) == pytest.approx(total.sum() / count.sum())
    slope = slopes(lambda total, count: total / count, total, count)
    assert found - np.mean(found) == pytest.approx(slope, abs=1e-3, rel=1e-2)
