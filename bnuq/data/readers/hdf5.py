"""Arrays in an HDF5 file, and MATLAB files, as SVHN comes in: version 5 through scipy, version 7.3 through h5py."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bnuq.data.points import Contents
from bnuq.data.readers.common import GROUP, Selected, array_bytes, named_contents, readable
from bnuq.errors import DataError
from bnuq.files.apart import ask
from bnuq.files.content import kind_of
from bnuq.files.hdf5 import Dataset, Group, open_hdf5
from bnuq.findings import note


def read_hdf5(path: Path, *, group: str = GROUP, selected: Selected = None) -> Contents:
    """The data sets at the top of an HDF5 file by their names; `selected` ones may lie within groups."""
    with open_hdf5(path, "file of examples", error=DataError) as file, readable(path, "HDF5"):

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


_NUMBERS = frozenset(
    {"int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "single", "double", "logical"}
)


def read_mat(path: Path, *, group: str = GROUP, selected: Selected = None) -> Contents:
    """The `selected`, or usual, arrays of a `.mat` file. Pictures with the points on the last axis are turned; SVHN's
    label 10 is 0."""
    if kind_of(path) == "hdf5":
        with open_hdf5(path, "MATLAB 7.3 file", error=DataError) as file, readable(path, "a MATLAB file"):
            # HDF5 lists MATLAB's axes backwards.
            contents = named_contents(
                path,
                declared_sizes(file, path, nested=selected is not None),
                lambda name: read_dataset(file, name, path).T,
                stored=path.stat().st_size,
                group=group,
                selected=selected,
            )
    else:
        contents = _read_version_5(path, group, selected)
    return _points_first(contents)


def _read_version_5(path: Path, group: str, selected: Selected) -> Contents:
    with readable(path, "a MATLAB file"):
        variables = {name: (shape, kind) for name, shape, kind in ask("mat variables", str(path.absolute()))}
        sizes = {name: _declared(*entry) for name, entry in variables.items()}

        def read(name: str) -> NDArray[Any]:
            if variables[name][1] not in _NUMBERS:
                raise DataError(f"{path}: {name} holds a MATLAB {variables[name][1]}; expected an array of numbers.")
            return ask("mat array", str(path.absolute()), name, sizes[name])

        return named_contents(path, sizes, read, stored=path.stat().st_size, group=group, selected=selected)


def _declared(shape: list[int], kind: str) -> int:
    if kind not in _NUMBERS:
        return 0
    # numpy knows single and double by these names
    return array_bytes(shape, np.dtype("bool" if kind == "logical" else kind))


def _points_first(contents: Contents) -> Contents:
    x = np.asarray(contents.inputs)
    y = None if contents.targets is None else np.asarray(contents.targets).squeeze()
    y = y[None] if y is not None and y.ndim == 0 else y
    if y is not None and y.ndim == 2 and y.shape[0] != x.shape[0] == y.shape[1]:
        y = y.T
    last = (
        x.ndim == 4 and x.shape[2] in (1, 3) and (len(y) == x.shape[3] if y is not None else x.shape[0] == x.shape[1])
    )
    if not last or (y is not None and len(y) == x.shape[0] and x.shape[3] in (1, 3)):
        return replace(contents, inputs=x, targets=y)
    findings = (*contents.findings, note("points-on-last-axis"))
    if y is not None and x.shape[:3] == (32, 32, 3) and y.min() >= 1 and y.max() == 10:
        y, findings = np.where(y == 10, 0, y), (*findings, note("svhn-label-10"))
    return Contents(np.transpose(x, (3, 2, 0, 1)), y, contents.group, findings=findings)
