"""Several evaluations beside each other: what was asked differently, and every estimate of all. Nothing is judged.

A column is a result, by its name; a row is an estimate of a method on a set; a dash stands for what a result has not.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from bnuq.catalogue import text_of
from bnuq.config import SINGLE_SAMPLE_METHODS
from bnuq.estimates import Estimate
from bnuq.findings import warnings
from bnuq.metrics import METRICS, SEPARATIONS, detection_influence, rmse_influence, standard_error
from bnuq.records.evaluation import Estimates, EvaluatedSet, MethodResult, Result, SetResult
from bnuq.records.summary import SCHEMA
from bnuq.records.summary import summary as summary_of
from bnuq.report import classification, ood, regression
from bnuq.report.networks import of_whom
from bnuq.report.numbers import (
    count,
    decimals,
    digits_of,
    headed,
    named,
    number,
    of_reference,
    share_with_error,
    signed,
    with_error,
    written,
)
from bnuq.report.parts import GAP, Advice, Facts, Items, Paragraph, Part, Row, Table, columns_of, draw, title
from bnuq.report.plots import best_score_of
from bnuq.report.remedies import advised
from bnuq.report.sampler import USUAL, laws_in_words, sampler_in_words

Results = Mapping[str, Result]  # by name, in the order of the columns

_ASKED = {  # of how the draws were made; what differs here makes draws that are not paired
    "samples": "T",
    "batch_size": "b",
    "seed": "seed",
    "bank": "draws in the bank",
    "layers": "sampled layers",
    "mutual_information": "estimator of mutual information",
    "device": "device",
    "precision": "precision",
}
_OF_RUN = {  # what else a run file says that changes estimates
    ("data", "group"): "group",
    ("data", "channel_order"): "channel_order",
    ("data", "normalize"): "normalize",
    ("data", "normalize_targets"): "normalize_targets",
    ("data", "augment"): "augment",
    ("model", "arch_args"): "arch_args",
    ("options", "limit"): "limit",
    ("scoring", "pll"): "scoring.pll",
    ("scoring", "crps"): "scoring.crps",
    ("scoring", "fit"): "scoring.fit",
    ("scoring", "tau"): "scoring.tau",
    ("scoring", "tau_range"): "scoring.tau_range",
}
_OTHER_POINTS = "so estimates on it are from different points and cannot be compared"


@dataclass(frozen=True)
class Difference:
    """Something that was asked of the results: its value in each, in words, and whether they are not all the same."""

    what: str
    values: Mapping[str, str]
    differs: bool
    why: str = ""


# ── what was asked ───────────────────────────────────────────────────────────────────────────────────────────────────


def compared(results: Results) -> list[Difference]:
    """Everything that was asked, and how it differs: network, points, draws, pipeline, scoring."""
    found = [_by_hash("checkpoint", {n: _model(one) for n, one in results.items()})]
    sets = dict.fromkeys(name for one in results.values() for name in one.sets)
    for name in sorted(sets, key=lambda name: name != "test"):
        held = {n: _points(one, name) for n, one in results.items()}
        kind = next(one.sets[name].kind for one in results.values() if name in one.sets)
        found.append(_by_hash(name if name == kind else f"{kind} {name}", held, why=_OTHER_POINTS))
    found.append(_by_hash("reference", {n: _reference(one) for n, one in results.items()}))
    for key, what in _ASKED.items():
        found.append(_by_value(what, {n: one.sampling.get(key) for n, one in results.items()}))
    drawn = {n: sampler_in_words(one) for n, one in results.items()}
    if any(drawn.values()):
        found.append(_by_value("mini-batches", {n: words or USUAL for n, words in drawn.items()}))
    found.append(_by_value("noise models", {n: laws_in_words(one) or None for n, one in results.items()}))
    for (section, key), what in _OF_RUN.items():
        found.append(_by_value(what, {n: _asked(one, section, key) for n, one in results.items()}))
    found.append(_by_value("methods", {n: list(one.methods) for n, one in results.items()}))
    found.append(_by_value("bnuq", {n: one.provenance["bnuq"] for n, one in results.items()}))
    return [one for one in found if one.differs or any(value != "none" for value in one.values.values())]


def _model(result: Result) -> tuple[str, str] | None:
    return Path(str(result.model["path"])).name, str(result.model.get("sha256", ""))


def _points(result: Result, name: str) -> tuple[str, str] | None:
    one = result.sets.get(name)
    return None if one is None else (f"{of_reference(one.reference)} of {one.n} points", one.sha256)


def _reference(result: Result) -> tuple[str, str] | None:
    train, sha256 = result.run.get("data", {}).get("train"), result.provenance.get("reference_sha256")
    return None if not train or not sha256 else (of_reference(str(train)), str(sha256))


def _asked(result: Result, section: str, key: str) -> Any:
    keys = result.run.get(section, {})
    return keys.get(key) if isinstance(keys, Mapping) else None


def _by_hash(what: str, held: Mapping[str, tuple[str, str] | None], *, why: str = "") -> Difference:
    """Files that are the same where their hashes are, whatever they are called."""
    hashes = {None if one is None else one[1] for one in held.values()}
    called = {one[0] for one in held.values() if one is not None}
    told = len(hashes - {None}) > len(called)  # of one name, and yet not the same
    words = {
        name: "none" if one is None else f"{one[0]} ({one[1][:8]})" if told else one[0] for name, one in held.items()
    }
    return Difference(what, words, len(hashes) > 1, why if None not in hashes else "")


def _by_value(what: str, held: Mapping[str, Any]) -> Difference:
    words = {name: _words(value) for name, value in held.items()}
    return Difference(what, words, len(set(words.values())) > 1)


def _words(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return {None: "none", True: "yes", False: "no"}[value]
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_words(inner)}" for key, inner in value.items())
    if isinstance(value, list | tuple):
        told = [_words(inner) for inner in value]
        return " ".join(told) if len(told) <= 6 else f"{len(told)}, from {told[0]} to {told[-1]}"
    return str(value)


def _in_words(asked: Sequence[Difference]) -> Iterator[str]:
    """Settings that differ, and what of it forbids a comparison; and what was the same."""
    for one in asked:
        if one.differs:
            groups: dict[str, list[str]] = {}
            for name, value in one.values.items():
                groups.setdefault(value, []).append(name)
            told = "; ".join(f"{value} in {' and '.join(names)}" for value, names in groups.items())
            yield f"{one.what}: {told}{f'; {one.why}' if one.why else ''}."
    same = [f"{one.what} {next(iter(one.values.values()))}" for one in asked if not one.differs]
    if same:
        yield f"The same in all: {'; '.join(same)}."


def _draws_in_words(results: Results, asked: Sequence[Difference]) -> Iterator[str]:
    sampled = all(len(one.methods) > 1 for one in results.values())
    apart = [one.what for one in asked if one.differs and one.what in (*list(_ASKED.values())[:4], "reference")]
    if sampled and apart:
        yield f"Samples differ ({', '.join(apart)}): part of every difference between columns is Monte Carlo error."


# ── in short ─────────────────────────────────────────────────────────────────────────────────────────────────────────

_RANKED = {"classification": ("accuracy", "pll"), "regression": ("rmse", "crps", "pll")}  # of the test set
_ROUNDING = 1e-10  # of the largest value: what differs by less was added up in another order


@dataclass(frozen=True)
class _Standing:
    """An estimate of one result, and what each point of which set contributes to it; `by` says of what it is."""

    name: str
    result: Result
    value: float
    points: Mapping[str, np.ndarray]
    by: str = ""

    def same_points(self, other: _Standing) -> bool:
        """Whether both estimates are of the very same points, in the same groups."""
        return self.points.keys() == other.points.keys() and all(
            _same(self.result.sets[name], other.result.sets[name]) for name in self.points
        )

    def equals(self, other: _Standing) -> bool:
        """Whether not only the estimates are the same, but what every point contributes, but for rounding."""
        return (
            self.by == other.by
            and self.same_points(other)
            and _close(self.value, other.value)
            and all(_close(values, other.points[name]) for name, values in self.points.items())
        )

    def error_from(self, other: _Standing) -> float:
        """Of the difference of two estimates of the same points, over points; NaN where nothing tells it."""
        return math.hypot(*(self._error_over(name, other) for name in self.points))

    def _error_over(self, name: str, other: _Standing) -> float:
        with np.errstate(invalid="ignore"):  # a PLL of −∞
            return standard_error(self.points[name] - other.points[name], group=self.result.sets[name].group)


def _close(a: Any, b: Any) -> bool:
    size = float(np.max(np.abs(np.nan_to_num(a, posinf=0.0, neginf=0.0)), initial=0.0))
    return bool(np.allclose(a, b, rtol=0, atol=_ROUNDING * size, equal_nan=True))


def _same(a: EvaluatedSet, b: EvaluatedSet) -> bool:
    grouped = a.group is b.group if a.group is None or b.group is None else np.array_equal(a.group, b.group)
    return bool(a.sha256) and (a.sha256, a.n) == (b.sha256, b.n) and grouped


def in_short(results: Results) -> Iterator[str]:
    """What to be careful about; then, of each method that all have and of each OOD set, the results from best to worst.

    Nothing is judged: of each difference from the best it is told whether it exceeds twice its error over points.
    """
    yield from _careful(results)
    told: list[str] = []
    for method in methods_of(results):
        if all(method in one.methods for one in results.values()):
            ranked = [text for metric in _RANKED[_task(results)] if (text := _by_metric(results, method, metric))]
            told.append(f"{_head(method)}: {'; '.join(ranked)}.")
    told += [f"{name}: AUROC of the best score {_by_auroc(results, name)}." for name in ood_names(results)]
    yield from told
    if any("±" in text for text in told):
        yield (
            "Results are listed from best to worst, with the difference from the best and its standard error "
            "over points (paired, as the points are the same); Monte Carlo error is not included."
        )


def _head(method: str) -> str:
    whom = of_whom(method)
    return whom[0].upper() + whom[1:] if method in SINGLE_SAMPLE_METHODS else method


def _task(results: Results) -> str:
    return "regression" if is_regression(results) else "classification"


def _careful(results: Results) -> Iterator[str]:
    """Of each result with warnings the first; one that its estimates are of another network comes before all others."""
    said: dict[str, list[str]] = {}
    for name, one in results.items():
        if warned := warnings(one.findings):
            first = next((finding for finding in warned if finding.code == _GRAVE), warned[0])
            text = re.split(r"(?<=[.!?])\s+(?=[A-Z`])", text_of(first).strip())[0].rstrip(".")
            more = f", and {count(len(warned) - 1, 'other warning')} below" if len(warned) > 1 else ""
            said.setdefault(f"{text}{more}", []).append(name)
    for text, names in said.items():
        yield f"Warning for {_listed(names)}: {text}."


_GRAVE = "reference-mismatch"


def _by_metric(results: Results, method: str, metric: str) -> str:
    """The results from best to worst by an estimate of the test set; empty where none has it."""
    found = []
    for name, one in results.items():
        test = one.methods[method].sets["test"]
        if metric in test.estimates:
            value = test.estimates[metric].value
            found.append(_Standing(name, one, value, _contributed(test, metric)))
    if not found:
        return ""
    digits, scale, unit = written(metric)
    digits = max(0, decimals(one.value for one in found) - 1) if digits is None else digits
    lower = METRICS[metric].direction == "lower"
    ranked = _from_best(found, results, lower=lower, digits=digits, scale=scale, unit=unit)
    return f"{named(metric, roomy=True)} {ranked}"


def _contributed(test: SetResult, metric: str) -> dict[str, np.ndarray]:
    """What each test point contributes to an estimate; nothing where the file does not hold it."""
    if metric == "rmse" and "squared_error" in test.points:
        return {"test": rmse_influence(test.points["squared_error"])}
    return {"test": np.asarray(test.points[metric])} if metric in test.points else {}


def _by_auroc(results: Results, name: str) -> str:
    """The results from best to worst by the largest AUROC of any score, which need not be the same score."""
    found = []
    for result, one in results.items():
        if name in ood.names(one):
            method, score, auroc = best_score_of(one, name)
            sets = one.methods[method].sets
            scores = {s: sets[s].points[score] for s in ("test", name)}
            known = not any(np.isnan(values).any() for values in scores.values())
            parts = dict(zip(scores, detection_influence(*scores.values()).auroc, strict=True)) if known else {}
            by = f"{named(score)} of {of_whom(method)}"
            found.append(_Standing(result, one, auroc, parts, by))
    return _from_best(found, results, lower=False, digits=3)


def _from_best(
    found: Sequence[_Standing], results: Results, *, lower: bool, digits: int, scale: float = 1, unit: str = ""
) -> str:
    """As "0.93 in a, 0.91 in b and c (−0.02 ± 0.01, beyond twice its error)"."""
    groups: list[list[_Standing]] = []
    for one in sorted(found, key=lambda one: (math.isnan(one.value), one.value if lower else -one.value)):
        if groups and groups[-1][0].equals(one):
            groups[-1].append(one)
        else:
            groups.append([one])
    told = []
    for group in groups:
        one, names = group[0], [each.name for each in group]
        text = f"{number(scale * one.value, digits)}{unit} in {_listed(names) if len(names) < len(results) else 'all'}"
        said = [f"by the {one.by}"] if one.by else []
        if one is not groups[0][0]:
            said.append(_away(groups[0][0], one, digits, scale))
        told.append(f"{text} ({', '.join(said)})" if said else text)
    return ", ".join(told)


def _away(best: _Standing, one: _Standing, digits: int, scale: float) -> str:
    known = one.points.keys() & best.points.keys()
    if known and not one.same_points(best):
        return "on different points"
    away, error = scale * (one.value - best.value), scale * one.error_from(best) if known else math.nan
    if not math.isfinite(away) or not math.isfinite(error):
        return "the error of the difference is unknown"
    far = "beyond" if abs(away) > 2 * error else "within"
    return f"{signed(away, digits)} ± {number(error, digits)}, {far} twice its error"


def _listed(names: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


# ── the report ───────────────────────────────────────────────────────────────────────────────────────────────────────


def print_beside(results: Results, stream: TextIO, *, width: int | None = None) -> None:
    """Draw the report on `stream`: in colour on a terminal, plain in a pipe, in ASCII where the encoding needs it."""
    draw(report_parts(results), stream, columns_of(stream, width))


def report_parts(results: Results) -> Iterator[Part]:
    """What the report is made of. All results are of one task."""
    yield from head(results)
    yield from (GAP, title("Test sets"), test_table(results))
    for name in ood_names(results):
        yield GAP
        yield title(f"{name} against the test sets")
        for number_of, table in enumerate(ood_tables(results, name)):
            yield from (GAP, table) if number_of else (table,)
    yield GAP
    yield from legend(results)
    yield from tail(results)


def head(results: Results) -> Iterator[Part]:
    """Which results these are, how they stand to each other, and what was asked of them differently."""
    asked = compared(results)
    yield title(f"bnuq report: {len(results)} results side by side")
    yield Facts(tuple((name, ", ".join(_facts(one))) for name, one in results.items()))
    yield from (GAP, title("In short"), Items(tuple(in_short(results))))
    yield from (GAP, title("Settings that differ" if any(one.differs for one in asked) else "Settings"))
    yield Items((*_in_words(asked), *_draws_in_words(results, asked), _NO_JUDGEMENT))


_NO_JUDGEMENT = (
    "This report shows results side by side without judging them. To test whether one result is significantly "
    "worse than another, use `bnuq check CURRENT BASELINE`."
)


def _facts(result: Result) -> Iterator[str]:
    sampling = result.sampling
    yield f"{Path(str(result.model['path'])).name}"
    if len(result.methods) > 1:
        size = "" if sampling["batch_size"] is None else f", b = {sampling['batch_size']}"
        yield f"T = {sampling['samples']}{size}, seed {sampling['seed']}"
    yield f"{result.sets['test'].n} test points"
    if warned := warnings(result.findings):
        yield count(len(warned), "warning")
    if result.path is not None:
        yield str(result.path)


def methods_of(results: Results) -> list[str]:
    """The methods of any of the results, in their order."""
    return list(dict.fromkeys(method for one in results.values() for method in one.methods))


def ood_names(results: Results) -> list[str]:
    """The OOD sets of any of the results, in their order."""
    return list(dict.fromkeys(name for one in results.values() for name in ood.names(one)))


def is_regression(results: Results) -> bool:
    return any(one.model.get("task") == "regression" for one in results.values())


def test_table(results: Results) -> Table:
    """Every estimate of the test set, method by method."""
    rows: list[Row] = []
    for method in methods_of(results):
        ours = [one.methods.get(method) for one in results.values()]
        rows.append((method, ()))
        for metric in METRICS:
            found = [_estimates(one).get(metric) for one in ours]
            if any(found):
                digits = digits_of(metric, (estimate.value for estimate in found if estimate))
                rows.append((f"  {headed(metric)}", tuple(with_error(estimate, digits) for estimate in found)))
        for metric in ("crps", "pll"):
            shares = [None if one is None else one.normalized.get(metric) for one in ours]
            if any(shares):
                rows.append((f"  ↑ normalised {named(metric, roomy=True)}", tuple(map(share_with_error, shares))))
    return Table(tuple(results), tuple(rows), stacks=True)


def _estimates(method: MethodResult | None) -> Estimates:
    return {} if method is None else method.sets["test"].estimates


def ood_tables(results: Results, name: str) -> Iterator[Table]:
    """How well the set is told apart, by every score of every method: a table for each of AUROC, AUPR and FPR95."""
    for key in SEPARATIONS:
        rows: list[Row] = []
        for method in methods_of(results):
            ours = [one.methods[method].ood.get(name, {}) if method in one.methods else {} for one in results.values()]
            for number_of, score in enumerate(dict.fromkeys(score for one in ours for score in one)):
                rows += [(f"{headed(key)}, {method}", ())] if number_of == 0 else []
                cells = tuple(with_error(_of_score(one, score, key)) for one in ours)
                rows.append((f"  by {named(score, roomy=True)}", cells))
        if rows:
            yield Table(tuple(results), tuple(rows), stacks=True)


def _of_score(scores: Mapping[str, Estimates], score: str, key: str) -> Estimate | None:
    return scores.get(score, {}).get(key)


def legend(results: Results) -> Iterator[Part]:
    """What the words in the tables mean."""
    task = regression if is_regression(results) else classification
    yield Paragraph("± standard error over points and samples together. ↑ higher, ↓ lower is better.", "dim")
    said = dict.fromkeys(text for one in results.values() for text in task.legend(one))
    yield from (Paragraph(text, "dim") for text in said)


def tail(results: Results) -> Iterator[Part]:
    """What to be careful about in each."""
    rows = tuple(
        (f"{name}: {text}", code, todo) for name, one in results.items() for text, code, todo in advised(one.findings)
    )
    if rows:
        yield from (GAP, title("Warnings", "bold yellow"), Advice(rows))


def summary(results: Results) -> dict[str, Any]:
    """All summaries by name, and what was asked differently, as JSON values."""
    differences = [{"what": one.what, "values": dict(one.values)} for one in compared(results) if one.differs]
    return {
        "schema": SCHEMA,
        "command": "report",
        "results": {name: summary_of(one) for name, one in results.items()},
        "differences": differences,
    }


def best_score(results: Results, name: str, method: str) -> tuple[str, dict[str, float]] | None:
    """The score of largest mean AUROC by which this method tells the set apart, and its AUROC in each result."""
    found: dict[str, dict[str, float]] = {}
    for result, one in results.items():
        for score, estimates in (one.methods[method].ood.get(name, {}) if method in one.methods else {}).items():
            found.setdefault(score, {})[result] = estimates["auroc"].value
    most = max((len(values) for values in found.values()), default=0)
    shared = {score: values for score, values in found.items() if len(values) == most}
    return max(shared.items(), key=lambda item: sum(item[1].values()), default=None)
