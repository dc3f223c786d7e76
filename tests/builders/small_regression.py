"""A regression so small that a whole evaluation takes a fraction of a second: architecture, weights, data, run file."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from bnuq.config import Options, resolve
from bnuq.records.evaluation import Result
from bnuq.workflows.evaluate import evaluate

NET = '''"""A tiny network with BatchNorm and dropout."""

from torch import nn


def net(outputs: int = 1, rate: float = 0.2) -> nn.Module:
    return nn.Sequential(
        nn.Linear(3, 16, bias=False),
        nn.BatchNorm1d(16),
        nn.ReLU(),
        nn.Dropout(rate),
        nn.Linear(16, outputs),
    )
'''

RUN = """[model]
checkpoint = "model.pt"
arch = "net.py:net"
task = "regression"
train_batch_size = 16

[data]
train = "train.npz"
test = "test.npz"
validation = "validation.npz"
ood = ["far.npz"]
normalize = "train"
normalize_targets = "train"

[sampling]
samples = 16
"""

TRAIN, TEST, VALIDATION, FAR = 96, 60, 40, 40

_states: dict[int, dict[str, torch.Tensor]] = {}
"""Of networks that were trained in this process, by their number of outputs."""


def write(folder: Path, *, text: str = RUN, outputs: int = 1, last_unit: float = 1.0) -> Path:
    """Everything that `bnuq evaluate run.toml` needs, in `folder`; the path of the run file.

    Targets are 50 ± 20 or so, the last divided by its unit, and their noise grows with the first input, so that there
    is something to rank.
    """
    folder.mkdir(exist_ok=True)
    (folder / "net.py").write_text(NET)
    random = np.random.default_rng(0)
    for name, count in {"train": TRAIN, "test": TEST, "validation": VALIDATION}.items():
        x, y = _points(random, count, outputs)
        y[:, -1] /= last_unit
        np.savez(folder / f"{name}.npz", x=x, y=y)
    np.savez(folder / "far.npz", x=random.normal(3.0, 3.0, (FAR, 3)).astype(np.float32))
    torch.save(_trained(outputs).state_dict(), folder / "model.pt")
    (folder / "run.toml").write_text(text)
    return folder / "run.toml"


def _points(random: np.random.Generator, count: int, outputs: int) -> tuple[np.ndarray, np.ndarray]:
    x = random.normal(size=(count, 3)).astype(np.float32)
    size = 2 + 4 * np.abs(x[:, :1])
    y = 50 + 15 * x[:, :1] - 10 * x[:, 1:2] ** 2 + size * random.normal(size=(count, outputs))
    return x, y.astype(np.float32)


@functools.cache
def _trained(outputs: int) -> nn.Module:
    x, y = _points(np.random.default_rng(0), TRAIN, outputs)
    namespace: dict[str, Any] = {}
    exec(NET, namespace)
    inputs, targets = (torch.from_numpy((values - values.mean(0)) / values.std(0)) for values in (x, y))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = namespace["net"](outputs=outputs)
        adam = torch.optim.Adam(model.parameters(), lr=0.02)
        for _ in range(20):
            for rows in torch.randperm(len(inputs)).split(16):
                adam.zero_grad()
                ((model(inputs[rows]) - targets[rows]) ** 2).mean().backward()
                adam.step()
    return model.eval()


def evaluated(folder: Path, **options: Any) -> Result:
    """The result of the run file in `folder`, with these options."""
    return evaluate(resolve("run.toml", Options(**options), folder=folder))
