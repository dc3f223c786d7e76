"""`bnuq evaluate --baseline`: a result held against a baseline that was read before anything was drawn."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from bnuq.cli.check import leave, quoted
from bnuq.cli.telling import tell
from bnuq.errors import RequestError
from bnuq.files.content import exists
from bnuq.files.folders import expanded
from bnuq.run import Run

if TYPE_CHECKING:
    from bnuq.results.result import EvaluatedSet, Result


class Gate:
    """The baseline, and how a result is held against it: by [check] of the run file.

    Raises ResultError for a baseline that cannot be read, or that the request cannot be compared with, and RequestError
    where the result would replace it.
    """

    def __init__(self, baseline: Path, run: Run) -> None:
        from bnuq.gate import Settings
        from bnuq.gate.comparability import check_request_comparable
        from bnuq.results.file import read
        from bnuq.run import read_run_file

        path = expanded(baseline)
        self._baseline = read(path, log_likelihoods=False)
        if exists(run.out) and run.out.samefile(path):
            raise RequestError(f"the result would go to {run.out}, the baseline, which is never replaced; see --out.")
        self._settings = Settings.of(None if run.run_file is None else read_run_file(run.run_file).check)
        check_request_comparable(run, self._baseline, self._settings)

    def look(self, sets: Mapping[str, EvaluatedSet]) -> None:
        """Raise ResultError where what is to be evaluated holds other points than the baseline."""
        from bnuq.gate.comparability import check_sets_comparable

        check_sets_comparable(sets, self._baseline, self._settings)

    def tell(self, result: Result, *, as_json: bool, quiet: bool, strict: bool) -> None:
        """Print the result and the verdict; exit code 1 where that is one of a regression."""
        from bnuq.gate import check
        from bnuq.gate import summary as verdict_summary
        from bnuq.report.check import print_verdict
        from bnuq.report.terminal import print_report
        from bnuq.results.file import read
        from bnuq.results.summary import summary

        assert result.path is not None
        # As its file has it, so that a file that is read again tells the same.
        verdict = check(read(result.path, log_likelihoods=False), self._baseline, self._settings)

        def told(one: Result) -> dict[str, Any]:
            return {**summary(one), "check": verdict_summary.summary(verdict)}

        def shown(one: Result, stream: TextIO) -> None:
            print_report(one, stream)
            stream.write("\n")
            print_verdict(verdict, stream)

        cautions = (*result.cautions, *verdict.cautions)
        strict = strict and not verdict.failed
        with quoted(as_json=as_json, quiet=quiet):
            tell(result, summary=told, show=shown, as_json=as_json, quiet=quiet, strict=strict, cautions=cautions)
        leave(verdict, as_json=as_json, quiet=quiet)
