"""What a sweep over mini-batch sizes found: every network at every size, the ELBO, how MI decays, and the choice."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from jaxtyping import Float64

from bnuq.records import Caution, Figure
from bnuq.run import Task

KIND = "sweep"
COMMAND = "sweep-batch-size"

Protocol = Literal["single", "matched"]  # one network at several sizes; one network a size, that of its training
Choice = Literal["elbo", "pll", "auroc"]  # what a size is chosen by


@dataclass(frozen=True)
class Repeated:
    """A figure on R independent draw sets of T draws each: `figure` is their mean, its `mc_se` their sd/√R, its `se`
    that over points. `of_sets` are the values; draw set r of every size holds the same mini-batches, cut to the size.
    """

    figure: Figure
    of_sets: Float64[np.ndarray, " draw_set"]


@dataclass(frozen=True)
class Elbo:
    """ELBO(b) = expected log-likelihood − KL, in nats of the whole training set; the KL times its weight.

    `log_likelihood` is the mean log-likelihood of the training points under every draw, in nats per example.
    """

    elbo: Figure
    expected_log_likelihood: Figure
    kl: float
    log_likelihood: Float64[np.ndarray, " draw"]


@dataclass(frozen=True)
class Compared:
    """What a network of a single pass has on the test points, and MCBN's minus that, over the same points."""

    figure: Figure
    difference: Figure


@dataclass(frozen=True)
class SweepPoint:
    """One network at one size. `figures` are by metric and set, `auroc` by score and OOD set.

    `compared_with` is by network ("deterministic", "deterministic+population") and metric, and empty where the
    reference check has not failed: population statistics are those of this size's mini-batches.

    Where every mini-batch is the whole reference nothing is random: `degenerate`, mutual information and variance are
    exactly 0, and there is no ELBO (the KL of a point mass is infinite).
    """

    model: int
    protocol: Protocol
    batch_size: int
    train_batch_size: int | None
    degenerate: bool
    figures: Mapping[str, Mapping[str, Repeated]]
    auroc: Mapping[str, Mapping[str, Repeated]]
    elbo: Elbo | None
    compared_with: Mapping[str, Mapping[str, Compared]] = field(default_factory=dict)


@dataclass(frozen=True)
class LayerCounts:
    """The numbers of values a channel of one layer has for each item of a mini-batch: `nominal` (its positions), and
    how many independent ones its mean (`mean`) and its deviation (`sd`) move like; NaN where that cannot be told."""

    name: str
    channels: int
    nominal: float
    mean: float
    sd: float


@dataclass(frozen=True)
class ElboTerms:
    """What the ELBO of one network rests on, and its asymptotics.

    `points` training points stood for `train_size`. `c` is minus the slope of the mean log-likelihood per example on
    (1/b)(N_ref − b)/(N_ref − 1), in nats; `predicted` is b* = 2Nc/P + mean(1/ρ), P = 2 · `units`; None where they
    cannot be told: fewer than two sizes, or no size is too large.
    """

    prior: str
    prior_parameters: Mapping[str, float]
    counts: Literal["nominal", "measured"]
    kl_weight: float
    train_size: int
    reference_points: int
    points: int
    units: int
    tau: float | None
    layers: tuple[LayerCounts, ...]
    c: Figure | None
    predicted: Figure | None
    why_none: str = ""


@dataclass(frozen=True)
class Decay:
    """The log-log slope of mean mutual information (variance, of a regression) against b over `sizes`, the
    finite-population factor taken out: −1 where the law 1/b holds. `residual` is the largest distance from the line,
    in ln units."""

    slope: Figure
    residual: float
    sizes: tuple[int, ...]


@dataclass(frozen=True)
class SweptModel:
    """A network of the sweep; `decay` is by set, and there for networks that were swept over two sizes or more."""

    name: str
    path: str
    sha256: str
    train_batch_size: int | None
    parameters: int
    batchnorm_layers: int
    layers: tuple[str, ...]
    elbo: ElboTerms | None
    decay: Mapping[str, Decay]
    record: Mapping[str, Any]


@dataclass(frozen=True)
class Recommended:
    """The size that `criterion` is the highest at, on the points of `of` ("train", "validation" or "test").

    `behind` tells for every size that was compared how far its criterion lies above (+) or below (−) the recommended
    one's, with the error of that difference on common random numbers; `within` are the sizes that lie behind by no more
    than one such error. `decided_by` is "prior" where the likelihood changes over the sizes by less than its error.
    """

    batch_size: int
    model: int
    protocol: Protocol
    criterion: Choice
    of: str
    behind: Mapping[int, Figure]
    within: tuple[int, ...]
    decided_by: Literal["likelihood and prior", "prior", "data"]
    predicted_batch_size: Figure | None
    at_end: Literal["", "smallest", "largest"]


@dataclass(frozen=True)
class SweptSet:
    """A set that was evaluated; `role` is "test", "ood" or "validation"."""

    name: str
    role: str
    n: int
    sha256: str


@dataclass(frozen=True)
class Sweep:
    """Everything that a sweep found. `score` is the OOD score of its headline AUROC, `samples` the T of a draw set."""

    task: Task
    models: tuple[SweptModel, ...]
    points: tuple[SweepPoint, ...]
    sets: tuple[SweptSet, ...]
    samples: int
    draw_sets: int
    seed: int
    score: str
    recommended: Recommended | None
    cautions: tuple[Caution, ...]
    notes: tuple[str, ...]
    seconds: Mapping[str, float]
    provenance: Mapping[str, str]
    path: Path | None = field(default=None)

    def line(self, model: int) -> tuple[SweepPoint, ...]:
        """The points of one network, by ascending size: protocol "single"."""
        return tuple(point for point in self.points if point.protocol == "single" and point.model == model)

    @property
    def matched(self) -> tuple[SweepPoint, ...]:
        """The points of one network a size, by ascending size: protocol "matched"."""
        return tuple(point for point in self.points if point.protocol == "matched")
