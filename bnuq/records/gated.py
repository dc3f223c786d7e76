"""What `bnuq check` gates by default: the estimates by which a baseline decided what to use, about ten."""

from __future__ import annotations

from bnuq.methods import DETERMINISTIC
from bnuq.metrics import METRICS
from bnuq.records.addresses import address_of, estimates_of
from bnuq.records.certificate import ACCEPTED, WIDTH
from bnuq.records.decisions import decided
from bnuq.records.evaluation import Result


def gated(baseline: Result) -> tuple[str, ...]:
    """The addresses of the estimates that a later result is held to, which the baseline alone fixes.

    Of the method that its decisions name and of the deterministic network: the metrics of the test set that the
    registry marks "gate". Of each OOD set the AUROC by the one score that the decisions name, else by the spread of
    the samples; and what a certificate accepts, or how wide its intervals are.
    """
    decisions = decided(baseline)
    about = {each.values.get("about", each.code): each.values for each in decisions}
    method = str(about.get("use", {}).get("method", baseline.first))
    methods = [name for name in dict.fromkeys((method, DETERMINISTIC)) if name in baseline.methods]
    marked = [name for name, metric in METRICS.items() if "gate" in metric.shown]
    wanted = [{"method": name, "set": "test", "metric": metric} for name in methods for metric in marked]
    foreign = about.get("foreign", {"method": baseline.first, "score": baseline.task.spread})
    separates = {"method": str(foreign["method"]), "score": str(foreign["score"]), "metric": "auroc"}
    wanted += [{**separates, "set": name} for name, each in baseline.sets.items() if each.kind == "ood"]
    if baseline.certification is not None:
        promised = {"method": baseline.certification.method, "set": "test"}
        wanted += [{**promised, "metric": metric} for metric in (ACCEPTED, WIDTH)]
    known = estimates_of(baseline)
    return tuple(address for address in map(address_of, wanted) if address in known)
