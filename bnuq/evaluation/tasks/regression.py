"""The estimates of a regression, and the errors of each. Everything is in the unit of the targets."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Self

import numpy as np

from bnuq import metrics
from bnuq.config import ScoreSettings, ScoringSection
from bnuq.data import Points, check_targets
from bnuq.estimates import Estimate
from bnuq.evaluation import estimates
from bnuq.evaluation.estimates import SetScores
from bnuq.evaluation.target_scale import TargetScale, target_scale
from bnuq.evaluation.tasks.observation_noise import NoiseFit, are_uneven, fit, sizes_of
from bnuq.evaluation.tasks.regression_reduction import KINDS_WITHOUT_NOISE, RegressionReduction, RegressionScores
from bnuq.evaluation.tasks.scorer import ScoredNetwork, ScoredSet, TaskScorer
from bnuq.findings import Finding
from bnuq.frozen import frozen
from bnuq.metrics import DrawWeights
from bnuq.metrics.registry import estimates_of_task
from bnuq.records.contributions import distance, predictive_sd
from bnuq.records.evaluation import MethodResult, Samples, SetResult
from bnuq.shapes import Bool, Float, Int64
from bnuq.tasks import REGRESSION

_ESTIMATES = estimates_of_task("regression")
LEVELS = np.arange(0.05, 1.0, 0.05)  # of the central intervals whose coverage is computed
_CURVE = 2000  # points of the uncertainty–error curve that are stored
_BOOTSTRAPPED = 200  # resamples of a rank correlation over points


def fitted(scores: RegressionScores, draws: DrawWeights, second: Bool[np.ndarray, " point"] | None = None) -> NoiseFit:
    """The best τ and constant σ on these points, for all draws and every replicate; with `second` also those of both
    halves."""
    targets, error, variance = scores.targets, scores.ranked_error, scores.ranked_variance
    assert targets is not None and error is not None and variance is not None
    errors, by = targets - scores.mean, scores.scoring
    # A given τ, or its range, is that of all outputs.
    uneven = by.tau is None and by.tau_range is None and are_uneven(sizes_of(errors))

    def fit_to(rows: Any) -> NoiseFit:
        deviation = None if scores.deviation is None else scores.deviation[:, rows]
        ranked = rows[scores.ranked_rows]
        subset = error[:, ranked], variance[:, ranked]
        units = sizes_of(errors[rows]) if uneven else None
        moments = errors[rows], scores.variance[rows]
        return fit(*moments, deviation, subset=subset, scoring=by, draws=draws, units=units)

    whole = fit_to(np.full(scores.n, fill_value=True))
    if second is None:
        return whole
    halves = fit_to(~second), fit_to(second)
    return replace(whole, halves=halves, second=second, at_end=next((f.at_end for f in halves if f.at_end), ""))


# ── estimates ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def set_estimates(scores: RegressionScores, draws: DrawWeights) -> dict[str, Estimate]:
    """The estimates of one set with both errors; a set without targets has only the variance of the draws."""
    result = {name: estimates.mean_estimate(name, scores, draws) for name in _ESTIMATES if name in scores.points}
    if "squared_error" in scores.points:
        replicates = np.sqrt(scores.replicates["squared_error"])
        value = float(replicates[draws.full.start])
        error = metrics.standard_error(scores.points["squared_error"], group=scores.group)
        # of the root to first order: from the error of the mean
        se = estimates.error_over_points(error / (2 * value) if value > 0 else 0.0, scores)
        result["rmse"] = estimates.of_replicates("rmse", replicates, draws, se=se)
        if draws.samples > 1:
            result["spearman"] = _rank_correlation(scores, draws)
    if scores.fitted is not None and scores.targets is not None:
        result["tau"] = estimates.of_replicates("tau", scores.fitted.mean_tau, draws)
    return {
        name: result[name]
        for name, estimand in _ESTIMATES.items()
        if name in result and (draws.samples > 1 or not estimand.needs_samples)
    }


def _rank_correlation(scores: RegressionScores, draws: DrawWeights) -> Estimate:
    """Spearman's correlation of predictive sd and |error|; its Monte Carlo error is from the points `ranked_rows`."""
    sigma, error = _ranked(scores)
    formula = _ESTIMATES["spearman"].computed
    value = formula.value({"predictive_sd": sigma, "distance": error})
    assert scores.ranked_variance is not None and scores.ranked_error is not None
    noise = 0.0 if scores.fitted is None else scores.fitted.noise(scores.ranked_rows).mean(-1)
    sigma_replicates = np.sqrt((scores.ranked_variance.mean(-1) + noise).astype(np.float32))
    error_replicates = np.sqrt((scores.ranked_error**2).mean(-1))
    replicates = formula.values({"predictive_sd": sigma_replicates, "distance": error_replicates})
    return estimates.estimate(
        "spearman",
        value,
        se=estimates.error_over_points(_resampled_correlation(sigma, error, scores.group), scores),
        jackknife=value + replicates[draws.jackknife] - replicates[draws.full.start],
        bootstrap=value + replicates[draws.bootstrap] - replicates[draws.full.start],
        samples=draws.samples,
    )


