"""One network trained with mini-batches of one size: what is finished is kept, what was interrupted goes on."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bnuq.files.journal import Arrays, Journal
from bnuq.progress import Advance
from bnuq.randomness import generators_restored
from bnuq.shapes import Float32, Float64, Int64
from experiments.batch_size import networks
from experiments.work import code_of

PIXELS = {  # means and standard deviations of training pixels by channel, scaled to 0-1
    "fashion-mnist": ((0.2860,), (0.3530,)),
    "cifar10": ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
}
MOMENTUM, WEIGHT_DECAY = 0.9, 5e-4
_WARM_UP = 0.05  # of the steps, in which the rate of a cosine rises
_CHUNK = 1000  # images at a time when a finished network is measured


@dataclass(frozen=True)
class Recipe:
    """The rate of SGD (momentum 0.9, weight decay 5e-4 on every parameter), and its way down.

    `cosine`: `rate` × √(M / 128) at its peak, after a rise over the first 5 % of the steps, down to 0.
    `steps`: `rate` whatever M, a tenth of it after 40 % of the steps and a hundredth after 60 %.

    Source: Mukhoti et al. 2020 on Fashion-MNIST: 100 epochs, with drops at 40 and 60.
    """

    schedule: Literal["cosine", "steps"] = "cosine"
    rate: float = 0.1
    drops: tuple[float, float] = (0.4, 0.6)  # of the steps, after each of which a stepped rate falls to a tenth

    def rate_at(self, step: int, *, steps: int, batch_size: int) -> float:
        """The rate of the step of that number, counted from 0, of so many."""
        if self.schedule == "steps":
            return self.rate * 0.1 ** sum(step >= drop * steps for drop in self.drops)
        peak, rise = self.rate * math.sqrt(batch_size / 128), max(1, round(_WARM_UP * steps))
        if step < rise:
            return peak * (step + 1) / rise
        return peak * 0.5 * (1 + math.cos(math.pi * (step - rise) / max(1, steps - rise)))


@dataclass(frozen=True)
class Job:
    """A network to train: `steps` mini-batches of `batch_size` out of the images in `data`, whose digest is `sha256`.

    All jobs of one architecture and seed begin with the same weights and see the same order of images.
    """

    architecture: str
    batch_size: int
    steps: int
    images: int
    recipe: Recipe
    seed: int
    device: str
    data: Path
    sha256: str
    folder: Path
    of: str = "fashion-mnist"  # whose pixels are normalised
    test: Path | None = None  # images that are watched after every epoch, part of the digest

    @property
    def per_epoch(self) -> int:
        """Mini-batches an epoch; images that fill none are left out, others in every epoch."""
        return self.images // self.batch_size

    @property
    def share(self) -> int:
        """The total of its progress: images, in thousands."""
        return max(1, self.steps * self.batch_size // 1000)

    @property
    def journal(self) -> Journal:
        """The finished network, "network", and until then the state of its training, "state"."""
        facts = {
            "torch": torch.__version__,
            "code": code_of("batch_size"),
            "architecture": self.architecture,
            "batch_size": self.batch_size,
            "steps": self.steps,
            "images": self.images,
            "recipe": asdict(self.recipe),
            "seed": self.seed,
            "device": torch.device(self.device).type,
            "data": self.sha256,
            "of": self.of,
        }
        return Journal(self.folder, facts)

    def finished(self) -> Trained | None:
        """The finished network; None where it is not finished."""
        arrays = self.journal.load("network")
        if arrays is None:
            return None
        loss, accuracy, seconds = (float(arrays[name]) for name in ("loss", "accuracy", "seconds"))
        return Trained(loss, accuracy, seconds, _tensors(arrays, _NETWORK), arrays["curves"])


@dataclass(frozen=True)
class Trained:
    """A finished network on the images it was trained on, in evaluation mode: mean cross-entropy in nats, accuracy in
    [0, 1]; `seconds` of CPU time (wall time on a GPU), over all sittings; its state dict; and `curves` of every epoch:
    the mean loss of its mini-batches, and in evaluation mode loss and accuracy of the test images."""

    loss: float
    accuracy: float
    seconds: float
    state: dict[str, Tensor]
    curves: Float64[np.ndarray, "epoch 3"]


def train(job: Job, advance: Advance) -> None:
    """Make the network of `job`, unless it is finished; an interrupted one goes on after its last whole epoch.

    On a CPU the weights are the same whether or not it was interrupted. Raises ResultError where the journal cannot be
    written.
    """
    if job.finished() is not None:
        advance(job.share)
        return
    device = torch.device(job.device)
    images, labels = _loaded(job.data, device)
    test = None if job.test is None else _loaded(job.test, device)
    with generators_restored():
        torch.manual_seed(job.seed)
        network = getattr(networks, job.architecture)(**arguments(job))
    network = network.to(device=device, memory_format=torch.channels_last).train()
    optimiser = torch.optim.SGD(network.parameters(), lr=0.0, momentum=MOMENTUM, weight_decay=WEIGHT_DECAY)
    clock = time.process_time if device.type == "cpu" else time.perf_counter
    done, before, curves = _taken_up(job, network, optimiser)
    losses = list[Tensor]()
    started, reported = clock(), done * job.batch_size // 1000
    advance(reported)
    order = _order(job, done // job.per_epoch).to(device)
    for step in range(done, job.steps):
        if step % job.per_epoch == 0:
            order = _order(job, step // job.per_epoch).to(device)
        first = step % job.per_epoch * job.batch_size
        rows = order[first : first + job.batch_size]
        for group in optimiser.param_groups:
            group["lr"] = job.recipe.rate_at(step, steps=job.steps, batch_size=job.batch_size)
        loss = F.cross_entropy(network(_fed(job, images[rows])), labels[rows])
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        optimiser.step()
        losses.append(loss.detach())
        if (now := (step + 1) * job.batch_size // 1000) > reported:
            advance(now - reported)
            reported = now
        is_last = step + 1 == job.steps
        if test is not None and ((step + 1) % job.per_epoch == 0 or is_last):
            stand = float(torch.stack(losses).mean()), *_measured(job, network.eval(), *test)
            curves, losses = np.vstack([curves, stand]), []
            network.train()
        if (step + 1) % job.per_epoch == 0 and not is_last:
            _keep(job, network, optimiser, step + 1, before + clock() - started, curves)
    advance(max(0, job.share - reported))
    loss, accuracy = _measured(job, network.eval(), images, labels)
    measured = {"loss": loss, "accuracy": accuracy, "seconds": before + clock() - started}
    values = {name: np.array(value) for name, value in measured.items()} | {"curves": curves}
    job.journal.save("network", values | _arrays(_NETWORK, network.state_dict()))
    job.journal.remove("state")


def _loaded(data: Path, device: torch.device) -> tuple[Tensor, Int64[Tensor, " n"]]:
    with np.load(data) as arrays:
        return torch.from_numpy(arrays["x"]).to(device), torch.from_numpy(arrays["y"]).to(device)


def arguments(job: Job) -> dict[str, int]:
    """Those of its architecture: the number of channels, where it is not 1."""
    channels = len(PIXELS[job.of][0])
    return {} if channels == 1 else {"channels": channels}


def _fed(job: Job, images: Tensor) -> Float32[Tensor, "n c h w"]:
    """Images of bytes as bnuq's own pipeline gives them to a network: scaled to 0-1, then normalised."""
    mean, std = (torch.tensor(values, device=images.device).view(-1, 1, 1) for values in PIXELS[job.of])
    return ((images.float() / 255 - mean) / std).contiguous(memory_format=torch.channels_last)


