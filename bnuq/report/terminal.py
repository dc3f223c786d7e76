"""The report on a terminal: what was evaluated, what it means in words, the tables, and what to be careful about."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TextIO

import numpy as np

from bnuq.config import SINGLE_SAMPLE_METHODS
from bnuq.records.evaluation import ReferenceCheck, Result
from bnuq.report import classification, noise_models, ood, regression
from bnuq.report.numbers import (
    count,
    digits_of,
    headed,
    named,
    number,
    of_reference,
    share_with_error,
    sparkline,
    with_error,
)
from bnuq.report.parts import (
    GAP,
    Advice,
    Cell,
    Facts,
    Items,
    Paragraph,
    Part,
    PathLine,
    Table,
    columns_of,
    draw,
    title,
)
from bnuq.report.remedies import advised, noted
from bnuq.report.sampler import laws_in_words, sampler_in_words

_ROOMY = 60  # columns from which names are written out
_KINDS = ("test", "validation", "ood")  # of sets, in the order they are told


def print_report(result: Result, stream: TextIO, *, full: bool = False, width: int | None = None) -> None:
    """Draw the report on `stream`: in colour on a terminal, plain in a pipe, in ASCII where the encoding needs it.

    One screen, of what matters; everything with `full`.
    """
    columns = columns_of(stream, width)
    roomy = columns >= _ROOMY
    draw(report_parts(result, roomy=roomy) if full else short_parts(result, roomy=roomy), stream, columns)


def print_figures(paths: Sequence[Path], stream: TextIO, *, width: int | None = None) -> None:
    """Tell on `stream` which pictures were drawn, and where they lie."""
    names = Items(tuple(path.name for path in paths))
    draw((GAP, PathLine(paths[0].parent, "Estimates"), names), stream, columns_of(stream, width))


def short_parts(result: Result, *, roomy: bool = True) -> Iterator[Part]:
    """The report on one screen: the verdict, a table of the methods, one of the OOD sets, warnings, as many notes as
    there is space for, and what is left out."""
    parts = tuple(_headlines(result, roomy=roomy))
    yield from parts
    all_notes = noted(result.findings)
    notes = _notes_that_fit(all_notes, _SCREEN - _height(parts))
    if notes:
        yield from (GAP, title("Notes"), Items(notes))
    left = len(all_notes) - len(notes)
    more = f" and {count(left, 'more note' if notes else 'note')}" if left else ""
    yield from (GAP, Paragraph(f"`bnuq report RESULT --full` prints all scores, curves{more}.", "dim"))
    if result.path is not None:
        yield PathLine(result.path)


_SCREEN, _WIDE = 39, 100  # lines before the notes' title and the last lines, at this width


def _height(parts: Iterable[Part]) -> int:
    return sum(1 for part in parts for _ in part.lines(_WIDE, str))


def _notes_that_fit(notes: Sequence[str], lines: int) -> tuple[str, ...]:
    """The shortest of the notes, which say how this run was handled, in their order."""
    chosen = set[int]()
    for place in sorted(range(len(notes)), key=lambda place: len(notes[place])):
        if (lines := lines - _height([Items((notes[place],))])) < 0:
            break
        chosen.add(place)
    return tuple(note for place, note in enumerate(notes) if place in chosen)


def _headlines(result: Result, *, roomy: bool) -> Iterator[Part]:
    task = regression if result.model.get("task") == "regression" else classification
    yield title(f"bnuq evaluate  {result.provenance['bnuq']}")
    yield Facts(tuple(facts(result)))
    yield from (GAP, title("In short"), Items(tuple(in_words(result, tuple(task.in_words(result))))))
    yield from (GAP, _methods_table(result, task.HEADLINE, roomy=roomy))
    if ood.names(result):
        yield from (GAP, ood.short_table(result))
    yield from (GAP, Paragraph(of_errors(result), "dim"))
    if cost := _cost(result):
        yield Paragraph(cost, "dim")
    if advice := advised(result.findings):
        yield from (GAP, title("Warnings", "bold yellow"))
        yield Advice(advice)


def _methods_table(result: Result, metrics: Sequence[str], *, roomy: bool) -> Table:
    """A row a method, a column a metric of the test set that some method has."""
    test = {name: method.sets["test"].estimates for name, method in result.methods.items()}
    shown = [metric for metric in metrics if any(metric in estimates for estimates in test.values())]
    normalized = [m for m in ("pll", "crps") if any(m in method.normalized for method in result.methods.values())][:1]
    header = [headed(metric, roomy=False).strip() for metric in shown]
    header += [f"↑ normalised {named(metric, roomy=roomy)}" for metric in normalized]
    rows = tuple(
        (
            noise_models.labelled(name),
            (
                *(with_error(test[name].get(metric)) for metric in shown),
                *(share_with_error(method.normalized.get(metric)) for metric in normalized),
            ),
        )
        for name, method in result.methods.items()
    )
    return Table(tuple(header), rows, stacks=True)


def report_parts(result: Result, *, roomy: bool = True) -> Iterator[Part]:
    """What the report is made of."""
    task = regression if result.model.get("task") == "regression" else classification
    yield title(f"bnuq evaluate  {result.provenance['bnuq']}")
    yield Facts(tuple(facts(result)))
    yield from (GAP, title("In short"), Items(tuple(in_words(result, tuple(task.in_words(result))))))
    yield from (GAP, title(f"Test set, {result.sets['test'].n} points"))
    yield from task.test_tables(result, roomy=roomy)
    for metric in task.CONVERGING:
        yield from curves(result, metric)
    for name in ood.names(result):
        yield from (GAP, title(f"{name}, {result.sets[name].n} points, against the test set"))
        yield ood.table(result, name, roomy=roomy)
        yield from task.ood_tables(result, name)
    yield from noise_models.parts(result)
    if work := tuple(work_in_words(result)):
        yield from (GAP, title("Computational cost"), Items(work))
    yield GAP
    yield Paragraph(of_errors(result), "dim")
    yield from (Paragraph(text, "dim") for text in task.legend(result))
    if advice := advised(result.findings):
        yield from (GAP, title("Warnings", "bold yellow"))
        yield Advice(advice)
    if texts := noted(result.findings):
        yield from (GAP, title("Notes"), Items(texts))
    if result.path is not None:
        yield from (GAP, PathLine(result.path))


def facts(result: Result) -> Iterator[tuple[str, str]]:
    model, sampling = result.model, result.sampling
    facts = (
        f"{model['parameters']:,} parameters",
        count(model["batchnorm_layers"], "BatchNorm layer"),
        count(model["dropout_layers"], "dropout layer"),
        f"{model['classes']} classes" if "classes" in model else count(model["outputs"], "output"),
    )
    yield "model", f"{Path(model['path']).name}: {', '.join(facts)}"
    for kind in _KINDS:
        for name, one in result.sets.items():
            if one.kind == kind:
                yield kind, f"{_shown(name, kind, one.reference)}, {one.n} points"
    if len(result.methods) > 1:
        reference = result.run.get("data", {}).get("train")
        batch = sampling["batch_size"]
        drawn = (
            ""
            if batch is None
            else f", mini-batches of {batch}{f' from {of_reference(reference)}' if reference else ''}"
        )
        bank = sampling.get("bank")
        own = f"{sampling['samples']} of a bank of {bank}" if bank is not None else f"{sampling['samples']}"
        yield "samples", f"{own} per point{drawn}, seed {sampling['seed']}"
        if layers := _layers_in_words(result):
            yield "layers", layers
        if batches := sampler_in_words(result):
            yield "batches", batches
        if laws_told := laws_in_words(result):
            yield "noise models", laws_told
    yield "device", f"{sampling['device']}, {sampling['precision']}, {result.seconds['total']:.1f} s"


def _layers_in_words(result: Result) -> str:
    """Which BatchNorms were sampled, where that is not all."""
    told, known = result.sampling.get("layers"), int(result.model["batchnorm_layers"])
    names = list(map(str, told)) if isinstance(told, list | tuple) else []
    if not names or len(names) >= known:
        return ""
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return f"{len(names)} of {known} BatchNorm layers: {', '.join(names[:5])}{more}"


def _shown(name: str, kind: str, reference: str) -> str:
    base = of_reference(reference)
    return base if kind != "ood" or Path(base).stem == name else f"{name} ({base})"


def in_words(result: Result, of_task: tuple[str, ...]) -> Iterator[str]:
    check = result.reference_check
    if check is not None and not check.passed:
        yield (
            "Warning: the reference or its pipeline does not match what the network was trained on. The results "
            "below may not describe your network; see the warnings."
        )
    yield from of_task
    yield from (ood.in_words(result, name) for name in ood.names(result))
    yield from noise_models.in_words(result)
    if check is not None and check.passed:
        yield _agreement(check)


def _agreement(check: ReferenceCheck) -> str:
    ratios = [getattr(check, quantity) / check.expected for quantity in ("mean", "log_variance")]
    median, worst = max(float(np.median(r)) for r in ratios), max(float(r.max()) for r in ratios)
    return (
        "Reference check passed: batch statistics match the checkpoint's running statistics "
        f"({median:.1f} times batch noise in the median layer, {worst:.1f} in the worst; limits 3 and 6)."
    )


def curves(result: Result, metric: str) -> Iterator[Part]:
    drawn = {name: m.convergence[metric] for name, m in result.methods.items() if metric in m.convergence}
    finite = {name: np.asarray(v) for name, v in drawn.items() if np.isfinite(v).all() and len(v) > 1}
    if not finite:
        return
    sizes = [int(k) for k in next(m.convergence["samples"] for m in result.methods.values() if m.convergence)]
    counted = ", ".join(map(str, sizes)) if len(sizes) < 5 else f"{sizes[0]}, {sizes[1]}, {sizes[2]}, … {sizes[-1]}"
    low, high = min(v.min() for v in finite.values()), max(v.max() for v in finite.values())
    digits = digits_of(metric, (float(low), float(high)))
    rows = tuple(
        (
            name,
            (
                Cell(sparkline(values, low=low, high=high), style="cyan"),
                Cell(f"{number(float(values[0]), digits)} → {number(float(values[-1]), digits)}"),
            ),
        )
        for name, values in finite.items()
    )
    yield from (GAP, title(f"{named(metric)} of the first {counted} samples"), Table(("", ""), rows))


def work_in_words(result: Result) -> Iterator[str]:
    """What was computed once and what T times, at what speed, in which memory."""
    for method, took in result.work.methods.items():
        if method in SINGLE_SAMPLE_METHODS:
            continue
        text = f"{method}: {took.passes:,} forward passes, {took.passes / max(took.seconds, 1e-9):,.0f} per second"
        if took.ratio is not None:
            text += f", {took.ratio:.2f} of the cost of as many deterministic passes"
        if took.once is not None and took.each is not None:
            share = took.once / max(1, took.once + took.each)
            text += f"; {100 * share:.3g} % of a pass's arithmetic was shared by all samples"
        if took.folded:
            text += f", {count(took.folded, 'BatchNorm')} folded into the preceding weights"
        if (took.stacked or 1) > 1:
            text += f", up to {took.stacked} samples per pass"
        if took.why_plain:
            text += f". The whole network was run for every sample: {took.why_plain}"
        yield text + "."
    if result.work.peak_bytes:
        held = "GPU memory" if str(result.sampling["device"]).startswith("cuda") else "memory"
        yield f"{result.work.peak_bytes / 1e9:.2g} GB peak {held}, including the network and torch."


def _cost(result: Result) -> str:
    """The cost in one line."""
    ratios = {
        name: took.ratio
        for name, took in result.work.methods.items()
        if took.ratio and name not in SINGLE_SAMPLE_METHODS
    }
    told = ", ".join(f"{name} {ratio:.2f}" for name, ratio in ratios.items())
    return f"Cost relative to deterministic passes: {told}." if told else ""


def of_errors(result: Result) -> str:
    sampled = len(result.methods) > 1
    over = "points and samples together" if sampled else "points"
    if sampled and int(result.sampling["samples"]) < 8:
        over = "points only; too few samples for a Monte Carlo error"
    return f"± standard error over {over}. ↑ higher, ↓ lower is better."
