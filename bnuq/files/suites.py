"""The published suites of OOD sets: what `openood:cifar10` stands for, and where the files of its sets lie.

Source: Zhang et al. 2023, OpenOOD v1.5 (github.com/Jingkang50/OpenOOD, openood/evaluation_api/datasets.py).
"""

from __future__ import annotations

from typing import Literal

from bnuq.errors import RequestError
from bnuq.files.references import without_name
from bnuq.frozen import frozen

Distance = Literal["near", "far"]
DISTANCES: tuple[Distance, ...] = ("near", "far")
SCRIPT = "python scripts/download/download.py --contents datasets --dataset_mode benchmark --save_dir FOLDER --datasets"
_PREFIX = "openood:"
_CLASSIC, _LARGE = "images_classic", "images_largescale"


@frozen
class SuiteMember:
    """An OOD set of the suite `suite`: its list of images, and the folder that the names in it start from, below a
    data root in OpenOOD's layout."""

    suite: str
    distance: Distance
    name: str
    list_file: str
    pictures: str

    @property
    def reference(self) -> str:
        """The reference that names this set alone."""
        return f"{self.suite}:{self.distance}:{self.name}"


def suites() -> dict[str, tuple[SuiteMember, ...]]:
    """The sets of each suite, near ones first."""
    return {f"{_PREFIX}{name}": _members(name) for name in _SETS}


def benchmark_of(suite: str) -> str:
    """The argument of OpenOOD's download script for a suite."""
    return _BENCHMARKS[suite.removeprefix(_PREFIX)]


def members_of(reference: str) -> tuple[SuiteMember, ...]:
    """The sets that `openood:ID`, `openood:ID:near` or `openood:ID:near:NAME` names; none if this is no reference to
    a suite. RequestError for one that does not exist."""
    if not reference.startswith(_PREFIX):
        return ()
    members_named = tuple(
        member
        for members in suites().values()
        for member in members
        if reference in (member.suite, f"{member.suite}:{member.distance}", member.reference)
    )
    if not members_named:
        raise RequestError(
            f"{reference}: there is no such suite; expected {', '.join(suites())}, or a part of one: "
            "openood:cifar10:near, openood:cifar10:near:tin."
        )
    return members_named


def references_in(text: str) -> tuple[str, ...]:
    """The references of single sets that a reference, which may name a suite, stands for. RequestError for a name that
    several sets would have."""
    name, reference = without_name(text)
    members = members_of(reference)
    if name is not None and len(members) > 1:
        raise RequestError(f"{text}: {len(members)} sets cannot have one name; expected {reference} alone.")
    return (text,) if name is not None or not members else tuple(member.reference for member in members)


# By the set that the network was trained on: the folder of images, and the list, of each near and far set.
_OF_IMAGENET: dict[Distance, dict[str, tuple[str, str]]] = {
    "near": {name: (_LARGE, f"imagenet/test_{name}.txt") for name in ("ssb_hard", "ninco")},
    "far": {
        "inaturalist": (_LARGE, "imagenet/test_inaturalist.txt"),
        "textures": (_CLASSIC, "imagenet/test_textures.txt"),
        "openimage_o": (_LARGE, "imagenet/test_openimage_o.txt"),
    },
}


def _of_cifar(trained_on: str, other: str) -> dict[Distance, dict[str, tuple[str, str]]]:
    names: dict[Distance, tuple[str, ...]] = {
        "near": (other, "tin"),
        "far": ("mnist", "svhn", "texture", "places365"),
    }
    return {
        distance: {name: (_CLASSIC, f"{trained_on}/test_{name}.txt") for name in names[distance]}
        for distance in DISTANCES
    }


_SETS = {
    "cifar10": _of_cifar("cifar10", "cifar100"),
    "cifar100": _of_cifar("cifar100", "cifar10"),
    "imagenet200": _OF_IMAGENET,
    "imagenet": _OF_IMAGENET,
}
_BENCHMARKS = {  # OpenOOD's cifar-100 leaves out mnist
    "cifar10": "cifar-10",
    "cifar100": "cifar-10 cifar-100",
    "imagenet200": "imagenet-200",
    "imagenet": "imagenet-1k",
}


def _members(name: str) -> tuple[SuiteMember, ...]:
    return tuple(
        SuiteMember(f"{_PREFIX}{name}", distance, member, f"benchmark_imglist/{list_file}", pictures)
        for distance in DISTANCES
        for member, (pictures, list_file) in _SETS[name][distance].items()
    )
