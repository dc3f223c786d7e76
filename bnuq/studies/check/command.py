"""`bnuq check`: the gate for CI. Is the uncertainty of one result worse than that of another?"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

from bnuq.cli.ci import on_github, workflow_commands_disabled
from bnuq.cli.derived import SectionOptions, with_options
from bnuq.cli.output import RESUMED, Printing, print_result, strict_error
from bnuq.cli.paths import checked_target
from bnuq.cli.streams import discard_stdout, importing, stdout
from bnuq.config import CheckSection, GateSection, section_from
from bnuq.config.schema import Positive, Section, setting
from bnuq.errors import BnuqError, RequestError, ResultError, raise_all
from bnuq.files.content import exists, is_file
from bnuq.files.folders import expanded
from bnuq.findings import Finding, note, warnings

if TYPE_CHECKING:
    from bnuq.gate import CheckVerdict, GateSettings

_FILE = "bnuq.toml"
_REGRESSION = 1  # the exit code of a regression, used for nothing else
_REPORT_STARTS = {  # beginnings of earlier reports, the only existing files that may be replaced
    "--junit": rb"<\?xml [^>]*\?>\s*<testsuites name=\"bnuq check\"",
    "--markdown": rb"## \S+ bnuq check: ",
}


class HistorySection(Section, frozen=True):
    """Earlier results in place of a baseline."""

    history: Annotated[
        str | None,
        setting(
            "Compare with the mean of the last results in this folder that were made before CURRENT, on the same "
            "examples, and test for a decline over all of them.",
            metavar="DIR",
            shown="none",
        ),
    ] = None
    last: Annotated[Positive | None, setting("The number of results of --history.", metavar="K", shown="5")] = None


@with_options(
    settings=(SectionOptions(GateSection), SectionOptions(CheckSection)),
    past=SectionOptions(HistorySection),
    printing=SectionOptions(Printing, "json full quiet strict debug"),
)
def command(
    current: Annotated[
        Path,
        typer.Argument(
            help="The result file to check, of bnuq evaluate or bnuq score.", readable=False, metavar="CURRENT"
        ),
    ],
    baseline: Annotated[
        Path | None,
        typer.Argument(help="The result file that CURRENT is compared with.", readable=False, metavar="BASELINE"),
    ] = None,
    named: Annotated[
        Path | None, typer.Option("--baseline", help="BASELINE, as an option.", metavar="RESULT", show_default=False)
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(help="A run file with a [check] or [gate] section.", metavar="FILE", show_default=f"{_FILE} here"),
    ] = None,
    junit: Annotated[
        Path | None, typer.Option(help="Write a JUnit report.", metavar="FILE", rich_help_panel="Output")
    ] = None,
    markdown: Annotated[
        Path | None,
        typer.Option(
            help="Write the report as Markdown, for a pull request; - prints it.",
            metavar="FILE",
            rich_help_panel="Output",
        ),
    ] = None,
    update: Annotated[
        bool, typer.Option("--update", help="Accept CURRENT as the new baseline; the old one is kept next to it.")
    ] = False,
    *,
    settings: dict[str, Any],
    past: HistorySection,
    printing: Printing,
) -> None:
    """Compare the uncertainty of a result with that of a baseline. Exit code 0: not worse; 1: worse, see the
    report; 2: the two results cannot be compared."""
    to_stdout = markdown == Path("-")
    requested = {"--junit": junit, "--markdown": None if to_stdout else markdown}
    named_config, config = config, expanded(config) if config else Path(_FILE) if is_file(Path(_FILE)) else None
    current, against = expanded(current), baseline or named
    against = against and expanded(against)
    reports = _writable(requested, inputs=(current, against, config))
    try:
        if None not in (baseline, named):
            raise RequestError(f"the baseline was named twice: {baseline} and --baseline {named}.")
        _check_past(past, against, update=update)
        if to_stdout and printing.json:
            raise RequestError("--json and --markdown - both go to standard output; give --markdown a file.")
        requested, notes = _settings(config, named_config, settings)
        from bnuq.cli.progress import progress_of
        from bnuq.progress import stage

        with stage(progress_of(printing), "Comparing the results"):
            verdict = _verdict(current, against, requested, past, update=update, strict=printing.strict)
        verdict = replace(verdict, findings=(*verdict.findings, *notes))
        warned = warnings(verdict.findings)
        refused = printing.strict and bool(warned) and not verdict.failed  # a regression has exit code 1
        if update and not verdict.broken and not refused:
            from bnuq.gate.baseline import accept

            assert against is not None
            verdict = replace(verdict, accepted=against, kept=accept(current, against))
        if refused:
            if not (printing.json or printing.quiet or to_stdout):
                with workflow_commands_disabled(stdout()):
                    _print(verdict, stdout(), full=printing.full)
            raise strict_error(warned, "; the baseline was not changed" if update else "")
    except BnuqError as error:
        _write(reports, str(error))
        _annotate_ci(str(error), marks=None if printing.quiet else sys.stderr)
        raise

    def print_verdict() -> None:
        try:
            _write(reports, verdict)
        finally:  # print the verdict even where a report could not be written
            if to_stdout:
                from bnuq.report.render import markdown
                from bnuq.studies.check.view import report

                stdout().write(markdown(report(verdict, full=printing.full)))
            else:
                from bnuq.gate.records import summary

                show = partial(_print, full=printing.full)
                print_result(verdict, printing, summary=summary, show=show, findings=())  # --strict is dealt with

    _end(verdict, print_verdict, as_json=printing.json or to_stdout, quiet=printing.quiet)


def _end(verdict: CheckVerdict, report: Callable[[], None], *, as_json: bool, quiet: bool) -> None:
    """`report` the verdict, annotate the CI log, and exit with code 1 for a regression.

    The exit code does not depend on the reader: a closed pipe does not turn a regression into a pass.
    """
    try:
        with workflow_commands_disabled(None if as_json or quiet else stdout()):
            report()
        stdout().flush()
    except BrokenPipeError:
        discard_stdout()
    finally:
        marks = None if quiet else sys.stderr if as_json else stdout()
        try:
            _annotate_ci(verdict, marks=marks)
        except BrokenPipeError:  # what is left in the buffer would fail again at the end, with another exit code
            discard_stdout()
    if verdict.failed:
        raise typer.Exit(_REGRESSION)


def _check_past(past: HistorySection, baseline: Path | None, *, update: bool) -> None:
    """Raise RequestError where what CURRENT is compared with, or what is updated, is not clear."""
    if past.history is None and past.last is not None:
        raise RequestError("--last says how many results of a history are used; name its folder by --history DIR.")
    if past.history is not None and (update or baseline is not None):
        raise RequestError(
            "--history takes the place of a BASELINE, and nothing is updated: copy CURRENT into the folder to make it "
            "part of the history."
        )
    if update and baseline is None:
        raise RequestError("--update accepts CURRENT as the new baseline; name the BASELINE.")


def _settings(
    config: Path | None, named: Path | None, options: dict[str, Any]
) -> tuple[GateSettings, tuple[Finding, ...]]:
    """The settings of [check] and [gate], from the named run file or bnuq.toml, overridden by options; and
    notes on them."""
    with importing():
        from bnuq.config import read_run_file
        from bnuq.gate import GateSettings

    file = None if config is None else read_run_file(config)
    section, gate = (None, None) if file is None else (file.check, file.gate)
    is_written = section is not None or gate is not None
    if named is not None and not is_written:
        raise RequestError(f"--config {named} has no [check] and no [gate]. Add one to it, or leave the option out.")
    tolerances, estimates = options.pop("tolerance", ()), options.pop("estimates", ())
    section_from(CheckSection, options)  # refuses what is out of its bounds
    settings = GateSettings.of(
        section, gate, source=config, estimates=estimates, tolerances=tolerances, floors=options.pop("require", ()),
        **options,
    )  # fmt: skip
    return settings, () if not is_written else (note("settings-of-run-file", file=str(config)),)


def _verdict(
    current: Path, baseline: Path | None, settings: GateSettings, past: HistorySection, *, update: bool, strict: bool
) -> CheckVerdict:
    from bnuq.files.apart import start

    start(current, *([] if baseline is None else [baseline]))
    absent = [] if exists(current) else [ResultError(f"{current}: there is no such file. Check the path.")]
    if not (update or baseline is None or exists(baseline)):
        remedy = "Check the path, or make a first one by --update."
        absent.append(ResultError(f"{baseline}: there is no such baseline. {remedy}"))
    raise_all(absent)
    from bnuq.gate import check
    from bnuq.gate.checking import uncompared
    from bnuq.records.evaluation_file import read

    result = read(current)
    if strict and any(finding.code in RESUMED for finding in result.findings):
        raise ResultError(f"{current} was continued from finished parts of an earlier run. Evaluate it as a whole.")
    if past.history is not None:
        from bnuq.gate.baseline import LAST, last_results

        results, notes = last_results(expanded(Path(past.history)), result, settings, last=past.last or LAST)
        verdict = check(result, None, settings, history=results)
        return replace(verdict, findings=(*verdict.findings, *notes))
    if baseline is None:
        return check(result, None, settings)
    if not update:
        return check(result, read(baseline), settings)
    from bnuq.gate.baseline import check_acceptable, held_images

    check_acceptable(current, baseline)
    try:
        verdict = check(result, read(baseline), settings) if exists(baseline) else uncompared(result, settings)
    except ResultError as error:  # another kind of result may be why it is accepted
        verdict = uncompared(result, settings, why=str(error))
    return replace(verdict, findings=(*verdict.findings, *held_images(result)))


def _writable(reports: Mapping[str, Path | None], *, inputs: Iterable[Path | None]) -> dict[str, Path]:
    """The path of each report; RequestError where it would replace another kind of file, an input or the other
    report."""
    occupied = {path.resolve(): "an input file" for path in inputs if path is not None}
    targets = {}
    for option, requested in reports.items():
        if requested is None:
            continue
        if requested == Path("-"):
            raise RequestError(f"{option} - names no file; only Markdown can be printed.")
        path = targets[option] = checked_target(requested, option, "report", _REPORT_STARTS[option])
        if (resolved := path.resolve()) in occupied:
            raise RequestError(f"{option} {requested} would replace {occupied[resolved]}; name another file.")
        occupied[resolved] = "the other report"
    return targets


def _write(reports: Mapping[str, Path], outcome: CheckVerdict | str) -> None:
    """Write the verdict, or the error in its place, to the requested files."""
    if not reports:
        return
    from bnuq.files.writing import write_bytes
    from bnuq.report.render import markdown
    from bnuq.studies.check.ci import junit
    from bnuq.studies.check.view import report

    if "--junit" in reports:
        write_bytes(reports["--junit"], junit(outcome))
    if "--markdown" in reports:
        write_bytes(reports["--markdown"], markdown(report(outcome)).encode("utf-8", "backslashreplace"))


def _print(verdict: CheckVerdict, stream: TextIO, *, full: bool) -> None:
    from bnuq.report.render import print_record
    from bnuq.studies.check.view import report

    print_record(partial(report, full=full), verdict, stream)


def _annotate_ci(outcome: CheckVerdict | str, *, marks: TextIO | None) -> None:
    """Report a verdict, or the error in its place, to GitHub's runners: annotations on the stream `marks`, and Markdown
    in the step's summary."""
    summary = os.environ.get("GITHUB_STEP_SUMMARY")
    if not summary and not on_github():
        return
    from bnuq.files.writing import append_text
    from bnuq.report.render import markdown
    from bnuq.studies.check.ci import annotations
    from bnuq.studies.check.view import report

    if on_github() and marks is not None:
        for line in annotations(outcome):
            print(line, file=marks, flush=True)
    if summary:
        try:
            append_text(Path(summary), markdown(report(outcome)) + "\n")
        except OSError as error:
            typer.echo(f"bnuq: the step summary {summary} could not be written: {error.strerror}.", err=True)
