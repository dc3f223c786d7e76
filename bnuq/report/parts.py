"""The parts that a report on a terminal is made of, each of which knows how to fill a width, and what draws them."""

from __future__ import annotations

import io
import os
import shutil
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from rich.console import Console
from rich.text import Text

from bnuq.report.document import Cell, Row
from bnuq.report.sanitize import printable

Clean = Callable[[str], str]
_IN_ASCII = {
    "±": "+/-", "−": "-", "·": "*", "↑": "^", "↓": "v", "–": "-", "→": "->", "×": "x", "≥": ">=", "…": "...", "≤": "<=",
    "σ": "sigma", "τ": "tau", "ρ": "rho", "ω": "omega", "√": "sqrt ", "²": "^2", "½": "1/2", "∞": "inf", "≈": "~",
    "ε": "eps", "μ": "mu", "χ": "chi", "ν": "nu",
} | dict(zip("▁▂▃▄▅▆▇█", "_.,-=+*#", strict=True))  # fmt: skip
_ASCII = str.maketrans(_IN_ASCII)


def columns_of(stream: TextIO, width: int | None = None) -> int:
    """The width to draw with: `width`, or that of the terminal, or 80 where there is none; from 40 to 100."""
    columns = width or (shutil.get_terminal_size((80, 24)).columns if stream.isatty() else 80)
    return max(40, min(columns, 100))


def draw(parts: Iterable[Part], stream: TextIO, columns: int) -> None:
    """The parts below each other: in colour on a terminal, plain in a pipe, in ASCII where the encoding needs it."""
    terminal = stream.isatty()
    styled = terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") not in ("dumb", "unknown")
    buffer = io.StringIO()
    console = Console(
        file=buffer,
        width=columns,
        force_terminal=styled,
        color_system="auto" if styled else None,
        highlight=False,
        emoji=False,
        legacy_windows=False,
    )
    clean = cleaner(getattr(stream, "encoding", None) or "utf-8")
    for part in parts:
        for line in part.lines(columns, clean):
            line.rstrip()
            console.print(line, soft_wrap=True)
    stream.write(buffer.getvalue())


def cleaner(encoding: str) -> Callable[[str], str]:
    """What makes a text fit for the stream: without control characters, and in ASCII where it cannot take ours."""

    def cleaned(text: str) -> str:
        text = printable(text, lines=False)
        return text if plain else text.translate(_ASCII).encode(encoding, "replace").decode(encoding)

    try:
        "".join(_IN_ASCII).encode(encoding)
        plain = encoding.lower().replace("-", "").startswith("utf")
    except (UnicodeEncodeError, LookupError):
        plain = False
    return cleaned


@dataclass(frozen=True)
class Paragraph:
    """Wrapped text; an empty one is an empty line."""

    text: str = ""
    style: str = ""

    def lines(self, width: int, clean: Clean) -> Iterator[Text]:
        for line in _wrapped(clean(self.text), width) or [""]:
            yield Text(line, style=self.style)


@dataclass(frozen=True)
class Drawing:
    """A curve in characters, row by row, and what is said of it, for where there are no pictures."""

    rows: tuple[str, ...]
    said: str = ""

    def lines(self, width: int, clean: Clean) -> Iterator[Text]:
        for row in self.rows:
            yield from Paragraph(row).lines(width, clean)
        if self.said:
            yield from Paragraph(self.said, "dim").lines(width, clean)


@dataclass(frozen=True)
class Items:
    """A list, each entry behind a mark."""

    texts: tuple[str, ...]

    def lines(self, width: int, clean: Clean) -> Iterator[Text]:
        for text in self.texts:
            for row, line in enumerate(_wrapped(clean(text), width - 3)):
                yield Text(f" {clean('·') if row == 0 else ' '} {line}")


@dataclass(frozen=True)
class Advice:
    """Warnings: what is wrong, its code, and what to do, which pages tell (empty: the text says it)."""

    rows: tuple[tuple[str, str, str], ...]

    def lines(self, width: int, clean: Clean) -> Iterator[Text]:
        yield from Items(tuple(f"{text} [{code}]" for text, code, _ in self.rows)).lines(width, clean)


