"""A checkpoint again, with other running statistics: every byte of its file as it was, but for those of the statistics.

Nothing in the file is loaded for that, and no code of it runs: its index is read for where each tensor lies, the file
is copied, and numbers are written over numbers of the same type. So whatever lies beside the weights stays what it was.
"""

from __future__ import annotations

import io
import json
import pickle
import shutil
import struct
import zipfile
import zlib
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from jaxtyping import Float

from bnuq.errors import BnuqError, ModelError
from bnuq.files.content import kind_of, sha256_of_file
from bnuq.files.writing import replaced
from bnuq.models.checkpoint import Checkpoint

_LEGACY_START = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."  # the number that torch's older files begin with
_COMPILED = "_orig_mod."
_WRAPPED = ("module", "_orig_mod")  # where DataParallel and torch.compile keep the network
_STORED_AS = {
    "DoubleStorage": torch.float64,
    "FloatStorage": torch.float32,
    "HalfStorage": torch.float16,
    "BFloat16Storage": torch.bfloat16,
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
}
_DEEPEST = 4  # dicts in dicts that are looked through for other entries


def is_checkpoint(path: Path) -> bool:
    """Whether the file at `path` is of a kind that `write_statistics` writes, told by its content."""
    kind = kind_of(path)
    if kind == "zip":
        try:
            with zipfile.ZipFile(path) as archive:
                names = {name.partition("/")[2] for name in archive.namelist()}
        except (OSError, ValueError, zipfile.BadZipFile):
            return False
        return "data.pkl" in names and "constants.pkl" not in names
    if kind == "pickle":
        with path.open("rb") as file:
            return file.read(len(_LEGACY_START)) == _LEGACY_START
    return kind == "safetensors"


def write_statistics(
    checkpoint: Checkpoint, values: Mapping[str, Float[np.ndarray, " channel"]], out: Path
) -> tuple[str, ...]:
    """Write to `out` a copy of the checkpoint's file in which the tensors named in `values` hold these numbers.

    `checkpoint` is as `load_model` gives it and the names are those of its network's state dict; every tensor keeps its
    type. Beside and renamed: `out` is whole or untouched. Gives notes, on entries of the file that share these tensors,
    and on other statistics that stay as they are.

    Raises ModelError where the file has changed since it was read, a tensor is not found in it or has another shape, or
    its type cannot hold the numbers; ResultError where `out` cannot be written.
    """
    path = checkpoint.path
    if sha256_of_file(path) != checkpoint.sha256:
        raise ModelError(f"{path}: has changed since it was read. Run it again.")
    with _told_as_one_message(path):
        layout = _LAYOUTS[checkpoint.form](path)
        targets = _targets(layout, checkpoint, values)
        pieces = [piece for name, place in targets.items() for piece in _pieces(path, name, place, values[name])]
    with path.open("rb") as source, replaced(out) as file:
        shutil.copyfileobj(source, file, 2**20)
        for offset, data in pieces:
            file.seek(offset)
            file.write(data)
        layout.seal(file, {place.storage for place in targets.values()})
    return tuple(_notes(layout, checkpoint, list(targets.values())))


@dataclass(eq=False)
class _Bytes:
    """A run of bytes in the file, a storage: where it begins, and its length."""

    key: str
    length: int
    begin: int = 0


@dataclass(frozen=True)
class _Place:
    """Where a tensor lies; `first`, `shape` and `stride` count numbers of its storage, `dtype` is None where it is none
    that running statistics have."""

    storage: _Bytes
    dtype: torch.dtype | None
    first: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]

    @property
    def width(self) -> int:
        return 1 if self.dtype is None else self.dtype.itemsize

    @property
    def begin(self) -> int:
        return self.storage.begin + self.first * self.width

    @property
    def span(self) -> range:
        """From its first byte to its last."""
        last = sum((size - 1) * step for size, step in zip(self.shape, self.stride, strict=True))
        return range(self.begin, self.begin + (0 if 0 in self.shape else last + 1) * self.width)


@dataclass(frozen=True)
class _Layout:
    """What a file holds, with a `_Place` for every tensor, and what makes its checksums right again."""

    holds: Any
    seal: Callable[[BinaryIO, set[_Bytes]], None]


