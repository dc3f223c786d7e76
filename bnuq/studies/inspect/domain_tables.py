"""The tables of an inspection's domains and candidate pipelines."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from bnuq.estimates import Estimate
from bnuq.records.evaluation import MEDIAN_LIMIT, WORST_LIMIT
from bnuq.report.document import BulletList, Cell, Heading, Listing, Part, Row, Table, explanation
from bnuq.report.drawing import short
from bnuq.report.numbers import decimals, estimate_cell, headed
from bnuq.studies.inspect.layer_tables import FEW, median, pipeline_of, style_of, times, worst_first
from bnuq.studies.inspect.record import Domain, Domains, PipelineFit, Pipelines


def domain_parts(domains: Domains, *, name: int) -> Iterator[Part]:
    """How far the domains lie from the reference, and the estimates of their points under whose statistics."""
    if domains.domains:
        yield Table(
            ("examples", "labels", "median ×", "worst ×", "layer"),
            tuple((short(domain.name, name), _domain_cells(domain)) for domain in domains.domains),
        )
        yield explanation(
            "×: difference between a domain's statistics and the training set's, divided by its "
            "random error, in the median and the worst layer; 1 means no difference."
        )
    if any(crossing.estimates for crossing in domains.crossings):
        yield Heading("Each domain under the statistics of each")
        yield _crossings(domains, name)
        yield explanation(
            "Rows: domain of the evaluated examples, which contributed no statistics; columns: domain of the "
            f"statistics that normalise them. running: the checkpoint's; mixed: batches of {_mixed(domains)}. Mutual "
            f"information is that of MCBN with mini-batches of {domains.batch_size:,} from that domain "
            f"({domains.samples} samples); other estimates are those of the network with population statistics. ± "
            "standard error."
        )


def _domain_cells(domain: Domain) -> tuple[Cell, ...]:
    ranked = worst_first(zip(domain.layers, map(float, domain.ratio), strict=True), lambda row: row[1])
    layer, worst = ranked[0] if ranked else ("–", math.nan)
    middle = median([ratio for _, ratio in ranked])
    return (
        Cell(f"{domain.n:,}"),
        Cell("yes" if domain.labelled else "no"),
        Cell(times(middle), style=style_of(middle, MEDIAN_LIMIT)),
        Cell(times(worst), style=style_of(worst)),
        Cell(short(layer, 24)),
    )


def _mixed(domains: Domains) -> str:
    """Whose points the batches called mixed hold."""
    names = list(dict.fromkeys(domain.name for domain in domains.domains))
    alone = len(names) == 1
    return f"{short(names[0], 24)} and the training set in equal parts" if alone else "all domains in equal parts"


def _crossings(domains: Domains, name: int) -> Table:
    """A heading for each metric, below it a row for each domain, a column for whose statistics."""
    estimates = {(crossing.domain, crossing.statistics): crossing.estimates for crossing in domains.crossings}
    statistics = list(dict.fromkeys(crossing.statistics for crossing in domains.crossings))
    rows: list[Row] = []
    for metric in dict.fromkeys(metric for metrics in estimates.values() for metric in metrics):
        digits = _digits(metric, [metrics[metric] for metrics in estimates.values() if metric in metrics])
        rows.append((headed(metric).strip(), ()))
        for domain in dict.fromkeys(crossing.domain for crossing in domains.crossings):
            row = [estimates.get((domain, column), {}).get(metric) for column in statistics]
            if any(estimate is not None for estimate in row):
                rows.append(
                    (f"  {short(domain, name - 2)}", tuple(estimate_cell(estimate, digits) for estimate in row))
                )
    return Table(tuple(short(column, 18) for column in statistics), tuple(rows), stacks=True)


def _digits(metric: str, estimates: Sequence[Estimate]) -> int:
    if metric in ("accuracy", "pll"):
        return 4
    return min(6, max(0, decimals([estimate.value for estimate in estimates]) - 1))


def pipeline_parts(pipelines: Pipelines, *, name: int) -> Iterator[Part]:
    """The candidates, best first, then those eliminated on fewer batches, and the lines for the run file. Names with
    more letters than `name` are listed below the table, by number."""
    best, eliminated = pipelines.candidates[:FEW], pipelines.first_round[: FEW // 2]
    names = [pipeline_of(candidate) for candidate in (*best, *eliminated)]
    numbered = max(map(len, names), default=0) > name
    labels = iter([str(number) for number in range(1, len(names) + 1)] if numbered else names)
    fits = bool(best) and best[0].passed
    rows = [(label, _candidate_cells(each, best[0], fits=fits)) for each, label in zip(best, labels, strict=False)]
    if eliminated:
        rows.append(("eliminated on fewer batches", ()))
        rows += [(f"  {next(labels)}", _candidate_cells(each, None, fits=fits)) for each in eliminated]
    if rows:
        yield Table(("median ×", "worst ×", "layer", "fits"), tuple(rows))
    if numbered:
        yield BulletList(tuple(f"{number}: {text}" for number, text in enumerate(names, 1)))
    if more := len(pipelines.candidates) + len(pipelines.first_round) - len(names):
        yield explanation(f"… and {more} more, in the result file and under --json.")
    yield explanation(
        "×: difference between the training set's statistics through that pipeline and the running statistics, divided "
        f"by its random error; up to {MEDIAN_LIMIT:.0f} in the median and {WORST_LIMIT:.0f} in the worst "
        f"layer is normal. {_GOOD if fits else 'closest: none fits.'}"
    )
    if text := pipelines.lines.rstrip("\n"):
        yield Listing(f"For the run file{'' if fits else ' (the closest pipeline; none fits)'}", text)


_GOOD = "as good: indistinguishable from the best by these statistics."


def _candidate_cells(candidate: PipelineFit, best: PipelineFit | None, *, fits: bool) -> tuple[Cell, ...]:
    """`fits`: whether the best of all candidates does."""
    if fits:
        word = "best" if candidate is best else "as good" if candidate.tied else "yes" if candidate.passed else "no"
    else:
        word = "closest" if candidate is best else "as close" if candidate.tied else "no"
    leading = candidate is best or candidate.tied
    return (
        Cell(times(candidate.median), style=style_of(candidate.median, MEDIAN_LIMIT)),
        Cell(times(candidate.worst), style=style_of(candidate.worst)),
        Cell(short(candidate.worst_layer, 24)),
        Cell(word, style="yellow" if not candidate.passed else "bold green" if leading else ""),
    )
