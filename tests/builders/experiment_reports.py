"""The reports of experiments as text, and damage to their records."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import h5py

from bnuq.report.document import Report
from bnuq.report.render import print_record


def rendered(report: Callable[..., Report], record: Any, *, width: int = 80, encoding: str = "utf-8") -> str:
    """The report of a record as it is printed, `width` columns wide."""
    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    print_record(report, record, stream, width=width)
    stream.seek(0)
    return stream.read()


def replace_in_record(file: h5py.File, old: str, new: str) -> None:
    """Replace `old` by `new` in the text of a result's record."""
    text = file["record"].asstr()[()]
    assert old in text
    del file["record"]
    file["record"] = text.replace(old, new)
