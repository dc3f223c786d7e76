"""Writes a copy of a checkpoint with other running statistics: only the bytes of the statistics differ.

No code in the file is run: the file is copied, its index gives the location of each tensor, and numbers are overwritten
by numbers of the same type. Everything beside the weights stays unchanged. Before the copy gets its final name it is
read back and checked: it must hold the new statistics, and every other tensor of the network unchanged.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import struct
import zipfile
import zlib
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from bnuq.errors import BnuqError, ModelError, UntrustedCodeError
from bnuq.files.content import kind_of, kind_of_bytes
from bnuq.files.pickles import BoundedUnpickler
from bnuq.files.writing import replaced
from bnuq.findings import Finding, note
from bnuq.models.checkpoint import Checkpoint, read_checkpoint

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
    """Whether the file at `path` is of a kind that `write_statistics` writes, recognised by its content."""
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
) -> tuple[Finding, ...]:
    """Write to `out` a copy of the checkpoint's file in which the tensors named in `values` hold these numbers.

    `checkpoint` is as `load_model` gives it and the names are those of its network's state dict; every tensor keeps its
    type. Beside and renamed: `out` is whole or untouched. Gives notes, on entries of the file that share these tensors,
    and on other statistics that stay as they are.

    Raises ModelError where the file has changed since it was read, a tensor is not found in it or has another shape,
    shares its memory with another that is to stay or to become something else, or is of a type that cannot hold the
    numbers; ResultError where `out` cannot be written.
    """
    path = checkpoint.path
    with path.open("rb") as source, replaced(out) as file:
        if _copied(source, file) != checkpoint.sha256:
            raise ModelError(f"{path}: has changed since it was read. Run it again.")
        with _as_model_error(path):
            layout = _layout(checkpoint)(file, path)
            targets = _targets(layout, checkpoint, values)
            before = _tensors_read_back(file, layout, checkpoint, targets)
        for target in targets:
            for offset, data in target.pieces():
                file.seek(offset)
                file.write(data)
        layout.seal(file, {target.place.storage for target in targets})
        with _as_model_error(path):
            try:
                after = _tensors_read_back(file, layout, checkpoint, targets)
            except ModelError as error:
                raise _not_as_written(path, "it seems damaged") from error
            _check_read_back(path, before, after, targets)
    return tuple(_notes(layout, checkpoint, targets))


def as_stored(
    checkpoint: Checkpoint, values: Mapping[str, Float[np.ndarray, " channel"]]
) -> dict[str, Float[np.ndarray, " channel"]]:
    """The numbers that `write_statistics` would write for `values`, in float64: rounded to the types of the file.

    Raises ModelError as that does.
    """
    with _as_model_error(checkpoint.path), checkpoint.path.open("rb") as file:
        targets = _targets(_layout(checkpoint)(file, checkpoint.path), checkpoint, values)
    return {target.name: target.numbers.double().numpy() for target in targets}


def _layout(checkpoint: Checkpoint) -> Callable[[BinaryIO, Path], _Layout]:
    if (layout := _LAYOUTS.get(checkpoint.form)) is None:
        raise ModelError(
            f"{checkpoint.path}: its form ({checkpoint.form}) is read-only here; expected a state dict, "
            "safetensors in one file, or a pickled module."
        )
    return layout


def _copied(source: BinaryIO, target: BinaryIO) -> str:
    """Copy all there is; the SHA-256, in hexadecimal, of what was copied."""
    digest = hashlib.sha256()
    while data := source.read(2**20):
        digest.update(data)
        target.write(data)
    return digest.hexdigest()


@dataclass(eq=False)
class _Bytes:
    """A run of bytes in the file, a storage: where it begins, and its length."""

    key: str
    length: int
    begin: int = 0


@dataclass(frozen=True)
class _Place:
    """The location of a tensor; `first`, `shape` and `stride` count numbers of its storage. `dtype` is None where
    running statistics cannot have it."""

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

    @property
    def begins(self) -> Int64[np.ndarray, " number"]:
        """The first byte of each of its numbers; numbers that share a place count once."""
        offsets = np.array([self.begin], dtype=np.int64)
        for size, step in zip(self.shape, self.stride, strict=True):
            steps = np.arange(min(size, 1) if step == 0 else size, dtype=np.int64) * (step * self.width)
            offsets = (offsets[:, None] + steps).ravel()
        return offsets


@dataclass(frozen=True)
class _Layout:
    """What a file holds, with a `_Place` for every tensor, and what makes its checksums right again."""

    holds: Any
    seal: Callable[[BinaryIO, set[_Bytes]], None]


@dataclass(frozen=True)
class _Target:
    """A statistic to change: its name in the network's state dict and in the file's entry, and its new numbers, of the
    file's type."""

    name: str
    written: str
    place: _Place
    numbers: Tensor

    def pieces(self) -> Iterator[tuple[int, bytes]]:
        """The bytes to write, and where."""
        place, data = self.place, self.numbers.view(torch.uint8).numpy().tobytes()
        if place.stride == (1,) or len(self.numbers) < 2:
            yield place.begin, data
            return
        for i in range(len(self.numbers)):
            yield place.begin + i * place.stride[0] * place.width, data[i * place.width : (i + 1) * place.width]


