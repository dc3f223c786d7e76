"""`bnuq shift`: evaluates a network on its test set under corruptions of rising severity."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from bnuq.cli.derived import SectionOptions, with_options
from bnuq.cli.evaluate import evaluate_one
from bnuq.cli.options import Models, WorkPlace
from bnuq.cli.output import Printing
from bnuq.config import Options, resolve_ensemble
from bnuq.config.schema import DataSection, GivenOptions, ModelSection, SamplingSection, ScoringSection
from bnuq.config.shorthand import read_families
from bnuq.evaluation.completeness import reported_at_once
from bnuq.perturbations import FAMILIES


@with_options(
    options=(
        SectionOptions(DataSection, without="perturb"),
        SectionOptions(ModelSection),
        SectionOptions(SamplingSection),
        SectionOptions(ScoringSection),
        SectionOptions(GivenOptions, help={"out": ("Result file.", "MODEL.shift.h5")}),
    ),
    printing=SectionOptions(Printing),
)
def command(
    model: Models = None,
    family: Annotated[
        list[str] | None,
        typer.Option(
            help=f"A family of corruptions: {', '.join(FAMILIES)}; or file.py:function, called with inputs, severity "
            "and a generator of random numbers. Repeat it, or use commas.",
            metavar="NAME|FACTORY",
            show_default="all that fit the inputs",
        ),
    ] = None,
    severities: Annotated[
        str,
        typer.Option(
            help="Severities from 1 to 5, with commas; for a function of your own, any numbers above 0.", metavar="LIST"
        ),
    ] = "1,2,3,4,5",
    work: WorkPlace = None,
    *,
    options: Options,
    printing: Printing,
) -> None:
    """Evaluate a network on its test set under corruptions of rising severity: how far do metrics fall, which scores
    raise an alarm before accuracy falls, and can accuracy be estimated without labels? Writes one HDF5 file, as
    `bnuq evaluate` does, and prints a report."""
    from bnuq.workflows.requests import check_evaluation

    families = [name for text in family or () for name in text.split(",")]
    options["perturb"] = read_families(families, [text.strip() for text in severities.split(",")])
    with reported_at_once():
        run = resolve_ensemble(model or (), options, folder=Path.cwd())
    if options.get("out") is None:
        run = replace(run, out=run.out.with_name(f"{run.out.name.removesuffix('.bnuq.h5')}.shift.h5"))
    check_evaluation(run, work, reading=False)  # before torch is imported
    evaluate_one(run, work, printing, announces=True)
