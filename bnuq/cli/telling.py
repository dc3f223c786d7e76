"""How a command ends: its result told as it was asked for, and refused where --strict has it so."""

from __future__ import annotations

import json
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
    cautions = result.cautions if cautions is None else cautions
    refused = strict and bool(cautions)
    if as_json:
        if not refused:
            typer.echo(json.dumps(summary(result), allow_nan=False, indent=2))
    elif not quiet:
        show(result, sys.stdout)
    if refused:
        codes = ", ".join(dict.fromkeys(caution.code for caution in cautions))
        path = getattr(result, "path", None)
        where = f"; {path} was written and tells them." if path is not None else "."
        raise RequestError(f"--strict: there were warnings ({codes}){where}")
