"""Puts the weights of a checkpoint into a network, all of them and nothing else, by the names that it expects."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.nn.modules.lazy import LazyModuleMixin
from torch.nn.parameter import is_lazy

from bnuq.errors import ModelError
from bnuq.findings import listed, note
from bnuq.models import kinds
from bnuq.models.checkpoint import Checkpoint
from bnuq.models.entries import AVERAGES, WRAPPERS, renamed
from bnuq.user_code import user_code

_RUNNING = ("running_mean", "running_var")
_COUNTER = "num_batches_tracked"


def wrong_shapes(module: nn.Module, checkpoint: Checkpoint) -> list[tuple[str, Tensor, Tensor]]:
    """The tensors of the file that have another shape in the network: name, tensor, and its place in the network."""
    expected, wanted = module.state_dict(), _names_of(module)
    state = fitted(checkpoint, weight_names(module)).state
    assert state is not None
    return [
        (name, value, expected[name])
        for name, value in state.items()
        if name in wanted
        and not is_lazy(expected[name])
        and expected[name].shape != value.shape
        # one number may be written as () or (1,): torch takes both
        and not (value.numel() == expected[name].numel() == 1)
    ]


def weight_names(module: nn.Module) -> set[str]:
    return {name for name in _names_of(module) if not name.endswith(_COUNTER)}


def _names_of(module: nn.Module) -> set[str]:
    return {name for name in module.state_dict() if not name.endswith("_extra_state")}


def fill(module: nn.Module, checkpoint: Checkpoint, arch: str) -> None:
    """Put the weights into the module, all of them and nothing else; ModelError where they do not fit."""
    state = checkpoint.state
    assert state is not None
    expected = module.state_dict()
    wanted = _names_of(module)
    _check_shapes(module, checkpoint, arch, expected, wanted)
    _check_dtypes(module, checkpoint, arch, expected)
    _check_tied(checkpoint, arch, expected)
    doing = f"{checkpoint.path}: its weights do not fit {arch}:"
    with user_code(doing, advice="Check that it is the network that was trained.", error=ModelError):
        result = module.load_state_dict(state, strict=False)  # layers may have hooks of their own
    missing = [name for name in result.missing_keys if name in wanted and not name.endswith(_COUNTER)]
    unexpected = [name for name in result.unexpected_keys if not name.endswith("_extra_state")]
    if missing or unexpected:
        raise ModelError(_mismatch(checkpoint, arch, wanted, missing, unexpected))


def _check_tied(checkpoint: Checkpoint, arch: str, expected: Mapping[str, Tensor]) -> None:
    """Raise ModelError for a tensor that the network has under two names, and the file with two values."""
    state, first = checkpoint.state or {}, dict[tuple, str]()
    for name in state.keys() & {name for name, value in expected.items() if not is_lazy(value) and value.numel()}:
        place = expected[name].data_ptr(), expected[name].shape, expected[name].stride()
        other = first.setdefault(place, name)
        if other != name and not torch.equal(state[name], state[other]):
            one, two = sorted((name, other))
            raise ModelError(
                f"{checkpoint.path}: {one} and {two} differ, and are one tensor in {arch} (tied weights). Check that "
                "it is the network that was trained, and its arch_args."
            )


def _check_dtypes(module: nn.Module, checkpoint: Checkpoint, arch: str, expected: Mapping[str, Tensor]) -> None:
    """Raise ModelError for a tensor that the network's dtype cannot hold."""
    weights = {name for name, _ in module.named_parameters()} | {name for name in expected if name.endswith(_RUNNING)}
    for name, value in (checkpoint.state or {}).items():
        # Nothing here needs the counter, and averaging of weights makes it a fraction.
        if name not in expected or name.endswith(_COUNTER):
            continue
        if lost := _lost_values(value, expected[name], allow_integers=name not in weights):
            raise ModelError(
                f"{checkpoint.path}: {name} holds {lost} ({dtypes({value.dtype})}), and is "
                f"{dtypes({expected[name].dtype})} in {arch}. Check that it is the network that was trained, as it "
                "was before any conversion."
            )


