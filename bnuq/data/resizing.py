"""One picture, channel-first: resized, cropped at its centre, and with other channels, as PIL and torchvision do."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bnuq.config import Augment, Interpolation
from bnuq.errors import RequestError
from bnuq.frozen import frozen

_ATTEMPTS = 10  # at a random part that fits into the picture
WORDS = 2 * _ATTEMPTS + 2  # random words that `random_part` takes

Pixels = NDArray[Any]  # (channels, height, width)
Size = tuple[int, int]  # height and width


@frozen
class Fit:
    """What is done to every picture: `channels` (1 or 3), resized, cropped at its centre, and at last resized to
    `size`, each where it is not None. An int in `resize` is the shorter side; `fill` pads what is smaller than the
    crop."""

    resize: int | Size | None = None
    crop: Size | None = None
    interpolation: Interpolation = "bilinear"
    size: Size | None = None
    channels: int | None = None
    fill: int = 0

    def __call__(self, pixels: Pixels) -> Pixels:
        if self.channels is not None:
            pixels = with_channels(pixels, self.channels)
        pixels = resized(pixels, _after(self.resize, pixels.shape[1:]), self.interpolation)
        if self.crop is not None:
            pixels = center_cropped(pixels, self.crop, self.fill)
        return pixels if self.size is None else resized(pixels, self.size, self.interpolation)

    def size_of(self, height: int, width: int) -> Size:
        """The size that a picture of this size gets."""
        return self.size or self.crop or _after(self.resize, (height, width))

    def keeps(self, *size: int) -> bool:
        """Whether a picture of this size stays as it is: one that is enlarged and then cropped to its size does not."""
        return all(step in (None, size) for step in (_after(self.resize, size), self.crop, self.size))

    def pads(self, height: int, width: int) -> bool:
        """Whether a picture of this size is smaller than the crop, and gets a border."""
        before = _after(self.resize, (height, width))
        return self.crop is not None and any(new > old for new, old in zip(self.crop, before, strict=True))


def _after(resize: int | Size | None, shape: tuple[int, ...]) -> Size:
    height, width = shape
    if not isinstance(resize, int):
        return resize or (height, width)
    short, long = resize, int(resize * max(height, width) / min(height, width))  # rounded down, as torchvision does
    return (short, long) if height <= width else (long, short)


def resized(pixels: Pixels, size: Size, interpolation: Interpolation) -> Pixels:
    """`pixels` of this height and width, antialiased by PIL where it shrinks (except nearest).

    uint8 stays uint8, rounded after each direction; floats are computed in float32. Other integers, which are those of
    masks, are only ever resized to the nearest.
    """
    if pixels.shape[1:] == size:
        return pixels
    if max(size) > 2**16 or math.prod(size) > 2**28:
        raise RequestError(f"data.resize would make an image of {size[0]} × {size[1]} pixels; expected a smaller size.")
    from PIL import Image  # late: most sets are arrays, which are not resized

    resample = Image.Resampling[interpolation.upper()]
    to = (size[1], size[0])
    if pixels.dtype.kind in "iu" and pixels.dtype != np.uint8:
        assert interpolation == "nearest"
        places = np.arange(math.prod(pixels.shape[1:]), dtype=np.int32).reshape(pixels.shape[1:])
        return pixels.reshape(len(pixels), -1)[:, np.asarray(Image.fromarray(places).resize(to, resample))]
    bands = pixels if pixels.dtype == np.uint8 else pixels.astype(np.float32)
    if len(pixels) == 3 and pixels.dtype == np.uint8:
        picture = Image.fromarray(np.ascontiguousarray(np.moveaxis(pixels, 0, 2)))
        return np.moveaxis(np.asarray(picture.resize(to, resample)), 2, 0)
    bands = [Image.fromarray(np.ascontiguousarray(band)).resize(to, resample) for band in bands]
    return np.stack([np.asarray(band) for band in bands]).astype(pixels.dtype, copy=False)


def center_cropped(pixels: Pixels, size: Size, fill: int = 0) -> Pixels:
    """The centre of `pixels`, padded with `fill` where they are smaller, in a type that holds it; offsets are rounded
    as torchvision rounds them."""
    around = [
        (max(0, (new - old) // 2), max(0, (new - old + 1) // 2))
        for new, old in zip(size, pixels.shape[1:], strict=True)
    ]
    if any(map(any, around)):
        wide = pixels if fill == 0 else pixels.astype(np.promote_types(pixels.dtype, np.min_scalar_type(fill)))
        pixels = np.pad(wide, [(0, 0), *around], constant_values=fill)
    top, left = (round((old - new) / 2) for new, old in zip(size, pixels.shape[1:], strict=True))
    return pixels[:, top : top + size[0], left : left + size[1]]


def with_channels(pixels: Pixels, channels: int) -> Pixels:
    """Grey pixels repeated to three channels, or the luma of RGB (ITU-R 601-2, as PIL computes it)."""
    if len(pixels) == channels:
        return pixels
    if len(pixels) == 1:
        return np.repeat(pixels, channels, axis=0)
    if pixels.dtype == np.uint8:
        weights = np.array([19595, 38470, 7471], np.uint32)
        return ((np.tensordot(weights, pixels[:3].astype(np.uint32), 1) + 0x8000) >> 16).astype(np.uint8)[None]
    weights = np.array([0.299, 0.587, 0.114], pixels.dtype)
    return np.tensordot(weights, pixels[:3], 1)[None]


def random_part(height: int, width: int, augment: Augment, words: NDArray[np.uint64]) -> tuple[int, int, int, int]:
    """(top, left, height, width) of the part that torchvision's RandomResizedCrop would take of such a picture, by its
    own random words."""
    uniform = (words >> np.uint64(11)) * 2.0**-53  # in [0, 1)
    low, high = (math.log(value) for value in augment.ratio)
    for area, ratio in uniform[: 2 * _ATTEMPTS].reshape(-1, 2):
        area = height * width * (augment.scale[0] + area * (augment.scale[1] - augment.scale[0]))
        ratio = math.exp(low + ratio * (high - low))
        h, w = round(math.sqrt(area / ratio)), round(math.sqrt(area * ratio))
        if 0 < h <= height and 0 < w <= width:
            counts = height - h + 1, width - w + 1
            top, left = (int(word) % count for word, count in zip(words[-2:], counts, strict=True))
            return top, left, h, w
    h, w = height, width  # the centre, cropped to the nearest ratio
    if width / height < augment.ratio[0]:
        h = round(width / augment.ratio[0])
    elif width / height > augment.ratio[1]:
        w = round(height * augment.ratio[1])
    return (height - h) // 2, (width - w) // 2, h, w


def resized_crop(pixels: Pixels, augment: Augment, words: NDArray[np.uint64], interpolation: Interpolation) -> Pixels:
    """A random part of `pixels`, resized to `augment.resized_crop`; a function of the picture and its words."""
    assert augment.resized_crop is not None
    top, left, height, width = random_part(pixels.shape[1], pixels.shape[2], augment, words)
    part = pixels[:, top : top + height, left : left + width]
    return resized(part, (augment.resized_crop, augment.resized_crop), interpolation)
