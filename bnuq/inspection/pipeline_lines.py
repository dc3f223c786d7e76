"""A suggested pipeline as lines of a run file and as options."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import msgspec

from bnuq.config import Augment
from bnuq.config.normalizations import PUBLISHED
from bnuq.config.repeating import option_words
from bnuq.config.runfile_writing import as_value
from bnuq.data import Points
from bnuq.findings import all_of
from bnuq.inspection.pipeline_settings import DATA_OWN, TRIED, PipelineSetting


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
        yield f"normalize: {all_of(_name_words(*name) for name in names)} agree equally well"
    if len({setting.channel_order for setting in tied}) > 1:
        yield "channel order: RGB and BGR agree equally well"
    if len({setting.crops for setting in tied}) > 1:
        yield f"pad and crop: {sentence.format('them')}"
    if len({setting.flips for setting in tied}) > 1:
        yield f"flip: {sentence.format('it')}"


def _name_words(name: str | None, scale: int) -> str:
    if name is None:
        return "pixels as they are (0 to 1)" if scale == 1 else "pixels from 0 to 255"
    return name


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
