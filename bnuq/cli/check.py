"""`bnuq check`: the gate for CI. Is the uncertainty of one result worse than that of another?"""

from __future__ import annotations

import contextlib
import os
import secrets
import sys
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TextIO

import typer

from bnuq.cli.options import AsJson, Debug, Quiet, Strict
from bnuq.cli.telling import tell
from bnuq.errors import RequestError, ResultError
from bnuq.files.content import exists, is_file, kind_of
from bnuq.files.folders import expanded

if TYPE_CHECKING:
    from bnuq.gate import Settings, Verdict
    from bnuq.run import CheckSection

REGRESSION = 1  # the exit code, and nothing else ever has it
_FILE = "bnuq.toml"


def command(
    current: Annotated[Path, typer.Argument(help="The result file to check, of bnuq evaluate.", show_default=False)],
    baseline: Annotated[
        Path | None, typer.Argument(help="The result file that it must not be worse than.", show_default=False)
    ] = None,
    named: Annotated[
        Path | None, typer.Option("--baseline", help="The same, as an option.", metavar="RESULT", show_default=False)
    ] = None,
    tolerance: Annotated[
        list[str] | None,
        typer.Option(
            help="How much worse a figure may be: pll=0.01, rmse=2%, auroc=2se (standard errors), fpr95=off; for a "
            "metric, or for addresses: mcbn.ood.*.auroc=0.02. Repeat it.",
            metavar="METRIC=AMOUNT",
            show_default="by metric; see bnuq metrics",
        ),
    ] = None,
    require: Annotated[
        list[str] | None,
        typer.Option(
            help="A floor, with or without a baseline: mcbn.ood.svhn.mutual_information.auroc>=0.85. Repeat it.",
            metavar="ADDRESS>=NUMBER",
            show_default=False,
        ),
    ] = None,
    allow: Annotated[
        list[str] | None,
        typer.Option(
            help="What may differ all the same: samples, batch-size, scoring, data, data:SET, missing:ADDRESS (as "
            "missing:mcdo). Repeat it.",
            metavar="NAME",
            show_default=False,
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(help="A run file whose [check] says all that.", metavar="FILE", show_default=f"{_FILE} here"),
    ] = None,
    junit: Annotated[Path | None, typer.Option(help="Write a JUnit report.", metavar="FILE")] = None,
    markdown: Annotated[
        Path | None, typer.Option(help="Write it as Markdown, for a pull request.", metavar="FILE")
    ] = None,
    update: Annotated[
        bool,
        typer.Option("--update", help="Accept CURRENT as the new baseline; the old one is kept beside it."),
    ] = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
    strict: Strict = False,
    debug: Debug = False,  # noqa: ARG001 - read by main
) -> None:
    """Is the uncertainty worse than the baseline's? Exit code 0: no; 1: yes, and the report says what; 2: the two
    cannot be compared."""
    from bnuq.gate import Settings

    if None not in (baseline, named):
        raise RequestError(f"the baseline was named twice: {baseline} and --baseline {named}.")
    against = baseline or named
    if update and against is None:
        raise RequestError("--update accepts CURRENT as the new baseline; name the BASELINE.")
    section, note = _section(config)
    settings = Settings.of(section, tolerances=tolerance or (), floors=require or (), allow=allow or ())
    files = (_writable(junit, "--junit", (current, against)), _writable(markdown, "--markdown", (current, against)))
    verdict = _verdict(current, against, settings, update=update)
    verdict = replace(verdict, notes=(*verdict.notes, *note))
    if update and not verdict.broken and not (strict and verdict.cautions):
        from bnuq.gate.accepting import accept

        assert against is not None
        verdict = replace(verdict, accepted=against, kept=accept(current, against))
    _write_files(verdict, *files)
    from bnuq.gate.summary import summary
    from bnuq.report.check import print_verdict

    strict = strict and not verdict.failed  # a regression is told as one, whatever else there is to warn of
    with quoted(as_json=as_json, quiet=quiet):
        tell(verdict, summary=summary, show=print_verdict, as_json=as_json, quiet=quiet, strict=strict)
    leave(verdict, as_json=as_json, quiet=quiet)


def _section(config: Path | None) -> tuple[CheckSection | None, tuple[str, ...]]:
    """[check] of the run file that was named, or of bnuq.toml here; and what is to be said of that."""
    from bnuq.run import read_run_file

    if config is not None:
        return read_run_file(expanded(config)).check, ()
    if is_file(Path(_FILE)):
        section = read_run_file(Path(_FILE)).check
        return section, (() if section == type(section)() else (f"tolerances and floors as {_FILE} here has them",))
    return None, ()


def _verdict(current: Path, baseline: Path | None, settings: Settings, *, update: bool) -> Verdict:
    from bnuq.gate import check
    from bnuq.results.file import read

    found = read(expanded(current), log_likelihoods=False)
    if baseline is None:
        return check(found, None, settings)
    if not update:
        return check(found, read(expanded(baseline), log_likelihoods=False), settings)
    from bnuq.gate.accepting import check_acceptable
    from bnuq.gate.checking import uncompared

    check_acceptable(expanded(current), expanded(baseline))
    if not exists(expanded(baseline)):
        return uncompared(found, settings, why=f"there was no {baseline} to compare it with")
    try:
        return check(found, read(expanded(baseline), log_likelihoods=False), settings)
    except ResultError as error:  # what is to be accepted may be of another kind than what was: that is why
        return uncompared(found, settings, why=str(error))


def _writable(path: Path | None, option: str, inputs: Iterable[Path | None]) -> Path | None:
    """Where a report goes; RequestError where that would replace a result."""
    if path is None:
        return None
    target = expanded(path)
    if kind_of(target) == "hdf5":
        raise RequestError(f"{option} {path} would replace a result file; name another.")
    if any(given is not None and target.absolute() == expanded(given).absolute() for given in inputs):
        raise RequestError(f"{option} {path} would replace what is to be read; name another.")
    return target


def _write_files(verdict: Verdict, junit: Path | None, markdown: Path | None) -> None:
    from bnuq.files.writing import write_bytes

    if junit is not None:
        from bnuq.report.check import junit as as_junit

        write_bytes(junit, as_junit(verdict))
    if markdown is not None:
        from bnuq.report.check import check_markdown

        write_bytes(markdown, check_markdown(verdict).encode())


@contextlib.contextmanager
def quoted(*, as_json: bool, quiet: bool) -> Iterator[None]:
    """What is printed inside the block is no command to GitHub's runners, whatever texts of a file are in it."""
    if as_json or quiet or not _on_github():
        yield
        return
    word = secrets.token_hex(8)
    print(f"::stop-commands::{word}")
    try:
        yield
    finally:
        print(f"::{word}::")


def _on_github() -> bool:
    return os.environ.get("GITHUB_ACTIONS") == "true"


def leave(verdict: Verdict, *, as_json: bool, quiet: bool) -> None:
    """Tell the CI what it takes, and exit with code 1 where the verdict is one of a regression."""
    _tell_ci(verdict, marks=None if quiet else sys.stderr if as_json else sys.stdout)
    if verdict.failed:
        raise typer.Exit(REGRESSION)


def _tell_ci(verdict: Verdict, *, marks: TextIO | None) -> None:
    """What GitHub's runners take: annotations in the log, on the stream `marks`, and Markdown in the step's summary."""
    if _on_github() and marks is not None:
        from bnuq.report.check import annotations

        for line in annotations(verdict):
            print(line, file=marks)
    if place := os.environ.get("GITHUB_STEP_SUMMARY"):
        from bnuq.report.check import check_markdown

        try:
            with Path(place).open("a", encoding="utf-8") as file:
                file.write(check_markdown(verdict) + "\n")
        except OSError as error:
            typer.echo(f"bnuq: the step summary {place} could not be written: {error.strerror}.", err=True)
