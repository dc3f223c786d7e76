"""REF → points: what a reference means, which reader it goes to, and what the set is called."""

from __future__ import annotations

import difflib
import gzip
import re
import shlex
import zipfile
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from bnuq.data.common_layout import points_of
from bnuq.data.fitting import fitted
from bnuq.data.known import KnownSet, data_roots, found_known, known_set, known_sets, location, read_known, split_of
from bnuq.data.points import Contents, Points
from bnuq.data.readers.classes import ClassFile, read_classes
from bnuq.data.readers.common import GROUP, readable, with_a_factory
from bnuq.data.readers.hdf5 import read_hdf5, read_mat
from bnuq.data.readers.idx import read_idx
from bnuq.data.readers.images import read_image_folder, read_image_tar, read_image_zip
from bnuq.data.readers.items import read_object
from bnuq.data.readers.lists import lists_pictures, read_list, read_pictures_of_columns
from bnuq.data.readers.masks import read_masked
from bnuq.data.readers.npy import read_npy, read_npz
from bnuq.data.readers.tables import read_csv, read_parquet
from bnuq.data.remote import remotes_of
from bnuq.errors import DataError, RequestError
from bnuq.files.content import Kind, exists, is_folder, kind_of, kind_of_bytes, what_is_wrong_with
from bnuq.files.folders import expanded
from bnuq.files.references import arguments_of, folders_of, selection_of, without_arguments, without_name
from bnuq.findings import note
from bnuq.frozen import frozen
from bnuq.trust import BY_USER, NamedBy, names_a_file, resolve_factory

_RESERVED = frozenset({"test", "train", "validation"}) | {  # and the groups of a result file beside the sets'
    "normalized", "bounds", "convergence", "calibration", "risk_coverage", "uncertainty_error",
}  # fmt: skip
_SUFFIXES = frozenset({".npz", ".npy", ".mat", ".h5", ".hdf5", ".csv", ".txt", ".parquet", ".tar", ".zip"})
_FORMATS = "a folder or .zip of class folders, a .tar, .npz, .npy, .mat, .h5, idx, .csv, .txt or .parquet"


def load_points(
    reference: str,
    *,
    name: str | None = None,
    split_default: str = "test",
    ood: bool = False,
    data_root: Path | None = None,
    base: Path | None = None,
    named_by: NamedBy = BY_USER,
    trust_code: bool = False,
    group: str | None = None,
    target: str | None = None,
    palette: Path | None = None,
    beside: Collection[str] = (),
    free_bytes: int | None = None,
    whole: bool = True,
    look: bool = True,
) -> Points:
    """The points that `reference` names, paths being relative to `base` (default: the working folder).

    Tried in this order: an existing path, two existing folders of pictures and of masks (`IMAGES:MASKS`), a known name
    with or without split (`split_default`), a part of a file (`FILE:INPUTS,LABELS`), `file.py:factory` and
    `package.module:factory`, with arguments or without. Without a `name` the set is called by its registered name, its
    factory or the stem of its file. An `ood` set goes by that name in reports and files, so `set_name` checks it, and
    keeps reserved names away.
    `group` names the array or the column of its groups, where a file has such a one (default: "group"), and `target`
    the column of a table that holds the targets, which an `ood` set need not have. `palette` is the class file of
    masks. `beside` are the references of the run's other sets, none of which is suggested for what is not found. A
    factory may give no more than half of `free_bytes`; items of its Dataset that are not needed `whole` are read as
    they are needed.
    Pictures in files are all looked at, unless that is left to `fitted`.

    Raises DataError for what cannot be found, read or used, RequestError for an unusable name, and
    UntrustedCodeError where a found file names code (see `bnuq.trust`).
    """
    asked = _Asked(
        reference,
        base or Path(),
        name=name,
        ood=ood,
        group=group or GROUP,
        target=target,
        classes=None if palette is None else read_classes(palette),
        split_default=split_default,
    )
    points = _of_files(asked)
    if points is None and (known := known_set(reference)):
        contents, resolved, location = read_known(reference, split_default=split_default, data_root=data_root)
        return points_of(contents, name=asked.called(known.name), reference=resolved, where=str(location))
    if points is None:
        points = _of_part(asked)
    if points is not None:
        return fitted(points) if look else points
    _check_code(reference, asked.base, beside)
    spec, _ = without_arguments(reference)
    label = asked.called(spec.rpartition(":")[2])
    arguments, keywords = arguments_of(reference)  # before any code runs
    factory = resolve_factory(spec, base=asked.base, named_by=named_by, trust=trust_code, objects=True)
    data = factory(*arguments, **keywords)
    return asked.points(read_object(reference, data, free_bytes=free_bytes, whole=whole), label)


