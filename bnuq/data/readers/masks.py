"""Two folders, one of pictures and one of their masks, paired by name; a mask is decoded when it is asked for."""

from __future__ import annotations

import fnmatch
import itertools
import os
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bnuq.data.decoded import Decoded
from bnuq.data.masks import INT64, Masks
from bnuq.data.points import Contents
from bnuq.data.readers.classes import ClassFile
from bnuq.data.readers.common import readable
from bnuq.data.readers.images import (
    COLOUR,
    GREY,
    PictureFiles,
    files_below,
    header_of,
    is_picture,
    opened,
    pictures_of,
    read_picture,
)
from bnuq.data.resizing import Size
from bnuq.errors import DataError
from bnuq.findings import note
from bnuq.frozen import frozen

_INDEXED = frozenset({"P", "PA"})
_WIDE = frozenset({"I", "I;16", "I;16L", "I;16B"})
_TO_255 = {2: 85, 4: 17}  # by the bits of a grey PNG: what Pillow multiplies its values by


@frozen(eq=False)
class MaskFiles(PictureFiles):
    """Masks in files, one band of whole numbers: grey values, the indices of a palette, or the numbers that `classes`
    gives to colours."""

    classes: ClassFile | None = None

    @property
    def meaning(self) -> bytes:
        """The numbers of colours, which a digest holds beside the files' bytes."""
        return b"" if self.classes is None else self.classes.colours.tobytes() + self.classes.numbers.tobytes()

    def item(self, index: int, channels: int | None) -> NDArray[Any]:
        del channels
        path = self.where / self.files[index]
        self.check(path, data := self.content(index))
        with readable(path, "a mask"), opened(data) as picture:
            mode = picture.mode
            if self.classes is not None and self._by_colour(mode):
                return self.classes.numbered(np.asarray(picture.convert("RGB")), path)[None]
            values = np.asarray(picture.getchannel(0) if mode in ("LA", "PA") else picture)
        if mode in _WIDE:
            return values.astype(np.int32)[None]
        scale = _TO_255.get(data[24], 1) if picture.format == "PNG" and data[25] == 0 else 1
        return values.astype(np.uint8)[None] // np.uint8(scale)

    def check(self, path: Path, data: bytes) -> tuple[bool, Size]:
        mode, form, size = header_of(path, data)
        if form in ("JPEG", "MPO"):
            raise DataError(f"{path}: is a JPEG, which changes pixels; expected masks that are stored exactly, as PNG.")
        if mode not in GREY | COLOUR | _WIDE:
            raise DataError(f"{path}: has pixels of mode {mode}; expected whole numbers, such as a grey PNG.")
        if mode in COLOUR - _INDEXED and (self.classes is None or not len(self.classes.colours)):
            raise DataError(
                f"{path}: is in colour ({mode}), and masks are class numbers. Name the class file that lists the "
                "colour of each class, --palette FILE or palette under [data], or convert the masks to grey values."
            )
        return False, size

    def _by_colour(self, mode: str) -> bool:
        classes = self.classes
        return classes is not None and len(classes.colours) > 0 and (mode in COLOUR or (mode in GREY and classes.grey))


def read_masked(pictures: Path, masks: Path, pattern: str = "*", *, classes: ClassFile | None = None) -> Contents:
    """The pictures below one folder with their masks, those files below another whose names match `pattern`; see
    `partners`. Within one folder, what matches the pattern is a mask and all else a picture. DataError for a picture
    without a mask, and for a mask without a picture."""
    below = _pictures_below(masks)
    mask_files = {name: below[name] for name in below if fnmatch.fnmatchcase(name.rpartition("/")[2], pattern)}
    if not mask_files:
        shown = "" if pattern == "*" else f" whose names match {pattern}"
        raise DataError(f"{masks}: contains no masks{shown}; expected .png files, one for each image of {pictures}.")
    sizes = _pictures_below(pictures)
    within = os.path.relpath(os.path.realpath(masks), os.path.realpath(pictures))
    if within == "." and pattern == "*":
        raise DataError(
            f"{pictures}: is given as the folder of the images and of the masks. Say which files are masks: "
            f"{pictures}:{pictures}/*_mask.png."
        )
    inside = set(mask_files) if within == "." else {name for name in sizes if name.startswith(f"{within}/")}
    sizes = {name: size for name, size in sizes.items() if name not in inside}
    if not sizes:
        raise DataError(f"{pictures}: contains no images; expected .png or .jpg files, each with a mask in {masks}.")
    files = tuple(sorted(sizes))
    partner = partners(files, sorted(mask_files), pictures, masks)
    inputs = pictures_of(pictures, files, sizes.__getitem__, _reader(pictures))
    source = MaskFiles(partner, _reader(masks), mask_files.__getitem__, masks, classes)
    targets = Masks(Decoded(source, np.arange(len(files)), (1, *inputs.first_shape[1:]), INT64))
    return Contents(inputs, targets, findings=(note("masks", folder=str(masks)),), names=files)


