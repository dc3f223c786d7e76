"""`make architectures`: writes the index by which networks of timm and torchvision are recognised from their weights.

Needs timm and torchvision, which may be one whose compiled operators this torch cannot load. No weights are fetched.
Networks are built on the meta device, without memory. Those that share the names and shapes of their tensors are built
once more with the same weights, to see which of them compute the same. A quarter of an hour of CPU time.
"""

from __future__ import annotations

import importlib
import logging
import os
import sys
import warnings
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from benchmarks.torchvision_operators import make_importable
from bnuq.errors import RequestError
from bnuq.models.architecture import build
from bnuq.models.recognition import INDEX, Architecture, Head, Index, digest_of, shapes_of, write_index

CLASSES = 7919  # a prime number that is the size of nothing else
FEW_CLASSES = 11  # of networks that are compared
TOLERANCE = 1e-6  # of outputs in float64, relative to the largest
MOST_PARAMETERS = 200_000_000  # in networks that are compared; larger ones are not, and count as different


def main() -> None:
    """Write the index, and print how well it separates."""
    start()
    heads, alike, sizes = set[Head](), defaultdict[str, list[Architecture]](list), dict[str, int]()
    with ProcessPoolExecutor(os.cpu_count(), initializer=start) as pool:
        architectures = [*known()]
        for architecture, described in zip(architectures, pool.map(describe, architectures), strict=True):
            if isinstance(described, str):
                print(f"left out: {architecture}: {described}", flush=True)
            else:
                heads.add(described.head)
                alike[described.digest].append(architecture)
                sizes[described.digest] = described.parameters
        small = {digest: alike[digest] if sizes[digest] <= MOST_PARAMETERS else [] for digest in alike}
        groups = dict(zip(alike, pool.map(same_function, small.values()), strict=True))
    groups = {digest: each or [[one] for one in alike[digest]] for digest, each in groups.items()}
    releases = {name: sys.modules[name].__version__.partition("+")[0] for name in ("timm", "torchvision")}
    texts = {digest: [[*map(str, group)] for group in each] for digest, each in groups.items()}
    write_index(INDEX, Index(releases, heads, texts))
    alone = sum(len(each) == 1 == len(each[0]) for each in groups.values())
    equal = sum(len(each[0]) for each in groups.values() if len(each) == 1) - alone
    networks, size = sum(map(len, alike.values())), INDEX.stat().st_size
    print(f"{networks} networks, {len(alike)} digests, {len(heads)} heads, {size:,} bytes")
    print(f"alone: {alone}; with networks that compute the same: {equal}; the others share with as many groups:")
    shared = sorted(len(each) for each in groups.values() if len(each) > 1)
    print(
        {count: sum(map(len, (alike[d] for d in groups if len(groups[d]) == count))) for count in dict.fromkeys(shared)}
    )


def start() -> None:
    """Import both packages; torchvision's operators are defined by name where they cannot be loaded."""
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    make_importable()
    importlib.import_module("torchvision")
    importlib.import_module("timm")


def known() -> Iterator[Architecture]:
    """Every network of the two libraries that classifies pictures, their pixels or videos."""
    models = sys.modules["torchvision"].models
    yield from (Architecture(f"timm:{name}") for name in sys.modules["timm"].list_models())
    for module in (models, models.segmentation, models.video):
        for name in models.list_models(module=module):
            yield Architecture(f"torchvision:{name}")
            if module is models.segmentation and not name.startswith("lraspp"):
                yield Architecture(f"torchvision:{name}", {"aux_loss": True})


@dataclass(frozen=True)
class Described:
    head: Head
    digest: str
    parameters: int


def describe(architecture: Architecture) -> Described | str:
    """The head of a network and its digest, or why there is none."""
    network = None
    try:
        with suppress(RequestError), torch.device("meta"):  # some compute sizes with tensors while they are made
            network = made(architecture, CLASSES)
        network = network or made(architecture, CLASSES)
    except Exception as error:
        return " ".join(str(error).split())[:160]
    shapes = shapes_of(network.state_dict())
    axes = [(name, axis) for name, shape in shapes.items() for axis, size in enumerate(shape) if size % CLASSES == 0]
    axes = [(name, axis) for name, axis in axes if shapes[name][axis]]
    if len(dict(axes)) < len(axes) or any(shapes[name][axis] != CLASSES for name, axis in axes):
        return "the number of classes is no size of one axis"
    if not axes:
        return "no tensor depends on the number of classes"
    return Described(tuple(sorted(axes)), digest_of(shapes, axes), sum(p.numel() for p in network.parameters()))


def made(architecture: Architecture, classes: int) -> nn.Module:
    return build(architecture.arch, arch_args={**architecture.arguments, "num_classes": classes}).module


def same_function(candidates: list[Architecture]) -> list[list[Architecture]]:
    """The candidates in groups that compute the same from the same weights, the shortest name of each first."""
    groups = list[tuple[Tensor | None, list[float], list[Architecture]]]()
    state, inputs = dict[str, Tensor](), torch.empty(0)
    for candidate in candidates if len(candidates) > 1 else ():
        network = made(candidate, FEW_CLASSES).double().eval()
        if not state:
            state, inputs = untypical(network), inputs_of(network)
        rates = rates_of(network)
        try:
            network.load_state_dict(state, strict=False)  # without counters in some
            with torch.inference_mode():
                outputs = network(inputs)
            outputs = outputs["out"] if isinstance(outputs, dict) else outputs
        except Exception:
            outputs = None
        same = (group for output, others, group in groups if others == rates and agree(output, outputs))
        if (group := next(same, None)) is None:
            groups.append((outputs, rates, [candidate]))
        else:
            group.append(candidate)
    named = [group for _, _, group in groups] or [candidates] * bool(candidates)
    ordered = [sorted(group, key=lambda each: (len(str(each)), str(each))) for group in named]
    return sorted(ordered, key=lambda group: (len(str(group[0])), str(group[0])))


def untypical(network: nn.Module) -> dict[str, Tensor]:
    """Weights with which no layer is switched off, as some are when a network is made."""
    generator = torch.Generator().manual_seed(0)
    state = dict[str, Tensor]()
    for name, value in network.state_dict().items():
        noise = torch.randn(value.shape, generator=generator, dtype=torch.float64)
        if value.is_floating_point():
            value = 0.5 + noise.abs() if name.endswith("running_var") else value + 0.02 * noise
        state[name] = value
    return state


def inputs_of(network: nn.Module) -> Tensor:
    shape = (getattr(network, "default_cfg", None) or {}).get("input_size", (3, 224, 224))
    return torch.randn(1, *shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def rates_of(network: nn.Module) -> list[float]:
    """The rates of everything that drops, in order."""
    rates = (getattr(layer, "p", getattr(layer, "drop_prob", None)) for layer in network.modules())
    return [float(rate) for rate in rates if isinstance(rate, int | float) and rate]


def agree(one: Tensor | None, other: Tensor | None) -> bool:
    if one is None or other is None or one.shape != other.shape:
        return False
    return bool((one - other).abs().max() <= TOLERANCE * one.abs().max())  # False where they are not finite


if __name__ == "__main__":
    main()
