"""`bnuq precise-bn`: writes a copy of a checkpoint with population statistics in its BatchNorms."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bnuq.cli.derived import SectionOptions, with_options
from bnuq.cli.options import Model
from bnuq.cli.output import Printing
from bnuq.cli.progress import progress_of
from bnuq.cli.report import print_study
from bnuq.config import Options, resolve
from bnuq.config.schema import REFERENCE, DataSection, GivenOptions, ModelSection, PreciseBnSection, SamplingSection
from bnuq.evaluation.completeness import reported_at_once

_HELP = {
    "train": f"Training set whose statistics are computed, through the training pipeline: {REFERENCE}.",
    "test": "Labelled test set: evaluated before and after.",
}


@with_options(
    options=(
        SectionOptions(DataSection, help=_HELP, without="ood perturb validation train_size"),
        SectionOptions(ModelSection),
        SectionOptions(SamplingSection, "seed"),
        SectionOptions(GivenOptions, "device threads data_root download trust_pickle trust_code"),
    ),
    settings=SectionOptions(PreciseBnSection),
    printing=SectionOptions(Printing, "json full quiet strict debug"),
)
def command(
    out: Annotated[
        str,
        typer.Option(
            "--out",
            "-o",
            help="The new checkpoint: the same kind of file, with everything else unchanged.",
            metavar="FILE",
            rich_help_panel="Common options",
        ),
    ],
    model: Model = None,
    *,
    options: Options,
    settings: PreciseBnSection,
    printing: Printing,
) -> None:
    """Write a copy of a checkpoint with the BatchNorm statistics of its training data, for running averages that lag or
    were never computed. Prints what changed and, with a test set, whether it improved the network."""
    with reported_at_once(("train",)):
        run = resolve(model, Options(options | {"out": out}), folder=Path.cwd())
    from bnuq.studies.precise_bn.request import check_precise_bn

    check_precise_bn(run, settings.points, settings.batch_size, reading=False)  # before torch is imported
    progress = progress_of(printing, needs_torch=True)
    from bnuq.evaluation.setup import threads
    from bnuq.studies.precise_bn.compute import precise_bn

    with threads(run.threads):
        result = precise_bn(
            run, estimator=settings.estimator, points=settings.points, batch_size=settings.batch_size, progress=progress
        )
    print_study(result, printing)
