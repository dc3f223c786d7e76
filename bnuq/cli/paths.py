"""Paths and lists on the command line: comma-separated values, and the files that a report may replace."""

from __future__ import annotations

import csv
import re
from pathlib import Path

from bnuq.errors import RequestError
from bnuq.files.content import exists, is_file
from bnuq.files.folders import expanded
from bnuq.files.references import selection_of, without_name
from bnuq.files.writing import check_writable


def split_values(values: list[str]) -> tuple[str, ...]:
    """The values of a repeatable option, split at commas unless the whole value names an existing file. A comma within
    arguments, or between the two names of `FILE:INPUTS,LABELS`, separates no values."""
    return tuple(
        part.strip()
        for value in values
        for part in ([value] if _exists(value) or _exists(value.partition("=")[2]) else _parts(value))
        if part.strip()
    )


def _parts(value: str) -> list[str]:
    parts: list[str] = []
    for part in next(csv.reader([value]), []):  # a name in double quotes may hold commas
        if parts and (_is_open(parts[-1]) or (_selects_inputs(parts[-1]) and not _is_reference(part.strip()))):
            parts[-1] += f",{part}"
        else:
            parts.append(part)
    return parts


def _is_open(text: str) -> bool:
    """Whether a call in it has arguments that do not end there."""
    return re.search(r":\w+\(", text) is not None and text.count("(") > text.count(")")


def _selects_inputs(text: str) -> bool:
    part = selection_of(without_name(text.strip())[1], Path())
    return part is not None and part[0].suffix.lower() != ".npy" and part[1] != "" and "," not in part[1]


def _is_reference(text: str) -> bool:
    return ":" in text or "=" in text or _exists(text)


def _exists(name: str) -> bool:
    return bool(name) and exists(expanded(name))


def checked_target(requested: Path, option: str, kind: str, opening: bytes) -> Path:
    """The path of a file to be written. RequestError where a file exists that bnuq did not write, that is, one that is
    not empty and does not begin with the regular expression `opening`; ResultError where it cannot be written."""
    path = expanded(requested)
    if exists(path) and not is_file(path):
        raise RequestError(
            f"{option} {requested} is not a regular file, but a folder, a device or a pipe; name a file."
        )
    if exists(path) and not _begins_with(path, opening):
        raise RequestError(f"{option} {requested} exists and is not a {kind} written by bnuq; name another file.")
    if not path.resolve().parent.is_dir():
        raise RequestError(f"{option} {requested}: its folder does not exist. Make the folder first.")
    check_writable(path)
    return path


def _begins_with(path: Path, opening: bytes) -> bool:
    try:
        with path.open("rb") as file:
            start = file.read(400)
    except OSError:
        return False
    return not start or re.match(opening, start, re.DOTALL) is not None
