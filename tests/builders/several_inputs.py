"""Two networks of several inputs, and their points."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

TWO_INPUTS = '''"""Two networks of two inputs."""

import torch
from torch import nn


class Branches(nn.Module):
    """A picture, and numbers about it, each through a BatchNorm."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4)
        self.dense, self.norm_of_numbers = nn.Linear(3, 4), nn.BatchNorm1d(4)
        self.last = nn.Linear(8, 3)

    def forward(self, image, numbers):
        seen = self.norm(self.conv(image)).relu().mean((2, 3))
        return self.last(torch.cat([seen, self.norm_of_numbers(self.dense(numbers)).relu()], 1))


class Tokens(nn.Module):
    """Token numbers, and a mask over them; dropout alone is random."""

    def __init__(self):
        super().__init__()
        self.embedding, self.drop, self.last = nn.Embedding(20, 8), nn.Dropout(0.3), nn.Linear(8, 3)

    def forward(self, input_ids, attention_mask):
        weights = attention_mask.unsqueeze(2).to(self.last.weight.dtype)
        mean = (self.embedding(input_ids) * weights).sum(1) / weights.sum(1)
        return self.last(self.drop(mean.relu()))
'''

_made: dict = {}
exec(TWO_INPUTS, _made)


def branches() -> nn.Module:
    """The network of a picture and numbers, with the running statistics of its points."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = _made["Branches"]()
        points, _ = pictures_and_numbers(192)
        for _ in range(20):
            network(*map(torch.from_numpy, points.values()))
    return network.eval()


def tokens() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return _made["Tokens"]().eval()


class OneInput(nn.Module):
    """The network of tokens, given token numbers and mask in one row of integers."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, rows: Tensor) -> Tensor:
        return self.network(*rows.chunk(2, 1))


def pictures_and_numbers(points: int, seed: int = 0) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Inputs by name, and labels."""
    random = np.random.default_rng(seed)
    image, numbers = random.normal(size=(points, 1, 5, 5)), random.normal(size=(points, 3))
    return {"image": image.astype(np.float32), "numbers": numbers.astype(np.float32)}, random.integers(0, 3, points)


def sentences(points: int, seed: int = 0) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Inputs by name, and labels."""
    random = np.random.default_rng(seed)
    inputs = {
        "input_ids": random.integers(0, 20, (points, 6)),
        "attention_mask": (np.arange(6) < random.integers(2, 7, (points, 1))).astype(np.int64),
    }
    return inputs, random.integers(0, 3, points)
