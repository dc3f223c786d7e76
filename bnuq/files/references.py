"""Parses what a REF contains besides a path: `NAME=REF`, `FILE:selection`, `IMAGES:MASKS` and
`file.py:function(arguments)`."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

from bnuq.errors import RequestError
from bnuq.files.content import is_file, is_folder
from bnuq.files.folders import expanded

_CALL = re.compile(r"([^(]*:[A-Za-z_]\w*)(\(.*\))", re.DOTALL)


def without_name(text: str) -> tuple[str | None, str]:
    """(name, reference) of `NAME=REF`, (None, text) of a plain one; a = within arguments is theirs."""
    name, equals, reference = text.partition("=")
    return (name, reference) if equals and not re.search(r":\w+\(", name) else (None, text)


def without_arguments(spec: str) -> tuple[str, str]:
    """(`file.py:function`, `(arguments)`) of a call; (spec, "") of anything else."""
    call = _CALL.fullmatch(spec)
    return (call[1], call[2]) if call else (spec, "")


def arguments_of(spec: str) -> tuple[list[Any], dict[str, Any]]:
    """The arguments of `file.py:function(arguments)`, which are literals: nothing is evaluated.

    Raises RequestError for arguments of another kind.
    """
    try:
        call = ast.parse(f"f{without_arguments(spec)[1] or '()'}", mode="eval").body
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
            raise ValueError("this is not a single call")
        keywords = {keyword.arg: ast.literal_eval(keyword.value) for keyword in call.keywords if keyword.arg}
        if len(keywords) < len(call.keywords):
            raise ValueError("a keyword is given twice, or by **")
        return [ast.literal_eval(value) for value in call.args], keywords
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError) as error:
        reason = getattr(error, "msg", None) or re.sub(r"( on line \d+)?: <.*", "", str(error))
        raise RequestError(
            f"{spec}: its arguments cannot be read ({reason}); expected literals, as in "
            'file.py:function("test", size=3): texts in quotes, numbers, True, False, None, or lists of these.'
        ) from error


def selection_of(text: str, base: Path) -> tuple[Path, str] | None:
    """(path, selection) of `FILE:selection`, where that file exists and has a suffix other than .py; else None."""
    for colon in reversed([at for at, mark in enumerate(text) if mark == ":"]):
        path = base / expanded(text[:colon])
        if path.suffix.lower() not in ("", ".py") and is_file(path):
            return path, text[colon + 1 :]
    return None


def folders_of(text: str, base: Path) -> tuple[Path, Path, str] | None:
    """(images, masks, pattern) of `IMAGES:MASKS`, two folders, or `IMAGES:MASKS/PATTERN`, where the pattern of the
    masks' file names holds a *; None if they are not both there. The second folder is looked for beside the first,
    then relative to `base`."""
    for colon in reversed([at for at, mark in enumerate(text) if mark == ":"]):
        images, written = base / expanded(text[:colon]), text[colon + 1 :]
        folder, slash, last = written.rpartition("/")
        masks, pattern = (folder or slash or ".", last) if "*" in last else (written, "*")
        masks = masks.removesuffix("/**")
        if not text[:colon].strip() or not masks.strip() or not is_folder(images):
            continue
        for path in (images.parent / expanded(masks), base / expanded(masks)):
            if is_folder(path):
                return images, path, pattern
    return None
