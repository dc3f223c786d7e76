"""The batches of CIFAR-10 and CIFAR-100: those for Python, pickles that are read without running anything, and the
binary ones."""

from __future__ import annotations

import gzip
import io
import pickle
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bnuq.data.points import Contents
from bnuq.data.readers.common import readable
from bnuq.errors import DataError
from bnuq.files.pickles import BoundedUnpickler
from bnuq.frozen import frozen

_PIXELS = 3 * 32 * 32
_LARGEST_ARCHIVE = 256 * 2**20  # the published ones unpack to 187 MB


@frozen
class Cifar:
    """What tells CIFAR-10 from CIFAR-100: the key of the labels, how many precede the pixels of a binary row (the
    last is read), and the bytes that no batch exceeds."""

    name: str
    labels: str
    label_bytes: int
    largest_batch: int
    classes: tuple[str, ...] | None


CIFAR10 = Cifar(
    "CIFAR-10",
    "labels",
    1,
    64 * 2**20,  # the published ones have 31 MB
    ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
)
CIFAR100 = Cifar("CIFAR-100", "fine_labels", 2, 192 * 2**20, None)  # the published ones have 155 MB


def read_cifar(path: Path, batches: Sequence[str], cifar: Cifar) -> Contents:
    """The named batches, in that order, from a folder or a `.tar.gz` of one."""
    parts = []
    for name, data in _members(path, batches, cifar):
        with readable(path / name, f"a {cifar.name} batch"):
            read = _binary if name.endswith(".bin") else _python
            parts.append(read(data, path / name, cifar))
    inputs, targets = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    return Contents(inputs, targets, classes=cifar.classes)


def _members(path: Path, names: Sequence[str], cifar: Cifar) -> Iterator[tuple[str, bytes]]:
    if path.is_dir():
        for name in names:
            with readable(path / name, f"a {cifar.name} batch"):
                if (path / name).stat().st_size > cifar.largest_batch:
                    raise DataError(f"{path / name}: is larger than any batch of {cifar.name}.")
                yield name, (path / name).read_bytes()
        return
    contents: dict[str, bytes] = {}
    with readable(path, "a .tar.gz archive"):
        with gzip.open(path) as file:  # whole: tarfile believes the lengths that its headers declare
            unpacked = io.BytesIO(file.read(_LARGEST_ARCHIVE + 1))
        if unpacked.getbuffer().nbytes > _LARGEST_ARCHIVE:
            raise DataError(f"{path}: unpacks to more than any archive of {cifar.name}.")
        archive = tarfile.open(fileobj=unpacked, mode="r:")  # noqa: SIM115 - it is memory
        for member in archive:
            name = member.name.rpartition("/")[2]
            if name in names and member.isfile() and member.size <= cifar.largest_batch:
                content = archive.extractfile(member)
                contents[name] = content.read() if content else b""
    for name in names:
        if name not in contents:
            raise DataError(f"{path}: has no member {name}; expected the archive as published.")
        yield name, contents[name]


def _binary(data: bytes, where: Path, cifar: Cifar) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    head = cifar.label_bytes
    if not data or len(data) % (head + _PIXELS):
        raise DataError(f"{where}: has {len(data)} bytes; expected a multiple of {head + _PIXELS}. It is cut short.")
    rows = np.frombuffer(data, np.uint8).reshape(-1, head + _PIXELS)
    return rows[:, head:].reshape(-1, 3, 32, 32), rows[:, head - 1].astype(np.int64)


def _python(data: bytes, where: Path, cifar: Cifar) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    batch = _BatchUnpickler(io.BytesIO(data), encoding="bytes", size=len(data)).load()
    entries = (
        {k.decode("latin1") if isinstance(k, bytes) else k: v for k, v in batch.items()}
        if isinstance(batch, dict)
        else {}
    )
    pixels, labels = entries.get("data"), entries.get(cifar.labels)
    if not isinstance(pixels, _Array) or not isinstance(labels, list) or not all(type(y) is int for y in labels):
        raise DataError(f"{where}: holds no data and {cifar.labels}; expected a batch of {cifar.name} as published.")
    x = pixels.uint8()
    if x.ndim != 2 or x.shape != (len(labels), _PIXELS):
        raise DataError(
            f"{where}: has pixels of shape {x.shape} and {len(labels)} labels; expected (n, {_PIXELS}) and n."
        )
    return x.reshape(-1, 3, 32, 32), np.array(labels, np.int64)


class _Array:
    """Stands in for numpy's array while a batch is unpickled: it stores its state and calls nothing."""

    def __init__(self, *_: object) -> None:
        self.state: Any = None

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def uint8(self) -> NDArray[np.uint8]:
        _, shape, dtype, fortran, data = self.state
        if not isinstance(dtype, _Dtype) or dtype.name not in ("u1", b"u1") or not isinstance(data, bytes):
            raise ValueError("its pixels are not uint8")
        return np.frombuffer(data, np.uint8).reshape(shape, order="F" if fortran else "C")


class _Dtype:
    """Stands in for numpy's dtype."""

    def __init__(self, name: Any, *_: object) -> None:
        self.name = name

    def __setstate__(self, state: object) -> None:
        pass


def _reconstructed(*_: object) -> _Array:
    return _Array()


def _encoded(text: str, encoding: str) -> bytes:
    if encoding not in ("latin1", b"latin1"):
        raise pickle.UnpicklingError("its text has an encoding that CIFAR does not use")
    return text.encode("latin1")


class _BatchUnpickler(BoundedUnpickler):
    """Knows the globals that a batch needs, all replaced by harmless ones, and no others."""

    def find_class(self, module: str, name: str) -> Any:
        try:
            return _GLOBALS[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no CIFAR batch needs") from None


_GLOBALS: dict[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): _reconstructed,
    ("numpy._core.multiarray", "_reconstruct"): _reconstructed,
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Dtype,
    ("_codecs", "encode"): _encoded,
}
