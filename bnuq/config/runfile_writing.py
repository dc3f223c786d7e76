"""Writes the lines of a run file: values as TOML, with paths relative to its folder, and comments."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from bnuq.config.schema import Section
from bnuq.files.content import exists
from bnuq.frozen import frozen


@frozen
class Line:
    """A key with its value, a comment beside it, and one `above` it. One that is not `active` is itself a comment."""

    key: str
    value: Any
    comment: str = ""
    active: bool = True
    above: str = ""

    def text(self, folder: Path | None) -> str:
        value = as_value(self.value, folder if self.key in _PATHS else None)
        head = f"{'' if self.active else '# '}{self.key} = {value}"
        above = f"# {_on_one_line(self.above)}\n" if self.above else ""
        return above + (f"{head}      # {_on_one_line(self.comment)}" if self.comment else head)


def _on_one_line(comment: str) -> str:
    return "".join(character if character.isprintable() else " " for character in " ".join(comment.split()))


_PATHS = (
    "checkpoint",
    "arch",
    "train",
    "test",
    "ood",
    "validation",
    "predictions",
    "palette",
    "classes",
)  # keys whose texts may be paths


def table(name: str, lines: Iterable[Line], folder: Path | None) -> str:
    """A table of a run file in `folder`; None if that is not known."""
    return "\n".join([f"[{name}]", *(line.text(folder) for line in lines)])


def as_value(value: Any, folder: Path | None = None) -> str:
    """A value as TOML on one line, with everything that cannot be seen written out; a path is written relative to
    `folder` where it lies near it."""
    if isinstance(value, Section):
        return as_value(msgspec.to_builtins(value), folder)
    if isinstance(value, Mapping):
        items = [f"{as_key(key)} = {as_value(inner, folder)}" for key, inner in value.items() if inner is not None]
        return f"{{ {', '.join(items)} }}" if items else "{}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(as_value(inner, folder) for inner in value)}]"
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, str) and folder is not None:
        value = _relative(value, folder)
    text = json.dumps(value, ensure_ascii=False)
    return "".join(c if c.isprintable() else f"\\U{ord(c):08x}" for c in text)


def as_key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else as_value(key)


def _relative(text: str, folder: Path) -> str:
    """`text`, with its absolute path (after NAME=, before :function or :selection) relative to `folder` if that leads
    there by at most two folders up."""
    name, path_text = re.fullmatch(r"((?:[\w-]+=)?)(.*)", text, flags=re.DOTALL).groups()  # pyrefly: ignore
    ends = [len(path_text), *(at for at in reversed(range(len(path_text))) if path_text[at] == ":")]
    path = next(
        (path_text[:end] for end in ends if Path(path_text[:end]).is_absolute() and exists(Path(path_text[:end]))),
        path_text,
    )
    if not Path(path).is_absolute():
        return text
    relative = Path(os.path.relpath(path, folder))
    is_unrelated = Path(os.path.commonpath([path, folder])) == Path(folder.anchor)
    near = not is_unrelated and relative.parts[:3] != ("..",) * 3 and exists(folder / relative)
    return f"{name}{relative.as_posix() if near else path}{path_text[len(path) :]}"
