"""`bnuq reproduce bn-noise`: the noise of BatchNorm's statistics against its law, on a network that is there."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from bnuq.cli.reproduce.asking import check_places
from bnuq.run import Options, resolve


def command(
    model: Annotated[
        str | None,
        typer.Argument(help="A checkpoint (model.pt) or a run file (model.toml); without one, bnuq.toml here."),
    ] = None,
    train: Annotated[str | None, typer.Option(help="Reference that mini-batches are drawn from.")] = None,
    arch: Annotated[
        str | None, typer.Option(help="file.py:factory, package.module:factory, timm:NAME or torchvision:NAME.")
    ] = None,
    batch_size: Annotated[
        int, typer.Option("--batch-size", "-b", help="Mini-batch size; the paper's is 32. Others are drawn beside it.")
    ] = 32,
    draws: Annotated[int, typer.Option(help="Mini-batches of that size; of the others a quarter as many, 64.")] = 256,
    points: Annotated[int, typer.Option(help="Reference points that the population statistics are taken of.")] = 10_000,
    seed: Annotated[int | None, typer.Option(help="Same seed, same figures.", show_default="0")] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu, cuda, cuda:N or mps.", show_default="auto")] = None,
    data_root: Annotated[Path | None, typer.Option(help="Where known sets lie, before $BNUQ_DATA.")] = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="Result file: an inspection.")] = Path(
        "reproduce-bn-noise.h5"
    ),
    figures: Annotated[
        Path | None, typer.Option(help="Folder for the picture, bn-noise.svg and .png.", metavar="DIR")
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
    """Figure 4 of Shekhovtsov and Flach 2018 on your network: how n·S²/σ² of mini-batches is distributed beside χ², and
    how the variance of a normalised value falls with the batch size and the spatial size. Writes an inspection, which
    bnuq report shows again."""
    check_places(out, figures)
    options = Options(
        arch=arch,
        train=train,
        seed=seed,
        device=device,
        out=out,
        data_root=data_root,
        trust_pickle=trust_pickle,
        trust_code=trust_code,
    )
    run = resolve(model, options, folder=Path.cwd())

    from bnuq.cli.progress import bars
    from bnuq.progress import silent
    from bnuq.report.bn_noise import print_bn_noise, summary
    from bnuq.report.inspection import noise_panels
    from bnuq.reproduce.bn_noise import PUBLISHED, reproduce

    progress = silent if quiet else bars
    found = reproduce(replace(run, test=None), batch_size=batch_size, draws=draws, points=points, progress=progress)
    if figures is not None:
        noise_panels(found, figures, kind="svg", name="bn-noise")
        noise_panels(found, figures, kind="png", name="bn-noise")
    if as_json:
        typer.echo(json.dumps(summary(found, PUBLISHED), allow_nan=False, indent=2))
    elif not quiet:
        print_bn_noise(found, PUBLISHED, sys.stdout)
