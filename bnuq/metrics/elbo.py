"""The evidence lower bound (ELBO) of MCBN over the mini-batch size: its KL, its slope, and its predicted maximum.

A unit is a channel of a BatchNorm layer; ω is each unit's mean and standard deviation over a mini-batch. q_b(ω) is
factorised and Gaussian: N(m, s²/n) and N(s, (κ−1)s²/(4n)) for a unit with mean m, standard deviation s and kurtosis κ
over the population, of which a mini-batch of b holds as much as n = ρb independent values. ELBO and KL are in nats, of
the whole training set.
"""

import math
from typing import Literal

import numpy as np

from bnuq.frozen import frozen
from bnuq.metrics.arrays import Array, as_float64
from bnuq.metrics.decay import finite_population_factor, least_squares_coefficients, numbers
from bnuq.shapes import Float, Shaped


def kl_normal(
    mean_q: Float[Array, "..."] | float,
    var_q: Float[Array, "..."] | float,
    mean_p: Float[Array, "..."] | float,
    var_p: Float[Array, "..."] | float,
) -> Float[Array, "..."]:
    """KL(N(mean_q, var_q) ‖ N(mean_p, var_p)) in nats, entry by entry, in [0, ∞]; no direction.

    The arguments broadcast; the result is float64. var_q = 0, a point mass, gives ∞; var_p must be positive. Rounding
    may make it slightly negative, about −1e-16.

    Source: Kullback & Leibler 1951, On Information and Sufficiency; Kingma & Welling 2014, Auto-Encoding Variational
    Bayes, appendix B.
    """
    variance = numbers(var_p)
    ratio = numbers(var_q) / variance
    shift = numbers(mean_q) - numbers(mean_p)
    with np.errstate(divide="ignore"):
        return (ratio - 1 - np.log(ratio) + shift**2 / variance) / 2


def kl_gamma(
    shape_q: Float[Array, "..."] | float,
    scale_q: Float[Array, "..."] | float,
    shape_p: Float[Array, "..."] | float,
    scale_p: Float[Array, "..."] | float,
) -> Float[Array, "..."]:
    """KL(Gamma(shape_q, scale_q) ‖ Gamma(shape_p, scale_p)) in nats, entry by entry, in [0, ∞]; no direction.

    The arguments broadcast; the result is float64. The mean of a Gamma is shape × scale. All arguments must be
    positive; shape_q = ∞, a point mass, gives ∞. Rounding may make it slightly negative, about −1e-15 of shape_q.

    Source: Penny 2001, KL-Divergences of Normal, Gamma, Dirichlet and Wishart Densities.
    """
    from scipy.special import digamma, gammaln  # late: `bnuq.metrics` is light

    k, k_p, theta_p = numbers(shape_q), numbers(shape_p), numbers(scale_p)
    point = np.isinf(k)
    shape, ratio = np.where(point, 1.0, k), np.where(point, 1.0, numbers(scale_q) / theta_p)
    kl = (shape - k_p) * digamma(shape) - gammaln(shape) + gammaln(k_p) - k_p * np.log(ratio) + shape * (ratio - 1)
    return np.where(point, math.inf, kl)[()]


IMPROPER_PRIORS = ("weight_decay", "flat")  # against which KL has a free constant


@frozen
class Prior:
    """The prior p(ω), independent for each unit's mean μ and standard deviation σ.

    - "unit": q(ω) at n = 1, the information of a single value about the population; no parameters.
    - "gaussian": N(mean, variance) for μ in `mean` and for σ in `deviation`.
    - "weight_decay": flat in μ, N(0, 1/(2 · precision)) in σ, with `precision` = Nτλ: N training points, observation
      precision τ, and a loss with λ‖W‖² (not λ/2).
    - "flat": flat in both.
    - "gamma": as "unit", with the Gamma distribution of S² in place of the normal, and at n = 2, because it does not
      exist at n = 1.

    Raises ValueError for a parameter that the kind does not have, for a missing one, and for one that is not positive
    and finite where it must be.

    Source: Teye, Azizpour & Smith 2018, §3.3 (weight decay); Kass & Wasserman 1995, A Reference Bayesian Test for
    Nested Hypotheses (unit information).
    """

    kind: Literal["unit", "gaussian", "weight_decay", "flat", "gamma"] = "unit"
    mean: tuple[float, float] | None = None
    deviation: tuple[float, float] | None = None
    precision: float | None = None

    def __post_init__(self) -> None:
        parameters = {"gaussian": {"mean", "deviation"}, "weight_decay": {"precision"}}.get(self.kind, set())
        for name in ("mean", "deviation", "precision"):
            parameter = getattr(self, name)
            if (parameter is not None) != (name in parameters):
                expected = "expected a value" if name in parameters else "it takes none"
                raise ValueError(f'{name} of a "{self.kind}" prior is {parameter}; {expected}.')
            scale = parameter[1] if isinstance(parameter, tuple) else parameter
            if scale is not None and not 0 < scale < math.inf:
                quantity = "precision" if name == "precision" else f"variance of {name}"
                raise ValueError(f'{quantity} of a "{self.kind}" prior is {scale}; expected a positive finite number.')


