"""The report of several evaluations side by side.

A column is a result, by its name; a row is an estimate of a method on a set; a dash stands for what a result has not.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bnuq.catalogue import advised
from bnuq.findings import sentence, warnings
from bnuq.metrics import METRICS, SEPARATIONS
from bnuq.records.evaluation import Result
from bnuq.records.summary import SCHEMA
from bnuq.records.summary import summary as summary_of
from bnuq.report import tasks
from bnuq.report.comparison.findings import SENTENCES, findings, setting_findings
from bnuq.report.comparison.lookup import Results, methods_of, ood_names, separations
from bnuq.report.comparison.plots import pictures
from bnuq.report.comparison.settings import compared
from bnuq.report.document import Heading, Items, Part, PathLine, Picture, Report, Row, Section, Table, dim, section
from bnuq.report.numbers import count, digits_of, headed, named, share_with_error, with_error
from bnuq.report.provenance import origin


def report(results: Results, *, columns: int = 100) -> Report:  # noqa: ARG001 - every report has it
    """The report: settings that differ, how the results rank, every estimate of all, and their pictures."""
    warned = (
        (f"{name}: {text}", code, todo)
        for name, result in results.items()
        for text, code, todo in advised(result.findings)
    )
    return Report(
        command=f"bnuq report: {len(results)} results side by side",
        facts=tuple((name, ", ".join(_facts(result))) for name, result in results.items()),
        summary=tuple(sentence(finding, SENTENCES) for finding in findings(results)),
        sections=tuple(_sections(results)),
        warnings=tuple(warned),
    )


def summary(results: Results) -> dict[str, Any]:
    """All summaries by name, and settings that differ, as JSON values."""
    differences = [
        {"what": setting.what, "values": dict(setting.values)} for setting in compared(results) if setting.differs
    ]
    return {
        "schema": SCHEMA,
        "command": "report",
        "results": {name: summary_of(result) for name, result in results.items()},
        "differences": differences,
    }


def _facts(result: Result) -> Iterator[str]:
    sampling = result.sampling
    yield Path(str(result.model["path"])).name
    if result.sampled:
        size = "" if sampling["batch_size"] is None else f", b = {sampling['batch_size']}"
        yield f"T = {sampling['samples']}{size}, seed {sampling['seed']}"
    yield f"{result.sets['test'].n} test points"
    if warned := warnings(result.findings):
        yield count(len(warned), "warning")
    if result.path is not None:
        yield str(result.path)


def _sections(results: Results) -> Iterator[Section]:
    settings = compared(results)
    texts = tuple(sentence(finding, SENTENCES) for finding in setting_findings(results, settings))
    differ = any(setting.differs for setting in settings)
    yield Section("Settings that differ" if differ else "Settings", (Items(texts),))
    drawn = tuple(pictures(results))

    def of_kind(*kinds: str) -> tuple[Picture, ...]:
        return tuple(picture for picture in drawn if picture.kind[0] in kinds)

    yield Section("Test sets", (estimates_table(results), *dim(_legend(results))))
    yield from section("Calibration", of_kind("calibration", "interval_calibration"))
    yield from section("Error against coverage", of_kind("risk_coverage"))
    for name in ood_names(results):
        of_set = [picture for picture in of_kind("ood", "roc") if picture.kind[1] == name]
        yield Section(f"{name} against the test sets", (*of_set, *ood_tables(results, name)))
    yield from section("Over the number of samples", of_kind("convergence"))
    parts = (part for name, result in results.items() for part in _provenance(name, result))
    yield from section("Provenance", parts, only_on_page=True)


def _provenance(name: str, result: Result) -> Iterator[Part]:
    yield Heading(name)
    yield origin(result)
    if result.path is not None:
        yield PathLine(result.path)


def estimates_table(results: Results) -> Table:
    """Every estimate of the test set, method by method."""
    rows: list[Row] = []
    for method in methods_of(results):
        columns = [result.methods.get(method) for result in results.values()]
        rows.append((method, ()))
        for metric in METRICS:
            estimates = [None if column is None else column.sets["test"].estimates.get(metric) for column in columns]
            if any(estimates):
                digits = digits_of(metric, (estimate.value for estimate in estimates if estimate))
                rows.append((f"  {headed(metric)}", tuple(with_error(estimate, digits) for estimate in estimates)))
        for metric in ("crps", "pll"):
            shares = [None if column is None else column.normalized.get(metric) for column in columns]
            if any(shares):
                rows.append((f"  ↑ normalised {named(metric)}", tuple(map(share_with_error, shares))))
    return Table(tuple(results), tuple(rows), stacks=True)


def ood_tables(results: Results, name: str) -> Iterator[Table]:
    """How well the set is separated, by every score of every method: a table for each of AUROC, AUPR and FPR95."""
    for metric in SEPARATIONS:
        rows: list[Row] = []
        for method in methods_of(results):
            columns = [separations(result, method, name) for result in results.values()]
            scores = dict.fromkeys(score for column in columns for score in column)
            rows += [(f"{headed(metric)}, {method}", ())] if scores else []
            for score in scores:
                cells = (with_error(column.get(score, {}).get(metric)) for column in columns)
                rows.append((f"  by {named(score)}", tuple(cells)))
        if rows:
            yield Table(tuple(results), tuple(rows), stacks=True)


def _legend(results: Results) -> Iterator[str]:
    yield "± standard error over points and samples together. ↑ higher, ↓ lower is better."
    yield from dict.fromkeys(text for result in results.values() for text in tasks.legend(result))
