"""The report of a sweep: its verdicts, then each line of sizes, the curves, the ELBO and the slopes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from bnuq.catalogue import advised, noted
from bnuq.findings import all_of
from bnuq.metrics.registry import estimates_of_task
from bnuq.records.words import plain
from bnuq.report.document import PathLine, Picture, Report, ReportSection, explanations, section
from bnuq.report.first_screen import meaning_of
from bnuq.report.numbers import count, named, of_reference
from bnuq.report.provenance import provenance_section
from bnuq.studies.sweep.elbo_tables import elbo_parts
from bnuq.studies.sweep.findings import sentences
from bnuq.studies.sweep.lines import (
    SweepLine,
    choice_of,
    disagreement_name,
    disagreement_of,
    lines_of,
    main_line,
    names_of,
    score_name,
)
from bnuq.studies.sweep.plots import draw
from bnuq.studies.sweep.record import Sweep, SweptModel
from bnuq.studies.sweep.tables import MOST_SETS, compared_parts, is_of_other_size, table

_HOW = (
    "Samples disagree less as mini-batches grow: a straight line in the first row is a power law, one of slope −1 a "
    "fall as 1/b. AUROC, where there is a row of it, shows whether unfamiliar data stay separated; the ELBO is drawn "
    "as its difference from the best size. Bars are one standard error."
)
_STOPPED = {
    "full-grid": "",
    "decided": "; adaptive, more would change little",
    "draw-sets": "; adaptive, undecided with all draw sets",
    "budget": "; adaptive, undecided within the budget",
}
_REPEAT = (
    "The request of the first network: options, run file, checkpoint and defaults. To repeat the sweep, save this as a "
    "run file and sweep it with the batch sizes, draw sets and prior of the command above."
)


def report(sweep: Sweep, *, columns: int = 100) -> Report:  # noqa: ARG001 - every report has it
    """The report: what was found, then every estimate by size."""
    lines = lines_of(sweep)
    first = main_line(sweep)
    networks = count(len(sweep.models), "network") if len(sweep.models) > 1 else sweep.models[0].name
    sizes = len({point.batch_size for point in sweep.points})
    test = next(swept.n for swept in sweep.sets if swept.role == "test")
    facts = (networks, f"{test:,} test examples", count(sizes, "mini-batch size"), f"{sweep.samples} samples")
    return Report(
        command=f"bnuq {Sweep.COMMAND}",
        version=sweep.provenance["bnuq"],
        subject=", ".join(model.name for model in sweep.models),
        facts=tuple(_facts(sweep)),
        summary=sentences(sweep),
        sections=tuple(_sections(sweep, lines)),
        warnings=advised(sweep.findings),
        notes=noted(sweep.findings),
        path=None if sweep.path is None else PathLine(sweep.path),
        line=" · ".join((*facts, f"{max(sweep.seconds['total'], 1):.0f} s")),
        meaning=", ".join(meaning_of(sweep.findings)),
        one_screen=(table(sweep, first, brief=True), *explanations([_columns(sweep, [first], brief=True)])),
    )


def _sections(sweep: Sweep, lines: Sequence[SweepLine]) -> Iterator[ReportSection]:
    for line in lines:
        yield ReportSection(line.title, (table(sweep, line), *compared_parts(line)))
    picture = Picture(("sweep",), partial(draw, sweep), _HOW)
    yield ReportSection(f"Mean {disagreement_name(sweep)} over the mini-batch size", (picture,))
    yield from section("ELBO, in nats of the training set", elbo_parts(sweep, lines))
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
                points = f"{swept.n:,} example{'s' * (swept.n != 1)}"
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
    text = f"{points:,} examples" + (f" of {name}" if name else "")
    return text if points == train_size else f"{text}, for a training set of {train_size:,}"


def legend(sweep: Sweep, lines: Sequence[SweepLine]) -> Iterator[str]:
    yield _columns(sweep, lines)
    yield (
        f"Errors are over examples and draws together; over draws, of the mean over {_draw_sets(sweep)} draw sets. "
        "↑ higher, ↓ lower is better. b: mini-batch size"
        + (", M: training batch size." if any(map(is_of_other_size, sweep.matched)) else ".")
    )
    yield (
        "Adaptive: sizes and draw sets were added until more draws could hardly change the recommended size, and how "
        "fast the disagreement falls on the test set. `--full-grid` runs every size with all draw sets."
    ) * (sweep.stopped != "full-grid")


def _columns(sweep: Sweep, lines: Sequence[SweepLine], *, brief: bool = False) -> str:
    """What the columns of a table of sizes are, in plain words."""
    words = []
    known = {metric for point in sweep.points for metric, by_set in point.estimates.items() if "test" in by_set}
    if chosen := next((each for line in lines if (each := choice_of(sweep, line))), None):
        what = {"elbo": "lower bound", "pll": "log-likelihood per example", "auroc": "mean AUROC"}[chosen.criterion]
        unit = ", in nats" * (chosen.criterion != "auroc")
        words.append(f"from best: {what} minus that of the recommended size (→){unit}, ± paired standard error")
    metrics = [metric for metric in estimates_of_task(sweep.task, shown="sensitivity") if metric in known]
    words += [f"{name}: {plain(metric)}" for metric in metrics if (name := named(metric, roomy=False)) != plain(metric)]
    words.append(f"{score_name(disagreement_of(sweep))}: how much samples disagree")
    if ood := names_of(sweep, "ood"):
        names, score = all_of(ood[:MOST_SETS]) if brief else "AUROC", score_name(sweep.score)
        more = f"; {count(len(ood) - MOST_SETS, 'more set')} in `--full`" * (brief and len(ood) > MOST_SETS)
        words.append(f"{names}: how often its examples have more {score} than test examples (0.5 is chance{more})")
    if any(point.degenerate for line in lines for point in line.points):
        words.append("*: nothing is random, no draw changes an output")
    paired = " of one size, differences have smaller ones" * (chosen is not None)
    return f"{'; '.join(words)}. ±: standard error{paired}."
