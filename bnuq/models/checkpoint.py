"""Reading a checkpoint as it comes: recognised by content, checked before loading, never run unless trusted."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import field, replace
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import safetensors.torch
import torch
from torch import Tensor, nn

from bnuq.errors import BnuqError, ModelError, is_out_of_memory
from bnuq.files.content import is_file
from bnuq.files.hub import CONFIG, HubConfig, read_hub_config
from bnuq.files.limits import read_whole
from bnuq.findings import Finding
from bnuq.frozen import frozen
from bnuq.models.architecture import matching_torchvision
from bnuq.models.entries import (
    Plain,
    entries_of,
    leads_to_weights,
    plain_values,
    unused_averages,
    weights_in,
    without_prefixes,
)
from bnuq.models.exported import read_exported, weights_of_script
from bnuq.models.kinds import EXPECTED, INDEX, check_name, kind_of_weights
from bnuq.models.unpickling import opened, survey_of_legacy, survey_of_zip, unpickled
from bnuq.models.weight_checks import ASK_FOR_ORIGINAL, check_not_quantized, check_values

Form = Literal[
    "state dict (zip)", "state dict (legacy pickle)", "safetensors", "pickled module", "TorchScript",
    "exported program", "sharded safetensors", "timm folder", "transformers folder", "in memory",
]  # fmt: skip
_BATCH_SIZES = ("train_batch_size", "batch_size", "batch-size")


@frozen
class Checkpoint:
    """What a checkpoint file holds: `state` or, for a pickled network, `module`.

    `key` is the dotted path of the dict entry that was taken, None where there was nothing to choose; `entries` are all
    that hold weights in the outermost dict. `stripped` are the prefixes taken off every name, outermost first.
    `metadata` are the small plain values beside the weights, `hub` the config beside them in a folder.
    """

    path: Path
    sha256: str
    form: Form
    state: dict[str, Tensor] | None
    module: nn.Module | None
    key: str | None = None
    stripped: tuple[str, ...] = ()
    metadata: Mapping[str, Plain] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()
    entries: tuple[str, ...] = ()
    hub: HubConfig | None = None

    @property
    def train_batch_size(self) -> int | None:
        """The mini-batch size of the training, where the file records one."""
        for name in _BATCH_SIZES:
            for key, value in self.metadata.items():
                if key.rpartition(".")[2] == name and type(value) is int and value > 0:
                    return value
        return None


def read_checkpoint(
    path: str | os.PathLike[str],
    *,
    entry: str | None = None,
    trust_pickle: bool = False,
    only_finite: bool = True,
    main: Callable[[], ModuleType] | None = None,
) -> Checkpoint:
    """The weights in the file at `path`, on the CPU, with the prefixes that wrappers add taken off.

    `entry` is the dotted path of the dict entry that holds them; without it, averaged weights come first. `main` gives
    the script that wrote a pickled network.

    Raises ModelError for a file that is not a checkpoint, is damaged, needs more memory than it fills, or, with
    `only_finite`, holds NaN or infinite weights; UntrustedCodeError where loading would run code and `trust_pickle` is
    not given.
    """
    path = Path(path)
    kind = kind_of_weights(path)
    if kind in ("folder", "text"):
        return _of_several_files(path, entry, only_finite=only_finite)
    with as_model_error(path):
        data = read_whole(path, copies=2, error=ModelError)  # the file's bytes and, for a while, the tensors
        size, sha256 = len(data), hashlib.sha256(data).hexdigest()
        if kind == "safetensors":
            if entry is not None:
                raise ModelError(f"{path}: is a safetensors file, which has no entries; leave out --entry {entry}.")
            state, metadata = _from_safetensors(data)
            checkpoint = Checkpoint(path, sha256, "safetensors", state, None, metadata=metadata)
            return _checked(checkpoint, size=size, only_finite=only_finite)
        archive = opened(path, data) if kind == "zip" else None
        if archive is not None and archive.form == "exported program":
            if entry is not None:
                raise ModelError(f"{path}: is an exported program, which has no entries; leave out --entry {entry}.")
            module = read_exported(archive, data, trust=trust_pickle)
            check_values(path, module.state_dict(), size=size, only_finite=only_finite)
            return Checkpoint(path, sha256, archive.form, None, module)
        if archive is not None and archive.form == "TorchScript":
            holds, form = weights_of_script(archive), archive.form
        else:
            form = "state dict (zip)" if archive is not None else "state dict (legacy pickle)"
            survey = survey_of_zip(archive) if archive is not None else survey_of_legacy(path, data)
            holds = unpickled(path, data, survey, trust_pickle=trust_pickle, main=main)
        del data
    key, weights = weights_in(path, holds, entry)
    entries = tuple(str(key) for key, value in entries_of(holds) if leads_to_weights(value))
    unused = () if entry else tuple(unused_averages(holds, key))
    if isinstance(weights, nn.Module):
        check_not_quantized(weights, path)  # these may have no state dict
        check_values(path, weights.state_dict(), size=size, only_finite=only_finite)
        return Checkpoint(path, sha256, "pickled module", None, weights, key, (), plain_values(holds), unused, entries)
    checkpoint = Checkpoint(path, sha256, form, weights, None, key, (), plain_values(holds), unused, entries)
    return _checked(checkpoint, size=size, only_finite=only_finite)


def content_of(checkpoint: Checkpoint) -> tuple[Any, dict[str, str]]:
    """Everything that the file of a checkpoint holds, read again, and the metadata of safetensors.

    Raises ModelError where the file has changed: what it holds was trusted, if need be, as it was.
    """
    path = checkpoint.path
    with as_model_error(path):
        data = read_whole(path, copies=2, error=ModelError)
        if hashlib.sha256(data).hexdigest() != checkpoint.sha256:
            raise ModelError(f"{path}: has changed since it was read. Run it again.")
        if checkpoint.form == "safetensors":
            return _from_safetensors(data)
        is_zip = kind_of_weights(path) == "zip"
        survey = survey_of_zip(opened(path, data)) if is_zip else survey_of_legacy(path, data)
        return unpickled(path, data, survey, trust_pickle=True), {}


def _from_safetensors(data: bytes) -> tuple[dict[str, Tensor], dict[str, str]]:
    state = safetensors.torch.load(data)  # which has checked the header
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")], object_pairs_hook=_each_once)
    return {name: state[name] for name in sorted(state)}, header.get("__metadata__") or {}


def _each_once(entries: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(header := dict(entries)) < len(entries):
        raise ValueError("its header lists a name twice")
    return header


def _of_several_files(path: Path, entry: str | None, *, only_finite: bool) -> Checkpoint:
    """The weights of a folder, or of an index of safetensors files."""
    folder = path if path.is_dir() else path.parent
    form: Form = "sharded safetensors"
    with as_model_error(path):
        hub = read_hub_config(folder) if folder == path else None
        if folder == path and hub is None and is_file(path / ".metadata"):
            raise ModelError(
                f"{path}: is a distributed checkpoint, which is not read; {EXPECTED}. Convert it: "
                "python -m torch.distributed.checkpoint.format_utils dcp_to_torch FOLDER model.pt"
            )
        if hub is not None:
            form, weights = "timm folder" if hub.package == "timm" else "transformers folder", _of_hub(path)
        else:
            weights = read_safetensors_files(path, folder, path.name if folder != path else _index_in(path))
    key, state = weights_in(path, weights.holds, entry)
    assert isinstance(state, dict)
    entries = tuple(str(key) for key, value in entries_of(weights.holds) if leads_to_weights(value))
    checkpoint = Checkpoint(path, weights.sha256, form, state, None, key, entries=entries, hub=hub)
    return _checked(checkpoint, size=weights.size, only_finite=only_finite)


def _of_hub(folder: Path) -> StoredWeights:
    """The weights beside a config.json; the digest covers both."""
    if is_file(folder / "model.safetensors"):
        return read_safetensors_files(folder, folder, None, "model.safetensors", CONFIG)
    if is_file(folder / f"model{INDEX}"):
        return read_safetensors_files(folder, folder, f"model{INDEX}", CONFIG)
    raise ModelError(
        f"{folder}: has a {CONFIG} and no model.safetensors; expected both (timm writes both with "
        "safe_serialization=True). For other weights (pytorch_model.bin) name their file."
    )


def _index_in(folder: Path) -> str:
    """The only index of safetensors files in a folder."""
    indices = [path.name for path in folder.iterdir() if path.name.endswith(INDEX)]
    if len(indices) != 1:
        raise ModelError(
            f"{folder}: is a folder without a config.json (of timm or transformers) or an index of safetensors files; "
            f"{EXPECTED}. Name the file inside it."
        )
    return indices[0]


def _checked(checkpoint: Checkpoint, *, size: int, only_finite: bool) -> Checkpoint:
    """`checkpoint` without non-tensors and prefixes, its values checked."""
    state = checkpoint.state
    assert state is not None
    named = ((name, value) for name, value in state.items() if isinstance(name, str) and isinstance(value, Tensor))
    tensors = {name: value.detach() for name, value in named}
    for name in tensors:
        check_name(checkpoint.path, name)
    for name, value in state.items():
        if isinstance(value, tuple) and any(isinstance(tensor, Tensor) and tensor.is_quantized for tensor in value):
            raise ModelError(
                f"{checkpoint.path}: is a quantized network: {name} holds whole numbers. {ASK_FOR_ORIGINAL}"
            )
    if not tensors:
        raise ModelError(f"{checkpoint.path}: holds no tensors; {EXPECTED}.")
    check_values(checkpoint.path, tensors, size=size, only_finite=only_finite)
    versions = getattr(state, "_metadata", None)
    if isinstance(versions, Mapping) and all(isinstance(v, Mapping) for v in versions.values()):
        tensors = OrderedDict(tensors)
        tensors._metadata = versions  # type: ignore[attr-defined]  # by it torch reads what older layers wrote
    tensors, stripped = without_prefixes(checkpoint.path, tensors)
    return replace(checkpoint, state=tensors, stripped=stripped)


@contextmanager
def as_model_error(path: Path) -> Iterator[None]:
    """Turn any exception into one ModelError: loaders of hostile files raise EOFError, KeyError, struct.error, …"""
    try:
        yield
    except BnuqError:
        raise
    except Exception as error:
        if is_out_of_memory(error):
            raise ModelError(f"{path}: there is not enough memory to load it. Use a machine with more.") from error
        reason = " ".join(str(error).split())[:200].rstrip(".")
        if operator := re.search(r"(?:operator|Unknown builtin op:) (\w+)::\w+", reason):
            cure = f"Install the matching one with: {matching_torchvision()}"
            if operator[1] != "torchvision":
                cure = "Install that library, of a release that belongs to this torch."
            raise ModelError(
                f"{path}: needs operators of {operator[1]} that torch {torch.__version__} does not have ({reason}): "
                f"the library is missing here, or of another build. {cure}"
            ) from error
        detail = f" ({type(error).__name__}{': ' if reason else ''}{reason})" * (not isinstance(error, _READER_ERRORS))
        raise ModelError(f"{path}: is damaged or incomplete{detail}; {EXPECTED}. Fetch or write it again.") from error


_READER_ERRORS = (AttributeError, TypeError, LookupError, AssertionError)  # their texts are about code, not the file


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
    if len(data := files.read(index)) > _MOST_INDEX:
        raise ModelError(f"{source}: its index has {len(data):,} bytes; expected an index of tensors.")
    content = json.loads(data)
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
