"""The tables of an inspection: sites, gap, noise, domains and pipelines."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from bnuq.estimates import Estimate
from bnuq.records.evaluation import MEDIAN_LIMIT, WORST_LIMIT
from bnuq.records.inspection import Candidate, Domains, Gap, Inspection, LayerGap, LayerNoise, Noise, Pipelines, SiteRow
from bnuq.report.drawing import short
from bnuq.report.inspection.lines import (
    FOLDS,
    MEAN_OF_ABSOLUTE,
    brief,
    median,
    percent,
    pipeline_of,
    ratio_of,
    share_of,
    style_of,
    times,
    values_of,
    worst_first,
)
from bnuq.report.numbers import count, decimals, headed, number, total
from bnuq.report.parts import Cell, Items, Paragraph, Part, Row, Table
from bnuq.report.sweep.lines import error_of

FEW = 12  # rows of what is too long to be shown whole
_NAME = 44  # letters of a name in a table


# ── sites ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def site_parts(found: Inspection, *, name: int = _NAME) -> Iterator[Part]:
    """Every site, or of a long network groups of equal ones; then why some are not stochastic."""
    if not found.sites:
        yield Paragraph("None: the evaluation-mode forward pass calls no torch BatchNorm or dropout.")
        return
    groups = _grouped(found.sites)
    folded = len(groups) < len(found.sites)
    every = [site for group in groups for site in group]
    header = ["sites"] * folded + ["kind", "stochastic"] + ["flags"] * any(site.flags for site in every)
    norms = [site for site in every if site.kind == "batchnorm"]
    alike = len({(site.eps, site.momentum) for site in norms}) == 1  # then a column of it would only take room
    header += ["channels", "z"] * bool(norms) + ["ε", "momentum"] * (bool(norms) and not alike)
    header += ["p"] * any(site.kind == "dropout" for site in every)
    rows = [(_group_name(group, name), _site_cells(group, header)) for group in groups]
    yield Table(tuple(header), tuple(rows))
    if folded:
        yield Paragraph(
            f"{len(found.sites)} sites; identical ones are grouped and shown from first to last, and other sites "
            "may lie between them. The result file and --json list all of them.",
            "dim",
        )
    if norms:
        same = f" ε is {_span([norms[0].eps])} in all of them, and {_average(norms)}." if alike else ""
        yield Paragraph(f"z: values per channel that one point contributes.{same}", "dim")


def _grouped(sites: Sequence[SiteRow]) -> list[list[SiteRow]]:
    """Each by itself where there are few; else those that are alike, at first in their sizes too."""
    if len(sites) <= FOLDS:
        return [[site] for site in sites]
    said = ("kind", "reason", "flags")
    kinds = (("channels", "positions", "eps", "momentum", "p"), ("positions", "eps", "momentum", "p"), ("p",), ())
    groups: dict[tuple[Any, ...], list[SiteRow]] = {}
    for sizes in kinds:
        groups = {}
        for site in sites:
            groups.setdefault(tuple(getattr(site, key) for key in (*said, *sizes)), []).append(site)
        if len(groups) <= FEW:
            break
    return list(groups.values())


def _group_name(group: Sequence[SiteRow], most: int) -> str:
    if len(group) == 1:
        return short(group[0].name, most)
    most = max(6, (most - 16) // 2)
    return f"{short(group[0].name, most)} … {short(group[-1].name, most)}"


def _site_cells(group: Sequence[SiteRow], header: Sequence[str]) -> tuple[Cell, ...]:
    first = group[0]
    flags = ", ".join(first.flags)
    live = first.stochastic
    told = {
        "sites": Cell(str(len(group))),
        "kind": Cell("BatchNorm" if first.kind == "batchnorm" else first.variety or "dropout"),
        "channels": Cell(_span([site.channels for site in group])),
        "z": Cell(_span([site.positions for site in group])),
        "ε": Cell(_span([site.eps for site in group])),
        "momentum": Cell(_momentum(group)),
        "p": Cell(_span([site.p for site in group])),
        "stochastic": Cell("yes" if live else "no", style="green" if live else "yellow"),
        "flags": Cell(flags, style="bold red" if {"not-finite", "never-trained"} & set(first.flags) else "yellow"),
    }
    return tuple(told[key] for key in header)


def _span(values: Sequence[float | None]) -> str:
    known = sorted({value for value in values if value is not None})
    if not known:
        return "–"
    ends = [f"{value:,}" if isinstance(value, int) else f"{value:g}" for value in (known[0], known[-1])]
    return ends[0] if len(known) == 1 else f"{ends[0]}–{ends[1]}"


def _momentum(sites: Sequence[SiteRow]) -> str:
    """Torch's, or what None stands for."""
    told = [site.momentum for site in sites if site.kind == "batchnorm"]
    if told and None in told:
        return "cumulative" if set(told) == {None} else f"{_span(told)}, cumulative"
    return _span(told)


