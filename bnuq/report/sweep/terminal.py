"""The report of a sweep, part by part."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TextIO

from bnuq.records.sweep import Sweep, SweptModel
from bnuq.report.numbers import count, of_reference
from bnuq.report.parts import (
    GAP,
    Advice,
    Drawing,
    Facts,
    Items,
    Paragraph,
    Part,
    PathLine,
    cleaner,
    columns_of,
    draw,
    title,
)
from bnuq.report.remedies import advised, noted
from bnuq.report.sweep.curves import curves_of
from bnuq.report.sweep.lines import lines_of
from bnuq.report.sweep.tables import assumptions, compared_parts, decay_parts, elbo_parts, legend, table
from bnuq.report.sweep.words import in_words


def print_sweep(sweep: Sweep, stream: TextIO, width: int | None = None) -> None:
    """Draw the report on `stream`: in colour on a terminal, plain in a pipe, in ASCII where the encoding needs it."""
    columns = columns_of(stream, width)
    between = "·" if cleaner(getattr(stream, "encoding", None) or "utf-8")("·") == "·" else "."
    draw(report_parts(sweep, columns, between), stream, columns)


def report_parts(sweep: Sweep, columns: int = 100, between: str = "·") -> Iterator[Part]:
    """What the report is made of; `between` is the mark between the points of a curve in characters."""
    lines = lines_of(sweep)
    yield title(f"bnuq {Sweep.COMMAND}  {sweep.provenance['bnuq']}")
    yield Facts(tuple(_facts(sweep)))
    yield from (GAP, title("In short"), Items(tuple(in_words(sweep, lines))))
    for line in lines:
        yield from (GAP, title(line.title), table(sweep, line))
        if any(point.degenerate for point in line.points):
            yield Paragraph("* nothing is random: no draw changes an output", "dim")
        if drawn := tuple(curves_of(sweep, line, columns, between)):
            yield from (GAP, Drawing(drawn))
        yield from compared_parts(line)
    assumed: dict[str, None] = {}
    for line in lines:
        yield from elbo_parts(sweep, line)
        if any(point.elbo is not None for point in line.points):
            assumed[assumptions(sweep, line)] = None
    yield from (Paragraph(text, "dim") for text in assumed if text)
    yield from decay_parts(sweep, lines)
    yield GAP
    yield from (Paragraph(text, "dim") for text in legend(sweep, lines))
    if advice := advised(sweep.findings):
        yield from (GAP, title("Warnings", "bold yellow"))
        yield Advice(advice)
    if texts := noted(sweep.findings):
        yield from (GAP, title("Notes"), Items(texts))
    if sweep.path is not None:
        yield from (GAP, PathLine(sweep.path))


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
        for one in sweep.sets:
            if one.role == role:
                yield role, f"{one.n:,} points" if one.name == role else f"{one.name}, {one.n:,} points"
    yield "draws", f"{sweep.draw_sets} sets of {sweep.samples} at each size, seed {sweep.seed}"
    yield "time", f"{sweep.seconds['total']:.1f} s"


def _reference(model: SweptModel) -> str:
    data = model.record.get("data")
    train = data.get("train") if isinstance(data, Mapping) else None
    named = of_reference(train) if isinstance(train, str) else ""
    if model.elbo is None:
        return named
    held, trained = model.elbo.reference_points, model.elbo.train_size
    text = f"{held:,} points" + (f" of {named}" if named else "")
    return text if held == trained else f"{text}, for a training set of {trained:,}"
