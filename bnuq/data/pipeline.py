"""What the training did to its inputs, done again: pad, crop, flip and jitter the raw pixels, and only then
normalise."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from bnuq.config import Augment, Jitter, Normalize
from bnuq.data.decoded import each
from bnuq.data.resizing import Pixels
from bnuq.errors import RequestError


def normalized(raw: NDArray[Any], normalize: Normalize | None) -> NDArray[Any]:
    """(raw − mean) / std along axis 1, in the dtype of `raw`; a mean or std of one number serves all channels.

    Raises RequestError for a length that is not the number of channels (or features), and for a std of 0 or less.
    """
    if normalize is None:
        return raw
    mean, std = mean_and_std(raw.shape, raw.dtype, normalize)
    with np.errstate(over="ignore"):  # what is not finite is refused where it is used
        return (raw - mean) / std


def mean_and_std(shape: tuple[int, ...], dtype: Any, normalize: Normalize) -> tuple[NDArray[Any], NDArray[Any]]:
    """What `normalized` subtracts from points of this shape and dtype and divides them by; errors as there."""
    mean = _along_channels("mean", normalize.mean, shape, dtype)
    std = _along_channels("std", normalize.std, shape, dtype)
    if not np.all(std > 0):
        raise RequestError(f"data.normalize.std is {list(normalize.std)}; expected positive numbers.")
    return mean, std


def _along_channels(key: str, values: tuple[float, ...], shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
    channels = shape[1]
    if len(values) not in (1, channels):
        kind = "channels" if len(shape) > 2 else "features"
        raise RequestError(
            f"data.normalize.{key} has {len(values)} numbers, and the examples have {channels} {kind}; "
            f"expected {channels} numbers, or one for all."
        )
    if not np.all(np.isfinite(values)):
        raise RequestError(f"data.normalize.{key} is {list(values)}; expected finite numbers.")
    return np.asarray(values, dtype=dtype).reshape(-1, *(1,) * (len(shape) - 2))


def augmented(raw: NDArray[Any], augment: Augment, words: NDArray[np.uint64]) -> NDArray[Any]:
    """Pictures (b, C, H, W) of raw pixels, each padded, cropped and flipped by its own three random words: row i
    depends on picture i and words[i] alone. For the words see `places`, for what is refused `padded`."""
    around = padded(raw, augment)
    top, left, flipped = places(raw.shape, augment, words)
    windows = sliding_window_view(around, crop_of(raw.shape, augment), axis=(2, 3))
    cropped = windows[np.arange(len(raw)), :, top, left]
    if not augment.flip:
        return np.ascontiguousarray(cropped)
    return np.where(flipped[:, None, None, None], cropped[..., ::-1], cropped)


def padded(raw: NDArray[Any], augment: Augment) -> NDArray[Any]:
    """Pictures (b, C, H, W) with their padding, in raw pixels, 0 being black, as in the training pipelines that this
    stands for; normalisation comes after.

    Raises RequestError for points that are not pictures, a crop larger than the padded picture, a negative pad, and a
    reflected pad as large as the picture.
    """
    if raw.ndim != 4:
        raise RequestError(
            f"{augment.place} needs images (channels, height, width); the examples have shape {raw.shape[1:]}."
        )
    _check(augment, crop_of(raw.shape, augment), *raw.shape[2:])
    if augment.pad == 0:
        return raw
    around = ((0, 0), (0, 0), (augment.pad, augment.pad), (augment.pad, augment.pad))
    if augment.pad_mode == "reflect":
        return np.pad(raw, around, mode="reflect")
    return np.pad(raw, around, mode="constant", constant_values=augment.pad_value)


def crop_of(shape: tuple[int, ...], augment: Augment) -> tuple[int, int]:
    """The size of the crops of pictures of this shape (…, height, width)."""
    return (augment.crop, augment.crop) if augment.crop is not None else (shape[-2], shape[-1])


def places(
    shape: tuple[int, ...], augment: Augment, words: NDArray[np.uint64]
) -> tuple[NDArray[np.intp], NDArray[np.intp], NDArray[np.bool_]]:
    """By the words (…, 3) of pictures of this shape the top and the left of their crops, and which are flipped.

    Word 0 picks the vertical offset and word 1 the horizontal one (modulo the number of offsets), the top bit of word
    2 flips left and right.
    """
    counts = (side + 2 * augment.pad - size + 1 for side, size in zip(shape[-2:], crop_of(shape, augment), strict=True))
    top, left = ((words[..., k] % np.uint64(count)).astype(np.intp) for k, count in enumerate(counts))
    return top, left, flips(words) & augment.flip


def flips(words: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """Which pictures `augmented` flips left and right, by their words."""
    return (words[..., 2] >> np.uint64(63)).astype(bool)


def _check(augment: Augment, crop: tuple[int, int], height: int, width: int) -> None:
    if augment.pad < 0:
        raise RequestError(f"{augment.place}.pad is {augment.pad}; expected 0 or more pixels.")
    if not math.isfinite(augment.pad_value):
        raise RequestError(f"{augment.place}.pad_value is {augment.pad_value}; expected a finite number.")
    if augment.pad_mode == "reflect" and augment.pad >= min(height, width):
        raise RequestError(
            f'{augment.place}.pad is {augment.pad}; with pad_mode = "reflect" expected less than the size of the '
            f"images, {height} × {width}."
        )
    if min(crop) < 1 or crop[0] > height + 2 * augment.pad or crop[1] > width + 2 * augment.pad:
        raise RequestError(
            f"{augment.place}.crop is {augment.crop}; expected 1 to {min(height, width) + 2 * augment.pad}, "
            f"the size of the images ({height} × {width}) with {augment.pad} pixels of padding on each side."
        )


def check_ranges(augment: Augment) -> None:
    """Raise RequestError for ranges of a random part that no picture has."""
    for key, (low, high) in (("scale", augment.scale), ("ratio", augment.ratio)):
        most = 1.0 if key == "scale" else 1e3
        if not 0 < low <= high <= most:
            raise RequestError(
                f"{augment.place}.{key} is {[low, high]}; expected two numbers above 0 and up to {most:g}, the lower "
                "first."
            )


def jitter_of(augment: Augment) -> Jitter:
    """The ranges of the colours, which a list gives in their order."""
    jitter = augment.jitter
    if not isinstance(jitter, tuple):
        return jitter or Jitter()
    if jitter[3] > 0.5:
        raise RequestError(f"{augment.place}.jitter is {list(jitter)}; expected a hue, the last, of at most 0.5.")
    return Jitter(brightness=jitter[0], contrast=jitter[1], saturation=jitter[2], hue=jitter[3])


def jittered(
    raw: NDArray[Any], jitter: Jitter, words: NDArray[np.uint64], *, place: str = Augment.place
) -> NDArray[Any]:
    """Pictures (b, C, H, W) of pixels from 0 to 1, each with its brightness, contrast, saturation and hue changed by
    its own five random words: that of the order, and those of the changes.

    Grey pictures have no saturation and no hue. Raises RequestError, which names the `place` of the key, for pixels
    that are not 0 to 1. Source: torchvision's ColorJitter on tensors.
    """
    if raw.ndim != 4 or raw.shape[1] not in (1, 3):
        raise RequestError(f"{place}.jitter needs grey or RGB images; the examples have shape {raw.shape[1:]}.")
    if raw.min() < 0 or raw.max() > 1:
        raise RequestError(
            f"{place}.jitter needs pixels from 0 to 1; here they go from {raw.min():g} to {raw.max():g}."
        )
    uniform = (words[:, 1:] >> np.uint64(11)) * 2.0**-53
    orders = tuple(itertools.permutations(range(4)))
    changed = np.empty_like(raw)

    def change(row: int) -> None:
        picture = raw[row]
        for number in orders[int(words[row, 0] % np.uint64(len(orders)))]:
            name, function = _COLOURS[number]
            if width := getattr(jitter, name):
                low = -width if name == "hue" else max(0.0, 1 - width)
                high = width if name == "hue" else 1 + width
                picture = function(picture, low + uniform[row, number] * (high - low))
        changed[row] = picture

    for _ in each(change, range(len(raw)), parallel=True):
        pass
    return changed


def with_brightness(picture: Pixels, factor: float) -> Pixels:
    """A picture of 0 to 1 multiplied by `factor`."""
    return _blend(picture, 0.0, factor)


def with_contrast(picture: Pixels, factor: float) -> Pixels:
    """Its contrast with its mean grey, multiplied by `factor`."""
    return _blend(picture, _grey(picture).mean(), factor)


def with_saturation(picture: Pixels, factor: float) -> Pixels:
    """Its difference from its grey picture, multiplied by `factor`."""
    return _blend(picture, _grey(picture), factor)


def with_hue(picture: Pixels, shift: float) -> Pixels:
    """An RGB picture whose hues are shifted by `shift` of the circle; value and saturation stay."""
    if len(picture) == 1:
        return picture
    high, low = picture.max(0), picture.min(0)
    spread = high - low
    safe = np.where(spread > 0, spread, 1)
    r, g, b = (high - picture) / safe
    hue = np.where(picture[0] == high, b - g, np.where(picture[1] == high, 2 + r - b, 4 + g - r))
    hue = (hue / 6 + shift) % 1
    # f(n) = v − v·s·max(0, min(k, 4 − k, 1)) with k = (n + 6h) mod 6, for n = 5, 3, 1: HSV to RGB
    k = (np.array([5, 3, 1], picture.dtype)[:, None, None] + 6 * hue) % 6
    return (high - spread * np.clip(np.minimum(k, 4 - k), 0, 1)).astype(picture.dtype, copy=False)


def _blend(picture: Pixels, other: Any, factor: float) -> Pixels:
    return np.clip(factor * picture + (1 - factor) * other, 0, 1).astype(picture.dtype, copy=False)


def _grey(picture: Pixels) -> Pixels:
    if len(picture) == 1:
        return picture
    return np.tensordot(np.array([0.2989, 0.587, 0.114], picture.dtype), picture, 1)[None]


_COLOURS = (
    ("brightness", with_brightness),
    ("contrast", with_contrast),
    ("saturation", with_saturation),
    ("hue", with_hue),
)
