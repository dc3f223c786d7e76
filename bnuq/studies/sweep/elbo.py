"""Computes the ELBO over mini-batch sizes: its two terms at every size, and the predicted size of its maximum."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from scipy.special import stdtrit

from bnuq import metrics
from bnuq.config import SweepSection
from bnuq.errors import RequestError
from bnuq.estimates import Estimate
from bnuq.evaluation.noise_models import layer_counts
from bnuq.frozen import frozen
from bnuq.metrics import Prior
from bnuq.records.approximation import LayerCounts
from bnuq.sampling.batch_statistics import BatchStatistics
from bnuq.shapes import Float64, Int64
from bnuq.studies.sweep.record import Elbo, ElboTerms
from bnuq.studies.sweep.request import prior_of
from bnuq.studies.sweep.sizes import AtSize, present

NORMAL = 1.959964


@frozen
class LowerBound:
    """The ELBO of one network: its terms, and its value at every size that is not degenerate."""

    terms: ElboTerms
    at: Mapping[int, Elbo]
    errors: TrainingErrors


@frozen
class TrainingErrors:
    """The errors from estimating the mean over the training set from `points` points: over points, or over groups where
    there are any, and 0 if all points are used."""

    train_size: int
    points: int
    group: Int64[np.ndarray, " point"] | None

    def of_mean(self, values: Float64[np.ndarray, " point"]) -> float:
        """Standard error of the mean of per-point values, for points drawn without replacement from the training
        set."""
        factor = max(0.0, 1 - self.points / self.train_size)
        return math.sqrt(factor) * metrics.standard_error(values, group=self.group) if factor else 0.0


def lower_bound(
    at_sizes: Mapping[int, AtSize],
    banks: Mapping[int, BatchStatistics],
    samples: int,
    settings: SweepSection,
    *,
    errors: TrainingErrors,
    reference_points: int,
    augmented: bool,
    tau: float | None,
) -> LowerBound | None:
    """ELBO(b) = N · mean expected log-likelihood − KL(q_b(ω) ‖ p(ω)); None if every size is degenerate.

    q_b is that of Gaussian statistics, factorised over channels, with the nominal or the measured number of values.
    Source: Mukhoti et al. 2020, eq. 1; Teye et al. 2018, §3.3.
    """
    random = [
        size for size, at_size in at_sizes.items() if not at_size.degenerate and at_size.log_likelihood is not None
    ]
    if not random:
        return None
    prior, train_size = prior_of(settings), errors.train_size
    elbos = {}
    counts = {size: layer_counts(banks[size], reference_points) for size in random}
    for size in random:
        mean, sd = _population(banks[size])
        densities = _densities(counts[size], settings)
        count_mean, count_sd = (size * densities[key] for key in ("mean", "sd"))
        try:
            kl = metrics.kl_of_statistics(prior, mean=mean, sd=sd, count_mean=count_mean, count_sd=count_sd)
        except ValueError as error:
            raise RequestError(f'the prior "{prior.kind}" cannot be used with these sizes: {error}') from error
        kl *= settings.kl_weight
        by_draw, by_point = at_sizes[size].log_likelihood, at_sizes[size].of_training_points
        assert by_draw is not None and by_point is not None
        value, mc_se = train_size * float(by_draw.mean()), train_size * metrics.standard_error(by_draw)
        se = train_size * errors.of_mean(by_point)
        elbos[size] = Elbo(with_interval(value - kl, se, mc_se), with_interval(value, se, mc_se), kl, by_draw)
    counts_of_parts = [counts[size] for size in random if size < reference_points]  # the whole reference gives no count
    layers = tuple(
        replace(
            of_layer[0], **{key: float(np.median([getattr(each, key) for each in of_layer])) for key in ("mean", "sd")}
        )
        for of_layer in zip(*(counts_of_parts or counts.values()), strict=True)
    )
    density = _densities(layers, settings)
    live = _population(banks[max(random)])[1] > 0
    units = int(live.sum())
    inverse = np.concatenate([1 / density[key][live] for key in ("mean", "sd")])
    # With augmentation, noise does not vanish at b = N, as the finite-population factor would imply.
    linear = {size: at_sizes[size] for size in elbos if not augmented or 2 * size <= reference_points}
    c, predicted, why_none = _asymptotics(
        linear,
        samples,
        errors,
        reference_points=reference_points,
        parameters=2 * units,
        weight=settings.kl_weight,
        inverse_density=float(inverse.mean()) if units else math.nan,
    )
    terms = ElboTerms(
        prior=settings.prior,
        prior_parameters=_parameters(prior),
        counts=settings.counts,
        kl_weight=settings.kl_weight,
        train_size=train_size,
        reference_points=reference_points,
        points=errors.points,
        units=units,
        tau=tau,
        layers=layers,
        c=c,
        predicted=predicted,
        why_none=why_none,
    )
    return LowerBound(terms, elbos, errors)


def with_interval(value: float, se: float, mc_se: float, *, draw_sets: int | None = None) -> Estimate:
    """An estimate with the normal interval of both errors; an error over few draw sets uses Student's t."""
    half = NORMAL * math.hypot(se, mc_se)
    if draw_sets is not None:
        half = math.hypot(NORMAL * se, float(stdtrit(draw_sets - 1, 0.975)) * mc_se)
    return Estimate(value, se=se, mc_se=mc_se, low=value - half, high=value + half)


