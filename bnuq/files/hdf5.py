"""HDF5 files: new ones built in memory; untrusted files are read through another process."""

from __future__ import annotations

import base64
import contextlib
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bnuq.errors import BnuqError, ResultError
from bnuq.files import apart
from bnuq.files.apart import noted_bytes
from bnuq.files.content import kind_of, what_is_wrong_with
from bnuq.files.limits import check_memory, check_size
from bnuq.files.mapped import Pool, bytes_in_memory
from bnuq.frozen import frozen

_numbers = itertools.count(1)


def image_of(lay_out: Callable[[Any], object]) -> bytes:
    """The bytes of the HDF5 file that `lay_out` fills, built in memory: the HDF5 library does not survive a full disk,
    and never sees one."""
    import h5py  # late: only writing needs it

    with h5py.File("image", "w", driver="core", backing_store=False) as file:
        lay_out(file)
        file.flush()
        return file.id.get_file_image()


@contextlib.contextmanager
def open_hdf5(path: Path, what: str = "result file", *, error: type[BnuqError] = ResultError) -> Iterator[Group]:
    """The HDF5 file at `path`, open for reading in another process, after every object in it was looked at; in this one
    if it is as bnuq has written it here.

    Raises `error` for what is missing, empty, a git-lfs pointer, not HDF5 or cut short; for links other than hard ones,
    external storage and virtual data sets, which would read other files without a word; for filters that load
    libraries; and for data sets that declare far more than the file can hold. Works in a read-only folder. What is read
    inside the block raises KeyError, ValueError or OSError.
    """
    kind = kind_of(path)
    if problem := what_is_wrong_with(kind):
        raise error(f"{path}: {problem}")
    if kind != "hdf5":
        guess = "" if kind == "unknown" else f" (it looks like {kind})"
        raise error(f"{path}: is not an HDF5 file{guess}; expected a {what}.")
    number, data = next(_numbers), noted_bytes(path)
    ask = apart.ask if data is None else _answered
    try:
        listing = ask("open", number, str(path.absolute()) if data is None else data)
    except (OSError, ValueError, KeyError) as fault:
        raise error(f"{path}: cannot be read as HDF5: it is cut short or damaged ({str(fault)[:160]}).") from fault
    try:
        if listing["complaint"]:
            raise error(f"{path}: {listing['complaint']} A {what} never does; get it from someone you trust.")
        size = path.stat().st_size if data is None else len(data)
        where = f"{path}: {listing['at']}"
        check_size(where, listing["declared"], stored=size, error=error, memory=False)
        check_size(where, listing["unstored"], stored=0, error=error, memory=False)
        yield Group(_File(number, path, error, listing["objects"], ask), "/")
    finally:
        with contextlib.suppress(OSError):
            ask("close", number)


def _answered(operation: str, *arguments: Any, pool: Pool | None = None) -> Any:
    """What the other process would answer, by this one."""
    from bnuq.files.parsing import answer  # late: h5py

    return answer(operation, *arguments, **({} if pool is None else {"empty": pool.empty}))


@frozen
class _File:
    """A file that is open: under which number, what was found in it, and who is asked for more. The `pool` makes the
    arrays that are read."""

    number: int
    path: Path
    error: type[BnuqError]
    objects: Mapping[str, Any]
    ask: Callable[..., Any]
    pool: Pool = field(default_factory=Pool)


class _Object:
    def __init__(self, file: _File, name: str) -> None:
        self.name = name
        self._file = file
        self._facts = file.objects[name]

    @property
    def attrs(self) -> Attributes:
        """Texts, numbers and arrays by their names; those of groups alone are read."""
        return Attributes(self._facts.get("attributes", {}))


class Group(_Object, Mapping[str, Any]):
    """A group of an HDF5 file, read as h5py's."""

    def __getitem__(self, name: str) -> Any:
        if not isinstance(name, str):
            raise TypeError(f"{self.name} is a group where data belong")
        first, _, remainder = name.partition("/")
        if first not in self._facts["members"]:
            raise KeyError(f"{self.name.rstrip('/')}/{first} is missing")
        inner = self._facts["members"][first]
        member = (Dataset if "bytes" in self._file.objects[inner] else Group)(self._file, inner)
        return member[remainder] if remainder else member

    def __iter__(self) -> Iterator[str]:
        return iter(self._facts["members"])

    def __len__(self) -> int:
        return len(self._facts["members"])

    @property
    def is_own(self) -> bool:
        """Whether the file is, byte for byte, one that this user's bnuq has written here."""
        return self._file.ask is _answered

    def all_datasets(self) -> list[str]:
        """The paths of all data sets of the file."""
        return [name.removeprefix("/") for name, facts in self._file.objects.items() if "bytes" in facts]


class Dataset(_Object):
    """Data of an HDF5 file, read as h5py's; only numbers and texts can be."""

    @property
    def shape(self) -> tuple[int, ...] | None:
        return None if self._facts["shape"] is None else tuple(self._facts["shape"])

    @property
    def is_text(self) -> bool:
        return self._facts["text"]

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of its numbers; that of objects if it holds something else, variable texts too."""
        return np.dtype(self._facts["dtype"] or object)

    @property
    def nbytes(self) -> int:
        return self._facts["bytes"]

    def __getitem__(self, index: Any) -> Any:
        if self._facts["dtype"] is None:
            raise ValueError(f"{self.name} does not hold numbers")
        if "value" in self._facts:
            values = _unpacked(_value_of(self._facts["value"]))
        else:
            check_memory(self._file.path, bytes_in_memory(self.nbytes), error=self._file.error)
            values = self._file.ask("read", self._file.number, self.name, pool=self._file.pool)
        return values[index]

    def rows(self, start: int, stop: int) -> NDArray[Any]:
        """Some of its numbers, along the first axis; the others are not read."""
        if "value" in self._facts or not self.shape or 0 in self.shape:
            return self[()][start:stop]
        check_memory(self._file.path, self.nbytes // self.shape[0] * (stop - start), error=self._file.error)
        return self._file.ask("read", self._file.number, self.name, start, stop)

    def __iter__(self) -> Iterator[Any]:
        return iter(self[()])

    def asstr(self) -> NDArray[Any]:
        """Its texts, as an array of objects; what is no UTF-8 in them is replaced."""
        if not self.is_text:
            raise TypeError(f"{self.name} does not hold texts")
        texts = _value_of(self._facts["texts"]) if "texts" in self._facts else None
        if texts is None:
            texts = self._file.ask("texts", self._file.number, self.name)
        return np.array(texts, dtype=object).reshape(self.shape or ())


class Attributes(Mapping[str, Any]):
    """The attributes of an object."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._facts = values

    def __getitem__(self, name: str) -> Any:
        if name not in self._facts:
            raise KeyError(f"the attribute {name} is missing")
        value = _value_of(self._facts[name])
        return value if isinstance(value, str) else _unpacked(value)[()]

    def __iter__(self) -> Iterator[str]:
        return iter(self._facts)

    def __len__(self) -> int:
        return len(self._facts)


def _value_of(outcome: Mapping[str, Any]) -> Any:
    if "error" in outcome:
        raise ValueError(outcome["error"][1])
    return outcome["result"]


def _unpacked(packed: Sequence[Any]) -> NDArray[Any]:
    dtype, shape, data = packed
    data = base64.b64decode(data) if isinstance(data, str) else data  # from the other process, or this one
    return np.frombuffer(bytearray(data), np.dtype(dtype)).reshape(shape)
