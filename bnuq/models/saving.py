"""Writes a copy of a checkpoint with other running statistics; everything else in it stays as it was."""

from __future__ import annotations

import copy
import io
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from torch import Tensor, nn

from bnuq.errors import ModelError
from bnuq.files.content import kind_of
from bnuq.files.writing import write_bytes
from bnuq.findings import Finding, note
from bnuq.models.checkpoint import Checkpoint, content_of
from bnuq.models.prefixes import COMPILED
from bnuq.shapes import Float

_LEGACY_START = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."  # the number that torch's older files begin with
_FORMS = ("state dict (zip)", "state dict (legacy pickle)", "safetensors", "pickled module")
_WRAPPED = ("module", "_orig_mod")  # where DataParallel and torch.compile keep the network

Statistics = Mapping[str, Float[np.ndarray, " channel"]]


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
    return kind == "safetensors" or (kind == "pickle" and _is_legacy(path))


def as_stored(checkpoint: Checkpoint, values: Statistics) -> dict[str, Float[np.ndarray, " channel"]]:
    """The numbers that `write_statistics` would write for `values`, in float64: rounded to the types of the file.

    Raises ModelError as that does.
    """
    content, _ = _content(checkpoint)
    rounded = _rounded(_entry(content, checkpoint.key), values, checkpoint)
    return {name: value.double().numpy() for name, value in rounded.items()}


def write_statistics(checkpoint: Checkpoint, values: Statistics, out: Path) -> tuple[Finding, ...]:
    """Write to `out` what the checkpoint's file holds, with these numbers in the tensors named in `values`.

    `checkpoint` is as `load_model` gives it and the names are those of its network's state dict; every tensor keeps its
    type, and a file of torch.save the format (zip or older) that it has. `out` is whole or untouched. Gives a note on
    other statistics in the file, which stay as they are.

    Raises ModelError where the file has changed since it was read, is of a form that is only read, or a tensor is not
    found in it, has another shape, or is of a type that cannot hold the numbers; ResultError where `out` cannot be
    written.
    """
    content, metadata = _content(checkpoint)
    entry = _entry(content, checkpoint.key)
    statistics = _rounded(entry, values, checkpoint)
    if isinstance(entry, nn.Module):  # unpickled for this
        for name, value in statistics.items():
            for tensors, key in _places_in(entry)[name]:
                tensors[key] = value.clone()
        changed = content
    else:
        # Tensors are replaced, not written to: others may share their memory. A copy keeps the versions of layers.
        state = copy.copy(entry)
        for stored, name in _names(entry, checkpoint.stripped).items():
            if name in statistics:
                state[stored] = statistics[name].clone()
        changed = _with_entry(content, checkpoint.key, state)
    if checkpoint.form == "safetensors":
        data = safetensors.torch.save(changed, metadata)
    else:  # in memory first: torch would hide that a disk is full
        buffer = io.BytesIO()
        torch.save(changed, buffer, _use_new_zipfile_serialization=not _is_legacy(checkpoint.path))
        data = buffer.getbuffer()
    write_bytes(out, data)
    return tuple(_note_on_other_entries(content, checkpoint.key))


def _is_legacy(path: Path) -> bool:
    """Whether torch.save wrote this file before version 1.6, or in that format."""
    with path.open("rb") as file:
        return file.read(len(_LEGACY_START)) == _LEGACY_START


def _content(checkpoint: Checkpoint) -> tuple[Any, dict[str, str]]:
    if checkpoint.form not in _FORMS:
        raise ModelError(
            f"{checkpoint.path}: its form ({checkpoint.form}) is read-only here; expected a state dict, "
            "safetensors in one file, or a pickled module."
        )
    return content_of(checkpoint)


