"""The parts of a report, independent of how it is shown: `render` draws it on a terminal, as Markdown and as a page.

Each kind of record has one function that makes its Report. A text may hold `code` between backticks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Literal

from bnuq.frozen import frozen

MOST_SAID = 4  # texts of one screen


@frozen
class Paragraph:
    """A text; `dim` where it explains what stands above it."""

    text: str
    dim: bool = False


@frozen
class Heading:
    """The title of what follows in a section."""

    text: str


@frozen
class BulletList:
    """A list of sentences."""

    texts: tuple[str, ...]


@frozen
class Facts:
    """Names and what they are."""

    rows: tuple[tuple[str, str], ...]


@frozen
class Cell:
    """A value, and its error if it has one."""

    value: str
    error: str = ""
    style: str = ""  # of rich


Row = tuple[str, tuple[Cell, ...]]


@frozen
class Table:
    """Rows under a header, numbers to the right; a row without cells is a heading among them.

    Nothing is ever cut: where the columns do not fit side by side, errors go below their values (`stacks`), and where
    that is not enough, the columns go into several tables below each other.
    """

    header: tuple[str, ...]
    rows: tuple[Row, ...]
    stacks: bool = False


@frozen
class Listing:
    """Lines to be copied."""

    caption: str
    text: str


@frozen
class PathLine:
    """A path, whole on one line of its own, so that it can be copied."""

    path: Path
    name: str = "Result"


@frozen
class Picture:
    """What `draw` draws into the file of a path, SVG or PNG by its name; `how` says how to read it.

    `kind` names it, and what it is of: ("roc", "svhn"). A page shows it, and `--figures` writes it.
    """

    kind: tuple[str, ...]
    draw: Callable[[Path], None]
    how: str = ""


@frozen
class Gallery:
    """Small pictures, each the bytes of a PNG file and what is said of it; only a page shows them."""

    pictures: tuple[tuple[bytes, str], ...]


Part = Gallery | Paragraph | Heading | BulletList | Facts | Table | Listing | PathLine | Picture


@frozen
class ReportSection:
    """Parts under a title; without one they belong to the report as a whole.

    A section that is `folded` is shown in Markdown when the reader asks for it. One that is `only_on_page` has pictures
    of points, or gives provenance: where the result comes from, and how to repeat it.
    """

    title: str
    parts: tuple[Part, ...]
    folded: bool = False
    only_on_page: bool = False


@frozen
class Report:
    """A record as it is shown: what it is of, the answer in sentences, then everything.

    `command` made it, with `version` of bnuq, of `subject`. `verdict` is the outcome of a check, which `subject` then
    says in a line. Each of `warnings` has its text, its code, and what to do about it ("": the text says so). `path` is
    that of the result, `other_paths` are those of what it was compared with or written to.

    `one_screen` is what a terminal shows in place of the sections where the reader does not ask for all, `line` what it
    shows in place of the facts, `meaning` what all its numbers are of, `checked` what was found to be in order, `said`
    the codes of warnings that its summary says, and `rest` where everything is, if not in the report of a result file.
    """

    command: str
    version: str = ""
    subject: str = ""
    facts: tuple[tuple[str, str], ...] = ()
    summary: tuple[str, ...] = ()
    sections: tuple[ReportSection, ...] = ()
    warnings: tuple[tuple[str, str, str], ...] = ()
    notes: tuple[str, ...] = ()
    path: PathLine | None = None
    other_paths: tuple[PathLine, ...] = ()
    verdict: Literal["", "passed", "accepted", "failed"] = ""
    one_screen: tuple[Part, ...] | None = None
    line: str = ""
    meaning: str = ""
    checked: str = ""
    said: tuple[str, ...] = ()
    rest: str = ""

    @property
    def paths(self) -> tuple[PathLine, ...]:
        """All files, that of the result first."""
        return (*(() if self.path is None else (self.path,)), *self.other_paths)

    @property
    def pictures(self) -> tuple[Picture, ...]:
        """All pictures, in reading order."""
        return tuple(part for section in self.sections for part in section.parts if isinstance(part, Picture))


def section(
    title: str, parts: Iterable[Part], *, folded: bool = False, only_on_page: bool = False
) -> Iterator[ReportSection]:
    """A section of these parts; none if there are none."""
    if collected := tuple(parts):
        yield ReportSection(title, collected, folded, only_on_page)


def explanation(text: str) -> Paragraph:
    """A text that explains what stands above it."""
    return Paragraph(text, dim=True)


def explanations(texts: Iterable[str]) -> Iterator[Paragraph]:
    """A paragraph for each text that is not empty."""
    return map(explanation, filter(None, texts))
