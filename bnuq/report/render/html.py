"""Draws a report as one HTML page that needs nothing else: no network, no script, pictures in the page's colours."""

from __future__ import annotations

import dataclasses
import itertools
import re
from base64 import b64encode
from collections.abc import Iterable, Iterator, Sequence
from importlib.resources import files
from pathlib import Path
from shlex import quote
from typing import Any

from bnuq.files.writing import write_bytes
from bnuq.frozen import frozen
from bnuq.report.document import (
    BulletList,
    Cell,
    Facts,
    Gallery,
    Heading,
    Listing,
    Paragraph,
    Part,
    Picture,
    Report,
    ReportSection,
    Table,
)
from bnuq.report.numbers import count
from bnuq.report.render.pictures import WIDE, DrawnPicture, drawn_for_page, width_of
from bnuq.report.sanitize import printable

# What pictures are drawn in, and what stands for it on a page, whose colours go with the reader's scheme.
_COLOURS = {
    "#ffffff": "paper", "#1a1a1a": "ink", "#595959": "dim", "#d9d9d9": "line", "#ececec": "grid", "#f3f3f3": "shade",
    "#0072b2": "blue", "#d55e00": "vermilion", "#009e73": "green", "#cc79a7": "purple", "#56b4e9": "sky",
    "#332288": "indigo", "#8b1a1a": "brick",
    "#9ecae1": "band", "#dbe9f4": "pale-band",
}  # fmt: skip
_PICTURES, _REST = "Figures", "Everything else"
_NEXT_WORD = re.compile(r"; (?=[^;:()]+: )|(?<=\.) (?=±: )")  # of a legend
_SEEN = 8  # images of a kind that are not folded
_EVALUATION = (
    ("the examples to look at first", "bnuq report {} --points 20"),
    ("is a later result worse?", "bnuq check NEW.h5 {}"),
    ("the same again", "bnuq evaluate --from {}"),
)
_NEXT = {  # commands by the one that made the result, which stands for the braces
    "bnuq evaluate": _EVALUATION,
    "bnuq shift": _EVALUATION,
    "bnuq score": _EVALUATION[:-1],
}
_EVERY = (("every number, on a terminal", "bnuq report {} --full"),)

Block = dict[str, Any]  # what the template draws: its kind, and that part's fields


@frozen
class Warnings:
    """Of each warning its text, its code, and what to do about it."""

    rows: tuple[tuple[str, str, str], ...]


@frozen
class _Section:
    title: str
    name: str
    blocks: tuple[Block, ...]
    kind: str = ""  # the class of its heading and parts: pictured, warn, folded


def write_page(path: Path, report: Report) -> None:
    """Put the page at `path`, completely or not at all; ResultError if it cannot be written."""
    write_bytes(path, page(report).encode("utf-8", "backslashreplace"))


def page(report: Report) -> str:
    """The report as a page: what to do, a table, warnings, figures, images; then everything else, folded.

    Every text is escaped, and between two backticks it is code; pictures are not: they are bnuq's own.
    """
    style = (files("bnuq.report") / "assets" / "page.css").read_text(encoding="utf-8")
    return _rendered(report, sections=list(_sections(report, drawn_for_page(report))), style=style)


def excerpt(report: Report) -> str:
    """What the page begins with, to stand in a notebook: what to do, a table, and warnings."""
    return _rendered(report, sections=list(_named([_warnings(report)], {})))


def _rendered(report: Report, **parts: Any) -> str:
    from jinja2 import Environment  # late: no other report needs it

    environment = Environment(autoescape=True)
    environment.filters |= {"code": _with_code, "breakable": _breakable}
    template = (files("bnuq.report") / "assets" / "page.html").read_text(encoding="utf-8")
    subject = f": {report.subject}" if report.subject else ""
    meaning = f"All numbers are {report.meaning}." if report.meaning else ""
    return environment.from_string(template).render(
        heading=_clean(f"{report.command}{subject}"),
        lines=[_clean(text) for text in (report.line, meaning, report.checked) if text],
        summary=[_clean(text) for text in _summary(report)],
        table=list(_blocks(_first(report), {}, itertools.count(), "In short")),
        seen=_SEEN,
        rest=_REST,
        **parts,
    )


