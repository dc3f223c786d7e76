"""Folders of class folders of pictures, and zips and tars of one; a picture is decoded when it is asked for."""

from __future__ import annotations

import contextlib
import io
import os
import re
import tarfile
import threading
import warnings
import zipfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING, cast

import numpy as np
from numpy.typing import NDArray

from bnuq.data.decoded import Decoded
from bnuq.data.points import Contents
from bnuq.data.readers.common import readable, with_a_factory
from bnuq.data.resizing import Size
from bnuq.errors import DataError
from bnuq.files.limits import check_memory, check_size
from bnuq.findings import Finding, note
from bnuq.frozen import frozen

if TYPE_CHECKING:
    from PIL import Image

_SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm"})
# Only the formats of these suffixes: Pillow detects formats by content, and PostScript would start Ghostscript.
_FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP", "TIFF", "PPM")
_TABLES = (".csv", ".tsv")
_LARGEST_FILE = 2**29  # bytes; Pillow opens no picture of more than 90 million pixels
_LARGEST_HEADER = 2**20  # bytes of a header in a tar
_BESIDE_PIXELS = 2**24  # bytes of a picture's file besides pixels: profiles, previews
_END_OF_PNG = b"IEND\xaeB`\x82"
GREY = frozenset({"1", "L", "LA"})
COLOUR = frozenset({"RGB", "RGBA", "P", "PA", "CMYK", "YCbCr", "LAB", "HSV", "RGBX", "RGBa"})


@frozen(eq=False)
class PictureFiles:
    """Pictures in files, as uint8; `read` gives a file's bytes by its name, `size` their number, or anything that is
    known of it without reading the file."""

    files: tuple[str, ...]
    read: Callable[[str], bytes]
    size: Callable[[str], int]
    where: Path
    parallel = True
    encoded = True

    def name(self, index: int, *, short: bool = False) -> str:
        return self.files[index] if short else str(self.where / self.files[index])

    def item(self, index: int, channels: int | None) -> NDArray[np.uint8]:
        path = self.where / self.files[index]
        self.check(path, data := self.content(index))
        with readable(path, "an image"), opened(data) as picture:
            mode = {1: "L", 3: "RGB"}[channels or (1 if picture.mode in GREY else 3)]
            pixels = np.asarray(picture.convert(mode), dtype=np.uint8)
        return pixels[None] if pixels.ndim == 2 else np.moveaxis(pixels, 2, 0)

    def looked_at(self, index: int) -> tuple[bool, Size]:
        return self.check(self.where / self.files[index], self.content(index))

    def check(self, path: Path, data: bytes) -> tuple[bool, Size]:
        """Whether the picture has colour, and its size, without decoding a pixel; DataError for a damaged one."""
        mode, _, (height, width) = header_of(path, data)
        if mode not in GREY | COLOUR:
            depth = "16 bits or more a channel" if mode.startswith(("I", "F")) else f"pixels of mode {mode}"
            raise DataError(
                f"{path}: has {depth}; expected 8 bits a channel, grey or RGB. Convert the images (with Pillow and "
                "NumPy: Image.fromarray((np.asarray(image) / 257).astype(np.uint8))), or name an .npz of their "
                "pixels as floats, scaled as in training."
            )
        return mode in COLOUR, (height, width)

    def content(self, index: int) -> bytes:
        with readable(self.where / self.files[index], "an image"):
            return self.read(self.files[index])

    def listed(self, index: int) -> bytes:
        return f"{self.files[index]}\0{self.size(self.files[index])}\n".encode()


def header_of(path: Path, data: bytes) -> tuple[str, str | None, Size]:
    """The mode, the format and the size of the picture in a file's bytes; DataError for a damaged one."""
    with readable(path, "an image"), opened(data) as picture:
        mode, form, (width, height) = picture.mode, picture.format, picture.size
        if len(data) > _BESIDE_PIXELS + 4 * width * height:
            raise DataError(f"{path}: has {len(data):,} bytes for {width} × {height} pixels; it is damaged.")
        picture.verify()  # a PNG's checksums, which decoding does not look at
    return mode, form, (height, width)


def read_image_folder(path: Path, *, without: Collection[str] = ()) -> Contents:
    """The pictures in the class folders of `path`, less those `without`; the sorted names of the folders are the
    classes from 0."""
    with readable(path, "a folder of images"):
        files = {name: size for name, size in files_below(path) if name not in without}

    contents = contents_of(path, files, lambda file: read_picture(path / file))
    tables = [name for name in sorted(files) if PurePosixPath(name).suffix.lower() in _TABLES and "/" not in name]
    if contents.targets is not None or not tables:
        return contents
    return replace(contents, findings=(note("no-class-folders", table=str(path / tables[0])),))


