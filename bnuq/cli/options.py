"""What options of several commands have in common: their texts taken apart, with errors that name the option."""

from __future__ import annotations

import math
from typing import Any, get_args

from bnuq.errors import RequestError
from bnuq.files.content import exists
from bnuq.files.folders import expanded
from bnuq.run import Samples

REFERENCE = "a file, a folder, a known name such as cifar10:test, or file.py:function; NAME=REF names it"


def listed(values: list[str] | None) -> tuple[str, ...] | None:
    """The values of a repeatable option; commas separate, except in the name of a file that exists."""
    if values is None:
        return None
    return tuple(
        part.strip()
        for value in values
        for part in ([value] if _is_there(value) or _is_there(value.partition("=")[2]) else value.split(","))
        if part.strip()
    )


def _is_there(name: str) -> bool:
    return bool(name) and exists(expanded(name))


def samples_of(text: str | None) -> Samples | None:
    if text is None or text == "auto":
        return text
    try:
        return int(text)
    except ValueError:
        raise RequestError(f'--samples is {text}; expected a whole number of at least 1, or "auto".') from None


def chosen(option: str, text: str | None, known: Any) -> Any:
    """`text`, which must be one of the names of the Literal `known`."""
    names = get_args(known)
    if text is None or text in names:
        return text
    raise RequestError(f"--{option} is {text}; expected {', '.join(names[:-1])} or {names[-1]}.")


def positive(option: str, value: float | None) -> float | None:
    if value is None or 0 < value < math.inf:
        return value
    raise RequestError(f"--{option} is {value:g}; expected a number above 0.")
