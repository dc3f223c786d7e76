"""What a sweep shows: how its uncertainty falls, whether it still ranks, and which size is recommended."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import takewhile

from bnuq.estimates import Estimate
from bnuq.findings import Conclusion, all_of
from bnuq.methods import NETWORKS
from bnuq.metrics.registry import metric_of
from bnuq.metrics.replicates import error_of_change
from bnuq.records.comparisons import OTHER_SCALE, REACH, on_another_scale
from bnuq.records.words import percent, plain
from bnuq.report.numbers import and_error, error_of, interval_of, three_digits, with_error
from bnuq.studies.sweep.lines import (
    SweepLine,
    auroc_of,
    compared_by,
    disagreement_name,
    disagreement_of,
    estimate_of,
    lines_of,
    main_line,
    names_of,
)
from bnuq.studies.sweep.record import Recommended, Repeated, Sweep, decay_rate
from bnuq.studies.sweep.tables import decimals_of

_VAGUE = 0.3  # an interval of an AUROC that says little
_DECAYS = {
    "falls-as-inverse": "falls as 1/size",
    "may-fall-as-inverse": "may fall as 1/size, but the rate is very uncertain",
    "falls-faster": "falls faster than 1/size",
    "falls-slower": "falls, but more slowly than 1/size",
    "not-clearly-falling": "does not clearly fall",
    "rises": "rises",
    "falls": "falls",
    "unchanged": "stays the same",
}


def sentences(sweep: Sweep) -> tuple[str, ...]:
    """What it shows, behind the names of lines if there are several: in one text the recommendation, and in one what
    concerns the same set."""
    texts: dict[tuple[str, str], list[str]] = {}
    lines = lines_of(sweep)
    for line, each in conclusions(sweep):
        name = "" if line is None or len(lines) == 1 else line.title if line.model is None else line.model.name
        about = "size" if "recommended" in each.code else each.about or each.code
        said = texts.setdefault((name, about), [])
        text = f"{name}: {each.text}" if name and not said else each.text
        said.append(text if name or each.about else text[:1].upper() + text[1:])
    return tuple(map(" ".join, texts.values()))


def conclusions(sweep: Sweep) -> Iterator[tuple[SweepLine | None, Conclusion]]:
    """What forbids conclusions, the recommendation, then what each line shows. Nothing is said of sets whose inputs are
    on another scale than the reference's, and no size recommended while a reference check fails."""
    rescaled = on_another_scale(sweep.findings)
    for name, values in rescaled.items():
        text = (
            f"Warning: the inputs of {name} are scaled differently from the training set's (standard deviations "
            f"{values['sd']:.3g} and {values['reference_sd']:.3g}). The estimates on {name} are meaningless, and no "
            "conclusion is drawn from them; the warnings below say what to do."
        )
        yield None, Conclusion(OTHER_SCALE, text)
    is_mismatched = any(finding.code == "reference-mismatch" for finding in sweep.findings)
    if is_mismatched:
        text = (
            "Warning: the training set (`train`) or its pipeline does not match what the network was trained on, or "
            "the running averages lag behind the weights. The results below may not describe your network; see the "
            "warnings."
        )
        yield None, Conclusion("reference-mismatch", text)
    yield from ((None, each) for each in _recommendation(sweep, is_mismatched))
    for line in lines_of(sweep):
        yield from ((line, each) for each in _of_line(sweep, line, rescaled))
    if any(line.model is None for line in lines_of(sweep)):
        text = (
            "Where each size has its own network, the networks have different weights: differences may come from "
            "training, and retraining may change them by more than the stated errors."
        )
        yield None, Conclusion("different-weights", text)


