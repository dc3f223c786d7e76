"""The report of a sweep: its verdicts, then each line of sizes, the ELBO and the slopes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from bnuq.records.sweep import Sweep, SweptModel
from bnuq.report.document import Heading, Paragraph, Part, PathLine, Picture, Report, Section, dim, section
from bnuq.report.numbers import count, of_reference
from bnuq.report.provenance import provenance_section
from bnuq.report.remedies import advised, noted
from bnuq.report.sweep.curves import curves_of
from bnuq.report.sweep.findings import sentences
from bnuq.report.sweep.lookup import Line, lines_of, spread_name
from bnuq.report.sweep.plots import draw
from bnuq.report.sweep.tables import compared_parts, decay_parts, elbo_parts, legend, table

_HOW = (
    "Samples disagree less as mini-batches grow: a straight line in the first row is a power law, one of slope −1 a "
    "fall as 1/b. AUROC, where there is a row of it, tells whether unfamiliar data stay separated; the ELBO is drawn "
    "as its difference from the best size. Bars are one standard error."
)
_REPEAT = (
    "The request of the first network: options, run file, checkpoint and defaults. To repeat the sweep, save this as a "
    "run file and sweep it with the batch sizes, draw sets and prior of the command above."
)


def report(sweep: Sweep, *, columns: int = 100) -> Report:
    """The report: what was found, then every estimate by size. Curves in characters are drawn for `columns`."""
    return Report(
        command=f"bnuq {Sweep.COMMAND}",
        version=sweep.provenance["bnuq"],
        subject=", ".join(model.name for model in sweep.models),
        facts=tuple(_facts(sweep)),
        summary=sentences(sweep),
        sections=tuple(_sections(sweep, columns)),
        warnings=advised(sweep.findings),
        notes=noted(sweep.findings),
        path=None if sweep.path is None else PathLine(sweep.path),
    )


def _sections(sweep: Sweep, columns: int) -> Iterator[Section]:
    lines = lines_of(sweep)
    for line in lines:
        yield Section(line.title, tuple(_line_parts(sweep, line)))
    curves: list[Part] = []
    for line in lines:
        if drawn := list(curves_of(sweep, line, columns)):
            curves += [*([Heading(line.title)] if len(lines) > 1 else []), *drawn]
    picture = Picture(("sweep",), partial(draw, sweep), _HOW, tuple(curves))
    yield Section(f"Mean {spread_name(sweep)} over the mini-batch size", (picture,))
    yield from section("ELBO, in nats of the training set", elbo_parts(sweep, lines))
    slopes = f"Log-log slope of mean {spread_name(sweep)} against b; −1 is a fall as 1/b"
    yield from section(slopes, decay_parts(lines))
    yield Section("", tuple(dim(legend(sweep, lines))))
    models = [(f"network {model.name}", f"{model.path}, SHA-256 `{model.sha256}`") for model in sweep.models]
    sets = [(f"set {swept.name}", f"SHA-256 `{swept.sha256}`") for swept in sweep.sets]
    request: Mapping[str, Any] = sweep.models[0].record
    yield provenance_section(sweep.provenance, sweep.seconds, request, sources=[*models, *sets], repeat=_REPEAT)


def _line_parts(sweep: Sweep, line: Line) -> Iterator[Part]:
    yield table(sweep, line)
    if any(point.degenerate for point in line.points):
        yield Paragraph("* nothing is random: no draw changes an output", dim=True)
    yield from compared_parts(line)


def _facts(sweep: Sweep) -> Iterator[tuple[str, str]]:
    for model in sweep.models:
        facts = [f"{model.parameters:,} parameters", count(model.batchnorm_layers, "BatchNorm layer")]
        if model.layers and len(model.layers) != model.batchnorm_layers:
            facts.append(f"{len(model.layers)} of them sampled")
        if model.train_batch_size is not None:
            facts.append(f"trained in batches of {model.train_batch_size:,}")
        yield "network", f"{model.name}: {', '.join(facts)}"
    for text in dict.fromkeys(filter(None, map(_reference, sweep.models))):
        yield "reference", text
    for role in ("test", "validation", "ood"):
        for swept in sweep.sets:
            if swept.role == role:
                yield role, f"{swept.n:,} points" if swept.name == role else f"{swept.name}, {swept.n:,} points"
    yield "draws", f"{sweep.draw_sets} sets of {sweep.samples} at each size, seed {sweep.seed}"
    yield "time", f"{sweep.seconds['total']:.1f} s"


def _reference(model: SweptModel) -> str:
    data = model.record.get("data")
    train = data.get("train") if isinstance(data, Mapping) else None
    name = of_reference(train) if isinstance(train, str) else ""
    if model.elbo is None:
        return name
    points, train_size = model.elbo.reference_points, model.elbo.train_size
    text = f"{points:,} points" + (f" of {name}" if name else "")
    return text if points == train_size else f"{text}, for a training set of {train_size:,}"
