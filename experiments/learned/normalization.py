"""Table 1 of Shekhovtsov & Flach 2018: normalisations without noise, with noise like BatchNorm's, with Bayesian scales.

The network is an All-CNN, narrowed; sets are Fashion-MNIST and a part of CIFAR-10. Noise has the size that the paper
measured in its BatchNorms; a Bayesian scale learns its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bnuq.estimates import Estimate
from bnuq.files.journal import Arrays
from bnuq.report import drawing
from bnuq.report.document import Cell, PathLine, Picture, Report, ReportSection, Table, explanations
from bnuq.report.numbers import number, with_error
from bnuq.store import codec
from experiments.learned.record import Comparison, Network, StochasticNormalization, mean_of, reader
from experiments.learned.record import summary as summary
from experiments.learned.running import Request, described, job, trained
from experiments.learned.training import Job
from experiments.work import machine

PUBLISHED: dict[str, Any] = {
    "source": "Shekhovtsov & Flach 2018, Stochastic normalizations as Bayesian learning, Table 1: CIFAR-10",
    "of_networks": {
        "none": {"accuracy": 0.907, "nll": 1.45},
        "BN": {"accuracy": 0.927, "nll": 0.34},
        "BN, projected": {"accuracy": 0.941, "nll": 0.29},
        "WN, Bayesian": {"accuracy": 0.935, "nll": 0.48, "nll_samples": 0.27},
        "AN, Bayesian": {"accuracy": 0.944, "nll": 0.38, "nll_samples": 0.22},
    },
    "ratios": [0.39, 0.34, 0.18, 0.29, 0.27, 0.29, 0.31, 0.61, 0.024],
}
_NOISES = {"none": "", "batch": ", noise", "scale": ", Bayesian"}
_COMPARED = (  # the smaller and the larger NLL, as published
    ("BN", "none", "nll", "nll"),
    ("BN, projected", "BN", "nll", "nll"),
    ("WN, Bayesian", "WN, Bayesian", "nll_samples", "nll"),
    ("AN, Bayesian", "AN, Bayesian", "nll_samples", "nll"),
)
read = reader(StochasticNormalization)


def jobs(request: Request, of: str) -> Iterator[Job]:
    """Every normalisation with every noise; BatchNorm's own noise is that of its mini-batches."""
    for label, normalization in (("none", "none"), ("BN", "batch"), ("WN", "weight"), ("AN", "analytic")):
        for noise, suffix in _NOISES.items():
            own = normalization == "batch"
            if own and noise == "batch":
                continue
            for projected in (False, True) if own else (False,):
                options = {"normalization": normalization, "noise": noise, "width": request.width}
                name = f"{label}{', projected' * projected}{suffix}"
                values = {"projected": projected, "mcbn": own and noise == "none", "learned": noise != "none"}
                yield job(request, of, name, function="all_cnn", options=tuple(options.items()), **values)


def reproduce(request: Request) -> StochasticNormalization:
    """Train every network, measure it, write the record to `request.out`, and give it."""
    with trained(request, lambda of: list(jobs(request, of))) as found:
        differences: dict[str, dict[str, Estimate]] = {}
        for of in request.sets:
            arrays = {each.name: measured for each, measured in found.items() if each.of == of}
            for less, more, of_less, of_more in _COMPARED:
                pair = arrays[less][_KEYS[of_less]], arrays[more][_KEYS[of_more]]
                differences[f"{of}: {_said(less, of_less)} − {_said(more, of_more)}"] = {
                    "nll": mean_of(pair[1] - pair[0])
                }
        record = StochasticNormalization(
            experiment=described(request),
            published=PUBLISHED,
            networks=tuple(_network(each, measured) for each, measured in found.items()),
            differences=differences,
            seconds={"training": float(sum(measured["seconds"] for measured in found.values()))},
            provenance=machine(request.out, torch.device("cpu")),
            path=request.out.absolute(),
        )
        codec.write(record, request.out)
    return record


_KEYS = {"nll": "single", "nll_samples": "samples"}


def _network(each: Job, arrays: Arrays) -> Network:
    estimates = {"nll": mean_of(-arrays["single"]), "accuracy": mean_of(arrays["single_right"])}
    if "samples" in arrays:
        samples, right = arrays["samples"], arrays["samples_right"]
        gain = mean_of(arrays["single"] - samples)
        estimates |= {"nll_samples": mean_of(-samples), "accuracy_samples": mean_of(right), "nll_change": gain}
    return Network(each.of, each.name, estimates, tuple(map(float, arrays["ratios"])), 1, float(arrays["seconds"]))


def _said(name: str, metric: str) -> str:
    return f"{name}, samples" if metric == "nll_samples" else name


# ── the report ───────────────────────────────────────────────────────────────────────────────────────────────────────


def report(record: Comparison, *, columns: int = 100) -> Report:  # noqa: ARG001 - every report has it
    """The report: NLL and accuracy of one pass and of samples, beside the published ones; learned deviations."""
    setup = record.experiment
    return Report(
        command=f"bnuq {record.COMMAND}",
        version=record.provenance["bnuq"],
        facts=(
            ("source", f"{record.published['source']}."),
            ("network", f"All-CNN of {setup['width']} and {2 * setup['width']} channels (published: 96 and 192)"),
            (
                "trained",
                f"on the first {setup['images']:,} images of each set, {setup['epochs']} epochs of Adam, mini-batches "
                "of 32, no augmentation",
            ),
            ("samples", f"{setup['samples']}, of at most {setup['limit']:,} test points, seed {setup['seed']}"),
            ("time", f"{record.seconds['training'] / 60:.0f} min of CPU time"),
        ),
        summary=tuple(sentences(record)),
        sections=tuple(_sections(record)),
        path=None if record.path is None else PathLine(record.path),
    )