def check_found(
    reference: str, split_default: str, *, base: Path, data_root: Path | None = None, beside: Collection[str] = ()
) -> None:
    """Raise the DataError of `load_points` where there is nothing that `reference` could name; nothing is read."""
    path = base / expanded(reference)
    if exists(path):
        if wrong := what_is_wrong_with(kind_of(path)):
            raise DataError(f"{path}: {wrong}")
    elif _two_folders(reference, base):
        return
    elif known_set(reference):
        found_known(reference, split_default=split_default, data_root=data_root)
    elif not selection_of(reference, base):
        _check_code(reference, base, beside)


def _check_code(reference: str, base: Path, beside: Collection[str]) -> None:
    """Raise DataError for a reference that names nothing else, unless it can be code."""
    if wrong := _is_half_a_pair(reference, base):
        raise DataError(wrong)
    if not _looks_like_code(reference):
        missing = expanded(reference.partition(":")[0] if _in_a_file(reference) else reference)
        raise DataError(_not_found(reference, base / missing, beside))


@frozen
class _Asked:
    """What was asked for: a reference, and how the set that it names is called and read."""

    reference: str
    base: Path
    name: str | None
    ood: bool
    group: str
    target: str | None
    classes: ClassFile | None
    split_default: str = "test"

    @property
    def hidden(self) -> str | None:
        """The known set that has the name of the file or the folder, as a reference that names the set itself."""
        known = known_set(self.reference)
        return None if known is None else f"{known.name}:{split_of(known, self.reference, self.split_default)}"

    @property
    def path(self) -> Path:
        return self.base / expanded(self.reference)

    def called(self, default: str) -> str:
        """The name of the set."""
        name = self.name or default
        return set_name(name, reference=self.reference, reserved=True) if self.ood else name

    def points(self, contents: Contents, label: str, where: str | None = None) -> Points:
        """The points; the masks of an OOD set tell anomalies, not the classes of the class file."""
        points = points_of(contents, name=label, reference=self.reference, where=where)
        return _with_names(points, None if self.ood else self.classes)


def _of_files(asked: _Asked) -> Points | None:
    """The points of a path, or of a folder of pictures with one of masks."""
    path = asked.path
    if exists(path):
        label = asked.called(_stem(path))
        hidden = asked.hidden
        try:
            contents = _read_path(path, asked.group, asked.target, asked.ood)
        except DataError as error:
            if hidden:
                raise DataError(f"{error} It hides the known set of that name: name {hidden}.") from error
            raise
        if hidden:
            finding = note("known-set-hidden", path=asked.reference, known=hidden)
            contents = replace(contents, findings=(*contents.findings, finding))
        return asked.points(contents, label, str(path))
    if folders := _two_folders(asked.reference, asked.base):
        label = asked.called(_stem(folders[0]))
        return asked.points(read_masked(*folders, classes=asked.classes), label)
    return None


def _two_folders(reference: str, base: Path) -> tuple[Path, Path, str] | None:
    """The folders of `IMAGES:MASKS`; a known set with one of its splits is none, whatever folders there are."""
    known = known_set(reference)
    return None if known and reference.partition(":")[2] in known.splits else folders_of(reference, base)


