"""PLL against the number of passes: a table on a terminal beside the published row, and a picture."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from bnuq.records import Figure
from bnuq.report import drawing
from bnuq.report.document import GAP, Cell, Facts, Items, Paragraph, Part, PathLine, Row, Table, columns_of, draw, title
from bnuq.report.numbers import count, number, of_reference, signed, total
from bnuq.results.pll_over_samples import COMMAND, FEW, PllOverSamples

_PUBLISHED_POINTS = 10_000  # CIFAR-10's test images
_ENOUGH = 2  # standard errors, from which on a difference is told as one


def print_pll(found: PllOverSamples, stream: TextIO, *, width: int | None = None) -> None:
    """Draw the report on `stream`: in colour on a terminal, plain in a pipe, in ASCII where the encoding needs it."""
    columns = columns_of(stream, width)
    draw(report_parts(found), stream, columns)


def report_parts(found: PllOverSamples) -> Iterator[Part]:
    """What the report is made of."""
    made, told = found.experiment, found.published
    augmented = "through the training pipeline" if made["augment"] else "without augmentation"
    yield title(f"bnuq {COMMAND}  {found.provenance.get('bnuq', '')}")
    yield Paragraph(f"{told['source']}: PLL of MCBN against the number of passes T.")
    size = f"{made['parameters']:,} parameters, {count(made['batchnorm_layers'], 'BatchNorm layer')}"
    drawn = f"mini-batches of {made['batch_size']} from {of_reference(made['train'])}, {augmented}"
    yield Facts(
        (
            ("model", f"{made['model']}: {size}"),
            ("test", f"{of_reference(made['test'])}, {count(made['n'], 'point')}{_of(made['n'], made['test_points'])}"),
            ("passes", f"{made['samples']}, {drawn}, seed {made['seed']}"),
            ("took", f"{found.seconds['total']:.0f} s on {made['device']}"),
        )
    )
    yield from (GAP, title("In short"), Items(tuple(_in_short(found))))
    yield from (GAP, title("PLL, nats"))
    yield Table(("first T", "mean of groups", "above as it is", "groups", "accuracy"), tuple(_measured(found)), True)
    yield GAP
    yield Table(("ours", "published", "replication"), tuple(_beside(found)))
    yield GAP
    for text in _how(found):
        yield Paragraph(text, "dim")
    if found.notes:
        yield from (GAP, title("Notes"), Items(found.notes))
    if found.path is not None:
        yield from (GAP, PathLine(found.path))


def _of(points: int, all_points: int) -> str:
    return "" if points == all_points else f" of {all_points}"


def _in_short(found: PllOverSamples) -> Iterator[str]:
    rows, base, even = found.rows(), found.baseline, found.break_even()
    last = rows[-1]
    where = f"at T = {even}" if even else f"at no T up to {last.samples}"
    published = _break_even(found.published["samples"], found.published["pll"], found.published["baseline"])
    said = f"; in the published row at T = {published}" if published else ""
    yield f"The passes' mean reaches the network as it is (PLL {number(base.value)}) {where}{said}.{_surely(found)}"
    yield (
        f"From T = 1 to {last.samples}, PLL rises from {number(rows[0].mean.value)} to {number(last.mean.value)}"
        f"{_rise(found)}."
    )
    yield f"At T = {last.samples} it lies {_apart(last.gain)}{_published_gain(found)}."


def _surely(found: PllOverSamples) -> str:
    """From which T on it lies above by more than chance explains."""
    sure = [row.samples for row in found.rows() if row.gain.value >= _ENOUGH * (total(row.gain) or 0.0)]
    return f" From T = {sure[0]} on it lies above by more than chance explains." if sure else ""


def _break_even(samples: list[int], values: list[float], baseline: float) -> int | None:
    return next((count for count, value in zip(samples, values, strict=True) if value >= baseline), None)


def _rise(found: PllOverSamples) -> str:
    told = found.published
    return (
        f"; published {number(told['pll'][0], 2)} to {number(told['pll'][-1], 2)}, from T = 1 to {told['samples'][-1]}"
    )


def _apart(gain: Figure) -> str:
    error = total(gain)
    size = f"{number(abs(gain.value))} nats" + (f" ± {number(error)}" if error is not None else "")
    side = f"{size} {'above' if gain.value > 0 else 'below'} the network as it is"
    if error is None or abs(gain.value) >= _ENOUGH * error:
        return side
    return f"{side}, no more than chance explains"


def _published_gain(found: PllOverSamples) -> str:
    told = found.published
    gain = told["pll"][-1] - told["baseline"]
    return f" (published: {number(abs(gain), 2)} {'above' if gain > 0 else 'below'})"


def _measured(found: PllOverSamples) -> Iterator[Row]:
    base = found.baseline
    blank = Cell("–")
    yield "as it is", (_cell(base), blank, blank, blank, Cell(f"{found.accuracies[0]:.4f}"))
    for row in found.rows():
        yield (
            f"T = {row.samples}",
            (
                _monte_carlo(row.first),
                _monte_carlo(row.mean),
                Cell(signed(row.gain.value), _error(total(row.gain))),
                Cell(str(row.groups)),
                Cell(f"{row.accuracy:.4f}"),
            ),
        )


def _cell(figure: Figure) -> Cell:
    return Cell(number(figure.value), _error(figure.se))


def _monte_carlo(figure: Figure) -> Cell:
    return Cell(number(figure.value), _error(figure.mc_se))


def _error(value: float | None) -> str:
    return "" if value is None else f"±{number(value)}"


def _beside(found: PllOverSamples) -> Iterator[Row]:
    told = found.published
    yield "as it is", _three(found.baseline.value, told["baseline"], told["replication_baseline"])
    for row in found.rows():
        yield f"T = {row.samples}", _three(row.mean.value, row.published, row.replication)


def _three(*values: float | None) -> tuple[Cell, ...]:
    return tuple(Cell("–" if value is None else number(value, 2)) for value in values)


def _how(found: PllOverSamples) -> Iterator[str]:
    made, told = found.experiment, found.published
    yield (
        "± of the first T and of the mean of groups is the Monte Carlo error, of the network as it is the standard "
        "error over points, of a difference both, points paired. The mean is over disjoint groups of T draws out of "
        f"all of them; chance is told by the jackknife within groups, and by their spread where T is below {FEW}."
    )
    yield f"Replication: {told['replication_source']}."
    own = "not known" if made["train_batch_size"] is None else str(made["train_batch_size"])
    size, n = made["batch_size"], made["n"]
    whole = "" if made["train_size"] in (None, made["reference_points"]) else f" of {made['train_size']}"
    fewer = "" if n == _PUBLISHED_POINTS else f"; {count(n, 'test image')} instead of {_PUBLISHED_POINTS:,}"
    yield (
        f"What differs from the published protocol: the network is another one (training batch {own}; the published "
        f"text says 32, its code 128); passes use mini-batches of {size} out of {made['reference_points']} reference "
        f"images{whole}, shared by all points, where the published code draws anew for every point and has b − 1 "
        f"images beside it{fewer}."
    )


def save_figure(found: PllOverSamples, folder: Path, *, kind: drawing.Format = "svg") -> Path:
    """Write `folder`/pll-over-samples.svg or .png: PLL against T, the network as it is, and the published rows.

    RequestError without matplotlib; ResultError where it cannot be written. Returns the path.
    """
    path, made, told, rows = folder / f"pll-over-samples.{kind}", found.experiment, found.published, found.rows()
    about = f"{made['model']}, {made['n']} test points, b = {made['batch_size']}, seed {made['seed']}"
    names = ("ours", "published", "replication")
    lines: dict[str, drawing.Line] = dict(zip(names, list(drawing.lines_of(["", *names]).values())[1:], strict=True))
    with drawing.picture(path, title="PLL against the number of passes", about=about) as (axes,):
        counts = [row.samples for row in rows]
        means, errors = [row.mean.value for row in rows], [row.mean.mc_se or 0.0 for row in rows]
        axes.errorbar(counts, means, yerr=errors, capsize=2.5, label="this network", **lines["ours"].plotted)
        axes.plot(counts, [row.first.value for row in rows], "x", color=lines["ours"].colour, label="its first T draws")
        for name in names[1:]:
            values = told["pll" if name == "published" else name]
            axes.plot(told["samples"], values, label=name, **lines[name].plotted)
        for name, level in (
            ("ours", found.baseline.value),
            ("published", told["baseline"]),
            ("replication", told["replication_baseline"]),
        ):
            axes.axhline(level, color=lines[name].colour, linestyle=":", linewidth=1.1)
        axes.set_xscale("log", base=2)
        marks = sorted({*counts, *told["samples"]})
        axes.set_xticks(marks, [str(one) for one in marks])
        axes.minorticks_off()
        axes.set_xlabel("passes T")
        axes.set_ylabel("PLL (nats)")
        axes.legend(loc="lower right", title="dotted: the network as it is", title_fontsize=8)
    return path
