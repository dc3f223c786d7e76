"""The pictures of an inspection: layer by layer the gap, the noise and the domains; the three panels of the noise."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from bnuq.records.evaluation import MEDIAN_LIMIT, WORST_LIMIT
from bnuq.report import drawing
from bnuq.report.document import Picture
from bnuq.report.drawing import GREY, INK, PALE, picture, short
from bnuq.shapes import Float
from bnuq.studies.inspect.layer_tables import least_share, worst_first
from bnuq.studies.inspect.record import Domain, Gap, Inspection, LayerNoise, NoiseBySize

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_BAND = "#dbe9f4"  # of what is normal
_LOOKS = list(drawing.line_styles("012345").values())[1:]  # the first is that of the deterministic network
_BINS = (10, 36)
_SIZE = (6.4, 4.6)  # inches, of a picture with the names of layers below it
_HOW = {
    "gap": (
        "Layers in execution order. Inside the band, batch noise explains the difference between running "
        "statistics and population; a layer above the dashed line was not trained on this training set and "
        "pipeline. A wrong pipeline shows in the first layers; stale running statistics deviate more towards the "
        "last."
    ),
    "noise_by_layer": (
        "How much the scale and shift of a batch vary, in units of the channel's standard deviation. The dotted "
        "lines show what independent values would give; the gap to the solid lines is the error of that "
        "assumption."
    ),
    "noise_panels": (
        "First: a layer's batch variances, the χ² distribution of independent Gaussian values, and the "
        "best-fitting scaled χ². Second: how the noise falls with the mini-batch size (dashed line: 1/b). Third: "
        "how it depends on the number of positions of a channel. As in Figure 4 of Shekhovtsov & Flach 2018, for "
        "this network."
    ),
    "domains": (
        "Inside the band, a domain's statistics match the training set's. Where a line lies above it, a mini-batch "
        "from that domain normalises the layer differently than training did."
    ),
}


def pictures_of(record: Inspection) -> Iterator[Picture]:
    """The pictures of what the inspection has, in reading order."""
    noise, domains = record.noise, record.domains
    draws: dict[str, Callable[[Path], None]] = {}
    if record.gap is not None and record.gap.layers:
        draws["gap"] = partial(_gap, record, record.gap)
    if noise is not None and noise.layers:
        draws["noise_by_layer"] = partial(_deviations, record, noise)
        draws["noise_panels"] = partial(_noise_panels, record, noise)
    if domains is not None and any(domain.layers for domain in domains.domains):
        draws["domains"] = partial(_domains, record, domains.domains)
    return (Picture((kind,), draw, _HOW[kind]) for kind, draw in draws.items())


def noise_panels(record: Inspection, noise: NoiseBySize, name: str) -> Picture:
    """n·S²/σ² against χ², the variance of the normalised output against batch size and against spatial size.

    Source: Shekhovtsov & Flach 2018, Fig. 4.
    """
    return Picture((name,), partial(_noise_panels, record, noise), _HOW["noise_panels"])


def _about(record: Inspection, *words: str) -> str:
    return ", ".join(word for word in (Path(str(record.model["path"])).name, *words) if word)


# ── by layer ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _logarithmic(axes: Axes, values: Sequence[float] | Float[np.ndarray, " any"], *, around: float = 1.5) -> None:
    """A y axis by factors around what of these is positive, its numbers written out."""
    if known := [float(value) for value in values if math.isfinite(value) and value > 0]:
        drawing.factors_up(axes, max(min(known) / around, 1e-300), min(max(known) * around, 1e300))


def _drawable(values: Sequence[float] | Float[np.ndarray, " any"]) -> np.ndarray:
    """What has a place on a logarithmic axis; NaN elsewhere, which leaves a gap."""
    values = np.asarray(values, np.float64)
    return np.where(np.isfinite(values) & (values > 0), values, math.nan)


def _normal_band(axes: Axes) -> None:
    axes.axhspan(0, MEDIAN_LIMIT, color=_BAND, linewidth=0, zorder=0, label=f"normal, up to {MEDIAN_LIMIT:.0f}")
    axes.axhline(1, color=GREY, linewidth=1, linestyle=":", zorder=1)
    axes.axhline(WORST_LIMIT, color=INK, linewidth=1, linestyle="--", label=f"limit for any layer, {WORST_LIMIT:.0f}")


def _plot_layers(axes: Axes, values: Sequence[float] | np.ndarray, look: drawing.LineStyle, label: str) -> None:
    axes.plot(np.arange(len(values)), _drawable(values), **look.plotted, label=label)


def _gap(record: Inspection, gap: Gap, path: Path) -> None:
    layers = gap.layers
    means, variances = [layer.ratio_mean for layer in layers], [layer.ratio_log_variance for layer in layers]
    about = _about(record, f"{gap.points:,} training examples")
    with picture(path, title="Running statistics compared with the population", about=about, size=_SIZE) as [axes]:
        _normal_band(axes)
        _plot_layers(axes, means, _LOOKS[0], "mean")
        _plot_layers(axes, variances, _LOOKS[1], "ln variance")
        _logarithmic(axes, [*means, *variances, 1.0, 1.2 * WORST_LIMIT])
        drawing.layer_axis(axes, [layer.name for layer in layers])
        axes.set_ylabel("difference in units of batch noise")


def _deviations(record: Inspection, noise: NoiseBySize, path: Path) -> None:
    nominal_u, nominal_v = zip(*(nominal_deviations(layer.nominal) for layer in noise.layers), strict=True)
    rows = (
        ("σ_U", [layer.sigma_u for layer in noise.layers], nominal_u, _LOOKS[0]),
        ("σ_V", [layer.sigma_v for layer in noise.layers], nominal_v, _LOOKS[1]),
    )
    about = _about(record, f"b = {noise.batch_size:,}", f"{noise.draws} draws")
    with picture(path, title="Noise of scale and shift by layer", about=about, size=_SIZE) as [axes]:
        for label, values, nominal, look in rows:
            _plot_layers(axes, values, look, label)
            axes.plot(
                np.arange(len(nominal)), _drawable(nominal), color=look.colour, linestyle=":", linewidth=1.3,
                label=f"{label} for n = b·z independent values",
            )  # fmt: skip
        _logarithmic(axes, [value for _, values, nominal, _ in rows for value in (*values, *nominal)])
        drawing.layer_axis(axes, [layer.name for layer in noise.layers])
        axes.set_ylabel("standard deviation over draws")


def nominal_deviations(count: int) -> tuple[float, float]:
    """sd of U and of V for so many independent Gaussian values: √(n/(n − 3) − (E U)²) and 1/√n; NaN for n of 3 or
    fewer, whose U has no variance. Source: Shekhovtsov & Flach 2018, §3.1."""
    if count <= 3:
        return math.nan, 1 / math.sqrt(count) if count > 0 else math.nan
    if count > 1000:  # the difference of two numbers near 1 has no digits left
        return 1 / math.sqrt(2 * count), 1 / math.sqrt(count)
    mean = math.sqrt(count / 2) * math.exp(math.lgamma((count - 2) / 2) - math.lgamma((count - 1) / 2))
    return math.sqrt(max(0.0, count / (count - 3) - mean**2)), float(1 / np.sqrt(count))


def _domains(record: Inspection, domains: Sequence[Domain], path: Path) -> None:
    def worst(domain: Domain) -> float:
        return max((float(ratio) for ratio in domain.ratio if math.isfinite(ratio)), default=math.nan)

    ranked = worst_first([domain for domain in domains if domain.layers], worst)
    names = list(dict.fromkeys(name for domain in domains for name in domain.layers))
    about = _about(record, f"{len(domains)} domains" if len(domains) > 1 else domains[0].name)
    with picture(path, title="Differences between domains by layer", about=about, size=_SIZE) as [axes]:
        _normal_band(axes)
        for number, domain in reversed(list(enumerate(ranked))):
            at, values = [names.index(name) for name in domain.layers], _drawable(domain.ratio)
            if number < len(_LOOKS):
                axes.plot(at, values, **_LOOKS[number].plotted, label=short(domain.name, 28), zorder=3)
            else:
                label = f"{len(ranked) - len(_LOOKS)} others" if number == len(ranked) - 1 else "_"
                axes.plot(at, values, color=PALE, linewidth=1.2, label=label)
        _logarithmic(axes, [1.0, 1.2 * WORST_LIMIT, *(value for domain in ranked for value in domain.ratio)])
        drawing.layer_axis(axes, names)
        axes.set_ylabel("difference in units of batch noise")


# ── the distribution of the noise ─────────────────────────────────────────────────────────────────────────────────────


def _noise_panels(record: Inspection, noise: NoiseBySize, path: Path) -> None:
    about = _about(record, f"b = {noise.batch_size:,}", f"{noise.draws} draws")
    drawable = [layer for layer in noise.layers if _ratios(layer).size] or list(noise.layers)
    typical = worst_first(drawable, least_share)[len(drawable) // 2]  # by its share of independent values
    with picture(
        path, title="Distribution of the noise", about=about, columns=3, size=(4.4, 4.0), apart=True, legend="own"
    ) as [first, second, third]:  # fmt: skip
        _spread(first, typical)
        _by_size(second, noise)
        _by_positions(third, noise)


def _ratios(layer: LayerNoise) -> np.ndarray:
    """S²/σ² of every draw and channel that has one, in float64."""
    flat = np.asarray(layer.spread, np.float64).ravel()
    return flat[np.isfinite(flat) & (flat > 0) & (flat < 1e6)]


def _spread(axes: Axes, layer: LayerNoise) -> None:
    """n·S²/σ² over draws and channels, the χ² of independent values, and the one with degrees that fit."""
    ratios, n = _ratios(layer), layer.nominal
    axes.set_title(short(layer.name, 34))
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
    freedom = _fitted(layer)
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


def _fitted(layer: LayerNoise) -> float | None:
    """ν of the layer: 2·mean²/variance of its channels' draws, pooled."""
    spread = np.asarray(layer.spread, np.float64)
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