def _targets(layout: _Layout, checkpoint: Checkpoint, values: Mapping[str, Any]) -> tuple[_Target, ...]:
    """The tensors to write; ModelError where one is missing, stored twice or sharing memory."""
    path, places = checkpoint.path, _tensor_places(layout, checkpoint, tuple(values))
    written_names = _by_bare_name(path, places, checkpoint.stripped, values.keys())
    for name in values:
        if name not in written_names:
            raise ModelError(
                f"{path}: {name} of the network is not a tensor of this file that could be written over. "
                "Save the network's own state dict (torch.save(model.state_dict(), …)) and name that."
            )
    targets = tuple(
        _Target(name, written, places[written], _numbers(path, name, places[written], values[name]))
        for name, written in ((name, written_names[name]) for name in values)
    )
    _check_apart(path, targets, places)
    return targets


def _tensor_places(layout: _Layout, checkpoint: Checkpoint, names: Sequence[str]) -> dict[str, _Place]:
    """The tensors of the entry that was read, by their names in it; of a pickled module, those of the network in it."""
    entry = _entry(layout.holds, checkpoint.key)
    if checkpoint.form != "pickled module":
        entries = entry if isinstance(entry, Mapping) else {}
        top = {name: place for name, place in entries.items() if isinstance(name, str) and isinstance(place, _Place)}
        return dict(_tensors(entries, "")) | top  # a name with dots is the tensor's own, before it is a path
    network = _network_in(entry, names)
    places = dict(_tensors_of_module(network, "", set()))
    return places | {name: place for name in names if isinstance(place := _in_module(network, name), _Place)}


def _tensors_of_module(module: Any, path: str, visited: set[int]) -> Iterator[tuple[str, _Place]]:
    """Each once, where the module that holds it has several names."""
    if not isinstance(module, _Object) or id(module) in visited:
        return
    visited.add(id(module))
    for kind in ("_parameters", "_buffers"):
        for name, place in module.state.get(kind, {}).items():
            if isinstance(place, _Place):
                yield f"{path}{name}", place
    for name, child in module.state.get("_modules", {}).items():
        yield from _tensors_of_module(child, f"{path}{name}.", visited)


