"""`bnuq evaluate`: draws samples of a trained network, scores them, and measures how well OOD sets are separated."""

from __future__ import annotations

import os
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from shutil import get_terminal_size
from typing import Annotated, Any, TextIO

import typer

from bnuq.cli.derived import SectionOptions, with_options
from bnuq.cli.options import Models, WorkPlace
from bnuq.cli.output import Printing, print_result
from bnuq.cli.progress import progress_of
from bnuq.cli.streams import importing, stdout
from bnuq.config import Options, Run, Runs, resolve_again, resolve_all, resolve_all_again, resolve_ensemble
from bnuq.config.schema import (
    CertificateSection,
    DataSection,
    GivenOptions,
    ModelSection,
    SamplingSection,
    ScoringSection,
)
from bnuq.errors import RequestError
from bnuq.evaluation.completeness import reported_at_once


@with_options(
    options=(
        SectionOptions(DataSection),
        SectionOptions(ModelSection),
        SectionOptions(SamplingSection),
        SectionOptions(ScoringSection, without="shift_window shift_loss"),
        SectionOptions(CertificateSection),
        SectionOptions(GivenOptions),
    ),
    printing=SectionOptions(Printing),
)
def command(
    model: Models = None,
    again: Annotated[
        Path | None,
        typer.Option("--from", help="Repeat the run of this result file.", metavar="RESULT", rich_help_panel="Data"),
    ] = None,
    work: WorkPlace = None,
    *,
    options: Options,
    printing: Printing,
) -> None:
    """Evaluate the uncertainty of a trained network: how large it is, whether it is calibrated, and whether it
    separates unfamiliar data from the test set. Writes one HDF5 file and prints a report."""
    with importing():
        from bnuq.workflows.requests import check_evaluation, check_several

    with reported_at_once():
        runs = _runs(model or (), again, options)
    if runs is not None:
        check_several(runs, reading=False)  # before torch is imported
        progress = progress_of(printing, needs_torch=True)
        from bnuq.evaluation.setup import threads
        from bnuq.records import multirun
        from bnuq.report.multirun import report
        from bnuq.report.render import print_record
        from bnuq.workflows.multirun import evaluate_several

        with threads(runs.all[0].run.threads):
            aggregate = evaluate_several(runs, work=work, progress=progress)
        print_result(aggregate, printing, summary=multirun.summary, show=partial(print_record, report))
        return
    with reported_at_once():
        run = _run(model or (), again, options)
    check_evaluation(run, work, reading=False)  # before torch is imported
    evaluate_one(run, work, printing)


def evaluate_one(run: Run, work: str | None, printing: Printing, *, announces: bool = False) -> None:
    """Evaluate one run and print its report. Where it `announces`, it says on stderr how large the changed sets are
    before it starts."""
    with importing():
        progress = progress_of(printing, needs_torch=True)
        from bnuq.evaluation.setup import threads
        from bnuq.records.summary import summary
        from bnuq.workflows.evaluate import evaluate

    announce = partial(typer.echo, err=True) if announces and not printing.quiet else None
    with threads(run.threads), answering(printing) as answer:
        result = evaluate(run, work=work, progress=progress, announce=announce, answer=answer)
    print_result(result, printing, summary=summary, show=partial(_print, full=printing.full))


@contextmanager
def answering(printing: Printing) -> Iterator[Callable[..., None] | None]:
    """Says on a terminal what is known of the network before samples are drawn, until the report can follow, which
    says it all; None where nobody waits for it."""
    if printing.json or printing.quiet or not (sys.stderr.isatty() and stdout().isatty()):
        yield None
        return
    from bnuq.report.first_screen import answer

    lines: list[str] = []

    def say(*known: Any) -> None:
        columns = min(80, get_terminal_size().columns)
        lines.extend(line for text in answer(*known).splitlines() for line in textwrap.wrap(text, columns))
        typer.echo("\n".join(lines), err=True)

    yield say
    if lines and os.environ.get("TERM") not in ("dumb", "unknown"):
        typer.echo(f"\x1b[{len(lines)}F\x1b[J", err=True, nl=False)


def _print(result: Any, stream: TextIO, *, full: bool) -> None:
    from bnuq.report.evaluation import report  # late: with --quiet and --json no report is made
    from bnuq.report.render import print_record

    print_record(report, result, stream, full=full)


def _runs(models: Sequence[str], again: Path | None, options: Options) -> Runs | None:
    """The runs of a run file with [runs], or of an aggregate; None where a single run is requested."""
    if again is None:
        return resolve_all(models, options, folder=Path.cwd())
    from bnuq.records.multirun import read
    from bnuq.store.codec import kind_of_result

    if models or kind_of_result(again) != "several":
        return None
    recorded = [(run.split, run.seed, dict(run.record)) for run in read(again).runs]
    return resolve_all_again(recorded, again.resolve(), options, folder=Path.cwd())


def _run(models: Sequence[str], again: Path | None, options: Options) -> Run:
    if again is None:
        return resolve_ensemble(models, options, folder=Path.cwd())
    if models:
        raise RequestError(f"--from {again} repeats the run of a result file; leave out the model ({models[0]}).")
    from bnuq.records.evaluation_file import read

    return resolve_again(dict(read(again).run), again.resolve(), options, folder=Path.cwd())
