"""What Mukhoti et al. 2020 printed of Fashion-MNIST and CIFAR-10, and what can be read off their Figure 1."""

from __future__ import annotations

from typing import Any

SOURCE = "Mukhoti et al. 2020, On batch normalisation for approximate Bayesian inference, Table 1 and Fig. 1 (b), (c)"

PUBLISHED: dict[str, Any] = {  # of Fashion-MNIST
    "source": SOURCE,
    "samples": 20,
    "batch_sizes": [32, 64, 128, 256, 512, 1024, 2048],
    # The text calls them errors; caption and values are accuracies.
    "accuracy": {
        "ResNet-50": [0.9343, 0.9377, 0.9386, 0.9396, 0.9359, 0.9365, 0.9387],
        "VGG-16": [0.9429, 0.9436, 0.9437, 0.9427, 0.9438, 0.9450, 0.9486],
    },
    # The values of the estimate are not printed: these are where its axes of mutual information end.
    "axis_tops": {"ResNet-50": 0.005, "VGG-16": 0.006},
    "near_zero_from": 1024,
}

PUBLISHED_OF: dict[str, dict[str, Any]] = {  # by set
    "fashion-mnist": PUBLISHED,
    "cifar10": PUBLISHED
    | {
        "source": SOURCE.replace("(b), (c)", "(a)"),
        "batch_sizes": [32, 64, 128, 256, 512],
        "accuracy": {"ResNet-50": [0.9366, 0.9459, 0.9517, 0.9547, 0.9545]},
        "axis_tops": {"ResNet-50": 0.013},
    },
}
