"""`bnuq reproduce batch-size`: mutual information against the training batch size, with networks trained anew."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from bnuq.cli.output import say, stdout
from bnuq.cli.reproduce.asking import check_places, sizes_of
from bnuq.files.content import is_file
from bnuq.files.folders import expanded


def command(
    full: Annotated[
        bool,
        typer.Option(
            "--full",
            help="ResNet-50 and VGG-16 on all of Fashion-MNIST, M = 32 … 2048, 100 epochs: for a GPU. Goes on after "
            "the last whole epoch.",
        ),
    ] = False,
    epochs: Annotated[
        int | None, typer.Option(help="Passes over the images.", show_default="60; with --full 100")
    ] = None,
    images: Annotated[
        int | None,
        typer.Option(help="The first so many of the training set.", show_default="20000; with --full all 60000"),
    ] = None,
    batch_sizes: Annotated[
        str | None,
        typer.Option(
            help="Training batch sizes M, with commas.",
            show_default="32,128,512,2048; with --full 32,64,… 2048",
            metavar="LIST",
        ),
    ] = None,
    samples: Annotated[
        int, typer.Option("--samples", "-T", help="Stochastic passes T of a draw set, of which there are 5.")
    ] = 20,
    limit: Annotated[int | None, typer.Option(help="At most so many points of each evaluated set.")] = 2000,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
    workers: Annotated[
        int | None, typer.Option(help="Processes of one thread each that train, on a CPU.", show_default="a core each")
    ] = None,
    seed: Annotated[int, typer.Option(help="Same seed, same figures.")] = 0,
    data_root: Annotated[Path | None, typer.Option(help="Where the sets lie, before $BNUQ_DATA.")] = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="Result file.")] = Path("reproduce-batch-size.h5"),
    figures: Annotated[
        Path | None, typer.Option(help="Folder for the picture, batch-size.svg and .png.", metavar="DIR")
    ] = None,
    keep: Annotated[
        Path | None,
        typer.Option(help="Leave the networks here, with a run file each for bnuq sweep-batch-size.", metavar="DIR"),
    ] = None,
    work: Annotated[
        Path | None,
        typer.Option(
            help="Folder of finished networks: an interrupted run goes on from them. Removed when the result is "
            "written.",
            show_default="OUT.work",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON, and nothing else.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,  # noqa: ARG001 - read by main
) -> None:
    """Train a network per batch size on Fashion-MNIST, and draw Figure 1 (b) and (c) of Mukhoti et al. 2020: MCBN's
    mutual information on the test set and on MNIST against the batch size, with the accuracies of their Table 1.

    By default a small ResNet, once with equal epochs and once with equal steps: about half an hour of two cores. Needs
    fashion-mnist and the test set of mnist below --data-root or $BNUQ_DATA.
    """
    check_places(out, figures)
    replaces = is_file(out)
    sizes = sizes_of(batch_sizes)

    from dataclasses import replace

    from bnuq.cli.progress import bars
    from bnuq.progress import silent
    from bnuq.report.batch_size import print_batch_sizes, save_figure
    from bnuq.reproduce.batch_size.experiment import FULL, QUICK, Request, reproduce
    from bnuq.results.batch_size import summary

    protocol = FULL if full else QUICK
    given = {"epochs": epochs, "images": images, "batch_sizes": sizes}
    protocol = replace(protocol, **{key: value for key, value in given.items() if value is not None})
    request = Request(
        protocol=protocol,
        out=out,
        samples=samples,
        limit=limit,
        seed=seed,
        device=device,
        workers=workers,
        data_root=data_root and expanded(data_root),
        work=work and expanded(work),
        keep=keep and expanded(keep),
        notes=(f"an earlier result was replaced: {out}",) if replaces else (),
    )
    found = reproduce(request, progress=silent if quiet else bars)
    if figures is not None:
        save_figure(found, figures, kind="svg")
        save_figure(found, figures, kind="png")
    if as_json:
        say(json.dumps(summary(found), allow_nan=False, indent=2))
    elif not quiet:
        print_batch_sizes(found, stdout())
