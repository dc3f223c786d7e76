"""The parts of a report that differ by task: which metrics come first, the tables of a regression, and the legend."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

import numpy as np

from bnuq.config import ScoringSection
from bnuq.findings import all_of
from bnuq.methods import method_named
from bnuq.metrics import METRICS, selective
from bnuq.records.evaluation import AGGREGATIONS, MethodResult, Result, Scored
from bnuq.report import ood
from bnuq.report.document import BulletList, Cell, Heading, Paragraph, Part, Row, Table
from bnuq.report.method_names import lowered_by, method_label
from bnuq.report.numbers import named, number, share, with_error
from bnuq.tasks import REGRESSION, SEGMENTATION

OF_TRUTH = {"labels": "probability of the label", "targets": "density of the target"}
RETAINED = {  # by the headline of a task: the score of the retained examples, and their error
    "accuracy": ("predictive entropy", "error rate"),
    "rmse": ("predicted σ", "mean |error| (target unit)"),
}
_LEVELS = (0.5, 0.8, 0.95)  # of the central intervals whose coverage is shown


def recalibration_in_words(result: Result) -> str:
    """What recalibrated methods were fitted to; "" where there are none."""
    kinds = {kind: None for name in result.methods if (kind := method_named(name).recalibration)}
    if not kinds:
        return ""
    lowered = f" PLL is lower than without it: {', '.join(worse)}." if (worse := lowered_by(result)) else ""
    return f"{' and '.join(f'+{kind}' for kind in kinds)}: fitted to {fitted_to(result)}.{lowered}"


def fitted_to(result: Result) -> str:
    """The points that recalibrations, or τ and the constant σ of a regression, are fitted to."""
    return "each half of the test examples, for the other half" if result.is_cross_fitted else "the validation examples"


def intervals(result: Result) -> Iterator[Part]:
    """What normalised scores of a regression cannot say, and what its central intervals cover."""
    methods = {name: method for name, method in result.methods.items() if not result.is_single(name)}
    if limits := tuple(text for name, method in methods.items() for text in _limits(name, method)):
        yield BulletList(limits)
    curves = {name: method.calibration for name, method in result.methods.items() if "level" in method.calibration}
    reached = [curve["level"].max() + 1e-9 for curve in curves.values()]  # that of quantiles may end
    levels = [level for level in _LEVELS if level <= max(reached, default=0)]
    rows = tuple(
        (name, tuple(Cell(number(float(np.interp(level, curve["level"], curve["coverage"])))) for level in levels))
        for name, curve in curves.items()
    )
    if levels:
        yield Heading("Share of targets inside the central intervals")
        yield Table(tuple(f"of {100 * level:.0f} %" for level in levels), rows)


def _limits(name: str, method: MethodResult) -> Iterator[str]:
    if "constant" not in method.bounds:
        return
    exact = int(np.isposinf(method.sets["test"].points.get("pll_optimum", np.empty(0))).sum())
    if exact:
        points = "1 example is" if exact == 1 else f"{exact} examples are"
        others = method.normalized.get("pll_without_exact")
        rest = f"; the normalised PLL of the others is {share(others.value)} %" if others else ""
        yield f"{name}: the optimal PLL is infinite, as {points} predicted exactly{rest}."
    elif any(math.isnan(estimate.value) for estimate in method.normalized.values()):
        yield f"{name}: a normalised score is –, as no σ of each example is better than the constant one."
    if any(estimate.value > 100 for estimate in method.normalized.values()):
        yield f"{name}: above 100 %, as a mixture of samples can exceed the bound, which is for Gaussians."


def failing_images(result: Result, *, roomy: bool) -> Iterator[Part]:
    """The AURC of the images of a segmentation by each aggregation of their maps, beside those without any ranking and
    by the Dice coefficients themselves."""
    tests = {name: method.sets["test"] for name, method in result.methods.items()}
    keys = [
        key for name in AGGREGATIONS if any((key := f"image_aurc_{name}") in each.estimates for each in tests.values())
    ]
    if not keys:
        return
    rows: list[Row] = []
    for key in keys:
        cells = tuple(with_error(each.estimates.get(key)) for each in tests.values())
        rows.append((named(key).removeprefix("image AURC by "), cells))
    risks = [1 - each.points["dice"][np.isfinite(each.points["dice"])] for each in tests.values()]
    rows.append(("in random order", tuple(Cell(number(float(risk.mean()))) for risk in risks)))
    best = (Cell(number(selective(risk, risk).aurc)) for risk in risks)
    rows.append(("by Dice itself", tuple(best)))
    yield Table(tuple(method_label(name, roomy=roomy) for name in tests), tuple(rows), stacks=True)
    yield Paragraph(
        "Mean of 1 − Dice over the images that are left when the most uncertain ones are deferred, averaged over "
        "coverage: lower is better. The uncertainty of an image is an aggregation of the mutual information of its "
        "pixels, of a single pass of their entropy. ± standard error over images.",
        dim=True,
    )


# ── legend ───────────────────────────────────────────────────────────────────────────────────────────────────────────

_NATS = {"PLL": "pll", "mutual information (MI)": "mutual_information", "entropies": "predictive_entropy"}
_LIKELIHOODS = {
    "mixture": "the mixture of samples, each with observation noise 1/τ",
    "moment": "the Gaussian with the mean and variance of the samples plus observation noise 1/τ",
    "moment_full": "the Gaussian with the mean and covariance of the samples plus observation noise 1/τ",
}
_CRPS = {
    "gaussian": "the Gaussian with the mean and variance of the samples plus observation noise 1/τ",
    "mixture": "the mixture of samples, each with observation noise 1/τ",
    "ensemble": "the samples alone, without noise",
    "fair": "the samples alone, without noise, corrected for their number",
}
_GIVEN = {  # where no sample was drawn
    "gaussian": "the Gaussian with the given mean and variance",
    "quantiles": "the given quantiles: twice their mean pinball loss (weighted interval score)",
}
_OF_MOMENTS = {
    "": "",
    "gaussian": " Variance of samples: the given variance.",
    "quantiles": " Mean, variance and σ are those of the quantile function; coverage is of the quantiles themselves.",
}
_ESTIMATORS = {
    "corrected": "MI is corrected for the finite number of samples, by the factor T/(T−1).",
    "jackknife": (
        "MI is corrected for the finite number of samples, by the jackknife; that of a single example may be negative."
    ),
}


def legend(result: Result) -> Iterator[str]:
    """What the words of the report mean, of those that are in it."""
    yield _abbreviations(result)
    yield from (_of_regression if result.task == REGRESSION else _of_classification)(result)
    yield from ood.legend(result)


def _abbreviations(result: Result) -> str:
    """The acronyms among the metrics of the test set, by what they mean or their titles."""
    known = [name for name in METRICS if any(name in each.sets["test"].estimates for each in result.methods.values())]
    words = {named(name, roomy=False): meaning_of(result, name) or METRICS[name].title for name in known}
    texts = (f"{name}: {text}" for name, text in words.items() if re.search(r"[A-Z]{2}|ρ|mutual", name))
    nats = [each for each, name in _NATS.items() if name in known]
    return f"{'; '.join(texts)}." + (f" {all_of(nats)} in nats." if nats else "")


def meaning_of(result: Result, metric: str) -> str:
    """What a metric of the test set is, in the words of all legends; "" where its title says it."""
    truth, unit = OF_TRUTH[result.task.truth], result.task.unit
    if isinstance(result, Scored) and next(iter(result.model["files"].values()))["outputs"] == "confidences":
        truth = "probability of right or wrong, as the prediction is"
    return METRICS[metric].meaning.format(truth=truth, unit=unit)


def _of_classification(result: Result) -> Iterator[str]:
    if result.task == SEGMENTATION:
        yield (
            "Estimates are of the pixels of all examples together, but for those that are ignored; their standard "
            "errors are over examples."
        )
    if result.model.get("labels"):
        yield f"Estimates, and MI and entropies of an example, are means over its {result.model['labels']} labels."
    if any(method.bounds for method in result.methods.values()):
        yield (
            "Constant: the same predicted classes, all with one confidence, fitted to the validation examples. "
            "Optimum: the same classes, certain where they are right and uniform where they are wrong. "
            "Normalised: 0 % is the constant, 100 % the optimum; negative is worse than the constant."
        )
    if any("set_size" in method.sets["test"].estimates for method in result.methods.values()):
        nominal = result.run.get("scoring", {}).get("set_coverage", ScoringSection().set_coverage)
        yield f"LAC and APS: conformal prediction sets of a nominal coverage of {100 * nominal:g} %."
    if result.sampled and (correction := _ESTIMATORS.get(str(result.sampling.get("mutual_information")))):
        yield correction


def _of_regression(result: Result) -> Iterator[str]:
    scoring = result.run.get("scoring") or {}
    estimates = {name for method in result.methods.values() for name in method.sets["test"].estimates}
    yield "RMSE, MAE and every σ are in the unit of the targets, the variance in its square."
    if "crps" in estimates:
        given = result.given_distribution
        crps = _GIVEN[given] if given else _CRPS[scoring.get("crps", "gaussian")]
        likelihood = _GIVEN["gaussian"] if given else _LIKELIHOODS[scoring.get("pll", "mixture")]
        yield f"CRPS is of {crps}, PLL of {likelihood}.{_OF_MOMENTS[given]}"
    if result.model["outputs"] > 1:
        yield (
            f"{result.model['outputs']} outputs: RMSE is of the length of the error vector, so it sums over "
            "outputs; MAE, CRPS, coverage and variance are means over outputs, PLL is of their joint density. "
            "One τ and one constant σ are shared by all outputs."
        )
    if "tau" in estimates:
        given = scoring.get("tau") is not None
        source = "as given" if given else f"fitted by {scoring.get('fit', 'crps').upper()} to {fitted_to(result)}"
        yield f"τ: observation precision, {source}. σ² is the variance of the samples plus 1/τ."
    if any("constant" in method.bounds for method in result.methods.values()):
        yield (
            f"Constant: one σ for all examples, fitted to {fitted_to(result)}, around the method's means. Optimum: "
            "the best σ for each example around the same means, which only the targets reveal. Normalised: 0 % is the "
            "constant, 100 % the optimum; negative is worse than the constant."
        )
