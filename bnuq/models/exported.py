"""Programs of `torch.export` (.pt2): their graph is run, operation by operation, as a module with both modes.

`torch.export.load` would unpickle example inputs and evaluate expressions in the file. None of that is needed: here the
graph is read as JSON, each node must name an operation of torch that computes, and weights are raw bytes. The mode of a
module decides what BatchNorms and dropouts do; an exported program has it written into each of them.
"""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from bnuq.errors import ModelError
from bnuq.findings import Finding, note
from bnuq.models.archives import Archive

aten = torch.ops.aten

_NAME = re.compile(r"[A-Za-z_]\w{0,500}(\.\w{1,500}){0,60}|\d{1,9}(\.\w{1,500}){1,60}")  # of a layer or a tensor
_TARGET = re.compile(r"torch\.ops\.aten\.(\w{1,100})\.(\w{1,100})")
_PRIVATE = re.compile(  # of the operations with a leading underscore, those that networks consist of
    r"_(native_batch_norm_legit\w*|batch_norm_with_update\w*|(log_)?softmax|to_copy|adaptive_avg_pool[23]d|unsafe_view"
    r"|scaled_dot_product_\w+|native_multi_head_attention|transformer_encoder_layer_fwd|weight_norm\w*|conv\w*"
    r"|reshape_alias|unsafe_index|embedding_bag|fft_\w+|euclidean_dist|cdist_forward|upsample\w*)"
)
_FORBIDDEN = {"from_file", "save", "set_", "set", "resize", "resize_", "rename", "record_stream"}
_ARITHMETIC: dict[str, Callable[..., Any]] = {
    **{
        f"_operator.{name}": getattr(operator, name)
        for name in (
            "getitem",
            "add",
            "sub",
            "mul",
            "floordiv",
            "truediv",
            "mod",
            "neg",
            "eq",
            "ne",
            "lt",
            "le",
            "gt",
            "ge",
        )
    },
    **{f"torch.{name}": getattr(torch, name) for name in ("sym_max", "sym_min", "sym_int", "sym_float", "sym_not")},
    "math.ceil": lambda number: -int(-number // 1),
    "math.floor": lambda number: int(number // 1),
}
_CHECKS = ("torch.ops.aten._assert_", "torch.ops.aten.sym_constrain_range", "torch.ops.aten._assert")
_MODES = ("training", "train")  # what operations call the argument that says in which mode they are
_DTYPES = {
    1: torch.uint8, 2: torch.int8, 3: torch.int16, 4: torch.int32, 5: torch.int64, 6: torch.float16, 7: torch.float32,
    8: torch.float64, 9: torch.complex32, 10: torch.complex64, 11: torch.complex128, 12: torch.bool, 13: torch.bfloat16,
}  # fmt: skip
_LAYOUTS = {7: torch.strided}
_MEMORY_FORMATS = {
    1: torch.contiguous_format, 2: torch.channels_last, 3: torch.channels_last_3d, 4: torch.preserve_format,
}  # fmt: skip
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
    program = _Reader(archive, document, unpickled).program()
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


@dataclass(frozen=True)
class _Value:
    """The value of this name, computed by an earlier step."""

    name: str


@dataclass(frozen=True)
class _Rows:
    """So many times the number of points of the input."""

    times: int


@dataclass(frozen=True)
class _Device:
    """The device of the input: a program is told the one that it was exported on."""


@dataclass(frozen=True)
class _Step:
    """One operation: its arguments, with values in place of names once it runs, and the names of its results.

    `mode` is the place or name of the argument that says whether it is in training mode, None where there is none or
    where it stays as written; `layer` is the path of the module that it belongs to.
    """

    name: str
    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    results: tuple[str, ...]
    layer: str = ""
    mode: int | str | None = None
    last_uses: tuple[str, ...] = field(default=(), compare=False)  # values that no later step needs


class _Part(nn.Module):
    """A layer of the program: it holds tensors, and calls what is its own, so that hooks know where they are."""

    def forward(self, call: Callable[[], Any]) -> Any:
        return call()


class Program(nn.Module):
    """An exported program. Inputs and outputs are those of the network that was exported."""

    def __init__(self, tensors: Mapping[str, Tensor], buffers: Collection[str], layers: Collection[str]) -> None:
        super().__init__()
        self.steps: tuple[_Step, ...] = ()
        self.inputs: tuple[str, ...] = ()
        self.outputs: tuple[Any, ...] = ()
        self.keys: tuple[Any, ...] | None = None  # of a dict of outputs
        self.single = True
        self.tensors: dict[str, str] = {}  # value → path
        for path, tensor in tensors.items():
            place, _, name = path.rpartition(".")
            if path in buffers:
                self._part(place).register_buffer(name, tensor.detach())
            else:
                self._part(place).register_parameter(name, nn.Parameter(tensor.detach(), requires_grad=False))
        for layer in layers:
            self._part(layer)

    def _part(self, path: str) -> nn.Module:
        part: nn.Module = self
        for name in path.split(".") if path else ():
            if name not in part._modules:
                part.add_module(name, _Part())
            part = part.get_submodule(name)
        return part

    def forward(self, *inputs: Any, **named: Any) -> Any:
        given = [*_tensors(inputs), *_tensors(tuple(named.values()))]
        if len(given) != len(self.inputs):
            raise TypeError(f"the exported program takes {len(self.inputs)} inputs, not {len(given)}")
        values: dict[str, Any] = dict(zip(self.inputs, given, strict=True))
        known = {**dict(self.named_parameters()), **dict(self.named_buffers())}
        values |= {name: known[path] for name, path in self.tensors.items()}
        first = given[0]
        for step in self.steps:
            args = [_filled(argument, values, first) for argument in step.args]
            kwargs = {name: _filled(argument, values, first) for name, argument in step.kwargs.items()}
            if isinstance(step.mode, int):
                args[step.mode] = self.training
            elif step.mode is not None:
                kwargs[step.mode] = self.training
            results = self._called(step, args, kwargs)
            several = isinstance(results, tuple | list) and step.name != "_operator.getitem"
            values.update(zip(step.results, results if several else (results,), strict=False))
            for name in step.last_uses:
                del values[name]
        outputs = tuple(_filled(output, values, first) for output in self.outputs)
        if self.keys is not None:
            return dict(zip(self.keys, outputs, strict=True))
        return outputs[0] if self.single else outputs

    def _called(self, step: _Step, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        if not step.layer or step.mode is None:
            return step.function(*args, **kwargs)
        return self.get_submodule(step.layer)(lambda: step.function(*args, **kwargs))


def _tensors(values: Any) -> Iterator[Tensor]:
    """The tensors among the arguments of a call."""
    if isinstance(values, Tensor):
        yield values
    elif isinstance(values, tuple | list):
        for value in values:
            yield from _tensors(value)
    elif isinstance(values, dict):
        yield from _tensors(tuple(values.values()))


def _filled(argument: Any, values: Mapping[str, Any], first: Tensor) -> Any:
    if isinstance(argument, _Value):
        return values[argument.name]
    if isinstance(argument, _Rows):
        return argument.times * len(first)
    if isinstance(argument, _Device):
        return first.device
    if isinstance(argument, list):
        return [_filled(part, values, first) for part in argument]
    return argument


class _Reader:
    """Makes a `Program` of the JSON in an archive; ModelError for what it may not hold."""

    def __init__(self, archive: Archive, document: Mapping[str, Any], unpickled: Callable[[bytes], Any]) -> None:
        self._archive, self._unpickled = archive, unpickled
        self._module = document["graph_module"]
        self._graph = self._module["graph"]

    def program(self) -> Program:
        steps = [step for node in self._graph["nodes"] if (step := self._step(node)) is not None]
        steps = self._following_the_mode(_undecomposed(steps, self._graph))
        stored = self._stored()
        places: dict[str, str] = {}  # value → path of its tensor
        buffers: set[str] = set()
        inputs: list[str] = []
        for spec in self._module["signature"]["input_specs"]:
            ((kind, entry),) = spec.items()
            if kind == "user_input":
                argument = entry["arg"]
                if "as_tensor" in argument:
                    inputs.append(argument["as_tensor"]["name"])
            elif kind in ("parameter", "buffer", "tensor_constant"):
                path = self._layer(entry[f"{kind}_name"])
                places[entry["arg"]["name"]] = path
                if kind != "parameter" or not stored[path].is_floating_point():
                    buffers.add(path)
            elif kind != "constant_input":
                raise self._refusal(f"takes a {kind.replace('_', ' ')} as an input")
        if not inputs:
            raise self._refusal("takes no tensor")
        program = Program(
            {path: stored[path] for path in places.values()}, buffers, {s.layer for s in steps if s.layer}
        )
        program.tensors, program.inputs = places, tuple(inputs)
        specs = self._module["signature"]["output_specs"]
        program.outputs = tuple(self._argument(spec["user_output"]["arg"]) for spec in specs if "user_output" in spec)
        program.single, program.keys = self._structure(len(program.outputs))
        program.steps = _with_last_uses(steps, program.outputs)
        return program.eval()

    def _following_the_mode(self, steps: Iterator[_Step]) -> list[_Step]:
        """With the mode of the module in place of that of the export, but for a BatchNorm without running statistics
        and a dropout of rate 0. ModelError for others that were in training mode in a program that was not."""
        listed = list(steps)
        if all(_flag(step) is True for step in listed if step.mode is not None):
            return listed
        for number, step in enumerate(listed):
            if step.mode is None or _flag(step) is not True:
                continue
            tracked = "norm" in step.name and any(isinstance(argument, _Value) for argument in step.args[3:5])
            if tracked or ("norm" not in step.name and step.args[1:2] != (0.0,)):  # a dropout of rate 0 draws nothing
                raise ModelError(
                    f"{self._archive.path}: was exported with {step.layer or 'a ' + step.name} in training mode and "
                    "other layers in evaluation mode; expected one mode for all. Export the network after .eval(), "
                    "without dropout(training=True)."
                )
            listed[number] = replace(step, mode=None)
        return listed

    def _structure(self, outputs: int) -> tuple[bool, tuple[Any, ...] | None]:
        """Whether the program gives its only output itself, and the keys where it gives a dict of its outputs."""
        (calls, *_) = self._module["module_call_graph"]
        spec = json.loads(calls["signature"]["out_spec"])[1]
        leaves = all(child["type"] is None for child in spec["children_spec"])
        if spec["type"] == "builtins.dict" and leaves:
            keys = tuple(json.loads(spec["context"]))
            if len(keys) == outputs and all(isinstance(key, str) for key in keys):
                return False, keys
        return spec["type"] is None, None

    def _stored(self) -> dict[str, Tensor]:
        """The tensors of the archive by their paths."""
        tensors: dict[str, Tensor] = {}
        for name in self._archive.sizes:
            inside = name.removeprefix(f"{self._archive.root}/")
            whole = re.fullmatch(r"serialized_(state_dict|constants)\.pt|data/(weights|constants)/[^/]+\.pt", inside)
            if whole:
                tensors |= dict(self._unpickled(self._archive.content.read(name)))
            elif config := re.fullmatch(r"(data/(weights|constants))/[^/]+_config\.json", inside):
                entries = json.loads(self._archive.content.read(name))["config"]
                folder = f"{name.removesuffix(inside)}{config[1]}"
                tensors |= {self._layer(path): self._tensor(path, folder, entry) for path, entry in entries.items()}
        return tensors

    def _tensor(self, path: str, folder: str, entry: Mapping[str, Any]) -> Tensor:
        if not re.fullmatch(r"(weight|tensor)_\d+", entry["path_name"]):
            raise self._refusal(f"holds in {path} an object that is not a tensor")
        data = self._archive.content.read(f"{folder}/{entry['path_name']}")
        if entry["use_pickle"]:
            return self._unpickled(data)
        meta = entry["tensor_meta"]
        size, stride = ([number["as_int"] for number in meta[key]] for key in ("sizes", "strides"))
        offset, dtype = meta["storage_offset"]["as_int"], _DTYPES[meta["dtype"]]
        flat = torch.frombuffer(bytearray(data), dtype=dtype) if data else torch.empty(0, dtype=dtype)
        if len(size) != len(stride):
            raise self._refusal(f"has another number of sizes than of strides for {path}")
        if min(*size, *stride, offset, 0) < 0 or _extent(size, stride) + offset > len(flat):
            raise self._refusal(f"needs more bytes for {path} than it has")
        return flat.as_strided(size, stride, offset)

    def _step(self, node: Mapping[str, Any]) -> _Step | None:
        """The operation of a node; None where it only checks what the exporter took for granted."""
        target = node["target"]
        if target.startswith(_CHECKS):
            return None
        results = tuple(name for output in node["outputs"] for name in _names(output))
        arguments = {entry["name"]: self._argument(entry["arg"]) for entry in node["inputs"]}
        if target in _ARITHMETIC:
            return _Step(target, _ARITHMETIC[target], tuple(arguments.values()), {}, results)
        function = self._operation(target)
        args: list[Any] = []
        for argument in function._schema.arguments:
            if argument.kwarg_only or argument.name not in arguments:
                break
            args.append(arguments.pop(argument.name))
        name = function.overloadpacket.__name__
        places = {argument.name: place for place, argument in enumerate(function._schema.arguments)}
        mode = next((flag for flag in _MODES if flag in places and isinstance(places[flag], int)), None)
        at = None if mode is None else places[mode] if places[mode] < len(args) else mode
        stack = str(node.get("metadata", {}).get("nn_module_stack", "")).rpartition(";")[2].split(",")
        layer = stack[1] if at is not None and len(stack) > 1 and _NAME.fullmatch(stack[1]) else ""
        return _Step(name, function, tuple(args), arguments, results, layer, at)

    def _operation(self, target: str) -> Any:
        if target == "torch.ops.bnuq.standard_normal.default":  # of the layers of bnuq.nn
            return torch.ops.bnuq.standard_normal.default
        match = _TARGET.fullmatch(target)
        if match is None:
            raise self._refusal(f"calls {target[:100]}, which is not an operation of torch itself")
        name, overload = match.groups()
        packet = None if name.startswith("__") else getattr(aten, name, None)
        allowed = name not in _FORBIDDEN and (not name.startswith("_") or _PRIVATE.fullmatch(name))
        if not allowed or packet is None or overload not in packet.overloads():
            raise self._refusal(f"calls {target[:100]}, which no network needs or this torch lacks")
        return getattr(packet, overload)

    def _argument(self, entry: Mapping[str, Any]) -> Any:
        ((kind, value),) = entry.items()
        if kind in ("as_tensor", "as_tensors", "as_nested_tensors"):
            return _nested(value, lambda part: _Value(part["name"]))
        if kind in ("as_optional_tensor", "as_optional_tensors"):
            return _nested(value, lambda part: _Value(part["as_tensor"]["name"]) if part.get("as_tensor") else None)
        if kind.startswith("as_sym_"):
            return _nested(
                value, lambda part: _Value(part["as_name"]) if "as_name" in part else next(iter(part.values()))
            )
        if kind in ("as_int", "as_float", "as_bool", "as_string", "as_ints", "as_floats", "as_bools", "as_int_lists"):
            return float(value) if kind == "as_float" else value
        tables = {"as_scalar_type": _DTYPES, "as_layout": _LAYOUTS, "as_memory_format": _MEMORY_FORMATS}
        if kind in tables:
            return tables[kind][value]
        if kind == "as_none":
            return None
        if kind == "as_device":
            return _Device()
        if kind == "as_complex":
            return complex(value["real"], value["imag"])
        raise self._refusal(f"has an argument of the kind {kind.removeprefix('as_')[:40]}")

    def _layer(self, path: str) -> str:
        if not (_NAME.fullmatch(path) or re.fullmatch(r"\d{1,9}", path)):
            raise self._refusal(f"names a tensor {path[:80]!r}")
        return path

    def _refusal(self, why: str) -> ModelError:
        return ModelError(
            f"{self._archive.path}: is an exported program that {why}; expected one whose graph is of torch's own "
            "operations (aten). Give the state dict that it was exported from, with --arch."
        )


def _extent(size: Sequence[int], stride: Sequence[int]) -> int:
    """The elements that a tensor reaches over."""
    return 0 if 0 in size else 1 + sum((count - 1) * step for count, step in zip(size, stride, strict=True))


def _nested(value: Any, of: Callable[[Any], Any]) -> Any:
    return [_nested(part, of) for part in value] if isinstance(value, list) else of(value)


def _names(output: Mapping[str, Any]) -> Iterator[str]:
    """The names in an output of a node."""
    for value in output.values():
        for part in value if isinstance(value, list) else (value,):
            if isinstance(part, dict):
                yield str(part.get("name", part.get("as_name", "")))


def _undecomposed(steps: Sequence[_Step], graph: Mapping[str, Any]) -> Iterator[_Step]:
    """With a BatchNorm in place of what `run_decompositions` makes of it, where only its output is used."""
    used = {name for step in steps for name in _used(step)} | {n for output in graph["outputs"] for n in _names(output)}
    for step in steps:
        if step.name == "_native_batch_norm_legit_no_training" and not used & {*step.results[1:]}:
            values, weight, bias, mean, var, momentum, eps = step.args
            args = (values, weight, bias, mean, var, False, momentum, eps, torch.backends.cudnn.enabled)
            yield _Step("batch_norm", aten.batch_norm.default, args, {}, step.results[:1], step.layer, 5)
        else:
            yield step


def _flag(step: _Step) -> Any:
    return step.args[step.mode] if isinstance(step.mode, int) else step.kwargs.get(step.mode or "")


def _used(step: _Step) -> Iterator[str]:
    """The values that a step is given."""
    pending: list[Any] = [*step.args, *step.kwargs.values()]
    while pending:
        argument = pending.pop()
        if isinstance(argument, _Value):
            yield argument.name
        elif isinstance(argument, list):
            pending += argument


def _with_last_uses(steps: Sequence[_Step], outputs: Sequence[Any]) -> tuple[_Step, ...]:
    kept = {part.name for output in outputs for part in (output if isinstance(output, list) else [output])
            if isinstance(part, _Value)}  # fmt: skip
    made = {name for step in steps for name in step.results if name}
    released: list[_Step] = []
    for step in reversed(steps):
        last = ({*_used(step), *step.results} & made) - kept
        kept |= last
        released.append(replace(step, last_uses=(*last,)))
    return tuple(reversed(released))


def _static_rows(module: Mapping[str, Any]) -> int | None:
    """The number of points that every input was exported for; None where it is left open."""
    graph = module["graph"]
    names = [spec["user_input"]["arg"]["as_tensor"]["name"] for spec in module["signature"]["input_specs"]
             if "as_tensor" in spec.get("user_input", {}).get("arg", {})]  # fmt: skip
    first = [sizes[0].get("as_int") for name in names if (sizes := graph["tensor_values"][name]["sizes"])]
    return first[0] if first and first[0] is not None and {*first} == {first[0]} else None


def _for_any_rows(archive: Archive, program: Program, module: Mapping[str, Any], rows: int) -> Program:
    """The program with the number of points of its input in place of the one that it was exported for.

    Raises ModelError where that does not give what it gives for exactly so many points.
    """
    written, depends = program.steps, set(program.inputs)
    steps = []
    for step in written:
        from_inputs = bool(depends & {*_used(step)})
        depends |= {*step.results} if from_inputs else set()
        steps.append(_with_open_rows(step, rows, from_inputs=from_inputs))
    examples = [_example(module["graph"]["tensor_values"][name]) for name in program.inputs]
    with torch.no_grad():
        try:
            exact = [program(*(_part(x, k, rows) for x in examples)) for k in range(0, _EXAMPLES, rows)]
            program.steps = tuple(steps)
            agree = _agree(exact, program(*examples))
        except Exception as error:
            raise ModelError(_only_so_many(archive, rows)) from error
    if not agree:
        raise ModelError(_only_so_many(archive, rows))
    return program


_EXAMPLES = 3  # points that the program is tried on


def _with_open_rows(step: _Step, rows: int, *, from_inputs: bool) -> _Step:
    makes = step.name in _MAKES_ROWS and (rows > 1 or step.name == "expand")
    if step.name not in _SHAPES or not (from_inputs or makes):
        return step
    args = [
        [_Rows(argument[0] // rows), *argument[1:]]
        if isinstance(argument, list) and argument and isinstance(argument[0], int) and argument[0] > 0
        and argument[0] % rows == 0
        else argument
        for argument in step.args
    ]  # fmt: skip
    return replace(step, args=tuple(args))


def _example(meta: Mapping[str, Any]) -> Tensor:
    """A few random points of an input."""
    size = [number.get("as_int") or number["as_expr"]["hint"]["as_int"] for number in meta["sizes"][1:]]
    dtype = _DTYPES[meta["dtype"]]
    generator = torch.Generator().manual_seed(0)
    if not dtype.is_floating_point:
        return torch.randint(0, 2, (_EXAMPLES, *size), generator=generator).to(dtype)
    return torch.randn(_EXAMPLES, *size, generator=generator).to(dtype)


def _part(points: Tensor, start: int, rows: int) -> Tensor:
    """`rows` points from `start`, padded with the last one."""
    part = points[start : start + rows]
    return torch.cat([part, part[-1:].expand(rows - len(part), *part.shape[1:])])


def _agree(exact: Sequence[Any], found: Any) -> bool:
    columns = zip(*(list(_tensors(output)) for output in exact), strict=True)
    for parts, other in zip(columns, _tensors(found), strict=True):
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
