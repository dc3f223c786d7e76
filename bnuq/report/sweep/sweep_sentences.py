"""The sentences of a sweep's findings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bnuq.findings import Catalogue, Entry, all_of, sentence
from bnuq.records.decision_sentences import of_others, percent, plain
from bnuq.records.sweep import Sweep
from bnuq.records.verdict import OTHER_SCALE
from bnuq.report.numbers import and_error, three_digits
from bnuq.report.sweep.sweep_findings import findings


def sentences(sweep: Sweep) -> tuple[str, ...]:
    """What the findings say, behind the names of their lines if there are several: in one text the recommendation, and
    in one what concerns the same set."""
    texts: dict[tuple[str, str], list[str]] = {}
    for finding in findings(sweep):
        about = "size" if "recommended" in finding.code else finding.values.get("name", finding.code)
        line, text = finding.values.get("line", ""), sentence(finding, SENTENCES, _FORMATS)
        said = texts.setdefault((line, about), [])
        if line and not said:
            text = f"{line}: {text}"
        said.append(text if line or "name" in finding.values else text[:1].upper() + text[1:])
    return tuple(map(" ".join, texts.values()))


def _beside(found: Mapping[str, Any] | None) -> str:
    """By which metrics of the test set the recommended size is better or worse than the best other one."""
    if found is None:
        return ""
    by = f"; on the test set they are the best by {all_of(map(plain, found['also']))}" if found["also"] else ""
    if found["but"]:
        return by + of_others(found["but"], "" if by else "on the test set ")
    return by or "; on the test set the best other size is not significantly better"


_FORMATS = {
    "beside": _beside,
    "names": all_of,
    "sizes": lambda sizes: all_of(f"{size:,}" for size in sizes),
    "digits": three_digits,
    "percent": percent,
    "estimates": lambda estimates: all_of(map(and_error, estimates)),
    "metric": plain,
}
_ENDS = "{ends[0]:digits} at size {sizes[0]:,}, {ends[1]:digits} at {sizes[1]:,}"
_SPREADS = {
    "spread-falls-as-inverse": "falls as 1/size",
    "spread-may-fall-as-inverse": "may fall as 1/size, but the rate is very uncertain",
    "spread-falls-faster": "falls faster than 1/size",
    "spread-falls-slower": "falls, but more slowly than 1/size",
    "spread-not-clearly-falling": "does not clearly fall",
    "spread-rises": "rises",
    "spread-falls": "falls",
    "spread-unchanged": "stays the same",
}
_RANKED = "{ends[0]:percent} of all pairs are ranked rightly at size {sizes[0]:,}, {ends[1]:percent} at {sizes[1]:,}"
_USE = "Use mini-batches of {size:,}{whose} (`--batch-size {size}`)"
_TEXTS = {
    "spread-unknown": "{spread} on the test set is not known at every size.",
    **{code: f"{{spread}} on the test set {text}: {_ENDS}." for code, text in _SPREADS.items()},
    "ood-too-few-sizes": "too few sizes to say how well {name} is told from the test set.",
    "ood-familiar": f"{{name}} appears more familiar than the test set: {_RANKED}.",
    "ood-not-separated": f"{{name}} is not told from the test set at any size: {_RANKED}.",
    "ood-unclear": f"{{name}} may or may not be told from the test set, as samples differ widely: {_RANKED}.",
    "ood-separated": f"{{name}} is told from the test set, with an unknown error: {_RANKED}.",
    "ood-separated-equally": f"{{name}} is told from the test set equally well at all sizes: {_RANKED}.",
    "ood-separated-less": f"{{name}} is told from the test set less well by larger mini-batches: {_RANKED}.",
    "ood-separated-better": f"{{name}} is told from the test set better by larger mini-batches: {_RANKED}.",
    "ood-chance": "From size {size:,} on, the separation is not significant.",
    "statistics-stale": (
        "the running statistics do not fit the training set. {metric:metric} on the test set, MCBN minus the "
        "deterministic network: {deterministic:estimates} at {sizes:sizes}; minus the network with population "
        "statistics: {population:estimates}. The rest is a repair, not a gain from uncertainty."
    ),
    "nothing-random": "at size {sizes:sizes}, no draw changes an output: {spread} is exactly 0.",
    "whole-reference": "at size {sizes:sizes}, the whole training set, draws are all the same: {spread} is exactly 0.",
    "different-weights": (
        "Where each size has its own network, the networks have different weights: differences may come from training, "
        "and retraining may change them by more than the stated errors."
    ),
    "not-recommended-mismatched": (
        "No size is recommended while the check of the training set fails, because MCBN may not describe your network "
        "at any size."
    ),
    "not-recommended-scale": (
        "No size is recommended, because the criterion uses inputs that are scaled differently from the training set's."
    ),
    "not-recommended-criterion": "No size is recommended: the criterion is not available; the notes say why.",
    "not-recommended-few": "No size is recommended: fewer than two sizes could be compared.",
    "not-recommended-none": "No size is recommended: nothing is random at any of them.",
    **{
        f"recommended-by-{by}": f"{_USE}: {text}{{network}}{{beside:beside}}."
        for by, text in {
            "elbo": "they explain the training set best, by the lower bound on its likelihood",
            "pll": "they explain the {of} set best, by its log-likelihood",
            "auroc": "{ood:names} {ood:is|are} told from the {of} set{mean} best by these",
        }.items()
    },
    "recommended-among": "By this criterion, {sizes:sizes} are equally good within their errors.",
    "recommended-alone": "By this criterion, no other size is as good within its error.",
    "recommended-without-errors": "The errors of the differences between sizes are unknown.",
    "prior-decides": (
        "The likelihood changes by less than its error between sizes: the prior decides, and another prior (`--prior`) "
        "may decide differently."
    ),
    "recommended-is-trained-end": ("It is the {end} of the training batch sizes: the optimum may lie beyond."),
    "recommended-is-largest": (
        "It is the largest of the sizes that were compared, so the optimum may lie anywhere above {neighbour:,}: "
        "sweep larger ones."
    ),
    "recommended-is-smallest": (
        "It is the smallest of the sizes that were compared, so the optimum may lie anywhere below {neighbour:,}: "
        "sweep smaller ones."
    ),
}
_TEXTS |= {
    OTHER_SCALE: (
        "Warning: the inputs of {set} are scaled differently from the training set's (standard deviations {sd:.3g} and "
        "{reference_sd:.3g}). The estimates on {set} are meaningless, and no conclusion is drawn from them; the "
        "warnings below say what to do."
    ),
    "reference-mismatch": (
        "Warning: the training set (`train`) or its pipeline does not match what the network was trained on, or "
        "the running averages lag behind the weights. The results below may not describe your network; see the "
        "warnings."
    ),
}
SENTENCES: Catalogue = {code: Entry(text) for code, text in _TEXTS.items()}
