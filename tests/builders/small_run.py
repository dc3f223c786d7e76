"""A network so small that a whole evaluation takes a fraction of a second: architecture, weights, data, run file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch
from torch import nn

from bnuq.config import Options, resolve
from bnuq.records.evaluation import Result
from bnuq.workflows.evaluate import evaluate

NET = '''"""A tiny network with BatchNorm and dropout."""

from torch import nn


def net(classes: int = 3, rate: float = 0.4, norm: bool = True) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, bias=False),
        nn.BatchNorm2d(4) if norm else nn.Identity(),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(64, 8),
        nn.ReLU(),
        nn.Dropout(rate),
        nn.Linear(8, classes),
    )
'''

DEVIATION = 0.25
NOISY = f'''
from torch.nn import functional as F

from bnuq.nn import standard_normal


class Noisy(nn.Linear):
    """A dense layer whose weights have a deviation of {DEVIATION}."""

    def forward(self, x):
        noise = standard_normal(self.weight, training=self.training)
        return F.linear(x, self.weight + {DEVIATION} * noise, self.bias)
'''

RUN = """[model]
checkpoint = "model.pt"
arch = "net.py:net"
train_batch_size = 16

[data]
train = "train.npz"
test = "test.npz"
ood = ["other.npz"]

[sampling]
samples = 8
"""

TRAIN, TEST, OTHER, CLASSES, SAMPLES = 96, 60, 50, 3, 8


def write(folder: Path, *, run_file: str = "run.toml", text: str = RUN, **arch_args: Any) -> Path:
    """Everything that `bnuq evaluate run.toml` needs, in `folder`; the path of the run file."""
    folder.mkdir(exist_ok=True)
    (folder / "net.py").write_text(NET)
    random = np.random.default_rng(0)
    train, test = (random.normal(0.5, 0.3, (n, 1, 6, 6)).astype(np.float32) for n in (TRAIN, TEST))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = network(**arch_args)
        for layer in model:
            if isinstance(layer, nn.Conv2d | nn.Linear):
                nn.init.normal_(layer.weight, std=1.5 / layer.weight[0].numel() ** 0.5)
        settle(model, torch.from_numpy(train))
        with torch.no_grad():
            labels = model(torch.from_numpy(test)).argmax(1).numpy()
    labels[::5] = (labels[::5] + 1) % CLASSES  # some errors
    torch.save(model.state_dict(), folder / "model.pt")
    np.savez(folder / "train.npz", x=train, y=random.integers(0, CLASSES, TRAIN))
    np.savez(folder / "test.npz", x=test, y=labels)
    np.savez(folder / "other.npz", x=random.normal(1.0, 1.0, (OTHER, 1, 6, 6)).astype(np.float32))
    (folder / run_file).write_text(text)
    return folder / run_file


def write_noisy(folder: Path) -> Path:
    """The same, with noise of the weights in the dense layers."""
    place = write(folder)
    head, function = NET.replace("nn.Linear(", "Noisy(").split("\n\n\n")
    (folder / "net.py").write_text(f"{head}\n{NOISY}\n\n{function}")
    return place


def network(**arch_args: Any) -> nn.Sequential:
    namespace: dict[str, Any] = {}
    exec(NET, namespace)
    return namespace["net"](**arch_args)


def stored(folder: Path, **arch_args: Any) -> nn.Sequential:
    """The network in evaluation mode, with the weights that lie in `folder`."""
    model = network(**arch_args).eval()
    model.load_state_dict(torch.load(folder / "model.pt", weights_only=True))
    return model


def logits_of(folder: Path, name: str) -> np.ndarray:
    """What the network in `folder` gives for the points of a set."""
    with torch.no_grad():
        return stored(folder)(torch.from_numpy(np.load(folder / f"{name}.npz")["x"])).double().numpy()


def labels_of(folder: Path, name: str) -> np.ndarray:
    return np.load(folder / f"{name}.npz")["y"]


def settle(model: nn.Sequential, images: torch.Tensor) -> None:
    """Give every BatchNorm the running statistics of its training data, as training would."""
    for layer in model:
        if isinstance(layer, nn.BatchNorm2d):
            layer.reset_running_stats()
            layer.momentum = None  # a plain average
    model.train()
    with torch.no_grad():
        for _ in range(24):
            model(images[torch.randperm(len(images))[:16]])
    model.eval()


def old_result(path: Path) -> bytes:
    """What a run may replace at `path`: as little of a result file as is one; its bytes."""
    with h5py.File(path, "w") as file:
        file.attrs["format"], file.attrs["bnuq"] = 1, "0.0.1"
    return path.read_bytes()


def evaluated(folder: Path, *, run_file: str = "run.toml", **options: Any) -> Result:
    """The result of the run file in `folder`, with these options."""
    return evaluate(resolve(run_file, Options(**options), folder=folder))
