"""Result files of every kind: recognised, or refused with one message."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from bnuq.errors import ResultError
from bnuq.files.hdf5 import open_hdf5

Kind = Literal[
    "evaluate",
    "several",
    "sweep",
    "inspection",
]

_COMMANDS: dict[Kind, str] = {
    "evaluate": "bnuq evaluate",
    "several": "bnuq evaluate for a [runs] list",
    "sweep": "bnuq sweep-batch-size",
    "inspection": "bnuq inspect",
}


def kind_of_result(path: Path) -> Kind:
    """What the result file at `path` is of; ResultError where it is no result, or cannot be read at all."""
    with open_hdf5(path) as file:
        if (found := _kind(file)) is None:
            if "bnuq" in file.attrs and isinstance(command := file.attrs.get("command"), str):
                raise ResultError(f"{path} is a result of bnuq {command}; expected one written by bnuq evaluate.")
            raise ResultError(f"{path} is not a result file of bnuq; expected one written by bnuq evaluate.")
        return found


def _kind(file: Any) -> Kind | None:
    attributes = file.attrs
    if "format" not in attributes or "bnuq" not in attributes:
        return None
    said = attributes.get("kind", attributes.get("command", "evaluate" if "run" in attributes else None))
    return next((kind for kind in _COMMANDS if isinstance(said, str) and said == kind), None)
