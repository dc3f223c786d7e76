"""Class files: the names of classes and, for colour-coded masks, their colours, in a text, a CSV or a JSON file."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from bnuq.data.readers.common import readable
from bnuq.errors import DataError
from bnuq.files.content import kind_of, what_is_wrong_with
from bnuq.frozen import frozen

_LARGEST_FILE, _LARGEST_NUMBER = 2**20, 2**15
_EXPECTED = (
    "expected a line for each class, `name`, `name r g b` or `index name r g b` with colours of 0 to 255; or a JSON "
    'list of names or of {"name": …, "color": [r, g, b]}, with an "index" or in order'
)
_Row = tuple[int | None, str, tuple[int, int, int] | None]  # number, name, colour


@frozen(eq=False)
class ClassFile:
    """The names of the classes from 0, and the numbers of colours: `colours` are sorted, each r · 2¹⁶ + g · 2⁸ + b."""

    path: Path
    names: tuple[str, ...]
    colours: NDArray[np.int64]
    numbers: NDArray[np.int64]

    @property
    def grey(self) -> bool:
        """Whether there are colours, and all are grey."""
        red, green, blue = (self.colours >> shift & 255 for shift in (16, 8, 0))
        return len(self.colours) > 0 and bool(np.all((red == green) & (green == blue)))

    def numbered(self, pixels: NDArray[np.uint8], where: Path) -> NDArray[Any]:
        """The class numbers (H, W) of colours (H, W, 3); DataError for a colour of `where` that has none."""
        packed = pixels.astype(np.int64) @ np.array([1 << 16, 1 << 8, 1])
        places = np.searchsorted(self.colours, packed).clip(max=len(self.colours) - 1)
        if (unknown := packed[self.colours[places] != packed]).size:
            colour, count = int(unknown[0]), int((unknown == unknown[0]).sum())
            shown = tuple(colour >> shift & 255 for shift in (16, 8, 0))
            raise DataError(
                f"{where}: has {count} pixels of colour {shown}, which {self.path.name} does not list. Add a line for "
                "it; a class that is not to be scored has the number of --ignore as its index."
            )
        small = self.numbers.min() >= 0 and self.numbers.max() <= 255
        return self.numbers.astype(np.uint8 if small else np.int64)[places]


def read_classes(path: Path) -> ClassFile:
    """The classes that a file lists. DataError for lines that do not fit together, and for a colour of two classes."""
    if (kind := kind_of(path)) != "text":
        wrong = what_is_wrong_with(kind) or "is not a text file."
        raise DataError(f"{path}: {wrong} Expected a list of classes: {_EXPECTED}.")
    with readable(path, "a list of classes"):
        if path.stat().st_size > _LARGEST_FILE:
            raise DataError(f"{path}: has {path.stat().st_size:,} bytes; {_EXPECTED}.")
        text = path.read_text(encoding="utf-8-sig")
        rows = list(_of_json(path, text) if text.lstrip()[:1] in ("[", "{") else _of_lines(path, text))
    if not rows:
        raise DataError(f"{path}: lists no class; {_EXPECTED}.")
    if len({colour is None for _, _, colour in rows}) > 1:
        name = next(name for _, name, colour in rows if colour is None)
        raise DataError(f"{path}: {name!r} has no colour and others have one; {_EXPECTED}.")
    numbers = [position if number is None else number for position, (number, _, _) in enumerate(rows)]
    if max(map(abs, numbers)) > _LARGEST_NUMBER:
        raise DataError(f"{path}: has an index of {max(numbers, key=abs)}; expected at most {_LARGEST_NUMBER}.")
    name_of_number: dict[int, str] = {}
    number_of_colour: dict[int, int] = {}
    for number, (_, name, colour) in zip(numbers, rows, strict=True):
        name_of_number.setdefault(number, name)
        if colour is not None:
            red, green, blue = colour
            if number_of_colour.setdefault(packed := red << 16 | green << 8 | blue, number) != number:
                raise DataError(
                    f"{path}: colour {colour} is that of {name_of_number[number_of_colour[packed]]!r} and of {name!r}."
                )
    # Names end before a gap, as before 255.
    last = next(gap for gap in range(len(name_of_number) + 1) if gap not in name_of_number)
    colours = np.array(sorted(number_of_colour), dtype=np.int64)
    return ClassFile(
        path,
        tuple(name_of_number[number] for number in range(last)),
        colours,
        np.array([number_of_colour[int(colour)] for colour in colours], dtype=np.int64),
    )


def _of_lines(path: Path, text: str) -> Iterator[_Row]:
    lines = [line for line in map(str.strip, text.splitlines()) if line and not line.startswith("#")]
    separator = next((mark for mark in (",", ";") if lines and mark in lines[-1]), None)
    rows = [[word.strip(' "') for word in line.split(separator)] for line in lines]
    if not any(map(_colour_at, rows)):
        yield from ((None, line, None) for line in lines)
        return
    for row, words in enumerate(rows):
        if row == 0 and not any(map(_is_number, words)):  # a header
            continue
        if not (position := _colour_at(words)):
            raise DataError(f"{path}: {' '.join(words)[:80]!r} has no colour, and other classes have one; {_EXPECTED}.")
        others = words[: position.start] if position.start else words[3:]
        index = int(others[0]) if _is_number(others[0]) else None
        name = " ".join(others if index is None or len(others) == 1 else others[1:])
        yield index, name, _colour(path, [int(word) for word in words[position]])


def _colour_at(words: Sequence[str]) -> slice | None:
    """Where the three numbers of a colour stand among words: at the end, or before a name."""
    if len(words) > 3 and all(map(_is_number, words[-3:])):
        return slice(len(words) - 3, len(words))
    return slice(0, 3) if len(words) > 3 and all(map(_is_number, words[:3])) else None


def _is_number(word: str) -> bool:
    return re.fullmatch(r"[+-]?\d{1,9}", word) is not None


def _of_json(path: Path, text: str) -> Iterator[_Row]:
    content = json.loads(text)
    if isinstance(content, dict):
        content = [{"name": name, "color": colour} for name, colour in content.items()]
    for entry in content:
        if isinstance(entry, str):
            yield None, entry, None
            continue
        if not isinstance(entry, dict) or not isinstance(name := entry.get("name"), str):
            _refuse(path, entry)
        colour = next((entry[key] for key in ("color", "colour", "rgb") if entry.get(key) is not None), None)
        number = next((entry[key] for key in ("index", "id") if entry.get(key) is not None), None)
        if number is not None and type(number) is not int:
            _refuse(path, entry)
        yield number, name, None if colour is None else _colour(path, colour)


def _colour(path: Path, values: Any) -> tuple[int, int, int]:
    fits = isinstance(values, list) and len(values) == 3 and all(type(v) is int and 0 <= v <= 255 for v in values)
    return (values[0], values[1], values[2]) if fits else _refuse(path, values)


def _refuse(path: Path, entry: Any) -> NoReturn:
    raise DataError(f"{path}: {json.dumps(entry)[:80]} is not a class; {_EXPECTED}.")
