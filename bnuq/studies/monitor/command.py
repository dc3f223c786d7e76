"""`bnuq monitor`: compares unlabelled points with the reference, and keeps the evidence of a stream of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from bnuq.cli.derived import SectionOptions, with_options
from bnuq.cli.options import Figures, Model
from bnuq.cli.output import Printing, print_result
from bnuq.cli.progress import progress_of
from bnuq.cli.report import check_figures, print_study
from bnuq.cli.streams import print_line
from bnuq.config import MonitorSection, Options, resolve
from bnuq.config.schema import REFERENCE, DataSection, GivenOptions, ModelSection, SamplingSection
from bnuq.errors import RequestError
from bnuq.evaluation.completeness import reported_at_once

_HELP = {
    "test": f"The reference: examples that the network was not trained on, drawn as later ones should be: {REFERENCE}.",
    "train": "The reference if there is no test set; --normalize train uses its mean and std.",
    "limit": "Use at most this many examples of the reference.",
    "out": ("Result file.", "MODEL.monitor.h5"),
}


@with_options(
    options=(
        SectionOptions(DataSection, help=_HELP, without="ood perturb validation train_size normalize_targets augment"),
        SectionOptions(ModelSection),
        SectionOptions(SamplingSection, "seed"),
        SectionOptions(GivenOptions, "out limit device threads data_root download trust_pickle trust_code", _HELP),
    ),
    settings=SectionOptions(MonitorSection),
    printing=SectionOptions(Printing, "json quiet strict debug"),
)
def command(
    model: Model = None,
    points: Annotated[
        str | None,
        typer.Argument(
            help="The unlabelled examples to compare with the reference; or --batch REF.",
            metavar="BATCH",
            show_default=False,
        ),
    ] = None,
    figures: Figures = None,
    *,
    options: Options,
    settings: MonitorSection,
    printing: Printing,
) -> None:
    """Detect whether the incoming data have changed, without labels. From the batch statistics of every BatchNorm
    layer, the outputs and the scores it computes one p-value, the layers that differ and by how much, and an alarm for
    a stream of batches, which stays valid if you look after every batch. Writes one HDF5 file and prints a report."""
    folder = Path.cwd()
    if points is not None:
        if settings.batch is not None:
            raise RequestError(f"the batch was named twice: {points} and --batch {settings.batch}.")
        settings = msgspec.structs.replace(settings, batch=points)
    with reported_at_once(()):
        run = resolve(model, options, folder=folder)
        if "out" not in options:
            run = replace(run, out=run.out.with_name(f"{run.checkpoint.stem}.monitor.h5"))
    check_figures(figures)
    from bnuq.studies.monitor.request import check_monitor

    check_monitor(run, settings, folder=folder, reading=False)  # before torch is imported
    progress = progress_of(printing, needs_torch=True)
    from bnuq.evaluation.setup import threads
    from bnuq.studies.monitor.compute import monitor
    from bnuq.studies.monitor.record import Baseline

    with threads(run.threads):
        found = monitor(run, settings, folder=folder, progress=progress)
    if isinstance(found, Baseline):
        print_result(found, printing, summary=_of_baseline, show=lambda made, _: print_line(_line(made)))
    else:
        print_study(found, printing, figures)


def _of_baseline(baseline: Any) -> dict[str, Any]:
    return {
        "baseline": str(baseline.path),
        "bytes": baseline.path.stat().st_size,
        "model": dict(baseline.model),
        "reference": dict(baseline.reference) | {"points": len(baseline.bag)},
        "layers": [{"name": block.name, "law": block.law} for block in baseline.blocks if block.kind == "layer"],
    }


def _line(baseline: Any) -> str:
    return (
        f"{baseline.path.name} was written ({baseline.path.stat().st_size / 1000:.0f} kB): coordinates of "
        f"{len(baseline.bag):,} examples of {baseline.reference['reference']}. Compare later examples with it, without "
        "any data: bnuq monitor MODEL BATCH."
    )
