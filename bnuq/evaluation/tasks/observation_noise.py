"""Fits to validation points, or to halves of the test set: the precision τ of the observations, and the σ of the
constant baseline."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from bnuq import metrics
from bnuq.config import ScoringSection
from bnuq.findings import Finding, note, warning
from bnuq.frozen import frozen
from bnuq.metrics import DrawWeights
from bnuq.shapes import Bool, Float, Int64

_UNEVEN = 10.0  # times the smallest error of an output: no noise of all is that of each
_MOST_IN_PAIRS = 64  # samples of a mixture, of which each pair is compared
_POORLY_COVERED = 0.9  # of the targets of an output: its 95 % intervals are too narrow


@frozen
class NoiseFit:
    """What was fitted under every replicate: the precision τ of the observations, and the σ of the constant baseline,
    which is absent where τ was given and there are no points to fit it to.

    Where outputs have errors of very different sizes, `units` are these sizes, and τ and σ are in units of them: the
    noise of an output is unit²/τ, its constant unit · σ. Else all outputs share τ and σ, in target units.

    Cross-fitted, it is what all test points give, which OOD sets have, and `halves` are what the first and the second
    half of them give: a test point, whose half `second` says, has that of the half without it.
    """

    tau: Float[np.ndarray, " replicate"]
    sigma: Float[np.ndarray, " replicate"] | None
    at_end: str = ""
    units: Float[np.ndarray, " output"] | None = None
    covered: tuple[float, ...] = ()  # of each of several outputs, the share of targets inside its 95 % intervals
    coverage_error: float = 0.0  # the standard error of such a share, were it 90 %
    halves: tuple[NoiseFit, NoiseFit] | None = None
    second: Bool[np.ndarray, " point"] | None = None

    def of_rows(self, rows: Int64[np.ndarray, " row"]) -> Iterator[tuple[Int64[np.ndarray, " part"], NoiseFit]]:
        """What each of these points has: which of the rows, and what they have."""
        if self.halves is None or self.second is None:
            yield np.arange(len(rows)), self
            return
        for is_second, fitted in enumerate(reversed(self.halves)):
            yield np.flatnonzero(self.second[rows] == bool(is_second)), fitted

    def noise(self, rows: Int64[np.ndarray, " row"]) -> Float[np.ndarray, "replicate row output"]:
        """The variance of the observations of these points, in squared target units: one of all outputs, or of each."""
        noise = np.empty((len(self.tau), len(rows), len(self.unit)))
        for part, fitted in self.of_rows(rows):
            noise[:, part] = fitted.unit**2 / fitted.tau[:, None, None]
        return noise

    @property
    def unit(self) -> Float[np.ndarray, " output"]:
        """The units of the outputs, or a single 1 for all."""
        return np.ones(1) if self.units is None else self.units

    @property
    def mean_tau(self) -> Float[np.ndarray, " replicate"]:
        """τ; cross-fitted, that of the mean variance of the test points' observations."""
        if self.second is None:
            return self.tau
        with np.errstate(divide="ignore", over="ignore"):  # of no noise in either half
            return 1 / (self.noise(np.arange(len(self.second))) / self.unit**2).mean(2).mean(1)

    @property
    def mean_sigma(self) -> Float[np.ndarray, " replicate"] | None:
        """The constant σ; cross-fitted, the root of its mean square over the test points."""
        if self.second is None or self.sigma is None:
            return self.sigma
        squares = np.zeros(len(self.sigma))
        for part, fitted in self.of_rows(np.arange(len(self.second))):
            assert fitted.sigma is not None
            squares += len(part) * ((fitted.sigma[:, None] * fitted.unit / self.unit) ** 2).mean(1)
        return np.sqrt(squares / len(self.second))

    def findings(self, method: str, scoring: ScoringSection) -> Iterator[Finding]:
        """How it was cross-fitted, and warnings about an optimum at the end of its range, or no optimum."""
        if self.halves is not None and self.second is not None:
            taus = [float(half.tau[0]) for half in self.halves]
            yield note("tau-cross-fitted", of=method, tau=taus, points=len(self.second), given=scoring.tau is not None)
        if self.sigma is not None and self.sigma[0] == 0:
            yield warning("constant-is-zero", of=method)
        if self.units is not None:
            yield note("outputs-of-other-sizes", of=method, sizes=self.units.tolist(), covered=list(self.covered))
        for output, covered in enumerate(self.covered):
            if covered + 3 * self.coverage_error < _POORLY_COVERED:
                yield warning("output-poorly-covered", of=method, output=output, covered=covered)
        if self.at_end == "infinite":
            yield warning("tau-infinite", of=method, mixture=scoring.pll == "mixture")
        elif self.at_end:
            yield warning("tau-at-range-end", of=method, end=self.at_end, tau=float(self.tau[0]))


def sizes_of(errors: Float[np.ndarray, "point output"]) -> Float[np.ndarray, " output"]:
    """The root mean square error of each output; 1 where all are 0."""
    sizes = np.sqrt((errors**2).mean(0))
    return np.where(sizes > 0, sizes, 1.0)


def are_uneven(sizes: Float[np.ndarray, " output"]) -> bool:
    """Whether the errors of outputs differ so much that no τ of all is right for each."""
    return bool(sizes.max() > _UNEVEN * sizes.min())