def _of_part(asked: _Asked) -> Points | None:
    part = selection_of(asked.reference, asked.base)
    if not part:
        return None
    label = asked.called(_stem(part[0]))
    return asked.points(_read_part(*part, asked.group), label, f"{part[0]}:{part[1]}")


def _with_names(points: Points, classes: ClassFile | None) -> Points:
    """`points`, their classes named by the class file where they have masks."""
    return points if classes is None or points.masks is None else replace(points, classes=classes.names)


def _is_half_a_pair(reference: str, base: Path) -> str | None:
    """What is wrong with `IMAGES:MASKS` of which only the first folder exists, where it cannot be a package."""
    images, colon, masks = reference.partition(":")
    folder = base / expanded(images)
    if not colon or not images.strip() or not is_folder(folder) or any(folder.glob("*.py")):
        return None
    return (
        f"{reference}: {images} is a folder, and there is no folder of masks {masks!r}, neither beside it nor in "
        f"{base.absolute()}; expected IMAGES:MASKS, two folders, or IMAGES:MASKS/*ENDING.png."
    )


def factory_of(reference: str, *, base: Path) -> str | None:
    """The factory, without its arguments, that `load_points` would call for `reference`; None where it would read a
    file or a known set."""
    path = base / expanded(reference)
    is_data = exists(path) or known_set(reference)
    if is_data or _two_folders(reference, base) or selection_of(reference, base) or not _looks_like_code(reference):
        return None
    return without_arguments(reference)[0]


def missing_set(
    reference: str, split_default: str, *, base: Path, data_root: Path | None = None
) -> tuple[KnownSet, str] | None:
    """The known set and the split that `reference` names, where they can be fetched and are nowhere; otherwise None."""
    is_there = exists(base / expanded(reference)) or _two_folders(reference, base)
    known = None if is_there else known_set(reference)
    if known is None:
        return None
    split = split_of(known, reference, split_default)
    is_missing = split in remotes_of(known.name) and location(known, split, data_roots(data_root)) is None
    return (known, split) if is_missing else None


def points_in_memory(
    data: Any,
    *,
    name: str,
    ood: bool = False,
    palette: Path | None = None,
    free_bytes: int | None = None,
    whole: bool = True,
) -> Points:
    """The points that `data` holds: arrays or tensors (x, y), a Dataset, or an iterable of batches, such as a
    DataLoader, which is read once; `palette`, `whole` and errors as for `load_points`."""
    label = set_name(name, reference="REF", reserved=True) if ood else name
    contents = read_object(name, data, free_bytes=free_bytes, whole=whole)
    points = points_of(contents, name=label, reference=label if ood else f"{name} (in memory)")
    return _with_names(points, None if ood or palette is None else read_classes(palette))


def parse_reference(text: str, *, base: Path | None = None) -> tuple[str | None, str]:
    """(name, reference) of `NAME=REF`, (None, text) of a plain one; an existing path with a = in it is a path."""
    if not text.strip():
        raise RequestError("an empty reference names no set; expected a file, a folder or a known name.")
    name, reference = without_name(text)
    if name is None or "/" in name or "\\" in name or exists((base or Path()) / expanded(text)):
        return None, text
    if not reference:
        raise RequestError(f"{text}: names nothing after the =; expected NAME=REF.")
    return set_name(name, reference=reference), reference


def set_name(name: str, *, reference: str, reserved: bool = False) -> str:
    """`name`, if a report and a result file can use it; `reserved` refuses the names of the main sets too.

    Raises RequestError that shows the `NAME=REF` to type.
    """
    if re.fullmatch(r"[A-Za-z0-9_-]+", name) and not (reserved and name in _RESERVED):
        return name
    suggestion = re.sub(r"[^A-Za-z0-9_-]+", "_", name).strip("_") or "other"
    suggestion = f"{suggestion}_set" if suggestion in _RESERVED else suggestion
    shown = shlex.quote(f"{suggestion}={reference}")
    expected = "another name, which has no meaning yet" if name in _RESERVED else "letters, digits, _ and - only"
    raise RequestError(f"{reference}: the set would be called {name!r}; expected {expected}. Give it a name: {shown}")


