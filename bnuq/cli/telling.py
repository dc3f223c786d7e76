"""How a command ends: its result told as it was asked for, and refused where --strict has it so."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any, TextIO

import typer

from bnuq.errors import RequestError
from bnuq.records import Caution


def tell(
    result: Any,
    *,
    summary: Callable[[Any], Any],
    show: Callable[[Any, TextIO], None],
    as_json: bool,
    quiet: bool,
    strict: bool,
    cautions: Sequence[Caution] | None = None,
) -> None:
    """Print `result`, which is written already to its path where it has one; RequestError where it has warnings (or
    `cautions`, where they are given) and is not to have any."""
    warnings: Sequence[Caution] = result.cautions if cautions is None else cautions
    refused = strict and bool(warnings)
    if as_json:
        if not refused:
            text = json.dumps(summary(result), allow_nan=False, indent=2)
            typer.echo(text.replace("##[", "\\u0023#["))  # the same JSON, and no command to a CI's runner
    elif not quiet:
        show(result, sys.stdout)
    if refused:
        path = getattr(result, "path", None)
        raise by_strict(warnings, "" if path is None else f"; {path} was written and tells them")


def by_strict(cautions: Sequence[Caution], rest: str = "") -> RequestError:
    """The refusal of what has warnings and is not to have any."""
    codes = ", ".join(dict.fromkeys(caution.code for caution in cautions))
    return RequestError(f"--strict: there were warnings ({codes}){rest}.")


def give_up_stdout() -> None:
    """What is still buffered for standard output goes nowhere, so that the interpreter's own last flush succeeds."""
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
