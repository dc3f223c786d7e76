"""The tables of a sweep: each line of sizes, the slopes, and the ELBO with its asymptotics and assumptions."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

from bnuq.estimates import Estimate
from bnuq.methods import NETWORKS
from bnuq.metrics import METRICS
from bnuq.metrics.elbo import IMPROPER_PRIORS
from bnuq.metrics.registry import estimates_of_task
from bnuq.records.sweep import ElboTerms, Sweep, SweepPoint
from bnuq.report.document import Cell, Heading, Paragraph, Part, Row, Table, explanations
from bnuq.report.drawing import short
from bnuq.report.numbers import (
    and_error,
    decimals,
    error_of,
    exponent,
    interval_of,
    named,
    number,
    three_digits,
    total,
    with_error,
)
from bnuq.report.sweep.sweep_lines import (
    SweepLine,
    auroc_of,
    behind_best,
    by_elbo_of,
    compared_by,
    disagreement_of,
    estimate_of,
    names_of,
)


def table(sweep: Sweep, line: SweepLine) -> Table:
    """A row a size."""
    columns: dict[str, list[Cell]] = {}
    if line.model is None:
        columns["network"] = [Cell(short(sweep.models[point.model].name, 20)) for point in line.points]
        if any(map(is_of_other_size, line.points)):
            trained = [point.train_batch_size for point in line.points]
            columns["M"] = [Cell("–" if size is None else f"{size:,}") for size in trained]
    columns |= _estimate_columns(sweep, line)
    for name in names_of(sweep, "ood"):
        aurocs = [auroc_of(sweep, point, name) for point in line.points]
        if any(aurocs):
            header = f"↑ AUROC {short(name, 18)}"
            columns[header] = [with_error(None if auroc is None else auroc.estimate, 3) for auroc in aurocs]
    rows = [
        (f"{point.batch_size:,}{'*' if point.degenerate else ''}", tuple(column[row] for column in columns.values()))
        for row, point in enumerate(line.points)
    ]
    return size_table(tuple(columns), rows)


def _estimate_columns(sweep: Sweep, line: SweepLine) -> dict[str, list[Cell]]:
    """Metrics of the test set, those with a better direction first; before the others the disagreement on all sets,
    whose columns share their decimals."""
    disagreement, [test, *_], ood = disagreement_of(sweep), names_of(sweep, "test"), names_of(sweep, "ood")
    shown = estimates_of_task(sweep.task, shown="sensitivity")
    directed, undirected = (
        [(metric, test, named(metric, roomy=False)) for metric in shown if (shown[metric].direction == "none") is last]
        for last in (False, True)
    )
    column = "variance" if sweep.task == "regression" else "MI"
    disagreements = [(disagreement, name, f"{column} {short(name, 18)}") for name in (test, *ood)]
    columns: dict[str, list[Cell]] = {}
    for metric, name, header in (*directed, *disagreements, *undirected):
        estimates = [estimate_of(point, metric, name) for point in line.points]
        if any(estimate is not None for estimate in estimates):
            all_estimates = (estimate_of(point, metric, set_name) for point in line.points for set_name in (test, *ood))
            digits = decimals_of(metric, all_estimates if metric == disagreement else estimates)
            columns[f"{METRICS[metric].arrow} {header}".strip()] = [
                Cell("0") if point.degenerate and metric == disagreement else with_error(estimate, digits)
                for point, estimate in zip(line.points, estimates, strict=True)
            ]
    return columns


def is_of_other_size(point: SweepPoint) -> bool:
    return point.train_batch_size != point.batch_size


def size_table(header: tuple[str, ...], rows: Sequence[Row]) -> Table:
    """A row for each size, which stands to the right."""
    width = max(len(label) for label, _ in rows)
    return Table(header, tuple((f"{label:>{width}}", cells) for label, cells in rows), stacks=True)


def decimals_of(metric: str, estimates: Iterable[Estimate | None]) -> int:
    """Decimals of a column: four of what has a fixed scale, else so many that the smallest is seen and its error is."""
    is_disagreement = METRICS[metric].unit == "nats" and METRICS[metric].direction == "none"  # falls as 1/b
    if METRICS[metric].digits is not None and not is_disagreement:
        return 4
    known = [each for each in estimates if each is not None and math.isfinite(each.value) and each.value != 0]
    if not known:
        return 4
    values = [abs(estimate.value) for estimate in known]
    errors = [error for estimate in known if 0 < (error := total(estimate) or 0.0) < math.inf]
    finest = max(1 - exponent(min(values)), -exponent(min(errors)) if errors else 0)
    return min(7, max(0, decimals(values) - 1, finest))


def compared_parts(line: SweepLine) -> Iterator[Part]:
    """MCBN beside deterministic networks, where the running statistics do not fit the reference."""
    if not (metric := compared_by(line)):
        return
    networks = {point.batch_size: [point.compared_with[name][metric] for name in NETWORKS] for point in line.compared}
    estimates = {
        size: [*(each.estimate for each in pair), *(each.difference for each in pair)]
        for size, pair in networks.items()
    }
    digits = decimals_of(metric, (estimate for row in estimates.values() for estimate in row))
    rows = [(f"{size:,}", tuple(with_error(estimate, digits) for estimate in row)) for size, row in estimates.items()]
    yield Heading(f"{named(metric, roomy=False)} on the test set, compared with a single deterministic pass")
    yield size_table(("deterministic", "population statistics", "MCBN − deterministic", "MCBN − population"), rows)


def decay_parts(lines: Sequence[SweepLine]) -> Iterator[Part]:
    """The log-log slopes of the disagreement, network by network and set by set."""
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


_PRIORS = {
    "unit": "unit information (q at one value, around the population statistics)",
    "gaussian": "Gaussian",
    "weight_decay": "that of weight decay, flat in means and N(0, 1/(2Nτλ)) in deviations",
    "flat": "flat",
    "gamma": "unit information with a Gamma distribution of S², at two values",
}


def elbo_parts(sweep: Sweep, lines: Sequence[SweepLine]) -> Iterator[Part]:
    """The ELBO of each line by size, with its asymptotics, and what it assumes."""
    lines = [line for line in lines if any(point.elbo is not None for point in line.points)]
    for line in lines:
        if len(lines) > 1:
            yield Heading(line.title)
        yield from _line_elbo(sweep, line)
    yield from explanations(dict.fromkeys(_assumptions(sweep, line) for line in lines))


def _line_elbo(sweep: Sweep, line: SweepLine) -> Iterator[Part]:
    bounded = [(index, point, point.elbo) for index, point in enumerate(line.points) if point.elbo is not None]
    behind = behind_best(sweep, line)
    values = [abs(each.value) for _, _, elbo in bounded for each in (elbo.elbo, elbo.expected_log_likelihood)]
    digits = min(2, max(0, decimals([*values, *(abs(elbo.kl) for _, _, elbo in bounded)]) - 1))
    rows: list[Row] = []
    for index, point, elbo in bounded:
        difference = behind.get(index)
        cells = (
            _cell(elbo.expected_log_likelihood, digits),
            Cell(number(elbo.kl, digits)),
            _cell(elbo.elbo, digits),
            Cell("–") if difference is None else Cell("best") if difference.value == 0 else _cell(difference, digits),
        )
        rows.append((f"{point.batch_size:,}", cells))
    yield size_table(("exp. log-lik.", "KL", "↑ ELBO", "from best"), rows)
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


def _assumptions(sweep: Sweep, line: SweepLine) -> str:
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