def _targets(layout: _Layout, checkpoint: Checkpoint, values: Mapping[str, Any]) -> dict[str, _Place]:
    entry = _entry(layout.holds, checkpoint.key)
    if checkpoint.form == "pickled module":
        network = _network_in(entry, tuple(values))
        found = {name: _in_module(network, name) for name in values}
    else:
        bare = {_bare(name, checkpoint.stripped): place for name, place in entry.items() if isinstance(name, str)}
        found = {name: bare.get(name) for name in values}
    for name, place in found.items():
        if not isinstance(place, _Place):
            raise ModelError(
                f"{checkpoint.path}: {name} of the network is not a tensor of this file that could be written over. "
                "Save the network's own state dict (torch.save(model.state_dict(), …)) and name that."
            )
    return {name: place for name, place in found.items() if isinstance(place, _Place)}


def _entry(holds: Any, key: str | None) -> Any:
    """What lies under a dotted path, whose parts may have dots themselves."""
    if key is None:
        return holds
    if isinstance(holds, Mapping):
        if key in holds:
            return holds[key]
        for end in (i for i, letter in enumerate(key) if letter == "."):
            if key[:end] in holds:
                return _entry(holds[key[:end]], key[end + 1 :])
    return None


def _bare(name: str, stripped: Sequence[str]) -> str:
    """The name without the prefixes that reading took off."""
    for prefix in stripped:
        name = name.replace(prefix, "") if prefix == _COMPILED else name.removeprefix(prefix)
    return name


def _network_in(module: Any, names: Sequence[str]) -> Any:
    """The network inside its wrappers: the outermost that has all these tensors."""
    inner = module
    while isinstance(inner, _Object):
        if all(_in_module(inner, name) is not None for name in names):
            return inner
        children = inner.state.get("_modules", {})
        inner = next((children[name] for name in _WRAPPED if name in children), None)
    return module


def _in_module(module: Any, name: str) -> Any:
    """The tensor of this name in a pickled module, None where there is none."""
    *way, last = name.split(".")
    for step in way:
        module = module.state.get("_modules", {}).get(step) if isinstance(module, _Object) else None
    if not isinstance(module, _Object):
        return None
    return next(
        (held[last] for kind in ("_buffers", "_parameters") if last in (held := module.state.get(kind, {}))), None
    )


def _pieces(path: Path, name: str, place: _Place, values: Float[np.ndarray, " channel"]) -> Iterator[tuple[int, bytes]]:
    """The bytes to write, and where."""
    if place.dtype is None or place.shape != values.shape:
        kind = "another type" if place.dtype is None else f"shape {place.shape}"
        raise ModelError(f"{path}: {name} is of {kind}; expected floating-point numbers of shape {values.shape}.")
    numbers = torch.from_numpy(np.array(values, dtype=np.float64)).to(place.dtype)
    if not bool(torch.isfinite(numbers).all()):
        raise ModelError(
            f"{path}: {name} is stored as {str(place.dtype).removeprefix('torch.')}, which cannot hold its new values "
            f"(up to {np.abs(values).max():.3g}). Save the checkpoint in float32 first."
        )
    data, width = numbers.view(torch.uint8).numpy().tobytes(), place.width
    if place.stride == (1,) or len(values) < 2:
        yield place.begin, data
        return
    for i in range(len(values)):
        yield place.begin + i * place.stride[0] * width, data[i * width : (i + 1) * width]


def _notes(layout: _Layout, checkpoint: Checkpoint, changed: Sequence[_Place]) -> Iterator[str]:
    """On entries beside the one that was read."""
    if not isinstance(layout.holds, Mapping) or checkpoint.key is None:
        return
    shared: dict[str, None] = {}
    others: dict[str, None] = {}
    own = f"{checkpoint.key}."
    for name, place in _tensors(layout.holds, ""):
        if f"{name}.".startswith(own):
            continue
        entry = name.partition(".")[0]
        if any(one.storage is place.storage and one.begin in place.span for one in changed):
            shared[entry] = None
        elif name.endswith("running_mean"):
            others[entry] = None
    for entry in shared:
        yield f"its entry {entry!r} holds the very tensors of {checkpoint.key!r}, and changed with it"
    if left := [entry for entry in others if entry not in shared]:
        yield (
            f"the statistics in its entry {checkpoint.key!r} were changed; those in {', '.join(map(repr, left))} are "
            "what they were"
        )


def _tensors(holds: Mapping[Any, Any], path: str, depth: int = 0) -> Iterator[tuple[str, _Place]]:
    for key, value in holds.items():
        if isinstance(value, _Place):
            yield f"{path}{key}", value
        elif isinstance(value, Mapping) and depth < _DEEPEST:
            yield from _tensors(value, f"{path}{key}.", depth + 1)


