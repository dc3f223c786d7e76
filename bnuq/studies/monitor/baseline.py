"""What a monitor keeps of the reference: directions along which each layer varies, and the coordinates of some points.

The mean of f(x) over the points of a batch is its batch statistic, with the law N(μ, Σ(1/n + 1/N)) for n points and a
reference of N. A third of the reference gives μ and Σ of each block; coordinates are whitened by Σ, and points of the
rest are kept by theirs, so that tests of later batches do not depend on how well Σ is known.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from bnuq.estimates import Estimate
from bnuq.shapes import Float64, Int8
from bnuq.store.codec import bytes_of
from bnuq.studies.monitor.features import Block
from bnuq.studies.monitor.record import STEPS, BlockTest, WatchedBlock
from bnuq.studies.monitor.testing import choices, random_rows

LEAST = 40  # points of a reference
FITTED, KEPT = 2000, 2000  # points at most that directions are fitted to, and whose coordinates are kept
_COORDINATES = 384  # of all blocks
_BYTES, _BYTES_OF_BLOCK = 850_000, 5_000  # of a file, and of a block in it beside its numbers
_POINTS_PER_DIRECTION = 4  # at least, among the fitted ones
_BATCHES, _SIZE = 400, 64  # resampled, and the points in each, that the law is checked with
_NEARLY_CONSTANT = 1e-6  # relative to the mean
_FAR = 8.0  # deviations: where codes end
_ROUNDING = 1e-4  # a deviation along a direction, of columns that deviate by 1, which other machines round otherwise


def split(points: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """The rows of the reference that directions are fitted to, and those whose coordinates are kept."""
    order = random_rows(points, min(points, FITTED + KEPT), seed, 0)
    fitted = random_rows(len(order), min(FITTED, len(order) // 3), seed, 1)
    return order[fitted], np.delete(order, fitted)[:KEPT]


def watched_blocks(
    fitted: Float64[np.ndarray, "row column"],
    kept: Float64[np.ndarray, "point column"],
    blocks: Sequence[Block],
    seed: int,
) -> tuple[tuple[WatchedBlock, ...], Int8[np.ndarray, "point coordinate"]]:
    """The blocks in which something varies, and the coordinates of the kept points; none where nothing varies."""
    several = sum(block.columns.stop - block.columns.start > 1 for block in blocks)
    most = max(1, min(_COORDINATES // max(1, several), len(fitted) // _POINTS_PER_DIRECTION))
    random, watched = np.random.Generator(np.random.Philox(seed)), []
    for block in blocks:
        made = _watched(block, fitted[:, block.columns], kept[:, block.columns], most, random)
        if made is not None:
            watched.append(made)
    if not watched:
        return (), np.zeros((0, 0), np.int8)
    columns = {block.name: block.columns for block in blocks}
    bag = np.concatenate([codes(kept[:, columns[block.name]], block) for block in watched], axis=1)
    taken = sum(_BYTES_OF_BLOCK + bytes_of(block) for block in watched)
    bag = bag[: max(LEAST, (_BYTES - taken) // bag.shape[1])]
    laws = _law_shares([block.directions.shape[1] for block in watched], bag, len(fitted), seed)
    return tuple(replace(block, law=law) for block, law in zip(watched, laws, strict=True)), bag


def codes(features: Float64[np.ndarray, "point column"], block: WatchedBlock) -> Int8[np.ndarray, "point direction"]:
    """The coordinates of points along the directions of a block, in steps; far ones count as eight deviations."""
    varying = block.scale > 0
    standard = np.where(varying, features - block.centre, 0.0) / np.where(varying, block.scale, 1.0)
    return np.clip(np.round(STEPS * (standard @ block.directions.astype(np.float64))), -127, 127).astype(np.int8)


def _watched(
    block: Block, fitted: np.ndarray, kept: np.ndarray, most: int, random: np.random.Generator
) -> WatchedBlock | None:
    fitted = _without_outliers(fitted)
    centre, scale = fitted.mean(axis=0), fitted.std(axis=0)
    scale[scale <= _NEARLY_CONSTANT * np.abs(centre) + 1e-30] = 0.0
    centre, scale = centre.astype(np.float32), scale.astype(np.float32)
    varying = scale > 0
    if not varying.any():
        return None
    directions = np.zeros((len(scale), min(most, int(varying.sum()))), np.float32)
    directions[varying] = whitening(
        (fitted[:, varying] - centre[varying]) / scale[varying], directions.shape[1], random
    )
    mean, noise = kept.mean(axis=0), kept.std(axis=0)
    if block.kind == "layer":  # what a point adds to the variance, to first order, in place of the mean square
        half = len(mean) // 2
        noise[half:] = (kept[:, half:] - 2 * mean[:half] * kept[:, :half]).std(axis=0)
    return WatchedBlock(
        name=block.name,
        kind=block.kind,
        centre=centre,
        scale=scale,
        directions=directions,
        mean=mean.astype(np.float32),
        noise=noise.astype(np.float32),
        law=math.nan,
    )


def _without_outliers(values: Float64[np.ndarray, "row column"]) -> Float64[np.ndarray, "row column"]:
    """The values of each column up to eight deviations from its median, by the quantiles that hold 98 % of normal ones:
    a few records that are far off must not be the unit of all others. Columns that vary in fewer rows stay."""
    low, high = (np.quantile(values, q, axis=0, method=side) for q, side in ((0.01, "higher"), (0.99, "lower")))
    reach = np.where(high > low, _FAR * (high - low) / 4.65, np.inf)
    middle = np.median(values, axis=0)
    return np.clip(values, middle - reach, middle + reach)


def whitening(
    values: Float64[np.ndarray, "row column"], most: int, random: np.random.Generator
) -> Float64[np.ndarray, "column direction"]:
    """At most `most` directions, along which these centred values are nearly uncorrelated with a variance of 1.

    Half of the rows give the principal directions: of their covariance, shrunk towards its mean variance, so that it is
    invertible with fewer rows than columns (Ledoit & Wolf 2004, A well-conditioned estimator for large-dimensional
    covariance matrices, eq. 14). The other half give the variance along each, which the first ones underestimate where
    it is small: there, where natural pictures vary least, what compression does shows best. Where all directions are
    too many, half of them are the leading ones, and the others random ones of the remaining space, so that nothing is
    out of sight. A direction without variance is 0.
    """
    first, second = values[::2], values[1::2]
    rows, columns = first.shape
    covariance = first.T @ first / rows
    target = np.trace(covariance) / columns
    distance = float(((covariance - target * np.eye(columns)) ** 2).sum())
    error = (float((np.einsum("ij,ij->i", first, first) ** 2).sum()) / rows - float((covariance**2).sum())) / rows
    weight = min(1.0, error / distance) if distance > 0 else 0.0
    variances, vectors = np.linalg.eigh((1 - weight) * covariance + weight * target * np.eye(columns))
    white = _scaled((vectors / np.sqrt(np.maximum(variances, 1e-12 * target)))[:, ::-1], second)
    if most >= columns:
        return white
    leading = most // 2
    mixing = np.linalg.qr(random.normal(size=(columns - leading, most - leading)))[0]
    return _scaled(np.concatenate([white[:, :leading], white[:, leading:] @ mixing], axis=1), second)


def _scaled(directions: np.ndarray, values: np.ndarray) -> np.ndarray:
    """The directions, with a variance of 1 in these values; those along which only rounding varies as 0."""
    deviation, length = (values @ directions).std(axis=0), np.linalg.norm(directions, axis=0)
    varies = deviation > _ROUNDING * length
    return directions * np.where(varies, 1 / np.where(varies, deviation, 1.0), 0.0)


def _law_shares(
    widths: Sequence[int], bag: Int8[np.ndarray, "point coordinate"], fitted: int, seed: int
) -> list[float]:
    """Of batches out of the kept points, which the law does not know, the share outside its 95 % region, by block:
    |mean|²/(1/n + 1/N) is χ² under N(μ, Σ(1/n + 1/N)), where μ and Σ are of N fitted points."""
    from scipy.special import chdtri  # late: a sixth of a second

    size = min(_SIZE, len(bag) // 4)
    rows, starts = bag.astype(np.float32), [0, *np.cumsum(widths)[:-1].tolist()]
    sums = np.concatenate([chosen @ rows for chosen in choices(len(bag), size, _BATCHES, seed, step=0)])
    means = sums.astype(np.float64) / (STEPS * size)
    distances = np.add.reduceat(means**2, starts, axis=1) / (1 / size + 1 / fitted)
    return (distances > chdtri(np.array(widths), 0.05)).mean(axis=0).tolist()


def block_test(
    block: WatchedBlock, features: Float64[np.ndarray, "point column"], p_value: float, *, unit: int, kept: int
) -> BlockTest:
    """A block in a batch with these features: how far it lies from the reference, of which `kept` points are known, in
    units of the noise of a mini-batch of `unit` points."""
    mean, reference = features.mean(axis=0), block.mean.astype(np.float64)
    if block.kind != "layer":
        return BlockTest(block.name, block.kind, p_value, block.law)
    half = len(mean) // 2
    first, second = (np.stack([values[:half], values[half:]]) for values in (mean, reference))
    for moments in (first, second):
        moments[1] -= moments[0] ** 2  # the variance
    noise = np.stack([block.noise[:half], block.noise[half:]]).astype(np.float64)
    known = noise > 0
    squares = unit * (first - second) ** 2 / np.where(known, noise, 1.0) ** 2
    by_chance = unit * (1 / len(features) + 1 / kept)
    mean_shift, variance_shift = (
        math.sqrt(max(0.0, float(part[varies].mean()) - by_chance)) if varies.any() else math.nan
        for part, varies in zip(squares, known, strict=True)
    )
    return BlockTest(block.name, block.kind, p_value, block.law, mean_shift, variance_shift)


def mean_scores(
    blocks: Sequence[WatchedBlock], features: Sequence[Float64[np.ndarray, "point column"]], kept: int
) -> dict[str, dict[str, Estimate]]:
    """The mean of each score with its error: of the "reference", of which `kept` points are known, and of the "batch"
    with these features of the blocks."""
    means: dict[str, dict[str, Estimate]] = {"reference": {}, "batch": {}}
    for block, values in zip(blocks, features, strict=True):
        if block.kind == "score":
            error = float(block.noise[0]) / math.sqrt(kept)
            means["reference"][block.name] = Estimate(float(block.mean[0]), se=error)
            error = float(values.std(ddof=1)) / math.sqrt(len(values))
            means["batch"][block.name] = Estimate(float(values.mean()), se=error)
    return means
