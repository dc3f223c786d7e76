"""Programs of `torch.export` (.pt2): loaded by torch, where the user trusts the file, as modules with both modes."""

from __future__ import annotations

import io
import warnings
from typing import Any

import torch
from torch import nn

from bnuq.errors import ModelError, UntrustedCodeError
from bnuq.models.archives import Archive

PREDICTOR = "bnuq.json"  # the member in which `bnuq export` says what it wrote
_ANEW = "Export the network anew, after .eval(), with torch.export.export alone"


def read_exported(archive: Archive, data: bytes, *, trust: bool) -> nn.Module:
    """The program in an archive of `torch.export.save`, on the CPU: its mode decides what the BatchNorms and dropouts
    do that were exported in evaluation mode.

    Raises ModelError for a predictor, which `bnuq export` made of a network's draws, and for a program that was
    decomposed, or exported in training mode or for one number of points; UntrustedCodeError without `trust`, as torch
    unpickles example inputs and evaluates expressions in the file.
    """
    path = archive.path
    if any(name.rpartition("/")[2] == PREDICTOR for name in archive.sizes):
        raise ModelError(
            f"{path}: is a predictor that bnuq export wrote. Its samples are fixed, so no others can be drawn from it. "
            f"Give the network that it was made of (checkpoints, in its {PREDICTOR}), or run it: torch.export.load."
        )
    if any("/data/aotinductor/" in f"/{name}" for name in archive.sizes):
        raise ModelError(f"{path}: is compiled by AOTInductor; expected an exported program (torch.export.save).")
    if not trust:
        raise UntrustedCodeError(
            f"{path}: is an exported program (torch.export.save), and loading it can run code in it. Nothing was run. "
            "Give the state dict of the network instead, with --arch FILE.py:function, or, if you trust whoever made "
            "the file, add --trust-pickle (in Python: trust_pickle=True)."
        )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch about itself
        program = torch.export.load(io.BytesIO(data))
        module = program.module()
    if program.dialect != "TRAINING":
        raise ModelError(
            f"{path}: is an exported program that was decomposed: its BatchNorms are in parts, and its dropouts gone. "
            f"{_ANEW}."
        )
    inputs = {node.name: node.meta.get("val") for node in program.graph.nodes if node.op == "placeholder"}
    first = [inputs[name] for name in program.graph_signature.user_inputs if name in inputs]
    if any(isinstance(value, torch.Tensor) and value.ndim and isinstance(value.shape[0], int) for value in first):
        raise ModelError(
            f"{path}: was exported for batches of a fixed number of points. {_ANEW}, and "
            "dynamic_shapes={'x': {0: torch.export.Dim('points')}}, with the name of the forward's argument for x."
        )
    for name in program.graph_signature.lifted_tensor_constants:  # as buffers they move with the module
        layer, last = module.get_submodule(name.rpartition(".")[0]), name.rpartition(".")[2]
        constant = getattr(layer, last)
        delattr(layer, last)
        layer.register_buffer(last, constant, persistent=False)
    _follow_the_mode(module, archive)
    return module.to("cpu")


def _follow_the_mode(module: torch.fx.GraphModule, archive: Archive) -> None:
    """Put the module's mode in place of the evaluation mode that is written into its operations; ModelError for those
    in training mode, but for a BatchNorm without running statistics and a dropout of rate 0."""
    graph = module.graph
    with graph.inserting_before(next(iter(graph.nodes))):
        mode = graph.create_node("get_attr", "training")
    for node in list(graph.nodes):
        schema: Any = getattr(node.target, "_schema", None)
        if (
            schema is not None and schema.name == "aten::_assert_tensor_metadata"
        ):  # of the dtype that it was exported in
            graph.erase_node(node)
            continue
        names = [argument.name for argument in schema.arguments] if schema is not None else []
        given = dict(zip(names, node.args, strict=False)) | node.kwargs
        flag = next((name for name in ("training", "train") if isinstance(given.get(name), bool)), None)
        if flag is None:
            continue
        if not given[flag]:
            place = names.index(flag)
            node.update_arg(place, mode) if place < len(node.args) else node.update_kwarg(flag, mode)
        elif given.get("running_mean") is not None or given.get("p", given.get("dropout")) not in (None, 0.0):
            raise ModelError(
                f"{archive.path}: is a program that was exported with {node.name} in training mode, where it stays. "
                f"{_ANEW}, and without dropout(training=True)."
            )
    module.recompile()
    for name in ("train", "eval"):  # which torch has forbidden, as it does not have both modes
        module.__dict__.pop(name, None)
