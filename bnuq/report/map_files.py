"""Writes the pixel maps of a result as files: PNG, arrays, or formats of medical and remote-sensing viewers."""

from __future__ import annotations

import gzip
import importlib
import io
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from jaxtyping import UInt8
from PIL import Image

from bnuq.errors import RequestError
from bnuq.files.writing import write_bytes
from bnuq.metrics.registry import LOGIT_SCORES
from bnuq.records.evaluation import Result
from bnuq.records.pixel_maps import PREDICTED, SavedMaps, maps_of, numbers_of
from bnuq.report import drawing
from bnuq.report.drawing import colours_of
from bnuq.report.image_maps import MOST, UNCERTAIN
from bnuq.store.table import unit_of

MapFormat = Literal["png", "npz", "nifti", "geotiff"]
MAP_FORMATS = get_args(MapFormat)
SCALES = "scales.json"
_ENDINGS = {"png": ".png", "npz": ".npz", "nifti": ".nii.gz", "geotiff": ".tif"}
_LIBRARY = {"nifti": ("nibabel", "NIfTI"), "geotiff": ("tifffile", "GeoTIFF")}
_GEOREFERENCE = (33550, 33922, 34264, 34735, 34736, 34737)  # tags: scale, tie points, transformation, and three of keys


def write_maps(
    result: Result,
    folder: Path,
    form: MapFormat = "png",
    *,
    set: str = "test",  # noqa: A002 - as on the command line
    method: str | None = None,
) -> tuple[Path, ...]:
    """Write the maps of a set by a method (by default the first sampled one) into `folder`, which is made if it is
    missing: a file IMAGE_MAP for each map of each image, or IMAGE.npz with all of them; their paths, in order.

    PNGs are indexed: of classes, whose numbers the indices are, and of scores in one scale for all images, which
    scales.json has with the colours. NIfTI files have the axes x, y; GeoTIFFs have the georeference of the picture that
    the image was read from, if that is a GeoTIFF of the same size.

    RequestError if no maps are in the file, or the library that writes the format is not installed; ResultError
    where a file cannot be written, or the maps are damaged.
    """
    maps = maps_of(result, set=set, method=method)
    check_format(form)
    drawing.make_folder(folder, "maps")
    names = _file_names(maps)
    if form == "npz":
        return tuple(_written(folder / f"{name}.npz", _npz(planes)) for name, planes in zip(names, maps, strict=True))
    paths: list[Path] = []
    encode: Callable[[str, np.ndarray, int], bytes] = _nifti
    if form == "geotiff":
        encode = partial(_geotiff, _pictures(result, maps))
    elif form == "png":
        palettes = _Palettes.of(result, maps)
        encode = palettes.encoded
        paths.append(_written(folder / SCALES, palettes.described()))
    for row, (image, planes) in enumerate(zip(names, maps, strict=True)):
        for name, plane in planes.items():
            paths.append(_written(folder / f"{image}_{name}{_ENDINGS[form]}", encode(name, plane, row)))
    return tuple(paths)


def check_format(form: MapFormat) -> None:
    """RequestError if what writes the format is not installed."""
    if form == "png":
        drawing.check()
    elif form in _LIBRARY:
        library, extra = _LIBRARY[form]
        try:
            importlib.import_module(library)
        except ImportError as error:
            raise RequestError(
                f"{extra} files are written by {library}, which is not installed. Install it: "
                f'pip install "bnuq[{extra.lower()}]"'
            ) from error


def _written(path: Path, content: bytes) -> Path:
    write_bytes(path, content)
    return path


def _file_names(maps: SavedMaps) -> list[str]:
    """A name for the files of each image, by the name of its picture or its number."""
    evaluated = maps.evaluated
    if evaluated.names is None:
        return [f"image_{number:06}" for number in numbers_of(evaluated)]
    found: list[str] = []
    for name in map(str, evaluated.names):
        stem = re.sub(r"[^\w+.-]+", "-", name.rpartition(".")[0] or name).strip("-.")[-120:] or "x"
        while stem.lower() in (other.lower() for other in found):  # names that differ in their type, or other signs
            stem += "-"
        found.append(stem)
    return found


