"""Small random networks whose stochastic passes are easily computed wrongly, and their passes in float64: an index by a
computed position, masked classes, offsets and scales of outputs, caches, writes into views, branches on data."""

from __future__ import annotations

import copy
import random
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import bnuq
from bnuq.sampling.batch_statistics import BatchStatistics
from bnuq.sampling.dropout import Dropout
from bnuq.sampling.plain_loop import PlainLoop
from bnuq.sampling.site_search import find_sites

WIDTH, STEPS, SAMPLES = 8, 5, 6
SHAPES = {"table": (4,), "sequence": (STEPS, 4), "image": (2, 6, 6)}
PICKS = {
    "table": ("none", "gather", "index of rows", "ties"),
    "sequence": ("last", "index of rows", "gather", "take along", "mean", "packed", "one step a loop"),
    "image": ("mean", "index of rows", "gather", "flat"),
}
CHANGES = (
    "none", "none", "cache", "buffer cache", "view written", "apply_", "branch", "place", "place of three", "clamp",
)  # fmt: skip
MASKS = ("none", "-1e4", "-1e9", "added -1e9", "-inf", "by point")
OFFSETS = (0.0, 0.0, 50.0, 1013.0, 5000.0)
SCALES = (1.0, 1.0, 1e-6, 1e-3, 1e3, 1e6)


@dataclass(frozen=True)
class Traits:
    """What a network is made of; `n` points pass it, by `method`, and draws are stacked as on this `device`."""

    seed: int
    kind: str
    pick: str
    change: str
    mask: str
    offset: float
    scale: float
    outputs: int
    n: int
    method: str
    device: str


def traits(seed: int) -> Traits:
    choice = random.Random(seed).choice
    kind = choice((*SHAPES,))
    return Traits(
        seed=seed,
        kind=kind,
        pick=choice(PICKS[kind]),
        change=choice(CHANGES),
        mask=choice(MASKS),
        offset=choice(OFFSETS),
        scale=choice(SCALES),
        outputs=choice((1, 2, 5)),
        n=choice((3, 8, 40, 300)),
        method=choice(("mcbn", "dropout", "mcbn and dropout")),
        device=choice(("cpu", "cuda")),
    )


