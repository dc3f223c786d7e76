"""What `bnuq check` gates by default: the estimates by which a baseline decided what to use, about ten."""

from __future__ import annotations

from bnuq.methods import DETERMINISTIC, POPULATION, method_named
from bnuq.metrics import METRICS
from bnuq.records.addresses import address_of, estimates_of
from bnuq.records.certificate import ACCEPTED, WIDTH
from bnuq.records.decisions import decided
from bnuq.records.evaluation import Result
from bnuq.records.operating_points import rates


def gated(baseline: Result) -> tuple[str, ...]:
    """The addresses of the estimates that a later result is held to, which the baseline alone fixes.

    Of the method that its decisions name and of the deterministic network (of predictions, of the file as it is): the
    metrics of the test set that the registry marks "gate". Of each OOD set the AUROC by the one score that the
    decisions name, else by the spread of the samples; what a certificate accepts, or how wide its intervals are; and
    the rates at the thresholds decided on.
    """
    decisions = decided(baseline)
    about = {each.values.get("about", each.code): each.values for each in decisions}
    method = str(about.get("use", {}).get("method", baseline.first))
    single = DETERMINISTIC if DETERMINISTIC in baseline.methods else method_named(method).plain.name
    methods = [name for name in dict.fromkeys((method, single)) if name in baseline.methods and not _corrects(name)]
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


def _corrects(method: str) -> bool:
    """Whether it has the pooled statistics of draws: a yardstick, not the network, and other ones with another seed."""
    return method_named(method).plain.name == POPULATION


def _usual_score(baseline: Result) -> dict[str, str]:
    """Where nothing is decided about foreign inputs: the spread of the samples, else the first score that there is."""
    method = next(iter(baseline.sampled), baseline.first)
    scores = next(iter(baseline.methods[method].ood.values()), {})
    return {"method": method, "score": next(iter({baseline.task.spread} & {*scores} or scores), "")}
