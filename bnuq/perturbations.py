"""The perturbations that --perturb and `bnuq shift` apply to the test set: what each does, to which inputs, and how
strong its severities are.

A new one is a value in KINDS and, unless it adds noise or is an attack, a function in `evaluation/corruptions.py`:
the options, their help, the evaluation and the reports follow.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import field
from typing import TYPE_CHECKING, Any, Literal

from bnuq.frozen import frozen

if TYPE_CHECKING:  # the options are known without numpy
    import numpy as np
    from torch import Tensor

    from bnuq.shapes import Float

    Values = Float[np.ndarray | Tensor, "point ..."]

BLOCK = 64  # points that are perturbed together, from the first one on, or a multiple: so no result depends on chunks
SEVERITIES = range(1, 6)
ALL = "all"  # in the place of a kind: every one that fits the points
SMALL = 48  # pixels of the shorter side up to which pictures have the severities of CIFAR-C, not of ImageNet-C

# Points by their shape: rows, (channels, steps), and (channels, height, width) with values of 0 to 1 or any others
Form = Literal["table", "sequence", "picture", "image", "array"]
_FORMS: dict[Form, str] = {
    "table": "rows of a table",
    "sequence": "sequences",
    "picture": "images with values from 0 to 1",
    "image": "images with values of any size",
    "array": "arrays of more than three axes",
}
_PICTURE: frozenset[Form] = frozenset({"picture"})
_IMAGES: frozenset[Form] = frozenset({"picture", "image"})
_EVERY: frozenset[Form] = frozenset(_FORMS)
_NUMBER = r"[0-9][0-9.]*(e[-+][0-9]+)?"
_SET_NAME = re.compile(rf"test\+(?P<kind>[A-Za-z_]\w*)(?P<sign>[:@])(?P<size>{_NUMBER})", re.ASCII)


@frozen
class RawBlock:
    """Some points before normalisation, and what a perturbation may ask about them.

    `noise` draws standard normal numbers, which depend on the seed and the number of each point alone: they are the
    same at every size. `ascent` gives the signs by which the numbers of changed points raise the loss; the points of an
    attack are on the network's device.
    """

    raw: Values
    noise: Callable[[], Values]
    ascent: Callable[[Values], Values]


@frozen
class PerturbationKind:
    """A way of changing inputs by a size, in units of the input or as `size` says.

    `symbol` and `size` are what its size is called in a report and in the help, `axis` on a plot. `help` says in the
    option's help what it is, `effect` in a report what it does. An attack raises the loss, so it needs labels and is
    computed for each method. `digest` are further numbers that the points depend on; None stands for the seed.
    Without `apply` it is the function of its name in `evaluation/corruptions.py`.

    `limits` are its smallest and its largest size. `severities` are the constants of its severities 1 to 5, for
    pictures of the size of ImageNet's ("large"), up to `SMALL` pixels ("small") or for all other points ("other");
    where one is no size alone it is a tuple that begins with the size. `published`: they are those of Hendrycks &
    Dietterich 2019. `forms` are the points that it is for, `refuses` says why it is not for those of some shapes, and
    `keeps_masks` that the masks of a segmentation stay true. `strength` grows with the change and is 0 without one.
    """

    name: str
    size: str
    symbol: str
    help: str
    effect: str
    axis: str
    apply: Callable[[RawBlock, Any], Values] | None = None
    is_attack: bool = False
    digest: tuple[float, ...] | None = None
    limits: tuple[float, float] = (0.0, math.inf)
    severities: Mapping[str, tuple[Any, ...]] = field(default_factory=dict, hash=False)
    published: bool = False
    forms: frozenset[Form] = _EVERY
    refuses: Callable[[tuple[int, ...]], str] = lambda _: ""
    keeps_masks: bool = True
    strength: Callable[[float], float] = float

    def why_not(self, form: Form, shape: tuple[int, ...], reference: str) -> str:
        """Why it is not for the points of this form and shape in a reference, or nothing."""
        if form in self.forms:
            return self.refuses(shape)
        forms = " and ".join(words for name, words in _FORMS.items() if name in self.forms)
        return f"is for {forms}; the examples of {reference} are {_FORMS[form]}, of shape {shape}"


def _published(large: tuple[Any, ...], small: tuple[Any, ...], **others: tuple[Any, ...]) -> dict[str, Any]:
    """The severities of ImageNet-C and of CIFAR-C. Source: Hendrycks & Dietterich 2019, the code of their sets."""
    return {"severities": {"large": large, "small": small, **others}, "published": True}


def _own(*sizes: float) -> dict[str, Any]:
    return {"severities": {"large": sizes, "small": sizes, "other": sizes}}


_SHARE: dict[str, Any] = {"size": "SHARE", "symbol": "s", "limits": (0.0, 1.0)}
_ALL = (
    PerturbationKind(
        "gaussian", "SIGMA", "σ", "noise", "adds noise of this standard deviation", "σ of the noise",
        lambda block, size: block.raw + size * block.noise(),
        **_published((0.08, 0.12, 0.18, 0.26, 0.38), (0.04, 0.06, 0.08, 0.09, 0.1), other=(0.1, 0.2, 0.4, 0.7, 1.0)),
    ),
    PerturbationKind(
        "fgsm", "EPSILON", "ε", "one step along the signs of the loss's gradient",
        "changes each number by ε, in one step along the signs of the gradient of the loss", "ε of the attack",
        lambda block, size: block.raw + size * block.ascent(block.raw),
        is_attack=True, digest=(BLOCK, 10, 0.25),  # of version 0.2, whose points have the same digest
    ),
    PerturbationKind(
        "shot", "PHOTONS", "λ", "noise of counting", "replaces x by a Poisson number of mean λx, over λ",
        "1 / photons at white", limits=(1.0, 10_000.0), strength=lambda photons: 1 / photons, forms=_PICTURE,
        **_published((60, 25, 12, 5, 3), (500, 250, 100, 75, 50)),
    ),
    PerturbationKind(
        "impulse", help="black and white", effect="makes this share of the numbers 0 or 1", axis="share of numbers",
        forms=_PICTURE, **_SHARE, **_published((0.03, 0.06, 0.09, 0.17, 0.27), (0.01, 0.02, 0.03, 0.05, 0.07)),
    ),
    PerturbationKind(
        "defocus", "RADIUS", "r", "blur by a disk", "blurs by a disk of this radius in pixels", "radius (pixels)",
        limits=(0.0, 100.0), forms=_PICTURE, digest=(), **_published(
            ((3, 0.1), (4, 0.5), (6, 0.5), (8, 0.5), (10, 0.5)),
            ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1)),
        ),
    ),
    PerturbationKind(
        "motion", "SIGMA", "σ", "blur along a line", "blurs along a line, by half a Gaussian of this σ in pixels",
        "σ (pixels)", limits=(0.0, 100.0), forms=_PICTURE, **_published(
            ((3, 10), (5, 15), (8, 15), (12, 15), (15, 20)), ((1, 6), (1.5, 6), (2, 6), (2, 8), (2.5, 9)),
        ),
    ),
    PerturbationKind(
        "contrast", "FACTOR", "c", "less of it", "multiplies the distance from the mean colour by c", "1 − factor",
        limits=(0.0, 1.0), strength=lambda factor: 1 - factor, forms=_PICTURE, digest=(),
        **_published((0.4, 0.3, 0.2, 0.1, 0.05), (0.75, 0.5, 0.4, 0.3, 0.15)),
    ),
    PerturbationKind(
        "brightness", "ADDED", "v", "more of it", "adds v to the largest channel (V of HSV)", "added to V",
        limits=(0.0, 1.0), forms=_PICTURE, digest=(),
        **_published((0.1, 0.2, 0.3, 0.4, 0.5), (0.05, 0.1, 0.15, 0.2, 0.3)),
    ),
    PerturbationKind(
        "haze", "DENSITY", "d", "like fog", "mixes in a cloud of density d", "density", limits=(0.0, 100.0),
        forms=_PICTURE, **_own(0.3, 0.6, 1.0, 1.5, 2.5),
    ),
    PerturbationKind(
        "pixelate", help="fewer pixels", effect="leaves this share of the rows and columns", axis="1 − share of rows",
        strength=lambda share: 1 - share, forms=_PICTURE, digest=(), **_SHARE,
        **_published((0.6, 0.5, 0.4, 0.3, 0.25), (0.95, 0.9, 0.85, 0.75, 0.65)),
    ),
    PerturbationKind(
        "jpeg", "QUALITY", "q", "compression", "compresses with this quality, of 1 to 100", "100 − quality",
        limits=(1.0, 100.0), strength=lambda quality: 100 - quality, forms=_PICTURE, digest=(),
        **_published((25, 18, 15, 10, 7), (80, 65, 58, 50, 40)),
    ),
    PerturbationKind(
        "occlusion", help="a hidden square", effect="hides a square of this share of the area by the mean colour",
        axis="share hidden", forms=_IMAGES, keeps_masks=False, **_SHARE, **_own(0.05, 0.1, 0.2, 0.3, 0.5),
    ),
    PerturbationKind(
        "rotation", "DEGREES", "α", "to either side", "turns by α degrees to either side", "degrees",
        limits=(0.0, 180.0), forms=_IMAGES, keeps_masks=False, **_own(5, 10, 15, 30, 45),
    ),
    PerturbationKind(
        "translation", help="in any direction", effect="moves by this share of the side in any direction",
        axis="share of the side", forms=_IMAGES, keeps_masks=False, **_SHARE, **_own(0.05, 0.1, 0.15, 0.2, 0.3),
    ),
    PerturbationKind(
        "scale", "FACTOR", "f", "another unit or gain", "multiplies all numbers by f", "factor − 1",
        limits=(1.0, 1e6), strength=lambda factor: factor - 1, digest=(),
        forms=_EVERY - _PICTURE, **_own(1.05, 1.1, 1.2, 1.5, 2.0),
    ),
    PerturbationKind(
        "missing", help="lost values", effect="replaces this share of the values by the mean of their column",
        axis="share missing", forms=frozenset({"table"}), **_SHARE, **_own(0.05, 0.1, 0.2, 0.35, 0.5),
    ),
    PerturbationKind(
        "permuted", help="exchanged columns", effect="exchanges this share of the columns among each other",
        axis="share of columns", forms=frozenset({"table"}), **_SHARE, **_own(0.1, 0.2, 0.4, 0.7, 1.0),
        refuses=lambda shape: "" if shape[0] > 1 else "exchanges columns, and the examples have one",
    ),
    PerturbationKind(
        "dropped", help="a lost segment", effect="makes a segment of this share of the steps 0",
        axis="share dropped", forms=frozenset({"sequence"}), **_SHARE, **_own(0.05, 0.1, 0.2, 0.3, 0.5),
    ),
)  # fmt: skip
KINDS: dict[str, PerturbationKind] = {kind.name: kind for kind in _ALL}
ATTACKS: tuple[str, ...] = tuple(name for name, kind in KINDS.items() if kind.is_attack)
FAMILIES: tuple[str, ...] = tuple(name for name, kind in KINDS.items() if kind.severities)  # with severities
HELP = ", ".join(f"{name}:{KINDS[name].size} ({KINDS[name].help})" for name in ("gaussian", *ATTACKS))


@frozen
class Perturbation:
    """A requested change of the inputs of the test set: its kind and its size, or its severity. One's own is the
    function that `code` names (`file.py:function`), from where `source` says."""

    kind: PerturbationKind
    size: float
    is_severity: bool = False
    code: str = ""
    source: Any = field(default=None, repr=False, compare=False)  # a `config.Named`

    def __str__(self) -> str:
        return f"{self.code or self.kind.name}{self._ending}"

    @property
    def set_name(self) -> str:
        """The name of the test set after this change."""
        return f"test+{self.kind.name}{self._ending}"

    def constants(self, scale: str) -> tuple[float, ...]:
        """The size, or the constants of the severity for points of this scale, see `PerturbationKind`."""
        if not self.is_severity or not self.kind.severities:
            return (self.size,)
        constants = self.kind.severities[scale][int(self.size) - 1]
        return tuple(map(float, constants if isinstance(constants, tuple) else (constants,)))

    @property
    def _ending(self) -> str:
        return f"{'@' if self.is_severity else ':'}{str(self.size).removesuffix('.0')}"


_OF_ALL = PerturbationKind(ALL, "SEVERITY", "s", "every family", "", "severity")


def perturbation(text: str) -> Perturbation:
    """The perturbation that KIND:SIZE denotes, of a size such as 0.03 or 8/255, or KIND@SEVERITY, where KIND may be
    "all", or the code of one's own. ValueError, which says what was expected, for any other text."""
    if "@" in text:
        return _of_severity(*(part.strip() for part in text.rpartition("@")[::2]))
    name, _, size = (part.strip() for part in text.partition(":"))
    if name not in KINDS:
        raise ValueError(_EXPECTED)
    kind, number = KINDS[name], _positive(size)
    low, high = kind.limits
    if number is None or not max(low, 5e-324) <= number <= high or number == math.inf:
        bounds = f"from {low:g} to {high:g}" if low and high < math.inf else f"above 0 and up to {high:g}"
        bounds = "above 0" if high == math.inf else bounds
        unit = "in units of the input (images go from 0 to 1), " if name in (*ATTACKS, "gaussian") else ""
        raise ValueError(f"{name}:{kind.size} with a number {bounds}, {unit}such as {_example(kind)}")
    return Perturbation(kind, number)


