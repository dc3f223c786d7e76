"""Tests whether the scores of several runs, which share their data, differ from 0."""

import math
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Shaped

from bnuq.metrics.arrays import Array, as_float64
from bnuq.metrics.replicates import group_index


@dataclass(frozen=True)
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


def clustered_t_test(values: Float[Array, "run"], split: Shaped[Array, "run"]) -> TTest | None:
    """`t_test` on the means of the runs of each split, J − 1 degrees; None for fewer than two splits.

    Runs of the same split may be correlated. Splits of the same data overlap and are still correlated, see
    `nadeau_bengio`.

    Source: Student 1908, on split means.
    """
    return _tested(_split_means(values, split), factor=None)


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


def holm(p: Float[Array, "test"]) -> Float[np.ndarray, "test"]:
    """The p-values adjusted for multiple tests, in [0, 1]; none for none.

    Source: Holm 1979, A Simple Sequentially Rejective Multiple Test Procedure.
    """
    values = as_float64(p)
    order = np.argsort(values, kind="stable")
    steps = np.maximum.accumulate(values[order] * np.arange(len(values), 0, -1))
    adjusted = np.empty_like(values)
    adjusted[order] = np.minimum(steps, 1.0)
    return adjusted
