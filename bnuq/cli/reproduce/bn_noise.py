"""`bnuq reproduce bn-noise`: the noise of BatchNorm's statistics against its law, on a network that is there."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from bnuq.cli.options import Arch, AsJson, DataRoot, Debug, Device, Quiet, Seed, Train, TrustCode, TrustPickle
from bnuq.cli.output import tell
from bnuq.cli.reproduce.asking import check_places
from bnuq.config import Options, resolve


def command(
    model: Annotated[
        str | None,
        typer.Argument(help="A checkpoint (model.pt) or a run file (model.toml); without one, bnuq.toml here."),
    ] = None,
    train: Train = None,
    arch: Arch = None,
    batch_size: Annotated[
        int, typer.Option("--batch-size", "-b", help="Mini-batch size; the paper's is 32. Others are drawn beside it.")
    ] = 32,
    draws: Annotated[int, typer.Option(help="Mini-batches of that size; of the others a quarter as many, 64.")] = 256,
    points: Annotated[int, typer.Option(help="Reference points that the population statistics are taken of.")] = 10_000,
    seed: Seed = None,
    device: Device = None,
    data_root: DataRoot = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="Result file: an inspection.")] = Path(
        "reproduce-bn-noise.h5"
    ),
    figures: Annotated[
        Path | None, typer.Option(help="Folder for the picture, bn-noise.svg and .png.", metavar="DIR")
    ] = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
    trust_pickle: TrustPickle = False,
    trust_code: TrustCode = False,
    debug: Debug = False,  # noqa: ARG001 - read by main
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
    from bnuq.reproduce.bn_noise import reproduce

    progress = silent if quiet else bars
    found = reproduce(replace(run, test=None), batch_size=batch_size, draws=draws, points=points, progress=progress)
    if figures is not None:
        noise_panels(found, figures, kind="svg", name="bn-noise")
        noise_panels(found, figures, kind="png", name="bn-noise")
    tell(
        found,
        summary=summary,
        show=print_bn_noise,
        as_json=as_json,
        quiet=quiet,
        strict=False,
    )
