"""What is fitted to validation points: the precision of the observations, and the σ of the constant baseline."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from bnuq import metrics
from bnuq.config import ScoringSection
from bnuq.metrics import DrawWeights
from bnuq.records import Caution


@dataclass(frozen=True)
class Fitted:
    """What was fitted to validation points, under every replicate: the precision τ of the observations, and the σ of
    the constant baseline, which is absent where τ was given and there are no such points."""

    tau: Float[np.ndarray, " replicate"]
    sigma: Float[np.ndarray, " replicate"] | None
    at_end: str = ""

    def cautions(self, method: str, asked: ScoringSection) -> Iterator[Caution]:
        """What to be careful about: an optimum at the end of its range, or none at all."""
        if self.sigma is not None and self.sigma[0] == 0:
            yield Caution(
                "constant-is-zero",
                f"{method}: so many validation points are predicted exactly that the best constant uncertainty is 0; "
                "the constant baseline's PLL is not defined, and neither is the normalised PLL.",
            )
        if self.at_end == "infinite":
            also = ", and the PLL of a mixture is not defined" if asked.pll == "mixture" else ""
            yield Caution(
                "tau-infinite",
                f"{method}: on the validation points, zero observation noise fits best, because the samples alone "
                f"spread more than the errors, or all errors are 0: τ is infinite{also}. Set tau_range under "
                "[scoring] to bound it; a larger batch_size or smaller dropout rates reduce the spread.",
            )
        elif self.at_end:
            yield Caution(
                "tau-at-range-end",
                f"{method}: the best τ lies at the {self.at_end} end of its range, {self.tau[0]:.3g}.",
            )


def fit(
    errors: Float[np.ndarray, "point output"],
    variance: Float[np.ndarray, "point output"],
    squared_distance: Float[np.ndarray, "sample point"] | None,
    *,
    kept: tuple[Float[np.ndarray, "replicate kept output"], Float[np.ndarray, "replicate kept output"]],
    by: ScoringSection,
    draws: DrawWeights,
) -> Fitted:
    """τ and the constant σ that are the best on validation points, for all draws and every replicate.

    `errors` are y − f̄ and `variance` that of the draws, in target units; `kept` both under every replicate, for some of
    the points; ‖y − f_t‖² is needed where τ is the best by the mixture's PLL (by that of a Gaussian of the moments,
    covariances are left out). All draws are fitted on all points, and replicates, by
    how they differ from all draws, on those that are kept.
    """
    kept_error, kept_variance = kept
    full = draws.full.start
    sigma = metrics.constant_sigma(errors, metric=by.fit)
    sigmas = _as_the_kept(sigma, metrics.constant_sigmas(kept_error, metric=by.fit), full)
    if by.tau is not None:
        return Fitted(np.full(len(draws.weights), by.tau), sigmas)
    if by.fit == "pll" and by.pll == "mixture":
        assert squared_distance is not None
        outputs = errors.shape[1]
        best = metrics.tau_of_distances(squared_distance, outputs=outputs, tau_range=by.tau_range)
        return Fitted(_pll_taus(squared_distance, outputs, best.tau, draws, by.tau_range), sigmas, best.at_end)

    def best_of(row: int) -> float:
        return metrics.optimal_tau(kept_error[row], kept_variance[row], metric=by.fit, tau_range=by.tau_range).tau

    best = metrics.optimal_tau(errors, variance, metric=by.fit, tau_range=by.tau_range)
    taus = np.empty(len(draws.weights))
    taus[full] = best_of(full)
    for row in range(draws.prefix.start, draws.prefix.stop):
        taus[row] = best_of(row)
    near = slice(draws.jackknife.start, draws.bootstrap.stop)
    taus[near] = metrics.refined_tau(
        kept_error[near], kept_variance[near], float(taus[full]), metric=by.fit, tau_range=by.tau_range
    )
    return Fitted(_as_the_kept(best.tau, taus, full), sigmas, best.at_end)


def _as_the_kept(value: float, kept: Float[np.ndarray, " replicate"], full: int) -> Float[np.ndarray, " replicate"]:
    """`value`, moved under every replicate by the factor that the same moves by on the kept points."""
    if not (math.isfinite(value) and math.isfinite(kept[full]) and kept[full] > 0):
        return np.where(np.arange(len(kept)) == full, value, kept)
    moved = value * (kept / kept[full])
    moved[full] = value
    return moved


def _pll_taus(
    distance: Float[np.ndarray, "sample point"],
    outputs: int,
    tau: float,
    draws: DrawWeights,
    tau_range: tuple[float, float] | None,
) -> Float[np.ndarray, " replicate"]:
    """τ under every replicate: the best of the first 1, 2, 4, … draws, one Newton step from `tau` for the others."""
    taus = np.full(len(draws.weights), tau)
    for count, row in zip(draws.prefix_sizes, range(draws.prefix.start, draws.prefix.stop), strict=True):
        taus[row] = metrics.tau_of_distances(distance[:count], outputs=outputs, tau_range=tau_range).tau
    near = slice(draws.jackknife.start, draws.bootstrap.stop)
    if math.isfinite(tau) and near.stop > near.start:
        share = np.exp(-tau / 2 * (distance - distance.min(0)))
        weights = draws.weights[near]
        total = weights @ share
        first, second = (weights @ (share * distance**k) / total for k in (1, 2))
        slope = (outputs / 2 - tau / 2 * first).mean(1)
        bend = (-tau / 2 * first + tau**2 / 4 * (second - first**2)).mean(1)
        step = np.where(bend < 0, -slope / np.where(bend < 0, bend, -1.0), 0.0)
        low, high = tau_range or (0.0, math.inf)
        taus[near] = np.clip(tau * np.exp(np.clip(step, -1.0, 1.0)), low, high)
    return taus
