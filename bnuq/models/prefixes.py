"""Takes off the prefixes that wrappers add to the names of weights."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from bnuq.errors import ModelError

_MOST_WRAPPERS = 8  # within each other
WRAPPERS = ("module.", "model.", "net.")  # DataParallel, Lightning, habit
COMPILED = "_orig_mod."  # what torch.compile adds to every name
_AVERAGED = "n_averaged"  # the counter of torch.optim.swa_utils.AveragedModel


def without_prefixes(path: Path, state: dict[str, Tensor]) -> tuple[dict[str, Tensor], tuple[str, ...]]:
    """`state` without the prefixes that all names share, however many; and those prefixes."""
    stripped: list[str] = []
    if any(COMPILED in name for name in state):
        first: dict[str, str] = {}
        for name, value in state.items():
            other = first.setdefault(plain := name.replace(COMPILED, ""), name)
            if other != name and not torch.equal(state[other], value):
                raise ModelError(
                    f"{path}: {other} and {name} are both {plain} of the network, once the prefixes are off. Save the "
                    "network's own state dict (torch.save(model.state_dict(), …)) and name that."
                )
        state = renamed(state, lambda name: name.replace(COMPILED, ""))
        stripped.append(COMPILED)
    if _AVERAGED in state and all(name.startswith("module.") for name in state if name != _AVERAGED):
        state = renamed({name: value for name, value in state.items() if name != _AVERAGED}, str)
    while state and len(stripped) < _MOST_WRAPPERS:
        prefix = next((p for p in WRAPPERS if all(n.startswith(p) and n != p for n in state)), None)
        if prefix is None:
            break
        state = renamed(state, lambda name, prefix=prefix: name.removeprefix(prefix))
        stripped.append(prefix)
    return state, tuple(stripped)


def renamed(state: dict[str, Tensor], new: Callable[[str], str]) -> dict[str, Tensor]:
    state_of_new_names: OrderedDict[str, Tensor] = OrderedDict((new(name), value) for name, value in state.items())
    versions = getattr(state, "_metadata", None)  # a module's path to the version of its layout
    if versions:
        state_of_new_names._metadata = OrderedDict(  # type: ignore[attr-defined]
            (new(f"{module}.").strip("."), version) for module, version in versions.items()
        )
    return state_of_new_names
