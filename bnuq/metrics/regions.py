"""From maps to regions and images: class boundaries, one uncertainty for an image, and connected components.

A map has one number per pixel, (H, W), of one image; images may differ in size. `valid` are the pixels that are not
ignored.
"""

import math
from itertools import pairwise
from typing import Literal

import numpy as np

from bnuq.shapes import Bool, Float, Int64, Integer

Connectivity = Literal[4, 8]


def boundary_distance(
    mask: Integer[np.ndarray, "height width"], valid: Bool[np.ndarray, "height width"], *, reach: int | None = None
) -> Float[np.ndarray, "height width"]:
    """The distance of each pixel to the nearest class boundary, in pixels, ≥ 0; no direction.

    Pixels beside a valid pixel of another class (of the four neighbours) are the boundary, at 0. Ignored pixels are
    none. A band is `distance <= d`. Infinite if there is no boundary. Distances beyond `reach` are this.

    Source: Kohli, Ladický & Torr 2009, Robust Higher Order Potentials for Enforcing Label Consistency (trimaps);
    the exact Euclidean distance, Maurer, Qi & Raghavan 2003.
    """
    boundary = _boundary(mask, valid)
    if reach is not None:
        return _distance_up_to(boundary, reach)
    if not boundary.any():
        return np.full(mask.shape, math.inf)
    from scipy.ndimage import distance_transform_edt  # a second, which runs do without

    return np.asarray(distance_transform_edt(~boundary), np.float64)


