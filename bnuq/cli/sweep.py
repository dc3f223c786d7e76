"""`bnuq sweep-batch-size`: measures a network's uncertainty at every mini-batch size, and recommends a size."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, TextIO

import typer

from bnuq.cli.derived import SectionOptions, with_options
from bnuq.cli.options import Figures, WorkPlace
from bnuq.cli.output import Printing, print_result
from bnuq.cli.report import print_figures
from bnuq.config import Options, resolve_sweep
from bnuq.config.schema import DataSection, GivenOptions, ModelSection, SamplingSection, ScoringSection, SweepSection
from bnuq.evaluation.mistakes import reported_at_once

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
        SectionOptions(ScoringSection, without="recalibration set_coverage"),
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
    if figures is not None:
        from bnuq.report import drawing

        drawing.check()
        drawing.make_folder(figures)
    from bnuq.cli.progress import Bars
    from bnuq.evaluation.setup import threads
    from bnuq.progress import silent
    from bnuq.records.sweep import summary
    from bnuq.report.render import draw_pictures, print_record
    from bnuq.report.sweep import report
    from bnuq.workflows.sweep import sweep

    bars = Bars()
    progress, forecast_listener = (silent, None) if printing.quiet else (bars, bars.forecast_listener)
    with threads(runs[0].threads):
        result = sweep(runs, swept, work=work, progress=progress, forecast_listener=forecast_listener)
    drawn = () if figures is None else draw_pictures(report(result), figures)

    def show(record: Any, stream: TextIO) -> None:
        print_record(report, record, stream)
        print_figures(drawn)

    print_result(
        result, summary=summary, show=show, as_json=printing.json, quiet=printing.quiet, strict=printing.strict
    )