def _order(job: Job, epoch: int) -> Int64[Tensor, " n"]:
    """The images of an epoch, from the seed and its number alone, so that no state has to be kept for it."""
    return torch.from_numpy(np.random.default_rng((job.seed, epoch)).permutation(job.images))


@torch.inference_mode()
def _measured(job: Job, network: nn.Module, images: Tensor, labels: Tensor) -> tuple[float, float]:
    logits = torch.cat([network(_fed(job, chunk)) for chunk in images.split(_CHUNK)]).double()
    return F.cross_entropy(logits, labels).item(), (logits.argmax(1) == labels).double().mean().item()


# ── interrupted training ──────────────────────────────────────────────────────────────────────────────────────────────


def _keep(
    job: Job, network: nn.Module, optimiser: torch.optim.SGD, step: int, seconds: float, curves: np.ndarray
) -> None:
    momenta = {name: optimiser.state[parameter]["momentum_buffer"] for name, parameter in network.named_parameters()}
    stand = {"step": np.array(step), "seconds": np.array(seconds), "curves": curves}
    job.journal.save("state", stand | _arrays(_NETWORK, network.state_dict()) | _arrays(_MOMENTUM, momenta))


def _taken_up(job: Job, network: nn.Module, optimiser: torch.optim.SGD) -> tuple[int, float, np.ndarray]:
    """Steps, seconds and curves of an earlier sitting, whose state is loaded; none where it left none."""
    arrays = job.journal.load("state")
    if arrays is None:
        return 0, 0.0, np.empty((0, 3))
    network.load_state_dict(_tensors(arrays, _NETWORK))
    momenta = _tensors(arrays, _MOMENTUM)
    for name, parameter in network.named_parameters():
        optimiser.state[parameter]["momentum_buffer"] = torch.empty_like(parameter).copy_(momenta[name])
    return int(arrays["step"]), float(arrays["seconds"]), arrays["curves"]


_NETWORK, _MOMENTUM = "network.", "momentum."  # how the names of tensors begin in a unit


def _arrays(prefix: str, tensors: Mapping[str, Tensor]) -> Arrays:
    return {f"{prefix}{name}": tensor.detach().cpu().contiguous().numpy() for name, tensor in tensors.items()}


def _tensors(arrays: Arrays, prefix: str) -> dict[str, Tensor]:
    return {
        name.removeprefix(prefix): torch.from_numpy(values)
        for name, values in arrays.items()
        if name.startswith(prefix)
    }
