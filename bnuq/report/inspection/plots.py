"""The pictures of an inspection: layer by layer the gap, the noise and the domains; the three panels of the noise."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float

from bnuq.errors import RequestError
from bnuq.records.inspection import Candidate, Domain, Inspection, LayerNoise, Noise
from bnuq.report import drawing
from bnuq.report.drawing import GREY, INK, PALE, Format, picture, short
from bnuq.report.inspection.lines import MEDIAN_LIMIT, WORST_LIMIT, named, pipeline_of, share_of, values_of, worst_first
from bnuq.report.inspection.tables import nominal_deviations
from bnuq.report.plots import Drawn, draw_all

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_BAND = "#dbe9f4"  # of what is normal
_TICKS = 22  # names that find room below a picture
_LINES = 5  # domains with a line of their own
_CANDIDATES = 14
_BINS = (10, 36)


def save_figures(inspection: Inspection, folder: Path, kind: Format = "svg") -> tuple[Path, ...]:
    """Draw every picture that `inspection` has into `folder`, which is made where it is missing; their paths, in order.

    Raises RequestError without matplotlib, or where `folder` is a file, ResultError where one cannot be written.
    """
    return tuple(path for _, path in draw_all(pictures_of(inspection), folder, kind))


def noise_panels(inspection: Inspection, folder: Path, kind: Format = "svg", *, name: str = "noise_panels") -> Path:
    """Draw `folder`/`name`.svg or .png, and make the folder where it is missing; the path of the picture.

    n·S²/σ² against χ², the variance of the normalised output against batch size and against spatial size. Raises
    RequestError without matplotlib, without noise to draw, or where `folder` is a file, ResultError where it cannot be
    written. Source: Shekhovtsov & Flach 2018, Fig. 4.
    """
    if inspection.noise is None or not inspection.noise.layers:
        raise RequestError(
            "the inspection has no noise to draw: it was made without a reference. Add one with --train."
        )
    pictures = ((name,), partial(_noise_panels, inspection, inspection.noise))
    [(_, path)] = draw_all([pictures], folder, kind)
    return path


def pictures_of(found: Inspection) -> Iterator[tuple[tuple[str, ...], Drawn]]:
    """What each picture shows, and what draws it to a path."""
    if found.gap is not None and found.gap.layers:
        yield ("gap",), partial(_gap, found)
    if found.noise is not None and found.noise.layers:
        yield ("noise_by_layer",), partial(_deviations, found, found.noise)
        yield ("values",), partial(_values, found, found.noise)
        yield ("noise_panels",), partial(_noise_panels, found, found.noise)
        if len(found.noise.layers) > 2 and found.noise.draws > 3:
            yield ("spread",), partial(_spreads, found, found.noise)
    if found.domains is not None and any(one.layers for one in found.domains.domains):
        yield ("domains",), partial(_domains, found, found.domains.domains)
    if found.pipelines is not None and len(found.pipelines.candidates) > 1:
        yield ("pipelines",), partial(_pipelines, found, found.pipelines.candidates)


def _about(found: Inspection, *words: str) -> str:
    return ", ".join([Path(str(found.model["path"])).name, *words])


# ── by layer ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _layer_axis(axes: Axes, names: Sequence[str]) -> None:
    """Layers in execution order, from left to right; of many every k-th is named."""
    step = math.ceil(len(names) / _TICKS)
    at = range(0, len(names), step)
    axes.set_xticks(list(at))
    axes.set_xticklabels([short(names[place], 18) for place in at], rotation=90, fontsize=9)
    axes.set_xlim(-0.6, len(names) - 0.4)
    axes.grid(visible=False, axis="x")


def _logarithmic(axes: Axes, values: Sequence[float] | Float[np.ndarray, " any"], *, around: float = 1.5) -> None:
    """A y axis by factors around what of these is positive, its numbers written out."""
    from matplotlib.ticker import LogLocator, NullFormatter

    known = [float(value) for value in values if math.isfinite(value) and value > 0]
    if not known:
        return
    low, high = max(min(known) / around, 1e-300), min(max(known) * around, 1e300)
    axes.set_yscale("log")
    axes.set_ylim(low, high)
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0,) if high > 300 * low else (1.0, 2.0, 5.0), numticks=12))
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.yaxis.set_minor_formatter(NullFormatter())


def _drawable(values: Sequence[float] | Float[np.ndarray, " any"]) -> np.ndarray:
    """What has a place on a logarithmic axis; NaN elsewhere, which leaves a gap."""
    values = np.asarray(values, np.float64)
    return np.where(np.isfinite(values) & (values > 0), values, math.nan)


def _normal_band(axes: Axes) -> None:
    axes.axhspan(0, MEDIAN_LIMIT, color=_BAND, linewidth=0, zorder=0, label=f"normal, up to {MEDIAN_LIMIT:.0f}")
    axes.axhline(1, color=GREY, linewidth=1, linestyle=":", zorder=1)
    axes.axhline(WORST_LIMIT, color=INK, linewidth=1, linestyle="--", label=f"limit for any layer, {WORST_LIMIT:.0f}")


def _plot_layers(axes: Axes, values: Sequence[float] | np.ndarray, look: drawing.Line, label: str) -> None:
    told = _drawable(values)
    axes.plot(np.arange(len(told)), told, **look.plotted, label=label)


def _gap(found: Inspection, path: Path) -> None:
    assert found.gap is not None
    layers = found.gap.layers
    looks = drawing.lines_of(["", "mean", "variance"])
    means, variances = [one.ratio_mean for one in layers], [one.ratio_log_variance for one in layers]
    about = _about(found, f"{found.gap.points:,} reference points")
    with picture(path, title="Running statistics compared with the population", about=about, size=(6.4, 4.6)) as [axes]:
        _normal_band(axes)
        _plot_layers(axes, means, looks["mean"], "mean")
        _plot_layers(axes, variances, looks["variance"], "ln variance")
        _logarithmic(axes, [*means, *variances, 1.0, 1.2 * WORST_LIMIT])
        _layer_axis(axes, [one.name for one in layers])
        axes.set_ylabel("difference in units of batch noise")
        _legend(axes)


def _legend(axes: Axes, columns: int = 2) -> None:
    if axes.get_legend_handles_labels()[0]:
        axes.figure.legend(
            *axes.get_legend_handles_labels(), loc="outside lower center", ncols=columns, columnspacing=1.4
        )


def _deviations(found: Inspection, noise: Noise, path: Path) -> None:
    looks = drawing.lines_of(["", "u", "v"])
    rows = {
        "u": ("σ_U", [one.sigma_u for one in noise.layers]),
        "v": ("σ_V", [one.sigma_v for one in noise.layers]),
    }
    nominal = dict(zip(rows, zip(*(nominal_deviations(one.nominal) for one in noise.layers), strict=True), strict=True))
    about = _about(found, f"b = {noise.batch_size:,}", f"{noise.draws} draws")
    with picture(path, title="Noise of scale and shift by layer", about=about, size=(6.4, 4.6)) as [axes]:
        for key, (label, values) in rows.items():
            _plot_layers(axes, values, looks[key], label)
            told = _drawable(nominal[key])
            axes.plot(
                np.arange(len(told)), told, color=looks[key].colour, linestyle=":", linewidth=1.3,
                label=f"{label} for n = b·z independent values",
            )  # fmt: skip
        _logarithmic(axes, [value for key, (_, values) in rows.items() for value in (*values, *nominal[key])])
        _layer_axis(axes, [one.name for one in noise.layers])
        axes.set_ylabel("standard deviation over draws")
        _legend(axes)


def _values(found: Inspection, noise: Noise, path: Path) -> None:
    looks = drawing.lines_of(["", "m", "s"])
    shares = {
        key: [share_of(getattr(one, f"values_{name}"), one) for one in noise.layers]
        for key, name in (("m", "mean"), ("s", "deviation"))
    }
    about = _about(found, f"b = {noise.batch_size:,}", f"{noise.draws} draws")
    with picture(path, title="Effective sample size of a channel", about=about, size=(6.4, 4.6)) as [axes]:
        axes.axhline(1, color=INK, linewidth=1, linestyle="--", label="all n = b·z values independent")
        _plot_layers(axes, shares["m"], looks["m"], "effective for the mean")
        _plot_layers(axes, shares["s"], looks["s"], "effective for the standard deviation")
        _logarithmic(axes, [*shares["m"], *shares["s"], 1.0])
        _layer_axis(axes, [one.name for one in noise.layers])
        axes.set_ylabel("effective sample size / n")
        _legend(axes, columns=1)


def _domains(found: Inspection, domains: Sequence[Domain], path: Path) -> None:
    def worst(one: Domain) -> float:
        known = one.ratio[np.isfinite(one.ratio)]
        return float(known.max()) if known.size else math.nan

    told = worst_first([one for one in domains if one.layers], worst)
    looks = list(drawing.lines_of(list(map(str, range(_LINES + 1)))).values())[1:]
    names = list(dict.fromkeys(name for one in domains for name in one.layers))
    about = _about(found, f"{len(domains)} domains" if len(domains) > 1 else domains[0].name)
    with picture(path, title="Differences between domains by layer", about=about, size=(6.4, 4.6)) as [axes]:
        _normal_band(axes)
        every: list[float] = [1.0, 1.2 * WORST_LIMIT]
        for number, one in reversed(list(enumerate(told))):
            at = [names.index(name) for name in one.layers]
            values = _drawable(one.ratio)
            every += list(values)
            if number < _LINES:
                axes.plot(at, values, **looks[number].plotted, label=short(one.name, 28), zorder=3)
            else:
                label = f"{len(told) - _LINES} others" if number == len(told) - 1 else "_"
                axes.plot(at, values, color=PALE, linewidth=1.2, label=label)
        _logarithmic(axes, every)
        _layer_axis(axes, names)
        axes.set_ylabel("difference in units of batch noise")
        _legend(axes)


def _pipelines(found: Inspection, candidates: Sequence[Candidate], path: Path) -> None:
    shown = candidates[:_CANDIDATES]
    every = [ratio for one in shown for ratio in (one.median, one.worst)]
    known = [ratio for ratio in every if math.isfinite(ratio) and ratio > 0]
    about = _about(found, f"the {len(shown)} best of {len(candidates)}" if len(shown) < len(candidates) else "")
    at = np.arange(len(shown))
    height = 1.5 + 0.42 * len(shown)
    with picture(path, title="Training pipelines", about=about.rstrip(", "), size=(6.4, height)) as [axes]:
        axes.axvspan(0, MEDIAN_LIMIT, color=_BAND, linewidth=0, zorder=0, label=f"normal, up to {MEDIAN_LIMIT:.0f}")
        axes.axvline(
            WORST_LIMIT, color=INK, linewidth=1, linestyle="--", label=f"limit for any layer, {WORST_LIMIT:.0f}"
        )
        medians, worsts = (_drawable([getattr(one, key) for one in shown]) for key in ("median", "worst"))
        axes.hlines(at, medians, worsts, color=GREY, linewidth=1)
        axes.plot(medians, at, "o", color=GREY, markerfacecolor="white", label="median layer")
        for tied, colour, label in (
            (
                True,
                "#009E73",
                "worst layer, equivalent to the best" if shown[0].passed else "worst layer of the closest",
            ),
            (False, "#D55E00", "worst layer"),
        ):
            chosen = np.array([(one.tied or number == 0) == tied for number, one in enumerate(shown)])
            if chosen.any():
                axes.plot(worsts[chosen], at[chosen], "o" if tied else "^", color=colour, label=label)
        axes.set_xscale("log")
        if known:
            axes.set_xlim(max(min(*known, 1.0) / 1.6, 1e-300), min(max(*known, 8.0) * 1.6, 1e300))
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.set_yticks(at)
        axes.set_yticklabels([_two_lines(pipeline_of(one)) for one in shown], fontsize=9)
        axes.set_ylim(len(shown) - 0.4, -0.6)
        axes.grid(visible=False, axis="y")
        axes.set_xlabel("difference in units of batch noise")
        _legend(axes)


def _two_lines(text: str) -> str:
    first, comma, rest = text.partition(", ")
    return f"{short(first, 24)}{comma.strip()}\n{short(rest, 28)}" if rest else short(first, 28)


# ── the law of the noise ─────────────────────────────────────────────────────────────────────────────────────────────


def _noise_panels(found: Inspection, noise: Noise, path: Path) -> None:
    one = _typical(noise)
    about = _about(found, f"b = {noise.batch_size:,}", f"{noise.draws} draws")
    with picture(
        path, title="Distribution of the noise", about=about, columns=3, size=(4.4, 4.0), apart=True
    ) as [first, second, third]:  # fmt: skip
        _spread(first, one)
        _by_size(second, noise)
        _by_positions(third, noise)


def _typical(noise: Noise) -> LayerNoise:
    """The layer in the middle of those by the share of independent values."""
    drawable = [one for one in noise.layers if _ratios(one).size] or list(noise.layers)
    ordered = worst_first(drawable, lambda one: share_of(values_of(one), one))
    return ordered[len(ordered) // 2]


def _ratios(one: LayerNoise) -> np.ndarray:
    """S²/σ² of every draw and channel that has one, in float64."""
    flat = np.asarray(one.spread, np.float64).ravel()
    return flat[np.isfinite(flat) & (flat > 0) & (flat < 1e6)]


def _spread(axes: Axes, one: LayerNoise) -> None:
    """n·S²/σ² over draws and channels, the χ² of independent values, and the one with degrees that fit."""
    ratios, n = _ratios(one), one.nominal
    axes.set_title(short(one.name, 34))
    axes.set_xlabel(f"n·S²/σ², n = {n:,}")
    axes.set_ylabel("density")
    axes.set_yticks([])
    if ratios.size < 4 or np.ptp(ratios) <= 1e-9 * ratios.max() or n < 2:
        axes.text(0.5, 0.5, "no data", transform=axes.transAxes, ha="center", color=GREY)
        return
    low, high = np.quantile(ratios, [0.002, 0.998])
    reach = max(high - low, 6 / math.sqrt(n))
    low, high = max(0.0, low - 0.15 * reach), high + 0.15 * reach
    bins = int(np.clip(math.sqrt(ratios.size), *_BINS))
    edges = np.linspace(low, high, bins + 1)
    heights = np.histogram(np.clip(ratios, low, high), edges)[0] / (ratios.size * (edges[1] - edges[0]))
    axes.stairs(heights / n, edges * n, fill=True, color="#9ecae1", label="draws and channels")
    x = np.linspace(max(low, 1e-9), high, 600)
    middle = max(1, n - 1) / n
    near = np.linspace(max(1e-9, middle - 5 * math.sqrt(2 / n)), middle + 5 * math.sqrt(2 / n), 400)
    x = np.unique(np.concatenate([x, near[(near >= low) & (near <= high)]]))  # a narrow density needs points of its own
    nominal = chi2_density(n * x, n - 1)
    axes.plot(n * x, nominal, color=INK, linewidth=1.6, label="χ² with n − 1 degrees of freedom")
    freedom = _fitted(one)
    if freedom is not None:
        scale = float(ratios.mean()) / freedom
        fitted = chi2_density(x / scale, freedom) / scale / n
        label = f"χ² of {freedom:,.0f}, scaled"
        axes.plot(n * x, fitted, color="#D55E00", linestyle="--", label=label)
    axes.set_xlim(low * n, high * n)
    top = float(heights.max()) / n
    axes.set_ylim(0, min(1.08 * max(top, float(nominal.max())), 3.2 * top))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.6g}")
    axes.locator_params(axis="x", nbins=5)
    _legend_below(axes)


def _legend_below(axes: Axes) -> None:
    """The legend of a panel below it, where it hides nothing."""
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.18), ncols=2, columnspacing=1.2)


def _fitted(one: LayerNoise) -> float | None:
    """ν of the layer: 2·mean²/variance of its channels' draws, pooled."""
    spread = np.asarray(one.spread, np.float64)
    spread = spread[:, np.isfinite(spread).all(axis=0) & (spread > 0).all(axis=0) & (spread < 1e6).all(axis=0)]
    if len(spread) < 3 or not spread.size:
        return None
    relative = float(np.mean(np.var(spread, axis=0, ddof=1) / spread.mean(axis=0) ** 2))
    return 2 / relative if 1e-9 < relative < 1e3 else None


