"""Arrays in an HDF5 file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bnuq.data.points import Contents
from bnuq.data.readers.common import GROUP, named_contents, readable
from bnuq.errors import DataError
from bnuq.files.hdf5 import Dataset, Group, open_hdf5


def read_hdf5(path: Path, *, group: str = GROUP) -> Contents:
    """The data sets at the top of an HDF5 file by their names."""
    with open_hdf5(path, "file of points", error=DataError) as file, readable(path, "HDF5"):

        def read(name: str) -> NDArray[Any]:
            if name == group and file[name].is_text:
                return file[name].asstr()
            return read_dataset(file, name, path)

        return named_contents(path, sizes_at_the_top(file, path), read, stored=path.stat().st_size, group=group)


def sizes_at_the_top(file: Group, path: Path) -> dict[str, int]:
    """The bytes that each data set declares; DataError where all data sets are within groups."""
    sizes = {name: member.nbytes for name, member in file.items() if isinstance(member, Dataset)}
    if not sizes and (inside := file.all_datasets()):
        raise DataError(
            f"{path}: its data sets lie within groups ({', '.join(inside[:20])}); expected x and y at the top of the "
            "file. Write the set to evaluate to a file of its own, or read it in a factory (file.py:function)."
        )
    return sizes


def read_dataset(file: Group, name: str, path: Path) -> NDArray[Any]:
    dataset = file[name]
    if isinstance(dataset, Dataset) and dataset.shape is None:
        raise DataError(f"{path}: {name} is declared empty and holds nothing; expected an array of numbers.")
    if not isinstance(dataset, Dataset) or dataset.dtype.kind not in "fiub":
        raise DataError(f"{path}: {name} does not hold numbers; expected an array of numbers.")
    return np.asarray(dataset[()])
