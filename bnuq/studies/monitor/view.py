"""The report of a monitor: is the batch drawn like the reference, which layers say no, and what the stream says."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np

from bnuq.catalogue import advised, noted
from bnuq.findings import Conclusion, all_of
from bnuq.report import drawing
from bnuq.report.document import Cell, PathLine, Picture, Report, ReportSection, Table, explanations
from bnuq.report.drawing import GREY, INK, picture, short
from bnuq.report.first_screen import meaning_of
from bnuq.report.numbers import count, of_reference, three_digits, with_error
from bnuq.report.provenance import provenance_section
from bnuq.studies.monitor.record import BlockTest, Monitored

_FIRST, _MANY, _BATCHES = 10, 24, 12  # at most so many layers are shown on the first screen and by `--full`; batches
_LEGEND = (
    "p: the chance of a difference of this size without a change, corrected for all layers, outputs and "
    "scores together. means, variances: distance from the reference; 1 is the noise of a training batch of {unit}.",
    "The distance is a root mean square over channels, minus its random part with so few examples.",
    "evidence: grows with each batch that looks changed. Without a change it ever reaches {needed} (1/`--level`) in at "
    "most {share} % of streams, however often you look; there is the alarm.",
)
_HOW = {
    "shift": "Distance of the batch's statistics from those of the reference, by layer; 1 is the noise of training.",
    "stream": "The evidence after each batch. Above the dashed line is the alarm.",
}


def report(record: Monitored, *, columns: int = 100) -> Report:
    """The report: the answer, then layers, scores and the stream, for so many columns."""
    width = max(12, min(44, columns // 2 - 4))
    sections = tuple(_sections(record, width))
    said = tuple(_together(record))
    legend = _legend(record)
    legend = (legend[0], *legend[2:] * any("evidence" in each for each in said))
    return Report(
        command=f"bnuq {Monitored.COMMAND}",
        version=str(record.provenance["bnuq"]),
        subject=Path(record.model["path"]).name,
        facts=tuple(_facts(record)),
        summary=said,
        sections=sections,
        warnings=advised(record.findings),
        notes=noted(record.findings),
        path=None if record.path is None else PathLine(record.path),
        line=f"{Path(record.model['path']).name} · {of_reference(record.batch)}, {count(record.points, 'example')}",
        meaning=", ".join(meaning_of(record.findings)),
        one_screen=(_table(record, width, most=_FIRST, scores=True), *explanations(legend)),
    )


def _legend(record: Monitored) -> tuple[str, ...]:
    values = {"unit": record.unit, "needed": f"{1 / record.level:,.4g}", "share": f"{100 * record.level:.3g}"}
    return tuple(text.format(**values) for text in _LEGEND)


def _together(record: Monitored) -> Iterator[str]:
    """The answers: of the batch, where it differs, and of the stream."""
    known = list(findings(record))
    stream = [each for each in known if "alarm" in each.code]
    for group in (known[:1], [each for each in known[1:] if each not in stream], stream):
        if group:
            yield " ".join(each.text for each in group)


def findings(record: Monitored) -> Iterator[Conclusion]:
    """The answers: whether the batch differs, where, and whether the stream has raised the alarm."""
    differs = record.p_value <= record.level
    most = "at most " if record.p_value <= record.floor * (1 + 1e-9) else ""
    share = f"{100 * record.p_value:.{2 if record.p_value < 0.995 else 3}g}"  # 100, not 1e+02
    chance = f"a difference of this size occurs without a change in {most}{share} % of cases"
    if differs:
        text = (
            f"This batch differs from the reference: {chance}. First check how its examples were prepared. If that is "
            "right, label some and evaluate the network on them."
        )
        yield Conclusion("batch-unlike", text)
    else:
        todo = "Nothing to do, no change was found" if record.alarm is None else "These examples alone show no change"
        yield Conclusion("batch-alike", f"{todo}: {chance}.")
    differing = [layer for layer in _worst_first(record) if layer.p_value <= record.level]
    if differing:
        found, of, worst = len(differing), len(record.layers), differing[0]
        several = f"{f'{found} of {of}' if found < of else 'All'} layers differ, most `{worst.name}`"
        text = (
            f"{several if found > 1 else f'Layer `{worst.name}` differs'}: means by {_times(worst.mean_shift)}, "
            f"variances by {_times(worst.variance_shift)} times the noise of a training batch of {record.unit} "
            "examples."
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
    needed = f"an alarm needs {1 / record.level:,.4g}"
    if (number := record.alarm) is not None:
        where = f"after batch {number} of the stream ({record.names[number - 1]})"
        evidence = three_digits(float(record.e_values[number - 1]))
        yield Conclusion("alarm", f"Alarm: {where} the evidence of a change was {evidence}; {needed}.")
        return
    if len(record.names) == 1 and not differs:
        return
    batches = count(len(record.names), "batch") if len(record.names) == 1 else f"{len(record.names):,} batches"
    still = "No alarm yet for the stream, of which all batches count together" if differs else "No alarm"
    todo = " Until then judge each batch alone, and give later ones the same `--stream FILE`." * differs
    evidence = f"after {batches} the evidence of a change is {three_digits(record.e_value)}; {needed}"
    yield Conclusion("no-alarm", f"{still}: {evidence}.{todo}")


def _p(value: float) -> str:
    return f"{value:.2g}"


def _times(value: float | None) -> str:
    return "unknown" if value is None else f"{float(f'{value:.2g}'):,g}"


def _worst_first(record: Monitored) -> list[BlockTest]:
    """The layers that differ, and then the others, each from the largest shift on."""
    size = {layer.name: max(layer.mean_shift or 0.0, layer.variance_shift or 0.0) for layer in record.layers}
    return sorted(record.layers, key=lambda layer: (layer.p_value > record.level, -size[layer.name]))


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
    if number := len(record.layers):
        table = _table(record, width, most=_MANY)
        title = "Layers" if number <= _MANY else f"Layers, the {_MANY} of {number} that differ most"
        yield ReportSection(title, (*([pictures["shift"]] if "shift" in pictures else []), table))
    scores = [block for block in record.blocks if block.kind != "layer"]
    rows = [(block.name.replace("_", " "), tuple(_score_cells(block, record))) for block in scores]
    yield ReportSection("Outputs and scores", (Table(("p", "reference", "batch"), tuple(rows)),))
    last = range(max(0, len(record.names) - _BATCHES), len(record.names))
    rows = [
        (
            f"{number + 1} {short(record.names[number], width)}",
            (Cell(_p(float(record.p_values[number]))), Cell(three_digits(float(record.e_values[number])))),
        )
        for number in last
    ]
    stream = Table(("p", "evidence"), tuple(rows))
    yield ReportSection("Stream", (*([pictures["stream"]] if "stream" in pictures else []), stream))
    yield ReportSection("", tuple(explanations(_legend(record))))
    yield provenance_section(record.provenance, record.seconds, record.run, sources=(), repeat="")


def _table(record: Monitored, width: int, *, most: int, scores: bool = False) -> Table:
    """At most so many layers, all of them together, and the p-values of outputs and `scores`."""
    layers = record.layers if len(record.layers) <= most else _worst_first(record)[:most]
    rows = [(short(each.name, width), each.p_value, each.mean_shift, each.variance_shift) for each in layers]
    rows += [(f"all {len(record.layers)} layers together", record.together)] * (len(record.layers) > 1)
    others = [block for block in record.blocks if block.kind != "layer"] if scores else []
    rows += [(block.name.replace("_", " "), block.p_value) for block in others]
    cells = [(name, (_p_cell(p, record), *(Cell(_times(each)) for each in shifts))) for name, p, *shifts in rows]
    return Table(("p", "means", "variances"), tuple((name, (*of, *[Cell("")] * (3 - len(of)))) for name, of in cells))


def _p_cell(value: float, record: Monitored) -> Cell:
    return Cell(_p(value), style="red" if value <= record.level else "")


def _score_cells(block: BlockTest, record: Monitored) -> Iterator[Cell]:
    yield _p_cell(block.p_value, record)
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
            axes.plot(np.arange(len(values)), np.array(values, np.float64), **look.plotted, label=name)
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
