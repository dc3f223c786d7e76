"""The sentences of an evaluation's findings."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from bnuq.estimates import Estimate
from bnuq.findings import Catalogue, Entry, listed
from bnuq.methods import method_named
from bnuq.records.approximation import Approximation
from bnuq.records.decision_sentences import DECISIONS, best_of
from bnuq.records.evaluation import Estimates
from bnuq.records.verdict import OTHER_SCALE
from bnuq.records.verdict_sentences import VERDICT
from bnuq.report.method_names import method_label, network_in_words
from bnuq.report.metric_changes import MetricChange
from bnuq.report.numbers import (
    decimals,
    grouped,
    named,
    noise_sd,
    number,
    percent,
    share,
    shown_with,
    signed,
    total,
    written,
)


def _deterministic_classification(accuracy: Estimate, pll: Estimate) -> str:
    return f"Deterministic network: accuracy {percent(accuracy)}, PLL {number(pll.value)} nats."


def _collapsed_sentence(method: str, classes: Sequence[Sequence[Any]], collapsed: int, mean: float) -> str:
    named_classes = listed([f"{name} ({100 * share:.0f} % of {count} points)" for name, share, count in classes])
    which = "class has an" if collapsed == 1 else "classes have an"
    worst = ", such as " if collapsed > len(classes) else ": "
    return (
        f"{collapsed} {which} accuracy far below the mean ({100 * mean:.0f} %) under {network_in_words(method)}"
        f"{worst}{named_classes}."
    )


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
        f"Network with the statistics of all drawn mini-batches together in place of its running statistics: {text} "
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
    method: str,
    network: str,
    pll: MetricChange,
    accuracy: MetricChange,
    ece: tuple[float, float],
    *,
    unjudged: bool = False,
) -> str:
    name = method_label(method)
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


def _targets_sentence(
    method: str, network: str | None, changes: Sequence[MetricChange], *, unjudged: bool = False
) -> str:
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


def _change_in_words(change: MetricChange) -> str:
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


_UNJUDGED = "has too few points to judge, or the test set has"


def _separation_sentence(
    words: str,
    name: str,
    method: str,
    score: str,
    auroc: Estimate,
    tried: int,
    crossfitted: bool,
    other: tuple[str, str, float] | None,
    error: float,
    may_be_chance: bool = False,
) -> str:
    is_judged = words != _UNJUDGED
    interval = "" if auroc.low is None or not is_judged else f" ({number(auroc.low, 2)}–{number(auroc.high, 2)})"
    text = (
        f"{name} {words}: AUROC {number(auroc.value, 3)}{interval} by the {named(score)} of {network_in_words(method)}"
    )
    if tried > 1:
        text += f", the {best_of(tried, crossfitted)}"
    if other is not None and is_judged:
        network, score, value = other
        digits = shown_with(error, None, []) if 0 < error < 1 else 3
        difference = number(round(value - auroc.value, digits), digits)
        difference += f" ± {number(error, digits)}" if math.isfinite(error) else ""
        text += f"; {number(value, 3)} ({difference}) by the {named(score)} of {network_in_words(network)}"
        text += ", which takes one pass: the difference may be chance" if may_be_chance else ""
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
    **DECISIONS,
    **VERDICT,
    "labels-missing": Entry(
        "The test set has no {what}: how good the predictions are is not known, only how uncertain they are."
    ),
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
        "estimate of one pass changes by more than twice its own standard error. "
        "{elsewhere:See the warnings|Whether running averages lag or the pipeline is another, it matters little: "
        "`bnuq precise-bn` recomputes the averages}."
    ),
    "deterministic-classification": Entry(_deterministic_classification),
    "classes-far-below": Entry(_collapsed_sentence),
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
            "ood-unjudged": _UNJUDGED,
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
