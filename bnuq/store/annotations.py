"""Reads the annotations of a record's fields: axes, coordinates, units, and the item types of containers."""

from __future__ import annotations

import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import cache, wraps
from typing import Annotated, Any, TypeVar

from bnuq.estimates import ByHand

Found = TypeVar("Found")


def _once(function: Callable[..., Found]) -> Callable[..., Found]:
    """`function`, called once for each annotation, as a record has thousands of values under a few.

    By identity: annotations that differ only in the kind of their metadata are equal.
    """
    results: dict[Any, tuple[Any, Found]] = {}

    @wraps(function)
    def once(hint: Any, *rest: Any) -> Found:
        key = (id(hint), *rest)
        if key not in results:
            results[key] = hint, function(hint, *rest)  # the annotation is kept, so that no other gets its id
        return results[key][1]

    return once


@cache
def fields_of(record: type) -> dict[str, Any]:
    """The annotations of the fields that the codec stores."""
    hints = typing.get_type_hints(record, include_extras=True)
    return {item.name: hints[item.name] for item in fields(record) if metadata(hints[item.name], ByHand) is None}


def _parts(hint: Any) -> Iterator[Any]:
    """The annotation itself and, for an optional or annotated one, the inner type."""
    yield hint
    if typing.get_origin(hint) is Annotated:
        yield from _parts(typing.get_args(hint)[0])
    elif typing.get_origin(hint) in (typing.Union, type(int | None)):
        for part in typing.get_args(hint):
            yield from _parts(part)


@_once
def metadata(hint: Any, kind: type[str]) -> str | None:
    extras = (extra for part in _parts(hint) for extra in getattr(part, "__metadata__", ()))
    return next((str(extra) for extra in extras if isinstance(extra, kind)), None)


@_once
def record_of(hint: Any) -> type | None:
    """The record that the annotation names; None if it names none, or several."""
    records = [part for part in _parts(hint) if isinstance(part, type) and is_dataclass(part)]
    return records[0] if len(records) == 1 else None


@_once
def arguments(hint: Any, kind: type, count: int) -> tuple[Any, ...]:
    """The first arguments of the mapping or sequence that the annotation names."""
    for part in _parts(hint):
        origin = typing.get_origin(part)
        if isinstance(origin, type) and issubclass(origin, kind):
            return typing.get_args(part)[:count]
    return (None,) * count


@_once
def axes_of(hint: Any) -> tuple[str, ...] | None:
    """("draw", "channel") of Float[np.ndarray, "draw channel"], even if that is what a mapping holds."""
    for part in _parts(hint):
        if (text := getattr(part, "dim_str", None)) is not None:
            return tuple(name.lstrip("*#") for name in text.split())
        if isinstance(origin := typing.get_origin(part), type) and issubclass(origin, Mapping):
            return axes_of(typing.get_args(part)[1])
    return None
