"""`bnuq score`: scores predictions that other software made, without a network."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from bnuq.cli.derived import SectionOptions, with_options
from bnuq.cli.output import Printing, print_result
from bnuq.cli.progress import progress_of
from bnuq.config import CertificateSection, SamplingSection, ScoreSection, ScoringSection
from bnuq.errors import RequestError
from bnuq.files.folders import expanded


@with_options(
    section=SectionOptions(ScoreSection),
    sampling=SectionOptions(SamplingSection, "seed mutual_information calibrate"),
    scoring=SectionOptions(ScoringSection, without="shift_window shift_loss"),
    certificate=SectionOptions(CertificateSection),
    printing=SectionOptions(Printing),
)
def command(
    predictions: Annotated[
        list[str],
        typer.Argument(
            help="A file of predictions: .npz, .npy, CSV, parquet or JSON lines; or several, which are compared. "
            "NAME=FILE names its method.",
            metavar="PREDICTIONS",
        ),
    ],
    *,
    section: ScoreSection,
    sampling: SamplingSection,
    scoring: ScoringSection,
    certificate: CertificateSection,
    printing: Printing,
) -> None:
    """Score predictions that any software made: calibration, errors, and separation of unfamiliar data. Writes one HDF5
    file and prints a report."""
    from bnuq.records.summary import summary
    from bnuq.report.evaluation import report
    from bnuq.report.render import print_record
    from bnuq.studies.score.compute import score
    from bnuq.studies.score.request import ScoreRequest, method_name, sets_named

    named = [method_name(text) for text in predictions]
    if len({name for name, _ in named}) < len(named):
        raise RequestError("two files of predictions have one name; tell them apart: NAME=FILE.")
    out = expanded(section.out) if section.out else Path(f"{named[0][0]}.score.h5")
    request = ScoreRequest(
        dict(named), out, section.labels, sets_named(section.ood), section.validation, section, sampling, scoring,
        certificate,
    )  # fmt: skip
    result = score(request, progress_of(printing))
    print_result(result, printing, summary=summary, show=partial(print_record, report, full=printing.full))