_EXPECTED = (
    f"KIND:SIZE or KIND@SEVERITY, where KIND is one of {', '.join(KINDS)} (only of a severity: file.py:function, "
    f"{ALL}), SIZE is as in docs/shift.md, and SEVERITY is 1 to 5, such as gaussian:0.1 or jpeg@3"
)


def _of_severity(name: str, text: str) -> Perturbation:
    number, code, _, function = _positive(text), *name.rpartition(":")
    if number is None or number == math.inf:
        raise ValueError(f"{name or 'KIND'}@SEVERITY with a severity of 1 to 5, such as jpeg@3")
    if code and function.isidentifier() and function.isascii():
        if function in (*KINDS, ALL):
            raise ValueError(f"a function with another name than {function}, which is a built-in kind")
        kind = PerturbationKind(function, "SEVERITY", "s", "one's own", f"is {name}", "severity")
        return Perturbation(kind, number, is_severity=True, code=name)
    if name not in (*FAMILIES, ALL):
        raise ValueError(f"KIND@SEVERITY, where KIND is one of {', '.join(FAMILIES)}, {ALL} or file.py:function")
    if number not in SEVERITIES:
        sizes = "" if name == ALL else f", or a size: {name}:{KINDS[name].size}, such as {_example(KINDS[name])}"
        raise ValueError(f"a severity of 1, 2, 3, 4 or 5{sizes}")
    return Perturbation(KINDS.get(name, _OF_ALL), number, is_severity=True)


