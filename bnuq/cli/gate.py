"""The gate of `bnuq check` and `bnuq evaluate --baseline`: how a verdict ends a command."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import typer

from bnuq.cli.ci import annotate_ci, workflow_commands_disabled
from bnuq.cli.output import Printing, print_result, with_resuming_as_warning, without_strict
from bnuq.cli.streams import discard_stdout, stdout
from bnuq.config import Run
from bnuq.errors import BnuqError, RequestError, ResultError
from bnuq.files.content import exists
from bnuq.files.folders import expanded

if TYPE_CHECKING:
    from bnuq.gate import CheckVerdict
    from bnuq.records.evaluation import EvaluatedSet, Result

REGRESSION = 1  # the exit code of a regression, used for nothing else


def end(verdict: CheckVerdict, report: Callable[[], None], *, as_json: bool, quiet: bool) -> None:
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
            annotate_ci(verdict, marks=marks)
        except BrokenPipeError:  # what is left in the buffer would fail again at the end, with another exit code
            discard_stdout()
    if verdict.failed:
        raise typer.Exit(REGRESSION)


class Gate:
    """A baseline, which is read before anything is drawn, and the comparison of a result with it, by [check] of the run
    file.

    Raises ResultError for a baseline that cannot be read or compared with the request, and RequestError where the
    result would replace it.
    """

    def __init__(self, baseline: Path, run: Run, printing: Printing) -> None:
        self._printing = printing
        with self._annotating_ci():
            self._prepare(baseline, run)

    def _prepare(self, baseline: Path, run: Run) -> None:
        from bnuq.config import read_run_file
        from bnuq.gate import GateSettings
        from bnuq.gate.compatibility import check_request_comparable
        from bnuq.gate.recomputing import recomputed
        from bnuq.records.evaluation_file import read

        path = expanded(baseline)
        self._baseline = read(path)
        recomputed(self._baseline)
        if exists(run.out) and run.out.samefile(path):
            raise RequestError(f"the result would go to {run.out}, the baseline, which is never replaced; see --out.")
        section = None if run.run_file is None else read_run_file(run.run_file).check
        self._settings = GateSettings.of(section, source=run.run_file)
        check_request_comparable(run, self._baseline, self._settings)

    def check_sets(self, sets: Mapping[str, EvaluatedSet]) -> None:
        """Raise ResultError where the sets to be evaluated hold different points than the baseline's."""
        from bnuq.gate.compatibility import check_sets_comparable

        with self._annotating_ci():
            check_sets_comparable(sets, self._baseline, self._settings)

    @contextlib.contextmanager
    def _annotating_ci(self) -> Iterator[None]:
        """Errors inside the block are also reported to the CI."""
        try:
            yield
        except BnuqError as error:
            annotate_ci(str(error), marks=None if self._printing.quiet else sys.stderr)
            raise

    def end(self, result: Result) -> None:
        """Print the result and the verdict; exit with code 1 for a regression."""
        from bnuq.records.summary import summary
        from bnuq.report import check, evaluation
        from bnuq.report.render import print_record

        printing, full, result = self._printing, self._printing.full, with_resuming_as_warning(result)
        try:
            with self._annotating_ci():
                verdict = self._verdict(result)
        except ResultError as error:
            if not printing.json:  # JSON output is empty after an error
                alone = partial(print_record, evaluation.report, full=full)
                print_result(result, without_strict(printing), summary=summary, show=alone)
            raise ResultError(f"{error}\n{result.path} was written.") from error

        def summary_with_verdict(result: Result) -> dict[str, Any]:
            from bnuq.gate.records import summary as check_summary

            return {**summary(result), "check": check_summary(verdict)}

        def show(result: Result, stream: TextIO) -> None:
            print_record(evaluation.report, result, stream, full=full)
            stream.write("\n")
            print_record(check.report, verdict, stream)

        def report() -> None:
            how = without_strict(printing) if verdict.failed else printing
            findings = (*result.findings, *verdict.findings)
            print_result(result, how, summary=summary_with_verdict, show=show, findings=findings)

        end(verdict, report, as_json=printing.json, quiet=printing.quiet)

    def _verdict(self, result: Result) -> CheckVerdict:
        """The verdict on the result as read from its file, so that a later `bnuq check` of the file agrees."""
        from bnuq.gate import check
        from bnuq.records.evaluation_file import read

        assert result.path is not None
        return check(read(result.path), self._baseline, self._settings)