# safetensors: eight bytes of length, a header in JSON that says where everything lies, and the numbers


def _layout_of_safetensors(path: Path) -> _Layout:
    with path.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(length))
    holds = {}
    for name, one in header.items():
        if name != "__metadata__":
            shape, (begin, end) = tuple(one["shape"]), one["data_offsets"]
            stride = tuple(int(np.prod(shape[axis + 1 :])) for axis in range(len(shape)))
            place = _Bytes(name, end - begin, 8 + length + begin)
            holds[name] = _Place(place, _STORED_AS.get(one["dtype"]), 0, shape, stride)
    return _Layout(holds, lambda file, storages: None)  # noqa: ARG005 - it has no checksums


# torch's zip: a pickle, and a member for every storage, as it lies in memory


def _layout_of_zip(path: Path) -> _Layout:
    with path.open("rb") as file, zipfile.ZipFile(file) as archive:
        members = {member.filename: member for member in archive.infolist()}
        root = next(iter(members)).partition("/")[0]
        if members.get(f"{root}/byteorder") and archive.read(f"{root}/byteorder") != b"little":
            raise ModelError(f"{path}: was written by a big-endian machine. Save it again on this one.")
        unpickler = _Unpickler(io.BytesIO(archive.read(f"{root}/data.pkl")))
        holds = unpickler.load()
        storages = {one: members[f"{root}/data/{key}"] for key, one in unpickler.storages.items()}
        for storage, member in storages.items():
            if member.compress_type != zipfile.ZIP_STORED:
                raise ModelError(f"{path}: its weights are compressed, as torch never does. Save it with torch.save.")
            storage.begin = _data_offset(file, member)
        entries = _central_entries(file, archive.start_dir, list(members))

    def seal(file: BinaryIO, changed: set[_Bytes]) -> None:
        for storage in changed:
            _write_checksum(file, storages[storage], storage.begin, entries[storages[storage].filename])

    return _Layout(holds, seal)


_LOCAL_HEADER, _CENTRAL_HEADER, _DESCRIPTOR_FOLLOWS = 30, 46, 0x08


def _data_offset(file: BinaryIO, member: zipfile.ZipInfo) -> int:
    file.seek(member.header_offset)
    name, extra = struct.unpack("<HH", file.read(_LOCAL_HEADER)[26:30])
    return member.header_offset + _LOCAL_HEADER + name + extra


def _central_entries(file: BinaryIO, at: int, members: Sequence[str]) -> dict[str, int]:
    """Where each member's entry begins in the list at the end of the archive, which begins at `at`, in its order."""
    found = {}
    for name in members:
        file.seek(at)
        header = file.read(_CENTRAL_HEADER)
        if header[:4] != b"PK\x01\x02":
            raise ValueError(f"the list of members ends before {name}")
        found[name] = at
        at += _CENTRAL_HEADER + sum(struct.unpack("<HHH", header[28:34]))
    return found


def _write_checksum(file: BinaryIO, member: zipfile.ZipInfo, begin: int, entry: int) -> None:
    """The CRC-32 of a member's bytes, in every place where the archive has it."""
    file.seek(begin)
    crc, left = 0, member.file_size
    while left and (data := file.read(min(left, 2**20))):
        crc, left = zlib.crc32(data, crc), left - len(data)
    places = [entry + 16]
    if member.flag_bits & _DESCRIPTOR_FOLLOWS:
        file.seek(begin + member.file_size)
        places.append(begin + member.file_size + (4 if file.read(4) == b"PK\x07\x08" else 0))
    else:
        places.append(member.header_offset + 14)
    for place in places:
        file.seek(place)
        file.write(struct.pack("<I", crc))


# before torch 1.6: pickles one behind another, the last of them a list of storages, which follow it in that order


def _layout_of_legacy(path: Path) -> _Layout:
    with path.open("rb") as file:
        for _ in range(3):  # the magic number, the protocol's version, the sizes of integers
            _Unpickler(file).load()
        unpickler = _Unpickler(file)
        holds = unpickler.load()
        keys = [str(key) for key in _Unpickler(file).load()]
        at = file.tell()
        for key in keys:
            unpickler.storages[key].begin = at + 8  # behind its length
            at += 8 + unpickler.storages[key].length
        if at != path.stat().st_size:
            raise ValueError(f"its storages end at byte {at}, the file at {path.stat().st_size}")
    return _Layout(holds, lambda file, storages: None)  # noqa: ARG005 - it has no checksums