def chi2_density(x: Float[np.ndarray, " point"], freedom: float) -> Float[np.ndarray, " point"]:
    """The density of χ² at x > 0, also for very many degrees of freedom."""
    half = freedom / 2
    with np.errstate(under="ignore"):
        return np.exp((half - 1) * np.log(x) - x / 2 - half * math.log(2) - math.lgamma(half))


def _by_size(axes: Axes, noise: Noise) -> None:
    """ln variance of the normalised output on ln b, a line a layer, with the slope −1 through the middle."""
    sizes = np.array(noise.sizes, np.float64)
    every = np.array([_drawable(one.variances) for one in noise.layers]).reshape(len(noise.layers), -1)
    axes.set_xlabel("mini-batch size b")
    axes.set_ylabel("variance of (x − M)/S at x = μ")
    known = [bool(np.isfinite(values).any()) for values in every]
    if sizes.size < 2 or not any(known) or np.ptp(sizes) == 0:
        axes.text(0.5, 0.5, "fewer than two sizes", transform=axes.transAxes, ha="center", color=GREY)
        return
    order = np.argsort(sizes)
    kept = _told_apart([one for one, there in zip(noise.layers, known, strict=True) if there])
    looks = dict(zip((one.name for one in kept), list(drawing.lines_of("0123").values())[1:], strict=False))
    for one, values in zip(noise.layers, every, strict=True):
        if one.name not in looks:
            axes.plot(sizes[order], values[order], color=PALE, linewidth=1.2)
    for one, values in zip(noise.layers, every, strict=True):
        if one.name in looks:
            slope = "" if one.slope is None else f", slope {one.slope.value:.2f}".replace("-", "−")
            axes.plot(sizes[order], values[order], **looks[one.name].plotted, label=f"{short(one.name, 18)}{slope}")
    middle = math.exp(float(np.nanmean(np.log(every))))
    centre = math.exp(float(np.log(sizes).mean()))
    axes.plot(sizes[order], middle * centre / sizes[order], color=INK, linewidth=1, linestyle="--", label="slope −1")
    axes.set_xscale("log", base=2)
    axes.set_xticks(list(sizes[order][:: math.ceil(sizes.size / 7)]))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.minorticks_off()
    _logarithmic(axes, every.ravel(), around=2)
    _legend_below(axes)


