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
from bnuq.cli.output import discard_stdout, print_result, stdout
from bnuq.config import Run
from bnuq.errors import BnuqError, RequestError, ResultError
from bnuq.files.content import exists
from bnuq.files.folders import expanded

if TYPE_CHECKING:
    from bnuq.gate import Verdict
    from bnuq.records.evaluation import EvaluatedSet, Result

REGRESSION = 1  # the exit code, and nothing else ever has it


def end(verdict: Verdict, say: Callable[[], None], *, as_json: bool, quiet: bool) -> None:
    """`say` the verdict, tell the CI what it takes, and exit with code 1 where it is one of a regression.

    That code does not depend on whether somebody reads to the end: a closed pipe makes no pass of a regression.
    """
    try:
        with workflow_commands_disabled(None if as_json or quiet else stdout()):
            say()
        stdout().flush()
    except BrokenPipeError:
        discard_stdout()
    finally:
        marks = None if quiet else sys.stderr if as_json else stdout()
        with contextlib.suppress(BrokenPipeError):
            annotate_ci(verdict, marks=marks)
    if verdict.failed:
        raise typer.Exit(REGRESSION)


class Gate:
    """A baseline, read before anything is drawn, and how a result is held against it: by [check] of the run file.

    Raises ResultError for a baseline that cannot be read, or that the request cannot be compared with, and RequestError
    where the result would replace it.
    """

    def __init__(self, baseline: Path, run: Run, *, full: bool, quiet: bool) -> None:
        self._full, self._quiet = full, quiet
        with self._telling_ci():
            self._prepare(baseline, run)

    def _prepare(self, baseline: Path, run: Run) -> None:
        from bnuq.config import read_run_file
        from bnuq.gate import Settings
        from bnuq.gate.compatibility import check_request_comparable
        from bnuq.gate.recomputing import recomputed
        from bnuq.records.evaluation_file import read

        path = expanded(baseline)
        self._baseline = read(path)
        recomputed(self._baseline)
        if exists(run.out) and run.out.samefile(path):
            raise RequestError(f"the result would go to {run.out}, the baseline, which is never replaced; see --out.")
        section = None if run.run_file is None else read_run_file(run.run_file).check
        self._settings = Settings.of(section, source=run.run_file)
        check_request_comparable(run, self._baseline, self._settings)

    def look(self, sets: Mapping[str, EvaluatedSet]) -> None:
        """Raise ResultError where what is to be evaluated holds other points than the baseline."""
        from bnuq.gate.compatibility import check_sets_comparable

        with self._telling_ci():
            check_sets_comparable(sets, self._baseline, self._settings)

    @contextlib.contextmanager
    def _telling_ci(self) -> Iterator[None]:
        """What is refused inside the block is told to the CI, too."""
        try:
            yield
        except BnuqError as error:
            annotate_ci(str(error), marks=None if self._quiet else sys.stderr)
            raise

    def end(self, result: Result, *, as_json: bool, strict: bool) -> None:
        """Print the result and the verdict; exit code 1 where that is one of a regression."""
        from bnuq.records.summary import summary
        from bnuq.report.check import print_verdict
        from bnuq.report.terminal import print_report

        quiet = self._quiet
        try:
            with self._telling_ci():
                verdict = self._verdict(result)
        except ResultError as error:
            if not as_json:  # which is empty after an error
                print_result(
                    result,
                    summary=summary,
                    show=partial(print_report, full=self._full),
                    as_json=False,
                    quiet=quiet,
                    strict=False,
                )
            raise ResultError(f"{error}\n{result.path} was written.") from error

        def told(one: Result) -> dict[str, Any]:
            from bnuq.gate.summary import summary as of_verdict

            return {**summary(one), "check": of_verdict(verdict)}

        def shown(one: Result, stream: TextIO) -> None:
            print_report(one, stream, full=self._full)
            stream.write("\n")
            print_verdict(verdict, stream)

        def say() -> None:
            print_result(
                result,
                summary=told,
                show=shown,
                as_json=as_json,
                quiet=quiet,
                strict=strict and not verdict.failed,
                cautions=(*result.cautions, *verdict.cautions),
            )

        end(verdict, say, as_json=as_json, quiet=quiet)

    def _verdict(self, result: Result) -> Verdict:
        """On the result as its file has it, so that a file that is read again tells the same."""
        from bnuq.gate import check
        from bnuq.records.evaluation_file import read

        assert result.path is not None
        return check(read(result.path), self._baseline, self._settings)
