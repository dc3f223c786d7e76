"""Checks the form of a network: those that cannot be sampled are refused, with the cause, before anything runs."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bnuq.errors import ModelError
from bnuq.user_code import user_code


def check_form(model: Any, *, file: Path | None = None) -> None:
    """Raise ModelError for anything but a module, and for a module, of this `file`, whose layers were merged or
    converted."""
    where = "" if file is None else f"{file}: "
    if not isinstance(model, nn.Module):
        raise ModelError(f"the network is of type {type(model).__name__}; expected a torch.nn.Module.")
    if any(isinstance(layer, torch.jit.ScriptModule) and not hasattr(layer, "training") for layer in model.modules()):
        raise ModelError(
            f"{where}the network was frozen by torch.jit.freeze, which makes its weights constants and folds its "
            "BatchNorms into other layers. Use the network from before freezing."
        )
    if any(tensor.is_mkldnn for tensor in chain(model.parameters(), model.buffers())):
        raise ModelError(
            f"{where}the network was converted by torch.utils.mkldnn.to_mkldnn, and its weights are in a layout that "
            "few operations support. Use the network from before the conversion."
        )


def strided_parts(tensor: Tensor) -> list[Tensor]:
    """The strided tensors that a tensor consists of: itself, or the indices and the values of a sparse one."""
    if tensor.layout is torch.strided:
        return [tensor]
    if tensor.layout is torch.sparse_coo:
        return [tensor._indices(), tensor._values()]
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return [tensor.crow_indices(), tensor.col_indices(), tensor.values()]
    if tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        return [tensor.ccol_indices(), tensor.row_indices(), tensor.values()]
    return [tensor.values() if tensor.is_nested else tensor.to_dense()]


def into_evaluation_mode(model: nn.Module) -> nn.Module:
    """`model.eval()`; ModelError if that fails."""
    with user_code(
        "the network cannot be put into evaluation mode:",
        advice="Programs of torch.export have no evaluation mode: use the module that was exported, or save the "
        "program (torch.export.save) and name the file, with --trust-pickle.",
        error=ModelError,
    ):
        return model.eval()


@contextmanager
def uncompiled() -> Iterator[None]:
    """Run compiled modules uncompiled inside the block: `torch.compile` hides BatchNorms and dropouts."""
    if "torch._dynamo" not in sys.modules:  # then nothing is compiled; importing it takes over a second
        yield
        return
    with warnings.catch_warnings(), torch.compiler.set_stance("force_eager"):
        warnings.filterwarnings("ignore", "Using `torch.compile.module.`")  # of hooks that fire twice
        yield


def original_name(name: str) -> str:
    """The name of a layer or a tensor without the parts that `torch.compile` adds."""
    return ".".join(part for part in name.split(".") if part != "_orig_mod")
