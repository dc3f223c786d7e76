"""The kind of a file of weights, by its first bytes; and names in errors about checkpoints, cut and counted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bnuq.errors import ModelError
from bnuq.files.content import Kind, kind_of, what_is_wrong_with

INDEX = ".safetensors.index.json"


def kind_of_weights(path: Path) -> Kind:
    """The kind of file, where weights can be read from that kind. Raises ModelError where not."""
    kind = kind_of(path)
    if wrong := what_is_wrong_with(kind):
        raise ModelError(f"{path}: {wrong}")
    if kind == "folder" or (kind == "text" and path.name.endswith(INDEX)):
        return kind
    if kind in ("zip", "safetensors", "pickle"):
        return kind
    try:
        with path.open("rb") as file:
            head = file.read(4096)
    except OSError as error:
        raise ModelError(f"{path}: cannot be read: {error.strerror}. Check its permissions.") from error
    if kind != "hdf5" and _looks_like_onnx(head):
        raise ModelError(
            f"{path}: is an ONNX graph, in which BatchNorm is folded into the convolutions and dropout is gone: "
            f"nothing is left to sample. Give the PyTorch checkpoint that it was exported from."
        )
    if kind == "text":
        start = head.decode("utf-8", "replace").lstrip()
        if start[:200].lower().startswith(("<!doctype", "<html")):
            raise ModelError(f"{path}: is a web page, so the download went wrong; {EXPECTED}. Fetch the file again.")
        first = "".join(c if c.isprintable() else " " for c in start.splitlines()[0][:60]) if start else ""
        raise ModelError(f"{path}: is a text file (it begins {first!r}); {EXPECTED}.")
    description = {
        "hdf5": "an HDF5 file (Keras weights, or a result of bnuq)",
        "gzip": "a gzip archive: unpack it first",
        "tar": "a tar archive, or a checkpoint of torch 0.1: unpack it, or save it again with a newer torch",
        "npy": "a NumPy array",
        "mat": "a MATLAB file",
        "idx": "a file of images or labels (idx)",
        "parquet": "a Parquet table",
    }.get(kind, "no kind of file that is known here, or damaged at its start")
    raise ModelError(f"{path}: is {description}; {EXPECTED}.")


def _looks_like_onnx(head: bytes) -> bool:
    """A protobuf whose first field is a small `ir_version` and whose second is one that ONNX has."""
    return len(head) > 3 and head[0] == 0x08 and head[1] < 32 and head[2] in (0x12, 0x1A, 0x22, 0x28, 0x32, 0x3A, 0x42)


LONGEST_NAME = 1000  # letters of a tensor's name, or of the entry it is in
EXPECTED = "expected weights or a network of torch.save, torch.jit.save or torch.export.save, or a safetensors file"


def check_name(path: Path, name: str) -> None:
    if len(name) > LONGEST_NAME:
        raise ModelError(f"{path}: {cut(name)} is a name of {len(name):,} letters; expected at most {LONGEST_NAME:,}.")


def listed(names: Any, *, order: bool = True) -> str:
    """The first five, and how many more there are."""
    texts = sorted(names) if order else list(names)
    return ", ".join(map(cut, texts[:5])) + (f" and {len(texts) - 5} more" if len(texts) > 5 else "")


def cut(name: str) -> str:
    return name if len(name) <= 200 else f"{name[:199]}…"
