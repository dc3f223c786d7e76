"""Corruptions of pictures, rows and sequences: each takes points before normalisation and its size or its constants.

Pictures are (point, channel, height, width) with values from 0 to 1. Those whose severities are published do what their
authors' code does, but for the rounding to 8 bits. Source: Hendrycks & Dietterich 2019, Benchmarking Neural Network
Robustness to Common Corruptions and Perturbations; the code of ImageNet-C and CIFAR-10-C.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from bnuq.frozen import frozen
from bnuq.sampling import counter_rng
from bnuq.shapes import Float

Points = Float[np.ndarray, "point ..."]
Pictures = Float[np.ndarray, "point channel height width"]


@frozen
class Random:
    """Random numbers of some points, by the seed and the number of each point alone: the same at every size."""

    seed: int
    numbers: np.ndarray

    def uniform(self, *shape: int, stream: int) -> Float[np.ndarray, "point ..."]:
        """Numbers in (0, 1), this shape for each point."""
        key = {"purpose": counter_rng.PERTURBATION, "count": math.prod(shape), "site": stream}
        rows = [counter_rng.uniform(self.seed, int(number), **key) for number in self.numbers]
        return np.stack(rows).reshape(len(rows), *shape)

    def normal(self, *shape: int, stream: int) -> Float[np.ndarray, "point ..."]:
        """Standard normal numbers, this shape for each point."""
        rows = [
            counter_rng.normal(self.seed, int(number), counter_rng.PERTURBATION, math.prod(shape), site=stream)
            for number in self.numbers
        ]
        return np.stack(rows).reshape(len(rows), *shape)


@frozen
class ColumnMoments:
    """What the values of the points are like: mean and deviation of each column or channel, to be broadcast."""

    mean: Float[np.ndarray, "column ..."]
    deviation: Float[np.ndarray, "column ..."]


# ── noise ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def shot(x: Pictures, random: Random, _: ColumnMoments, photons: float) -> Pictures:
    """Poisson numbers of mean λx, over λ, of x at 8 bits: by the inverse of their distribution, so that they grow with
    the same random numbers."""
    levels = np.rint(255 * x).astype(np.int64)
    means = photons * np.arange(256)[:, None] / 255
    counts = np.arange(math.ceil(photons + 10 * math.sqrt(photons) + 20))
    from scipy.special import pdtr

    # Row after row in one increasing list: level + P(N ≤ k), in which level + u stands behind all smaller counts.
    table = np.where(means == 0, 1.0, pdtr(counts, means)) + np.arange(256)[:, None]
    found = np.searchsorted(table.ravel(), levels + random.uniform(*x.shape[1:], stream=1))
    return np.minimum((found - levels * len(counts)) / photons, 1)


def impulse(x: Pictures, random: Random, _: ColumnMoments, share: float) -> Pictures:
    """A share of the numbers becomes 0 or 1, each half of the time."""
    drawn = random.uniform(*x.shape[1:], stream=1)
    return np.where(drawn < share / 2, 0.0, np.where(drawn > 1 - share / 2, 1.0, x))


# ── blur ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def defocus(x: Pictures, _: Random, __: ColumnMoments, radius: float, alias: float = 0.5) -> Pictures:
    """The convolution with a disk whose edge is smoothed by a Gaussian of `alias` pixels; borders are mirrored."""
    kernel = disk(radius, alias)
    half = len(kernel) // 2
    padded = np.pad(x, ((0, 0), (0, 0), (half, half), (half, half)), mode="reflect")
    planes = torch.from_numpy(padded.reshape(-1, 1, *padded.shape[2:]).astype(np.float64))
    return functional.conv2d(planes, torch.from_numpy(kernel)[None, None]).numpy().reshape(x.shape)


def disk(radius: float, alias: float) -> Float[np.ndarray, "side side"]:
    """A disk of sum 1, smoothed by a Gaussian of 3 taps, or of 5 from a radius above 8 on, on a grid that ends with the
    disk, whose borders are mirrored; without margins of zeros."""
    half = max(8, math.ceil(radius))
    steps = np.arange(-half, half + 1)
    kernel = (steps**2 + steps[:, None] ** 2 <= radius**2).astype(np.float64)
    taps = np.exp(-(np.arange(-2, 3)[slice(None) if radius > 8 else slice(1, 4)] ** 2) / (2 * alias**2))
    reach = len(taps) // 2
    smooth = np.pad(kernel / kernel.sum(), reach, mode="reflect")
    for _ in range(2):  # along columns, then along rows
        rows = len(smooth) - 2 * reach
        parts = [tap * smooth[row : row + rows] for row, tap in enumerate(taps / taps.sum())]
        smooth = np.sum(parts, axis=0).T
    margin = int(np.flatnonzero(smooth.any(0))[0])
    return np.ascontiguousarray(smooth[margin : len(smooth) - margin, margin : len(smooth) - margin])


def motion(x: Pictures, random: Random, _: ColumnMoments, sigma: float, radius: float | None = None) -> Pictures:
    """The mean along a line from each pixel, with the weights of half a Gaussian, at a random angle of up to 45° from
    the horizontal; borders are repeated."""
    angles = 90 * random.uniform(1, stream=1)[:, 0] - 45
    radius = math.ceil(2 * sigma) if radius is None else radius
    return np.stack([along_line(picture, sigma, int(radius), angle) for picture, angle in zip(x, angles, strict=True)])


def along_line(
    x: Float[np.ndarray, "channel height width"], sigma: float, radius: int, degrees: float
) -> Float[np.ndarray, "channel height width"]:
    """One picture, blurred along a line of 2 `radius` + 1 pixels at this angle."""
    weights = np.exp(-(np.arange(2 * radius + 1) ** 2) / (2 * sigma**2))
    weights /= weights.sum()
    rows, columns = np.arange(x.shape[1]), np.arange(x.shape[2])
    down, across = math.sin(math.radians(degrees)), math.cos(math.radians(degrees))
    result = np.zeros(x.shape)
    for step, weight in enumerate(weights.tolist()):
        # the nearest pixel, of two as near the one before
        row, column = (rows + math.ceil(step * down - 0.5)), (columns + math.ceil(step * across - 0.5))
        result += weight * x[:, row.clip(0, rows[-1])][:, :, column.clip(0, columns[-1])]
    return result


# ── light ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def contrast(x: Pictures, _: Random, __: ColumnMoments, factor: float) -> Pictures:
    """The distances from the mean of each channel of each picture, times the factor."""
    mean = x.mean((2, 3), keepdims=True)
    return (x - mean) * factor + mean


def brightness(x: Pictures, _: Random, __: ColumnMoments, added: float) -> Pictures:
    """A larger V of HSV, with the same hue and saturation: all channels grow as the largest does."""
    value = x.max(1, keepdims=True)
    grown = np.minimum(value + added, 1)
    return np.where(value > 0, x * grown / np.where(value > 0, value, 1), grown)


def haze(x: Pictures, random: Random, _: ColumnMoments, density: float) -> Pictures:
    """A cloud, white where it is densest, of noise whose amplitude falls as frequency^−1.5; mixed in as fog is
    published, so that the largest value stays."""
    height, width = x.shape[2:]
    frequency = np.hypot(np.fft.fftfreq(height)[:, None], np.fft.rfftfreq(width))
    frequency[0, 0] = np.inf
    waves = np.fft.rfft2(random.normal(height, width, stream=1)) * frequency**-1.5
    cloud = np.fft.irfft2(waves, (height, width))
    low, high = cloud.min((1, 2), keepdims=True), cloud.max((1, 2), keepdims=True)
    cloud = ((cloud - low) / np.maximum(high - low, 1e-12))[:, None]
    top = x.max((1, 2, 3), keepdims=True)
    return (x + density * cloud) * top / (top + density)


# ── fewer bits ───────────────────────────────────────────────────────────────────────────────────────────────────────


def pixelate(x: Pictures, _: Random, __: ColumnMoments, share: float) -> Pictures:
    """As few rows and columns, each the mean of those that it covers, and enlarged again."""
    for axis in (2, 3):
        size = x.shape[axis]
        small = max(1, int(size * share))
        # Rounding decides on pixels in the middle between two rows: that of Pillow, in whose order this is computed.
        scale, pixels = size / small, np.arange(size)
        centres = (np.arange(small)[:, None] + 0.5) * scale
        low, high = (np.trunc(centres + side * 0.5 * scale + 0.5) for side in (-1, 1))
        place = (pixels - centres + 0.5) * (1 / scale)
        mean = ((place > -0.5) & (place <= 0.5) & (pixels >= low) & (pixels < high)).astype(np.float64)
        mean /= mean.sum(1, keepdims=True)
        nearest = np.minimum(((pixels + 0.5) * (small / size)).astype(np.int64), small - 1)
        x = np.moveaxis(np.moveaxis(x, axis, -1) @ mean[nearest].T, -1, axis)
    return x


def jpeg(x: Pictures, _: Random, __: ColumnMoments, quality: float) -> Pictures:
    """What Pillow's encoder and decoder leave of grey or RGB pictures; of others, of each channel alone."""
    from PIL import Image

    def decoded(picture: np.ndarray) -> np.ndarray:
        stream = io.BytesIO()
        Image.fromarray(picture).save(stream, "JPEG", quality=round(quality))
        return np.asarray(Image.open(stream))

    levels = np.rint(255 * x).clip(0, 255).astype(np.uint8)
    if x.shape[1] == 3:
        decoded_levels = [decoded(np.ascontiguousarray(picture.transpose(1, 2, 0))) for picture in levels]
        return np.stack(decoded_levels).transpose(0, 3, 1, 2) / 255
    return np.stack([[decoded(channel) for channel in picture] for picture in levels]) / 255


