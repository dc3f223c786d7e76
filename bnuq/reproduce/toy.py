"""A toy regression in the manner of Figure 1 of Teye, Azizpour & Smith 2018: what MCBN and MCDO say where no data are.

The paper's own toy data are not published with its code; these are defined here: y = sin 2x + 0.3 x with noise, on two
clusters of x, so that there is a gap between them and an outside on either hand.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

import bnuq
from bnuq import metrics
from bnuq.errors import RequestError
from bnuq.progress import Advance, Progress, silent
from bnuq.randomness import generators_restored
from bnuq.records import Figure
from bnuq.reproduce.workers import one_thread
from bnuq.results.toy import BANDS, Curve, Place, Toy

NEAR, FAR, END = 1.0, 3.0, 5.0  # data lie where NEAR ≤ |x| ≤ FAR; curves are drawn where |x| ≤ END
NOISE = 0.15  # sd of the observations, in target units
TRAIN, HELD_OUT, TEST = 300, 300, 1000  # points
STEPS, RATE, DECAY = 1200, 5e-3, 1e-5  # of Adam; the rate falls to 0 along a cosine
UNITS, LAYERS, DROPOUT = 50, 3, 0.1  # of each network's hidden layers
WIDER = 4  # the second BatchNorm network's mini-batches are so many times as large

Array = Float[np.ndarray, "point"]


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


def reproduce(*, samples: int = 500, batch_size: int = 32, seed: int = 0, progress: Progress = silent) -> Toy:
    """Train three networks on the toy data, a few seconds each, and draw `samples` predictions of every one.

    One with BatchNorm and mini-batches of `batch_size`, one with four times as large ones, one with dropout of 0.1
    (mini-batches of `batch_size`), otherwise alike: three layers of 50 ReLU units. A BatchNorm network is sampled with
    the mini-batch size that it was trained with. τ and the constant σ are fitted to held-out points by CRPS, scores
    are of test points among the data. Same seed, same figures on the same machine; torch uses one thread.

    RequestError for fewer than 2 samples, a batch size for which there are too few training points, a seed below 0.
    Source: Teye, Azizpour & Smith 2018, Fig. 1 and §4, by data of our own.
    """
    _check(samples, batch_size, seed)
    rng = np.random.default_rng(seed)
    train, held_out, test = (_points(rng, n) for n in (TRAIN, HELD_OUT, TEST))
    x = np.linspace(-END, END, 401)
    networks = (
        _Network(f"mcbn_b{batch_size}", batch_size),
        _Network(f"mcbn_b{WIDER * batch_size}", WIDER * batch_size),
        _Network("mcdo", batch_size, DROPOUT),
    )
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


def _check(samples: int, batch_size: int, seed: int) -> None:
    if samples < 2:
        raise RequestError(f"samples is {samples}; expected at least 2, since a single one has no spread.")
    most = (TRAIN - 1) // WIDER
    if not 4 <= batch_size <= most:
        raise RequestError(
            f"batch_size is {batch_size}; expected 4 to {most}: there are {TRAIN} training points, and the second "
            f"network has {WIDER} times the batch."
        )
    if not 0 <= seed < 2**63:
        raise RequestError(f"seed is {seed}; expected a whole number from 0 to 2**63 - 1.")


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
        model = _made(network)
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


def _made(network: _Network) -> nn.Sequential:
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


def _scores(f: Float[np.ndarray, "sample point"], y: Array, tau: float, constant: float) -> dict[str, Figure]:
    """RMSE, CRPS (Gaussian), PLL (mixture), both normalised in percent, and coverage, with errors over points."""
    mean, variance = metrics.predictive_moments(f, tau=tau)
    found = {"rmse": _rmse(mean, y)}
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
        found[name] = Figure(float(score.mean()), se=metrics.standard_error(score))
        found[f"normalized_{name}"] = _normalized(score, low, high)
    for level, half in BANDS.items():
        inside = np.abs(y - mean) <= half * np.sqrt(variance)
        found[f"coverage{level}"] = Figure(float(inside.mean()), se=metrics.standard_error(inside.astype(np.float64)))
    return found


def _rmse(mean: Array, y: Array) -> Figure:
    value = metrics.rmse(mean, y)
    return Figure(value, se=metrics.standard_error((y - mean) ** 2) / (2 * value) if value > 0 else 0.0)


def _normalized(score: Array, low: Array, high: Array) -> Figure:
    value = float(metrics.normalized(float(score.mean()), float(low.mean()), float(high.mean())))
    room = float((high - low).mean())
    # The error of a ratio of means, by the delta method.
    return Figure(value, se=metrics.standard_error((score - low) * 100 - value * (high - low)) / abs(room))


def _places(x: Array) -> dict[str, np.ndarray]:
    away = np.abs(x)
    return {"inside": (away >= NEAR) & (away <= FAR), "gap": away < NEAR, "outside": away > FAR}


def _place(mc_sd: Array, error: Array) -> Place:
    return Place(mc_sd=float(np.sqrt((mc_sd**2).mean())), error=float(np.sqrt((error**2).mean())))
