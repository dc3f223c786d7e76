"""Generators of hostile and odd files: each lays out what it needs in a folder that already holds a tiny network, its
data and a result (`small_run`), and names the command that reads it. None of them is large on the disk.

Where something in a file would run if it were believed, it makes `CANARY`.
"""

from __future__ import annotations

import gzip
import json
import os
import pickle
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch
from hostile_pickles import HASHES, MAKES, NESTED, Evil, encoded_again_and_again, zip_of
from making_points import png
from numpy.lib import format as npy_format
from safetensors.torch import save_file

CANARY = "canary"
SPARSE = 2**43  # bytes: more than any memory
Generator = Callable[[Path], list[str]]

CASES: dict[str, Generator] = {}
QUICK: set[str] = set()  # those that every run of the tests has
ODD: set[str] = set()  # those that may also be read
NEEDS: dict[str, int] = {}  # the bytes that the numbers in them take


def case(name: str, *, quick: bool = False, odd: bool = False, needs: int = 0) -> Callable[[Generator], Generator]:
    def add(make: Generator) -> Generator:
        CASES[name] = make
        NEEDS[name] = needs
        if odd:
            ODD.add(name)
        if quick:
            QUICK.add(name)
        return make

    return add


def of_checkpoint(path: Path, *more: str) -> list[str]:
    return [
        "evaluate", path.name, "--arch", "net.py:net", "--train", "train.npz", "--test", "test.npz", "--batch-size",
        "16", "--samples", "4", "--out", "out.h5", *more,
    ]  # fmt: skip


def of_data(reference: str, *more: str) -> list[str]:
    return [*of_checkpoint(Path("model.pt"), *more)[:7], reference, *of_checkpoint(Path("model.pt"), *more)[8:]]


def of_result(path: Path) -> list[str]:
    return ["check", path.name, "good.h5"]


