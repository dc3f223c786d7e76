"""The record of a sweep over mini-batch sizes and its file: every network at every size, the ELBO, the decay of MI, and
the recommendation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy as np

from bnuq.estimates import Coordinate, Estimate, FileOnly, InRecord, MetricName, Size, Unit, require
from bnuq.findings import Finding
from bnuq.frozen import frozen
from bnuq.methods import NETWORKS
from bnuq.metrics import SCORES
from bnuq.records.approximation import LayerCounts
from bnuq.records.as_json import json_of, shown
from bnuq.records.evaluation import ScoreName, SetName
from bnuq.report.numbers import interval_of
from bnuq.shapes import Float64
from bnuq.store import codec
from bnuq.store.codec import write as write
from bnuq.tasks import TaskName

Protocol = Literal["single", "matched"]  # one network at several sizes; one network a size, that of its training
Choice = Literal["elbo", "pll", "auroc"]  # what a size is chosen by
Stopped = Literal["full-grid", "decided", "draw-sets", "budget"]  # why no more sizes or draw sets were evaluated
Nats = Annotated[Estimate, Unit("nats")]
Against = Annotated[str, Coordinate("against")]
_WIDE = 0.5  # an interval of a slope that says little


@frozen
class Repeated:
    """An estimate on R independent draw sets of T draws each: `estimate` is their mean, its `mc_se` their sd/√R, its
    `se` that over points. `of_sets` are the values; draw set r of every size holds the same mini-batches, cut to
    the size.
    """

    estimate: Estimate
    of_sets: Annotated[Float64[np.ndarray, " draw_set"], InRecord("")]


@frozen
class Elbo:
    """ELBO(b) = expected log-likelihood − KL, in nats of the whole training set; the KL times its weight.

    `log_likelihood` is the mean log-likelihood of the training points under every draw, in nats per example.
    """

    elbo: Nats
    expected_log_likelihood: Nats
    kl: float
    log_likelihood: Annotated[Float64[np.ndarray, " draw"], Unit("nats"), FileOnly()]


@frozen
class SweepComparison:
    """The estimate of a single-pass network on the test points, and MCBN's minus that, over the same points."""

    estimate: Estimate
    difference: Estimate


@frozen
class SweepPoint:
    """One network at one size. `estimates` are by metric and set, `auroc` by score and OOD set.

    `compared_with` is by network ("deterministic", "deterministic+population") and metric, and empty if the
    reference check has not failed: population statistics are those of this size's mini-batches.

    Where every mini-batch is the whole reference nothing is random: `degenerate`, mutual information and variance are
    exactly 0, and there is no ELBO (the KL of a point mass is infinite).
    """

    model: Annotated[int, Coordinate("model")]
    protocol: Annotated[Protocol, Coordinate("protocol")]
    batch_size: Annotated[Size, Coordinate("batch_size")]
    train_batch_size: Size | None
    degenerate: bool
    estimates: Mapping[MetricName, Mapping[SetName, Repeated]]
    auroc: Mapping[ScoreName, Mapping[SetName, Repeated]]
    elbo: Elbo | None
    compared_with: Mapping[Against, Mapping[MetricName, SweepComparison]] = field(default_factory=dict)

    @shown
    def draw_sets(self) -> int:
        """The number R of its draw sets."""
        return max((len(each.of_sets) for by_set in self.estimates.values() for each in by_set.values()), default=0)

    def __post_init__(self) -> None:
        if set(self.compared_with) not in (set(), set(NETWORKS)):
            raise ValueError(f"MCBN is compared with {' and '.join(self.compared_with)}")


@frozen
class ElboTerms:
    """The terms of the ELBO of one network, and its asymptotics.

    `points` training points stood for `train_size`. `c` is minus the slope of the mean log-likelihood per example on
    (1/b)(N_ref − b)/(N_ref − 1), in nats; `predicted` is b* = 2Nc/P + mean(1/ρ), P = 2 · `units`; None if they
    cannot be determined: fewer than two sizes, or no size is too large.
    """

    prior: str
    prior_parameters: Mapping[str, float]
    counts: Literal["nominal", "measured"]
    kl_weight: float
    train_size: Size
    reference_points: Size
    points: Size
    units: int
    tau: float | None
    layers: tuple[LayerCounts, ...]
    c: Estimate | None
    predicted: Estimate | None
    why_none: str = ""


@frozen
class Decay:
    """The log-log slope of mean mutual information (variance, of a regression) against b over `sizes`, the
    finite-population factor taken out: −1 where it falls as 1/b. `residual` is the largest distance from the line,
    in ln units."""

    slope: Estimate
    residual: float
    sizes: tuple[Size, ...]


