"""The report of a sweep: its verdicts, then each line of sizes, the curves in characters, the ELBO and the slopes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from bnuq.catalogue import advised, noted
from bnuq.records.sweep import Sweep, SweptModel
from bnuq.report.document import Heading, Part, PathLine, Picture, Report, ReportSection, explanations, section
from bnuq.report.numbers import count, of_reference
from bnuq.report.provenance import provenance_section
from bnuq.report.sweep.sweep_curves import curves_of
from bnuq.report.sweep.sweep_findings import sentences
from bnuq.report.sweep.sweep_lines import SweepLine, disagreement_name, lines_of, names_of, score_name
from bnuq.report.sweep.sweep_plots import draw
from bnuq.report.sweep.sweep_tables import compared_parts, decay_parts, elbo_parts, is_of_other_size, table

_HOW = (
    "Samples disagree less as mini-batches grow: a straight line in the first row is a power law, one of slope −1 a "
    "fall as 1/b. AUROC, where there is a row of it, shows whether unfamiliar data stay separated; the ELBO is drawn "
    "as its difference from the best size. Bars are one standard error."
)
_STOPPED = {
    "full-grid": "",
    "decided": "; adaptive, all decided",
    "draw-sets": "; adaptive, undecided with all draw sets",
    "budget": "; adaptive, undecided within the budget",
}
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


def _sections(sweep: Sweep, columns: int) -> Iterator[ReportSection]:
    lines = lines_of(sweep)
    for line in lines:
        fixed = any(point.degenerate for point in line.points)
        note = explanations(["* nothing is random: no draw changes an output"] if fixed else [])
        yield ReportSection(line.title, (table(sweep, line), *note, *compared_parts(line)))
    curves: list[Part] = []
    for line in lines:
        if drawn := list(curves_of(sweep, line, columns)):
            curves += [*([Heading(line.title)] if len(lines) > 1 else []), *drawn]
    picture = Picture(("sweep",), partial(draw, sweep), _HOW, tuple(curves))
    yield ReportSection(f"Mean {disagreement_name(sweep)} over the mini-batch size", (picture,))
    yield from section("ELBO, in nats of the training set", elbo_parts(sweep, lines))
    slopes = f"Log-log slope of mean {disagreement_name(sweep)} against b; −1 is a fall as 1/b"
    yield from section(slopes, decay_parts(lines))
    yield ReportSection("", tuple(explanations(legend(sweep, lines))))
    models = [(f"network {model.name}", f"{model.path}, SHA-256 `{model.sha256}`") for model in sweep.models]
    sets = [(f"set {swept.name}", f"SHA-256 `{swept.sha256}`") for swept in sweep.sets]
    request: Mapping[str, Any] = sweep.models[0].record
    yield provenance_section(sweep.provenance, sweep.seconds, request, sources=[*models, *sets], repeat=_REPEAT)


def _facts(sweep: Sweep) -> Iterator[tuple[str, str]]:
    for model in sweep.models:
        facts = [f"{model.parameters:,} parameters", count(model.batchnorm_layers, "BatchNorm layer")]
        if model.layers and len(model.layers) != model.batchnorm_layers:
            facts.append(f"{len(model.layers)} of them sampled")
        if model.train_batch_size is not None:
            facts.append(f"trained in batches of {model.train_batch_size:,}")
        yield "network", f"{model.name}: {', '.join(facts)}"
    for text in dict.fromkeys(text for model in sweep.models if (text := _reference(model))):
        yield "reference", text
    for role in ("test", "validation", "ood"):
        for swept in sweep.sets:
            if swept.role == role:
                points = f"{swept.n:,} point{'s' * (swept.n != 1)}"
                yield role, points if swept.name == role else f"{swept.name}, {points}"
    draws = f"{_draw_sets(sweep)} sets of {sweep.samples} at each size"
    yield "draws", f"{draws}, seed {sweep.seed}{_STOPPED[sweep.stopped]}"
    yield "time", f"{sweep.seconds['total']:.1f} s"


def _draw_sets(sweep: Sweep) -> str:
    """The number of draw sets of each size, from the fewest to the most."""
    numbers = [point.draw_sets for point in sweep.points if not point.degenerate] or [sweep.draw_sets]
    return " to ".join(str(number) for number in sorted({min(numbers), max(numbers)}))


def _reference(model: SweptModel) -> str:
    data = model.record.get("data")
    train = data.get("train") if isinstance(data, Mapping) else None
    name = of_reference(train) if isinstance(train, str) else ""
    if model.elbo is None:
        return name
    points, train_size = model.elbo.reference_points, model.elbo.train_size
    text = f"{points:,} points" + (f" of {name}" if name else "")
    return text if points == train_size else f"{text}, for a training set of {train_size:,}"


def legend(sweep: Sweep, lines: Sequence[SweepLine]) -> Iterator[str]:
    yield (
        f"± standard error over points and draws together; over draws, of the mean over {_draw_sets(sweep)} "
        "draw sets. ↑ higher, ↓ lower is better. b: mini-batch size"
        + (", M: training batch size." if any(map(is_of_other_size, sweep.matched)) else ".")
    )
    if sweep.stopped != "full-grid":
        yield (
            "Adaptive: sizes and draw sets were added until the recommended size, and how fast MI falls on the test "
            "set, were decided within their errors. For every size with all draw sets, as in a figure, use --full-grid."
        )
    if sweep.task == "regression":
        yield "Variance: disagreement between samples, in squared target units; CRPS and RMSE are in target units."
    else:
        yield (
            "PLL: mean log probability of the true label, in nats. MI: mutual information, the disagreement "
            "between samples, in nats. ECE: gap between confidence and accuracy."
        )
    if names_of(sweep, "ood"):
        yield (
            f"AUROC: probability that a random OOD point has more {score_name(sweep)} than a random test point; "
            "0.5 is chance."
        )
    if any(line.model is not None and line.model.decay for line in lines):
        yield (
            "Slopes are corrected for the finite reference. max. deviation: the largest distance from the fitted line, "
            "in ln units."
        )
