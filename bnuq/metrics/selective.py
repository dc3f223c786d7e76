"""Selective prediction: the remaining loss at each coverage, when the most uncertain points are deferred.

Uncertainty may have any unit; larger is less certain. Loss is a 0/1 error or |e|; smaller is better.
"""

from functools import lru_cache
from typing import Generic, TypeVar

import numpy as np

from bnuq.frozen import frozen
from bnuq.metrics.arrays import Array, as_float64, like, ties_of_rows
from bnuq.metrics.resampling import (
    blocks,
    cells_of,
    counts_in_blocks,
    draws_cells,
    moments_of_cells,
    resampled_counts,
    resampled_sums,
)
from bnuq.shapes import Float, Integer, Shaped

COVERAGE, RISK = 0.8, 0.05  # at which risk and coverage are given
_ROUNDING = 1e-9  # of a count of points

Value = TypeVar("Value", float, np.ndarray)


@frozen
class SelectiveScores(Generic[Value]):
    """How much loss remains where the most uncertain points are deferred: floats, or arrays with one value per resample
    or point."""

    aurc: Value
    augrc: Value
    risk_at_80: Value
    coverage_at_5: Value


def risk_coverage(
    uncertainty: Float[Array, "point"], loss: Float[Array, "point"]
) -> tuple[Float[Array, "point"], Float[Array, "point"]]:
    """Coverage k/n in (0, 1], and risk, the mean loss of the k most certain points; less risk is better.

    Risk has the unit of the loss; both have its array type and precision. Points of equal uncertainty count with the
    mean loss of their tie, which is the expectation over its orders.

    Source: Geifman & El-Yaniv 2017, Selective Classification for Deep Neural Networks, §2; Shekhovtsov & Flach 2018,
    Fig. A.3.
    """
    ties, losses = ties_of_rows(as_float64(uncertainty)[None]), as_float64(loss)
    covered = np.arange(1, losses.size + 1)
    risk = np.cumsum(np.repeat(ties.sums(losses[None]) / ties.count, ties.count)) / covered
    return like(covered / covered.size, loss), like(risk, loss)


def aurc(uncertainty: Float[Array, "point"], loss: Float[Array, "point"]) -> float:
    """Area under the risk–coverage curve, (1/n) Σ_k risk_k, in the loss's unit; lower is better.

    An uninformative uncertainty (all tied) gives the mean loss.

    Source: Geifman, Uziel & El-Yaniv 2019, Bias-Reduced Uncertainty Estimation for Deep Neural Classifiers.
    """
    return selective(uncertainty, loss).aurc


def scod(test: Float[Array, "test"], loss: Float[Array, "test"], ood: Float[Array, "ood"]) -> float:
    """Area under the risk–coverage curve of test and OOD points together, by their uncertainties, in [0, 1]; lower is
    better. An accepted OOD point is an error, of loss 1. It depends on the shares of the two sets, which are as given:
    the mean loss of both is that of an uninformative uncertainty. Without OOD points it is `aurc`.

    Source: Xia & Bouganis 2022, Augmenting Softmax Information for Selective Classification with Out-of-Distribution
    Data, §2 (SCOD, with equal costs); as an area, Jaeger et al. 2023, §3, and Li et al. 2026, From Misclassifications
    to Outliers (arXiv 2603.03903), whose DS-AURC has a second score.
    """
    return float(scod_of_replicates(*(as_float64(values)[None] for values in (test, loss, ood)))[0])


def scod_of_replicates(
    test: Float[Array, "replicate test"], loss: Shaped[Array, "replicate test"], ood: Float[Array, "replicate ood"]
) -> Float[np.ndarray, "replicate"]:
    """The results of `scod` for each row.

    Source: as `scod`.
    """
    scores = np.concatenate([as_float64(test), as_float64(ood)], axis=1)
    ties, losses = ties_of_rows(scores), np.concatenate([as_float64(loss), np.ones(ood.shape)], axis=1)
    ranked = np.repeat(ties.sums(losses) / ties.count, ties.count).reshape(losses.shape)
    points = losses.shape[1]
    # A loss counts by 1/k at each coverage k/n from its place on. Summed row by row: a row is not rounded with others.
    return np.einsum("ij,j->i", ranked, np.cumsum(1 / np.arange(points, 0, -1))[::-1]) / points


def selective(uncertainty: Float[Array, "point"], loss: Float[Array, "point"]) -> SelectiveScores[float]:
    """`aurc`, and from the same sort:

    AUGRC, the area under the generalised risk (loss of the points covered, over all n) by coverage, in the loss's unit,
    lower is better: straight between points, so that (1 − AUROC) a (1 − a) + (1 − a)²/2 for 0/1 errors, accuracy a, and
    the AUROC of the uncertainty against errors. The risk at 80 % coverage, of the ⌈0.8 n⌉ most certain points, in the
    loss's unit, lower is better. The largest coverage k/n at which risk_k is at most 0.05, in [0, 1], higher is better;
    0 if none is. That is the share measured on these points, without the guarantee of the source.

    Source: Traub et al. 2024, Overcoming Common Flaws in the Evaluation of Selective Classification Systems, the AUGRC;
    Geifman & El-Yaniv 2017, Selective Classification for Deep Neural Networks, §2 and 3.
    """
    scores = selective_of_replicates(as_float64(uncertainty)[None], as_float64(loss)[None])
    return SelectiveScores(**{name: float(value[0]) for name, value in vars(scores).items()})


