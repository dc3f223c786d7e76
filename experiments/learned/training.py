"""Trains a network with learned noise and measures it, keeping what is finished."""

from __future__ import annotations

import copy
import hashlib
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import bnuq
from bnuq.files.journal import Arrays, Journal
from bnuq.progress import Advance
from bnuq.randomness import generators_restored
from bnuq.sampling.plain_loop import Evaluation
from bnuq.shapes import Float64
from experiments.layers import StochasticScale, kl, project
from experiments.layers.learned import positive
from experiments.learned import networks
from experiments.work import SETS, code_of, pictures_of

BATCH_SIZE, RATE = 32, 2e-3  # of Adam, whose rate falls to 0 along a cosine
SCALE_RATE = 2e-2  # of the deviations of Bayesian scales: constant, so that they can go where they want to
STILL, LONGER = 0.02, 2  # relative change in an epoch up to which deviations count as settled; times the epochs at most
DISTURBED = {  # noise of this sd, or a step of this size along the signs of the loss's gradient, of pixels of 0 to 1
    "noise 0.2": (0.2, 0.0),
    "FGSM 0.02": (0.0, 0.02),
}
DISTURBED_POINTS = 200
COVERAGES = (0.2, 0.4, 0.6, 0.8, 1.0)


@dataclass(frozen=True)
class Data:
    """Normalised images (n, c, h, w) and labels (n), of training and test, in one file."""

    path: Path

    @cached_property
    def arrays(self) -> dict[str, Tensor]:
        with np.load(self.path) as arrays:
            found = {name: torch.from_numpy(arrays[name]) for name in ("x", "y", "test_x", "test_y")}
        mean, std = found["x"].mean((0, 2, 3), keepdim=True), found["x"].std((0, 2, 3), keepdim=True)
        return found | {name: (found[name] - mean) / std for name in ("x", "test_x")} | {"mean": mean, "std": std}


def write_data(name: str, path: Path, *, images: int, limit: int, data_root: Path | None) -> str:
    """Write the first `images` of training and the first `limit` of test to `path`, scaled to 0–1; their digest.

    DataError where a set is not there, or has fewer training images.
    """
    arrays: dict[str, np.ndarray] = {}
    for reference, prefix, most in zip(SETS[name], ("", "test_"), (images, limit), strict=False):
        x, y = (part[:most] for part in pictures_of(reference, data_root, least=0 if prefix else most))
        arrays |= {f"{prefix}x": (x / np.float32(255)).astype(np.float32), f"{prefix}y": y}
    np.savez(path, **arrays)  # pyrefly: ignore
    return hashlib.sha256(b"".join(values.tobytes() for values in arrays.values())).hexdigest()


@dataclass(frozen=True)
class Job:
    """A network to train and measure. `options` are those of its function in `networks`; `projected` weights are scaled
    to norm 1 after every step; with `mcbn` samples are drawn by mini-batches, not or not only by learned noise. In
    training BatchNorm normalises over `normalized_over` images, of which the first 32 alone have a loss."""

    of: str  # the set
    name: str
    function: Literal["all_cnn", "dense", "small", "resnet32"]
    options: tuple[tuple[str, Any], ...]
    epochs: int
    samples: int
    seed: int
    data: Path
    sha256: str
    folder: Path
    projected: bool = False
    mcbn: bool = False
    learned: bool = False
    normalized_over: int = BATCH_SIZE

    @property
    def journal(self) -> Journal:
        settings = {field.name: getattr(self, field.name) for field in fields(self)}
        del settings["data"], settings["folder"]
        facts = {"torch": torch.__version__, "code": code_of("layers", "learned", "descent"), **settings}
        return Journal(self.folder, facts | {"options": list(map(list, self.options))})

    def finished(self) -> Arrays | None:
        return self.journal.load("network")