_LAYOUTS: dict[str, Callable[[Path], _Layout]] = {
    "safetensors": _layout_of_safetensors,
    "state dict (zip)": _layout_of_zip,
    "state dict (legacy pickle)": _layout_of_legacy,
    "pickled module": lambda path: (_layout_of_zip if kind_of(path) == "zip" else _layout_of_legacy)(path),
}


@dataclass(frozen=True)
class _Storage:
    """What a tensor is a view of, as a pickle names it: itself a part of a storage, from number `first` on."""

    whole: _Bytes
    dtype: torch.dtype | None
    first: int = 0


class _Object(dict[Any, Any]):
    """Stands for every other object that a pickle would make: keeps its items and its state, does nothing."""

    def __new__(cls, *_args: object, **_kwargs: object) -> _Object:
        return dict.__new__(cls if isinstance(cls, type) else _Object)  # type: ignore[arg-type]  # of an object, too

    def __init__(self, *_args: object, **_kwargs: object) -> None:
        super().__init__()
        self.state: dict[str, Any] = {}

    def __call__(self, *_args: object, **_kwargs: object) -> _Object:
        return _Object()

    def __setstate__(self, state: object) -> None:
        self.state = state if isinstance(state, dict) else {}

    def append(self, _item: object) -> None: ...

    def extend(self, _items: object) -> None: ...

    def add(self, _item: object) -> None: ...

    __hash__ = object.__hash__  # type: ignore[assignment]  # it may be a key, or in a set
    __eq__ = object.__eq__


class _Ordered(OrderedDict[Any, Any]):
    def __setstate__(self, _state: object) -> None: ...  # the versions of layouts


def _tensor(storage: Any, offset: Any, shape: Any, stride: Any, *_rest: Any) -> Any:
    if not isinstance(storage, _Storage) or not all(type(n) is int and n >= 0 for n in (offset, *shape, *stride)):
        return _Object()
    return _Place(storage.whole, storage.dtype, storage.first + offset, tuple(shape), tuple(stride))


def _parameter(data: Any, *_rest: Any) -> Any:
    return data


def _from_type(function: Any, _kind: Any, arguments: Any, _state: Any) -> Any:
    return function(*arguments)


_BUILDERS: dict[str, Callable[..., Any]] = {
    "torch._utils._rebuild_tensor": _tensor,
    "torch._utils._rebuild_tensor_v2": _tensor,
    "torch._utils._rebuild_parameter": _parameter,
    "torch._utils._rebuild_parameter_with_state": _parameter,
    "torch._tensor._rebuild_from_type_v2": _from_type,
    "collections.OrderedDict": _Ordered,
}
_WIDTH = {"ComplexDoubleStorage": 16, "LongStorage": 8, "ComplexFloatStorage": 8, "IntStorage": 4, "ShortStorage": 2}


# The Python unpickler, for the reasons of `bnuq.models.pickles`, whose survey every file here has passed.
class _Unpickler(pickle._Unpickler):  # type: ignore[name-defined]
    def __init__(self, stream: BinaryIO) -> None:
        super().__init__(stream, encoding="latin1")
        self.storages: dict[str, _Bytes] = {}

    def find_class(self, module: str, name: str) -> Any:
        builder = _BUILDERS.get(f"{module}.{name}")
        return builder or type("_Object", (_Object,), {"asks": f"{module}.{name}"})

    def persistent_load(self, pid: Any) -> Any:
        if pid[0] in ("module", b"module"):  # the class of a network, with its source
            return pid[1]
        _, kind, key, _, count, *view = pid
        name = str(getattr(kind, "asks", "")).rpartition(".")[2]
        dtype = _STORED_AS.get(name)
        length = count * (_WIDTH.get(name, 1) if dtype is None else dtype.itemsize)
        whole = self.storages.setdefault(str(key), _Bytes(str(key), length))
        whole.length = max(length, whole.length)
        first = view[0][1] if view and view[0] is not None else 0
        return _Storage(whole, dtype, first)


@contextmanager
def _told_as_one_message(path: Path) -> Iterator[None]:
    """What a file that `read_checkpoint` could read makes this reader raise."""
    try:
        yield
    except BnuqError:
        raise
    except Exception as error:
        said = f"{type(error).__name__}: {error}"
        raise ModelError(
            f"{path}: where its statistics lie could not be found ({' '.join(said.split())[:200].rstrip('.: ')}). Save "
            " the network's own state dict (torch.save(model.state_dict(), …)) and name that."
        ) from error