def _average(sites: Sequence[SiteRow]) -> str:
    told = _momentum(sites)
    return "the running averages are cumulative" if told == "cumulative" else f"momentum is {told}"


# ── gap ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


def gap_parts(gap: Gap, *, name: int = _NAME) -> Iterator[Part]:
    """The layers, those that are furthest off first."""
    ordered = worst_first(gap.layers, ratio_of)
    shown = ordered if len(ordered) <= FOLDS else ordered[:FEW]
    if shown:
        dead = any(layer.dead for layer in ordered)
        header = ("mean ×", "ln var ×", "shift", "by noise", "|ln ratio|", "by noise", *(["dead"] if dead else []))
        rows: list[Row] = []
        for layer in shown:
            pairs = (
                (layer.rms_shift, layer.explained_shift),
                (layer.mean_log_ratio, MEAN_OF_ABSOLUTE * layer.explained_log_ratio),
            )
            ratios = [
                Cell(times(value), style=style_of(value)) for value in (layer.ratio_mean, layer.ratio_log_variance)
            ]
            sizes = [Cell(brief(value), style="dim" if at else "") for pair in pairs for at, value in enumerate(pair)]
            of = [Cell(str(layer.dead) if layer.dead else "", style="yellow")] if dead else []
            rows.append((short(layer.name, name), (*ratios, *sizes, *of)))
        yield Table(header, tuple(rows))
    yield from _others(len(ordered) - len(shown), [ratio_of(layer) for layer in ordered[len(shown) :]])
    yield Paragraph(
        f"Running statistics compared with those of {gap.points:,} points of the reference, in batches of "
        f"{gap.batch_size:,}. ×: the difference divided by what batch noise explains; 1 is normal, more than "
        f"{MEDIAN_LIMIT:.0f} in the median layer or {WORST_LIMIT:.0f} in any is too much. shift: root mean square "
        "over channels of (running − population mean)/σ; |ln ratio|: mean |ln(running/population variance)|; by "
        "noise: the value expected from batch noise alone, for |ln ratio| as a mean absolute value (0.80 of the root "
        f"mean square).{' –: not available.' if any(map(_lacks, ordered)) else ''}",
        "dim",
    )
    if gap.worth is not None:
        yield Paragraph(
            f"Effective sample size of the running statistics: {gap.worth:,.0f}, with the newest values weighted most.",
            "dim",
        )


def _lacks(layer: LayerGap) -> bool:
    told = (layer.ratio_mean, layer.ratio_log_variance, layer.explained_shift, layer.explained_log_ratio)
    return any(map(math.isnan, told))


def _others(amount: int, ratios: Sequence[float]) -> Iterator[Part]:
    if amount:
        known = [ratio for ratio in ratios if math.isfinite(ratio)]
        told = f", at most {times(max(known))} times batch noise, {times(median(known))} in the median" if known else ""
        yield Paragraph(
            f"… and {count(amount, 'layer')} more{told}. The result file and --json list all of them.", "dim"
        )