def read_picture(picture: Path) -> bytes:
    """The bytes of a picture in a regular file."""
    if not picture.is_file() and picture.exists():
        raise DataError(f"{picture}: was replaced during the run, and is no longer a regular file.")
    check_file_size(picture, picture.stat().st_size)
    return picture.read_bytes()


def files_below(path: Path) -> Iterator[tuple[str, int]]:
    """Name, relative to `path`, and size of all files in its folders, links followed; DataError for a loop or a picture
    that is not a file."""
    visited, folders = set[str](), [""]
    while folders:
        folder = folders.pop()
        if (real := os.path.realpath(path / folder)) in visited:
            raise DataError(f"{path / folder}: is a link to a folder that is read already ({real}). Remove it.")
        visited.add(real)
        with os.scandir(path / folder) as entries:  # whole paths of many files would take long
            for entry in entries:
                name = f"{folder}/{entry.name}" if folder else entry.name
                if entry.is_dir():
                    folders += [] if entry.name.startswith(".") else [name]
                elif entry.is_file():
                    yield name, entry.stat().st_size
                elif is_picture(name):
                    broken = entry.is_symlink() and not Path(entry).exists()
                    reason = "a link to nothing" if broken else "no regular file"
                    raise DataError(f"{path / name}: is {reason}; expected an image. Repair or remove it.")


def check_file_size(file: Path, size: int) -> None:
    """DataError for a file that is larger than pictures are."""
    if size > _LARGEST_FILE:
        raise DataError(f"{file}: has {size:,} bytes; expected an image of at most {_LARGEST_FILE:,}.")


def read_image_zip(path: Path) -> Contents:
    """The same for a zip archive, which is never unpacked to disk."""
    with readable(path, "a zip archive"):
        archive = zipfile.ZipFile(path)  # stays open as long as its pictures are in use; closed with them
        members = [info for info in archive.infolist() if not info.is_dir()]
        infos = {info.filename: info for info in members}
        if cut := next((name for name in infos if "\0" in infos[name].orig_filename), None):
            raise DataError(f"{path}: the name that begins with {cut[:200]!r} has a NUL character. Create it again.")
        if len(infos) < len(members):
            raise DataError(f"{path}: lists an image twice. Create the archive again.")
        if outside := next((name for name in infos if has_suffix(name) and ".." in name.split("/")), None):
            raise DataError(f"{path}: {outside[:200]} lies outside the archive. Create it again.")

    def read(file: str) -> bytes:
        with readable(path / file, "an image"):
            return archive.read(infos[file])

    for info in members:
        check_size(path / info.filename, info.file_size, stored=info.compress_size, error=DataError, memory=False)
        check_file_size(path / info.filename, info.file_size)
    check_memory(path, max((info.file_size for info in members), default=0), error=DataError)
    return contents_of(path, {name: info.file_size for name, info in infos.items()}, read)


def read_image_tar(path: Path) -> Contents:
    """The same for a tar archive; DataError for one of samples (000.jpg with 000.cls or 000.json)."""
    with readable(path, "a tar archive"), path.open("rb") as file:
        members = dict(_members(path, file))
    samples = {_sample(name) for name in members if is_picture(name)}
    if any(name.endswith((".cls", ".json")) and _sample(name) in samples for name in members):
        raise DataError(f"{path}: holds samples of a WebDataset. {with_a_factory('.tar')}")

    def read(name: str) -> bytes:
        start, size = members[name]
        with readable(path / name, "an image"), path.open("rb") as file:
            file.seek(start)
            return file.read(size)

    return contents_of(path, {name: size for name, (_, size) in members.items()}, read)


def _members(path: Path, file: io.BufferedReader) -> Iterator[tuple[str, tuple[int, int]]]:
    """Name, place and size of the regular files; DataError for what could mean other files or more than is stored."""
    stored, seen = path.stat().st_size, set[str]()
    for member in tarfile.open(fileobj=cast("IO[bytes]", _Headers(file)), mode="r:"):  # noqa: SIM115 - the file is closed by the caller
        name = member.name.removeprefix("./")
        if member.isdir():
            continue
        if not member.isreg() or member.issparse():
            raise DataError(f"{path}: {name} is a link, a device or sparse; expected regular files alone.")
        if name.startswith(("/", "\\")) or ".." in re.split(r"[/\\]", name):
            raise DataError(f"{path}: {name} lies outside the archive by its name; expected names below its top.")
        if member.size < 0 or member.offset_data + member.size > stored:
            raise DataError(f"{path}: {name} declares {member.size} bytes, beyond the file's end; it is cut short.")
        if name in seen:
            raise DataError(f"{path}: lists {name} twice. Make the archive again.")
        check_file_size(path / name, member.size)
        seen.add(name)
        yield name, (member.offset_data, member.size)


