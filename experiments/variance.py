"""Biased or unbiased variance of a mini-batch, "does it even matter?": accuracy and PLL of MCBN with either divisor.

A layer divides by n = b·z values or by n − 1, so a scale differs by √(1 − 1/n): in a convolution by next to nothing, in
a dense layer of small mini-batches by much. Draws are the same with both, so differences are paired.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
from torch import nn

from bnuq.config import Run
from bnuq.estimates import Estimate
from bnuq.evaluation.setup import network_of
from bnuq.files.journal import beside
from bnuq.metrics import standard_error
from bnuq.progress import Progress, silent
from bnuq.records.evaluation import SetResult
from bnuq.report.document import Report, ReportSection, Table, explanations
from bnuq.report.numbers import number, total, with_error
from bnuq.workflows.evaluate import evaluate
from experiments.learned.record import Comparison, Network, VarianceDivisor, reader, written
from experiments.learned.record import summary as summary
from experiments.summary import report_of

BATCH_SIZES = (2, 4, 8, 16, 32, 128)
PUBLISHED: dict[str, Any] = {
    "source": 'Wu & Johnson 2021, Rethinking "batch" in BatchNorm: biased in training, unbiased in use',
    "of_networks": {},
}
_COLUMNS = {"accuracy": "accuracy, biased", "accuracy_change": "change", "pll": "PLL, biased", "pll_change": "change"}
_CLEAR, _SMALLEST = 2, 0.005  # standard errors, and nats, from which on a difference of PLL matters
read = reader(VarianceDivisor)


def reproduce(
    runs: Mapping[str, Run], out: Path, *, batch_sizes: Sequence[int] = BATCH_SIZES, progress: Progress = silent
) -> VarianceDivisor:
    """MCBN on the test set of each run at every b, with both divisors and the same draws; written to `out`. The parts
    of an interrupted evaluation are kept beside it."""
    networks, points, work = list[Network](), dict[str, int](), beside(out)
    for name, run in runs.items():
        for size in batch_sizes:
            outcomes, seconds = dict[str, SetResult](), 0.0
            for variance in ("biased", "unbiased"):
                values: dict[str, Any] = {"methods": ("mcbn",), "ood": (), "batch_size": size, "post_hoc": False}
                values["sampler"] = msgspec.structs.replace(run.sampler, variance=variance)
                with tempfile.TemporaryDirectory() as folder:
                    request = replace(run, **values, out=Path(folder) / "result.h5")
                    result = evaluate(request, work=work, progress=progress)
                outcomes[variance] = result.methods["mcbn"].sets["test"]
                seconds, points[name] = seconds + result.seconds["total"], result.sets["test"].n
            networks.append(Network(name, f"b = {size}", _estimates(**outcomes), (), 1, seconds))
    with contextlib.suppress(OSError):  # not empty: parts of another request
        work.rmdir()
    first = next(iter(runs.values()))
    kinds = {name: _kind(run) for name, run in runs.items()}
    return written(
        VarianceDivisor,
        out,
        experiment={"samples": first.samples, "seed": first.seed, "sets": [*runs], "kinds": kinds, "points": points},
        published=PUBLISHED,
        networks=networks,
        differences={},
        seconds={"training": 0.0, "evaluation": sum(each.seconds for each in networks)},
    )


def _kind(run: Run) -> str:
    dense = any(isinstance(layer, nn.BatchNorm1d) for layer in network_of(run).module.modules())
    return "dense layers" if dense else "convolutions"


def _estimates(*, biased: SetResult, unbiased: SetResult) -> dict[str, Estimate]:
    """With the biased variance, and how much those with the unbiased one are above: points and draws are paired."""
    estimates = {}
    for key in ("accuracy", "pll"):
        one, other = unbiased.estimates[key], biased.estimates[key]
        assert one.jackknife is not None and other.jackknife is not None
        drawn = (one.jackknife - other.jackknife).std() * (len(one.jackknife) - 1) ** 0.5
        se = standard_error(unbiased.points[key] - biased.points[key])
        estimates[key] = Estimate(other.value, se=other.se, mc_se=other.mc_se)
        estimates[f"{key}_change"] = Estimate(one.value - other.value, se=se, mc_se=float(drawn))
    return estimates


def report(record: Comparison, *, columns: int = 100) -> Report:  # noqa: ARG001 - every report has it
    """The report: both estimates of every network by b, and where the divisor matters."""
    setup = record.experiment
    legend = (
        "± points and draws together; of a change paired. biased: the variance of a mini-batch is divided by n, as in "
        "training; change: by n − 1 instead. More is better."
    )
    sections = [
        ReportSection(
            f"{name}: BatchNorm after {setup['kinds'][name]}, {setup['points'][name]:,} points",
            (Table(tuple(_COLUMNS.values()), tuple(_rows(record, name)), stacks=True),),
        )
        for name in setup["sets"]
    ]
    return report_of(
        record,
        facts=(
            ("source", f"{record.published['source']}."),
            ("samples", f"{setup['samples']}, seed {setup['seed']}, the same draws with either divisor"),
            ("time", f"{record.seconds['evaluation'] / 60:.1f} min"),
        ),
        summary=sentences(record),
        sections=(*sections, ReportSection("", tuple(explanations([legend])))),
    )


def _rows(record: Comparison, name: str) -> Iterator[tuple[str, Any]]:
    for each in record.networks:
        if each.set == name:
            yield each.name, tuple(with_error(each.estimates[key], 4) for key in _COLUMNS)


def sentences(record: Comparison) -> Iterator[str]:
    """At which b the divisor changes PLL by more than .005 nats, at which by less, and where that cannot be said."""
    for name in record.experiment["sets"]:
        more, less, unknown = list[str](), list[str](), list[str]()
        for each in record.networks:
            change, size = each.estimates["pll_change"], each.name.removeprefix("b = ")
            error = _CLEAR * (total(change) or 0.0)
            if each.set == name and abs(change.value) > max(_SMALLEST, error):
                more.append(f"{size} (by {number(change.value, 3)})")
            elif each.set == name:
                (less if abs(change.value) + error < _SMALLEST else unknown).append(size)
        parts = (
            ("by more than .005 nats", more),
            ("by less than .005 nats", less),
            ("too uncertain to say", unknown),
        )
        said = "; ".join(f"{how} at b = {', '.join(sizes)}" for how, sizes in parts if sizes)
        yield f"{name} ({record.experiment['kinds'][name]}): the unbiased variance changes PLL {said}."
