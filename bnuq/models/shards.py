"""Weights in several files: safetensors with an index, and the folders of `torch.distributed.checkpoint`."""

from __future__ import annotations

import hashlib
import io
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

from bnuq.errors import ModelError
from bnuq.files.content import is_file
from bnuq.files.limits import read_whole
from bnuq.files.pickles import BoundedUnpickler

_MOST_SHARDS = 10_000
_MOST_INDEX = 2**26  # bytes
METADATA = ".metadata"  # in the folder of a distributed checkpoint


@dataclass(frozen=True)
class Weights:
    """The tensors of several files, in dicts as they were saved; their SHA-256 is that of the files' names and
    SHA-256s, and `size` the bytes of all."""

    holds: dict[str, Any]
    sha256: str
    size: int


class _Files:
    """The files of a folder, each read once; ModelError for a name that leads out of it."""

    def __init__(self, place: Path, folder: Path) -> None:
        self._place, self._folder = place, folder
        self._digests: dict[str, str] = {}
        self.size = 0

    def read(self, name: object) -> bytes:
        if not isinstance(name, str) or not name or name in (".", "..") or set(name) & set("/\\:\0"):
            raise ModelError(f"{self._place}: names the file {str(name)[:100]!r}; expected one in its folder.")
        if not is_file(self._folder / name):
            raise ModelError(f"{self._place}: {name}, which holds a part of the weights, is missing. Fetch it too.")
        data = read_whole(self._folder / name, copies=2, error=ModelError)
        if name not in self._digests:
            self.size += len(data)
        self._digests[name] = hashlib.sha256(data).hexdigest()
        return data

    @property
    def sha256(self) -> str:
        listing = "\n".join(f"{name} {self._digests[name]}" for name in sorted(self._digests))
        return hashlib.sha256(listing.encode()).hexdigest()


def read_safetensors_files(place: Path, folder: Path, index: str | None, *names: str) -> Weights:
    """The tensors of a folder's safetensors files: those that `index` lists, else `names[0]`. The digest covers all of
    `names`, such as that of a config.

    Raises ModelError for a file that is missing or outside of the folder, and for tensors that are not where the index
    says.
    """
    files = _Files(place, folder)
    state: dict[str, Tensor] = {}
    for name in names[1:] if index is None else names:
        files.read(name)
    if index is None:
        state = safetensors.torch.load(files.read(names[0]))
        return Weights({name: state[name] for name in sorted(state)}, files.sha256, files.size)
    content = json.loads(_small(place, files.read(index)))
    listed = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(listed, dict) or not all(isinstance(name, str) for name in listed.values()):
        raise ModelError(f"{place}: the weight_map of {index} does not name a file for each tensor. Fetch it again.")
    shards = sorted({*listed.values()})
    if len(shards) > _MOST_SHARDS:
        raise ModelError(f"{place}: lists {len(shards):,} files; expected at most {_MOST_SHARDS:,}.")
    for shard in shards:
        tensors = safetensors.torch.load(files.read(shard))
        for name in (name for name, file in listed.items() if file == shard):
            if name not in tensors:
                raise ModelError(f"{place}: {name[:200]} is not in {shard}, where the index has it. Fetch both again.")
            state[name] = tensors[name]
    return Weights({name: state[name] for name in sorted(state)}, files.sha256, files.size)


def _small(place: Path, data: bytes) -> bytes:
    if len(data) > _MOST_INDEX:
        raise ModelError(f"{place}: its index has {len(data):,} bytes; expected an index of tensors.")
    return data


