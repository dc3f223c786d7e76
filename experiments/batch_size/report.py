"""The batch-size experiment: its tables on a terminal, what is not as published in words, and its picture."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from bnuq.report import drawing
from bnuq.report.numbers import number, total, with_error
from bnuq.report.parts import GAP, Cell, Facts, Items, Paragraph, Part, PathLine, Row, Table, columns_of, draw, title
from experiments.batch_size.record import HEADLINE, BatchSizes, Network, Point, sentences

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_NAMES: dict[str, str] = {"small_resnet": "small ResNet", "resnet50": "ResNet-50", "vgg16": "VGG-16"}
_ENOUGH = 2  # standard errors, from which on a difference is told as one
_ALIKE = 1.25  # factor, up to which the training losses of networks count as alike, and so do the MI of two sets
_LEARNT = 0.999  # of the training images, from which on they are learnt
_TOLD_APART = 0.6  # AUROC, from which on a set is


def print_batch_sizes(found: BatchSizes, stream: TextIO, *, width: int | None = None) -> None:
    """Draw the report on `stream`: in colour on a terminal, plain in a pipe, in ASCII where the encoding needs it."""
    draw(report_parts(found), stream, columns_of(stream, width))


def report_parts(found: BatchSizes) -> Iterator[Part]:
    """What the report is made of."""
    yield title(f"bnuq {found.COMMAND}  {found.provenance['bnuq']}")
    yield Paragraph(f"{found.published['source']}.")
    yield Facts(tuple(_facts(found)))
    yield from (GAP, title("In short"), Items(tuple(in_short(found))))
    for networks in found.series().values():
        yield from (GAP, title(f"{_named(networks)}: one network for each M, b = M"))
        yield Table(_header(found.ood), tuple(_matched(found, networks)), stacks=True)
    for networks in found.series().values():
        for network in networks:
            if network.single:
                about = f"{_name(network.architecture)} of M = {network.batch_size}"
                yield from (GAP, title(f"{about}, {network.schedule}: one network, every b"))
                yield Table(_header(found.ood)[:5], tuple(_single(found, network)), stacks=True)
    yield from (GAP, title("Accuracy of MCBN, and what was published"))
    yield Table(*_accuracies(found), stacks=True)
    yield GAP
    yield from (Paragraph(text, "dim") for text in _how(found))
    if found.findings:
        yield from (GAP, title("Notes"), Items(sentences(found)))
    if found.path is not None:
        yield from (GAP, PathLine(found.path))


def _facts(found: BatchSizes) -> Iterator[tuple[str, str]]:
    made = found.experiment
    recipe = made["recipe"]
    yield "networks", ", ".join(_name(one) for one in made["architectures"])
    yield "trained on", f"the first {made['images']:,} images of {made['train']}, without augmentation"
    rate = (
        f"{recipe['rate']:g} · √(M / 128), 5 % warm-up, cosine"
        if recipe["schedule"] == "cosine"
        else f"{recipe['rate']:g} for every M, a tenth after 40 % and a hundredth after 60 % of the steps"
    )
    yield (
        "by",
        f"SGD, momentum {recipe['momentum']:g}, weight decay {recipe['weight_decay']:g}, rate {rate}; "
        f"{made['epochs']} epochs, or as many steps",
    )
    points = "all points" if made["points"] is None else f"at most {made['points']:,} points each"
    yield "evaluated", f"{made['test']} and {found.ood}, {points}"
    yield "passes", f"{made['draw_sets']} draw sets of {made['samples']}, seed {made['seed']}"
    hours, minutes = divmod(round(found.seconds["training"] / 60), 60)
    trained = f"{hours} h {minutes:02} min" if hours else f"{minutes} min"
    kind = "of a core " if made["device"] == "cpu" else ""
    yield "took", f"{trained} {kind}to train, {found.seconds['evaluation'] / 60:.0f} min to evaluate"


# ── in words ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def in_short(found: BatchSizes) -> Iterator[str]:
    """What came out, a sentence each: how MI moves with M, whether training explains it, OOD, one network, accuracy."""
    for networks in found.series().values():
        yield _how_it_moves(found, networks)
        yield _how_apart(found, networks)
    for network in found.networks:
        if network.slopes:
            yield _how_one_moves(found, network)
    yield _how_accurate(found)


def _how_it_moves(found: BatchSizes, networks: Sequence[Network]) -> str:
    first, last = networks[0], networks[-1]
    ends = [network.matched.mutual_information("test") for network in (first, last)]
    values = [network.matched.mutual_information("test").value for network in networks]
    error = math.hypot(*(total(estimate) or 0.0 for estimate in ends))
    change = ends[1].value - ends[0].value
    if abs(change) <= _ENOUGH * error:
        moves = "does not move by more than its error"
    elif change < 0:
        steady = all(after < before for before, after in itertools.pairwise(values))
        moves = "falls" if steady else "falls, though not from every M to the next,"
    else:
        moves = "rises"
    share = ends[1].value / ends[0].value if ends[0].value > 0 else math.nan
    near = found.published["near_zero_from"]
    largest = f"; published: about 0 from M = {near:,} on" if last.batch_size >= near else ""
    largest += _how_large(found, ends[0].value)
    return (
        f"{_named(networks)}: MI on the test set {moves} from {number(ends[0].value)} (M = {first.batch_size:,}) to "
        f"{number(ends[1].value)} (M = {last.batch_size:,}), {100 * share:.1f} % of that{largest}. "
        f"{_how_trained(networks)}."
    )


def _how_large(found: BatchSizes, value: float) -> str:
    ends = max(found.published["axis_tops"].values())
    return f", and the published axes end at {ends:g}" if value > ends else ""


def _how_trained(networks: Sequence[Network]) -> str:
    first, last = networks[0], networks[-1]
    losses = [network.loss for network in networks]
    if max(losses) <= _ALIKE * min(losses):
        return f"The networks are about equally trained (training loss {_span(losses)})"
    ends = f"{number(first.loss)} at M = {first.batch_size:,}, {number(last.loss)} at M = {last.batch_size:,}"
    if min(network.accuracy for network in networks) >= _LEARNT:
        return f"All networks have learnt their training images; the training loss still differs, {ends}"
    return f"They are not equally trained, so this is not of M alone: training loss {ends}"


def _span(values: Sequence[float]) -> str:
    return f"{number(min(values))} to {number(max(values))}"


def _how_apart(found: BatchSizes, networks: Sequence[Network]) -> str:
    aurocs = [network.matched.auroc[HEADLINE][found.ood].value for network in networks]
    ratio = _ratio(found, networks[-1].matched)
    apart = [network.batch_size for network, value in zip(networks, aurocs, strict=True) if value >= _TOLD_APART]
    if len(apart) == len(networks):
        said = f"told apart from the test set at every M (AUROC by MI {_span3(aurocs)})"
    elif apart:
        said = f"told apart from the test set at M = {_listed(apart)} alone (AUROC by MI {_span3(aurocs)})"
    else:
        said = f"hardly told apart from the test set at any M (AUROC by MI {_span3(aurocs)})"
    last = networks[-1].batch_size
    as_published = "as published: the two are alike for large b"
    if not (1 / _ALIKE <= ratio <= _ALIKE):
        as_published = "not as published, where the two are alike for large b"
    return (
        f"{_named(networks)}: {found.ood} is {said}; its MI is {ratio:.1f} times the test set's at M = {last:,}, "
        f"{as_published}."
    )


def _ratio(found: BatchSizes, point: Point) -> float:
    inside = point.mutual_information("test").value
    return point.mutual_information(found.ood).value / inside if inside > 0 else math.nan


def _span3(values: Sequence[float]) -> str:
    return f"{min(values):.3f} to {max(values):.3f}"


def _listed(sizes: Sequence[int]) -> str:
    return ", ".join(f"{size:,}" for size in sizes)


def _how_one_moves(found: BatchSizes, network: Network) -> str:
    told = []
    for name in ("test", found.ood):
        if name in network.slopes:
            slope = network.slopes[name]
            error = total(slope) if slope.se is not None else slope.mc_se
            told.append(f"{number(slope.value, 2)}{'' if error is None else f' ± {number(error, 2)}'} on {name}")
    return (
        f"One network alone (M = {network.batch_size:,}, {network.schedule}): ln MI falls against ln b with a slope of "
        f"{' and '.join(told)}; −1 is what batch noise alone gives."
    )


def _how_accurate(found: BatchSizes) -> str:
    series = found.series()
    ours = []
    for networks in series.values():
        values = [network.matched.estimates["accuracy"]["test"].value for network in networks]
        ours.append(f"{_in_percent(values)} ({_named(networks)})")
    published = [f"{_in_percent(values)} ({name})" for name, values in found.published["accuracy"].items()]
    return f"Accuracy lies between {'; '.join(ours)}. Published: {'; '.join(published)}."


def _in_percent(values: Sequence[float]) -> str:
    return f"{100 * min(values):.2f} and {100 * max(values):.2f} %"


def _named(networks: Sequence[Network]) -> str:
    one = networks[0]
    return f"{_name(one.architecture)}, {one.schedule}"


def _name(architecture: str) -> str:
    return _NAMES.get(architecture, architecture)


# ── the tables ───────────────────────────────────────────────────────────────────────────────────────────────────────


def _header(ood: str) -> tuple[str, ...]:
    estimates = "MI on test", f"MI on {ood}", "AUROC by MI", "accuracy", "PLL"
    return (*estimates, "train loss", "train acc.", "epochs", "steps")


def _matched(found: BatchSizes, networks: Sequence[Network]) -> Iterator[Row]:
    for network in networks:
        yield (
            f"M = {network.batch_size}",
            (
                *_of_point(found, network.matched),
                Cell(number(network.loss)),
                Cell(number(network.accuracy)),
                Cell(f"{network.epochs:.3g}"),
                Cell(str(network.steps)),
            ),
        )


def _single(found: BatchSizes, network: Network) -> Iterator[Row]:
    for point in network.single:
        yield f"b = {point.batch_size}", _of_point(found, point)


def _of_point(found: BatchSizes, point: Point) -> tuple[Cell, ...]:
    return (
        with_error(point.mutual_information("test"), 5),
        with_error(point.mutual_information(found.ood), 5),
        with_error(point.auroc[HEADLINE][found.ood], 3),
        with_error(point.estimates["accuracy"]["test"], 4),
        with_error(point.estimates["pll"]["test"], 4),
    )


def _accuracies(found: BatchSizes) -> tuple[tuple[str, ...], tuple[Row, ...]]:
    series, told = found.series(), found.published
    published = {name: dict(zip(told["batch_sizes"], values, strict=True)) for name, values in told["accuracy"].items()}
    header = (*(_named(networks) for networks in series.values()), *(f"{name}, published" for name in published))
    ours = [{network.batch_size: network.matched for network in networks} for networks in series.values()]
    sizes = sorted({size for some in ours for size in some})
    rows = []
    for size in sizes:
        mine = [with_error(some[size].estimates["accuracy"]["test"] if size in some else None) for some in ours]
        theirs = [Cell(f"{values[size]:.4f}" if size in values else "–") for values in published.values()]
        rows.append((f"M = {size}", (*mine, *theirs)))
    return header, tuple(rows)


def _how(found: BatchSizes) -> Iterator[str]:
    made, told = found.experiment, found.published
    yield (
        f"± points and draws together. MI in nats, plug-in, of {made['samples']} passes; estimates are means over "
        f"{made['draw_sets']} independent draw sets. Training loss (nats) and accuracy are of the training images, in "
        "evaluation mode. One seed: another one trains other networks, which differ by more than the errors."
    )
    if any(network.schedule != "equal epochs" for network in found.networks):
        yield (
            "With equal epochs a larger M makes fewer steps, with equal steps it sees more images: neither leaves "
            "training alone."
        )
    published = " and ".join(f"{name} {top:g}" for name, top in told["axis_tops"].items())
    yield (
        f"Published: T = {told['samples']}, other networks on all of the training set, b = M throughout; its text "
        f"calls the accuracies errors. The figure's values are not printed: its axes of MI end at {published}."
    )
    if made["recipe"]["schedule"] == "steps":
        yield "The published training's rate, schedule and weight decay are not printed: those here are customary ones."


# ── the picture ──────────────────────────────────────────────────────────────────────────────────────────────────────


def save_figure(found: BatchSizes, folder: Path, *, kind: drawing.Format = "svg") -> Path:
    """Write `folder`/batch-size.svg or .png: a row a schedule and architecture, of MI with one network for each M, MI
    of one network at every b, and the training loss.

    RequestError without matplotlib; ResultError where it cannot be written. Returns the path.
    """
    path, made, series = folder / f"batch-size.{kind}", found.experiment, found.series()
    about = (
        f"{made['images']:,} training images of Fashion-MNIST, {made['draw_sets']} × {made['samples']} passes, seed "
        f"{made['seed']}; bars: ± 1 standard error of points and draws"
    )
    sets = ("test", found.ood)
    lines = dict(zip(sets, list(drawing.lines_of(["", *sets]).values())[1:], strict=True))
    with drawing.picture(
        path,
        title="Mutual information against the batch size, in the manner of Mukhoti et al. 2020, Figure 1",
        about=about,
        columns=3,
        heights=(1.0,) * len(series),
        size=(4.2, 3.1),
    ) as panels:
        for row, networks in enumerate(series.values()):
            left, middle, right = panels[3 * row : 3 * row + 3]
            _draw_mi(left, [network.matched for network in networks], lines, xlabel="M, and b = M")
            left.set_title(f"{_named(networks)}: a network each")
            left.set_ylabel("MI (nats)")
            _draw_losses(right, networks)
            swept = next((network for network in networks if network.single), None)
            if swept is None:
                middle.set_axis_off()
            else:
                _draw_mi(middle, swept.single, lines, xlabel="b")
                middle.set_title(f"one network, M = {swept.batch_size:,} (dotted)")
                middle.axvline(swept.batch_size, color=drawing.GREY, linestyle=":", linewidth=1.2)
        _join([panel for number, panel in enumerate(panels) if number % 3 < 2 and panel.axison])
        _join(panels[2::3])
        panels[0].legend(loc="lower left")
    return path


def _draw_mi(axes: Axes, points: Sequence[Point], lines: dict[str, drawing.Line], *, xlabel: str) -> None:
    sizes = [point.batch_size for point in points]
    for name, line in lines.items():
        estimates = [point.mutual_information(name) for point in points]
        values = [estimate.value if estimate.value > 0 else math.nan for estimate in estimates]
        errors = [total(estimate) or estimate.mc_se or 0.0 for estimate in estimates]
        lows = [min(error, 0.9 * value) for value, error in zip(values, errors, strict=True)]  # a log axis has no 0
        axes.errorbar(sizes, values, yerr=[lows, errors], capsize=2.5, label=name, **line.plotted)
    _size_axis(axes, sizes, xlabel)
    _log_axis(axes)


def _draw_losses(axes: Axes, networks: Sequence[Network]) -> None:
    sizes = [network.batch_size for network in networks]
    axes.plot(sizes, [network.loss for network in networks], color=drawing.INK, marker="o")
    for network in networks:
        axes.annotate(
            f"{network.loss:.2g}", (network.batch_size, network.loss), xytext=(0, 6), textcoords="offset points",
            ha="center", fontsize=8, color=drawing.GREY,
        )  # fmt: skip
    axes.margins(x=0.12, y=0.2)
    axes.set_title("training loss (nats)")
    _size_axis(axes, sizes, "M")
    _log_axis(axes)


def _size_axis(axes: Axes, sizes: Sequence[int], label: str) -> None:
    axes.set_xscale("log", base=2)
    axes.set_xticks(list(sizes), [str(size) for size in sizes])
    axes.xaxis.minorticks_off()
    axes.set_xlabel(label)


def _log_axis(axes: Axes) -> None:
    """A logarithmic y axis, its numbers as they are written in tables."""
    from matplotlib.ticker import LogLocator, NullFormatter

    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 3.0)))
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.yaxis.set_minor_formatter(NullFormatter())


def _join(panels: Sequence[Axes]) -> None:
    """Give the panels one span of their y axes, so that their heights compare."""
    lows, highs = zip(*(axes.get_ylim() for axes in panels), strict=True)
    for axes in panels:
        axes.set_ylim(min(lows), max(highs))
