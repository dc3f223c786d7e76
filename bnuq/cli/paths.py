"""Paths and lists on the command line: which of them commas separate, and which files a report may replace."""

from __future__ import annotations

import re
from pathlib import Path

from bnuq.errors import RequestError
from bnuq.files.content import exists, is_file
from bnuq.files.folders import expanded
from bnuq.files.writing import check_writable


def split_values(values: list[str]) -> tuple[str, ...]:
    """The values of a repeatable option; commas separate, except in the name of a file that exists."""
    return tuple(
        part.strip()
        for value in values
        for part in ([value] if _is_there(value) or _is_there(value.partition("=")[2]) else value.split(","))
        if part.strip()
    )


def _is_there(name: str) -> bool:
    return bool(name) and exists(expanded(name))


def checked_target(asked: Path, option: str, what: str, opening: bytes) -> Path:
    """Where a file goes; RequestError where one is there that bnuq did not write: that does not begin with the regular
    expression `opening`, and is not empty; ResultError where it cannot be written."""
    path = expanded(asked)
    if exists(path) and not is_file(path):
        raise RequestError(f"{option} {asked} is not a regular file, but a folder, a device or a pipe; name a file.")
    if exists(path) and not _begins_with(path, opening):
        raise RequestError(f"{option} {asked} is another file than a {what} of bnuq; name another.")
    if not path.resolve().parent.is_dir():
        raise RequestError(f"{option} {asked}: its folder does not exist. Make the folder first.")
    check_writable(path)
    return path


def _begins_with(path: Path, opening: bytes) -> bool:
    try:
        with path.open("rb") as file:
            start = file.read(400)
    except OSError:
        return False
    return not start or re.match(opening, start, re.DOTALL) is not None