def partners(pictures: Sequence[str], masks: Sequence[str], images: Path, folder: Path) -> tuple[str, ...]:
    """The mask of each picture. Both have the same name but for the suffix, or the masks' names go on in the same way
    (`a.jpg`, `a_mask.png`) after those of the pictures, from which an ending that all of them have may be missing
    (`b_leftImg8bit.png`, `b_gtFine_labelIds.png`). Folders below are part of the names, or else no names occur twice.

    DataError for a picture or a mask that has no partner, or several, which names the folders `images` and `folder`.
    """
    best, fewest = ({}, ""), len(pictures) + len(masks) + 1
    for flat in (False, True):
        named, stems = ([(_stem(name, flat), name) for name in names] for names in (pictures, masks))
        if flat and any(len({stem for stem, _ in pairs}) < len(pairs) for pairs in (named, stems)):
            continue
        for ending in dict.fromkeys(("", _common_ending([stem for stem, _ in named]))):
            keys: dict[str, str] = {}
            for stem, name in named:
                key = stem.removesuffix(ending)
                if (other := keys.setdefault(key, name)) != name:
                    raise DataError(f"{images / other}: has the same name as {name}; a mask would be that of both.")
            matches = _matched(keys, stems)
            tails = {tail for pairs in matches.values() for tail, _ in pairs}
            if len(matches) == len(pictures) == len(masks) and len(tails) == 1:
                return tuple(matches[name][0][1] for name in pictures)
            left = len(pictures) - len(matches) + len(masks) - sum(map(len, matches.values()))
            if left < fewest:
                best, fewest = (matches, ending), left
    raise _unpaired(pictures, masks, *best, images, folder)


def _matched(keys: Mapping[str, str], masks: Sequence[tuple[str, str]]) -> dict[str, list[tuple[str, str]]]:
    """By picture, its masks with what their names have beyond its key: the longest key that a name begins with."""
    matches: dict[str, list[tuple[str, str]]] = {}
    for stem, name in masks:
        ends = [len(stem), *(end for end in range(len(stem) - 1, 0, -1) if not stem[end].isalnum())]
        end = next((end for end in ends if stem[:end] in keys), None)
        if end is not None:
            matches.setdefault(keys[stem[:end]], []).append((stem[end:], name))
    return matches


def _unpaired(
    pictures: Sequence[str],
    masks: Sequence[str],
    matches: Mapping[str, Sequence[tuple[str, str]]],
    ending: str,
    images: Path,
    folder: Path,
) -> DataError:
    several = next((name for name in pictures if len(matches.get(name, ())) > 1), None)
    tails = Counter(tail for pairs in matches.values() for tail, _ in pairs)
    tail = tails.most_common(1)[0][0] if tails else ""
    if several is not None or len(tails) > 1:
        name = several or next(name for name in pictures if name in matches and matches[name][0][0] != tail)
        shown = ", ".join(mask for _, mask in matches[name][:4])
        return DataError(
            f"{images / name}: has {len(matches[name])} masks in {folder} ({shown}), and none has the ending of all "
            f"others. Say which files are masks by a pattern of their names: {images}:{folder}/*{tail or '_mask'}.png."
        )
    if missing := [name for name in pictures if name not in matches]:
        stem = PurePosixPath(missing[0]).stem.removesuffix(ending)
        others = f", and {len(missing) - 1} more images have none" * (len(missing) > 1)
        return DataError(
            f"{images / missing[0]}: has no mask in {folder}{others}; expected {stem}{tail}.png there. A set without "
            f"masks is named by its folder alone."
        )
    used = {mask for pairs in matches.values() for _, mask in pairs}
    left = [name for name in masks if name not in used]
    others = f", and {len(left) - 1} more masks have none" * (len(left) > 1)
    return DataError(f"{folder / left[0]}: has no image in {images}{others}; expected one for each mask.")


def _stem(name: str, flat: bool) -> str:
    path = PurePosixPath(name)
    return path.stem if flat else str(path.with_suffix(""))


def _common_ending(stems: Sequence[str]) -> str:
    """What all names end with, starting at a separator and containing a letter; empty for a single name."""
    if len(stems) < 2:
        return ""
    ends = [stem[::-1] for stem in stems]
    pairs = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(min(ends), max(ends), strict=False))
    shared = "".join(letter for letter, _ in pairs)[::-1].rpartition("/")[2]
    match = re.search(r"[_\-. ](?=.*[A-Za-z])", shared)
    return "" if match is None else shared[match.start() :]


def _pictures_below(folder: Path) -> dict[str, int]:
    with readable(folder, "a folder of images"):
        return {name: size for name, size in files_below(folder) if is_picture(name)}


def _reader(folder: Path) -> Callable[[str], bytes]:
    return lambda file: read_picture(folder / file)
