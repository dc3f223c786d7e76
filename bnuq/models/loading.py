"""A checkpoint and an architecture become one network in evaluation mode, or one message about why they do not fit."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from bnuq.errors import BnuqError, ModelError, RequestError
from bnuq.files.hub import CONFIG
from bnuq.files.references import without_arguments
from bnuq.findings import Finding, about, note
from bnuq.forms import check_form, into_evaluation_mode, strided_parts
from bnuq.frozen import frozen
from bnuq.models.architecture import TRANSFORMERS, Built, build, imported, renamed_by_transformers
from bnuq.models.checkpoint import Checkpoint, read_checkpoint
from bnuq.models.filling import dtypes, fill, finish_lazy, fitted, weight_names, without_attributes, wrong_shapes
from bnuq.models.recognition import recognised
from bnuq.models.suggestions import ask_for_architecture
from bnuq.models.weight_checks import check_not_quantized
from bnuq.trust import BY_USER, NamedBy, names_a_file, resolve_factory


@frozen
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

    def script() -> ModuleType:
        assert arch is not None
        named = resolve_factory(without_arguments(arch)[0], base=base or Path(), named_by=named_by, trust=trust_code)
        return sys.modules[named.__module__]

    main = script if arch is not None and names_a_file(arch) else None
    checkpoint = read_checkpoint(path, entry=entry, trust_pickle=trust_pickle, only_finite=only_finite, main=main)
    if checkpoint.module is not None:
        module, findings = unwrapped(checkpoint.module), list[Finding]()
        check_form(module, file=checkpoint.path)
        _check_numbers(module, checkpoint.path)
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
            named_architecture = _recognised_architecture if checkpoint.hub is None else _configured_architecture
            arch, arch_args, named = named_architecture(checkpoint, arch_args or {})
        construct = partial(build, arch, base=base, named_by=named_by, trust=trust_code, **keys)
        with _naming(config):
            built, findings = _built_with_its_classes(construct, dict(arch_args or {}), checkpoint)
        module, dropout_arguments = built.module, built.dropout_left_at_0
        check_form(module)
        checkpoint = fitted(checkpoint, weight_names(module))
        if arch.startswith(f"{TRANSFORMERS}:") and checkpoint.state and weight_names(module) - checkpoint.state.keys():
            checkpoint = replace(checkpoint, state={**renamed_by_transformers(module, checkpoint.state)})
        if checkpoint.form == "TorchScript":
            checkpoint = without_attributes(module, checkpoint)
        findings += named
        fill(module, checkpoint, arch)
        _check_numbers(module, checkpoint.path)
    findings = [*_how_read(checkpoint), *findings]
    finish_lazy(module, checkpoint.path)
    return LoadedModel(
        module=into_evaluation_mode(module),
        checkpoint=replace(checkpoint, state=None, module=None),
        arch=arch,
        parameters=parameters_of(module),
        findings=about(str(checkpoint.path), findings),
        dropout_arguments=dropout_arguments,
    )


@contextmanager
def _naming(config: Path | None) -> Iterator[None]:
    """Name the `config`, if any, that requests what cannot be built."""
    try:
        yield
    except RequestError as error:
        if config is None:
            raise
        raise RequestError(f"{config}: {error}") from error


def _configured_architecture(
    checkpoint: Checkpoint, given: Mapping[str, Any]
) -> tuple[str, dict[str, Any], list[Finding]]:
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


def _recognised_architecture(
    checkpoint: Checkpoint, given: Mapping[str, Any]
) -> tuple[str, dict[str, Any], list[Finding]]:
    """The architecture that the weights are recognised as, its arguments, which those `given` override, and a note.

    Raises RequestError where they fit no known network, or several that compute different things, and where the library
    of the one is not installed.
    """
    assert checkpoint.state is not None
    network = recognised(checkpoint.state)
    if network is None or (architecture := network.one) is None:
        raise RequestError(ask_for_architecture(checkpoint))
    try:
        imported(architecture.arch, architecture.package)
    except RequestError as error:
        raise RequestError(
            f"{checkpoint.path}: its tensors have the names and shapes of {architecture} with "
            f"{network.classes} classes. {error}\n"
            "For another network, name the function that builds it: --arch file.py:factory"
        ) from error
    finding = note(
        "architecture-recognised",
        architecture=str(architecture),
        others=[str(other) for other in network.groups[0] if other != architecture],
        classes=network.classes,
        releases=network.known_from,
    )
    return architecture.arch, {**architecture.arguments, "num_classes": network.classes, **given}, [finding]


_MOST_LARGER = 4  # times as many parameters as the file holds, in which shared ones may be once


def _built_with_its_classes(
    construct: Callable[..., Built], arguments: dict[str, Any], checkpoint: Checkpoint
) -> tuple[Built, list[Finding]]:
    """The network that `construct` makes, and notes. Where its number of classes was left open, or guessed by the last
    weight of the file (safetensors has them by name), and only that does not fit, it is made with the file's."""
    assert checkpoint.state is not None
    weights = [value for value in checkpoint.state.values() if value.ndim >= 2]
    built = construct(arch_args=arguments, classes=len(weights[-1]) if weights else None)
    built = replace(built, module=unwrapped(built.module))
    wrong, name = wrong_shapes(built.module, checkpoint), built.classes or built.classes_left_open
    rows = {len(value) for _, value, parameter in wrong if value.ndim and value.shape[1:] == parameter.shape[1:]}
    if name is not None and len(rows) == 1:
        (classes,) = rows
        with suppress(BnuqError):  # the message about the first network says what is wrong
            other = construct(arch_args=arguments | {name: classes})
            other = replace(other, module=unwrapped(other.module))
            if not wrong_shapes(other.module, checkpoint):
                return other, [note("classes-from-file", argument=name, classes=classes)]
    if built.classes is None:
        return built, []
    return built, [note("classes-from-file", argument=built.classes, classes=len(weights[-1]))]


def live_model(network: nn.Module, name: Path, *, only_finite: bool = True) -> LoadedModel:
    """A network in memory, called `name`, as if it were loaded; its SHA-256 is that of its parameters and buffers.

    Raises ModelError for what cannot be sampled, and, with `only_finite`, for weights that are NaN or infinite.
    """
    check_form(network)
    _check_numbers(network, name)
    module, digest = unwrapped(network, nested=False), hashlib.sha256()
    for key, tensor in module.state_dict().items():
        if is_lazy(tensor):
            raise ModelError(f"{name}: {key} has no shape yet; run the network once on a batch, then evaluate it.")
        for part in strided_parts(tensor.detach()):
            values = part.cpu().contiguous()
            if only_finite and values.is_floating_point() and not values.isfinite().all():
                raise ModelError(f"{name}: {key} holds NaN or infinity; did the training diverge?")
            digest.update(f"{key} {values.dtype} {tuple(values.shape)}".encode())
            digest.update(values.reshape(-1).view(torch.uint8).numpy().data)
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
                f"{path}: is a complex network: {name} is {dtypes({tensor.dtype})}. Nothing here computes with "
                "complex weights: float32 would drop their imaginary parts. Write them as two real ones."
            )


def parameters_of(module: nn.Module) -> int:
    """How many parameters a network has; shared ones count once."""
    return sum(p.numel() for p in module.parameters() if not is_lazy(p))


def unwrapped(module: nn.Module, *, nested: bool = True) -> nn.Module:
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