def _of_line(sweep: Sweep, line: SweepLine, rescaled: Iterable[str]) -> Iterator[Conclusion]:
    spread = disagreement_name(sweep)
    if len(line.random) > 1 and "test" not in rescaled:
        yield _disagreement(sweep, line, f"{spread} on the test set")
        for name in names_of(sweep, "ood"):
            if name not in rescaled:
                yield from _ranking(sweep, line, name)
    if (metric := compared_by(line)) and not {*rescaled} & {"test", "validation"}:
        ends = line.compared[:1] + line.compared[1:][-1:]
        deterministic, population = (
            all_of(and_error(point.compared_with[name][metric].difference) for point in ends) for name in NETWORKS
        )
        text = (
            f"the running statistics do not fit the training set. On the test set, {plain(metric)} of MCBN minus that "
            f"of the deterministic network: {deterministic} at {_sizes(point.batch_size for point in ends)}; minus the "
            f"network with population statistics: {population}. The rest is a repair, not a gain from uncertainty."
        )
        yield Conclusion("statistics-stale", text)
    if fixed := [point for point in line.points if point.degenerate]:
        terms = ((point, sweep.models[point.model].elbo) for point in fixed)
        is_whole = all(of is not None and of.reference_points == point.batch_size for point, of in terms)
        whole = ", the whole training set" if is_whole else ""
        text = (
            f"at size {_sizes(point.batch_size for point in fixed)}{whole}, no draw changes an output: {spread} is "
            "exactly 0."
        )
        yield Conclusion("whole-reference" if is_whole else "nothing-random", text)


def _sizes(sizes: Iterable[int]) -> str:
    return all_of(f"{size:,}" for size in sizes)


def _disagreement(sweep: Sweep, line: SweepLine, spread: str) -> Conclusion:
    """How the disagreement between samples falls with the size."""
    [test, *_] = names_of(sweep, "test")
    first, last = line.random[0], line.random[-1]
    before, after = (estimate_of(point, disagreement_of(sweep), test) for point in (first, last))
    if before is None or after is None:
        return Conclusion("spread-unknown", f"{spread} is not known at every size.")
    decay = None if line.model is None else line.model.decay.get(test)
    change = after.value - before.value
    code = "rises" if change > 0 else "falls" if change < 0 else "unchanged"
    code = code if decay is None else decay_rate(*interval_of(decay.slope))
    ends = (
        f"{three_digits(before.value)} at size {first.batch_size:,}, {three_digits(after.value)} at {last.batch_size:,}"
    )
    return Conclusion(f"spread-{code}", f"{spread} {_DECAYS[code]}: {ends}.")


def _ranking(sweep: Sweep, line: SweepLine, name: str) -> Iterator[Conclusion]:
    """Whether an OOD set stays separated where the size of the score does not."""
    aurocs = ((point.batch_size, auroc_of(sweep, point, name)) for point in line.random)
    known = [(b, auroc) for b, auroc in aurocs if auroc is not None and not math.isnan(auroc.estimate.value)]
    separated = "separated from the test set"
    if len(known) < 2:
        yield Conclusion("ood-too-few-sizes", f"too few sizes to say how well {name} is {separated}.", name)
        return
    (smallest, first), (largest, last) = known[0], known[-1]
    ends = [percent(auroc.estimate.value) for auroc in (first, last)]
    ranked = f"{ends[0]} of all pairs are ranked rightly at size {smallest:,}, {ends[1]} at {largest:,}"

    def said(code: str, how: str) -> Conclusion:
        return Conclusion(f"ood-{code}", f"{name} {how}: {ranked}.", name)

    by_chance = takewhile(lambda each: not interval_of(each[1].estimate)[0] > 0.5, reversed(known))  # NaN: unknown
    chance_from = min((size for size, _ in by_chance), default=None)
    if chance_from == smallest:
        intervals = [interval_of(auroc.estimate) for _, auroc in known]
        if all(high < 0.5 for _, high in intervals):
            yield said("familiar", "appears more familiar than the test set")
        elif any(high - low > _VAGUE for low, high in intervals):
            sets, more = min(len(auroc.of_sets) for _, auroc in known), " (`--full-grid` draws more)"
            why = f"{sets} sets of draws leave 95 % intervals wide{more * (sweep.stopped != 'full-grid')}"
            yield said("unclear", f"may or may not be {separated}, as {why}")
        else:
            yield said("not-separated", f"is not {separated} at any size")
        return
    change = change_of(first, last)
    error = error_of(change)
    if error is None or not math.isfinite(error):
        yield said("separated", f"is {separated}, with an unknown error")
    elif abs(change.value) <= 2 * error:
        yield said("separated-equally", f"is {separated} equally well at all sizes")
    else:
        how = "less" if change.value < 0 else "better"
        yield said(f"separated-{how}", f"is {separated} {how.replace('less', 'less well')} by larger mini-batches")
    if chance_from is not None:
        text = f"From size {chance_from:,} on, that is no more than chance may give."
        yield Conclusion("ood-chance", text, name)


