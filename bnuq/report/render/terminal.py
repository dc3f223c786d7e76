"""Draws a report on a terminal: in colour, plain in a pipe, in ASCII where the encoding needs it; nothing is cut."""

from __future__ import annotations

import io
import os
import re
import shutil
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TextIO

from bnuq.report import document
from bnuq.report.document import BulletList, Cell, Facts, Heading, Paragraph, Part, PathLine, Report, Row, Table
from bnuq.report.numbers import count, full_command
from bnuq.report.sanitize import printable

Clean = Callable[[str], str]
_IN_ASCII = {
    "±": "+/-", "−": "-", "·": "*", "↑": "^", "↓": "v", "–": "-", "→": "->", "×": "x", "≥": ">=", "…": "...", "≤": "<=",
    "σ": "sigma", "τ": "tau", "ρ": "rho", "ω": "omega", "√": "sqrt ", "²": "^2", "½": "1/2", "∞": "inf", "≈": "~",
    "ε": "eps", "μ": "mu", "χ": "chi", "ν": "nu", "λ": "lambda", "§": "section ",
}  # fmt: skip
_ASCII = str.maketrans(_IN_ASCII)
_VERDICTS = {"": "bold", "passed": "bold green", "accepted": "bold yellow", "failed": "bold red"}
_SCREEN, _USUAL, _WIDE = 36, 80, 100  # lines of one screen, at this width; the widest lines
_OF_ERRORS = re.compile(r"(?:(?<=\.) |^)±:? standard error[^.]*\.")  # in a legend
_FIRST = re.compile(r"(?<=[.:;]) (?=[A-Z`])")  # where a sentence ends


class Text:
    """A line: texts one after the other, each in its style."""

    def __init__(self, text: str = "", style: str = "") -> None:
        self.parts = [(text, style)]

    def append(self, text: str, style: str = "") -> Text:
        """The line itself, after this text was added to it."""
        self.parts.append((text, style))
        return self

    @property
    def plain(self) -> str:
        return "".join(text for text, _ in self.parts)


def columns_of(stream: TextIO, width: int | None = None) -> int:
    """The width to draw with: `width`, or that of the terminal, or 80 if there is none; from 40 to 100."""
    columns = width or (shutil.get_terminal_size((80, 24)).columns if stream.isatty() else 80)
    return max(40, min(columns, 100))


def print_report(report: Report, stream: TextIO, *, full: bool = False, width: int | None = None) -> None:
    """Draw the report on `stream`: one screen of what matters, if it has that; everything with `full`."""
    clean = cleaner(getattr(stream, "encoding", None) or "utf-8")
    lines = _one_screen if report.one_screen is not None and not full else _everything
    _print(lines(report, columns_of(stream, width), clean), stream)


def print_record(
    make: Callable[..., Report], record: Any, stream: TextIO, *, full: bool = False, width: int | None = None
) -> None:
    """Draw the report of `record` that `make` makes for the width of `stream`."""
    columns = columns_of(stream, width)
    print_report(make(record, columns=columns), stream, full=full, width=columns)


def print_paths(
    paths: Sequence[PathLine], stream: TextIO, *, names: Sequence[str] = (), width: int | None = None
) -> None:
    """Say on `stream` what was written: each path whole on its own line, then the names of files in it."""
    columns, clean = columns_of(stream, width), cleaner(getattr(stream, "encoding", None) or "utf-8")
    parts = [*paths, *([BulletList(tuple(names))] if names else [])]
    _print((line for part in parts for line in _part(part, columns, clean)), stream)


def _print(lines: Iterable[Text], stream: TextIO) -> None:
    terminal = stream.isatty()
    styled = terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") not in ("dumb", "unknown")
    if not styled:
        stream.write("".join([f"{line.plain.rstrip()}\n" for line in lines]))
        return
    from rich import text  # late: only a terminal needs these
    from rich.console import Console

    buffer = io.StringIO()
    console = Console(file=buffer, width=_WIDE, force_terminal=True, highlight=False, emoji=False, legacy_windows=False)
    for line in lines:
        styled_line = text.Text.assemble(*line.parts)
        styled_line.rstrip()
        console.print(styled_line, soft_wrap=True)
    stream.write(buffer.getvalue())


def cleaner(encoding: str) -> Clean:
    """What makes a text fit for the stream: without control characters, and in ASCII if it cannot take ours."""

    def cleaned(text: str) -> str:
        text = printable(text, lines=False)
        return text if plain else text.translate(_ASCII).encode(encoding, "replace").decode(encoding)

    try:
        "".join(_IN_ASCII).encode(encoding)
        plain = encoding.lower().replace("-", "").startswith("utf")
    except (UnicodeEncodeError, LookupError):
        plain = False
    return cleaned


# ── the report ───────────────────────────────────────────────────────────────────────────────────────────────────────


