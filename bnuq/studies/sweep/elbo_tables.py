"""The ELBO of a sweep by size, with its asymptotics and assumptions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from bnuq.metrics.elbo import IMPROPER_PRIORS
from bnuq.report.document import Cell, Heading, Paragraph, Part, Row, explanations
from bnuq.report.numbers import and_error, decimals, estimate_cell, number, three_digits
from bnuq.studies.sweep.lines import SweepLine, behind_best, choice_of
from bnuq.studies.sweep.record import ElboTerms, Sweep
from bnuq.studies.sweep.tables import size_table

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
        is_best = difference is not None and difference.value == 0
        cells = (
            estimate_cell(elbo.expected_log_likelihood, digits),
            Cell(number(elbo.kl, digits)),
            estimate_cell(elbo.elbo, digits),
            Cell("best") if is_best else estimate_cell(difference, digits),
        )
        rows.append((f"{point.batch_size:,}", cells))
    yield size_table(("exp. log-lik.", "KL", "↑ ELBO", "from best"), rows)
    chosen = choice_of(sweep, line)
    if len(behind) > 1 and (chosen is None or chosen.criterion != "elbo"):
        yield Paragraph("From best: ± over draws only, which the sizes share.", dim=True)
    if line.model is None:
        yield Paragraph(
            "These networks have different weights: their likelihoods are not directly comparable, and the prior "
            "of the weights is left out."
        )
    elif line.model.elbo is not None:
        yield Paragraph(_asymptotics(line.model.elbo))


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
    counted = "independent" if first.counts == "nominal" else "counted by their measured effective sample size"
    noise = "" if first.tau is None else f", observation precision τ = {three_digits(first.tau)}"
    return (
        f"Assumed: q factorises over the means and deviations of {first.units:,} channels, each Gaussian. Channels "
        f"are assumed independent; where they are not, the KL is overestimated{weight}. Values of a channel are "
        f"{counted}. The prior is {prior}{improper}. Weights are fixed{noise}. The likelihood is that of "
        f"{first.points:,} training examples, times N = {first.train_size:,}. The KL ignores that mini-batches are "
        f"drawn without replacement from a finite training set of {first.reference_points:,}."
    )