def _summary(report: Report) -> Iterator[str]:
    yield from report.summary
    if report.warnings:
        codes = ", ".join(dict.fromkeys(code for _, code, _ in report.warnings))
        advised = ", with what to do" if any(todo for *_, todo in report.warnings) else ""
        yield f"{count(len(report.warnings), 'warning')} below{advised}: {codes}."


def _first(report: Report) -> tuple[Part, ...]:
    """The parts of the first screen, what words mean as a list; where there is none, the first section."""
    if report.one_screen is not None or not report.sections:
        return tuple(map(_listed, report.one_screen or ()))
    first = report.sections[0]
    return (*([Heading(first.title)] if first.title else []), *_read(first))


def _listed(part: Part) -> Part:
    """A legend, "word: meaning; word: meaning", as a list of its words; any other part as it is."""
    if not isinstance(part, Paragraph) or not part.dim:
        return part
    items = [item.partition(": ") for item in _NEXT_WORD.split(part.text)]
    return Facts(tuple((word, meaning) for word, _, meaning in items)) if len(items) > 1 else part


def _read(section: ReportSection) -> tuple[Part, ...]:
    """What of a section is not a picture."""
    return tuple(part for part in section.parts if not isinstance(part, Picture | Gallery))


_Shown = tuple[str, Sequence[Part | Warnings], str]  # the title of a section, its parts, and its kind


def _sections(report: Report, drawn: dict[tuple[str, ...], DrawnPicture]) -> Iterator[_Section]:
    """What is to be seen, then what is to be read."""
    images = [each for each in report.sections if any(map(_is_of_points, each.parts))]
    rest = [part for each in report.sections if each not in images for part in each.parts]
    figures = [part for part in rest if isinstance(part, Picture)]
    notes = ReportSection("Notes", (BulletList(report.notes),) if report.notes else ())
    about = ReportSection("About this result", (*([Facts(report.facts)] if report.facts else []), *report.paths))
    shown: list[_Shown] = [_warnings(report), (_PICTURES, figures, "pictured")]
    shown += [(each.title, each.parts, "") for each in images]
    shown += [("Next", tuple(_next(report)), "")]
    for each in (*report.sections[report.one_screen is None :], notes, about):
        if each not in images and _read(each) != report.one_screen:
            shown.append((each.title or "How to read this", _read(each), "folded"))
    yield from _named(shown, drawn)


def _is_of_points(part: Part) -> bool:
    return isinstance(part, Gallery) or (isinstance(part, Picture) and part.kind[0] == "maps")


def _warnings(report: Report) -> _Shown:
    return "Warnings", (Warnings(report.warnings),) if report.warnings else (), "warn"


def _next(report: Report) -> Iterator[Part]:
    """Commands for a result that has a file, to be typed in its folder."""
    if report.path is not None:
        name = quote(report.path.path.name)
        of_one = _NEXT.get(report.command, ()) if report.line else ()  # several runs have no line of facts
        commands = (*of_one, *_EVERY)
        lines = (f"# {why}\n{command.replace('{}', name)}" for why, command in commands)
        yield Listing(f"In {report.path.path.parent.resolve()}", "\n".join(lines))


def _named(shown: Iterable[_Shown], drawn: dict[tuple[str, ...], DrawnPicture]) -> Iterator[_Section]:
    """The sections that have anything in them, each with a name that no other has."""
    names = {"in-short", "rest"}
    numbers = itertools.count()  # of pictures, for names within SVGs that no other has
    for title, parts, kind in shown:
        if blocks := tuple(_blocks(parts, drawn, numbers, _clean(title))):
            name = re.sub(r"[^a-z0-9]+", "-", _clean(title).lower()).strip("-")[:40] or "part"
            while name in names:
                name += "-"
            names.add(name)
            yield _Section(_clean(title), name, blocks, kind)


