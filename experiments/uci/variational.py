"""Networks with learned noise on the UCI sets: mean-field VI, with and without BatchNorm, and MNF, by their ELBO.

Two hidden layers of ReLU units and one linear output, all of them Bayesian; of kind "mnf" the hidden layers have
multiplicative normalising flows, two transformations for z and two for its auxiliary distribution. The networks of a
stack share one prior, and are trained in one computation over stacked parameters.

Where the MNF of Teye et al. 2018 is told, this differs from it: the linear output is mean-field, without a flow; the
standard deviation of the likelihood is learned with the weights, and serves training alone; the prior is N(0, 1/(λN)),
as of weight decay λ over N rows, and λ is chosen with the epochs by RMSE on a fifth of the training rows, as the
authors hold out one part; mini-batches of the small sets have 50 rows, not 100, of which a fold of Yacht has
one; there are fewer seeds.
T, τ, the baseline and the scores are those of the other methods.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap

from bnuq.errors import BnuqError
from bnuq.progress import Advance
from bnuq.randomness import generators_restored
from bnuq.shapes import Float64, Int64
from experiments.layers import MeanFieldLinear, MNFLinear, kl
from experiments.uci.networks import LEARNING_RATE, seed_number
from experiments.uci.protocol import Learned, Protocol
from experiments.uci.selection import Choice, Score, estimates_of_run, fitted
from experiments.uci.sets import Material

_ROWS_AT_ONCE = 2**14  # of an evaluation

State = dict[str, Tensor]


def batch_of(protocol: Protocol) -> int:
    """Rows of a mini-batch: the authors' 100 on large sets, half of it on small ones."""
    return 100 if protocol.large else 50


class Regression(nn.Module):
    """A network of one kind, with the standard deviation of the likelihood N(f(x), sd²)."""

    def __init__(self, kind: Learned, inputs: int, units: int, *, prior_sd: float) -> None:
        super().__init__()
        hidden = MNFLinear if kind == "mnf" else MeanFieldLinear
        layers: list[nn.Module] = []
        for features in (inputs, units):
            layers.append(hidden(features, units, prior_sd=prior_sd))
            layers += [nn.BatchNorm1d(units)] * (kind == "vi-bn") + [nn.ReLU()]
        self.body = nn.Sequential(*layers, MeanFieldLinear(units, 1, prior_sd=prior_sd))
        self.log_sd = nn.Parameter(torch.zeros(()))

    def forward(self, x: Tensor, y: Tensor | None = None, rows: int = 1) -> Tensor:
        """f(x); with `y` the negative ELBO of a mini-batch of a set of so many rows, in nats per row."""
        outputs = self.body(x)[:, 0]
        if y is None:
            return outputs
        error = (y - outputs) * torch.exp(-self.log_sd)
        fit = -0.5 * error.square().mean() - self.log_sd - 0.5 * math.log(2 * math.pi)
        return kl(self.body) / rows - fit


