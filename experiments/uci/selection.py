"""Training of stacks of networks: to choose settings by cross-validation, and to evaluate the chosen ones on test rows.

Networks with the same mini-batch and dropout rate form a pool, which is trained stack by stack for one interval of
epochs after another; whatever has ended is taken out of the pool, so that the stacks stay full.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bnuq import metrics
from bnuq.errors import BnuqError
from bnuq.progress import Advance
from bnuq.shapes import Bool, Float, Float64, Int64
from experiments.uci.networks import (
    Architecture,
    Kind,
    State,
    Training,
    mcbn_passes,
    mcdo_passes,
    seed_number,
    stack_size,
)
from experiments.uci.protocol import Protocol
from experiments.uci.sets import Material

# What random numbers are for; part of what a seed means.
_INITIAL, _ORDER, _MASKS, _BATCHES, _PASSES = range(5)

Score = Callable[..., dict[str, Any]]  # of a run's outputs, deterministic outputs, targets and `Choice`


@dataclass(frozen=True)
class Setting:
    """One point of the grid."""

    weight_decay: float
    batch_size: int
    dropout: float


@dataclass(frozen=True)
class Choice:
    """What cross-validation chose for one split: the setting, its epochs, and what was fitted to held-out rows.

    `rmse` is the cross-validated RMSE (corrected to T draws), `mc_sd` the root mean square of the Monte Carlo standard
    deviation there, `sigma` the constant σ of the baseline, all in target units; `tau` is in 1/(target unit)², and
    `tau_at_end` tells the end of its range that it lies at. `unfinished` says that `max_epochs` ended the training.
    """

    weight_decay: float
    batch_size: int
    dropout: float
    epochs: int
    rmse: float
    mc_sd: float
    sigma: float
    tau: float
    tau_at_end: str
    unfinished: bool


# ── a group of networks ──────────────────────────────────────────────────────────────────────────────────────────────


class Group:
    """Networks that are trained on `material`, each of one stream: (its data, the seed of its start and its order)."""

    def __init__(
        self,
        architecture: Architecture,
        material: Material,
        streams: Sequence[tuple[int, Sequence[int]]],
        device: torch.device,
    ) -> None:
        self.architecture, self.material, self.device = architecture, material, device
        self._data = torch.tensor([data for data, _ in streams], device=device)
        self._keys = [list(key) for _, key in streams]
        self._x = torch.from_numpy(material.x).to(device)
        self._y = torch.from_numpy(material.y).to(device)[..., None]
        self._x_point = torch.from_numpy(material.x_point).to(device)

    def initial(self) -> Float[Tensor, "stream parameter"]:
        """The parameters that each stream starts with, the same for every setting."""
        return self.architecture.initial([[*key, _INITIAL] for key in self._keys]).to(self.device)

    def trained(
        self,
        state: State,
        stream: Int64[np.ndarray, " net"],
        weight_decay: Float64[np.ndarray, " net"],
        setting: Setting,
        epochs: range,
    ) -> State:
        """These networks after these epochs; the rows that fill no whole mini-batch are dropped anew in each."""
        used = sorted(set(stream.tolist()))
        data = self._data[torch.tensor(used, device=self.device)]
        rows = int(self.material.rows[data.cpu().numpy()].min())
        batch = min(setting.batch_size, rows)
        steps = rows // batch
        order = torch.from_numpy(self._orders(used, epochs, steps * batch)).to(self.device)
        place = torch.from_numpy(np.searchsorted(used, stream)).to(self.device)
        decay = torch.from_numpy(weight_decay).to(self.device, torch.float32)
        parts = []
        size = stack_size(batch, self.device)
        for number, start in enumerate(range(0, len(stream), size)):
            nets = slice(start, start + size)
            generator = self._generator(_MASKS, epochs.start, number, setting)
            training = Training(
                self.architecture,
                state.of(nets),
                weight_decay=decay[nets],
                batch=batch,
                dropout=setting.dropout,
                generator=generator,
            )
            indices = place[nets]
            for epoch in range(len(epochs)):
                rows_of = order[epoch][indices]
                x = self._x[data[indices][:, None], rows_of]
                y = self._y[data[indices][:, None], rows_of]
                for at in range(0, steps * batch, batch):
                    training.step(x[:, at : at + batch], y[:, at : at + batch])
            parts.append(training.state())
        return State(
            torch.cat([part.parameters for part in parts]),
            torch.cat([part.first for part in parts]),
            torch.cat([part.second for part in parts]),
            parts[0].steps,
        )

    def _orders(self, streams: list[int], epochs: range, length: int) -> Int64[np.ndarray, "epoch stream row"]:
        orders = np.empty((len(epochs), len(streams), length), np.int64)
        of = self._data.tolist()
        for place, epoch in enumerate(epochs):
            for column, stream in enumerate(streams):
                random = np.random.default_rng([*self._keys[stream], _ORDER, epoch])
                orders[place, column] = random.permutation(int(self.material.rows[of[stream]]))[:length]
        return orders

    def batches(self, size: int, samples: int) -> Int64[np.ndarray, "stream sample row"]:
        """The mini-batches of MCBN's passes, drawn without replacement from the training rows of each stream."""
        of = self._data.tolist()
        rows = np.empty((len(of), samples, size), np.int32)
        for stream, key in enumerate(self._keys):
            random = np.random.default_rng([*key, _BATCHES, size])
            for sample in range(samples):
                rows[stream, sample] = random.choice(int(self.material.rows[of[stream]]), size, replace=False)
        return rows

    def outputs(
        self,
        parameters: Float[Tensor, "net parameter"],
        stream: Int64[np.ndarray, " net"],
        setting: Setting,
        batches: np.ndarray | None,
        samples: int,
    ) -> Iterator[tuple[slice, Float[Tensor, "sample net point"]]]:
        """Stochastic outputs at the evaluation rows, in target units, for a few networks at a time."""
        points = self._x_point.shape[1]
        at_once = max(1, 2**18 // (max(points, setting.batch_size) * self.architecture.units))
        if self.device.type == "cuda":
            at_once *= 256
        at_once = min(at_once, max(1, 2**28 // (samples * points)))
        for number, start in enumerate(range(0, len(stream), at_once)):
            nets = slice(start, start + at_once)
            indices = torch.from_numpy(stream[nets]).to(self.device)
            data = self._data[indices]
            if batches is None:
                passes = mcdo_passes(
                    self.architecture,
                    parameters[nets],
                    self._x_point[data],
                    dropout=setting.dropout,
                    samples=samples,
                    generator=self._generator(_PASSES, samples, number, setting),
                )
            else:
                chosen = torch.from_numpy(batches[stream[nets]]).to(self.device, torch.int64)
                drawn = (self._x[data[:, None], chosen[:, sample]] for sample in range(samples))
                passes = mcbn_passes(self.architecture, parameters[nets], drawn, self._x_point[data])
            yield nets, self._in_target_units(torch.stack(list(passes)), data)

    def deterministic(
        self, parameters: Float[Tensor, "net parameter"], stream: Int64[np.ndarray, " net"]
    ) -> Float[Tensor, "net point"]:
        """Outputs without sampling, in target units: BatchNorm with the statistics of all training rows, no dropout."""
        outputs = []
        for net in range(len(stream)):
            data = self._data[int(stream[net])][None]
            rows, x = int(self.material.rows[int(data)]), self._x_point[data]
            network = parameters[net : net + 1]
            if self.architecture.kind == "batchnorm":
                passes = mcbn_passes(self.architecture, network, iter([self._x[data, :rows]]), x)
            else:
                passes = mcdo_passes(self.architecture, network, x, dropout=0.0, samples=1, generator=None)
            outputs.append(self._in_target_units(next(iter(passes)), data))
        return torch.cat(outputs)

    def _in_target_units(self, outputs: Tensor, data: Tensor) -> Tensor:
        scale, shift = (torch.from_numpy(v).to(self.device)[data, None] for v in self._affine)
        return outputs * scale.float() + shift.float()

    @property
    def _affine(self) -> tuple[np.ndarray, np.ndarray]:
        return self.material.scale, self.material.shift

    def _generator(self, purpose: int, at: int, number: int, setting: Setting) -> torch.Generator:
        key = [*self._keys[0], purpose, at, number, round(setting.dropout * 1e6)]
        return torch.Generator(self.device).manual_seed(seed_number(key))


# ── choosing ─────────────────────────────────────────────────────────────────────────────────────────────────────────


class _Pool:
    """All networks of one batch size and dropout rate: a row for each weight decay and fold of each split."""

    def __init__(
        self, group: Group, setting: Setting, decays: Sequence[float], splits: np.ndarray, samples: int
    ) -> None:
        folds = len(splits)
        self.setting, self.decays, self._group, self._splits, self._samples = setting, decays, group, splits, samples
        self.stream = np.tile(np.arange(folds), len(decays))
        self.candidate = np.repeat(np.arange(len(decays)), folds)
        self.split = np.tile(splits, len(decays))
        self._decay = np.repeat(np.array(decays), folds)
        self.state = State.fresh(group.initial().repeat(len(decays), 1))
        self.best_parameters = self.state.parameters.clone()
        shape = (len(decays), int(splits.max()) + 1)
        self.best = np.full(shape, np.inf)
        self.best_epoch = np.zeros(shape, np.int64)
        self.ended = np.zeros(shape, bool)
        self._alive = np.arange(len(self.stream))  # of the rows that `state` still holds
        rows = int(group.material.rows.min())
        self.batch = min(setting.batch_size, rows)
        batchnorm = group.architecture.kind == "batchnorm"
        self._batches = group.batches(self.batch, samples) if batchnorm else None

    @property
    def going_on(self) -> bool:
        return len(self._alive) > 0

    def advance(self, epochs: range, correction: float) -> None:
        """Train for these epochs, then score every setting that still goes on."""
        alive = self._alive
        self.state = self._group.trained(self.state, self.stream[alive], self._decay[alive], self.setting, epochs)
        error = self._errors(correction)
        of = (self.candidate[alive], self.split[alive])
        total, count = np.zeros_like(self.best), np.zeros_like(self.best)
        np.add.at(total, of, error)
        np.add.at(count, of, 1)
        score = np.where(count > 0, total / np.maximum(count, 1), np.inf)
        better = score < self.best
        self.best[better], self.best_epoch[better] = score[better], epochs.stop
        rows = np.flatnonzero(better[of])
        at = torch.from_numpy(rows).to(self.state.parameters.device)
        self.best_parameters[torch.from_numpy(alive[rows]).to(at.device)] = self.state.parameters[at]
        self.ended |= ~np.isfinite(score) & (count > 0)  # diverged

    def _errors(self, correction: float) -> Float64[np.ndarray, " net"]:
        """The RMSE of each network on its held-out rows, less what finitely many draws add to its square."""
        group, alive = self._group, self._alive
        errors = np.empty(len(alive))
        for nets, outputs in group.outputs(
            self.state.parameters, self.stream[alive], self.setting, self._batches, self._samples
        ):
            of = self.stream[alive][nets]
            target = torch.from_numpy(group.material.target[of]).to(outputs.device)
            mask = _row_mask(group.material, of).to(outputs.device)
            mean, variance = outputs.mean(0), outputs.var(0, correction=min(1, self._samples - 1))
            square = (mean.double() - target).square() - correction * variance.double()
            mse = (square * mask).sum(1) / mask.sum(1)
            errors[nets] = mse.clamp_min(0.0).sqrt().cpu().numpy()
        return np.where(np.isfinite(errors), errors, np.inf)

    def close(self, epoch: int, protocol: Protocol, best_of_split: Float64[np.ndarray, " split"]) -> None:
        """End what has lost its patience or the race, and take it out of the stacks."""
        idle = epoch - self.best_epoch >= protocol.patience * protocol.interval
        self.ended |= idle | (epoch >= protocol.max_epochs)
        far = epoch >= protocol.race_from and self.state.steps >= protocol.race_from_step
        if protocol.race is not None and far:
            self.ended |= self.best > (1 + protocol.race) * best_of_split
        continuing = ~self.ended[self.candidate[self._alive], self.split[self._alive]]
        if not continuing.all():
            self._alive = self._alive[continuing]
            self.state = self.state.of(torch.from_numpy(np.flatnonzero(continuing)).to(self.state.parameters.device))


def _row_mask(material: Material, data: np.ndarray) -> Bool[Tensor, "net point"]:
    """Which of the evaluation rows are no padding."""
    return torch.from_numpy(np.arange(material.target.shape[1]) < material.points[data][:, None])


def select(
    kind: Kind,
    units: int,
    material: Material,
    splits: Int64[np.ndarray, " data"],
    *,
    protocol: Protocol,
    tau_range: tuple[float, float],
    seed: int,
    device: torch.device,
    advance: Advance,
) -> tuple[Choice, ...]:
    """The best setting of each split by cross-validated RMSE, with τ and the constant σ fitted to the held-out rows.

    `material` holds the folds, `splits` which split each belongs to. `advance` is told epochs, `max_epochs` in all.
    """
    architecture = Architecture(kind, material.x.shape[2], units)
    group = Group(architecture, material, [(fold, (seed, 0, fold)) for fold in range(len(splits))], device)
    samples, drawn = protocol.selection_samples, protocol.samples
    fold_rows = int(material.rows.min())
    if kind == "batchnorm":
        kinds = [Setting(0.0, b, 0.0) for b in protocol.batches_for(fold_rows)]
    else:
        kinds = [Setting(0.0, protocol.dropout_batch, p) for p in protocol.dropouts]
    pools = [_Pool(group, setting, protocol.weight_decays, splits, samples) for setting in kinds]
    correction = 1 / samples - 1 / drawn if samples < drawn else 0.0
    reported = 0
    for start in range(0, protocol.max_epochs, protocol.interval):
        epochs = range(start, min(start + protocol.interval, protocol.max_epochs))
        going = [pool for pool in pools if pool.going_on]
        if not going:
            break
        for pool in going:
            pool.advance(epochs, correction)
        # Batch sizes take different numbers of steps in an epoch, so they race among themselves only.
        together = np.min([pool.best.min(0) for pool in pools], 0)
        for pool in going:
            pool.close(epochs.stop, protocol, pool.best.min(0) if kind == "batchnorm" else together)
        advance(len(epochs))
        reported += len(epochs)
    advance(protocol.max_epochs - reported)
    return tuple(_choice(group, pools, split, protocol, tau_range) for split in range(int(splits.max()) + 1))


def _choice(group: Group, pools: list[_Pool], split: int, protocol: Protocol, tau_range: tuple[float, float]) -> Choice:
    pool = min(pools, key=lambda pool: pool.best[:, split].min())
    if not math.isfinite(pool.best[:, split].min()):
        raise BnuqError(f"in split {split + 1} every setting diverged: no network's error stayed finite.")
    candidate = int(pool.best[:, split].argmin())
    epochs = int(pool.best_epoch[candidate, split])
    nets = np.flatnonzero((pool.candidate == candidate) & (pool.split == split))
    stream = pool.stream[nets]
    batchnorm = group.architecture.kind == "batchnorm"
    drawn = group.batches(pool.batch, protocol.samples) if batchnorm else None
    errors, variances, weights = [], [], []
    at = torch.from_numpy(nets).to(pool.best_parameters.device)
    for few, outputs in group.outputs(pool.best_parameters[at], stream, pool.setting, drawn, protocol.samples):
        values = outputs.double().cpu().numpy()
        for column, fold in enumerate(stream[few]):
            points = int(group.material.points[fold])
            f = values[:, column, :points]
            errors.append(group.material.target[fold, :points] - f.mean(0))
            variances.append(f.var(0))
            weights.append(np.full(points, 1 / (len(nets) * points)))
    error, variance, weight = (np.concatenate(parts) for parts in (errors, variances, weights))
    return Choice(
        weight_decay=pool.decays[candidate],
        batch_size=pool.setting.batch_size,
        dropout=pool.setting.dropout,
        epochs=epochs,
        rmse=float(pool.best[candidate, split]),
        unfinished=epochs + protocol.patience * protocol.interval > protocol.max_epochs,
        **fitted(error, variance, weight, tau_range),
    )


def fitted(
    error: Float64[np.ndarray, " point"],
    variance: Float64[np.ndarray, " point"],
    weight: Float64[np.ndarray, " point"],
    tau_range: tuple[float, float],
) -> dict[str, Any]:
    """What of a `Choice` is fitted to held-out rows, by name; `variance` is over samples."""
    fit = metrics.optimal_tau(error, variance, weights=weight, tau_range=tau_range)
    return {
        "mc_sd": math.sqrt(float(np.sum(weight * variance))),
        "sigma": metrics.constant_sigma(error, weights=weight),
        "tau": fit.tau,
        "tau_at_end": fit.at_end,
    }


# ── evaluating ───────────────────────────────────────────────────────────────────────────────────────────────────────


def evaluate(
    kind: Kind,
    units: int,
    material: Material,
    choices: Sequence[Choice],
    *,
    epochs: Sequence[int],
    protocol: Protocol,
    seed: int,
    device: torch.device,
    advance: Advance,
    score: Score | None = None,
) -> dict[str, list[list[Any]]]:
    """The estimates of every run, by name and then by split and seed, of networks trained anew on all training rows;
    those of `estimates_of_run`, or what `score` gives instead.

    `epochs` of each split, its seeds differing in start, order of rows and draws. `advance` is told the epochs of the
    longest training.
    """
    architecture = Architecture(kind, material.x.shape[2], units)
    splits, seeds = len(choices), protocol.seeds
    streams = [(split, (seed, 1, split, number)) for split in range(splits) for number in range(seeds)]
    group = Group(architecture, material, streams, device)
    of = np.array([split for split, _ in streams])
    initial = group.initial()
    parameters = torch.empty_like(initial)
    settings = [Setting(0.0, choice.batch_size, choice.dropout) for choice in choices]
    reported = 0
    for setting in dict.fromkeys(settings):
        nets = np.flatnonzero([settings[split] == setting for split in of])
        state, done = State.fresh(initial[torch.from_numpy(nets).to(device)]), 0
        while len(nets):
            until = min(epochs[of[net]] for net in nets)
            decay = np.array([choices[of[net]].weight_decay for net in nets])
            while done < until:
                stop = min(until, done + protocol.interval)
                state = group.trained(state, nets, decay, setting, range(done, stop))
                if stop > reported:
                    advance(stop - reported)
                    reported = stop
                done = stop
            ready = np.array([epochs[of[net]] <= done for net in nets])
            rows = torch.from_numpy(np.flatnonzero(ready)).to(device)
            parameters[torch.from_numpy(nets[ready]).to(device)] = state.parameters[rows]
            nets, state = nets[~ready], state.of(torch.from_numpy(np.flatnonzero(~ready)).to(device))
    estimates: dict[str, list[list[Any]]] = {}
    rows = int(material.rows.min())
    for setting in dict.fromkeys(settings):
        nets = np.flatnonzero([settings[split] == setting for split in of])
        drawn = group.batches(min(setting.batch_size, rows), protocol.samples) if kind == "batchnorm" else None
        at = torch.from_numpy(nets).to(device)
        plain = group.deterministic(parameters[at], nets).double().cpu().numpy()
        for few, outputs in group.outputs(parameters[at], nets, setting, drawn, protocol.samples):
            for column, net in enumerate(nets[few]):
                split, number = streams[net][0], int(net) % seeds
                f = outputs[:, column].double().cpu().numpy()
                of_run = score or estimates_of_run
                run_estimates = of_run(f, plain[few][column], material.target[split], choices[split])
                for name, value in run_estimates.items():
                    estimates.setdefault(name, [[math.nan] * seeds for _ in range(splits)])[split][number] = value
    return estimates


def estimates_of_run(
    f: Float64[np.ndarray, "sample point"],
    plain: Float64[np.ndarray, " point"],
    y: Float64[np.ndarray, " point"],
    choice: Choice,
) -> dict[str, float]:
    """All estimates of one network on its test rows. PLL in nats, normalised scores in percent, others in target units.

    Points that the mean hits exactly have an unbounded optimal PLL; they are left out of PLL and counted.
    """
    mean, variance = f.mean(0), f.var(0)
    error, noise = y - mean, 1 / choice.tau
    sd = np.sqrt(variance + noise)
    missed = error != 0
    pll = {
        "pll_mixture": metrics.pll_regression(f, y, tau=choice.tau),
        "pll_gaussian": metrics.pll_gaussian(mean, sd, y),
        "pll_constant": metrics.pll_gaussian(mean, choice.sigma, y),
        "pll_optimum": metrics.pll_optimum(mean, y),
    }
    crps = {
        "crps": metrics.crps_gaussian(mean, sd, y),
        "crps_constant": metrics.crps_gaussian(mean, choice.sigma, y),
        "crps_optimum": metrics.crps_optimum(mean, y),
    }
    estimates = {name: float(np.mean(values)) for name, values in crps.items()}
    estimates |= {name: float(np.mean(values[missed])) for name, values in pll.items()}
    return estimates | {
        "normalized_crps": float(
            metrics.normalized(estimates["crps"], estimates["crps_constant"], estimates["crps_optimum"])
        ),
        "normalized_pll": float(
            metrics.normalized(estimates["pll_mixture"], estimates["pll_constant"], estimates["pll_optimum"])
        ),
        "normalized_pll_gaussian": float(
            metrics.normalized(estimates["pll_gaussian"], estimates["pll_constant"], estimates["pll_optimum"])
        ),
        "rmse": metrics.rmse(mean, y),
        "rmse_deterministic": metrics.rmse(plain, y),
        "mc_sd": math.sqrt(float(np.mean(variance))),
        "noise_sd": math.sqrt(noise),
        "sigma": choice.sigma,
        "spearman": metrics.spearman(sd, np.abs(error)),
        "exact_hits": float(np.sum(~missed)),
    }