def _population(bank: BatchStatistics) -> tuple[Float64[np.ndarray, " unit"], Float64[np.ndarray, " unit"]]:
    """Mean and standard deviation of every unit over all draws of a bank together."""
    pooled = bank.pooled()
    mean = np.concatenate([layer.mean[0] for layer in pooled.layers]).astype(np.float64)
    return mean, np.sqrt(np.concatenate([layer.var[0] for layer in pooled.layers]).astype(np.float64))


def _densities(layers: Sequence[LayerCounts], settings: SweepSection) -> dict[str, Float64[np.ndarray, " unit"]]:
    """The effective number of values per item of the mini-batch of the mean and the deviation of every unit."""

    def per_unit(key: str) -> Float64[np.ndarray, " unit"]:
        return np.concatenate([np.full(layer.channels, getattr(layer, key)) for layer in layers])

    return {key: per_unit(key if settings.counts == "measured" else "nominal") for key in ("mean", "sd")}


def _asymptotics(
    at_sizes: Mapping[int, AtSize],
    samples: int,
    errors: TrainingErrors,
    *,
    reference_points: int,
    parameters: int,
    weight: float,
    inverse_density: float,
) -> tuple[Estimate | None, Estimate | None, str]:
    """c, b* = 2Nc/P + mean(1/ρ), each with both errors, and why there is no b*.

    The slope is linear in the log-likelihoods, so that every point and every draw set has its own c.
    """
    if len(at_sizes) < 2:
        return None, None, "a single size has no slope"
    by_draw = [present(values.log_likelihood) for values in at_sizes.values()]
    shared = min(map(len, by_draw))  # draws that every size has
    by_set = np.stack([values[:shared].reshape(-1, samples).mean(1) for values in by_draw], axis=1)
    by_point = np.stack([present(values.of_training_points) for values in at_sizes.values()], axis=1)
    mc_errors = np.array([metrics.standard_error(values) for values in by_draw])

    def slope(means: Float64[np.ndarray, " size"], replicates: Float64[np.ndarray, "row size"] | None = None) -> Any:
        return metrics.likelihood_slope(
            np.array(list(at_sizes)), means, mc_errors, population=reference_points, replicates=replicates
        )

    fit = slope(np.array([values.mean() for values in by_draw]), by_set)
    se = errors.of_mean(np.array([slope(row).c for row in by_point]))
    c = with_interval(fit.c, se, fit.se, draw_sets=len(by_set))
    if not fit.c > 0:
        return c, None, "the expected log-likelihood does not fall as mini-batches get smaller"
    if not (weight > 0 and parameters > 0):
        return c, None, "the KL has no weight"
    sizes = {"train_size": errors.train_size, "parameters": parameters}
    best = metrics.predicted_batch_size(fit.c / weight, **sizes, inverse_density=inverse_density)
    scale = 2 * errors.train_size / weight / parameters
    return c, with_interval(best, scale * se, scale * fit.se, draw_sets=len(by_set)), ""


def _parameters(prior: Prior) -> dict[str, float]:
    result = {}
    for name, setting in (("mean", prior.mean), ("deviation", prior.deviation)):
        if setting is not None:
            result[f"{name}_mean"], result[f"{name}_variance"] = setting
    return result | ({} if prior.precision is None else {"precision": prior.precision})
