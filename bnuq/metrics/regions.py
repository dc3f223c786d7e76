"""From maps to regions and images: class boundaries, and one uncertainty for an image.

A map has one number per pixel, (H, W), of one image; images may differ in size. `valid` are the pixels that are not
ignored.
"""

import math

import numpy as np

from bnuq.shapes import Bool, Float, Integer


def _boundary(
    mask: Integer[np.ndarray, "height width"], valid: Bool[np.ndarray, "height width"]
) -> Bool[np.ndarray, "height width"]:
    boundary = np.zeros(mask.shape, bool)
    for axis in (0, 1):
        before, after = (tuple(side if a == axis else slice(None) for a in (0, 1)) for side in _SIDES)
        differs = (mask[before] != mask[after]) & valid[before] & valid[after]
        boundary[before] |= differs
        boundary[after] |= differs
    return boundary


_SIDES = slice(None, -1), slice(1, None)


def near_boundary(
    mask: Integer[np.ndarray, "height width"], valid: Bool[np.ndarray, "height width"], *, reach: int
) -> Bool[np.ndarray, "height width"]:
    """Whether each pixel is at most `reach` pixels from the nearest class boundary; no direction.

    Pixels beside a valid pixel of another class (of the four neighbours) are the boundary. Ignored pixels are none.

    Source: Kohli, Ladický & Torr 2009, Robust Higher Order Potentials for Enforcing Label Consistency (trimaps).
    """
    boundary = _boundary(mask, valid)
    near = boundary.copy()
    height, width = mask.shape
    for down in range(-reach, reach + 1):
        for right in range(-reach, reach + 1):
            if 0 < down**2 + right**2 <= reach**2:
                to = slice(max(0, down), max(0, height + down)), slice(max(0, right), max(0, width + right))
                at = slice(max(0, -down), max(0, height - down)), slice(max(0, -right), max(0, width - right))
                near[to] |= boundary[at]
    return near


def map_mean(uncertainty: Float[np.ndarray, "height width"], region: Bool[np.ndarray, "height width"]) -> float:
    """The mean over the pixels of a region, in the unit of the map; no direction. NaN if it has none.

    A region is all valid pixels, the predicted foreground among them, or those further than d from a boundary.

    Source: Jungo, Balsiger & Reyes 2020, Analyzing the Quality and Challenges of Uncertainty Estimations for Brain
    Tumor Segmentation; Kahl et al. 2024, ValUES.
    """
    values = uncertainty[region]
    return float(np.mean(values, dtype=np.float64)) if values.size else math.nan


def map_upper_tail(
    uncertainty: Float[np.ndarray, "height width"], valid: Bool[np.ndarray, "height width"], *, quantile: float = 0.95
) -> float:
    """The mean of the ⌈(1 − quantile) n⌉ largest values of n valid pixels, in the unit of the map; no direction.

    NaN without valid pixels.

    Source: Kahl et al. 2024, ValUES: A Framework for Systematic Validation of Uncertainty Estimation in Semantic
    Segmentation (threshold-level aggregation, by a quantile).
    """
    values = uncertainty[valid]
    if not values.size:
        return math.nan
    tail = max(1, math.ceil((1 - quantile) * values.size - 1e-9))
    return float(np.mean(np.partition(values, values.size - tail)[values.size - tail :], dtype=np.float64))


def map_patch_maximum(
    uncertainty: Float[np.ndarray, "height width"], valid: Bool[np.ndarray, "height width"], *, patch: int = 10
) -> float:
    """The largest mean over the valid pixels of a window of patch × patch pixels, in the unit of the map; no direction.

    Of windows with at least half as many valid pixels as the fullest one. A smaller image is one window along that
    axis. NaN without valid pixels.

    Source: Kahl et al. 2024, ValUES (patch-level aggregation).
    """
    size = tuple(min(patch, side) for side in valid.shape)
    count = _window_sums(valid.astype(np.float64), size)
    enough = count >= max(1, np.max(count) / 2)
    total = _window_sums(np.where(valid, uncertainty, 0), size)
    return float(np.max(total[enough] / count[enough])) if enough.any() else math.nan


def _window_sums(values: Float[np.ndarray, "height width"], size: tuple[int, ...]) -> np.ndarray:
    table = np.pad(np.cumsum(np.cumsum(values, axis=0, dtype=np.float64), axis=1), ((1, 0), (1, 0)))
    rows = table[size[0] :] - table[: -size[0]]
    return rows[:, size[1] :] - rows[:, : -size[1]]
