"""`bnuq report`: show a result file again."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer


def command(
    result: Annotated[Path, typer.Argument(help="A result file, as written by bnuq evaluate.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON, and nothing else.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,  # noqa: ARG001 - read by main
) -> None:
    """Show the report of a result file, as it was printed when it was made."""
    from bnuq.results.file import read

    found = read(result)
    if as_json:
        from bnuq.results.summary import summary

        typer.echo(json.dumps(summary(found), allow_nan=False, indent=2))
    else:
        from bnuq.report.terminal import print_report

        print_report(found, sys.stdout)