def sentences(record: Comparison) -> Iterator[str]:
    """Whether each published difference is found: ours, its 95 % interval over points, and the published one."""
    for name, estimates in record.differences.items():
        change = estimates["nll"]
        half = 1.96 * (change.se or 0.0)
        low, high = change.value - half, change.value + half
        published = _published_difference(name)
        yield (
            f"NLL of {name}: {number(change.value, 4)} ({number(low, 4)} to {number(high, 4)}); published "
            f"{number(published, 2)}: {_compared(low, high, published)}."
        )
    for of in record.experiment["sets"]:
        known = [each for each in record.networks if each.set == of and "nll_samples" in each.estimates]
        best = min(known, key=lambda each: each.estimates["nll_samples"].value)
        yield f"{of}: the lowest NLL of samples is {number(best.estimates['nll_samples'].value, 3)}, by {best.name}."
        if worse := "; ".join(_worse(each) for each in known if _z(each.estimates["nll_change"]) > 3):
            yield f"{of}: samples raise the NLL of one pass by more than three errors in {worse}."
    yield "One seed and a narrow network: differences between networks have no error for another seed."


def _compared(low: float, high: float, published: float) -> str:
    """What an interval says of a published difference, which is below 0."""
    found = low <= published <= high
    if low <= 0 <= high:
        return "inconclusive" if found else "no difference is shown, and the published one is excluded"
    return "agrees" if found else "only the sign agrees" if high < 0 else "the opposite of the published"


def _z(change: Estimate) -> float:
    return change.value / change.se if change.se else 0.0


def _worse(network: Network) -> str:
    single, samples, change = (network.estimates[name] for name in ("nll", "nll_samples", "nll_change"))
    text = f"{network.name}: {number(single.value, 4)} → {number(samples.value, 4)}"
    return f"{text} ({number(change.value, 4)} ± {number(change.se, 4)})"


def _published_difference(name: str) -> float:
    for less, more, of_less, of_more in _COMPARED:
        if name.endswith(f": {_said(less, of_less)} − {_said(more, of_more)}"):
            values = PUBLISHED["of_networks"]
            return values[less][of_less] - values[more][of_more]
    return float("nan")


def _sections(record: Comparison) -> Iterator[ReportSection]:
    about = (
        "A row for each network: NLL of one pass (filled) and of the mean over samples (open), ± one standard error "
        "over points; crosses are published, of CIFAR-10."
    )
    yield ReportSection("NLL of one pass and of samples", (Picture((record.KIND,), partial(_draw, record), about),))
    header = ("NLL", "accuracy", "NLL, T", "accuracy, T", "change of NLL", "published", "published, T")
    for of in record.experiment["sets"]:
        rows = tuple((each.name, _cells(record, each)) for each in record.networks if each.set == of)
        yield ReportSection(of, (Table(header, rows, stacks=True),))
        layers = tuple(
            (each.name, tuple(Cell(number(ratio, 2)) for ratio in each.ratios))
            for each in record.networks
            if each.set == of and each.ratios
        )
        published = ("AN, published", tuple(Cell(number(ratio, 2)) for ratio in record.published["ratios"]))
        yield ReportSection(
            f"{of}: learned σ/s, by layer", (Table(tuple(map(str, range(1, 10))), (*layers, published), stacks=True),)
        )
    legend = (
        "± standard error over points. NLL and accuracy are those of one pass in evaluation mode; with T, of the mean "
        "probability of T samples, drawn by learned noise, or of BN without Bayesian scales by mini-batches of 32 "
        "(MCBN). Published: NLL on CIFAR-10. Noise: of the size that the paper measured in its BatchNorms."
    )
    yield ReportSection("", tuple(explanations([legend])))


def _cells(record: Comparison, network: Network) -> tuple[Cell, ...]:
    names = ("nll", "accuracy", "nll_samples", "accuracy_samples", "nll_change")
    published = record.published["of_networks"].get(network.name, {})
    theirs = (
        Cell("–" if (value := published.get(key)) is None else number(value, 2)) for key in ("nll", "nll_samples")
    )
    return (*(with_error(network.estimates.get(name), 4) for name in names), *theirs)


def _draw(record: Comparison, path: Path) -> None:
    sets = record.experiment["sets"]
    with drawing.picture(
        path,
        title="Stochastic normalisations: NLL of one pass and of samples",
        about="filled: one pass; open: mean of samples; cross: published, CIFAR-10",
        columns=len(sets),
        size=(5.2, 4.4),
    ) as panels:
        for axes, name in zip(panels, sets, strict=True):
            networks = [each for each in record.networks if each.set == name][::-1]
            places = np.arange(len(networks))
            for key, shift, face in (("nll", 0.12, drawing.INK), ("nll_samples", -0.12, "white")):
                known = [
                    (y, each.estimates[key]) for y, each in zip(places, networks, strict=True) if key in each.estimates
                ]
                axes.errorbar(
                    [estimate.value for _, estimate in known], [y + shift for y, _ in known],
                    xerr=[estimate.se or 0.0 for _, estimate in known], fmt="o", color=drawing.INK,
                    markerfacecolor=face, capsize=2,
                )  # fmt: skip
            published = [record.published["of_networks"].get(each.name, {}) for each in networks]
            theirs = [(y, of[key]) for y, of in zip(places, published, strict=True) for key in _KEYS if key in of]
            axes.plot([value for _, value in theirs], [y for y, _ in theirs], "x", color=drawing.GREY)
            axes.set_yticks(places, [each.name for each in networks])
            axes.set_xlabel("NLL (nats)")
            axes.set_title(name)
