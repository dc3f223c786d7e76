"""The order of a network's classes where their names can be sorted in two ways: as texts, or as timm does."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import nn

from bnuq import metrics
from bnuq.data import Points, labelled, natural_order
from bnuq.evaluation.datasets import limited
from bnuq.evaluation.passes import deterministic_outputs
from bnuq.evaluation.pipeline import Pipeline
from bnuq.frozen import frozen

_POINTS = 512  # that are evaluated
_CLEAR = 3.0  # standard errors between the mean log-likelihoods of the two orders


@frozen
class ClassOrder:
    """The names of the classes in timm's order, the accuracy on so many points with this order and with names sorted as
    texts, and by how many standard errors of the mean log-likelihood it fits better."""

    natural: tuple[str, ...]
    points: int
    accuracy: float
    accuracy_as_texts: float
    evidence: float

    @property
    def is_natural(self) -> bool:
        return self.evidence > _CLEAR and self.accuracy > self.accuracy_as_texts

    @property
    def is_sorted_as_texts(self) -> bool:
        return self.evidence < -_CLEAR


def class_order(model: nn.Module, pipeline: Pipeline, points: Points) -> ClassOrder | None:
    """How well both orders fit the labels of these points, whose classes are sorted as texts; None where there are no
    two orders, no labels, or another number of outputs."""
    names = points.classes or ()
    natural = natural_order(names)
    if not points.classes_sorted or natural == list(names):
        return None
    points = limited(labelled(points), _POINTS, pipeline.run.seed)
    if points.targets is None or points.targets.ndim != 1:
        return None
    logits = torch.cat([block[0].cpu() for block in deterministic_outputs(model, pipeline, points)]).double()
    if logits.shape[1:] != (len(names),):
        return None
    as_texts = torch.from_numpy(points.targets)
    by_value = torch.tensor([natural.index(name) for name in names])[as_texts]
    gain = (metrics.log_likelihood(logits, by_value) - metrics.log_likelihood(logits, as_texts)).numpy()
    error = float(np.std(gain)) / math.sqrt(len(gain))
    mean = float(np.mean(gain))
    predicted = logits.argmax(1)
    return ClassOrder(
        tuple(natural),
        len(points),
        float((predicted == by_value).double().mean()),
        float((predicted == as_texts).double().mean()),
        mean / error if error > 0 else math.copysign(math.inf, mean) if mean else 0.0,
    )
