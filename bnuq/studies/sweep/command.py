"""`bnuq sweep-batch-size`: measures a network's uncertainty at every mini-batch size, and recommends a size."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from bnuq.cli.derived import SectionOptions, with_options
from bnuq.cli.options import Figures, WorkPlace
from bnuq.cli.output import Printing
from bnuq.cli.progress import progress_of
from bnuq.cli.report import check_figures, print_study
from bnuq.config import Options, resolve_sweep
from bnuq.config.schema import DataSection, GivenOptions, ModelSection, SamplingSection, ScoringSection, SweepSection
from bnuq.evaluation.completeness import reported_at_once

_HELP = {
    "samples": ("Stochastic forward passes T of a draw set.", "20"),
    "mutual_information": "Estimator of MI: plug-in or corrected (× T/(T−1)).",
    "out": ("Result file.", "MODEL.sweep.h5"),
}


@with_options(
    settings=(SectionOptions(SweepSection),),
    options=(
        SectionOptions(DataSection, without="perturb"),
        SectionOptions(ModelSection),
        SectionOptions(SamplingSection, "samples layers seed mutual_information", _HELP),
        SectionOptions(ScoringSection, without="recalibration set_coverage shift_window shift_loss"),
        SectionOptions(
            GivenOptions,
            "out on device precision chunk_size threads limit data_root download trust_pickle trust_code",
            _HELP,
        ),
    ),
    printing=SectionOptions(Printing, "json quiet strict debug"),
)
def command(
    models: Annotated[
        list[str] | None,
        typer.Argument(
            help="A checkpoint (model.pt) or a run file (model.toml), which is swept over --batch-sizes; or several, "
            "each at its training batch size. Default: bnuq.toml in this folder.",
            metavar="MODEL",
            show_default=False,
        ),
    ] = None,
    figures: Figures = None,
    work: WorkPlace = None,
    *,
    options: Options,
    settings: dict[str, Any],
    printing: Printing,
) -> None:
    """Sweep the mini-batch size of Monte Carlo Batch Normalization (MCBN): where does the uncertainty vanish, does it
    still separate unfamiliar data, and which size does the evidence lower bound (ELBO) select? Writes one HDF5 file and
    prints a report."""
    with reported_at_once(("test", "train")):
        runs, swept = resolve_sweep(models or [], options, settings, folder=Path.cwd())
    check_figures(figures)
    from bnuq.studies.sweep.request import check_sweep

    check_sweep(runs, swept, out=runs[0].out, work=work, reading=False)  # before torch is imported
    progress = progress_of(printing, needs_torch=True)
    from bnuq.evaluation.setup import threads
    from bnuq.progress import silence
    from bnuq.studies.sweep.compute import sweep

    announce = silence if printing.quiet else partial(typer.echo, err=True)
    with threads(runs[0].threads):
        result = sweep(runs, swept, work=work, progress=progress, announce=announce)
    print_study(result, printing, figures)
