"""A checkpoint and an architecture become one network in evaluation mode, or one message about why they do not fit."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.nn.modules.lazy import LazyModuleMixin
from torch.nn.parameter import is_lazy

from bnuq.errors import BnuqError, ModelError, RequestError
from bnuq.files.hub import CONFIG
from bnuq.findings import Finding, about, note
from bnuq.forms import check_form, into_evaluation_mode
from bnuq.models.architecture import TRANSFORMERS, Built, build, imported, renamed_by_transformers
from bnuq.models.checkpoint import Checkpoint, check_not_quantized, fitted, read_checkpoint
from bnuq.models.recognition import recognised
from bnuq.trust import BY_USER, NamedBy
from bnuq.user_code import user_code

_RUNNING = ("running_mean", "running_var")
_COUNTER = "num_batches_tracked"


@dataclass(frozen=True)
class LoadedModel:
    """A network in evaluation mode, with what is known of the file it came from; `checkpoint` is without its tensors.

    `findings` are notes for the user to see: what was chosen, stripped, converted or left out on the way.
    `dropout_arguments` are the factory's parameters for rates of dropout that were left at a default of 0.
    """

    module: nn.Module
    checkpoint: Checkpoint
    arch: str | None
    parameters: int
    findings: tuple[Finding, ...] = ()
    dropout_arguments: tuple[str, ...] = ()


def load(
    path: str | os.PathLike[str],
    *,
    arch: str | None = None,
    arch_args: Mapping[str, Any] | None = None,
    entry: str | None = None,
    base: Path | None = None,
    trust_pickle: bool = False,
) -> nn.Module:
    """The trained network, in evaluation mode on the CPU: the weights of `path` in the architecture that `arch` names.

    `arch` is file.py:factory (from `base`, the working folder by default), package.module:factory, timm:NAME or
    torchvision:NAME; `arch_args` are the factory's keyword arguments, and `entry` the entry of the file that holds the
    weights, where there are several. The code that `arch` names runs; nothing is unpickled without `trust_pickle`.

    Raises ModelError for a file or architecture that cannot be used or do not fit, RequestError where `arch` is
    missing or wrong, UntrustedCodeError where a pickle's code would have to run.
    """
    return load_model(path, arch=arch, arch_args=arch_args, entry=entry, base=base, trust_pickle=trust_pickle).module


def load_model(
    path: str | os.PathLike[str],
    *,
    arch: str | None = None,
    arch_args: Mapping[str, Any] | None = None,
    entry: str | None = None,
    trust_pickle: bool = False,
    base: Path | None = None,
    named_by: NamedBy = BY_USER,
    trust_code: bool = False,
    only_finite: bool = True,
) -> LoadedModel:
    """What `load` gives, with the facts about the checkpoint and the notes that a report shows.

    The code that `arch` names does not run where it was `named_by` a file that was merely found, unless `trust_code`.
    Weights that are NaN or infinite are refused with `only_finite`, and loaded as they are without it.
    """
    checkpoint = read_checkpoint(path, entry=entry, trust_pickle=trust_pickle, only_finite=only_finite)
    if checkpoint.module is not None:
        module, findings = _unwrapped(checkpoint.module), list[Finding]()
        check_form(module, file=checkpoint.path)
        _check_numbers(module, checkpoint.path)
        halves = {p.dtype for p in module.parameters()} & {torch.float16, torch.bfloat16}
        if halves:  # which are converted with the network, once its precision is known
            findings.append(note("weights-converted", stored=_dtypes(halves), used="float32"))
        if arch is not None:
            findings.append(note("architecture-unused", architecture=arch))
        arch, dropout_arguments = None, ()
    else:
        named = []
        _check_real(checkpoint.state or {}, checkpoint.path)
        config, keys = None, {}
        if checkpoint.hub is not None and arch is None and not arch_args:
            config, keys = checkpoint.path / CONFIG, {"keys": ("architecture", "model_args")}
        if arch is None:
            of_the_file = _of_the_weights if checkpoint.hub is None else _of_the_config
            arch, arch_args, named = of_the_file(checkpoint, arch_args or {})
        construct = partial(build, arch, base=base, named_by=named_by, trust=trust_code, **keys)
        with _told_of(config):
            built, findings = _of_the_files_classes(construct, dict(arch_args or {}), checkpoint)
        module, dropout_arguments = built.module, built.dropout_left_at_0
        check_form(module)
        checkpoint = fitted(checkpoint, _weight_names(module))
        if arch.startswith(f"{TRANSFORMERS}:") and checkpoint.state and _weight_names(module) - checkpoint.state.keys():
            checkpoint = replace(checkpoint, state={**renamed_by_transformers(module, checkpoint.state)})
        findings += [*named, *_fill(module, checkpoint, arch)]
        _check_numbers(module, checkpoint.path)
    findings = [*_how_read(checkpoint), *findings]
    _finish_lazy(module, checkpoint.path)
    return LoadedModel(
        module=into_evaluation_mode(module),
        checkpoint=replace(checkpoint, state=None, module=None),
        arch=arch,
        parameters=parameters_of(module),
        findings=about(str(checkpoint.path), findings),
        dropout_arguments=dropout_arguments,
    )


@contextmanager
def _told_of(config: Path | None) -> Iterator[None]:
    """Name the `config`, if any, that asks for what cannot be built."""
    try:
        yield
    except RequestError as error:
        if config is None:
            raise
        raise RequestError(f"{config}: {error}") from error


def _of_the_config(checkpoint: Checkpoint, given: Mapping[str, Any]) -> tuple[str, dict[str, Any], list[Finding]]:
    """The architecture that the config beside the weights names, its arguments, of which those `given` override the
    config's, and a note.

    Raises ModelError where the network would be larger than its weights, before memory is taken for it.
    """
    hub, state = checkpoint.hub, checkpoint.state
    assert hub is not None and state is not None
    arch, arguments = f"{hub.package}:{hub.name}", {**hub.arguments, **given}
    stored = sum(value.numel() for value in state.values())
    needed = None
    with suppress(Exception), torch.device("meta"):  # some cannot be made there; the real attempt tells why
        needed = parameters_of(build(arch, arch_args=arguments).module)
    if needed is not None and needed > _MOST_LARGER * stored + 2**20:
        raise ModelError(
            f"{checkpoint.path}: its config asks for a network of {needed:,} parameters, and its weights are "
            f"{stored:,} numbers; they are not of one network. Download the folder again."
        )
    return arch, arguments, [note("hub-config", architecture=arch, settings=["architecture", *hub.data])]


def _of_the_weights(checkpoint: Checkpoint, given: Mapping[str, Any]) -> tuple[str, dict[str, Any], list[Finding]]:
    """The architecture that the weights are recognised as, its arguments, which those `given` override, and a note.

    Raises RequestError where they fit no known network, or several that compute different things, and where the library
    of the one is not installed.
    """
    assert checkpoint.state is not None
    network = recognised(checkpoint.state)
    if network is None or (one := network.one) is None:
        raise RequestError(_ask_for_architecture(checkpoint))
    try:
        imported(one.arch, one.package)
    except RequestError as error:
        raise RequestError(
            f"{checkpoint.path}: its tensors have the names and shapes of {one} with {network.classes} classes. "
            f"{error}\nFor another network, name the function that builds it: --arch file.py:factory"
        ) from error
    found = note(
        "architecture-recognised",
        architecture=str(one),
        others=[str(each) for each in network.groups[0] if each != one],
        classes=network.classes,
        releases=network.known_from,
    )
    return one.arch, {**one.arguments, "num_classes": network.classes, **given}, [found]


_MOST_LARGER = 4  # times as many parameters as the file holds, in which shared ones may be once


def _of_the_files_classes(
    construct: Callable[..., Built], arguments: dict[str, Any], checkpoint: Checkpoint
) -> tuple[Built, list[Finding]]:
    """The network that `construct` makes, and notes. Where its number of classes was left open and only that does not
    fit the file, it is made with the file's."""
    assert checkpoint.state is not None
    weights = [value for value in checkpoint.state.values() if value.ndim >= 2]
    built = construct(arch_args=arguments, classes=len(weights[-1]) if weights else None)
    built = replace(built, module=_unwrapped(built.module))
    if built.classes is not None:
        return built, [note("classes-from-file", argument=built.classes, classes=len(weights[-1]))]
    wrong = _wrong_shapes(built.module, checkpoint)
    rows = {len(value) for _, value, place in wrong if value.ndim and value.shape[1:] == place.shape[1:]}
    if (name := built.classes_left_open) is None or len(rows) != 1:
        return built, []
    (classes,) = rows
    with suppress(BnuqError):  # the message about the first network says what is wrong
        other = construct(arch_args=arguments | {name: classes})
        other = replace(other, module=_unwrapped(other.module))
        if not _wrong_shapes(other.module, checkpoint):
            return other, [note("classes-from-file", argument=name, classes=classes)]
    return built, []


