"""`bnuq inspect`: what in a network can be stochastic, and how healthy its BatchNorm is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, TextIO

import typer

from bnuq.cli.options import (
    REFERENCE,
    Arch,
    AsJson,
    DataRoot,
    Debug,
    Device,
    Quiet,
    Seed,
    Strict,
    TrustCode,
    TrustPickle,
    listed,
    whole_numbers,
)
from bnuq.cli.output import tell
from bnuq.config import Named, Options, Run, resolve


def command(
    model: Annotated[
        str | None,
        typer.Argument(help="A checkpoint (model.pt) or a run file (model.toml); without one, bnuq.toml here."),
    ] = None,
    train: Annotated[
        str | None,
        typer.Option(
            help=f"Reference: what the network was trained on, which its statistics are held to: {REFERENCE}."
        ),
    ] = None,
    test: Annotated[
        str | None, typer.Option(help="Labelled test set: evaluated under every domain's statistics.")
    ] = None,
    domain: Annotated[
        list[str] | None,
        typer.Option(
            help="Points of one laboratory, camera or site, as NAME=REF: which layers tell it apart, and what its "
            "statistics do; repeat it, or use commas.",
            metavar="NAME=REF",
        ),
    ] = None,
    suggest_pipeline: Annotated[
        bool,
        typer.Option(
            "--suggest-pipeline",
            help="Try the common normalisations and augmentations, and tell which were trained with.",
        ),
    ] = False,
    arch: Arch = None,
    input_shape: Annotated[
        str | None,
        typer.Option(
            help="Shape of a point, without the batch, where no data can be read: 3,32,32.",
            metavar="LIST",
            show_default="found by trying",
        ),
    ] = None,
    points: Annotated[int, typer.Option(help="Reference points that the population statistics are taken of.")] = 10_000,
    draws: Annotated[int, typer.Option(help="Mini-batches that tell the noise, at each of some sizes.")] = 64,
    batch_size: Annotated[
        int | None,
        typer.Option(
            "--batch-size", "-b", help="Mini-batch size that the noise is told at.", show_default="training's"
        ),
    ] = None,
    samples: Annotated[
        int, typer.Option("--samples", "-T", help="Stochastic passes T with the mini-batches of each domain.")
    ] = 16,
    limit: Annotated[int | None, typer.Option(help="At most so many points of each domain are evaluated.")] = None,
    seed: Seed = None,
    device: Device = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Result file.", show_default="MODEL.inspect.h5")
    ] = None,
    figures: Annotated[
        Path | None,
        typer.Option(
            help="Draw the pictures into this folder, too; needs matplotlib.", metavar="DIR", show_default="none"
        ),
    ] = None,
    data_root: DataRoot = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
    strict: Strict = False,
    trust_pickle: TrustPickle = False,
    trust_code: TrustCode = False,
    debug: Debug = False,  # noqa: ARG001 - read by main
) -> None:
    """Inspect a network: its BatchNorm and dropout layers, what can be sampled and what not, and what is wrong with
    their statistics. With training data also how far the running averages lag, and the noise of mini-batches against
    its law; with domains, what their statistics do; and which pipeline a foreign checkpoint was trained with. Writes
    one HDF5 file and prints a report."""
    options = Options(
        arch=arch,
        train=train,
        test=test,
        limit=limit,
        seed=seed,
        device=device,
        out=out,
        data_root=data_root,
        trust_pickle=trust_pickle,
        trust_code=trust_code,
    )
    run = placed(resolve(model, options, folder=Path.cwd()), out)
    shape = whole_numbers("input-shape", input_shape, most=2**24, such_as="3,32,32")
    if figures is not None:
        from bnuq.report import drawing

        drawing.check()
        drawing.make_folder(figures)
    from bnuq.cli.progress import bars
    from bnuq.progress import silent
    from bnuq.report.inspection import print_inspection, save_figures
    from bnuq.report.terminal import print_figures
    from bnuq.results.inspection import summary
    from bnuq.workflows.inspect import Settings, inspect

    settings = Settings(
        points=points,
        draws=draws,
        batch_size=batch_size,
        domains=tuple(Named(text, Path.cwd()) for text in listed(domain) or ()),
        samples=samples,
        suggest_pipeline=suggest_pipeline,
        input_shape=shape,
        needs_reference=train is not None,
    )
    result = inspect(run, settings, progress=silent if quiet else bars)
    drawn = () if figures is None else save_figures(result, figures, kind="svg")

    def show(found: Any, stream: TextIO) -> None:
        print_inspection(found, stream)
        if drawn:
            print_figures(drawn, stream)

    tell(result, summary=summary, show=show, as_json=as_json, quiet=quiet, strict=strict)


def placed(run: Run, out: Path | None) -> Run:
    """`run`, its result in a file that is named for an inspection where no other was named."""
    return run if out is not None else replace(run, out=run.out.with_name(f"{run.checkpoint.stem}.inspect.h5"))
