"""A checkpoint with other running statistics; everything else in it stays as it was."""

from __future__ import annotations

import copy
import io
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import safetensors.torch
import torch
from torch import Tensor, nn

from bnuq.errors import ModelError
from bnuq.findings import Finding, note
from bnuq.frozen import frozen
from bnuq.models.checkpoint import Checkpoint, content_of
from bnuq.models.entries import COMPILED, entries_of
from bnuq.models.loading import unwrapped
from bnuq.shapes import Float

_FORMS = ("state dict (zip)", "state dict (legacy pickle)", "safetensors", "pickled module")

Statistics = Mapping[str, Float[np.ndarray, " channel"]]


@frozen
class ChangedCheckpoint:
    """The bytes of a changed file, its new statistics in float64 as its types round them, and a note on the others."""

    data: bytes | memoryview
    statistics: Statistics
    findings: tuple[Finding, ...]


def with_statistics(checkpoint: Checkpoint, values: Statistics) -> ChangedCheckpoint:
    """What the checkpoint's file holds, with these values under their names in the network's state dict.

    `checkpoint` is as `load_model` gives it; every tensor keeps its type. Raises ModelError where the file has changed
    since it was read or is of a form that is only read, and where a tensor is not in it or cannot hold its numbers.
    """
    path, key = checkpoint.path, checkpoint.key
    if checkpoint.form not in _FORMS:
        readable = "a state dict, safetensors in one file, or a pickled module"
        raise ModelError(f"{path}: its form ({checkpoint.form}) is read-only here; expected {readable}.")
    content, metadata = content_of(checkpoint)
    findings = tuple(_on_other_entries(content, key))
    content, entry = _copied(content, key)
    prefix = "".join(stripped for stripped in checkpoint.stripped if stripped != COMPILED)
    new: dict[str, Tensor] = {}
    for tensors, stored, name in _tensors_in(entry):
        old = tensors[stored]
        if isinstance(old, Tensor) and name.startswith(prefix) and (name := name.removeprefix(prefix)) in values:
            # Replaced, not written to: other tensors may share its memory.
            tensors[stored] = new[name] = _rounded(values[name], old, f"{path}: {name}")
    for name in values.keys() - new.keys():
        raise ModelError(
            f"{path}: {name} of the network is not a tensor of this file that could be replaced. "
            "Save the network's own state dict (torch.save(model.state_dict(), …)) and name that."
        )
    if checkpoint.form == "safetensors":
        data = safetensors.torch.save(content, metadata)
    else:  # in memory first: torch would hide that a disk is full
        torch.save(content, buffer := io.BytesIO())
        data = buffer.getbuffer()
    return ChangedCheckpoint(data, {name: value.double().numpy() for name, value in new.items()}, findings)


def _copied(content: Any, key: str | None) -> tuple[Any, Any]:
    """The content and its entry under a dotted path, whose parts may contain dots. The dicts on the way are copies, as
    other entries may be the same dict; a network is itself."""
    if isinstance(content, nn.Module):
        return content, content
    copied = copy.copy(content)  # with the versions of layers
    if key is None:
        return copied, copied
    ends = [len(key), *(position for position, letter in enumerate(key) if letter == ".")]
    head = next(key[:end] for end in ends if key[:end] in content)
    copied[head], entry = _copied(content[head], key[len(head) + 1 :] or None)
    return copied, entry


def _tensors_in(entry: Any) -> Iterator[tuple[dict[str, Any], str, str]]:
    """Each tensor of a state dict, or buffer of a network: a dict, its key there, and its name without wrappers."""
    if isinstance(entry, nn.Module):
        layers = unwrapped(entry, nested=False).named_modules(remove_duplicate=False)
        found = ((layer._buffers, key, f"{path}.{key}".lstrip(".")) for path, layer in layers for key in layer._buffers)
    else:
        found = ((entry, key, key) for key in entry if isinstance(key, str))
    return ((tensors, key, name.replace(COMPILED, "")) for tensors, key, name in found)


def _rounded(value: np.ndarray, stored: Tensor, name: str) -> Tensor:
    """The value in the type of the tensor that is stored now."""
    if not stored.is_floating_point() or stored.shape != value.shape:
        kind = f"{stored.dtype} of shape {tuple(stored.shape)}"
        raise ModelError(f"{name} is {kind}; expected floating-point numbers of shape {value.shape}.")
    rounded = torch.from_numpy(np.array(value, dtype=np.float64)).to(stored.dtype)
    if not bool(torch.isfinite(rounded).all()):
        raise ModelError(
            f"{name} is stored as {str(stored.dtype).removeprefix('torch.')}, which cannot hold its new values (up to "
            f"{np.abs(value).max():.3g}). Save the checkpoint in float32 first."
        )
    return rounded


def _on_other_entries(content: Any, key: str | None) -> Iterator[Finding]:
    """A note on running statistics in entries beside the one that was read."""
    others = [name for name, value in entries_of(content) if _has_statistics(value)]
    if key and (others := [name for name in others if not f"{key}.".startswith(f"{name}.")]):
        yield note("entries-unchanged", entry=key, others=others)


def _has_statistics(value: Any, depth: int = 0) -> bool:
    entries = entries_of(value) if depth < 5 else ()
    return any(str(name).endswith("running_mean") or _has_statistics(item, depth + 1) for name, item in entries)