def _wrong_shapes(module: nn.Module, checkpoint: Checkpoint) -> list[tuple[str, Tensor, Tensor]]:
    """The tensors of the file that have another shape in the network: name, tensor, and its place in the network."""
    expected, wanted = module.state_dict(), _names_of(module)
    state = fitted(checkpoint, _weight_names(module)).state
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


def _weight_names(module: nn.Module) -> set[str]:
    return {name for name in _names_of(module) if not name.endswith(_COUNTER)}


def live_model(network: nn.Module, name: Path, *, only_finite: bool = True) -> LoadedModel:
    """A network in memory, called `name`, as if it were loaded; its SHA-256 is that of its parameters and buffers.

    Raises ModelError for what cannot be sampled, and, with `only_finite`, for weights that are NaN or infinite.
    """
    check_form(network)
    _check_numbers(network, name)
    module, digest = _unwrapped(network, nested=False), hashlib.sha256()
    for key, tensor in module.state_dict().items():
        if is_lazy(tensor):
            raise ModelError(f"{name}: {key} has no shape yet; run the network once on a batch, then evaluate it.")
        values = tensor.detach().cpu().contiguous()
        if only_finite and values.is_floating_point() and not values.isfinite().all():
            raise ModelError(f"{name}: {key} holds NaN or infinity; did the training diverge?")
        digest.update(f"{key} {values.dtype} {tuple(values.shape)}".encode())
        digest.update(values.view(torch.uint8).numpy().data if values.ndim else bytes(values.view(1).view(torch.uint8)))
    checkpoint = Checkpoint(name, digest.hexdigest(), form="in memory", state=None, module=None)
    return LoadedModel(module, checkpoint, arch=None, parameters=parameters_of(module))


