"""The record of the batch-size experiment: networks by training batch size, and what MCBN says of each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar

import msgspec

from bnuq.catalogue import text_of
from bnuq.estimates import Coordinate, Count, Estimate, MetricName, Size, require
from bnuq.findings import Finding
from bnuq.records.summary import estimate_summary, json_number
from bnuq.store import codec
from experiments.summary import summary_of

CURVES = ("training loss", "test loss", "test accuracy")
HEADLINE = "mutual_information"  # the paper's figure, and what its OOD separation is ranked by

SetName = Annotated[str, Coordinate("set")]
Score = Annotated[str, Coordinate("score")]


@dataclass(frozen=True)
class Point:
    """One network under MCBN with mini-batches of one size b: estimates by metric and set, AUROC by score and set."""

    batch_size: Annotated[Size, Coordinate("batch_size")]
    estimates: Mapping[MetricName, Mapping[SetName, Estimate]]
    auroc: Mapping[Score, Mapping[SetName, Estimate]]

    def __post_init__(self) -> None:
        if not all("test" in self.estimates.get(metric, ()) for metric in (HEADLINE, "accuracy", "pll")):
            raise ValueError(f"mutual information, accuracy or PLL at batch size {self.batch_size} is missing")

    def mutual_information(self, of: str) -> Estimate:
        """The mean over a set's points, in nats."""
        return self.estimates[HEADLINE][of]


@dataclass(frozen=True)
class Network:
    """A network trained with mini-batches of `batch_size` = M, `steps` of them, `epochs` passes over the images.

    `loss` is its mean cross-entropy on them in evaluation mode, in nats, `accuracy` in [0, 1], `seconds` what training
    took. `curves` are by epoch: of the mini-batches the first of CURVES, in evaluation mode the others. `matched` is
    MCBN with b = M; `single` the same network with other b, where it was swept over them, and `slopes` that of ln MI
    on ln b by set (−1 where MI falls as 1/b).
    """

    schedule: Annotated[str, Coordinate("schedule")]
    architecture: Annotated[str, Coordinate("architecture")]
    batch_size: Annotated[Size, Coordinate("train_batch_size")]
    steps: Count
    epochs: float
    loss: float
    accuracy: Annotated[float, msgspec.Meta(ge=0, le=1)]
    seconds: float
    matched: Point
    curves: Mapping[Annotated[str, Coordinate("curve")], tuple[float, ...]] = field(default_factory=dict)
    single: tuple[Point, ...] = ()
    slopes: Mapping[SetName, Estimate] = field(default_factory=dict)


@dataclass(frozen=True)
class BatchSizes:
    """The whole experiment. `experiment` says how it was made; `published` holds the paper's accuracies by
    architecture ("accuracy"), what its Figure 1 can be read for, and its source."""

    KIND: ClassVar[str] = "batch-size"
    COMMAND: ClassVar[str] = "experiments batch-size"
    experiment: Mapping[str, Any]
    published: Mapping[str, Any]
    networks: tuple[Network, ...]
    findings: tuple[Finding, ...]
    seconds: Mapping[str, float]
    provenance: Mapping[str, str]
    path: Path | None = None

    def __post_init__(self) -> None:
        texts = dict.fromkeys(("test", "ood", "train", "device"), str)
        counts = dict.fromkeys(("images", "epochs", "samples", "draw_sets"), Size)
        others = {"points": int | None, "recipe": dict[str, Any], "architectures": list[str]}
        require(self.experiment, seed=int, **texts, **counts, **others)
        rates = dict.fromkeys(("rate", "momentum", "weight_decay"), float)
        require(self.experiment["recipe"], schedule=str, **rates)
        lists = {"batch_sizes": list[int], "accuracy": dict[str, list[float]], "axis_tops": dict[str, float]}
        require(self.published, source=str, samples=int, near_zero_from=int, **lists)
        if any(len(values) != len(self.published["batch_sizes"]) for values in self.published["accuracy"].values()):
            raise ValueError("the published accuracies are not one for each batch size")
        require(self.seconds, training=float, evaluation=float)
        require(self.provenance, bnuq=str)
        if not self.networks:
            raise ValueError("there is no network")
        for point in (point for network in self.networks for point in (network.matched, *network.single)):
            if self.ood not in point.estimates[HEADLINE] or self.ood not in point.auroc.get(HEADLINE, ()):
                raise ValueError(f"{self.ood} at batch size {point.batch_size} is missing")

    @property
    def ood(self) -> str:
        """The name of the set out of distribution."""
        return self.experiment["ood"]

    def series(self) -> dict[tuple[str, str], tuple[Network, ...]]:
        """The networks of each schedule and architecture, by ascending M."""
        groups: dict[tuple[str, str], list[Network]] = {}
        for network in self.networks:
            groups.setdefault((network.schedule, network.architecture), []).append(network)
        return {
            key: tuple(sorted(networks, key=lambda network: network.batch_size)) for key, networks in groups.items()
        }


def summary(record: BatchSizes) -> dict[str, Any]:
    """The record as JSON values; infinities and NaN are the strings "inf", "-inf" and "nan"."""
    return summary_of(
        record,
        experiment=dict(record.experiment),
        published=dict(record.published),
        networks=[_network_summary(network) for network in record.networks],
        notes=list(sentences(record)),
        seconds=dict(record.seconds),
        provenance=dict(record.provenance),
    )


def read(path: Path) -> BatchSizes:
    """The record in the file at `path`; ResultError where that is not one."""
    return codec.read(BatchSizes, path, summary=summary)


def sentences(record: BatchSizes) -> tuple[str, ...]:
    """The findings in words, warnings with their code."""
    codes = ("" if finding.severity == "note" else f" [{finding.code}]" for finding in record.findings)
    return tuple(f"{text_of(finding)}{code}" for finding, code in zip(record.findings, codes, strict=True))


def _network_summary(network: Network) -> dict[str, Any]:
    return {
        "schedule": network.schedule,
        "architecture": network.architecture,
        "train_batch_size": network.batch_size,
        "steps": network.steps,
        "epochs": network.epochs,
        "training": {"loss": json_number(network.loss), "accuracy": network.accuracy, "seconds": network.seconds},
        "matched": _point_summary(network.matched),
        "curves": {name: [round(value, 4) for value in curve] for name, curve in network.curves.items()},
        "single": [_point_summary(point) for point in network.single],
        "slopes": {name: estimate_summary(estimate) for name, estimate in network.slopes.items()},
    }


def _point_summary(point: Point) -> dict[str, Any]:
    metrics = {
        metric: {name: estimate_summary(estimate) for name, estimate in sets.items()}
        for metric, sets in point.estimates.items()
    }
    auroc = {
        score: {name: estimate_summary(estimate) for name, estimate in sets.items()}
        for score, sets in point.auroc.items()
    }
    return {"batch_size": point.batch_size, **metrics, "auroc": auroc}
