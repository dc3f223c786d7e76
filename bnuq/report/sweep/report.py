"""The report of a sweep: its verdicts, then each line of sizes, the curves in characters, the ELBO and the slopes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from bnuq.catalogue import advised, noted
from bnuq.estimates import Estimate
from bnuq.methods import NETWORKS
from bnuq.metrics import METRICS
from bnuq.metrics.elbo import IMPROPER_PRIORS
from bnuq.metrics.registry import estimates_of_task
from bnuq.records.sweep import ElboTerms, Sweep, SweepPoint, SweptModel
from bnuq.report.document import (
    Cell,
    Drawing,
    Heading,
    Paragraph,
    Part,
    PathLine,
    Picture,
    Report,
    Row,
    Section,
    Table,
    dim,
    section,
)
from bnuq.report.drawing import short
from bnuq.report.numbers import (
    and_error,
    count,
    decimals,
    error_of,
    exponent,
    interval_of,
    named,
    number,
    of_reference,
    three_digits,
    total,
    with_error,
)
from bnuq.report.provenance import provenance_section
from bnuq.report.sweep.findings import sentences
from bnuq.report.sweep.lookup import (
    Line,
    auroc_of,
    behind_best,
    by_elbo_of,
    compared_by,
    estimate_of,
    lines_of,
    names_of,
    score_name,
    spread_name,
    spread_of,
)
from bnuq.report.sweep.plots import draw

_HOW = (
    "Samples disagree less as mini-batches grow: a straight line in the first row is a power law, one of slope −1 a "
    "fall as 1/b. AUROC, where there is a row of it, tells whether unfamiliar data stay separated; the ELBO is drawn "
    "as its difference from the best size. Bars are one standard error."
)
_REPEAT = (
    "The request of the first network: options, run file, checkpoint and defaults. To repeat the sweep, save this as a "
    "run file and sweep it with the batch sizes, draw sets and prior of the command above."
)
_PRIORS = {
    "unit": "unit information (q at one value, around the population statistics)",
    "gaussian": "Gaussian",
    "weight_decay": "that of weight decay, flat in means and N(0, 1/(2Nτλ)) in deviations",
    "flat": "flat",
    "gamma": "unit information with a Gamma distribution of S², at two values",
}
_ROWS = 9  # of the curves on a terminal
_MARKS = "ox+*#"  # of the sets in them
_BETWEEN = "·"  # the points of a curve


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
        fixed = any(point.degenerate for point in line.points)
        note = dim(["* nothing is random: no draw changes an output"] if fixed else [])
        yield Section(line.title, (table(sweep, line), *note, *compared_parts(line)))
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


# ── tables ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def table(sweep: Sweep, line: Line) -> Table:
    """A row a size."""
    columns: dict[str, list[Cell]] = {}
    if line.model is None:
        columns["network"] = [Cell(short(sweep.models[point.model].name, 20)) for point in line.points]
        if any(map(_other_size, line.points)):
            trained = [point.train_batch_size for point in line.points]
            columns["M"] = [Cell("–" if size is None else f"{size:,}") for size in trained]
    spread, [test, *_], ood = spread_of(sweep), names_of(sweep, "test"), names_of(sweep, "ood")
    shown = estimates_of_task(sweep.task, shown="sensitivity")
    directed, undirected = (
        [(metric, test, named(metric, roomy=False)) for metric in shown if (shown[metric].direction == "none") is last]
        for last in (False, True)
    )
    column = "variance" if sweep.task == "regression" else "MI"
    of_sets = [(spread, name, f"{column} {short(name, 18)}") for name in (test, *ood)]
    for metric, name, header in (*directed, *of_sets, *undirected):
        estimates = [estimate_of(point, metric, name) for point in line.points]
        if any(estimate is not None for estimate in estimates):
            every = (estimate_of(point, spread, of) for point in line.points for _, of, _ in of_sets)
            digits = _digits(metric, every if metric == spread else estimates)
            columns[f"{METRICS[metric].arrow} {header}".strip()] = [
                Cell("0") if point.degenerate and metric == spread else with_error(estimate, digits)
                for point, estimate in zip(line.points, estimates, strict=True)
            ]
    for name in ood:
        aurocs = [auroc_of(sweep, point, name) for point in line.points]
        if any(aurocs):
            header = f"↑ AUROC {short(name, 18)}"
            columns[header] = [with_error(None if auroc is None else auroc.estimate, 3) for auroc in aurocs]
    rows = [
        (f"{point.batch_size:,}{'*' if point.degenerate else ''}", tuple(column[row] for column in columns.values()))
        for row, point in enumerate(line.points)
    ]
    return _by_size(tuple(columns), rows)


def _other_size(point: SweepPoint) -> bool:
    return point.train_batch_size != point.batch_size


def _by_size(header: tuple[str, ...], rows: Sequence[Row]) -> Table:
    """A row for each size, which stands to the right."""
    width = max(len(label) for label, _ in rows)
    return Table(header, tuple((f"{label:>{width}}", cells) for label, cells in rows), stacks=True)


def _digits(metric: str, estimates: Iterable[Estimate | None]) -> int:
    """Decimals of a column: four of what has a fixed scale, else so many that the smallest is seen and its error is."""
    spread = METRICS[metric].unit == "nats" and METRICS[metric].direction == "none"  # falls as 1/b
    if METRICS[metric].digits is not None and not spread:
        return 4
    known = [each for each in estimates if each is not None and math.isfinite(each.value) and each.value != 0]
    if not known:
        return 4
    values = [abs(estimate.value) for estimate in known]
    errors = [error for estimate in known if 0 < (error := total(estimate) or 0.0) < math.inf]
    finest = max(1 - exponent(min(values)), -exponent(min(errors)) if errors else 0)
    return min(7, max(0, decimals(values) - 1, finest))


def compared_parts(line: Line) -> Iterator[Part]:
    """MCBN beside deterministic networks, where the running statistics do not fit the reference."""
    if not (metric := compared_by(line)):
        return
    networks = {point.batch_size: [point.compared_with[name][metric] for name in NETWORKS] for point in line.compared}
    estimates = {
        size: [*(each.estimate for each in pair), *(each.difference for each in pair)]
        for size, pair in networks.items()
    }
    digits = _digits(metric, (estimate for row in estimates.values() for estimate in row))
    rows = [(f"{size:,}", tuple(with_error(estimate, digits) for estimate in row)) for size, row in estimates.items()]
    yield Heading(f"{named(metric, roomy=False)} on the test set, compared with a single deterministic pass")
    yield _by_size(("deterministic", "population statistics", "MCBN − deterministic", "MCBN − population"), rows)


def elbo_parts(sweep: Sweep, lines: Sequence[Line]) -> Iterator[Part]:
    """The ELBO of each line by size, with its asymptotics, and what it assumes."""
    lines = [line for line in lines if any(point.elbo is not None for point in line.points)]
    for line in lines:
        if len(lines) > 1:
            yield Heading(line.title)
        yield from _line_elbo(sweep, line)
    yield from dim(dict.fromkeys(_assumptions(sweep, line) for line in lines))


def _line_elbo(sweep: Sweep, line: Line) -> Iterator[Part]:
    bounded = [(place, point, point.elbo) for place, point in enumerate(line.points) if point.elbo is not None]
    behind = behind_best(sweep, line)
    values = [abs(each.value) for _, _, elbo in bounded for each in (elbo.elbo, elbo.expected_log_likelihood)]
    digits = min(2, max(0, decimals([*values, *(abs(elbo.kl) for _, _, elbo in bounded)]) - 1))
    rows: list[Row] = []
    for place, point, elbo in bounded:
        difference = behind.get(place)
        cells = (
            _cell(elbo.expected_log_likelihood, digits),
            Cell(number(elbo.kl, digits)),
            _cell(elbo.elbo, digits),
            Cell("–") if difference is None else Cell("best") if difference.value == 0 else _cell(difference, digits),
        )
        rows.append((f"{point.batch_size:,}", cells))
    yield _by_size(("exp. log-lik.", "KL", "↑ ELBO", "from best"), rows)
    if len(behind) > 1 and (sweep.recommended is None or not by_elbo_of(sweep.recommended, line)):
        yield Paragraph("From best: ± over draws only, which the sizes share.", dim=True)
    if line.model is None:
        yield Paragraph(
            "These networks have different weights: their likelihoods are not directly comparable, and the prior "
            "of the weights is left out."
        )
    elif line.model.elbo is not None:
        yield Paragraph(_asymptotics(line.model.elbo))


def _cell(estimate: Estimate, digits: int) -> Cell:
    error = error_of(estimate)
    return Cell(number(estimate.value, digits), "" if error is None else f"±{number(error, digits)}")


def _asymptotics(terms: ElboTerms) -> str:
    if terms.c is None or terms.predicted is None:
        return f"No asymptotic optimum b*{': ' + terms.why_none if terms.why_none else ''}."
    return (
        f"A mini-batch costs c = {and_error(terms.c)} nats × b per example; the asymptotic optimum is b* = 2Nc/P + "
        f"mean(1/ρ) = {and_error(terms.predicted)}, with P = {2 * terms.units:,} statistics."
    )


def _assumptions(sweep: Sweep, line: Line) -> str:
    """What the ELBO of the networks of a line assumes; empty if none has terms."""
    models = [sweep.models[number] for number in dict.fromkeys(point.model for point in line.points)]
    terms = [model.elbo for model in models if model.elbo is not None]
    if not terms:
        return ""
    first = terms[0]
    parameters = ", ".join(f"{key} = {three_digits(value)}" for key, value in first.prior_parameters.items())
    prior = _PRIORS.get(first.prior, first.prior) + (f" ({parameters})" if parameters else "")
    improper = "; it is improper, so that only differences between sizes mean anything" * (
        first.prior in IMPROPER_PRIORS
    )
    weight = "" if first.kl_weight == 1 else f"; the KL has weight {first.kl_weight:g}"
    noise = "" if first.tau is None else f", observation precision τ = {three_digits(first.tau)}"
    return (
        f"Assumed: q factorises over the means and deviations of {first.units:,} channels, each Gaussian. Channels "
        f"are assumed independent; where they are not, the KL is overestimated{weight}. {_counted(terms)} The prior "
        f"is {prior}{improper}. Weights are fixed{noise}. The likelihood is that of {first.points:,} training "
        f"points, times N = {first.train_size:,}. The KL ignores that mini-batches are drawn without replacement from "
        f"a finite reference of {first.reference_points:,}."
    )


def _counted(terms: Sequence[ElboTerms]) -> str:
    if terms[0].counts == "nominal":
        return "Each position of a channel counts as an independent value."
    shares = [
        value / layer.nominal
        for each in terms
        for layer in each.layers
        for value in (layer.mean, layer.sd)
        if layer.nominal > 0 and math.isfinite(value)
    ]
    text = "The effective sample size of a channel was measured"
    if not shares:
        return f"{text}."
    return f"{text}: {three_digits(min(shares))} to {three_digits(max(shares))} of its positions."


def decay_parts(lines: Sequence[Line]) -> Iterator[Part]:
    """The log-log slopes of the spread, network by network and set by set."""
    models = [line.model for line in lines if line.model is not None and line.model.decay]
    rows: list[Row] = []
    for model in models:
        if len(models) > 1:
            rows.append((model.name, ()))
        for name, decay in model.decay.items():
            low, high = interval_of(decay.slope)
            sizes = f"{min(decay.sizes):,}–{max(decay.sizes):,}" if decay.sizes else "–"
            interval = "–" if math.isnan(low) else f"{number(low, 2)} to {number(high, 2)}"
            cells = (Cell(number(decay.slope.value, 3)), Cell(interval), Cell(number(decay.residual, 3)), Cell(sizes))
            rows.append((short(name, 30), cells))
    if rows:
        yield Table(("slope", "95 % interval", "max. deviation", "sizes"), tuple(rows))


def legend(sweep: Sweep, lines: Sequence[Line]) -> Iterator[str]:
    yield (
        f"± standard error over points and draws together; over draws, of the mean over {sweep.draw_sets} "
        "draw sets. ↑ higher, ↓ lower is better. b: mini-batch size"
        + (", M: training batch size." if any(map(_other_size, sweep.matched)) else ".")
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


# ── curves in characters ──────────────────────────────────────────────────────────────────────────────────────────────


def curves_of(sweep: Sweep, line: Line, columns: int) -> Iterator[Drawing]:
    """Mean spread against the size, both logarithmic; nothing for fewer than three sizes."""
    names = names_of(sweep, "test", "ood")[: len(_MARKS)]
    curves = {name: curve for name in names if len(curve := _positive(sweep, line, name)) > 2}
    sizes = sorted({size for curve in curves.values() for size in curve})
    if len({value for curve in curves.values() for value in curve.values()}) < 2:
        return
    rows, hidden = _rows(list(curves.values()), sizes, columns)
    keys = ", ".join(f"{mark} {short(name, 18)}" for mark, name in zip(_MARKS, curves, strict=False))
    first = "; where they coincide, the first is shown" if hidden else ""
    caption = f"Mean {spread_name(sweep)}, both axes logarithmic: {keys}{first}."
    yield Drawing(tuple(rows), caption, {_BETWEEN: "."})


def _rows(curves: list[Mapping[int, float]], sizes: list[int], columns: int) -> tuple[list[str], bool]:
    """The rows, axes included, and whether a mark hides another."""
    logs = [math.log(value) for curve in curves for value in curve.values()]
    low, high = min(logs), max(logs)
    levels = {0: high, _ROWS // 2: (low + high) / 2, _ROWS - 1: low}
    labels = {row: three_digits(math.exp(level)) for row, level in levels.items()}
    margin = 1 + max(map(len, labels.values()))
    width = min(64, columns - margin - 4)
    reach = math.log(sizes[-1] / sizes[0])

    def column(size: float) -> float:
        return math.log(size / sizes[0]) / reach * (width - 1)

    canvas = np.full((_ROWS, width), " ", dtype="<U1")
    places = {
        mark: (
            np.rint([(high - math.log(value)) / (high - low) * (_ROWS - 1) for value in curve.values()]).astype(int),
            np.rint([column(size) for size in curve]).astype(int),
        )
        for mark, curve in zip(_MARKS, curves, strict=False)
    }
    for rows, at in places.values():
        every = np.arange(at[0], at[-1] + 1)
        canvas[np.rint(np.interp(every, at, rows)).astype(int), every] = _BETWEEN
    hidden = False
    for mark, cells in reversed(places.items()):
        hidden = hidden or bool(np.isin(canvas[cells], list(_MARKS)).any())
        canvas[cells] = mark
    lines = [f"{labels.get(row, ''):>{margin}} |{''.join(text)}".rstrip() for row, text in enumerate(canvas)]
    ticks = [" "] * (width + 6)
    free = 0
    for size in sizes:
        text = f"{size:,}"
        start = max(0, round(column(size)) - (len(text) - 1) // 2)
        if start >= free and start + len(text) <= len(ticks):
            ticks[start : start + len(text)] = text
            free = start + len(text) + 1
    return [*lines, f"{'b':>{margin}}  {''.join(ticks)}"[:columns].rstrip()], hidden


def _positive(sweep: Sweep, line: Line, name: str) -> dict[int, float]:
    """The mean spread of a set by size, if it has a logarithm."""
    estimates = {point.batch_size: estimate_of(point, spread_of(sweep), name) for point in line.random}
    return {
        size: estimate.value
        for size, estimate in estimates.items()
        if estimate is not None and 0 < estimate.value < math.inf
    }
