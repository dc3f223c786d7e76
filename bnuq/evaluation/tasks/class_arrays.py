"""The scores of a block of samples in numpy arrays, under every replicate, by the formulas of `metrics`."""

from __future__ import annotations

import numpy as np

from bnuq import metrics
from bnuq.frozen import frozen
from bnuq.metrics.arrays import Array, array_namespace
from bnuq.metrics.registry import ESTIMANDS
from bnuq.shapes import Float, Int64

DEVICE_BLOCK = 2**24  # replicates × points × classes at once on an accelerator, which needs large blocks to be busy


@frozen
class SampleScores:
    """The scores of each sample alone: its entropy, the log-likelihood of the true class, the logarithm of the sum of
    the exponentials of its logits (0 for log-probabilities), and its largest logit."""

    entropy: Float[Array, "sample chunk"]
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
        return SampleScores(
            metrics.entropy(self.p),
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
        return {"predicted": metrics.predicted(mean)} | further_scores(mean, y)

    def release(self) -> None:
        """Nothing: arrays are freed with the block."""


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
