"""The report of a monitor: is the batch drawn like the reference, which layers say no, and what the stream says."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial, reduce
from pathlib import Path

import numpy as np

from bnuq.catalogue import advised, noted
from bnuq.findings import Conclusion, all_of
from bnuq.report import drawing
from bnuq.report.document import Cell, PathLine, Picture, Report, ReportSection, Table, explanation, explanations
from bnuq.report.drawing import GREY, INK, picture, short
from bnuq.report.first_screen import meaning_of
from bnuq.report.numbers import count, of_reference, three_digits, with_error
from bnuq.report.provenance import provenance_section
from bnuq.studies.monitor.record import BlockTest, Monitored
from bnuq.studies.monitor.testing import Wealth

_MANY, _SHOWN = 24, 12  # layers, from which only so many are shown; batches of a stream are as many
_MOST_BATCHES = 100  # that are looked ahead to
_LEGEND = (
    "p: the chance of a difference of this size without a change, corrected for all layers, outputs and "
    "scores together. means, variances: distance from the reference; 1 is the noise of a training batch of {unit}.",
    "The distance is a root mean square over channels, minus its random part with so few examples.",
    "e: the evidence of all batches so far against “all are drawn like the reference”. If this is true, it ever "
    "reaches {needed} with a probability of at most {level:.3g}, however often you look.",
)
_HOW = {
    "shift": "Distance of the batch's statistics from those of the reference, by layer; 1 is the noise of training.",
    "stream": "The evidence after each batch. Above the dashed line is the alarm.",
}


def report(record: Monitored, *, columns: int = 100) -> Report:
    """The report: the answer, then layers, scores and the stream, for so many columns."""
    sections = tuple(_sections(record, max(12, min(44, columns // 2 - 4))))
    table, *_ = (part for each in sections for part in each.parts if isinstance(part, Table))
    return Report(
        command=f"bnuq {Monitored.COMMAND}",
        version=str(record.provenance["bnuq"]),
        subject=Path(record.model["path"]).name,
        facts=tuple(_facts(record)),
        summary=tuple(" ".join(each.text for each in about) for about in _together(record)),
        sections=sections,
        warnings=advised(record.findings),
        notes=noted(record.findings),
        path=None if record.path is None else PathLine(record.path),
        line=f"{Path(record.model['path']).name} · {of_reference(record.batch)}, {count(record.points, 'example')}",
        meaning=", ".join(meaning_of(record.findings)),
        one_screen=(table, explanation(_LEGEND[0].format(unit=record.unit))),
    )


def _together(record: Monitored) -> list[list[Conclusion]]:
    """The answers: of the batch, where it differs, and of the stream."""
    known = list(findings(record))
    stream = [each for each in known if "alarm" in each.code]
    return [group for group in (known[:1], [each for each in known[1:] if each not in stream], stream) if group]


def findings(record: Monitored) -> Iterator[Conclusion]:
    """The answers: whether the batch differs, where, and whether the stream has raised the alarm."""
    differs = record.p_value <= record.level
    most = "at most " if record.p_value <= record.floor * (1 + 1e-9) else ""
    share = f"{100 * record.p_value:.{2 if record.p_value < 0.995 else 3}g}"  # 100, not 1e+02
    chance = f"a difference of this size occurs without a change in {most}{share} % of cases"
    if differs:
        text = (
            f"The data have changed: {chance}. First check how these examples were prepared. If that is right, label "
            "some and evaluate the network on them."
        )
        yield Conclusion("batch-unlike", text)
    else:
        todo = "Nothing to do, no change was found" if record.alarm is None else "These examples alone show no change"
        yield Conclusion("batch-alike", f"{todo}: {chance}.")
    layers = [layer.name for layer in record.layers if layer.p_value <= record.level]
    if layers:
        worst = max(record.layers, key=_size)
        text = (
            f"{len(layers)} of {len(record.layers)} layers {'differs' if len(layers) == 1 else 'differ'}, most "
            f"`{worst.name}`: means by {_times(worst.mean_shift)}, variances by {_times(worst.variance_shift)} times "
            f"the noise of a training batch of {record.unit} examples."
        )
        yield Conclusion("layers-differ", text)
    elif record.together <= record.level:
        yield Conclusion("layers-together", "No single layer differs, but all of them together do.")
    names = [block.name for block in record.blocks if block.kind != "layer" and block.p_value <= record.level]
    if names:
        kinds = all_of(name.replace("_", " ") for name in names)
        text = f"Predictions also differ, in {kinds}: do not rely on them until these examples were checked."
        yield Conclusion("scores-differ", text)
    elif differs and any(block.kind != "layer" for block in record.blocks):
        yield Conclusion("scores-alike", "Outputs and scores do not differ: predictions may be as good as before.")
    needed = f"an alarm needs {1 / record.level:,.4g}."
    if (number := record.alarm) is not None:
        where = f"after batch {number} of the stream ({record.names[number - 1]})"
        evidence = three_digits(float(record.e_values[number - 1]))
        yield Conclusion("alarm", f"Alarm: {where} the evidence of a change was {evidence}; {needed}")
        return
    if len(record.names) == 1 and not differs:
        return
    batches = count(len(record.names), "batch") if len(record.names) == 1 else f"{len(record.names):,} batches"
    yield Conclusion(
        "no-alarm", f"No alarm: after {batches} the evidence of a change is {three_digits(record.e_value)}; {needed}"
    )
    if differs and (more := _batches_to_alarm(record)):
        text = (
            f"It takes at least {more} more {'batch that differs' if more == 1 else 'batches that differ'} as much, in "
            "the same `--stream FILE`; until then, go by each batch by itself."
        )
        yield Conclusion("alarm-later", text)


def _batches_to_alarm(record: Monitored) -> int | None:
    """How many batches of the smallest p-value the stream still needs; None for very many."""
    wealth = reduce(Wealth.after, record.p_values.tolist(), Wealth())
    for more in range(1, _MOST_BATCHES + 1):
        wealth = wealth.after(record.floor)
        if wealth.e_value >= 1 / record.level:
            return more
    return None


def _p(value: float) -> str:
    return f"{value:.2g}"


def _times(value: float) -> str:
    return "unknown" if math.isnan(value) else f"{value:.2g}"


def _size(layer: BlockTest) -> float:
    return float(np.nanmax([layer.mean_shift, layer.variance_shift, 0.0]))


def _facts(record: Monitored) -> Iterator[tuple[str, str]]:
    model, reference = record.model, record.reference
    layers = model["batchnorm_layers"]
    yield "model", f"{Path(model['path']).name}: {count(layers, 'BatchNorm layer')}"
    yield (
        "reference",
        f"{of_reference(reference['reference'])}, {reference['n']:,} examples, {reference['points']:,} kept",
    )
    yield "batch", f"{of_reference(record.batch)}, {count(record.points, 'example')}"
    yield "test", f"level {record.level:g}, {record.resamples:,} resampled batches"
    yield "time", f"{record.seconds['total']:.1f} s"


def _sections(record: Monitored, width: int) -> Iterator[ReportSection]:
    pictures = {item.kind[0]: item for item in pictures_of(record)}
    layers = record.layers
    if layers:
        shown = sorted(layers, key=lambda layer: (layer.p_value, -_size(layer)))[:_SHOWN]
        shown = list(layers) if len(layers) <= _MANY else shown
        title = "Layers" if len(shown) == len(layers) else f"Layers, the {len(shown)} of {len(layers)} that differ most"
        rows = [(short(layer.name, width), tuple(_layer_cells(layer, record))) for layer in shown]
        if len(layers) > 1:
            rows.append(("all layers together", (Cell(_p(record.together)), Cell(""), Cell(""))))
        table = Table(("p", "means", "variances"), tuple(rows))
        yield ReportSection(title, (*([pictures["shift"]] if "shift" in pictures else []), table))
    scores = [block for block in record.blocks if block.kind != "layer"]
    rows = [(block.name, tuple(_score_cells(block, record))) for block in scores]
    yield ReportSection("Outputs and scores", (Table(("p", "reference", "batch"), tuple(rows)),))
    last = range(max(0, len(record.names) - _SHOWN), len(record.names))
    rows = [
        (
            f"{number + 1} {short(record.names[number], width)}",
            (Cell(_p(float(record.p_values[number]))), Cell(three_digits(float(record.e_values[number])))),
        )
        for number in last
    ]
    stream = Table(("p", "e"), tuple(rows))
    yield ReportSection("Stream", (*([pictures["stream"]] if "stream" in pictures else []), stream))
    needed = f"{1 / record.level:,.4g}"
    legend = (text.format(unit=record.unit, needed=needed, level=record.level) for text in _LEGEND)
    yield ReportSection("", tuple(explanations(legend)))
    yield provenance_section(record.provenance, record.seconds, record.run, sources=(), repeat="")


def _layer_cells(layer: BlockTest, record: Monitored) -> Iterator[Cell]:
    style = "red" if layer.p_value <= record.level else ""
    yield Cell(_p(layer.p_value), style=style)
    yield Cell(_times(layer.mean_shift))
    yield Cell(_times(layer.variance_shift))


def _score_cells(block: BlockTest, record: Monitored) -> Iterator[Cell]:
    yield Cell(_p(block.p_value), style="red" if block.p_value <= record.level else "")
    for means in record.scores.values():
        yield with_error(means.get(block.name))


# ── pictures ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def pictures_of(record: Monitored) -> Iterator[Picture]:
    """The shift layer by layer, and the evidence of a stream of several batches."""
    if len(record.layers) > 1:
        yield Picture(("shift",), partial(_draw_shift, record), _HOW["shift"])
    if len(record.names) > 1:
        yield Picture(("stream",), partial(_draw_stream, record), _HOW["stream"])


def _draw_shift(record: Monitored, path: Path) -> None:
    looks = list(drawing.line_styles("012").values())
    about = f"{Path(str(record.model['path'])).name}, {of_reference(record.batch)}, {record.points:,} examples"
    with picture(path, title="Shift of the batch statistics by layer", about=about, size=(6.4, 4.6)) as [axes]:
        for name, look, values in (
            ("means", looks[1], [layer.mean_shift for layer in record.layers]),
            ("variances", looks[2], [layer.variance_shift for layer in record.layers]),
        ):
            axes.plot(np.arange(len(values)), values, **look.plotted, label=name)
        axes.axhline(1, color=GREY, linewidth=1, linestyle=":")
        found = [number for number, layer in enumerate(record.layers) if layer.p_value <= record.level]
        axes.plot(found, np.zeros(len(found)), "|", color=INK, markersize=9, clip_on=False, label="differs")
        drawing.layer_axis(axes, [layer.name for layer in record.layers])
        axes.set_ylim(bottom=0)
        axes.set_ylabel(f"noise of a training batch of {record.unit:,}")


def _draw_stream(record: Monitored, path: Path) -> None:
    look = list(drawing.line_styles("01").values())[1]
    about = f"{Path(str(record.model['path'])).name}, {len(record.names):,} batches"
    with picture(path, title="Evidence that batches have left the reference", about=about) as [axes]:
        values = np.clip(record.e_values, 1e-12, 1e12)
        axes.plot(np.arange(1, len(values) + 1), values, **look.plotted)
        axes.axhline(1 / record.level, color=INK, linewidth=1, linestyle="--", label="alarm")
        top = max(float(values.max()), 1 / record.level)
        drawing.factors_up(axes, float(values.min()) / 2, 2 * top)
        axes.set_xlabel("batch")
        axes.set_ylabel("e-value")
