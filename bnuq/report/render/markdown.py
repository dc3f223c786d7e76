"""Draws a report as GitHub-flavoured Markdown, for a pull request or a file."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

from bnuq.report import document
from bnuq.report.document import BulletList, Cell, Facts, Heading, Paragraph, Part, Report, Table
from bnuq.report.sanitize import printable

_APART = "&#8203;"  # no width: what it stands in is no mention, reference, link or emoji any more
_FEW = 4  # items that are shown without being asked for
_MARKS = {"": "", "passed": "✅ ", "accepted": "⚠ ", "failed": "❌ "}
_OPEN = re.compile(
    r"@"  # mentions and addresses
    r"|:(?=//)|(?i:www)(?=\.)|(?i:mailto|xmpp):"  # links that need no brackets
    r"|[#!%&$~](?=\d)|(?i:GH)-(?=\d)"  # issues, merge requests and the like
    r"|:(?=[\w+-]+:)"  # emoji
)
_ACTS = re.compile(r"[\\`*\[\]<>|~$#]|&(?=[#\w])|(?<![^\W_])_|_(?![^\W_])")
_STARTS = re.compile(r"(\d*)([.)](?=\s|$)|[-+](?=[\s-]|$)|=)")  # of a line: a list, a rule, a heading


def markdown(report: Report, *, level: int = 2) -> str:
    """The report as Markdown; its first heading is of `level`, the others of one more.

    Every text is escaped: none makes markup, a link, a mention or its own reference; between two backticks it is
    code. Estimates have their error after them. What is long and seldom read is folded (`<details>`).
    """
    subject = f": {report.subject}" if report.verdict and report.subject else ""
    title = f"{report.command}{subject}  {report.version}".strip()
    blocks = [f"{'#' * level} {_MARKS[report.verdict]}{text(title)}"]
    heading = "#" * (level + 1)
    facts = [*_blocks([Facts(report.facts)])] if report.facts else []
    summary = [*_blocks([BulletList(report.summary)])] if report.summary else []
    warnings = [f"{heading} Warnings", *_warnings(report)] if report.warnings else []
    notes = [*_blocks([BulletList(report.notes)])] if report.notes else []
    if report.verdict:
        blocks += [*summary, *warnings]
    else:
        blocks += [*facts, *([f"{heading} In short", *summary] if summary else [])]
    for section in report.sections:
        if not section.only_on_page and (inside := [*_blocks(section.parts, heading=f"{heading}#")]):
            if section.folded:
                blocks.append(_folded(text(section.title), "\n\n".join(inside)))
            else:
                blocks += [f"{heading} {text(section.title)}"] * bool(section.title) + inside
    paths = [*_blocks(report.paths)]
    if report.verdict:
        rest = [*facts, *notes, *paths]
        blocks += [_folded("What was compared, and how", "\n\n".join(rest))] if rest else []
    else:
        if len(report.notes) > _FEW:
            notes = [_folded(f"{len(report.notes)} of them", *notes)]
        blocks += [*warnings, *([f"{heading} Notes", *notes] if notes else []), *paths]
    return "\n\n".join(blocks) + "\n"


def _warnings(report: Report) -> Iterator[str]:
    yield "\n".join(
        f"- {text(words)} {code(name)}{todo and f' **What to do:** {text(todo)}'}"
        for words, name, todo in report.warnings
    )


def _blocks(parts: Iterable[Part], heading: str = "###") -> Iterator[str]:
    """The parts; several explanations that follow each other are folded."""
    for dim, run in groupby(parts, key=lambda part: isinstance(part, Paragraph) and part.dim):
        if dim:
            texts = [text(part.text) for part in run if isinstance(part, Paragraph)]
            yield _folded("How to read this", "\n\n".join(texts)) if len(texts) > 1 else texts[0]
            continue
        for part in run:
            if isinstance(part, Heading):
                yield f"{heading} {text(part.text)}"
            else:
                yield from _block(part)


def text(words: str) -> str:
    """One line of text that means what it says, and nothing to Markdown; what is between backticks is code."""
    pieces = re.split(r"`([^`]*[^`\s][^`]*)`", _one_line(words))
    pieces[2:-1:2] = [piece or "\u200b" for piece in pieces[2:-1:2]]  # the ticks of two codes would be those of one
    escaped = "".join(code(piece) if index % 2 else _escaped(piece) for index, piece in enumerate(pieces))
    return _STARTS.sub(r"\1\\\2", escaped, count=1) if _STARTS.match(escaped) else escaped


def code(words: str) -> str:
    """The words as code, so that they can be copied as they are."""
    words = printable(words, lines=False)
    fence = _fence(words, 1)
    pad = " " if words.startswith("`") or words.endswith("`") or not words.strip() else ""
    return f"{fence}{pad}{words}{pad}{fence}"


def _fence(words: str, least: int) -> str:
    return "`" * max([least, *(1 + len(ticks) for ticks in re.findall(r"`+", words))])


def _one_line(words: str) -> str:
    return " ".join(printable(words, lines=False).split())


def _escaped(words: str) -> str:
    """Signs that act behind a backslash; what would be a link or a mention is taken apart."""
    marked = _OPEN.sub(lambda match: f"{match[0]}\0", words)  # printable text holds no \0
    return _ACTS.sub(lambda match: f"\\{match[0]}", marked).replace("\0", _APART)


def _folded(title: str, inside: str) -> str:
    return f"<details><summary>{title}</summary>\n\n{inside}\n\n</details>"


def _block(part: Part) -> Iterator[str]:
    match part:
        case BulletList(texts):
            yield "\n".join(f"- {text(sentence)}" for sentence in texts)
        case Facts(rows):
            yield "\n".join(f"- **{text(name)}**: {text(value)}" for name, value in rows)
        case Table():
            yield "\n".join(_table(part))
        case document.PathLine(path, name):
            yield f"{text(name)}: {code(str(path))}"
        case document.Listing(caption, lines):
            yield f"{text(caption)}:"
            content = "\n".join(printable(line, lines=False) for line in lines.splitlines())
            fence = _fence(content, 3)
            yield f"{fence}toml\n{content}\n{fence}"
        case Paragraph(words):
            yield text(words)


def _table(table: Table) -> Iterator[str]:
    """A table with pipes, numbers to the right; headings among its rows are bold, and what is under them set in."""
    columns = max((len(cells) for _, cells in table.rows), default=len(table.header))
    header = [*table.header, *("" for _ in range(columns - len(table.header)))]
    yield _row("", [_cell_text(title) for title in header])
    yield "|:--|" + "--:|" * columns
    for label, cells in table.rows:
        if not cells:
            yield _row(f"**{_cell_text(label)}**" if label.strip() else "", [""] * columns)
        else:
            inset = "&emsp;" if label.startswith("  ") and any(not row for _, row in table.rows) else ""
            yield _row(inset + _cell_text(label), [_cell(cell) for cell in cells])


def _row(label: str, cells: Sequence[str]) -> str:
    return f"| {' | '.join([label, *cells])} |"


def _cell(cell: Cell) -> str:
    value = _cell_text(cell.value)
    value = f"**{value}**" if value and "bold" in cell.style else value
    return f"{value} {_cell_text(cell.error)}".strip()


def _cell_text(words: str) -> str:
    """As `text`, but a table reads its pipes before it reads its code, and has no lists or headings inside."""
    pieces = re.split(r"`([^`]*[^`\s][^`]*)`", _one_line(words))
    pieces[2:-1:2] = [piece or "\u200b" for piece in pieces[2:-1:2]]  # the ticks of two codes would be those of one
    return "".join(
        code(piece).replace("|", "\\|") if index % 2 else _escaped(piece) for index, piece in enumerate(pieces)
    )
