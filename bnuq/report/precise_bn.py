"""The report of precise-bn: what it changed, layer by layer, and whether that helped."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from bnuq.findings import Catalogue, Entry, Finding, sentence
from bnuq.metrics.registry import metric_of
from bnuq.records.precise_bn import COMMAND, EstimateChange, LayerChange, PreciseBN, TestChange
from bnuq.report.document import Cell, Paragraph, PathLine, Report, Section, Table, dim
from bnuq.report.numbers import count, named, number, of_reference, signed, written
from bnuq.report.remedies import advised, noted

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
        summary=tuple(sentence(finding, SENTENCES) for finding in findings(result)),
        sections=tuple(_sections(result)),
        warnings=advised(result.findings),
        notes=noted(result.findings),
        path=PathLine(result.path, "Checkpoint"),
    )


def _sections(result: PreciseBN) -> Iterator[Section]:
    yield _layers(result.layers)
    if result.test is not None:
        yield Section(f"Test set, {count(result.test.n, 'point')}", (_estimates(result.test),))
    legend = [_of_layers(result.layers), _LEGEND[result.estimator] + _DIFFER]
    if result.test is not None:
        legend.append("± standard error over points, for the change over paired points.")
    yield Section("", tuple(dim(legend)))


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
        drawn = f"mini-batches of {size}" if result.batches > 1 else "one mini-batch"
    yield "train", f"{of_reference(result.reference)}, {result.points}{of} points, {drawn}, seed {result.seed}"
    if result.test is not None:
        yield "test", f"{of_reference(result.test.reference)}, {result.test.n} points"
    yield "device", f"{result.device}, {result.seconds['total']:.1f} s"


def findings(result: PreciseBN) -> Iterator[Finding]:
    """The answers: what was replaced, where most, and whether it helped."""
    layers = result.layers
    untrained = sum(layer.never_trained for layer in layers)
    yield Finding("statistics-replaced", "verdict", {"layers": len(layers), "untrained": untrained})
    worst = max(layers, key=_size)
    if _size(worst) > 0:
        values = {"layer": worst.name, "shift": worst.shift, "factor": math.exp(worst.log_variance)}
        yield Finding("largest-change", "verdict", values)
    if dead := sum(layer.dead for layer in layers):
        yield Finding("channels-constant", "verdict", {"channels": dead})
    if result.test is not None:
        yield Finding(f"test-{_effect(result.test)}", "verdict", {"changes": dict(result.test.estimates)})


def _effect(test: TestChange) -> str:
    """mixed, better, worse, unknown or same."""
    verdicts = {change.verdict for change in test.estimates.values()}
    if verdicts >= {"better", "worse"}:
        return "mixed"
    return next((verdict for verdict in ("better", "worse", "unknown") if verdict in verdicts), "same")


def _replaced(layers: int, untrained: int) -> str:
    never = f"; {untrained} of them had never been trained" if untrained else ""
    return f"The running statistics of {count(layers, 'BatchNorm layer')} were replaced{never}."


def _largest(layer: str, shift: float, factor: float) -> str:
    return (
        f"The largest change is in {layer}: the means moved by {number(shift, 2)} standard deviations (root mean "
        f"square over channels), the variances by a factor of {number(factor, 2)}."
    )


def _constant(channels: int) -> str:
    verb = "is" if channels == 1 else "are"
    return f"{count(channels, 'channel')} {verb} nearly constant: no change is reported there."


def _on_test(changes: Mapping[str, EstimateChange], effect: str, advice: str = "") -> str:
    return f"{effect}: {' and '.join(_change_in_words(name, change) for name, change in changes.items())}.{advice}"


_CHECK = " Check that train, normalize and augment are those of training; if they are, keep the old file."
SENTENCES: Catalogue = {
    "statistics-replaced": Entry(_replaced),
    "largest-change": Entry(_largest),
    "channels-constant": Entry(_constant),
    "test-mixed": Entry(partial(_on_test, effect="Mixed effect")),
    "test-better": Entry(partial(_on_test, effect="It helped")),
    "test-worse": Entry(partial(_on_test, effect="It made the network worse", advice=_CHECK)),
    "test-unknown": Entry(partial(_on_test, effect="Whether it helped is unknown")),
    "test-same": Entry(partial(_on_test, effect="It made no difference beyond chance")),
}


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


def _estimates(test: TestChange) -> Table:
    rows = tuple(
        (f"{named(name)} {metric_of(name).arrow}", tuple(_cells(name, change)))
        for name, change in test.estimates.items()
    )
    return Table(("before", "after", "change"), rows, stacks=True)


def _cells(name: str, change: EstimateChange) -> Iterator[Cell]:
    yield from (Cell(_value(name, estimate.value)) for estimate in (change.before, change.after))
    digits, scale, unit = _written(name)
    error = change.change.se
    yield Cell(
        signed(scale * change.change.value, digits) + unit.replace("%", "pt"),
        f"±{number(scale * error, digits)}" if error is not None and math.isfinite(error) else "",
        {"better": "green", "worse": "red"}.get(change.verdict, ""),
    )


def _layers(layers: Sequence[LayerChange]) -> Section:
    """All in execution order, the largest marked; of many the largest alone, worst first."""
    worst = max(layers, key=_size)
    if len(layers) < _MANY:
        return Section("What changed, in execution order", (_table(layers, marked=worst),))
    largest = sorted(layers, key=_size, reverse=True)
    remainder = f"{len(layers) - _SHOWN} more, none of them above {number(_size(largest[_SHOWN]), 3)}."
    return Section(
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
    """The larger of its two changes, which are of one scale; 0 where neither is known."""
    known = [value for value in (layer.shift, layer.log_variance) if not math.isnan(value)]
    return max(known, default=0.0)


def _of_layers(layers: Sequence[LayerChange]) -> str:
    text = (
        "shift: (new mean − old)/new standard deviation, root mean square over channels. ln variance: mean of "
        "|ln(new/old)|."
    )
    return text + (" * the largest." if len(layers) < _MANY else "")