def written(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def made_sparse(path: Path) -> Path:
    os.truncate(path, SPARSE)
    return path


def piped(path: Path) -> Path:
    os.mkfifo(path)
    return path


def texts_in_one_place(file: h5py.File, name: str) -> Path:
    """The file, closed, with a data set of 20,000 texts of a megabyte, all of which are the first."""
    data = file.create_dataset(name, (20_000,), h5py.string_dtype())
    data[0] = "a" * 2**20
    at, path = data.id.get_offset(), Path(file.filename)
    file.close()
    content = bytearray(path.read_bytes())
    content[at : at + 16 * 20_000] = bytes(content[at : at + 16]) * 20_000
    return written(path, bytes(content))


_READERS: dict[str, tuple[str, Callable[[Path], list[str]]]] = {
    "checkpoint": ("m.pt", of_checkpoint),
    "data": ("d.npz", lambda path: of_data(path.name)),
    "result": ("r.h5", of_result),
    "run": ("r.toml", lambda path: ["evaluate", path.name]),
}
for _what, (_name, _of) in _READERS.items():
    case(f"{_what}: a pipe")(lambda folder, name=_name, of=_of: of(piped(folder / name)))


# ── checkpoints ──────────────────────────────────────────────────────────────────────────────────────────────────────

for _where, _pickled in HASHES.items():
    case(f"checkpoint: shared tuples, {_where}")(
        lambda folder, data=_pickled: of_checkpoint(zip_of(folder / "m.pt", b"\x80\x04" + data))
    )
for _what, _pickled in MAKES.items():
    case(f"checkpoint: makes a {_what} of a number")(
        lambda folder, data=_pickled: of_checkpoint(zip_of(folder / "m.pt", b"\x80\x02" + data))
    )

_PICKLES = {
    "shared tuples in the legacy form": b"\x80\x02}" + NESTED + b"Ns.",
    "lists 100,000 deep": b"\x80\x02" + b"]" * 100_000 + b"a" * 99_999 + b".",
    "dicts 100,000 deep": b"\x80\x02" + b"}K\x01" * 100_000 + b"N" + b"s" * 100_000 + b".",
    "a million marks": b"\x80\x02" + b"(" * 10**6 + b".",
    "memo of 2**32": b"\x80\x02}r\xff\xff\xff\xff.",
    "bytes of 2**60": b"\x80\x05\x8e" + struct.pack("<Q", 2**60) + b"x.",
    "frame of 2**60": b"\x80\x05\x95" + struct.pack("<Q", 2**60) + b"N.",
    "copies of one text": b"\x80\x02" + encoded_again_and_again(10_000),
    "number of 10,000 digits": b"I" + b"9" * 10_000 + b"\n.",
    "reference without end": b"\x80\x02]q\x00h\x00\x85R.",
}
for _name, _pickled in _PICKLES.items():
    case(f"checkpoint: {_name}")(lambda folder, data=_pickled: of_checkpoint(zip_of(folder / "m.pt", data)))
    case(f"checkpoint: {_name}, alone")(lambda folder, data=_pickled: of_checkpoint(written(folder / "m.pt", data)))


def saved(folder: Path, state: Any, **options: Any) -> list[str]:
    torch.save(state, folder / "m.pt", **options)
    return of_checkpoint(folder / "m.pt")


_STATES: dict[str, Callable[[Path], Any]] = {
    "code in a zip": lambda _: {"state_dict": {"w": torch.ones(2)}, "more": Evil(CANARY)},
    "20,000 empty tensors": lambda _: {f"l{i}.weight": torch.empty(0) for i in range(20_000)},
    "20,000 overlapping tensors of 20 MB": lambda _: {
        f"l{i}": held[i:] for held in [torch.zeros(5_000_000)] for i in range(20_000)
    },
    "100,000 names of one tensor of 4 MB": lambda _: dict.fromkeys((f"l{i}" for i in range(10**5)), torch.zeros(10**6)),
    "a name of 200,000 prefixes": lambda _: {"module." * 200_000 + "w": torch.ones(2)},
    "a name of 5 MB beside the network's": lambda own: torch.load(own) | {"x" * 5_000_000: torch.ones(2)},
    "one value spread over 40 GB": lambda _: {"w": torch.ones(1).expand(10**10)},
}
for _name, _state in _STATES.items():
    case(f"checkpoint: {_name}", quick=_name == "code in a zip")(
        lambda folder, state=_state: saved(folder, state(folder / "model.pt"))
    )


@case("checkpoint: code in the legacy form")
def _(folder: Path) -> list[str]:
    return saved(folder, {"w": torch.ones(2), "more": Evil(CANARY)}, _use_new_zipfile_serialization=False)


@case("checkpoint: code in a bare pickle, trusted")
def _(folder: Path) -> list[str]:
    return of_checkpoint(written(folder / "m.pt", pickle.dumps(Evil(CANARY))), "--trust-pickle")


for _form, _member in {"exported program": "archive_format", "TorchScript": "constants.pkl"}.items():

    @case(f"checkpoint: {_form} with code")
    def _(folder: Path, member: str = _member) -> list[str]:
        with zipfile.ZipFile(folder / "m.pt2", "w") as archive:
            archive.writestr("e/data.pkl", pickle.dumps(Evil(CANARY)))
            archive.writestr(f"e/{member}", pickle.dumps(Evil(CANARY)))
        return of_checkpoint(folder / "m.pt2")


for _form in ("zip", "legacy", "safetensors"):

    @case(f"checkpoint: sparse, {_form}", quick=_form == "zip")
    def _(folder: Path, form: str = _form) -> list[str]:
        save_checkpoint(folder / "m.pt", torch.load(folder / "model.pt"), form)
        return of_checkpoint(made_sparse(folder / "m.pt"))

    @case(f"checkpoint: complex weights, {_form}")
    def _(folder: Path, form: str = _form) -> list[str]:
        state = torch.load(folder / "model.pt")
        save_checkpoint(folder / "m.pt", state | {"4.weight": state["4.weight"].to(torch.complex64)}, form)
        return of_checkpoint(folder / "m.pt")


def save_checkpoint(path: Path, state: Any, form: str) -> None:
    if form == "safetensors":
        save_file(state, path)
    else:
        torch.save(state, path, _use_new_zipfile_serialization=form == "zip")


@case("checkpoint: a zip bomb")
def _(folder: Path) -> list[str]:
    with zipfile.ZipFile(folder / "m.pt", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("m/data.pkl", pickle.dumps({}, protocol=2))
        archive.writestr("m/data/0", bytes(300_000_000))
    return of_checkpoint(folder / "m.pt")


@case("checkpoint: safetensors with a header of brackets")
def _(folder: Path) -> list[str]:
    header = b'{"a":' + b"[" * 10**6
    return of_checkpoint(written(folder / "m.safetensors", struct.pack("<Q", len(header)) + header))


@case("checkpoint: safetensors that declares 2**62")
def _(folder: Path) -> list[str]:
    header = json.dumps({"w": {"dtype": "F32", "shape": [2**60], "data_offsets": [0, 2**62]}}).encode()
    return of_checkpoint(written(folder / "m.safetensors", struct.pack("<Q", len(header)) + header))


# ── data ─────────────────────────────────────────────────────────────────────────────────────────────────────────────

_BATCHES = {
    "shared tuples": b"\x80\x02}(U\x04data" + NESTED + b"Nu.",
    "memo of 2**29": b"\x80\x02}r" + struct.pack("<I", 2**29) + b".",
    "copies of one text": b"\x80\x02" + encoded_again_and_again(10_000),
    "code": pickle.dumps({b"data": Evil(CANARY)}, 2),
}
for _name, _pickled in _BATCHES.items():

    @case(f"data: a CIFAR batch with {_name}", quick=_name == "shared tuples")
    def _(folder: Path, data: bytes = _pickled) -> list[str]:
        (folder / "root" / "cifar-10-batches-py").mkdir(parents=True)
        (folder / "root" / "cifar-10-batches-py" / "test_batch").write_bytes(data)
        return of_data("cifar10", "--data-root", "root")


@case("data: a CIFAR archive with a header of 8 GB")
def _(folder: Path) -> list[str]:
    (folder / "root").mkdir()
    info = tarfile.TarInfo("x")
    info.type, info.size = tarfile.XHDTYPE, 8 * 2**30 - 512
    packed = gzip.compress(info.tobuf(tarfile.USTAR_FORMAT)) + gzip.compress(bytes(2**26)) * 60
    (folder / "root" / "cifar-10-python.tar.gz").write_bytes(packed)
    return of_data("cifar10", "--data-root", "root")


@case("data: texts of an HDF5 file that share one place")
def _(folder: Path) -> list[str]:
    file = h5py.File(folder / "d.h5", "w")
    file.update({"x": np.zeros((20_000, 1, 6, 6), np.float32), "y": np.zeros(20_000, np.int64)})
    return of_data(texts_in_one_place(file, "group").name)


def _hdf5(folder: Path, fill: Callable[[h5py.File], object]) -> list[str]:
    with h5py.File(folder / "d.h5", "w") as file:
        fill(file)
    return of_data("d.h5")


_FILLS: dict[str, Callable[[h5py.File], object]] = {
    "declares 8 TB": lambda file: file.create_dataset("x", (10**6,) * 2, "f8", chunks=(100, 100), compression="gzip"),
    "links to another": lambda file: file.update(x=h5py.ExternalLink("/etc/passwd", "/x")),
    "has 2,000 groups in each other": lambda file: file.create_group("/".join("g" * 2000)),
}
for _name, _fill in _FILLS.items():
    case(f"data: an HDF5 file that {_name}")(lambda folder, fill=_fill: _hdf5(folder, fill))


def _parquet(folder: Path, group: Any) -> list[str]:
    import pyarrow
    import pyarrow.parquet

    columns = {name: np.zeros(len(group), np.float32) for name in ("a", "b", "y")}
    pyarrow.parquet.write_table(pyarrow.table({**columns, "group": group}), folder / "d.parquet")
    return of_data("d.parquet")


@case("data: texts of a parquet table that share one place")
def _(folder: Path) -> list[str]:
    import pyarrow

    return _parquet(folder, pyarrow.DictionaryArray.from_arrays(np.zeros(20_000, np.int32), ["a" * 2**20]))


@case("data: a parquet table of lists")
def _(folder: Path) -> list[str]:
    return _parquet(folder, [[0.0] * 1000] * 1000)


@case("data: an npz bomb", needs=200 * 2**22)
def _(folder: Path) -> list[str]:
    with zipfile.ZipFile(folder / "d.npz", "w", zipfile.ZIP_DEFLATED) as archive, archive.open("x.npy", "w") as file:
        npy_format.write_array_header_1_0(file, {"descr": "|u1", "fortran_order": False, "shape": (2**22, 1, 10, 20)})
        for _ in range(200):
            file.write(bytes(2**22))
    return of_data("d.npz")


@case("data: an npz with code in it")
def _(folder: Path) -> list[str]:
    np.savez(folder / "d.npz", x=np.array([Evil(CANARY)] * 3, dtype=object))
    return of_data("d.npz")


@case("data: an npy whose header is 4 GB", quick=True)
def _(folder: Path) -> list[str]:
    return of_data(made_sparse(written(folder / "d.npy", b"\x93NUMPY\x02\x00" + b"\xff" * 4)).name)


@case("data: a sparse npy")
def _(folder: Path) -> list[str]:
    with (folder / "d.npy").open("wb") as file:
        npy_format.write_array_header_1_0(file, {"descr": "|u1", "fortran_order": False, "shape": (SPARSE - 128,)})
    return of_data(made_sparse(folder / "d.npy").name)


@case("data: a sparse table")
def _(folder: Path) -> list[str]:
    return of_data(made_sparse(written(folder / "d.csv", b"a,b,y\n" + b"1,2,3\n" * 1000)).name)


@case("data: a table of one endless line")
def _(folder: Path) -> list[str]:
    return of_data(written(folder / "d.csv", b"1," * 5 * 10**6).name)


@case("data: idx that unpacks to 4 GB")
def _(folder: Path) -> list[str]:
    head = bytes([0, 0, 8, 3]) + np.array([10, 6, 6], ">u4").tobytes()
    return of_data(written(folder / "d-idx3.gz", gzip.compress(head) + gzip.compress(bytes(2**26)) * 64).name)


@case("data: a mat file that declares 8 GB")
def _(folder: Path) -> list[str]:
    import scipy.io

    scipy.io.savemat(folder / "d.mat", {"x": np.zeros((3, 1, 6, 6))})
    content = (folder / "d.mat").read_bytes()
    shape = struct.pack("<4i", 3, 1, 6, 6)
    assert shape in content
    return of_data(written(folder / "d.mat", content.replace(shape, struct.pack("<4i", 2**15, 2**15, 1, 1))).name)


def _pictured(folder: Path, content: bytes) -> list[str]:
    (folder / "set" / "a").mkdir(parents=True)
    (folder / "set" / "a" / "1.png").write_bytes(content)
    return of_data("set")


@case("data: PostScript called an image")
def _(folder: Path) -> list[str]:
    (folder / "programs").mkdir()
    (folder / "programs" / "gs").write_text(f"#!/bin/sh\ntouch {folder / CANARY}\n")
    (folder / "programs" / "gs").chmod(0o755)
    return _pictured(folder, b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 6 6\n%%EndComments\n%%EOF\n")


@case("data: a truncated PNG", quick=True)
def _(folder: Path) -> list[str]:
    return _pictured(folder, png(np.zeros((6, 6), np.uint8))[:-12])


@case("data: a PNG of 2,500 million pixels")
def _(folder: Path) -> list[str]:
    content = bytearray(png(np.zeros((6, 6), np.uint8)))
    content[16:24] = struct.pack(">2I", 50_000, 50_000)
    content[29:33] = struct.pack(">I", zlib.crc32(content[12:29]))
    return _pictured(folder, bytes(content))


@case("data: a zip of images that unpack to 3 GB")
def _(folder: Path) -> list[str]:
    with zipfile.ZipFile(folder / "d.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for name in range(10):
            archive.writestr(f"a/{name}.png", bytes(300 * 10**6) if name == 0 else b"")
    return of_data("d.zip")


@case("data: a zip of 300,000 images that are none")
def _(folder: Path) -> list[str]:
    with zipfile.ZipFile(folder / "d.zip", "w") as archive:
        for name in range(300_000):
            archive.writestr(f"a/{name}.png", b"x")
    return of_data("d.zip")


@case("data: an image with 3 GB behind it")
def _(folder: Path) -> list[str]:
    arguments = _pictured(folder, png(np.zeros((6, 6), np.uint8)))
    os.truncate(folder / "set" / "a" / "1.png", 3 * 2**30)
    return arguments


@case("data: a folder of a link to itself")
def _(folder: Path) -> list[str]:
    (folder / "set").mkdir()
    (folder / "set" / "again").symlink_to(folder / "set")
    return of_data("set")


# ── results ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def changed(folder: Path, change: Callable[[h5py.File], object]) -> list[str]:
    path = written(folder / "r.h5", (folder / "good.h5").read_bytes())
    with h5py.File(path, "r+") as file:
        change(file)
    return of_result(path)


def _without(file: h5py.File, name: str) -> h5py.File:
    del file[name]
    return file


_CHANGES: dict[str, Callable[[h5py.File], object]] = {
    "texts that share one place": lambda file: texts_in_one_place(_without(file, "record"), "record"),
    "estimates that declare 8 TB": lambda file: _without(file, "estimates/value").create_dataset(
        "estimates/value", (10**12,), "f8", chunks=(1000,)
    ),
    "a link to another file": lambda file: file.update(more=h5py.ExternalLink("/etc/passwd", "/x")),
    "a record of 10 million brackets": lambda file: _without(file, "record").update(record="[" * 10_000_000),
    "5,000 data sets more": lambda file: file.create_group("more").update({f"{n}": n for n in range(5000)}),
    "a group in itself": lambda file: file.update({"estimates/again": file["estimates"]}),
}
for _name, _change in _CHANGES.items():
    case(
        f"result: {_name}",
        quick=_name.startswith(("texts", "a record")),
        odd=_name in ("5,000 data sets more", "a group in itself"),
    )(lambda folder, change=_change: changed(folder, change))


@case("result: sparse", odd=True)
def _(folder: Path) -> list[str]:
    return of_result(made_sparse(written(folder / "r.h5", (folder / "good.h5").read_bytes())))


# ── run files ────────────────────────────────────────────────────────────────────────────────────────────────────────


@case("run: a found file that names code", quick=True)
def _(folder: Path) -> list[str]:
    (folder / "evil.py").write_text(f"import pathlib\npathlib.Path('{CANARY}').touch()\ndef net(): ...\n")
    (folder / "model.toml").write_text('[model]\narch = "evil.py:net"\n')
    return ["evaluate", "model.pt", "--train", "train.npz", "--test", "test.npz", "--out", "out.h5"]


@case("run: bytes")
def _(folder: Path) -> list[str]:
    return ["evaluate", written(folder / "r.toml", bytes(range(256)) * 100).name]
