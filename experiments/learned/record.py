"""Records that compare networks: by set, with what one pass and samples give."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeVar

import numpy as np
import torch

from bnuq.estimates import Coordinate, Estimate, Size, require
from bnuq.records.summary import estimate_summary, json_number
from bnuq.store import codec
from experiments.summary import summary_of
from experiments.work import machine

Name = Annotated[str, Coordinate("metric")]
Kind = TypeVar("Kind", bound="Comparison")


@dataclass(frozen=True)
class Network:
    """One network. `estimates` of NLL are in nats, of accuracy in [0, 1], of "kl" and "elbo" in nats per training
    point; those of several `seeds` are means over them. `ratios` are σ_S/|s| by layer, the average over channels;
    "ratio_change" is the largest relative change of one in the last epoch. `curves` are by epoch of training, but for
    those of `growth`: by layer, the noise of BatchNorm at the end as a multiple of that after the first epoch."""

    set: Annotated[str, Coordinate("set")]
    name: Annotated[str, Coordinate("network")]
    estimates: Mapping[Name, Estimate]
    ratios: tuple[float, ...]
    seeds: Size
    seconds: float
    curves: Mapping[Annotated[str, Coordinate("curve")], tuple[float, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class Comparison:
    """Networks that were trained on the same images. `experiment` says how; `published` holds the values that there
    are, by network and estimate, and their source. `differences` are of two networks, or of two estimates of one."""

    KIND: ClassVar[str]
    COMMAND: ClassVar[str]
    COUNTS: ClassVar[tuple[str, ...]]  # of `experiment`

    experiment: Mapping[str, Any]
    published: Mapping[str, Any]
    networks: tuple[Network, ...]
    differences: Mapping[Annotated[str, Coordinate("difference")], Mapping[Name, Estimate]]
    seconds: Mapping[str, float]
    provenance: Mapping[str, str]
    path: Path | None = None

    def __init_subclass__(cls, kind: str, counts: tuple[str, ...] = ("images", "epochs", "width")) -> None:
        cls.KIND, cls.COMMAND, cls.COUNTS = kind, f"experiments {kind}", counts

    def __post_init__(self) -> None:
        require(self.experiment, samples=int, seed=int, sets=list[str], **dict.fromkeys(self.COUNTS, int))
        require(self.published, source=str, of_networks=dict[str, dict[str, float]])
        require(self.seconds, training=float)
        require(self.provenance, bnuq=str)
        if not self.networks:
            raise ValueError("there is no network")

    def network(self, of: str, name: str) -> Network | None:
        return next((each for each in self.networks if (each.set, each.name) == (of, name)), None)


class StochasticNormalization(Comparison, kind="stochastic-normalization"):
    """Normalisations with and without learned noise."""


class NormalizationBatch(Comparison, kind="normalization-batch"):
    """BatchNorm over mini-batches of one size, in training with mini-batches of another."""


class OptimumOverN(Comparison, kind="optimum-over-n", counts=()):
    """Networks of training sets of several sizes, and the mini-batch size that is best for each."""


class BnInVi(Comparison, kind="bn-in-vi"):
    """Mean-field networks with and without BatchNorm."""


class VarianceDivisor(Comparison, kind="variance-divisor", counts=()):
    """Trained networks, whose run files are the sets, with either divisor of the variance: by b."""


class PreciseBn(Comparison, kind="precise-bn"):
    """Networks by mini-batch of training, with averaged and with precise statistics: test errors by epoch."""


class UciSizes(Comparison, kind="uci-sizes", counts=("splits",)):
    """MCBN and MNF on UCI sets, by b and T: scores, and bins of predicted deviation and error."""


def summary(record: Comparison) -> dict[str, Any]:
    """The record as JSON values."""
    return summary_of(
        record,
        experiment=dict(record.experiment),
        published=dict(record.published),
        networks=[
            {
                "set": network.set,
                "name": network.name,
                **{name: estimate_summary(estimate) for name, estimate in network.estimates.items()},
                "ratios": list(map(json_number, network.ratios)),
                "seeds": network.seeds,
                "seconds": network.seconds,
                "curves": {name: list(map(json_number, curve)) for name, curve in network.curves.items()},
            }
            for network in record.networks
        ],
        differences={
            name: {metric: estimate_summary(estimate) for metric, estimate in of.items()}
            for name, of in record.differences.items()
        },
        seconds=dict(record.seconds),
        provenance=dict(record.provenance),
    )


def reader(kind: type[Comparison]) -> Callable[[Path], Comparison]:
    """The function that reads a record of this kind from a file; ResultError where it is none."""
    return partial(codec.read, kind, summary=summary)


def written(
    kind: type[Kind],
    out: Path,
    *,
    experiment: Mapping[str, Any],
    published: Mapping[str, Any],
    networks: Iterable[Network],
    differences: Mapping[str, Mapping[str, Estimate]],
    seconds: Mapping[str, float],
    device: str = "cpu",
) -> Kind:
    """The record of these networks, made on this machine and written to `out`."""
    about, values = machine(out, torch.device(device)), (experiment, published, tuple(networks), differences, seconds)
    record = kind(*values, provenance=about, path=out.absolute())
    codec.write(record, out)
    return record


def over_seeds(points: Sequence[np.ndarray]) -> Estimate:
    """The mean over seeds of means over the same points, with its standard error over points and seeds, and a 95 %
    interval in which that over seeds has the quantile of their number. Of one seed, over points alone."""
    means, by_point = np.array([each.mean() for each in points]), mean_of(np.mean(points, 0))
    errors, quantiles = [by_point.se or 0.0], [1.96]
    if len(points) > 1:
        from scipy.stats import t

        errors.append(float(means.std(ddof=1) / len(means) ** 0.5))
        quantiles.append(float(t.ppf(0.975, len(means) - 1)))
    half = float(np.hypot.reduce(np.multiply(errors, quantiles)))
    value = float(means.mean())
    return Estimate(value, se=float(np.hypot.reduce(errors)), low=value - half, high=value + half)


def with_interval(mean: Estimate, seeds: int) -> Estimate:
    """The estimate with its 95 % interval over so many seeds; of one seed as it is."""
    if mean.se is None or seeds < 2:
        return mean
    from scipy.stats import t

    half = float(t.ppf(0.975, seeds - 1)) * mean.se
    return Estimate(mean.value, se=mean.se, mc_se=mean.mc_se, low=mean.value - half, high=mean.value + half)


def mean_of(values: np.ndarray) -> Estimate:
    """The mean over points, or over networks of several seeds, and its standard error."""
    error = float(values.std(ddof=1) / len(values) ** 0.5) if len(values) > 1 else None
    return Estimate(float(values.mean()), se=error)
