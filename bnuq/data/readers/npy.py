"""numpy's `.npy` and `.npz`, never unpickled."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np
from numpy.lib import format as npy_format
from numpy.typing import NDArray

from bnuq.data.points import Contents
from bnuq.data.readers.common import GROUP, Selected, array_bytes, named_contents, read_bytes, readable
from bnuq.errors import DataError
from bnuq.files.content import kind_of, what_is_wrong_with
from bnuq.files.folders import expanded
from bnuq.files.limits import check_memory
from bnuq.files.mapped import is_large

_CLASSES, _MOST_NAMES = "classes", 2**20  # the array of names, and its largest size in bytes
_LONGEST_HEADER = 10_000  # numpy's own limit, before it has read the header
_HEADERS: dict[tuple[int, int], tuple[int, Callable[..., Any]]] = {
    (1, 0): (2, npy_format.read_array_header_1_0),
    (2, 0): (4, npy_format.read_array_header_2_0),
}


def read_npy(path: Path, *, labels: str | None = None) -> Contents:
    """The inputs in a `.npy` file, which has room for nothing else; `labels` is another one, relative to its folder."""
    inputs = _read_file(path)
    if labels is None:
        return Contents(inputs)
    beside = path.parent / expanded(labels)
    if (kind := kind_of(beside)) != "npy":
        raise DataError(
            f"{beside}: {what_is_wrong_with(kind) or 'is not .npy.'} The labels of {path.name} are looked for from "
            f"its folder: {path.name}:LABELS.npy"
        )
    return Contents(inputs, _read_file(beside))


def _read_file(path: Path) -> NDArray[Any]:
    """The array; a large one is mapped, and read as it is needed."""
    with readable(path, "a numpy array"), path.open("rb") as file:
        size = path.stat().st_size
        if is_large(size):
            shape, order, dtype = _header(file, size, f"{path}")
            return np.memmap(path, dtype, mode="r", offset=file.tell(), shape=shape, order=order)
        check_memory(path, size, error=DataError)
        return _read_array(file, size, f"{path}")


@contextmanager
def npz_arrays(path: Path) -> Iterator[tuple[dict[str, int], Callable[[str], NDArray[Any]]]]:
    """The bytes that each array of a `.npz` file declares, by name, and the function that reads one."""
    with readable(path, "a .npz archive"), zipfile.ZipFile(path) as archive:
        members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
        if len(members) < len(archive.infolist()):
            raise DataError(f"{path}: lists an array twice, as no numpy.savez does. Save the arrays again.")

        def read(name: str) -> NDArray[Any]:
            info = members[name]
            with archive.open(info) as file:
                return _read_array(file, info.file_size, f"{path}: {name}")

        yield {name: info.file_size for name, info in members.items()}, read


def read_npz(path: Path, *, group: str = GROUP, selected: Selected = None) -> Contents:
    """The arrays of a `.npz` file by their names; an array of texts called "classes" names the classes or labels."""
    with npz_arrays(path) as (sizes, read):
        classes = None
        if selected is None and sizes.get(_CLASSES, _MOST_NAMES) < _MOST_NAMES:
            with suppress(DataError):  # Python objects, which were not asked for
                names = read(_CLASSES)
                classes = tuple(names.tolist()) if names.dtype.kind == "U" and names.ndim == 1 else None
        if classes is not None:
            del sizes[_CLASSES]
        contents = named_contents(path, sizes, read, stored=path.stat().st_size, group=group, selected=selected)
        return replace(contents, classes=classes)


def _read_array(file: IO[bytes], size: int, where: str) -> NDArray[Any]:
    """An array from a stream of `size` bytes."""
    shape, order, dtype = _header(file, size, where)
    needed = array_bytes(shape, dtype)
    data = read_bytes(file, needed)
    file.read(1)  # the end, where zipfile checks the CRC
    if len(data) != needed:
        raise DataError(
            f"{where}: {needed} bytes were declared and {len(data)} could be read; it is cut short or damaged."
        )
    return data.view(dtype).reshape(shape, order=order)


def _header(file: IO[bytes], size: int, where: str) -> tuple[tuple[int, ...], Literal["C", "F"], np.dtype[Any]]:
    """Shape, order and type of the array in a stream of `size` bytes, believed only as far as those reach."""
    version = npy_format.read_magic(file)
    if version not in _HEADERS:
        raise DataError(f"{where}: is a numpy array of format {version}; expected plain numbers (format 1 or 2).")
    width, read_header = _HEADERS[version]
    length = file.read(width)
    if int.from_bytes(length, "little") > _LONGEST_HEADER:
        raise DataError(f"{where}: its header declares {int.from_bytes(length, 'little')} bytes; it is damaged.")
    header = length + file.read(int.from_bytes(length, "little"))
    shape, fortran, dtype = read_header(io.BytesIO(header))
    if dtype.hasobject:
        raise DataError(f"{where}: holds Python objects, which bnuq does not unpickle. Save it as an array of numbers.")
    needed, left = array_bytes(shape, dtype), size - file.tell()
    if min(shape, default=1) < 0 or needed != left:
        raise DataError(f"{where}: its header declares {needed} bytes and {left} follow; it is cut short or damaged.")
    return shape, "F" if fortran else "C", dtype
