"""What weights without a network are of: their description, and the architectures that --arch may name."""

from __future__ import annotations

from bnuq.models.checkpoint import Checkpoint
from bnuq.models.filling import shape
from bnuq.models.recognition import recognised


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
        kind = "is TorchScript, of which only the weights are read"
    return (
        f"{kind}: {len(names)} tensors, "
        f"{names[0]} {shape(state[names[0]])} to {names[-1]} {shape(state[names[-1]])}{outputs}{_alike(checkpoint)}"
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
    return ("file.py:factory",) if network is None else tuple(architecture.arch for architecture in network.first)


def ask_for_architecture(checkpoint: Checkpoint) -> str:
    archs = suggested_architectures(checkpoint)
    return (
        f"{checkpoint.path}: {described(checkpoint)}. "
        f"Name the function that builds the network, on the command line:\n"
        f"    --arch {' or '.join(archs)}\n"
        f"or in the run file:\n"
        f"    [model]\n"
        f'    arch = "{archs[0]}"      # or "package.module:factory", "timm:NAME", "torchvision:NAME"'
    )