# ── pictures ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class _Palettes:
    """The colours of pictures: of each score its range over all images; of classes one of each."""

    result: Result
    maps: SavedMaps
    ranges: dict[str, tuple[float, float]]
    of_scores: UInt8[np.ndarray, "256 3"]
    of_classes: UInt8[np.ndarray, "class 3"]

    @staticmethod
    def of(result: Result, maps: SavedMaps) -> _Palettes:
        import matplotlib as mpl

        classes = colours_of(int(result.model["classes"]))
        colours = mpl.colormaps[UNCERTAIN](np.arange(256))[:, :3]
        in_bytes = ((255 * each).round().astype(np.uint8) for each in (colours, classes))
        return _Palettes(result, maps, _ranges(maps), *in_bytes)

    def encoded(self, name: str, plane: np.ndarray, row: int) -> bytes:  # noqa: ARG002 - all images share the scale
        if name == PREDICTED and plane.dtype != np.uint8:  # too many for a palette
            return _png(Image.fromarray(plane.astype(np.uint16)))
        if name == PREDICTED:
            return _indexed(plane, self.of_classes)
        low, high = self.ranges[name]
        share = (plane.astype(np.float64) - low) / ((high - low) or 1.0)
        return _indexed(np.clip(255 * share, 0, 255).round().astype(np.uint8), self.of_scores)

    def described(self) -> bytes:
        """The scales and colours as JSON."""
        names = self.result.sets["test"].classes
        classes = [
            {"number": k, "name": names[k] if k < len(names) else str(k), "colour": f"#{colour.tobytes().hex()}"}
            for k, colour in enumerate(self.of_classes)
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
    found: dict[str, tuple[float, float]] = {}
    for planes in maps:
        for name in planes.keys() - {PREDICTED}:
            values = planes[name].astype(np.float64)
            low, high = found.get(name, (0.0 if name not in LOGIT_SCORES else np.inf, -np.inf))
            low = min(low, float(values.min())) if name in LOGIT_SCORES else low
            found[name] = low, max(high, float(np.quantile(values, MOST)))
    return {name: (0.0, 1.0) if name == "max_probability" else found[name] for name in sorted(found)}


def _indexed(indices: UInt8[np.ndarray, "y x"], colours: UInt8[np.ndarray, "index 3"]) -> bytes:
    image = Image.fromarray(indices, "P")
    image.putpalette(colours.tobytes())
    return _png(image)


def _png(image: Image.Image) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return buffer.getvalue()


# ── arrays, and what other viewers open ──────────────────────────────────────────────────────────────────────────────


def _npz(planes: Mapping[str, np.ndarray]) -> bytes:
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **planes)  # pyrefly: ignore - its stub takes `allow_pickle` for one
    return buffer.getvalue()


def _nifti(name: str, plane: np.ndarray, row: int) -> bytes:  # noqa: ARG001 - all images have the same axes
    import nibabel  # pyrefly: ignore - an extra

    image = nibabel.Nifti1Image(plane.T[:, :, None], np.eye(4))
    image.header["descrip"] = name.encode()[:79]
    return gzip.compress(image.to_bytes(), mtime=0)


def _geotiff(sources: Sequence[Path | None], name: str, plane: np.ndarray, row: int) -> bytes:
    import tifffile  # pyrefly: ignore - an extra

    buffer = io.BytesIO()
    tags = [] if (source := sources[row]) is None else _georeference(source, plane.shape)
    tifffile.imwrite(
        buffer, plane, photometric="minisblack", compression="zlib", description=name, extratags=tags, metadata=None
    )
    return buffer.getvalue()


def _georeference(source: Path, shape: tuple[int, ...]) -> list[tuple[Any, ...]]:
    """The tags of a TIFF that say where its pixels lie on the earth; none if it has none, or is of another size."""
    import tifffile  # pyrefly: ignore

    try:
        with tifffile.TiffFile(source) as file:
            page = file.pages[0]
            if page.shape[:2] != shape:
                return []
            tags = [page.tags[code] for code in _GEOREFERENCE if code in page.tags]
            return [(tag.code, int(tag.dtype), tag.count, tag.value, True) for tag in tags]
    except (OSError, ValueError, tifffile.TiffFileError):
        return []


def _pictures(result: Result, maps: SavedMaps) -> list[Path | None]:
    """The files that the images of the set were read from, if they are TIFFs in a folder that is still there."""
    data, names = result.run.get("data", {}), maps.evaluated.names
    reference = maps.evaluated.reference
    references = [data.get("test")] if maps.set == "test" else data.get("ood", [])
    folders = [Path(str(each).rpartition("=")[2].partition(":")[0]) for each in references if each]
    folders = [folder for folder in folders if reference.partition(":")[0].endswith(folder.name) and folder.is_dir()]
    if names is None or len(folders) != 1:
        return [None] * len(maps)
    paths = [folders[0] / str(name) for name in names]
    return [path if path.suffix.lower() in (".tif", ".tiff") and path.is_file() else None for path in paths]
