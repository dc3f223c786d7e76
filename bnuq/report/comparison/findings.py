"""The findings of a comparison of several results: settings that differ, warnings, and the ranking of the results."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from bnuq.catalogue import text_of
from bnuq.findings import Catalogue, Entry, Finding, all_of, note, verdict, warning, warnings
from bnuq.methods import method_named
from bnuq.metrics import METRICS, detection_influence, rmse_influence, standard_error
from bnuq.records.evaluation import EvaluatedSet, Result, SetResult
from bnuq.report import ood
from bnuq.report.comparison.lookup import Results, is_regression, methods_of, ood_names
from bnuq.report.comparison.settings import DRAWN, Difference
from bnuq.report.evaluation_findings import network_in_words
from bnuq.report.numbers import count, decimals, named, number, signed, written

_RANKED = {"classification": ("accuracy", "pll"), "regression": ("rmse", "crps", "pll")}  # of the test set
_ROUNDING = 1e-10  # of the largest value: what differs by less was added up in another order
_GRAVE = ("inputs-of-another-scale", "reference-mismatch")  # the warnings that come before a result's others

Distance = Literal["none", "other-points", "error-unknown", "within", "beyond"]


@dataclass(frozen=True)
class Place:
    """The results of one place in a ranking, and how far their estimate is from the best: within or beyond twice the
    standard error over points of the difference, unless that is not known or the points are not the same."""

    names: tuple[str, ...]
    value: float
    score: str = ""  # "mutual information of mcbn", where each result has its own
    distance: Distance = "none"
    difference: float = math.nan
    error: float = math.nan


def setting_findings(results: Results, settings: Sequence[Difference]) -> Iterator[Finding]:
    """What was requested differently, what was the same, and what that means for the estimates."""
    for setting in settings:
        if setting.differs:
            groups: dict[str, list[str]] = {}
            for name, value in setting.values.items():
                groups.setdefault(value, []).append(name)
            yield note("setting-differs", what=setting.what, groups=groups, other_points=setting.other_points)
    if shared := {setting.what: next(iter(setting.values.values())) for setting in settings if not setting.differs}:
        yield note("settings-shared", settings=shared)
    different = [setting.what for setting in settings if setting.differs]
    of_samples = [name for name in different if name in (*DRAWN.values(), "reference")]
    if of_samples and all(result.sampled for result in results.values()):
        yield note("samples-differ", settings=of_samples)
    yield note("not-judged")


def findings(results: Results) -> Iterator[Finding]:
    """The results' warnings; then, of each method that all have and of each OOD set, the results from best to worst."""
    yield from _warnings(results)
    rankings = list(_rankings(results))
    yield from rankings
    places = (place for finding in rankings for ranking in finding.values["rankings"].values() for place in ranking)
    if any(place.distance in ("within", "beyond") for place in places):
        yield note("ranking-errors")


def _warnings(results: Results) -> Iterator[Finding]:
    """Of each result its gravest warning, or its first; results with the same one together."""
    names: dict[tuple[str, int], list[str]] = {}
    for name, result in results.items():
        if warned := warnings(result.findings):
            graves = (finding for code in _GRAVE for finding in warned if finding.code == code)
            first = next(graves, warned[0])
            text = re.split(r"(?<=[.!?])\s+(?=[A-Z`])", text_of(first).strip())[0].rstrip(".")
            names.setdefault((text, len(warned) - 1), []).append(name)
    for (text, others), group in names.items():
        yield warning("result-warning", names=group, text=text, others=others)


def _rankings(results: Results) -> Iterator[Finding]:
    for method in methods_of(results):
        if all(method in result.methods for result in results.values()):
            metrics = _RANKED["regression" if is_regression(results) else "classification"]
            rankings = {metric: places for metric in metrics if (places := _by_metric(results, method, metric))}
            yield verdict("ranking", method=method, rankings=rankings, results=len(results))
    for name in ood_names(results):
        rankings = {"auroc": _by_auroc(results, name)}
        tried = [_scores_of(result, name) for result in results.values() if name in ood.names(result)]
        fewest_and_most = (min(tried), max(tried))
        yield verdict("separation-ranking", name=name, rankings=rankings, results=len(results), scores=fewest_and_most)


