"""What to do by a result: which prediction to use, which points to defer, and how to recognise foreign inputs.

A decision is a finding with the code "use", "defer", "foreign" or "undecided". It follows from the comparisons, the
verdict, the certificate and the points of the result, and never says more than these.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from statistics import NormalDist
from typing import Any

import numpy as np

from bnuq.findings import Finding
from bnuq.findings import verdict as finding
from bnuq.methods import method_named
from bnuq.metrics import standard_error
from bnuq.metrics.certificates import exact_interval
from bnuq.metrics.replicates import independent_units
from bnuq.records.best_scores import FALSE_ALARMS, aurocs_of, best_score, can_be_judged, caught, scores_of
from bnuq.records.calibrated import calibration_of
from bnuq.records.certificate import outcomes
from bnuq.records.decision_sentences import percent
from bnuq.records.evaluation import FEWEST_POINTS, Result, Scored
from bnuq.records.verdict import (
    LEVEL,
    REACH,
    MethodComparison,
    Verdict,
    is_mismatched,
    is_of_another_pipeline,
    judged,
    on_another_scale,
    passes_of,
    uncorrected,
)
from bnuq.shapes import Float

ACCEPTED = 0.9  # share of test points that are accepted without a certificate
_PROPER = "pll", "crps"  # by which a prediction is chosen; other metrics only where these do not object
_LEAST_SAMPLES = 8  # for an error over them
_ALONE = "constant", "at-chance"  # reasons beside which nothing is decided
NOMINAL = 0.95  # of intervals that nothing certifies
_SAME = 1e-9  # nats, by which the entropies of equal outputs differ at most


def decided(result: Result) -> tuple[Finding, ...]:
    """The decisions of a result by its own verdict."""
    return decisions(result, judged(result))


def decisions(result: Result, verdict: Verdict) -> tuple[Finding, ...]:
    """At most one decision each of the prediction, of deferral and of foreign inputs, those that the result allows.

    None where test or validation inputs are on another scale; no more than that of the prediction where the network's
    BatchNorm statistics may not be those of its data, because scores change with them."""
    rescaled = on_another_scale(result.findings)
    if rescaled.keys() & {"test", "validation"}:
        return ()
    use = next(_use(result, verdict), None)
    if is_mismatched(result) or (use is not None and use.values.get("reason") in _ALONE):
        return () if use is None else (use,)
    method = result.first if use is None else use.values["method"]
    is_known = use is None or use.values.get("reason") != "few-points"
    defer = next(_measured(result, method), None) if is_known else None
    if (certification := result.certification) is not None:
        plain = method_named(method).plain.name  # a temperature promises nothing else
        defer = certified(result, plain if plain in certification.methods else certification.method, method)
    ood = [name for name, each in result.sets.items() if each.kind == "ood" and name not in rescaled]
    ood = [name for name in ood if can_be_judged(result, name)]
    foreign = _foreign(result, verdict, ood)
    return tuple(each for each in (use, defer, foreign) if each is not None)


# ── which prediction ─────────────────────────────────────────────────────────────────────────────────────────────────


def _use(result: Result, verdict: Verdict) -> Iterator[Finding]:
    """The prediction: as the verdict has it, or that it has none."""
    of_labels = [each for each in verdict.comparisons if each.metric != "auroc"]
    metric = of_labels[0].metric if of_labels else "pll"
    single = _prediction(result, _single(of_labels, verdict.comparisons) if of_labels else result.first)
    shared = _shared(result, verdict, metric)
    reason, values = _checked_first(result, single["method"], bool(of_labels))
    if reason:
        yield finding("undecided", about="use", **single, **shared, reason=reason, **values)
    if reason or not of_labels:
        return
    reasons = [reason for reason, by in verdict.undecided.items() if any(metric != "auroc" for metric, _ in by)]
    if shared["most_passes"] > 1 and verdict.worth is None and (reasons or is_mismatched(result)):
        yield finding("undecided", about="use", **single, **shared, **_why(result, reasons))
        return
    gains = verdict.gains
    if gain := _chosen(gains, of_labels):
        prediction = _prediction(result, gain.method) | _beside(of_labels, gain.method, [gain.metric])
        yield finding("use", **prediction, **shared, gain=_compared(gain), only_by=[], open_by=[])
    elif likely := None if gains or is_mismatched(result) else _likely(of_labels):
        among = len(verdict.comparisons)
        needed = {"comparisons": among, "points_needed": _points_needed(likely, shared["points"], among)}
        yield finding("undecided", about="use", **single, **shared, reason="chance", gain=_compared(likely), **needed)
    else:
        only_by = list(dict.fromkeys((each.metric, each.set) for each in gains))
        open_by = [key for by in verdict.undecided.values() for key in by]
        single |= _beside(of_labels, single["method"], dict(only_by))
        yield finding("use", **single, **shared, gain=None, only_by=only_by, open_by=open_by)


def _single(of_labels: Sequence[MethodComparison], comparisons: Sequence[MethodComparison]) -> str:
    """The best single pass by the first metric; where another is better beyond chance by a later one, and not worse by
    the first, that one; and the network without corrected statistics where these may help by chance."""
    first = of_labels[0]
    best, worse = first.against, {each.method for each in of_labels if each.metric == first.metric and each.is_worse}
    for loss in (each for each in of_labels if each.method == best and each.is_worse):
        if loss.against not in worse and method_named(loss.against).plain != method_named(best).plain:
            best = loss.against  # but no temperature that lowers the PLL
            break
    as_it_is = uncorrected(comparisons, best, first.metric)
    return best if as_it_is is None else as_it_is.method


def _beside(of_labels: Sequence[MethodComparison], method: str, said: Collection[str]) -> dict[str, Any]:
    """The metrics of the table that are not `said` of this method, beyond twice their paired errors: by which it is
    better in its several passes, or others are where it is a single one; and by which another single pass is."""
    sampled = [each for each in of_labels if each.passes > 1 and each.is_likely]
    sampled = [each for each in sampled if each.method == method] or sampled
    lost = (each for each in of_labels if each.method == method and each.is_likely_worse)
    return {
        "also": [metric for metric in dict.fromkeys(each.metric for each in sampled) if metric not in said],
        "but": [_compared(each) | {"against": each.against} for each in lost],
    }


def _shared(result: Result, verdict: Verdict, metric: str) -> dict[str, Any]:
    passes = max((each.passes for each in verdict.comparisons), default=1)
    of_files: dict[str, Any] = {}
    if isinstance(result, Scored):
        same = [each for each in verdict.comparisons if each.metric == metric]
        plain = dict.fromkeys(method_named(each.method).plain.name for each in same if not each.is_worse)
        best = {method_named(each.against).plain.name for each in same}
        of_files = {"files": len(result.model["files"]), "alike": [n for n in plain if n not in best]}
    return {"most_passes": passes, "points": result.sets["test"].n, "metric": metric, **of_files}


def _checked_first(result: Result, method: str, is_compared: bool) -> tuple[str, dict[str, Any]]:
    """Why no prediction is used, whatever is compared: the pipeline may be wrong, all outputs are the same, points are
    too few, or neither accuracy nor PLL, with a temperature or without, is above chance beyond twice its error. Chance
    is to state the frequencies of the classes, or that all are alike for pixels."""
    if is_compared and is_of_another_pipeline(result):
        return "pipeline", _pipeline(result)
    test, evaluated = result.methods[method].sets["test"], result.sets["test"]
    accuracy, is_dense, labels = test.estimates.get("accuracy"), result.task.is_dense, evaluated.labels
    if accuracy is None or result.model.get("labels"):
        return "", {}
    spread = np.ptp(test.points.get("predictive_entropy", (0, 1)))
    if not is_dense and spread < _SAME and not np.ptp(test.predicted, axis=0).any():
        return "constant", {}
    values: dict[str, Any] = {"accuracy": accuracy.value}
    if not is_dense and (units := independent_units(evaluated.n, evaluated.group)) < FEWEST_POINTS:
        return "few-points", values | {"interval": exact_interval(round(units * accuracy.value), units)}
    plain = method_named(method).plain.name
    if is_dense:
        chance, base = 1 / int(result.model["classes"]), -math.log(int(result.model["classes"]))
    elif labels is None or _kind(result, plain) == "confidences":  # of no classes
        return "", {}
    else:
        counts = np.bincount(labels)
        chance, base = labels == counts.argmax(), np.log(counts[labels] / len(labels))
    tried = [result.methods[name].sets["test"] for name in (plain, f"{plain}+temperature") if name in result.methods]
    gains = [test.points["accuracy"] - chance, *(each.points["pll"] - base for each in tried)]
    with np.errstate(invalid="ignore"):
        if any(np.mean(gain) > REACH * standard_error(gain, group=evaluated.group) for gain in gains):
            return "", {}
    return "at-chance", values | {"chance": float(np.mean(chance))}


def _kind(result: Result, method: str) -> str:
    """What the numbers are that predictions are made of: those of a file, or the logits of a network."""
    return result.model["files"][method]["outputs"] if isinstance(result, Scored) else "logits"


def _pipeline(result: Result) -> dict[str, Any]:
    """The settings of the pipeline that are to be checked, the command that tries others, where there is one, and
    whether it was compared with the network at all."""
    codes = "reference-mismatch", "reference-unchecked"
    found = next((each.values for each in result.findings if each.code in codes), {})
    is_compared = result.reference_check is not None
    settings = found.get("settings", ["train", "normalize"])  # which earlier files have of a mismatch alone
    return {"settings": list(settings), "suggest": found.get("suggest"), "is_compared": is_compared}


def _why(result: Result, reasons: Sequence[str]) -> dict[str, Any]:
    """Why a prediction is undecided, and how many samples there are and are needed where these are too few."""
    reason = "reference" if is_mismatched(result) else reasons[0]
    samples = int(result.sampling["samples"])
    few = {"samples": [samples, _LEAST_SAMPLES]} if reason == "errors" and samples < _LEAST_SAMPLES else {}
    return {"reason": reason, **few}


def _chosen(gains: Sequence[MethodComparison], of_labels: Sequence[MethodComparison]) -> MethodComparison | None:
    """The clearest gain of a prediction: by a proper score, else by a metric of a method that no proper score calls
    worse."""
    proper = [each for each in gains if each.metric in _PROPER]
    worse = {each.method for each in of_labels if each.metric in _PROPER and each.is_worse}
    others = [each for each in gains if each.metric != "auroc" and each.method not in worse]
    if proper:  # by one metric, in which gains compare
        return max((each for each in proper if each.metric == proper[0].metric), key=lambda each: each.gain)
    return max(others, key=lambda each: each.gain / each.se if each.se else math.inf, default=None)


def _likely(of_labels: Sequence[MethodComparison]) -> MethodComparison | None:
    """The best method of several passes by the first metric, if it would be better beyond chance were it compared
    alone."""
    sampled = [each for each in of_labels if each.passes > 1 and each.metric == of_labels[0].metric]
    best = max(sampled, key=lambda each: each.gain, default=None)
    return best if best is not None and best.is_likely else None


def _points_needed(comparison: MethodComparison, points: int, comparisons: int) -> float:
    """How many points would show this difference among so many comparisons: its error goes with their square root."""
    assert comparison.se
    needed = NormalDist().inv_cdf(1 - LEVEL / 2 / comparisons)
    return points * (needed * comparison.se / comparison.gain) ** 2


def _prediction(result: Result, method: str) -> dict[str, Any]:
    """A method, its passes, its temperature, if it has one, and whether it is calibrated."""
    temperature = temperature_of(result, method)
    temperatures = [] if temperature is None else [temperature]
    passes = passes_of(method, result)
    return {"method": method, "passes": passes, "temperatures": temperatures, **calibration_of(result, method)}


def temperature_of(result: Result, method: str) -> float | None:
    """The temperature of a method that new points are given: that fitted to all points, or of results of earlier
    versions the mean of those of the halves that they were cross-fitted to."""
    for found in result.findings:
        fits = zip(found.values.get("temperatures", ()), found.values.get("whole", ()), strict=False)
        if fitted := next((float(whole) for (name, *_), whole in fits if name == method), None):
            return fitted
    temperatures = np.unique(result.methods[method].sets["test"].points.get("temperature", []))
    return float(np.mean(temperatures)) if len(temperatures) else None


def _compared(comparison: MethodComparison) -> dict[str, Any]:
    return {key: getattr(comparison, key) for key in ("method", "metric", "set", "difference", "se")}


# ── which points to defer ────────────────────────────────────────────────────────────────────────────────────────────


def certified(result: Result, method: str, used: str) -> Finding:
    """By the certificate of a method: what is promised, and what the test set shows of it; `used` is the method of
    predictions."""
    certification = result.certification
    assert certification is not None
    outcome, *parts = outcomes(result, method)
    chosen = certification.methods[method]
    values: dict[str, Any] = {
        "method": method,
        "used": used,
        "score": chosen.score,
        "risk": certification.risk,
        "confidence": None if chosen.is_expected else certification.confidence,
        "points": outcome.points,
    }
    values["refuted"] = any((f.code, f.values.get("method")) == ("promise-refuted", method) for f in result.findings)
    if certification.each:
        values["parts"] = [certification.each, sum(part.is_kept for part in parts), len(parts)]
    if not outcome.is_kept:
        values |= {"points_needed": outcome.needed, "smallest_risk": outcome.smallest_risk}
        units = f"validation {'images' if result.task.is_dense else 'points'}"
        units = f"groups of {units}" if chosen.group is not None else units
        return finding("undecided", about="defer", **values, units=units)
    error = outcome.loss if chosen.is_expected else None
    if outcome.errors is not None and outcome.accepted:
        error = outcome.errors / outcome.accepted
    covered = None if outcome.coverage is None else outcome.coverage.value
    what = "intervals" if chosen.is_of_width else "pixels" if result.task.is_dense else "points"
    values |= {"threshold": outcome.threshold, "error": error, "before": None}
    values |= {"deferred": None if chosen.is_of_width or covered is None else 1 - covered}
    values |= {"width": outcome.threshold if outcome.width is None else outcome.width.value}
    if chosen.score == "predictive_entropy":
        values |= _of_entropy(result, method, None)
    return finding("defer", what=what, **values)


def _of_entropy(result: Result, method: str, temperature: float | None) -> dict[str, Any]:
    """What the entropy of a method is that of."""
    logits = "logits" if _kind(result, method_named(method).plain.name) == "logits" else "ln p"
    return {"of": logits, "temperature": temperature, "several": not result.is_single(method)}


def _measured(result: Result, method: str) -> Iterator[Finding]:
    """Without a certificate: what the evaluated points show, and nothing is promised."""
    task, fitted = result.task, method_named(method)
    whose = fitted.plain.name if fitted.recalibration and result.is_cross_fitted else method  # not two scales at once
    test = result.methods[whose].sets["test"]
    values: dict[str, Any] = {"method": whose, "used": method, "risk": None, "confidence": None}
    if task.is_regression:
        covered = test.estimates.get("coverage95")
        if covered is not None and test.sigma is not None and result.given_distribution != "quantiles":
            width = REACH * float(np.mean(test.sigma))
            values |= {"what": "intervals", "score": "sigma", "threshold": REACH, "deferred": None, "before": None}
            units = independent_units(len(test.sigma), result.sets["test"].group)
            low, high = exact_interval(round(units * (1 - covered.value)), units)
            off = "small" if low > 1 - NOMINAL else "large" if high < 1 - NOMINAL else ""
            values |= {"error": 1 - covered.value, "off": off}
            yield finding("defer", **values, width=width, points=len(test.sigma))
        return
    uncertainty = test.points.get("predictive_entropy")
    right = result.methods[method].sets["test"].points.get("accuracy")  # which a scale for each class changes
    if uncertainty is None or right is None or not np.isfinite(uncertainty).all():
        return
    weights = np.asarray(test.points.get("pixels", np.ones(len(right))), dtype=np.float64) * np.isfinite(right)
    wrong = 1 - np.nan_to_num(right)
    threshold = printed(uncertainty, ACCEPTED)
    accepted = uncertainty <= threshold
    if accepted.all() or not weights[accepted].sum():
        return
    before, error = (float(np.average(wrong[rows], weights=weights[rows])) for rows in (slice(None), accepted))
    what = task.points if task.is_dense else "labels" if result.model.get("labels") else "points"
    values |= {"what": what, "score": "predictive_entropy", "threshold": threshold, "width": None}
    values |= _of_entropy(result, whose, temperature_of(result, whose))
    deferred = 1 - float(accepted.mean())
    yield finding("defer", **values, deferred=deferred, error=error, before=before, points=len(right))


def printed(values: Float[np.ndarray, " point"], share: float) -> float:
    """The threshold that this share of values does not exceed, in three digits, or as few more as leave what is said of
    the others: it is printed as it is used."""
    ordered = np.sort(np.asarray(values, dtype=np.float64))
    low = ordered[math.ceil(share * len(ordered)) - 1]
    above = ordered[np.searchsorted(ordered, low, "right") :]
    middle = (low + above[0]) / 2 if len(above) else low
    for digits in range(3, 17):
        threshold = float(f"{middle:.{digits}g}")
        said = percent(float(np.mean(ordered > threshold)))
        if said == percent(len(above) / len(ordered)):
            return threshold
    return float(low)


# ── foreign inputs ───────────────────────────────────────────────────────────────────────────────────────────────────


def _foreign(result: Result, verdict: Verdict, names: Sequence[str]) -> Finding | None:
    """The score with the largest mean AUROC over the sets; how many points it catches of each, where few test points
    are taken for foreign ones. Both cross-fitted: the score is chosen on points that it is not judged on. Those of
    several passes that are allowed were compared beyond chance, among all comparisons."""
    aurocs = aurocs_of(result, names)
    better = {(each.method, each.score) for each in verdict.comparisons if each.metric == "auroc" and each.is_better}
    single = [key for key in aurocs if passes_of(key[0], result) == 1]
    allowed = [key for key in aurocs if key in single or key in better] if single else [*aurocs]
    if not allowed:
        return None
    best = best_score(result, names, allowed)
    estimates = {name: best.auroc(result, name) for name in names}
    values = {"method": best.method, "score": best.score, "tried": len(aurocs)}
    values |= {"crossfitted": best.crossfitted is not None, "aurocs": {n: each.value for n, each in estimates.items()}}
    if not any(each.low is not None and each.low > 0.5 for each in estimates.values()):
        return finding("undecided", about="foreign", **values)
    scores = scores_of(result, (best.method, best.score), names)
    threshold = printed(scores["test"], 1 - FALSE_ALARMS)
    alarms, shares = caught(scores, threshold)
    if best.crossfitted is not None:
        alarms, shares = best.crossfitted.false_alarms, best.crossfitted.caught
    return finding("foreign", **values, threshold=threshold, false_alarms=alarms, caught=dict(shares))