def kl_of_statistics(
    prior: Prior,
    *,
    mean: Float[Array, " unit"],
    sd: Float[Array, " unit"],
    count_mean: Shaped[Array, " unit"],
    count_sd: Shaped[Array, " unit"],
    kurtosis: float = 3.0,
) -> float:
    """KL(q_b(ω) ‖ p(ω)) in nats, summed over units, in [0, ∞] for a proper prior and else in (−∞, ∞]; lower is better.

    `mean` and `sd` are the population's, in the layer's unit, `count_mean` and `count_sd` the number n of independent
    values that a mini-batch holds for each of the two. With `kurtosis` κ, q(μ) = N(mean, sd²/n) and q(σ) =
    N(sd, (κ−1)sd²/(4n)); a measured `count_sd` has the kurtosis in it already, and goes with 3. Under "unit" it is
    Σ (1/n − 1 + ln n) where the two counts agree; "gamma" takes q(S²) = Gamma((n−1)/2, scale 2 sd²/n) for q(σ),
    whatever the kurtosis, and needs `count_sd` > 1, else a ValueError. An improper prior's flat directions contribute
    −½ ln of q's variance.

    Dead units (sd = 0) contribute nothing: their statistics are the same in every mini-batch. Infinite counts, where
    the statistics are exactly the population's, give ∞.

    Source: Teye, Azizpour & Smith 2018, §3.3 and footnotes 8–9 (q and its prior); Mukhoti et al. 2020, On Batch
    Normalisation for Approximate Bayesian Inference, eq. 1; "gamma": Cochran 1934, The Distribution of Quadratic Forms
    in a Normal System.
    """
    live = as_float64(sd) != 0
    m, s, n, n_sd = (as_float64(values)[live] for values in (mean, sd, count_mean, count_sd))
    var_mean, var_sd = s**2 / n, (kurtosis - 1) * s**2 / (4 * n_sd)
    if prior.kind == "unit":
        # From ratios only, which are not affected by the scale of a unit.
        kl_mean, kl_sd = kl_normal(0.0, 1 / n, 0.0, 1.0), kl_normal(0.0, 1 / n_sd, 0.0, 1.0)
    elif prior.kind == "gamma":
        if (n_sd <= 1).any():
            raise ValueError(
                f"count_sd is {n_sd.min():g} for a unit; expected more than 1, because fewer values have no variance "
                'whose distribution "gamma" could take. The prior "unit" has one.'
            )
        kl_mean, kl_sd = kl_normal(0.0, 1 / n, 0.0, 1 / 2), kl_gamma((n_sd - 1) / 2, 2 / n_sd, 1 / 2, 1.0)
    else:
        kl_mean, kl_sd = _kl_flat(var_mean), _kl_flat(var_sd)
        if prior.mean is not None:
            kl_mean = kl_normal(m, var_mean, *prior.mean)
        if prior.deviation is not None:
            kl_sd = kl_normal(s, var_sd, *prior.deviation)
        if prior.precision is not None:
            kl_sd = kl_normal(s, var_sd, 0.0, 1 / (2 * prior.precision))
    return float(np.sum(kl_mean) + np.sum(kl_sd))


def _kl_flat(variance: Float[np.ndarray, " unit"]) -> Float[np.ndarray, " unit"]:
    with np.errstate(divide="ignore"):
        return -np.log(variance) / 2


@frozen
class EffectiveCount:
    """The effective number of independent values per channel and item of the mini-batch, for the mean and for the sd.

    1 for one value per item; the number of positions for a convolution whose positions are independent. ≥ 0; NaN if
    it is undefined.
    """

    mean: float
    sd: float


def effective_counts(
    mean: Float[Array, "sample channel"],
    var: Float[Array, "sample channel"],
    *,
    batch_size: int,
    population: int | float,
) -> EffectiveCount:
    """Independent values a channel and item of the mini-batch, from T draws of one layer's mean and biased variance S².

    In (0, ∞]; no direction. Multiplied by any b it gives the count at that b. The variance of the population, σ², is by
    the law of total variance mean S² + Var M, which is unbiased even where positions are correlated and items are drawn
    without replacement (S² n/(n−1) is not). The mean M counts as σ²/Var M values, and the standard deviation as ν + 1
    where Var ln S² = ψ′(ν/2): exact for any number of Gaussian values (σ/S has no variance for three), and equal to
    1/(2 Var(σ/S)) for many. Both variances, with divisor T − 1, are averaged over channels before they are inverted,
    which overestimates the count by a share of about 2/((T − 1) · channels). The reduction by drawing from `population`
    items without replacement is corrected for both; ∞ stands for drawing with replacement.

    Channels without variance are left out, for the second count those with S² = 0 in any draw. ∞ where draws do not
    differ, and NaN for T < 2, b ≥ `population`, or without usable channels.

    Source: Shekhovtsov & Flach 2018, Stochastic Normalizations as Bayesian Learning, §3.1 (the model); Bartlett &
    Kendall 1946, The Statistical Analysis of Variance-Heterogeneity and the Logarithmic Transformation (ln S²).
    """
    m, s2 = as_float64(mean), as_float64(var)
    factor = float(finite_population_factor(batch_size, population=population))
    if len(m) < 2 or factor == 0:
        return EffectiveCount(math.nan, math.nan)
    mean_variance = _variance(m)
    total = s2.mean(0) + mean_variance
    live, positive = total > 0, (s2 > 0).all(0)
    values_of_mean = values_of_sd = math.nan
    if live.any():
        share = float(np.mean(mean_variance[live] / total[live]))
        values_of_mean = factor / share if share > 0 else math.inf
    if positive.any():
        values_of_sd = 1 + 2 * _inverse_trigamma(float(np.mean(_variance(np.log(s2[:, positive])))) / factor)
    return EffectiveCount(values_of_mean / batch_size, values_of_sd / batch_size)


