"""Arrays in an HDF5 file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from bnuq.data.points import Contents
from bnuq.data.readers.common import GROUP, named_contents, readable
from bnuq.errors import DataError
from bnuq.files.hdf5 import open_hdf5


def read_hdf5(path: Path, *, group: str = GROUP) -> Contents:
    """The data sets at the top of an HDF5 file by their names."""
    with open_hdf5(path, "file of points", error=DataError) as file, readable(path, "HDF5"):

        def read(name: str) -> NDArray[Any]:
            texts = _texts(file[name]) if name == group else None
            return read_dataset(file, name, path) if texts is None else texts

        return named_contents(path, top_level_datasets(file, path), read, group=group)


def top_level_datasets(file: h5py.File, path: Path) -> list[str]:
    """Their names; DataError where all data sets lie within groups."""
    names = [name for name, member in file.items() if isinstance(member, h5py.Dataset)]
    if names:
        return names
    inside: list[str] = []

    def look(name: str, member: object) -> bool | None:
        if isinstance(member, h5py.Dataset):
            inside.append(name)
        return True if len(inside) == 20 else None

    file.visititems(look)
    if inside:
        raise DataError(
            f"{path}: its data sets lie within groups ({', '.join(inside)}); expected x and y at the top of the file. "
            "Write the set to evaluate to a file of its own, or read it in a factory (file.py:function)."
        )
    return names


def _texts(dataset: Any) -> NDArray[Any] | None:
    """The words of a data set, None where it holds something else."""
    if h5py.check_string_dtype(dataset.dtype) is None or dataset.shape is None:
        return None
    return np.asarray(dataset.asstr(errors="replace")[()]).astype(str)


def read_dataset(file: h5py.File, name: str, path: Path) -> NDArray[Any]:
    dataset = file[name]
    if not isinstance(dataset, h5py.Dataset) or dataset.dtype.kind not in "fiub" or dataset.shape is None:
        raise DataError(f"{path}: {name} does not hold numbers; expected an array of numbers.")
    return np.asarray(dataset[()])
