"""The table of the verdict: every method compared with the best single-pass method."""

from __future__ import annotations

from itertools import groupby

from bnuq.methods import method_named
from bnuq.records.comparisons import MethodComparison
from bnuq.records.decisions import judged
from bnuq.records.evaluation import Result, Scored
from bnuq.report.document import Cell, Part, Row, Table, explanations
from bnuq.report.method_names import method_label
from bnuq.report.numbers import digits_of, headed, named, number, signed
from bnuq.report.tasks import recalibration_in_words


def parts(result: Result, *, roomy: bool) -> tuple[Part, ...]:
    """A part of the table for each metric, methods in order of its estimates, of a separation each by its best score;
    nothing if there is one method."""
    rows: list[Row] = []
    comparisons = judged(result).comparisons
    for (metric, name), group in groupby(comparisons, key=lambda each: (each.metric, each.set)):
        best: dict[str, MethodComparison] = {}
        for each in group:  # from the best one down
            best.setdefault(each.method, each)
        first = next(iter(best.values()))
        suffix = f" of {name}" if metric == "auroc" else ""
        digits = digits_of(metric, [each.value for each in best.values()])
        single = Cell(number(first.value_of_against, digits))
        rows.append((f"{headed(metric)}{suffix}", ()))
        rows.append((_label(first.against, first.score_of_against, roomy=roomy), (single, Cell("–"), Cell("–"))))
        rows += [_row(each, digits, roomy=roomy) for each in best.values()]
    if not rows:
        return ()
    of_files = isinstance(result, Scored)
    legend = (
        f"Each method is compared with the best {'one' if of_files else 'single-pass method'}, the first row of each "
        f"part. ± standard error of the paired difference, over examples and samples together. p: "
        f"probability of a difference at least this large by chance, Holm-adjusted for {len(comparisons)} comparisons."
    )
    if any(method_named(each.method).normalizes_jointly for each in comparisons):
        legend += " †: its predictions depend on the other examples of their batch, so it is never the single pass."
    return Table(("", "difference", "p"), tuple(rows), stacks=True), *explanations(
        [legend, recalibration_in_words(result)]
    )


def _row(each: MethodComparison, digits: int, *, roomy: bool) -> Row:
    error = "" if each.se is None else f"±{number(each.se, digits)}"
    p = "–" if each.p is None else "<0.001" if each.p < 0.001 else number(each.p, 3)
    cells = (
        Cell(number(each.value, digits)),
        Cell(signed(each.difference, digits), error),
        Cell(p, style="bold" if each.is_better else ""),
    )
    return _label(each.method, each.score, roomy=roomy), cells


def _label(method: str, score: str, *, roomy: bool) -> str:
    """A method, and the score that it is judged by, where columns are wide enough."""
    return f"  {method_label(method, roomy=roomy)}{f' ({named(score, roomy=False)})' if score and roomy else ''}"