def _everything(report: Report, width: int, clean: Clean) -> Iterator[Text]:
    yield from _head(report, width, clean)
    for section in report.sections:
        if not section.only_on_page:
            yield from _section(section.title, section.parts, width, clean)
    yield from _warnings(report, width, clean)
    yield from _section("Notes", (BulletList(report.notes),) if report.notes else (), width, clean)
    yield from _section("", report.paths, width, clean)


def _one_screen(report: Report, width: int, clean: Clean) -> Iterator[Text]:
    """The answers, one table, warnings, and where the rest is, as much as has space."""
    for shorter in (report, *_shortened(report)):
        report = shorter
        if sum(1 for _ in _screen(report, max(width, _USUAL), clean)) <= _SCREEN:
            break
    yield from _screen(report, width, clean)


def _screen(report: Report, width: int, clean: Clean) -> Iterator[Text]:
    yield from _paragraph(report.line, width, clean, style="bold")
    yield from _paragraph(f"All numbers are {report.meaning}.", width, clean) if report.meaning else ()
    yield from _section("", (BulletList(report.summary),) if report.summary else (), width, clean)
    yield from _section("", report.one_screen or (), width, clean)
    unsaid = tuple(each for each in report.warnings if each[1] not in report.said)
    yield from _warnings(replace(report, warnings=unsaid), width, clean)
    yield Text()
    notes = f", with {count(len(report.notes), 'note')}" if report.notes else ""
    yield from _paragraph(f"{report.checked} The full report{notes}:".strip(), width, clean)
    if report.rest:
        yield Text(clean(f"  {report.rest}"))
        yield from _section("", report.paths, width, clean)
        return
    shown = f"  {full_command([report.path.path if report.path else None], report.command.partition(' ')[0])}"
    page = "(or --html page.html)" if report.pictures else ""
    yield Text(clean(shown if len(shown) + len(page) + 3 > width else f"{shown}   {page}"))


def _shortened(report: Report) -> Iterator[Report]:
    """The report with less and less: first sentences of warnings, tables without errors, few warnings, few texts, few
    rows."""
    first = tuple((_FIRST.split(text, maxsplit=1)[0], code, todo) for text, code, todo in report.warnings)
    yield (report := replace(report, warnings=first))
    plain = tuple(map(_without_errors, report.one_screen or ()))
    yield (report := replace(report, one_screen=plain))
    for most in (3, 1):
        more = ((f"{len(first) - most} more in `--full`.", first[most][1], ""),) if first[most:] else ()
        yield (report := replace(report, warnings=(*first[:most], *more)))
    if left := len(report.summary[document.MOST_SAID :]):
        said = (*report.summary[: document.MOST_SAID], f"In `--full`: {left} more of these.")
        yield (report := replace(report, summary=said))
    for most in (8, 4):
        yield replace(report, one_screen=tuple(_cut(part, most) for part in plain))


def _cut(part: Part, most: int) -> Part:
    """A table or a list with its first rows."""
    if isinstance(part, BulletList):
        return replace(part, texts=part.texts[:most])
    if not isinstance(part, Table) or len(part.rows) <= most:
        return part
    return replace(part, rows=(*part.rows[:most], (f"… {len(part.rows) - most} more in `--full`", ())))


def _without_errors(part: Part) -> Part:
    if isinstance(part, Table):
        rows = ((label, tuple(replace(cell, error="") for cell in cells)) for label, cells in part.rows)
        return replace(part, rows=tuple(rows))
    if not isinstance(part, Paragraph):
        return part
    return replace(part, text=_OF_ERRORS.sub(" Standard errors: `--full`.", part.text).lstrip())


def _head(report: Report, width: int, clean: Clean) -> Iterator[Text]:
    heading = report.subject if report.verdict and report.subject else f"{report.command}  {report.version}".strip()
    yield from _paragraph(heading, width, clean, style=_VERDICTS[report.verdict])
    if report.verdict:  # the heading is the answer
        yield from _items(report.summary, width, clean)
        yield Text()
        yield from _facts(report.facts, width, clean)
        return
    yield from _facts(report.facts, width, clean)
    yield from _section("In short", (BulletList(report.summary),) if report.summary else (), width, clean)


def _warnings(report: Report, width: int, clean: Clean) -> Iterator[Text]:
    if report.warnings:
        yield Text()
        yield Text("Warnings", style="bold yellow")
        items = [" ".join(filter(None, (text, remedy, f"[{code}]"))) for text, code, remedy in report.warnings]
        yield from _items(items, width, clean)


def _section(title: str, parts: Sequence[Part], width: int, clean: Clean) -> Iterator[Text]:
    shown = [part for part in parts if not isinstance(part, document.Picture | document.Gallery)]
    if not shown:
        return
    yield Text()
    if title:
        yield from _paragraph(title, width, clean, style="bold")
    before: Part | None = None
    for part in shown:
        is_spaced = (
            (isinstance(part, Heading | document.Listing) and not isinstance(before, Heading))
            or (isinstance(part, Table) and not title)
            or (isinstance(part, Table | Paragraph) and isinstance(before, Table))
        )
        if before is not None and is_spaced:
            yield Text()
        yield from _part(part, width, clean)
        before = part


