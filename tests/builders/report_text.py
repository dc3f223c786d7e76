"""The report of a record, as text, and a terminal."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

from bnuq.report.document import Report
from bnuq.report.render import print_record


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


def one_line(text: str) -> str:
    return " ".join(text.split())


def rendered(
    report: Callable[..., Report], record: Any, *, width: int = 100, encoding: str = "utf-8", full: bool = False
) -> str:
    """The report of a record as it is printed on `width` columns; all of it with `full`."""
    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    print_record(report, record, stream, width=width, full=full)
    stream.seek(0)
    return stream.read()
