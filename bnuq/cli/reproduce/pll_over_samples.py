"""`bnuq reproduce pll-over-samples`: PLL against the number of passes, on a network that is there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from bnuq.cli.output import say, stdout
from bnuq.cli.reproduce.asking import check_places
from bnuq.config import Options, resolve
from bnuq.files.content import is_file


def command(
    model: Annotated[
        str | None,
        typer.Argument(help="A checkpoint (model.pt) or a run file (model.toml); without one, bnuq.toml here."),
    ] = None,
    train: Annotated[str | None, typer.Option(help="Reference that mini-batches are drawn from.")] = None,
    test: Annotated[str | None, typer.Option(help="Labelled test set.")] = None,
    arch: Annotated[
        str | None, typer.Option(help="file.py:factory, package.module:factory, timm:NAME or torchvision:NAME.")
    ] = None,
    samples: Annotated[int, typer.Option("--samples", "-T", help="The most stochastic passes.")] = 128,
    batch_size: Annotated[
        int | None,
        typer.Option("--batch-size", "-b", help="Size of MCBN's mini-batches.", show_default="training's"),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Same seed, same figures.", show_default="0")] = None,
    limit: Annotated[int | None, typer.Option(help="At most so many test points.")] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu, cuda, cuda:N or mps.", show_default="auto")] = None,
    data_root: Annotated[Path | None, typer.Option(help="Where known sets lie, before $BNUQ_DATA.")] = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="Result file.")] = Path("reproduce-pll-over-samples.h5"),
    figures: Annotated[
        Path | None, typer.Option(help="Folder for the picture, pll-over-samples.svg and .png.", metavar="DIR")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON, and nothing else.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")] = False,
    trust_pickle: Annotated[
        bool, typer.Option("--trust-pickle", help="Run the code inside a pickled checkpoint.")
    ] = False,
    trust_code: Annotated[
        bool, typer.Option("--trust-code", help="Run code named by a file that was merely found, and remember that.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,  # noqa: ARG001 - read by main
) -> None:
    """Table 2 of Teye, Azizpour and Smith 2018: PLL of MCBN with T = 1, 2, 4, … passes, beside the published row and a
    replication of it. The network is yours; the published one is a ResNet-32 on CIFAR-10.

    Passes are all of the network's training batch size, unless --batch-size says otherwise.
    """
    check_places(out, figures)
    replaces = is_file(out)
    options = Options(
        arch=arch,
        train=train,
        test=test,
        samples=samples,
        seed=seed,
        device=device,
        limit=limit,
        data_root=data_root,
        trust_pickle=trust_pickle,
        trust_code=trust_code,
    )
    run = resolve(model, options, folder=Path.cwd())

    from dataclasses import replace

    from bnuq.cli.progress import bars
    from bnuq.progress import silent
    from bnuq.report.pll_over_samples import print_pll, save_figure
    from bnuq.reproduce.pll_over_samples import reproduce
    from bnuq.results.pll_over_samples import check_replaceable, summary, write

    check_replaceable(out)
    # A run file's own batch size is of its evaluation; here it is training's that counts.
    run = replace(run, batch_size=batch_size or run.train_batch_size)
    found = reproduce(run, progress=silent if quiet else bars)
    if replaces:
        found = replace(found, notes=(*found.notes, f"an earlier result was replaced: {out}"))
    found = write(found, out)
    if figures is not None:
        save_figure(found, figures, kind="svg")
        save_figure(found, figures, kind="png")
    if as_json:
        say(json.dumps(summary(found), allow_nan=False, indent=2))
    elif not quiet:
        print_pll(found, stdout())
