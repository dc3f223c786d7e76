"""The ELBO over mini-batch sizes: its two terms at every size, and where its maximum should lie."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64
from scipy.special import stdtrit

from bnuq import metrics
from bnuq.errors import RequestError
from bnuq.metrics import Prior
from bnuq.records import Figure
from bnuq.results.sweep import Elbo, ElboTerms, LayerCounts
from bnuq.run import SweepSection
from bnuq.sampling.bank import BatchStatistics
from bnuq.stages.sizes import AtSize, DrawSets

_NORMAL = 1.959964


@dataclass(frozen=True)
class LowerBound:
    """The ELBO of one network: its terms, and its value at every size that is random."""

    terms: ElboTerms
    at: Mapping[int, Elbo]


def prior_of(settings: SweepSection) -> Prior:
    """The prior that was asked for; RequestError for parameters that it lacks, or does not have."""
    wanted = {"gaussian": ("prior_mean", "prior_deviation"), "weight_decay": ("prior_precision",)}
    of_kind = wanted.get(settings.prior, ())
    for key in ("prior_mean", "prior_deviation", "prior_precision"):
        given, option = getattr(settings, key), key.replace("_", "-")
        value = "NUMBER" if key == "prior_precision" else "MEAN,VARIANCE"
        if (given is None) != (key not in of_kind):
            what = f"needs --{option} {value}" if key in of_kind else f"takes no --{option}"
            raise RequestError(f'the prior "{settings.prior}" {what} (sweep.{key} in the run file).')
    return Prior(settings.prior, settings.prior_mean, settings.prior_deviation, settings.prior_precision)


def lower_bound(
    found: Mapping[int, AtSize],
    banks: Mapping[int, BatchStatistics],
    draw_sets: DrawSets,
    settings: SweepSection,
    *,
    train_size: int,
    reference_points: int,
    tau: float | None,
) -> LowerBound | None:
    """ELBO(b) = N · mean expected log-likelihood − KL(q_b(ω) ‖ p(ω)); None where no size is random.

    N is `train_size`; q_b is that of Gaussian statistics, factorised over channels, with the nominal or the measured
    number of values. Source: Mukhoti et al. 2020, eq. 1; Teye et al. 2018, §3.3.
    """
    random = [size for size, one in found.items() if not one.degenerate and one.log_likelihood is not None]
    if not random:
        return None
    prior = prior_of(settings)
    layers = _counts(banks, random, reference_points)
    mean, sd = _population(banks[max(random)])
    live = sd > 0
    density = {
        "mean": _of_units(layers, "nominal" if settings.counts == "nominal" else "mean"),
        "sd": _of_units(layers, "nominal" if settings.counts == "nominal" else "sd"),
    }
    at = {}
    for size in random:
        kl = settings.kl_weight * _kl(prior, mean, sd, {key: size * one for key, one in density.items()})
        by_draw, by_point = found[size].log_likelihood, found[size].of_training_points
        assert by_draw is not None and by_point is not None
        value, mc_se = train_size * float(by_draw.mean()), train_size * metrics.standard_error(by_draw)
        se = train_size * metrics.standard_error(by_point)
        at[size] = Elbo(_figure(value - kl, se, mc_se), _figure(value, se, mc_se), kl, by_draw)
    units = int(live.sum())
    inverse = np.concatenate([1 / density[key][live] for key in ("mean", "sd")])
    c, predicted, why_none = _asymptotics(
        at,
        draw_sets,
        train_size=train_size,
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
        points=len(next(iter(found.values())).of_training_points),  # pyright: ignore[reportArgumentType] - random has it
        units=units,
        tau=tau,
        layers=layers,
        c=c,
        predicted=predicted,
        why_none=why_none,
    )
    return LowerBound(terms, at)


def _figure(value: float, se: float, mc_se: float) -> Figure:
    half = _NORMAL * math.hypot(se, mc_se)
    return Figure(value, se=se, mc_se=mc_se, low=value - half, high=value + half)


def _counts(banks: Mapping[int, BatchStatistics], sizes: Sequence[int], population: int) -> tuple[LayerCounts, ...]:
    """The values of a channel for an item of the mini-batch, layer by layer: the median over sizes of what their draws
    tell; the nominal number where they tell nothing, or more than can be."""
    found = []
    for number, layer in enumerate(banks[sizes[0]].layers):
        nominal = float(layer.count[0]) / sizes[0]
        of_sizes = [
            metrics.effective_counts(one.mean, one.var, batch_size=size, population=population)
            for size in sizes
            for one in [banks[size].layers[number]]
        ]
        mean, sd = (_median([getattr(one, key) for one in of_sizes], nominal) for key in ("mean", "sd"))
        found.append(LayerCounts(layer.name, layer.mean.shape[1], nominal, mean, sd))
    return tuple(found)


def _median(values: Sequence[float], otherwise: float) -> float:
    told = [value for value in values if math.isfinite(value) and value > 0]
    return float(np.median(told)) if told else otherwise


def _population(bank: BatchStatistics) -> tuple[Float64[np.ndarray, " unit"], Float64[np.ndarray, " unit"]]:
    """Mean and standard deviation of every unit over all draws of a bank together."""
    pooled = bank.pooled()
    mean = np.concatenate([layer.mean[0] for layer in pooled.layers]).astype(np.float64)
    return mean, np.sqrt(np.concatenate([layer.var[0] for layer in pooled.layers]).astype(np.float64))


def _of_units(layers: Sequence[LayerCounts], key: str) -> Float64[np.ndarray, " unit"]:
    return np.concatenate([np.full(layer.channels, getattr(layer, key)) for layer in layers])


def _kl(
    prior: Prior,
    mean: Float64[np.ndarray, " unit"],
    sd: Float64[np.ndarray, " unit"],
    counts: Mapping[str, Float64[np.ndarray, " unit"]],
) -> float:
    try:
        return metrics.kl_of_statistics(prior, mean=mean, sd=sd, count_mean=counts["mean"], count_sd=counts["sd"])
    except ValueError as error:
        raise RequestError(f'the prior "{prior.kind}" does not go with these sizes: {error}') from error


def _asymptotics(
    at: Mapping[int, Elbo],
    draw_sets: DrawSets,
    *,
    train_size: int,
    reference_points: int,
    parameters: int,
    weight: float,
    inverse_density: float,
) -> tuple[Figure | None, Figure | None, str]:
    """c, b* = 2Nc/P + mean(1/ρ), and why there is no b*."""
    if len(at) < 2:
        return None, None, "one size has no slope"
    by_set = np.stack([one.log_likelihood.reshape(draw_sets.sets, -1).mean(1) for one in at.values()], axis=1)
    errors = np.array([metrics.standard_error(one.log_likelihood) for one in at.values()])
    slope = metrics.likelihood_slope(
        np.array(list(at)), by_set.mean(0), errors, population=reference_points, replicates=by_set
    )
    degrees = draw_sets.sets - 1
    c = _with_error(slope.c, slope.se, degrees)
    if not slope.c > 0:
        return c, None, "the expected log-likelihood does not fall as mini-batches get smaller"
    if not (weight > 0 and parameters > 0):
        return c, None, "the KL has no weight"
    told = {"train_size": train_size, "parameters": parameters}
    best = metrics.predicted_batch_size(slope.c / weight, **told, inverse_density=inverse_density)
    return c, _with_error(best, 2 * train_size * slope.se / weight / parameters, degrees), ""


def _with_error(value: float, mc_se: float, degrees: int) -> Figure:
    """With Student's interval: the error is from as few draw sets as there are."""
    half = float(stdtrit(degrees, 0.975)) * mc_se
    return Figure(value, mc_se=mc_se, low=value - half, high=value + half)


def _parameters(prior: Prior) -> dict[str, float]:
    found = {}
    for name, given in (("mean", prior.mean), ("deviation", prior.deviation)):
        if given is not None:
            found[f"{name}_mean"], found[f"{name}_variance"] = given
    return found | ({} if prior.precision is None else {"precision": prior.precision})
