"""The report of the batch-size experiment: how MI moves with the batch size, beside what was published."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bnuq.estimates import Estimate
from bnuq.findings import Catalogue, Entry, Finding, sentence
from bnuq.report import drawing
from bnuq.report.document import Cell, Picture, Report, ReportSection, Table, explanations
from bnuq.report.numbers import error_of, number, total, with_error
from experiments.batch_size.record import CURVES, HEADLINE, BatchSizes, Network, Point
from experiments.batch_size.record import sentences as notes_of
from experiments.summary import report_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_NAMES: dict[str, str] = {
    "small_resnet": "small ResNet",
    "small_vgg": "small VGG",
    "resnet50": "ResNet-50",
    "vgg16": "VGG-16",
}
_CLEAR = 2  # standard errors, from which on a difference is reported
_CLAIM = {"mi-falls": "holds", "mi-falls-unsteadily": "holds", "mi-unchanged": "stays open", "mi-rises": "fails here"}
_ALIKE = 1.25  # factor, up to which the training losses of networks count as alike, and so do the MI of two sets
_LEARNT = 0.999  # of the training images, from which on they are learnt
_SEPARATED = 0.6  # AUROC, from which on a set counts as separated
_HOW = (
    "Left: MI with one network for each M, sampled in its own batch size; middle: MI of one network at every b; right: "
    "the training loss of each network. Dotted: the M of the network in the middle. Bars are one standard error."
)


def report(record: BatchSizes, *, columns: int = 100) -> Report:  # noqa: ARG001 - every report has it
    """The report: MI, AUROC and accuracy of every network, at its own batch size and at others."""
    return report_of(
        record,
        facts=_facts(record),
        summary=sentences(record),
        sections=_sections(record),
        notes=notes_of(record),
    )


def _sections(record: BatchSizes) -> Iterator[ReportSection]:
    yield ReportSection("MI over the batch size", (Picture(("batch-size",), partial(_draw, record), _HOW),))
    header = ("MI on test", f"MI on {record.ood}", "AUROC by MI", "accuracy", "PLL")
    trained = (*header, "train loss", "train acc.", "epochs", "steps")
    for networks in record.series().values():
        rows = tuple((f"M = {network.batch_size}", _trained_cells(record, network)) for network in networks)
        yield ReportSection(
            f"{_name(networks[0])}: one network for each M, b = M", (Table(trained, rows, stacks=True),)
        )
    for networks in record.series().values():
        if not networks[0].curves:
            continue
        epochs = min(len(network.curves[CURVES[0]]) for network in networks)
        shown = sorted({max(1, round(epochs * part / 10)) for part in range(11)})
        heads = tuple(f"M = {network.batch_size}: {name}" for name in CURVES for network in networks)
        curves = [network.curves[name] for name in CURVES for network in networks]
        rows = tuple((f"epoch {at}", tuple(Cell(number(of[at - 1])) for of in curves)) for at in shown)
        yield ReportSection(f"{_name(networks[0])}: by epoch", (Table(heads, rows, stacks=True),))
    for network in itertools.chain(*record.series().values()):
        if network.single:
            name = f"{_architecture(network)} of M = {network.batch_size}, {network.schedule}"
            rows = tuple((f"b = {point.batch_size}", _point_cells(record, point)) for point in network.single)
            yield ReportSection(f"{name}: one network, every b", (Table(header, rows, stacks=True),))
    yield ReportSection("Accuracy of MCBN, and the published one", (_accuracies(record),))
    yield ReportSection("", tuple(explanations(_legend(record))))


def _facts(record: BatchSizes) -> Iterator[tuple[str, str]]:
    setup = record.experiment
    recipe = setup["recipe"]
    yield "source", f"{record.published['source']}."
    yield "networks", ", ".join(str(_NAMES.get(name, name)) for name in setup["architectures"])
    yield "trained on", f"the first {setup['images']:,} images of {setup['train']}, without augmentation"
    rate = (
        f"{recipe['rate']:g} · √(M / 128), 5 % warm-up, cosine"
        if recipe["schedule"] == "cosine"
        else f"{recipe['rate']:g} for every M, a tenth after 40 % and a hundredth after 60 % of the steps"
    )
    yield (
        "by",
        f"SGD, momentum {recipe['momentum']:g}, weight decay {recipe['weight_decay']:g}, rate {rate}; "
        f"{setup['epochs']} epochs, or as many steps",
    )
    points = "all points" if setup["points"] is None else f"at most {setup['points']:,} points each"
    yield "evaluated", f"{setup['test']} and {record.ood}, {points}"
    yield "samples", f"{setup['draw_sets']} draw sets of {setup['samples']}, seed {setup['seed']}"
    hours, minutes = divmod(round(record.seconds["training"] / 60), 60)
    trained = f"{hours} h {minutes:02} min" if hours else f"{minutes} min"
    kind = "of a core " if setup["device"] == "cpu" else ""
    yield "time", f"{trained} {kind}to train, {record.seconds['evaluation'] / 60:.0f} min to evaluate"


# ── the findings ─────────────────────────────────────────────────────────────────────────────────────────────────────


def findings(record: BatchSizes) -> Iterator[Finding]:
    """How MI moves with M, whether training explains it, whether OOD data are separated, one network, accuracy."""
    for networks in record.series().values():
        yield from _change(record, networks)
        yield _training(networks)
        yield from _separation(record, networks)
    for network in record.networks:
        if network.slopes:
            of = {"batch_size": network.batch_size, "schedule": network.schedule}
            yield _verdict("single-network-slope", **of, slopes=network.slopes)
    accuracies = {
        _name(networks[0]): [network.matched.estimates["accuracy"]["test"].value for network in networks]
        for networks in record.series().values()
    }
    yield _verdict("accuracies", accuracies=accuracies, published=record.published["accuracy"])


def sentences(record: BatchSizes) -> tuple[str, ...]:
    """What the findings say, and whether MI falls with M as published."""
    found = list(findings(record))
    claims = (
        f"{each.values['name']}: that MI falls with M {_CLAIM[each.code]}; networks, images and epochs differ."
        for each in found
        if each.code in _CLAIM
    )
    said = (sentence(finding, SENTENCES, _FORMATS) for finding in found)
    return (*said, *claims, *(_over_epochs(record, of) for of in record.series().values() if of[0].curves))


def _over_epochs(record: BatchSizes, networks: Sequence[Network]) -> str:
    """Where the curves of training end, and where they are best."""
    parts = []
    for network in networks:
        loss, _, accuracy = (network.curves[name] for name in CURVES)
        best = max(range(len(accuracy)), key=accuracy.__getitem__)
        parts.append(
            f"M = {network.batch_size:,}: {number(100 * accuracy[-1], 1)}, {number(100 * accuracy[best], 1)} (epoch "
            f"{best + 1:,} of {len(accuracy):,}; training loss {number(loss[0], 2)} to {number(loss[-1], 4)})"
        )
    points = "all" if (most := record.experiment["points"]) is None else f"the first {most:,}"
    return (
        f"{_name(networks[0])}: accuracy in % of one pass on {points} test points, in the last epoch and in the best: "
        f"{'; '.join(parts)}."
    )


def _verdict(code: str, **values: Any) -> Finding:
    return Finding(code, "verdict", values)


def _change(record: BatchSizes, networks: Sequence[Network]) -> Iterator[Finding]:
    estimates = [network.matched.mutual_information("test") for network in networks]
    first, last = estimates[0], estimates[-1]
    change = last.value - first.value
    if abs(change) <= _CLEAR * math.hypot(total(first) or 0.0, total(last) or 0.0):
        code = "mi-unchanged"
    elif change < 0:
        steady = all(after.value < before.value for before, after in itertools.pairwise(estimates))
        code = "mi-falls" if steady else "mi-falls-unsteadily"
    else:
        code = "mi-rises"
    percents = 100 * last.value / first.value if first.value > 0 else math.nan
    sizes = networks[0].batch_size, networks[-1].batch_size
    yield _verdict(code, name=_name(networks[0]), ends=(first.value, last.value), sizes=sizes, percents=percents)
    if sizes[1] >= record.published["near_zero_from"]:
        yield _verdict("published-near-zero", size=record.published["near_zero_from"])
    if first.value > (end := max(record.published["axis_tops"].values())):
        yield _verdict("beyond-published-axes", end=end)


def _training(networks: Sequence[Network]) -> Finding:
    """Whether the networks are equally trained, so that the change is one of M alone."""
    losses = [network.loss for network in networks]
    if max(losses) <= _ALIKE * min(losses):
        return _verdict("equally-trained", name=_name(networks[0]), losses=(min(losses), max(losses)))
    learnt = min(network.accuracy for network in networks) >= _LEARNT
    sizes = networks[0].batch_size, networks[-1].batch_size
    code = "all-learnt" if learnt else "unequally-trained"
    return _verdict(code, name=_name(networks[0]), losses=(losses[0], losses[-1]), sizes=sizes)


def _separation(record: BatchSizes, networks: Sequence[Network]) -> Iterator[Finding]:
    aurocs = {network.batch_size: network.matched.auroc[HEADLINE][record.ood].value for network in networks}
    sizes = [size for size, auroc in aurocs.items() if auroc >= _SEPARATED]
    where = "everywhere" if len(sizes) == len(networks) else "somewhere" if sizes else "nowhere"
    ends = min(aurocs.values()), max(aurocs.values())
    of = {"name": _name(networks[0]), "ood": record.ood}
    yield _verdict(f"ood-separated-{where}", **of, sizes=sizes, aurocs=ends)
    last = networks[-1].matched
    inside, outside = (last.mutual_information(name).value for name in ("test", record.ood))
    ratio = outside / inside if inside > 0 else math.nan
    code = "ood-alike-as-published" if 1 / _ALIKE <= ratio <= _ALIKE else "ood-not-alike"
    yield _verdict(code, **of, ratio=ratio, size=last.batch_size)


def _slopes(slopes: dict[str, Estimate]) -> str:
    errors = {name: error_of(slope) for name, slope in slopes.items()}
    return " and ".join(
        f"{number(slope.value, 2)}{'' if errors[name] is None else f' ± {number(errors[name], 2)}'} on {name}"
        for name, slope in slopes.items()
    )


def _spans(accuracies: dict[str, Sequence[float]]) -> str:
    return "; ".join(f"{100 * min(v):.2f} and {100 * max(v):.2f} % ({name})" for name, v in accuracies.items())


_FORMATS = {
    "number": number,
    "sizes": lambda sizes: ", ".join(f"{size:,}" for size in sizes),
    "slopes": _slopes,
    "spans": _spans,
}
_ENDS = "from {ends[0]:number} (M = {sizes[0]:,}) to {ends[1]:number} (M = {sizes[1]:,}), {percents:.1f} % of that."
_LOSSES = "{losses[0]:number} at M = {sizes[0]:,}, {losses[1]:number} at M = {sizes[1]:,}"
_AUROCS = "(AUROC by MI {aurocs[0]:.3f} to {aurocs[1]:.3f})"
_TEXTS = {
    "mi-unchanged": f"{{name}}: MI on the test set does not change by more than its error {_ENDS}",
    "mi-falls": f"{{name}}: MI on the test set falls {_ENDS}",
    "mi-falls-unsteadily": f"{{name}}: MI on the test set falls, though not from every M to the next, {_ENDS}",
    "mi-rises": f"{{name}}: MI on the test set rises {_ENDS}",
    "published-near-zero": "Published: MI is about 0 from M = {size:,} on.",
    "beyond-published-axes": "Published: the axes of MI end at {end:g}.",
    "equally-trained": (
        "{name}: the networks are about equally trained (training loss {losses[0]:number} to {losses[1]:number})."
    ),
    "all-learnt": (
        f"{{name}}: all networks have learnt their training images; the training loss still differs, {_LOSSES}."
    ),
    "unequally-trained": (
        f"{{name}}: the networks are not equally trained, so M alone does not explain this: training loss {_LOSSES}."
    ),
    "ood-separated-everywhere": f"{{name}}: {{ood}} is separated at every M {_AUROCS}.",
    "ood-separated-somewhere": f"{{name}}: {{ood}} is separated only at M = {{sizes:sizes}} {_AUROCS}.",
    "ood-separated-nowhere": f"{{name}}: {{ood}} is hardly separated at any M {_AUROCS}.",
    "ood-alike-as-published": (
        "{name}: the MI of {ood} is {ratio:.1f} times the test set's at M = {size:,}; published, too, the two are "
        "alike for large b."
    ),
    "ood-not-alike": (
        "{name}: the MI of {ood} is {ratio:.1f} times the test set's at M = {size:,}; published, the two are alike for "
        "large b."
    ),
    "single-network-slope": (
        "One network (M = {batch_size:,}, {schedule}): ln MI falls against ln b with a slope of {slopes:slopes}; −1 is "
        "expected of batch noise alone."
    ),
    "accuracies": "Accuracy lies between {accuracies:spans}. Published: {published:spans}.",
}
SENTENCES: Catalogue = {code: Entry(text) for code, text in _TEXTS.items()}


def _name(network: Network) -> str:
    return f"{_architecture(network)}, {network.schedule}"


def _architecture(network: Network) -> str:
    return _NAMES.get(network.architecture, network.architecture)


# ── the tables ───────────────────────────────────────────────────────────────────────────────────────────────────────


def _trained_cells(record: BatchSizes, network: Network) -> tuple[Cell, ...]:
    training = (number(network.loss), number(network.accuracy), f"{network.epochs:.3g}", str(network.steps))
    return (*_point_cells(record, network.matched), *map(Cell, training))


def _point_cells(record: BatchSizes, point: Point) -> tuple[Cell, ...]:
    return (
        with_error(point.mutual_information("test"), 5),
        with_error(point.mutual_information(record.ood), 5),
        with_error(point.auroc[HEADLINE][record.ood], 3),
        with_error(point.estimates["accuracy"]["test"], 4),
        with_error(point.estimates["pll"]["test"], 4),
    )


def _accuracies(record: BatchSizes) -> Table:
    series, published = record.series(), record.published
    columns = {
        _name(networks[0]): {
            network.batch_size: with_error(network.matched.estimates["accuracy"]["test"]) for network in networks
        }
        for networks in series.values()
    }
    sizes = sorted({size for cells in columns.values() for size in cells})
    for name, values in published["accuracy"].items():
        cells = (Cell(f"{value:.4f}") for value in values)
        columns[f"{name}, published"] = dict(zip(published["batch_sizes"], cells, strict=True))
    rows = [(f"M = {size}", tuple(cells.get(size, Cell("–")) for cells in columns.values())) for size in sizes]
    return Table(tuple(columns), tuple(rows), stacks=True)


def _legend(record: BatchSizes) -> Iterator[str]:
    setup, published = record.experiment, record.published
    yield (
        f"± points and draws together. MI in nats, plug-in, of {setup['samples']} samples; estimates are means over "
        f"{setup['draw_sets']} independent draw sets. Training loss (nats) and accuracy are of the training images, in "
        "evaluation mode. "
        + (
            f"Means of {seeds} seeds, ± points and seeds."
            if (seeds := setup.get("seeds", 1)) > 1
            else "One seed: another one trains other networks, which differ by more than the errors."
        )
    )
    if any(network.schedule != "equal epochs" for network in record.networks):
        yield (
            "With equal epochs a larger M makes fewer steps, with equal steps it sees more images: neither leaves "
            "training alone."
        )
    tops = " and ".join(f"{name} {top:g}" for name, top in published["axis_tops"].items())
    yield (
        f"Published: T = {published['samples']}, other networks on all of the training set, b = M throughout; its text "
        f"calls the accuracies errors. The figure's values are not printed: its axes of MI end at {tops}."
    )
    if setup["recipe"]["schedule"] == "steps":
        yield (
            "Published of Fashion-MNIST: SGD of momentum 0.9, 100 epochs, the rate a tenth after 40 and 60, as here; "
            "of CIFAR-10: 350 epochs from a rate of 0.1, a tenth after 150 and 250. The first rate of Fashion-MNIST "
            "and the weight decay are not printed: those here are CIFAR-10's rate and a customary decay."
        )


# ── the picture ──────────────────────────────────────────────────────────────────────────────────────────────────────


def _draw(record: BatchSizes, path: Path) -> None:
    """A row for each schedule and architecture: MI with one network for each M, MI of one network at every b, and the
    training loss."""
    setup, series = record.experiment, record.series()
    about = (
        f"{setup['images']:,} training images of Fashion-MNIST, {setup['draw_sets']} × {setup['samples']} samples, "
        f"seed {setup['seed']}; bars: ± 1 standard error of points and draws"
    )
    sets = ("test", record.ood)
    lines = dict(zip(sets, list(drawing.line_styles(["", *sets]).values())[1:], strict=True))
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
            left.set_title(f"{_name(networks[0])}: a network each")
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


def _draw_mi(axes: Axes, points: Sequence[Point], lines: dict[str, drawing.LineStyle], *, xlabel: str) -> None:
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
