"""Folders of class folders of pictures, and zip archives of one; a picture is decoded when it is asked for."""

from __future__ import annotations

import contextlib
import io
import os
import warnings
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from bnuq.data.points import Contents
from bnuq.data.readers.common import readable
from bnuq.errors import DataError
from bnuq.files.limits import check_memory, check_size
from bnuq.findings import Finding, note

_SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm"})
# Only the formats of these suffixes: Pillow detects formats by content, and PostScript would start Ghostscript.
_FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP", "TIFF", "PPM")
_LARGEST_FILE = 2**29  # bytes; Pillow opens no picture of more than 90 million pixels
_BESIDE_PIXELS = 2**24  # bytes of a picture's file besides pixels: profiles, previews
_END_OF_PNG = b"IEND\xaeB`\x82"
_GREY = frozenset({"1", "L", "LA"})
_COLOUR = frozenset({"RGB", "RGBA", "P", "PA", "CMYK", "YCbCr", "LAB", "HSV", "RGBX", "RGBa"})


@dataclass(frozen=True, eq=False)
class Pictures:
    """Pictures of one size as uint8, channel-first; `read` gives a file's bytes by its name."""

    files: tuple[str, ...]
    read: Callable[[str], bytes]
    where: Path
    mode: str
    height: int
    width: int

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self.files), 3 if self.mode == "RGB" else 1, self.height, self.width)

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(np.uint8)

    def __getitem__(self, indices: Any) -> NDArray[np.uint8]:
        at = np.arange(len(self.files))[indices]
        if at.ndim == 0:
            return self._decoded(self.files[at])
        pixels = np.empty((len(at), *self.shape[1:]), np.uint8)
        for row, index in enumerate(at):
            pixels[row] = self._decoded(self.files[index])
        return pixels

    def picked(self, indices: NDArray[Any]) -> Pictures:
        files = tuple(self.files[i] for i in np.arange(len(self.files))[indices])
        return Pictures(files, self.read, self.where, self.mode, self.height, self.width)

    def encoded(self) -> Iterator[bytes]:
        """The bytes of the files, in order."""
        for file in self.files:
            with readable(self.where / file, "a picture"):
                yield self.read(file)

    def _decoded(self, file: str) -> NDArray[np.uint8]:
        with readable(self.where / file, "a picture"), _opened(self.read(file)) as picture:
            if picture.size != (self.width, self.height):
                raise DataError(
                    f"{self.where / file}: is {picture.width} × {picture.height} pixels, and was {self.width} × "
                    f"{self.height} when it was looked at first. Run it again once nobody changes the pictures."
                )
            pixels = np.asarray(picture.convert(self.mode), dtype=np.uint8)
        return pixels[None] if pixels.ndim == 2 else np.moveaxis(pixels, 2, 0)


def read_image_folder(path: Path) -> Contents:
    """The pictures in the class folders of `path`; the sorted names of the folders are the classes from 0."""
    with readable(path, "a folder of pictures"):
        files = [file.relative_to(path).as_posix() for file in _files_below(path)]

    def read(file: str) -> bytes:
        picture = path / file
        if not picture.is_file() and picture.exists():
            raise DataError(f"{picture}: is no regular file any more; a picture was replaced while it was in use.")
        _check_file_size(picture, picture.stat().st_size)
        return picture.read_bytes()

    return _contents(path, files, read)


def _files_below(path: Path) -> Iterator[Path]:
    """All files in the folders of `path`, links followed; DataError for a loop or a picture that is no file."""
    visited = set[str]()

    def fail(error: OSError) -> None:
        raise error

    for folder, folders, names in os.walk(path, onerror=fail, followlinks=True):
        if (real := os.path.realpath(folder)) in visited:
            raise DataError(f"{folder}: is a link to a folder that is read already ({real}). Remove it.")
        visited.add(real)
        folders[:] = [name for name in folders if not name.startswith(".")]
        for file in (Path(folder, name) for name in names):
            if not file.is_file() and _is_picture(PurePosixPath(file.relative_to(path).as_posix())):
                reason = "a link to nothing" if file.is_symlink() and not file.exists() else "no regular file"
                raise DataError(f"{file}: is {reason}; expected a picture. Mend or remove it.")
            yield file


def _check_file_size(file: Path, size: int) -> None:
    if size > _LARGEST_FILE:
        raise DataError(f"{file}: has {size:,} bytes; expected a picture of at most {_LARGEST_FILE:,}.")


