"""The estimates of a segmentation: streamed, they are those of all pixels at once; their errors are over images."""

from __future__ import annotations

import math
from itertools import combinations
from pathlib import Path
from typing import Any

import at_night
import numpy as np
import pytest
import small_segmentation
import torch
from PIL import Image
from scipy.special import log_softmax, logsumexp, softmax
from written import folder_of

from bnuq import metrics
from bnuq.config import Options, resolve, resolve_ensemble
from bnuq.data.masks import masks_of_array
from bnuq.errors import SamplingError
from bnuq.estimates import Estimate
from bnuq.evaluation import passes
from bnuq.evaluation.tasks import segmentation
from bnuq.evaluation.tasks.pixel_counts import one_of
from bnuq.evaluation.tasks.pixels import FEW_PARTS, PixelReduction, PixelScores, parts_of_draws
from bnuq.records.evaluation import PIXEL_SCORES, MethodResult, Result, SetResult
from bnuq.sampling import counter_rng
from bnuq.workflows.evaluate import evaluate

CLASSES, IGNORE, SHAPE = 4, 9, (6, 8)
IMAGES, OTHERS, DRAWS = 24, 16, 9
HALF = IMAGES // 2
FEW = 7  # images of a whole run that is cut in several ways
SIGNED = ("max_logit", "energy")
RANK = ("aurc", "augrc", "risk_at_80", "coverage_at_5")
ALONE: dict[str, Any] = {"methods": ("mcbn",), "ood": (), "images": False}  # the test set, by one method
DETECTION = ("auroc", "aupr_out", "aupr_in", "fpr95", "fpr95_id_positive")


folder = folder_of(small_segmentation)


# ── logits of a few images, and their estimates computed at once ─────────────────────────────────────────────────────


