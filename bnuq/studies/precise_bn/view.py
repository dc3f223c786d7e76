"""The report of precise-bn: what it changed, layer by layer, and whether that helped."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

from bnuq.catalogue import advised, noted
from bnuq.findings import Conclusion
from bnuq.records.words import plain
from bnuq.report.document import Cell, Paragraph, Part, PathLine, Report, ReportSection, Table, explanations
from bnuq.report.first_screen import meaning_of
from bnuq.report.numbers import count, headed, named, number, of_reference, written
from bnuq.studies.precise_bn.record import EstimateChange, LayerChange, PreciseBN, TestChange

_LEGEND = (
    "shift: (new mean − old)/new standard deviation, root mean square over channels. ln variance: mean of "
    "|ln(new/old)|."
)
_MANY, _SHOWN = 20, 10  # layers, from which only so many of them are shown


def report(result: PreciseBN, *, columns: int = 100) -> Report:  # noqa: ARG001 - every report has it
    """The report: what was replaced, where most, and what that did to the test set."""
    return Report(
        command=f"bnuq {PreciseBN.COMMAND}",
        version=str(result.provenance["bnuq"]),
        subject=Path(result.model["path"]).name,
        facts=tuple(_facts(result)),
        summary=tuple(each.text for each in findings(result)),
        sections=tuple(_sections(result)),
        warnings=advised(result.findings),
        notes=noted(result.findings),
        path=PathLine(result.path, "Checkpoint"),
        line=f"{Path(result.model['path']).name} · {count(len(result.layers), 'BatchNorm layer')} · {result.points:,} "
        f"examples of {of_reference(result.reference)} · {max(result.seconds['total'], 1):.0f} s",
        meaning=", ".join(meaning_of(result.findings)),
        one_screen=tuple(_first_table(result)),
        rest="the same command, with --full",
    )


def _first_table(result: PreciseBN) -> Iterator[Part]:
    """What became of the test set; without one, the layers that changed most."""
    if result.test is None:
        yield from (*_layers(result.layers).parts, *explanations([_LEGEND]))
        return
    yield _estimates(result.test)
    names = {"accuracy": "share of test examples that are right", "pll": "mean log-probability of the label"}
    known = [f"{named(name)}: {text}" for name, text in names.items() if name in result.test.estimates]
    yield from explanations([f"{'; '.join(known)}."] if known else [])


def _sections(result: PreciseBN) -> Iterator[ReportSection]:
    yield _layers(result.layers)
    if result.test is not None:
        yield ReportSection(f"Test set, {count(result.test.n, 'example')}", (_estimates(result.test),))
    yield ReportSection("", tuple(explanations([_LEGEND])))


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
    points = f"{of_reference(result.reference)}, {result.points}{of} examples, {drawn}, seed {result.seed}"
    yield "train", f"{points}, estimator {result.estimator}"
    if result.test is not None:
        yield "test", f"{of_reference(result.test.reference)}, {count(result.test.n, 'example')}"
    yield "device", f"{result.device}, {result.seconds['total']:.1f} s"


def findings(result: PreciseBN) -> Iterator[Conclusion]:
    """The answers: what was replaced, where most, and whether it helped."""
    layers = result.layers
    if result.test is not None:
        effects = {change.verdict for change in result.test.estimates.values()}
        effect = next((effect for effect in ("better", "worse", "unknown") if effect in effects), "same")
        effect = "mixed" if effects >= {"better", "worse"} else effect
        changes = " and ".join(_change_in_words(name, change) for name, change in result.test.estimates.items())
        text = {
            "better": "Use {file}: {changes}.",
            "worse": "Keep the old file, {file} is worse: {changes}. Check that train, normalize and augment are those "
            "of training.",
            "mixed": "Use the file that is better by what counts: with {file} {changes}.",
            "unknown": "Keep the old file until more examples show whether {file} is better: {changes}.",
            "same": "Use either file, {file} is neither better nor worse: {changes}.",
        }[effect]
        yield Conclusion(f"test-{effect}", text.format(file=result.path.name, changes=changes))
    untrained = sum(layer.never_trained for layer in layers)
    never = f" ({untrained} of them had never been trained)" if untrained else ""
    of = count(len(layers), "BatchNorm layer")
    text = f"The means and variances of {of} were replaced{never}{_most(max(layers, key=_size))}."
    yield Conclusion("statistics-replaced", text)


def _change_in_words(name: str, change: EstimateChange) -> str:
    if change.before.value == change.after.value:
        return f"{plain(name)} stays at {_value(name, change.after.value)}"
    digits, scale, unit = _written(name)
    unit = unit.replace(" %", " points")
    size, error = scale * abs(change.change.value), change.change.se
    known = error is not None and math.isfinite(error)
    by = f"by {number(size, digits)}{f' ± {number(scale * (error or 0), digits)}' if known else ''}{unit}"
    higher = "higher" if change.after.value > change.before.value else "lower"
    unclear = {"same": " (which may be chance)", "unknown": " (the error of this change is unknown)"}
    return f"{plain(name)} is {higher} {by}{unclear.get(change.verdict, '')}"


def _value(name: str, value: float) -> str:
    digits, scale, unit = _written(name)
    return number(scale * value, digits) + unit


def _written(name: str) -> tuple[int, int, str]:
    digits, scale, unit = written(name)
    return digits or 4, scale, unit if scale == 100 else ""


def _most(layer: LayerChange) -> str:
    """The largest change, where there is one."""
    by = f"means by {number(layer.shift, 2)} standard deviations, variances by a factor of"
    return f", most in `{layer.name}`: {by} {number(math.exp(layer.log_variance), 2)}" if _size(layer) > 0 else ""


def _estimates(test: TestChange) -> Table:
    rows = []
    for name, change in test.estimates.items():
        style = {"better": "green", "worse": "red"}.get(change.verdict, "")
        cells = Cell(_value(name, change.before.value)), Cell(_value(name, change.after.value), style=style)
        rows.append((headed(name), cells))
    return Table(("before", "after"), tuple(rows))


def _layers(layers: Sequence[LayerChange]) -> ReportSection:
    """All in execution order; of many the largest alone, worst first."""
    if len(layers) < _MANY:
        return ReportSection("What changed, in execution order", (_table(layers),))
    largest = sorted(layers, key=_size, reverse=True)
    remainder = f"{len(layers) - _SHOWN} more, none of them above {number(_size(largest[_SHOWN]), 3)}."
    return ReportSection(
        f"What changed most, {_SHOWN} of {len(layers)} layers",
        (_table(largest[:_SHOWN]), Paragraph(remainder, dim=True)),
    )


def _table(layers: Sequence[LayerChange]) -> Table:
    rows = [
        (layer.name, tuple(map(Cell, (str(layer.channels), number(layer.shift, 3), number(layer.log_variance, 3)))))
        for layer in layers
    ]
    return Table(("channels", "shift", "ln variance"), tuple(rows))


def _size(layer: LayerChange) -> float:
    """The larger of its two changes, which are of one scale; 0 if neither is known."""
    known = [value for value in (layer.shift, layer.log_variance) if not math.isnan(value)]
    return max(known, default=0.0)
