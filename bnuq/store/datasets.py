"""Data sets of an HDF5 file: axes as dimension scales, units of numbers, texts as HDF5 can hold them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np

PACKED: dict[str, Any] = {"compression": "gzip", "compression_opts": 1, "shuffle": True}


class AxisScale(NamedTuple):
    """A dimension scale in an open file."""

    id: Any  # an h5py.h5d.DatasetID
    shape: tuple[int, ...]


class Writer:
    """Adds data sets to an open HDF5 file, through h5py's low-level interface: a result has more than a hundred, and to
    create one takes a third of the time that h5py's own objects take."""

    def __init__(self, file: Any) -> None:
        import h5py  # late: only writing needs it

        self._root, self._h5, text = file.id, h5py, h5py.string_dtype()
        self._text, self._text_in_memory = h5py.h5t.py_create(text, logical=True), h5py.h5t.py_create(text)
        self.digests: dict[str, str] = {}  # of all data sets, by their paths
        self._groups: dict[str, Any] = {}  # those already opened: asking HDF5 for each again is slow
        self._type, self._space = cache(partial(h5py.h5t.py_create, logical=True)), cache(h5py.h5s.create_simple)
        self._plain = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        self._plain.set_obj_track_times(False)

    def add(
        self, group: str, name: str, values: Any, axes: Sequence[str], scales: dict[str, Any], *, unit: str = "1"
    ) -> None:
        """A data set with a dimension scale for each axis."""
        if tuple(axes) == (name,):  # it is the scale of its neighbours
            scales[name] = self.add_scale(group, name, values)
            return
        values = _storable(np.asarray(values))
        data = self._add(group, name, values, unit)
        for number, length in enumerate(values.shape):
            axis = axes[number] if number < len(axes) else f"{name}_axis{number}"
            scale = scales.get(axis)
            if scale is None or scale.shape != (length,):
                scale = scales[axis] = self.add_scale(group, axis, np.arange(length))
            self._h5.h5ds.attach_scale(data, scale.id, number)

    def add_scale(self, group: str, name: str, values: Any) -> AxisScale:
        """A dimension scale, for other data sets to be attached to."""
        home = self._group(group)
        if name.encode() in home:  # of another length
            name = f"{name}_{sum(key.startswith(name.encode()) for key in home)}"
        values = _storable(np.asarray(values))
        data = self._add(group, name, values, "1", packed=False)
        self._h5.h5ds.set_scale(data, name.encode())
        return AxisScale(data, values.shape)

    def _add(self, group: str, name: str, values: np.ndarray, unit: str, *, packed: bool = True) -> Any:
        """The identifier of a new data set, which has a unit if it holds numbers."""
        h5, home, is_text = self._h5, self._group(group), values.dtype.kind == "O"
        self.digests[f"{group}/{name}"] = digest_of(values)
        if packed and values.size > 1024:
            data = h5.Group(home).create_dataset(name, data=values, **PACKED).id
        else:
            kind = self._text if is_text else self._type(values.dtype)
            data = h5.h5d.create(home, name.encode(), kind, self._space(values.shape), self._plain)
            in_memory = self._text_in_memory if is_text else kind
            data.write(h5.h5s.ALL, h5.h5s.ALL, np.asarray(values, order="C"), in_memory)
        if not is_text:
            attribute = h5.h5a.create(data, b"units", self._text, self._space(()))
            attribute.write(np.array(unit, object), self._text_in_memory)
        return data

    def _group(self, group: str) -> Any:
        path = group.strip("/")
        if path not in self._groups:
            self._groups[path] = self._opened(path)
        return self._groups[path]

    def _opened(self, path: str) -> Any:
        if not path:
            return self._root
        parent, _, name = path.rpartition("/")
        home, key = self._group(parent), name.encode()
        return self._h5.h5g.open(home, key) if key in home else self._h5.h5g.create(home, key)


def name_of(key: str) -> str:
    """A key as the name of an HDF5 object."""
    return _utf8(key).replace("/", "∕").replace("\0", "\\x00") or "∅"


def digest_of(values: np.ndarray) -> str:
    """The SHA-256 of an array as it is stored: of its type and shape, and of its numbers or texts."""
    if values.dtype.kind == "O":
        kind, data = "text", "\0".join(map(str, values.flat)).encode()
    else:
        kind = values.dtype.newbyteorder("<").str
        data = np.ascontiguousarray(values, kind).data
    digest = hashlib.sha256(f"{kind} {values.shape} ".encode())
    digest.update(data)
    return digest.hexdigest()


def _storable(values: np.ndarray) -> np.ndarray:
    """Texts as HDF5 can hold them: without zeros, and without surrogates (bytes that are not UTF-8)."""
    if values.dtype.kind not in "UO":
        return values
    texts = [_utf8(str(text)).replace("\0", "\\x00") for text in values.flat]
    return np.array(texts, object).reshape(values.shape)


def _utf8(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()
