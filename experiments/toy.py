"""A toy regression in the manner of Figure 1 of Teye, Azizpour & Smith 2018: what MCBN and MCDO say where no data are.

The paper's own toy data are not published with its code; these are defined here: y = sin 2x + 0.3 x with noise, on two
clusters of x, so that there is a gap between them and an outside on either hand.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import msgspec
import numpy as np
import torch
from torch import Tensor, nn

import bnuq
from bnuq import metrics
from bnuq.errors import RequestError
from bnuq.estimates import Coordinate, Estimate, MetricName, Size, Unit, require
from bnuq.progress import Advance, Announce, Progress, silence, silent
from bnuq.randomness import generators_restored
from bnuq.records.summary import json_number
from bnuq.report import drawing
from bnuq.report.document import (
    Cell,
    Picture,
    Report,
    ReportSection,
    Row,
    Table,
    explanations,
)
from bnuq.shapes import Float, Float64, Int64
from bnuq.store import codec
from experiments.summary import report_of, summary_of
from experiments.work import one_thread

if TYPE_CHECKING:
    from matplotlib.axes import Axes

NEAR, FAR, END = 1.0, 3.0, 5.0  # data lie where NEAR ≤ |x| ≤ FAR; curves are drawn where |x| ≤ END
NOISE = 0.15  # sd of the observations, in target units
TRAIN, HELD_OUT, TEST = 300, 300, 1000  # points
STEPS, RATE, DECAY = 1200, 5e-3, 1e-5  # of Adam; the rate falls to 0 along a cosine
UNITS, LAYERS, DROPOUT = 50, 3, 0.1  # of each network's hidden layers
WIDER = 4  # the second BatchNorm network's mini-batches are so many times as large

BANDS = {"50": 0.6744897501960817, "95": 1.959963984540054}  # per cent, and half their width in sd

Array = Float[np.ndarray, "point"]
SOURCE = "A toy regression in the manner of Figure 1 of Teye, Azizpour & Smith 2018; the data are bnuq's own"
_ROOM = 1.5  # half the y axis, in sizes of the farthest point of data or true curve

_SCORES = (
    ("↓ RMSE", "rmse", 4),
    ("↓ RMSE as it is", "rmse_deterministic", 4),
    ("↓ CRPS", "crps", 4),
    ("↑ PLL", "pll", 3),
    ("↑ CRPS, normalised %", "normalized_crps", 1),
    ("↑ PLL, normalised %", "normalized_pll", 1),
    ("  in the 50 % band", "coverage50", 3),
    ("  in the 95 % band", "coverage95", 3),
)
_PLACES = {"inside": "among the data", "gap": "in the gap", "outside": "outside"}


# ── the record ───────────────────────────────────────────────────────────────────────────────────────────────────────

Line = Annotated[Float64[np.ndarray, " x"], Unit("target unit")]
Points = Annotated[Float64[np.ndarray, " point"], Unit("target unit")]


@dataclass(frozen=True)
class Place:
    """What a network says in one place, both in target units, ≥ 0, root mean squares over the curve there.

    `mc_sd` is the spread of its samples, `error` how far their mean lies from the curve that the data were made from.
    """

    mc_sd: float
    error: float


@dataclass(frozen=True)
class Curve:
    """One network's predictions along x, in target units, and its scores on test points among the data.

    `mc_sd` is the standard deviation over samples, `sd` with observation noise: √(mc_sd² + 1/τ). `batch_size` is of
    mcbn, `dropout_rate` of mcdo, None for the other. `scores` carry standard errors over the test points.
    """

    name: Annotated[str, Coordinate("network")]
    method: Annotated[Literal["mcbn", "mcdo"], Coordinate("method")]
    batch_size: Size | None
    dropout_rate: float | None
    tau: float
    tau_at_end: str
    constant_sigma: float
    mean: Line
    mc_sd: Line
    sd: Line
    scores: Mapping[MetricName, Estimate]
    places: Mapping[str, Place]

    def __post_init__(self) -> None:
        if not set(_PLACES) <= set(self.places) or not {key for _, key, _ in _SCORES} <= set(self.scores):
            raise ValueError(f"a place or a score of {self.name} is missing")

    def band(self, level: str) -> tuple[Line, Line]:
        """The lower and the upper end of the band of "50" or "95" per cent, in target units."""
        half = BANDS[level] * self.sd
        return self.mean - half, self.mean + half


@dataclass(frozen=True)
class Toy:
    """The whole experiment. `experiment` says how it was made: seed, sizes, formula, what training did.

    `x` are the places of the curves, `truth` the curve without noise there; `train_x` and `train_y` the training set.
    """

    KIND: ClassVar[str] = "toy"
    COMMAND: ClassVar[str] = "experiments toy"
    experiment: Mapping[str, Any]
    x: Float64[np.ndarray, " x"]
    truth: Line
    train_x: Float64[np.ndarray, " point"]
    train_y: Points
    curves: Mapping[str, Curve]
    seconds: Mapping[str, float]
    provenance: Mapping[str, str]
    path: Path | None = None

    def __post_init__(self) -> None:
        numbers = {"noise": float, "end": Annotated[float, msgspec.Meta(ge=1, le=100)]}  # the axis has a mark a unit
        counts = dict.fromkeys(("seed", "samples", "steps"), int)
        lists = {"data": tuple[float, float], "points": dict[str, int], "layers": list[int]}
        require(self.experiment, formula=str, **numbers, **counts, **lists)
        require(self.seconds, wall=float)
        require(self.provenance, bnuq=str)
        if any(len(curve.mean) != len(self.x) for curve in self.curves.values()):
            raise ValueError("a curve has other places than x")


def summary(toy: Toy) -> dict[str, Any]:
    """What `--json` prints: everything but the curves themselves."""
    return summary_of(
        toy,
        experiment=dict(toy.experiment),
        networks={name: _curve_summary(curve) for name, curve in toy.curves.items()},
        seconds=dict(toy.seconds),
        provenance=dict(toy.provenance),
    )


def read(path: Path) -> Toy:
    """The record in the file at `path`; ResultError where that is not one."""
    return codec.read(Toy, path, summary=summary)


def _curve_summary(curve: Curve) -> dict[str, Any]:
    return {
        "method": curve.method,
        "batch_size": curve.batch_size,
        "dropout_rate": curve.dropout_rate,
        "tau": json_number(curve.tau),
        "tau_at_end": curve.tau_at_end,
        "constant_sigma": json_number(curve.constant_sigma),
        "scores": {
            key: {"value": json_number(score.value), "se": None if score.se is None else json_number(score.se)}
            for key, score in curve.scores.items()
        },
        "places": {
            key: {name: json_number(value) for name, value in asdict(place).items()}
            for key, place in curve.places.items()
        },
    }


# ── training and sampling ────────────────────────────────────────────────────────────────────────────────────────────


def truth(x: Array) -> Array:
    """The curve sin 2x + 0.3 x that the data are made from, in target units."""
    return np.sin(2 * x) + 0.3 * x


@dataclass(frozen=True)
class _Points:
    x: Array
    y: Array


@dataclass(frozen=True)
class _Network:
    """A network to train: with BatchNorm, trained and sampled with mini-batches of one size, or with dropout."""

    name: str
    batch_size: int
    dropout_rate: float | None = None


def reproduce(
    *, samples: int = 500, batch_size: int = 32, seed: int = 0, progress: Progress = silent,
    announce: Announce = silence,
) -> Toy:  # fmt: skip
    """Train three networks on the toy data, a few seconds each, and draw `samples` predictions of every one.

    One with BatchNorm and mini-batches of `batch_size`, one with four times as large ones, one with dropout of 0.1
    (mini-batches of `batch_size`), otherwise alike: three layers of 50 ReLU units. A BatchNorm network is sampled with
    the mini-batch size that it was trained with. τ and the constant σ are fitted to held-out points by CRPS, scores
    are of test points among the data. Same seed, same estimates on the same machine; torch uses one thread.

    RequestError for fewer than 2 samples, a batch size for which there are too few training points.
    Source: Teye, Azizpour & Smith 2018, Fig. 1 and §4, by data of our own.
    """
    _check(samples, batch_size)
    rng = np.random.default_rng(seed)
    train, held_out, test = (_points(rng, n) for n in (TRAIN, HELD_OUT, TEST))
    x = np.linspace(-END, END, 401)
    networks = (
        _Network(f"mcbn_b{batch_size}", batch_size),
        _Network(f"mcbn_b{WIDER * batch_size}", WIDER * batch_size),
        _Network("mcdo", batch_size, DROPOUT),
    )
    announce(f"{len(networks)} networks, {STEPS:,} steps each, and {samples} samples of each point: seconds.")
    curves, started, cpu = {}, time.perf_counter(), time.process_time()
    with one_thread(), progress("train", len(networks) * STEPS) as advance:
        for network in networks:
            model = _trained(network, train, seed=seed, advance=advance)
            sampled = _sampler(network, model, train, samples=samples, seed=seed)
            curves[network.name] = _curve(network, model, sampled, held_out=held_out, test=test, x=x)
    return Toy(
        experiment={
            "seed": seed,
            "samples": samples,
            "formula": "y = sin 2x + 0.3 x + noise",
            "noise": NOISE,
            "data": [NEAR, FAR],
            "end": END,
            "points": {"train": TRAIN, "held_out": HELD_OUT, "test": TEST},
            "layers": [UNITS] * LAYERS,
            "steps": STEPS,
            "curves": list(curves),
        },
        x=x,
        truth=truth(x),
        train_x=train.x,
        train_y=train.y,
        curves=curves,
        seconds={"wall": time.perf_counter() - started, "cpu": time.process_time() - cpu},
        provenance={
            "bnuq": bnuq.__version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
            "platform": platform.platform(),
        },
    )


def _check(samples: int, batch_size: int) -> None:
    if samples < 2:
        raise RequestError(f"samples is {samples}; expected at least 2, since a single one has no spread.")
    most = (TRAIN - 1) // WIDER
    if not 4 <= batch_size <= most:
        raise RequestError(
            f"batch_size is {batch_size}; expected 4 to {most}: there are {TRAIN} training points, and the second "
            f"network has {WIDER} times the batch."
        )


def _points(rng: np.random.Generator, n: int) -> _Points:
    side = np.where(np.arange(n) % 2 == 0, -1.0, 1.0)
    x = side * rng.uniform(NEAR, FAR, n)
    return _Points(x, truth(x) + rng.normal(0, NOISE, n))


def _fed(values: Array) -> Float[Tensor, "point 1"]:
    return torch.as_tensor(values, dtype=torch.float32)[:, None]


def _trained(network: _Network, train: _Points, *, seed: int, advance: Advance) -> nn.Module:
    """The network in evaluation mode, after STEPS mini-batches; the global generators are left as they were."""
    with generators_restored():
        torch.manual_seed(seed)
        model = _built(network)
        inputs, targets = _fed(train.x), _fed(train.y)
        optimiser = torch.optim.Adam(model.parameters(), lr=RATE, weight_decay=DECAY, fused=True)
        falling = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, STEPS)
        for rows in _mini_batches(network.batch_size):
            loss = (model(inputs[rows]) - targets[rows]).square().mean()
            optimiser.zero_grad(set_to_none=True)
            loss.backward()
            optimiser.step()
            falling.step()
            advance(1)
    return model.eval()


def _mini_batches(size: int) -> Iterator[Int64[Tensor, " point"]]:
    """STEPS of them, all of one size: what is left of an epoch and fills none is left out, anew in every epoch."""
    epoch: list[Tensor] = []
    for _ in range(STEPS):
        if not epoch:
            epoch = list(torch.randperm(TRAIN).split(size))[: TRAIN // size]
        yield epoch.pop()


def _built(network: _Network) -> nn.Sequential:
    layers: list[nn.Module] = []
    for number in range(LAYERS):
        inputs = UNITS if number else 1
        if network.dropout_rate is None:
            layers += [nn.Linear(inputs, UNITS, bias=False), nn.BatchNorm1d(UNITS), nn.ReLU()]
        else:
            layers += [nn.Linear(inputs, UNITS), nn.ReLU(), nn.Dropout(network.dropout_rate)]
    return nn.Sequential(*layers, nn.Linear(UNITS, 1))


Sampler = Callable[[Array], Float[np.ndarray, "sample point"]]


def _sampler(network: _Network, model: nn.Module, train: _Points, *, samples: int, seed: int) -> Sampler:
    if network.dropout_rate is None:
        omega = bnuq.draw(model, _fed(train.x), samples=samples, batch_size=network.batch_size, seed=seed)
        dropout = None
    else:
        omega, dropout = None, bnuq.Dropout(samples, seed=seed)

    def sampled(x: Array) -> Float[np.ndarray, "sample point"]:
        return bnuq.predict(model, _fed(x), omega, dropout=dropout)[..., 0].numpy().astype(np.float64)

    return sampled


def _curve(
    network: _Network, model: nn.Module, sampled: Sampler, *, held_out: _Points, test: _Points, x: Array
) -> Curve:
    mean, variance = metrics.predictive_moments(sampled(held_out.x))
    fit = metrics.optimal_tau(held_out.y - mean, variance)
    sigma = metrics.constant_sigma(held_out.y - mean)
    mean, variance = metrics.predictive_moments(sampled(x))
    mc_sd = np.sqrt(variance)
    with torch.inference_mode():
        alone = model(_fed(test.x))[:, 0].numpy().astype(np.float64)
    return Curve(
        name=network.name,
        method="mcbn" if network.dropout_rate is None else "mcdo",
        batch_size=network.batch_size if network.dropout_rate is None else None,
        dropout_rate=network.dropout_rate,
        tau=fit.tau,
        tau_at_end=fit.at_end,
        constant_sigma=sigma,
        mean=mean,
        mc_sd=mc_sd,
        sd=np.sqrt(variance + 1 / fit.tau),
        scores={"rmse_deterministic": _rmse(alone, test.y), **_scores(sampled(test.x), test.y, fit.tau, sigma)},
        places={name: _place(mc_sd[where], (mean - truth(x))[where]) for name, where in _places(x).items()},
    )


def _scores(f: Float[np.ndarray, "sample point"], y: Array, tau: float, constant: float) -> dict[str, Estimate]:
    """RMSE, CRPS (Gaussian), PLL (mixture), both normalised in percent, and coverage, with errors over points."""
    mean, variance = metrics.predictive_moments(f, tau=tau)
    estimates = {"rmse": _rmse(mean, y)}
    scored = {
        "crps": (
            metrics.crps_gaussian(mean, np.sqrt(variance), y),
            metrics.crps_gaussian(mean, constant, y),
            metrics.crps_optimum(mean, y),
        ),
        "pll": (
            # Without observation noise samples have no density: then the Gaussian of their moments stands in.
            metrics.pll_regression(f, y, tau=tau, kind="mixture" if np.isfinite(tau) else "moment"),
            metrics.pll_gaussian(mean, constant, y),
            metrics.pll_optimum(mean, y),
        ),
    }
    for name, (score, low, high) in scored.items():
        estimates[name] = Estimate(float(score.mean()), se=metrics.standard_error(score))
        estimates[f"normalized_{name}"] = _normalized(score, low, high)
    for level, half in BANDS.items():
        inside = np.abs(y - mean) <= half * np.sqrt(variance)
        estimates[f"coverage{level}"] = Estimate(
            float(inside.mean()), se=metrics.standard_error(inside.astype(np.float64))
        )
    return estimates


def _rmse(mean: Array, y: Array) -> Estimate:
    value = metrics.rmse(mean, y)
    return Estimate(value, se=metrics.standard_error((y - mean) ** 2) / (2 * value) if value > 0 else 0.0)


def _normalized(score: Array, low: Array, high: Array) -> Estimate:
    value = float(metrics.normalized(float(score.mean()), float(low.mean()), float(high.mean())))
    distance = float((high - low).mean())
    # The error of a ratio of means, by the delta method.
    return Estimate(value, se=metrics.standard_error((score - low) * 100 - value * (high - low)) / abs(distance))


def _places(x: Array) -> dict[str, np.ndarray]:
    away = np.abs(x)
    return {"inside": (away >= NEAR) & (away <= FAR), "gap": away < NEAR, "outside": away > FAR}


def _place(mc_sd: Array, error: Array) -> Place:
    return Place(mc_sd=float(np.sqrt((mc_sd**2).mean())), error=float(np.sqrt((error**2).mean())))


# ── the report ───────────────────────────────────────────────────────────────────────────────────────────────────────


def report(toy: Toy, *, columns: int = 100) -> Report:  # noqa: ARG001 - as of every kind
    """The report: every curve, its spread where data lie and where not, and its scores."""
    setup = toy.experiment
    near, far = setup["data"]
    return report_of(
        toy,
        facts=(
            ("source", f"{SOURCE}."),
            ("data", f"{setup['formula']} of sd {setup['noise']}; x in {_clusters(near, far)}"),
            ("points", ", ".join(f"{n} {kind.replace('_', ' ')}" for kind, n in setup["points"].items())),
            ("network", f"{'-'.join(map(str, setup['layers']))} units, ReLU, {setup['steps']} steps; one of each kind"),
            ("samples", f"{setup['samples']} per point, seed {setup['seed']}"),
            ("took", f"{toy.seconds['wall']:.1f} s, one thread"),
        ),
        summary=_summary(toy),
        sections=_sections(toy),
    )


def _sections(toy: Toy) -> Iterator[ReportSection]:
    yield ReportSection("Curves", (Picture(("toy",), partial(_draw, toy)),))
    names = tuple(_short(curve) for curve in toy.curves.values())
    places = Table(names, tuple(_place_rows(toy)), stacks=True)
    yield ReportSection("MC sd, and the mean's error against the true curve", (places,))
    scores = Table(names, tuple(_score_rows(toy)), stacks=True)
    yield ReportSection(f"{toy.experiment['points']['test']} test points among the data", (scores,))
    yield ReportSection("", tuple(explanations(_legend(toy))))


def _legend(toy: Toy) -> Iterator[str]:
    yield (
        "± standard error over test points; another seed trains other networks, which differ by more. MC sd and error "
        "are root mean squares over the curve, in target units."
    )
    yield (
        "Normalised: 0 is one constant uncertainty for all points, 100 the best one for each. The noise here is the "
        "same everywhere, so that among the data nothing beats a constant by much."
    )
    yield (
        "Observation noise (1/√τ) and the constant are fitted to held-out points among the data by CRPS, nothing to "
        "the gap or the outside. CRPS is of the Gaussian of the samples' moments, PLL of their mixture."
    )
    for curve in toy.curves.values():
        if curve.tau_at_end == "infinite":
            yield (
                f"{_name(curve)}: its samples spread enough for the noise too, so that none was added; its PLL is that "
                "of the Gaussian."
            )


def _clusters(near: float, far: float) -> str:
    return f"[−{far:g}, −{near:g}] and [{near:g}, {far:g}]"


def _name(curve: Curve) -> str:
    return f"MCBN, batches of {curve.batch_size}" if curve.method == "mcbn" else f"MCDO, dropout {curve.dropout_rate:g}"


def _short(curve: Curve) -> str:
    return f"MCBN {curve.batch_size}" if curve.method == "mcbn" else "MCDO"


def _summary(toy: Toy) -> Iterator[str]:
    for curve in toy.curves.values():
        inside, gap, outside = (curve.places[place] for place in _PLACES)
        growth = [
            f"{name} by a factor of {place.mc_sd / inside.mc_sd:.1f}"
            for name, place in (("in the gap", gap), ("outside", outside))
            if inside.mc_sd > 0 and place.mc_sd > 1.25 * inside.mc_sd
        ]
        grows = f"grows {' and '.join(growth)}" if growth else "does not grow where there are no data"
        sure = ", which is too sure" if outside.error > 2 * outside.mc_sd else ""
        yield (
            f"{_name(curve)}: the spread of its samples {grows}; outside, its mean is off by {outside.error:.2f} with "
            f"an MC sd of {outside.mc_sd:.2f}{sure}."
        )


def _reach(toy: Toy) -> float:
    """Half the height of the y axis, in target units; bands that go farther are cut off there."""
    return _ROOM * float(max(np.abs(toy.truth).max(), np.abs(toy.train_y).max()))


def _place_rows(toy: Toy) -> Iterator[Row]:
    for place, name in _PLACES.items():
        spreads = [curve.places[place] for curve in toy.curves.values()]
        yield name, ()
        yield "  MC sd", tuple(Cell(f"{spread.mc_sd:.3f}") for spread in spreads)
        yield "  error", tuple(Cell(f"{spread.error:.3f}") for spread in spreads)
    yield "fitted", ()
    yield "  1/√τ", tuple(Cell(f"{curve.tau**-0.5:.3f}") for curve in toy.curves.values())
    yield "  constant", tuple(Cell(f"{curve.constant_sigma:.3f}") for curve in toy.curves.values())


def _score_rows(toy: Toy) -> Iterator[Row]:
    for label, key, digits in _SCORES:
        estimates = [curve.scores[key] for curve in toy.curves.values()]
        yield (
            label,
            tuple(
                Cell(
                    f"{estimate.value:.{digits}f}".replace("-", "−"),
                    "" if estimate.se is None else f"±{estimate.se:.{digits}f}",
                )
                for estimate in estimates
            ),
        )


def _draw(toy: Toy, path: Path) -> None:
    """Data, true curve, mean and bands of each network, and its MC sd below."""
    count, facts = len(toy.curves), toy.experiment
    about = (
        f"{facts['formula']} of sd {facts['noise']}, {facts['points']['train']} training points (shaded: where they "
        f"lie); {facts['samples']} passes, seed {facts['seed']}"
    )
    with drawing.picture(
        path, title=SOURCE, about=about, columns=count, heights=(1.0, 0.42), size=(4.3, 3.6)
    ) as panels:
        most = max(float(curve.mc_sd.max()) for curve in toy.curves.values())
        lines = drawing.line_styles(["", *toy.curves])
        for number, curve in enumerate(toy.curves.values()):
            upper, lower = panels[number], panels[count + number]
            _draw_curve(upper, toy, curve, colour=lines[curve.name].colour)
            _draw_sd(lower, toy, curve, colour=lines[curve.name].colour, most=most)
            if number == 0:
                upper.set_ylabel("y (target unit)")
                lower.set_ylabel("sd (target unit)")
            else:
                upper.tick_params(labelleft=False)
                lower.tick_params(labelleft=False)
        panels[0].legend(loc="lower right", handlelength=1.6, borderaxespad=0.2)  # curves go up there
        panels[-1].legend(loc="upper center", ncols=3, handlelength=1.6, columnspacing=1.2, borderaxespad=0.2)


def _draw_curve(axes: Axes, toy: Toy, curve: Curve, *, colour: str) -> None:
    _shade(axes, toy)
    axes.fill_between(toy.x, *curve.band("95"), color=colour, alpha=0.18, linewidth=0, label="95 % band")
    axes.fill_between(toy.x, *curve.band("50"), color=colour, alpha=0.38, linewidth=0, label="50 % band")
    axes.plot(toy.train_x, toy.train_y, ".", color=drawing.GREY, markersize=2.5, label="training data")
    axes.plot(toy.x, toy.truth, color=drawing.INK, linestyle="--", linewidth=1.2, label="true curve")
    axes.plot(toy.x, curve.mean, color=colour, label="mean")
    reach = _reach(toy)
    axes.set_ylim(-reach, reach)
    axes.set_title(f"{_name(curve)}: RMSE {curve.scores['rmse'].value:.3f}, PLL {curve.scores['pll'].value:.3f}")
    axes.tick_params(labelbottom=False)


def _draw_sd(axes: Axes, toy: Toy, curve: Curve, *, colour: str, most: float) -> None:
    _shade(axes, toy)
    axes.plot(toy.x, curve.mc_sd, color=colour, label="MC sd")
    axes.axhline(curve.tau**-0.5, color=drawing.GREY, linestyle=":", linewidth=1.4, label="fitted noise")
    axes.plot(toy.x, np.abs(curve.mean - toy.truth), color=drawing.INK, linestyle="--", linewidth=1, label="|error|")
    axes.set_ylim(0, 1.3 * most)
    axes.set_xlabel("x")


def _shade(axes: Axes, toy: Toy) -> None:
    near, far = toy.experiment["data"]
    for low, high in ((-far, -near), (near, far)):
        axes.axvspan(low, high, color="#f3f3f3", linewidth=0, zorder=0)
    axes.set_xlim(-toy.experiment["end"], toy.experiment["end"])