def _read_part(path: Path, selection: str, group: str) -> Contents:
    """What a selection takes of a file: `INPUTS`, `INPUTS,LABELS`, or a set such as `train`; of a `.npy` file the file
    of its labels."""
    kind = kind_of(path)
    if wrong := what_is_wrong_with(kind):
        raise DataError(f"{path}: {wrong}")
    if kind == "npy":
        return read_npy(path, labels=selection)
    selected = tuple(name.strip() for name in selection.split(","))
    if not all(selected) or len(selected) > 2:
        raise DataError(
            f"{path}:{selection}: expected the names of the inputs and, at most, the labels after the colon: "
            f"{path.name}:INPUTS or {path.name}:INPUTS,LABELS."
        )
    if kind in ("hdf5", "mat"):
        reader = read_mat if kind == "mat" or path.suffix.lower() == ".mat" else read_hdf5
        return reader(path, group=group, selected=selected)
    if kind == "text" and lists_pictures(path):
        return read_list(path, group=group, selected=selected)
    if kind == "parquet" and (contents := read_pictures_of_columns(path, selected=selected)):
        return contents
    if kind == "zip" and _holds_arrays(path):
        return read_npz(path, group=group, selected=selected)
    raise DataError(f"{path}: has no parts that could be named after a colon ({selection!r}); name the file alone.")


def _read_path(path: Path, group: str, target: str | None, ood: bool) -> Contents:
    kind = kind_of(path)
    if wrong := what_is_wrong_with(kind):
        raise DataError(f"{path}: {wrong}")
    if kind == "zip":
        return read_npz(path, group=group) if _holds_arrays(path) else read_image_zip(path)
    if kind == "gzip":
        return _read_gzip(path)
    if kind == "folder":
        return _read_folder(path)
    if kind == "hdf5":
        return read_mat(path, group=group) if path.suffix.lower() == ".mat" else read_hdf5(path, group=group)
    if kind == "parquet":
        contents = read_pictures_of_columns(path, target=target, needs_target=not ood)
        return contents or read_parquet(path, group=group, target=target, needs_target=not ood)
    if kind == "text":
        reader = read_list if lists_pictures(path) else read_csv
        return reader(path, group=group, target=target, needs_target=not ood)
    if kind == "mat":
        return read_mat(path, group=group)
    if reader := _READERS.get(kind):
        return reader(path)
    raise DataError(
        f"{path}: is not a readable format of examples (it looks like {_KIND_WORDS.get(kind, kind)}); "
        f"expected {_FORMATS}."
    )


_READERS: dict[Kind, Callable[[Path], Contents]] = {"npy": read_npy, "idx": read_idx, "tar": read_image_tar}

_KIND_WORDS: dict[Kind, str] = {
    "unknown": "nothing known; it may be damaged, or a text in another encoding than UTF-8",
    "pickle": "a pickle, which is never unpickled here",
    "safetensors": "weights in safetensors",
}


def _read_folder(path: Path) -> Contents:
    """The pictures in class folders; DataError for a set in the files of another library."""
    if exists(path / "dataset_info.json") or exists(path / "dataset_dict.json"):
        raise DataError(f"{path}: is a folder of Arrow files. {with_a_factory('.arrow')}")
    if suffix := _suffix_of_several([*path.iterdir()]):
        raise DataError(f"{path}: holds a set in several files. {with_a_factory(suffix)}")
    return read_image_folder(path)


def _suffix_of_several(entries: Sequence[Path]) -> str | None:
    """The suffix of the files of a set in several, .parquet or .tar; None of other files, and beside folders."""
    suffixes = set() if any(entry.is_dir() for entry in entries) else {entry.suffix.lower() for entry in entries}
    return next((suffix for suffix in (".parquet", ".tar") if suffix in suffixes), None)


def _holds_arrays(path: Path) -> bool:
    with readable(path, "a zip archive"), zipfile.ZipFile(path) as archive:
        names = archive.namelist()
    if any(name.endswith("/data.pkl") for name in names):
        raise DataError(f"{path}: is a torch checkpoint, not a set of examples; expected {_FORMATS}.")
    return bool(names) and all(name.endswith(".npy") for name in names)


