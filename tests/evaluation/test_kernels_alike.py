"""The kernels of numpy and of torch give the same: every value of points, every sum and every estimate of the table."""

from __future__ import annotations

from collections.abc import Mapping

import at_night
import numpy as np
import pytest
import torch

from bnuq.evaluation.estimates import replicate_weights
from bnuq.evaluation.tasks.class_probabilities import PredictionSets
from bnuq.evaluation.tasks.class_reduction import ClassReduction, ClassScores
from bnuq.evaluation.tasks.classification import set_estimates
from bnuq.metrics.registry import ESTIMANDS, Estimand
from bnuq.records.evaluation import parts_of

N, K = 90, 5
KINDS = ("random", "ties", "masked")


def logits_of(kind: str, samples: int) -> np.ndarray:
    random = np.random.default_rng(len(kind))
    logits = 2 * random.normal(size=(1, N, K)) + random.normal(size=(samples, N, K))
    if kind == "ties":
        logits = np.round(logits)
        logits[:, :9] = 1.0  # all classes, of all samples
    if kind == "masked":
        masked = random.random((N, K)) < 0.3
        masked[:, 0] = False
        logits[:, masked] = -np.inf
    return logits


def scored(logits: np.ndarray | torch.Tensor, labels: np.ndarray | None, estimator: str) -> ClassScores:
    reduction = ClassReduction(
        replicate_weights(len(logits)),
        points=N,
        labels=labels,
        estimator=estimator,  # type: ignore[arg-type]
        parts=parts_of(labels, (), None),
        sets=PredictionSets(0.9, second=np.arange(N) % 2 == 0, thresholds={"": 0.8, "_aps": 0.9}),
    )
    for start in range(0, N, 40):
        reduction.add(logits[:, start : start + 40])
    return reduction.scores()


def is_of_points(estimand: Estimand, *, labelled: bool, samples: int) -> bool:
    """Whether the samples of a classification give each point a value of this row."""
    of_logits = estimand.score is not None and estimand.score.source == "logits"
    if not (estimand.of_mean or estimand.of_samples) or not (of_logits or not estimand.needs_truth or labelled):
        return False
    return samples > 1 or not estimand.needs_samples


def assert_alike(ours: Mapping[str, np.ndarray], theirs: Mapping[str, np.ndarray]) -> None:
    assert ours.keys() == theirs.keys()
    for name, values in ours.items():
        tolerance = 1e-6 if values.dtype == np.float32 else 1e-9
        np.testing.assert_allclose(values, theirs[name], rtol=tolerance, atol=tolerance / 100, err_msg=name)


@pytest.mark.parametrize("estimator", ["plug-in", "jackknife"])
@pytest.mark.parametrize("labelled", [True, False])
@pytest.mark.parametrize("samples", at_night.but({5}, [1, 5, 9]))
@pytest.mark.parametrize("kind", KINDS)
def test_numpy_and_torch_give_the_same(kind: str, samples: int, labelled: bool, estimator: str) -> None:
    logits, weights = logits_of(kind, samples), replicate_weights(samples)
    labels = np.random.default_rng(7).integers(K, size=N) if labelled else None
    ours, theirs = (scored(block, labels, estimator) for block in (logits, torch.from_numpy(logits.copy())))
    of_points = {row.name for row in ESTIMANDS if is_of_points(row, labelled=labelled, samples=samples)}
    assert of_points <= ours.points.keys()
    assert (ours.predicted == theirs.predicted).all() and (ours.ranked_wrong is None) == (theirs.ranked_wrong is None)
    for field in ("points", "replicates", "ranked", "part_sums", "conformity"):
        assert_alike(getattr(ours, field), getattr(theirs, field))
    if labelled:
        assert ours.log_likelihood is not None and theirs.log_likelihood is not None
        np.testing.assert_allclose(ours.log_likelihood, theirs.log_likelihood, rtol=1e-9, atol=1e-11)
    numbers, others = set_estimates(ours, weights), set_estimates(theirs, weights)
    follow = {row.name for row in ESTIMANDS if row.tasks and row.formula and row.formula.needs <= ours.points.keys()}
    assert numbers.keys() == others.keys() and follow <= numbers.keys() and (not labelled or len(follow) > 5)
    for name, estimate in numbers.items():
        for part in ("value", "se", "mc_se"):
            one, other = getattr(estimate, part), getattr(others[name], part)
            assert one == other or one == pytest.approx(other, rel=1e-6, abs=1e-9, nan_ok=True), (name, part)
