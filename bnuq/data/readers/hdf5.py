"""Arrays in an HDF5 file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bnuq.data.points import Contents
from bnuq.data.readers.common import GROUP, Selected, named_contents, readable
from bnuq.errors import DataError
from bnuq.files.hdf5 import Dataset, Group, open_hdf5


def read_hdf5(path: Path, *, group: str = GROUP, selected: Selected = None) -> Contents:
    """The data sets at the top of an HDF5 file by their names; `selected` ones may lie within groups."""
    with open_hdf5(path, "file of points", error=DataError) as file, readable(path, "HDF5"):

        def read(name: str) -> NDArray[Any]:
            if file[name].is_text:
                return file[name].asstr()
            return read_dataset(file, name, path)

        sizes = declared_sizes(file, path, nested=selected is not None)
        return named_contents(path, sizes, read, stored=path.stat().st_size, group=group, selected=selected)


def declared_sizes(file: Group, path: Path, *, nested: bool) -> dict[str, int]:
    """The bytes that each data set declares: all of them, where they may be `nested`, else those at the top; DataError
    where all data sets are within groups."""
    sizes = {name: member.nbytes for name, member in file.items() if isinstance(member, Dataset)}
    if nested:
        return {name: file[name].nbytes for name in file.all_datasets()} | sizes
    if not sizes and (inside := file.all_datasets()):
        raise DataError(
            f"{path}: its data sets lie within groups ({', '.join(inside[:20])}); expected x and y at the top of the "
            f"file. Name a group or both data sets: {path.name}:GROUP or {path.name}:/GROUP/INPUTS,/GROUP/LABELS."
        )
    return sizes


def read_dataset(file: Group, name: str, path: Path) -> NDArray[Any]:
    dataset = file[name]
    if isinstance(dataset, Dataset) and dataset.shape is None:
        raise DataError(f"{path}: {name} is declared empty and holds nothing; expected an array of numbers.")
    if not isinstance(dataset, Dataset) or dataset.dtype.kind not in "fiub":
        raise DataError(f"{path}: {name} does not hold numbers; expected an array of numbers.")
    return np.asanyarray(dataset[()])  # a large one is mapped
