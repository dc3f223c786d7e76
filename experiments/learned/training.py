"""Trains a network with learned noise and measures it, keeping what is finished."""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import bnuq
from bnuq.data.known import data_roots, read_known
from bnuq.errors import DataError
from bnuq.files.content import sha256_of_file
from bnuq.files.journal import Arrays, Journal
from bnuq.progress import Advance
from bnuq.randomness import generators_restored
from bnuq.sampling.plain_loop import Evaluation
from bnuq.shapes import Float64
from experiments.layers import StochasticScale, kl, project, scales
from experiments.layers.learned import positive
from experiments.learned import networks

BATCH_SIZE, RATE = 32, 2e-3  # of Adam, whose rate falls to 0 along a cosine
FILES = {  # by set: training and test images below the data root
    "fashion-mnist": ("fashion-mnist:train", "fashion-mnist:test"),
    "cifar10": ("cifar10/lossless_train.npz", "cifar10/lossless_test.npz"),
}
_TRAINER = 2  # raised whenever the code gives other networks


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

    DataError where a set is not there.
    """
    arrays: dict[str, np.ndarray] = {}
    for reference, prefix, most in zip(FILES[name], ("", "test_"), (images, limit), strict=True):
        if reference.endswith(".npz"):
            file = next((file for root in data_roots(data_root) if (file := root / reference).is_file()), None)
            if file is None:
                raise DataError(f"{reference} is in no folder of data sets. Name one: --data-root DIR, or $BNUQ_DATA.")
            with np.load(file) as contents:
                x, y = contents["x"], contents["y"]
        else:
            found, _, _ = read_known(reference, split_default="train", data_root=data_root)
            assert found.targets is not None
            x, y = np.asarray(found.inputs), np.asarray(found.targets)
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
    function: Literal["all_cnn", "dense"]
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
        facts = {
            "trainer": _TRAINER,
            "torch": torch.__version__,
            "code": [sha256_of_file(Path(str(module.__file__))) for module in (networks, scales)],
            **{key: getattr(self, key) for key in ("of", "name", "function", "epochs", "samples", "seed", "sha256")},
            "options": list(map(list, self.options)),
        }
        return Journal(self.folder, facts)

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
        optimiser = torch.optim.Adam(network.parameters(), lr=RATE)
        steps = job.epochs * (len(images) // BATCH_SIZE)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, max(1, steps))
        for _ in range(job.epochs):
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
    measured = _measured(job, network.eval(), data)
    job.journal.save("network", measured | {"seconds": np.array(time.process_time() - started)})


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
            "train": _log_p(bnuq.predict(network, x, **draws), y).mean(1),
        }
    if job.mcbn and job.learned:  # the same draws of weights, with population statistics
        found["train_population"] = _log_p(bnuq.predict(network, x, learned=draws["learned"]), y).mean(1)
    return found


def _log_p(outputs: Tensor, labels: Tensor) -> Float64[np.ndarray, "sample point"]:
    """ln p of the labels, nats."""
    log_p = outputs.double().log_softmax(2)
    return log_p.gather(2, labels.expand(len(outputs), -1)[..., None])[..., 0].numpy()


def _right(outputs: Tensor, labels: Tensor) -> Float64[np.ndarray, " point"]:
    return (outputs[0].argmax(1) == labels).double().numpy()


def ratios(network: nn.Module) -> Float64[np.ndarray, " layer"]:
    """σ_S / |s| of every Bayesian scale, the median over its channels."""
    found = [
        float((positive(layer.scale_u) / layer.scale.abs()).detach().median())
        for layer in network.modules()
        if isinstance(layer, StochasticScale) and layer.scale_u is not None
    ]
    return np.array(found, dtype=np.float64)