# ── geometry ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def occlusion(x: Pictures, random: Random, _: ColumnMoments, share: float) -> Pictures:
    """A square of this share of the area, anywhere in the picture, has the picture's mean colour."""
    height, width = x.shape[2:]
    rows, columns = (max(1, round(math.sqrt(share) * side)) for side in (height, width))
    result, mean = x.copy(), x.mean((2, 3), keepdims=True)
    for picture, colour, place in zip(result, mean, random.uniform(2, stream=1), strict=True):
        top, left = int(place[0] * (height - rows + 1)), int(place[1] * (width - columns + 1))
        picture[:, top : top + rows, left : left + columns] = colour
    return result


def rotation(x: Pictures, random: Random, _: ColumnMoments, degrees: float) -> Pictures:
    """Turned about the centre, to the left or to the right at random; corners are mirrored."""
    angle = np.deg2rad(degrees) * np.where(random.uniform(1, stream=1)[:, 0] < 0.5, -1, 1)
    turn = np.stack([np.cos(angle), -np.sin(angle), np.sin(angle), np.cos(angle)], -1).reshape(-1, 2, 2)
    height, width = x.shape[2:]
    ratio = np.array([[1, height / width], [width / height, 1]])  # coordinates of both axes go from −1 to 1
    return _moved(x, np.concatenate([turn * ratio, np.zeros((len(x), 2, 1))], -1))


