"""The tables of an inspection's layers: sites, running statistics and batch noise."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np

from bnuq.findings import all_of
from bnuq.records.evaluation import MEDIAN_LIMIT, WORST_LIMIT
from bnuq.records.words import percent
from bnuq.report.document import Cell, Paragraph, Part, Table, explanation
from bnuq.report.drawing import short
from bnuq.report.numbers import count, estimate_cell, exponent, grouped, number
from bnuq.studies.inspect.record import Gap, Inspection, LayerGap, LayerNoise, NoiseBySize, PipelineFit, SiteRow

MEAN_OF_ABSOLUTE = math.sqrt(2 / math.pi)  # of what is normally distributed, in units of its root mean square

T = TypeVar("T")
ROWS, FEW = 24, 12  # rows up to which all are shown, and rows that are shown of more


def brief(value: float) -> str:
    """Three digits, or two of a number below 1."""
    if not math.isfinite(value) or value == 0:
        return number(value, 0)
    digits = 1 if abs(value) < 1 else 2
    return grouped(value, min(9, max(0, digits - exponent(value))))


def times(ratio: float) -> str:
    """A ratio, whose second decimal is noise."""
    return number(ratio, 2) if abs(ratio) < 1 else brief(ratio) if abs(ratio) >= 100 else number(ratio, 1)


def ratio_of(layer: LayerGap) -> float:
    """The larger of mean and log variance; NaN if neither is known."""
    return float(np.fmax(layer.ratio_mean, layer.ratio_log_variance))


def share_of(values: float, layer: LayerNoise) -> float:
    """An effective sample size as a share of the layer's values."""
    return values / layer.nominal if layer.nominal else math.nan


def least_share(layer: LayerNoise) -> float:
    """The effective sample size of the noisier of mean and deviation, as a share; NaN if neither is known."""
    return share_of(float(np.fmin(layer.values_mean, layer.values_deviation)), layer)


def worst_first(rows: Iterable[T], by: Callable[[T], float]) -> list[T]:
    """The rows by size, largest first; those of which nothing is known last, in their order."""
    return sorted(rows, key=lambda row: -math.inf if math.isnan(value := by(row)) else value, reverse=True)


def median(values: Sequence[float]) -> float:
    """The median of what is known; NaN if nothing is."""
    known = [value for value in values if not math.isnan(value)]
    return statistics.median(known) if known else math.nan


def style_of(ratio: float, limit: float = WORST_LIMIT) -> str:
    """How a ratio to batch noise is coloured: too much, more than expected, or normal."""
    return "bold red" if ratio > limit else "yellow" if ratio > MEDIAN_LIMIT else "green" if ratio >= 0 else ""


def listed(names: Sequence[str], most: int = 3) -> str:
    """Names in a sentence: the first of them, and how many more."""
    words = [short(name, 48) for name in names]
    if len(words) > most + 1:
        words = [*words[:most], f"{len(words) - most} others"]
    return all_of(words) if words else ""


def pipeline_of(candidate: PipelineFit) -> str:
    """What a candidate does, in words."""
    parts = ["no normalisation" if candidate.normalize is None else short(candidate.normalize, 40)]
    parts += ["BGR"] * (candidate.channel_order == "bgr") + ["pixels 0–255"] * (candidate.scale == 255)
    return ", ".join([*parts, short(candidate.augment, 60) or "no augmentation"])


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
        yield explanation(f"z: values per channel that one example contributes.{same}")


def short_site_parts(record: Inspection, *, name: int) -> Iterator[Part]:
    """The same in plain words: what each is, whether it can draw samples, and how far it is from the training data."""
    if not record.sites:
        return
    off = {} if record.gap is None else {layer.name: ratio_of(layer) for layer in record.gap.layers}
    rows = []
    for group in _grouped(record.sites):
        worst = max(
            (off[site.name] for site in group if not math.isnan(off.get(site.name, math.nan))), default=math.nan
        )
        cells = [_KINDS.get(group[0].kind) or group[0].variety or "dropout", "yes" if group[0].stochastic else "no"]
        cells += ["–" if math.isnan(worst) else times(worst)] * bool(off)
        flags = [", ".join(group[0].flags)] * any(site.flags for site in record.sites)
        rows.append((_group_name(group, name), tuple(map(Cell, (*cells, *flags)))))
    header = ("layer", "samples", *["off by"] * bool(off), *["problem"] * any(site.flags for site in record.sites))
    yield Table(header, tuple(rows))
    if off:
        yield explanation(
            "off by: difference of means or variances from the training data, in units of its random error; up to "
            f"{WORST_LIMIT:.0f} is normal."
        )


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
        "numbers": Cell(_span([site.numbers for site in group]) + " per example" * bool(first.per_point)),
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
        header = ("mean ×", "ln var ×", *(["dead"] if dead else []))
        yield Table(header, tuple((short(layer.name, name), tuple(_gap_cells(layer, dead=dead))) for layer in shown))
    if rest := layers[len(shown) :]:
        ratios = [ratio_of(layer) for layer in rest if math.isfinite(ratio_of(layer))]
        most = f", at most {times(max(ratios))} times batch noise, {times(median(ratios))} in the median"
        yield explanation(
            f"… and {count(len(rest), 'layer')} more{most if ratios else ''}. The result file and --json list all of "
            "them."
        )
    unknown = " –: not available." if any(math.isnan(ratio) for each in layers for ratio in _ratios(each)) else ""
    yield explanation(
        f"Running statistics compared with those of {gap.points:,} examples of the training set, in batches of "
        f"{gap.batch_size:,}. ×: the difference divided by what batch noise explains; 1 is normal, more than "
        f"{MEDIAN_LIMIT:.0f} in the median layer or {WORST_LIMIT:.0f} in any is too much.{unknown}"
    )
    if gap.worth is not None:
        yield explanation(
            f"Effective sample size of the running statistics: {gap.worth:,.0f}, with the newest values weighted most."
        )


def _gap_cells(layer: LayerGap, *, dead: bool) -> Iterator[Cell]:
    yield from (Cell(times(ratio), style=style_of(ratio)) for ratio in _ratios(layer))
    if dead:
        yield Cell(str(layer.dead) if layer.dead else "", style="yellow")


def _ratios(layer: LayerGap) -> tuple[float, float]:
    return layer.ratio_mean, layer.ratio_log_variance


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
