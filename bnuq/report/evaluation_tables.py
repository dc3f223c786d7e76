"""The tables of an evaluation: methods, all estimates of the test set, and those of labels, classes and groups."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from bnuq.estimates import Estimate
from bnuq.findings import all_of
from bnuq.methods import POPULATION, Source, method_named
from bnuq.metrics import METRICS
from bnuq.metrics.registry import estimates_of_task, scores_among
from bnuq.records.calibrated import ece_floor
from bnuq.records.decisions import decided
from bnuq.records.evaluation import ERRORS, FEWEST_POINTS, PARTS, Estimates, MethodResult, Result
from bnuq.records.words import plain
from bnuq.report import ood
from bnuq.report.document import Cell, Heading, Part, ReportSection, Row, Table, explanation, explanations, section
from bnuq.report.method_names import method_label, plain_methods, plain_sampled
from bnuq.report.numbers import digits_of, headed, named, noise_sd, number, share_with_error, total, with_error
from bnuq.report.tasks import fitted_to, meaning_of

_SHOWN = 20  # classes or groups in a table
_BY = "predictive_entropy"  # the score where none is named
_OF_ERRORS = (
    "How often a score is larger for a wrong prediction than for a right one; 0.5 is chance. By class and by group it "
    "is by predictive entropy."
)


def methods_table(result: Result, *, roomy: bool) -> Iterator[Part]:
    """A row a method, a column a metric of the test set that some method has, beside PLL that of its recalibrations,
    ECE recalibrated as the decision on the prediction is, and a column an OOD set; then what the columns are, in plain
    words."""
    columns, words = {}, []
    for title, text, cells in _columns(result):
        columns[title] = cells
        words.append(text)
    of_ood, text = ood.columns(result)
    columns |= of_ood
    words += [text] if text else []
    if not columns:  # of points without labels, beside no OOD set
        return
    labels = [method_label(name, roomy=roomy) for name in plain_methods(result)]
    all_rows = [(label, tuple(column[row] for column in columns.values())) for row, label in enumerate(labels)]
    rows = tuple(row for row in all_rows if any(cell.value != "–" for cell in row[1]))
    yield Table(tuple(columns), rows, stacks=True)
    first_of_ood = len(columns) - len(of_ood)
    words += ["–: not a score of that method"] * any(c.value == "–" for _, cells in rows for c in cells[first_of_ood:])
    words += [text] if rows[1:] and (text := _rows_in_words(result)) else []
    errors = " ±: standard error; what differs by less than two standard errors may be chance."
    has_errors = any(cell.error for _, cells in rows for cell in cells)
    yield explanation(f"{'; '.join(words)}.{errors * has_errors}")


def _columns(result: Result) -> Iterator[tuple[str, str, tuple[Cell, ...]]]:
    """The title of each column of a metric, what it is, and its cells."""
    methods = plain_methods(result)
    kinds = dict.fromkeys(kind for name in result.methods if (kind := method_named(name).recalibration))
    used = next((each.values["method"] for each in decided(result) if each.about == "use"), result.first)
    for metric in estimates_of_task(result.task.name, shown="headline"):
        beside = {"pll": kinds, "ece": [kind for kind in kinds if kind == method_named(used).recalibration]}
        for kind in ("", *beside.get(metric, ())):
            names = [f"{name}+{kind}" if kind else name for name in methods]
            shown = [result.methods.get(name) for name in names]
            estimates = [None if each is None else each.sets["test"].estimates.get(metric) for each in shown]
            if any(estimates):
                cells = tuple(with_error(each, column_digits(metric, estimates)) for each in estimates)
                yield *_titled(result, metric, kind), cells


def _rows_in_words(result: Result) -> str:
    """What the methods of a network are, in plain words."""
    sources: dict[str, list[str]] = {}
    for name in plain_sampled(result):
        if len(of := sorted(method_named(name).differs_by)) == 1 and of != ["file"]:
            sources.setdefault(SOURCES[of[0]], []).append(name)
    ways = [f"{source} ({', '.join(names)})" for source, names in sources.items()]
    texts = [f"others: means of {result.sampling['samples']} samples with {all_of(ways)}"] if ways else []
    if POPULATION in result.methods:
        texts = [f"{POPULATION}: the same with statistics of the whole training set", *texts]
    if any(method_named(name).normalizes_jointly for name in result.methods):
        texts.append("†: normalised by random batches of the evaluated examples")
    if any(method_named(name).approximates for name in result.methods):
        texts.append("≈: approximates mcbn")
    return "; ".join(["deterministic: without randomness", *texts] if texts else [])


def _titled(result: Result, metric: str, kind: str) -> tuple[str, str]:
    """The title of a column, and what it is in plain words."""
    title, meaning = _TITLES.get(metric, named(metric, roomy=False)), meaning_of(result, metric) or plain(metric)
    if kind:
        title, meaning = _RECALIBRATED[kind]
    text = f"{title}: {meaning.format(fitted=fitted_to(result))}"
    if metric == "ece":
        return (f"ECE {title}", f"ECE {title}: of these logits") if kind else (title, text)
    if levels := [finding.values["count"] for finding in result.findings if finding.code == "quantiles-scored"]:
        of_quantiles = {
            "crps": f"{title}: twice the mean pinball loss of {levels[0]} quantiles, less than of a whole distribution",
            "rmse": f"{text}, of the mean of the quantiles",
            "pll": f"{text}, of a normal distribution with the mean and variance of the quantiles",
        }
        return title, of_quantiles.get(metric, text)
    if metric == "rmse" and int(result.model.get("outputs", 1)) > 1:
        return title, f"{text}, squares summed over the {result.model['outputs']} outputs"
    return title, text


SOURCES: dict[Source, str] = {  # of all but files, which the user names
    "mini-batches": "random mini-batches",
    "noise model": "random statistics",
    "masks": "random dropout",
    "noise": "random noise in layers",
    "augmentation": "random augmentation",
    "weights": "a random last layer",
    "networks": "another network each",
}
_TITLES = {"accuracy": "right", "pll": "log-lik.", "coverage95": "inside 95 %"}  # without abbreviations
_RECALIBRATED = {  # a title, and what is done with logits
    "temperature": ("divided", "the same with logits divided by a number fitted to {fitted}"),
    "vector": ("scaled", "the same with the logit of each class scaled and shifted, fitted to {fitted}"),
}


def column_digits(metric: str, estimates: Iterable[Estimate | None]) -> int | None:
    """One decimal fewer where no error needs it."""
    digits, errors = METRICS[metric].digits, [total(each) for each in estimates if each]
    if digits is None or any(error is not None and error < 0.5 * 10 ** (1 - digits) for error in errors):
        return digits
    return digits - 1


def estimates_tables(result: Result, *, roomy: bool) -> Iterator[Table]:
    """A row a metric, a column a method; recalibrated methods, by the first metrics alone, in their own table."""
    plain = plain_methods(result)
    for methods in (plain, {name: each for name, each in result.methods.items() if name not in plain}):
        if methods:
            first = [*estimates_of_task(result.task.name, shown="headline"), "temperature"]
            yield _estimates_table(result, methods, [*METRICS] if methods is plain else first, roomy=roomy)


def _estimates_table(
    result: Result, methods: Mapping[str, MethodResult], shown: Sequence[str], *, roomy: bool
) -> Table:
    estimates = [method.sets["test"].estimates for method in methods.values()]
    rows = [
        (headed(name, roomy=roomy), [row.get(name) for row in estimates], METRICS[name].digits)
        for name in shown
        if not name.startswith("image_aurc_")  # which have a table of their own
    ]
    floors = [ece_floor(result, name) for name in methods]
    mean, high = ([None if f is None else Estimate(getattr(f, end)) for f in floors] for end in ("mean", "high"))
    noise = [Estimate(noise_sd(row["tau"].value)) if "tau" in row else None for row in estimates]
    constant = [method.bounds.get("constant", {}).get("sigma") for method in methods.values()]
    rows += [("  ECE by chance, mean", mean, 4), ("  ECE by chance, 95 %", high, 4)]
    rows += [("  noise sd, 1/√τ", noise, None), ("  constant σ", constant, None)]
    cells = tuple((label, tuple(with_error(e, digits) for e in row)) for label, row, digits in rows if any(row))
    return Table(_header(methods, roomy=True), cells, stacks=True)


def _header(methods: Iterable[str], *, roomy: bool) -> tuple[str, ...]:
    return tuple(method_label(name, roomy=roomy) for name in methods)


def part_sections(result: Result, *, roomy: bool) -> Iterator[ReportSection]:
    """By label, by class and by group, a table a metric, a row a class, a column a method; of many those of
    least accuracy."""
    for kind, attribute in {"label": "by_label", **PARTS}.items():
        estimates = {name: getattr(each.sets["test"], attribute) for name, each in plain_methods(result).items()}
        first = estimates[result.first]
        worst = sorted(first, key=lambda part: first[part]["accuracy"].value)[:_SHOWN]
        shown = [part for part in first if part in worst]
        known = {metric for parts in estimates.values() for part in shown for metric in parts[part]} - {"count"}
        counts = _counts(result, kind, first)
        tables: list[Part] = []
        metrics = estimates_of_task(result.task.name, shown="headline") if kind == "label" else result.task.of_part
        for metric in (metric for metric in metrics if metric in known):
            columns = {name: parts for name, parts in estimates.items() if any(metric in parts[part] for part in shown)}
            rows = tuple(
                (part, (counts[part], *(with_error(parts[part].get(metric)) for parts in columns.values())))
                for part in shown
            )
            unit = "with the label" if kind == "label" else result.task.unit
            header = (unit, *_header(columns, roomy=roomy))
            tables += [Heading(headed(metric).strip()), Table(header, rows, stacks=True)]
        left_out = len(first) - len(shown)
        texts = [f"The {_SHOWN} with the lowest accuracy; {left_out} more are in the JSON."] if left_out else []
        texts += ["Other metrics of each label are in `--json`."] * (bool(tables) and kind == "label")
        if tables and kind in PARTS and _has_small_parts(result, kind):
            texts.append(f"A {kind} of fewer than {FEWEST_POINTS} examples is left out.")
        yield from section(f"By {kind}", (*tables, *explanations(texts)), folded=True)


def _counts(result: Result, kind: str, parts: Mapping[str, Estimates]) -> dict[str, Cell]:
    """The number of points of each part; of a label those that have it."""
    labels = result.sets["test"].labels
    if kind == "label" and labels is not None and parts:
        return {part: Cell(str(count)) for part, count in zip(parts, labels.sum(0).tolist(), strict=True)}
    return {part: Cell(f"{each['count'].value:.0f}") for part, each in parts.items()}


def _has_small_parts(result: Result, kind: str) -> bool:
    """Whether some class or group of the test set has too few points for estimates of its own."""
    test = result.sets["test"]
    values = test.labels if kind == "class" else test.group
    return values is not None and bool((np.unique(values, return_counts=True)[1] < FEWEST_POINTS).any())


def failure_detection(result: Result, *, roomy: bool) -> Iterator[Part]:
    """A row a score, a column a method."""
    methods = plain_methods(result)
    tests = {name: method.sets["test"] for name, method in methods.items()}
    of_errors = {name: {score: each[ERRORS] for score, each in test.by_score.items()} for name, test in tests.items()}
    for name, test in tests.items():
        of_errors[name] |= {} if ERRORS not in test.estimates else {_BY: test.estimates[ERRORS]}
    if any(of_errors.values()):
        yield Heading(f"{headed(ERRORS).strip()}, by score")
        yield from (_table_by_score(of_errors, roomy=roomy), explanation(_OF_ERRORS))


def _table_by_score(columns: Mapping[str, Mapping[str, Estimate]], *, roomy: bool) -> Table:
    present = scores_among(score for estimates in columns.values() for score in estimates)
    rows = tuple(
        (named(score, roomy=roomy), tuple(with_error(estimates.get(score)) for estimates in columns.values()))
        for score in present
    )
    return Table(_header(columns, roomy=roomy), rows, stacks=True)


def bounds_table(result: Result) -> Iterator[Part]:
    """Where scores lie between those of a constant and of the optimal uncertainty."""
    rows: list[Row] = []
    for metric in ("pll",) if result.given_distribution == "quantiles" else ("crps", "pll"):
        bounded = ((f"  {method_label(name)}", _bounded(metric, m)) for name, m in result.methods.items())
        having = [(label, cells) for label, cells in bounded if cells]
        rows += [(named(metric), ()), *having] if having else []
    if rows:
        yield Heading("Between constant uncertainty and the optimum for each example")
        yield Table(("constant", "method", "optimum", "normalised"), tuple(rows), stacks=True)


def _bounded(metric: str, method: MethodResult) -> tuple[Cell, ...]:
    constant, optimum = (method.bounds.get(bound, {}).get(metric) for bound in ("constant", "optimum"))
    score = method.sets["test"].estimates.get(metric)
    if constant is None or score is None or optimum is None:
        return ()
    values = (constant.value, score.value, optimum.value)
    digits = digits_of(metric, values)
    return *(Cell(number(value, digits)) for value in values), share_with_error(method.normalized.get(metric))
