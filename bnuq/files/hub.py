"""Reads folders of timm and transformers: the architecture and the image pipeline in their JSON files."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any, Literal

from bnuq.errors import ModelError
from bnuq.files.content import is_file, is_folder
from bnuq.frozen import frozen

CONFIG = "config.json"
PREPROCESSOR = "preprocessor_config.json"  # of transformers
_MOST_BYTES = 2**24
_MOST_VALUES = 100_000
_RESAMPLING = {0: "nearest", 2: "bilinear", 3: "bicubic"}  # PIL's numbers
_CROP_PERCENT = 0.875  # timm's default
# Of a transformers config: what would fetch or run something else than the architecture itself.
_FETCHES = ("quantization_config", "backbone", "use_pretrained_backbone", "use_timm_backbone")
_LEFT_OUT = ("attn_implementation", "use_kernels", "dtype", "torch_dtype", "architectures", "transformers_version")


@frozen
class HubConfig:
    """The architecture that a folder names, with its arguments, and the settings of [data] that follow: `normalize`,
    `resize`, `crop` and `interpolation`, if they are known, from the file `place`."""

    package: Literal["timm", "transformers"]
    name: str
    arguments: Mapping[str, Any]
    place: Path
    data: Mapping[str, Any] = field(default_factory=dict)


def read_hub_config(folder: Path) -> HubConfig | None:
    """What the `config.json` in `folder` says; None if there is none.

    Nothing is imported or fetched. Raises ModelError for a config that is damaged, is neither of timm nor an image
    classifier of transformers, or needs code beside these libraries.
    """
    if not is_folder(folder) or not is_file(folder / CONFIG):
        return None
    config = _read(folder / CONFIG)
    _refuse(folder / CONFIG, config, ("auto_map",))
    if isinstance(config.get("architecture"), str):
        _check(folder / CONFIG, "architecture", config["architecture"], len(config["architecture"]) <= 200)
        return _timm(folder / CONFIG, config)
    if isinstance(config.get("model_type"), str):
        return _transformers(folder, config)
    raise ModelError(
        f"{folder / CONFIG}: names neither an architecture (timm) nor a model_type (transformers); expected one of "
        "them. For other networks name the file of the weights, with --arch."
    )


def _read(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        data = file.read(_MOST_BYTES + 1)
    try:
        if len(data) > _MOST_BYTES:
            raise ValueError(f"it has more than {_MOST_BYTES:,} bytes")
        values = json.loads(data)
        if not isinstance(values, dict):
            raise ValueError("it is not an object")
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{path}: is not a JSON file of a network: {str(error)[:200]}. Download it again.") from error
    return values


def _refuse(path: Path, config: Mapping[str, Any], keys: Sequence[str]) -> None:
    if fetches := [key for key in keys if config.get(key)]:
        raise ModelError(
            f"{path}: has {fetches[0]!r}, for which code or weights from elsewhere would be run or fetched. Give the "
            "state dict, with --arch file.py:factory."
        )


def _timm(path: Path, config: Mapping[str, Any]) -> HubConfig:
    published = config.get("pretrained_cfg") or config  # older configs have its keys at the top
    arguments = config.get("model_args") or {}
    _check(path, "model_args", arguments, isinstance(arguments, dict))
    arguments = dict(arguments)
    if (size := published.get("input_size")) is not None:
        _check(path, "input_size", size, _is_size(size, 3))
        if size[0] != 3:
            arguments.setdefault("in_chans", size[0])
        if published.get("fixed_input_size"):
            arguments.setdefault("img_size", size[1:])
    if (classes := published.get("num_classes", config.get("num_classes"))) is not None:
        _check(path, "num_classes", classes, type(classes) is int and classes >= 0)
        arguments.setdefault("num_classes", classes)
    if isinstance(pool := config.get("global_pool", published.get("pool")), str):
        arguments.setdefault("global_pool", pool)
    return HubConfig("timm", config["architecture"], arguments, path, _timm_data(path, published))


def _timm_data(path: Path, published: Mapping[str, Any]) -> dict[str, Any]:
    data = _normalization(path, published.get("mean"), published.get("std"))
    size, percent = published.get("input_size"), published.get("crop_pct", _CROP_PERCENT)
    if size is None:
        return data
    _check(path, "crop_pct", percent, _is_number(percent) and 0.01 < percent <= 1)
    height, width = (math.floor(side / percent) for side in size[1:])
    mode = published.get("crop_mode", "center")
    square = height == width and mode != "squash"
    interpolation = published.get("interpolation", "bilinear")
    return data | {
        "resize": height if square else (height, width),
        "crop": tuple(size[1:]),
        "interpolation": "bilinear" if interpolation == "random" else interpolation,
    }


def _transformers(folder: Path, config: Mapping[str, Any]) -> HubConfig:
    path = folder / CONFIG
    names = config.get("architectures")
    name = names[0] if isinstance(names, list) and names and isinstance(names[0], str) else None
    if name is None or not name.isidentifier() or not name.endswith("ForImageClassification"):
        raise ModelError(f"{path}: is of {name or 'no architecture'}; expected an image classifier of transformers.")
    _refuse(path, config, _FETCHES)
    arguments = {key: value for key, value in config.items() if not key.startswith("_") and key not in _LEFT_OUT}
    place = folder / PREPROCESSOR
    data = _transformers_data(place, _read(place)) if is_file(place) else {}
    return HubConfig("transformers", name, arguments, place, data)


def _transformers_data(path: Path, values: Mapping[str, Any]) -> dict[str, Any]:
    data: dict[str, Any] = {}
    if values.get("do_normalize", True):
        factor = 255 * (values.get("rescale_factor", 1 / 255) if values.get("do_rescale", True) else 1)
        _check(path, "rescale_factor", factor, _is_number(factor) and factor > 0)
        shift = 1.0 if values.get("rescale_offset") else 0.0
        data = _normalization(path, values.get("image_mean"), values.get("image_std"), factor, shift)
    size = _size(path, values.get("size")) if values.get("do_resize", True) else None
    percent: Any = values.get("crop_pct")
    if isinstance(size, int) and percent is not None:  # as ConvNeXt's processor does
        _check(path, "crop_pct", percent, _is_number(percent) and 0.01 < percent <= 1)
        data |= {"resize": int(size / percent), "crop": (size, size)} if size < 384 else {"resize": (size, size)}
    elif size is not None:
        data["resize"] = size
    if values.get("do_center_crop") and (crop := _size(path, values.get("crop_size"))) is not None:
        data["crop"] = (crop, crop) if isinstance(crop, int) else crop
    if "resize" in data and "resample" in values:
        data["interpolation"] = _RESAMPLING.get(values["resample"], str(values["resample"]))
    return data


def _normalization(path: Path, mean: Any, std: Any, factor: float = 1.0, shift: float = 0.0) -> dict[str, Any]:
    """(x·factor − shift − mean) / std of pixels x from 0 to 1, as one affine."""
    if mean is None or std is None:
        return {}
    for name, numbers in (("mean", mean), ("std", std)):
        is_list = isinstance(numbers, list) and 0 < len(numbers) < 100
        _check(path, name, numbers, is_list and all(map(_is_number, numbers)))
    _check(path, "mean", mean, len(mean) == len(std) or 1 in (len(mean), len(std)))
    _check(path, "std", std, all(s > 0 for s in std))
    return {"normalize": {"mean": [(m + shift) / factor for m in mean], "std": [s / factor for s in std]}}


def _size(path: Path, size: Any) -> int | tuple[int, int] | None:
    """The shorter side, or height and width."""
    if isinstance(size, Mapping):
        size = size.get("shortest_edge", [size.get("height"), size.get("width")])
    if size is None or type(size) is int:
        return size
    _check(path, "size", size, _is_size(size, 2))
    return size[0], size[1]


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)


def _is_size(value: Any, numbers: int) -> bool:
    is_list = isinstance(value, list | tuple) and len(value) == numbers
    return is_list and all(type(n) is int and 0 < n <= _MOST_VALUES for n in value)


def _check(path: Path, key: str, value: Any, fine: bool) -> None:
    if not fine:
        raise ModelError(f"{path}: {key} is {str(value)[:80]}, which no network has. Fetch the file again.")