class _Headers:
    """A tar's headers, of which tarfile reads as many bytes as they declare."""

    def __init__(self, file: io.BufferedReader) -> None:
        self._file, self.seek, self.tell = file, file.seek, file.tell

    def read(self, size: int) -> bytes:
        if not 0 <= size <= _LARGEST_HEADER:
            raise ValueError(f"a header declares {size} bytes")
        return self._file.read(size)


def _sample(name: str) -> str:
    """What the files of a sample have in common."""
    folder, slash, file = name.rpartition("/")
    return folder + slash + file.partition(".")[0]


def contents_of(path: Path, files: Mapping[str, int], read: Callable[[str], bytes]) -> Contents:
    """The pictures among `files`, which are given with their sizes, and the classes that their folders are."""
    pictures = sorted(filter(is_picture, files))
    if not pictures:
        shown = f", only {', '.join(sorted(files)[:5])}" if files else ""
        raise DataError(f"{path}: contains no images{shown}; expected class folders with .png or .jpg files.")
    labels, classes, findings = _labels(path, pictures)
    inputs = pictures_of(path, tuple(pictures), files.__getitem__, read)
    named = classes is not None
    return Contents(inputs, labels, classes=classes, classes_sorted=named, findings=findings, names=pictures)


def pictures_of(
    where: Path, files: tuple[str, ...], size: Callable[[str], int], read: Callable[[str], bytes]
) -> Decoded:
    """These files' pictures, to be decoded as they are needed; the first one is looked at."""
    source = PictureFiles(files, read, size, where)
    colour, first = source.looked_at(0)
    return Decoded(source, np.arange(len(files)), (3 if colour else 1, *first), np.dtype(np.uint8))


def has_suffix(file: str) -> bool:
    """Whether the name is that of a picture."""
    return f".{file.rpartition('.')[2].lower()}" in _SUFFIXES


def is_picture(file: str) -> bool:
    return has_suffix(file) and not any(part.startswith((".", "__MACOSX")) for part in file.split("/"))


def _labels(
    path: Path, files: Sequence[str]
) -> tuple[NDArray[np.int64] | None, tuple[str, ...] | None, tuple[Finding, ...]]:
    above = {file.count("/"): file for file in reversed(files)}
    if len(above) > 1:
        first, second = sorted(map(PurePosixPath, above.values()))[:2]
        raise DataError(f"{path}: has images at different depths ({first}, {second}); expected folder/class/image.")
    if 0 in above:
        return None, None, (note("no-class-folders", table=""),)
    folders = {folder: PurePosixPath(folder) for folder in {file.rpartition("/")[0] for file in files}}
    parents = sorted({folder.parent for folder in folders.values()})
    if len(parents) > 1:
        raise DataError(f"{path}: has class folders in several folders ({parents[0]}, {parents[1]}). Name one of them.")
    classes = tuple(sorted({folder.name for folder in folders.values()}))
    number = {folder: classes.index(name.name) for folder, name in folders.items()}
    labels = np.array([number[file.rpartition("/")[0]] for file in files])
    return labels, classes, (note("class-folders", count=len(classes)),)


@contextlib.contextmanager
def opened(data: bytes) -> Iterator[Image.Image]:
    """The picture in a file's bytes. Warnings about odd metadata are ignored; a decompression bomb is an error."""
    from PIL import Image, UnidentifiedImageError  # late, as below: most sets are arrays

    with _QUIET:
        try:
            opened = Image.open(io.BytesIO(data), formats=_FORMATS)
        except UnidentifiedImageError:  # whose text is of an object in memory
            raise ValueError(f"its content is of none of these formats: {', '.join(_FORMATS)}") from None
        with opened as picture:
            if picture.format == "PNG" and _END_OF_PNG not in data:
                raise ValueError("its end is missing")  # all pixels may still be there
            yield picture


class _Quiet:
    """Ignores Pillow's warnings while any thread is inside: the filters are the process's, so that the first to enter
    sets them and the last to leave restores them."""

    def __init__(self) -> None:
        self._lock, self._inside = threading.Lock(), 0
        self._filters = warnings.catch_warnings()

    def __enter__(self) -> None:
        with self._lock:
            self._inside += 1
            if self._inside == 1:
                self._filters = warnings.catch_warnings()
                self._filters.__enter__()
                from PIL import Image

                warnings.filterwarnings("ignore", module=r"PIL\.")
                warnings.simplefilter("error", Image.DecompressionBombWarning)

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._inside -= 1
            if self._inside == 0:
                self._filters.__exit__(None, None, None)


_QUIET = _Quiet()
