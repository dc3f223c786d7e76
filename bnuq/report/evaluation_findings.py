"""The findings of an evaluation, computed from its record, and their sentences."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import NormalDist
from typing import Any, Literal

import numpy as np
from jaxtyping import Float

from bnuq.estimates import Estimate
from bnuq.findings import Catalogue, Entry, Finding, listed, verdict
from bnuq.methods import DETERMINISTIC, NETWORKS, POPULATION, method_named
from bnuq.metrics import METRICS, delong_difference_variance, jackknife_error, standard_error
from bnuq.records.approximation import Approximation, approximations
from bnuq.records.evaluation import BAND, FEWEST_POINTS, Estimates, ReferenceCheck, Result, SetResult
from bnuq.records.reference import averages_lag, draws_mini_batches, is_material
from bnuq.records.verdict import OTHER_SCALE, is_mismatched, judged, on_another_scale
from bnuq.records.verdict_sentences import VERDICT
from bnuq.report import ood
from bnuq.report.noise_models import labelled
from bnuq.report.numbers import (
    and_error,
    decimals,
    grouped,
    named,
    number,
    percent,
    share,
    shown_with,
    signed,
    total,
    written,
)

_FAR, _CHANCE = 0.25, 0.001  # below the mean accuracy, and the chance that any class is so far below it
_NAMED = 3  # classes in a sentence
_NEGLIGIBLE = 1e-6  # of a value: rounding in float32
PerPoint = Float[np.ndarray, " point"]
Verdict = Literal["better", "as-well", "worse", "unknown"]


@dataclass(frozen=True)
class Change:
    """A metric before and after; `error` is that of the difference, over points and samples, None if it is unknown.

    `normalised` says how far between constant and optimal uncertainty the metric lies, in percent.
    """

    metric: str
    before: float
    after: float
    error: float | None
    normalised: Estimate | None = None

    @property
    def verdict(self) -> Verdict:
        """Better or worse where the difference exceeds twice its error and is not negligible beside the values."""
        gain = (self.after - self.before) * (-1 if METRICS[self.metric].direction == "lower" else 1)
        if self.error is None:
            return "unknown"
        if abs(gain) < 2 * self.error or abs(gain) <= _NEGLIGIBLE * abs(self.before):
            return "as-well"
        return "better" if gain > 0 else "worse"


def findings(result: Result) -> Iterator[Finding]:
    """The answers: whether the sets and the reference fit, and samples are worth their passes; then of the test set, of
    each OOD set, of the noise models. Nothing is said of sets whose inputs are on another scale than the reference's,
    and of the test set nothing either where those of the validation set are: what was fitted to them enters its
    scores."""
    check = result.reference_check
    wrong = on_another_scale(result.findings)
    for name, values in wrong.items():
        yield verdict(OTHER_SCALE, set=name, sd=values["sd"], reference_sd=values["reference_sd"])
    of_reference = None if check is None else _of_reference(check, result)
    if of_reference is not None and of_reference.code == "reference-mismatch":
        yield of_reference
    yield from judged(result).findings
    if not wrong.keys() & {"test", "validation"}:
        yield from _of_regression(result) if result.task.is_regression else _of_classification(result)
    if "test" not in wrong:
        yield from (_separation(result, name) for name in ood.names(result) if name not in wrong)
        yield from _noise_models(result)
    if of_reference is not None and of_reference.code != "reference-mismatch":
        yield of_reference


def _not_recalibrated(result: Result) -> list[str]:
    """The methods of several samples, without those of them that are recalibrated."""
    return [name for name in result.sampled if method_named(name).recalibration is None]


def _of_reference(check: ReferenceCheck, result: Result) -> Finding:
    """The outcome of the reference check; a mismatch where it failed and one pass differs by the reference's
    statistics."""
    if not check.passed and is_material(result.methods):
        return verdict("reference-mismatch", lags=averages_lag(check, result.methods))
    median, worst = (float(statistic(check.ratios, axis=0).max()) for statistic in (np.median, np.max))
    if check.passed:
        return verdict("reference-match", median=median, worst=worst)
    return verdict("reference-differs", median=median, worst=worst, elsewhere=check.is_within_limits)


# ── what a method is compared with ───────────────────────────────────────────────────────────────────────────────────

_NETWORKS = {DETERMINISTIC: "the deterministic network", POPULATION: "the network with population statistics"}
_RECALIBRATED = {"temperature": "a temperature", "vector": "vector scaling"}


def network_in_words(method: str) -> str:
    """A method within a sentence."""
    if method_named(method).is_single and (kind := method_named(method).recalibration):
        return f"{_NETWORKS[method_named(method).plain.name]} with {_RECALIBRATED[kind]}"
    return _NETWORKS.get(method) or labelled(method)


def is_of_last_layer(method: str) -> bool:
    """Whether samples differ in the last layer alone, so that all others run once."""
    return "weights" in method_named(method).differs_by


def _compared_with(method: str, result: Result) -> str:
    """The deterministic network that a sampled method is compared with.

    MCBN normalises by statistics of the reference. Where the running statistics do not fit it, that alone changes
    estimates, without any gain from uncertainty: MCBN is then compared with the network under the population statistics
    of its mini-batches. A recalibrated method is compared with a network that is recalibrated so, too.
    """
    network = POPULATION if POPULATION in result.methods and draws_mini_batches(method) else DETERMINISTIC
    return network + method.removeprefix(method_named(method).plain.name)


# ── the test set of a classification ─────────────────────────────────────────────────────────────────────────────────


def _of_classification(result: Result) -> Iterator[Finding]:
    test = result.methods[DETERMINISTIC].sets["test"].estimates
    if "accuracy" not in test:  # of points without labels
        return
    yield verdict("deterministic-classification", accuracy=test["accuracy"], pll=test["pll"])
    yield from _collapsed(result)
    yield from _at_boundaries(result)
    yield from _population(result, "pll")
    yield from (_labels(name, result) for name in _not_recalibrated(result))


def _at_boundaries(result: Result) -> Iterator[Finding]:
    """How much more uncertain the pixels of a segmentation are near class boundaries: by MI if there are samples,
    else by the entropy of the deterministic network."""
    methods = _not_recalibrated(result)
    score = "mutual_information" if methods else "predictive_entropy"
    known = []
    for name in methods or [DETERMINISTIC]:
        test = result.methods[name].sets["test"].estimates
        near, inside = (test.get(f"{score}_{place}") for place in ("boundary", "interior"))
        if near is not None and inside is not None and inside.value > 0:
            known.append((name, near, inside))
    if known:
        yield verdict("boundary-uncertainty", score=score, methods=known)


def _labels(name: str, result: Result) -> Finding:
    network = _compared_with(name, result)
    after, before = (result.methods[method].sets["test"] for method in (name, network))
    metrics = "pll", "accuracy"
    pll, accuracy = (_change(m, before.estimates[m], before.points[m], after, name, result) for m in metrics)
    ece = (before.estimates["ece"].value, after.estimates["ece"].value)
    outcome = "unjudged" if pll.verdict == "better" and is_mismatched(result) else pll.verdict
    return verdict(f"explains-labels-{outcome}", method=name, network=network, pll=pll, accuracy=accuracy, ece=ece)


def _collapsed(result: Result) -> Iterator[Finding]:
    """The classes of which far fewer points are right than of all, under the method where most are: more than a quarter
    of the points fewer, and more than chance gives to any of so many classes."""
    test = result.sets["test"]
    if test.labels is None or test.labels.ndim > 1:
        return
    classes, of_point, count = np.unique(test.labels, return_inverse=True, return_counts=True)
    by_method: dict[str, tuple[np.ndarray, np.ndarray, float]] = {}
    for name, method in result.methods.items():
        right = method.sets["test"].points["accuracy"]
        mean, of_class = float(right.mean()), np.bincount(of_point, weights=right) / count
        limit = NormalDist().inv_cdf(1 - _CHANCE / len(classes)) * np.sqrt(max(0.0, mean * (1 - mean)) / count)
        below = (mean - of_class > np.maximum(limit, _FAR)) & (count >= FEWEST_POINTS)
        by_method[name] = np.flatnonzero(below), of_class, mean
    name = max(by_method, key=lambda name: len(by_method[name][0]))
    found, of_class, mean = by_method[name]
    if not len(found):
        return
    worst = found[np.argsort(of_class[found], kind="stable")][:_NAMED]
    names = [test.classes[k] if k < len(test.classes) else str(k) for k in classes[worst].tolist()]
    shown = [[each, float(of_class[at]), int(count[at])] for each, at in zip(names, worst.tolist(), strict=True)]
    yield verdict("classes-far-below", method=name, classes=shown, found=len(found), mean=mean)


def _change(
    metric: str,
    before: Estimate,
    points: PerPoint | None,
    test: SetResult,
    name: str,
    result: Result,
    normalised: Any = None,
) -> Change:
    """A metric of a method's `test` set compared with `before`, of which `points` are what each point contributes.

    The error is that of the difference, paired over points and over samples; the networks of an ensemble are given.
    """
    after, error = test.estimates[metric], math.nan
    given = "networks" in method_named(name).differs_by
    over_samples = 0.0 if given else after.mc_se
    if points is not None and after.se is not None and over_samples is not None and math.isfinite(before.value):
        over_points = standard_error(_difference(points, test.points[metric]), group=result.sets["test"].group)
        if not given and after.jackknife is not None and METRICS[metric].mc_error == "jackknife":
            shared = 0 if before.jackknife is None else before.jackknife
            over_samples = float(jackknife_error(after.jackknife - shared))
        error = math.hypot(over_points, over_samples)
    known = math.isfinite(error) and math.isfinite(after.value)
    return Change(metric, before.value, after.value, error if known else None, normalised)


def _difference(before: PerPoint, after: PerPoint) -> PerPoint:
    with np.errstate(invalid="ignore"):  # of two PLLs of −∞ it is NaN
        return after - before


def _population(result: Result, metric: str) -> Iterator[Finding]:
    """What the population statistics of the reference change by themselves, where the reference check failed."""
    if POPULATION not in result.methods:
        return
    before, after = (result.methods[name].sets["test"] for name in NETWORKS)
    difference = _difference(before.points[metric], after.points[metric])
    yield verdict(
        "population-statistics",
        before=before.estimates,
        after=after.estimates,
        change=float(np.mean(difference)),
        error=standard_error(difference, group=result.sets["test"].group),
        methods=tuple(filter(draws_mini_batches, _not_recalibrated(result))),
    )


# ── the test set of a regression ─────────────────────────────────────────────────────────────────────────────────────


def _of_regression(result: Result) -> Iterator[Finding]:
    test = result.methods[DETERMINISTIC].sets["test"].estimates
    yield verdict("deterministic-regression", test=test)
    yield from _population(result, "mae")
    sampled = result.sampled
    if "tau" not in test:
        yield verdict("tau-unknown", sampled=bool(sampled))
    for name in sampled:
        yield from _targets(name, result)
        yield _ranking(name, result)
        yield from _intervals(name, result)


def _targets(name: str, result: Result) -> Iterator[Finding]:
    """Whether the scores are better than those of a constant σ, or if there is none, of a deterministic network."""
    changes = tuple(change for metric in ("crps", "pll") if (change := _score_change(metric, name, result)))
    if changes:
        verdicts = {change.verdict for change in changes}
        if "better" in verdicts and is_mismatched(result):
            verdicts = {"unjudged"}
        outcome = "unknown" if "unknown" in verdicts else verdicts.pop() if len(verdicts) == 1 else "mixed"
        constant = "constant" in result.methods[name].bounds
        network = None if constant else _compared_with(name, result)
        yield verdict(f"explains-targets-{outcome}", method=name, network=network, changes=changes)


def _score_change(metric: str, name: str, result: Result) -> Change | None:
    method = result.methods[name]
    test, network = method.sets["test"], result.methods[_compared_with(name, result)].sets["test"]
    without_noise = metric == "crps" and result.run.get("scoring", {}).get("crps") in ("ensemble", "fair")
    if metric not in test.points or without_noise:
        return None
    if "constant" in method.bounds:
        before, points = method.bounds["constant"][metric], test.points.get(f"{metric}_constant")
    else:
        before, points = network.estimates[metric], network.points.get(metric)
    return _change(metric, before, points, test, name, result, method.normalized.get(metric))


def _ranking(name: str, result: Result) -> Finding:
    """Whether errors are larger where σ is."""
    correlation = result.methods[name].sets["test"].estimates.get("spearman")
    if correlation is None or math.isnan(correlation.value):
        code = "sigma-constant"
    elif correlation.low is None or correlation.high is None:
        code = "sigma-unjudged"
    elif correlation.high < 0:
        code = "sigma-opposes-errors"
    elif correlation.low <= 0:
        code = "sigma-unrelated-to-errors"
    else:
        how = "" if correlation.value >= 0.5 else "partly-" if correlation.value >= 0.2 else "hardly-"
        code = f"sigma-{how}follows-errors"
    return verdict(code, method=name, correlation=correlation)


def _intervals(name: str, result: Result) -> Iterator[Finding]:
    """Whether central intervals cover as many targets as they should, beyond twice the error and what chance gives."""
    estimates, test = result.methods[name].sets["test"].estimates, result.sets["test"]
    if "coverage50" not in estimates:
        return
    independent = test.n if test.group is None else len(np.unique(test.group))
    wrong: dict[int, str] = {}
    for level in (50, 95):
        estimate = estimates[f"coverage{level}"]
        excess = estimate.value - level / 100
        by_chance = math.sqrt(level / 100 * (1 - level / 100) / independent)
        if abs(excess) > 2 * max(total(estimate) or math.inf, by_chance):
            wrong[level] = "wide" if excess > 0 else "narrow"
    code = "intervals-miscalibrated" if wrong else "intervals-calibrated"
    yield verdict(code, method=name, test=estimates, wrong=wrong)


# ── OOD sets and noise models ────────────────────────────────────────────────────────────────────────────────────────


def _separation(result: Result, name: str) -> Finding:
    """How well the best of all scores separates a set from the test set, and how far behind it is the best of the
    others: of those that take several passes if it takes one, and the reverse."""
    aurocs = {
        (method, score): estimates["auroc"]
        for method, each in result.methods.items()
        for score, estimates in each.ood[name].items()
    }
    ranked = sorted(aurocs, key=lambda key: -aurocs[key].value)
    method, score = ranked[0]
    is_single = method_named(method).is_single
    other = next((key for key in ranked if method_named(key[0]).is_single != is_single), None)
    auroc = aurocs[method, score]
    return verdict(
        _separation_code(auroc),
        name=name,
        method=method,
        score=score,
        auroc=auroc,
        scores=len(aurocs),
        other=None if other is None else (*other, aurocs[other].value),
        error=math.nan if other is None else _error_of_difference(result, name, ranked[0], other),
    )


def _error_of_difference(result: Result, name: str, first: tuple[str, str], second: tuple[str, str]) -> float:
    """The error of the difference of two AUROCs of a set, over the same points and over the draws of both."""
    pairs, mc_errors = [], []
    for method, score in (first, second):
        of_method = result.methods[method]
        pairs.append(tuple(of_method.sets[key].points[score] for key in ("test", name)))
        mc_errors.append(of_method.ood[name][score]["auroc"].mc_se or 0.0)
    test, ood = result.sets["test"], result.sets[name]
    variance = delong_difference_variance(pairs[0], pairs[1], test_group=test.group, ood_group=ood.group)
    return math.hypot(math.sqrt(variance), *mc_errors)


def _separation_code(auroc: Estimate) -> str:
    if auroc.low is None or auroc.high is None:
        return "ood-unjudged"
    if auroc.high < 0.5:
        return "ood-more-familiar"
    if auroc.low <= 0.5:
        return "ood-not-separated"
    return f"ood-{'well' if auroc.value >= 0.9 else 'partly' if auroc.value >= 0.7 else 'hardly'}-separated"


def _noise_models(result: Result) -> Iterator[Finding]:
    """How far every analytic noise model is from MCBN, if that was evaluated."""
    compared = approximations(result)
    for model in compared:
        outcome = "understates" if model.understates else "overstates" if model.overstates else "compared"
        yield verdict(f"noise-model-{outcome}", model=model)
    if not compared and (methods := [name for name in result.methods if method_named(name).approximates]):
        yield verdict("noise-model-unchecked", methods=tuple(methods))


# ── sentences ────────────────────────────────────────────────────────────────────────────────────────────────────────


def _deterministic_classification(accuracy: Estimate, pll: Estimate) -> str:
    return f"Deterministic network: accuracy {percent(accuracy)}, PLL {number(pll.value)} nats."


def _collapsed_sentence(method: str, classes: Sequence[Sequence[Any]], found: int, mean: float) -> str:
    named_classes = listed([f"{name} ({100 * share:.0f} % of {count} points)" for name, share, count in classes])
    which = "class has an" if found == 1 else "classes have an"
    worst = ", such as " if found > len(classes) else ": "
    return (
        f"{found} {which} accuracy far below the mean ({100 * mean:.0f} %) under {network_in_words(method)}"
        f"{worst}{named_classes}."
    )


def _boundary_sentence(score: str, methods: Sequence[tuple[str, Estimate, Estimate]]) -> str:
    name = "MI" if score == "mutual_information" else named(score)
    where = f" as high within {BAND} pixels of a class boundary as further inside"
    times = [
        f"{number(near.value / inside.value, 1)} times{where if at == 0 else ''} for {network_in_words(method)} "
        f"({and_error(near)} and {and_error(inside)} nats)"
        for at, (method, near, inside) in enumerate(methods)
    ]
    return f"{name[0].upper()}{name[1:]} is {listed(times)}."


def _deterministic_regression(test: Estimates) -> str:
    text = f"Deterministic network: RMSE {_with_error(test['rmse'])}, MAE {_with_error(test['mae'])}"
    if "tau" in test:
        sd = noise_sd(test["tau"].value)
        text += f"; with observation noise of sd {number(sd, max(0, decimals([sd]) - 2))}, {_coverage(test)}"
    return f"{text}."


def _with_error(estimate: Estimate) -> str:
    error = total(estimate)
    digits = shown_with(error, None, [10 * estimate.value])
    return grouped(estimate.value, digits) + (f" ± {grouped(error, digits)}" if error is not None else "")


def noise_sd(tau: float) -> float:
    """The standard deviation of observation noise of this precision; infinite at 0."""
    return tau**-0.5 if tau > 0 else math.inf


def _coverage(test: Estimates) -> str:
    shares = " and ".join(f"{100 * test[f'coverage{level}'].value:.0f}" for level in (50, 95))
    return f"its 50 and 95 % intervals cover {shares} % of the targets"


def _interval_sentence(method: str, test: Estimates, wrong: Mapping[int, str]) -> str:
    how = ", ".join(f"too {which} at {level} %" for level, which in wrong.items())
    return f"{method}: {_coverage(test)}{f' ({how})' if how else ''}."


def _population_sentence(
    before: Estimates, after: Estimates, change: float, error: float, methods: Sequence[str]
) -> str:
    if "accuracy" in before:
        text = f"accuracy {percent(before['accuracy'])} → {percent(after['accuracy'])}, "
        text += f"PLL {number(before['pll'].value)} → {number(after['pll'].value)} nats"
    else:
        names = {"rmse": "RMSE", "mae": "MAE"}
        text = ", ".join(f"{names[m]} {_with_error(before[m])} → {_with_error(after[m])}" for m in names)
    return (
        f"Network with population statistics of the reference in place of its running statistics: {text} "
        f"({signed(change)} ± {error:.4f}). This change is not a gain from uncertainty: {' and '.join(methods)} "
        f"{'is' if len(methods) == 1 else 'are'} compared with this network."
    )


_AS_GOOD = {"better": "better than", "as-well": "about as well as", "worse": "worse than"}


_NO_GAIN = (
    "this is not a reliable gain from uncertainty, because a warning about the statistics of its BatchNorms stands"
)


def _explain(method: str) -> str:
    return "explain" if "file" in method_named(method).differs_by else "explains"


def _labels_sentence(
    method: str, network: str, pll: Change, accuracy: Change, ece: tuple[float, float], *, unjudged: bool = False
) -> str:
    name = labelled(method)
    text = _change_in_words(pll)
    if accuracy.verdict in ("better", "worse"):
        link = "and" if accuracy.verdict == pll.verdict or pll.error is None else "but"
        often = "more" if accuracy.verdict == "better" else "less"
        text += f", {link} is {often} accurate: {_change_in_words(accuracy)}"
    text += f"; ECE {100 * ece[0]:.1f} → {100 * ece[1]:.1f} %"
    if pll.error is None:
        return f"{name}: {text}; too few points or samples to tell whether PLL differs."
    if unjudged:
        return f"{name}: {text}, compared with {network_in_words(network)}; {_NO_GAIN}."
    return f"{name} {_explain(method)} the labels {_AS_GOOD[pll.verdict]} {network_in_words(network)}: {text}."


def _targets_sentence(method: str, network: str | None, changes: Sequence[Change], *, unjudged: bool = False) -> str:
    baseline = "a constant σ" if network is None else f"{network_in_words(network)} with the same τ"
    text = ", ".join(map(_change_in_words, changes))
    if unjudged:
        return f"{method} and {baseline}: {text}; {_NO_GAIN}."
    verdicts = [_AS_GOOD.get(change.verdict) for change in changes]
    if None in verdicts:
        return f"{method} and {baseline}: {text}; too few points or samples to tell whether they differ."
    if len(set(verdicts)) == 1:
        return f"{method} {_explain(method)} the targets {verdicts[0]} {baseline}: {text}."
    return f"{method} {_explain(method)} the targets {verdicts[0]} {baseline} by CRPS, {verdicts[1]} it by PLL: {text}."


def _change_in_words(change: Change) -> str:
    """From what to what, by how much, and how far between constant and optimum that is."""
    digits, scale, unit = written(change.metric)
    before, after = scale * change.before, scale * change.after
    error = None if change.error is None else scale * change.error
    digits = shown_with(error, digits, [10 * before, 10 * after])
    text = f"{named(change.metric)} {grouped(before, digits)} → {grouped(after, digits)}{unit}"
    brackets = []
    if error is not None:
        brackets.append(f"{signed(after - before, digits)} ± {grouped(error, digits)}")
    if change.normalised is not None and math.isfinite(change.normalised.value):
        brackets.append(f"normalised {share(change.normalised.value)} %")
    return text + (f" ({'; '.join(brackets)})" if brackets else "")


def _ranking_sentence(words: str, method: str, correlation: Estimate) -> str:
    value = f"rank correlation {number(correlation.value, 2)}"
    if correlation.low is not None:
        value += f", {number(correlation.low, 2)} to {number(correlation.high, 2)}"
    return words.format(method=method, value=value)


def _separation_sentence(
    words: str,
    name: str,
    method: str,
    score: str,
    auroc: Estimate,
    scores: int,
    other: tuple[str, str, float] | None,
    error: float,
) -> str:
    interval = "" if auroc.low is None else f" ({number(auroc.low, 2)}–{number(auroc.high, 2)})"
    text = (
        f"{name} {words}: AUROC {number(auroc.value, 3)}{interval} by the {named(score)} of {network_in_words(method)}"
    )
    if scores > 1:
        text += f", the best of {scores} scores"
    if other is not None:
        network, score, value = other
        digits = shown_with(error, None, []) if 0 < error < 1 else 3
        difference = number(round(value - auroc.value, digits), digits)
        difference += f" ± {number(error, digits)}" if math.isfinite(error) else ""
        text += f"; {number(value, 3)} ({difference}) by the {named(score)} of {network_in_words(network)}"
    return f"{text}."


def _noise_model_sentence(words: str, model: Approximation) -> str:
    ratio, rank = model.ratio["test"], model.rank["test"]
    mean = {"mutual_information": "mean MI", "variance": "mean variance of samples"}[model.uncertainty]
    error = "" if ratio.mc_se is None else f" ± {number(ratio.mc_se, 2)}"
    text = f"{model.method} is an analytic noise model, not MCBN: its {mean} on the test set is "
    text += f"{number(ratio.value, 2)}{error} times mcbn's"
    if math.isfinite(rank):
        how = "as mcbn does" if rank >= 0.95 else "roughly as mcbn does" if rank >= 0.8 else "differently from mcbn"
        text += f", and ranks the points {how} (ρ {number(rank, 2)})"
    return f"{text}.{words}"


SENTENCES: Catalogue = {
    **VERDICT,
    "reference-mismatch": Entry(
        "Warning: {lags:the running averages probably lag behind the weights: the deterministic estimates below are "
        "not the best of this network|the reference or its pipeline does not match what the network was trained on, or "
        "the running averages lag behind the weights. The results below may not describe your network}; see the "
        "warnings."
    ),
    OTHER_SCALE: Entry(
        "Warning: the inputs of {set} are scaled differently from the reference's (standard deviations {sd:.3g} and "
        "{reference_sd:.3g}). The estimates on {set} are meaningless, and no conclusion is drawn from them; the "
        "warnings below say what to do."
    ),
    "reference-match": Entry(
        "Reference check passed: {median:.1f} × batch noise in the median layer, {worst:.1f} in the worst "
        "(limits 3, 6)."
    ),
    "reference-differs": Entry(
        "Reference check failed{elsewhere: in layers that were never trained or never vary|}: {median:.1f} × batch "
        "noise in the median layer, {worst:.1f} in the worst (limits 3, 6). With the reference's statistics, no "
        "estimate of one pass changes by more than twice its own standard error."
    ),
    "deterministic-classification": Entry(_deterministic_classification),
    "classes-far-below": Entry(_collapsed_sentence),
    "boundary-uncertainty": Entry(_boundary_sentence),
    "deterministic-regression": Entry(_deterministic_regression),
    "population-statistics": Entry(_population_sentence),
    "tau-unknown": Entry(
        "The observation precision τ is unknown because no validation points were named. So there is no PLL or "
        "coverage, CRPS excludes observation noise{sampled:, and σ is that of the samples alone|}. `--calibrate cross` "
        "would give all of them, with τ and the constant baseline fitted to each half of the test set for the other."
    ),
    **{f"explains-labels-{outcome}": Entry(_labels_sentence) for outcome in (*_AS_GOOD, "unknown")},
    **{f"explains-targets-{outcome}": Entry(_targets_sentence) for outcome in (*_AS_GOOD, "mixed", "unknown")},
    "explains-labels-unjudged": Entry(partial(_labels_sentence, unjudged=True)),
    "explains-targets-unjudged": Entry(partial(_targets_sentence, unjudged=True)),
    "sigma-constant": Entry("{method}: σ is the same at every point."),
    **{
        code: Entry(partial(_ranking_sentence, words))
        for code, words in {
            "sigma-unjudged": "{method}: σ and |error|: {value}, from too few points to judge.",
            "sigma-opposes-errors": "{method}: σ is larger where the errors are smaller ({value}).",
            "sigma-unrelated-to-errors": "{method}: σ does not follow the size of the errors ({value}).",
            "sigma-follows-errors": "{method}: σ follows the size of the errors ({value}).",
            "sigma-partly-follows-errors": "{method}: σ partly follows the size of the errors ({value}).",
            "sigma-hardly-follows-errors": "{method}: σ hardly follows the size of the errors ({value}).",
        }.items()
    },
    **{f"intervals-{how}": Entry(_interval_sentence) for how in ("calibrated", "miscalibrated")},
    **{
        code: Entry(partial(_separation_sentence, words))
        for code, words in {
            "ood-unjudged": "has too few points to judge",
            "ood-more-familiar": "appears more familiar than the test set",
            "ood-not-separated": "is not separated from the test set",
            "ood-well-separated": "is well separated from the test set",
            "ood-partly-separated": "is partly separated from the test set",
            "ood-hardly-separated": "is hardly separated from the test set",
        }.items()
    },
    **{
        code: Entry(partial(_noise_model_sentence, words))
        for code, words in {
            "noise-model-compared": "",
            "noise-model-understates": " It badly understates this network's uncertainty.",
            "noise-model-overstates": " It badly overstates this network's uncertainty.",
        }.items()
    },
    "noise-model-unchecked": Entry(
        lambda methods: (
            f"{' and '.join(methods)}: an analytic model of MCBN's noise around the running statistics, not MCBN, and "
            "not checked against it here; with a reference (--train), bnuq measures how far it is off."
        )
    ),
}