class Network(nn.Module):
    """The network of these traits."""

    def __init__(self, of: Traits) -> None:
        super().__init__()
        self.of, self.table = of, None
        if of.kind == "image":
            self.first, self.bn = nn.Conv2d(2, WIDTH, 3, padding=1), nn.BatchNorm2d(WIDTH)
        else:
            self.first, self.bn = nn.Linear(4, WIDTH), nn.BatchNorm1d(WIDTH)
        self.drop = nn.Dropout(0.3)
        self.rnn = nn.GRU(WIDTH, WIDTH, batch_first=True) if of.kind == "sequence" else None
        self.second, self.last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, of.outputs)
        self.register_buffer("masked", torch.arange(of.outputs) == of.outputs - 1)
        self.register_buffer("kept", None, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        x = x.clone()
        h = self.first(x)
        h = self.bn(h.transpose(1, 2)).transpose(1, 2) if self.of.kind == "sequence" else self.bn(h)
        h = self.picked(self.drop(torch.relu(h)), x)
        return self.shown(self.last(self.changed(torch.tanh(self.second(h)))), x)

    def picked(self, h: Tensor, x: Tensor) -> Tensor:
        """One row of features for each point."""
        rows, pick = torch.arange(len(x), device=x.device), self.of.pick
        if self.of.kind == "image":
            h = h.flatten(2).transpose(1, 2)  # (n, positions, channels)
        if self.of.kind == "table":
            if pick == "gather":
                return h.gather(1, x.argsort(1).repeat(1, 2))
            if pick == "index of rows":
                return h[rows]
            return h.round(decimals=1) + h.sort(1).values if pick == "ties" else h
        place = (x.flatten(1)[:, : h.shape[1]] > 0).sum(1).clamp(1, h.shape[1]) - 1
        if pick == "packed":
            assert self.rnn is not None
            packed = pack_padded_sequence(h, (place + 1).cpu(), batch_first=True, enforce_sorted=False)
            states, lengths = pad_packed_sequence(self.rnn(packed)[0], batch_first=True)
            return states[rows, lengths.to(rows.device) - 1]
        if pick == "one step a loop":
            state = torch.zeros_like(h[:, 0])
            for step in range(h.shape[1]):
                state = torch.tanh(self.second(state) + h[:, step])
            return state
        if self.rnn is not None:
            h, _ = self.rnn(h)
        if pick == "index of rows":
            return h[rows, place]
        if pick == "gather":
            return h.gather(1, place[:, None, None].expand(-1, 1, WIDTH))[:, 0]
        if pick == "take along":
            return torch.take_along_dim(h, place[:, None, None], 1)[:, 0]
        if pick == "flat":
            return h.reshape(-1, WIDTH)[rows * h.shape[1] + place]
        return h[:, -1] if pick == "last" else h.mean(1)

    def changed(self, h: Tensor) -> Tensor:
        change = self.of.change
        if change == "cache":
            if self.table is None:
                self.table = torch.cos(torch.arange(WIDTH, device=h.device, dtype=h.dtype))
            return h + self.table.to(h.dtype)
        if change == "buffer cache":
            if self.kept is None:
                self.kept = torch.cos(torch.arange(WIDTH, device=h.device, dtype=h.dtype))
            return h * self.kept.to(h.dtype)
        if change == "view written":
            h = h.clone()
            h[:, 1:3] *= 2
            h.view(-1)[::2].add_(0.1)
        elif change == "apply_":
            h = h.detach().cpu().clone().apply_(lambda value: min(value, 0.5)).to(h.device)
        elif change == "branch":
            h = h * 2 if bool(h.mean() > 0.05) else h
        elif change in ("place", "place of three"):
            h = h * (1 + torch.arange(len(h), device=h.device) % (2 if change == "place" else 3))[:, None]
        elif change == "clamp":
            h.data.clamp_(max=0.3)
        return h

    def shown(self, y: Tensor, x: Tensor) -> Tensor:
        """The outputs: on scales of their own, with an offset, and a masked class."""
        scales = torch.tensor([self.of.scale, *[1.0] * (self.of.outputs - 1)], dtype=y.dtype, device=y.device)
        y = y * scales + self.of.offset
        mask = self.of.mask
        if self.of.outputs == 1 or mask == "none":
            return y
        if mask == "added -1e9":
            return y + torch.where(self.masked, -1e9, 0.0)
        if mask == "by point":
            allowed = x.flatten(1)[:, :1] > 0
            return torch.where(self.masked & allowed, -1e4, y)
        return y.masked_fill(self.masked, float(mask))


def made(of: Traits) -> tuple[Network, Tensor, dict[str, Any]]:
    """The network, its points, and the draws of its method."""
    with torch.random.fork_rng():
        torch.manual_seed(of.seed)
        network = Network(of).eval()
        x, reference = torch.randn(of.n, *SHAPES[of.kind]), torch.randn(64, *SHAPES[of.kind])
        for parameter in (network.bn.weight, network.bn.bias):
            nn.init.normal_(parameter, 1.0 if parameter is network.bn.weight else 0.0, 0.3)
    draws: dict[str, Any] = {}
    if "mcbn" in of.method:
        draws["omega"] = bnuq.draw(network, reference, samples=SAMPLES, batch_size=8, seed=of.seed)
    if "dropout" in of.method:
        draws["dropout"] = Dropout(SAMPLES, seed=of.seed)
    return network, x, draws


def reference_passes(network: Network, x: Tensor, draws: dict[str, Any]) -> Tensor:
    """The passes in float64. The statistics of a draw are written into the network's buffers, masks are drawn by the
    plain loop."""
    twin, wide = copy.deepcopy(network).double(), x.double()
    omega: BatchStatistics | None = draws.get("omega")
    if omega is not None and "dropout" not in draws:
        outputs = []
        for mean, var in zip(omega.layers[0].mean, omega.layers[0].var, strict=True):
            twin.bn.running_mean, twin.bn.running_var = (torch.from_numpy(v).double() for v in (mean, var))
            with torch.no_grad():
                outputs.append(twin(wide))
        return torch.stack(outputs)
    loop = PlainLoop(network, find_sites(network, x[:3]), **draws)
    return loop.in_float64(twin, find_sites(twin, wide[:3])).passes(wide)


def deviation(outputs: Tensor, expected: Tensor) -> float:
    """The largest deviation of an output in units of its standard deviation over the draws, beyond what rounding in
    float32 explains; infinite where what is not finite differs."""
    outputs = outputs.double()
    if outputs.shape != expected.shape or not torch.equal(outputs.isfinite(), expected.isfinite()):
        return float("inf")
    outputs, expected = (torch.where(t.isfinite(), t, 0.0) for t in (outputs, expected))
    spread = (expected - expected.mean(0)).square().mean((0, 1)).sqrt()
    rounding = 64 * torch.finfo(torch.float32).eps * expected.abs().amax(0)  # of each point
    error = ((outputs - expected).abs() - rounding).clamp_min(0).square().mean((0, 1)).sqrt()
    return float(torch.where(error > 0, error / spread.clamp_min(torch.finfo(torch.float64).tiny), 0.0).max())