def _lost_values(value: Tensor, expected: Tensor, *, allow_integers: bool) -> str | None:
    """What `value` holds that the type of the network's tensor, `expected`, cannot hold or reads differently; None if
    nothing.

    Whole numbers pass only with `allow_integers`: as weights they would be quantized.
    """
    if value.dtype == expected.dtype:
        return None
    if not value.is_floating_point():
        return "whole numbers" if expected.is_floating_point() and not allow_integers else None
    if expected.is_floating_point():
        narrower = torch.finfo(expected.dtype).max < torch.finfo(value.dtype).max
        overflows = narrower and bool((value.to(expected.dtype).isinf() & ~value.isinf()).any())
        return "numbers too large" if overflows else None
    is_cut = not expected.is_complex() and bool((value.double() != value.to(expected.dtype)).any())
    return "fractions" if is_cut else None


def _check_shapes(
    module: nn.Module, checkpoint: Checkpoint, arch: str, expected: Mapping[str, Tensor], wanted: set[str]
) -> None:
    state = checkpoint.state
    assert state is not None
    wrong = [(name, value) for name, value, _ in wrong_shapes(module, checkpoint)]
    if not wrong:
        return
    missing = [name for name in expected if name in wanted and name not in state and not name.endswith(_COUNTER)]
    unexpected = [name for name in state if name not in expected]
    if missing or unexpected:
        also = f" {len(wrong)} of those that both have are of another shape."
        raise ModelError(_mismatch(checkpoint, arch, wanted, missing, unexpected) + also)
    shown = "; ".join(f"{n} is {shape(v)} in the file, {shape(expected[n])} in the network" for n, v in wrong[:5])
    heads = {n.rpartition(".")[0] for n, _ in wrong}
    first_only = all(v.shape[1:] == expected[n].shape[1:] and v.ndim > 0 and expected[n].ndim > 0 for n, v in wrong)
    hint = " Check that it is the network that was trained, and its arch_args."
    if len(heads) == 1 and first_only:
        hint = (
            f" The network in the file has {wrong[0][1].shape[0]} outputs there: give that number to the factory "
            f"(--arch-arg NAME={wrong[0][1].shape[0]}, or arch_args in the run file)."
        )
    raise ModelError(
        f"{checkpoint.path}: {len(wrong)} of its tensors have another shape than in {arch}: "
        f"{shown}{f'; and {len(wrong) - 5} more' if len(wrong) > 5 else ''}.{hint}"
    )


def _mismatch(
    checkpoint: Checkpoint, arch: str, wanted: set[str], missing: Sequence[str], unexpected: Sequence[str]
) -> str:
    if not unexpected and all(name.endswith(_RUNNING) for name in missing):
        layers = sorted({name.rpartition(".")[0] for name in missing})
        return (
            f"{checkpoint.path}: has no running statistics (running_mean, running_var) for {len(layers)} BatchNorm "
            f"layers: {listed(layers)}. Without them the network cannot be evaluated. If it was trained with "
            f"track_running_stats=False, the factory of {arch} must set it too; otherwise give the complete checkpoint."
        )
    problems = (missing, "that the network needs are missing"), (unexpected, "are unknown to the network")
    parts = [f"{len(names)} {problem}: {listed(names)}" for names, problem in problems if names]
    hint = "Check that it is the network that was trained, and its arch_args."
    assert checkpoint.state is not None
    if _templates(checkpoint.state) == _templates(wanted):
        other = "deeper" if len(unexpected) > len(missing) else "shallower"
        hint = f"The layers are the same but for their number: the file is of a {other} network than {arch}."
    elif len(missing) == len(wanted):
        hint = f"No name fits: this is another network than {arch}. Name the one that was trained."
    return f"{checkpoint.path}: does not fit {arch}; of the tensors, {'; '.join(parts)}. {hint}"


def _templates(names: Iterable[str]) -> set[str]:
    """The names with their numbers blotted out."""
    return {re.sub(r"\d+", "#", name) for name in names if not name.endswith(_COUNTER)}