class Stack:
    """Networks of one kind and one prior, one for each place in `data`, trained together on `material`."""

    def __init__(
        self, kind: Learned, units: int, material: Material, data: Sequence[int], decay: float, device: torch.device,
        *, batch: int = 50,
    ) -> None:  # fmt: skip
        self.material, self.data, self.decay = material, np.asarray(data), decay
        self.rows = int(material.rows[self.data].min())
        self.batch = min(batch, self.rows)
        prior_sd = (decay * self.rows) ** -0.5
        networks = [Regression(kind, material.x.shape[2], units, prior_sd=prior_sd) for _ in data]
        self.network = networks[0].to(device)
        parameters, buffers = stack_module_state([network.to(device) for network in networks])  # type: ignore[arg-type]
        self.state: State = {**parameters, **buffers}
        self._optimiser = torch.optim.Adam(parameters.values(), lr=LEARNING_RATE, fused=True)
        self._x, self._y, self._x_point = (
            torch.from_numpy(part[self.data]).to(device) for part in (material.x, material.y, material.x_point)
        )

    def train(self, epochs: int) -> None:
        """So many more epochs; the rows that fill no whole mini-batch are dropped anew in each."""
        batch, nets = self.batch, len(self.data)
        self.network.train()
        losses = vmap(
            lambda state, x, y: functional_call(self.network, state, (x, y, self.rows)), randomness="different"
        )
        place = torch.arange(nets, device=self._x.device)[:, None]
        for _ in range(epochs):
            order = torch.rand(nets, self.rows, device=self._x.device).argsort(1)
            for rows in order[:, : self.rows // batch * batch].split(batch, 1):
                self._optimiser.zero_grad()
                losses(self.state, self._x[place, rows], self._y[place, rows]).sum().backward()
                self._optimiser.step()

    @torch.no_grad()
    def outputs(self, state: State, net: int, samples: int) -> Float64[np.ndarray, "sample point"]:
        """Outputs of a network at its evaluation rows, in target units; those of its mean weights for 0 samples.

        Weights are drawn for each point by local reparameterisation: every score is of single points, whose outputs are
        distributed as those of weights that are drawn once for each sample. BatchNorm has population statistics.
        """
        self.network.train(samples > 0)
        for layer in self.network.modules():
            if isinstance(layer, nn.BatchNorm1d):
                layer.eval()
        of = int(self.data[net])
        x = self._x_point[net, : int(self.material.points[of])]
        own = {name: values[net] for name, values in state.items()}
        at_once = max(1, _ROWS_AT_ONCE // len(x))
        counts = [min(at_once, samples - start) for start in range(0, samples, at_once)] or [1]
        parts = [functional_call(self.network, own, (x.repeat(count, 1),)).view(count, -1) for count in counts]
        standardised = torch.cat(parts).double().cpu().numpy()
        return self.material.shift[of] + self.material.scale[of] * standardised

    def target(self, net: int) -> Float64[np.ndarray, " point"]:
        """The targets of its evaluation rows."""
        of = int(self.data[net])
        return self.material.target[of, : int(self.material.points[of])]

    def copied(self) -> State:
        """The state as it is now."""
        return {name: values.detach().clone() for name, values in self.state.items()}

    def keep(self, kept: State, nets: Int64[np.ndarray, " kept"]) -> None:
        """Put the present state of these networks into `kept`."""
        at = torch.from_numpy(nets).to(self._x.device)
        for name, values in kept.items():
            values[at] = self.state[name].detach()[at]


class _Candidate:
    """A stack with one λ, a network for each split, and the best state of each so far."""

    def __init__(self, stack: Stack) -> None:
        self.stack, self.best_state = stack, stack.copied()
        self.best = np.full(len(stack.data), np.inf)
        self.best_epoch = np.zeros(len(stack.data), np.int64)

    def advance(self, epochs: range, samples: int, correction: float) -> None:
        """Train for these epochs, then score: the RMSE less what finitely many draws add to its square."""
        self.stack.train(len(epochs))
        for net in range(len(self.best)):
            f = self.stack.outputs(self.stack.state, net, samples)
            square = (f.mean(0) - self.stack.target(net)) ** 2 - correction * f.var(0, ddof=min(1, samples - 1))
            error = math.sqrt(max(float(square.mean()), 0.0))
            if error < self.best[net]:
                self.best[net], self.best_epoch[net] = error, epochs.stop
                self.stack.keep(self.best_state, np.array([net]))

    def going_on(self, epoch: int, protocol: Protocol) -> bool:
        return bool((epoch - self.best_epoch < protocol.patience * protocol.interval).any())


def select(
    kind: Learned,
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
    """As `selection.select`, on the first fold of each split alone: λ and epochs by RMSE, τ and the constant σ."""
    first = [int(np.flatnonzero(splits == split)[0]) for split in range(int(splits.max()) + 1)]
    samples, drawn = protocol.selection_samples, protocol.samples
    correction = 1 / samples - 1 / drawn if samples < drawn else 0.0
    with _seeded(seed, 0):
        candidates = [
            _Candidate(Stack(kind, units, material, first, decay, device, batch=batch_of(protocol)))
            for decay in protocol.weight_decays
        ]
        done = 0
        while done < protocol.max_epochs and (going := [one for one in candidates if one.going_on(done, protocol)]):
            epochs = range(done, min(done + protocol.interval, protocol.max_epochs))
            for candidate in going:
                candidate.advance(epochs, samples, correction)
            advance(len(epochs))
            done = epochs.stop
        advance(protocol.max_epochs - done)
        return tuple(_choice(candidates, split, protocol, tau_range) for split in range(len(first)))


def _choice(candidates: list[_Candidate], split: int, protocol: Protocol, tau_range: tuple[float, float]) -> Choice:
    best = min(candidates, key=lambda candidate: candidate.best[split])
    if not math.isfinite(best.best[split]):
        raise BnuqError(f"in split {split + 1} every setting diverged: no network's error stayed finite.")
    epochs, stack = int(best.best_epoch[split]), best.stack
    f = stack.outputs(best.best_state, split, protocol.samples)
    points = f.shape[1]
    fits = fitted(stack.target(split) - f.mean(0), f.var(0), np.full(points, 1 / points), tau_range)
    return Choice(
        weight_decay=stack.decay,
        batch_size=stack.batch,
        dropout=0.0,
        epochs=epochs,
        rmse=float(best.best[split]),
        unfinished=epochs + protocol.patience * protocol.interval > protocol.max_epochs,
        **fits,
    )


def evaluate(
    kind: Learned,
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
    """As `selection.evaluate`: the estimates of every run, by name and then by split and seed."""
    seeds, reported = range(protocol.seeds), 0
    estimates: dict[str, list[list[Any]]] = {}
    for decay in sorted({choice.weight_decay for choice in choices}):
        data = [split for split, choice in enumerate(choices) if choice.weight_decay == decay for _ in seeds]
        until = np.array([epochs[split] for split in data])
        with _seeded(seed, 1, round(1e12 * decay)):
            stack, done = Stack(kind, units, material, data, decay, device, batch=batch_of(protocol)), 0
            trained = stack.copied()
            while done < until.max():
                stop = min(done + protocol.interval, int(until[until > done].min()))
                stack.train(stop - done)
                advance(max(0, stop - reported))
                reported, done = max(reported, stop), stop
                stack.keep(trained, np.flatnonzero(until == stop))
            for net, split in enumerate(data):
                f, plain = (stack.outputs(trained, net, samples) for samples in (protocol.samples, 0))
                of_run = (score or estimates_of_run)(f, plain[0], stack.target(net), choices[split])
                for name, value in of_run.items():
                    rows: Any = estimates.setdefault(name, [[] for _ in choices])
                    rows[split].append(value)
    return estimates


@contextlib.contextmanager
def _seeded(*key: int) -> Iterator[None]:
    with generators_restored():
        torch.manual_seed(seed_number(list(key)))
        yield
