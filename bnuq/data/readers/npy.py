"""numpy's `.npy` and `.npz`, never unpickled."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy_format
from numpy.typing import NDArray

from bnuq.data.points import Contents
from bnuq.data.readers.common import GROUP, array_bytes, check_declared, named_contents, readable
from bnuq.errors import DataError


def read_npy(path: Path) -> Contents:
    """The inputs in a `.npy` file, which has room for nothing else."""
    with readable(path, "a numpy array"), path.open("rb") as file:
        return Contents(_read_array(file, path.stat().st_size, f"{path}"))


def read_npz(path: Path, *, group: str = GROUP) -> Contents:
    """The arrays of a `.npz` file by their names."""
    with readable(path, "a .npz archive"), zipfile.ZipFile(path) as archive:
        members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}

        def read(name: str) -> NDArray[Any]:
            info = members[name]
            check_declared(path, info.file_size, info.compress_size)
            with archive.open(info) as file:
                return _read_array(file, info.file_size, f"{path}: {name}")

        return named_contents(path, members, read, group=group)


def _read_array(file: IO[bytes], size: int, where: str) -> NDArray[Any]:
    """An array from a stream of `size` bytes, its header being believed only as far as those reach."""
    version = npy_format.read_magic(file)
    if version == (1, 0):
        shape, fortran, dtype = npy_format.read_array_header_1_0(file)
    elif version == (2, 0):
        shape, fortran, dtype = npy_format.read_array_header_2_0(file)
    else:
        raise DataError(f"{where}: is a numpy array of format {version}; expected plain numbers (format 1 or 2).")
    if dtype.hasobject:
        raise DataError(f"{where}: holds Python objects, which bnuq does not unpickle. Save it as an array of numbers.")
    needed, left = array_bytes(shape, dtype), size - file.tell()
    if min(shape, default=1) < 0 or needed != left:
        raise DataError(f"{where}: its header declares {needed} bytes and {left} follow; it is cut short or damaged.")
    data = file.read()  # to the end, so that zipfile checks the CRC
    if len(data) != needed:
        raise DataError(
            f"{where}: {needed} bytes were declared and {len(data)} could be read; it is cut short or damaged."
        )
    return np.frombuffer(data, dtype=dtype).reshape(shape, order="F" if fortran else "C")