def finish_lazy(module: nn.Module, path: Path) -> None:
    """Make lazy layers, whose shapes the weights have settled, what they would become in their first forward."""
    for name, layer in module.named_modules():
        if not isinstance(layer, LazyModuleMixin):
            continue
        if layer.has_uninitialized_params():  # type: ignore[misc]
            raise ModelError(
                f"{path}: does not settle the shape of the lazy layer {name}. Give the state dict of a network that "
                f"has run at least once."
            )
        assert isinstance(layer, nn.Module)
        tensors = [t for t in (*layer.parameters(recurse=False), *layer.buffers(recurse=False)) if t.ndim > 0]
        if isinstance(layer, nn.Linear):
            layer.in_features = layer.weight.shape[1]
        elif isinstance(layer, _ConvNd):
            layer.in_channels = layer.weight.shape[0] if layer.transposed else layer.weight.shape[1] * layer.groups
        elif isinstance(layer, _BatchNorm | _InstanceNorm) and tensors:
            layer.num_features = tensors[0].shape[0]
        for hook in ("_initialize_hook", "_load_hook"):
            if hasattr(layer, hook):
                getattr(layer, hook).remove()
                delattr(layer, hook)
        if layer.cls_to_become is not None:
            layer.__class__ = layer.cls_to_become


def shape(value: Tensor) -> str:
    return str(tuple(value.shape))


def dtypes(dtypes: set[torch.dtype]) -> str:
    return " and ".join(sorted(str(dtype).removeprefix("torch.") for dtype in dtypes))


def fitted(checkpoint: Checkpoint, expected: Collection[str]) -> Checkpoint:
    """`checkpoint` with those of its prefixes restored that the `expected` names have too.

    Where only some of the names carry a prefix, and those alone are all that is expected, the others are left out and
    a note says so: Lightning keeps the weights of losses beside those of the network.
    """
    if checkpoint.state is None:
        return checkpoint
    wanted = set(expected)
    best, most = checkpoint, len(wanted & checkpoint.state.keys())
    for count in range(len(checkpoint.stripped) - 1, -1, -1):
        prefix = "".join(checkpoint.stripped[count:])
        candidate = renamed(checkpoint.state, lambda name, prefix=prefix: prefix + name)
        if (matching := len(wanted & candidate.keys())) > most:
            best, most = replace(checkpoint, state=candidate, stripped=checkpoint.stripped[:count]), matching
    assert best.state is not None
    flat = {f"ema_{name.replace('.', '_')}" for name in best.state} - wanted
    if copies := [name for name in best.state if name in flat]:
        state = renamed({name: value for name, value in best.state.items() if name not in flat}, str)
        findings = (*best.findings, note("averages-beside", count=len(copies), names=kinds.listed(copies)))
        best = replace(best, state=state, findings=findings)
    if most == len(wanted):
        return best
    assert best.state is not None
    firsts = dict.fromkeys(name.partition(".")[0] for name in best.state)
    averaged = [f"{first}.{inner}" for first in firsts if AVERAGES.search(first) for inner in ("", "module.")]
    for prefix in (*averaged, *WRAPPERS, "online_model."):
        inside = {name.removeprefix(prefix): value for name, value in best.state.items() if name.startswith(prefix)}
        if wanted <= inside.keys():
            outside = [name for name in best.state if not name.startswith(prefix)]
            left_out = note("tensors-left-out", count=len(outside), prefix=prefix, names=kinds.listed(outside))
            findings = (*best.findings, left_out)
            return replace(best, state=inside, stripped=(*best.stripped, prefix), findings=findings)
    return best


def without_attributes(module: nn.Module, checkpoint: Checkpoint) -> Checkpoint:
    """`checkpoint` without the tensors that are in the network but not in its state dict, such as tables that it makes
    itself: TorchScript stores these too."""
    assert checkpoint.state is not None
    layers = {f"{path}.".lstrip("."): layer for path, layer in module.named_modules(remove_duplicate=False)}
    made = {
        f"{path}{name}"
        for path, layer in layers.items()
        for name, value in (*vars(layer).items(), *layer._buffers.items())
        if isinstance(value, Tensor)
    } - module.state_dict().keys()
    return replace(checkpoint, state=renamed({n: v for n, v in checkpoint.state.items() if n not in made}, str))
