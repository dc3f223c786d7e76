"""Writes the pixel maps of a result as files: pictures (PNG) or arrays (NPZ)."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import numpy as np
from PIL import Image

from bnuq.files.writing import write_bytes
from bnuq.frozen import frozen
from bnuq.metrics.registry import LOGIT_SCORES
from bnuq.records.evaluation import Result
from bnuq.records.pixel_maps import PREDICTED, SavedMaps, maps_of, numbers_of
from bnuq.report import drawing
from bnuq.report.drawing import colours_of
from bnuq.report.image_maps import MOST, UNCERTAIN
from bnuq.shapes import UInt8
from bnuq.store.table import unit_of

SCALES = "scales.json"


def write_maps(
    result: Result,
    folder: Path,
    form: Literal["png", "npz"] = "png",
    *,
    set: str = "test",  # noqa: A002 - as on the command line
    method: str | None = None,
) -> tuple[Path, ...]:
    """Write the maps of a set by a method (by default the first sampled one) into `folder`, which is made if it is
    missing: a file IMAGE_MAP for each map of each image, or IMAGE.npz with all of them; their paths, in order.

    PNGs are indexed: of classes, whose numbers the indices are, and of scores in one scale for all images, which
    scales.json has with the colours.

    RequestError if no maps are in the file; ResultError where a file cannot be written, or the maps are damaged.
    """
    maps = maps_of(result, set=set, method=method)
    drawing.make_folder(folder, "maps")
    names = _file_names(maps)
    if form == "npz":
        return tuple(_written(folder / f"{name}.npz", _npz(planes)) for name, planes in zip(names, maps, strict=True))
    palettes = _Palettes.of(result, maps)
    paths = [_written(folder / SCALES, palettes.described())]
    for image, planes in zip(names, maps, strict=True):
        paths += (
            _written(folder / f"{image}_{name}.png", palettes.encoded(name, plane)) for name, plane in planes.items()
        )
    return tuple(paths)


def _written(path: Path, content: bytes) -> Path:
    write_bytes(path, content, named=False)
    return path


def _file_names(maps: SavedMaps) -> list[str]:
    """A name for the files of each image, by the name of its picture or its number."""
    evaluated = maps.evaluated
    if evaluated.names is None:
        return [f"image_{number:06}" for number in numbers_of(evaluated)]
    stems: list[str] = []
    for name in map(str, evaluated.names):
        stem = re.sub(r"[^\w+.-]+", "-", name.rpartition(".")[0] or name).strip("-.")[-120:] or "x"
        while stem.lower() in (other.lower() for other in stems):  # names that differ in their type, or other signs
            stem += "-"
        stems.append(stem)
    return stems


@frozen
class _Palettes:
    """The colours of pictures: of each score its range over all images; of classes one of each."""

    result: Result
    maps: SavedMaps
    ranges: dict[str, tuple[float, float]]
    score_colours: UInt8[np.ndarray, "256 3"]
    class_colours: UInt8[np.ndarray, "class 3"]

    @staticmethod
    def of(result: Result, maps: SavedMaps) -> _Palettes:
        classes = colours_of(int(result.model["classes"]))
        colours = drawing.matplotlib_here().colormaps[UNCERTAIN](np.arange(256))[:, :3]
        in_bytes = ((255 * each).round().astype(np.uint8) for each in (colours, classes))
        return _Palettes(result, maps, _ranges(maps), *in_bytes)

    def encoded(self, name: str, plane: np.ndarray) -> bytes:
        if name == PREDICTED and plane.dtype != np.uint8:  # too many for a palette
            return _png(Image.fromarray(plane.astype(np.uint16)))
        if name == PREDICTED:
            return _indexed(plane, self.class_colours)
        low, high = self.ranges[name]
        share = (plane.astype(np.float64) - low) / ((high - low) or 1.0)
        return _indexed(np.clip(255 * share, 0, 255).round().astype(np.uint8), self.score_colours)

    def described(self) -> bytes:
        """The scales and colours as JSON."""
        names = self.result.sets["test"].classes
        classes = [
            {"number": k, "name": names[k] if k < len(names) else str(k), "colour": f"#{colour.tobytes().hex()}"}
            for k, colour in enumerate(self.class_colours)
        ]
        scores = {
            name: {"lowest": low, "highest": high, "unit": unit_of(name), "colours": UNCERTAIN}
            for name, (low, high) in self.ranges.items()
        }
        about = "index i of a map of a score is the value lowest + i / 255 * (highest - lowest), or beyond that range"
        content = {"method": self.maps.method, "set": self.maps.set, "about": about, "scores": scores}
        return (json.dumps(content | {"classes": classes}, indent=2) + "\n").encode()


def _ranges(maps: SavedMaps) -> dict[str, tuple[float, float]]:
    """The range of each score over all images: of a share 0 to 1, otherwise from 0, or where it may be negative from
    its lowest value, to the largest of what 99.8 % of the pixels of an image do not exceed."""
    ranges: dict[str, tuple[float, float]] = {}
    for planes in maps:
        for name in planes.keys() - {PREDICTED}:
            values = planes[name].astype(np.float64)
            low, high = ranges.get(name, (0.0 if name not in LOGIT_SCORES else np.inf, -np.inf))
            low = min(low, float(values.min())) if name in LOGIT_SCORES else low
            ranges[name] = low, max(high, float(np.quantile(values, MOST)))
    return {name: (0.0, 1.0) if name == "max_probability" else ranges[name] for name in sorted(ranges)}


def _indexed(indices: UInt8[np.ndarray, "y x"], colours: UInt8[np.ndarray, "index 3"]) -> bytes:
    image = Image.fromarray(indices, "P")
    image.putpalette(colours.tobytes())
    return _png(image)


def _png(image: Image.Image) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return buffer.getvalue()


def _npz(planes: Mapping[str, np.ndarray]) -> bytes:
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **planes)  # pyrefly: ignore - its stub takes `allow_pickle` for one
    return buffer.getvalue()