def _told_apart(layers: Sequence[LayerNoise]) -> list[LayerNoise]:
    """The first layer, the one in the middle and the last."""
    places = sorted({0, len(layers) // 2, len(layers) - 1})
    return [layers[place] for place in places]


def _by_positions(axes: Axes, noise: Noise) -> None:
    """ln(b·variance) at b on ln z, a dot a layer."""
    axes.set_xlabel("positions of a channel z")
    axes.set_ylabel("b · variance of (x − M)/S at x = μ")
    if noise.batch_size in noise.sizes:
        at = noise.sizes.index(noise.batch_size)
    else:
        at = int(np.argmax(noise.sizes)) if noise.sizes else -1
    rows = [
        (one.positions, noise.sizes[at] * float(one.variances[at]))
        for one in noise.layers
        if at >= 0 and one.positions > 0
    ]
    rows = [(z, value) for z, value in rows if math.isfinite(value) and value > 0]
    if not rows:
        axes.text(0.5, 0.5, "no data", transform=axes.transAxes, ha="center", color=GREY)
        return
    z, values = (np.array(column, np.float64) for column in zip(*rows, strict=True))
    axes.plot(z, values, "o", color="#0072B2", label="layers")
    if np.unique(z).size > 1:
        ends = np.array([z.min(), z.max()])
        axes.plot(ends, 1 / ends, color=INK, linewidth=1, linestyle="--", label="1/z: independent values")
        slope = noise.spatial_slope
        if slope is not None and math.isfinite(slope.value) and abs(slope.value) < 100:
            level = math.exp(float(np.log(values).mean()) - slope.value * float(np.log(z).mean()))
            label = f"slope {slope.value:.2f}".replace("-", "−")
            axes.plot(ends, level * ends**slope.value, color="#D55E00", linewidth=1.4, label=label)
    axes.set_xscale("log", base=2)
    axes.set_xticks(sorted(set(z))[:: math.ceil(np.unique(z).size / 7)])
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.minorticks_off()
    axes.set_xlim(z.min() / 1.5, z.max() * 1.5)
    _logarithmic(axes, [*values, 1 / z.min(), 1 / z.max()], around=2)
    _legend_below(axes)


def _spreads(found: Inspection, noise: Noise, path: Path) -> None:
    """The first panel for the first layer, the one in the middle and the last."""
    shown = _told_apart(noise.layers)
    about = _about(found, named([one.name for one in shown]))
    with picture(
        path, title="The batch variance against χ²", about=about, columns=len(shown), size=(4.4, 4.0), apart=True
    ) as panels:
        for axes, one in zip(panels, shown, strict=True):
            _spread(axes, one)
