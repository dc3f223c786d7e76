"""The training pipelines that are tried: normalisations, orders of channels, and augmentations; and a suggested one as
lines of a run file and as options."""

from __future__ import annotations

import itertools
import shlex
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import torch

from bnuq.config import Augment, ChannelOrder, Normalize, PointSettings
from bnuq.config.normalizations import PUBLISHED
from bnuq.config.runfile_writing import as_value, option_words
from bnuq.data import Points
from bnuq.evaluation.pipeline import Pipeline, input_normalize
from bnuq.findings import all_of
from bnuq.frozen import frozen
from bnuq.sampling import counter_rng

_OVERSHOOT = 1e-3  # share of pixels at either end that is ignored when their range is determined


_ENOUGH_TO_PAD = 512  # points: fewer have no four different batches of the reference check
_DATA_POINTS = 10_000  # for mean and standard deviation of the data


DATA_OWN, MIN_MAX, RUN_FILE = "the data's own", "min-max", "the run file's"


TRIED = {  # by the label in records
    "imagenet": "imagenet",
    "cifar10": "cifar10",
    "cifar10 (std 0.2023)": "cifar10-0.2023",
    "cifar100": "cifar100",
    "svhn": "svhn",
    "mnist": "mnist",
    "fashion-mnist": "fashion-mnist",
}


IDENTITY = Normalize(mean=(0.0,), std=(1.0,))


_CAFFE = (123.68, 116.779, 103.939)  # red, green, blue of 0–255; the standard deviation is not changed


@frozen
class PipelineSetting:
    """A pipeline to try, as in a run file; `name` is the origin of mean and std."""

    name: str | None
    normalize: Normalize | None
    channel_order: ChannelOrder = "rgb"
    scale: int = 1
    augment: Augment | None = None

    @property
    def flips(self) -> bool:
        return self.augment is not None and self.augment.flip

    @property
    def crops(self) -> bool:
        return self.augment is not None and self.augment.pad > 0

    def pipeline(self, given: PointSettings) -> Pipeline:
        own = replace(given, normalize=self.normalize, channel_order=self.channel_order, augment=self.augment)
        return Pipeline(own, torch.device("cpu"), self.normalize)


