"""The sentences of a sweep's findings."""

from __future__ import annotations

from bnuq.estimates import Estimate
from bnuq.findings import Catalogue, Entry, Finding, all_of, sentence
from bnuq.records.sweep import Sweep
from bnuq.records.verdict import OTHER_SCALE
from bnuq.report.numbers import and_error, error_of, named, number, signed, three_digits
from bnuq.report.sweep.sweep_findings import findings


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