def _by_bare_name(
    path: Path, places: Mapping[str, _Place], stripped: Sequence[str], wanted: Iterable[str]
) -> dict[str, str]:
    """The name in the file of each wanted tensor; ModelError where two tensors of the file get the same name."""
    wanted, written_names = set(wanted), dict[str, str]()
    for written, place in places.items():
        name = _bare(written, stripped)
        if name is None or name not in wanted:
            continue
        if name in written_names and places[written_names[name]] != place:
            raise ModelError(
                f"{path}: {written_names[name]} and {written} are both {name} of the network, once the prefixes are "
                "off. Save the network's own state dict (torch.save(model.state_dict(), …)) and name that."
            )
        written_names[name] = written
    return written_names


def _check_apart(path: Path, targets: Sequence[_Target], places: Mapping[str, _Place]) -> None:
    """Raise ModelError where writing one statistic would change another tensor of the network, or itself."""
    for target in targets:
        if 0 in target.place.stride and len(target.numbers) > 1:
            raise _shared(path, f"the channels of {target.name}")
    last: tuple[int, bytes, str] | None = None
    for piece in sorted((begin, data, target.name) for target in targets for begin, data in target.pieces()):
        if last is not None and piece[0] < last[0] + len(last[1]) and piece[:2] != last[:2]:
            raise _shared(path, " and ".join(sorted([last[2], piece[2]])))
        last = piece
    changed = {target.written for target in targets}
    for name, place in places.items():
        if name not in changed and (by := _touching(place, targets)) is not None:
            raise _shared(path, f"{by.name} and {name}")


def _shared(path: Path, tensors: str) -> ModelError:
    return ModelError(
        f"{path}: {tensors} share memory in the file, so that one cannot change without the other. Save clones, "
        "{k: v.clone() for k, v in model.state_dict().items()}, and name that file."
    )


def _touching(place: _Place, targets: Sequence[_Target]) -> _Target | None:
    """A target that has a byte in common with this tensor."""
    span = place.span
    for target in targets:
        other = target.place
        if other.storage is not place.storage or other.span.start >= span.stop or span.start >= other.span.stop:
            continue
        begins, starts = other.begins, place.begins  # a target's are in order and apart, so its ends are in order, too
        behind = np.searchsorted(begins, starts + place.width)
        if bool(((behind > 0) & (begins[np.maximum(behind - 1, 0)] + other.width > starts)).any()):
            return target
    return None


def _tensors_read_back(
    file: BinaryIO, layout: _Layout, checkpoint: Checkpoint, targets: Sequence[_Target]
) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors of the entry as torch reads them from the file being written, and what it calls the targets.

    Where code would have to run for that, they are read by the index.
    """
    file.flush()
    try:
        reread = read_checkpoint(Path(file.name), entry=checkpoint.key, only_finite=False)
    except UntrustedCodeError:
        reread = None
    if reread is not None and reread.state is not None:
        return reread.state, {target.name: _bare(target.written, reread.stripped) or "" for target in targets}
    places = _tensor_places(layout, checkpoint, [target.name for target in targets])
    raw = {name: torch.from_numpy(_raw(file, place)) for name, place in places.items()}
    return raw, {target.name: target.written for target in targets}


def _raw(file: BinaryIO, place: _Place) -> np.ndarray:
    """The bytes of a tensor's numbers, as stored."""
    file.seek(place.span.start)
    data = np.frombuffer(file.read(len(place.span)), dtype=np.uint8)
    if math.prod(place.shape) * place.width == len(data):
        return data.copy()
    starts = place.begins - place.span.start
    return data[(starts[:, None] + np.arange(place.width)).ravel()]


def _check_read_back(
    path: Path,
    before: tuple[dict[str, Tensor], dict[str, str]],
    after: tuple[dict[str, Tensor], dict[str, str]],
    targets: Sequence[_Target],
) -> None:
    (old, _), (new, called) = before, after
    expected = old | {called[target.name]: target.numbers for target in targets}
    wrong = [name for name in expected if name not in new or not torch.equal(_bits(new[name]), _bits(expected[name]))]
    if wrong or new.keys() != old.keys():
        raise _not_as_written(path, ", ".join(wrong[:3]) or "its names")


