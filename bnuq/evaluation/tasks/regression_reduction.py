"""The streaming reduction of a regression: scores of each point and sums over points, under every replicate."""

from __future__ import annotations

import math
from dataclasses import field
from typing import Any

import numpy as np

from bnuq import metrics
from bnuq.config import ScoringSection
from bnuq.evaluation import estimates
from bnuq.evaluation.estimates import as_block, without_gradients
from bnuq.evaluation.target_scale import TargetScale
from bnuq.evaluation.tasks.observation_noise import NoiseFit
from bnuq.evaluation.tasks.scorer import Groups, SampleReduction
from bnuq.evaluation.units import Blocks, Gathered
from bnuq.files.journal import Arrays
from bnuq.files.keys import Key
from bnuq.frozen import frozen
from bnuq.metrics import DrawWeights
from bnuq.metrics.arrays import Array, array_namespace, as_numpy
from bnuq.shapes import Float, Int64

_QUANTILES = {"coverage50": 0.6744897501960817, "coverage95": 1.959963984540054}  # half a central interval, in sd
_BLOCK = 2**17  # replicates × points × outputs in memory at once
KINDS_WITHOUT_NOISE = ("ensemble", "fair")  # kinds of CRPS of the draws alone
_NEAR = 0.05  # in ln τ: the largest first-order step of a PLL


@frozen
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
    deviation: Float[np.ndarray, "sample point output"] | None = field(default=None, kw_only=True)


