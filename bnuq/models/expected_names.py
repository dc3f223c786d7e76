"""Matches the names of a checkpoint's weights with those that a network expects."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from torch import Tensor, nn

from bnuq.findings import note
from bnuq.models.checkpoint import Checkpoint
from bnuq.models.entries import AVERAGES, WRAPPERS, renamed
from bnuq.models.listing import listed


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
        matching = len(wanted & candidate.keys())
        if matching > most:
            best, most = replace(checkpoint, state=candidate, stripped=checkpoint.stripped[:count]), matching
    assert best.state is not None
    flat = {f"ema_{name.replace('.', '_')}" for name in best.state} - wanted
    if copies := [name for name in best.state if name in flat]:
        state = renamed({name: value for name, value in best.state.items() if name not in flat}, str)
        findings = (*best.findings, note("averages-beside", count=len(copies), names=listed(copies)))
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
            left_out = note("tensors-left-out", count=len(outside), prefix=prefix, names=listed(outside))
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
