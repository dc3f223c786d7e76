"""Replicates of the estimates that rank points: each draw left out, and every bootstrap weighting, from the samples."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import log_softmax, softmax
from scipy.stats import spearmanr
from sklearn.metrics import roc_auc_score

from bnuq import metrics
from bnuq.estimates import Estimate
from bnuq.evaluation import estimates
from bnuq.evaluation.tasks import failure_detection
from bnuq.evaluation.tasks.class_probabilities import PredictionSets
from bnuq.evaluation.tasks.class_reduction import ClassReduction, ClassScores
from bnuq.records.evaluation import parts_of

T, N, K = 8, 90, 3
DRAWS = estimates.replicate_weights(T)
RANDOM = np.random.default_rng(5)
LABELS = RANDOM.integers(K, size=N)
LOGITS = RANDOM.normal(size=(T, N, K)) + 1.5 * np.eye(K)[LABELS] + 1.5 * RANDOM.normal(size=(N, K))
OTHER = RANDOM.normal(size=(T, 40, K))


def reduced(logits: np.ndarray, labels: np.ndarray | None = None) -> ClassScores:
    parts, sets = (None, None) if labels is None else (parts_of(labels, (), None), PredictionSets(0.9, {"": -0.4}))
    reduction = ClassReduction(DRAWS, points=logits.shape[1], labels=labels, parts=parts, sets=sets)
    reduction.add(logits)
    return reduction.scores()


@pytest.fixture(scope="module")
def test() -> ClassScores:
    return reduced(LOGITS, LABELS)


@pytest.fixture(scope="module")
def other() -> ClassScores:
    return reduced(OTHER)


def mean_of(logits: np.ndarray, weights: np.ndarray) -> np.ndarray:
    return np.einsum("t,tnk->nk", weights, softmax(logits, -1))


def entropy(p: np.ndarray) -> np.ndarray:
    return -(p * np.log(p)).sum(-1)


def replicates(estimate: Estimate) -> tuple[np.ndarray, np.ndarray]:
    assert estimate.jackknife is not None and estimate.bootstrap is not None
    return np.concatenate([[estimate.value], estimate.jackknife, estimate.bootstrap]), DRAWS.weights[
        np.r_[DRAWS.full.start, DRAWS.jackknife, DRAWS.bootstrap]
    ]


@pytest.mark.nightly
def test_errors_are_ranked_by_every_score_under_every_weighting_of_the_draws(test: ClassScores) -> None:
    found = failure_detection.errors_by_score(test, DRAWS)
    assert {"least_confidence", "mutual_information", "energy"} <= found.keys() and "predictive_entropy" not in found
    uncertainties = {
        "predictive_entropy": failure_detection.of_set(test, DRAWS)["auroc_errors"],
        "least_confidence": found["least_confidence"]["auroc_errors"],
    }
    for name, estimate in uncertainties.items():
        for value, weights in zip(*replicates(estimate), strict=True):
            p = mean_of(LOGITS, weights)
            uncertainty = entropy(p) if name == "predictive_entropy" else 1 - p.max(-1)
            assert value == pytest.approx(roc_auc_score(p.argmax(-1) != LABELS, uncertainty), abs=1e-6)
        assert estimate.mc_se is not None and 0 < estimate.mc_se < 0.2


def test_both_kinds_of_uncertainty_are_correlated_under_every_weighting_of_the_draws(test: ClassScores) -> None:
    estimate = failure_detection.of_set(test, DRAWS)["uncertainty_correlation"]
    for value, weights in zip(*replicates(estimate), strict=True):
        expected = weights @ entropy(softmax(LOGITS, -1))
        information = entropy(mean_of(LOGITS, weights)) - expected
        assert value == pytest.approx(spearmanr(information, expected).statistic, abs=1e-4)  # kept in float32


def test_an_accepted_ood_point_is_an_error_under_every_weighting_of_the_draws(test, other):
    separation = failure_detection.with_ood_points({"predictive_entropy": {}}, test, other, DRAWS)
    for value, weights in zip(*replicates(separation["predictive_entropy"]["scod"]), strict=True):
        p = mean_of(LOGITS, weights)
        uncertainty = np.r_[entropy(p), entropy(mean_of(OTHER, weights))]
        wrong = np.r_[p.argmax(-1) != LABELS, np.ones(OTHER.shape[1])][np.argsort(uncertainty)]
        assert value == pytest.approx(np.mean(np.cumsum(wrong) / np.arange(1, len(wrong) + 1)), abs=1e-6)


def test_sets_with_labels_of_their_own_or_without_any_have_no_area_with_ood_points(test, other):
    for pair in ((test, test), (other, other)):
        assert failure_detection.with_ood_points({"energy": {}}, *pair, DRAWS) == {"energy": {}}


def test_coverage_by_class_makes_that_of_all_points_under_every_weighting_of_the_draws(test: ClassScores) -> None:
    parts = test.parts["class"]
    assert sum(map(len, parts.values())) == N
    found = [failure_detection.coverage_of_part(test, rows, "class", DRAWS)["set_coverage"] for rows in parts.values()]
    whole = estimates.mean_estimate("set_coverage", test, DRAWS)
    shares = [len(rows) / N for rows in parts.values()]
    together = sum(share * replicates(each)[0] for share, each in zip(shares, found, strict=True))
    np.testing.assert_allclose(together, replicates(whole)[0], rtol=1e-12)
    assert np.ptp(replicates(whole)[0]) > 0


def test_errors_of_a_class_are_ranked_among_its_own_points(test: ClassScores) -> None:
    for rows in test.parts["class"].values():
        estimate = failure_detection.errors_of_part(test, rows, "class", DRAWS)["auroc_errors"]
        for value, weights in zip(*replicates(estimate), strict=True):
            p = mean_of(LOGITS, weights)[rows]
            assert value == pytest.approx(roc_auc_score(p.argmax(-1) != LABELS[rows], entropy(p)), abs=1e-6)


def test_the_parts_of_the_pll_make_it_up_under_every_weighting_of_the_draws(test: ClassScores) -> None:
    found = failure_detection.split_by_temperature(test, reduced(LOGITS / 1.7, LABELS), DRAWS)
    losses, weightings = replicates(found["refinement_loss"])
    together = losses + replicates(found["calibration_loss"])[0]
    for loss, total, weights in zip(losses, together, weightings, strict=True):
        assert total == pytest.approx(-np.log(mean_of(LOGITS, weights)[np.arange(N), LABELS]).mean())
        assert loss == pytest.approx(-np.log(mean_of(LOGITS / 1.7, weights)[np.arange(N), LABELS]).mean())
    assert failure_detection.split_by_temperature(reduced(OTHER), reduced(OTHER), DRAWS) == {}


def test_where_nothing_or_everything_is_wrong_errors_are_not_ranked() -> None:
    for labels in (LOGITS.mean(0).argmax(-1), (log_softmax(LOGITS, -1).mean(0).argmin(-1))):
        logits = 20.0 * np.eye(K)[labels] + 0.1 * LOGITS
        scores = reduced(logits, labels)
        assert "auroc_errors" not in failure_detection.of_set(scores, DRAWS)
        assert failure_detection.errors_by_score(scores, DRAWS) == {}
        assert failure_detection.errors_by_score(reduced(logits, (labels + 1) % K), DRAWS) == {}


def test_of_many_points_the_monte_carlo_error_comes_from_some_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """The value stays that of all points; the error is of about the size of that of all."""
    scores = reduced(LOGITS, LABELS)
    whole = failure_detection.of_set(scores, DRAWS)["auroc_errors"]
    monkeypatch.setattr(failure_detection, "RANKED", 45)
    part = failure_detection.of_set(scores, DRAWS)["auroc_errors"]
    assert (part.value, part.se) == (whole.value, whole.se)
    assert part.mc_se is not None and whole.mc_se is not None and 0.4 < part.mc_se / whole.mc_se < 4
    assert metrics.jackknife_error(part.jackknife) > 0