def _example(kind: PerturbationKind) -> str:
    middle = next(iter(kind.severities.values()), (0.01,) * 3)[2]
    return f"{kind.name}:{middle[0] if isinstance(middle, tuple) else middle:g}"


def _positive(text: str) -> float | None:
    """A number above 0, or a ratio of two; None for another text."""
    parts = re.fullmatch(r"(\d*\.?\d+(?:[eE][-+]?\d+)?)(?:/(\d*[1-9]\d*))?", text, re.ASCII)
    number = 0.0 if parts is None else float(parts[1]) / float(parts[2] or 1)
    return number if number > 0 else None


@frozen
class Change:
    """What the name of a perturbed set says: the kind, which this version may not know, and its size or severity."""

    kind: str
    size: float
    is_severity: bool

    @property
    def family(self) -> str:
        """The sets that one curve goes through: those of a kind, by severity or by size."""
        return self.kind if self.is_severity or self.kind not in FAMILIES else f"{self.kind}:{KINDS[self.kind].symbol}"

    @property
    def strength(self) -> float:
        """The severity; or of a size, a number that grows with the change and is 0 without one."""
        return self.size if self.is_severity or self.kind not in KINDS else KINDS[self.kind].strength(self.size)

    @property
    def axis(self) -> str:
        """What `strength` is called along an axis."""
        return "severity" if self.is_severity else KINDS[self.kind].axis if self.kind in KINDS else "size of the change"


def change_in(set_name: str) -> Change | None:
    """The change in the name of a perturbed set; None for another name."""
    parts = _SET_NAME.fullmatch(set_name)
    return None if parts is None else Change(parts["kind"], float(parts["size"]), parts["sign"] == "@")


def change_of(set_name: str) -> str:
    """KIND:SIZE or KIND@SEVERITY in the name of a perturbed set."""
    return set_name.removeprefix("test+")