def _check_numbers(module: nn.Module, path: Path) -> None:
    """Raise ModelError for a network that computes with other than real floating-point numbers."""
    _check_real({**dict(module.named_parameters()), **dict(module.named_buffers())}, path)
    check_not_quantized(module, path)


def _check_real(tensors: Mapping[str, Tensor], path: Path) -> None:
    """Raise ModelError for complex weights."""
    for name, tensor in tensors.items():
        if tensor.is_complex():
            raise ModelError(
                f"{path}: is a complex network: {name} is {_dtypes({tensor.dtype})}. Nothing here computes with "
                "complex weights: float32 would drop their imaginary parts. Write them as two real ones."
            )


def parameters_of(module: nn.Module) -> int:
    """How many parameters a network has; shared ones count once."""
    return sum(p.numel() for p in module.parameters() if not is_lazy(p))


def _unwrapped(module: nn.Module, *, nested: bool = True) -> nn.Module:
    """The network inside `DataParallel` and `torch.compile`, which add a prefix to every name; with `nested`, its parts
    likewise, which modifies it."""
    while True:
        inner = module.module if isinstance(module, nn.DataParallel) else getattr(module, "_orig_mod", module)
        if inner is module or not isinstance(inner, nn.Module):
            break
        module = inner
    for layer in list(module.modules()) if nested else ():
        for name, part in layer.named_children():
            if isinstance(original := getattr(part, "_orig_mod", None), nn.Module):
                setattr(layer, name, original)
    return module


def _how_read(checkpoint: Checkpoint) -> list[Finding]:
    findings = [note("weights-in-entry", entry=checkpoint.key)] if checkpoint.key else []
    if checkpoint.stripped:
        findings.append(note("prefix-removed", prefix="".join(checkpoint.stripped)))
    return [*findings, *checkpoint.findings]


def described(checkpoint: Checkpoint) -> str:
    """What a file of weights holds, after its name: how many tensors, the first and the last, and the known networks
    that they fit, where these are several."""
    assert checkpoint.state is not None
    state = checkpoint.state
    names = list(state)
    weights = [value for value in state.values() if value.ndim >= 2]
    outputs = f", probably {weights[-1].shape[0]} outputs" if weights else ""
    return (
        f"holds weights without the network they belong to: {len(names)} tensors, "
        f"{names[0]} {_shape(state[names[0]])} to {names[-1]} {_shape(state[names[-1]])}{outputs}{_alike(checkpoint)}"
    )


def _alike(checkpoint: Checkpoint) -> str:
    network = recognised(checkpoint.state or {})
    if network is None or network.one is not None:
        return ""
    return (
        f". The names and shapes are those of {' and '.join(map(str, network.first))} ({network.known_from}), which "
        "may compute different things"
    )


def suggested_architectures(checkpoint: Checkpoint) -> tuple[str, ...]:
    """What --arch may be: the known networks that the weights fit, or else an example."""
    network = recognised(checkpoint.state or {})
    return ("file.py:factory",) if network is None else tuple(each.arch for each in network.first)


def _ask_for_architecture(checkpoint: Checkpoint) -> str:
    archs = suggested_architectures(checkpoint)
    return (
        f"{checkpoint.path}: {described(checkpoint)}. "
        f"Name the function that builds the network, on the command line:\n"
        f"    --arch {' or '.join(archs)}\n"
        f"or in the run file:\n"
        f"    [model]\n"
        f'    arch = "{archs[0]}"      # or "package.module:factory", "timm:NAME", "torchvision:NAME"'
    )


