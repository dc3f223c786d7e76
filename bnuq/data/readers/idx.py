"""idx files, the format of MNIST, gzipped or not."""

from __future__ import annotations

import gzip
import re
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bnuq.data.points import Contents
from bnuq.data.readers.common import array_bytes, read_bytes, readable
from bnuq.errors import DataError
from bnuq.files.content import is_file, kind_of, what_is_wrong_with
from bnuq.files.limits import check_size

_TYPES = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}


def read_idx(path: Path, *, labels: Path | None = None) -> Contents:
    """Pictures, with the labels from the file beside them with the published name (`images-idx3` → `labels-idx1`)."""
    inputs = _read_array(path)
    if inputs.ndim < 2:
        raise DataError(f"{path}: holds labels (one axis); expected the file of images. Labels beside it are found.")
    labels = labels or _labels_beside(path)
    return Contents(inputs, None if labels is None else _read_array(labels))


def _labels_beside(path: Path) -> Path | None:
    name = re.sub(r"images([.-])idx\d", r"labels\1idx1", path.name)
    if name == path.name:
        return None
    others = (name, name.removesuffix(".gz") if name.endswith(".gz") else name + ".gz")
    return next((path.with_name(other) for other in others if is_file(path.with_name(other))), None)


def _read_array(path: Path) -> NDArray[Any]:
    kind = kind_of(path)
    if wrong := what_is_wrong_with(kind):
        raise DataError(f"{path}: {wrong}")
    with readable(path, "an idx file"), gzip.open(path) if kind == "gzip" else path.open("rb") as file:
        magic = file.read(4)
        if len(magic) < 4 or magic[:2] != b"\0\0" or magic[2] not in _TYPES:
            raise DataError(f"{path}: is not an idx file (it begins with {magic.hex() or 'nothing'}).")
        dtype = np.dtype(_TYPES[magic[2]])
        shape = tuple(int(size) for size in _exactly(file, 4 * magic[3], path).view(">u4"))
        needed = array_bytes(shape, dtype)
        check_size(path, needed, stored=path.stat().st_size, error=DataError)
        data = _exactly(file, needed, path)
        if file.read(1):
            raise DataError(f"{path}: continues after the {needed} bytes that its header declares; it is damaged.")
        return data.view(dtype).reshape(shape)


def _exactly(file: Any, size: int, path: Path) -> NDArray[np.uint8]:
    data = read_bytes(file, size)
    if len(data) != size:
        raise DataError(f"{path}: {size} bytes were declared and {len(data)} are there; it is cut short.")
    return data
