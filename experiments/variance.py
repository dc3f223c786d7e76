"""Biased or unbiased variance of a mini-batch, "does it even matter?": accuracy and PLL of MCBN with either divisor.

A layer divides by n = b·z values or by n − 1, so a scale differs by √(1 − 1/n): in a convolution by next to nothing, in
a dense layer of small mini-batches by much. Draws are the same with both, so differences are paired.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import msgspec
import torch
from torch import nn

from bnuq.config import Run
from bnuq.estimates import Coordinate, Count, Estimate, require
from bnuq.evaluation.setup import network_of
from bnuq.metrics import standard_error
from bnuq.progress import Progress, silent
from bnuq.records.evaluation import SetResult
from bnuq.records.summary import estimate_summary
from bnuq.report.document import PathLine, Report, ReportSection, Table, explanations
from bnuq.report.numbers import number, total, with_error
from bnuq.store import codec
from bnuq.workflows.evaluate import evaluate
from experiments.summary import summary_of
from experiments.work import machine

BATCH_SIZES = (2, 4, 8, 16, 32, 128)
PUBLISHED = {"source": 'Wu & Johnson 2021, Rethinking "batch" in BatchNorm: biased in training, unbiased in use'}
_ESTIMATES = {"accuracy": "accuracy", "pll": "PLL"}
_CLEAR, _SMALLEST = 2, 0.005  # standard errors, and nats, from which on a difference of PLL matters
Estimates = Mapping[Annotated[str, Coordinate("metric")], Estimate]


@dataclass(frozen=True)
class Network:
    """One network whose BatchNorms come after layers of this `kind`. By b, the `biased` estimates, of the variance by
    which training normalises, and the `change` to those of the unbiased one."""

    kind: Literal["convolutions", "dense layers"]
    points: Count
    biased: Mapping[Annotated[str, Coordinate("batch_size")], Estimates]
    change: Mapping[Annotated[str, Coordinate("batch_size")], Estimates]


@dataclass(frozen=True)
class VarianceDivisor:
    """Several networks, by the names of their run files."""

    KIND: ClassVar[str] = "variance-divisor"
    COMMAND: ClassVar[str] = "experiments variance-divisor"

    experiment: Mapping[str, Any]
    published: Mapping[str, Any]
    networks: Mapping[Annotated[str, Coordinate("network")], Network]
    seconds: Mapping[str, float]
    provenance: Mapping[str, str]
    path: Path | None = None

    def __post_init__(self) -> None:
        require(self.experiment, samples=int, seed=int)
        require(self.published, source=str)
        require(self.provenance, bnuq=str)


def reproduce(
    runs: Mapping[str, Run], out: Path, *, batch_sizes: Sequence[int] = BATCH_SIZES, progress: Progress = silent
) -> VarianceDivisor:
    """MCBN on the test set of each run at every b, with both divisors and the same draws; written to `out`."""
    networks, seconds = dict[str, Network](), 0.0
    for name, run in runs.items():
        biased, change, points = dict[str, Any](), dict[str, Any](), 0
        for size in batch_sizes:
            outcomes: dict[str, SetResult] = {}
            for variance in ("biased", "unbiased"):
                values: dict[str, Any] = {"methods": ("mcbn",), "ood": (), "batch_size": size, "post_hoc": False}
                values["sampler"] = msgspec.structs.replace(run.sampler, variance=variance)
                with tempfile.TemporaryDirectory() as folder:
                    result = evaluate(replace(run, **values, out=Path(folder) / "result.h5"), progress=progress)
                seconds, points = seconds + result.seconds["total"], result.sets["test"].n
                outcomes[variance] = result.methods["mcbn"].sets["test"]
            biased[str(size)] = {key: _bare(outcomes["biased"].estimates[key]) for key in _ESTIMATES}
            change[str(size)] = {key: _change(key, **outcomes) for key in _ESTIMATES}
        networks[name] = Network(_kind(run), points, biased, change)
    first = next(iter(runs.values()))
    record = VarianceDivisor(
        experiment={"samples": first.samples, "seed": first.seed, "batch_sizes": list(batch_sizes)},
        published=PUBLISHED,
        networks=networks,
        seconds={"total": seconds},
        provenance=machine(out, torch.device("cpu")),
        path=out.absolute(),
    )
    codec.write(record, out)
    return record


def _kind(run: Run) -> Literal["convolutions", "dense layers"]:
    dense = any(isinstance(layer, nn.BatchNorm1d) for layer in network_of(run).module.modules())
    return "dense layers" if dense else "convolutions"


def _bare(estimate: Estimate) -> Estimate:
    return Estimate(estimate.value, se=estimate.se, mc_se=estimate.mc_se)


def _change(key: str, *, biased: SetResult, unbiased: SetResult) -> Estimate:
    """How much the estimate with the unbiased variance is above: points and draws are paired."""
    of_points = unbiased.points[key] - biased.points[key]
    one, other = unbiased.estimates[key], biased.estimates[key]
    mc_se = None
    if one.jackknife is not None and other.jackknife is not None:
        difference = one.jackknife - other.jackknife
        mc_se = float(difference.std() * (len(difference) - 1) ** 0.5)
    return Estimate(one.value - other.value, se=standard_error(of_points), mc_se=mc_se)


# ── file, summary, report ────────────────────────────────────────────────────────────────────────────────────────────


def summary(record: VarianceDivisor) -> dict[str, Any]:
    """The record as JSON values."""

    def tables(sizes: Mapping[str, Estimates]) -> dict[str, Any]:
        return {size: {key: estimate_summary(each) for key, each in of.items()} for size, of in sizes.items()}

    networks = {
        name: {"kind": one.kind, "points": one.points, "biased": tables(one.biased), "change": tables(one.change)}
        for name, one in record.networks.items()
    }
    values = {"experiment": dict(record.experiment), "published": dict(record.published), "networks": networks}
    return summary_of(record, **values, seconds=dict(record.seconds), provenance=dict(record.provenance))


def read(path: Path) -> VarianceDivisor:
    """The record in the file at `path`; ResultError where that is not one."""
    return codec.read(VarianceDivisor, path, summary=summary)


def report(record: VarianceDivisor, *, columns: int = 100) -> Report:  # noqa: ARG001 - every report has it
    """The report: both estimates of every network by b, and where the divisor matters."""
    setup = record.experiment
    header = tuple(f"{label}{what}" for label in _ESTIMATES.values() for what in (", biased", ", change"))
    sections = [
        ReportSection(
            f"{name}: BatchNorm after {network.kind}, {network.points:,} points",
            (Table(header, tuple(_rows(network)), stacks=True),),
        )
        for name, network in record.networks.items()
    ]
    legend = (
        "± points and draws together; of a change paired. biased: the variance of a mini-batch is divided by n, as in "
        "training; change: to dividing by n − 1. More is better."
    )
    return Report(
        command=f"bnuq {record.COMMAND}",
        version=record.provenance["bnuq"],
        facts=(
            ("source", f"{record.published['source']}."),
            ("samples", f"{setup['samples']}, seed {setup['seed']}, the same draws with either divisor"),
            ("time", f"{record.seconds['total'] / 60:.1f} min"),
        ),
        summary=tuple(sentences(record)),
        sections=(*sections, ReportSection("", tuple(explanations([legend])))),
        path=None if record.path is None else PathLine(record.path),
    )


def _rows(network: Network) -> Iterator[tuple[str, Any]]:
    for size, estimates in network.biased.items():
        cells = [with_error(of[key], 4) for key in _ESTIMATES for of in (estimates, network.change[size])]
        yield f"b = {size}", tuple(cells)


def sentences(record: VarianceDivisor) -> Iterator[str]:
    """At which b the divisor changes PLL, by more than its error and .005 nats."""
    for name, network in record.networks.items():
        sizes = [size for size, of in network.change.items() if _matters(of["pll"])]
        if not sizes:
            yield f"{name} ({network.kind}): the divisor matters at no b from {min(map(int, network.change))} on."
            continue
        changes = [
            f"at {size} the unbiased variance changes PLL by {number(network.change[size]['pll'].value, 3)} and "
            f"accuracy by {number(network.change[size]['accuracy'].value, 3)}"
            for size in sizes
        ]
        yield f"{name} ({network.kind}): the divisor matters at b = {', '.join(sizes)} alone: {'; '.join(changes)}."


def _matters(change: Estimate) -> bool:
    return abs(change.value) > max(_SMALLEST, _CLEAR * (total(change) or 0.0))
