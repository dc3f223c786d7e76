"""Weights in several files of safetensors, which an index lists."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import safetensors.torch
from torch import Tensor

from bnuq.errors import ModelError
from bnuq.files.content import is_file
from bnuq.files.limits import read_whole
from bnuq.frozen import frozen

_MOST_SHARDS = 10_000
_MOST_INDEX = 2**26  # bytes


@frozen
class StoredWeights:
    """The tensors of several files; their SHA-256 is that of the files' names and SHA-256s, and `size` the bytes of
    all."""

    holds: dict[str, Tensor]
    sha256: str
    size: int


class _Files:
    """The files of a folder, each read once; ModelError for a name that leads out of it."""

    def __init__(self, source: Path, folder: Path) -> None:
        self._place, self._folder = source, folder
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


def read_safetensors_files(source: Path, folder: Path, index: str | None, *names: str) -> StoredWeights:
    """The tensors of a folder's safetensors files: those that `index` lists, else `names[0]`. The digest covers all of
    `names`, such as that of a config.

    Raises ModelError for a file that is missing or outside of the folder, and for tensors that are not where the index
    says.
    """
    files = _Files(source, folder)
    state: dict[str, Tensor] = {}
    for name in names[1:] if index is None else names:
        files.read(name)
    if index is None:
        state = safetensors.torch.load(files.read(names[0]))
        return StoredWeights({name: state[name] for name in sorted(state)}, files.sha256, files.size)
    content = json.loads(_small(source, files.read(index)))
    weight_map = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(weight_map, dict) or not all(isinstance(name, str) for name in weight_map.values()):
        raise ModelError(f"{source}: the weight_map of {index} does not name a file for each tensor. Fetch it again.")
    shards = sorted({*weight_map.values()})
    if len(shards) > _MOST_SHARDS:
        raise ModelError(f"{source}: lists {len(shards):,} files; expected at most {_MOST_SHARDS:,}.")
    for shard in shards:
        tensors = safetensors.torch.load(files.read(shard))
        for name in (name for name, file in weight_map.items() if file == shard):
            if name not in tensors:
                raise ModelError(f"{source}: {name[:200]} is not in {shard}, where the index has it. Fetch both again.")
            state[name] = tensors[name]
    return StoredWeights({name: state[name] for name in sorted(state)}, files.sha256, files.size)


def _small(source: Path, data: bytes) -> bytes:
    if len(data) > _MOST_INDEX:
        raise ModelError(f"{source}: its index has {len(data):,} bytes; expected an index of tensors.")
    return data
