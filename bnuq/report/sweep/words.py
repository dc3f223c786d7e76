"""A sweep in words: how its uncertainty falls, whether it still ranks, and which size is recommended."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from bnuq.config import SINGLE_SAMPLE_METHODS
from bnuq.estimates import Estimate
from bnuq.records.sweep import Recommended, Repeated, Sweep, SweepPoint
from bnuq.report.numbers import named, number, signed
from bnuq.report.sweep.lines import (
    Line,
    and_error,
    auroc_of,
    brief,
    compared_by,
    error_of,
    estimate_of,
    interval_of,
    names_of,
    score_name,
    spread_name,
    spread_of,
)

_WIDE = 0.5  # an interval of a slope, that says little


def in_words(sweep: Sweep, lines: Sequence[Line]) -> Iterator[str]:
    for line in lines:
        of = "" if len(lines) == 1 else f"{line.title}: " if line.model is None else f"{line.model.name}: "
        if len(line.random) > 1:
            text = _size_in_words(sweep, line)
            yield of + text if of else _capital(text)
            yield from (of + _ranking_in_words(sweep, line, name) for name in names_of(sweep, "ood"))
        if metric := compared_by(line):
            text = _repair_in_words(line, metric)
            yield of + text if of else _capital(text)
        if fixed := [point for point in line.points if point.degenerate]:
            sizes = _listed([f"b = {point.batch_size:,}" for point in fixed])
            whole = ", the whole reference," if all(_is_whole(sweep, point) for point in fixed) else ""
            why = "nothing is random, because no draw changes an output"
            text = f"with {sizes}{whole} {why}: {spread_name(sweep)} is exactly 0."
            yield of + text if of else _capital(text)
    if any(line.model is None for line in lines):
        yield (
            "Where each size has its own network, the networks have different weights: differences may come from "
            "training, and retraining may change them by more than the stated errors."
        )
    yield from _recommended_in_words(sweep)


def _is_whole(sweep: Sweep, point: SweepPoint) -> bool:
    """Whether it is known that a mini-batch is the whole reference."""
    terms = sweep.models[point.model].elbo
    return terms is not None and terms.reference_points == point.batch_size


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _repair_in_words(line: Line, metric: str) -> str:
    """How much of what MCBN gains is that it does without stale running statistics."""
    ends = line.compared[:1] + line.compared[1:][-1:]
    as_it_is, repaired = (
        _listed([and_error(point.compared_with[name][metric].difference) for point in ends])
        for name in SINGLE_SAMPLE_METHODS
    )
    label = named(metric, roomy=False)
    return (
        f"the running statistics do not fit the reference. {label} on the test set, MCBN minus the "
        f"deterministic network: {as_it_is} at {_listed([f'b = {point.batch_size:,}' for point in ends])}; minus the "
        f"network with population statistics: {repaired}. The rest is a repair, not a gain from uncertainty."
    )


def _size_in_words(sweep: Sweep, line: Line) -> str:
    [test, *_] = names_of(sweep, "test")
    first, last = line.random[0], line.random[-1]
    before, after = (estimate_of(point, spread_of(sweep), test) for point in (first, last))
    what = f"{spread_name(sweep)} on the test set"
    if before is None or after is None:
        return f"{what} is not known at every size."
    unit = " nats" if sweep.task == "classification" else ""
    told = f"{brief(before.value)}{unit} at b = {first.batch_size:,}, {brief(after.value)} at {last.batch_size:,}"
    decay = None if line.model is None else line.model.decay.get(test)
    if decay is None:
        goes = "rises" if after.value > before.value else "falls" if after.value < before.value else "stays"
        return f"{what} {goes} from size to size: {told}."
    slope = decay.slope
    interval = "" if slope.low is None else f" [{number(slope.low, 2)}, {number(slope.high, 2)}]"
    return f"{what} {_law(slope)}: {told} (log-log slope {number(slope.value, 2)}{interval})."


def _law(slope: Estimate) -> str:
    low, high = interval_of(slope)
    if low <= -1 <= high < 0 and high - low < _WIDE:
        return "falls as 1/b"
    if low <= -1 <= high:
        return "may fall as 1/b, but the rate is very uncertain"
    if high < -1:
        return "falls faster than 1/b"
    if high < 0:
        return "falls, but more slowly than 1/b"
    return "rises" if low > 0 else "does not clearly fall"


def _ranking_in_words(sweep: Sweep, line: Line, name: str) -> str:
    """Whether the order of points survives where the size of the score does not."""
    found = [(point.batch_size, one) for point in line.random if (one := auroc_of(sweep, point, name)) is not None]
    if len(found) < 2:
        return f"too few sizes to say how well {name} is separated."
    (size, first), (largest, last) = found[0], found[-1]
    by = f"AUROC by {score_name(sweep)} {number(first.estimate.value, 3)} → {number(last.estimate.value, 3)}"
    blind = _from_where_on(
        [(b, not interval_of(one.estimate)[0] > 0.5) for b, one in found]  # NaN: nothing is known to be told apart
    )
    if blind == size:
        familiar = all(interval_of(one.estimate)[1] < 0.5 for _, one in found)
        goes = "appears more familiar than" if familiar else "is at no size separated from"
        return f"{name} {goes} the test set ({by} from b = {size:,} to {largest:,})."
    change = _change(first, last)
    error = error_of(change)
    told = f"{by} from b = {size:,} to {largest:,}"
    if error is not None and math.isfinite(error):
        told += f" ({signed(change.value, 3)} ± {number(error, 3)})"
    if error is None or not math.isfinite(error):
        goes = "is separated, with an unknown error"
    elif abs(change.value) <= 2 * error:
        goes = "is separated equally well as b grows"
    else:
        goes = "is separated less well as b grows" if change.value < 0 else "is separated better as b grows"
    text = f"{name} {goes}: {told}"
    if blind is not None:
        text += f"; from b = {blind:,} on, no better than chance"
    alike = _from_where_on([(point.batch_size, _alike(sweep, point, name)) for point in line.random])
    spread = spread_name(sweep).removeprefix("the ")
    if alike == size:
        text += f"; its mean {spread} is at no size above that of the test set by more than two errors"
    elif alike is not None:
        text += f"; from b = {alike:,} on its mean {spread} is not above that of the test set by more than two errors"
    return f"{text}."


def _from_where_on(claims: Sequence[tuple[int, bool]]) -> int | None:
    """The size from which on the claim holds, up to the largest; None where it does not hold there."""
    where = None
    for size, holds in reversed(claims):
        if not holds:
            break
        where = size
    return where


def _change(first: Repeated, last: Repeated) -> Estimate:
    """What the estimate gains from one size to another.

    Draw sets are paired. Errors over points are taken for independent: points are the same, so that this is more than
    enough wherever a point that ranks high at one size does so at the other.
    """
    points = [one.estimate.se for one in (first, last) if one.estimate.se is not None]
    pairs = len(first.of_sets) if len(first.of_sets) == len(last.of_sets) else 0
    draws = None
    if pairs > 1:
        with np.errstate(invalid="ignore", over="ignore"):
            draws = float(np.std(last.of_sets - first.of_sets, ddof=1)) / math.sqrt(pairs)
    value = last.estimate.value - first.estimate.value
    return Estimate(value, se=math.hypot(*points) if points else None, mc_se=draws)


def _alike(sweep: Sweep, point: SweepPoint, name: str) -> bool:
    """Whether the mean spread of an OOD set is above that of the test set by no more than two errors."""
    [test, *_] = names_of(sweep, "test")
    held = point.estimates.get(spread_of(sweep), {})
    if test not in held or name not in held:
        return False
    ours, theirs = held[name], held[test]
    change = _change(theirs, ours)
    errors = [error for error in (ours.estimate.se, theirs.estimate.se, change.mc_se) if error is not None]
    return bool(errors) and not change.value > 2 * math.hypot(*errors)


def _recommended_in_words(sweep: Sweep) -> Iterator[str]:
    chosen = sweep.recommended
    if chosen is None:
        random = [point for point in sweep.points if not point.degenerate]
        few = "fewer than two sizes could be compared." if random else "nothing is random at any of them."
        why = "the criterion is not available; the notes say why." if len(random) > 1 else few
        yield f"No size is recommended: {why}"
        return
    several = chosen.protocol == "single" and len(sweep.models) > 1
    whose = f" for {sweep.models[chosen.model].name}" if several else ""
    text = f"Recommended{whose}: b = {chosen.batch_size:,}, where {_criterion(sweep, chosen)} is highest"
    if chosen.protocol == "matched":
        text += f" (the network {sweep.models[chosen.model].name})"
    within = sorted({chosen.batch_size, *chosen.within})
    others = [one for size, one in chosen.behind.items() if size != chosen.batch_size]
    if any(math.isfinite(one.se or 0.0) and math.isfinite(one.mc_se or 0.0) for one in others):
        text += "; within one standard error of it " + (
            f"lie {_listed([f'{size:,}' for size in within])}." if len(within) > 1 else "lies no other size."
        )
    else:
        text += ", with unknown errors."
    yield f"{text}{_flatness(chosen)}"
    if chosen.decided_by == "prior":
        yield (
            "The likelihood changes over the sizes by less than its error: the prior decides, through the KL, "
            "and another prior may decide differently."
        )
    if chosen.at_end and chosen.protocol == "matched":
        yield f"It is the {chosen.at_end} of the sizes that networks were trained with: the optimum may lie beyond."
    elif chosen.at_end:
        which, other = (
            ("largest", "at or beyond it: sweep larger ones")
            if chosen.at_end == "largest"
            else ("smallest", "at or below it: sweep smaller ones")
        )
        yield f"It is the {which} of the sizes that were compared, and the optimum lies {other}."
    if (predicted := chosen.predicted_batch_size) is not None:
        sizes = sorted({chosen.batch_size, *chosen.behind})
        at = sizes.index(chosen.batch_size)
        around = sizes[max(0, at - 1)], sizes[min(len(sizes) - 1, at + 1)]
        text = f"The asymptotic rule b* = 2Nc/P + mean(1/ρ) puts the optimum of the ELBO at {and_error(predicted)}"
        if not sizes[0] <= predicted.value <= sizes[-1]:
            text += ", outside the swept sizes"
        if chosen.criterion == "elbo" and not around[0] <= predicted.value <= around[1] and not chosen.at_end:
            text += "; the computed sizes contradict it: their likelihood does not scale as 1/b, as the rule assumes"
        yield f"{text}."


def _criterion(sweep: Sweep, chosen: Recommended) -> str:
    if chosen.criterion == "elbo":
        return "the ELBO"
    if chosen.criterion == "pll":
        return f"PLL on the {chosen.of} set"
    ood = names_of(sweep, "ood")
    mean = "the mean " if len(ood) > 1 else ""
    return f"{mean}AUROC by {score_name(sweep)} of {_listed(ood)} against the {chosen.of} set"


def _listed(words: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(words[:-1]), *words[-1:])))


def _flatness(chosen: Recommended) -> str:
    """How far the neighbours lie behind, and the worst of all."""
    sizes = sorted({*chosen.behind, chosen.batch_size})
    at = sizes.index(chosen.batch_size)
    told = sizes[max(0, at - 1) : at] + sizes[at + 1 : at + 2]
    others = [size for size in sizes if size != chosen.batch_size and math.isfinite(chosen.behind[size].value)]
    if others:
        worst = min(others, key=lambda size: chosen.behind[size].value)
        told += [worst] if worst not in told else []
    unit = {"elbo": " (nats of the whole training set)", "pll": " (nats per point)", "auroc": ""}[chosen.criterion]
    words = [f"b = {size:,} by {and_error(_negated(chosen.behind[size]))}" for size in told]
    return f" Lower than it{unit}: {', '.join(words)}." if words else ""


def _negated(estimate: Estimate) -> Estimate:
    return Estimate(0.0 if estimate.value == 0 else -estimate.value, estimate.se, estimate.mc_se)