def read_image_zip(path: Path) -> Contents:
    """The same for a zip archive, which is never unpacked to disk."""
    with readable(path, "a zip archive"):
        archive = zipfile.ZipFile(path)  # stays open as long as its pictures are in use; closed with them
        members = [info for info in archive.infolist() if not info.is_dir()]
        infos = {info.filename: info for info in members}
        if len(infos) < len(members):
            raise DataError(f"{path}: lists a picture twice. Make the archive again.")

    def read(file: str) -> bytes:
        with readable(path / file, "a picture"):
            return archive.read(infos[file])

    for info in members:
        check_size(path / info.filename, info.file_size, stored=info.compress_size, error=DataError, memory=False)
        _check_file_size(path / info.filename, info.file_size)
    check_memory(path, max((info.file_size for info in members), default=0), error=DataError)
    return _contents(path, list(infos), read)


def _contents(path: Path, files: Sequence[str], read: Callable[[str], bytes]) -> Contents:
    pictures = sorted(file for file in files if _is_picture(PurePosixPath(file)))
    if not pictures:
        shown = ", ".join(sorted(files)[:5]) or "nothing"
        raise DataError(f"{path}: holds no pictures, but {shown}; expected class folders with .png or .jpg files.")
    labels, classes, findings = _labels(path, [PurePosixPath(file) for file in pictures])
    mode, (width, height) = _common_mode_and_size(path, pictures, read)
    inputs = Pictures(tuple(pictures), read, path, mode, height, width)
    findings = (*findings, note("picture-mode", mode=mode if mode == "RGB" else "grey"))
    return Contents(inputs, labels, classes=classes, findings=findings)


def _is_picture(file: PurePosixPath) -> bool:
    hidden = any(part.startswith((".", "__MACOSX")) for part in file.parts)
    return file.suffix.lower() in _SUFFIXES and not hidden


def _labels(
    path: Path, files: Sequence[PurePosixPath]
) -> tuple[NDArray[np.int64] | None, tuple[str, ...] | None, tuple[Finding, ...]]:
    above = {len(file.parts): file for file in reversed(files)}
    if len(above) > 1:
        first, second = sorted(above.values())[:2]
        raise DataError(f"{path}: has pictures at different depths ({first}, {second}); expected folder/class/picture.")
    if 1 in above:
        return None, None, (note("no-class-folders"),)
    parents = sorted({file.parent.parent for file in files})
    if len(parents) > 1:
        raise DataError(f"{path}: has class folders in several folders ({parents[0]}, {parents[1]}). Name one of them.")
    classes = tuple(sorted({file.parent.name for file in files}))
    number = {name: label for label, name in enumerate(classes)}
    labels = np.array([number[file.parent.name] for file in files])
    return labels, classes, (note("class-folders", count=len(classes)),)


def _common_mode_and_size(
    path: Path, files: Sequence[str], read: Callable[[str], bytes]
) -> tuple[str, tuple[int, int]]:
    """Without decoding a pixel: RGB where any picture has colour; one size or an error."""
    size, colour = (0, 0), False
    for file in files:
        with readable(path / file, "a picture"), _opened(data := read(file)) as picture:
            mode, shape = picture.mode, picture.size
            if len(data) > _BESIDE_PIXELS + 4 * shape[0] * shape[1]:
                raise DataError(
                    f"{path / file}: has {len(data):,} bytes for {shape[0]} × {shape[1]} pixels; it is damaged."
                )
            picture.verify()  # a PNG's checksums, which decoding does not look at
        if mode not in _GREY | _COLOUR:
            raise DataError(f"{path / file}: has pixels of mode {mode}; expected 8 bits a channel, grey or RGB.")
        if size not in ((0, 0), shape):
            raise DataError(
                f"{path / file}: is {shape[0]} × {shape[1]} pixels, and {files[0]} is {size[0]} × {size[1]}; "
                "expected one size. Resize the pictures."
            )
        size, colour = shape, colour or mode in _COLOUR
    return ("RGB" if colour else "L"), size


@contextlib.contextmanager
def _opened(data: bytes) -> Iterator[Image.Image]:
    """The picture in a file's bytes. Warnings about odd metadata are ignored; a decompression bomb is an error."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        try:
            opened = Image.open(io.BytesIO(data), formats=_FORMATS)
        except UnidentifiedImageError:  # whose text is of an object in memory
            raise ValueError(f"its content is of none of these formats: {', '.join(_FORMATS)}") from None
        with opened as picture:
            if picture.format == "PNG" and _END_OF_PNG not in data:
                raise ValueError("its end is missing")  # all pixels may still be there
            yield picture