def _not_as_written(path: Path, reason: str) -> ModelError:
    return ModelError(
        f"{path}: its copy does not read back as it was written ({reason}), so it was removed. Save clones, "
        "{k: v.clone() for k, v in model.state_dict().items()}, and name that file."
    )


def _bits(values: Tensor) -> Tensor:
    return values.detach().contiguous().reshape(-1).view(torch.uint8)


def _entry(holds: Any, key: str | None) -> Any:
    """The entry under a dotted path, whose parts may contain dots themselves."""
    if key is None:
        return holds
    if isinstance(holds, Mapping):
        if key in holds:
            return holds[key]
        for end in (i for i, letter in enumerate(key) if letter == "."):
            if key[:end] in holds:
                return _entry(holds[key[:end]], key[end + 1 :])
    return None


def _bare(name: str, stripped: Sequence[str]) -> str | None:
    """The name without the prefixes that reading took off; None where it does not carry them, and was left out."""
    for prefix in stripped:
        if prefix == _COMPILED:
            name = name.replace(prefix, "")
        elif name.startswith(prefix):
            name = name.removeprefix(prefix)
        else:
            return None
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
        (tensors[last] for kind in ("_buffers", "_parameters") if last in (tensors := module.state.get(kind, {}))), None
    )


def _numbers(path: Path, name: str, place: _Place, values: Float[np.ndarray, " channel"]) -> Tensor:
    """The values in the type of the file."""
    if place.dtype is None or place.shape != values.shape:
        kind = "another type" if place.dtype is None else f"shape {place.shape}"
        raise ModelError(f"{path}: {name} is of {kind}; expected floating-point numbers of shape {values.shape}.")
    numbers = torch.from_numpy(np.array(values, dtype=np.float64)).to(place.dtype)
    if not bool(torch.isfinite(numbers).all()):
        raise ModelError(
            f"{path}: {name} is stored as {str(place.dtype).removeprefix('torch.')}, which cannot hold its new values "
            f"(up to {np.abs(values).max():.3g}). Save the checkpoint in float32 first."
        )
    return numbers


def _notes(layout: _Layout, checkpoint: Checkpoint, targets: Sequence[_Target]) -> Iterator[Finding]:
    """On entries beside the one that was read."""
    if not isinstance(layout.holds, Mapping) or checkpoint.key is None:
        return
    shared: dict[str, None] = {}
    others: dict[str, None] = {}
    prefix = f"{checkpoint.key}."
    for name, place in _tensors(layout.holds, ""):
        if f"{name}.".startswith(prefix):
            continue
        entry = name.partition(".")[0]
        if _touching(place, targets) is not None:
            shared[entry] = None
        elif name.endswith("running_mean"):
            others[entry] = None
    for entry in shared:
        yield note("entry-shared", shared=entry, entry=checkpoint.key)
    if left := [entry for entry in others if entry not in shared]:
        yield note("entries-unchanged", entry=checkpoint.key, others=left)


def _tensors(holds: Mapping[Any, Any], path: str, depth: int = 0) -> Iterator[tuple[str, _Place]]:
    for key, value in holds.items():
        if isinstance(value, _Place):
            yield f"{path}{key}", value
        elif isinstance(value, Mapping) and depth < _DEEPEST:
            yield from _tensors(value, f"{path}{key}.", depth + 1)


# safetensors: eight bytes of length, a JSON header with the location of every tensor, and the numbers


def _layout_of_safetensors(file: BinaryIO, _path: Path) -> _Layout:
    file.seek(0)
    (length,) = struct.unpack("<Q", file.read(8))
    header = json.loads(file.read(length))
    holds = {}
    for name, entry in header.items():
        if name != "__metadata__":
            shape, (begin, end) = tuple(entry["shape"]), entry["data_offsets"]
            stride = tuple(int(np.prod(shape[axis + 1 :])) for axis in range(len(shape)))
            place = _Bytes(name, end - begin, 8 + length + begin)
            holds[name] = _Place(place, _STORED_AS.get(entry["dtype"]), 0, shape, stride)
    return _Layout(holds, lambda file, storages: None)  # noqa: ARG005 - it has no checksums


