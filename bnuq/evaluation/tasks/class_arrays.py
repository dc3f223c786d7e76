"""The scores of a block of samples in numpy arrays, under every replicate, by the formulas of `metrics`."""

from __future__ import annotations

import numpy as np

from bnuq import metrics
from bnuq.frozen import frozen
from bnuq.metrics.arrays import Array, array_namespace
from bnuq.metrics.registry import ESTIMANDS
from bnuq.shapes import Float, Int64


@frozen
class SampleScores:
    """The scores of each sample alone: its entropy, 1 − its largest probability, 1 − the sum of the squares of all, the
    class it predicts, the log-likelihood of the true class, the logarithm of the sum of the exponentials of its logits
    (0 for log-probabilities), and its largest logit. What is averaged over samples is 0 of a single one of arrays."""

    entropy: Float[Array, "sample chunk"]
    least_confidence: Float[Array, "sample chunk"]
    impurity: Float[Array, "sample chunk"]
    vote: Int64[Array, "sample chunk"]
    log_likelihood: Float[Array, "sample chunk"] | None
    log_total: Float[Array, "sample chunk"]
    largest: Float[Array, "sample chunk"]


class ArrayKernel:
    """Scores blocks of logits (T, chunk, K), one after the other; `p` are the probabilities of the latest."""

    def __init__(self) -> None:
        self.p = np.empty((0, 0, 0))

    def logits(self, block: Float[np.ndarray, "sample chunk class"], replicates: int) -> np.ndarray:
        """The block in float64, as a copy that may be changed."""
        return np.array(block, dtype=np.float64)

    def sample_scores(self, logits: Float[np.ndarray, "sample chunk class"], y: np.ndarray | None) -> SampleScores:
        """The scores of each sample."""
        largest = logits.max(-1, keepdims=True)
        weight = np.exp(logits - largest)
        total = weight.sum(-1, keepdims=True)
        self.p = weight / total
        if len(logits) > 1:
            rest, impurity = _all_but_largest(self.p)
        else:  # of which there is nothing to average
            rest = impurity = np.zeros(logits.shape[:-1])
        return SampleScores(
            metrics.entropy(self.p),
            rest,
            impurity,
            metrics.predicted(logits) if len(logits) > 1 else np.zeros(logits.shape[:-1], np.int64),
            None if y is None else metrics.log_likelihood(logits, y),
            (largest + np.log(total))[..., 0],
            largest[..., 0],
        )

    def mean(self, weights: Float[np.ndarray, "replicate sample"]) -> Float[np.ndarray, "replicate chunk class"]:
        """The mean prediction under every replicate."""
        samples, points, classes = self.p.shape
        return (weights @ self.p.reshape(samples, -1)).reshape(-1, points, classes)

    def scores_of_means(
        self, mean: Float[np.ndarray, "replicate chunk class"], y: Int64[np.ndarray, " chunk"] | None
    ) -> dict[str, np.ndarray]:
        """The scores of the mean prediction under every replicate, and the predicted class."""
        impurity = _all_but_largest(mean)[1] if len(self.p) > 1 else np.zeros(mean.shape[:-1])
        return {"predicted": metrics.predicted(mean), "impurity": impurity} | further_scores(mean, y)

    def variation_ratio(self, vote: Int64[np.ndarray, "sample chunk"], weights: np.ndarray) -> np.ndarray:
        """The variation ratio under every replicate, from the votes for each class, or, where there are fewer samples
        than classes, for each sample's predicted class."""
        samples, points, classes = self.p.shape
        votes = (vote[..., None] == (np.arange(classes) if classes <= samples else vote.T)).astype(np.float64)
        return 1 - (weights @ votes.reshape(samples, -1)).reshape(len(weights), points, -1).max(-1)

    def release(self) -> None:
        """Nothing: arrays are freed with the block."""


def impurity_of(rest: Float[Array, "*any"], squares: Float[Array, "*any"]) -> Float[Array, "*any"]:
    """1 − Σ p², from the sum of all probabilities but the largest and the sum of their squares: no loss of precision
    where they vanish."""
    return rest * (2 - rest) - squares


def _all_but_largest(p: Float[np.ndarray, "*any class"]) -> tuple[np.ndarray, np.ndarray]:
    """The sum of all probabilities but the largest, and 1 − the sum of the squares of all."""
    others = p.copy()
    np.put_along_axis(others, p.argmax(-1)[..., None], 0.0, axis=-1)
    rest = others.sum(-1)
    return rest, impurity_of(rest, (others**2).sum(-1))


def further_scores(
    mean: Float[Array, "replicate chunk class"], y: Int64[Array, " chunk"] | None, without: frozenset[str] = frozenset()
) -> dict[str, Float[Array, "replicate chunk"]]:
    """The values of points that the table computes from the mean prediction, without these."""
    xp, (replicates, points, classes) = array_namespace(mean), mean.shape
    labels = None if y is None else xp.tile(y, (replicates,))
    return {
        estimand.name: xp.reshape(estimand.of_mean(xp.reshape(mean, (-1, classes)), labels), (replicates, points))
        for estimand in ESTIMANDS
        if estimand.of_mean and estimand.name not in without and (y is not None or not estimand.needs_truth)
    }
