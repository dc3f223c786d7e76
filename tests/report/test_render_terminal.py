"""A report on a terminal: it has no pictures, and blank lines keep parts apart."""

from __future__ import annotations

import io
from pathlib import Path

from bnuq.report.document import Cell, Paragraph, Picture, Report, ReportSection, Table
from bnuq.report.render import print_report


def lines_of(*sections: ReportSection) -> list[str]:
    stream = io.StringIO()
    print_report(Report("bnuq x", sections=sections), stream, width=80)
    return stream.getvalue().splitlines()


def draw(_: Path) -> None:
    raise AssertionError("a terminal draws no pictures")


PICTURE = Picture(("p",), draw, "how")
TABLE = Table(("",), (("a", (Cell("1"),)),))


def test_parts_are_kept_apart() -> None:
    section = ReportSection("A", (PICTURE, Paragraph("first"), TABLE, Paragraph("second"), TABLE, TABLE))
    row = " a  1"
    assert lines_of(section) == ["bnuq x", "", "A", "first", row, "", "second", row, "", row]


def test_a_section_of_nothing_but_pictures_is_left_out() -> None:
    assert lines_of(ReportSection("A", (PICTURE,))) == ["bnuq x"]