def _names_of(module: nn.Module) -> set[str]:
    return {name for name in module.state_dict() if not name.endswith("_extra_state")}


def _fill(module: nn.Module, checkpoint: Checkpoint, arch: str) -> list[Finding]:
    """Put the weights into the module, all of them and nothing else; notes on what was not as it should be."""
    state = checkpoint.state
    assert state is not None
    expected = module.state_dict()
    wanted = _names_of(module)
    _check_shapes(module, checkpoint, arch, expected, wanted)
    weights = {name for name, _ in module.named_parameters()} | {name for name in expected if name.endswith(_RUNNING)}
    for name, value in state.items():
        # Nothing here needs the counter, and averaging of weights makes it a fraction.
        if name not in expected or name.endswith(_COUNTER):
            continue
        if lost := _lost_values(value, expected[name], allow_integers=name not in weights):
            raise ModelError(
                f"{checkpoint.path}: {name} holds {lost} ({_dtypes({value.dtype})}), and is "
                f"{_dtypes({expected[name].dtype})} in {arch}. Check that it is the network that was trained, as it "
                "was before any conversion."
            )
    findings = []
    floats = {value.dtype for name, value in state.items() if name in expected and value.is_floating_point()}
    becomes = {expected[name].dtype for name in state if name in expected and expected[name].is_floating_point()}
    if floats - becomes and becomes:
        findings.append(note("weights-converted", stored=_dtypes(floats - becomes), used=_dtypes(becomes)))
    doing = f"{checkpoint.path}: its weights do not fit {arch}:"
    with user_code(doing, advice="Check that it is the network that was trained.", error=ModelError):
        result = module.load_state_dict(state, strict=False)  # layers may have hooks of their own
    missing = [name for name in result.missing_keys if name in wanted and not name.endswith(_COUNTER)]
    unexpected = [name for name in result.unexpected_keys if not name.endswith("_extra_state")]
    if missing or unexpected:
        raise ModelError(_mismatch(checkpoint, arch, wanted, missing, unexpected))
    uncounted = sum(name.endswith(_COUNTER) and name not in state for name in wanted)
    if uncounted:
        findings.append(note("no-batch-counters", layers=uncounted))
    return findings


def _lost_values(value: Tensor, place: Tensor, *, allow_integers: bool) -> str | None:
    """What `value` holds that the type of its `place` in the network cannot, or reads differently; None if nothing.

    Whole numbers pass only with `allow_integers`: as weights they would be quantized.
    """
    if value.dtype == place.dtype:
        return None
    if not value.is_floating_point():
        return "whole numbers" if place.is_floating_point() and not allow_integers else None
    if place.is_floating_point():
        narrower = torch.finfo(place.dtype).max < torch.finfo(value.dtype).max
        return (
            "numbers too large" if narrower and bool((value.to(place.dtype).isinf() & ~value.isinf()).any()) else None
        )
    return "fractions" if not place.is_complex() and bool((value.double() != value.to(place.dtype)).any()) else None


def _check_shapes(
    module: nn.Module, checkpoint: Checkpoint, arch: str, expected: Mapping[str, Tensor], wanted: set[str]
) -> None:
    state = checkpoint.state
    assert state is not None
    wrong = [(name, value) for name, value, _ in _wrong_shapes(module, checkpoint)]
    if not wrong:
        return
    missing = [name for name in expected if name in wanted and name not in state and not name.endswith(_COUNTER)]
    unexpected = [name for name in state if name not in expected]
    if missing or unexpected:
        also = f" {len(wrong)} of those that both have are of another shape."
        raise ModelError(_mismatch(checkpoint, arch, wanted, missing, unexpected) + also)
    shown = "; ".join(f"{n} is {_shape(v)} in the file, {_shape(expected[n])} in the network" for n, v in wrong[:5])
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
            f"layers: {_first_five(layers)}. Without them the network cannot be evaluated. If it was trained with "
            f"track_running_stats=False, the factory of {arch} must say so too; else give the complete checkpoint."
        )
    parts = [
        f"{len(names)} {problem}: {_first_five(names)}"
        for names, problem in (
            (missing, "that the network needs are missing"),
            (unexpected, "are unknown to the network"),
        )
        if names
    ]
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


def _finish_lazy(module: nn.Module, path: Path) -> None:
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


def _first_five(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def _shape(value: Tensor) -> str:
    return str(tuple(value.shape))


def _dtypes(dtypes: set[torch.dtype]) -> str:
    return " and ".join(sorted(str(dtype).removeprefix("torch.") for dtype in dtypes))
