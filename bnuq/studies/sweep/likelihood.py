"""The expected log-likelihood of the ELBO: its training points, and its function of their outputs."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from bnuq import metrics
from bnuq.data import Points, check_labels, check_targets, labelled
from bnuq.evaluation.passes import deterministic_outputs
from bnuq.evaluation.subject import Subject
from bnuq.evaluation.target_scale import TargetScale, target_scale
from bnuq.evaluation.tasks.observation_noise import are_uneven, sizes_of
from bnuq.frozen import frozen
from bnuq.sampling import counter_rng
from bnuq.shapes import Float

LogLikelihood = Callable[[Tensor, np.ndarray], Tensor]  # of outputs (draw, n, …) and targets (n, …): (draw, n)


@frozen
class Training:
    """The training points of the expected log-likelihood, and the log-likelihood function."""

    points: Points
    log_likelihood: LogLikelihood


def classification_likelihood(outputs: Tensor, targets: np.ndarray) -> Tensor:
    """ln softmax of the class of each label, (draw, n), in nats."""
    labels = torch.from_numpy(np.asarray(targets)).to(outputs.device)
    return torch.as_tensor(metrics.log_likelihood(outputs.double(), labels))


@frozen
class Noise:
    """The noise of the targets: that of each output has the variance unit²/τ."""

    tau: float
    unit: Float[np.ndarray, " output"]


def regression_likelihood(noise: Noise, scale: TargetScale | None) -> LogLikelihood:
    """The Gaussian log-likelihood of targets under the outputs in target units, (draw, n), in nats."""
    unit = torch.tensor(noise.unit)
    std, mean = (1.0, 0.0) if scale is None else (torch.tensor(scale.std), torch.tensor(scale.mean))

    def log_likelihood(outputs: Tensor, targets: np.ndarray) -> Tensor:
        f, y = (outputs.cpu().double() * std + mean) / unit, torch.from_numpy(np.asarray(targets)).double() / unit
        return torch.as_tensor(metrics.gaussian_log_likelihood(f, y, tau=noise.tau)) - unit.log().sum()

    return log_likelihood


def training_likelihood(
    subject: Subject, validation: Points | None, *, points: int
) -> tuple[Training | None, float | None, str]:
    """At most so many training `points` of the ELBO with their likelihood, τ of a regression, and why there is no
    ELBO."""
    train = subject.train
    assert train is not None  # ensured by check_complete
    rows = np.arange(len(train))
    if len(train) > points:
        purpose = counter_rng.SUBSET
        rows = counter_rng.batch_indices(
            subject.draws.seed, 0, population=len(train), batch_size=points, purpose=purpose
        )
    subset = labelled(train.subset(np.sort(rows)))
    if subset.targets is None:
        return None, None, "the training set has no labels"
    if subject.task.classifies_points:
        return Training(check_labels(subset, subject.outputs), classification_likelihood), None, ""
    scale = target_scale(subject.settings.normalize_targets, train, subject.outputs)
    given = subject.settings.scoring.tau
    noise = None if given is None else Noise(given, np.ones(1))
    if noise is None and validation is not None:
        noise = _most_likely_noise(subject, validation, scale)
    if noise is None:
        return None, None, "a regression's likelihood needs τ: name validation examples, or --tau"
    return Training(check_targets(subset, subject.outputs), regression_likelihood(noise, scale)), noise.tau, ""


def _most_likely_noise(subject: Subject, validation: Points, scale: TargetScale | None) -> Noise | None:
    """The most likely noise of the deterministic network on the validation points: the same for all sizes, because
    ELBOs with different τ cannot be compared. None where there is no error."""
    blocks = deterministic_outputs(subject.model, subject.pipeline, validation)
    f = np.concatenate([block[0].cpu().double().numpy() for block in blocks])
    errors = np.asarray(validation.targets, dtype=np.float64) - (f if scale is None else f * scale.std + scale.mean)
    sizes = sizes_of(errors)
    unit = sizes if are_uneven(sizes) else np.ones(1)
    error = float(metrics.constant_sigma(errors / unit, metric="pll"))
    return Noise(1 / error**2, unit) if error > 0 else None