def _read_gzip(path: Path) -> Contents:
    with readable(path, "gzip"), gzip.open(path) as file:
        inside = kind_of_bytes(file.read(4096))
    if inside != "idx":
        raise DataError(f"{path}: is gzipped {inside}; only idx files are read gzipped. Unpack it first.")
    return read_idx(path)


def _stem(path: Path) -> str:
    name = path.resolve().name if path.name in ("", "..") else path.name
    return name if path.is_dir() else Path(name.removesuffix(".gz")).stem


def _looks_like_code(reference: str) -> bool:
    spec, _ = without_arguments(reference)
    is_module = re.fullmatch(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*", spec) is not None and not _in_a_file(spec)
    name, _, split = reference.partition(":")
    is_published = name == _SUITE or (_is_published(name) and split in ("train", "test", "val", "validation"))
    return names_a_file(reference) or (is_module and not is_published)


def _in_a_file(reference: str) -> bool:
    """Whether this looks like a part of a data file, which may be missing."""
    return Path(reference.partition(":")[0]).suffix.lower() in _SUFFIXES


def _not_found(reference: str, path: Path, beside: Collection[str]) -> str:
    names = [known.name for known in known_sets()]
    requested = reference.partition(":")[0]
    used = {known.name for other in beside if (known := known_set(other))}
    close = difflib.get_close_matches(requested, names, n=2)
    close = [name for name in close if name not in used and _typo(requested, name)]
    hint = f"Did you mean {close[0]}?" if close else f"Names that are known: {', '.join(names)}."
    if Path(requested).suffix.lower() in _SUFFIXES or "/" in requested:
        files = [entry.name for entry in path.parent.iterdir()] if is_folder(path.parent) else []
        alike = [str(Path(requested).with_name(name)) for name in difflib.get_close_matches(path.name, files, n=1)]
        hint = f"Did you mean {alike[0]}?" if alike else "Check the path."
    if len(parts := requested.split(",")) == 2 and all(part.endswith(".npy") for part in parts):
        hint = f"A pair of files is named with a colon: {':'.join(parts)}."
    if re.search(r"\{\d+\.\.\d+\}", path.name) and (suffix := _suffix_of_several([path])):
        hint = f"A set in several files is read by no reader. {with_a_factory(suffix)}"
    if _is_published(requested):
        hint = f"Name its path ({_FORMATS}) or a factory that reads it (file.py:function)."
    if requested == _SUITE:
        hint = "Name OOD sets one by one, svhn or NAME=LIST.txt; names in a list are relative to the list's folder."
    return (
        f"{reference}: there is no such file or folder ({path.absolute()}), "
        f"and no data set is known by that name. {hint}"
    )


def _is_published(name: str) -> bool:
    return re.sub(r"[^a-z0-9]", "", name.lower()) in _PUBLISHED


def _typo(requested: str, name: str) -> bool:
    """cifar-10 may be cifar10, and cifar100 is another set."""
    return re.findall(r"\d+", requested) in ([], re.findall(r"\d+", name))


_SUITE = "openood"  # version 0.2 had suites of OOD sets, openood:cifar10
_PUBLISHED = frozenset((
    "cifar10c", "cifar100c", "cinic10", "imagenet", "imagenet1k", "imagenet21k", "imagenetc", "imagenetr",
    "imagenetv2", "imageneto", "tinyimagenet", "stl10", "lsun", "isun", "places", "places365", "inaturalist",
    "inaturalist18", "ssbhard", "ninco", "openimageo", "kmnist", "emnist", "qmnist", "omniglot", "usps", "celeba",
    "ffhq", "caltech101", "caltech256", "oxfordpets", "flowers102", "food101", "stanfordcars", "sun397", "eurosat",
    "gtsrb", "coco", "pascalvoc", "cityscapes", "chestmnist",
))  # fmt: skip