def decay_rate(low: float, high: float) -> str:
    """How a slope in this interval compares with −1, the one of 1/b."""
    if low <= -1 <= high:
        return "falls-as-inverse" if high < 0 and high - low < _WIDE else "may-fall-as-inverse"
    if high < 0:
        return "falls-faster" if high < -1 else "falls-slower"
    return "rises" if low > 0 else "not-clearly-falling"


@frozen
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
    decay: Mapping[SetName, Decay]
    record: Annotated[Mapping[str, Any], FileOnly()]


@frozen
class BestOther:
    """The size with the best estimate of the test set among those that are not recommended; the recommended size's
    estimate minus that; and the error of this difference over points and draws, None if points are too few."""

    batch_size: Size
    difference: float
    se: float | None


@frozen
class Recommended:
    """The size that `criterion` is the highest at, on the points of `of` ("train", "validation" or "test").

    `behind` says for every compared size how far its criterion lies above (+) or below (−) the recommended
    one's, with the error of that difference on common random numbers. `within`, which follows from it, are the sizes
    that may be as good: the interval of their difference holds 0. `decided_by` is "prior" where the likelihood changes
    over the sizes by less than its error.
    """

    batch_size: Size
    model: int
    protocol: Protocol
    criterion: Choice
    of: str
    behind: Mapping[Size, Estimate]
    decided_by: Literal["likelihood and prior", "prior", "data"]
    predicted_batch_size: Estimate | None
    at_end: Literal["", "smallest", "largest"]
    on_test: Mapping[MetricName, BestOther] = field(default_factory=dict)  # empty without labels
    within: tuple[Size, ...] = ()

    def __post_init__(self) -> None:
        known = ((size, each.value, *interval_of(each)) for size, each in self.behind.items())
        object.__setattr__(self, "within", tuple(b for b, value, low, high in known if low <= 0 <= high or value == 0))


@frozen
class SweptSet:
    """A set that was evaluated."""

    name: str
    role: Literal["test", "ood", "validation"]
    n: Size
    sha256: str


@frozen
class Sweep:
    """The result of a sweep. `score` is the OOD score of its headline AUROC, `samples` the T of a draw set, `draw_sets`
    the most of a size, `skipped` the sizes that an adaptive sweep left out."""

    KIND: ClassVar[str] = "sweep"
    COMMAND: ClassVar[str] = "sweep-batch-size"

    task: TaskName
    models: tuple[SweptModel, ...]
    points: tuple[SweepPoint, ...]
    sets: tuple[SweptSet, ...]
    samples: Size
    draw_sets: Size
    seed: int
    score: str
    recommended: Recommended | None
    findings: tuple[Finding, ...]
    seconds: Mapping[str, float]
    provenance: Mapping[str, str]
    stopped: Stopped = "full-grid"
    skipped: tuple[Size, ...] = ()
    path: Path | None = field(default=None)

    def __post_init__(self) -> None:
        require(self.seconds, total=float)
        require(self.provenance, bnuq=str)
        names = [swept.name for swept in self.sets]
        if not self.models or not self.points:
            raise ValueError("its networks or its sizes are missing")
        if len(set(names)) < len(names) or not names:
            raise ValueError("its sets are missing, or two have one name")
        if self.score not in SCORES:
            raise ValueError(f"the score {self.score} is unknown")
        if any(not 0 <= point.model < len(self.models) for point in self.points):
            raise ValueError("one of its sizes belongs to no network")
        if unknown := {name for model in self.models for name in model.decay} - set(names):
            raise ValueError(f"it tells how {min(unknown)} decays, which it has not")
        chosen, key = self.recommended, attrgetter("batch_size", "model", "protocol")
        if chosen is not None and key(chosen) not in map(key, self.points):
            raise ValueError("the size that it recommends is not one of its sizes")

    @shown
    def precision(self) -> str:
        """The arithmetic of its samples; "" where the file does not say."""
        return self.provenance.get("arithmetic", "")

    def line(self, model: int) -> tuple[SweepPoint, ...]:
        """The points of one network, by ascending size: protocol "single"."""
        return tuple(point for point in self.points if point.protocol == "single" and point.model == model)

    @property
    def matched(self) -> tuple[SweepPoint, ...]:
        """The points of one network a size, by ascending size: protocol "matched"."""
        return tuple(point for point in self.points if point.protocol == "matched")


read = partial(codec.read, Sweep, summary=json_of)
