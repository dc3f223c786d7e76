"""What the words in the report of a classification mean."""

from __future__ import annotations

from collections.abc import Iterator

from bnuq.records.evaluation import Result
from bnuq.report import ood

HEADLINE = ("accuracy", "pll", "ece", "mutual_information")  # of the short report
CONVERGING = ("pll",)
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
