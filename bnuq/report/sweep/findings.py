"""The verdicts of a sweep: how its uncertainty falls, whether it still ranks, and which size is recommended."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np

from bnuq.estimates import Estimate
from bnuq.findings import Catalogue, Entry, Finding, all_of, sentence
from bnuq.findings import verdict as _verdict
from bnuq.methods import NETWORKS
from bnuq.records.sweep import Recommended, Repeated, Sweep, SweepPoint
from bnuq.records.verdict import OTHER_SCALE, on_another_scale
from bnuq.report.evaluation_findings import SENTENCES as OF_EVALUATION
from bnuq.report.numbers import and_error, error_of, interval_of, named, number, signed, three_digits
from bnuq.report.sweep.lookup import (
    Line,
    auroc_of,
    compared_by,
    estimate_of,
    lines_of,
    names_of,
    score_name,
    spread_name,
    spread_of,
)

_WIDE = 0.5  # an interval of a slope that says little


def findings(sweep: Sweep) -> Iterator[Finding]:
    """The verdicts, line by line, then the recommendation. `line` names it if there are several. Nothing is said of
    sets whose inputs are on another scale than the reference's, and no size recommended while a reference check fails.
    """
    wrong = on_another_scale(sweep.findings)
    for name, values in wrong.items():
        yield _verdict(OTHER_SCALE, set=name, sd=values["sd"], reference_sd=values["reference_sd"])
    if _is_mismatched(sweep):
        yield _verdict("reference-mismatch", lags=False)
    lines = lines_of(sweep)
    for line in lines:
        name = "" if len(lines) == 1 else line.title if line.model is None else line.model.name
        verdict = partial(_verdict, line=name)
        if len(line.random) > 1 and "test" not in wrong:
            yield _spread(sweep, line, verdict)
            for name in names_of(sweep, "ood"):
                if name not in wrong:
                    yield from _ranking(sweep, line, name, verdict)
        if (metric := compared_by(line)) and not wrong.keys() & {"test", "validation"}:
            ends = line.compared[:1] + line.compared[1:][-1:]
            gains = {name: [point.compared_with[name][metric].difference for point in ends] for name in NETWORKS}
            deterministic, population = gains.values()
            sizes = [point.batch_size for point in ends]
            yield verdict(
                "statistics-stale", metric=metric, sizes=sizes, deterministic=deterministic, population=population
            )
        if fixed := [point for point in line.points if point.degenerate]:
            all_whole = all(_is_whole_reference(sweep, point) for point in fixed)
            sizes = [point.batch_size for point in fixed]
            yield verdict("whole-reference" if all_whole else "nothing-random", sizes=sizes, spread=spread_name(sweep))
    if any(line.model is None for line in lines):
        yield _verdict("different-weights")
    yield from _recommendation(sweep)


def sentences(sweep: Sweep) -> tuple[str, ...]:
    """The sentences of the findings, behind the names of their lines if there are several."""
    return tuple(map(_sentence, findings(sweep)))


def _sentence(finding: Finding) -> str:
    text, line = sentence(finding, SENTENCES, _FORMATS), finding.values.get("line")
    return f"{line}: {text}" if line else text if "name" in finding.values else text[:1].upper() + text[1:]


def _is_mismatched(sweep: Sweep) -> bool:
    """Whether the reference check of a network failed."""
    return any(finding.code == "reference-mismatch" for finding in sweep.findings)


def _is_whole_reference(sweep: Sweep, point: SweepPoint) -> bool:
    """Whether a mini-batch is known to be the whole reference."""
    terms = sweep.models[point.model].elbo
    return terms is not None and terms.reference_points == point.batch_size


# ── how the uncertainty falls ────────────────────────────────────────────────────────────────────────────────────────


def _spread(sweep: Sweep, line: Line, verdict: Callable[..., Finding]) -> Finding:
    [test, *_] = names_of(sweep, "test")
    first, last = line.random[0], line.random[-1]
    before, after = (estimate_of(point, spread_of(sweep), test) for point in (first, last))
    if before is None or after is None:
        return verdict("spread-unknown", spread=spread_name(sweep))
    values = {
        "spread": spread_name(sweep),
        "unit": "" if sweep.task == "regression" else " nats",
        "sizes": (first.batch_size, last.batch_size),
        "ends": (before.value, after.value),
    }
    decay = None if line.model is None else line.model.decay.get(test)
    if decay is None:
        higher, lower = after.value > before.value, after.value < before.value
        return verdict(f"spread-{'increases' if higher else 'decreases' if lower else 'unchanged'}", **values)
    return verdict(f"spread-{_rate(decay.slope)}", **values, slope=decay.slope)


def _rate(slope: Estimate) -> str:
    """How a slope compares with −1, the one of 1/b."""
    low, high = interval_of(slope)
    if low <= -1 <= high:
        return "falls-as-inverse" if high < 0 and high - low < _WIDE else "may-fall-as-inverse"
    if high < 0:
        return "falls-faster" if high < -1 else "falls-slower"
    return "rises" if low > 0 else "not-clearly-falling"


# ── whether it ranks ─────────────────────────────────────────────────────────────────────────────────────────────────


def _ranking(sweep: Sweep, line: Line, name: str, verdict: Callable[..., Finding]) -> Iterator[Finding]:
    """Whether an OOD set stays separated where the size of the score does not."""
    aurocs = ((point.batch_size, auroc_of(sweep, point, name)) for point in line.random)
    known = [(b, auroc) for b, auroc in aurocs if auroc is not None and not math.isnan(auroc.estimate.value)]
    if len(known) < 2:
        yield verdict("ood-too-few-sizes", name=name)
        return
    (smallest, first), (largest, last) = known[0], known[-1]
    ends = first.estimate.value, last.estimate.value
    verdict = partial(verdict, name=name, score=score_name(sweep), sizes=(smallest, largest), ends=ends)
    chance_from = _smallest_from_which(
        [(b, not interval_of(auroc.estimate)[0] > 0.5) for b, auroc in known]
    )  # NaN: unknown
    if chance_from == smallest:
        familiar = all(interval_of(auroc.estimate)[1] < 0.5 for _, auroc in known)
        yield verdict("ood-familiar" if familiar else "ood-not-separated")
        return
    change = _change(first, last)
    error = error_of(change)
    if error is None or not math.isfinite(error):
        yield verdict("ood-separated")
    else:
        direction = "equally" if abs(change.value) <= 2 * error else "less" if change.value < 0 else "better"
        yield verdict(f"ood-separated-{direction}", change=change)
    if chance_from is not None:
        yield verdict("ood-chance", size=chance_from)
    alike_from = _smallest_from_which([(point.batch_size, _is_alike(sweep, point, name)) for point in line.random])
    if alike_from is not None:
        code = "ood-alike" if alike_from == smallest else "ood-alike-from"
        yield verdict(code, size=alike_from, spread=spread_name(sweep))


def _smallest_from_which(claims: Sequence[tuple[int, bool]]) -> int | None:
    """The size from which on the claim holds, up to the largest; None if it does not hold there."""
    smallest = None
    for size, holds in reversed(claims):
        if not holds:
            break
        smallest = size
    return smallest


def _change(first: Repeated, last: Repeated) -> Estimate:
    """What the estimate gains from one size to another.

    Draw sets are paired. Errors over points are taken for independent: points are the same, so that this is more than
    enough wherever a point that ranks high at one size does so at the other.
    """
    points = [repeated.estimate.se for repeated in (first, last) if repeated.estimate.se is not None]
    pairs = len(first.of_sets) if len(first.of_sets) == len(last.of_sets) else 0
    draws = None
    if pairs > 1:
        with np.errstate(invalid="ignore", over="ignore"):
            draws = float(np.std(last.of_sets - first.of_sets, ddof=1)) / math.sqrt(pairs)
    value = last.estimate.value - first.estimate.value
    return Estimate(value, se=math.hypot(*points) if points else None, mc_se=draws)


def _is_alike(sweep: Sweep, point: SweepPoint, name: str) -> bool:
    """Whether the mean spread of an OOD set is above that of the test set by no more than two errors."""
    [test, *_] = names_of(sweep, "test")
    by_set = point.estimates.get(spread_of(sweep), {})
    if test not in by_set or name not in by_set:
        return False
    change = _change(by_set[test], by_set[name])
    errors = [error for error in (change.se, change.mc_se) if error is not None]
    return bool(errors) and not change.value > 2 * math.hypot(*errors)


# ── which size ───────────────────────────────────────────────────────────────────────────────────────────────────────


def _recommendation(sweep: Sweep) -> Iterator[Finding]:
    chosen = sweep.recommended
    random = sum(not point.degenerate for point in sweep.points)
    if _is_mismatched(sweep) and random > 1:
        yield _verdict("not-recommended-mismatched")
        return
    if chosen is None:
        is_unknown = any(finding.code == "no-recommendation" for finding in sweep.findings)
        why = "scale" if on_another_scale(sweep.findings) and not is_unknown else "criterion"
        yield _verdict(f"not-recommended-{why if random > 1 else 'few' if random else 'none'}")
        return
    network, matched = sweep.models[chosen.model].name, chosen.protocol == "matched"
    yield _verdict(
        f"recommended-by-{chosen.criterion}",
        size=chosen.batch_size,
        whose=f" for {network}" if len(sweep.models) > 1 and not matched else "",
        network=f" (the network {network})" if matched else "",
        of=chosen.of,
        mean="the mean " if len(names_of(sweep, "ood")) > 1 else "",
        ood=names_of(sweep, "ood"),
        score=score_name(sweep),
    )
    sizes = sorted({*chosen.behind, chosen.batch_size})
    at = sizes.index(chosen.batch_size)
    estimates = [estimate for size, estimate in chosen.behind.items() if size != chosen.batch_size]
    if any(math.isfinite(estimate.se or 0.0) and math.isfinite(estimate.mc_se or 0.0) for estimate in estimates):
        within = sorted({chosen.batch_size, *chosen.within})
        yield _verdict("recommended-among" if len(within) > 1 else "recommended-alone", sizes=within)
    else:
        yield _verdict("recommended-without-errors")
    if behind := {size: chosen.behind[size] for size in _decisive_sizes(chosen, sizes, at)}:
        yield _verdict("recommended-ahead", behind=behind, unit=_UNITS[chosen.criterion])
    if chosen.decided_by == "prior":
        yield _verdict("prior-decides")
    if chosen.at_end:
        neighbour = sizes[1] if at == 0 else sizes[at - 1]
        code = f"recommended-is-{'trained-end' if matched else chosen.at_end}"
        yield _verdict(code, end=chosen.at_end, neighbour=neighbour)
    if (predicted := chosen.predicted_batch_size) is not None:
        yield _verdict("optimum-predicted", predicted=predicted)
        if not sizes[0] <= predicted.value <= sizes[-1]:
            yield _verdict("optimum-outside")
        if chosen.criterion == "elbo" and not _is_next_to(predicted, sizes, at):
            yield _verdict("optimum-contradicted")


def _is_next_to(predicted: Estimate, sizes: Sequence[int], at: int) -> bool:
    """Whether an optimum may lie, within twice its error, where the size number `at` is the best: between the sizes
    next to it, and beyond it where it is the first or the last."""
    margin = 2 * (error_of(predicted) or 0.0)
    low = 0 if at == 0 else sizes[at - 1]
    high = math.inf if at == len(sizes) - 1 else sizes[at + 1]
    return low - margin <= predicted.value <= high + margin


def _decisive_sizes(chosen: Recommended, sizes: Sequence[int], at: int) -> list[int]:
    """The neighbours of the recommended size, and the worst of all."""
    neighbours = [*sizes[max(0, at - 1) : at], *sizes[at + 1 : at + 2]]
    others = [size for size in sizes if size != chosen.batch_size and math.isfinite(chosen.behind[size].value)]
    worst = [min(others, key=lambda size: chosen.behind[size].value)] if others else []
    return [*neighbours, *(size for size in worst if size not in neighbours)]


_UNITS = {"elbo": " (nats of the whole training set)", "pll": " (nats per point)", "auroc": ""}


# ── their sentences ──────────────────────────────────────────────────────────────────────────────────────────────────


def _slope(slope: Estimate) -> str:
    interval = "" if slope.low is None else f" [{number(slope.low, 2)}, {number(slope.high, 2)}]"
    return f"log-log slope {number(slope.value, 2)}{interval}"


def _negated(estimate: Estimate) -> Estimate:
    return Estimate(0.0 if estimate.value == 0 else -estimate.value, estimate.se, estimate.mc_se)


_FORMATS = {
    "names": all_of,
    "sizes": lambda sizes: all_of(f"b = {size:,}" for size in sizes),
    "numbers": lambda sizes: all_of(f"{size:,}" for size in sizes),
    "digits": three_digits,
    "auroc": lambda value: number(value, 3),
    "change": lambda change: f"{signed(change.value, 3)} ± {number(error_of(change), 3)}",
    "slope": _slope,
    "estimate": and_error,
    "estimates": lambda estimates: all_of(map(and_error, estimates)),
    "metric": lambda metric: named(metric, roomy=False),
    "behind": lambda behind: ", ".join(f"b = {size:,} by {and_error(_negated(each))}" for size, each in behind.items()),
}
_ENDS = "{ends[0]:digits}{unit} at b = {sizes[0]:,}, {ends[1]:digits} at {sizes[1]:,}"
_SPREADS = {
    "spread-falls-as-inverse": "falls as 1/b",
    "spread-may-fall-as-inverse": "may fall as 1/b, but the rate is very uncertain",
    "spread-falls-faster": "falls faster than 1/b",
    "spread-falls-slower": "falls, but more slowly than 1/b",
    "spread-not-clearly-falling": "does not clearly fall",
    "spread-rises": "rises",
}
_CHANGES = {"spread-increases": "rises", "spread-decreases": "falls", "spread-unchanged": "stays the same"}
_AUROC = "AUROC by {score} {ends[0]:auroc} → {ends[1]:auroc} from b = {sizes[0]:,} to {sizes[1]:,}"
_TEXTS = {
    "spread-unknown": "{spread} on the test set is not known at every size.",
    **{code: f"{{spread}} on the test set {text}: {_ENDS} ({{slope:slope}})." for code, text in _SPREADS.items()},
    **{code: f"{{spread}} on the test set {text} from size to size: {_ENDS}." for code, text in _CHANGES.items()},
    "ood-too-few-sizes": "too few sizes to say how well {name} is separated.",
    "ood-familiar": f"{{name}} appears more familiar than the test set: {_AUROC}.",
    "ood-not-separated": f"{{name}} is not separated from the test set at any size: {_AUROC}.",
    "ood-separated": f"{{name}} is separated, with an unknown error: {_AUROC}.",
    "ood-separated-equally": f"{{name}} is separated equally well as b grows: {_AUROC} ({{change:change}}).",
    "ood-separated-less": f"{{name}} is separated less well as b grows: {_AUROC} ({{change:change}}).",
    "ood-separated-better": f"{{name}} is separated better as b grows: {_AUROC} ({{change:change}}).",
    "ood-chance": "{name} is separated no better than by chance from b = {size:,} on.",
    "ood-alike": "the mean {spread} of {name} is at no size more than two errors above the test set's.",
    "ood-alike-from": (
        "the mean {spread} of {name} is not more than two errors above the test set's from b = {size:,} on."
    ),
    "statistics-stale": (
        "the running statistics do not fit the reference. {metric:metric} on the test set, MCBN minus the "
        "deterministic network: {deterministic:estimates} at {sizes:sizes}; minus the network with population "
        "statistics: {population:estimates}. The rest is a repair, not a gain from uncertainty."
    ),
    "nothing-random": "with {sizes:sizes}, no draw changes an output: {spread} is exactly 0.",
    "whole-reference": "with {sizes:sizes}, the whole reference, no draw changes an output: {spread} is exactly 0.",
    "different-weights": (
        "Where each size has its own network, the networks have different weights: differences may come from training, "
        "and retraining may change them by more than the stated errors."
    ),
    "not-recommended-mismatched": (
        "No size is recommended while the reference check fails, because MCBN may not describe your network at any "
        "size."
    ),
    "not-recommended-scale": (
        "No size is recommended, because the criterion uses inputs that are scaled differently from the reference's."
    ),
    "not-recommended-criterion": "No size is recommended: the criterion is not available; the notes say why.",
    "not-recommended-few": "No size is recommended: fewer than two sizes could be compared.",
    "not-recommended-none": "No size is recommended: nothing is random at any of them.",
    "recommended-by-elbo": "Recommended{whose}: b = {size:,}, where the ELBO is highest{network}.",
    "recommended-by-pll": "Recommended{whose}: b = {size:,}, where PLL on the {of} set is highest{network}.",
    "recommended-by-auroc": (
        "Recommended{whose}: b = {size:,}, where {mean}AUROC by {score} of {ood:names} against the {of} set is "
        "highest{network}."
    ),
    "recommended-among": "Within one standard error of the highest are {sizes:numbers}.",
    "recommended-alone": "No other size is within one standard error of it.",
    "recommended-without-errors": "The errors of the differences between sizes are unknown.",
    "recommended-ahead": "Lower than the recommended size{unit}: {behind:behind}.",
    "prior-decides": (
        "The likelihood changes by less than its error between sizes: the prior decides, through the KL, and another "
        "prior may decide differently."
    ),
    "recommended-is-trained-end": ("It is the {end} of the training batch sizes: the optimum may lie beyond."),
    "recommended-is-largest": (
        "It is the largest of the sizes that were compared, so the optimum may lie anywhere above b = {neighbour:,}: "
        "sweep larger ones."
    ),
    "recommended-is-smallest": (
        "It is the smallest of the sizes that were compared, so the optimum may lie anywhere below b = {neighbour:,}: "
        "sweep smaller ones."
    ),
    "optimum-predicted": (
        "The asymptotic rule b* = 2Nc/P + mean(1/ρ) puts the optimum of the ELBO at {predicted:estimate}."
    ),
    "optimum-outside": "That is outside the swept sizes.",
    "optimum-contradicted": (
        "The computed sizes contradict the rule: their likelihood does not scale as 1/b, as it assumes."
    ),
}
SENTENCES: Catalogue = {
    **{code: OF_EVALUATION[code] for code in (OTHER_SCALE, "reference-mismatch")},
    **{code: Entry(text) for code, text in _TEXTS.items()},
}
