"""Table 1 of Shekhovtsov & Flach 2018: normalisations without noise, with noise like BatchNorm's, with Bayesian scales.

The network is an All-CNN, narrowed; sets are Fashion-MNIST and a part of CIFAR-10. Noise has the size that the paper
measured in its BatchNorms; a Bayesian scale learns its own. Data, width and epochs are not those of the paper, so that
a value that is not found again refutes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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
from experiments.learned.record import Comparison, Network, StochasticNormalization, over_seeds, reader
from experiments.learned.record import summary as summary
from experiments.learned.running import Request, described, job, trained
from experiments.learned.training import Job
from experiments.work import machine

PUBLISHED: dict[str, Any] = {
    "source": "Shekhovtsov & Flach 2018, Stochastic normalizations as Bayesian learning, Table 1 and Fig. 3: CIFAR-10",
    "of_networks": {  # every row of WN and AN is of projected weights
        "none": {"accuracy": 0.907, "nll": 1.45},
        "BN": {"accuracy": 0.927, "nll": 0.34},
        "BN, projected": {"accuracy": 0.941, "nll": 0.29},
        "WN, projected": {"accuracy": 0.935, "nll": 0.48},
        "WN, projected, Bayesian": {"nll_samples": 0.27},
        "AN, projected": {"accuracy": 0.944, "nll": 0.38},
        "AN, projected, Bayesian": {"nll_samples": 0.22},
    },
    "ratios": [0.39, 0.34, 0.18, 0.29, 0.27, 0.29, 0.31, 0.61, 0.024],
}
_NOISES = {"none": "", "batch": ", noise", "scale": ", Bayesian"}
_NLL, _SAMPLES = "nll", "nll_samples"
_COMPARED: tuple[tuple[str, str, str, str, float | None], ...] = (
    # the smaller and the larger NLL, as published, and their difference; None where the paper has no number
    ("BN", "none", _NLL, _NLL, 0.34 - 1.45),
    ("BN, projected", "BN", _NLL, _NLL, 0.29 - 0.34),
    ("WN, projected", "WN", _NLL, _NLL, 0.75 - 0.9),
    ("AN, projected", "AN", _NLL, _NLL, 0.45 - 0.7),
    ("WN, noise", "WN", _NLL, _NLL, None),
    ("AN, noise", "AN", _NLL, _NLL, None),
    ("WN, projected, Bayesian", "WN, projected", _SAMPLES, _NLL, 0.27 - 0.48),
    ("AN, projected, Bayesian", "AN, projected", _SAMPLES, _NLL, 0.22 - 0.38),
)
read = reader(StochasticNormalization)


def jobs(request: Request, of: str) -> Iterator[Job]:
    """The networks of the paper's Table 1 and Figs. 3, 5 to 7, from several seeds: BatchNorm with the noise of its
    mini-batches, WN and AN without noise, with noise like BatchNorm's, and with Bayesian scales."""
    for label, normalization in (("none", "none"), ("BN", "batch"), ("WN", "weight"), ("AN", "analytic")):
        for noise, suffix in _NOISES.items():
            own = normalization == "batch"
            if normalization in ("none", "batch") and noise != "none":
                continue
            for projected in (False,) if normalization == "none" or noise == "batch" else (False, True):
                options = {"normalization": normalization, "noise": noise, "width": request.width}
                name = f"{label}{', projected' * projected}{suffix}"
                values = {"projected": projected, "mcbn": own, "learned": noise != "none"}
                for seed in range(request.seed, request.seed + request.seeds):
                    settings = {"options": tuple(options.items()), "seed": seed, **values}
                    yield job(request, of, name, function="all_cnn", **settings)


def reproduce(request: Request) -> StochasticNormalization:
    """Train every network, measure it, write the record to `request.out`, and give it."""
    with trained(request, lambda of: list(jobs(request, of))) as found:
        by_name: dict[tuple[str, str], list[Arrays]] = {}
        for each, measured in found.items():
            by_name.setdefault((each.of, each.name), []).append(measured)
        differences: dict[str, dict[str, Estimate]] = {}
        for of in request.sets:
            for less, more, of_less, of_more, _ in _COMPARED:
                pairs = zip(by_name[of, less], by_name[of, more], strict=True)
                differences[f"{of}: {_said(less, of_less)} − {_said(more, of_more)}"] = {
                    "nll": over_seeds([b[_KEYS[of_more]] - a[_KEYS[of_less]] for a, b in pairs])
                }
        record = StochasticNormalization(
            experiment=described(request),
            published=PUBLISHED,
            networks=tuple(_network(of, name, of_seeds) for (of, name), of_seeds in by_name.items()),
            differences=differences,
            seconds={"training": float(sum(measured["seconds"] for measured in found.values()))},
            provenance=machine(request.out, torch.device("cpu")),
            path=request.out.absolute(),
        )
        codec.write(record, request.out)
    return record


_KEYS = {_NLL: "single", _SAMPLES: "samples"}


