"""`bnuq reproduce toy`: a toy regression in the manner of the MCBN paper's first figure."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from bnuq.cli.output import say, stdout
from bnuq.cli.reproduce.asking import check_places


def command(
    samples: Annotated[int, typer.Option(help="Stochastic passes a point.")] = 500,
    batch_size: Annotated[
        int, typer.Option(help="Mini-batch size of training and MCBN; a second BatchNorm network has 4 times that.")
    ] = 32,
    seed: Annotated[int, typer.Option(help="Same seed, same figures.")] = 0,
    out: Annotated[Path, typer.Option("--out", "-o", help="Result file.")] = Path("reproduce-toy.h5"),
    figures: Annotated[
        Path | None, typer.Option(help="Folder for the picture, toy.svg and toy.png; made if need be.", metavar="DIR")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON, and nothing else.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,  # noqa: ARG001 - read by main
) -> None:
    """Draw a toy regression in the manner of Figure 1 of Teye, Azizpour and Smith 2018: what MCBN and MC dropout say
    among the data, in a gap between them, and outside. The data are bnuq's own, and drawn from the seed.

    Trains three small networks, a few seconds each.
    """
    from bnuq.results import toy as toy_file

    check_places(out, figures)
    toy_file.check_replaceable(out)

    from bnuq.cli.progress import bars
    from bnuq.progress import silent
    from bnuq.report.toy import print_toy, save_figure
    from bnuq.reproduce.toy import reproduce

    progress = silent if quiet else bars
    made = toy_file.write(reproduce(samples=samples, batch_size=batch_size, seed=seed, progress=progress), out)
    if figures is not None:
        save_figure(made, figures, kind="svg")
        save_figure(made, figures, kind="png")
    if as_json:
        say(json.dumps(toy_file.summary(made), allow_nan=False, indent=2))
    elif not quiet:
        print_toy(made, stdout())
