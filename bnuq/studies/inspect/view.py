"""The report of an inspection: what is wrong and what to do, then every layer, domain and pipeline in tables."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from bnuq.catalogue import advised, noted
from bnuq.report.document import MOST_SAID, BulletList, PathLine, Picture, Report, ReportSection, section
from bnuq.report.first_screen import meaning_of
from bnuq.report.numbers import count, of_reference
from bnuq.report.provenance import provenance_section
from bnuq.studies.inspect.domain_tables import domain_parts, pipeline_parts
from bnuq.studies.inspect.findings import findings, independence
from bnuq.studies.inspect.layer_tables import gap_parts, noise_parts, short_site_parts, site_parts
from bnuq.studies.inspect.plots import pictures_of
from bnuq.studies.inspect.record import Inspection

_SAID = "vanishing", "dead-channels", "frozen", "never-trained", "reference-mismatch", "no-pipeline-fits"  # as findings


def report(record: Inspection, *, columns: int = 100) -> Report:
    """The report: the verdicts, then sites, running statistics, noise, domains and pipelines, for so many columns."""
    model, name = record.model, name_width(columns)
    layers = (("batchnorm_layers", "BatchNorm layer"), ("dropout_layers", "dropout layer"))
    line = (Path(model["path"]).name, *(count(model[key], noun) for key, noun in layers))
    asked = tuple(short_site_parts(record, name=name))
    if record.domains is not None:
        asked = tuple(domain_parts(record.domains, name=name))
    if record.pipelines is not None:
        asked = tuple(pipeline_parts(record.pipelines, name=columns - 36))
    return Report(
        command=f"bnuq {Inspection.COMMAND}",
        version=record.provenance["bnuq"],
        subject=Path(record.model["path"]).name,
        facts=tuple(_facts(record)),
        summary=(said := tuple(each.text for each in findings(record))),
        sections=tuple(_sections(record, columns)),
        warnings=advised(record.findings),
        notes=noted(record.findings),
        path=None if record.path is None else PathLine(record.path),
        line=" · ".join((*line, f"{max(record.seconds['total'], 1):.0f} s")),
        meaning=", ".join(meaning_of(record.findings)),
        one_screen=asked,
        said=_SAID if len(said) <= MOST_SAID else (),  # what is cut off is still a warning
    )


def _sections(record: Inspection, columns: int) -> Iterator[ReportSection]:
    name, pictures = name_width(columns), {picture.kind[0]: picture for picture in pictures_of(record)}

    def of(*kinds: str) -> list[Picture]:
        return [pictures[kind] for kind in kinds if kind in pictures]

    yield from section("Sites, in execution order", site_parts(record, name=name))
    if record.gap is not None:
        parts = (*of("gap"), *gap_parts(record.gap, name=name))
        yield ReportSection("Running statistics compared with the population", parts)
    if record.noise is not None:
        said = tuple(each.text for each in independence(record.noise)) if record.noise.layers else ()
        parts = (BulletList(said), *of("noise_by_layer", "noise_panels"), *noise_parts(record.noise, name=name))
        yield ReportSection("Noise of a batch", parts)
    if record.domains is not None:
        yield ReportSection("Domains", (*of("domains"), *domain_parts(record.domains, name=name)))
    if record.pipelines is not None:
        parts = tuple(pipeline_parts(record.pipelines, name=columns - 36))
        yield ReportSection("Training pipelines tried", parts)
    sources = [("checkpoint", f"{record.model['path']}, SHA-256 `{record.model.get('sha256', 'unknown')}`")]
    if reference := record.provenance.get("reference_sha256"):
        sources.append(("reference", f"SHA-256 `{reference}`"))
    yield provenance_section(record.provenance, record.seconds, record.run, sources=sources, repeat="")


def name_width(columns: int) -> int:
    """The letters of a name in a table of so many columns."""
    return max(12, min(44, columns // 2 - 4))


def _facts(record: Inspection) -> Iterator[tuple[str, str]]:
    model = record.model
    facts = [
        f"{model['parameters']:,} parameters",
        count(model["batchnorm_layers"], "BatchNorm layer"),
        count(model["dropout_layers"], "dropout layer"),
    ]
    if model["learned_layers"]:
        facts.append(count(model["learned_layers"], "noise layer"))
    if (size := model.get("train_batch_size")) is not None:
        facts.append(f"trained in batches of {size:,}")
    yield "model", f"{Path(model['path']).name}: {', '.join(facts)}"
    data = record.run.get("data")
    train = data.get("train") if isinstance(data, dict) else None
    if isinstance(train, str) and (record.gap is not None or record.noise is not None):
        points = "" if record.gap is None else f", {record.gap.points:,} examples used"
        yield "reference", f"{of_reference(train)}{points}"
    if record.noise is not None:
        yield "noise", f"{record.noise.draws} draws of mini-batches of {record.noise.batch_size:,}"
    for domain in record.domains.domains if record.domains is not None else ():
        labels = "" if domain.labelled else ", without labels"
        base = of_reference(domain.reference)
        file = "" if base == domain.name else f" ({base})"
        yield "domain", f"{domain.name}{file}, {domain.n:,} example{'s' * (domain.n != 1)}{labels}"
    yield "time", f"{record.seconds['total']:.1f} s"
