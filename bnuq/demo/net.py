"""The quickstart's network: a small CNN for 28 x 28 grey images, with BatchNorm and dropout."""

from torch import nn


def block(inputs: int, outputs: int) -> nn.Sequential:
    """Convolve, normalise, rectify, halve the resolution (rounding down)."""
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, kernel_size=3, padding=1, bias=False),  # BatchNorm's own shift is the bias
        nn.BatchNorm2d(outputs),
        nn.ReLU(),
        nn.MaxPool2d(2),
    )


def small_cnn(classes: int = 10, dropout: float = 0.5) -> nn.Module:
    """Logits of shape (n, classes) for images of shape (n, 1, 28, 28).

    Dropout comes after the last BatchNorm. The running statistics then describe the same network with dropout on
    and off, and MCBN, which runs without dropout, meets the activations that training did.
    """
    return nn.Sequential(
        block(1, 16),
        block(16, 32),
        block(32, 64),
        nn.Flatten(),
        nn.Linear(64 * 3 * 3, 128, bias=False),
        nn.BatchNorm1d(128),
        nn.ReLU(),
        nn.Dropout(dropout),
        nn.Linear(128, classes),
    )
