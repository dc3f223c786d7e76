"""The shape annotations of bnuq, held while the tests run; pyproject.toml names what is held, and to it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from beartype import beartype

_held: dict[tuple[Any, ...], Callable[..., Any]] = {}


def held(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, refusing arguments that are not as annotated.

    jaxtyping hands in empty functions of the right signature, anew each time that a `def` is run; what was made for one
    inside a function serves the next, for making it costs more than all that the outer function computes.
    """
    names = function.__code__.co_varnames  # of arguments alone, or of the result too
    key = (function.__module__, function.__qualname__, names, *map(repr, function.__annotations__.values()))
    if "<locals>" not in function.__qualname__:
        return beartype(function)
    if key not in _held:
        _held[key] = beartype(function)
    return _held[key]