# ── its parts ────────────────────────────────────────────────────────────────────────────────────────────────────────


def _part(part: Part, width: int, clean: Clean) -> Iterator[Text]:
    match part:
        case Paragraph(text, dim):
            yield from _paragraph(text, width, clean, style="dim" if dim else "")
        case Heading(text):
            yield from _paragraph(text, width, clean, style="bold")
        case BulletList(texts):
            yield from _items(texts, width, clean)
        case Facts(rows):
            yield from _facts(rows, width, clean)
        case Table():
            yield from _table(part, width, clean)
        case document.Listing(caption, text):
            yield from _paragraph(f"{caption}:", width, clean, style="dim")
            yield from (Text(clean(line)) for line in text.splitlines())
        case PathLine(path, name):
            yield from _path(path, name, width, clean)


def _paragraph(text: str, width: int, clean: Clean, *, style: str = "") -> Iterator[Text]:
    yield from (Text(line, style=style) for line in _wrapped(clean(text), width) or [""])


def _items(texts: Iterable[str], width: int, clean: Clean) -> Iterator[Text]:
    for text in texts:
        for row, line in enumerate(_wrapped(clean(text), width - 3)):
            yield Text(f" {clean('·') if row == 0 else ' '} {line}")


def _facts(facts: Sequence[tuple[str, str]], width: int, clean: Clean) -> Iterator[Text]:
    rows = [(clean(name), text) for name, text in facts]
    indent = min(max((len(name) for name, _ in rows), default=0) + 2, width - 20)
    for name, text in rows:
        if len(name) > indent - 2:  # a name out of a file may be as long as it likes
            yield Text(name, style="dim")
            name = ""
        for row, line in enumerate(_wrapped(clean(text), width - indent)):
            yield Text(f"{name if row == 0 else '':{indent}}", style="dim").append(line)


def _path(path: Path, name: str, width: int, clean: Clean) -> Iterator[Text]:
    text = clean(str(path))
    if len(f"{name}: {text}") <= width:
        yield Text(f"{name}: {text}")
    else:
        yield from (Text(f"{name}:"), Text(text))


def _table(table: Table, width: int, clean: Clean) -> Iterator[Text]:
    rows = [
        (clean(label), tuple(Cell(clean(c.value), clean(c.error), c.style) for c in cells))
        for label, cells in table.rows
    ]
    labels = max(len(label) for label, cells in rows if cells)
    space = width - 1 - labels
    header, widths, stacked = _layout(table, rows, space, clean)
    for number, block in enumerate(_blocks(widths, space)):
        if number:
            yield Text()
        lines = max(len(header[column]) for column in block)
        titles = [[""] * (lines - len(header[column])) + header[column] for column in block]
        for line in zip(*titles, strict=True):
            text = "".join(f"{title:>{widths[column]}}" for column, title in zip(block, line, strict=True))
            yield Text(f" {'':{labels}}{text}", style="dim")
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


def _layout(table: Table, rows: Sequence[Row], space: int, clean: Clean) -> tuple[list[list[str]], list[int], bool]:
    """The lines of each title, the width of each column, and whether errors go below their values; titles are broken
    where the columns do not fit otherwise."""
    for narrow in (False, True):
        header = [_title(clean(title), space - 2, narrow=narrow) for title in table.header]
        beside = [_column_width(header, rows, column, stacked=False) for column in range(len(header))]
        stacked = table.stacks and sum(beside) > space
        widths = [_column_width(header, rows, column, stacked=stacked) for column in range(len(header))]
        if sum(widths) <= space:
            break
    return header, widths, stacked


def _title(text: str, width: int, *, narrow: bool) -> list[str]:
    """The lines of a column's title, which is broken before each + where it is too wide, or all are."""
    broken = text.replace("+", " +")
    if narrow:
        return _wrapped(broken, min(width, max(map(len, broken.split()), default=1)))
    return _wrapped(text if len(text) <= width else broken, width)


def _column_width(header: Sequence[Sequence[str]], rows: Sequence[Row], column: int, *, stacked: bool) -> int:
    cells = [cells[column] for _, cells in rows if cells]
    sizes = [
        max(len(c.value), len(c.error)) if stacked or not c.error else len(c.value) + 1 + len(c.error) for c in cells
    ]
    return 2 + max([*map(len, header[column]), *sizes])


def _blocks(widths: Sequence[int], space: int) -> Iterator[list[int]]:
    """Columns that fit side by side, as many as can."""
    block: list[int] = []
    for column, width in enumerate(widths):
        if block and sum(widths[c] for c in block) + width > space:
            yield block
            block = []
        block.append(column)
    yield block


def _wrapped(text: str, width: int) -> list[str]:
    """Lines of at most this width; a number stays with its percent sign, and with what it divides."""
    text = text.replace(" %", "\u00a0%").replace(" / ", "\u00a0/\u00a0")
    return [line.replace("\u00a0", " ") for line in textwrap.wrap(text, width, break_on_hyphens=False)]
