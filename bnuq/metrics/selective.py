"""Selective prediction: the remaining loss at each coverage, when the most uncertain points are deferred.

Uncertainty may have any unit; larger is less certain. Loss is a 0/1 error or |e|; smaller is better.
"""

import numpy as np
from jaxtyping import Float, Shaped

from bnuq.metrics.arrays import Array, as_float64, like
from bnuq.metrics.replicates import group_index
from bnuq.metrics.resampling import blocks, resampled_counts


def risk_coverage(
    uncertainty: Float[Array, "point"], loss: Float[Array, "point"]
) -> tuple[Float[Array, "point"], Float[Array, "point"]]:
    """Coverage k/n in (0, 1], and risk, the mean loss of the k most certain points; less risk is better.

    Risk has the unit of the loss; both have its array type and precision. Points of equal uncertainty count with the
    mean loss of their tie, which is the expectation over its orders.

    Source: Geifman & El-Yaniv 2017, Selective Classification for Deep Neural Networks, §2; Shekhovtsov & Flach 2018,
    Fig. A.3.
    """
    count, total, _, _ = _by_certainty(as_float64(uncertainty), as_float64(loss))
    covered = np.arange(1, count.sum() + 1)
    risk = np.cumsum(np.repeat(total / count, count)) / covered
    return like(covered / covered.size, loss), like(risk, loss)


def _by_certainty(
    uncertainty: Float[np.ndarray, "point"], loss: Float[np.ndarray, "point"]
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Number and loss of points at each distinct uncertainty, most certain first; the order of points; starts of
    ties."""
    order = np.argsort(uncertainty, kind="stable")
    ranked = uncertainty[order]
    starts = np.flatnonzero(np.concatenate([[True], ranked[1:] != ranked[:-1]]))
    return np.diff(starts, append=ranked.size), np.add.reduceat(loss[order], starts), order, starts


def aurc(uncertainty: Float[Array, "point"], loss: Float[Array, "point"]) -> float:
    """Area under the risk–coverage curve, (1/n) Σ_k risk_k, in the loss's unit; less is better.

    An uninformative uncertainty (all tied) gives the mean loss.

    Source: Geifman, Uziel & El-Yaniv 2019, Bias-Reduced Uncertainty Estimation for Deep Neural Classifiers.
    """
    count, total, _, _ = _by_certainty(as_float64(uncertainty), as_float64(loss))
    return float(_area(count, total))


def _area(
    count: Shaped[np.ndarray, "*resample tie"], total: Float[np.ndarray, "*resample tie"]
) -> Float[Array, "*resample"]:
    """AURC from points and loss at each distinct uncertainty.

    Within a tie of mean loss m that starts after C points of loss S, risk_k is m + (S − C·m)/k, so that its sum needs
    only harmonic numbers.
    """
    covered = np.cumsum(count, axis=-1)
    before = covered - count
    mean = total / np.maximum(count, 1)
    harmonic = np.concatenate([[0.0], np.cumsum(1 / np.arange(1, int(covered[..., -1].max()) + 1))])
    excess = np.cumsum(total, axis=-1) - total - before * mean
    return np.sum(total + excess * (harmonic[covered] - harmonic[before]), axis=-1) / covered[..., -1]


def excess_aurc(uncertainty: Float[Array, "point"], loss: Float[Array, "point"]) -> float:
    """AURC minus that of the optimal order, which is by the loss itself, in the unit of the loss, ≥ 0; less is better.

    Source: Geifman, Uziel & El-Yaniv 2019 (E-AURC, here with the exact optimal order, not its approximation).
    """
    return aurc(uncertainty, loss) - aurc(loss, loss)


def aurc_bootstrap(
    uncertainty: Float[Array, "point"],
    loss: Float[Array, "point"],
    *,
    resamples: int = 1000,
    seed: int = 0,
    group: Shaped[Array, "point"] | None = None,
) -> Float[np.ndarray, "resample"]:
    """Bootstrap replicates over points of the AURC, shape (resamples,), in the loss's unit; less is better.

    Whole groups are drawn where `group` is given. Which points are drawn depends on (seed, n or groups) alone.

    Source: Efron & Tibshirani 1993, An Introduction to the Bootstrap, ch. 6 and 13.
    """
    losses = as_float64(loss)
    _, _, order, starts = _by_certainty(as_float64(uncertainty), losses)
    points = losses.size
    place = np.argsort(order)
    groups = None if group is None else group_index(group)
    generator = np.random.default_rng(seed)
    areas = []
    for rows in blocks(resamples, width=points):
        count = resampled_counts(generator, rows, bin_of_point=place, bins=points, group=groups)
        total = count * losses[order]
        if starts.size < points:
            count, total = (np.add.reduceat(values, starts, axis=-1) for values in (count, total))
        areas.append(_area(count, total))
    return np.concatenate(areas)