def change_of(first: Repeated, last: Repeated) -> Estimate:
    """What the estimate gains from one size to another.

    Draw sets are paired. Errors over points are taken for independent: points are the same, so that this is more than
    enough wherever a point that ranks high at one size does so at the other.
    """
    points = [repeated.estimate.se for repeated in (first, last) if repeated.estimate.se is not None]
    draws = error_of_change(last.of_sets, first.of_sets) if min(len(first.of_sets), len(last.of_sets)) > 1 else None
    value = last.estimate.value - first.estimate.value
    return Estimate(value, se=math.hypot(*points) if points else None, mc_se=draws)


# ── which size is recommended ────────────────────────────────────────────────────────────────────────────────────────


def _recommendation(sweep: Sweep, is_mismatched: bool) -> Iterator[Conclusion]:
    """The recommended size, how clearly it leads, and whether the optimum may lie elsewhere; or why there is none."""
    chosen = sweep.recommended
    random = sum(not point.degenerate for point in sweep.points)
    if is_mismatched and random > 1:
        why = "while the check of the training set fails, because MCBN may not describe your network at any size"
        yield Conclusion("not-recommended-mismatched", f"No size is recommended {why}.")
    elif chosen is None:
        is_unknown = any(finding.code == "no-recommendation" for finding in sweep.findings)
        if random < 2:
            is_few = "few" if random else "none"
            why = ": fewer than two sizes could be compared" if random else ": nothing is random at any of them"
        elif on_another_scale(sweep.findings) and not is_unknown:
            is_few = "scale"
            why = ", because the criterion uses inputs that are scaled differently from the training set's"
        else:
            is_few, why = "criterion", ": the criterion is not available; the notes say why"
        yield Conclusion(f"not-recommended-{is_few}", f"No size is recommended{why}.")
    else:
        network, is_matched, ood = sweep.models[chosen.model].name, chosen.protocol == "matched", names_of(sweep, "ood")
        why = {
            "elbo": "they explain the training set best, by the lower bound on its likelihood",
            "pll": f"they explain the {chosen.of} set best, by its log-likelihood",
            "auroc": f"{all_of(ood) if ood else ''} {'is' if len(ood) == 1 else 'are'} separated from the {chosen.of} "
            f"set{' on average' * (len(ood) > 1)} best by these",
        }[chosen.criterion]
        whose = f" for {network}" if len(sweep.models) > 1 and not is_matched else ""
        of = f" (the network {network})" if is_matched else ""
        use = f"Use mini-batches of {chosen.batch_size:,}{whose} (`--batch-size {chosen.batch_size}`)"
        yield Conclusion(f"recommended-by-{chosen.criterion}", f"{use}: {why}{of}.")
        yield from _lead(chosen)
        yield from _optimum(sweep, chosen)
        yield from _on_test(sweep, chosen)
    if skipped := sweep.skipped:
        yield Conclusion("recommended-skipped", f"Left out by the search: {_sizes(skipped)} (`--full-grid`).")


