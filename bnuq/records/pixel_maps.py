"""The maps of pixels in the file of a segmentation: written and read image by image, by the CF conventions.

/maps/METHOD/SET    predicted (image, y, x), the class of each pixel under all draws; SCORE (image, y, x), in float32;
                    the coordinates image (its number in the source), name(image) if it has one, and y and x, the
                    numbers of rows and columns
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import numpy as np

from bnuq.errors import RequestError, ResultError
from bnuq.files.hdf5 import Dataset, Group, open_hdf5
from bnuq.frozen import frozen
from bnuq.metrics.registry import metric_of
from bnuq.records.evaluation import EvaluatedSet, Maps, Result
from bnuq.records.points import chosen_method
from bnuq.shapes import Int64, Shaped
from bnuq.store.datasets import PACKED, Writer, name_of
from bnuq.store.table import unit_of

_GROUP, PREDICTED = "maps", "predicted"
_CHUNK = 2**24  # bytes of a chunk at most: an image, or some of its rows
_ENTRY, _SCALES = 4096, 2**16  # bytes that a chunk's entry takes at most, and the coordinates of a group

MapsOfImage = Mapping[str, Shaped[np.ndarray, "y x"]]


# ── writing ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def most_bytes(maps: Maps) -> int:
    """What the maps of a set can take in the file, however badly they pack."""
    first = next(iter(maps))
    chunks = [(values, _chunk(values)) for values in first.values()]
    image_bytes = sum(
        -(-values.shape[0] // shape[1]) * (math.prod(shape) * values.itemsize * 1001 // 1000 + _ENTRY)
        for values, shape in chunks
    )
    return len(maps) * (image_bytes + 512) + _SCALES + 16 * sum(first[PREDICTED].shape)


def _chunk(plane: np.ndarray) -> tuple[int, int, int]:
    height, width = plane.shape
    return 1, min(height, max(1, _CHUNK // (plane.itemsize * width))), width


def add(file: Any, result: Result) -> None:
    """Add the maps of every method and set, as far as there are any, to an open HDF5 file."""
    for method, method_result in result.methods.items():
        for name, set_result in method_result.sets.items():
            if set_result.maps is not None:
                _add(file, f"{_GROUP}/{name_of(method)}/{name_of(name)}", set_result.maps, result.sets[name], result)


def _add(file: Any, path: str, maps: Maps, evaluated: EvaluatedSet, result: Result) -> None:
    first, writer = next(iter(maps)), Writer(file)
    shape = (len(maps), *first[PREDICTED].shape)
    coordinates = (numbers_of(evaluated), *(np.arange(size) for size in shape[1:]))
    scales = [
        writer.add_scale(path, axis, values) for axis, values in zip(("image", "y", "x"), coordinates, strict=True)
    ]
    if evaluated.names is not None:
        writer.add(path, "name", evaluated.names, ("image",), {"image": scales[0]})
    for name, plane in first.items():
        data = file[path].create_dataset(name, shape=shape, dtype=plane.dtype, chunks=_chunk(plane), **PACKED)
        for axis_number, scale in enumerate(scales):
            data.dims[axis_number].attach_scale(scale)
        data.attrs.update(_attributes(name, result))
        if evaluated.names is not None:
            data.attrs["coordinates"] = "name"
    for number, image_map in enumerate(maps):
        for name, plane in image_map.items():
            file[path][name][number] = plane


def numbers_of(evaluated: EvaluatedSet) -> Int64[np.ndarray, " point"]:
    """The number of each point in its source."""
    return np.arange(evaluated.n) if evaluated.index is None else evaluated.index


def _attributes(name: str, result: Result) -> dict[str, Any]:
    """By the CF conventions."""
    if name != PREDICTED:
        return {"units": unit_of(name), "long_name": metric_of(name).title}
    known = result.sets["test"].classes
    classes = [known[k] if k < len(known) else f"class {k}" for k in range(int(result.model["classes"]))]
    numbers = np.arange(len(classes), dtype=np.min_scalar_type(len(classes) - 1))
    meanings = " ".join("_".join(name.split()) or "_" for name in classes).encode("utf-8", "backslashreplace").decode()
    few = {"flag_values": numbers, "flag_meanings": meanings.replace("\0", "")} if len(meanings) < 2**15 else {}
    return {"units": "1", "long_name": "predicted class", **few}


# ── reading ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def maps_of(result: Result, *, set: str = "test", method: str | None = None) -> SavedMaps:  # noqa: A002
    """The maps of a set by a method (by default the first sampled one) in the file of a result.

    RequestError for a set or a method that the result lacks, and if no maps were saved; ResultError if they are
    damaged, or the result has no file.
    """
    method = chosen_method(result, method)
    if set not in result.methods[method].sets:
        known = ", ".join(result.methods[method].sets)
        raise RequestError(f"the images of {set!r} are not in the result; expected one of {known}.")
    if result.path is None:
        raise ResultError("maps are in the file of a result, and this one has none.")
    maps = SavedMaps(result.path, method, set, result.sets[set])
    with maps.opened() as data:
        group = data
    if not group:
        raise RequestError(
            f"{result.path}, of a {result.task}, holds no maps of {method} on {set}. Those of the pixels of a "
            "segmentation are kept where that is requested: bnuq evaluate … --save-maps"
        )
    return maps


@frozen
class SavedMaps(Sequence[MapsOfImage]):
    """The maps of the images of one set by one method, each read from the file when it is needed. `maps[3]` is the
    fourth image of the set and `maps["frame_07.png"]` the one of that name: "predicted", the class of each pixel, and
    its scores in their units, (H, W) each."""

    path: Path
    method: str
    set: str
    evaluated: EvaluatedSet

    def __len__(self) -> int:
        return self.evaluated.n

    def __getitem__(self, image: Any) -> Any:
        row = rows_of([image], self.evaluated)[0] if isinstance(image, str) else range(len(self))[image]
        if isinstance(row, range):
            return list(self._read(row))
        return next(self._read([row]))

    def __iter__(self) -> Iterator[dict[str, np.ndarray]]:
        return self._read(range(len(self)))

    def _read(self, rows: Sequence[int]) -> Iterator[dict[str, np.ndarray]]:
        with self.opened() as data:
            for row in rows:
                with self._damage():
                    planes = {name: dataset.rows(row, row + 1)[0] for name, dataset in data.items()}
                yield planes

    @contextmanager
    def opened(self) -> Iterator[dict[str, Dataset]]:
        """The data of the maps by name, empty if there are none; ResultError if they do not fit together."""
        with open_hdf5(self.path) as file:
            with self._damage():
                data = self._data_of(file)
            yield data

    def _data_of(self, file: Group) -> dict[str, Dataset]:
        group: Any = file
        for key in (_GROUP, name_of(self.method), name_of(self.set)):
            if not isinstance(group, Group):
                raise ValueError(f"{group.name} is not a group")
            if key not in group:
                return {}
            group = group[key]
        if not isinstance(group, Group):
            raise ValueError(f"{group.name} is not a group")
        datasets = {key: dataset for key, dataset in group.items() if key not in ("image", "name", "y", "x")}
        if PREDICTED not in datasets:
            raise ValueError(f"{group.name}/{PREDICTED} is missing")
        shape = datasets[PREDICTED].shape
        if shape is None or len(shape) != 3 or shape[0] != self.evaluated.n or 0 in shape:
            raise ValueError(f"{PREDICTED} of {group.name} is not of the images of the set")
        for name, dataset in datasets.items():
            if dataset.shape != shape or dataset.dtype.kind not in ("u" if name == PREDICTED else "f"):
                raise ValueError(f"{name} of {group.name} is not a map")
        return datasets

    @contextmanager
    def _damage(self) -> Iterator[None]:
        try:
            yield
        except (KeyError, ValueError, OSError, AttributeError) as error:
            reason = " ".join(str(error).split())[:300].strip("'\"")
            raise ResultError(
                f"{self.path}: the maps of {self.method} on {self.set} are damaged ({reason}). Fetch the file again, "
                "or repeat the run."
            ) from error


def rows_of(images: Sequence[str | int], evaluated: EvaluatedSet) -> list[int]:
    """The rows of images of a set, by name, by a unique ending of a name, or by number in the source; RequestError for
    an unknown image, with similar names."""
    names = {} if evaluated.names is None else {str(name): row for row, name in enumerate(evaluated.names)}
    return [_row_of(str(image), names, numbers_of(evaluated), evaluated.name) for image in images]


def _row_of(image: str, names: Mapping[str, int], numbers: np.ndarray, set_name: str) -> int:
    ends = [row for name, row in names.items() if name.endswith(f"/{image}")]
    if image in names:
        return names[image]
    if len(ends) == 1:
        return ends[0]
    if image.isascii() and image.isdigit() and int(image) in numbers:
        return int(np.flatnonzero(numbers == int(image))[0])
    alike = get_close_matches(image, names, n=3, cutoff=0.5) or [*names][:3]
    named = f" or their names, such as {', '.join(alike)}" if alike else ""
    raise RequestError(
        f"image {image} is not in the set {set_name}; expected numbers from {numbers.min()} to {numbers.max()}{named}."
    )