# ── rankings ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class _Standing:
    """An estimate of one result, and what each point of which set contributes to it."""

    name: str
    result: Result
    value: float
    points: Mapping[str, np.ndarray]
    score: str = ""

    def same_points(self, other: _Standing) -> bool:
        """Whether both estimates are of the very same points, in the same groups."""
        return self.points.keys() == other.points.keys() and all(
            _same_set(self.result.sets[name], other.result.sets[name]) for name in self.points
        )

    def equals(self, other: _Standing) -> bool:
        """Whether not only the estimates are the same, but what every point contributes, except for rounding."""
        return (
            self.score == other.score
            and self.same_points(other)
            and _close(self.value, other.value)
            and all(_close(values, other.points[name]) for name, values in self.points.items())
        )

    def error_from(self, other: _Standing) -> float:
        """Of the difference of two estimates of the same points, over points; NaN if it is not known."""
        errors = []
        for name, values in self.points.items():
            with np.errstate(invalid="ignore"):  # a PLL of −∞
                errors.append(standard_error(values - other.points[name], group=self.result.sets[name].group))
        return math.hypot(*errors) if errors else math.nan


def _close(a: Any, b: Any) -> bool:
    size = float(np.max(np.abs(np.nan_to_num(a, posinf=0.0, neginf=0.0)), initial=0.0))
    return bool(np.allclose(a, b, rtol=0, atol=_ROUNDING * size, equal_nan=True))


def _same_set(a: EvaluatedSet, b: EvaluatedSet) -> bool:
    grouped = a.group is b.group if a.group is None or b.group is None else np.array_equal(a.group, b.group)
    return bool(a.sha256) and (a.sha256, a.n) == (b.sha256, b.n) and grouped


def _by_metric(results: Results, method: str, metric: str) -> tuple[Place, ...]:
    """The results from best to worst by an estimate of the test set."""
    standings = []
    for name, result in results.items():
        test = result.methods[method].sets["test"]
        if metric in test.estimates:
            standings.append(_Standing(name, result, test.estimates[metric].value, _contributions(test, metric)))
    return _places(standings, lower=METRICS[metric].direction == "lower")


def _contributions(test: SetResult, metric: str) -> dict[str, np.ndarray]:
    """What each test point contributes to an estimate; nothing if the file does not hold it."""
    if metric == "rmse" and "squared_error" in test.points:
        return {"test": rmse_influence(test.points["squared_error"])}
    return {"test": np.asarray(test.points[metric])} if metric in test.points else {}


def _by_auroc(results: Results, name: str) -> tuple[Place, ...]:
    """The results from best to worst by the largest AUROC of any score, which need not be the same score."""
    standings = []
    for result_name, result in results.items():
        if name in ood.names(result):
            method, score, auroc = ood.best_score_of(result, name)
            sets = result.methods[method].sets
            points = {set_name: sets[set_name].points[score] for set_name in ("test", name)}
            defined = not any(np.isnan(values).any() for values in points.values())
            parts = dict(zip(points, detection_influence(*points.values()).auroc, strict=True)) if defined else {}
            standings.append(
                _Standing(result_name, result, auroc, parts, f"{named(score)} of {network_in_words(method)}")
            )
    return _places(standings, lower=False)


def _scores_of(result: Result, name: str) -> int:
    """How many scores of how many methods the best is chosen from."""
    return sum(len(method.ood[name]) for method in result.methods.values())


def _places(standings: Sequence[_Standing], *, lower: bool) -> tuple[Place, ...]:
    groups: list[list[_Standing]] = []
    for standing in sorted(
        standings, key=lambda standing: (math.isnan(standing.value), standing.value if lower else -standing.value)
    ):
        if groups and groups[-1][0].equals(standing):
            groups[-1].append(standing)
        else:
            groups.append([standing])
    places = []
    for group in groups:
        first = group[0]
        distance, difference, error = _distance(groups[0][0], first)
        names = tuple(standing.name for standing in group)
        places.append(Place(names, first.value, first.score, distance, difference, error))
    return tuple(places)


