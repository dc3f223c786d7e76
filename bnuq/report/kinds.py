"""Every kind of result: how its file is read, its JSON summary, and its report."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from bnuq.frozen import frozen
from bnuq.report.document import Report
from bnuq.studies import STUDIES


@frozen
class Kind:
    """How results of one kind are read and shown: `of` what they are, their JSON `summary`, and their `report`."""

    of: str
    read: Callable[[Path], Any]
    summary: Callable[[Any], Any]
    report: Callable[..., Report]


def kind_named(name: str) -> Kind:
    """The kind that a result file says it is of, see `store.codec.kind_of_result`."""
    if name in _KINDS:
        return _KINDS[name]()
    from bnuq.records.as_json import json_of

    command, study = next((command, study) for command, study in STUDIES.items() if study.kind == name)
    return Kind(f"bnuq {command}", study.module("record").read, json_of, study.module("view").report)


def _evaluate() -> Kind:
    from bnuq.records.evaluation_file import read
    from bnuq.records.summary import summary
    from bnuq.report.evaluation import report

    return Kind("bnuq evaluate", read, summary, report)


def _score() -> Kind:
    return replace(_evaluate(), of="bnuq score")


def side_by_side() -> Kind:
    from bnuq.report.comparison import report, summary

    return Kind("bnuq evaluate, side by side", _evaluate().read, summary, report)


def trend_kind() -> Kind:
    from bnuq.report.trend import report, summary

    return Kind("bnuq evaluate, over time", _evaluate().read, summary, report)


def _several() -> Kind:
    from bnuq.records.multirun import read, summary
    from bnuq.report.multirun import report

    return Kind("bnuq evaluate for several runs", read, summary, report)


_KINDS: dict[str, Callable[[], Kind]] = {"evaluate": _evaluate, "score": _score, "several": _several}
