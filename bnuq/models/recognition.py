"""Which networks of timm and torchvision a state dict may belong to, by the names and shapes of its tensors.

The index holds a digest of these for each network that `docs/make_architectures.py` could build. The axis of the
classes is left out, so that a network is found for any number of them. Nothing is imported, built or run here.
"""

from __future__ import annotations

import gzip
import hashlib
import importlib.util
import json
import zlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import field
from functools import cache
from pathlib import Path
from typing import Any

from torch import Tensor

from bnuq.frozen import frozen

INDEX = Path(__file__).with_name("architectures.json.gz")
Head = tuple[tuple[str, int], ...]  # the tensors whose shape depends on the number of classes, and which axis of each
_COUNTER = "num_batches_tracked"  # absent before torch 0.4.1
_DIGEST_BYTES = 8
_LARGEST = 4 * 2**20  # bytes of the unpacked index


@frozen
class Architecture:
    """A model of timm or torchvision, and the arguments it needs beside the number of classes."""

    arch: str
    arguments: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return " ".join([self.arch, *(f"{name}={json.dumps(value)}" for name, value in self.arguments.items())])

    @property
    def package(self) -> str:
        return self.arch.partition(":")[0]

    @classmethod
    def of(cls, text: str) -> Architecture:
        arch, *arguments = text.split(" ")
        return cls(arch, {name: json.loads(value) for name, _, value in (text.partition("=") for text in arguments)})


@frozen
class Recognised:
    """The architectures whose tensors have these names and shapes with this number of `classes`, in groups that compute
    the same, and the releases of the libraries that the index was made with."""

    classes: int
    groups: tuple[tuple[Architecture, ...], ...]
    releases: Mapping[str, str]

    @property
    def one(self) -> Architecture | None:
        """The architecture to build: one whose library is installed, with the shortest name; None where the weights fit
        networks that compute different things."""
        if len(self.groups) != 1:
            return None
        first = self.groups[0]
        return next((architecture for architecture in first if is_installed(architecture.package)), first[0])

    @property
    def usual(self) -> Architecture:
        """An architecture whose library is installed, or else of torchvision, whose heads are replaced most."""
        return max(self.groups[0], key=lambda known: (is_installed(known.package), known.package == "torchvision"))

    @property
    def first(self) -> tuple[Architecture, ...]:
        """The shortest name of each group."""
        return tuple(group[0] for group in self.groups)

    @property
    def known_from(self) -> str:
        libraries = sorted({architecture.package for group in self.groups for architecture in group})
        return " and ".join(f"{library} {self.releases.get(library, '')}".strip() for library in libraries)


@frozen
class Index:
    """The releases of the libraries, the heads of their networks, and the groups of architectures by digest."""

    releases: Mapping[str, str] = field(default_factory=dict)
    heads: Collection[Head] = ()
    architectures: Mapping[str, Sequence[Sequence[str]]] = field(default_factory=dict)


def recognised(state: Mapping[str, Tensor], index: Index | None = None) -> Recognised | None:
    """What the tensors of `state` fit exactly: every name, and every shape except for the number of classes. None where
    no network does."""
    shapes, index = shapes_of(state), shipped_index() if index is None else index
    for head in index.heads:
        if not all(len(shapes.get(name, ())) > axis for name, axis in head):
            continue
        classes = {shapes[name][axis] for name, axis in head}
        if len(classes) == 1 and (groups := index.architectures.get(digest_of(shapes, head))):
            named = tuple(tuple(map(Architecture.of, group)) for group in groups)
            return Recognised(classes.pop(), named, index.releases)
    return None


def with_replaced_head(state: Mapping[str, Tensor], index: Index | None = None) -> tuple[Recognised, str] | None:
    """What the tensors of `state` fit but for those of one module in the place of a linear head, and the name of that
    module; None where no network does."""
    shapes, index = shapes_of(state), shipped_index() if index is None else index
    for head in index.heads:
        modules = {name.rpartition(".")[0] for name, _ in head}
        if len(modules) != 1 or (f"{(module := modules.pop())}.weight", 0) not in head:
            continue
        for replaced in (module, *([parent] if (parent := module.rpartition(".")[0]) else ())):
            inside = [name for name in shapes if name.startswith(f"{replaced}.")]
            inputs = next((shapes[name][1] for name in inside if len(shapes[name]) == 2), None)
            body: dict[str, tuple[int, ...]] = {name: shape for name, shape in shapes.items() if name not in inside}
            if inputs is None:
                continue
            body |= {name: (1, inputs) if name.endswith(".weight") else (1,) for name, _ in head}
            if groups := index.architectures.get(digest_of(body, head)):
                named = tuple(tuple(map(Architecture.of, group)) for group in groups)
                return Recognised(1, named, index.releases), replaced
    return None


def shapes_of(state: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(value.shape) for name, value in state.items() if not name.endswith(_COUNTER)}


def digest_of(shapes: Mapping[str, tuple[int, ...]], head: Iterable[tuple[str, int]]) -> str:
    """A digest of all names and shapes, in which the axes of `head` have no size."""
    left_out = dict(head)
    rows = [
        f"{name} {[None if axis == left_out.get(name) else size for axis, size in enumerate(shape)]}"
        for name, shape in sorted(shapes.items())
    ]
    return hashlib.blake2b("\n".join(rows).encode(), digest_size=_DIGEST_BYTES).hexdigest()


@cache
def shipped_index() -> Index:
    """The index of this package; an empty one, by which nothing is recognised, where it cannot be read."""
    return read_index(INDEX)


def read_index(path: Path) -> Index:
    try:
        with gzip.open(path) as file:
            holds = json.loads(file.read(_LARGEST))
        heads = [tuple((str(name), int(axis)) for name, axis in head) for head in holds["heads"]]
        architectures = {
            str(digest): [[str(Architecture.of(text)) for text in group] for group in groups]
            for digest, groups in holds["architectures"].items()
        }
        return Index({str(name): str(release) for name, release in holds["releases"].items()}, heads, architectures)
    except (OSError, EOFError, ValueError, KeyError, TypeError, AttributeError, RecursionError, zlib.error):
        return Index()


def write_index(path: Path, index: Index) -> None:
    """Write `index`, byte for byte the same for the same content."""
    holds = {
        "releases": index.releases,
        "heads": sorted(index.heads),
        "architectures": dict(sorted(index.architectures.items())),
    }
    path.write_bytes(gzip.compress(json.dumps(holds, separators=(",", ":")).encode(), mtime=0))


def is_installed(library: str) -> bool:
    return importlib.util.find_spec(library) is not None
