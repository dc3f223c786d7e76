"""The tables of an inspection: sites, running statistics, batch noise, domains and candidate pipelines."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from bnuq.estimates import Estimate
from bnuq.records.decision_sentences import percent
from bnuq.records.evaluation import MEDIAN_LIMIT, WORST_LIMIT
from bnuq.records.inspection import (
    Domain,
    Domains,
    Gap,
    Inspection,
    LayerGap,
    LayerNoise,
    NoiseBySize,
    PipelineFit,
    Pipelines,
    SiteRow,
)
from bnuq.report.document import BulletList, Cell, Heading, Listing, Paragraph, Part, Row, Table, explanation
from bnuq.report.drawing import short
from bnuq.report.inspection.layer_numbers import (
    MEAN_OF_ABSOLUTE,
    brief,
    least_share,
    median,
    pipeline_of,
    ratio_of,
    share_of,
    style_of,
    times,
    worst_first,
)
from bnuq.report.numbers import count, decimals, error_of, headed, number

ROWS, FEW = 24, 12  # rows up to which all are shown, and rows that are shown of more


def site_parts(record: Inspection, *, name: int) -> Iterator[Part]:
    """Every site, or of a long network groups of equal ones; names have at most `name` letters."""
    if not record.sites:
        yield Paragraph("None: the evaluation-mode forward pass calls no BatchNorm or dropout, and draws no noise.")
        return
    sites, groups = record.sites, _grouped(record.sites)
    folded = len(groups) < len(sites)
    norms = [site for site in sites if site.kind == "batchnorm"]
    alike = len({(site.eps, site.momentum) for site in norms}) == 1  # then a column of it would be a waste
    header = ["sites"] * folded + ["kind", "stochastic"] + ["flags"] * any(site.flags for site in sites)
    header += ["channels", "z"] * bool(norms) + ["ε", "momentum"] * (bool(norms) and not alike)
    header += ["p"] * any(site.kind == "dropout" for site in sites)
    header += ["numbers"] * any(site.kind == "learned" for site in sites)
    yield Table(tuple(header), tuple((_group_name(group, name), _site_cells(group, header)) for group in groups))
    if folded:
        yield explanation(
            f"{len(sites)} sites; identical ones are grouped and shown from first to last, and other sites may lie "
            "between them. The result file and --json list all of them."
        )
    if norms:
        momentum = _momentum(norms)
        average = "the running averages are cumulative" if momentum == "cumulative" else f"momentum is {momentum}"
        same = f" ε is {_span([norms[0].eps])} in all of them, and {average}." if alike else ""
        yield explanation(f"z: values per channel that one point contributes.{same}")


def _grouped(sites: Sequence[SiteRow]) -> list[list[SiteRow]]:
    """Each by itself if there are few; else those that are alike, at first in their sizes too."""
    if len(sites) <= ROWS:
        return [[site] for site in sites]
    shown = ("kind", "reason", "flags")
    sizes = (("channels", "positions", "eps", "momentum", "p"), ("positions", "eps", "momentum", "p"), ("p",), ())
    groups: dict[tuple[Any, ...], list[SiteRow]] = {}
    for keys in sizes:
        groups = {}
        for site in sites:
            groups.setdefault(tuple(getattr(site, key) for key in (*shown, *keys)), []).append(site)
        if len(groups) <= FEW:
            break
    return list(groups.values())


def _group_name(group: Sequence[SiteRow], most: int) -> str:
    if len(group) == 1:
        return short(group[0].name, most)
    most = max(6, (most - 16) // 2)
    return f"{short(group[0].name, most)} … {short(group[-1].name, most)}"


_KINDS = {"batchnorm": "BatchNorm", "learned": "learned noise"}


def _site_cells(group: Sequence[SiteRow], header: Sequence[str]) -> tuple[Cell, ...]:
    first = group[0]
    flags = ", ".join(first.flags)
    live = first.stochastic
    cells = {
        "sites": Cell(str(len(group))),
        "kind": Cell(_KINDS.get(first.kind) or first.variety or "dropout"),
        "channels": Cell(_span([site.channels for site in group])),
        "z": Cell(_span([site.positions for site in group])),
        "ε": Cell(_span([site.eps for site in group])),
        "momentum": Cell(_momentum(group)),
        "p": Cell(_span([site.p for site in group])),
        "numbers": Cell(_span([site.numbers for site in group]) + " per point" * bool(first.per_point)),
        "stochastic": Cell("yes" if live else "no", style="green" if live else "yellow"),
        "flags": Cell(flags, style="bold red" if {"not-finite", "never-trained"} & set(first.flags) else "yellow"),
    }
    return tuple(cells[key] for key in header)


def _span(values: Sequence[float | None]) -> str:
    known = sorted({value for value in values if value is not None})
    if not known:
        return "–"
    ends = [f"{value:,}" if isinstance(value, int) else f"{value:g}" for value in (known[0], known[-1])]
    return ends[0] if len(known) == 1 else f"{ends[0]}–{ends[1]}"


def _momentum(sites: Sequence[SiteRow]) -> str:
    """Torch's momentum; None means a cumulative average."""
    momenta = [site.momentum for site in sites if site.kind == "batchnorm"]
    if None in momenta:
        return "cumulative" if set(momenta) == {None} else f"{_span(momenta)}, cumulative"
    return _span(momenta)


