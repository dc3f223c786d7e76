"""`bnuq check`: the gate for CI. Is the uncertainty of one result worse than that of another?"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

from bnuq.cli.gate import end
from bnuq.cli.options import AsJson, Debug, Quiet, Strict
from bnuq.cli.telling import tell
from bnuq.errors import RequestError, ResultError
from bnuq.files.content import exists, is_file, kind_of
from bnuq.files.folders import expanded

if TYPE_CHECKING:
    from bnuq.gate import Settings, Verdict
    from bnuq.run import CheckSection

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
    current, against = expanded(current), _expanded(baseline or named)
    if update and against is None:
        raise RequestError("--update accepts CURRENT as the new baseline; name the BASELINE.")
    config = _expanded(config) or (Path(_FILE) if is_file(Path(_FILE)) else None)
    section, notes = _section(config)
    settings = Settings.of(section, tolerances=tolerance or (), floors=require or (), allow=allow or ())
    reports = {"--junit": _expanded(junit), "--markdown": _expanded(markdown)}
    _check_writable(reports, inputs=(current, against, config))
    verdict = _verdict(current, against, settings, update=update)
    verdict = replace(verdict, notes=(*verdict.notes, *notes))
    if update and not verdict.broken and not (strict and verdict.cautions):
        from bnuq.gate.accepting import accept

        assert against is not None
        verdict = replace(verdict, accepted=against, kept=accept(current, against))

    def say() -> None:
        try:
            _write(verdict, reports)
        finally:  # a report that could not be written is no cause not to tell
            tell(
                verdict,
                summary=_summary,
                show=_print,
                as_json=as_json,
                quiet=quiet,
                strict=strict and not verdict.failed,  # a regression is told as one, whatever else is to be warned of
            )

    end(verdict, say, as_json=as_json, quiet=quiet)


def _expanded(path: Path | None) -> Path | None:
    return None if path is None else expanded(path)


def _section(config: Path | None) -> tuple[CheckSection | None, tuple[str, ...]]:
    """[check] of the run file that was named, or of bnuq.toml here; and what is to be said of that."""
    from bnuq.run import read_run_file

    if config is None:
        return None, ()
    section = read_run_file(config).check
    if section is None and config != Path(_FILE):
        raise RequestError(f"--config {config} has no [check]. Add one to it, or leave the option out.")
    return section, () if section is None else (f"tolerances and floors as [check] of {config} has them",)


def _verdict(current: Path, baseline: Path | None, settings: Settings, *, update: bool) -> Verdict:
    from bnuq.gate import check
    from bnuq.results.file import read

    found = read(current, log_likelihoods=False)
    if baseline is None:
        return check(found, None, settings)
    if not update:
        return check(found, read(baseline, log_likelihoods=False), settings)
    from bnuq.gate.accepting import check_acceptable
    from bnuq.gate.checking import uncompared

    check_acceptable(current, baseline)
    if not exists(baseline):
        return uncompared(found, settings, why=f"there was no {baseline} to compare it with")
    try:
        return check(found, read(baseline, log_likelihoods=False), settings)
    except ResultError as error:  # what is to be accepted may be of another kind than what was: that is why
        return uncompared(found, settings, why=str(error))


def _check_writable(reports: Mapping[str, Path | None], *, inputs: Iterable[Path | None]) -> None:
    """Raise RequestError where a report would replace a result, what is read, or the other report, or has no folder."""
    taken = {path.resolve(): "what is read, or the baseline" for path in inputs if path is not None}
    for option, path in reports.items():
        if path is None:
            continue
        whole = path.resolve()
        if kind_of(path) == "hdf5":
            raise RequestError(f"{option} {path} would replace a result file; name another.")
        if whole in taken:
            raise RequestError(f"{option} {path} would replace {taken[whole]}; name another.")
        if not whole.parent.is_dir():
            raise RequestError(f"{option} {path}: its folder does not exist. Make the folder first.")
        taken[whole] = "the other report"


def _write(verdict: Verdict, reports: Mapping[str, Path | None]) -> None:
    from bnuq.files.writing import write_bytes

    if (path := reports["--junit"]) is not None:
        from bnuq.report.check import junit

        write_bytes(path, junit(verdict))
    if (path := reports["--markdown"]) is not None:
        from bnuq.report.check import check_markdown

        write_bytes(path, check_markdown(verdict).encode())


def _summary(verdict: Verdict) -> dict[str, Any]:
    from bnuq.gate.summary import summary

    return summary(verdict)


def _print(verdict: Verdict, stream: TextIO) -> None:
    from bnuq.report.check import print_verdict

    print_verdict(verdict, stream)
