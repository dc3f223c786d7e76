"""The shape annotations of bnuq, held while the tests run; pyproject.toml names what is held, and to it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from functools import cache, partial, wraps
from inspect import isclass, isfunction
from typing import Any

import jaxtyping
from beartype import beartype

_CHECKED_CALLS = 10  # of each function in a test; some tests call one a hundred thousand times
_held: dict[tuple[Any, ...], Callable[..., Any]] = {}
_jaxtyped = jaxtyping.jaxtyped
calls: Counter[Callable[..., Any]] = Counter()  # of checked functions; to be cleared before each test


def jaxtyped(function: Any = None, *, typechecker: Any) -> Any:
    """`jaxtyping.jaxtyped`, in whose place it stands: it leaves alone what bears no shapes, the functions inside a
    function whose own shapes are not checked, and calls after the first ones of a test. All these would cost time."""
    if function is None:
        return partial(jaxtyped, typechecker=typechecker)
    if isclass(function):
        return _jaxtyped(function, typechecker=typechecker) if bears_shapes(function.__init__) else function
    if not bears_shapes(function) or ("<locals>" in function.__qualname__ and jaxtyping.config.jaxtyping_disable):
        return function
    checked = _jaxtyped(function, typechecker=typechecker)

    @wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        if jaxtyping.config.jaxtyping_disable or calls[function] == _CHECKED_CALLS:
            return function(*args, **kwargs)
        calls[function] += 1
        return checked(*args, **kwargs)

    return called


def bears_shapes(function: Callable[..., Any]) -> bool:
    """Whether an annotation of the function, which is a text, names a type of jaxtyping or one made of them."""
    if not isfunction(function):
        return False
    names = set(re.findall(r"\w+", " ".join(map(str, function.__annotations__.values()))))
    return any("jaxtyping" in repr(function.__globals__[name]) for name in names & function.__globals__.keys())


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
