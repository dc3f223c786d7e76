"""Lists and counts within sentences."""

from __future__ import annotations

from collections.abc import Sequence


def listed(names: Sequence[object], *, most: int = 5) -> str:
    """The first names, and how many more there are."""
    return ", ".join(map(str, names[:most])) + (f" and {len(names) - most} more" if len(names) > most else "")


def begun(names: Sequence[object], *, most: int = 5) -> str:
    """The first names, and an ellipsis where there are more."""
    return ", ".join(map(str, names[:most])) + (" …" if len(names) > most else "")


def counted(number: int, noun: str) -> str:
    """`1 channel`, `2 channels`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"