def gap_parts(gap: Gap, *, name: int) -> Iterator[Part]:
    """The layers, those with the largest differences first."""
    layers = worst_first(gap.layers, ratio_of)
    shown = layers if len(layers) <= ROWS else layers[:FEW]
    if shown:
        dead = any(layer.dead for layer in layers)
        header = ("mean ×", "ln var ×", "shift", "by noise", "|ln ratio|", "by noise", *(["dead"] if dead else []))
        yield Table(header, tuple((short(layer.name, name), tuple(_gap_cells(layer, dead=dead))) for layer in shown))
    if rest := layers[len(shown) :]:
        ratios = [ratio_of(layer) for layer in rest if math.isfinite(ratio_of(layer))]
        most = f", at most {times(max(ratios))} times batch noise, {times(median(ratios))} in the median"
        yield explanation(
            f"… and {count(len(rest), 'layer')} more{most if ratios else ''}. The result file and --json list all of "
            "them."
        )
    yield explanation(
        f"Running statistics compared with those of {gap.points:,} points of the reference, in batches of "
        f"{gap.batch_size:,}. ×: the difference divided by what batch noise explains; 1 is normal, more than "
        f"{MEDIAN_LIMIT:.0f} in the median layer or {WORST_LIMIT:.0f} in any is too much. shift: root mean square "
        "over channels of (running − population mean)/σ; |ln ratio|: mean |ln(running/population variance)|; by "
        "noise: the value expected from batch noise alone, for |ln ratio| as a mean absolute value (0.80 of the root "
        f"mean square).{' –: not available.' if any(map(_has_gaps, layers)) else ''}"
    )
    if gap.worth is not None:
        yield explanation(
            f"Effective sample size of the running statistics: {gap.worth:,.0f}, with the newest values weighted most."
        )


def _gap_cells(layer: LayerGap, *, dead: bool) -> Iterator[Cell]:
    yield from (Cell(times(ratio), style=style_of(ratio)) for ratio in (layer.ratio_mean, layer.ratio_log_variance))
    for size, expected in (
        (layer.rms_shift, layer.explained_shift),
        (layer.mean_log_ratio, MEAN_OF_ABSOLUTE * layer.explained_log_ratio),
    ):
        yield from (Cell(brief(size)), Cell(brief(expected), style="dim"))
    if dead:
        yield Cell(str(layer.dead) if layer.dead else "", style="yellow")


def _has_gaps(layer: LayerGap) -> bool:
    values = (layer.ratio_mean, layer.ratio_log_variance, layer.explained_shift, layer.explained_log_ratio)
    return any(map(math.isnan, values))


