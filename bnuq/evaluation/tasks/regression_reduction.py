"""The streaming reduction of a regression: scores of each point and sums over points, under every replicate."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from bnuq import metrics
from bnuq.config import ScoringSection
from bnuq.evaluation import estimates
from bnuq.evaluation.pipeline import TargetScale
from bnuq.evaluation.tasks.observation_noise import NoiseFit
from bnuq.evaluation.units import Blocks, Gathered
from bnuq.files.journal import Arrays
from bnuq.metrics import DrawWeights
from bnuq.metrics.arrays import as_numpy

_QUANTILES = {"coverage50": 0.6744897501960817, "coverage95": 1.959963984540054}  # half a central interval, in sd


_BLOCK = 2**17  # replicates × points × outputs in memory at once


KINDS_WITHOUT_NOISE = ("ensemble", "fair")  # kinds of CRPS of the draws alone


_NEAR = 0.05  # in ln τ: the largest first-order step of a PLL


@dataclass(frozen=True)
class RegressionScores(estimates.SetScores):
    """The scores of one set. `mean` and `sigma` are those of the predictive distribution (n, Q), or of the draws alone
    where there is no τ.

    `ranked_error` and `ranked_variance` are those of the points `ranked_rows` under every replicate; `targets` are None
    where the set has none, and `fitted` where nothing was fitted.
    """

    mean: Float[np.ndarray, "point output"]
    sigma: Float[np.ndarray, "point output"]
    variance: Float[np.ndarray, "point output"]
    targets: Float[np.ndarray, "point output"] | None
    fitted: NoiseFit | None
    scoring: ScoringSection
    ranked_error: Float[np.ndarray, "replicate ranked output"] | None = field(default=None, kw_only=True)
    ranked_variance: Float[np.ndarray, "replicate ranked output"] | None = field(default=None, kw_only=True)
    squared_distance: Float[np.ndarray, "sample point"] | None = field(default=None, kw_only=True)


class RegressionReduction:
    """Takes blocks of outputs (T, chunk, Q) in the order of the points from `first` on, and gives their Scores.

    Where the network was trained on standardised targets, `scale` converts its outputs to the unit of the targets.
    """

    def __init__(
        self,
        weights: DrawWeights,
        *,
        points: int,
        scoring_by: ScoringSection,
        targets: Float[np.ndarray, "point output"] | None = None,
        scale: TargetScale | None = None,
        fitted: NoiseFit | None = None,
        first: int = 0,
        where: str = "",
    ) -> None:
        self._draws = weights
        self._all = estimates.ReplicateWeights.of(weights)
        self._targets, self._scale, self._fitted, self._by = targets, scale, fitted, scoring_by
        self._ranked_rows = estimates.ranked_rows(points)
        self._where = where
        self._n = first  # the number of the next point
        self._blocks = Blocks()
        self._made_in = torch.float32

    def add(
        self,
        outputs: Float[np.ndarray | Tensor, "sample chunk output"],
        draws: Int64[np.ndarray, " sample"] | None = None,
    ) -> None:
        """Add the next points, on any device; SamplingError where an output is not finite.

        With a bank, `draws` are the draws that these points use. Computed in float64 on the CPU, because outputs are
        few.
        """
        block = torch.from_numpy(np.array(outputs)) if isinstance(outputs, np.ndarray) else outputs
        self._made_in = block.dtype
        weights = self._all if draws is None else estimates.ReplicateWeights.of(self._draws, draws)
        step = max(1, _BLOCK // (len(self._draws.weights) * block.shape[-1]))
        with torch.inference_mode():
            for points in block.cpu().double().split(step, dim=1):
                self._add(points, weights)

    def _add(self, f: Tensor, weights: estimates.ReplicateWeights) -> None:
        self._blocks.add("most", estimates.spread(f, first=self._n, made_in=self._made_in, where=self._where))
        if self._scale is not None:
            f = f * torch.tensor(self._scale.std) + torch.tensor(self._scale.mean)
        mean, variance = _moments(f, weights)
        full = self._draws.full.start
        values = {"variance": variance.mean(-1)}
        moments = {"mean": mean, "variance": variance}
        self._blocks.add("point", {f"moments.{name}": as_numpy(value[full]) for name, value in moments.items()})
        if self._targets is not None:
            y = torch.tensor(self._targets[self._n : self._n + f.shape[1]])
            values |= self._scored(f, mean, variance, y, weights)
            self._keep("error", y - mean)
        self._keep("variance", variance)
        self._blocks.add("sum", {name: as_numpy(value.sum(1)) for name, value in values.items()})
        self._blocks.add("point", {name: as_numpy(value[full]) for name, value in values.items()})
        self._n += f.shape[1]

    def _scored(
        self, f: Tensor, mean: Tensor, variance: Tensor, y: Tensor, weights: estimates.ReplicateWeights
    ) -> dict[str, Float[Tensor, "replicate chunk"]]:
        """The scores of the points under every replicate."""
        error = y - mean
        distance = ((y - f) ** 2).sum(-1)
        self._blocks.add("draw", {"squared_distance": as_numpy(distance)})
        values = {
            "squared_error": (error**2).sum(-1),
            "mae": error.abs().mean(-1),
            "crps_optimum": metrics.crps_optimum(mean, y),
            "pll_optimum": metrics.pll_optimum(mean, y),
        }
        if self._by.crps in KINDS_WITHOUT_NOISE:
            values["crps"] = self._crps_of_draws(f, y, weights, np.full(len(mean), math.inf))
        if self._fitted is None:
            return values
        parts: list[tuple[np.ndarray, dict[str, Tensor], Arrays]] = []
        for part, fits in self._fitted.of_rows(np.arange(self._n, self._n + len(y))):
            rows = slice(None) if len(part) == len(y) else part
            moments = mean[:, rows], variance[:, rows]
            parts.append((part, *self._scored_by(fits, f[:, rows], *moments, y[rows], weights)))
        (_, first, first_draws), *_ = parts
        if len(parts) == 1:
            self._blocks.add("draw", first_draws)
            return values | first
        if all(draws for *_, draws in parts):
            likelihoods = np.empty((len(f), len(y)))
            for part, _, draws in parts:
                likelihoods[:, part] = draws["log_likelihood"]
            self._blocks.add("draw", {"log_likelihood": likelihoods})
        for name in first.keys() & {name for _, of_part, _ in parts[1:] for name in of_part}:
            values[name] = torch.empty_like(values["mae"])
            for part, of_part, _ in parts:
                values[name][:, part] = of_part[name]
        return values

    def _scored_by(
        self, fits: NoiseFit, f: Tensor, mean: Tensor, variance: Tensor, y: Tensor, weights: estimates.ReplicateWeights
    ) -> tuple[dict[str, Float[Tensor, "replicate chunk"]], Arrays]:
        """The scores that depend on what was fitted, and the log-likelihoods of the draws where these make the PLL."""
        sigma = (variance + (1 / torch.tensor(fits.tau))[:, None, None]).sqrt()
        distance_to_mean = (y - mean).abs()
        values = {
            name: (distance_to_mean <= quantile * sigma).double().mean(-1) for name, quantile in _QUANTILES.items()
        }
        if self._by.crps == "gaussian":
            values["crps"] = metrics.crps_gaussian(mean, sigma, y)
        elif self._by.crps == "mixture":
            values["crps"] = self._crps_of_draws(f, y, weights, fits.tau)
        pll, draws = self._pll(f, mean, sigma, fits.tau, y, weights)
        if pll is not None:
            values["pll"] = pll
        if fits.sigma is not None:
            constant = torch.tensor(fits.sigma)[:, None, None].expand_as(mean)
            values["crps_constant"] = metrics.crps_gaussian(mean, constant, y)
            values["pll_constant"] = metrics.pll_gaussian(mean, constant, y)
        return values, draws

    def _crps_of_draws(
        self, f: Tensor, y: Tensor, weights: estimates.ReplicateWeights, tau: Float[np.ndarray, " replicate"]
    ) -> Float[Tensor, "replicate chunk"]:
        tau_of_weights = tau[:1] if weights.rows is not None else tau
        result = _crps_of_draws(f, y, weights.draws, tau=tau_of_weights, fair=self._by.crps == "fair")
        return result if weights.rows is None else result[torch.from_numpy(weights.rows)]

    def _pll(
        self, f: Tensor, mean: Tensor, sigma: Tensor, tau: np.ndarray, y: Tensor, weights: estimates.ReplicateWeights
    ) -> tuple[Float[Tensor, "replicate chunk"] | None, Arrays]:
        if self._by.pll == "moment":
            return metrics.pll_gaussian(mean, sigma, y), {}
        full = self._draws.full.start
        if self._by.pll == "moment_full":
            return _pll_of_full_covariance(f, mean, y, tau, weights), {}
        if math.isinf(tau[full]):
            return None, {}
        log_likelihood = as_numpy(metrics.gaussian_log_likelihood(f, y, tau=float(tau[full])))
        distance = ((y - f) ** 2).sum(-1)
        pll = _mixture_pll(distance, f.shape[-1], tau, weights, exact=(full, *_rows(self._draws.prefix)))
        return pll, {"log_likelihood": log_likelihood}

    def _keep(self, name: str, values: Float[Tensor, "replicate chunk output"]) -> None:
        """Store the values of the points `ranked_rows` under every replicate."""
        first, last = np.searchsorted(self._ranked_rows, [self._n, self._n + values.shape[1]])
        rows = torch.from_numpy(self._ranked_rows[first:last] - self._n)
        self._blocks.add("draw", {f"ranked.{name}": as_numpy(values[:, rows])})

    def arrays(self) -> Arrays:
        """What was added, for `scores` to merge."""
        return self._blocks.arrays()

    def scores(
        self, units: Gathered | None = None, *, group: Int64[np.ndarray, " point"] | None = None
    ) -> RegressionScores:
        """The scores of all points added so far, or of those of `units`: the `arrays` of reductions like this one, in
        the order of the points."""
        arrays = (units or Gathered([self.arrays()])).by_kind()
        points, draws = arrays["point"], arrays["draw"]
        mean, variance = (points.pop(f"moments.{name}") for name in ("mean", "variance"))
        noise: Any = 0.0
        if self._fitted is not None:
            noise = self._fitted.noise(np.arange(len(mean)))[self._draws.full.start][:, None]
        replicates = slice(self._draws.jackknife.start, self._draws.bootstrap.stop)
        ranked = draws["ranked.variance"][replicates].mean(-1).astype(np.float32)
        return RegressionScores(
            n=len(mean),
            points=points,
            replicates={name: total / len(mean) for name, total in arrays["sum"].items()},
            ranked={"variance": ranked} if len(ranked) else {},
            ranked_rows=self._ranked_rows,
            mean=mean,
            sigma=np.sqrt(variance + noise),
            variance=variance,
            targets=self._targets,
            fitted=self._fitted,
            scoring=self._by,
            log_likelihood=draws.get("log_likelihood"),
            group=group,
            ranked_error=draws.get("ranked.error"),
            ranked_variance=draws["ranked.variance"],
            squared_distance=draws.get("squared_distance"),
            samples_differ=estimates.samples_differ(arrays["most"]),
        )


def _rows(part: slice) -> range:
    return range(part.start, part.stop)


def _moments(
    f: Float[Tensor, "sample chunk output"], weights: estimates.ReplicateWeights
) -> tuple[Float[Tensor, "replicate chunk output"], Float[Tensor, "replicate chunk output"]]:
    """Mean and variance (divisor T) over the draws under every replicate, from deviations from the first draw."""
    samples, points, outputs = f.shape
    deviation = (f - f[0]).reshape(samples, -1)
    mean = weights.tensor @ deviation
    variance = (weights.tensor @ deviation**2 - mean**2).clamp_min_(0.0)
    if weights.rows is not None:
        rows = torch.from_numpy(weights.rows)
        mean, variance = mean[rows], variance[rows]
    return mean.view(-1, points, outputs) + f[0], variance.view(-1, points, outputs)


def _mixture_pll(
    distance: Float[Tensor, "sample chunk"],
    outputs: int,
    tau: Float[np.ndarray, " replicate"],
    weights: estimates.ReplicateWeights,
    *,
    exact: tuple[int, ...],
) -> Float[Tensor, "replicate chunk"]:
    """PLL of the mixture under every replicate, each with its own τ; NaN where that is infinite.

    Replicates whose τ is near that of all draws use a first-order step in ln τ: one matrix product for all of them.
    """

    def likelihood(precision: float) -> Float[Tensor, "sample chunk"]:
        return (outputs / 2) * math.log(precision / (2 * math.pi)) - precision / 2 * distance

    full = exact[0]
    log_likelihood = likelihood(float(tau[full]))
    weight_rows = weights.tensor
    pll = metrics.pll_from_log_likelihood(log_likelihood, weights=weight_rows)
    share = (log_likelihood - log_likelihood.amax(0)).exp()
    mean_distance = (weight_rows @ (share * distance)) / (weight_rows @ share)
    slope = (outputs / 2 - float(tau[full]) / 2 * mean_distance).nan_to_num(0.0)
    rows = torch.arange(len(tau)) if weights.rows is None else torch.from_numpy(weights.rows)
    finite = np.where(np.isfinite(tau), tau, tau[full])
    step = torch.tensor(np.log(finite / tau[full]))[:, None]
    moved = pll[rows] + slope[rows] * step
    not_near = np.flatnonzero(np.abs(as_numpy(step)[:, 0]) > _NEAR)
    for row in {*exact, *not_near.tolist()}:
        moved[row] = metrics.pll_from_log_likelihood(likelihood(float(finite[row])), weights=weight_rows[rows[row]])
    moved[torch.from_numpy(~np.isfinite(tau))] = math.nan
    return moved


def _crps_of_draws(
    f: Float[Tensor, "sample chunk output"],
    y: Float[Tensor, "chunk output"],
    draws: DrawWeights,
    *,
    tau: Float[np.ndarray, " replicate"],
    fair: bool,
) -> Float[Tensor, "replicate chunk"]:
    """CRPS of the mixture of draws, each with its noise, under every replicate.

    Leaving out a draw removes only its terms from both sums; the noise is then that of all draws, whose τ is near. The
    first k draws have their own τ. NaN for bootstrap rows, because repeated draws are not a sample.
    """
    result = torch.full((len(draws.weights), f.shape[1]), math.nan, dtype=torch.float64)

    def crps(to_target: Tensor, between_draws: Tensor, count: int) -> Tensor:
        pairs = count * (count - 1 if fair and count > 1 else count)  # a single draw: |error|
        return to_target / count - between_draws / (2 * pairs)

    tau_of_all_draws = float(tau[draws.full.start])
    to_target, between_draws = metrics.crps_terms(f, y, tau=tau_of_all_draws)
    itself = metrics.crps_terms(f[:1], y, tau=tau_of_all_draws)[1][0]
    samples = len(f)
    result[draws.full.start] = crps(to_target.sum(0), between_draws.sum(0), samples)
    for draw, row in enumerate(_rows(draws.jackknife)):
        result[row] = crps(
            to_target.sum(0) - to_target[draw], between_draws.sum(0) - 2 * between_draws[draw] + itself, samples - 1
        )
    for count, row in zip(draws.prefix_sizes, _rows(draws.prefix), strict=True):
        first = metrics.crps_terms(f[:count], y, tau=float(tau[min(row, len(tau) - 1)]))
        result[row] = crps(first[0].sum(0), first[1].sum(0), count)
    return result


def _pll_of_full_covariance(
    f: Tensor, mean: Tensor, y: Tensor, tau: Float[np.ndarray, " replicate"], weights: estimates.ReplicateWeights
) -> Float[Tensor, "replicate chunk"]:
    """Log density of N(f̄, Cov f + I/τ) under every replicate."""
    rows = range(len(tau)) if weights.rows is None else weights.rows
    result = torch.empty(mean.shape[:2], dtype=torch.float64)
    for replicate, row in enumerate(rows):
        deviation = f - mean[replicate]
        covariance = torch.einsum("t,tnq,tnr->nqr", weights.tensor[int(row)], deviation, deviation)
        error = as_numpy(y - mean[replicate])
        result[replicate] = torch.from_numpy(
            metrics.pll_of_covariance(error, as_numpy(covariance), tau=float(tau[replicate]))
        )
    return result
