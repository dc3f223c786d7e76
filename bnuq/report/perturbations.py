"""How a result changes with the inputs: the test set with noise and under attacks, in tables."""

from __future__ import annotations

from collections.abc import Iterator

from bnuq.catalogue import noted
from bnuq.estimates import Estimate
from bnuq.metrics.registry import ALARMS, estimates_of_task
from bnuq.perturbations import KINDS, change_of
from bnuq.records.evaluation import Result
from bnuq.report import evaluation_plots
from bnuq.report.document import Cell, Heading, Part, Row, Table, explanations
from bnuq.report.evaluation_plots import perturbed
from bnuq.report.method_names import method_label, plain_methods
from bnuq.report.numbers import decimals, digits_of, headed, named, number, with_error


def parts(result: Result, *, roomy: bool) -> Iterator[Part]:
    """A picture of each kind with several sizes; a table for each metric, and for the AUROC of the uncertainty: a row a
    set, a column a method."""
    sets = [name for _, _, name in perturbed(result)]
    if not sets:
        return
    yield from evaluation_plots.sensitivity(result)
    for metric in estimates_of_task(result.task.name, shown="sensitivity"):
        methods, names = plain_methods(result), ("test", *sets)
        rows = {name: [_estimate(metric, name, result, method) for method in methods] for name in names}
        if known := [estimate.value for row in rows.values() for estimate in row if estimate]:
            digits = decimals(known) if digits_of(metric, known) is None else digits_of(metric, known)
            yield Heading(headed(metric).strip())
            yield _table(result, {name: tuple(with_error(e, digits) for e in row) for name, row in rows.items()})
    for score in ALARMS:
        cells = {
            name: tuple(with_error(_estimate("auroc", name, result, method, score)) for method in plain_methods(result))
            for name in sets
        }
        if any(cell.value != "–" for row in cells.values() for cell in row):
            yield Heading(f"↑ AUROC against the test set by {named(score, roomy=roomy)}")
            yield _table(result, cells)
    yield from explanations(_legend(result))


def short_table(result: Result) -> Iterator[Table]:
    """The largest size of each kind: the first metric, and AUROC of the first uncertainty that a method has."""
    largest = {kind: name for kind, _, name in perturbed(result)}
    if not largest:
        return
    metric = next(iter(estimates_of_task(result.task.name, shown="sensitivity")))
    rows: list[Row] = [(f"{named(metric, roomy=False)}, AUROC as an alarm", ())]
    for name in ("test", *largest.values()):
        cells = []
        for method in plain_methods(result):
            estimate, alarms = (
                _estimate(metric, name, result, method),
                (_estimate("auroc", name, result, method, s) for s in ALARMS),
            )
            alarm = next((each for each in alarms if each), None)
            values = (number(each.value, 3) for each in (estimate, alarm) if each)
            cells.append(Cell(", ".join(values) or "–"))
        rows.append((_label(name), tuple(cells)))
    yield Table(tuple(map(method_label, plain_methods(result))), tuple(rows), stacks=True)


def _estimate(metric: str, name: str, result: Result, method: str, score: str | None = None) -> Estimate | None:
    """An estimate of a set by a method, of the separation by a score if one is named."""
    if score is None:
        return result.methods[method].sets[name].estimates.get(metric)
    return result.methods[method].ood.get(name, {}).get(score, {}).get(metric)


def _label(name: str) -> str:
    return "unchanged" if name == "test" else change_of(name)


def _table(result: Result, rows: dict[str, tuple[Cell, ...]]) -> Table:
    header = tuple(map(method_label, plain_methods(result)))
    return Table(header, tuple((_label(name), cells) for name, cells in rows.items()), stacks=True)


def _legend(result: Result) -> Iterator[str]:
    kinds = dict.fromkeys(kind for kind, _, _ in perturbed(result) if kind in KINDS)
    effects = "; ".join(f"{kind}:{KINDS[kind].symbol} {KINDS[kind].effect}" for kind in kinds)
    yield (
        f"The test set, changed: {effects}. Sizes are in units of the input before normalisation, of rows in standard "
        "deviations where they are standardised; 8-bit images stay between 0 and 1. AUROC: probability that a random "
        "changed point is more uncertain than a random test point."
    )
    yield from (f"{text}." for text in noted([each for each in result.findings if each.code == "attacked-through"]))
