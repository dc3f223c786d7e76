"""What weights without a network are of: their description, and the architectures that --arch may name."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from bnuq.models.checkpoint import Checkpoint
from bnuq.models.filling import shape
from bnuq.models.recognition import recognised, with_replaced_head


def described(checkpoint: Checkpoint) -> str:
    """What a file of weights holds, after its name: how many tensors, the first and the last, and the known networks
    that they fit, where these are several."""
    assert checkpoint.state is not None
    state = checkpoint.state
    names = list(state)
    weights = [value for value in state.values() if value.ndim >= 2]
    outputs = f", probably {weights[-1].shape[0]} outputs" if weights else ""
    kind = "holds weights without the network they belong to"
    if checkpoint.form == "TorchScript":
        kind = "is TorchScript, and only its weights are read"
    return (
        f"{kind}: {len(names)} tensors, "
        f"{names[0]} {shape(state[names[0]])} to {names[-1]} {shape(state[names[-1]])}{outputs}{_alike(checkpoint)}"
    )


def _alike(checkpoint: Checkpoint) -> str:
    state = checkpoint.state or {}
    network = recognised(state)
    if network is None and (known := with_replaced_head(state)) is not None:
        return f". All but those of {known[1]} are those of {known[0].usual} ({known[0].known_from})"
    if network is None or network.one is not None:
        return ""
    return (
        f". The names and shapes are those of {' and '.join(map(str, network.first))} ({network.known_from}), which "
        "may compute different things"
    )


def suggested_architectures(checkpoint: Checkpoint) -> tuple[str, ...]:
    """What --arch may be: the known networks that the weights fit, or else an example."""
    if (network := recognised(checkpoint.state or {})) is not None:
        return tuple(architecture.arch for architecture in network.first)
    return ("file.py:factory",) if factory_file(checkpoint) is None else ("net.py:net",)


def ask_for_architecture(checkpoint: Checkpoint) -> str:
    archs, code = " or ".join(suggested_architectures(checkpoint)), factory_file(checkpoint)
    file = "" if code is None else f" Save this as net.py:\n\n{code}\n\n"
    return (
        f"{checkpoint.path}: {described(checkpoint)}.{file} Name the function that builds the network: --arch {archs}"
    )


def factory_file(checkpoint: Checkpoint) -> str | None:
    """The lines of a file whose function `net` builds the network, where it is a known one with a sequence of layers in
    the place of its head; None for all others. Layers without weights are guessed: the file does not hold them."""
    state = checkpoint.state or {}
    known = None if recognised(state) is not None else with_replaced_head(state)
    if known is None or (layers := _layers(state, known[1])) is None:
        return None
    network, module = known[0].usual, "".join(f"[{k}]" if k.isdigit() else f".{k}" for k in known[1].split("."))
    create = "timm.create_model" if network.package == "timm" else "torchvision.models.get_model"
    arguments = "".join(f", {name}={value!r}" for name, value in network.arguments.items())
    return (
        f"import {network.package}\nfrom torch import nn\n\ndef net():\n"
        f'    network = {create}("{network.arch.partition(":")[2]}"{arguments})\n'
        "    # The file has no layers without weights: check that ReLU and Dropout are as in training.\n"
        f"    network{module} = nn.Sequential({', '.join(layers)})\n    return network"
    )


def _layers(state: Mapping[str, Tensor], module: str) -> list[str] | None:
    """The layers of a sequence by its tensors, as code; None where they are of others than linear layers and norms."""
    tensors = {name.removeprefix(f"{module}."): value for name, value in state.items() if name.startswith(f"{module}.")}
    positions = {name.partition(".")[0] for name in tensors}
    if not all(position.isdigit() for position in positions):
        return None
    layers: list[str] = []
    for position in map(str, range(1 + max(map(int, positions)))):
        weight = tensors.get(f"{position}.weight")
        if position not in positions:
            layers.append("nn.ReLU()" if layers and layers[-1].startswith(("nn.L", "nn.B")) else "nn.Dropout()")
        elif weight is not None and weight.ndim == 2:
            bias = "" if f"{position}.bias" in tensors else ", bias=False"
            layers.append(f"nn.Linear({weight.shape[1]}, {weight.shape[0]}{bias})")
        elif weight is not None and weight.ndim == 1:
            kind = "BatchNorm1d" if f"{position}.running_mean" in tensors else "LayerNorm"
            layers.append(f"nn.{kind}({len(weight)})")
        else:
            return None
    return layers