def _distance(best: _Standing, other: _Standing) -> tuple[Distance, float, float]:
    if other is best:
        return "none", 0.0, math.nan
    shared = other.points.keys() & best.points.keys()
    if shared and not other.same_points(best):
        return "other-points", math.nan, math.nan
    difference, error = other.value - best.value, other.error_from(best) if shared else math.nan
    if not math.isfinite(difference) or not math.isfinite(error):
        return "error-unknown", difference, error
    return "beyond" if abs(difference) > 2 * error else "within", difference, error


# ── sentences ────────────────────────────────────────────────────────────────────────────────────────────────────────


def _setting_differs(*, what: str, groups: Mapping[str, Sequence[str]], other_points: bool) -> str:
    values = "; ".join(f"{value} in {' and '.join(names)}" for value, names in groups.items())
    incomparable = "; estimates on it are from different points and cannot be compared" if other_points else ""
    return f"{what}: {values}{incomparable}."


def _settings_shared(*, settings: Mapping[str, str]) -> str:
    return f"The same in all: {'; '.join(f'{name} {value}' for name, value in settings.items())}."


def _result_warning(*, names: Sequence[str], text: str, others: int) -> str:
    others_text = f", and {count(others, 'other warning')} below" if others else ""
    return f"Warning for {all_of(names)}: {text}{others_text}."


def _ranking(*, method: str, rankings: Mapping[str, Sequence[Place]], results: int) -> str:
    network = network_in_words(method)
    head = network[0].upper() + network[1:] if method_named(method).is_single else method
    texts = (f"{named(metric)} {_in_order(places, metric, results)}" for metric, places in rankings.items())
    return f"{head}: {'; '.join(texts)}."


def _separation_ranking(
    *, name: str, rankings: Mapping[str, Sequence[Place]], results: int, scores: tuple[int, int]
) -> str:
    tried = " to ".join(str(count) for count in sorted({*scores}))
    best = "the best score" if scores[1] == 1 else f"the best of {tried} scores"
    return f"{name}: AUROC of {best} {_in_order(rankings['auroc'], 'auroc', results)}."


def _in_order(places: Sequence[Place], metric: str, results: int) -> str:
    """As "0.93 in a, 0.91 in b and c (−0.02 ± 0.01, beyond twice its error)"."""
    digits, scale, unit = (3, 1, "") if metric == "auroc" else written(metric)
    if digits is None:
        digits = max(0, decimals(place.value for place in places) - 1)
    texts = []
    for place in places:
        names = all_of(place.names) if len(place.names) < results else "all"
        remarks = [f"by the {place.score}"] if place.score else []
        if place.distance in ("within", "beyond"):
            error = f"{signed(scale * place.difference, digits)} ± {number(scale * place.error, digits)}"
            remarks.append(f"{error}, {place.distance} twice its error")
        elif place.distance != "none":
            remarks.append(_UNKNOWN[place.distance])
        text = f"{number(scale * place.value, digits)}{unit} in {names}"
        texts.append(f"{text} ({', '.join(remarks)})" if remarks else text)
    return ", ".join(texts)


_UNKNOWN = {"other-points": "on different points", "error-unknown": "the error of the difference is unknown"}


SENTENCES: Catalogue = {
    "setting-differs": Entry(_setting_differs),
    "settings-shared": Entry(_settings_shared),
    "samples-differ": Entry(
        "Samples differ ({settings:joined}): part of every difference between columns is Monte Carlo error."
    ),
    "not-judged": Entry(
        "This report shows results side by side without judging them. To test whether one result is significantly "
        "worse than another, use `bnuq check CURRENT BASELINE`."
    ),
    "result-warning": Entry(_result_warning),
    "ranking": Entry(_ranking),
    "separation-ranking": Entry(_separation_ranking),
    "ranking-errors": Entry(
        "Results are listed from best to worst, with the difference from the best and its standard error over points "
        "(paired, as the points are the same); Monte Carlo error is not included."
    ),
}