def _distance_up_to(targets: Bool[np.ndarray, "height width"], reach: int) -> Float[np.ndarray, "height width"]:
    """The Euclidean distance of each pixel to the nearest target, at most `reach`: first along the columns."""
    down = np.where(targets, 0, reach).astype(np.int16 if reach < 2**7 else np.int32)  # of whose squares two are added
    for rows in (down, down[::-1]):
        for before, row in pairwise(rows):
            np.minimum(row, before + 1, out=row)
    square = down**2
    nearest = square.copy()
    for across in range(1, min(reach, targets.shape[1])):
        further = square + across**2
        np.minimum(nearest[:, across:], further[:, :-across], out=nearest[:, across:])
        np.minimum(nearest[:, :-across], further[:, across:], out=nearest[:, :-across])
    return np.minimum(np.sqrt(np.arange(2 * reach**2 + 1))[nearest], reach)


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
    """Whether the `boundary_distance` of each pixel is at most `reach`, without computing it; no direction.

    Source: as `boundary_distance`.
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


def distance_profile(
    score: Float[np.ndarray, "height width"],
    distance: Float[np.ndarray, "height width"],
    valid: Bool[np.ndarray, "height width"],
    *,
    reach: int,
) -> tuple[Float[np.ndarray, "distance"], Int64[np.ndarray, "distance"]]:
    """The sum of a score over the valid pixels at each whole distance 0 … reach from a boundary, and their number.

    Distances are rounded down; the last place has all that are further. Additive over images: the mean is the ratio of
    the sums, and its error that of `ratio_contributions`. In the unit of the score; no direction.

    Source: Kendall, Badrinarayanan & Cipolla 2017, Bayesian SegNet (uncertainty at boundaries); Teye, Azizpour & Smith
    2018 (their figure for CamVid).
    """
    distance_bin = np.minimum(distance[valid], reach).astype(np.int64)
    # np.bincount gives whole numbers where there are no pixels.
    total = np.bincount(distance_bin, weights=score[valid], minlength=reach + 1).astype(np.float64)
    return total, np.bincount(distance_bin, minlength=reach + 1)


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


def map_share_above(
    uncertainty: Float[np.ndarray, "height width"], valid: Bool[np.ndarray, "height width"], *, threshold: float
) -> float:
    """The share of valid pixels above a threshold, in [0, 1]; no direction. NaN without valid pixels.

    Source: Kahl et al. 2024, ValUES (threshold-level aggregation).
    """
    return map_mean((uncertainty > threshold).astype(np.float64), valid)


def patch_means(
    values: Float[np.ndarray, "height width"], valid: Bool[np.ndarray, "height width"], *, patch: int
) -> Float[np.ndarray, "patch"]:
    """The mean over the valid pixels of each of the patches of patch × patch pixels that tile the map, in its unit.

    Patches at the right and lower edge may be smaller; those without valid pixels are left out. For PAvPU: of the
    uncertainty, and of whether pixels are right, where more than ½ is an accurate patch. No direction.

    Source: Mukhoti & Gal 2018, Evaluating Bayesian Deep Learning Methods for Semantic Segmentation.
    """
    rows, columns = (np.arange(0, side, patch) for side in values.shape)
    total, count = (
        np.add.reduceat(np.add.reduceat(array.astype(np.float64), rows, axis=0), columns, axis=1)
        for array in (np.where(valid, values, 0), valid)
    )
    return total[count > 0] / count[count > 0]


def components(
    mask: Bool[np.ndarray, "height width"], *, connectivity: Connectivity = 8
) -> Int64[np.ndarray, "height width"]:
    """The number 1, 2, … of each pixel's connected component in a binary mask, 0 outside of it, in the order of their
    first pixels; no direction.

    Source: Rosenfeld & Pfaltz 1966, Sequential Operations in Digital Image Processing, here by runs of pixels.
    """
    first, stop = _runs(mask)
    # A run touches those of the next row that begin before its end and end after its beginning.
    row, beside = mask.shape[1] + _APART, 1 if connectivity == 8 else 0
    low = np.searchsorted(stop, first + row - beside, side="right")
    touching = np.maximum(np.searchsorted(first, stop + row + beside) - low, 0)
    above = np.repeat(np.arange(len(first)), touching)
    below = np.arange(len(above)) + np.repeat(low - (np.cumsum(touching) - touching), touching)
    root = np.arange(len(first))
    while (differ := root[above] != root[below]).any():
        above, below = above[differ], below[differ]
        pair = np.stack([root[above], root[below]])
        np.minimum.at(root, pair.max(0), pair.min(0))
        while (further := root[root]).tobytes() != root.tobytes():
            root = further
    number = np.cumsum(root == np.arange(len(root)))[root]
    of_part = np.zeros(2 * len(number) + 1, np.int64)  # of the rows: before, between and after runs there is none
    of_part[1::2] = number
    ends = np.stack([first, stop], axis=1).ravel()
    label = np.repeat(of_part, np.diff(ends, prepend=0, append=mask.shape[0] * (mask.shape[1] + _APART)))
    return np.ascontiguousarray(label.reshape(mask.shape[0], -1)[:, : mask.shape[1]])


_APART = 3  # columns, so that runs of different rows are not beside each other


def _runs(mask: Bool[np.ndarray, "height width"]) -> Int64[np.ndarray, "2 run"]:
    """Where the runs of pixels along the rows of a mask begin and where they stop, if rows are `_APART`."""
    padded = np.zeros((mask.shape[0], mask.shape[1] + _APART), bool)
    padded[:, 1 : 1 + mask.shape[1]] = mask
    flat = padded.ravel()
    return np.flatnonzero(flat[1:] != flat[:-1]).reshape(-1, 2).T


def _boxes(label: Int64[np.ndarray, "height width"]) -> Int64[np.ndarray, "4 component"]:
    """The first row, the first column, the row after the last and the column after the last of each of the
    `components`."""
    first, stop = _runs(label > 0)
    row, left = np.divmod(first, label.shape[1] + _APART)
    number = label[row, left] - 1
    count = number.max(initial=-1) + 1
    boxes = np.concatenate([np.full((2, count), label.size), np.zeros((2, count), np.int64)])
    for bounds, values in zip(boxes[:2], (row, left), strict=True):
        np.minimum.at(bounds, number, values)
    for bounds, values in zip(boxes[2:], (row + 1, left + stop - first), strict=True):
        np.maximum.at(bounds, number, values)
    return boxes


def component_means(
    label: Integer[np.ndarray, "height width"], uncertainty: Float[np.ndarray, "height width"]
) -> tuple[Int64[np.ndarray, "component"], Float[np.ndarray, "component"]]:
    """The number of pixels of each of the `components`, and their mean uncertainty, in its unit; no direction.

    Source: Roy et al. 2019, Bayesian QuickNAT (structure-wise uncertainty).
    """
    size = np.bincount(label.ravel())
    total = np.bincount(label.ravel(), weights=uncertainty.ravel())
    return size[1:], total[1:] / np.maximum(size[1:], 1)


def component_variation(
    label: Integer[np.ndarray, "height width"],
    draws: Bool[np.ndarray, "draw height width"],
    *,
    connectivity: Connectivity = 8,
) -> tuple[Float[np.ndarray, "component"], Float[np.ndarray, "component"]]:
    """For each of the `components`: the coefficient of variation of its size between draws, ≥ 0, and the mean IoU of
    pairs of draws, in [0, 1]; no direction.

    In a draw a component is all components of the draw that touch it, so that it may grow, split or be missing, of size
    0. Pairs in which both miss it are left out. The standard deviation has the divisor T. NaN if all draws miss it;
    the IoU also for a single draw.

    Source: Roy et al. 2019, Bayesian QuickNAT (CV of volumes; overlap of samples, there of all at once); the matching
    is that of Chan et al. 2021, SegmentMeIfYouCan.
    """
    rows = draws.shape[1] + 1  # of each draw, with an empty one, so that those of all draws are found together
    stacked = np.zeros((len(draws), rows, draws.shape[2]), bool)
    stacked[:, :-1] = draws
    numbers = components(stacked.reshape(-1, draws.shape[2]), connectivity=connectivity)
    boxes = _boxes(numbers)
    boxes[[0, 2]] -= boxes[0] // rows * rows
    numbers = numbers.reshape(stacked.shape)[:, :-1]
    first, second = np.triu_indices(len(draws), 1)
    variation, agreement = [], []
    for number, (top, left, bottom, right) in enumerate(_boxes(label).T.tolist(), 1):
        inside = label[top:bottom, left:right] == number
        touch = np.zeros(boxes.shape[1] + 1, bool)
        touch[numbers[:, top:bottom, left:right][:, inside]] = True
        touch[0] = False
        if not touch.any():
            variation.append(math.nan)
            agreement.append(math.nan)
            continue
        # Only the box around all that overlap: overlaps of whole images would take most of the time.
        overlapping = boxes[:, touch[1:]]
        (top, left), (bottom, right) = overlapping[:2].min(1), overlapping[2:].max(1)
        member = touch[numbers[:, top:bottom, left:right]].reshape(len(draws), -1)
        member = member.astype(np.float32 if member.shape[1] <= 2**24 else np.float64)  # in which counts are exact
        common = (member @ member.T).astype(np.float64)
        size = np.diagonal(common)
        union = (size[:, None] + size - common)[first, second]
        present = union > 0  # pairs of draws that both miss it say nothing of their agreement
        variation.append(float(np.std(size) / np.mean(size)))
        agreement.append(float(np.mean(common[first, second][present] / union[present])) if present.any() else math.nan)
    return np.array(variation), np.array(agreement)