@dataclass(frozen=True)
class Facts:
    """Names and what they are."""

    rows: tuple[tuple[str, str], ...]

    def lines(self, width: int, clean: Clean) -> Iterator[Text]:
        rows = [(clean(name), text) for name, text in self.rows]
        room = min(max(len(name) for name, _ in rows) + 2, width - 20)
        for name, text in rows:
            if len(name) > room - 2:  # a name out of a file may be as long as it likes
                yield Text(name, style="dim")
                name = ""
            for row, line in enumerate(_wrapped(clean(text), width - room)):
                yield Text.assemble((f"{name if row == 0 else '':{room}}", "dim"), line)


@dataclass(frozen=True)
class Table:
    """Rows under a header, numbers to the right; a row without cells is a heading among them.

    Nothing is ever cut: where the columns do not fit side by side, errors go below their values (`stacks`), and where
    that is not enough, the columns go into several tables below each other.
    """

    header: tuple[str, ...]
    rows: tuple[Row, ...]
    stacks: bool = False

    def lines(self, width: int, clean: Clean) -> Iterator[Text]:
        rows = [
            (clean(label), tuple(Cell(clean(c.value), clean(c.error), c.style) for c in cells))
            for label, cells in self.rows
        ]
        header = [clean(title) for title in self.header]
        labels = max(len(label) for label, cells in rows if cells)
        room = width - 1 - labels
        beside = [self._width(header, rows, column, stacked=False) for column in range(len(header))]
        stacked = self.stacks and sum(beside) > room
        widths = [self._width(header, rows, column, stacked=True) for column in range(len(header))]
        widths = widths if stacked else beside
        for number, block in enumerate(_blocks(widths, room)):
            if number:
                yield Text()
            if any(header[column] for column in block):
                titles = "".join(f"{header[column]:>{widths[column]}}" for column in block)
                yield Text(f" {'':{labels}}{titles}", style="dim")
            for label, cells in rows:
                if not cells:
                    yield from (Text(f" {line}", style="bold") for line in _wrapped(label, width - 1) or [""])
                    continue
                values, errors = Text(f" {label:{labels}}"), Text(f" {'':{labels}}")
                for column in block:
                    cell, size = cells[column], widths[column]
                    value = cell.value if stacked or not cell.error else f"{cell.value} "
                    error = "" if stacked else cell.error
                    values.append(f"{value:>{size - len(error)}}", style=cell.style).append(error, style="dim")
                    errors.append(f"{cell.error:>{size}}", style="dim")
                yield values
                if stacked and errors.plain.strip():
                    yield errors

    @staticmethod
    def _width(header: Sequence[str], rows: Sequence[Row], column: int, *, stacked: bool) -> int:
        cells = [cells[column] for _, cells in rows if cells]
        sizes = [
            max(len(c.value), len(c.error)) if stacked or not c.error else len(c.value) + 1 + len(c.error)
            for c in cells
        ]
        return 2 + max(len(header[column]), *sizes)


def _blocks(widths: Sequence[int], room: int) -> Iterator[list[int]]:
    """Columns that fit side by side, as many as can."""
    block: list[int] = []
    for column, width in enumerate(widths):
        if block and sum(widths[c] for c in block) + width > room:
            yield block
            block = []
        block.append(column)
    yield block


def _wrapped(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, width, break_on_hyphens=False)


@dataclass(frozen=True)
class PathLine:
    """Where the result lies, or what else it names, whole on one line of its own, so that it can be copied."""

    path: Path
    what: str = "Result"

    def lines(self, width: int, clean: Clean) -> Iterator[Text]:
        path = clean(str(self.path))
        if len(f"{self.what}: {path}") <= width:
            yield Text(f"{self.what}: {path}")
        else:
            yield from (Text(f"{self.what}:"), Text(path))


@dataclass(frozen=True)
class Listing:
    """Lines that one may want to copy: each whole on a line of its own, however narrow the terminal is."""

    what: str
    text: str

    def lines(self, width: int, clean: Clean) -> Iterator[Text]:
        yield from Paragraph(f"{self.what}:", "dim").lines(width, clean)
        yield from (Text(clean(line)) for line in self.text.splitlines())


Part = Paragraph | Drawing | Items | Advice | Facts | Table | PathLine | Listing
GAP = Paragraph()


def title(text: str, style: str = "bold") -> Paragraph:
    return Paragraph(text, style)
