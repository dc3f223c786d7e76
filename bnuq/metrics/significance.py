"""Tests whether the scores of several runs, which share their data, differ from 0."""

import math

import numpy as np

from bnuq.frozen import frozen
from bnuq.metrics.arrays import Array, as_float64
from bnuq.metrics.replicates import group_index
from bnuq.shapes import Float, Shaped


@frozen
class TTest:
    """A two-sided test of a mean against 0: mean and standard error in the scores' unit, t, degrees of freedom, p.

    Without variance t is ±∞ and p is 0; if all scores are 0, both are NaN.
    """

    mean: float
    se: float
    t: float
    df: int
    p: float

    @property
    def stars(self) -> str:
        """The significance stars of p."""
        return stars(self.p)

    def interval(self, *, level: float = 0.95) -> tuple[float, float]:
        """The ends of the confidence interval of the mean at `level`, in the scores' unit.

        Source: Student 1908, The Probable Error of a Mean.
        """
        import scipy.special  # late: `bnuq.metrics` is light

        half_width = float(scipy.special.stdtrit(self.df, (1 + level) / 2)) * self.se
        return self.mean - half_width, self.mean + half_width


def t_test(values: Float[Array, "run"]) -> TTest | None:
    """One-sample two-sided t-test of the runs' scores against 0, ddof 1, R − 1 degrees; None for fewer than two runs.

    Assumes independent runs. Runs that share data are not independent: with five seeds for each of five random splits,
    a true null hypothesis is rejected at the 5 % level in more than half of all cases. Use `nadeau_bengio` then.

    Source: Student 1908, The Probable Error of a Mean; so Teye, Azizpour & Smith 2018, Table 1.
    """
    return _tested(as_float64(values), factor=None)


def student_cdf(t: float, df: float) -> float:
    """The probability that a variable of Student's distribution, of `df` degrees of freedom (> 0, maybe ∞), is at most
    `t`, to 12 digits: scipy's takes longer to import than a comparison of two small results.

    Source: Press et al. 2007, Numerical Recipes, 6.4; of many degrees of freedom Hill 1970, CACM Algorithm 395.
    """
    if math.isnan(t) or math.isnan(df):
        return math.nan
    if math.isinf(df) or math.isinf(t):
        return math.erfc(-t / math.sqrt(2)) / 2
    ratio = min(abs(t), _HUGE) ** 2 / df
    beyond = _normalized_tail(ratio, df) if df > _MANY else _beta_tail(ratio, df / 2)
    return beyond / 2 if t < 0 else 1 - beyond / 2


def student_quantile(p: float, df: float) -> float:
    """The value that a variable of Student's distribution is at most with probability `p` in (0, 1), to 5 digits.

    Source: the inverse of `student_cdf`, sought by Newton's method, and rounded by halving a bracket about it.
    """
    if p < 0.5:
        return -student_quantile(1 - p, df)
    root = _tail_root(1 - p, df)  # of the tail, which has more digits than 1 less it
    low, high = 0.0, 2.0
    while high < root and high < _HUGE:
        low, high = high, 2 * high
    while high - low > _QUANTILE_DIGITS * high:
        middle = (low + high) / 2
        low, high = (middle, high) if middle < root else (low, middle)
    return (low + high) / 2


def _tail_root(tail: float, df: float) -> float:
    """Where the upper tail is `tail`, by Newton's method: as the tail is convex, each step ends below the root, and
    only the first, from an approximation, may start above it.

    Source: Abramowitz & Stegun 1964, Handbook of Mathematical Functions, 26.2.23 and 26.7.5.
    """
    log_scale = -0.5 * math.log(2 * math.pi)
    if df <= _LARGE:
        log_scale = math.lgamma((df + 1) / 2) - math.lgamma(df / 2) - 0.5 * math.log(df * math.pi)
    elif not math.isinf(df):  # the quotient of the two, by its series
        log_scale += math.log1p(-1 / (4 * df) + 1 / (32 * df**2) + 5 / (128 * df**3))
    t = math.sqrt(-2 * math.log(max(tail, 5e-324)))
    z = t - (2.515517 + 0.802853 * t + 0.010328 * t**2) / (1 + 1.432788 * t + 0.189269 * t**2 + 0.001308 * t**3)
    root = max(0.0, z + (z**3 + z) / (4 * df) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * df**2))
    for _ in range(_MOST_STEPS):
        exponent = -root * root / 2 if math.isinf(df) else -(df + 1) / 2 * math.log1p(root * root / df)
        if (density := math.exp(log_scale + exponent)) == 0:
            break
        step = (student_cdf(-root, df) - tail) / density
        root = max(0.0, root + step)
        if abs(step) <= 1e-7 * root:  # twice the digits after this step
            break
    return root


def _normalized_tail(ratio: float, df: float) -> float:
    """P(T² > ratio · df) through the normal variable that T becomes by Hill's series."""
    a = df - 0.5
    b, z = 48 * a * a, a * math.log1p(ratio)
    series = (((-0.4 * z - 3.3) * z - 24) * z - 85.5) / (0.8 * z * z + 100 + b) + z + 3
    return math.erfc((series / b + 1) * math.sqrt(z / 2))


