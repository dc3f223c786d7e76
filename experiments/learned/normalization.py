"""Table 1 of Shekhovtsov & Flach 2018: normalisations without noise, with noise like BatchNorm's, with Bayesian scales.

The network is an All-CNN, narrowed; sets are Fashion-MNIST and a part of CIFAR-10. Noise has the size that the paper
measured in its BatchNorms; a Bayesian scale learns its own. Data, width and epochs are not those of the paper, so that
a value that is not found again refutes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from bnuq.estimates import Estimate
from bnuq.files.journal import Arrays
from bnuq.report import drawing
from bnuq.report.document import Cell, Picture, Report, ReportSection, Table, explanations
from bnuq.report.numbers import number, with_error
from experiments.learned.record import (
    Comparison,
    Kind,
    Network,
    StochasticNormalization,
    mean_of,
    over_seeds,
    reader,
    written,
)
from experiments.learned.record import summary as summary
from experiments.learned.running import Request, by_kind, described, job, trained
from experiments.learned.training import COVERAGES, DISTURBED, STILL, Job
from experiments.summary import report_of

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
CURVES = {  # of each network by epoch, by the names of what is measured
    "loss of training": "epochs_training",
    "test loss as in training": "epochs_in_training",
    "test loss in use": "epochs_in_use",
    "test accuracy in use": "epochs_right",
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
    return compared(request, jobs, StochasticNormalization, _COMPARED, PUBLISHED)


def compared(
    request: Request,
    jobs_of: Callable[[Request, str], Iterable[Job]],
    kind: type[Kind],
    pairs: Sequence[tuple[str, str, str, str, float | None]],
    published: dict[str, Any],
) -> Kind:
    """Train the networks of `jobs_of`, measure them and the differences of `pairs`, and write the record."""
    with trained(request, lambda of: list(jobs_of(request, of))) as found:
        by_name = by_kind(found)
        differences: dict[str, dict[str, Estimate]] = {}
        for of in request.sets:
            for one, other, of_one, of_other, _ in pairs:
                both = zip(by_name[of, one], by_name[of, other], strict=True)
                metric = "accuracy" if of_one == "accuracy" else "nll"
                differences[f"{of}: {_said(one, of_one)} − {_said(other, of_other)}"] = {
                    metric: over_seeds([_of_points(a, of_one) - _of_points(b, of_other) for a, b in both])
                }
        return written(
            kind,
            request.out,
            experiment=described(request),
            published=published,
            networks=(_network(of, name, of_seeds) for (of, name), of_seeds in by_name.items()),
            differences=differences,
            seconds={"training": float(sum(measured["seconds"] for measured in found.values()))},
        )


def _of_points(arrays: Arrays, metric: str) -> np.ndarray:
    """The values of an estimate, of which it is the mean."""
    sign = 1 if metric.startswith("accuracy") else -1
    return sign * arrays[_KEYS[metric]]


_KEYS = {_NLL: "single", _SAMPLES: "samples", "accuracy": "single_right", "accuracy_samples": "samples_right"}


def _network(of: str, name: str, of_seeds: Sequence[Arrays]) -> Network:
    known = [name for name, key in _KEYS.items() if key in of_seeds[0]]
    estimates = {name: over_seeds([_of_points(arrays, name) for arrays in of_seeds]) for name in known}
    if "samples" in of_seeds[0]:
        estimates["nll_change"] = over_seeds([arrays["single"] - arrays["samples"] for arrays in of_seeds])
    for kind in DISTURBED:
        estimates[f"nll, {kind}"] = over_seeds([-arrays[kind] for arrays in of_seeds])
        estimates[f"accuracy, {kind}"] = over_seeds([arrays[f"{kind}_right"] for arrays in of_seeds])
    for place, part in enumerate(COVERAGES):
        estimates[f"error at {part:.0%}"] = mean_of(np.array([arrays["coverage"][place] for arrays in of_seeds]))
    epochs = min(len(arrays["epochs_training"]) for arrays in of_seeds)  # deviations may have settled at others
    curves = {label: np.mean([arrays[key][:epochs] for arrays in of_seeds], 0) for label, key in CURVES.items()}
    if of_seeds[0]["epochs_sigmas"].size:
        sigmas = np.array([arrays["epochs_sigmas"][[0, -1]] for arrays in of_seeds])  # seed, end, layer, U or V
        growth = sigmas[:, 1] / sigmas[:, 0].clip(1e-6)
        curves |= {f"growth of σ_{name}": growth[..., place].mean(0) for place, name in enumerate("UV")}
        curves |= {f"σ_{name} by layer": sigmas[:, 1, :, place].mean(0) for place, name in enumerate("UV")}
        estimates["largest growth"] = mean_of(growth.max((1, 2)))
    ratios = np.array([arrays["epochs_ratios"][-1] for arrays in of_seeds])
    if ratios.size:
        before = np.array([arrays["epochs_ratios"][-2 if epochs > 1 else -1] for arrays in of_seeds])
        estimates["ratio_change"] = Estimate(float(np.abs(ratios / before - 1).max()))
    seconds = sum(float(arrays["seconds"]) for arrays in of_seeds)
    by_epoch = {label: tuple(map(float, values)) for label, values in curves.items()}
    return Network(of, name, estimates, tuple(map(float, ratios.mean(0))), len(of_seeds), seconds, by_epoch)


def _said(name: str, metric: str) -> str:
    return f"{name}, samples" if metric.endswith("_samples") else name


# ── the report ───────────────────────────────────────────────────────────────────────────────────────────────────────


def report(record: Comparison, *, columns: int = 100) -> Report:  # noqa: ARG001 - every report has it
    """The report: NLL and accuracy of one pass and of samples, beside the published ones; learned deviations."""
    about = (
        "A row for each network: NLL of one pass (filled) and of the mean over samples (open), ± one standard error "
        "over points; crosses are published, of CIFAR-10."
    )
    picture = ReportSection("NLL of one pass and of samples", (Picture((record.KIND,), partial(_draw, record), about),))
    return report_of(record, facts=facts(record), summary=sentences(record), sections=(picture, *sections(record)))


def facts(record: Comparison) -> Iterator[tuple[str, str]]:
    setup = record.experiment
    yield "source", f"{record.published['source']}."
    yield "network", f"All-CNN of {setup['width']} and {2 * setup['width']} channels (published: 96 and 192)"
    yield (
        "trained",
        f"on the first {setup['images']:,} images of each set, {setup['epochs']} epochs of Adam, mini-batches of 32, "
        "no augmentation",
    )
    yield "samples", f"{setup['samples']}, of at most {setup['limit']:,} test points"
    yield "seeds", f"{setup['seeds']}, from {setup['seed']}"
    yield "time", f"{record.seconds['training'] / 60:.0f} min of CPU time"


def sentences(record: Comparison) -> Iterator[str]:
    """Whether each published difference is found: ours, its 95 % interval over points and seeds, the published one."""
    yield from of_differences(record, _COMPARED)
    for of in record.experiment["sets"]:
        known = [each for each in record.networks if each.set == of]
        sampled = [each for each in known if "nll_samples" in each.estimates]
        lowest = min(sampled, key=lambda each: each.estimates["nll_samples"].value)
        nll = number(lowest.estimates["nll_samples"].value, 3)
        yield f"{of}: the lowest NLL of samples is {nll}, by {lowest.name}."
        if worse := "; ".join(_worse(each) for each in sampled if _z(each.estimates["nll_change"]) > 3):
            yield f"{of}: samples raise the NLL of one pass by more than three errors in {worse}."
        yield from _growth(known)
        yield from _learned(record, known)
        errors = {each.name: each.estimates["error at 60%"].value for each in known if "error at 60%" in each.estimates}
        if errors:
            best, worst = (end(errors, key=errors.__getitem__) for end in (min, max))
            yield (
                f"{of}: the error of the surest 60 % is {number(errors[best], 3)} ({best}) to "
                f"{number(errors[worst], 3)} ({worst}); published, close to 0: "
                f"{'holds' if errors[worst] < 0.01 else 'open'}; networks and data are others."
            )


def of_differences(record: Comparison, pairs: Sequence[tuple[str, str, str, str, float | None]]) -> Iterator[str]:
    """A sentence for each difference, and what sets these networks apart from the published ones."""
    theirs = {
        f"{_said(one, of_one)} − {_said(other, of_other)}": value for one, other, of_one, of_other, value in pairs
    }
    for name, estimates in record.differences.items():
        ((metric, change),) = estimates.items()
        published = theirs[name.partition(": ")[2]]
        low, high = (change.value if end is None else end for end in (change.low, change.high))
        said = "no number is published" if published is None else f"published {number(published, 3)}"
        yield (
            f"{'NLL' if metric == 'nll' else metric.capitalize()} of {name}: {number(change.value, 4)} "
            f"({number(low, 4)} to {number(high, 4)}); {said}: {_compared(low, high, published)}."
        )
    setup = record.experiment
    yield (
        f"Published are All-CNNs of 96 and 192 channels after 1,200 epochs on CIFAR-10; these of {setup['width']} saw "
        f"{setup['images']:,} images for {setup['epochs']} epochs. That difference can explain every gap, so no "
        "published value is excluded."
    )


def _growth(networks: Sequence[Network]) -> Iterator[str]:
    for each in networks:
        if each.name == "BN" and "largest growth" in each.estimates:
            parts = {name: each.curves[f"growth of σ_{name}"] for name in "UV"}
            most = each.estimates["largest growth"]
            said = "; ".join(
                f"σ_{name} by {number(min(values), 2)} to {number(max(values), 2)}, most in layer "
                f"{1 + int(np.argmax(values))}" for name, values in parts.items()
            )  # fmt: skip
            verdict = "holds, that it grows" if most.se and most.value - 2 * most.se > 1 else "open"
            yield (
                f"{each.set}: from the first epoch to the last the noise of BN's statistics changes by a factor, "
                f"{said}; the largest is {number(most.value, 2)} ± {number(most.se or 0.0, 2)}. Published: up to "
                f"fivefold, most in the last layer: {verdict}; epochs and data are others."
            )


def _learned(record: Comparison, networks: Sequence[Network]) -> Iterator[str]:
    for each in networks:
        if "ratio_change" in each.estimates and each.name == "AN, projected, Bayesian":
            moved, theirs = each.estimates["ratio_change"].value, np.array(record.published["ratios"])
            ranks = np.argsort(np.argsort(each.ratios)), np.argsort(np.argsort(theirs))
            rank = float(np.corrcoef(*ranks)[0, 1])
            yield (
                f"{each.set}: learned σ/s of {each.name} are {number(min(each.ratios), 2)} to "
                f"{number(max(each.ratios), 2)} (published .02 to .61; rank correlation over layers {number(rank, 2)}),"
                f" and moved by up to {100 * moved:.0f} % in their last epoch: "
                f"{'settled' if moved <= STILL else 'not settled'}. Open: fewer images give the data less weight "
                "against the prior."
            )


def _compared(low: float, high: float, published: float | None) -> str:
    """What an interval says of a published difference, which is below 0, of networks that were trained otherwise."""
    if low <= 0 <= high:
        return "open, no difference is shown"
    if high >= 0:
        return "fails here, the opposite sign"
    return "holds, agrees" if published is not None and low <= published <= high else "holds, the sign"


def _z(change: Estimate) -> float:
    return change.value / change.se if change.se else 0.0


def _worse(network: Network) -> str:
    single, samples, change = (network.estimates[name] for name in ("nll", "nll_samples", "nll_change"))
    text = f"{network.name}: {number(single.value, 4)} → {number(samples.value, 4)}"
    return f"{text} ({number(change.value, 4)} ± {number(change.se, 4)})"


def sections(record: Comparison) -> Iterator[ReportSection]:
    header = ("NLL", "accuracy", "NLL, T", "accuracy, T", "change of NLL", "published NLL", "accuracy", "NLL, T")
    for of in record.experiment["sets"]:
        networks = [each for each in record.networks if each.set == of]
        rows = tuple((each.name, _cells(record, each)) for each in networks)
        yield ReportSection(of, (Table(header, rows, stacks=True),))
        layers = tuple((each.name, _in_row(each.ratios, 2)) for each in networks if each.ratios)
        if layers:
            layers = (*layers, ("AN, published", _in_row(record.published["ratios"], 2)))
            yield ReportSection(f"{of}: learned σ/s, by layer", (_numbered(layers),))
        for title, kinds in (
            ("accuracy under noise and FGSM", {f"accuracy, {kind}": kind for kind in DISTURBED}),
            ("error over coverage", {f"error at {part:.0%}": f"{part:.0%}" for part in COVERAGES}),
        ):
            rows = tuple(
                (each.name, tuple(with_error(each.estimates.get(key), 3) for key in kinds)) for each in networks
            )
            yield ReportSection(f"{of}: {title}", (Table(tuple(kinds.values()), rows, stacks=True),))
        epochs, by_epoch = record.experiment["epochs"], [each for each in networks if each.curves]
        for label in CURVES if by_epoch else ():
            rows = tuple((each.name, _in_row(each.curves[label][:epochs], 3)) for each in by_epoch)
            yield ReportSection(f"{of}: {label}, by epoch", (_numbered(rows),))
        of_layers = ("growth of σ_U", "growth of σ_V", "σ_U by layer", "σ_V by layer")
        noise = tuple(
            (f"{each.name}: {label}", _in_row(each.curves[label], 3))
            for each in networks for label in of_layers if label in each.curves
        )  # fmt: skip
        if noise:
            yield ReportSection(f"{of}: noise of BatchNorm by layer, and its growth", (_numbered(noise),))
    legend = (
        "± standard error over points and seeds. NLL and accuracy are those of one pass in evaluation mode; with T, of "
        "the mean probability of T samples, drawn by learned noise, or of BN by mini-batches of 32 (MCBN). Published: "
        "on CIFAR-10, of other width and epochs. Noise: σ_U of the size that the paper measured in its BatchNorms, σ_V "
        "= 0.54 σ_U, about the median of a ResNet-20's layers. Noise and FGSM: of pixels of 0 to 1, of the first 200 "
        "test points, and samples where there are any. Error over coverage: of so many points, the lowest predictive "
        "entropies first. Growth: from the end of the first epoch to the end. Networks without normalisation and with "
        "WN start from one pass of 128 images as BatchNorm would start them. σ/s: averages over channels."
    )
    yield ReportSection("", tuple(explanations([legend])))


def _in_row(values: Iterable[float], digits: int) -> tuple[Cell, ...]:
    return tuple(Cell(number(value, digits)) for value in values)


def _numbered(rows: Sequence[tuple[str, tuple[Cell, ...]]]) -> Table:
    most = max(len(cells) for _, cells in rows)
    padded = tuple((name, (*cells, *[Cell("–")] * (most - len(cells)))) for name, cells in rows)
    return Table(tuple(str(place + 1) for place in range(most)), padded, stacks=True)


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
            theirs = [
                (y, of[key]) for y, of in zip(places, published, strict=True) for key in (_NLL, _SAMPLES) if key in of
            ]
            axes.plot([value for _, value in theirs], [y for y, _ in theirs], "x", color=drawing.GREY)
            axes.set_yticks(places, [each.name for each in networks])
            axes.set_xlabel("NLL (nats)")
            axes.set_title(name)
