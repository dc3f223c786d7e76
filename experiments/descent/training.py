"""Trains a residual network by SGD, keeps every finished epoch, and watches averages of its BatchNorm's statistics."""

from __future__ import annotations

import io
import time
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bnuq.files.journal import Arrays
from bnuq.progress import Advance
from bnuq.randomness import generators_restored
from experiments.descent import networks
from experiments.learned.training import Job

PAD = 2  # pixels on every side, of which as many are cropped away at random


class Averages:
    """Exponential averages of BatchNorm's mini-batch statistics with several λ, found from what one update of the
    running statistics changes. All begin at mean 0 and variance 1, as the running statistics do."""

    def __init__(self, network: nn.Module, decays: tuple[float, ...]) -> None:
        layers = {name: each for name, each in network.named_modules() if isinstance(each, nn.BatchNorm2d)}
        parts: Any = [part for layer in layers.values() for part in (layer.running_mean, layer.running_var)]
        self.layers, self.sizes, self._parts = tuple(layers), [len(part) for part in parts], parts
        self._decays, self._before = torch.tensor(decays)[:, None], self.running()
        self.values = self._before.repeat(len(decays), 1)

    def running(self) -> Tensor:
        """The running statistics, in one row."""
        return torch.cat(self._parts)

    def put(self, row: Tensor) -> None:
        """Make these the running statistics."""
        for part, values in zip(self._parts, row.split(self.sizes), strict=True):
            part.copy_(values)

    def step(self, momentum: float = 0.1) -> None:
        """Take the statistics of the mini-batch that just went through the network."""
        after = self.running()
        of_batch = (after - (1 - momentum) * self._before) / momentum
        self.values, self._before = self._decays * self.values + (1 - self._decays) * of_batch, after


def train(job: Job, advance: Advance) -> None:
    """Train the network of `job` by SGD of momentum 0.9 and measure it after every epoch, unless that is done; an
    interrupted training goes on after its last whole epoch.

    Of its options `rate` rises in the first `warm_up` epochs and falls to a tenth after each of `drops`, shares of the
    epochs; `decays` are the λ that are watched; `points` training images give precise statistics."""
    if job.finished() is not None:
        advance(job.epochs)
        return
    options = dict(job.options)
    with np.load(job.data) as arrays:
        data = {name: torch.from_numpy(arrays[name]) for name in ("x", "y", "test_x", "test_y")}
    with generators_restored():
        torch.manual_seed(job.seed)
        network = getattr(networks, job.function)(options["width"]).to(memory_format=torch.channels_last).train()
    optimiser = torch.optim.SGD(network.parameters(), 0.0, momentum=0.9, weight_decay=options["weight_decay"])
    averages, measured, done, seconds = Averages(network, options["decays"]), Arrays(), 0, 0.0
    if (kept := job.journal.load("state")) is not None:
        state = torch.load(io.BytesIO(kept.pop("state").tobytes()), weights_only=True)
        network.load_state_dict(state["network"])
        optimiser.load_state_dict(state["optimiser"])
        averages.values, averages._before = state["averages"], averages.running()
        done, seconds, measured = int(kept.pop("epoch")), float(kept.pop("seconds")), kept
    advance(done)
    for epoch in range(done, job.epochs):
        started = time.process_time()
        _one_epoch(job, epoch, network, optimiser, averages, data)
        if options["points"]:
            from experiments.descent.precise import measure

            of_epoch = measure(network, averages, data, options, last=epoch + 1 == job.epochs)
            measured |= {f"{epoch + 1}.{name}": values for name, values in of_epoch.items()}
        seconds += time.process_time() - started
        whole = {"network": network.state_dict(), "optimiser": optimiser.state_dict(), "averages": averages.values}
        torch.save(whole, buffer := io.BytesIO())
        of_now = {"epoch": np.array(epoch + 1), "seconds": np.array(seconds)}
        job.journal.save("state", measured | of_now | {"state": np.frombuffer(buffer.getvalue(), "u1")})
        advance(1)
    weights = {f"n.{name}": values.numpy() for name, values in network.state_dict().items()}
    job.journal.save("network", measured | weights | {"seconds": np.array(seconds)})
    job.journal.remove("state")


def _one_epoch(
    job: Job, epoch: int, network: nn.Module, optimiser: torch.optim.SGD, averages: Averages, data: dict[str, Tensor]
) -> None:
    options, random = dict(job.options), np.random.default_rng((job.seed, epoch))
    order = torch.from_numpy(random.permutation(len(data["x"])))
    steps = max(1, len(order) // options["batch_size"])
    for step, rows in enumerate(order.split(options["batch_size"])[:steps]):
        x, done = data["x"][rows], epoch + step / steps
        if options["augment"]:
            x = _augmented(x, random)
        fallen = 0.1 ** sum(done >= drop * job.epochs for drop in options["drops"])
        risen = min(1.0, (done + 1 / steps) / (options["warm_up"] or 1e-9))
        optimiser.param_groups[0]["lr"] = options["rate"] * fallen * risen
        loss = F.cross_entropy(network(x.contiguous(memory_format=torch.channels_last)), data["y"][rows])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        averages.step()


def _augmented(x: Tensor, random: np.random.Generator) -> Tensor:
    """Each image cropped out of its padded form, and flipped half of the time."""
    size, padded = x.shape[-1], F.pad(x, (PAD,) * 4)
    places, flips = random.integers(0, 2 * PAD + 1, (len(x), 2)), random.random(len(x)) < 0.5
    crops = [one[:, i : i + size, j : j + size] for one, (i, j) in zip(padded, places, strict=True)]
    return torch.stack([crop.flip(2) if flip else crop for crop, flip in zip(crops, flips, strict=True)])
