"""The report of several runs on a terminal: every estimate over the runs, and which scores differ from 0."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from bnuq.findings import warnings
from bnuq.metrics import SEPARATIONS, TTest
from bnuq.records.multirun import Aggregate, Several
from bnuq.report.numbers import headed, named
from bnuq.report.parts import (
    GAP,
    Advice,
    Cell,
    Facts,
    Items,
    Paragraph,
    Part,
    PathLine,
    Row,
    Table,
    columns_of,
    draw,
    title,
)
from bnuq.report.remedies import advised, noted

_ROOMY = 60  # columns from which names are written out


def print_several(several: Several, stream: TextIO, *, width: int | None = None) -> None:
    """Draw the report on `stream`: in colour on a terminal, plain in a pipe, in ASCII where the encoding needs it."""
    columns = columns_of(stream, width)
    draw(report_parts(several, roomy=columns >= _ROOMY), stream, columns)


def report_parts(several: Several, *, roomy: bool = True) -> Iterator[Part]:
    """What the report is made of."""
    yield title(f"bnuq evaluate  {several.provenance['bnuq']}, {_runs(several)}")
    yield Facts(tuple(_facts(several)))
    yield from (GAP, title("Test sets, mean and standard deviation over the runs"), _test_table(several, roomy=roomy))
    if any(aggregate.normalized for aggregate in several.aggregates.values()):
        yield from (GAP, title("Normalised scores, percent"), _normalized_table(several))
    for name in _ood_names(several):
        yield from (GAP, title(f"{name}, against the test sets"), _ood_table(several, name))
    yield GAP
    yield from (Paragraph(text, "dim") for text in _legend(several))
    if advice := advised(several.findings):
        yield from (GAP, title("Warnings", "bold yellow"))
        count = len(several.runs)
        rows = zip(advice, warnings(several.findings), strict=True)
        yield Advice(tuple((text, f"{code}, {of.runs} of {count} runs", todo) for (text, code, todo), of in rows))
    if texts := noted(several.findings):
        yield from (GAP, title("Notes"), Items(texts))
    if several.path is not None:
        yield from (GAP, PathLine(several.path))


def _runs(several: Several) -> str:
    count = len(several.runs)
    return f"{count} run{'' if count == 1 else 's'}"


def _facts(several: Several) -> Iterator[tuple[str, str]]:
    models = list(dict.fromkeys(Path(run.record["model"]["checkpoint"]).name for run in several.runs))
    yield "models", models[0] if len(models) == 1 else f"{models[0]} … {models[-1]}, {len(models)} checkpoints"
    for name in ("split", "seed"):
        listed = list(dict.fromkeys(str(n) for run in several.runs if (n := getattr(run, name)) is not None))
        if listed:
            yield f"{name}s", ", ".join(listed if len(listed) <= 12 else [*listed[:10], "…", listed[-1]])
    if several.test_share is not None:
        yield "test share", f"{several.test_share:.3g} test points per training point"
    yield "time", f"{several.seconds:.1f} s"


def _test_table(several: Several, *, roomy: bool) -> Table:
    metrics = list(dict.fromkeys(a["metric"] for a in several.aggregates.values() if a["set"] == "test"))
    methods = several.methods
    rows = tuple(
        (
            headed(metric, roomy=roomy),
            tuple(_cell(several.aggregates.get(f"{method}.sets.test.{metric}")) for method in methods),
        )
        for metric in metrics
    )
    return Table(tuple(methods), rows, stacks=True)


def _cell(found: Aggregate | None) -> Cell:
    if found is None or not (found.values == found.values).any():
        return Cell("–")
    return Cell(_number(found.mean), "" if math.isnan(found.sd) else f"±{_number(found.sd)}")


def _normalized_table(several: Several) -> Table:
    rows: list[Row] = []
    for method in several.methods:
        scores = {a["metric"]: a for a in several.aggregates.values() if a.normalized and a["method"] == method}
        rows += [(method, ())] if scores else []
        for metric, found in scores.items():
            ratio = found.ratio_of_means
            cells = (
                _cell_of_percent(found.mean, found.sd),
                Cell(_percent(ratio) if ratio is not None else "–"),
                Cell(_marked(found.t_test)),
                Cell(_marked(found.nadeau_bengio)),
                Cell(_interval(found.nadeau_bengio)),
            )
            rows.append((f"  {named(metric).removeprefix('normalised ')}", cells))
    return Table(("mean", "of means", "as published", "corrected", "95 % interval"), tuple(rows), stacks=True)


def _cell_of_percent(mean: float, sd: float) -> Cell:
    return Cell(_percent(mean), "" if math.isnan(sd) else f"±{_percent(sd)}")


def _marked(test: TTest | None) -> str:
    if test is None or math.isnan(test.p):
        return "n/a"
    return f"{test.stars} p {'< 0.0001' if test.p < 0.0001 else f'{test.p:.2g}'}"


def _interval(test: TTest | None) -> str:
    if test is None or math.isnan(test.se):
        return "n/a"
    low, high = test.interval()
    return f"{_percent(low)} to {_percent(high)}"


def _ood_names(several: Several) -> list[str]:
    """The sets that were told apart from the test set, in their order."""
    return list(dict.fromkeys(a["set"] for a in several.aggregates.values() if a["score"]))


def _ood_table(several: Several, name: str) -> Table:
    rows: list[Row] = []
    for method in several.methods:
        of_method = (a for a in several.aggregates.values() if a["method"] == method and a["set"] == name)
        scores = list(dict.fromkeys(a["score"] for a in of_method if a["score"]))
        rows += [(method, ())] if scores else []
        for score in scores:
            found = (several.aggregates.get(f"{method}.ood.{name}.{score}.{metric}") for metric in SEPARATIONS)
            rows.append((f"  {named(score)}", tuple(map(_cell, found))))
    return Table(tuple(map(named, SEPARATIONS)), tuple(rows), stacks=True)


def _legend(several: Several) -> Iterator[str]:
    yield "± standard deviation over the runs. ↑ higher, ↓ lower is better."
    if any(aggregate.normalized for aggregate in several.aggregates.values()):
        bounded = any(aggregate["bound"] for aggregate in several.aggregates.values())
        yield (
            "Normalised scores: 0 is one constant uncertainty for the same predictions, 100 the best possible "
            "uncertainty; negative is worse than constant. Mean: over the ratios of the single runs"
            + ("; of means: the ratio of the mean scores." if bounded else ".")
        )
        yield (
            f"As published: two-sided one-sample t-test over {_runs(several)}, as in the paper; it treats "
            "overlapping splits as independent and rejects far too often. Corrected: the Nadeau–Bengio test on "
            "split means, with its interval. * p ≤ .05, ** ≤ .01, *** ≤ .001, **** ≤ .0001, ns above; the tests "
            "are two-sided, so a star does not mean better."
        )


def _percent(value: float) -> str:
    if not math.isfinite(value):
        return _number(value)
    return (f"{value:.2f}" if abs(value) < 1000 else f"{value:.3g}").replace("-", "−")


def _number(value: float) -> str:
    if math.isnan(value):
        return "n/a"
    if not math.isfinite(value):
        return str(value).replace("-", "−")
    large, small = abs(value) >= 1000, 0 < abs(value) < 0.00005
    text = (
        f"{value:.4g}" if large else f"{value:.1e}" if small else f"{value:.4f}" if abs(value) < 10 else f"{value:.3f}"
    )
    return text.replace("-", "−")