def _resampled_correlation(
    sigma: Float[np.ndarray, " point"], error: Float[np.ndarray, " point"], group: Int64[np.ndarray, " point"] | None
) -> float:
    """The bootstrap standard error over points; over groups, where there are any, that of the influence of all points.

    Only the points of `ranked_rows` are resampled; the error of all n points is smaller by the root of the ratio of
    their numbers. That is so of independent points alone: groups are as many however many points each of them has.
    """
    if group is not None:
        return metrics.standard_error(metrics.spearman_influence(sigma, error), group=group)
    generator = np.random.default_rng(0)
    subset = estimates.ranked_rows(len(sigma))
    rows = subset[generator.integers(len(subset), size=(_BOOTSTRAPPED, len(subset)))]
    result = metrics.spearman_of_replicates(sigma[rows], error[rows])
    share = math.sqrt(len(subset) / len(sigma))
    return share * float(np.std(result, ddof=1)) if np.isfinite(result).all() else math.nan


def _ranked(scores: RegressionScores) -> tuple[Float[np.ndarray, " point"], Float[np.ndarray, " point"]]:
    """One predictive sd, and one |error|, per point."""
    assert scores.targets is not None
    return predictive_sd(scores.sigma), distance(scores.targets - scores.mean)


def bounds(scores: RegressionScores, draws: DrawWeights) -> dict[str, dict[str, Estimate]]:
    """PLL and CRPS of the constant uncertainty (and its σ) and of the per-point optimum around the same means."""
    if scores.fitted is None:
        return {}
    result: dict[str, dict[str, Estimate]] = {}
    for bound in ("constant", "optimum"):
        for name in ("pll", "crps"):
            if (key := f"{name}_{bound}") in scores.points:
                result.setdefault(bound, {})[name] = estimates.mean_estimate(key, scores, draws)
    if (sigma := scores.fitted.mean_sigma) is not None:
        result["constant"]["sigma"] = estimates.of_replicates("sigma", sigma, draws)
    return result


def normalized(scores: RegressionScores, draws: DrawWeights) -> dict[str, Estimate]:
    """PLL and CRPS between the constant baseline (0) and the per-point optimum (100), in percent.

    A CRPS of the draws alone, without the noise that the constant baseline has, is not normalised. Where a point is
    predicted exactly, the optimal PLL is infinite and the normalised score NaN: "pll_without_exact" is the normalised
    PLL of the other points.
    """
    result = {}
    for name in ("pll", "crps"):
        if name == "crps" and scores.scoring.crps in KINDS_WITHOUT_NOISE:
            continue
        if f"{name}_constant" in scores.points and name in scores.points:
            of_points, replicates = (
                {bound: values[f"{name}_{bound}"] for bound in ("constant", "optimum")}
                for values in (scores.points, scores.replicates)
            )
            result[name] = estimates.normalized_estimate(name, scores, of_points, replicates, draws)
    exact = np.isposinf(scores.points.get("pll_optimum", np.empty(0)))
    if "pll" in result and exact.any() and not exact.all():
        keys = "pll", "pll_constant", "pll_optimum"
        value, constant, optimum = (float(scores.points[key][~exact].mean()) for key in keys)
        result["pll_without_exact"] = Estimate(float(metrics.normalized(value, constant, optimum)))
    return result


def convergence(scores: RegressionScores, draws: DrawWeights) -> dict[str, np.ndarray]:
    """PLL, CRPS, RMSE and variance of the first 1, 2, 4, … and T draws, each with the τ fitted to those draws."""
    result = estimates.convergence_of(scores, [*estimates_of_task("regression", shown="convergence")], draws)
    if result and "squared_error" in scores.replicates:
        result["rmse"] = np.sqrt(scores.replicates["squared_error"][draws.prefix])
    return result


def calibration_curve(scores: RegressionScores) -> dict[str, np.ndarray]:
    """The coverage of central intervals by level, 5 to 95 %; empty where there is no τ."""
    if scores.fitted is None or scores.targets is None:
        return {}
    observed = metrics.interval_calibration(scores.mean, scores.sigma, scores.targets, levels=LEVELS)
    return {"level": LEVELS, "coverage": observed}


