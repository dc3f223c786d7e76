"""Networks saved as programs: those of `torch.export` (.pt2), loaded where the user trusts the file, or written as
predictors; and the weights of TorchScript archives, whose programs are not run."""

from __future__ import annotations

import io
import json
import re
import warnings
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

import torch
import torch.jit._pickle as stored  # what the attributes of scripts are made of: each returns what it is given
from torch import Tensor, nn

from bnuq.errors import ModelError, RequestError, UntrustedCodeError
from bnuq.files.content import exists
from bnuq.models.kinds import LONGEST_NAME, listed
from bnuq.models.unpickling import Archive
from bnuq.models.weight_checks import ASK_FOR_ORIGINAL

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
            f"{path}: was exported for batches of a fixed number of examples. {_ANEW}, and "
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


def check_target(path: Path) -> None:
    """Raise RequestError where a file is at `path` that is not a predictor."""
    if exists(path) and not _is_predictor(path):
        raise RequestError(f"--out {path}: this file exists and was not written by bnuq export. Name another.")


def encoded(program: torch.export.ExportedProgram, metadata: Mapping[str, Any]) -> bytes:
    """The bytes of a program's file, with its metadata and the licence of bnuq."""
    files: dict[str, Any] = {PREDICTOR: json.dumps(metadata, indent=1)}
    try:
        licence = distribution("bnuq").read_text("licenses/LICENSE")
    except PackageNotFoundError:
        licence = None
    if licence is not None:
        files["LICENSE.bnuq"] = licence
    buffer = io.BytesIO()
    with _quietly():
        torch.export.save(program, buffer, extra_files=files)
    return buffer.getvalue()


def loaded(data: bytes) -> Callable[[Tensor], dict[str, Tensor]]:
    """The program of a file, as those who run it load it."""
    with _quietly():
        return torch.export.load(io.BytesIO(data)).module()


def _is_predictor(path: Path) -> bool:
    try:
        with zipfile.ZipFile(path) as archive:
            return any(name.rpartition("/")[2] == PREDICTOR for name in archive.namelist())
    except (OSError, zipfile.BadZipFile):
        return False


@contextmanager
def _quietly() -> Iterator[None]:
    """Without what torch says of its own archives."""
    with warnings.catch_warnings(), redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        yield