def settings_to_try(given: PointSettings, train: Points) -> Iterator[PipelineSetting]:
    if len(train.point_shape) != 3:
        yield from _feature_settings(given, train)
        return
    channels, height, width = train.point_shape
    pad = max(4, min(height, width) // 8)
    crop = Augment(pad=pad, crop=height if height == width else None)
    augments = [None, crop, Augment(flip=True), Augment(pad=pad, crop=crop.crop, flip=True)]
    if given.augment is not None:
        given_augments = [msgspec.structs.replace(given.augment, flip=flip) for flip in (False, True)]
        augments += [augment for augment in given_augments if augment not in augments and augment != Augment()]
    orders: tuple[ChannelOrder, ...] = ("rgb", "bgr") if channels == 3 else ("rgb",)
    for plain, order, augment in itertools.product(_image_settings(train), orders, augments):
        normalize = plain.normalize
        if order == "bgr" and normalize is not None:
            normalize = Normalize(mean=normalize.mean[::-1], std=normalize.std[::-1])
        yield replace(plain, normalize=normalize, channel_order=order, augment=augment)


def why_untold(train: Points) -> str:
    """Why paddings and crops of these points cannot be distinguished; empty where they can."""
    if len(train.point_shape) != 3:
        return ""
    if _data_statistics(train)[1] is None:
        return "the examples are already normalised, and what they were padded with is unknown"
    return f"{len(train)} examples are too few to distinguish paddings" if len(train) < _ENOUGH_TO_PAD else ""


def padded(setting: PipelineSetting, pads: Sequence[int], train: Points) -> list[PipelineSetting]:
    """The setting with other paddings, with and without a flip."""
    if len(train.point_shape) != 3:
        return []
    _, height, width = train.point_shape
    augments = [Augment(pad=pad, crop=height if height == width else None) for pad in pads]
    augments += [msgspec.structs.replace(augment, flip=True) for augment in augments]
    return [replace(setting, augment=augment) for augment in augments]


def given_setting(given: PointSettings, train: Points) -> PipelineSetting | None:
    """The pipeline of the run; None if it sets none."""
    if given.normalize is None and given.augment is None and given.channel_order == "rgb":
        return None
    return PipelineSetting(RUN_FILE, input_normalize(given, train), given.channel_order, augment=given.augment)


def is_same_pipeline(first: PipelineSetting, second: PipelineSetting, train: Points) -> bool:
    """Whether two settings are the same pipeline."""

    def statistics(normalize: Normalize | None) -> list[list[float]]:
        applied = normalize or IDENTITY
        return [list(values) * (train.point_shape[0] // len(values)) for values in (applied.mean, applied.std)]

    same = (first.channel_order, first.augment) == (second.channel_order, second.augment)
    return same and statistics(first.normalize) == statistics(second.normalize)


def _feature_settings(given: PointSettings, train: Points) -> Iterator[PipelineSetting]:
    yield PipelineSetting(None, None)
    yield PipelineSetting(DATA_OWN, input_normalize(replace(given, normalize="train"), train))
    values = np.moveaxis(train.raw(slice(None)), 1, -1).reshape(-1, train.point_shape[0])
    low, high = values.min(0), values.max(0)
    if (low != 0).any() or (high != 1).any():
        span = np.where(high > low, high - low, 1.0)
        yield PipelineSetting(MIN_MAX, Normalize(mean=tuple(low.tolist()), std=tuple(span.tolist())))


def _image_settings(train: Points) -> Iterator[PipelineSetting]:
    """Normalisations, in the order red, green, blue; pixels are 0–1, as uint8 is read, or floats up to 255."""
    channels = train.point_shape[0]
    data_normalize, top = _data_statistics(train)
    if top is None:
        yield PipelineSetting(DATA_OWN, data_normalize)
        yield PipelineSetting(None, None)
        return
    for label, name in TRIED.items():
        mean, std = PUBLISHED[name]
        if len(mean) in (1, channels):
            yield _named(label, mean, std, top=top)
        elif channels == 1:
            yield _named(label, (round(float(np.mean(mean)), 4),), (round(float(np.mean(std)), 4),), top=top)
    yield _named("0.5/0.5", (0.5,), (0.5,), top=top)
    yield PipelineSetting(DATA_OWN, data_normalize)
    yield _named(None, (0.0,), (1.0,), top=top)
    yield _named(None, (0.0,), (1.0,), top=top, scale=255)
    if channels == 3:
        yield _named("caffe", _CAFFE, (1.0,), top=top, scale=255)


def _named(
    name: str | None, mean: Sequence[float], std: Sequence[float], *, top: int, scale: int = 1
) -> PipelineSetting:
    """Mean and std for pixels of 0–`scale`, converted to pixels read as 0–`top`."""
    unit = top / scale
    normalize = Normalize(mean=tuple(m * unit for m in mean), std=tuple(s * unit for s in std))
    return PipelineSetting(name, None if normalize == IDENTITY else normalize, scale=scale)


def _data_statistics(train: Points) -> tuple[Normalize, int | None]:
    """Mean and standard deviation of every channel, to 4 digits; and the maximum of the pixel range, 1 or 255: None
    where pixels are already normalised.

    Resized images overshoot a little, and a few of their pixels a lot: the range ignores a thousandth of the pixels
    at either end.
    """
    rows = np.arange(len(train))
    if len(rows) > _DATA_POINTS:
        chosen = counter_rng.batch_indices(
            0, 0, population=len(train), batch_size=_DATA_POINTS, purpose=counter_rng.SUBSET
        )
        rows = np.sort(chosen)
    total = squares = np.zeros(train.point_shape[0])
    lows, highs = [], []
    for part in np.array_split(rows, -(-len(rows) // 512)):
        values = train.raw(part).astype(np.float64)
        total, squares = total + values.mean((2, 3)).sum(0), squares + (values**2).mean((2, 3)).sum(0)
        lows.append(np.quantile(values, _OVERSHOOT))
        highs.append(np.quantile(values, 1 - _OVERSHOOT))
    mean = total / len(rows)
    std = np.sqrt(np.maximum(squares / len(rows) - mean**2, 0))
    std = np.where(std > 1e-6 * np.maximum(np.abs(mean), np.finfo(float).tiny), std, 1.0)  # 1 if constant
    return Normalize(mean=tuple(map(_rounded, mean)), std=tuple(map(_rounded, std))), _top(min(lows), max(highs))


def _top(low: float, high: float) -> int | None:
    """The maximum of the range of pixels from `low` to `high`; None for standardised pixels, which reach several units
    to both sides of 0."""
    if high <= 2:
        return 1 if low >= -0.5 else None
    return 255 if low >= -0.05 * high and high <= 2 * 255 else None


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")


def augment_words(augment: Augment | None, train: Points) -> str:
    if augment is None:
        return ""
    crop = str(augment.crop) if augment.crop is not None else "{}x{}".format(*train.point_shape[1:])
    parts = augment.resized_crop is not None
    words = [f"resized crop {augment.resized_crop}"] if parts else []
    words += [f"pad {augment.pad}, crop {crop}"] if augment.pad else []
    return ", ".join([*words, *(["flip"] * augment.flip), *(["jitter"] * (augment.jitter is not None))])


def undetermined_settings(tied: Sequence[PipelineSetting]) -> Iterator[str]:
    """What differs among pipelines that the statistics cannot separate."""
    sentence = "with and without {} the statistics agree equally well"
    names = list(dict.fromkeys((setting.name, setting.scale) for setting in tied))
    if len(names) > 1:
        plain = {1: "pixels as they are (0 to 1)", 255: "pixels from 0 to 255"}
        yield f"normalize: {all_of(name or plain[scale] for name, scale in names)} agree equally well"
    if len({setting.channel_order for setting in tied}) > 1:
        yield "channel order: RGB and BGR agree equally well"
    if len({setting.crops for setting in tied}) > 1:
        yield f"pad and crop: {sentence.format('them')}"
    if len({setting.flips for setting in tied}) > 1:
        yield f"flip: {sentence.format('it')}"


SETTING_KEYS = ("normalize", "channel_order", "augment")


def setting_values(setting: PipelineSetting) -> dict[str, Any]:
    return {key: getattr(setting, key) for key in SETTING_KEYS}


def comparison_key(setting: PipelineSetting, key: str) -> Any:
    """What two settings are compared by: normalisations by their origin, as numbers are in the order of channels."""
    return (setting.name, setting.scale) if key == "normalize" else getattr(setting, key)


def run_file_lines(setting: PipelineSetting, remarks: Sequence[str], *, unsure: Collection[str], fits: bool) -> str:
    """[data] of a run file. Settings that are `unsure` are comments; one that `fits` is also shown as options."""
    lines = {
        "normalize": _normalize_line(setting),
        "channel_order": 'channel_order = "bgr"' if setting.channel_order == "bgr" else "",
        "augment": _augment_line(setting.augment),
    }
    text = ["[data]", *(f"# {remark}" for remark in remarks)]
    for key, line in lines.items():
        if line:
            text.append(f"# not sure: {line}" if key in unsure else line)
        elif key != "channel_order":
            text.append(f"# no {key}")
    if fits and (options := _options(setting)):
        text.append(f"# or, as options: {options}")
    return "\n".join(text) + "\n"


def _options(setting: PipelineSetting) -> str:
    """The same settings on the command line."""
    values: dict[str, Any] = {
        "normalize": setting.normalize,
        "channel_order": setting.channel_order,
        "augment": setting.augment,
    }
    if (normalize := setting.normalize) is not None:
        name = TRIED.get(setting.name or "", "")
        is_own = setting.name == DATA_OWN and len(normalize.mean) > 4
        is_published = PUBLISHED.get(name) == (normalize.mean, normalize.std)
        values["normalize"] = "train" if is_own else name if is_published else normalize
    given = {key: value for key, value in values.items() if value not in (None, "rgb")}
    return shlex.join(word for key, value in given.items() for word in option_words(key, value))


def _normalize_line(setting: PipelineSetting) -> str:
    if setting.normalize is None:
        return ""
    if setting.name == DATA_OWN and len(setting.normalize.mean) > 4:
        return 'normalize = "train"'
    comments = {1: f"  # {setting.name}", 255: f"  # {all_of([setting.name or 'pixels', 'scale 0 to 255'])}"}
    return f"normalize = {as_value(setting.normalize)}{comments[setting.scale]}"


def _augment_line(augment: Augment | None) -> str:
    if augment is None:
        return ""
    keys = msgspec.to_builtins(augment)  # without defaults
    order = ("resized_crop", "pad", "crop", "flip", *keys)
    return f"augment = {as_value({key: keys[key] for key in order if key in keys})}"
