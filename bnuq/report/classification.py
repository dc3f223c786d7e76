"""What is told of a classification: in words, in tables, and what the words in them mean."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from jaxtyping import Int64

from bnuq.config import DETERMINISTIC, POPULATION, SINGLE_SAMPLE_METHODS
from bnuq.metrics import METRICS, standard_error
from bnuq.records.evaluation import MethodResult, Result, SetResult
from bnuq.report import noise_models, ood
from bnuq.report.networks import compared_with, of_whom, repair_in_words
from bnuq.report.numbers import headed, number, percent, share_with_error, signed, with_error
from bnuq.report.parts import GAP, Cell, Part, Row, Table, title

HEADLINE = ("accuracy", "pll", "ece", "mutual_information")  # of the short report
CONVERGING = ("pll",)


def in_words(result: Result) -> Iterator[str]:
    """What the test set says: of the network as it is, and of every method beside it."""
    plain = result.methods[DETERMINISTIC]
    accuracy, pll = (plain.sets["test"].estimates[m] for m in ("accuracy", "pll"))
    yield f"Deterministic network: accuracy {percent(accuracy)}, PLL {number(pll.value)} nats."
    yield from _repair(result)
    for name, method in result.methods.items():
        if name not in SINGLE_SAMPLE_METHODS:
            yield _likelihood_in_words(name, method, result)


def _repair(result: Result) -> Iterator[str]:
    """What the population statistics of the reference change by themselves."""
    told = ""
    if POPULATION in result.methods:
        before, after = (result.methods[name].sets["test"].estimates for name in SINGLE_SAMPLE_METHODS)
        told = f"accuracy {percent(before['accuracy'])} → {percent(after['accuracy'])}, "
        told += f"PLL {number(before['pll'].value)} → {number(after['pll'].value)} nats"
    yield from repair_in_words(result, "pll", told)


def _likelihood_in_words(name: str, method: MethodResult, result: Result) -> str:
    beside, group = compared_with(name, result), result.sets["test"].group
    test, alone = method.sets["test"], result.methods[beside].sets["test"]
    ours, theirs = test.estimates["pll"], alone.estimates["pll"]
    change = ours.value - theirs.value
    paired = standard_error(test.points["pll"] - alone.points["pll"], group=group)
    right = _accuracy_in_words(test, alone, group)
    estimates = f"PLL {number(theirs.value)} → {number(ours.value)} nats"
    ece = f"ECE {100 * alone.estimates['ece'].value:.1f} → {100 * test.estimates['ece'].value:.1f} %"
    if ours.se is None or ours.mc_se is None or not math.isfinite(change):
        told = f"{estimates}{f', and {right[1]}' if right else ''}"
        return f"{noise_models.labelled(name)}: {told}; {ece}; too few points or samples to tell whether PLL differs."
    error = math.hypot(paired, ours.mc_se)
    told = 0 if abs(change) < 2 * error else 1 if change > 0 else -1
    verdict = (
        f"explains the labels {_EXPLAINS[told].format(of_whom(beside))}: {estimates} ({signed(change)} ± {error:.4f})"
    )
    if right is not None:
        verdict += f", {'and' if right[0] == told else 'but'} {right[1]}"
    return f"{noise_models.labelled(name)} {verdict}; {ece}."


_EXPLAINS = {
    1: "better than {}",
    0: "about as well as {}",
    -1: "worse",
}


def _accuracy_in_words(
    test: SetResult, alone: SetResult, group: Int64[np.ndarray, " point"] | None
) -> tuple[int, str] | None:
    """Whether accuracy went up or down (1, −1) beyond twice its error, over points paired and over draws, and how far;
    None where it did not, or nothing tells."""
    ours, theirs = test.estimates["accuracy"], alone.estimates["accuracy"]
    change = ours.value - theirs.value
    if ours.se is None or ours.mc_se is None:
        return None
    error = math.hypot(standard_error(test.points["accuracy"] - alone.points["accuracy"], group=group), ours.mc_se)
    if not abs(change) > 2 * error:
        return None
    sign = 1 if change > 0 else -1
    told = f"accuracy {100 * theirs.value:.2f} → {100 * ours.value:.2f} %"
    often = "more" if sign > 0 else "less"
    return sign, f"is right {often} often: {told} ({signed(100 * change, 2)} ± {100 * error:.2f})"


def test_tables(result: Result, *, roomy: bool) -> Iterator[Part]:
    """The estimates of the test set, and where its likelihood lies between its bounds."""
    known = {name for method in result.methods.values() for name in method.sets["test"].estimates}
    rows = tuple(
        (
            headed(name, roomy=roomy),
            tuple(with_error(found.sets["test"].estimates.get(name)) for found in result.methods.values()),
        )
        for name in METRICS
        if name in known
    )
    yield Table(tuple(map(noise_models.labelled, result.methods)), rows, stacks=True)
    bounded = {name: method for name, method in result.methods.items() if method.bounds}
    if bounded:
        yield from (GAP, title("PLL between constant confidence and the per-point optimum"))
        yield Table(
            ("constant", "method", "optimum", "normalised"),
            tuple(_bounded(name, method) for name, method in bounded.items()),
            stacks=True,
        )


def _bounded(name: str, method: MethodResult) -> Row:
    constant, optimum = (method.bounds[bound]["pll"] for bound in ("constant", "optimum"))
    own = method.sets["test"].estimates["pll"]
    return noise_models.labelled(name), (
        *(Cell(number(estimate.value)) for estimate in (constant, own, optimum)),
        share_with_error(method.normalized.get("pll")),
    )


def ood_tables(result: Result, name: str) -> Iterator[Part]:
    """What an OOD set has beside its scores."""
    rows = tuple(
        (
            noise_models.labelled(method),
            tuple(with_error(found.sets[s].estimates["mutual_information"]) for s in (name, "test")),
        )
        for method, found in result.methods.items()
        if "mutual_information" in found.sets[name].estimates
    )
    if rows:
        yield from (GAP, Table(("mean MI here", "on the test set"), rows, stacks=True))


_ESTIMATORS = {
    "corrected": ("MI is corrected for the finite number of samples, by the factor T/(T−1).",),
    "jackknife": (
        "MI is corrected for the finite number of samples, by the jackknife; that of a single point may be negative.",
    ),
}


def legend(result: Result) -> Iterator[str]:
    yield (
        "PLL: mean log probability of the true label, in nats, as are MI and entropies. ECE: gap between "
        "confidence and accuracy. AURC: error rate when the most uncertain points (by predictive entropy) are "
        "deferred, averaged over coverage."
    )
    if any(method.bounds for method in result.methods.values()):
        yield (
            "Constant: the same predicted classes, all with one confidence, fitted to the validation points. "
            "Optimum: the same classes, certain where they are right and uniform where they are wrong. "
            "Normalised: 0 % is the constant, 100 % the optimum; negative is worse than the constant."
        )
    if len(result.methods) > 1:
        yield "Mutual information (MI): disagreement between samples, a measure of epistemic uncertainty."
        yield from _ESTIMATORS.get(str(result.sampling.get("mutual_information")), ())
    yield from ood.legend(result)
