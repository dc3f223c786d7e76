"""The verdicts of a sweep and their sentences: how its uncertainty falls, whether it still ranks, and the size that is
recommended."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from bnuq.estimates import Estimate
from bnuq.findings import Catalogue, Entry, Finding, all_of, sentence, verdict
from bnuq.findings import verdict as _verdict
from bnuq.methods import NETWORKS
from bnuq.metrics.replicates import error_of_change
from bnuq.records.sweep import Recommended, Repeated, Sweep, SweepPoint, decay_rate
from bnuq.records.verdict import OTHER_SCALE, on_another_scale
from bnuq.report.numbers import and_error, error_of, interval_of, named, number, signed, three_digits
from bnuq.report.sweep.sweep_lines import (
    SweepLine,
    auroc_of,
    compared_by,
    disagreement_name,
    disagreement_of,
    estimate_of,
    lines_of,
    names_of,
    score_name,
)

_VAGUE = 0.3  # an interval of an AUROC that says little


def findings(sweep: Sweep) -> Iterator[Finding]:
    """The verdicts, line by line, then the recommendation. `line` names it if there are several. Nothing is said of
    sets whose inputs are on another scale than the reference's, and no size recommended while a reference check fails.
    """
    rescaled = on_another_scale(sweep.findings)
    for name, values in rescaled.items():
        yield _verdict(OTHER_SCALE, set=name, sd=values["sd"], reference_sd=values["reference_sd"])
    if is_mismatched(sweep):
        yield _verdict("reference-mismatch", lags=False)
    lines = lines_of(sweep)
    for line in lines:
        name = "" if len(lines) == 1 else line.title if line.model is None else line.model.name
        verdict = partial(_verdict, line=name)
        if len(line.random) > 1 and "test" not in rescaled:
            yield _disagreement(sweep, line, verdict)
            for name in names_of(sweep, "ood"):
                if name not in rescaled:
                    yield from _ranking(sweep, line, name, verdict)
        if (metric := compared_by(line)) and not rescaled.keys() & {"test", "validation"}:
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
            code = "whole-reference" if all_whole else "nothing-random"
            yield verdict(code, sizes=sizes, spread=disagreement_name(sweep))
    if any(line.model is None for line in lines):
        yield _verdict("different-weights")
    yield from recommendation_findings(sweep)


def _is_whole_reference(sweep: Sweep, point: SweepPoint) -> bool:
    """Whether a mini-batch is known to be the whole reference."""
    terms = sweep.models[point.model].elbo
    return terms is not None and terms.reference_points == point.batch_size


# ── how the uncertainty falls ────────────────────────────────────────────────────────────────────────────────────────


def _disagreement(sweep: Sweep, line: SweepLine, verdict: Callable[..., Finding]) -> Finding:
    [test, *_] = names_of(sweep, "test")
    first, last = line.random[0], line.random[-1]
    before, after = (estimate_of(point, disagreement_of(sweep), test) for point in (first, last))
    if before is None or after is None:
        return verdict("spread-unknown", spread=disagreement_name(sweep))
    values = {
        "spread": disagreement_name(sweep),
        "unit": "" if sweep.task == "regression" else " nats",
        "sizes": (first.batch_size, last.batch_size),
        "ends": (before.value, after.value),
    }
    decay = None if line.model is None else line.model.decay.get(test)
    if decay is None:
        higher, lower = after.value > before.value, after.value < before.value
        return verdict(f"spread-{'increases' if higher else 'decreases' if lower else 'unchanged'}", **values)
    return verdict(f"spread-{decay_rate(*interval_of(decay.slope))}", **values, slope=decay.slope)


# ── whether it ranks ─────────────────────────────────────────────────────────────────────────────────────────────────


def _ranking(sweep: Sweep, line: SweepLine, name: str, verdict: Callable[..., Finding]) -> Iterator[Finding]:
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
        intervals = [interval_of(auroc.estimate) for _, auroc in known]
        familiar, vague = all(high < 0.5 for _, high in intervals), any(high - low > _VAGUE for low, high in intervals)
        yield verdict("ood-familiar" if familiar else "ood-unclear" if vague else "ood-not-separated")
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
        yield verdict(code, size=alike_from, spread=disagreement_name(sweep))


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
    draws = error_of_change(last.of_sets, first.of_sets) if min(len(first.of_sets), len(last.of_sets)) > 1 else None
    value = last.estimate.value - first.estimate.value
    return Estimate(value, se=math.hypot(*points) if points else None, mc_se=draws)


def _is_alike(sweep: Sweep, point: SweepPoint, name: str) -> bool:
    """Whether the mean disagreement of an OOD set is above that of the test set by no more than two errors."""
    [test, *_] = names_of(sweep, "test")
    set_estimates = point.estimates.get(disagreement_of(sweep), {})
    if test not in set_estimates or name not in set_estimates:
        return False
    change = _change(set_estimates[test], set_estimates[name])
    errors = [error for error in (change.se, change.mc_se) if error is not None]
    return bool(errors) and not change.value > 2 * math.hypot(*errors)


def is_mismatched(sweep: Sweep) -> bool:
    """Whether the reference check of a network failed."""
    return any(finding.code == "reference-mismatch" for finding in sweep.findings)


def recommendation_findings(sweep: Sweep) -> Iterator[Finding]:
    """The recommended size, how clearly it leads, and whether the optimum may lie elsewhere; or why there is none."""
    chosen = sweep.recommended
    random = sum(not point.degenerate for point in sweep.points)
    if is_mismatched(sweep) and random > 1:
        yield verdict("not-recommended-mismatched")
    elif chosen is None:
        is_unknown = any(finding.code == "no-recommendation" for finding in sweep.findings)
        why = "scale" if on_another_scale(sweep.findings) and not is_unknown else "criterion"
        yield verdict(f"not-recommended-{why if random > 1 else 'few' if random else 'none'}")
    else:
        network, matched = sweep.models[chosen.model].name, chosen.protocol == "matched"
        yield verdict(
            f"recommended-by-{chosen.criterion}",
            size=chosen.batch_size,
            whose=f" for {network}" if len(sweep.models) > 1 and not matched else "",
            network=f" (the network {network})" if matched else "",
            of=chosen.of,
            mean="the mean " if len(names_of(sweep, "ood")) > 1 else "",
            ood=names_of(sweep, "ood"),
            score=score_name(sweep),
        )
        if (by_pll := chosen.by_pll) is not None and by_pll.batch_size != chosen.batch_size:
            clear = by_pll.change > 2 * by_pll.se
            yield verdict("recommended-costs", size=by_pll.batch_size, change=by_pll.change, se=by_pll.se, clear=clear)
        sizes = sorted({*chosen.behind, chosen.batch_size})
        position = sizes.index(chosen.batch_size)
        yield from _lead(chosen, sizes, position)
        yield from _optimum(chosen, sizes, position)


def _lead(chosen: Recommended, sizes: Sequence[int], position: int) -> Iterator[Finding]:
    """How far the other sizes are behind the recommended one, which is number `position`."""
    estimates = [estimate for size, estimate in chosen.behind.items() if size != chosen.batch_size]
    if any(math.isfinite(estimate.se or 0.0) and math.isfinite(estimate.mc_se or 0.0) for estimate in estimates):
        within = sorted({chosen.batch_size, *chosen.within})
        yield verdict("recommended-among" if len(within) > 1 else "recommended-alone", sizes=within)
    else:
        yield verdict("recommended-without-errors")
    if behind := {size: chosen.behind[size] for size in _decisive_sizes(chosen, sizes, position)}:
        yield verdict("recommended-ahead", behind=behind, unit=_UNITS[chosen.criterion])


def _optimum(chosen: Recommended, sizes: Sequence[int], position: int) -> Iterator[Finding]:
    """What the recommended size, which is number `position`, leaves open about the best of all sizes."""
    if chosen.decided_by == "prior":
        yield verdict("prior-decides")
    if chosen.at_end:
        neighbour = sizes[1] if position == 0 else sizes[position - 1]
        code = f"recommended-is-{'trained-end' if chosen.protocol == 'matched' else chosen.at_end}"
        yield verdict(code, end=chosen.at_end, neighbour=neighbour)
    if (predicted := chosen.predicted_batch_size) is not None:
        yield verdict("optimum-predicted", predicted=predicted)
        if not sizes[0] <= predicted.value <= sizes[-1]:
            yield verdict("optimum-outside")
        if chosen.criterion == "elbo" and not _is_next_to(predicted, sizes, position):
            yield verdict("optimum-contradicted")


def _is_next_to(predicted: Estimate, sizes: Sequence[int], position: int) -> bool:
    """Whether an optimum may lie, within twice its error, where size number `position` is the best: between the sizes
    next to it, and beyond it where it is the first or the last."""
    margin = 2 * (error_of(predicted) or 0.0)
    low = 0 if position == 0 else sizes[position - 1]
    high = math.inf if position == len(sizes) - 1 else sizes[position + 1]
    return low - margin <= predicted.value <= high + margin


def _decisive_sizes(chosen: Recommended, sizes: Sequence[int], position: int) -> list[int]:
    """The neighbours of the recommended size, and the worst of all."""
    neighbours = [*sizes[max(0, position - 1) : position], *sizes[position + 1 : position + 2]]
    others = [size for size in sizes if size != chosen.batch_size and math.isfinite(chosen.behind[size].value)]
    worst = [min(others, key=lambda size: chosen.behind[size].value)] if others else []
    return [*neighbours, *(size for size in worst if size not in neighbours)]


_UNITS = {"elbo": " (nats of the whole training set)", "pll": " (nats per point)", "auroc": ""}


def sentences(sweep: Sweep) -> tuple[str, ...]:
    """The sentences of the findings, behind the names of their lines if there are several."""
    return tuple(map(_sentence, findings(sweep)))


def _sentence(finding: Finding) -> str:
    text, line = sentence(finding, SENTENCES, _FORMATS), finding.values.get("line")
    return f"{line}: {text}" if line else text if "name" in finding.values else text[:1].upper() + text[1:]


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
    "ood-unclear": f"it is unclear whether {{name}} is separated, as draw sets differ widely: {_AUROC}.",
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
    "recommended-costs": (
        "By PLL of the test set, b = {size:,} is better by {change:.4f} ± {se:.4f}{clear:|, which may be chance}."
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
_TEXTS |= {
    OTHER_SCALE: (
        "Warning: the inputs of {set} are scaled differently from the reference's (standard deviations {sd:.3g} and "
        "{reference_sd:.3g}). The estimates on {set} are meaningless, and no conclusion is drawn from them; the "
        "warnings below say what to do."
    ),
    "reference-mismatch": (
        "Warning: {lags:the running averages probably lag behind the weights: the deterministic estimates below are "
        "not the best of this network|the reference or its pipeline does not match what the network was trained on, or "
        "the running averages lag behind the weights. The results below may not describe your network}; see the "
        "warnings."
    ),
}
SENTENCES: Catalogue = {code: Entry(text) for code, text in _TEXTS.items()}
