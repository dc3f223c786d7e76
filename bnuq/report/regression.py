"""What is told of a regression: in words, in tables, in small drawings, and what the words in them mean."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from bnuq.config import DETERMINISTIC, POPULATION, SINGLE_SAMPLE_METHODS
from bnuq.estimates import Estimate
from bnuq.metrics import METRICS, jackknife_error, standard_error
from bnuq.records.evaluation import MethodResult, Result
from bnuq.report import noise_models, ood
from bnuq.report.networks import compared_with, of_whom, repair_in_words
from bnuq.report.numbers import (
    decimals,
    digits_of,
    headed,
    named,
    number,
    share,
    share_with_error,
    signed,
    sparkline,
    total,
    with_error,
    written,
)
from bnuq.report.parts import GAP, Cell, Items, Paragraph, Part, Row, Table, title

HEADLINE = ("rmse", "pll", "crps", "coverage95")  # of the short report
CONVERGING = ("crps", "pll")
_LEVELS = (0.5, 0.8, 0.95)  # of the central intervals whose coverage is shown
_GROUPS = 10  # of points by σ
_MEAN_OVER_SD = math.sqrt(2 / math.pi)  # E|e| of a Gaussian error, in its sd


# ── in words ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def in_words(result: Result) -> Iterator[str]:
    """What the test set says: of the network as it is, and of every method beside it."""
    plain = result.methods[DETERMINISTIC]
    rmse, mae = (_plain(plain.sets["test"].estimates[name]) for name in ("rmse", "mae"))
    yield f"Deterministic network: RMSE {rmse}, MAE {mae}{_constant_in_words(plain)}."
    yield from _repair(result)
    sampled = {name: method for name, method in result.methods.items() if name not in SINGLE_SAMPLE_METHODS}
    if "tau" not in plain.sets["test"].estimates:
        yield (
            "The observation precision τ is unknown because no validation points were named. So there is no PLL or "
            f"coverage, CRPS excludes observation noise{', and σ is that of the samples alone' if sampled else ''}."
        )
    for name, method in sampled.items():
        yield from _scores_in_words(name, method, result)
        yield _ranking_in_words(name, method, result)


def _repair(result: Result) -> Iterator[str]:
    """What the population statistics of the reference change by themselves."""
    told = ""
    if POPULATION in result.methods:
        plain, repaired = (result.methods[name].sets["test"].estimates for name in SINGLE_SAMPLE_METHODS)
        told = ", ".join(
            f"{shown} {_plain(plain[metric])} → {_plain(repaired[metric])}"
            for metric, shown in (("rmse", "RMSE"), ("mae", "MAE"))
        )
    yield from repair_in_words(result, "mae", told)


def _plain(estimate: Estimate) -> str:
    digits, error = max(0, decimals([estimate.value]) - 1), total(estimate)
    return number(estimate.value, digits) + (f" ± {number(error, digits)}" if error is not None else "")


def _constant_in_words(plain: MethodResult) -> str:
    estimates = plain.sets["test"].estimates
    if "tau" not in estimates:
        return ""
    sd = _noise(estimates["tau"].value)
    noise = number(sd, max(0, decimals([sd]) - 2))
    return f"; with observation noise of sd {noise}, {_coverage_in_words(estimates, None)}"


def _coverage_in_words(estimates: Mapping[str, Estimate], points: int | None) -> str:
    """How much the 50 and 95 % intervals hold, and where `points` are told, what is wrong with that."""
    held = {level: estimates[f"coverage{level}"] for level in (50, 95)}
    text = "its 50 and 95 % intervals cover " + " and ".join(f"{100 * f.value:.0f}" for f in held.values())
    text += " % of the targets"
    if points is None:
        return text
    wrong = []
    for level, estimate in held.items():
        away = estimate.value - level / 100
        by_chance = math.sqrt(level / 100 * (1 - level / 100) / points)
        if abs(away) > 2 * max(total(estimate) or math.inf, by_chance):
            wrong.append(f"too {'wide' if away > 0 else 'narrow'} at {level} %")
    return text + (f" ({', '.join(wrong)})" if wrong else "")


def _noise(tau: float) -> float:
    return tau**-0.5 if tau > 0 else math.inf


@dataclass(frozen=True)
class _Change:
    """A score against a baseline, as a gain: more is better. `error` is None where it cannot be told."""

    metric: str
    before: float
    after: float
    error: float | None
    share: Estimate | None

    @property
    def verdict(self) -> str:
        gain = (self.after - self.before) * (-1 if METRICS[self.metric].direction == "lower" else 1)
        assert self.error is not None
        if abs(gain) < 2 * self.error or gain == 0:
            return "about as well as"
        return "better than" if gain > 0 else "worse than"

    @property
    def told(self) -> str:
        """From what to what, by how much, and how far between constant and optimum that is."""
        digits, _, unit = written(self.metric)
        digits = max(0, decimals([self.before, self.after]) - 1) if digits is None else digits
        text = f"{named(self.metric, roomy=True)} {number(self.before, digits)} → {number(self.after, digits)}{unit}"
        brackets = []
        if self.error is not None:
            brackets.append(f"{signed(self.after - self.before, digits)} ± {number(self.error, digits)}")
        if self.share is not None and math.isfinite(self.share.value):
            brackets.append(f"normalised {share(self.share.value)} %")
        return text + (f" ({'; '.join(brackets)})" if brackets else "")


def _scores_in_words(name: str, method: MethodResult, result: Result) -> Iterator[str]:
    against = "a constant σ"
    if "constant" not in method.bounds:
        against = f"{of_whom(compared_with(name, result))} with the same τ"
    changes = [change for metric in ("crps", "pll") if (change := _change(metric, name, result))]
    if not changes:
        return
    told = ", ".join(change.told for change in changes)
    if any(change.error is None for change in changes):
        yield f"{name} and {against}: {told}; too few points or samples to tell whether they differ."
        return
    verdicts = [change.verdict for change in changes]
    if len(set(verdicts)) == 1:
        yield f"{name} explains the targets {verdicts[0]} {against}: {told}."
    else:
        yield f"{name} explains the targets {verdicts[0]} {against} by CRPS, {verdicts[1]} it by PLL: {told}."


def _change(metric: str, name: str, result: Result) -> _Change | None:
    """The score against that of the constant baseline, or where there is none, of the network it is compared with.

    Its error is that of the paired difference, over points and over draws, which both sides share.
    """
    method = result.methods[name]
    test, plain = method.sets["test"], result.methods[compared_with(name, result)].sets["test"]
    of_draws_alone = metric == "crps" and result.run.get("scoring", {}).get("crps") in ("ensemble", "fair")
    if metric not in test.points or of_draws_alone:
        return None
    ours = test.estimates[metric]
    if "constant" in method.bounds:
        theirs, baseline = method.bounds["constant"][metric], test.points.get(f"{metric}_constant")
    else:
        theirs, baseline = plain.estimates[metric], plain.points.get(metric)
    error = None
    if baseline is not None and ours.se is not None and ours.mc_se is not None and math.isfinite(theirs.value):
        paired = standard_error(test.points[metric] - baseline, group=result.sets["test"].group)
        error = math.hypot(paired, _over_draws(ours, theirs))
    told = error if error is not None and math.isfinite(error) else None
    return _Change(metric, theirs.value, ours.value, told, method.normalized.get(metric))


def _over_draws(ours: Estimate, theirs: Estimate) -> float:
    if ours.jackknife is None:
        return ours.mc_se or 0.0
    return float(jackknife_error(ours.jackknife - (0.0 if theirs.jackknife is None else theirs.jackknife)))


def _ranking_in_words(name: str, method: MethodResult, result: Result) -> str:
    estimates = method.sets["test"].estimates
    text = f"{name}: {_ranked(estimates.get('spearman'))}"
    if "coverage50" not in estimates:
        return f"{text}."
    one = result.sets["test"]
    points = one.n if one.group is None else len(np.unique(one.group))
    return f"{text}; {_coverage_in_words(estimates, points)}."


def _ranked(estimate: Estimate | None) -> str:
    if estimate is None or math.isnan(estimate.value):
        return "σ is the same at every point"
    value = f"rank correlation {number(estimate.value, 2)}"
    if estimate.low is None or estimate.high is None:
        return f"σ and |error|: {value}, from too few points to judge"
    value += f", {number(estimate.low, 2)} to {number(estimate.high, 2)}"
    if estimate.high < 0:
        return f"σ is larger where the errors are smaller ({value})"
    if estimate.low <= 0:
        return f"σ does not follow the size of the errors ({value})"
    how = "follows" if estimate.value >= 0.5 else "partly follows" if estimate.value >= 0.2 else "hardly follows"
    return f"σ {how} the size of the errors ({value})"


# ── tables ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_tables(result: Result, *, roomy: bool) -> Iterator[Part]:
    """The estimates of the test set, where they lie between their bounds, intervals, and whether errors grow with σ."""
    yield Table(
        tuple(map(noise_models.labelled, result.methods)), tuple(_estimate_rows(result, roomy=roomy)), stacks=True
    )
    yield from _bounds(result)
    yield from _intervals(result)
    yield from _errors_by_sigma(result)


def _estimate_rows(result: Result, *, roomy: bool) -> Iterator[Row]:
    estimates = {name: method.sets["test"].estimates for name, method in result.methods.items()}
    for name in METRICS:
        if any(name in of for of in estimates.values()):
            row = [of.get(name) for of in estimates.values()]
            digits = digits_of(name, (of.value for of in row if of))
            yield (
                headed(name, roomy=roomy),
                tuple(with_error(estimate, digits) for estimate in row),
            )
    if any("tau" in of for of in estimates.values()):
        noise = [Estimate(_noise(of["tau"].value)) if "tau" in of else None for of in estimates.values()]
        yield "  noise sd, 1/√τ", tuple(with_error(estimate, _digits(noise)) for estimate in noise)
    constant = [method.bounds.get("constant", {}).get("sigma") for method in result.methods.values()]
    if any(constant):
        yield "  constant σ", tuple(with_error(estimate, _digits(constant)) for estimate in constant)


def _digits(estimates: list[Estimate | None]) -> int:
    return decimals(estimate.value for estimate in estimates if estimate is not None)


def _bounds(result: Result) -> Iterator[Part]:
    rows: list[Row] = []
    bounded = {name: method for name, method in result.methods.items() if "constant" in method.bounds}
    for metric in ("crps", "pll"):
        told = {name: row for name, method in bounded.items() if (row := _bounded(metric, method))}
        if told:
            rows += [(named(metric, roomy=True), ()), *((f"  {name}", row) for name, row in told.items())]
    if not rows:
        return
    yield from (GAP, title("Between constant uncertainty and the per-point optimum"))
    yield Table(("constant", "method", "optimum", "normalised"), tuple(rows), stacks=True)
    if flags := tuple(flag for name, method in bounded.items() for flag in _flags(name, method)):
        yield Items(flags)


def _bounded(metric: str, method: MethodResult) -> tuple[Cell, ...] | None:
    own = method.sets["test"].estimates.get(metric)
    constant, optimum = (method.bounds[bound].get(metric) for bound in ("constant", "optimum"))
    if own is None or constant is None or optimum is None:
        return None
    estimates = (constant, own, optimum)
    digits = digits_of(metric, (estimate.value for estimate in estimates))
    return *(Cell(number(estimate.value, digits)) for estimate in estimates), share_with_error(
        method.normalized.get(metric)
    )


def _flags(name: str, method: MethodResult) -> Iterator[str]:
    """What a normalised score cannot say."""
    if name in SINGLE_SAMPLE_METHODS:
        return
    exact = int(np.isposinf(method.sets["test"].points.get("pll_optimum", np.empty(0))).sum())
    if exact:
        text = (
            f"{name}: the optimal PLL is infinite, as {exact} {'point is' if exact == 1 else 'points are'} predicted "
            "exactly"
        )
        others = method.normalized.get("pll_without_exact")
        yield text + (f"; the normalised PLL of the others is {share(others.value)} %." if others else ".")
    over = [
        metric
        for metric, names in {"CRPS": ("crps",), "PLL": ("pll", "pll_without_exact")}.items()
        if any(n in method.normalized and method.normalized[n].value > 100 for n in names)
    ]
    if over:
        yield (
            f"{name}: {' and '.join(over)} above 100 %: a mixture of samples can exceed the bound, which is for "
            "Gaussians."
        )


def _intervals(result: Result) -> Iterator[Part]:
    found = {name: method.calibration for name, method in result.methods.items() if "level" in method.calibration}
    rows = tuple(
        (name, tuple(Cell(number(float(np.interp(level, curve["level"], curve["coverage"])))) for level in _LEVELS))
        for name, curve in found.items()
    )
    if rows:
        yield from (GAP, title("Share of targets inside the central intervals"))
        yield Table(tuple(f"of {100 * level:.0f} %" for level in _LEVELS), rows)


def _errors_by_sigma(result: Result) -> Iterator[Part]:
    """Small drawings of |error| over groups of points by σ, beside what σ lets expect."""
    grouped = {
        name: groups for name, method in result.methods.items() if (groups := _by_sigma(method, result)) is not None
    }
    if not grouped:
        return
    fitted = any("tau" in method.sets["test"].estimates for method in result.methods.values())
    number_of = len(next(iter(grouped.values()))[0])
    high = max(float(values.max()) for groups in grouped.values() for values in groups)
    digits = max(0, decimals([high]) - 2)
    rows: list[Row] = []
    for name, groups in grouped.items():
        rows.append((name, ()))
        for label, values in zip(("  mean |error|", "  0.8 σ"), groups, strict=True):
            ends = f"{number(float(values[0]), digits)} → {number(float(values[-1]), digits)}"
            rows.append((label, (Cell(sparkline(values, low=0.0, high=high), style="cyan"), Cell(ends))))
    yield from (GAP, title(f"|error| in {number_of} groups of test points, from the smallest σ to the largest"))
    yield Table(("", ""), tuple(rows))
    of_what = "is the mean |error| of a Gaussian of this σ" if fitted else "of the samples alone (no τ)"
    yield Paragraph(f" Bars from 0 to {number(high, digits)}; 0.8 σ {of_what}.", "dim")


def _by_sigma(
    method: MethodResult, result: Result
) -> tuple[Float[np.ndarray, " group"], Float[np.ndarray, " group"]] | None:
    """Mean |error|, and √(2/π) times mean σ, of as many points each by ascending σ; None where σ has no order."""
    test, targets = method.sets["test"], result.sets["test"].targets
    curve = method.uncertainty_error.get("sigma", np.empty(0))
    if test.sigma is None or targets is None or len(targets) < 2 * _GROUPS or not np.ptp(curve) > 0:
        return None
    order = np.argsort(np.sqrt((test.sigma**2).mean(-1)), kind="stable")
    away, expected = np.abs(targets - test.predicted).mean(-1), _MEAN_OVER_SD * test.sigma.mean(-1)
    groups = np.array_split(order, _GROUPS)
    return np.array([away[rows].mean() for rows in groups]), np.array([expected[rows].mean() for rows in groups])


def ood_tables(result: Result, name: str) -> Iterator[Part]:  # noqa: ARG001 - as for a classification
    """What an OOD set has beside its scores: nothing."""
    return iter(())


# ── legend ───────────────────────────────────────────────────────────────────────────────────────────────────────────

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


def legend(result: Result) -> Iterator[str]:
    """Only of what is there."""
    scoring = result.run.get("scoring") or {}
    estimates = {name for method in result.methods.values() for name in method.sets["test"].estimates}
    yield "RMSE, MAE and every σ are in the unit of the targets, the variance in its square."
    if "crps" in estimates:
        yield (
            "CRPS: distance between predictive distribution and target, in the target's unit; |error| for a "
            f"distribution without spread. Here of {_CRPS[scoring.get('crps', 'gaussian')]}. PLL: mean log density of "
            f"the target, in nats, under {_LIKELIHOODS[scoring.get('pll', 'mixture')]}."
        )
    if result.model["outputs"] > 1:
        yield (
            f"{result.model['outputs']} outputs: RMSE is of the length of the error vector, so it sums over "
            "outputs; MAE, CRPS, coverage and variance are means over outputs, PLL is of their joint density. "
            "One τ and one σ are shared by all outputs."
        )
    if "tau" in estimates:
        given = scoring.get("tau") is not None
        source = "as given" if given else f"fitted by {scoring.get('fit', 'crps').upper()} to the validation points"
        yield (
            f"τ: observation precision, {source}. σ² is the variance of the samples plus 1/τ. Half of the targets "
            "should lie inside the central 50 % interval, the mean ± 0.67 σ, and 95 % inside the mean ± 1.96 σ."
        )
    if any("constant" in method.bounds for method in result.methods.values()):
        yield (
            "Constant: one σ for all points, fitted to the validation points, around the method's means. Optimum: "
            "the best σ for each point around the same means, which only the targets reveal. Normalised: 0 % is the "
            "constant, 100 % the optimum; negative is worse than the constant."
        )
    if len(result.methods) > 1:
        yield "ρ(σ, |e|): Spearman's rank correlation of σ and |error|; 1 means the same order, 0 no relation."
    yield from ood.legend(result)
