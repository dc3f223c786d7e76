"""The errors of estimates: over points (`standard_error`), and over the draws that points share.

Where all points share T draws, the draws are the sampling units. With a bank of N ≥ T draws, of which every tile of
points uses its own T, these are the N draws: a replicate weights the bank, and each tile uses the weights of its draws.

Why a draw is only left out of the tiles that used it: to first order the estimate is θ = μ + Σ_t c_t, where
c_t = 1/(mT) Σ_{k uses t} g_k(ω_t) over m tiles k, and g_k is the effect of a draw on tile k, with mean 0. Given the
assignment of draws to tiles, the c_t are independent and θ has mean μ: the assignment adds nothing, and
Var θ = E Σ_t c_t². Without draw t its tiles average T − 1 other draws: θ₍₋ₜ₎ − θ = −T/(T−1) d_t, where d_t is c_t with
g_k(ω_t) less its mean over the tile's draws, and Σ_t d_t = 0. So (N−1)/N Σ_t (θ₍₋ₜ₎ − mean)² is
(N−1)/N (T/(T−1))² Σ_t d_t². Its mean is Var θ where draws affect many tiles alike, and (N−1)/N T/(T−1) Var θ where they
affect each tile independently: never too small, and in between too large by a share of less than 1/(T−1). For N = T it
is the jackknife. A bootstrap of the bank changes θ by Σ_t (w_t − 1) d_t, whose variance is Σ_t d_t².
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
from array_api_compat import device

from bnuq.frozen import frozen
from bnuq.metrics.arrays import Array, array_namespace, as_float64, as_numpy
from bnuq.shapes import Float, Int64, Shaped


def standard_error(values: Float[Array, "point"], *, group: Shaped[Array, "point"] | None = None) -> float:
    """Standard error of the mean of `values`, in their unit, ≥ 0 or NaN; lower is better.

    sd/√n with ddof 1. With `group`, points of the same group may be correlated, and only groups are independent:
    √(G/(G−1) Σ_g (Σ_{i∈g} (x_i − x̄))²)/n, which is the same number where every group is a single point. NaN for fewer
    than two points or groups, or where a value is infinite.

    Source: Liang & Zeger 1986, Longitudinal Data Analysis Using Generalized Linear Models (the sandwich for a mean);
    G/(G−1) as Obuchowski 1997, Nonparametric Analysis of Clustered ROC Curve Data.
    """
    x = as_float64(values)
    totals = _deviations(x) if x.size else x
    if group is not None:
        totals = np.bincount(group_index(group), weights=totals)
    groups = totals.size
    if groups < 2:
        return math.nan
    with np.errstate(over="ignore"):
        return math.sqrt(groups / (groups - 1) * float(np.sum(totals**2))) / x.size


def error_of_change(first: Float[Array, "replicate"], second: Float[Array, "other_replicate"]) -> float:
    """Standard error of the difference between two means over replicates (draws, or draw sets), in their unit, ≥ 0; NaN
    for a single replicate.

    The first ones of both are pairs, and the longer series has further ones: with x and y less their means and 0 where
    there is none, √(n/(n−1) Σ (x_t/n_x − y_t/n_y)²), n = max(n_x, n_y). For pairs alone this is sd/√n of their
    differences.
    """
    x, y = as_float64(first), as_float64(second)
    longest = max(x.size, y.size)
    if min(x.size, y.size) < 2:
        return math.nan
    shares = [np.pad(_deviations(values) / values.size, (0, longest - values.size)) for values in (x, y)]
    with np.errstate(invalid="ignore", over="ignore"):
        return math.sqrt(longest / (longest - 1) * float(np.sum((shares[0] - shares[1]) ** 2)))


def independent_units(points: int, group: Shaped[Array, "point"] | None) -> int:
    """The number of independent units of so many points: their groups, where they have any."""
    return points if group is None else len(np.unique(group))


def _deviations(x: Float[np.ndarray, "first *rest"]) -> Float[np.ndarray, "first *rest"]:
    with np.errstate(invalid="ignore", over="ignore"):  # the error of a PLL of −∞ is NaN, which needs no warning
        return x - np.mean(x, axis=0)


def jackknife_error(leave_one_out: Float[Array, "sample *rest"]) -> Float[Array, "*rest"] | float:
    """Monte Carlo standard error over T draws, √((T−1)/T Σ_t (θ₍₋ₜ₎ − mean)²), in the unit of θ; lower is better.

    `leave_one_out` holds θ without draw t along its first axis; a single axis gives a float. NaN for T < 2. With a bank
    the axis has length N, and N replaces T. Valid for smooth estimates only: the 1/n steps of an accuracy inflate it;
    use `bootstrap_error` there.

    Source: Efron & Tibshirani 1993, An Introduction to the Bootstrap, ch. 11.
    """
    samples = leave_one_out.shape[0]
    scale = (samples - 1) / samples if samples >= 2 else math.nan
    return _root_sum_of_squares(leave_one_out, scale)


def bootstrap_error(
    replicates: Float[Array, "replicate *rest"], *, samples: int, bank: int | None = None
) -> Float[Array, "*rest"] | float:
    """Monte Carlo standard error over T draws, sd of the replicates × √(T/(T−1)), in their unit; lower is better.

    `replicates` come from rows of weights over `samples` = T draws; the factor corrects for resampling, which shows
    only 1 − 1/T of the variance of T draws. With a bank of N draws, of which each tile uses T, it is T/(T−1)
    √((N−1)/N), which is the same for N = T. NaN for T < 2 or fewer than two replicates.

    Source: Efron & Tibshirani 1993, ch. 6; the factor is that from the plug-in to the unbiased variance.
    """
    rows = replicates.shape[0]
    if samples < 2 or rows < 2:
        return _root_sum_of_squares(replicates, math.nan)
    size = bank or samples
    scale = (samples / (samples - 1)) ** 2 * (size - 1) / size / (rows - 1)
    return _root_sum_of_squares(replicates, scale)


def _root_sum_of_squares(values: Float[Array, "first *rest"], scale: float) -> Float[Array, "*rest"] | float:
    xp = array_namespace(values)
    if values.shape[0] == 0:
        values = xp.zeros((1, *values.shape[1:]), dtype=values.dtype, device=device(values))  # `scale` makes it NaN
    with np.errstate(invalid="ignore", over="ignore"):
        deviations = values - xp.mean(values, axis=0, keepdims=True)
        error = xp.sqrt(xp.sum(deviations**2, axis=0) * scale)
    return float(error) if error.ndim == 0 else error


@frozen
class DrawWeights:
    """Weights over the draws, one row per replicate, shared by all estimates and sets.

    `weights` is (R, N), each row summing to 1. The slices give the rows of each kind, and `prefix_sizes` the number of
    first draws that each row of `prefix` averages. A point is averaged over `samples` = T draws: all N, or its own T of
    a bank of N, whose weights `among` gives. Rows of `prefix` are then over the first of its T draws.
    """

    weights: Float[np.ndarray, "replicate draw"]
    full: slice
    jackknife: slice
    bootstrap: slice
    prefix: slice
    prefix_sizes: tuple[int, ...]
    samples: int

    def among(self, numbers: Int64[np.ndarray, " sample"]) -> tuple["DrawWeights", Int64[np.ndarray, " replicate"]]:
        """For points that use these T draws of the bank: weights over them, and for every row here its row there.

        A row is restricted to these draws and renormalised to sum 1; uniform where all its weights are 0. Leaving out a
        draw that is not used corresponds to the full row, so there are fewer rows there.
        """
        samples, bank = len(numbers), self.weights.shape[1]
        drawn = self.weights[self.bootstrap][:, numbers]
        total = drawn.sum(1, keepdims=True)
        drawn = np.where(total > 0, drawn / np.where(total > 0, total, 1), 1 / samples)
        subset = _laid_out(samples, samples, drawn)
        left_out = np.full(bank if samples >= 2 else 0, subset.full.start)
        if samples >= 2:
            left_out[numbers] = np.arange(subset.jackknife.start, subset.jackknife.stop)
        after = np.arange(subset.bootstrap.start, subset.prefix.stop)
        return subset, np.concatenate([np.array([subset.full.start]), left_out, after])


def draw_weights(samples: int, *, resamples: int, seed: int, bank: int | None = None) -> DrawWeights:
    """Weights of the replicates over T draws: all, each left out, bootstrap, first 1, 2, 4, … and T; no direction.

    With `bank` = N ≥ T they are over N draws, of which a point uses T. The bootstrap rows, multinomial(N)/N, depend
    only on (N, resamples, seed). T = 1 has neither leave-one-out nor bootstrap rows: the slices are empty.

    Source: Efron & Tibshirani 1993, ch. 6 and 11.
    """
    size = bank or samples
    drawn = _multinomial(size, resamples, seed) / size if samples >= 2 else np.empty((0, size))
    return _laid_out(samples, size, drawn)


def plain_weights(samples: int) -> DrawWeights:
    """Weights of all T draws and no replicates, for estimates whose error is computed otherwise; no direction.

    Source: the plain mean over draws, Teye, Azizpour & Smith 2018, Algorithm 1.
    """
    empty = slice(1, 1)
    return DrawWeights(np.full((1, samples), 1 / samples), slice(0, 1), empty, empty, empty, (), samples)


def part_weights(sizes: Sequence[int]) -> DrawWeights:
    """Weights of the replicates over means of consecutive parts of the draws, of these sizes: all, each part left out,
    and the first 1, 2, 4, … and all parts; no direction. `samples` is the number of parts.

    Source: the delete-a-group jackknife, Efron & Tibshirani 1993, ch. 11.
    """
    laid_out = _laid_out(len(sizes), len(sizes), np.empty((0, len(sizes))))
    weights = laid_out.weights * np.asarray(sizes)
    drawn = tuple(sum(sizes[:parts]) for parts in laid_out.prefix_sizes)
    return replace(laid_out, weights=weights / weights.sum(1, keepdims=True), prefix_sizes=drawn)


def _laid_out(samples: int, size: int, drawn: Float[np.ndarray, "resample draw"]) -> DrawWeights:
    left_out = (1 - np.eye(size)) / (size - 1) if samples >= 2 else np.empty((0, size))
    sizes = (*(2**k for k in range((samples - 1).bit_length())), samples)
    first = np.array([[1 / k] * k + [0.0] * (size - k) for k in sizes])
    parts = [np.full((1, size), 1 / size), left_out, drawn, first]
    full, jackknife, bootstrap, prefix = _consecutive(len(part) for part in parts)
    return DrawWeights(np.concatenate(parts), full, jackknife, bootstrap, prefix, sizes, samples)


def _multinomial(samples: int, resamples: int, seed: int) -> np.ndarray:
    # Raw Philox words, whose stream numpy promises to keep, so that results of different numpy versions use the same
    # weights. The second word of the key ("boot") separates them from other random numbers with the same seed.
    words = np.random.Philox(key=np.array([seed, 0x626F6F74], dtype=np.uint64)).random_raw(resamples * samples)
    drawn = (words % np.uint64(samples)).astype(np.int64).reshape(resamples, samples)
    cells = drawn + samples * np.arange(resamples)[:, None]
    return np.bincount(cells.ravel(), minlength=resamples * samples).reshape(resamples, samples)


def _consecutive(lengths: Iterator[int]) -> Iterator[slice]:
    start = 0
    for length in lengths:
        yield slice(start, start + length)
        start += length


def group_index(group: Shaped[Array, "point"]) -> np.ndarray:
    """The number 0 … G−1 of each point's group, for labels of any type."""
    return np.unique(as_numpy(group), return_inverse=True)[1]