# ── noise ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def noise_parts(noise: Noise, *, name: int = _NAME) -> Iterator[Part]:
    """The layers in execution order; of many those whose values are the least independent."""
    folded = len(noise.layers) > FOLDS
    shown = noise.layers
    if folded:
        kept = worst_first(noise.layers, lambda one: -share_of(values_of(one), one))[:FEW]
        shown = [one for one in noise.layers if any(one is other for other in kept)]
    if shown:
        sloped = any(one.slope is not None for one in noise.layers)
        header = ("σ_U", "σ_V", "n", "of M", "of S", *(["slope"] if sloped else []), "χ²", "χ²_ν")
        yield Table(header, tuple((short(one.name, name), _noise_cells(one, sloped)) for one in shown), stacks=True)
    if folded:
        yield Paragraph(
            f"The {len(shown)} of {len(noise.layers)} layers with the least independent values; the result file "
            "and --json list all of them.",
            "dim",
        )
    yield Paragraph(
        f"{noise.draws} draws of b = {noise.batch_size:,}. With a channel's population (μ, σ²) and a batch's (M, S²), "
        "U = σ/S and V = (μ − M)/σ: the batch normalises as ((x − μ)/σ + V)·U. σ_U, σ_V: their standard deviations, "
        "mean over channels. n = b·z: values of a channel; of M, of S: effective sample size of the mean and of the "
        "standard deviation, as a share of n; a mean behind layers that the same batch normalised may vary less "
        "(above 100 %).",
        "dim",
    )
    sizes = f" (b = {', '.join(f'{size:,}' for size in noise.sizes)})" if noise.sizes else ""
    yield Paragraph(
        f"slope: of ln variance on ln b{sizes}, −1 expected. χ²: channels whose S² does not follow a scaled χ² with n "
        "− 1 degrees of freedom (Kolmogorov–Smirnov, 5 % false discovery rate); χ²_ν: nor one with the best-fitting "
        "degrees of freedom. Source: Shekhovtsov & Flach 2018.",
        "dim",
    )


def _noise_cells(one: LayerNoise, sloped: bool) -> tuple[Cell, ...]:
    share_m, share_s = (share_of(values, one) for values in (one.values_mean, one.values_deviation))
    return (
        Cell(brief(one.sigma_u)),
        Cell(brief(one.sigma_v)),
        Cell(f"{one.nominal:,}"),
        *(Cell(percent(share), style="yellow" if share < 0.5 else "") for share in (share_m, share_s)),
        *([_slope(one.slope)] if sloped else []),
        *(Cell(percent(share)) for share in (one.rejected, one.rejected_fitted)),
    )


def _slope(estimate: Estimate | None) -> Cell:
    if estimate is None:
        return Cell("–")
    error = error_of(estimate)
    known = error is not None and math.isfinite(error)
    return Cell(number(estimate.value, 2), f"±{number(error, 2)}" if known else "")


# ── domains ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def domain_parts(found: Domains, *, name: int = _NAME) -> Iterator[Part]:
    """How far the domains lie from the reference, and what their points get under whose statistics."""
    if found.domains:
        rows: list[Row] = []
        for one in found.domains:
            ranked = worst_first(zip(one.layers, map(float, one.ratio), strict=True), lambda row: row[1])
            ratio = ranked[0][1] if ranked else math.nan
            middle = median([row[1] for row in ranked])
            cells = (
                Cell(f"{one.n:,}"),
                Cell("yes" if one.labelled else "no"),
                Cell(times(middle), style=style_of(middle, MEDIAN_LIMIT)),
                Cell(times(ratio), style=style_of(ratio)),
                Cell(short(ranked[0][0], 24) if ranked else "–"),
            )
            rows.append((short(one.name, name), cells))
        yield Table(("points", "labels", "median ×", "worst ×", "layer"), tuple(rows))
        yield Paragraph(
            "×: difference between a domain's statistics and the reference's, divided by what batch noise "
            "explains, in the median and the worst layer; 1 means no difference.",
            "dim",
        )
    if any(one.estimates for one in found.crossings):
        yield Paragraph()
        yield _crossings(found, name)
        yield Paragraph(
            "Rows: domain of the evaluated points, which contributed no statistics; columns: domain of the "
            f"statistics that normalise them. running: the checkpoint's; mixed: batches of {_mixed(found)}. Mutual "
            f"information is that of MCBN with mini-batches of {found.batch_size:,} from that domain ({found.samples} "
            "samples); other estimates are those of the network with population statistics. ± standard error.",
            "dim",
        )


def _mixed(found: Domains) -> str:
    """Whose points the batches called mixed hold."""
    names = list(dict.fromkeys(one.name for one in found.domains))
    return (
        f"{short(names[0], 24)} and the reference in equal parts" if len(names) == 1 else "all domains in equal parts"
    )