def fit(
    errors: Float[np.ndarray, "point output"],
    variance: Float[np.ndarray, "point output"],
    deviation: Float[np.ndarray, "sample point output"] | None,
    *,
    subset: tuple[Float[np.ndarray, "replicate kept output"], Float[np.ndarray, "replicate kept output"]],
    scoring: ScoringSection,
    draws: DrawWeights,
    units: Float[np.ndarray, " output"] | None,
) -> NoiseFit:
    """The best τ and constant σ on validation points, in `units` if any, for all draws and every replicate.

    `errors` are y − f̄ and `variance` is that of the draws, in target units; `subset` holds both under every replicate,
    for some of the points. y − f_t is needed where τ is the best of the mixture, by PLL or CRPS (those of a Gaussian of
    the moments ignore covariances, and other moments). The fit to all draws uses all points. A replicate uses the
    subset, by its ratio to the fit of the Gaussian to all draws there.
    """
    unit = 1.0 if units is None else units
    errors, variance = errors / unit, variance / unit**2
    subset_error, subset_variance = subset[0] / unit, subset[1] / unit**2
    full, several = draws.full.start, errors.shape[1] > 1
    sigma = metrics.constant_sigma(errors, metric=scoring.fit)
    sigmas = _scaled_like_subset(sigma, metrics.constant_sigmas(subset_error, metric=scoring.fit), full)
    if scoring.tau is not None:
        return NoiseFit(np.full(len(draws.weights), scoring.tau), sigmas)

    def fitted(taus: Float[np.ndarray, " replicate"], best: metrics.TauFit) -> NoiseFit:
        inside = np.abs(errors) <= 1.959963984540054 * np.sqrt(variance + 1 / best.tau)
        covered = tuple(inside.mean(0).tolist()) if several else ()
        coverage_error = math.sqrt(_POORLY_COVERED * (1 - _POORLY_COVERED) / len(errors))
        return NoiseFit(taus, sigmas, best.at_end, units, covered, coverage_error)

    if scoring.fit == "pll" and scoring.pll == "mixture":
        assert deviation is not None
        distance, outputs = (deviation**2 / unit**2).sum(-1), errors.shape[1]
        best = metrics.tau_of_distances(distance, outputs=outputs, tau_range=scoring.tau_range)
        return fitted(_pll_taus(distance, outputs, best.tau, draws, scoring.tau_range), best)

    def best_of(row: int) -> float:
        of_row = subset_error[row], subset_variance[row]
        return metrics.optimal_tau(*of_row, metric=scoring.fit, tau_range=scoring.tau_range).tau

    best = metrics.optimal_tau(errors, variance, metric=scoring.fit, tau_range=scoring.tau_range)
    taus = np.empty(len(draws.weights))
    taus[full] = best_of(full)
    for row in range(draws.prefix.start, draws.prefix.stop):
        taus[row] = best_of(row)
    resampled = slice(draws.jackknife.start, draws.bootstrap.stop)
    taus[resampled] = metrics.refined_tau(
        subset_error[resampled],
        subset_variance[resampled],
        float(taus[full]),
        metric=scoring.fit,
        tau_range=scoring.tau_range,
    )
    if (scoring.fit, scoring.crps) == ("crps", "mixture") and deviation is not None and len(deviation) > 1:
        some = deviation[:: -(-len(deviation) // _MOST_IN_PAIRS)]
        best = metrics.tau_of_mixture(some / unit, best.tau, tau_range=scoring.tau_range)
        taus = taus if math.isfinite(taus[full]) else np.full(len(taus), best.tau)
    return fitted(_scaled_like_subset(best.tau, taus, full), best)


def _scaled_like_subset(
    value: float, subset: Float[np.ndarray, " replicate"], full: int
) -> Float[np.ndarray, " replicate"]:
    """`value` under every replicate: scaled by the factor that its counterpart on the subset changes by."""
    if not (math.isfinite(value) and math.isfinite(subset[full]) and subset[full] > 0):
        return np.where(np.arange(len(subset)) == full, value, subset)
    moved = value * (subset / subset[full])
    moved[full] = value
    return moved


def _pll_taus(
    distance: Float[np.ndarray, "sample point"],
    outputs: int,
    tau: float,
    draws: DrawWeights,
    tau_range: tuple[float, float] | None,
) -> Float[np.ndarray, " replicate"]:
    """τ under every replicate: the optimum for the first 1, 2, 4, … draws, and one Newton step from `tau` for the
    others."""
    taus = np.full(len(draws.weights), tau)
    for count, row in zip(draws.prefix_sizes, range(draws.prefix.start, draws.prefix.stop), strict=True):
        taus[row] = metrics.tau_of_distances(distance[:count], outputs=outputs, tau_range=tau_range).tau
    resampled = slice(draws.jackknife.start, draws.bootstrap.stop)
    if math.isfinite(tau) and resampled.stop > resampled.start:
        share = np.exp(-tau / 2 * (distance - distance.min(0)))
        weights = draws.weights[resampled]
        total = weights @ share
        first, second = (weights @ (share * distance**k) / total for k in (1, 2))
        slope = (outputs / 2 - tau / 2 * first).mean(1)
        bend = (-tau / 2 * first + tau**2 / 4 * (second - first**2)).mean(1)
        step = np.where(bend < 0, -slope / np.where(bend < 0, bend, -1.0), 0.0)
        low, high = tau_range or (0.0, math.inf)
        taus[resampled] = np.clip(tau * np.exp(np.clip(step, -1.0, 1.0)), low, high)
    return taus