def selective_of_replicates(
    uncertainty: Float[Array, "replicate point"], loss: Shaped[Array, "replicate point"]
) -> SelectiveScores[np.ndarray]:
    """The results of `selective` for each row, each of shape (replicate,), as if computed one by one.

    Source: as `selective`.
    """
    ties, shape = ties_of_rows(as_float64(uncertainty)), uncertainty.shape
    counts, totals = np.zeros(shape, np.int64), np.zeros(shape)  # at the first place of each tie
    counts.flat[ties.start], totals.flat[ties.start] = ties.count, ties.sums(as_float64(loss))
    result, start = np.empty((len(SelectiveScores.__dataclass_fields__), len(counts))), 0
    for rows in blocks(len(counts), width=shape[1]):
        here = slice(start, start := start + rows)
        result[:, here] = list(vars(selective_of_ties(counts[here], totals[here])).values())
    return SelectiveScores(*result)


def selective_of_ties(
    count: Shaped[np.ndarray, "*resample tie"], total: Float[np.ndarray, "*resample tie"]
) -> SelectiveScores[np.ndarray]:
    """The scores from points and loss at each distinct uncertainty, most certain first; ties may be empty.

    Within a tie of mean loss m that starts after C points of loss S, risk_k is m + (S − C·m)/k, so that its sum needs
    only harmonic numbers, and it crosses a risk r at k = (C·m − S)/(m − r).
    """
    covered, lost = np.cumsum(count, axis=-1), np.cumsum(total, axis=-1)
    before, n = covered - count, covered[..., -1]
    mean = total / np.maximum(count, 1)
    excess = lost - total - before * mean
    through, until = _harmonic(np.stack([covered, before]))
    area = np.sum(total + excess * (through - until), axis=-1) / n
    generalised = np.sum(count * (lost - total / 2), axis=-1) / n**2

    retained = np.ceil(COVERAGE * n - _ROUNDING)
    rank = np.argmax(covered >= retained[..., None], axis=-1)[..., None]
    lost_there, mean_there = (np.take_along_axis(values, rank, -1)[..., 0] for values in (excess, mean))
    risk = mean_there + lost_there / retained

    with np.errstate(divide="ignore", invalid="ignore"):
        crossing = np.floor(-excess / (mean - RISK) + _ROUNDING)
    enough = lost <= RISK * covered + _ROUNDING
    inside = (mean > RISK) & (crossing > before)
    share = np.max(np.where(enough, covered, np.where(inside, np.minimum(crossing, covered), 0)), axis=-1) / n
    return SelectiveScores(area, generalised, risk, share)


def _harmonic(number: Integer[np.ndarray, "*any"]) -> Float[np.ndarray, "*any"]:
    """1 + ½ + … + 1/k of each number k, 0 of 0."""
    if number.max() < 2**20:
        return _harmonics(int(number.max()))[number]
    from scipy.special import digamma  # late: `bnuq.metrics` is light; a table would not fit pixels into memory

    return digamma(number + 1.0) + np.euler_gamma


@lru_cache(maxsize=1)  # of the resamples of one set
def _harmonics(most: int) -> Float[np.ndarray, "number"]:
    return np.concatenate([[0.0], np.cumsum(1 / np.arange(1, most + 1))])


def selective_bootstrap(
    uncertainty: Float[Array, "point"],
    loss: Float[Array, "point"],
    *,
    resamples: int = 1000,
    seed: int = 0,
    group: Shaped[Array, "point"] | None = None,
) -> SelectiveScores[np.ndarray]:
    """Bootstrap replicates over points of `selective`, each of shape (resamples,), in its unit and direction.

    Whole groups are drawn where `group` is given. Which points are drawn depends on (seed, n or groups) alone. Of more
    than 50,000 points without groups, 16,384 cells of points of neighbouring uncertainty are drawn.

    Source: Efron & Tibshirani 1993, An Introduction to the Bootstrap, ch. 6 and 13.
    """
    losses = as_float64(loss)
    ties = ties_of_rows(as_float64(uncertainty)[None])
    tied, order, points, drawn = ties.count, ties.order[0], losses.size, []
    if draws_cells(points, group):
        generator = np.random.default_rng(seed)
        cell = np.repeat(cells_of(tied), tied)
        cells = int(cell[-1]) + 1
        moments = moments_of_cells(losses[order], cell, cells)
        for rows in blocks(resamples, width=cells):
            count = resampled_counts(generator, rows, bin_of_point=cell, bins=cells)
            drawn.append(vars(selective_of_ties(count, resampled_sums(generator, count, moments))))
        return SelectiveScores(**{name: np.concatenate([block[name] for block in drawn]) for name in drawn[0]})
    rank, ranked = np.argsort(order), losses[order][:, None]
    for count in counts_in_blocks(rank, resamples, seed=(seed,), group=group):
        total = count * ranked
        if tied.size < points:
            count, total = (np.add.reduceat(values, ties.start, axis=0) for values in (count, total))
        drawn.append(vars(selective_of_ties(count.T.astype(np.int64, order="C"), np.ascontiguousarray(total.T))))
    return SelectiveScores(**{name: np.concatenate([block[name] for block in drawn]) for name in drawn[0]})
