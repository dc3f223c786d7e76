"""The report of precise-bn: what it changed, layer by layer, and whether that helped."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

from bnuq.catalogue import advised, noted
from bnuq.findings import Catalogue, Entry, Finding, sentence, verdict
from bnuq.metrics.registry import metric_of
from bnuq.records.precise_bn import COMMAND, EstimateChange, LayerChange, PreciseBN, TestChange
from bnuq.report.document import Cell, Paragraph, PathLine, Report, ReportSection, Table, explanations
from bnuq.report.numbers import count, named, number, of_reference, signed, written

_MANY, _SHOWN = 20, 10  # layers, from which only so many of them are shown
_LEGEND = {
    "population": (
        "Estimator population: mean and variance of all values together, each mini-batch normalised by its own "
        "statistics at the preceding layers, as in training."
    ),
    "mean_of_var": (
        "Estimator mean_of_var: the mean of the mini-batches' means, and of their unbiased variances, each "
        "mini-batch normalised by its own statistics at the preceding layers, as in training."
    ),
    "full": (
        "Estimator full: all points as one batch, so that every layer sees the evaluation-mode outputs of the "
        "preceding layers with their new statistics."
    ),
}
_DIFFER = (
    " At the first BatchNorm, population and full are identical, and mean_of_var differs only by chance; deeper "
    "layers differ because the preceding layers normalise differently."
)


def report(result: PreciseBN, *, columns: int = 100) -> Report:  # noqa: ARG001 - every report has it
    """The report: what was replaced, where most, and what that did to the test set."""
    return Report(
        command=f"bnuq {COMMAND}",
        version=str(result.provenance["bnuq"]),
        subject=Path(result.model["path"]).name,
        facts=tuple(_facts(result)),
        summary=tuple(sentence(finding, SENTENCES, _FORMATS) for finding in findings(result)),
        sections=tuple(_sections(result)),
        warnings=advised(result.findings),
        notes=noted(result.findings),
        path=PathLine(result.path, "Checkpoint"),
    )


def _sections(result: PreciseBN) -> Iterator[ReportSection]:
    yield _layers(result.layers)
    if result.test is not None:
        yield ReportSection(f"Test set, {count(result.test.n, 'point')}", (_estimates(result.test),))
    legend = [_of_layers(result.layers), _LEGEND[result.estimator] + _DIFFER]
    if result.test is not None:
        legend.append("± standard error over points, for the change over paired points.")
    yield ReportSection("", tuple(explanations(legend)))


def _facts(result: PreciseBN) -> Iterator[tuple[str, str]]:
    model = result.model
    layers = count(model["batchnorm_layers"], "BatchNorm layer")
    yield "model", f"{Path(model['path']).name}: {model['parameters']:,} parameters, {layers}"
    of = "" if result.points == result.reference_points else f" of {result.reference_points}"
    if result.estimator == "full":
        drawn = "as one batch"
    else:
        equal = result.batches * result.batch_size == result.points
        size = f"{result.batch_size}" if equal else f"{result.batch_size - 1} or {result.batch_size}"
        drawn = f"{result.batches:,} mini-batches of {size}" if result.batches > 1 else "one mini-batch"
    yield "train", f"{of_reference(result.reference)}, {result.points}{of} points, {drawn}, seed {result.seed}"
    if result.test is not None:
        yield "test", f"{of_reference(result.test.reference)}, {count(result.test.n, 'point')}"
    yield "device", f"{result.device}, {result.seconds['total']:.1f} s"


def findings(result: PreciseBN) -> Iterator[Finding]:
    """The answers: what was replaced, where most, and whether it helped."""
    layers = result.layers
    yield verdict("statistics-replaced", layers=len(layers), untrained=sum(layer.never_trained for layer in layers))
    worst = max(layers, key=_size)
    if _size(worst) > 0:
        yield verdict("largest-change", layer=worst.name, shift=worst.shift, factor=math.exp(worst.log_variance))
    if dead := sum(layer.dead for layer in layers):
        yield verdict("channels-constant", channels=dead)
    if broken := sum(layer.not_finite for layer in layers):
        yield verdict("channels-not-finite", channels=broken)
    if result.test is not None:
        effects = {change.verdict for change in result.test.estimates.values()}
        effect = next((effect for effect in ("better", "worse", "unknown") if effect in effects), "same")
        effect = "mixed" if effects >= {"better", "worse"} else effect
        yield verdict(f"test-{effect}", changes=dict(result.test.estimates))


def _change_in_words(name: str, change: EstimateChange) -> str:
    before, after = (_value(name, estimate.value) for estimate in (change.before, change.after))
    unchanged = change.before.value == change.after.value
    words = f"{named(name)} stayed at {before}" if unchanged else f"{named(name)} went from {before} to {after}"
    return words + (" (the error of this change is unknown)" if change.verdict == "unknown" else "")


def _value(name: str, value: float) -> str:
    digits, scale, unit = _written(name)
    return number(scale * value, digits) + unit


def _written(name: str) -> tuple[int, int, str]:
    digits, scale, unit = written(name)
    return digits or 4, scale, unit if scale == 100 else ""


_FORMATS = {
    "number": lambda value: number(value, 2),
    "layers": lambda layers: count(layers, "BatchNorm layer"),
    "untrained": lambda layers: f"; {layers} of them had never been trained" if layers else "",
    "channels": lambda channels: f"{count(channels, 'channel')} {'is' if channels == 1 else 'are'}",
    "changes": lambda changes: " and ".join(_change_in_words(name, change) for name, change in changes.items()),
}
_TEXTS = {
    "statistics-replaced": "The running statistics of {layers:layers} were replaced{untrained:untrained}.",
    "largest-change": (
        "The largest change is in {layer}: the means moved by {shift:number} standard deviations (root mean square "
        "over channels), the variances by a factor of {factor:number}."
    ),
    "channels-constant": "{channels:channels} nearly constant: no change is reported there.",
    "channels-not-finite": "{channels:channels} without old statistics (NaN or infinite): no change is reported there.",
    "test-mixed": "Mixed effect: {changes:changes}.",
    "test-better": "It helped: {changes:changes}.",
    "test-worse": (
        "It made the network worse: {changes:changes}. Check that train, normalize and augment are those of training; "
        "if they are, keep the old file."
    ),
    "test-unknown": "Whether it helped is unknown: {changes:changes}.",
    "test-same": "It made no difference beyond chance: {changes:changes}.",
}
SENTENCES: Catalogue = {code: Entry(text) for code, text in _TEXTS.items()}


def _estimates(test: TestChange) -> Table:
    rows = [
        (f"{named(name)} {metric_of(name).arrow}", tuple(_cells(name, test.estimates[name]))) for name in test.estimates
    ]
    return Table(("before", "after", "change"), tuple(rows), stacks=True)


def _cells(name: str, change: EstimateChange) -> Iterator[Cell]:
    yield from (Cell(_value(name, estimate.value)) for estimate in (change.before, change.after))
    digits, scale, unit = _written(name)
    error = change.change.se
    yield Cell(
        signed(scale * change.change.value, digits) + unit.replace("%", "pt"),
        f"±{number(scale * error, digits)}" if error is not None and math.isfinite(error) else "",
        {"better": "green", "worse": "red"}.get(change.verdict, ""),
    )


def _layers(layers: Sequence[LayerChange]) -> ReportSection:
    """All in execution order, the largest marked; of many the largest alone, worst first."""
    worst = max(layers, key=_size)
    if len(layers) < _MANY:
        return ReportSection("What changed, in execution order", (_table(layers, marked=worst),))
    largest = sorted(layers, key=_size, reverse=True)
    remainder = f"{len(layers) - _SHOWN} more, none of them above {number(_size(largest[_SHOWN]), 3)}."
    return ReportSection(
        f"What changed most, {_SHOWN} of {len(layers)} layers",
        (_table(largest[:_SHOWN], marked=None), Paragraph(remainder, dim=True)),
    )


def _table(layers: Sequence[LayerChange], *, marked: LayerChange | None) -> Table:
    rows = []
    for layer in layers:
        largest = layer is marked and _size(layer) > 0
        cells = [Cell(number(value, 3), style="bold" if largest else "") for value in (layer.shift, layer.log_variance)]
        rows.append((layer.name + (" *" if largest else ""), (Cell(str(layer.channels)), *cells)))
    return Table(("channels", "shift", "ln variance"), tuple(rows))


def _size(layer: LayerChange) -> float:
    """The larger of its two changes, which are of one scale; 0 if neither is known."""
    known = [value for value in (layer.shift, layer.log_variance) if not math.isnan(value)]
    return max(known, default=0.0)


def _of_layers(layers: Sequence[LayerChange]) -> str:
    text = (
        "shift: (new mean − old)/new standard deviation, root mean square over channels. ln variance: mean of "
        "|ln(new/old)|."
    )
    return text + (" * the largest." if len(layers) < _MANY else "")
