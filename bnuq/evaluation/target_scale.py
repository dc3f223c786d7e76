"""The scale of the targets that a network was trained on, and the statistics that such scales are made of."""

from __future__ import annotations

import numpy as np

from bnuq.config import Normalize, Run
from bnuq.data import Points, labelled
from bnuq.errors import RequestError
from bnuq.frozen import frozen
from bnuq.shapes import Float


@frozen
class TargetScale:
    """The standardisation of the network's targets: target = output · std + mean, per output."""

    mean: Float[np.ndarray, " output"]
    std: Float[np.ndarray, " output"]


def target_scale(run: Run, train: Points | None, outputs: int) -> TargetScale | None:
    """The statistics of `normalize_targets`, one number per output; None where targets were not standardised.

    "train" takes those of the reference (divisor n, and 1 for a constant target); RequestError or DataError where there
    are none.
    """
    given = run.normalize_targets
    if given is None:
        return None
    if given == "train":
        train = None if train is None else labelled(train)
        if train is None or train.targets is None or train.targets.ndim > 2:
            raise RequestError(
                'data.normalize_targets is "train", and there is no training set with targets to take mean and std of. '
                "Add one, or write normalize_targets = { mean = [...], std = [...] }."
            )
        given = statistics(train.targets.reshape(len(train), -1).astype(np.float64))
    scale = {}
    for key, values in (("mean", given.mean), ("std", given.std)):
        if len(values) not in (1, outputs) or not np.all(np.isfinite(values)):
            raise RequestError(
                f"data.normalize_targets.{key} is {list(values)}; expected {outputs} finite numbers, one per output."
            )
        scale[key] = np.broadcast_to(np.asarray(values, dtype=np.float64), (outputs,))
    if not np.all(scale["std"] > 0):
        raise RequestError(f"data.normalize_targets.std is {list(given.std)}; expected positive numbers.")
    return TargetScale(**scale)


def statistics(values: Float[np.ndarray, "row column"]) -> Normalize:
    """Mean and standard deviation (divisor n) of every column; 1 for the deviation of a constant column."""
    return normalize_of(values.mean(0, dtype=np.float64), values.std(0, dtype=np.float64))


def normalize_of(mean: Float[np.ndarray, " column"], std: Float[np.ndarray, " column"]) -> Normalize:
    constant = std <= 1e-12 * np.maximum(np.abs(mean), np.finfo(np.float64).tiny)
    return Normalize(mean=tuple(mean.tolist()), std=tuple(np.where(constant, 1.0, std).tolist()))