def _by_size(axes: Axes, noise: NoiseBySize) -> None:
    """ln variance of the normalised output on ln b, a line for each layer, with the slope −1 through the middle."""
    sizes = np.array(noise.sizes, np.float64)
    every = np.array([_drawable(layer.variances) for layer in noise.layers]).reshape(len(noise.layers), -1)
    axes.set_xlabel("mini-batch size b")
    axes.set_ylabel("variance of (x − M)/S at x = μ")
    known = [layer for layer, values in zip(noise.layers, every, strict=True) if np.isfinite(values).any()]
    if sizes.size < 2 or not known or np.ptp(sizes) == 0:
        axes.text(0.5, 0.5, "fewer than two sizes", transform=axes.transAxes, ha="center", color=GREY)
        return
    order = np.argsort(sizes)
    names = (known[index].name for index in sorted({0, len(known) // 2, len(known) - 1}))
    looks = dict(zip(names, _LOOKS, strict=False))
    for layer, values in zip(noise.layers, every, strict=True):
        if layer.name not in looks:
            axes.plot(sizes[order], values[order], color=PALE, linewidth=1.2)
    for layer, values in zip(noise.layers, every, strict=True):
        if layer.name in looks:
            slope = "" if layer.slope is None else f", slope {layer.slope.value:.2f}".replace("-", "−")
            label = f"{short(layer.name, 18)}{slope}"
            axes.plot(sizes[order], values[order], **looks[layer.name].plotted, label=label)
    middle = math.exp(float(np.nanmean(np.log(every))))
    centre = math.exp(float(np.log(sizes).mean()))
    axes.plot(sizes[order], middle * centre / sizes[order], color=INK, linewidth=1, linestyle="--", label="slope −1")
    drawing.sizes_across(axes, list(sizes[order][:: math.ceil(sizes.size / 7)]))
    _logarithmic(axes, every.ravel(), around=2)


def _by_positions(axes: Axes, noise: NoiseBySize) -> None:
    """ln(b·variance) at b on ln z, a dot for each layer."""
    axes.set_xlabel("positions of a channel z")
    axes.set_ylabel("b · variance of (x − M)/S at x = μ")
    if noise.batch_size in noise.sizes:
        at = noise.sizes.index(noise.batch_size)
    else:
        at = int(np.argmax(noise.sizes)) if noise.sizes else -1
    rows = [
        (layer.positions, noise.sizes[at] * float(layer.variances[at]))
        for layer in noise.layers
        if at >= 0 and layer.positions > 0
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
    drawing.sizes_across(axes, sorted(set(z))[:: math.ceil(np.unique(z).size / 7)])
    axes.set_xlim(z.min() / 1.5, z.max() * 1.5)
    _logarithmic(axes, [*values, 1 / z.min(), 1 / z.max()], around=2)