def _crossings(found: Domains, name: int) -> Table:
    """A heading for each metric, below it a row a domain, a column for whose statistics."""
    held = {(one.domain, one.statistics): one.estimates for one in found.crossings}
    statistics = list(dict.fromkeys(one.statistics for one in found.crossings))
    rows: list[Row] = []
    for metric in dict.fromkeys(metric for one in found.crossings for metric in one.estimates):
        estimates = [estimate for by in held.values() if (estimate := by.get(metric)) is not None]
        digits = _digits(metric, estimates)
        rows.append((headed(metric).strip(), ()))
        for domain in dict.fromkeys(one.domain for one in found.crossings):
            row = [held.get((domain, other), {}).get(metric) for other in statistics]
            if any(estimate is not None for estimate in row):
                cells = tuple(_estimate(estimate, digits) for estimate in row)
                rows.append((f"  {short(domain, name - 2)}", cells))
    return Table(tuple(short(one, 18) for one in statistics), tuple(rows), stacks=True)


def _estimate(estimate: Estimate | None, digits: int) -> Cell:
    if estimate is None:
        return Cell("–")
    error = total(estimate) if estimate.se is not None else estimate.mc_se
    known = error is not None and math.isfinite(error) and math.isfinite(estimate.value)
    return Cell(number(estimate.value, digits), f"±{number(error, digits)}" if known else "")


def _digits(metric: str, estimates: Sequence[Estimate]) -> int:
    if metric in ("accuracy", "pll"):
        return 4
    return min(6, max(0, decimals([estimate.value for estimate in estimates]) - 1))


# ── pipelines ────────────────────────────────────────────────────────────────────────────────────────────────────────


def pipeline_table(found: Pipelines, *, name: int = 100) -> Iterator[Part]:
    """The candidates, best first, then those that eliminated on fewer batches; where their names take more room than
    `name` letters they are numbered, and listed below."""
    shown = [*found.candidates[:FEW], *(out := found.first_round[: FEW // 2])]
    names = [pipeline_of(one) for one in shown]
    numbered = max(map(len, names), default=0) > name
    labels = [str(number) for number in range(1, len(shown) + 1)] if numbered else names
    fits = bool(found.candidates) and found.candidates[0].passed
    rows = [_candidate_row(label, one, one is shown[0], fits) for label, one in zip(labels, shown, strict=True)]
    if out:
        rows = [
            *rows[: -len(out)],
            ("eliminated on fewer batches", ()),
            *((f"  {name}", row) for name, row in rows[-len(out) :]),
        ]
    if shown:
        yield Table(("median ×", "worst ×", "layer", "fits"), tuple(rows))
    if numbered:
        yield Items(tuple(f"{label}: {name}" for label, name in zip(labels, names, strict=True)))
    left = len(found.candidates) + len(found.first_round) - len(shown)
    if left:
        yield Paragraph(f"… and {left} more, in the result file and under --json.", "dim")
    yield Paragraph(
        "×: difference between the reference's statistics through that pipeline and the running statistics, "
        "divided by what batch noise explains; up to {MEDIAN_LIMIT:.0f} in the median and {WORST_LIMIT:.0f} in "
        "the worst layer is normal. "
        + ("as good: indistinguishable from the best by these statistics." if fits else "closest: none fits."),
        "dim",
    )


def _candidate_row(label: str, one: Candidate, best: bool, some_fit: bool) -> Row:
    """`best`: whether it is the first; `some_fit`: whether that one fits."""
    if some_fit:
        fits = "best" if best else "as good" if one.tied else "yes" if one.passed else "no"
    else:
        fits = "closest" if best else "as close" if one.tied else "no"
    bold = "bold green" if one.passed and (best or one.tied) else "" if one.passed else "yellow"
    cells = (
        Cell(times(one.median), style=style_of(one.median, MEDIAN_LIMIT)),
        Cell(times(one.worst), style=style_of(one.worst)),
        Cell(short(one.worst_layer, 24)),
        Cell(fits, style=bold),
    )
    return label, cells


def nominal_deviations(count: int) -> tuple[float, float]:
    """sd of U and of V for so many independent Gaussian values: √(n/(n − 3) − (E U)²) and 1/√n; NaN for n of 3 or
    fewer, whose U has no variance. Source: Shekhovtsov & Flach 2018, §3.1."""
    if count <= 3:
        return math.nan, 1 / math.sqrt(count) if count > 0 else math.nan
    if count > 1000:  # the difference of two numbers near 1 has no digits left
        return 1 / math.sqrt(2 * count), 1 / math.sqrt(count)
    mean = math.sqrt(count / 2) * math.exp(math.lgamma((count - 2) / 2) - math.lgamma((count - 1) / 2))
    return math.sqrt(max(0.0, count / (count - 3) - mean**2)), float(1 / np.sqrt(count))
