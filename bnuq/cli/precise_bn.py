"""`bnuq precise-bn`: a copy of a checkpoint with population statistics in its BatchNorms."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bnuq.cli.options import (
    Arch,
    AsJson,
    DataRoot,
    Debug,
    Device,
    Quiet,
    Seed,
    Strict,
    Test,
    TrustCode,
    TrustPickle,
    chosen,
)
from bnuq.cli.output import tell
from bnuq.config import Options, resolve
from bnuq.results.precise_bn import POINTS, PopulationEstimator, summary


def command(
    out: Annotated[
        Path,
        typer.Option("--out", "-o", help="The new checkpoint: the same kind of file, everything else as it was."),
    ],
    model: Annotated[
        str | None,
        typer.Argument(help="A checkpoint (model.pt) or a run file (model.toml); without one, bnuq.toml here."),
    ] = None,
    train: Annotated[
        str | None,
        typer.Option(
            help="Reference that the statistics are taken of, through the training pipeline: a file, a folder, a known "
            "name such as cifar10:train, or file.py:function; NAME=REF names it."
        ),
    ] = None,
    test: Test = None,
    estimator: Annotated[
        str | None,
        typer.Option(
            help="population (all values of the mini-batches together), mean_of_var (mean of their unbiased "
            "variances) or full (all points as one batch).",
            show_default="population",
            metavar="NAME",
        ),
    ] = None,
    points: Annotated[
        int, typer.Option(help="At most so many points of the reference, drawn without replacement.")
    ] = POINTS,
    batch_size: Annotated[
        int | None,
        typer.Option("--batch-size", "-b", help="At most so many points a mini-batch.", show_default="training's"),
    ] = None,
    arch: Arch = None,
    seed: Seed = None,
    device: Device = None,
    data_root: DataRoot = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
    strict: Strict = False,
    trust_pickle: TrustPickle = False,
    trust_code: TrustCode = False,
    debug: Debug = False,  # noqa: ARG001 - read by main
) -> None:
    """Write a copy of a checkpoint with the BatchNorm statistics of its training data, for running averages that lag or
    were never taken. Prints what changed and, with a test set, whether it helped."""
    options = Options(
        arch=arch,
        train=train,
        test=test,
        seed=seed,
        device=device,
        out=out,
        data_root=data_root,
        trust_pickle=trust_pickle,
        trust_code=trust_code,
    )
    by = chosen("estimator", estimator, PopulationEstimator) or "population"
    run = resolve(model, options, folder=Path.cwd())
    from bnuq.cli.progress import bars
    from bnuq.progress import silent
    from bnuq.report.precise_bn import print_precise_bn
    from bnuq.workflows.precise_bn import precise_bn

    progress = silent if quiet else bars
    result = precise_bn(run, estimator=by, points=points, batch_size=batch_size, progress=progress)
    tell(result, summary=summary, show=print_precise_bn, as_json=as_json, quiet=quiet, strict=strict)
