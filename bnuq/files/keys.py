"""Names of arrays in two parts: their kind, and the score, class or set that they are of."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from typing import Self, TypeVar

Values = TypeVar("Values")


class Key(str):
    """A `kind` and a `name`, which files and mappings have as one text with dots; a name may have dots itself."""

    def __new__(cls, *parts: str) -> Self:
        return super().__new__(cls, ".".join(parts))

    @property
    def kind(self) -> str:
        return self.partition(".")[0]

    @property
    def name(self) -> str:  # empty where the key has one part
        return self.partition(".")[2]


def of_kind(arrays: Mapping[str, Values], kind: str) -> dict[str, Values]:
    """Those of this kind, by their names."""
    return {Key(key).name: values for key, values in arrays.items() if Key(key).kind == kind and Key(key).name}


def taken_out(arrays: MutableMapping[str, Values], *kinds: str) -> dict[str, Values]:
    """Those of these kinds, or of any if none is given, which are then no longer among the others."""
    keys = [key for key in arrays if Key(key).name and (not kinds or Key(key).kind in kinds)]
    return {key: arrays.pop(key) for key in keys}
