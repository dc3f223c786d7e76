"""Prints a command's result in the requested form, and refuses warnings under --strict."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Annotated, Any, TextIO

from bnuq.cli.streams import print_line, stdout
from bnuq.config.schema import Section, setting
from bnuq.errors import RequestError
from bnuq.findings import Finding, warnings


class Printing(Section, frozen=True):
    """The options for a command's output."""

    json: Annotated[bool, setting("Print only the summary, as JSON.", "Output")] = False
    full: Annotated[bool, setting("Print the full report, not only one screen.", "Output")] = False
    quiet: Annotated[bool, setting("Print only errors.", "Output", short="q")] = False
    strict: Annotated[bool, setting("Exit with code 2 on any warning.", "Output")] = False
    debug: Annotated[bool, setting("Show the traceback of an error.", "Safety")] = False  # read by main


def print_result(
    result: Any,
    printing: Printing,
    *,
    summary: Callable[[Any], Any],
    show: Callable[[Any, TextIO], None],
    findings: Sequence[Finding] | None = None,
) -> None:
    """Print `result`, which was already written to its path, if it has one. With --strict, RequestError where it has
    warnings (or among `findings`, where they are given), of which it is one there that the run was resumed."""
    if printing.strict and findings is None:
        graver = (replace(each, severity="warning") if each.code in RESUMED else each for each in result.findings)
        result = replace(result, findings=tuple(graver))
    warned = warnings(result.findings if findings is None else findings)
    refused = printing.strict and bool(warned)
    if printing.json:
        if not refused:
            text = json.dumps(summary(result), allow_nan=False, indent=2)
            print_line(text.replace("##[", "\\u0023#["))  # equivalent JSON, but not a command to a CI runner
    elif not printing.quiet:
        show(result, stdout())
    if refused:
        path = getattr(result, "path", None)
        raise strict_error(warned, "" if path is None else f"; {path} was written and holds them")


RESUMED = ("evaluation-continued", "sweep-continued", "runs-reused")


def strict_error(warned: Sequence[Finding], consequence: str = "") -> RequestError:
    """The error for warnings under --strict."""
    codes = ", ".join(dict.fromkeys(finding.code for finding in warned))
    return RequestError(f"--strict: there were warnings ({codes}){consequence}.")