def _variance(values: Float[np.ndarray, "sample channel"]) -> Float[np.ndarray, " channel"]:
    return np.var(values - values[0], axis=0, ddof=1)  # exactly 0 for equal values


def _inverse_trigamma(value: float) -> float:
    """x > 0 with ψ′(x) = value; ∞ for 0."""
    if value == 0:
        return math.inf
    import scipy.special

    # Newton's method on 1/ψ′, which is increasing, convex and above x − ½: it converges from above.
    x = 0.5 + 1 / value
    for _ in range(50):  # four or five are enough
        trigamma = float(scipy.special.polygamma(1, x))
        step = trigamma * (1 - trigamma / value) / float(scipy.special.polygamma(2, x))
        x += step
        if abs(step) < 1e-12 * x:
            break
    return x


@frozen
class LikelihoodSlope:
    """The fit of E_q ln p = intercept − c · (N − b)/(N − 1)/b, in nats per training example: c, its error, intercept.

    The intercept is the mean log-likelihood under the population's statistics. NaN if a value is undefined.
    """

    c: float
    se: float
    intercept: float


def likelihood_slope(
    batch_size: Shaped[Array, " size"],
    mean_log_likelihood: Float[Array, " size"],
    error: Float[Array, " size"],
    *,
    population: int | float,
    replicates: Float[Array, "set size"] | None = None,
) -> LikelihoodSlope:
    """The loss of mean log-likelihood per example that mini-batches cause, in nats × batch size; lower is better.

    c is minus the least-squares slope over sizes b of `mean_log_likelihood`, (B,), in nats per example (mean over draws
    of the logarithm), on (N − b)/(N − 1)/b with N = `population`, the reference that mini-batches are drawn from; ∞
    stands for drawing with replacement. Weights are 1/error², or equal where an error is 0 or NaN. c includes the
    effects of the curvature of ln p and of the bias of the statistics; if it is negative, noise improves the
    likelihood.

    The standard error assumes independent errors of the sizes. Sizes that share their draws are not independent: with
    `replicates`, (R, B), the same mean in each of R draw sets, it is the sd of their slopes/√R instead; NaN for R < 2.
    All values are NaN for fewer than two sizes.

    Source: weighted least squares; that E_q ln p is linear in 1/b to first order: expansion of ln p(y|ω) about the
    population's statistics, whose mini-batch counterparts have bias and variance of order 1/b.
    """
    b, y, e = as_float64(batch_size), as_float64(mean_log_likelihood), as_float64(error)
    x = finite_population_factor(b, population=population) / b
    if np.unique(x).size < 2:
        return LikelihoodSlope(math.nan, math.nan, math.nan)
    w = (e.min() / e) ** 2 if (e > 0).all() and np.isfinite(e).all() else np.ones_like(e)
    a = least_squares_coefficients(x, w)
    with np.errstate(invalid="ignore"):  # a likelihood of 0 makes the line NaN, which needs no warning
        slope = float(a @ y)
        intercept = float(np.average(y, weights=w)) - slope * float(np.average(x, weights=w))
        if replicates is None:
            se = math.sqrt(float(a**2 @ e**2))
        else:
            slopes = as_float64(replicates) @ a
            se = float(np.std(slopes, ddof=1)) / math.sqrt(slopes.size) if slopes.size >= 2 else math.nan
    return LikelihoodSlope(-slope, se, intercept)


def predicted_batch_size(c: float, *, train_size: int, parameters: int, inverse_density: float) -> float:
    """The b that maximises the ELBO for large N, 2Nc/P + mean 1/ρ, > 0; no direction.

    c is that of `likelihood_slope`, `train_size` N the number of training examples, `parameters` P two per live unit,
    and `inverse_density` the mean over them of 1/ρ, where a count is ρb. This b maximises −Nc/b − Σ(1/(ρb) + ln(ρb))/2,
    summed over parameters: exact for the prior "unit" where the likelihood is that line, and for other proper priors up
    to a term of order 1. NaN for c ≤ 0, where mini-batches cost nothing and there is no such optimum, and for P = 0.

    Source: the stationary point of that expression; that it grows with N: Mukhoti et al. 2020, On Batch Normalisation
    for Approximate Bayesian Inference, §3.
    """
    return 2 * train_size * c / parameters + inverse_density if c > 0 and parameters > 0 else math.nan