def _network(of: str, name: str, of_seeds: Sequence[Arrays]) -> Network:
    estimates = {
        "nll": over_seeds([-arrays["single"] for arrays in of_seeds]),
        "accuracy": over_seeds([arrays["single_right"] for arrays in of_seeds]),
    }
    if "samples" in of_seeds[0]:
        estimates |= {
            "nll_samples": over_seeds([-arrays["samples"] for arrays in of_seeds]),
            "accuracy_samples": over_seeds([arrays["samples_right"] for arrays in of_seeds]),
            "nll_change": over_seeds([arrays["single"] - arrays["samples"] for arrays in of_seeds]),
        }
    ratios, before = (np.mean([arrays[key] for arrays in of_seeds], 0) for key in ("ratios", "ratios_before"))
    if len(ratios):
        estimates["ratio_change"] = Estimate(float(np.abs(ratios / before - 1).max()))
    seconds = sum(float(arrays["seconds"]) for arrays in of_seeds)
    return Network(of, name, estimates, tuple(map(float, ratios)), len(of_seeds), seconds)


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
            ("samples", f"{setup['samples']}, of at most {setup['limit']:,} test points"),
            ("seeds", f"{setup['seeds']}, from {setup['seed']}"),
            ("time", f"{record.seconds['training'] / 60:.0f} min of CPU time"),
        ),
        summary=tuple(sentences(record)),
        sections=tuple(_sections(record)),
        path=None if record.path is None else PathLine(record.path),
    )


def sentences(record: Comparison) -> Iterator[str]:
    """Whether each published difference is found: ours, its 95 % interval over points and seeds, the published one."""
    for name, estimates in record.differences.items():
        change, published = estimates["nll"], _published_difference(name)
        low, high = (change.value if end is None else end for end in (change.low, change.high))
        theirs = "no number is published" if published is None else f"published {number(published, 2)}"
        yield (
            f"NLL of {name}: {number(change.value, 4)} ({number(low, 4)} to {number(high, 4)}); {theirs}: "
            f"{_compared(low, high, published)}."
        )
    setup = record.experiment
    yield (
        "Published are All-CNNs six times as wide after 1,200 epochs on CIFAR-10; these saw "
        f"{setup['images']:,} images for {setup['epochs']} epochs. That difference can explain every gap, so no "
        "published value is excluded."
    )
    for of in record.experiment["sets"]:
        known = [each for each in record.networks if each.set == of and "nll_samples" in each.estimates]
        best = min(known, key=lambda each: each.estimates["nll_samples"].value)
        yield f"{of}: the lowest NLL of samples is {number(best.estimates['nll_samples'].value, 3)}, by {best.name}."
        if worse := "; ".join(_worse(each) for each in known if _z(each.estimates["nll_change"]) > 3):
            yield f"{of}: samples raise the NLL of one pass by more than three errors in {worse}."
    for each in record.networks:
        if "ratio_change" in each.estimates and each.name == "AN, projected, Bayesian":
            moved = each.estimates["ratio_change"].value
            yield f"{each.set}: learned σ/s of {each.name} moved by up to {100 * moved:.0f} % in the last quarter."


def _compared(low: float, high: float, published: float | None) -> str:
    """What an interval says of a published difference, which is below 0, of networks that were trained otherwise."""
    if low <= 0 <= high:
        return "no difference is shown"
    if high >= 0:
        return "the opposite sign here"
    return "agrees" if published is not None and low <= published <= high else "the published sign"


def _z(change: Estimate) -> float:
    return change.value / change.se if change.se else 0.0


def _worse(network: Network) -> str:
    single, samples, change = (network.estimates[name] for name in ("nll", "nll_samples", "nll_change"))
    text = f"{network.name}: {number(single.value, 4)} → {number(samples.value, 4)}"
    return f"{text} ({number(change.value, 4)} ± {number(change.se, 4)})"


def _published_difference(name: str) -> float | None:
    names = {
        f"{_said(less, of_less)} − {_said(more, of_more)}": value for less, more, of_less, of_more, value in _COMPARED
    }
    return names[name.partition(": ")[2]]


def _sections(record: Comparison) -> Iterator[ReportSection]:
    about = (
        "A row for each network: NLL of one pass (filled) and of the mean over samples (open), ± one standard error "
        "over points; crosses are published, of CIFAR-10."
    )
    yield ReportSection("NLL of one pass and of samples", (Picture((record.KIND,), partial(_draw, record), about),))
    header = ("NLL", "accuracy", "NLL, T", "accuracy, T", "change of NLL", "published NLL", "accuracy", "NLL, T")
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
        "± standard error over points and seeds. NLL and accuracy are those of one pass in evaluation mode; with T, of "
        "the mean probability of T samples, drawn by learned noise, or of BN by mini-batches of 32 (MCBN). Published: "
        "on CIFAR-10, of other width and epochs. Noise: σ_U of the size that the paper measured in its BatchNorms, σ_V "
        "= 0.54 σ_U, about the median of a ResNet-20's layers. Networks without normalisation and with WN start from "
        "one pass of 128 images as BatchNorm would start them. σ/s: averages over channels."
    )
    yield ReportSection("", tuple(explanations([legend])))


def _cells(record: Comparison, network: Network) -> tuple[Cell, ...]:
    names = ("nll", "accuracy", "nll_samples", "accuracy_samples", "nll_change")
    published = record.published["of_networks"].get(network.name, {})
    theirs = (
        Cell("–" if (value := published.get(key)) is None else number(value, digits))
        for key, digits in (("nll", 2), ("accuracy", 3), ("nll_samples", 2))
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
