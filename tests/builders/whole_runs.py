"""Which tests are no units: those that start a whole run, a process or a compiler, as their code or their fixtures'
says."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

import pytest

_TESTS = str(Path(__file__).resolve().parent.parent)
_MODULES = ("bnuq.workflows", "bnuq.cli.main", "bnuq.api", "subprocess", "multiprocessing", "runpy")
_LATE = {
    "bnuq": {"evaluate", "inspect", "sweep", "export"},
    "torch": {"compile", "export", "jit"},
}  # imported when used


def starts_one(item: pytest.Item) -> bool:
    """Whether the test, or a fixture that it asks for, calls such a function, itself or through functions of tests; or
    needs the real checkpoints and data."""
    fixtures = item._fixtureinfo.name2fixturedefs.values()  # type: ignore[attr-defined]
    functions = [item.function, *(definition.func for each in fixtures for definition in each)]  # type: ignore[attr-defined]
    return "data_pack" in item.fixturenames or any(map(_starts, functions))  # type: ignore[attr-defined]


@cache
def _starts(function: Any) -> bool:
    return _reaches(function, set())


def _reaches(function: Any, seen: set[CodeType]) -> bool:
    if hasattr(function, "hypothesis"):
        function = function.hypothesis.inner_test
    if not isinstance(function, FunctionType) or function.__code__ in seen:
        return False
    seen.add(function.__code__)
    names = set(_names(function.__code__))
    if "getfixturevalue" in names or any(name.startswith(_MODULES) for name in names):  # a fixture by name; an import
        return True
    for name in names & function.__globals__.keys():
        value = function.__globals__[name]
        if isinstance(value, ModuleType):
            if names & _LATE.get(value.__name__, set()):
                return True
            values = [vars(value)[name] for name in names & vars(value).keys()]
        else:
            values = [*_within(value)]
        if any(_is_start(value) or (_is_of_tests(value) and _reaches(value, seen)) for value in values):
            return True
    return False


def _names(code: CodeType) -> Iterator[str]:
    """The names that a function and the functions in it look up."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def _within(value: Any) -> Iterator[Any]:
    """The value, or what a table of functions holds."""
    if isinstance(value, dict | list | tuple):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _within(inner)
    else:
        yield value


def _is_start(value: Any) -> bool:
    return callable(value) and str(getattr(value, "__module__", "")).startswith(_MODULES) and not _is_record(value)


def _is_record(value: Any) -> bool:
    """A class whose objects only hold what a workflow is asked for, or an error."""
    return isinstance(value, type) and (hasattr(value, "__dataclass_fields__") or issubclass(value, Exception))


def _is_of_tests(value: Any) -> bool:
    return isinstance(value, FunctionType) and value.__code__.co_filename.startswith(_TESTS)