def images(seed: int, count: int, *, spread: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    """Logits (T, n, K, H, W) that know something of the masks (n, H, W); the last class never occurs in these."""
    random = np.random.default_rng(seed)
    masks = np.kron(random.integers(0, CLASSES - 1, (count, 3, 4)), np.ones((2, 2), np.int64))
    center = random.normal(0, 1, (count, CLASSES, *SHAPE)) + 2 * np.moveaxis(np.eye(CLASSES)[masks], -1, 1)
    of_image = random.gamma(2, 0.5, (count, 1, 1, 1))
    logits = of_image * center + spread * random.normal(0, 0.7, (DRAWS, count, CLASSES, *SHAPE))
    masks[random.random(masks.shape) < 0.1] = IGNORE
    masks[count // 2] = IGNORE
    return logits, masks


LOGITS, MASKS = images(0, IMAGES)
OTHER_LOGITS, _ = images(1, OTHERS, spread=2.0)
ANOMALIES = np.random.default_rng(2).choice([0, 1, 7], (OTHERS, *SHAPE), p=[0.7, 0.2, 0.1])


def pixels(logits: np.ndarray, weights: np.ndarray | None = None) -> dict[str, np.ndarray]:
    """The scores of every pixel, (n, H, W), under these weights of the draws."""
    weights = np.full(len(logits), 1 / len(logits)) if weights is None else weights
    p = softmax(logits, axis=2)
    mean = np.tensordot(weights, p, 1)
    entropy = -np.tensordot(weights, (p * np.log(p)).sum(2), 1)
    predictive = -(mean * np.log(mean)).sum(1)
    return {
        "mean": mean,
        "predicted": mean.argmax(1),
        "max_probability": mean.max(1),
        "least_confidence": 1 - mean.max(1),
        "predictive_entropy": predictive,
        "expected_entropy": entropy,
        "mutual_information": predictive - entropy,
        "max_logit": -np.tensordot(weights, logits.max(2), 1),
        "energy": -np.tensordot(weights, logsumexp(logits, axis=2), 1),
    }


def binned(name: str, values: np.ndarray) -> np.ndarray:
    """The numbers of the bins of scores, as scores."""
    return metrics.score_bins(values, signed=name in SIGNED).astype(float)


def estimates_at_once(
    logits: np.ndarray, masks: np.ndarray, ignore: int = IGNORE, weights: np.ndarray | None = None
) -> dict[str, float]:
    scores = pixels(logits, weights)
    valid = masks != ignore
    y, predicted = masks[valid], scores["predicted"][valid]
    right = predicted == y
    p = np.moveaxis(scores["mean"], 1, -1)[valid]
    of_truth = p[np.arange(len(y)), y]
    confidence = p.max(1)
    gaps = [confidence[cell].sum() - right[cell].sum() for cell in cells(confidence)]
    of_classes = [sum(abs((p[c, k] - (y[c] == k)).sum()) for c in cells(p[:, k])) for k in range(p.shape[1])]
    ious = [np.sum((y == k) & (predicted == k)) / np.sum((y == k) | (predicted == k)) for k in np.unique(y)]
    ranked = metrics.selective(
        binned("predictive_entropy", scores["predictive_entropy"][valid]), (~right).astype(float)
    )
    return {
        "accuracy": right.mean(),
        "pll": np.log(of_truth).mean(),
        "brier": ((p - np.eye(p.shape[1])[y]) ** 2).sum(1).mean(),
        "ece": np.abs(gaps).sum() / len(y),
        "ece_classwise": np.mean(of_classes) / len(y),
        "mean_iou": float(np.mean(ious)),
        **{name: scores[name][valid].mean() for name in (*PIXEL_SCORES, "max_probability")},
        **vars(ranked),
    }


def cells(confidence: np.ndarray) -> list[np.ndarray]:
    return [(confidence > k / 15) & (confidence <= (k + 1) / 15) for k in range(15)]


def left_out(draws: int, part: range) -> np.ndarray:
    kept = np.array([t not in part for t in range(draws)], float)
    return kept / kept.sum()


def reduced(
    scorer: segmentation.SegmentationScorer,
    logits: np.ndarray,
    masks: np.ndarray | None,
    *,
    labelled: bool = True,
    images_at_once: int = 5,
    draws_at_once: int = 4,
    group: np.ndarray | None = None,
    **options: Any,
) -> PixelScores:
    """The scores of these logits, added a few images and a few draws at a time."""
    draws, count = logits.shape[:2]
    reduction = PixelReduction(
        scorer.weights(draws, None),
        parts_of_draws(draws, math.prod(logits.shape[2:])),
        classes=logits.shape[2],
        ignore=IGNORE,
        masks=None if masks is None else masks_of_array(masks, "made up"),
        labelled=labelled,
        **options,
    )
    outputs = torch.from_numpy(logits)
    for first in range(0, count, images_at_once):
        for draw in range(0, draws, draws_at_once):
            reduction.add(outputs[draw : draw + draws_at_once, first : first + images_at_once])
    return reduction.scores(group=group)


@pytest.fixture(scope="module")
def scorer(folder: Path) -> segmentation.SegmentationScorer:
    run = resolve("run.toml", Options(), folder=folder)
    return segmentation.SegmentationScorer(run, CLASSES, SHAPE, ("sky", "road", "car", "unseen"))


def result_of(scorer: segmentation.SegmentationScorer, draws: int, **scores: PixelScores) -> MethodResult:
    return scorer.result(scores, scorer.weights(draws, None))


@pytest.fixture(scope="module")
def made_up(scorer: segmentation.SegmentationScorer) -> MethodResult:
    return result_of(
        scorer,
        DRAWS,
        test=reduced(scorer, LOGITS, MASKS),
        strange=reduced(scorer, OTHER_LOGITS, None, labelled=False),
        anomalies=reduced(scorer, OTHER_LOGITS, ANOMALIES, labelled=False),
    )


# ── estimates ────────────────────────────────────────────────────────────────────────────────────────────────────────


def of_images(name: str) -> bool:
    """Whether tests/runs/test_image_maps.py computes an estimate again: one of whole images."""
    return name.startswith("image_aurc")


def test_every_streamed_estimate_is_that_of_all_pixels_at_once(made_up: MethodResult) -> None:
    expected = estimates_at_once(LOGITS, MASKS)
    found = made_up.sets["test"].estimates
    assert {*expected} - {*SIGNED, "least_confidence"} == {name for name in found if not of_images(name)}
    for name, estimate in found.items():
        if not of_images(name):
            assert estimate.value == pytest.approx(expected[name], abs=1e-12), name


def test_the_estimates_of_each_class_are_those_of_its_pixels(made_up: MethodResult) -> None:
    predicted, valid = pixels(LOGITS)["predicted"], MASKS != IGNORE
    by_class = made_up.sets["test"].by_class
    assert list(by_class) == ["sky", "road", "car"] and (predicted == 3).any()  # which no mask has
    mean = np.mean([of_class["iou"].value for of_class in by_class.values()])
    assert made_up.sets["test"].estimates["mean_iou"].value == pytest.approx(mean)
    for k, estimates in enumerate(by_class.values()):
        true, called = (valid & (of == k) for of in (MASKS, predicted))
        both = np.sum(true & called)
        assert estimates["count"].value == true.sum()
        assert estimates["iou"].value == pytest.approx(both / np.sum(true | called))
        assert estimates["dice"].value == pytest.approx(2 * both / (true.sum() + called.sum()))
        assert estimates["accuracy"].value == pytest.approx(both / true.sum())


def test_the_values_of_an_image_are_means_over_its_pixels(made_up: MethodResult) -> None:
    scores, points = pixels(LOGITS), made_up.sets["test"].points
    for image, mask in enumerate(MASKS):
        valid = mask != IGNORE
        assert points["pixels"][image] == valid.sum()
        seen = valid if valid.any() else np.ones_like(valid)  # an image that is ignored still has scores
        for name in (*PIXEL_SCORES, "max_probability"):
            assert points[name][image] == pytest.approx(scores[name][image][seen].mean())
        if valid.any():
            right = scores["predicted"][image][valid] == mask[valid]
            assert points["accuracy"][image] == pytest.approx(right.mean())
        counts = np.bincount(scores["predicted"][image][valid], minlength=CLASSES)
        np.testing.assert_array_equal(made_up.sets["test"].predicted[image], counts)


def test_pixels_and_images_of_a_strange_set_are_separated_from_those_of_the_test_set(made_up: MethodResult) -> None:
    test, other, valid = pixels(LOGITS), pixels(OTHER_LOGITS), MASKS != IGNORE
    for name in PIXEL_SCORES:
        inside, outside = binned(name, test[name][valid]), binned(name, other[name].ravel())
        for key, value in vars(metrics.detection(inside, outside)).items():
            assert made_up.pixel_ood["strange"][name][f"pixel_{key}"].value == pytest.approx(value, abs=1e-12)
        of_images = made_up.sets["test"].points[name], other[name].mean((1, 2))
        assert made_up.ood["strange"][name]["auroc"].value == pytest.approx(metrics.auroc(*of_images))


def test_anomalies_are_separated_from_the_other_pixels_of_their_images(made_up: MethodResult) -> None:
    other = pixels(OTHER_LOGITS)
    for name in PIXEL_SCORES:
        inside, outside = (binned(name, other[name][side == ANOMALIES]) for side in (0, 1))
        for key, value in vars(metrics.detection(inside, outside)).items():
            assert made_up.pixel_ood["anomalies"][name][f"pixel_{key}"].value == pytest.approx(value, abs=1e-12)
        aurocs = []
        for row, mask in enumerate(ANOMALIES):
            if {0, 1} <= {*mask.ravel()}:
                aurocs.append(metrics.auroc(*(other[name][row][side == mask] for side in (0, 1))))
        found = made_up.pixel_ood["anomalies"][name]["pixel_auroc_per_image"]
        assert found.value == pytest.approx(np.mean(aurocs), abs=0.01)  # in coarse bins
        assert found.se == pytest.approx(np.std(aurocs, ddof=1) / math.sqrt(len(aurocs)), rel=0.15)


def test_the_curves_end_in_the_estimates(made_up: MethodResult) -> None:
    test = made_up.sets["test"].estimates
    assert made_up.risk["risk"][-1] == pytest.approx(1 - test["accuracy"].value)
    counts = made_up.calibration["count"]
    assert counts.sum() == (MASKS != IGNORE).sum()
    filled = counts > 0
    gap = np.abs(made_up.calibration["accuracy"] - made_up.calibration["confidence"])
    assert np.sum((gap * counts)[filled]) / counts.sum() == pytest.approx(test["ece"].value)
    sizes = made_up.convergence["samples"]
    np.testing.assert_array_equal(sizes, [1, 2, 4, 8, 9])
    expected = [estimates_at_once(LOGITS[:size], MASKS)["pll"] for size in sizes]
    np.testing.assert_allclose(made_up.convergence["pll"], expected)


def test_the_reliability_of_a_class_is_that_of_its_probability(made_up: MethodResult) -> None:
    scores, valid = pixels(LOGITS), MASKS != IGNORE
    curve = made_up.class_calibration
    assert curve["count"].shape == (CLASSES, 15)
    for k in range(CLASSES):
        p, true = scores["mean"][:, k][valid], MASKS[valid] == k
        for at, cell in enumerate(cells(p)):
            assert curve["count"][k, at] == cell.sum()
            if cell.any():
                assert curve["confidence"][k, at] == pytest.approx(p[cell].mean())
                assert curve["accuracy"][k, at] == pytest.approx(true[cell].mean())


def test_images_are_also_ranked_by_the_disagreement_of_draws(made_up: MethodResult) -> None:
    draws, points = LOGITS.argmax(2), made_up.sets["test"].points
    for image, mask in enumerate(MASKS):
        valid = mask != IGNORE
        if not valid.any():
            continue
        dice = []
        for a, b in combinations(draws[:, image, valid], 2):
            of_classes = [(2 * ((a == k) & (b == k)).sum(), (a == k).sum() + (b == k).sum()) for k in range(CLASSES)]
            dice.append(np.mean([common / size for common, size in of_classes if size]))
        assert points["map_pairwise_dice"][image] == pytest.approx(1 - np.mean(dice))
    assert "image_aurc_pairwise_dice" in made_up.sets["test"].estimates


# ── errors ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_errors_over_images_are_those_of_a_ratio(made_up: MethodResult) -> None:
    scores, valid = pixels(LOGITS), MASKS != IGNORE
    right = (scores["predicted"] == MASKS) & valid
    for name, per_pixel in (("accuracy", right), ("mutual_information", scores["mutual_information"])):
        total, count = (per_pixel * valid).sum((1, 2)), valid.sum((1, 2))
        residual = total - total.sum() / count.sum() * count
        expected = math.sqrt(IMAGES / (IMAGES - 1) * np.sum(residual**2)) / count.sum()
        assert made_up.sets["test"].estimates[name].se == pytest.approx(expected)


@pytest.fixture(scope="module")
def resampled() -> list[dict[str, float]]:
    """The estimates of many resamples of the images."""
    random = np.random.default_rng(3)
    rows = [random.integers(0, IMAGES, IMAGES) for _ in range(100)]
    return [estimates_at_once(LOGITS[:, chosen], MASKS[chosen]) for chosen in rows]


@pytest.mark.parametrize("name", ["pll", "ece", "mean_iou", "aurc"])
@pytest.mark.nightly
def test_errors_over_images_agree_with_the_bootstrap(made_up, resampled, name):
    expected = np.std([each[name] for each in resampled], ddof=1)
    assert made_up.sets["test"].estimates[name].se == pytest.approx(expected, rel=0.25)


def test_the_error_of_the_separation_of_pixels_agrees_with_the_bootstrap(made_up: MethodResult) -> None:
    test, other, valid = (*(pixels(logits)["energy"] for logits in (LOGITS, OTHER_LOGITS)), MASKS != IGNORE)
    random = np.random.default_rng(0)
    values = []
    for _ in range(200):
        rows, others = random.integers(0, IMAGES, IMAGES), random.integers(0, OTHERS, OTHERS)
        values.append(metrics.auroc(test[rows][valid[rows]], other[others].ravel()))
    assert made_up.pixel_ood["strange"]["energy"]["pixel_auroc"].se == pytest.approx(np.std(values, ddof=1), rel=0.25)


def check_replicates(found: SetResult, logits: np.ndarray, masks: np.ndarray, parts: list[range]) -> None:
    """Every estimate without each part of the draws, and its Monte Carlo error."""
    without = [estimates_at_once(logits, masks, weights=left_out(len(logits), part)) for part in parts]
    for name, estimate in found.estimates.items():
        if of_images(name):
            continue
        expected = np.array([each[name] for each in without])
        # ranks are replicated in coarser bins, a power of two of 32 of them
        tolerance = 0.05 if name == "coverage_at_5" else 0.01 if name in RANK else 1e-12  # the first may leap
        if name == "ece_classwise":  # of every eighth pixel
            tolerance = 0.02
        np.testing.assert_allclose(estimate.jackknife, expected, atol=tolerance, rtol=0, err_msg=name)
        assert estimate.mc_se == pytest.approx(metrics.jackknife_error(estimate.jackknife))
        assert estimate.bootstrap is None


def test_monte_carlo_errors_are_those_of_the_jackknife_over_draws(made_up: MethodResult) -> None:
    check_replicates(made_up.sets["test"], LOGITS, MASKS, [range(t, t + 1) for t in range(DRAWS)])
    valid = MASKS != IGNORE
    for key in DETECTION:
        found = made_up.pixel_ood["strange"]["energy"][f"pixel_{key}"]
        for t, replicate in enumerate(found.jackknife):
            weights = left_out(DRAWS, range(t, t + 1))
            inside, outside = (pixels(logits, weights)["energy"] for logits in (LOGITS, OTHER_LOGITS))
            assert replicate == pytest.approx(vars(metrics.detection(inside[valid], outside.ravel()))[key], abs=0.02)
        assert found.mc_se == pytest.approx(metrics.jackknife_error(found.jackknife))


@pytest.mark.parametrize(
    "images_at_once, draws_at_once, buffers", at_night.every_third([(5, DRAWS, 2), (24, 4, 2**14)])
)
def test_parts_are_left_out_at_few_pixels_of_a_large_image(
    scorer: segmentation.SegmentationScorer,
    made_up: MethodResult,
    monkeypatch: pytest.MonkeyPatch,
    images_at_once: int,
    draws_at_once: int,
    buffers: int,
) -> None:
    every = 3
    monkeypatch.setattr("bnuq.evaluation.tasks.pixels._BUFFERS", buffers)  # in the second case tiles of one pixel
    monkeypatch.setattr("bnuq.evaluation.tasks.pixels._LEFT_OUT_PIXELS", math.prod(SHAPE) // every)
    blocks = {"images_at_once": images_at_once, "draws_at_once": draws_at_once}
    found = result_of(
        scorer,
        DRAWS,
        test=reduced(scorer, LOGITS, MASKS, **blocks),
        strange=reduced(scorer, OTHER_LOGITS, None, labelled=False, **blocks),
    )
    before, after = made_up.sets["test"], found.sets["test"]
    for name, estimate in before.estimates.items():
        assert after.estimates[name].value == pytest.approx(estimate.value, abs=1e-12), name
        assert after.estimates[name].se == pytest.approx(estimate.se, abs=1e-12), name
    for name, curve in made_up.convergence.items():
        np.testing.assert_allclose(found.convergence[name], curve, atol=1e-12, rtol=0)

    few, count = few_valid(MASKS, every), np.count_nonzero(MASKS != IGNORE)
    full = pixels(LOGITS)
    for t in range(DRAWS):
        weights = left_out(DRAWS, range(t, t + 1))
        without = pixels(LOGITS, weights)
        for name in ("predictive_entropy", "mutual_information", "expected_entropy"):
            moved = every * (without[name][few] - full[name][few]).sum() / count
            assert after.estimates[name].jackknife[t] == pytest.approx(before.estimates[name].value + moved, abs=1e-12)
        right = [np.count_nonzero(MASKS[few] == each["predicted"][few]) for each in (without, full)]
        moved = every * (right[0] - right[1]) / count
        expected = before.estimates["accuracy"].value + moved
        assert after.estimates["accuracy"].jackknife[t] == pytest.approx(expected, abs=1e-12)
        true, predicted, common = (
            np.array([np.count_nonzero(of(full, k) & (MASKS != IGNORE)) for k in range(CLASSES)])
            + every * np.array([np.sum(of(without, k)[few]) - np.sum(of(full, k)[few]) for k in range(CLASSES)])
            for of in (
                lambda _, k: k == MASKS,
                lambda scores, k: scores["predicted"] == k,
                lambda scores, k: (scores["predicted"] == k) & (k == MASKS),
            )
        )
        iou = common[:-1] / (true + predicted - common)[:-1]  # the last class never occurs in the masks
        assert after.estimates["mean_iou"].jackknife[t] == pytest.approx(iou.mean(), abs=1e-12)
        values = []
        for each in (weights, None):
            inside, outside = pixels(LOGITS, each)["energy"][few], pixels(OTHER_LOGITS, each)["energy"]
            outside = outside[few_valid(np.zeros((OTHERS, *SHAPE)), every)]
            values.append(metrics.auroc(inside, outside))
        of_energy = found.pixel_ood["strange"]["energy"]["pixel_auroc"]
        assert of_energy.jackknife[t] == pytest.approx(of_energy.value + values[0] - values[1], abs=0.01)


def test_errors_from_few_pixels_are_those_from_all_where_neighbours_move_together(scorer, monkeypatch):
    logits = LOGITS.mean(0) + np.random.default_rng(3).normal(0, 0.3, (DRAWS, IMAGES, CLASSES, 1, 1))
    before = result_of(scorer, DRAWS, test=reduced(scorer, logits, MASKS)).sets["test"].estimates
    monkeypatch.setattr("bnuq.evaluation.tasks.pixels._LEFT_OUT_PIXELS", math.prod(SHAPE) // 2)
    after = result_of(scorer, DRAWS, test=reduced(scorer, logits, MASKS)).sets["test"].estimates
    for name in ("pll", "brier", "predictive_entropy", "mutual_information"):
        assert after[name].mc_se == pytest.approx(before[name].mc_se, rel=0.3), name
        assert after[name].mc_se != before[name].mc_se, name


def test_errors_from_few_pixels_are_those_from_all_where_images_are_periodic(scorer, monkeypatch):
    """Only every fourth column moves from draw to draw, and one of four pixels is looked at."""
    logits = np.broadcast_to(LOGITS.mean(0), LOGITS.shape).copy()
    logits[..., ::4] += np.random.default_rng(3).normal(0, 1, (DRAWS, IMAGES, CLASSES, 1, 1))
    before = result_of(scorer, DRAWS, test=reduced(scorer, logits, MASKS)).sets["test"].estimates
    monkeypatch.setattr("bnuq.evaluation.tasks.pixels._LEFT_OUT_PIXELS", math.prod(SHAPE) // 4)
    after = result_of(scorer, DRAWS, test=reduced(scorer, logits, MASKS)).sets["test"].estimates
    for name in ("pll", "predictive_entropy", "mutual_information"):
        assert after[name].mc_se == pytest.approx(before[name].mc_se, rel=0.3), name


def few_valid(masks: np.ndarray, every: int) -> np.ndarray:
    """One of every so many of the pixels of each image that are scored."""
    few = np.zeros(masks.shape, bool)
    for mask, chosen in zip(masks, few, strict=True):
        scored = np.flatnonzero(mask != IGNORE)
        chosen.ravel()[scored[one_of(every, len(scored))]] = True
    return few


def test_several_draws_are_left_out_together_where_there_are_many(scorer, monkeypatch):
    monkeypatch.setattr("bnuq.evaluation.tasks.pixels.PARTS", 8)
    logits = np.concatenate([LOGITS, LOGITS[:, ::-1]])  # 18 draws
    parts = [*parts_of_draws(18, 100)]
    assert [t for part in parts for t in part] == [*range(18)]
    assert {len(part) for part in parts} == {2, 3}
    found = result_of(scorer, 18, test=reduced(scorer, logits, MASKS))
    for name, value in estimates_at_once(logits, MASKS).items():
        if name in found.sets["test"].estimates:
            assert found.sets["test"].estimates[name].value == pytest.approx(value, abs=1e-12)
    check_replicates(found.sets["test"], logits, MASKS, parts)


def test_large_images_have_fewer_parts_in_float32(scorer, monkeypatch):
    monkeypatch.setattr("bnuq.evaluation.tasks.pixels._LARGE", 8)
    assert len(parts_of_draws(DRAWS, math.prod(LOGITS.shape[2:]))) == FEW_PARTS
    logits, masks = LOGITS[:, :HALF], MASKS[:HALF]
    found = result_of(scorer, DRAWS, test=reduced(scorer, logits, masks)).sets["test"].estimates
    expected = estimates_at_once(logits, masks)
    for name, estimate in ((name, each) for name, each in found.items() if not of_images(name)):
        assert estimate.value == pytest.approx(expected[name], rel=1e-3 if name in RANK else 1e-5), name
        assert estimate.mc_se is not None
        assert len(estimate.jackknife) == FEW_PARTS


def test_images_of_a_group_count_as_one(scorer: segmentation.SegmentationScorer) -> None:
    group, logits, masks = np.arange(HALF) % 2, LOGITS[:, :HALF], MASKS[:HALF]
    found = result_of(scorer, DRAWS, test=reduced(scorer, logits, masks, group=group)).sets["test"].estimates
    valid = masks != IGNORE
    right = (pixels(logits)["predicted"] == masks) & valid
    totals = np.bincount(group, weights=right.sum((1, 2)) - right.sum() / valid.sum() * valid.sum((1, 2)))
    assert found["accuracy"].se == pytest.approx(math.sqrt(2 * np.sum(totals**2)) / valid.sum())


# ── how images and draws are cut ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.held(False)
def test_no_estimate_depends_on_tiles(scorer, made_up, monkeypatch):
    monkeypatch.setattr("bnuq.evaluation.tasks.pixels._BUFFERS", 2**9)
    tiles = {"images_at_once": 7, "draws_at_once": 1}
    found = result_of(
        scorer,
        DRAWS,
        test=reduced(scorer, LOGITS, MASKS, **tiles),
        strange=reduced(scorer, OTHER_LOGITS, None, labelled=False, **tiles),
    )
    for name in ("test", "strange"):
        check_alike(found.sets[name].estimates, made_up.sets[name].estimates)
    for name, estimates in found.pixel_ood["strange"].items():
        check_alike(estimates, made_up.pixel_ood["strange"][name])


def check_alike(found: Any, expected: Any, tolerance: float = 1e-7) -> None:
    assert found.keys() == expected.keys()
    for name, estimate in found.items():
        for part in ("value", "se", "mc_se", "jackknife"):
            ours, theirs = (getattr(each, part) for each in (estimate, expected[name]))
            if theirs is None:
                assert ours is None
            else:
                np.testing.assert_allclose(ours, theirs, rtol=tolerance, atol=tolerance, err_msg=f"{name} {part}")


def all_estimates(result: Result) -> dict[str, Estimate]:
    found: dict[str, Estimate] = {}
    for method, of_method in result.methods.items():
        for name, of_set in of_method.sets.items():
            found |= {f"{method} {name} {key}": value for key, value in of_set.estimates.items()}
        for place in (of_method.ood, of_method.pixel_ood):
            for name, scores in place.items():
                for score, estimates in scores.items():
                    found |= {f"{method} {name} {score} {key}": value for key, value in estimates.items()}
    return found


@pytest.fixture(scope="module")
def evaluated(folder: Path) -> Result:
    return small_segmentation.evaluated(folder, **ALONE)


@pytest.mark.held(False)
@pytest.mark.nightly
def test_no_figure_of_a_run_depends_on_chunks_and_tiles_of_draws(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options: dict[str, Any] = {"methods": ("mcbn+mcdo",), "limit": FEW}
    expected = all_estimates(small_segmentation.evaluated(folder, out="part.h5", **options))
    monkeypatch.setattr(passes, "_DENSE", 2 * 288)
    result = small_segmentation.evaluated(folder, out="cut.h5", chunk_size=3, **options)
    check_alike(all_estimates(result), expected, 2e-3)  # a pixel that float32 puts into another bin


# ── whole runs ───────────────────────────────────────────────────────────────────────────────────────────────────────


def read_test_set(folder: Path) -> tuple[torch.Tensor, np.ndarray]:
    """The test pictures, normalised, and their masks."""
    files = sorted((folder / "test").iterdir())
    x = np.stack([np.asarray(Image.open(file)) for file in files]).transpose(0, 3, 1, 2) / 255
    masks = np.stack([np.asarray(Image.open(folder / "masks" / file.name)) for file in files]).astype(np.int64)
    return torch.from_numpy((x - 0.5) / 0.3).float(), masks


def deterministic_logits(folder: Path) -> np.ndarray:
    with torch.no_grad():
        return small_segmentation.network()(read_test_set(folder)[0]).double().numpy()[None]


def check_deterministic(result: Result, folder: Path, method: str = "deterministic", tau: Any = 1.0) -> None:
    logits = deterministic_logits(folder) / np.reshape(tau, (-1, 1, 1, 1))
    expected = estimates_at_once(logits, read_test_set(folder)[1], ignore=small_segmentation.IGNORE)
    for name, estimate in result.methods[method].sets["test"].estimates.items():
        if name in expected:
            assert estimate.value == pytest.approx(expected[name], rel=1e-4, abs=1e-6), name


def test_the_deterministic_network_is_that_of_a_plain_forward(folder: Path, evaluated: Result) -> None:
    check_deterministic(evaluated, folder)


@pytest.mark.held(False)
def test_the_draws_of_a_method_are_scored_as_they_are(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[torch.Tensor] = []
    plain = PixelReduction.add
    monkeypatch.setattr(
        PixelReduction, "add", lambda self, outputs: (seen.append(outputs.clone()), plain(self, outputs))[1]
    )
    result = small_segmentation.evaluated(folder, out="draws.h5", **ALONE)
    drawn = [block.double().numpy() for block in seen if len(block) > 1]
    expected = estimates_at_once(np.concatenate(drawn, axis=1), read_test_set(folder)[1], small_segmentation.IGNORE)
    for name, estimate in result.methods["mcbn"].sets["test"].estimates.items():
        if not of_images(name):
            assert estimate.value == pytest.approx(expected[name], abs=1e-6), name


def best_temperature(logits: np.ndarray, masks: np.ndarray) -> float:
    """Of a single pass (1, n, K, H, W), by its log-likelihood at each pixel that is scored, held near 1."""
    grid = np.exp(np.linspace(-2, 2, 401))
    valid = masks != small_segmentation.IGNORE
    of_pixels, y = np.moveaxis(logits[0], 1, -1)[valid], masks[valid]
    labels = metrics.pseudo_weight(metrics.errors_of_points(of_pixels[None], y)) * softmax(of_pixels, 1)
    labels[np.arange(len(y)), y] += 1
    return float(grid[np.argmax([(labels * log_softmax(of_pixels / tau, 1)).sum() for tau in grid])])


@pytest.mark.held(False)
def test_a_temperature_is_fitted_to_the_pixels_of_validation_points(folder: Path) -> None:
    with np.load(folder / "test.npz") as file:
        np.savez(folder / "held_out.npz", x=file["x"][:6], y=file["y"][:6])
    result = small_segmentation.evaluated(folder, out="tempered.h5", validation="held_out.npz", **ALONE)
    assert [*result.methods] == [f"{name}{end}" for name in ("deterministic", "mcbn") for end in ("", "+temperature")]
    tau = best_temperature(deterministic_logits(folder)[:, :6], read_test_set(folder)[1][:6])
    found = result.methods["deterministic+temperature"].sets["test"]
    assert found.estimates["temperature"].value == pytest.approx(tau, rel=0.02)
    check_deterministic(result, folder, "deterministic+temperature", found.estimates["temperature"].value)
    assert result.methods["mcbn+temperature"].sets["test"].estimates["pll"].mc_se is not None


@pytest.mark.held(False)
def test_each_half_of_the_test_set_has_the_temperature_of_the_other(folder: Path) -> None:
    options = ALONE | {"methods": ("deterministic",)}
    result = small_segmentation.evaluated(folder, out="crossed.h5", calibrate="cross", **options)
    found = result.methods["deterministic+temperature"].sets["test"].points["temperature"]
    assert len({*found}) == 2
    logits, masks = deterministic_logits(folder), read_test_set(folder)[1]
    for tau in {*found}:
        fitted_to = found != tau
        assert tau == pytest.approx(best_temperature(logits[:, fitted_to], masks[fitted_to]), rel=0.02)
    check_deterministic(result, folder, "deterministic+temperature", found)


@pytest.mark.held(False)
def test_networks_of_an_ensemble_are_averaged(folder: Path) -> None:
    state = torch.load(folder / "model.pt")
    random = torch.Generator().manual_seed(0)
    moved = {
        n: v + 0.2 * torch.randn(v.shape, generator=random) if v.is_floating_point() else v for n, v in state.items()
    }
    moved["1.running_var"] = state["1.running_var"]
    torch.save(moved, folder / "other.pt")
    options = Options(out=folder / "ensemble.h5", **ALONE | {"methods": ("deterministic",)})
    result = evaluate(resolve_ensemble(["run.toml", "other.pt"], options, folder=folder))
    x, masks = read_test_set(folder)
    networks = small_segmentation.network(), small_segmentation.network()
    networks[1].load_state_dict(moved)
    with torch.no_grad():
        logits = np.stack([network(x).double().numpy() for network in networks])
    expected = estimates_at_once(logits, masks, small_segmentation.IGNORE)
    found = result.methods["ensemble"].sets["test"].estimates
    for name in ("pll", "accuracy", "mean_iou", "ece", "mutual_information"):
        assert found[name].value == pytest.approx(expected[name], rel=1e-4), name


@pytest.mark.held(False)
def test_a_test_set_without_masks_has_uncertainties_alone(folder: Path) -> None:
    result = small_segmentation.evaluated(folder, out="unlabelled.h5", test="test", **ALONE | {"ood": ("strange.npz",)})
    found = result.methods["mcbn"].sets["test"]
    assert "pll" not in found.estimates and not found.by_class
    assert found.estimates["mutual_information"].value > 0
    assert result.methods["mcbn"].pixel_ood["strange"]["mutual_information"]["pixel_auroc"].se is not None


@pytest.mark.held(False)
def test_arrays_and_folders_give_the_same(folder: Path, evaluated: Result) -> None:
    options = ALONE | {"methods": ("deterministic",)}
    result = small_segmentation.evaluated(folder, out="arrays.h5", test="test.npz", **options)
    for name, estimate in result.methods["deterministic"].sets["test"].estimates.items():
        expected = evaluated.methods["deterministic"].sets["test"].estimates[name].value
        assert estimate.value == pytest.approx(expected, rel=1e-4)


@pytest.mark.held(False)
@pytest.mark.parametrize(("method", "chunk"), at_night.but({("tta", 3)}, [("tta", 3), ("mcbn+tta", None)]))
def test_flipped_pictures_are_scored_with_their_outputs_flipped_back(folder, monkeypatch, method, chunk):
    monkeypatch.setattr(
        passes, "_DENSE", 4 * small_segmentation.CLASSES * small_segmentation.HEIGHT * small_segmentation.WIDTH
    )  # some draws at a time
    options = ALONE | {"methods": (method,), "augment": {"flip": True}, "samples": 3}
    result = small_segmentation.evaluated(folder, out="flipped.h5", chunk_size=chunk, **options)
    inputs, masks = read_test_set(folder)
    logits = []
    for draw in range(3):
        mirrored = (counter_rng.augmentation_words(0, draw, len(inputs), counter_rng.TTA)[:, 2] >> np.uint64(63)) == 1
        network = small_segmentation.network()
        if method == "mcbn+tta":
            layer = result.bank.layers[0]
            network[1].running_mean.copy_(torch.from_numpy(layer.mean[draw]))
            network[1].running_var.copy_(torch.from_numpy(layer.var[draw]))
        with torch.no_grad():
            plain, of_mirrored = (network(each).double().numpy() for each in (inputs, inputs.flip(-1)))
        logits.append(np.where(mirrored[:, None, None, None], of_mirrored[..., ::-1], plain))
    expected = estimates_at_once(np.stack(logits), masks, small_segmentation.IGNORE)
    found = result.methods[method].sets["test"].estimates
    for name in ("pll", "accuracy", "mutual_information", "mean_iou"):
        assert found[name].value == pytest.approx(expected[name], abs=2e-4), name


@pytest.mark.nightly  # two options at once
@pytest.mark.held(False)
def test_flipped_pictures_pass_again_with_a_temperature(folder: Path) -> None:
    options = ALONE | {"methods": ("tta",), "augment": {"flip": True}, "calibrate": "cross", "samples": 3}
    result = small_segmentation.evaluated(folder, out="flipped.h5", **options)
    plain, tempered = (result.methods[name].sets["test"].estimates for name in ("tta", "tta+temperature"))
    assert tempered["pll"].value >= plain["pll"].value - 0.05
    assert tempered["accuracy"].value == pytest.approx(plain["accuracy"].value, abs=0.05)
    assert {*tempered} >= {"temperature", "mutual_information"}


@pytest.mark.parametrize("draws_at_once", [4, DRAWS])
def test_a_masked_class_is_one_of_a_very_low_logit(scorer: segmentation.SegmentationScorer, draws_at_once: int) -> None:
    logits = LOGITS.copy()
    logits[:, :, -1] = -np.inf
    logits[:, 2, 0, :3] = -np.inf
    found, low = (
        reduced(scorer, each, MASKS, draws_at_once=draws_at_once, fits_temperature=True)
        for each in (logits, logits.clip(-1e9))
    )
    assert found.samples_differ
    for name, values in low.points.items():
        np.testing.assert_allclose(found.points[name], values, rtol=1e-9, err_msg=name)
    assert np.isfinite(found.points["predictive_entropy"][found.points["pixels"] > 0]).all()


@pytest.mark.parametrize(("value", "draws_at_once"), [(np.nan, 4), (np.nan, len(LOGITS)), (np.inf, len(LOGITS))])
def test_an_output_that_is_not_finite_names_its_image(scorer, value, draws_at_once):
    logits = LOGITS.copy()
    logits[3, 7, 0, 0, 0] = value
    with pytest.raises(SamplingError, match="for example 7"):
        reduced(scorer, logits, MASKS, draws_at_once=draws_at_once)


def test_an_image_with_a_pixel_of_masked_classes_alone_is_named(scorer: segmentation.SegmentationScorer) -> None:
    logits = LOGITS.copy()
    logits[3, 7, :, 0, 0] = -np.inf
    with pytest.raises(SamplingError, match="for example 7"):
        reduced(scorer, logits, MASKS)
