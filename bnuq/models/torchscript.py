"""The weights of TorchScript archives. Their programs are not run: the architecture is named, as of any weights."""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Mapping
from typing import Any

import torch
import torch.jit._pickle as stored  # what the attributes of scripts are made of: each returns what it is given
from torch import Tensor

from bnuq.errors import ModelError, UntrustedCodeError
from bnuq.models.archives import Archive
from bnuq.models.listing import LONGEST_NAME, listed
from bnuq.models.weight_checks import ASK_FOR_ORIGINAL

_OWN = re.compile(r"__torch__\.[\w.]+|torch\.jit\._pickle\.\w+")
_WEIGHTS = re.compile(r"[^/]+/(data/\d+|data\.pkl|(\.data/)?version|byteorder)")
_MOST_PARTS = 10**5  # layers: a few hundred bytes could name one of them 2**200 times


class _Part:
    """Stands for a module of the script: its attributes, by name."""

    attributes: Mapping[str, Any] = {}

    def __setstate__(self, state: object) -> None:
        self.attributes = state if isinstance(state, dict) else {}


def weights_of_script(archive: Archive) -> dict[str, Tensor]:
    """The tensors of a scripted or traced network by their names in its state dict, and those that are attributes.

    Nothing of the archive but the pickle of its weights is read, and nothing in it is run. Raises UntrustedCodeError
    for a pickle that names other code, ModelError for a quantized or frozen network.
    """
    path, survey = archive.path, archive.survey()
    own = [name for name in survey.code if _OWN.fullmatch(name)]
    if any("quantized." in name for name in own):
        raise ModelError(f"{path}: is a quantized network, as TorchScript. {ASK_FOR_ORIGINAL}")
    if other := [name for name in survey.code if name not in own]:
        raise UntrustedCodeError(
            f"{path}: is TorchScript whose weights name {listed(other, order=False)}, which weights do not need. "
            "Nothing was run. Give the state dict of the network instead, with --arch FILE.py:function."
        )
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as copy:  # without its code: torch would take it for a program
        for name in filter(_WEIGHTS.fullmatch, archive.sizes):
            copy.writestr(name, archive.content.read(name))
    buffer.seek(0)
    functions = [value for name, value in vars(stored).items() if f"torch.jit._pickle.{name}" in own]
    with torch.serialization.safe_globals([*((_Part, name) for name in own if name.startswith("__")), *functions]):
        network = torch.load(buffer, map_location="cpu", weights_only=True)
    tensors: dict[str, Tensor] = {}
    pending, count = [("", network)], 0
    while pending:  # in the order of a state dict
        prefix, part = pending.pop()
        tensors |= {f"{prefix}{name}": value for name, value in part.attributes.items() if isinstance(value, Tensor)}
        inner = [(f"{prefix}{name}.", value) for name, value in part.attributes.items() if isinstance(value, _Part)]
        pending += reversed(inner)
        count += 1
        if count > _MOST_PARTS or len(prefix) > LONGEST_NAME:
            raise ModelError(f"{path}: is TorchScript of layers in each other without end: it is forged.")
    if not tensors:
        raise ModelError(
            f"{path}: is TorchScript without weights: torch.jit.freeze makes them constants and folds BatchNorms into "
            "other layers. Give the network from before freezing, with --arch FILE.py:function."
        )
    return tensors
