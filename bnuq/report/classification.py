"""The tables of a classification, and what the words in them mean."""

from __future__ import annotations

from collections.abc import Iterator

from bnuq.metrics import METRICS
from bnuq.records.evaluation import MethodResult, Result
from bnuq.report import noise_models, ood
from bnuq.report.document import Cell, Heading, Part, Row, Table
from bnuq.report.numbers import headed, number, share_with_error, with_error

HEADLINE = ("accuracy", "pll", "ece", "mutual_information")  # of the short report
CONVERGING = ("pll",)


def test_tables(result: Result, *, roomy: bool) -> Iterator[Part]:
    """The estimates of the test set, and where its likelihood lies between its bounds."""
    known = {name for method in result.methods.values() for name in method.sets["test"].estimates}
    rows = tuple(
        (
            headed(name, roomy=roomy),
            tuple(with_error(method.sets["test"].estimates.get(name)) for method in result.methods.values()),
        )
        for name in METRICS
        if name in known
    )
    yield Table(tuple(map(noise_models.labelled, result.methods)), rows, stacks=True)
    bounded = {name: method for name, method in result.methods.items() if method.bounds}
    if bounded:
        yield Heading("PLL between constant confidence and the per-point optimum")
        yield Table(
            ("constant", "method", "optimum", "normalised"),
            tuple(_bounded(name, method) for name, method in bounded.items()),
            stacks=True,
        )


def _bounded(name: str, method: MethodResult) -> Row:
    constant, optimum = (method.bounds[bound]["pll"] for bound in ("constant", "optimum"))
    estimates = (constant, method.sets["test"].estimates["pll"], optimum)
    return noise_models.labelled(name), (
        *(Cell(number(estimate.value)) for estimate in estimates),
        share_with_error(method.normalized.get("pll")),
    )


_ESTIMATORS = {
    "corrected": "MI is corrected for the finite number of samples, by the factor T/(T−1).",
    "jackknife": (
        "MI is corrected for the finite number of samples, by the jackknife; that of a single point may be negative."
    ),
}


def legend(result: Result) -> Iterator[str]:
    """What the words of the report mean, of those that are in it."""
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
        if correction := _ESTIMATORS.get(str(result.sampling.get("mutual_information"))):
            yield correction
    yield from ood.legend(result)