def train(job: Job, advance: Advance) -> None:
    """Train and measure the network of `job`, unless that is done."""
    if job.finished() is not None:
        advance(job.epochs)
        return
    started = time.process_time()
    data = Data(job.data).arrays
    images, labels = data["x"], data["y"]
    with generators_restored():
        torch.manual_seed(job.seed)
        network = getattr(networks, job.function)(images, **dict(job.options)).train()
        steps = max(1, job.epochs * (len(images) // BATCH_SIZE))
        optimiser, schedule = _optimiser(network, steps)
        by_epoch: list[Arrays] = []
        for epoch in range((1 + LONGER) * job.epochs):
            if epoch >= job.epochs and _settled(network, by_epoch):
                break
            losses = []
            order = torch.randperm(len(images))
            for rows in order[: len(order) // BATCH_SIZE * BATCH_SIZE].split(BATCH_SIZE):
                others = torch.randperm(len(images))[: job.normalized_over - BATCH_SIZE]
                outputs = network(images[torch.cat([rows, others])])[: len(rows)]
                loss = F.cross_entropy(outputs, labels[rows])
                losses.append(float(loss.detach()))
                optimiser.zero_grad()
                (loss + kl(network) / len(images)).backward()
                optimiser.step()
                schedule.step()
                if job.projected:
                    project(network)
            stand = _stand(network, data) if job.function == "all_cnn" else {}
            by_epoch.append(stand | {"training": np.array(np.mean(losses)), "ratios": ratios(network)})
            if epoch < job.epochs:
                advance(1)
    measured = _measured(job, network.eval(), data)
    measured |= {f"epochs_{name}": np.stack([each[name] for each in by_epoch]) for name in by_epoch[0]}
    job.journal.save("network", measured | {"seconds": np.array(time.process_time() - started)})


def _settled(network: nn.Module, by_epoch: list[Arrays]) -> bool:
    """Whether no deviation of a Bayesian scale moves any more, average by layer; from the end of training on they move
    alone."""
    for name, parameter in network.named_parameters():
        parameter.requires_grad_(name.endswith("scale_u"))
    last = [each["ratios"] for each in by_epoch[-2:]]
    return len(last[-1]) == 0 or (len(last) > 1 and float(np.abs(last[1] / last[0] - 1).max()) <= STILL)


@torch.no_grad()
def _stand(network: nn.Module, data: dict[str, Tensor]) -> Arrays:
    """Losses of the test points with noise as in training, in mini-batches, and without; and of every BatchNorm the
    standard deviations of U = σ/S and V = (M − μ)/σ over these mini-batches, the average over its channels."""
    x, y = data["test_x"], data["test_y"]
    noisy, statistics = copy.deepcopy(network).train(), list[list[tuple[Tensor, Tensor]]]()  # running statistics move
    for layer in noisy.modules():
        if isinstance(layer, nn.modules.batchnorm._BatchNorm):
            statistics.append([])
            layer.register_forward_pre_hook(
                lambda _, inputs, kept=statistics[-1]: kept.append(
                    torch.var_mean(inputs[0], [axis for axis in range(inputs[0].dim()) if axis != 1], correction=0)
                )
            )
    batches = torch.arange(len(x)).split(BATCH_SIZE)[: max(1, len(x) // BATCH_SIZE)]
    in_training = torch.stack([F.cross_entropy(noisy(x[rows]), y[rows]) for rows in batches]).mean()
    sigmas = []
    for kept in statistics:
        variances, means = (torch.stack(each) for each in zip(*kept, strict=True))
        variance = (variances.mean(0) + means.var(0, correction=0)).clamp(min=1e-12)
        u, v = (variance / variances.clamp(min=1e-12)).sqrt(), (means - means.mean(0)) / variance.sqrt()
        sigmas.append([float(each.std(0, correction=min(1, len(batches) - 1)).mean()) for each in (u, v)])
    outputs = torch.cat([network.eval()(rows) for rows in x.split(500)])
    network.train()
    return {
        "in_training": in_training.double().numpy(),
        "in_use": F.cross_entropy(outputs, y).double().numpy(),
        "right": (outputs.argmax(1) == y).double().mean().numpy(),
        "sigmas": np.array(sigmas).reshape(-1, 2),
    }


def _optimiser(network: nn.Module, steps: int) -> tuple[torch.optim.Adam, torch.optim.lr_scheduler.LambdaLR]:
    """Adam with two rates: of deviations of Bayesian scales, and of all else."""
    groups: dict[bool, list[nn.Parameter]] = {False: [], True: []}
    for name, parameter in network.named_parameters():
        groups[name.endswith("scale_u")].append(parameter)
    rates = {
        False: (RATE, lambda step: 0.5 * (1 + math.cos(math.pi * min(1, step / steps)))),
        True: (SCALE_RATE, lambda _: 1.0),
    }
    used = [key for key, parameters in groups.items() if parameters]
    optimiser = torch.optim.Adam([{"params": groups[key], "lr": rates[key][0]} for key in used])
    return optimiser, torch.optim.lr_scheduler.LambdaLR(optimiser, [rates[key][1] for key in used])


def _measured(job: Job, network: nn.Module, data: dict[str, Tensor]) -> Arrays:
    """Log-likelihoods and correctness of the test points, of one pass and of samples; means of training points."""
    x, y, test_x, test_y = (data[name] for name in ("x", "y", "test_x", "test_y"))
    with torch.no_grad():
        divergence = float(kl(network)) / len(x)
    found = {"kl": np.array(divergence), "ratios": ratios(network)}
    (single,) = _log_p(Evaluation(network).passes(test_x), test_y)
    found |= {"single": single, "single_right": _right(Evaluation(network).passes(test_x), test_y)}
    draws: dict[str, Any] = {}
    if job.learned:
        draws["learned"] = bnuq.Learned(job.samples, job.seed)
    if job.mcbn:
        options: dict[str, Any] = {"batch_size": BATCH_SIZE, "seed": job.seed, **draws}
        draws["omega"] = bnuq.draw(network, x, samples=job.samples, **options)
    mean = _mean_log_p(network, test_x, draws)
    if draws:
        found |= {
            "samples": mean.gather(1, test_y[:, None])[:, 0].numpy(),
            "samples_right": (mean.argmax(1) == test_y).double().numpy(),
        }
    if job.function == "all_cnn":
        wrong = (mean.argmax(1) != test_y).double()[(-mean.exp() * mean).sum(1).argsort()]  # the surest come first
        found["coverage"] = np.array([float(wrong[: round(part * len(wrong))].mean()) for part in COVERAGES])
        y = test_y[:DISTURBED_POINTS]
        for name, images in _disturbed(job, network, data):
            log_p = _mean_log_p(network, images, draws)
            found[f"{name}_right"] = (log_p.argmax(1) == y).double().numpy()
            found[name] = log_p.gather(1, y[:, None])[:, 0].numpy()
    if job.function == "dense":
        found |= {
            "training": _expected_log_p(job, network, x, y, of_mini_batches=True),
            "use": _expected_log_p(job, network, x, y, of_mini_batches=False),
        }
    if job.function == "dense" and job.mcbn:  # one W for the mini-batch and the point, whose common noise cancels
        found["one_draw"] = _log_p(bnuq.predict(network, x, **draws), y).mean(1)
    return found


def _mean_log_p(network: nn.Module, x: Tensor, draws: dict[str, Any]) -> Tensor:
    """ln of the mean probability of the classes over samples, or of one pass where there are no draws."""
    outputs = bnuq.predict(network, x, **draws) if draws else Evaluation(network).passes(x)
    return torch.logsumexp(outputs.double().log_softmax(2), 0) - math.log(len(outputs))


def _disturbed(job: Job, network: nn.Module, data: dict[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """The first test images with noise, and after one step along the signs of the gradient of one pass's loss."""
    x, y = data["test_x"][:DISTURBED_POINTS], data["test_y"][:DISTURBED_POINTS]
    noise = torch.randn(x.shape, generator=torch.Generator().manual_seed(job.seed))
    asked = x.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(F.cross_entropy(network(asked), y), asked)
    for name, (sd, step) in DISTURBED.items():
        pixels = x * data["std"] + data["mean"] + sd * noise + step * gradient.sign()
        yield name, (pixels.clamp(0, 1) - data["mean"]) / data["std"]


def _expected_log_p(
    job: Job, network: nn.Module, x: Tensor, y: Tensor, *, of_mini_batches: bool
) -> Float64[np.ndarray, " round"]:
    """E ln p of the training points with weights as training draws them, in nats: of each of `job.samples` rounds
    through all points in new mini-batches. BatchNorm has the statistics of the mini-batch that the point is in, or
    those of the population; with the latter points do not depend on each other, so that weights drawn for each point
    have the same expectation as weights drawn once."""
    network = copy.deepcopy(network).train()  # whose running statistics move
    for layer in network.modules():
        if isinstance(layer, nn.modules.batchnorm._BatchNorm):
            layer.train(of_mini_batches)
    found = []
    with generators_restored(), torch.no_grad():
        torch.manual_seed(job.seed)
        for _ in range(job.samples):
            rows = torch.randperm(len(x))[: len(x) // BATCH_SIZE * BATCH_SIZE].split(BATCH_SIZE)
            found.append(np.mean([_log_p(network(x[of])[None], y[of]).mean() for of in rows]))
    return np.array(found)


def _log_p(outputs: Tensor, labels: Tensor) -> Float64[np.ndarray, "sample point"]:
    """ln p of the labels, nats."""
    log_p = outputs.double().log_softmax(2)
    return log_p.gather(2, labels.expand(len(outputs), -1)[..., None])[..., 0].numpy()


def _right(outputs: Tensor, labels: Tensor) -> Float64[np.ndarray, " point"]:
    return (outputs[0].argmax(1) == labels).double().numpy()


def ratios(network: nn.Module) -> Float64[np.ndarray, " layer"]:
    """σ_S / |s| of every Bayesian scale, the average over its channels."""
    found = [
        float((positive(layer.scale_u) / layer.scale.abs()).detach().mean())
        for layer in network.modules()
        if isinstance(layer, StochasticScale) and layer.scale_u is not None
    ]
    return np.array(found, dtype=np.float64)
