"""Conformal prediction sets: the classes whose score is at most that of most calibration points."""

import math

import numpy as np

from bnuq.metrics.arrays import Array, as_float64, as_numpy
from bnuq.shapes import Float, Integer

_ROUNDING = 1e-9  # of (n + 1)(1 − α), which may be an integer


def conformal_threshold(scores: Float[Array, "point"], coverage: float) -> float:
    """The ⌈(n + 1)(1 − α)⌉-th smallest score of n calibration points, 1 − α the `coverage`; no direction.

    +∞ if there are fewer points than that. The true class of a point that is exchangeable with them has a score of
    at most this with a probability of at least 1 − α.

    Source: Papadopoulos et al. 2002, Inductive Confidence Machines for Regression; Vovk, Gammerman & Shafer 2005,
    Algorithmic Learning in a Random World, §4.1.
    """
    values = as_float64(scores)
    rank = math.ceil((values.size + 1) * coverage - _ROUNDING)
    return math.inf if rank > values.size else float(np.partition(values, rank - 1)[rank - 1])


def lac_score(p: Float[Array, "*sample point class"], y: Integer[Array, "point"]) -> Float[np.ndarray, "*sample point"]:
    """−p[y], which orders classes as 1 − p[y] does and is exact where that rounds; less is more typical of the class.

    Source: Sadinle, Lei & Wasserman 2019, Least Ambiguous Set-Valued Classifiers with Bounded Error Levels.
    """
    probabilities, truth = as_numpy(p), as_numpy(y)
    return -probabilities[..., np.arange(len(truth)), truth].astype(np.float64)


def lac_size(
    p: Float[Array, "*sample point class"], threshold: Float[np.ndarray, "point"]
) -> Integer[np.ndarray, "*sample point"]:
    """The number of classes with a `lac_score` of at most the threshold of each point, from 0 to K; no direction.

    Source: Sadinle, Lei & Wasserman 2019.
    """
    return np.count_nonzero(-as_numpy(p) <= threshold[:, None], axis=-1)


def aps_score(p: Float[Array, "*sample point class"], y: Integer[Array, "point"]) -> Float[np.ndarray, "*sample point"]:
    """The probability of all classes that are more probable than y, from 0 to 1; less is more typical of the class.

    Source: Romano, Sesia & Candès 2020, Classification with Valid and Adaptive Coverage, §2, not randomised (u = 1).
    """
    probabilities, truth = as_numpy(p), as_numpy(y)
    above = probabilities > probabilities[..., np.arange(len(truth)), truth][..., None]
    return _rounded(np.asarray(np.sum(probabilities, axis=-1, where=above, dtype=np.float64)))


def aps_size(
    p: Float[Array, "*sample point class"], threshold: Float[np.ndarray, "point"]
) -> Integer[np.ndarray, "*sample point"]:
    """The number of classes with an `aps_score` of at most the threshold of each point, from 1 to K; no direction.

    Source: Romano, Sesia & Candès 2020, §2, not randomised (u = 1).
    """
    ranked = -np.sort(-as_numpy(p), axis=-1)
    before = np.zeros(ranked.shape)
    np.cumsum(ranked[..., :-1], axis=-1, out=before[..., 1:])
    tied = ranked[..., 1:] == ranked[..., :-1]
    if tied.any():  # the score of all of a tie is that of its first
        before[..., 1:][tied] = 0.0
        np.maximum.accumulate(before, axis=-1, out=before)
    return np.count_nonzero(_rounded(before) <= threshold[:, None], axis=-1)


def _rounded(mass: Float[np.ndarray, "*any"]) -> Float[np.ndarray, "*any"]:
    """To single precision, so that the order of a sum does not break ties."""
    return mass.astype(np.float32).astype(np.float64)
