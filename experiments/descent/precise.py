"""Averages of BatchNorm's statistics against precise ones, after Wu & Johnson 2021, Rethinking "Batch" in BatchNorm.

Networks are trained with a small and a large mini-batch. After each epoch the test error is measured with exponential
averages (EMA) of several λ, and with precise statistics of the weights as they are: of mini-batches as in training,
pooled. At the end the statistics of very small mini-batches are set beside those of all points at once, by layer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import bnuq
from bnuq.estimates import Estimate
from bnuq.files.journal import Arrays
from bnuq.report.document import Report, ReportSection, Table, explanations
from bnuq.report.numbers import number, with_error
from experiments.descent.training import Averages, train
from experiments.learned.record import Comparison, Network, PreciseBn, mean_of, over_seeds, reader, written
from experiments.learned.record import summary as summary
from experiments.learned.running import Request, described, job, trained
from experiments.learned.training import Job
from experiments.summary import report_of

DECAYS = (0.5, 0.9, 0.99, 0.999)  # λ of the averages
KINDS = (*(f"EMA, λ = {value:g}" for value in DECAYS), "precise")
USUAL, SIZES = KINDS[1], (2, 4, 8, 32)  # mini-batches of the statistics by layer
BATCH_SIZES, PAPERS, MANY = (32, 256), (256, 8192), 50_000  # of training; the paper's from so many images on
POINTS, RATE, RATE_AT = 4096, 0.1, 256  # training images of precise statistics; half of them of those by layer
PUBLISHED: dict[str, Any] = {
    "source": 'Wu & Johnson 2021, Rethinking "Batch" in BatchNorm: ResNet-50 on ImageNet, mini-batches of 8,192',
    "of_networks": {USUAL: {"error": 0.240}, "precise": {"error": 0.2373}},
}
read = reader(PreciseBn)


def jobs(request: Request, of: str) -> Iterator[Job]:
    """A network for each mini-batch and seed, the rate in proportion to the mini-batch."""
    common = {"width": request.width, "drops": (0.5, 0.75), "warm_up": 1.0, "weight_decay": 1e-4, "decays": DECAYS}
    common |= {"augment": False, "points": min(POINTS, request.images)}
    for size in PAPERS if request.images >= MANY else BATCH_SIZES:
        options = tuple({**common, "batch_size": size, "rate": RATE * size / RATE_AT}.items())
        for seed in range(request.seed, request.seed + request.seeds):
            yield job(request, of, f"b = {size:,}", function="small", options=options, seed=seed)


def reproduce(request: Request) -> PreciseBn:
    """Train every network, measure it, write the record to `request.out`, and give it."""
    with trained(request, lambda of: list(jobs(request, of)), train) as found:
        networks, differences, last = list[Network](), dict[str, dict[str, Estimate]](), request.epochs
        for name in dict.fromkeys(of.name for of in found):
            runs = [arrays for of, arrays in found.items() if of.name == name]
            seconds = sum(float(arrays["seconds"]) for arrays in runs)
            for kind in KINDS:
                networks.append(Network(name, kind, _by_epoch(runs, kind, last), (), request.seeds, seconds))
                if kind != "precise":
                    differences[f"{name}: {kind} − precise"] = _by_epoch(runs, kind, last, "precise")
            for size in SIZES:
                key = f"{last}.b = {size}"
                by_layer = np.array([arrays[f"{key}.spread"] for arrays in runs])
                estimates = {f"layer {layer + 1}": mean_of(of) for layer, of in enumerate(by_layer.T)}
                estimates |= {"error": _error(runs, key), "error_change": _error(runs, key, f"{last}.all points")}
                networks.append(Network(name, f"statistics of b = {size}", estimates, (), request.seeds, 0.0))
        return written(
            PreciseBn,
            request.out,
            experiment=described(request) | {"batch_sizes": [*dict.fromkeys(of.name for of in found)]},
            published=PUBLISHED,
            networks=networks,
            differences=differences,
            seconds={"training": float(sum(arrays["seconds"] for arrays in found.values()))},
        )


def _error(runs: Sequence[Arrays], one: str, other: str = "") -> Estimate:
    """The test error with one kind of statistics, or how far above that with another it is, points paired."""
    return over_seeds([of[f"{one}.wrong"].astype(float) - (of[f"{other}.wrong"] if other else 0.0) for of in runs])


def _by_epoch(runs: Sequence[Arrays], kind: str, epochs: int, other: str = "") -> dict[str, Estimate]:
    """Of each epoch, and the "error" after the last; "before" is that of the first half, before the rate falls."""
    parts = [[f"{epoch}.{name}" if name else "" for name in (kind, other)] for epoch in range(1, epochs + 1)]
    found = {f"epoch {epoch + 1}": _error(runs, *part) for epoch, part in enumerate(parts)}
    first = parts[: max(1, epochs // 2)]
    mean = [np.mean([of[f"{a}.wrong"] - (of[f"{b}.wrong"] * 1.0 if b else 0.0) for a, b in first], 0) for of in runs]
    return found | {"error": found[f"epoch {epochs}"], "before": over_seeds(mean)}


def measure(
    network: nn.Module, averages: Averages, data: dict[str, Tensor], options: dict[str, Any], *, last: bool
) -> Arrays:
    """Which test points are wrong with each average and with precise statistics; at the end also with those of very
    small mini-batches, and by layer how far ln σ² of these is from that of all points at once, the mean over channels.
    """
    running, points, found = averages.running(), data["x"][: options["points"]], Arrays()
    rows = dict(zip(KINDS, averages.values, strict=False))
    rows["precise"] = _precise(network, averages, points.split(options["batch_size"]))
    if last:
        few = points[: len(points) // 2]
        rows["all points"] = _precise(network, averages, [few], "full")
        for size in SIZES:
            rows[f"b = {size}"] = _precise(network, averages, few.split(size))
            off = (rows[f"b = {size}"] / rows["all points"]).split(averages.sizes)[1::2]
            found[f"b = {size}.spread"] = np.array([float(layer.log().abs().mean()) for layer in off])
    network.eval()
    for name, row in rows.items():
        averages.put(row)
        with torch.no_grad():
            outputs = torch.cat([network(x) for x in data["test_x"].split(1000)])
        found[f"{name}.wrong"] = (outputs.argmax(1) != data["test_y"]).numpy()
    averages.put(running)
    network.train()
    return found


def _precise(network: nn.Module, averages: Averages, batches: Iterable[Tensor], by: Any = "population") -> Tensor:
    """Population statistics of the weights as they are, in the order of `averages`."""
    found = {each.name: each for each in bnuq.population_statistics(network, list(batches), estimator=by)}
    parts = [torch.from_numpy(of) for name in averages.layers for of in (found[name].mean, found[name].var)]
    return torch.cat(parts).float()


# ── the report ───────────────────────────────────────────────────────────────────────────────────────────────────────


def report(record: Comparison, *, columns: int = 100) -> Report:  # noqa: ARG001 - every report has it
    """The report: errors by epoch and kind of statistics, and statistics of very small mini-batches by layer."""
    setup = record.experiment
    trained_on = (
        f"a residual network of 8 layers, the first of {setup['width']} channels, on the first {setup['images']:,} "
        f"images of {', '.join(setup['sets'])}; {setup['epochs']} epochs of SGD, the rate {RATE:g} × b/{RATE_AT}, "
        f"falling after a half and three quarters; {setup['seeds']} seeds"
    )
    return report_of(
        record,
        facts=(
            ("source", f"{record.published['source']}."),
            ("trained", trained_on),
            ("time", f"{record.seconds['training'] / 60:.0f} min of CPU time"),
        ),
        summary=sentences(record),
        sections=_sections(record),
    )


def sentences(record: Comparison) -> Iterator[str]:
    """What is found of each claim: the larger mini-batch, λ, before convergence, and very small mini-batches."""
    names = record.experiment["batch_sizes"]

    def told(key: str, kind: str = USUAL) -> tuple[str, str]:
        found = [record.differences[f"{name}: {kind} − precise"][key] for name in names]
        low, high = found[-1].low or 0.0, found[-1].high or 0.0
        verdict = "holds" if low > 0 else "fails here" if high < 0 else "stays open"
        return " and ".join(f"{_points(one)} at {name}" for one, name in zip(found, names, strict=True)), verdict

    at_end, before = told("error"), told("before")
    yield (
        f"Test error with {USUAL} − with precise statistics after the last epoch: {at_end[0]}; published +0.27 points "
        f"at b = 8,192 (24.00 − 23.73 %): {at_end[1]}. Network, data and epochs can explain a difference."
    )
    yield f"In the first half of training it is {before[0]}: that EMA is worse before convergence {before[1]}."
    for kind in KINDS[:-1]:
        yield f"After the last epoch, {kind} − precise: {told('error', kind)[0]}."
    for size in SIZES[:3]:
        of = next(each for each in record.networks if each.name == f"statistics of b = {size}")
        first, *_, deepest = (one.value for key, one in of.estimates.items() if key.startswith("layer"))
        yield (
            f"Statistics of mini-batches of {size}: ln σ² is off by {number(first, 3)} in the first BatchNorm and by "
            f"{number(deepest, 3)} in the last: the error {'grows' if deepest > first else 'does not grow'} with "
            f"depth; the test error changes by {_points(of.estimates['error_change'])} from that with all at once."
        )


def _points(change: Estimate) -> str:
    """In percentage points, with its standard error."""
    error = "" if change.se is None else f" ± {number(100 * change.se, 2)}"
    return f"{100 * change.value:+.2f}{error} points".replace("-", "−")


def _sections(record: Comparison) -> Iterator[ReportSection]:
    for name in record.experiment["batch_sizes"]:
        kinds = [each for each in record.networks if each.set == name]
        of_sizes = "distance of ln σ² by layer, of statistics of small mini-batches"
        for title, of in (("test error", kinds[: len(KINDS)]), (of_sizes, kinds[len(KINDS) :])):
            keys = [key for key in of[0].estimates if key.startswith(("epoch", "layer"))]
            rows = tuple((key, tuple(with_error(each.estimates[key], 4) for each in of)) for key in keys)
            heads = tuple(each.name.removeprefix("statistics of ") for each in of)
            yield ReportSection(f"{name}: {title}", (Table(heads, rows, stacks=True),))
    legend = (
        "EMA: running statistics of that λ. precise: of the weights as they are, pooled as by bnuq precise-bn. ± "
        "points and seeds. ln σ²: its distance from that of the same points at once, mean over channels; ± seeds."
    )
    yield ReportSection("", tuple(explanations([legend])))