# torch's zip: a pickle, and a member with the memory of every storage


def _layout_of_zip(file: BinaryIO, path: Path) -> _Layout:
    with zipfile.ZipFile(file) as archive:
        members = {member.filename: member for member in archive.infolist()}
        root = next(iter(members)).partition("/")[0]
        if members.get(f"{root}/byteorder") and archive.read(f"{root}/byteorder") != b"little":
            raise ModelError(f"{path}: was written by a big-endian machine. Save it again on this one.")
        data = archive.read(f"{root}/data.pkl")
        unpickler = _Unpickler(io.BytesIO(data), size=len(data))
        holds = unpickler.load()
        storages = {storage: members[f"{root}/data/{key}"] for key, storage in unpickler.storages.items()}
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
    begins = {}
    for name in members:
        file.seek(at)
        header = file.read(_CENTRAL_HEADER)
        if header[:4] != b"PK\x01\x02":
            raise ValueError(f"the list of members ends before {name}")
        begins[name] = at
        at += _CENTRAL_HEADER + sum(struct.unpack("<HHH", header[28:34]))
    return begins


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


# before torch 1.6: consecutive pickles, the last a list of storages, which follow in that order


def _layout_of_legacy(file: BinaryIO, _path: Path) -> _Layout:
    size = file.seek(0, io.SEEK_END)
    file.seek(0)
    for _ in range(3):  # the magic number, the protocol's version, the sizes of integers
        _Unpickler(file, size=size).load()
    unpickler = _Unpickler(file, size=size)
    holds = unpickler.load()
    keys = [str(key) for key in _Unpickler(file, size=size).load()]
    at = file.tell()
    for key in keys:
        unpickler.storages[key].begin = at + 8  # behind its length
        at += 8 + unpickler.storages[key].length
    if at != size:
        raise ValueError(f"its storages end at byte {at}, the file at {size}")
    return _Layout(holds, lambda file, storages: None)  # noqa: ARG005 - it has no checksums


def _layout_of_module(file: BinaryIO, path: Path) -> _Layout:
    file.seek(0)
    return (_layout_of_zip if kind_of_bytes(file.read(4096)) == "zip" else _layout_of_legacy)(file, path)


# Each reader takes the open file, and its path for messages.
_LAYOUTS: dict[str, Callable[[BinaryIO, Path], _Layout]] = {
    "safetensors": _layout_of_safetensors,
    "state dict (zip)": _layout_of_zip,
    "state dict (legacy pickle)": _layout_of_legacy,
    "pickled module": _layout_of_module,
}


@dataclass(frozen=True)
class _Storage:
    """What a tensor is a view of, as a pickle names it: itself a part of a storage, from number `first` on."""

    memory: _Bytes
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
    return _Place(storage.memory, storage.dtype, storage.first + offset, tuple(shape), tuple(stride))


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


class _Unpickler(BoundedUnpickler):
    def __init__(self, stream: BinaryIO, *, size: int) -> None:
        super().__init__(stream, encoding="latin1", size=size)
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
        memory = self.storages.setdefault(str(key), _Bytes(str(key), length))
        memory.length = max(length, memory.length)
        first = view[0][1] if view and view[0] is not None else 0
        return _Storage(memory, dtype, first)


@contextmanager
def _as_model_error(path: Path) -> Iterator[None]:
    """What a file that `read_checkpoint` could read makes this reader raise."""
    try:
        yield
    except BnuqError:
        raise
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        raise ModelError(
            f"{path}: the places of its statistics were not found ({' '.join(reason.split())[:200].rstrip('.: ')}). "
            "Save the network's own state dict (torch.save(model.state_dict(), …)) and name that."
        ) from error
