"""The sentences of the verdict: whether samples are worth their passes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from bnuq.findings import Catalogue, Entry, all_of
from bnuq.methods import POPULATION, method_named
from bnuq.metrics.registry import metric_of

Judged = Sequence[tuple[str, str]]  # metric and set
Undecided = Sequence[tuple[str, Judged]]  # the reason, and by what
_NO_GAIN = "no method beats the best single pass beyond chance"
_REASONS = {
    "reference": "the network's BatchNorm statistics may not be those of its data (see the warning)",
    "temperature": "no temperature was fitted, which may gain as much (`--calibrate cross`)",
    "errors": "too few points or samples to estimate an error",
}


def _worth(
    passes: int, by: Judged, others: Judged, worse: Judged, undecided: Undecided, of: int, example: Mapping[str, Any]
) -> str:
    p = example["p"]
    chance = f", p {'< 0.001' if p < 0.001 else f'= {p:.3f}'} among {of} comparisons"
    but = f", but not by {joined_metrics(others, 'or')}" if others else ""
    open_ = f"; undecided {_reasons(undecided)}" if undecided else ""
    single, sampled = _values(example, chance)
    return (
        f"Samples are worth their {passes} passes by {joined_metrics(by, 'and')}{but}{open_}.{_lost(worse)} "
        f"{_by(example)}: {single}, in one pass; {sampled}."
    )


def _undecided(passes: int, others: Judged, worse: Judged, undecided: Undecided) -> str:
    others_text = f" By {joined_metrics(others, 'or')}, {_NO_GAIN}." if others else ""
    reasons = _reasons(undecided)
    return f"Whether samples are worth their {passes} passes is undecided {reasons}.{others_text}{_lost(worse)}"


def _reasons(undecided: Undecided) -> str:
    return "; ".join(f"by {joined_metrics(by, 'and')}: {_REASONS[reason]}" for reason, by in undecided)


def _enough(
    passes: int,
    others: Judged,
    worse: Judged,
    example: Mapping[str, Any],
    is_likely: bool,
    instead: tuple[str, float] | None = None,
    mismatched: bool = False,
) -> str:
    single, sampled = _values(example)
    if others:
        shown = f"by {joined_metrics(others, 'or')}, {_NO_GAIN}.{_lost(worse)}"
    else:
        shown = f"by {joined_metrics(worse, 'and')}, all methods are worse than the best single pass."
    use = f"Recommended {_by(example, 'by')}: {single}, in one pass.{_first_run(example['against'])}"
    if mismatched:  # which is put right first
        use = f"The best single pass {_by(example, 'by')} is {single}."
    elif instead is not None:
        method, value = instead
        as_it_is = f"{method} {_number(value, metric_of(example['metric']).digits)}"
        use = f"Recommended {_by(example, 'by')}: {as_it_is}, in one pass; {single} is not better beyond chance."
    lead = f"A gain from {passes} passes may be chance" if is_likely else f"{passes} passes show no gain"
    return f"{lead}: {shown} {use} The best of several passes is {sampled}."


def _first_run(method: str) -> str:
    """What makes a network of a recommended method, where that is not the network of the checkpoint."""
    if method_named(method).plain.name != POPULATION:
        return ""
    return f" For {method}, run `bnuq precise-bn` first: it writes the network with these statistics."


def _lost(worse: Judged) -> str:
    return f" By {joined_metrics(worse, 'and')}, all are worse." if worse else ""


def _by(example: Mapping[str, Any], word: str = "By") -> str:
    return f"{word} {_named((example['metric'], example['set']))}"


def _values(example: Mapping[str, Any], chance: str = "") -> tuple[str, str]:
    """The best single pass and a method of several, with their values; `example` is a comparison."""
    write = partial(_number, digits=metric_of(example["metric"]).digits)
    names = [
        f"{example[name]}{f' ({metric_of(score).label})' if score else ''}"
        for name, score in (("against", example["score_of_against"]), ("method", example["score"]))
    ]
    difference, error = example["difference"], "" if example["se"] is None else f" ± {write(example['se'])}"
    change = f"{'+' if difference >= 0 else ''}{write(difference)}{error}{chance}"
    return f"{names[0]} {write(example['value_of_against'])}", f"{names[1]} {write(example['value'])} ({change})"


def _single(method: str, metric: str, set: str, value: float) -> str:  # noqa: A002 - a field of a comparison
    best = f"{method} {_number(value, metric_of(metric).digits)}"
    text = f"No multi-pass method was evaluated. The best single-pass method by {_named((metric, set))}: {best}."
    return text + _first_run(method)


def _best_predictions(
    method: str,
    metric: str,
    set: str,  # noqa: A002 - a field of a comparison
    value: float,
    worse: Sequence[tuple[str, float, float]],
    alike: Sequence[str],
    unknown: Sequence[str] = (),
) -> str:
    write = partial(_number, digits=metric_of(metric).digits)
    text = f"Best by {_named((metric, set))}: {method} {write(value)}."
    if worse:
        text += (
            f" Worse: {all_of([f'{name} by {write(abs(change))} ± {write(error)}' for name, change, error in worse])}."
        )
    text += f" Not distinguishable from it: {all_of(alike)}." if alike else ""
    return text + (f" Too few points to tell: {all_of(unknown)}." if unknown else "")


def _choice(choices: Sequence[tuple[int, str, float]]) -> str:
    (_, first, pll), *more = choices
    text = f"Best PLL at 1 pass: {first}, {_number(pll)}"
    better = [(passes, method, value) for passes, method, value in more if method != first]
    same = [str(passes) for passes, method, _ in more if method == first]
    if not better:
        return f"{text}; at {' or '.join(same)} passes nothing is better.{_first_run(first)}"
    more_passes = "; ".join(f"at {passes}: {method}, {_number(value)}" for passes, method, value in better)
    return f"{text}; {more_passes}.{_first_run(first)}"


def _named(judged: tuple[str, str]) -> str:
    metric, name = judged
    label = metric_of(metric).label
    return f"{label} of {name}" if metric == "auroc" else label


def joined_metrics(by: Judged, link: str) -> str:
    names = [_named((metric, name)) for metric, name in by if metric != "auroc"]
    separated = [name for metric, name in by if metric == "auroc"]
    if separated:
        names.append(f"AUROC of {separated[0] if len(separated) == 1 else f'{len(separated)} OOD sets'}")
    return all_of(names, link)


def _number(value: float, digits: int | None = 4) -> str:
    if not math.isfinite(value):
        return str(value)
    return (f"{value:.4g}" if digits is None else f"{value:.{digits}f}").replace("-", "−")


VERDICT: Catalogue = {
    "samples-worth-their-passes": Entry(_worth),
    "one-pass-is-enough": Entry(_enough),
    "worth-undecided": Entry(_undecided),
    "best-choice": Entry(_choice),
    "cross-fitted": Entry(
        "{kinds:joined} {kinds:is|are} cross-fitted: to each half of the test set, for the other half."
    ),
    "only-single-passes": Entry(_single),
    "best-predictions": Entry(_best_predictions),
}