def noise_parts(noise: NoiseBySize, *, name: int) -> Iterator[Part]:
    """The layers in execution order; of many those whose values are the least independent."""
    folded = len(noise.layers) > ROWS
    order = worst_first(range(len(noise.layers)), lambda index: -least_share(noise.layers[index]))
    shown = [noise.layers[index] for index in sorted(order[:FEW] if folded else order)]
    if shown:
        sloped = any(layer.slope is not None for layer in noise.layers)
        header = ("σ_U", "σ_V", "n", "of M", "of S", *(["slope"] if sloped else []), "χ²", "χ²_ν")
        rows = tuple((short(layer.name, name), tuple(_noise_cells(layer, sloped=sloped))) for layer in shown)
        yield Table(header, rows, stacks=True)
    if folded:
        yield explanation(
            f"The {len(shown)} of {len(noise.layers)} layers with the least independent values; the result file "
            "and --json list all of them."
        )
    yield explanation(
        f"{noise.draws} draws of b = {noise.batch_size:,}. With a channel's population (μ, σ²) and a batch's (M, S²), "
        "U = σ/S and V = (μ − M)/σ: the batch normalises as ((x − μ)/σ + V)·U. σ_U, σ_V: their standard deviations, "
        "mean over channels. n = b·z: values of a channel; of M, of S: effective sample size of the mean and of the "
        "standard deviation, as a share of n; a mean behind layers that the same batch normalised may vary less "
        "(above 100 %)."
    )
    sizes = f" (b = {', '.join(f'{size:,}' for size in noise.sizes)})" if noise.sizes else ""
    yield explanation(
        f"slope: of ln variance on ln b{sizes}, −1 expected. χ²: channels whose S² does not follow a scaled χ² with n "
        "− 1 degrees of freedom (Kolmogorov–Smirnov, 5 % false discovery rate); χ²_ν: nor one with the best-fitting "
        "degrees of freedom. Source: Shekhovtsov & Flach 2018."
    )


def _noise_cells(layer: LayerNoise, *, sloped: bool) -> Iterator[Cell]:
    yield from (Cell(brief(layer.sigma_u)), Cell(brief(layer.sigma_v)), Cell(f"{layer.nominal:,}"))
    for share in (share_of(values, layer) for values in (layer.values_mean, layer.values_deviation)):
        yield Cell(percent(share), style="yellow" if share < 0.5 else "")
    if sloped:
        yield estimate_cell(layer.slope, 2)
    yield from (Cell(percent(share)) for share in (layer.rejected, layer.rejected_fitted))


def estimate_cell(estimate: Estimate | None, digits: int) -> Cell:
    if estimate is None:
        return Cell("–")
    error = error_of(estimate)
    known = error is not None and math.isfinite(error) and math.isfinite(estimate.value)
    return Cell(number(estimate.value, digits), f"±{number(error, digits)}" if known else "")


def domain_parts(domains: Domains, *, name: int) -> Iterator[Part]:
    """How far the domains lie from the reference, and the estimates of their points under whose statistics."""
    if domains.domains:
        yield Table(
            ("points", "labels", "median ×", "worst ×", "layer"),
            tuple((short(domain.name, name), _domain_cells(domain)) for domain in domains.domains),
        )
        yield explanation(
            "×: difference between a domain's statistics and the reference's, divided by what batch noise "
            "explains, in the median and the worst layer; 1 means no difference."
        )
    if any(crossing.estimates for crossing in domains.crossings):
        yield Heading("Each domain under the statistics of each")
        yield _crossings(domains, name)
        yield explanation(
            "Rows: domain of the evaluated points, which contributed no statistics; columns: domain of the "
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
    return f"{short(names[0], 24)} and the reference in equal parts" if alone else "all domains in equal parts"


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
        "×: difference between the reference's statistics through that pipeline and the running statistics, divided "
        f"by what batch noise explains; up to {MEDIAN_LIMIT:.0f} in the median and {WORST_LIMIT:.0f} in the worst "
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
