"""The kind of a file, detected from its first bytes and never from its suffix."""

from __future__ import annotations

import hashlib
import stat
import zipfile
from pathlib import Path
from typing import Literal

Kind = Literal[
    "missing", "folder", "special", "unreadable", "empty", "git-lfs pointer",
    "zip", "gzip", "tar", "hdf5", "mat", "npy", "idx", "parquet", "safetensors", "pickle", "text", "unknown",
]  # fmt: skip

_HEAD = 4096
_IDX_TYPES = frozenset({0x08, 0x09, 0x0B, 0x0C, 0x0D, 0x0E})


def kind_of(path: Path) -> Kind:
    """The kind of file at `path`; "special" is a device, pipe or socket, "unreadable" what the system will not open."""
    try:
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            return "folder"
        if not stat.S_ISREG(mode):
            return "special"
        with path.open("rb") as file:
            return kind_of_bytes(file.read(_HEAD))
    except (FileNotFoundError, NotADirectoryError):
        return "missing"
    except (OSError, ValueError):  # a name too long, or with a NUL
        return "unreadable"


def exists(path: Path) -> bool:
    """Whether anything exists at `path`; False for a path that cannot be examined, such as one that is too long."""
    try:
        return path.exists()
    except (OSError, ValueError):
        return False


def is_file(path: Path) -> bool:
    """Whether `path` is a file; False if it cannot be examined."""
    return exists(path) and path.is_file()


def is_folder(path: Path) -> bool:
    """Whether `path` is a folder; False if it cannot be examined."""
    return exists(path) and path.is_dir()


def is_checkpoint(path: Path) -> bool:
    """Whether the file at `path` is what `torch.save` or safetensors writes."""
    try:
        with path.open("rb") as file:
            if file.read(len(_LEGACY)) == _LEGACY:
                return True
        with zipfile.ZipFile(path) as archive:
            names = {name.partition("/")[2] for name in archive.namelist()}
        return "data.pkl" in names and "constants.pkl" not in names
    except (OSError, ValueError, zipfile.BadZipFile):
        return kind_of(path) == "safetensors"


_LEGACY = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."  # the number that files of torch before 1.6 begin with


def kind_of_bytes(head: bytes) -> Kind:
    """The kind of a file that begins with `head` (4096 bytes are enough)."""
    if not head:
        return "empty"
    if head.startswith(b"version https://git-lfs.github.com/spec/"):
        return "git-lfs pointer"
    for kind, magic in _MAGIC:
        if head.startswith(magic):
            return kind
    if any(head[at : at + 8] == b"\x89HDF\r\n\x1a\n" for at in (0, 512, 1024, 2048)):  # after a user block
        return "hdf5"
    if head.startswith(b"MATLAB 5.0 MAT-file"):
        return "mat"
    if head[257:262] == b"ustar":
        return "tar"
    if len(head) >= 4 and head[:2] == b"\0\0" and head[2] in _IDX_TYPES and 1 <= head[3] <= 8:
        return "idx"
    if len(head) > 8 and head[8:9] == b"{" and int.from_bytes(head[:8], "little") < 2**32:
        return "safetensors"
    if head[0] == 0x80 and head[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05"):
        return "pickle"
    return "text" if _is_text(head) else "unknown"


def what_is_wrong_with(kind: Kind) -> str | None:
    """Why no data can be read from a file of this kind, with a remedy; None if this is possible."""
    return _UNUSABLE.get(kind)


def sha256_of_file(path: Path) -> str:
    """The SHA-256 of the file's bytes, in hexadecimal; of a folder, that of the names and SHA-256s of its files."""
    if path.is_dir():
        listing = (f"{file.name} {sha256_of_file(file)}" for file in sorted(path.iterdir()) if file.is_file())
        return hashlib.sha256("\n".join(listing).encode()).hexdigest()
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


_MAGIC: tuple[tuple[Kind, bytes], ...] = (
    ("zip", b"PK\x03\x04"),
    ("zip", b"PK\x05\x06"),
    ("gzip", b"\x1f\x8b"),
    ("npy", b"\x93NUMPY"),
    ("parquet", b"PAR1"),
)

_UNUSABLE: dict[Kind, str] = {
    "missing": "there is no such file. Check the path.",
    "special": "is a device, a pipe or a socket; expected a file.",
    "unreadable": "cannot be opened. Check its path and its permissions.",
    "empty": "is empty (0 bytes). Fetch or write it again.",
    "git-lfs pointer": "is a git-lfs pointer, not the file itself. Fetch it with `git lfs pull`.",
}


def _is_text(head: bytes) -> bool:
    if b"\0" in head:
        return False
    try:
        head.decode("utf-8")
    except UnicodeDecodeError as error:
        return error.start > len(head) - 4 and len(head) == _HEAD  # a character cut by the end of the head
    return True
