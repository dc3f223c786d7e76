"""`bnuq data`: the data sets that are known by name, and where they are looked for."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def command(
    data_root: Annotated[Path | None, typer.Option(help="Look here first, before $BNUQ_DATA.")] = None,
) -> None:
    """List the known data sets: splits, source, and the folders they are looked for in."""
    from bnuq.data.known import data_roots, known_sets

    for known in known_sets():
        typer.echo(f"{known.name:16} {known}")
    typer.echo("Looked for under, in this order:")
    for root in data_roots(data_root):
        typer.echo(f"  {root}")
