"""Trains a network with learned noise and measures it, keeping what is finished."""

from __future__ import annotations

import copy
import hashlib
import math
import time
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import bnuq
from bnuq.data.known import read_known
from bnuq.errors import DataError
from bnuq.files.journal import Arrays, Journal
from bnuq.progress import Advance
from bnuq.randomness import generators_restored
from bnuq.sampling.plain_loop import Evaluation
from bnuq.shapes import Float64
from experiments.layers import StochasticScale, kl, project
from experiments.layers.learned import positive
from experiments.learned import networks
from experiments.work import code_of, pictures_of

BATCH_SIZE, RATE = 32, 2e-3  # of Adam, whose rate falls to 0 along a cosine
SCALE_RATE = 2e-2  # of the deviations of Bayesian scales: constant, so that they can go where they want to
FILES = {  # by set: training and test images below the data root
    "fashion-mnist": ("fashion-mnist:train", "fashion-mnist:test"),
    "cifar10": ("cifar10/lossless_train.npz", "cifar10/lossless_test.npz"),
}


@dataclass(frozen=True)
class Data:
    """Normalised images (n, c, h, w) and labels (n), of training and test, in one file."""

    path: Path

    @cached_property
    def arrays(self) -> dict[str, Tensor]:
        with np.load(self.path) as arrays:
            found = {name: torch.from_numpy(arrays[name]) for name in ("x", "y", "test_x", "test_y")}
        mean, std = found["x"].mean((0, 2, 3), keepdim=True), found["x"].std((0, 2, 3), keepdim=True)
        return found | {name: (found[name] - mean) / std for name in ("x", "test_x")}


def write_data(name: str, path: Path, *, images: int, limit: int, data_root: Path | None) -> str:
    """Write the first `images` of training and the first `limit` of test to `path`, scaled to 0–1; their digest.

    DataError where a set is not there, or has fewer training images.
    """
    arrays: dict[str, np.ndarray] = {}
    for reference, prefix, most in zip(FILES[name], ("", "test_"), (images, limit), strict=True):
        if reference.endswith(".npz"):
            x, y = pictures_of(reference, data_root)
        else:
            found, _, _ = read_known(reference, split_default="train", data_root=data_root)
            assert found.targets is not None
            x, y = np.asarray(found.inputs), np.asarray(found.targets)
        if not prefix and len(x) < most:
            raise DataError(
                f"{reference} has {len(x):,} images, fewer than --images {most:,}. Ask for as many at most."
            )
        x = x[:most, None] if x.ndim == 3 else x[:most].transpose(0, 3, 1, 2)
        arrays |= {f"{prefix}x": (x / np.float32(255)).astype(np.float32), f"{prefix}y": y[:most].astype(np.int64)}
    np.savez(path, **arrays)  # pyrefly: ignore
    return hashlib.sha256(b"".join(values.tobytes() for values in arrays.values())).hexdigest()


@dataclass(frozen=True)
class Job:
    """A network to train and measure. `options` are those of its function in `networks`; `projected` weights are scaled
    to norm 1 after every step; with `mcbn` samples are drawn by mini-batches, not or not only by learned noise."""

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
        ratios_before = ratios(network)
        for epoch in range(job.epochs):
            if epoch == 3 * job.epochs // 4:
                ratios_before = ratios(network)
            order = torch.randperm(len(images))
            for rows in order[: len(order) // BATCH_SIZE * BATCH_SIZE].split(BATCH_SIZE):
                loss = F.cross_entropy(network(images[rows]), labels[rows]) + kl(network) / len(images)
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
                schedule.step()
                if job.projected:
                    project(network)
            advance(1)
    measured = _measured(job, network.eval(), data) | {"ratios_before": ratios_before}
    job.journal.save("network", measured | {"seconds": np.array(time.process_time() - started)})


def _optimiser(network: nn.Module, steps: int) -> tuple[torch.optim.Adam, torch.optim.lr_scheduler.LambdaLR]:
    """Adam with two rates: of deviations of Bayesian scales, and of all else."""
    groups: dict[bool, list[nn.Parameter]] = {False: [], True: []}
    for name, parameter in network.named_parameters():
        groups[name.endswith("scale_u")].append(parameter)
    rates = {
        False: (RATE, lambda step: 0.5 * (1 + math.cos(math.pi * step / steps))),
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
    if draws:
        outputs = bnuq.predict(network, test_x, **draws)
        mean = torch.logsumexp(outputs.double().log_softmax(2), 0) - np.log(job.samples)
        found |= {
            "samples": mean.gather(1, test_y[:, None])[:, 0].numpy(),
            "samples_right": (mean.argmax(1) == test_y).double().numpy(),
        }
    if job.function == "dense":
        found |= {
            "training": _expected_log_p(job, network, x, y, of_mini_batches=True),
            "use": _expected_log_p(job, network, x, y, of_mini_batches=False),
        }
    if job.function == "dense" and job.mcbn:  # one W for the mini-batch and the point, whose common noise cancels
        found["one_draw"] = _log_p(bnuq.predict(network, x, **draws), y).mean(1)
    return found


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
