"""The network of the regression example: two hidden layers with BatchNorm and dropout, one output."""

from torch import nn


def small_mlp(inputs: int = 10, width: int = 50, rate: float = 0.05) -> nn.Module:
    """Linear, BatchNorm, ReLU and dropout, twice, and one number out: the target in units of its own sd."""
    return nn.Sequential(
        nn.Linear(inputs, width, bias=False),
        nn.BatchNorm1d(width),
        nn.ReLU(),
        nn.Dropout(rate),
        nn.Linear(width, width, bias=False),
        nn.BatchNorm1d(width),
        nn.ReLU(),
        nn.Dropout(rate),
        nn.Linear(width, 1),
    )