def _beta_tail(ratio: float, a: float) -> float:
    """P(T² > ratio · 2a), the incomplete beta function of a and ½ at x = 1/(1 + ratio)."""
    log_beta = math.lgamma(a) + math.lgamma(0.5) - math.lgamma(a + 0.5)
    if a > _LARGE:  # by its series, as the difference of two large numbers has few digits
        log_beta = 0.5 * math.log(math.pi / a) + 1 / (8 * a) - 1 / (192 * a**3) + 1 / (640 * a**5)
    x, y = 1 / (1 + ratio), ratio / (1 + ratio)
    front = math.exp(-a * math.log1p(ratio) - log_beta) * math.sqrt(y)
    if x < (a + 1) / (a + 2.5):  # where the fraction converges fast
        return front * _beta_fraction(x, a, 0.5) / a
    return 1 - front * _beta_fraction(y, 0.5, a) * 2


def _beta_fraction(x: float, a: float, b: float) -> float:
    """The continued fraction of the incomplete beta function, by Lentz's method."""
    c, d = 1.0, 1 / (1 - (a + b) * x / (a + 1))
    value, step, m = d, math.inf, 0
    while abs(step - 1) > _LAST_TERM:
        m += 1
        for term in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d, c = 1 / (1 + term * d), 1 + term / c
            step = c * d
            value *= step
    return value


_MANY = 1e4  # degrees of freedom from which Hill's series has 12 digits
_LARGE = 50.0  # from which the series of the beta function has them
_HUGE = 1e150  # whose square is no float
_LAST_TERM = 4e-16
_QUANTILE_DIGITS = 1e-6
_MOST_STEPS = 100  # of Newton's method, which takes a handful; near 0 rounding may keep it from an end


def _tested(values: Float[np.ndarray, "run"], *, factor: float | None) -> TTest | None:
    """The test on these values; the variance of their mean is `factor` times their variance, by default 1/R."""
    runs = values.size
    if runs < 2:
        return None
    import scipy.special

    with np.errstate(invalid="ignore"):  # a score of −∞ makes all results NaN, which needs no warning
        mean = float(_mean(values))
        variance = float(np.sum((values - mean) ** 2)) / (runs - 1)
    if (values == values[0]).all():
        mean, variance = float(values[0]), 0.0
    se = math.sqrt(variance * (1 / runs if factor is None else factor))
    t = mean / se if se != 0 else math.copysign(math.inf, mean) if mean != 0 else math.nan
    return TTest(mean, se, t, runs - 1, float(2 * scipy.special.stdtr(runs - 1, -abs(t))))


def _mean(values: Float[np.ndarray, "run"]) -> np.float64:
    return values[0] + np.mean(values - values[0])  # exact for equal values


def stars(p: float) -> str:
    """The stars of a p-value: ns above .05, * to .05, ** to .01, *** to .001, **** to .0001; "n/a" for NaN.

    The test is two-sided: a score may be significantly worse.

    Source: the common levels; Teye, Azizpour & Smith 2018, Table 1, does not give its own.
    """
    if math.isnan(p):
        return "n/a"
    return "*" * sum(p <= level for level in (0.05, 0.01, 0.001, 0.0001)) or "ns"


def _split_means(values: Float[Array, "run"], split: Shaped[Array, "run"]) -> Float[np.ndarray, "split"]:
    score, number = as_float64(values), group_index(split)
    if score.size == 0:
        return score
    difference = score - score[0]  # equal scores have exactly equal means
    return score[0] + np.bincount(number, weights=difference) / np.bincount(number)


def nadeau_bengio(values: Float[Array, "run"], split: Shaped[Array, "run"], *, test_share: float) -> TTest | None:
    """Corrected resampled t-test against 0, on the means of J random splits; None for fewer than two.

    The variance of the mean is (1/J + test_share) times that of the split means, test_share = n_test/n_train, because
    random splits of one data set share points; J − 1 degrees.

    Source: Nadeau & Bengio 2003, Inference for the Generalization Error (the corrected resampled t-test).
    """
    means = _split_means(values, split)
    return _tested(means, factor=1 / means.size + test_share) if means.size else None


def holm(p: Float[Array, "test"], weights: Float[Array, "test"] | None = None) -> Float[np.ndarray, "test"]:
    """The p-values adjusted for multiple tests, in [0, 1]; none for none. The tests have shares of the level in
    proportion to their `weights`, all above 0, which a rejected test leaves to the others; the same by default.

    Source: Holm 1979, A Simple Sequentially Rejective Multiple Test Procedure, also for the weights.
    """
    values = as_float64(p)
    shares = np.ones(len(values)) if weights is None else as_float64(weights)
    order = np.argsort(values / shares, kind="stable")
    left = np.cumsum(shares[order][::-1])[::-1]
    steps = np.maximum.accumulate(values[order] * left / shares[order])
    adjusted = np.empty_like(values)
    adjusted[order] = np.minimum(steps, 1.0)
    return adjusted
