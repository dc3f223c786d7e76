"""Draws in evaluation mode, as a sampler makes them: the operation of learned noise, replaced by normal numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode


class Drawing(TorchDispatchMode):
    """Every call of `bnuq::standard_normal` gives new normal numbers of this generator; `shapes` are theirs."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.generator = torch.Generator().manual_seed(seed)
        self.shapes: list[tuple[int, ...]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.bnuq.standard_normal.default:
            self.shapes.append(tuple(args[0].shape))
            return torch.randn(args[0].shape, generator=self.generator, dtype=args[0].dtype)
        return func(*args, **(kwargs or {}))


@pytest.fixture
def drawing() -> type[Drawing]:
    return Drawing


@pytest.fixture
def samples() -> Callable[..., Tensor]:
    """The outputs (sample, …) of a network in evaluation mode under `count` draws of its noise."""

    def of(network: nn.Module, x: Tensor, count: int, seed: int = 0) -> Tensor:
        with torch.no_grad(), Drawing(seed):
            return torch.stack([network.eval()(x) for _ in range(count)])

    return of


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(20)
