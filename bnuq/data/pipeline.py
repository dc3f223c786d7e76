"""What the training did to its inputs, done again: pad, crop and flip the raw pixels, and only then normalise."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from bnuq.config import Augment, Normalize
from bnuq.errors import RequestError


def normalized(raw: NDArray[Any], normalize: Normalize | None) -> NDArray[Any]:
    """(raw − mean) / std along axis 1, in the dtype of `raw`; a mean or std of one number serves all channels.

    Raises RequestError for a length that is not the number of channels (or features), and for a std of 0 or less.
    """
    if normalize is None:
        return raw
    mean = _along_channels("mean", normalize.mean, raw)
    std = _along_channels("std", normalize.std, raw)
    if not np.all(std > 0):
        raise RequestError(f"data.normalize.std is {list(normalize.std)}; expected positive numbers.")
    return (raw - mean) / std


def _along_channels(key: str, values: tuple[float, ...], raw: NDArray[Any]) -> NDArray[Any]:
    channels = raw.shape[1]
    if len(values) not in (1, channels):
        kind = "channels" if raw.ndim > 2 else "features"
        raise RequestError(
            f"data.normalize.{key} has {len(values)} numbers, and the points have {channels} {kind}; "
            f"expected {channels} numbers, or one for all."
        )
    if not np.all(np.isfinite(values)):
        raise RequestError(f"data.normalize.{key} is {list(values)}; expected finite numbers.")
    return np.asarray(values, dtype=raw.dtype).reshape(-1, *(1,) * (raw.ndim - 2))


def augmented(raw: NDArray[Any], augment: Augment, words: NDArray[np.uint64]) -> NDArray[Any]:
    """Pictures (b, C, H, W) of raw pixels, each padded, cropped and flipped by its own three random words.

    Word 0 picks the vertical offset of the crop and word 1 the horizontal one (modulo the number of offsets), the top
    bit of word 2 flips left and right: row i depends on picture i and words[i] alone. Padding is in raw pixels, 0 being
    black, as in the training pipelines that this stands for; normalisation comes after.

    Raises RequestError for points that are no pictures, a crop larger than the padded picture, a negative pad, and a
    reflected pad as large as the picture.
    """
    if raw.ndim != 4:
        raise RequestError(
            f"data.augment needs pictures (channels, height, width); the points have shape {raw.shape[1:]}."
        )
    height, width = raw.shape[2:]
    crop = (augment.crop, augment.crop) if augment.crop is not None else (height, width)
    _check(augment, crop, height, width)
    padded = _padded(raw, augment)
    offsets = (padded.shape[2] - crop[0] + 1, padded.shape[3] - crop[1] + 1)
    top = (words[:, 0] % np.uint64(offsets[0])).astype(np.intp)
    left = (words[:, 1] % np.uint64(offsets[1])).astype(np.intp)
    windows = sliding_window_view(padded, crop, axis=(2, 3))
    cropped = windows[np.arange(len(raw)), :, top, left]
    if not augment.flip:
        return np.ascontiguousarray(cropped)
    flips = (words[:, 2] >> np.uint64(63)).astype(bool)
    return np.where(flips[:, None, None, None], cropped[..., ::-1], cropped)


def _check(augment: Augment, crop: tuple[int, int], height: int, width: int) -> None:
    if augment.pad < 0:
        raise RequestError(f"data.augment.pad is {augment.pad}; expected 0 or more pixels.")
    if not math.isfinite(augment.pad_value):
        raise RequestError(f"data.augment.pad_value is {augment.pad_value}; expected a finite number.")
    if augment.pad_mode == "reflect" and augment.pad >= min(height, width):
        raise RequestError(
            f'data.augment.pad is {augment.pad}; with pad_mode = "reflect" expected less than the size of the '
            f"pictures, {height} × {width}."
        )
    if min(crop) < 1 or crop[0] > height + 2 * augment.pad or crop[1] > width + 2 * augment.pad:
        raise RequestError(
            f"data.augment.crop is {augment.crop}; expected 1 to {min(height, width) + 2 * augment.pad}, "
            f"the size of the pictures ({height} × {width}) with {augment.pad} pixels of padding on each side."
        )


def _padded(raw: NDArray[Any], augment: Augment) -> NDArray[Any]:
    if augment.pad == 0:
        return raw
    around = ((0, 0), (0, 0), (augment.pad, augment.pad), (augment.pad, augment.pad))
    if augment.pad_mode == "reflect":
        return np.pad(raw, around, mode="reflect")
    return np.pad(raw, around, mode="constant", constant_values=augment.pad_value)