def _on_test(sweep: Sweep, chosen: Recommended) -> Iterator[Conclusion]:
    """By which metrics of the test set the recommended size is better or worse than the best other one, beyond twice
    their paired errors, and what to choose by where predictions count."""
    known = {name: each for name, each in chosen.on_test.items() if each.se and (chosen.of, name) != ("test", "pll")}
    points = {point.batch_size: point for point in main_line(sweep).points}
    size, also, better = chosen.batch_size, [], {}
    for metric, other in known.items():
        gain = other.difference * (-1 if metric_of(metric).direction == "lower" else 1) / (other.se or math.inf)
        if gain > REACH:
            also.append(plain(metric))
        elif gain < -REACH:
            column = {size: estimate_of(point, metric, "test") for size, point in points.items()}
            digits = decimals_of(metric, column.values())
            there, here = (with_error(column.get(each), digits).value for each in (other.batch_size, size))
            by = and_error(Estimate(abs(other.difference), se=other.se))
            text = f"{plain(metric)} ({there}, {here} at {size:,}; difference {by})"
            better.setdefault(other.batch_size, []).append(text)
    texts = [f"{size:,} is the best size by {all_of(also)}"] if also else []
    texts += [f"{other:,} is better by {all_of(by)}" for other, by in better.items()]
    if known and not texts:
        texts = [f"no other size is clearly better by {all_of(map(plain, known), 'or')}"]
    if texts:
        yield Conclusion(f"on-test-{'better' if better else 'best'}", f"On the test set, {'; '.join(texts)}.", "test")
    if better and chosen.criterion != "pll":
        option = "--criterion pll" + " --validation REF" * (not names_of(sweep, "validation"))
        best = "explains the training set" if chosen.criterion == "elbo" else "recognises unfamiliar data"
        yield Conclusion("on-test-purpose", f"{size:,} {best}; for the best predictions, choose by `{option}`.", "test")


def _lead(chosen: Recommended) -> Iterator[Conclusion]:
    """Whether other sizes may be as good as the recommended one."""
    others = {size: each for size, each in chosen.behind.items() if size != chosen.batch_size}
    if not any(math.isfinite(each.se or 0.0) and math.isfinite(each.mc_se or 0.0) for each in others.values()):
        yield Conclusion("recommended-without-errors", "The errors of the differences between sizes are unknown.")
        return
    within = sorted({*chosen.within} & {*others})
    size = (min if within else max)(within or others, key=lambda size: others[size].value)
    by = and_error(replace(others[size], value=abs(others[size].value)))
    by += {"elbo": " nats", "pll": " nats per example", "auroc": ""}[chosen.criterion]
    if within:
        code, text = "recommended-among", f"{_sizes(within)} may be as good: {'up to ' * (len(within) > 1)}{by} behind"
    else:
        code, text = "recommended-alone", f"no other size is as good: the next best, {size:,}, is {by} behind"
    yield Conclusion(code, f"By a 95 % interval, {text}.")


def _optimum(sweep: Sweep, chosen: Recommended) -> Iterator[Conclusion]:
    """Why another size than the recommended one may be the best."""
    if chosen.decided_by == "prior":
        text = (
            "The likelihood changes by less than its error between sizes: the prior decides, and another prior "
            "(`--prior`) may decide differently."
        )
        yield Conclusion("prior-decides", text)
    size, terms = chosen.batch_size, sweep.models[chosen.model].elbo
    if chosen.at_end == "largest" or (chosen.at_end and size > 2):
        most = 0 if terms is None else terms.reference_points - 1
        beyond = {2 * size, 4 * size} if chosen.at_end == "largest" else {size // 4, size // 2}
        others = sorted({size} | {each for each in beyond if 2 <= each <= max(size, most)})
        is_possible = len(others) > 1 and chosen.protocol == "single"
        command = f" (`--batch-sizes {','.join(map(str, others))}`)" if is_possible else ""
        how = f"{chosen.at_end.removesuffix('st')}r"
        yield Conclusion(f"recommended-is-{chosen.at_end}", f"No {how} size was compared; one may be better{command}.")
