"""What a baseline holds later results to: the estimates that `bnuq check` gates, and the rates at its thresholds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from bnuq.frozen import frozen
from bnuq.methods import DETERMINISTIC, POPULATION, method_named
from bnuq.metrics import METRICS
from bnuq.records.addresses import AT_THRESHOLD, address_of, estimates_of
from bnuq.records.best_scores import scores_of
from bnuq.records.certificate import ACCEPTED, WIDTH
from bnuq.records.decisions import Decision, Defer, Foreign, decided
from bnuq.records.evaluation import Result
from bnuq.shapes import Float


@frozen
class Rate:
    """The share of something among the points of a set: `value`; what each point contributes to it, whose mean that is
    to first order; and the `step` by which one point changes it."""

    method: str
    set: str
    metric: str
    value: float
    contributions: Float[np.ndarray, " point"]
    step: float

    @property
    def coordinates(self) -> dict[str, str]:
        return {"method": self.method, "set": self.set, "score": AT_THRESHOLD, "metric": f"threshold_{self.metric}"}

    @property
    def address(self) -> str:
        """Such as deterministic.sets.test.at_threshold.error."""
        return address_of(self.coordinates)


def rates(result: Result, decisions: Iterable[Decision]) -> Iterator[Rate]:
    """The rates of `result` at the thresholds of `decisions`, which are its own or those of a baseline.

    Of a threshold of deferral "accepted", the share of test points at most as uncertain, and "error", the share of
    these that is wrong; of certified intervals the share of points outside is the error. Of a threshold of foreign
    inputs "false_alarms", the share of test points above it, and "detected", that of an OOD set. Nothing where the
    result has not the method or score.
    """
    for decision in decisions:
        if isinstance(decision, Foreign) and (best := decision.best).method in result.methods:
            known = [name for name in best.aurocs if best.score in result.methods[best.method].ood.get(name, {})]
            scores = scores_of(result, (best.method, best.score), known) if known else {}
            for name, values in scores.items():
                metric = "false_alarms" if name == "test" else "detected"
                yield _mean(best.method, name, metric, values > decision.threshold)
        elif isinstance(decision, Defer) and (promise := decision.promise).method in result.methods:
            yield from _deferral(result, promise.method, promise.score, decision.threshold)


def _deferral(result: Result, method: str, score: str, threshold: float) -> Iterator[Rate]:
    points, certification = result.methods[method].sets["test"].points, result.certification
    certificate = None if certification is None else certification.methods.get(method)
    if certificate is not None and (errors := certificate.test_errors) is not None:
        if certificate.is_of_width:
            yield _mean(method, "test", "error", errors > threshold)
    elif score in points and "accuracy" in points:
        accepted, right = points[score] <= threshold, points["accuracy"]
        yield _mean(method, "test", "accepted", accepted)
        weights = accepted * points.get("pixels", np.ones(len(right))) * np.isfinite(right)
        if weights.any():
            wrong = 1 - np.nan_to_num(right)
            error = float(np.average(wrong, weights=weights))
            yield Rate(
                method, "test", "error", error, error + weights / weights.mean() * (wrong - error), 1 / accepted.sum()
            )


def _mean(method: str, name: str, metric: str, values: Float[np.ndarray, " point"]) -> Rate:
    values = values.astype(np.float64)
    return Rate(method, name, metric, float(values.mean()), values, 1 / len(values))


def gated(baseline: Result) -> tuple[str, ...]:
    """The addresses of the estimates that a later result is held to, which the baseline alone fixes.

    Of the method that its decisions name and of the deterministic network (of predictions, of the file as it is): the
    metrics of the test set that the registry marks "gate". Of each OOD set the AUROC by the one score that the
    decisions name, else by the spread of the samples; what a certificate accepts, or how wide its intervals are; and
    the rates at the thresholds decided on.
    """
    decisions = decided(baseline)
    about = {each.about: each.values for each in decisions}
    method = str(about.get("use", {}).get("method", baseline.first))
    single = DETERMINISTIC if DETERMINISTIC in baseline.methods else method_named(method).plain.name
    # The population's pooled statistics of draws are a yardstick, not the network, and other ones with another seed.
    used = (name for name in dict.fromkeys((method, single)) if name in baseline.methods)
    methods = [name for name in used if method_named(name).plain.name != POPULATION]
    marked = [name for name, metric in METRICS.items() if "gate" in metric.shown]
    wanted = [
        {"method": name, "set": "test", "metric": metric}
        for name in methods
        for metric in marked
        if not (metric == "accuracy" and method_named(name).plain.name in methods[methods.index(name) + 1 :])
    ]  # a temperature leaves it as it is
    foreign = about.get("foreign") or _usual_score(baseline)
    separates = {"method": str(foreign["method"]), "score": str(foreign["score"]), "metric": "auroc"}
    wanted += [{**separates, "set": name} for name, each in baseline.sets.items() if each.kind == "ood"]
    if baseline.certification is not None:
        promised = {"method": baseline.certification.method, "set": "test"}
        wanted += [{**promised, "metric": metric} for metric in (ACCEPTED, WIDTH)]
    known = estimates_of(baseline)
    at_thresholds = (rate.address for rate in rates(baseline, decisions))
    return (*(address for address in map(address_of, wanted) if address in known), *at_thresholds)


def _usual_score(baseline: Result) -> dict[str, str]:
    """Where nothing is decided about foreign inputs: the spread of the samples, else the first score that there is."""
    method = next(iter(baseline.sampled), baseline.first)
    scores = next(iter(baseline.methods[method].ood.values()), {})
    return {"method": method, "score": next(iter({baseline.task.spread} & {*scores} or scores), "")}