class RegressionReduction(SampleReduction[RegressionScores]):
    """Takes blocks of outputs (T, chunk, Q) in the order of the points from `first` on, and gives `RegressionScores`.

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
        self._made_in: Any = np.dtype(np.float32)

    def add(
        self, outputs: Float[Array, "sample chunk output"], draws: Int64[np.ndarray, " sample"] | None = None
    ) -> None:
        """Add the next points, on any device; SamplingError where an output is not finite.

        With a bank, `draws` are the draws that these points use. Computed in float64 on the CPU, because outputs are
        few.
        """
        self._made_in = outputs.dtype
        step = max(1, _BLOCK // (len(self._draws.weights) * outputs.shape[-1]))
        with without_gradients(outputs):
            block = outputs.astype(np.float64) if isinstance(outputs, np.ndarray) else outputs.cpu().double()
            weights = self._all if draws is None else estimates.ReplicateWeights.of(self._draws, draws)
            weights = weights.like(block)
            for start in range(0, block.shape[1], step):
                self._add(block[:, start : start + step], weights)

    def _add(self, f: Array, weights: estimates.ReplicateWeights) -> None:
        self._blocks.add("most", estimates.spread(f, first=self._n, made_in=self._made_in, where=self._where))
        if self._scale is not None:
            f = f * as_block(self._scale.std, f) + as_block(self._scale.mean, f)
        mean, variance = _moments(f, weights)
        full = self._draws.full.start
        values = {"variance": variance.mean(-1)}
        moments = {"mean": mean, "variance": variance}
        self._blocks.add("point", {Key("moments", name): as_numpy(value[full]) for name, value in moments.items()})
        if self._targets is not None:
            y = as_block(self._targets[self._n : self._n + f.shape[1]], f)
            values |= self._scored(f, mean, variance, y, weights)
            self._keep("error", y - mean)
        self._keep("variance", variance)
        with np.errstate(over="ignore"):  # a replicate of a single draw has no variance, and a PLL of nearly −∞
            self._blocks.add("sum", {name: as_numpy(value.sum(1)) for name, value in values.items()})
        self._blocks.add("point", {name: as_numpy(value[full]) for name, value in values.items()})
        self._n += f.shape[1]

    def _scored(
        self, f: Array, mean: Array, variance: Array, y: Array, weights: estimates.ReplicateWeights
    ) -> dict[str, Float[Array, "replicate chunk"]]:
        """The scores of the points under every replicate."""
        error = y - mean
        self._blocks.add("draw", {"deviation": as_numpy(y - f)})
        values = {
            "squared_error": (error**2).sum(-1),
            "mae": abs(error).mean(-1),
            "crps_optimum": metrics.crps_optimum(mean, y),
            "pll_optimum": metrics.pll_optimum(mean, y),
        }
        if self._by.crps in KINDS_WITHOUT_NOISE:
            values["crps"] = self._crps_of_draws(f, y, weights, np.full(len(mean), math.inf))
        if self._fitted is None:
            return values
        parts: list[tuple[np.ndarray, dict[str, Array], Arrays]] = []
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
            values[name] = array_namespace(f).empty_like(values["mae"])
            for part, of_part, _ in parts:
                values[name][:, part] = of_part[name]
        return values

    def _scored_by(
        self, fits: NoiseFit, f: Array, mean: Array, variance: Array, y: Array, weights: estimates.ReplicateWeights
    ) -> tuple[dict[str, Float[Array, "replicate chunk"]], Arrays]:
        """The scores that depend on what was fitted, and the log-likelihoods of the draws where these make the PLL."""
        xp, unit = array_namespace(f), as_block(fits.unit, f)
        sigma = xp.sqrt(variance + as_block(1 / fits.tau, f)[:, None, None] * unit**2)
        distance_to_mean = abs(y - mean)
        values = {
            name: xp.astype(distance_to_mean <= quantile * sigma, xp.float64).mean(-1)
            for name, quantile in _QUANTILES.items()
        }
        if self._by.crps == "gaussian":
            values["crps"] = metrics.crps_gaussian(mean, sigma, y)
        elif self._by.crps == "mixture":
            # Each output by its own τ; together where they share it.
            parts = [slice(None)] if fits.units is None else [slice(k, k + 1) for k in range(len(fits.units))]
            taus = fits.tau / fits.unit[:, None] ** 2
            crps = [self._crps_of_draws(f[..., k], y[:, k], weights, tau) for k, tau in zip(parts, taus, strict=True)]
            values["crps"] = xp.stack(crps).mean(0)
        # The density of an output in target units is that in its unit over this unit.
        volume = float(np.log(fits.unit).sum())
        in_units = (f, mean, sigma, y) if fits.units is None else (f / unit, mean / unit, sigma / unit, y / unit)
        pll, draws = self._pll(*in_units, fits.tau, weights)
        if pll is not None:
            values["pll"] = pll - volume
        if fits.sigma is not None:
            constant = xp.broadcast_to(as_block(fits.sigma, f)[:, None, None] * unit, mean.shape)
            values["crps_constant"] = metrics.crps_gaussian(mean, constant, y)
            values["pll_constant"] = metrics.pll_gaussian(mean, constant, y)
        return values, {name: likelihood - volume for name, likelihood in draws.items()}

    def _crps_of_draws(
        self, f: Array, y: Array, weights: estimates.ReplicateWeights, tau: Float[np.ndarray, " replicate"]
    ) -> Float[Array, "replicate chunk"]:
        if weights.rows is not None:  # τ of the rows, from those of the replicates
            of_rows = np.full(len(weights.draws.weights), tau[self._draws.full.start])
            of_rows[weights.rows] = tau
            tau = of_rows
        result = _crps_of_draws(f, y, weights.draws, tau=tau, fair=self._by.crps == "fair")
        return result if weights.rows is None else result[as_block(weights.rows, f)]

    def _pll(
        self, f: Array, mean: Array, sigma: Array, y: Array, tau: np.ndarray, weights: estimates.ReplicateWeights
    ) -> tuple[Float[Array, "replicate chunk"] | None, Arrays]:
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

    def _keep(self, name: str, values: Float[Array, "replicate chunk output"]) -> None:
        """Store the values of the points `ranked_rows` under every replicate."""
        first, last = np.searchsorted(self._ranked_rows, [self._n, self._n + values.shape[1]])
        rows = as_block(self._ranked_rows[first:last] - self._n, values)
        self._blocks.add("draw", {Key("ranked", name): as_numpy(values[:, rows])})

    def _merged(self, units: Gathered, group: Groups) -> RegressionScores:
        arrays = units.by_kind()
        points, draws = arrays["point"], arrays["draw"]
        mean, variance = (points.pop(Key("moments", name)) for name in ("mean", "variance"))
        fitted = self._fitted
        noise = 0.0 if fitted is None else fitted.noise(np.arange(len(mean)))[self._draws.full.start]
        replicates = slice(self._draws.jackknife.start, self._draws.bootstrap.stop)
        ranked = draws[Key("ranked", "variance")][replicates].mean(-1).astype(np.float32)
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
            ranked_error=draws.get(Key("ranked", "error")),
            ranked_variance=draws[Key("ranked", "variance")],
            deviation=draws.get("deviation"),
            samples_differ=estimates.samples_differ(arrays["most"]),
        )


def _rows(part: slice) -> range:
    return range(part.start, part.stop)


def _moments(
    f: Float[Array, "sample chunk output"], weights: estimates.ReplicateWeights
) -> tuple[Float[Array, "replicate chunk output"], Float[Array, "replicate chunk output"]]:
    """Mean and variance (divisor T) over the draws under every replicate, from deviations from the first draw."""
    xp, (samples, points, outputs) = array_namespace(f), f.shape
    deviation = (f - f[0]).reshape(samples, -1)
    mean = weights.array @ deviation
    variance = xp.clip(weights.array @ deviation**2 - mean**2, min=0.0)
    if weights.rows is not None:
        rows = as_block(weights.rows, f)
        mean, variance = mean[rows], variance[rows]
    return mean.reshape(-1, points, outputs) + f[0], variance.reshape(-1, points, outputs)


def _mixture_pll(
    distance: Float[Array, "sample chunk"],
    outputs: int,
    tau: Float[np.ndarray, " replicate"],
    weights: estimates.ReplicateWeights,
    *,
    exact: tuple[int, ...],
) -> Float[Array, "replicate chunk"]:
    """PLL of the mixture under every replicate, each with its own τ; NaN where that is infinite.

    Replicates whose τ is near that of all draws use a first-order step in ln τ: one matrix product for all of them.
    """
    xp = array_namespace(distance)

    def likelihood(precision: float) -> Float[Array, "sample chunk"]:
        return (outputs / 2) * math.log(precision / (2 * math.pi)) - precision / 2 * distance

    full = exact[0]
    log_likelihood = likelihood(float(tau[full]))
    weight_rows = weights.array
    pll = metrics.pll_from_log_likelihood(log_likelihood, weights=weight_rows)
    share = xp.exp(log_likelihood - xp.max(log_likelihood, axis=0))
    mean_distance = (weight_rows @ (share * distance)) / (weight_rows @ share)
    slope = outputs / 2 - float(tau[full]) / 2 * mean_distance
    slope = xp.where(xp.isfinite(slope), slope, xp.zeros_like(slope))
    rows = as_block(np.arange(len(tau)) if weights.rows is None else weights.rows, distance)
    finite = np.where(np.isfinite(tau), tau, tau[full])
    step = as_block(np.log(finite / tau[full]), distance)[:, None]
    moved = pll[rows] + slope[rows] * step
    not_near = np.flatnonzero(np.abs(as_numpy(step)[:, 0]) > _NEAR)
    for row in {*exact, *not_near.tolist()}:
        moved[row] = metrics.pll_from_log_likelihood(likelihood(float(finite[row])), weights=weight_rows[rows[row]])
    moved[as_block(~np.isfinite(tau), distance)] = math.nan
    return moved


def _crps_of_draws(
    f: Float[Array, "sample chunk output"],
    y: Float[Array, "chunk output"],
    draws: DrawWeights,
    *,
    tau: Float[np.ndarray, " replicate"],
    fair: bool,
) -> Float[Array, "replicate chunk"]:
    """CRPS of the mixture of draws, each with its noise, under every replicate.

    Leaving out a draw removes only its terms from both sums; the noise is then that of all draws, whose τ is near. The
    first k draws have their own τ. NaN for bootstrap rows, because repeated draws are not a sample.
    """
    xp = array_namespace(f)
    result = xp.full((len(draws.weights), f.shape[1]), math.nan, dtype=xp.float64)

    def crps(to_target: Array, between_draws: Array, count: int) -> Array:
        pairs = count * (count - 1 if fair and count > 1 else count)  # a single draw: |error|
        return to_target / count - between_draws / (2 * pairs)

    tau_of_all_draws = float(tau[draws.full.start])
    to_target, between_draws = metrics.crps_terms(f, y, tau=tau_of_all_draws)
    itself = metrics.crps_terms(f[:1], y, tau=tau_of_all_draws)[1][0]
    samples = len(f)
    result[draws.full.start] = crps(to_target.sum(0), between_draws.sum(0), samples)
    for draw, row in enumerate(_rows(draws.jackknife)):
        others = between_draws.sum(0) - 2 * between_draws[draw] + itself
        result[row] = crps(to_target.sum(0) - to_target[draw], others, samples - 1)
    for count, row in zip(draws.prefix_sizes, _rows(draws.prefix), strict=True):
        first = metrics.crps_terms(f[:count], y, tau=float(tau[min(row, len(tau) - 1)]))
        result[row] = crps(first[0].sum(0), first[1].sum(0), count)
    return result


def _pll_of_full_covariance(
    f: Array, mean: Array, y: Array, tau: Float[np.ndarray, " replicate"], weights: estimates.ReplicateWeights
) -> Float[Array, "replicate chunk"]:
    """Log density of N(f̄, Cov f + I/τ) under every replicate."""
    rows = range(len(tau)) if weights.rows is None else weights.rows
    xp = array_namespace(f)
    result = xp.empty(tuple(mean.shape[:2]), dtype=xp.float64)
    for replicate, row in enumerate(rows):
        deviation = f - mean[replicate]
        weighted = weights.array[int(row)][:, None, None] * deviation
        covariance = xp.matmul(xp.permute_dims(weighted, (1, 2, 0)), xp.permute_dims(deviation, (1, 0, 2)))
        error = as_numpy(y - mean[replicate])
        pll = metrics.pll_of_covariance(error, as_numpy(covariance), tau=float(tau[replicate]))
        result[replicate] = as_block(pll, result)
    return result
