"""The report of several runs: every estimate over the runs, and which scores differ from 0."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from bnuq.catalogue import advised, noted
from bnuq.estimates import Estimate
from bnuq.findings import warnings
from bnuq.metrics import METRICS, SEPARATIONS, TTest
from bnuq.records.addresses import address_of
from bnuq.records.multirun import Aggregate, Several
from bnuq.report.document import Cell, Heading, Part, PathLine, Report, ReportSection, Row, Table, explanations
from bnuq.report.numbers import count, grouped, headed, named, shown_with, with_error

_ROOMY = 60  # columns from which names are written out
_NORMALIZED = "Normalised scores, percent"
_MANY = 12  # splits or seeds, from which not all are listed


def report(several: Several, *, columns: int = 100) -> Report:
    """The report: every estimate over the runs, and how normalised scores differ from 0."""
    runs = len(several.runs)
    warned = zip(advised(several.findings), warnings(several.findings), strict=True)
    return Report(
        command="bnuq evaluate",
        version=f"{several.provenance['bnuq']}, {count(runs, 'run')}",
        facts=tuple(_facts(several)),
        sections=tuple(_sections(several, roomy=columns >= _ROOMY)),
        warnings=tuple((text, f"{code}, {of.runs} of {runs} runs", todo) for (text, code, todo), of in warned),
        notes=noted(several.findings),
        path=None if several.path is None else PathLine(several.path),
        line=f"{_models(several)} · {count(runs, 'run')} · {max(several.seconds, 1):.0f} s",
        one_screen=tuple(_one_screen(several, roomy=columns >= _ROOMY)),
    )


def _facts(several: Several) -> Iterator[tuple[str, str]]:
    yield "models", _models(several)
    for name in ("split", "seed"):
        numbers = dict.fromkeys(str(value) for run in several.runs if (value := getattr(run, name)) is not None)
        listed = list(numbers)
        if listed:
            yield f"{name}s", ", ".join(listed if len(listed) <= _MANY else [*listed[: _MANY - 2], "…", listed[-1]])
    if several.test_share is not None:
        yield "test share", f"{several.test_share:.3g} test examples per training example"
    yield "time", f"{several.seconds:.1f} s"


def _models(several: Several) -> str:
    models = list(dict.fromkeys(Path(run.record["model"]["checkpoint"]).name for run in several.runs))
    return models[0] if len(models) == 1 else f"{models[0]} … {models[-1]}, {len(models)} checkpoints"


def _one_screen(several: Several, *, roomy: bool) -> Iterator[Part]:
    """The metrics that come first, and how normalised scores differ from 0."""
    whole = _test_table(several, roomy=roomy)
    first = {headed(name, roomy=roomy) for name, metric in METRICS.items() if "headline" in metric.shown}
    yield replace(whole, rows=tuple(row for row in whole.rows if row[0] in first))
    if _has_normalized(several):
        yield from (Heading(_NORMALIZED), _normalized_table(several))
    yield from explanations(_legend(several))


def _sections(several: Several, *, roomy: bool) -> Iterator[ReportSection]:
    title = "Test sets, mean and standard deviation over the runs"
    yield ReportSection(title, (_test_table(several, roomy=roomy),))
    if _has_normalized(several):
        yield ReportSection(_NORMALIZED, (_normalized_table(several),))
    aggregates = several.aggregates.values()
    for name in dict.fromkeys(aggregate["set"] for aggregate in aggregates if aggregate["metric"] in SEPARATIONS):
        yield ReportSection(f"{name}, against the test sets", (_ood_table(several, name),))
    yield ReportSection("", tuple(explanations(_legend(several))))


def _has_normalized(several: Several) -> bool:
    return any(aggregate.normalized for aggregate in several.aggregates.values())


def _test_table(several: Several, *, roomy: bool) -> Table:
    aggregates = several.aggregates
    metrics = dict.fromkeys(aggregate["metric"] for aggregate in aggregates.values() if aggregate["set"] == "test")
    rows = (
        (
            headed(metric, roomy=roomy),
            tuple(_cell(aggregates.get(f"{method}.sets.test.{metric}")) for method in several.methods),
        )
        for metric in metrics
    )
    return Table(tuple(several.methods), tuple(rows), stacks=True)


def _normalized_table(several: Several) -> Table:
    rows: list[Row] = []
    for method in several.methods:
        scores = [each for each in several.aggregates.values() if each.normalized and each["method"] == method]
        rows += [(method, ())] if scores else []
        for aggregate in scores:
            ratio, sd = aggregate.ratio_of_means, aggregate.sd
            cells = (
                _cell(aggregate),
                Cell("–" if ratio is None else grouped(ratio, shown_with(sd, None, [ratio]))),
                Cell(_stars(aggregate.t_test)),
                Cell(_stars(aggregate.nadeau_bengio)),
                Cell(_interval(aggregate.nadeau_bengio)),
            )
            rows.append((f"  {named(aggregate['metric']).removeprefix('normalised ')}", cells))
    return Table(("mean", "of means", "as published", "corrected", "95 % interval"), tuple(rows), stacks=True)


def _ood_table(several: Several, name: str) -> Table:
    rows: list[Row] = []
    for method in several.methods:
        aggregates = (each for each in several.aggregates.values() if (each["method"], each["set"]) == (method, name))
        scores = dict.fromkeys(aggregate["score"] for aggregate in aggregates if aggregate["score"])
        rows += [(method, ())] if scores else []
        for score in scores:
            row = {"method": method, "set": name, "score": score}
            aggregates = (several.aggregates.get(address_of({**row, "metric": metric})) for metric in SEPARATIONS)
            rows.append((f"  {named(score)}", tuple(map(_cell, aggregates))))
    return Table(tuple(map(named, SEPARATIONS)), tuple(rows), stacks=True)


def _legend(several: Several) -> Iterator[str]:
    yield "± standard deviation over the runs. ↑ higher, ↓ lower is better."
    if any(math.isnan(aggregate.mean) for aggregate in several.aggregates.values()):
        yield "NaN: not a number in some run; the warning says in which."
    if not _has_normalized(several):
        return
    bounded = any(aggregate["bound"] for aggregate in several.aggregates.values())
    yield (
        "Normalised scores: 0 is one constant uncertainty for the same predictions, 100 the best possible "
        "uncertainty; negative is worse than constant. Mean: over the ratios of the single runs"
        + ("; of means: the ratio of the mean scores." if bounded else ".")
    )
    yield (
        f"As published: two-sided one-sample t-test over {count(len(several.runs), 'run')}, as in the paper; it treats "
        "overlapping splits as independent and rejects far too often. Corrected: the Nadeau–Bengio test on split "
        "means, with its interval. * p ≤ 0.05, ** ≤ 0.01, *** ≤ 0.001, **** ≤ 0.0001, ns above; the tests are "
        "two-sided, so a star does not mean better."
    )


# ── numbers ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _cell(aggregate: Aggregate | None) -> Cell:
    """Mean and standard deviation over the runs, to two digits of it."""
    if aggregate is None:
        return Cell("–")
    if math.isnan(aggregate.mean):
        return Cell("NaN")
    return with_error(Estimate(aggregate.mean, None if math.isnan(aggregate.sd) else aggregate.sd), None)


def _stars(test: TTest | None) -> str:
    if test is None or math.isnan(test.p):
        return "n/a"
    return f"{test.stars} p {'< 0.0001' if test.p < 0.0001 else f'{test.p:.2g}'}"


def _interval(test: TTest | None) -> str:
    if test is None or math.isnan(test.se):
        return "n/a"
    return " to ".join(grouped(end, shown_with(test.se, None, [test.se])) for end in test.interval())
