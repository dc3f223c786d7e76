"""The expected log-likelihood of the ELBO: its training points, and its function of their outputs."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from bnuq import devices, metrics
from bnuq.config import Run
from bnuq.data import Points, check_labels, check_targets, labelled
from bnuq.evaluation.passes import deterministic_outputs
from bnuq.evaluation.setup import Prepared
from bnuq.evaluation.subject import RunPlan
from bnuq.evaluation.target_scale import TargetScale, target_scale
from bnuq.frozen import frozen
from bnuq.sampling import counter_rng

LogLikelihood = Callable[[Tensor, np.ndarray], Tensor]  # of outputs (draw, n, …) and targets (n, …): (draw, n)


@frozen
class Training:
    """The training points of the expected log-likelihood, and the log-likelihood function."""

    points: Points
    log_likelihood: LogLikelihood


def classification_likelihood(outputs: Tensor, targets: np.ndarray) -> Tensor:
    """ln softmax of the class of each label, (draw, n), in nats."""
    labels = torch.from_numpy(np.asarray(targets)).to(outputs.device)
    wide = devices.in_float64(outputs)
    return torch.as_tensor(metrics.log_likelihood(wide, labels.to(wide.device)))


def regression_likelihood(tau: float, *, mean: np.ndarray | float, std: np.ndarray | float) -> LogLikelihood:
    """The Gaussian log-likelihood of targets under outputs · std + mean with precision `tau`, (draw, n), in nats."""

    def log_likelihood(outputs: Tensor, targets: np.ndarray) -> Tensor:
        f = outputs.cpu().double() * torch.tensor(std) + torch.tensor(mean)
        return torch.as_tensor(metrics.gaussian_log_likelihood(f, torch.from_numpy(np.asarray(targets)), tau=tau))

    return log_likelihood


def training_likelihood(
    prepared: Prepared, run: Run, plan: RunPlan, validation: Points | None, *, points: int
) -> tuple[Training | None, float | None, str]:
    """At most so many training `points` of the ELBO with their likelihood, τ of a regression, and why there is no
    ELBO."""
    train = prepared.data.train
    assert train is not None  # ensured by check_complete
    rows = np.arange(len(train))
    if len(train) > points:
        purpose = counter_rng.SUBSET
        rows = counter_rng.batch_indices(run.seed, 0, population=len(train), batch_size=points, purpose=purpose)
    subset = labelled(train.subset(np.sort(rows)))
    if subset.targets is None:
        return None, None, "the reference has no labels"
    if plan.task.classifies_points:
        return Training(check_labels(subset, plan.outputs), classification_likelihood), None, ""
    scale = target_scale(run, train, plan.outputs)
    tau = run.scoring.tau or (None if validation is None else _most_likely_tau(prepared, validation, scale))
    if tau is None:
        return None, None, "a regression's likelihood needs τ: name validation points, or --tau"
    mean, std = (0.0, 1.0) if scale is None else (scale.mean, scale.std)
    likelihood = regression_likelihood(tau, mean=mean, std=std)
    return Training(check_targets(subset, plan.outputs), likelihood), tau, ""


def _most_likely_tau(prepared: Prepared, validation: Points, scale: TargetScale | None) -> float | None:
    """The most likely precision of the deterministic network on the validation points: the same for all sizes, because
    ELBOs with different τ cannot be compared."""
    blocks = deterministic_outputs(prepared.model, prepared.pipeline, validation)
    f = np.concatenate([block[0].cpu().double().numpy() for block in blocks])
    f = f if scale is None else f * scale.std + scale.mean
    error = float(metrics.constant_sigma(np.asarray(validation.targets, dtype=np.float64) - f, metric="pll"))
    return 1 / error**2 if error > 0 else None
