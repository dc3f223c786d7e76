"""Reads the JSON of an exported program, whose nodes may name nothing but operations of torch that compute."""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from bnuq.errors import ModelError
from bnuq.models.archives import Archive
from bnuq.models.graph_program import (
    ExportedNetwork,
    InputDevice,
    Step,
    ValueName,
    mode_of,
    values_read,
    with_last_uses,
)

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
DTYPES = {
    1: torch.uint8, 2: torch.int8, 3: torch.int16, 4: torch.int32, 5: torch.int64, 6: torch.float16, 7: torch.float32,
    8: torch.float64, 9: torch.complex32, 10: torch.complex64, 11: torch.complex128, 12: torch.bool, 13: torch.bfloat16,
}  # fmt: skip
_LAYOUTS = {7: torch.strided}
_MEMORY_FORMATS = {
    1: torch.contiguous_format, 2: torch.channels_last, 3: torch.channels_last_3d, 4: torch.preserve_format,
}  # fmt: skip


class GraphReader:
    """Makes a `ExportedNetwork` of the JSON in an archive; ModelError for what it may not hold."""

    def __init__(self, archive: Archive, document: Mapping[str, Any], unpickled: Callable[[bytes], Any]) -> None:
        self._archive, self._unpickled = archive, unpickled
        self._module = document["graph_module"]
        self._graph = self._module["graph"]

    def program(self) -> ExportedNetwork:
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
        program = ExportedNetwork(
            {path: stored[path] for path in places.values()}, buffers, {s.layer for s in steps if s.layer}
        )
        program.tensors, program.inputs = places, tuple(inputs)
        specs = self._module["signature"]["output_specs"]
        program.outputs = tuple(self._argument(spec["user_output"]["arg"]) for spec in specs if "user_output" in spec)
        program.single, program.keys = self._structure(len(program.outputs))
        program.steps = with_last_uses(steps, program.outputs)
        return program.eval()

    def _following_the_mode(self, steps: Iterator[Step]) -> list[Step]:
        """With the mode of the module in place of that of the export, but for a BatchNorm without running statistics
        and a dropout of rate 0. ModelError for others that were in training mode in a program that was not."""
        rewritten = list(steps)
        if all(mode_of(step) is True for step in rewritten if step.mode is not None):
            return rewritten
        for number, step in enumerate(rewritten):
            if step.mode is None or mode_of(step) is not True:
                continue
            tracked = "norm" in step.name and any(isinstance(argument, ValueName) for argument in step.args[3:5])
            if tracked or ("norm" not in step.name and step.args[1:2] != (0.0,)):  # a dropout of rate 0 draws nothing
                raise ModelError(
                    f"{self._archive.path}: was exported with {step.layer or 'a ' + step.name} in training mode and "
                    "other layers in evaluation mode; expected one mode for all. Export the network after .eval(), "
                    "without dropout(training=True)."
                )
            rewritten[number] = replace(step, mode=None)
        return rewritten

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
        offset, dtype = meta["storage_offset"]["as_int"], DTYPES[meta["dtype"]]
        flat = torch.frombuffer(bytearray(data), dtype=dtype) if data else torch.empty(0, dtype=dtype)
        if len(size) != len(stride):
            raise self._refusal(f"has another number of sizes than of strides for {path}")
        if min(*size, *stride, offset, 0) < 0 or _extent(size, stride) + offset > len(flat):
            raise self._refusal(f"needs more bytes for {path} than it has")
        return flat.as_strided(size, stride, offset)

    def _step(self, node: Mapping[str, Any]) -> Step | None:
        """The operation of a node; None where it only checks what the exporter took for granted."""
        target = node["target"]
        if target.startswith(_CHECKS):
            return None
        results = tuple(name for output in node["outputs"] for name in _names(output))
        arguments = {entry["name"]: self._argument(entry["arg"]) for entry in node["inputs"]}
        if target in _ARITHMETIC:
            return Step(target, _ARITHMETIC[target], tuple(arguments.values()), {}, results)
        function = self._operation(target)
        args: list[Any] = []
        for argument in function._schema.arguments:
            if argument.kwarg_only or argument.name not in arguments:
                break
            args.append(arguments.pop(argument.name))
        name = function.overloadpacket.__name__
        places = {argument.name: number for number, argument in enumerate(function._schema.arguments)}
        mode = next((flag for flag in _MODES if flag in places and isinstance(places[flag], int)), None)
        mode_argument = None if mode is None else places[mode] if places[mode] < len(args) else mode
        stack = str(node.get("metadata", {}).get("nn_module_stack", "")).rpartition(";")[2].split(",")
        layer = stack[1] if mode_argument is not None and len(stack) > 1 and _NAME.fullmatch(stack[1]) else ""
        return Step(name, function, tuple(args), arguments, results, layer, mode_argument)

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
            return _nested(value, lambda part: ValueName(part["name"]))
        if kind in ("as_optional_tensor", "as_optional_tensors"):
            return _nested(value, lambda part: ValueName(part["as_tensor"]["name"]) if part.get("as_tensor") else None)
        if kind.startswith("as_sym_"):
            return _nested(
                value, lambda part: ValueName(part["as_name"]) if "as_name" in part else next(iter(part.values()))
            )
        if kind in ("as_int", "as_float", "as_bool", "as_string", "as_ints", "as_floats", "as_bools", "as_int_lists"):
            return float(value) if kind == "as_float" else value
        tables = {"as_scalar_type": DTYPES, "as_layout": _LAYOUTS, "as_memory_format": _MEMORY_FORMATS}
        if kind in tables:
            return tables[kind][value]
        if kind == "as_none":
            return None
        if kind == "as_device":
            return InputDevice()
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


def _nested(value: Any, convert: Callable[[Any], Any]) -> Any:
    return [_nested(part, convert) for part in value] if isinstance(value, list) else convert(value)


def _names(output: Mapping[str, Any]) -> Iterator[str]:
    """The names in an output of a node."""
    for value in output.values():
        for part in value if isinstance(value, list) else (value,):
            if isinstance(part, dict):
                yield str(part.get("name", part.get("as_name", "")))


def _undecomposed(steps: Sequence[Step], graph: Mapping[str, Any]) -> Iterator[Step]:
    """With a BatchNorm in place of what `run_decompositions` makes of it, where only its output is used."""
    used = {name for step in steps for name in values_read(step)} | {
        n for output in graph["outputs"] for n in _names(output)
    }
    for step in steps:
        if step.name == "_native_batch_norm_legit_no_training" and not used & {*step.results[1:]}:
            values, weight, bias, mean, var, momentum, eps = step.args
            args = (values, weight, bias, mean, var, False, momentum, eps, torch.backends.cudnn.enabled)
            yield Step("batch_norm", aten.batch_norm.default, args, {}, step.results[:1], step.layer, 5)
        else:
            yield step
