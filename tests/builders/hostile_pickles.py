"""Pickles that run code, or that take endless time or memory in a few hundred bytes, put together by hand."""

from __future__ import annotations

import os
import struct
import zipfile
from pathlib import Path
from typing import Any


class Evil:
    """Writes a marker file while it is unpickled."""

    def __init__(self, marker: Path | str) -> None:
        self.marker = marker

    def __reduce__(self) -> Any:
        return os.system, (f"touch '{self.marker}'",)


NESTED = b"K\x01" + b"2\x86" * 200  # a pair of a pair of … one number: 2**200 values, in 402 bytes

# by where a hash of the tuple would be taken
HASHES = {
    "key": b"}" + NESTED + b"Ns.",
    "keys": b"}(" + NESTED + b"Nu.",
    "key of a new dict": b"(" + NESTED + b"Nd.",
    "key of an OrderedDict": b"ccollections\nOrderedDict\n)R" + NESTED + b"Ns.",
    "member of a set": b"\x8f(" + NESTED + b"\x90.",
    "member of a frozenset": b"(" + NESTED + b"\x91.",
    "argument of set": b"c__builtin__\nset\n](" + NESTED + b"e\x85R.",
    "argument of OrderedDict": b"ccollections\nOrderedDict\n](](" + NESTED + b"Nee\x85R.",
    "argument of set, passed on": b"ctorch._tensor\n_rebuild_from_type_v2\n"
    b"(c__builtin__\nset\nN](" + NESTED + b"e\x85}tR.",
    "name of a layout": b"ctorch.serialization\n_get_layout\n" + NESTED + b"\x85R.",
    "tuple alone": NESTED + b".",
    "pairs all the way down": b"N" + b"\x85" * 100_000 + b".",
}

_NUMBER = b"\x8a\x05" + (10**11).to_bytes(5, "little")
MAKES = {
    "tensor": b"ctorch\nFloatTensor\n" + _NUMBER + b"\x85R.",
    "new tensor": b"ctorch\nFloatTensor\n" + _NUMBER + b"\x85\x81.",
    "array": b"c__builtin__\nbytearray\n" + _NUMBER + b"\x85R.",
}


def encoded_again_and_again(times: int) -> bytes:
    """A list of so many copies of a text of a million letters, as byte strings."""
    text = b"X" + struct.pack("<I", 10**6) + b"x" * 10**6 + b"X\x06\x00\x00\x00latin1\x86q\x01"
    return b"](c_codecs\nencode\nq\x00" + text + b"R" + b"h\x00h\x01R" * times + b"e."


def zip_of(path: Path, data_pkl: bytes) -> Path:
    """A checkpoint as torch writes them, of this pickle and no weights."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("m/data.pkl", data_pkl)
        archive.writestr("m/version", b"3\n")
    return path
