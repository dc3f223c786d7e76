"""`bnuq inspect`: reports what can be sampled in a network, and the health of its BatchNorms."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from bnuq.cli.derived import SectionOptions, with_options
from bnuq.cli.options import Figures, Model
from bnuq.cli.output import Printing
from bnuq.cli.progress import progress_of
from bnuq.cli.report import check_figures, print_study
from bnuq.config import Options, resolve
from bnuq.config.schema import REFERENCE, DataSection, GivenOptions, InspectSection, ModelSection, SamplingSection
from bnuq.evaluation.completeness import reported_at_once
from bnuq.files.fetching import stem_of

_HELP = {
    "train": f"Training set, whose statistics are compared with those of the network: {REFERENCE}.",
    "test": "Labelled test set: evaluated under every domain's statistics.",
    "limit": "Evaluate at most this many examples of each domain.",
    "out": ("Result file.", "MODEL.inspect.h5"),
}


@with_options(
    options=(
        SectionOptions(DataSection, help=_HELP, without="ood perturb validation normalize_targets"),
        SectionOptions(ModelSection),
        SectionOptions(SamplingSection, "seed"),
        SectionOptions(GivenOptions, "out limit device threads data_root download trust_pickle trust_code", _HELP),
    ),
    settings=SectionOptions(InspectSection),
    printing=SectionOptions(Printing, "json quiet strict debug"),
)
def command(
    model: Model = None, figures: Figures = None, *, options: Options, settings: InspectSection, printing: Printing
) -> None:
    """Inspect a network: its BatchNorm and dropout layers, which of them can be sampled, and problems with their
    statistics. With training data, also the lag of the running averages and the noise of mini-batches compared with its
    analytic model; with domains, the effect of their statistics; and the training pipeline of a foreign checkpoint.
    Writes one HDF5 file and prints a report."""
    with reported_at_once(("train",) if settings.suggest_pipeline or settings.domain else ()):
        run = resolve(model, options, folder=Path.cwd())
    if "out" not in options:
        run = replace(run, out=run.out.with_name(f"{stem_of(run.checkpoint)}.inspect.h5"))
    check_figures(figures)
    from bnuq.studies.inspect.request import InspectSettings, check_inspection

    inspect_settings = InspectSettings.of(settings, folder=Path.cwd(), needs_reference="train" in options)
    check_inspection(run, inspect_settings, reading=False)  # before torch is imported
    progress = progress_of(printing, needs_torch=True)
    from bnuq.evaluation.setup import threads
    from bnuq.studies.inspect.compute import inspect

    with threads(run.threads):
        result = inspect(run, inspect_settings, progress=progress)
    print_study(result, printing, figures)
