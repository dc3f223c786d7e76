"""The verdicts of an inspection: whether the network is healthy, which layers are not, and what to do."""

from __future__ import annotations

from collections.abc import Iterator

from bnuq.findings import Finding, verdict
from bnuq.records.inspection import Inspection
from bnuq.report.inspection.domain_findings import domain_findings, pipeline_findings
from bnuq.report.inspection.health_findings import health_findings


def findings(record: Inspection) -> Iterator[Finding]:
    """The verdicts: health in one, the pipelines and domains that were asked about, then what else is ill, and what can
    be sampled."""
    health = [*health_findings(record)]
    yield from health[:1]
    if record.pipelines is not None:
        yield from pipeline_findings(record.pipelines)
    if record.domains is not None:
        yield from domain_findings(record.domains)
    yield from health[1:]
    yield from _sites(record)


def _sites(record: Inspection) -> Iterator[Finding]:
    if not record.sites:
        yield verdict("nothing-stochastic")
        return
    live: list[str] = [site.kind for site in record.sites if site.stochastic]
    kinds = {"batchnorm": "mcbn", "dropout": "mcdo", "learned": "learned"}
    if methods := [method for kind, method in kinds.items() if kind in live]:
        yield verdict("sites", kinds={kind: live.count(kind) for kind in kinds}, methods=",".join(methods))
    fixed: dict[str, list[str]] = {}
    for site in record.sites:
        if not site.stochastic:
            fixed.setdefault(site.reason, []).append(site.name)
    yield from (verdict("sites-fixed", sites=names, why=why) for why, names in fixed.items())
    if record.unreachable:
        names = [name or "the network" for name, _ in record.unreachable]
        yield verdict("unreachable", layers=names, why=record.unreachable[0][1])