def _blocks(
    parts: Sequence[Part | Warnings], drawn: dict[tuple[str, ...], DrawnPicture], numbers: Iterator[int], caption: str
) -> Iterator[Block]:
    """What the template draws; all pictures stand side by side."""
    kinds = [part.kind for part in parts if isinstance(part, Picture)]
    if pictures := tuple(_inlined(drawn[kind], numbers) for kind in kinds if kind in drawn):
        yield {"kind": "Pictures", "pictures": pictures}
    for part in parts:
        if isinstance(part, Heading):
            caption = _clean(part.text)
        if not isinstance(part, Picture):
            yield {"kind": type(part).__name__} | _fields(part, caption)


def _fields(part: Part | Warnings, caption: str) -> Block:
    """The fields of a part, every text in them clean; lines of code keep their blanks."""
    if isinstance(part, Table):
        return _table(part, caption)
    if isinstance(part, Gallery):
        return {"pictures": [(b64encode(png).decode("ascii"), _clean(said)) for png, said in part.pictures]}
    clean = printable if isinstance(part, Listing) else _clean

    def cleaned(value: Any) -> Any:
        if isinstance(value, tuple):
            return [cleaned(inner) for inner in value]
        return clean(str(value)) if isinstance(value, str | Path) else value

    return {field.name: cleaned(getattr(part, field.name)) for field in dataclasses.fields(part)}


def _table(table: Table, caption: str) -> Block:
    groups: list[list[tuple[str, list[Cell]]]] = [[]]
    for label, cells in table.rows:
        if not cells and groups[-1]:
            groups.append([])
        groups[-1].append((_clean(label), [_cell(cell) for cell in cells]))
    header = [_clean(title) for title in table.header]
    columns = max((len(cells) for _, cells in table.rows), default=len(header))
    return {
        "header": header if any(header) else [],
        "groups": groups,
        "columns": columns,
        "caption": caption or "estimates",
    }


def _inlined(picture: DrawnPicture, numbers: Iterator[int]) -> DrawnPicture:
    alt = ". ".join(filter(None, (picture.name, picture.how, picture.about)))
    svgs = tuple(_svg(svg, f"p{number}-", alt) for svg, number in zip(picture.svgs, numbers, strict=False))
    return DrawnPicture(_clean(picture.name), svgs, _clean(picture.about), _clean(picture.how), picture.broad)


def _svg(svg: str, prefix: str, alt: str) -> str:
    """An SVG of matplotlib's as part of a page: any width, the page's colours, names that no other picture has."""
    import html  # late: its table of characters takes milliseconds, and only a page needs it

    svg = svg[svg.index("<svg") :]
    for waste in ("<metadata>.*?</metadata>", "<title>.*?</title>", "<!--.*?-->", "<style[^>]*>.*?</style>"):
        svg = re.sub(waste, "", svg, flags=re.DOTALL)
    head, end, rest = svg.partition(">")
    head = re.sub(r'\s(width|height|xmlns|version)="[^"]*"', "", head)
    width = width_of(head)
    wide = f' style="min-width: {0.95 * width:.0f}px"' if width > WIDE else ""
    head += f' role="img" aria-label="{html.escape(_clean(alt))}"{wide}'
    rest = re.sub(r'\bid="', f'id="{prefix}', rest)
    rest = re.sub(r'(href="|url\()#', rf"\1#{prefix}", rest)
    for colour, name in _COLOURS.items():
        rest = rest.replace(f": {colour}", f": var(--{name})")
    return head + end + re.sub(r"\n\s*", "\n", rest).strip()


def _with_code(words: str) -> Any:
    """The text escaped, with what is between two backticks as code."""
    from markupsafe import Markup

    pieces = re.split(r"`([^`]+)`", words)
    return Markup("").join(
        Markup("<code>{}</code>").format(piece) if index % 2 else piece for index, piece in enumerate(pieces)
    )


def _breakable(label: str) -> Any:
    """The label escaped, with breaks allowed after what joins its words, as in deterministic+temperature."""
    from markupsafe import Markup

    return Markup("<wbr>").join(re.findall(r"[^+_/]*[+_/]|[^+_/]+", label))


def _cell(cell: Cell) -> Cell:
    return Cell(_clean(cell.value), _clean(cell.error), "bold" if "bold" in cell.style else "")


def _clean(text: str) -> str:
    return printable(text, lines=False).strip()
