"""`bnuq report`: show a result file again."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from bnuq.errors import RequestError


def command(
    result: Annotated[Path, typer.Argument(help="A result file, as written by bnuq evaluate.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON, and nothing else.")] = False,
    figures: Annotated[
        Path | None,
        typer.Option(help="Draw its pictures into this folder; needs matplotlib.", metavar="DIR", show_default="none"),
    ] = None,
    form: Annotated[
        str | None, typer.Option("--format", help="Of the pictures: svg or png.", show_default="svg", metavar="NAME")
    ] = None,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,  # noqa: ARG001 - read by main
) -> None:
    """Show the report of a result file, as it was printed when it was made."""
    if form is not None and form not in ("svg", "png"):
        raise RequestError(f"--format is {form}; expected svg or png.")
    if form is not None and figures is None:
        raise RequestError(f"--format {form} says how pictures are drawn, and none are; add --figures DIR.")
    from bnuq.results import several
    from bnuq.results.file import read

    if several.is_several(result):
        if figures is not None:
            raise RequestError(f"--figures: {result} is of several runs; pictures are drawn of the results of each.")
        _show_several(result, as_json=as_json)
        return
    found = read(result)
    drawn = None if figures is None else _draw(found, figures, form or "svg")
    if as_json:
        from bnuq.results.summary import summary

        typer.echo(json.dumps(summary(found), allow_nan=False, indent=2))
        return
    from bnuq.report.terminal import print_report

    print_report(found, sys.stdout)
    if drawn is not None:
        from bnuq.report.terminal import print_figures

        print_figures(drawn, sys.stdout)


def _show_several(result: Path, *, as_json: bool) -> None:
    from bnuq.results.several import read, summary

    found = read(result)
    if as_json:
        typer.echo(json.dumps(summary(found), allow_nan=False, indent=2))
        return
    from bnuq.report.several import print_several

    print_several(found, sys.stdout)


def _draw(result: Any, folder: Path, form: Any) -> tuple[Path, ...]:
    from bnuq.files.folders import expanded
    from bnuq.report.figures import draw_figures

    return draw_figures(result, expanded(folder), form)
