"""Finds the weights among the entries of a checkpoint, and the plain values beside them; takes off the prefixes that
wrappers add to names."""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn

from bnuq.errors import ModelError
from bnuq.findings import Finding, note
from bnuq.models.kinds import EXPECTED, LONGEST_NAME, check_name, cut, listed

Plain = str | int | float | bool

# Where training scripts put the weights, averaged ones first: they are what the script evaluated.
_NESTS = ("state_dict_ema", "model_ema", "ema", "state_dict", "model", "net", "weights", "model_state_dict")
_DEEPEST_NEST = 3
AVERAGES = re.compile(r"(^|_)(ema|swa|averaged|shadow)(_|$)")  # an entry, or the first part of a tensor's name


def weights_in(path: Path, holds: Any, entry: str | None) -> tuple[str | None, dict[str, Any] | nn.Module]:
    """The state dict or network in what a file holds, or in its `entry`, and the dotted path of the entry it was found
    under."""
    way: list[str] = []
    current: Any = holds
    for name in _path_of(holds, entry):
        current = _entry(current, name)
        if not leads_to_weights(current):
            entries = [str(key) for key, value in entries_of(holds) if leads_to_weights(value)]
            there = "it has no entry with weights"
            if entries:
                there = f"the entries with weights are {listed(entries, order=False)}"
            elif _leads_to_tensors(holds):
                there = "the file is a single state dict, without entries: leave --entry out"
            raise ModelError(f"{path}: --entry is {cut(str(entry))!r}, which holds no weights; {there}.")
        way.append(name)
    for _ in range(_DEEPEST_NEST + 1):
        if (nest := _nest_of(path, current)) is None:
            break
        check_name(path, nest)
        way.append(nest)
        current = _entry(current, nest)
    if isinstance(current, nn.Module) or _has_tensors(current):
        return ".".join(way) or None, current
    content = (
        f"a dict of {listed(map(str, current), order=False) or 'nothing'}"
        if isinstance(current, Mapping)
        else f"a {type(current).__name__}"
    )
    raise ModelError(f"{path}: holds no state dict but {content}; {EXPECTED}.")


def _path_of(holds: Any, entry: str | None) -> Sequence[str]:
    """The names on the way to `entry`, a dotted path; a name of the outermost dict may have full stops in it."""
    if entry is None:
        return ()
    return (entry,) if isinstance(holds, Mapping) and entry in holds else entry.split(".")


def entries_of(holds: Any) -> Iterable[tuple[Any, Any]]:
    return holds.items() if isinstance(holds, Mapping) else ()


def _entry(holds: Any, name: str) -> Any:
    return holds.get(name) if isinstance(holds, Mapping) else None


def _nest_of(path: Path, holds: Any) -> str | None:
    if not isinstance(holds, Mapping):
        return None
    averaged = [name for name, value in holds.items() if name not in _NESTS and _is_average(name, _tensors_in(value))]
    plain = max((_tensors_in(holds.get(name)) for name in _NESTS), default=0)
    if len(averaged) == 1 and _tensors_in(holds[averaged[0]]) >= plain:  # fewer are without the buffers of BatchNorms
        return averaged[0]
    for name in _NESTS:
        if isinstance(holds.get(name), nn.Module) or _leads_to_tensors(holds.get(name)):
            return name
    if _has_tensors(holds):
        return None
    others = [name for name, value in holds.items() if isinstance(name, str) and _has_tensors(value)]
    if len(others) > 1:
        raise ModelError(
            f"{path}: holds several state dicts, {listed(others)}, and nothing says which is the network's. "
            f'Name it with --entry {others[0]}, or under [model]: entry = "{others[0]}".'
        )
    return others[0] if others else None


def _is_average(name: Any, tensors: int) -> bool:
    return isinstance(name, str) and tensors > 0 and bool(AVERAGES.search(name))


def unused_averages(holds: Any, key: str | None) -> Iterator[Finding]:
    """A note on each entry of averaged weights that is not read, such as a list of them without names."""
    if not AVERAGES.search(key or ""):
        entries = [(name, value) for name, value in entries_of(holds) if not isinstance(value, Tensor)]
        names = [name for name, value in entries if _is_average(name, _holds_tensors(value))]
        yield from (note("averages-unused", entry=cut(name), key=key) for name in names)


def _tensors_in(value: Any, depth: int = 0) -> int:
    """How many tensors the state dict or network in a value has."""
    if isinstance(value, nn.Module):
        return len(value.state_dict())
    if _has_tensors(value):
        return sum(isinstance(item, Tensor) for item in value.values())
    inner = (item for name, item in entries_of(value) if name in _NESTS and depth < _DEEPEST_NEST)
    return max((_tensors_in(item, depth + 1) for item in inner), default=0)


def _holds_tensors(value: Any, depth: int = 0) -> bool:
    inner = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
    within = inner if depth < _DEEPEST_NEST else ()
    return isinstance(value, Tensor | nn.Module) or any(_holds_tensors(item, depth + 1) for item in within)


def leads_to_weights(value: Any) -> bool:
    """Whether a value holds weights: a state dict, a network, or a dict with one in it."""
    return _leads_to_tensors(value) or any(_leads_to_tensors(item) for _, item in entries_of(value))


def _leads_to_tensors(value: Any, depth: int = 0) -> bool:
    if isinstance(value, nn.Module):
        return True
    if not isinstance(value, Mapping):
        return False
    nests = _NESTS if depth < _DEEPEST_NEST else ()
    return _has_tensors(value) or any(_leads_to_tensors(value.get(name), depth + 1) for name in nests)


def _has_tensors(value: Any) -> bool:
    return isinstance(value, Mapping) and any(isinstance(k, str) and isinstance(v, Tensor) for k, v in value.items())


def plain_values(holds: Any) -> dict[str, Plain]:
    """The small plain values beside the weights, and in the dicts of settings that training scripts keep there."""
    values: dict[str, Plain] = {}
    if not isinstance(holds, Mapping):
        return values
    for key, value in holds.items():
        inner = {}
        if key in ("args", "hyper_parameters", "hparams", "config", "cfg", "opt"):  # settings
            inner = value if isinstance(value, Mapping) else getattr(value, "__dict__", {})
        values |= {f"{key}.{name}": v for name, v in inner.items() if isinstance(name, str) and _is_plain(v)}
        if isinstance(key, str) and _is_plain(value):
            values[key] = value
    return {name: value for name, value in values.items() if len(name) <= LONGEST_NAME}


def _is_plain(value: Any) -> TypeGuard[Plain]:
    if isinstance(value, int):  # which may have a million digits
        return abs(value) < 2**63
    return isinstance(value, float) or (isinstance(value, str) and len(value) <= 200)


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
        if (prefix := next((p for p in WRAPPERS if all(n.startswith(p) and n != p for n in state)), None)) is None:
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
