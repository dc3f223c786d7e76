"""The two forms of an exported predictor: a program of `torch.export`, and ONNX, each with its metadata and bnuq's
licence inside."""

from __future__ import annotations

import io
import json
import logging
import warnings
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from importlib import import_module
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bnuq.errors import ModelError, RequestError, first_line
from bnuq.files.content import exists
from bnuq.models.exported import PREDICTOR

Outputs = dict[str, Tensor]
_ONNX = ("onnx", "onnxscript", "onnxruntime")


def check_target(path: Path) -> None:
    """Raise RequestError where a library is missing, or a file is at `path` that is no predictor."""
    if path.suffix == ".onnx":
        _libraries()
    if exists(path) and not _is_predictor(path):
        raise RequestError(f"--out {path}: this file exists and was not written by bnuq export. Name another.")


def encoded(program: torch.export.ExportedProgram, metadata: Mapping[str, Any], suffix: str) -> bytes:
    """The bytes of a program's file; ModelError where ONNX lacks an operation."""
    files = _extra_files(metadata)
    if suffix == ".onnx":
        return _encoded_onnx(program, files, metadata["outputs"])
    buffer = io.BytesIO()
    with _quietly():
        torch.export.save(program, buffer, extra_files=dict[str, Any](files))
    return buffer.getvalue()


def loaded(data: bytes, suffix: str) -> Callable[[Tensor], Outputs]:
    """The program of a file, as those who run it load it."""
    with _quietly():
        if suffix == ".pt2":
            return torch.export.load(io.BytesIO(data)).module()
        _, _, runtime = _libraries()
        session = runtime.InferenceSession(data, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]

    def run(inputs: Tensor) -> Outputs:
        given = session.run(names, {session.get_inputs()[0].name: inputs.numpy()})
        return {name: torch.from_numpy(values) for name, values in zip(names, given, strict=True)}

    return run


def _encoded_onnx(program: torch.export.ExportedProgram, files: Mapping[str, str], outputs: list[str]) -> bytes:
    onnx, *_ = _libraries()
    try:
        with _quietly():
            exported = torch.onnx.export(program, dynamo=True, verbose=False)
        assert exported is not None
        model = exported.model_proto
    except Exception as error:  # torch raises of many kinds here
        raise ModelError(
            f"the program cannot be written as ONNX: {first_line(error)}. Write a program of torch: --out NAME.pt2."
        ) from error
    graph = model.graph
    names = {name: f"{name}.within" for name in ("inputs", *outputs)}  # values of the graph that have these names
    names |= {value.name: name for value, name in zip(graph.output, outputs, strict=True)}
    names[graph.input[0].name] = "inputs"
    for node in graph.node:
        for values in (node.input, node.output):
            values[:] = [names.get(value, value) for value in values]
    for value in graph.value_info:
        value.name = names.get(value.name, value.name)
    for value in (*graph.input, *graph.output):
        value.name = names[value.name]
        value.type.tensor_type.shape.dim[0].dim_param = "points"
    onnx.helper.set_model_props(model, dict(files))
    return model.SerializeToString()


def _is_predictor(path: Path) -> bool:
    if path.suffix == ".onnx":
        onnx, *_ = _libraries()
        try:
            model = onnx.load(path, load_external_data=False)
        except Exception:  # of the parser: it is something else
            return False
        return any(entry.key == PREDICTOR for entry in model.metadata_props)
    try:
        with zipfile.ZipFile(path) as archive:
            return any(name.rpartition("/")[2] == PREDICTOR for name in archive.namelist())
    except (OSError, zipfile.BadZipFile):
        return False


def _libraries() -> tuple[Any, ...]:
    """What ONNX needs; RequestError where one of them is not installed."""
    try:
        return tuple(map(import_module, _ONNX))
    except ImportError as error:
        raise RequestError(
            f"--out NAME.onnx needs {', '.join(_ONNX)}, and {error.name or first_line(error)} is not installed. "
            'Install them with: pip install "bnuq[onnx]".'
        ) from error


def _extra_files(metadata: Mapping[str, Any]) -> dict[str, str]:
    """The metadata, and the licence of bnuq."""
    files = {PREDICTOR: json.dumps(metadata, indent=1)}
    try:
        licence = distribution("bnuq").read_text("licenses/LICENSE")
    except PackageNotFoundError:
        licence = None
    return files | ({} if licence is None else {"LICENSE.bnuq": licence})


@contextmanager
def _quietly() -> Iterator[None]:
    """Without what torch says of its own archives, and of libraries that it does not need."""
    exporter = logging.getLogger("torch.onnx")
    level = exporter.level
    exporter.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        exporter.setLevel(level)
