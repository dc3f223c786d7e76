"""How well OOD sets are told apart from the test set, in words and in a table; the same for every task."""

from __future__ import annotations

from collections.abc import Iterator

from bnuq.config import SINGLE_SAMPLE_METHODS
from bnuq.estimates import Estimate
from bnuq.metrics import SEPARATIONS
from bnuq.records.evaluation import MethodResult, Result
from bnuq.report.networks import of_whom
from bnuq.report.noise_models import labelled
from bnuq.report.numbers import named, number
from bnuq.report.parts import Cell, Row, Table

_BESIDE_AUROC = tuple(name for name in SEPARATIONS if name != "auroc")
_LONG = 20  # characters of a name that leave space for a column beside it where the terminal has 40


def names(result: Result) -> list[str]:
    """The OOD sets that some method has a score for."""
    sets = (name for name, one in result.sets.items() if one.kind == "ood")
    return [name for name in sets if any(method.ood.get(name) for method in result.methods.values())]


def in_words(result: Result, name: str) -> str:
    """What the best of all scores says of one set, beside the best of a single pass."""
    ranked = [
        (method, score, estimates["auroc"])
        for method, one in result.methods.items()
        for score, estimates in one.ood[name].items()
    ]
    method, score, best = max(ranked, key=lambda row: row[2].value)
    interval = "" if best.low is None else f" ({number(best.low, 2)}–{number(best.high, 2)})"
    by = f"by the {named(score)} of {of_whom(method)}"
    text = f"{name} {_told_apart(best)}: AUROC {number(best.value, 3)}{interval} {by}"
    if len(ranked) > 1:
        text += f", the best of {len(ranked)} scores"
    plain = [row for row in ranked if row[0] in SINGLE_SAMPLE_METHODS]
    if method in SINGLE_SAMPLE_METHODS or not plain:
        return f"{text}."
    method, score, best = max(plain, key=lambda row: row[2].value)
    return f"{text}; {number(best.value, 3)} by the {named(score)} of {of_whom(method)}."


def _told_apart(auroc: Estimate) -> str:
    if auroc.low is None or auroc.high is None:
        return "has too few points to judge"
    if auroc.high < 0.5:
        return "appears more familiar than the test set"
    if auroc.low <= 0.5:
        return "is not separated from the test set"
    if auroc.value >= 0.9:
        return "is well separated from the test set"
    return "is partly separated from the test set" if auroc.value >= 0.7 else "is hardly separated from the test set"


def table(result: Result, name: str, *, roomy: bool) -> Table:
    """Every score of every method that has one."""
    rows: list[Row] = []
    for method, one in result.methods.items():
        if one.ood[name]:
            rows.append((labelled(method), ()))
        for score, estimates in one.ood[name].items():
            auroc = estimates["auroc"]
            interval = f"{number(auroc.low)}–{number(auroc.high)}" if auroc.low is not None else ""
            others = (Cell(number(estimates[key].value)) for key in _BESIDE_AUROC)
            rows.append((f"  {named(score, roomy=roomy)}", (Cell(number(auroc.value)), Cell(interval), *others)))
    return Table(("AUROC", "95 % interval", *map(named, _BESIDE_AUROC)), tuple(rows))


def short_table(result: Result) -> Table:
    """A row a set, a column a method: its AUROC by one score, mutual information (variance in a regression) where
    there is one, else the first that there is."""
    rows: list[Row] = []
    scores = {name: _main_score(method, result) for name, method in result.methods.items()}
    shown = {name: score for name, score in scores.items() if score is not None}
    for name in names(result):
        found = [result.methods[method].ood[name].get(score, {}) for method, score in shown.items()]
        cells = tuple(_auroc(estimates.get("auroc")) for estimates in found)
        if len(name) <= _LONG:
            rows.append((name, cells))
        else:
            rows += [(name, ()), ("  AUROC", cells)]
    by = {score: named(score, roomy=False) for score in shown.values()}
    rows.append(("  by", tuple(Cell(by[score], style="dim") for score in shown.values())))
    return Table(tuple(map(labelled, shown)), (("AUROC against the test set", ()), *rows), stacks=True)


def _main_score(method: MethodResult, result: Result) -> str | None:
    scores = [score for name in names(result) for score in method.ood[name]]
    return next((score for score in ("mutual_information", "variance", *scores) if score in scores), None)


def _auroc(estimate: Estimate | None) -> Cell:
    if estimate is None:
        return Cell("–")
    half = (
        "" if estimate.low is None or estimate.high is None else f"±{number((estimate.high - estimate.low) / 3.92, 3)}"
    )
    return Cell(number(estimate.value, 3), half)


def legend(result: Result) -> Iterator[str]:
    if names(result):
        yield (
            "AUROC: probability that a random OOD point is more uncertain than a random test point; 0.5 is "
            "chance. FPR95: share of test points classified as OOD at the threshold that detects 95 % of OOD "
            "points; FPR95*: with test and OOD points swapped. AUPR-out: area under the precision–recall curve "
            "with OOD points as positives; AUPR-in: with test points as positives."
        )