def risk_curve(scores: RegressionScores) -> dict[str, np.ndarray]:
    """Mean |error| of the most certain points (by predictive sd) by coverage, at up to 200 coverages."""
    if scores.targets is None or not np.ptp(predictive_sd(scores.sigma)) > 0:
        return {}
    return estimates.risk_by_coverage(*_ranked(scores))


def uncertainty_error_curve(scores: RegressionScores) -> dict[str, np.ndarray]:
    """Predictive sd, |error| and the running mean of |error|, by ascending sd, for up to 2000 points."""
    if scores.targets is None:
        return {}
    curve = metrics.uncertainty_error_curve(*_ranked(scores))
    rows = np.unique(np.linspace(0, scores.n - 1, _CURVE).round().astype(int))
    return {
        "rank": rows,
        "sigma": curve.sigma[rows],
        "error": curve.error[rows],
        "running_error": curve.running_error[rows],
    }


@frozen
class Scaled:
    """Raw samples in another unit: each times `std`, plus `mean`, output by output."""

    samples: Samples
    mean: Float[np.ndarray, " output"]
    std: Float[np.ndarray, " output"]

    @property
    def dtype(self) -> np.dtype:
        return self.samples.dtype

    @property
    def shape(self) -> tuple[int, int, int]:
        """(T, n, Q)."""
        return self.samples.shape

    def blocks(self) -> Iterator[tuple[int, Float[np.ndarray, "sample chunk output"]]]:
        """(number of the first point, its block of all draws), in order."""
        for start, block in self.samples.blocks():
            yield start, (block * self.std + self.mean).astype(self.dtype)


@frozen
class RegressionScorer(TaskScorer):
    """Scores the samples of a regression onto so many outputs, which may be standardised."""

    task = REGRESSION
    settings: ScoreSettings
    scale: TargetScale | None
    outputs: int
    fit: NoiseFit | None = None

    @classmethod
    def of(cls, network: ScoredNetwork) -> RegressionScorer:
        scale = target_scale(network.settings.normalize_targets, network.train, network.outputs)
        return cls(network.settings, scale, network.outputs)

    @property
    def scoring(self) -> ScoringSection:
        """How it was asked to score."""
        return self.settings.scoring

    @property
    def reducer(self) -> Callable[..., RegressionReduction]:
        """What takes the blocks of a set."""
        return RegressionReduction

    def checked(self, points: Points, *, is_ood: bool = False) -> Points:
        return points if is_ood else check_targets(points, self.outputs)

    def reduction(self, scored: ScoredSet) -> RegressionReduction:
        fitted, points = self.fit, scored.points
        return self.reducer(
            scored.weights,
            points=len(points),
            scoring_by=self.scoring,
            targets=points.targets if scored.labelled else None,
            scale=self.scale,
            fitted=fitted if fitted is None or scored.labelled else replace(fitted, halves=None, second=None),
            first=scored.first,
            where=points.reference,
        )

    def fitted_to(self, validation: SetScores | None, draws: DrawWeights) -> Self:
        """This scorer with the τ and the constant σ of the validation points, or the given τ."""
        if validation is not None:
            return replace(self, fit=fitted(RegressionScores.among(validation), draws))
        tau = self.scoring.tau
        return self if tau is None else replace(self, fit=NoiseFit(np.full(len(draws.weights), tau), None))

    def cross_fitted(
        self, scores: SetScores, draws: DrawWeights, second: Bool[np.ndarray, " point"]
    ) -> RegressionScorer:
        """This scorer with the τ and the constant σ of each half, fitted to the other one."""
        return replace(self, fit=fitted(RegressionScores.among(scores), draws, second))

    def findings(self, method: str) -> Iterator[Finding]:
        return iter(()) if self.fit is None else self.fit.findings(method, self.scoring)

    def set_result(self, scores: SetScores, draws: DrawWeights) -> SetResult:
        scores = RegressionScores.among(scores)
        points = dict(scores.points)
        if draws.samples == 1:  # which has no variance to report
            points.pop("variance", None)
        return SetResult(
            estimates=set_estimates(scores, draws),
            points=points,
            predicted=scores.mean,
            sigma=scores.sigma,
            log_likelihood=scores.log_likelihood,
        )

    def in_target_units(self, samples: Samples) -> Samples:
        return samples if self.scale is None else Scaled(samples, self.scale.mean, self.scale.std)

    def result(
        self, scores: Mapping[str, SetScores], draws: DrawWeights, ranked: SetScores | None = None
    ) -> MethodResult:
        test = RegressionScores.among(scores["test"])
        return replace(
            super().result(scores, draws, ranked),
            convergence=convergence(test, draws),
            calibration=calibration_curve(test),
            risk=risk_curve(test),
            uncertainty_error=uncertainty_error_curve(test),
            bounds=bounds(test, draws),
            normalized=normalized(test, draws) if draws.samples > 1 else {},
        )
