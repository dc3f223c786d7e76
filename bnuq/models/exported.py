"""Programs of `torch.export` (.pt2): their graph is run, operation by operation, as a module with both modes.

`torch.export.load` would unpickle example inputs and evaluate expressions in the file. None of that is needed: here the
graph is read as JSON, each node must name an operation of torch that computes, and weights are raw bytes. The mode of a
module decides what BatchNorms and dropouts do; an exported program has it written into each of them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from bnuq.errors import ModelError
from bnuq.findings import Finding, note
from bnuq.models.archives import Archive
from bnuq.models.graph_program import (
    ExportedNetwork,
    RowCount,
    Step,
    _nested_tensors,
    values_read,
)
from bnuq.models.graph_reading import DTYPES, GraphReader

_MAKES_ROWS = ("expand", "zeros", "ones", "full", "empty", "rand", "randn", "new_zeros", "new_ones", "new_full")
_SHAPES = ("view", "reshape", "_unsafe_view", *_MAKES_ROWS)  # whose sizes may hold the number of points
PREDICTOR = "bnuq.json"  # the member in which `bnuq export` says what it wrote
_TOLERANCE = 1e-4  # of outputs for other numbers of points, relative to the largest


def read_exported(archive: Archive, unpickled: Callable[[bytes], Any]) -> tuple[nn.Module, tuple[Finding, ...]]:
    """The program in an archive of `torch.export.save`, as a module on the CPU, and notes.

    `unpickled` reads tensors that are stored as `torch.save` writes them, safely. Raises ModelError for a program that
    does more than compute with torch's own operations, for one that takes a single number of points only, and for a
    predictor, which `bnuq export` made of a network's draws.
    """
    if any(name.rpartition("/")[2] == PREDICTOR for name in archive.sizes):
        raise ModelError(
            f"{archive.path}: is a predictor that bnuq export wrote. Its samples are fixed, so no others can be drawn "
            f"from it. Give the network that it was made of (checkpoints, in its {PREDICTOR}), or run it: "
            "torch.export.load."
        )
    graphs = [
        name for name in archive.sizes if re.fullmatch(r"(.+/)?(models/.+|serialized_exported_program)\.json", name)
    ]
    if len(graphs) != 1:
        other = f"is an archive of {len(graphs)} programs"
        if not graphs:
            compiled = any("/data/aotinductor/" in f"/{name}" for name in archive.sizes)
            other = "is compiled by AOTInductor" if compiled else "holds no program (models/model.json)"
        raise ModelError(f"{archive.path}: {other}; expected one exported program (torch.export.save).")
    document = json.loads(archive.content.read(graphs[0]))
    program = GraphReader(archive, document, unpickled).program()
    module = document["graph_module"]
    rows = _static_rows(module)
    if rows is not None:
        program = _for_any_rows(archive, program, module, rows)
    notes = (note("export-static", points=rows),) if rows is not None else ()
    if not any(step.name.endswith("dropout") for step in program.steps) and "TRAINING" not in document.get(
        "verifiers", ["TRAINING"]
    ):
        notes += (note("export-decomposed"),)
    return program, notes


def _static_rows(module: Mapping[str, Any]) -> int | None:
    """The number of points that every input was exported for; None where it is left open."""
    graph = module["graph"]
    names = [spec["user_input"]["arg"]["as_tensor"]["name"] for spec in module["signature"]["input_specs"]
             if "as_tensor" in spec.get("user_input", {}).get("arg", {})]  # fmt: skip
    first = [sizes[0].get("as_int") for name in names if (sizes := graph["tensor_values"][name]["sizes"])]
    return first[0] if first and first[0] is not None and {*first} == {first[0]} else None


def _for_any_rows(archive: Archive, program: ExportedNetwork, module: Mapping[str, Any], rows: int) -> ExportedNetwork:
    """The program with the number of points of its input in place of the one that it was exported for.

    Raises ModelError where that does not give what it gives for exactly so many points.
    """
    written, depends = program.steps, set(program.inputs)
    steps = []
    for step in written:
        from_inputs = bool(depends & {*values_read(step)})
        depends |= {*step.results} if from_inputs else set()
        steps.append(_with_open_rows(step, rows, from_inputs=from_inputs))
    examples = [_example(module["graph"]["tensor_values"][name]) for name in program.inputs]
    with torch.no_grad():
        try:
            exact = [program(*(_padded_points(x, k, rows) for x in examples)) for k in range(0, _EXAMPLES, rows)]
            program.steps = tuple(steps)
            agree = _agree(exact, program(*examples))
        except Exception as error:
            raise ModelError(_only_so_many(archive, rows)) from error
    if not agree:
        raise ModelError(_only_so_many(archive, rows))
    return program


_EXAMPLES = 3  # points that the program is tried on


def _with_open_rows(step: Step, rows: int, *, from_inputs: bool) -> Step:
    makes = step.name in _MAKES_ROWS and (rows > 1 or step.name == "expand")
    if step.name not in _SHAPES or not (from_inputs or makes):
        return step
    args = [
        [RowCount(argument[0] // rows), *argument[1:]]
        if isinstance(argument, list) and argument and isinstance(argument[0], int) and argument[0] > 0
        and argument[0] % rows == 0
        else argument
        for argument in step.args
    ]  # fmt: skip
    return replace(step, args=tuple(args))


def _example(meta: Mapping[str, Any]) -> Tensor:
    """A few random points of an input."""
    size = [number.get("as_int") or number["as_expr"]["hint"]["as_int"] for number in meta["sizes"][1:]]
    dtype = DTYPES[meta["dtype"]]
    generator = torch.Generator().manual_seed(0)
    if not dtype.is_floating_point:
        return torch.randint(0, 2, (_EXAMPLES, *size), generator=generator).to(dtype)
    return torch.randn(_EXAMPLES, *size, generator=generator).to(dtype)


def _padded_points(points: Tensor, start: int, rows: int) -> Tensor:
    """`rows` points from `start`, padded with the last one."""
    part = points[start : start + rows]
    return torch.cat([part, part[-1:].expand(rows - len(part), *part.shape[1:])])


def _agree(exact: Sequence[Any], outputs: Any) -> bool:
    columns = zip(*(list(_nested_tensors(output)) for output in exact), strict=True)
    for parts, other in zip(columns, _nested_tensors(outputs), strict=True):
        expected = torch.cat(list(parts))[: len(other)]
        scale = float(expected.abs().max()) if expected.numel() else 0.0
        if len(other) != _EXAMPLES or not torch.allclose(other, expected, rtol=0, atol=_TOLERANCE * scale):
            return False
    return True


def _only_so_many(archive: Archive, rows: int) -> str:
    return (
        f"{archive.path}: was exported for batches of exactly {rows} points, and its operations depend on that number. "
        "Export it with dynamic_shapes={'x': {0: torch.export.Dim('points')}}, with the name of the forward's argument "
        "for x."
    )
