"""The perturbations that --perturb applies to the test set: what each does to the inputs, and how it is described.

A new one is a value in KINDS: the option, its help, the evaluation and the reports follow from it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # the options are known without numpy
    import numpy as np
    from jaxtyping import Float
    from torch import Tensor

    Values = Float[np.ndarray | Tensor, "point ..."]

BLOCK = 64  # points that are perturbed together, from the first one on, or a multiple: so no result depends on chunks
PGD_STEPS, PGD_STEP = 10, 0.25  # steps, and the size of one as a share of ε

_SET_NAME = re.compile(r"test\+(?P<text>(?P<kind>[a-z]+):(?P<size>[0-9][0-9.]*(e[-+][0-9]+)?))", re.ASCII)


@dataclass(frozen=True)
class Block:
    """Some points before normalisation, and what a perturbation may ask about them.

    `noise` draws standard normal numbers, which depend on the seed and the number of each point alone: they are the
    same at every size. `ascent` gives the signs by which the numbers of changed points raise the loss; the points of an
    attack are on the network's device. `valid` brings values into the range of the inputs, where that is known.
    """

    raw: Values
    noise: Callable[[], Values]
    ascent: Callable[[Values], Values]
    valid: Callable[[Values], Values]


@dataclass(frozen=True)
class PerturbationKind:
    """A way of changing inputs by a size, in units of the input.

    `symbol` and `size` are what its size is called in a report and in the help, `axis` on a plot. `help` says in the
    option's help what it is, `effect` in a report what it does. An attack raises the loss, so it needs labels and is
    computed for each method. `digest` are further numbers that the points depend on; None stands for the seed.
    """

    name: str
    size: str
    symbol: str
    help: str
    effect: str
    axis: str
    apply: Callable[[Block, Any], Values]
    is_attack: bool = False
    digest: tuple[float, ...] | None = ()


def _with_noise(block: Block, size: Any) -> Values:
    return block.raw + size * block.noise()


def _ascended(block: Block, size: Any, *, steps: int = 1, step: float = 1.0) -> Values:
    """The points after so many steps up the loss, each a share of the size, within the size of where they were."""
    low, high, changed = block.raw - size, block.raw + size, block.raw
    for _ in range(steps):
        changed = block.valid((changed + step * size * block.ascent(changed)).clip(low, high))
    return changed


def _projected(block: Block, size: Any) -> Values:
    return _ascended(block, size, steps=PGD_STEPS, step=PGD_STEP)


_ATTACK: dict[str, Any] = {
    "size": "EPSILON",
    "symbol": "ε",
    "axis": "ε of the attack",
    "is_attack": True,
    "digest": (BLOCK, PGD_STEPS, PGD_STEP),
}
_ALL = (
    PerturbationKind(
        "gaussian", "SIGMA", "σ", "noise", "adds noise of this standard deviation", "σ of the noise", _with_noise,
        digest=None,
    ),
    PerturbationKind(
        "fgsm", help="one step along the signs of the loss's gradient", apply=_ascended,
        effect="changes each number by ε, in one step along the signs of the gradient of the loss", **_ATTACK,
    ),
    PerturbationKind(
        "pgd", help="ten steps", apply=_projected,
        effect="changes each number by at most ε, in ten such steps", **_ATTACK,
    ),
)  # fmt: skip
KINDS: dict[str, PerturbationKind] = {kind.name: kind for kind in _ALL}
ATTACKS: tuple[str, ...] = tuple(name for name, kind in KINDS.items() if kind.is_attack)
HELP = ", ".join(f"{name}:{kind.size} ({kind.help})" for name, kind in KINDS.items())


@dataclass(frozen=True)
class Perturbation:
    """A requested change of the inputs of the test set: its kind and its size."""

    kind: PerturbationKind
    size: float

    def __str__(self) -> str:
        return f"{self.kind.name}:{str(self.size).removesuffix('.0')}"

    @property
    def set_name(self) -> str:
        """The name of the test set after this change."""
        return f"test+{self}"


def perturbation(text: str) -> Perturbation | None:
    """The perturbation that KIND:SIZE denotes, of a size such as 0.03 or 8/255; None for any other text."""
    name, _, size = (part.strip() for part in text.partition(":"))
    parts = re.fullmatch(r"(\d*\.?\d+(?:[eE][-+]?\d+)?)(?:/(\d*[1-9]\d*))?", size, re.ASCII)
    if name not in KINDS or parts is None:
        return None
    number = float(parts[1]) / float(parts[2] or 1)
    return Perturbation(KINDS[name], number) if 0 < number < float("inf") else None


def kind_and_size(set_name: str) -> tuple[str, float] | None:
    """The kind, which this version may not know, and the size in the name of a perturbed set; None for another name."""
    parts = _SET_NAME.fullmatch(set_name)
    return None if parts is None else (parts["kind"], float(parts["size"]))


def change_of(set_name: str) -> str:
    """KIND:SIZE in the name of a perturbed set."""
    return set_name.removeprefix("test+")
