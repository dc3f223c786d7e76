"""The report of an inspection on a terminal: what is wrong and what to do, then the tables."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from bnuq.records.inspection import Inspection, Pipelines
from bnuq.report.inspection.tables import domain_parts, gap_parts, noise_parts, pipeline_table, site_parts
from bnuq.report.inspection.words import in_words, of_space
from bnuq.report.numbers import count, of_reference
from bnuq.report.parts import GAP, Advice, Facts, Items, Listing, Paragraph, Part, PathLine, columns_of, draw, title
from bnuq.report.remedies import advised, noted


def print_inspection(inspection: Inspection, stream: TextIO, width: int | None = None) -> None:
    """Draw the report on `stream`: in colour on a terminal, plain in a pipe, in ASCII where the encoding needs it."""
    columns = columns_of(stream, width)
    draw(report_parts(inspection, columns), stream, columns)


def report_parts(found: Inspection, columns: int = 100) -> Iterator[Part]:
    """What the report is made of, for so many columns."""
    name = max(12, min(44, columns // 2 - 4))
    yield title(f"bnuq {Inspection.COMMAND}  {found.provenance['bnuq']}")
    yield Facts(tuple(facts(found)))
    yield from (GAP, title("In short"), Items(tuple(in_words(found))))
    yield from (GAP, title(SITES), *site_parts(found, name=name))
    if found.gap is not None:
        yield from (GAP, title(GAP_TITLE), *gap_parts(found.gap, name=name))
    if found.noise is not None:
        yield from (GAP, title(NOISE), *noise_parts(found.noise, name=name))
        if text := of_space(found.noise):
            yield Paragraph(text)
    if found.domains is not None:
        yield from (GAP, title(DOMAINS), *domain_parts(found.domains, name=name))
    if found.pipelines is not None:
        yield from (GAP, title(PIPELINES), *pipeline_table(found.pipelines, name=columns - 36))
        yield from listing(found.pipelines)
    if advice := advised(found.findings):
        yield from (GAP, title("Warnings", "bold yellow"))
        yield Advice(advice)
    if texts := noted(found.findings):
        yield from (GAP, title("Notes"), Items(texts))
    if found.path is not None:
        yield from (GAP, PathLine(found.path))


SITES, GAP_TITLE, NOISE = (
    "Sites, in execution order",
    "Running statistics compared with the population",
    "Noise of a batch",
)
DOMAINS, PIPELINES = "Domains", "Training pipelines tried"


def listing(found: Pipelines) -> Iterator[Part]:
    """The lines for the run file, to be copied."""
    if found.lines.strip():
        fits = bool(found.candidates) and found.candidates[0].passed
        what = "For the run file" if fits else "For the run file (the closest pipeline; none fits)"
        yield from (GAP, Listing(what, found.lines.rstrip("\n")))


def facts(found: Inspection) -> Iterator[tuple[str, str]]:
    model = found.model
    told = [
        f"{model['parameters']:,} parameters",
        count(model["batchnorm_layers"], "BatchNorm layer"),
        count(model["dropout_layers"], "dropout layer"),
    ]
    if (size := model.get("train_batch_size")) is not None:
        told.append(f"trained in batches of {size:,}")
    yield "model", f"{Path(model['path']).name}: {', '.join(told)}"
    data = found.run.get("data")
    train = data.get("train") if isinstance(data, dict) else None
    if isinstance(train, str) and (found.gap is not None or found.noise is not None):
        points = "" if found.gap is None else f", {found.gap.points:,} points used"
        yield "reference", f"{of_reference(train)}{points}"
    if found.noise is not None:
        yield "noise", f"{found.noise.draws} draws of mini-batches of {found.noise.batch_size:,}"
    for one in found.domains.domains if found.domains is not None else ():
        labels = "" if one.labelled else ", without labels"
        base = of_reference(one.reference)
        of = "" if base == one.name else f" ({base})"
        yield "domain", f"{one.name}{of}, {one.n:,} points{labels}"
    yield "time", f"{found.seconds['total']:.1f} s"
