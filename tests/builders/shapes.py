"""The shape annotations of bnuq, held while the tests run; pyproject.toml names what is held, and to it."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from beartype import beartype

_held: dict[tuple[Any, ...], Callable[..., Any]] = {}


def held(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, refusing arguments that are not as annotated.

    jaxtyping hands in empty functions of the right signature, two for each `def`, anew each time that it is run. Most
    are never called in a process, so that a check is made at the first call. What was made for a function inside a
    function serves the next, for making it costs more than all that the outer function computes.
    """
    if "<locals>" not in function.__qualname__:
        return _at_first_call(function)
    names = function.__code__.co_varnames  # of arguments alone, or of the result too
    key = (function.__module__, function.__qualname__, names, *map(repr, function.__annotations__.values()))
    if key not in _held:
        _held[key] = beartype(function)
    return _held[key]


def _at_first_call(function: Callable[..., Any]) -> Callable[..., Any]:
    checking = cache(lambda: beartype(function))

    def checked(*args: Any, **kwargs: Any) -> Any:
        return checking()(*args, **kwargs)

    return checked
