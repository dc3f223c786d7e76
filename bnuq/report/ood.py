"""How well OOD sets are separated from the test set, in tables; the same for every task."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from bnuq.estimates import Estimate
from bnuq.findings import all_of
from bnuq.metrics import SEPARATIONS
from bnuq.metrics.registry import metric_of
from bnuq.records.best_scores import Key, aurocs_of, can_be_judged
from bnuq.records.decisions import decided
from bnuq.records.evaluation import WITH_ERRORS, Estimates, Result
from bnuq.report.document import Cell, Heading, Part, Row, Table
from bnuq.report.method_names import method_label, plain_methods
from bnuq.report.numbers import named, number, with_error

_BESIDE_AUROC = tuple(name for name in SEPARATIONS if name != "auroc")


def names(result: Result) -> list[str]:
    """The OOD sets that some method has a score for."""
    return [name for name, evaluated in result.sets.items() if evaluated.kind == "ood" and any(_scores(result, name))]


def score_named(result: Result, name: str) -> Key:
    """The method and score of an OOD set that the decisions name; without one those of the largest AUROC."""
    aurocs = aurocs_of(result, [name])
    named_key = _decision(result).get("method", ""), _decision(result).get("score", "")
    return named_key if named_key in aurocs else max(aurocs, key=lambda key: aurocs[key][name].value)


def _decision(result: Result) -> Mapping[str, Any]:
    """The values of the decision on unfamiliar data; none without one."""
    return next((each.values for each in decided(result) if each.about == "foreign"), {})


def tables(result: Result, name: str, *, roomy: bool) -> Iterator[Table]:
    """Every score of every plain method that has one, and of the one that decisions name; the mean mutual information
    of samples."""
    rows: list[Row] = []
    shown = {*plain_methods(result), score_named(result, name)[0]}
    beside = (*_BESIDE_AUROC, *[WITH_ERRORS] * _is_with_errors(result))
    for method, scores in ((method, scores) for method, scores in _scores(result, name) if method in shown):
        rows.append((method_label(method), ()))
        for score, estimates in scores.items():
            auroc = estimates["auroc"]
            interval = f"{number(auroc.low)}–{number(auroc.high)}" if auroc.low is not None else ""
            others = (Cell(number(estimates[key].value) if key in estimates else "–") for key in beside)
            rows.append((f"  {named(score, roomy=roomy)}", (Cell(number(auroc.value)), Cell(interval), *others)))
    yield Table(("AUROC", "95 % interval", *(named(key, roomy=False) for key in beside)), tuple(rows))
    means = tuple(
        (method_label(method), tuple(with_error(each.sets[s].estimates["mutual_information"]) for s in (name, "test")))
        for method, each in result.methods.items()
        if method in shown and "mutual_information" in each.sets[name].estimates
    )
    if means:
        yield Table(("mean MI here", "on the test set"), means, stacks=True)


def _is_with_errors(result: Result) -> bool:
    """Whether errors and OOD examples are ranked together."""
    return any(WITH_ERRORS in of for name in names(result) for _, each in _scores(result, name) for of in each.values())


def pixel_tables(result: Result, name: str, *, roomy: bool) -> Iterator[Part]:
    """Every score of the pixels of a segmentation: images are separated by their means."""
    rows: list[Row] = []
    of_methods = {method: each.pixel_ood.get(name, {}) for method, each in result.methods.items()}
    known = {key for scores in of_methods.values() for estimates in scores.values() for key in estimates}
    of_images = [key for key in ("pixel_auroc_per_image",) if key in known]
    for method, scores in of_methods.items():
        if scores:
            rows.append((method_label(method), ()))
            for score, estimates in scores.items():
                others = (Cell(number(estimates[f"pixel_{key}"].value)) for key in _BESIDE_AUROC)
                of_image = (with_error(estimates.get(key)) for key in of_images)
                cells = with_error(estimates["pixel_auroc"]), *others, *of_image
                rows.append((f"  {named(score, roomy=roomy)}", cells))
    if rows:
        yield Heading("By pixel")
        yield Table(("AUROC", *map(named, (*_BESIDE_AUROC, *of_images))), tuple(rows), stacks=True)
        yield Heading("By image, scored by the mean over its pixels")


def _scores(result: Result, name: str) -> Iterator[tuple[str, Mapping[str, Estimates]]]:
    """The methods that have scores of an OOD set, and these."""
    return ((method, scores) for method, each in result.methods.items() if (scores := each.ood.get(name, {})))


def columns(result: Result) -> tuple[dict[str, tuple[Cell, ...]], str]:
    """For the table of methods: by set the AUROC of each plain method that has the score of the decisions, and which
    score that is. Of many sets the range."""
    sets, methods, score = names(result), plain_methods(result), column_score(result)
    if not score:
        return {}, ""
    estimates = {
        name: [each.ood.get(name, {}).get(score, {}).get("auroc") for each in methods.values()] for name in sets
    }
    cells = {name: tuple(map(_auroc, row)) for name, row in estimates.items()}
    title = ", ".join(sets)
    if len(sets) > _MOST:
        title = f"{len(sets)} OOD sets"
        ends = [sorted({each.value for each in row} - {"–"}) or ["–"] for row in zip(*cells.values(), strict=True)]
        cells = {title: tuple(Cell(f"{row[0]} to {row[-1]}" if row[1:] else row[0]) for row in ends)}
    few = [name for name in sets if not can_be_judged(result, name)]
    words = f"{title}: AUROC, how often its examples rank above test ones (0.5 is chance), by {named(score)}"
    words += f" ({meaning})" if (meaning := metric_of(score).meaning) else ""
    words += _of_decision(result, {name: dict(zip(methods, row, strict=True)) for name, row in estimates.items()})
    return cells, words + (f"; too few examples to judge {all_of(few)}" if few else "")


def _of_decision(result: Result, shown: Mapping[str, Mapping[str, Estimate | None]]) -> str:
    """Where the decision has other AUROCs than the table: that of a recalibrated method, or cross-fitted ones."""
    values = _decision(result)
    known = {name: f"{auroc:.3f}" for name, auroc in values.get("aurocs", {}).items()}
    method = values.get("method", "")
    if all(_auroc(shown[name].get(method)).value == auroc for name, auroc in known.items()) or len(shown) > _MOST:
        return ""
    by = f" by {method}" if method not in plain_methods(result) else ""
    fitted = " if it is chosen on other examples" if values["crossfitted"] else ""
    return f"; {all_of(known.values())}{by}{fitted}"


def column_score(result: Result) -> str:
    """The score by which methods compare in a column: the one that the decisions name; without one the spread of
    probabilities, or of samples, or the first."""
    known = dict.fromkeys(score for each in plain_methods(result).values() for of in each.ood.values() for score in of)
    wanted = (
        score
        for score in (_decision(result).get("score"), "predictive_entropy", result.task.spread, *known)
        if score in known
    )
    return str(next(wanted, ""))


_MOST = 3  # sets with a column


def _auroc(estimate: Estimate | None) -> Cell:
    if estimate is None:
        return Cell("–")
    if estimate.low is None or estimate.high is None:
        return Cell(f"{estimate.value:.3f}")
    return Cell(f"{estimate.value:.3f}", f"±{(estimate.high - estimate.low) / 3.92:.3f}".replace("±0.000", ""))


def legend(result: Result) -> Iterator[str]:
    """What the columns mean, if there are OOD sets."""
    if names(result):
        yield (
            "AUROC: probability that a random OOD example is more uncertain than a random test example; 0.5 is "
            "chance. FPR95: share of test examples classified as OOD at the threshold that detects 95 % of OOD "
            "examples; FPR95*: with test and OOD examples swapped. AUPR-out: area under the precision–recall curve "
            "with OOD examples as positives; AUPR-in: with test examples as positives."
            + " AURC with OOD: error rate when the most uncertain of all these are deferred, averaged over coverage, "
            "where an OOD example is an error." * _is_with_errors(result)
        )