def translation(x: Pictures, random: Random, _: ColumnMoments, share: float) -> Pictures:
    """Moved in a random direction; what comes in is mirrored."""
    angle = 2 * np.pi * random.uniform(1, stream=1)[:, 0]
    offset = 2 * share * np.stack([np.cos(angle), np.sin(angle)], -1)[:, :, None]
    return _moved(x, np.concatenate([np.broadcast_to(np.eye(2), (len(x), 2, 2)), offset], -1))


def _moved(x: Pictures, transform: Float[np.ndarray, "point 2 3"]) -> Pictures:
    pictures = torch.from_numpy(np.ascontiguousarray(x, np.float64))
    grid = functional.affine_grid(torch.from_numpy(transform), list(x.shape), align_corners=False)
    moved = functional.grid_sample(pictures, grid, "bilinear", padding_mode="reflection", align_corners=False)
    return moved.numpy()


# ── rows and sequences ───────────────────────────────────────────────────────────────────────────────────────────────


def scale(x: Points, _: Random, __: ColumnMoments, factor: float) -> Points:
    return x * factor


def missing(x: Points, random: Random, columns: ColumnMoments, share: float) -> Points:
    """Values replaced by the mean of their column; those of a smaller share are among those of a larger one."""
    return np.where(random.uniform(*x.shape[1:], stream=1) < share, columns.mean, x)


def permuted(x: Points, random: Random, _: ColumnMoments, share: float) -> Points:
    """A share of the columns, at least two, each with the values of the next of them: the same ones for all points."""
    order = np.argsort(Random(random.seed, np.zeros(1)).uniform(x.shape[1], stream=2)[0])
    chosen = np.sort(order[: max(2, round(share * x.shape[1]))])
    result = x.copy()
    result[:, chosen] = x[:, np.roll(chosen, 1)]
    return result


def dropped(x: Points, random: Random, _: ColumnMoments, share: float) -> Points:
    """A segment of all channels, anywhere, is 0."""
    steps = x.shape[2]
    length, result = max(1, round(share * steps)), x.copy()
    for sequence, place in zip(result, random.uniform(1, stream=1)[:, 0], strict=True):
        start = int(place * (steps - length + 1))
        sequence[:, start : start + length] = 0
    return result


CORRUPTIONS: Mapping[str, Callable[..., Any]] = {
    function.__name__: function
    for function in (
        shot, impulse, defocus, motion, contrast, brightness, haze, pixelate, jpeg, occlusion, rotation, translation,
        scale, missing, permuted, dropped,
    )
}  # fmt: skip
