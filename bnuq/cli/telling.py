"""How a command ends: its result told as it was asked for, and refused where --strict has it so."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any, TextIO

import typer

from bnuq.errors import RequestError


def tell(
    result: Any,
    *,
    summary: Callable[[Any], Any],
    show: Callable[[Any, TextIO], None],
    as_json: bool,
    quiet: bool,
    strict: bool,
) -> None:
    """Print `result`, which is written already; RequestError where it has warnings and is not to have any."""
    refused = strict and bool(result.cautions)
    if as_json:
        if not refused:
            typer.echo(json.dumps(summary(result), allow_nan=False, indent=2))
    elif not quiet:
        show(result, sys.stdout)
    if refused:
        codes = ", ".join(dict.fromkeys(caution.code for caution in result.cautions))
        raise RequestError(f"--strict: there were warnings ({codes}); {result.path} was written and tells them.")
