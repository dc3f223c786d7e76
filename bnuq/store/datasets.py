"""Data sets of an HDF5 file: axes as dimension scales, units of numbers, texts as HDF5 can hold them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

PACKED: dict[str, Any] = {"compression": "gzip", "compression_opts": 1, "shuffle": True}


class Writer:
    """Adds data sets to an open HDF5 file."""

    def __init__(self, file: Any) -> None:
        import h5py  # late: only writing needs it

        self.file, self._h5 = file, h5py
        self._text = h5py.h5t.py_create(h5py.string_dtype(), logical=True)
        self._groups: dict[str, Any] = {}  # those already opened: asking HDF5 for each again is slow

    def add(
        self, group: str, name: str, values: Any, axes: Sequence[str], scales: dict[str, Any], *, unit: str = "1"
    ) -> None:
        """A data set with a dimension scale for each axis."""
        if tuple(axes) == (name,):  # it is the scale of its neighbours
            scales[name] = self.add_scale(group, name, values)
            return
        values = _storable(np.asarray(values))
        data = self._group(group).create_dataset(name, data=values, **(PACKED if values.size > 1024 else {}))
        if values.dtype.kind != "O":
            self._add_unit(data, unit)
        for number, length in enumerate(values.shape):
            axis = axes[number] if number < len(axes) else f"{name}_axis{number}"
            scale = scales.get(axis)
            if scale is None or scale.shape != (length,):
                scale = scales[axis] = self.add_scale(group, axis, np.arange(length))
            self._h5.h5ds.attach_scale(data.id, scale.id, number)

    def add_scale(self, group: str, name: str, values: Any) -> Any:
        """A dimension scale, for other data sets to be attached to."""
        home = self._group(group)
        if name in home:  # of another length
            name = f"{name}_{sum(key.startswith(name) for key in home)}"
        scale = home.create_dataset(name, data=_storable(np.asarray(values)))
        scale.make_scale(name)
        if scale.dtype.kind != "O":
            self._add_unit(scale, "1")
        return scale

    def _add_unit(self, data: Any, unit: str) -> None:
        """`data.attrs["units"] = unit`, in a third of the time."""
        attribute = self._h5.h5a.create(data.id, b"units", self._text, self._h5.h5s.create(self._h5.h5s.SCALAR))
        attribute.write(np.array(unit, self._h5.string_dtype()))

    def _group(self, group: str) -> Any:
        if group not in self._groups:
            self._groups[group] = self.file.require_group(group or "/")
        return self._groups[group]


def name_of(key: str) -> str:
    """A key as the name of an HDF5 object."""
    return _utf8(key).replace("/", "∕").replace("\0", "\\x00") or "∅"


def _storable(values: np.ndarray) -> np.ndarray:
    """Texts as HDF5 can hold them: without zeros, and without surrogates (bytes that are not UTF-8)."""
    if values.dtype.kind not in "UO":
        return values
    texts = [_utf8(str(text)).replace("\0", "\\x00") for text in values.flat]
    return np.array(texts, object).reshape(values.shape)


def _utf8(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()
