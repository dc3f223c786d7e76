"""Draws a report: on a terminal, as Markdown, as an HTML page; and its pictures as files."""

from bnuq.report.render.html import excerpt, page, write_page
from bnuq.report.render.markdown import markdown
from bnuq.report.render.pictures import draw_pictures
from bnuq.report.render.terminal import columns_of, print_paths, print_record, print_report

__all__ = [
    "columns_of",
    "draw_pictures",
    "excerpt",
    "markdown",
    "page",
    "print_paths",
    "print_record",
    "print_report",
    "write_page",
]