def _rounded(entry: Any, values: Statistics, checkpoint: Checkpoint) -> dict[str, Tensor]:
    """The values in the types that the state dict or network has."""
    path = checkpoint.path
    if isinstance(entry, nn.Module):
        state = {name: tensors[key] for name, places in _places_in(entry).items() for tensors, key in places}
    else:
        state = {name: entry[stored] for stored, name in _names(entry, checkpoint.stripped).items()}
    rounded: dict[str, Tensor] = {}
    for name, value in values.items():
        if (stored := state.get(name)) is None:
            raise ModelError(
                f"{path}: {name} of the network is not a tensor of this file that could be replaced. "
                "Save the network's own state dict (torch.save(model.state_dict(), …)) and name that."
            )
        if not stored.is_floating_point() or stored.shape != value.shape:
            kind = f"shape {tuple(stored.shape)}" if stored.is_floating_point() else "another type"
            raise ModelError(f"{path}: {name} is of {kind}; expected floating-point numbers of shape {value.shape}.")
        rounded[name] = torch.from_numpy(np.array(value, dtype=np.float64)).to(stored.dtype)
        if not bool(torch.isfinite(rounded[name]).all()):
            raise ModelError(
                f"{path}: {name} is stored as {str(stored.dtype).removeprefix('torch.')}, which cannot hold its new "
                f"values (up to {np.abs(value).max():.3g}). Save the checkpoint in float32 first."
            )
    return rounded


def _names(entry: Mapping[Any, Any], stripped: Sequence[str]) -> dict[str, str]:
    """The name in the network of each tensor of a state dict, by its name there."""
    stored_names = (name for name, value in entry.items() if isinstance(name, str) and isinstance(value, Tensor))
    return {stored: name for stored in stored_names if (name := _bare(stored, stripped)) is not None}


def _bare(name: str, stripped: Sequence[str]) -> str | None:
    """The name without the prefixes that reading took off; None where it does not carry them, and was left out."""
    for prefix in stripped:
        if prefix == COMPILED:
            name = name.replace(prefix, "")
        elif name.startswith(prefix):
            name = name.removeprefix(prefix)
        else:
            return None
    return name


def _places_in(module: nn.Module) -> dict[str, list[tuple[dict[str, Any], str]]]:
    """The dicts of buffers that hold each tensor, by its name without those of wrappers; several where a layer is
    there more than once."""
    places: dict[str, list[tuple[dict[str, Any], str]]] = {}
    for prefix, layer in module.named_modules(remove_duplicate=False):
        parts = [part for part in prefix.split(".") if part != COMPILED.rstrip(".")]
        names = {".".join([*parts, ""]).lstrip(".")}
        while parts and parts[0] in _WRAPPED:
            parts = parts[1:]
            names.add(".".join([*parts, ""]).lstrip("."))
        for key, value in layer._buffers.items():
            if isinstance(value, Tensor):
                for name in names:
                    places.setdefault(f"{name}{key}", []).append((layer._buffers, key))
    return places


def _entry(content: Any, key: str | None) -> Any:
    """The entry under a dotted path, whose parts may contain dots themselves."""
    if key is None:
        return content
    head, rest = _divided(content, key)
    return _entry(content[head], rest)


def _with_entry(content: Any, key: str | None, entry: Any) -> Any:
    """The content with another entry under this path; the dicts on the way are copies."""
    if key is None:
        return entry
    head, rest = _divided(content, key)
    changed = copy.copy(content)
    changed[head] = _with_entry(content[head], rest, entry)
    return changed


def _divided(content: Mapping[str, Any], key: str) -> tuple[str, str | None]:
    """The first part of the path, which is a key of `content`, and the rest."""
    ends = [len(key), *(position for position, letter in enumerate(key) if letter == ".")]
    end = next(end for end in ends if key[:end] in content)
    return key[:end], key[end + 1 :] or None


def _note_on_other_entries(content: Any, key: str | None) -> Iterator[Finding]:
    """A note on running statistics in entries beside the one that was read."""
    if key is None:
        return
    head, _ = _divided(content, key)
    others = [name for name, value in content.items() if name != head and _has_statistics(value)]
    if others:
        yield note("entries-unchanged", entry=key, others=others)


def _has_statistics(value: Any, depth: int = 0) -> bool:
    if not isinstance(value, Mapping) or depth > 3:
        return False
    return any(
        (str(name).endswith("running_mean") and isinstance(item, Tensor)) or _has_statistics(item, depth + 1)
        for name, item in value.items()
    )