def read_distributed(folder: Path, unpickled: Callable[[bytes], Any]) -> Weights:
    """The tensors in a folder of `torch.distributed.checkpoint`, whole, in dicts as they were saved.

    Nothing is unpickled but names, sizes and places: `unpickled` reads a tensor of a shard, safely. Raises ModelError
    for shards that are missing, damaged or transformed.
    """
    files = _Files(folder, folder)
    index = _Metadata(folder, _small(folder, files.read(METADATA))).load()
    places: dict[str, list[Any]] = {}
    for key, place in index.storage_data.items():
        places.setdefault(key.fqn, []).append((key, place))
    shards = {str(place.relative_path) for entries in places.values() for _, place in entries}
    if len(shards) > _MOST_SHARDS:
        raise ModelError(f"{folder}: lists {len(shards):,} files; expected at most {_MOST_SHARDS:,}.")
    data = {name: files.read(name) for name in sorted(shards)}
    whole = {name: entry for name, entry in index.state_dict_metadata.items() if hasattr(entry, "chunks")}
    declared = sum(_bytes_of(entry) for entry in whole.values())
    if declared > files.size:
        raise ModelError(f"{folder}: declares {declared} bytes of tensors in {files.size}; it is damaged or hostile.")
    holds: dict[str, Any] = {}
    for name, entry in whole.items():
        tensor = _assembled(folder, name, entry, places.get(name, ()), data, unpickled)
        _put(holds, (index.planner_data or {}).get(name, (name,)), tensor)
    return Weights(holds, files.sha256, files.size)


def _bytes_of(entry: Any) -> int:
    return math.prod(_sizes(entry.size)) * entry.properties.dtype.itemsize


def _sizes(sizes: Any) -> tuple[int, ...]:
    values = tuple(sizes)
    if not all(type(value) is int and value >= 0 for value in values):
        raise ValueError("a size is not a whole number")
    return values


def _assembled(
    folder: Path,
    name: str,
    entry: Any,
    places: Sequence[tuple[Any, Any]],
    data: Mapping[str, bytes],
    unpickled: Callable[[bytes], Any],
) -> Tensor:
    """A tensor put together from its parts."""
    whole = torch.empty(_sizes(entry.size), dtype=entry.properties.dtype)
    filled = 0
    for key, place in places:
        if getattr(place, "transform_descriptors", None):
            raise ModelError(f"{folder}: {name} is compressed or encrypted; expected plain shards.")
        start, length = _sizes((place.offset, place.length))
        part = unpickled(data[place.relative_path][start : start + length])
        offsets = _sizes(key.offset if key.offset is not None else (0,) * whole.ndim)
        room = whole[tuple(slice(o, o + count) for o, count in zip(offsets, part.shape, strict=True))]
        if room.shape != part.shape or part.dtype != whole.dtype:
            raise ModelError(f"{folder}: a part of {name} has another size or type than the index says.")
        room.copy_(part)
        filled += part.numel()
    if filled != whole.numel():
        raise ModelError(f"{folder}: of {name}, {filled} of {whole.numel()} values are there. Fetch all shards.")
    return whole


def _put(holds: dict[str, Any], path: Sequence[Any], tensor: Tensor) -> None:
    for part in path[:-1]:
        holds = holds.setdefault(str(part), {})
    holds[str(path[-1])] = tensor


class _Record:
    """Stands for an object of the index: its fields, and nothing that runs."""

    def __new__(cls, *_args: object) -> _Record:
        return object.__new__(cls)

    def __init__(self, *_args: object) -> None: ...

    def __setstate__(self, state: Any) -> None:
        self.__dict__.update(
            state if isinstance(state, dict) else {"dtype": state[0]}
        )  # the latter of TensorProperties


class _Metadata(BoundedUnpickler):
    """Reads the `.metadata` of a distributed checkpoint: records of names, sizes and places; ModelError for others."""

    def __init__(self, folder: Path, data: bytes) -> None:
        self._folder = folder
        super().__init__(io.BytesIO(data), encoding="ASCII", size=len(data))

    def find_class(self, module: str, name: str) -> Any:
        if module == "torch" and isinstance(dtype := getattr(torch, name, None), torch.dtype):
            return dtype
        if (module, name) == ("torch", "Size"):
            return tuple
        if f"{module}.{name}" == "collections.OrderedDict":
            return dict
        if module in _MODULES or (module.startswith("pathlib") and name.endswith("Path")):
            return _Record
        raise ModelError(
            f"{self._folder}: its {METADATA} is refused: it names {module}.{name}, which would have to run, and no "
            "such index needs it. Nothing was run."
        )


_MODULES = (
    "torch.distributed.checkpoint.metadata",
    "torch.distributed.checkpoint.filesystem",
    "torch.serialization",  # the function that gives a layout
)
