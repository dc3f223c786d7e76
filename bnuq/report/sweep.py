"""A sweep over mini-batch sizes on a terminal: what it means in words, the tables, small curves; and as a picture."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import numpy as np

from bnuq.metrics import METRICS, SCORES
from bnuq.records import Figure
from bnuq.report import drawing
from bnuq.report.drawing import short
from bnuq.report.numbers import ARROWS, NAMES, count, decimals, number, of_reference, signed, total, with_error
from bnuq.report.parts import (
    GAP,
    Cell,
    Drawing,
    Facts,
    Items,
    Paragraph,
    Part,
    PathLine,
    Row,
    Table,
    cleaner,
    columns_of,
    draw,
    title,
)
from bnuq.results.sweep import COMMAND, ElboTerms, Recommended, Repeated, Sweep, SweepPoint, SweptModel

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_OF_TEST = {"classification": ("accuracy", "pll", "ece"), "regression": ("crps", "pll", "rmse")}
_AFTER = {"classification": (), "regression": ("coverage95",)}  # behind the spread of the draws
_ROWS = 9  # of the curves on a terminal
_WIDE = 0.5  # an interval of a slope, that says little
_MARKS = "ox+*#"  # of the sets in them


def print_sweep(sweep: Sweep, stream: TextIO, width: int | None = None) -> None:
    """Draw the report on `stream`: in colour on a terminal, plain in a pipe, in ASCII where the encoding needs it."""
    columns = columns_of(stream, width)
    between = "·" if cleaner(getattr(stream, "encoding", None) or "utf-8")("·") == "·" else "."
    draw(report_parts(sweep, columns, between), stream, columns)


@dataclass(frozen=True)
class _Line:
    """Points that are told together: of one network at several sizes, or (`model` None) of one network a size."""

    model: SweptModel | None
    points: tuple[SweepPoint, ...]

    @property
    def random(self) -> list[SweepPoint]:
        """Those where something is."""
        return [point for point in self.points if not point.degenerate]

    @property
    def title(self) -> str:
        return "A network for each size" if self.model is None else f"One network: {self.model.name}"


def _lines(sweep: Sweep) -> list[_Line]:
    single = [_Line(model, sweep.line(number)) for number, model in enumerate(sweep.models)]
    return [line for line in (*single, _Line(None, sweep.matched)) if line.points]


def _spread(sweep: Sweep) -> str:
    """The metric that says how far draws disagree."""
    return "mutual_information" if sweep.task == "classification" else "variance"


def _named(sweep: Sweep) -> str:
    return "MI" if sweep.task == "classification" else "the variance of draws"


def _names(sweep: Sweep, *roles: str) -> list[str]:
    return [one.name for role in roles for one in sweep.sets if one.role == role]


def _figure(point: SweepPoint, metric: str, name: str) -> Figure | None:
    found = point.figures.get(metric, {}).get(name)
    return None if found is None else found.figure


def _auroc(sweep: Sweep, point: SweepPoint, name: str) -> Repeated | None:
    return point.auroc.get(sweep.score, {}).get(name)


def report_parts(sweep: Sweep, columns: int = 100, between: str = "·") -> Iterator[Part]:
    """What the report is made of; `between` is the mark between the points of a curve in characters."""
    lines = _lines(sweep)
    yield title(f"bnuq {COMMAND}  {sweep.provenance['bnuq']}")
    yield Facts(tuple(_facts(sweep)))
    yield from (GAP, title("In short"), Items(tuple(_in_words(sweep, lines))))
    for line in lines:
        yield from (GAP, title(line.title), _table(sweep, line))
        if any(point.degenerate for point in line.points):
            yield Paragraph("* nothing random: no draw changes an output", "dim")
        if drawn := tuple(_drawn(sweep, line, columns, between)):
            yield from (GAP, Drawing(drawn))
    assumed: dict[str, None] = {}
    for line in lines:
        yield from _elbo_parts(sweep, line)
        if any(point.elbo is not None for point in line.points):
            assumed[_assumed(sweep, line)] = None
    yield from (Paragraph(text, "dim") for text in assumed if text)
    yield from _decay_parts(sweep, lines)
    yield GAP
    yield from (Paragraph(text, "dim") for text in _legend(sweep, lines))
    if sweep.cautions:
        yield from (GAP, title("Warnings", "bold yellow"))
        yield Items(tuple(f"{caution.text} [{caution.code}]" for caution in sweep.cautions))
    if sweep.notes:
        yield from (GAP, title("Notes"), Items(sweep.notes))
    if sweep.path is not None:
        yield from (GAP, PathLine(sweep.path))


def _facts(sweep: Sweep) -> Iterator[tuple[str, str]]:
    for model in sweep.models:
        facts = [f"{model.parameters:,} parameters", count(model.batchnorm_layers, "BatchNorm layer")]
        if model.layers and len(model.layers) != model.batchnorm_layers:
            facts.append(f"{len(model.layers)} of them sampled")
        if model.train_batch_size is not None:
            facts.append(f"trained in batches of {model.train_batch_size:,}")
        yield "network", f"{model.name}: {', '.join(facts)}"
    for text in dict.fromkeys(filter(None, map(_reference, sweep.models))):
        yield "reference", text
    for role in ("test", "validation", "ood"):
        for one in sweep.sets:
            if one.role == role:
                yield role, f"{one.n:,} points" if one.name == role else f"{one.name}, {one.n:,} points"
    yield "draws", f"{sweep.draw_sets} sets of {sweep.samples} at each size, seed {sweep.seed}"
    yield "took", f"{sweep.seconds['total']:.1f} s"


def _reference(model: SweptModel) -> str:
    data = model.record.get("data")
    train = data.get("train") if isinstance(data, Mapping) else None
    named = of_reference(train) if isinstance(train, str) else ""
    if model.elbo is None:
        return named
    held, trained = model.elbo.reference_points, model.elbo.train_size
    text = f"{held:,} points" + (f" of {named}" if named else "")
    return text if held == trained else f"{text}, for a training set of {trained:,}"


# ── in words ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _in_words(sweep: Sweep, lines: Sequence[_Line]) -> Iterator[str]:
    for line in lines:
        of = "" if len(lines) == 1 else f"{line.title}: " if line.model is None else f"{line.model.name}: "
        if len(line.random) > 1:
            text = _size_in_words(sweep, line)
            yield of + text if of else _capital(text)
            yield from (of + _ranking_in_words(sweep, line, name) for name in _names(sweep, "ood"))
        if fixed := [point for point in line.points if point.degenerate]:
            sizes = _listed([f"b = {point.batch_size:,}" for point in fixed])
            whole = ", the whole reference," if all(_is_whole(sweep, point) for point in fixed) else ""
            text = f"with {sizes}{whole} nothing is random, as no draw changes an output: {_named(sweep)} is exactly 0."
            yield of + text if of else _capital(text)
    if any(line.model is None for line in lines):
        yield (
            "The sizes that have a network each compare networks with different weights: what differs may come from "
            "training, and would differ again if they were trained again, by more than the errors tell."
        )
    yield from _recommended_in_words(sweep)


def _is_whole(sweep: Sweep, point: SweepPoint) -> bool:
    """Whether it is known that a mini-batch is the whole reference."""
    terms = sweep.models[point.model].elbo
    return terms is not None and terms.reference_points == point.batch_size


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _size_in_words(sweep: Sweep, line: _Line) -> str:
    [test, *_] = _names(sweep, "test")
    first, last = line.random[0], line.random[-1]
    before, after = (_figure(point, _spread(sweep), test) for point in (first, last))
    what = f"{_named(sweep)} on the test set"
    if before is None or after is None:
        return f"{what} is not known at every size."
    unit = " nats" if sweep.task == "classification" else ""
    told = f"{_brief(before.value)}{unit} at b = {first.batch_size:,}, {_brief(after.value)} at {last.batch_size:,}"
    decay = None if line.model is None else line.model.decay.get(test)
    if decay is None:
        goes = "rises" if after.value > before.value else "falls" if after.value < before.value else "stays"
        return f"{what} {goes} from size to size: {told}."
    slope = decay.slope
    interval = "" if slope.low is None else f" [{number(slope.low, 2)}, {number(slope.high, 2)}]"
    return f"{what} {_law(slope)}: {told} (log-log slope {number(slope.value, 2)}{interval})."


def _law(slope: Figure) -> str:
    low, high = _interval(slope)
    if low <= -1 <= high < 0 and high - low < _WIDE:
        return "falls as 1/b"
    if low <= -1 <= high:
        return "may fall as 1/b, but how fast is hardly known"
    if high < -1:
        return "falls faster than 1/b"
    if high < 0:
        return "falls, but more slowly than 1/b"
    return "rises" if low > 0 else "does not fall for certain"


def _interval(figure: Figure) -> tuple[float, float]:
    """95 %, that of the figure or of its errors; NaN where it has neither."""
    if figure.low is not None and figure.high is not None:
        return figure.low, figure.high
    error = _error(figure)
    reach = math.nan if error is None else 1.96 * error
    return figure.value - reach, figure.value + reach


def _error(figure: Figure) -> float | None:
    """Over points and draws where both are known, else over the one that is."""
    known = [error for error in (figure.se, figure.mc_se) if error is not None]
    return math.hypot(*known) if known else None


def _ranking_in_words(sweep: Sweep, line: _Line, name: str) -> str:
    """Whether the order of points survives where the size of the score does not."""
    found = [(point.batch_size, one) for point in line.random if (one := _auroc(sweep, point, name)) is not None]
    if len(found) < 2:
        return f"too few sizes tell how well {name} is told apart."
    (size, first), (largest, last) = found[0], found[-1]
    by = f"AUROC by {_score(sweep)} {number(first.figure.value, 3)} → {number(last.figure.value, 3)}"
    blind = _from_where_on(
        [(b, not _interval(one.figure)[0] > 0.5) for b, one in found]  # NaN: nothing is known to be told apart
    )
    if blind == size:
        familiar = all(_interval(one.figure)[1] < 0.5 for _, one in found)
        goes = "is taken for more familiar than" if familiar else "is told apart at no size from"
        return f"{name} {goes} the test set ({by} from b = {size:,} to {largest:,})."
    change = _change(first, last)
    error = _error(change)
    told = f"{by} from b = {size:,} to {largest:,}"
    if error is not None and math.isfinite(error):
        told += f" ({signed(change.value, 3)} ± {number(error, 3)})"
    if error is None or not math.isfinite(error):
        goes = "is told apart, with an error that cannot be told"
    elif abs(change.value) <= 2 * error:
        goes = "is told apart just as well as b grows"
    else:
        goes = "is told apart less well as b grows" if change.value < 0 else "is told apart better as b grows"
    text = f"{name} {goes}: {told}"
    if blind is not None:
        text += f"; from b = {blind:,} on that is a guess"
    alike = _from_where_on([(point.batch_size, _alike(sweep, point, name)) for point in line.random])
    spread = _named(sweep).removeprefix("the ")
    if alike == size:
        text += f"; its mean {spread} is at no size above that of the test set by more than two errors"
    elif alike is not None:
        text += f"; from b = {alike:,} on its mean {spread} is not above that of the test set by more than two errors"
    return f"{text}."


def _score(sweep: Sweep) -> str:
    return "MI" if sweep.score == "mutual_information" else SCORES[sweep.score].title.partition(" (")[0].lower()


def _from_where_on(claims: Sequence[tuple[int, bool]]) -> int | None:
    """The size from which on the claim holds, up to the largest; None where it does not hold there."""
    where = None
    for size, holds in reversed(claims):
        if not holds:
            break
        where = size
    return where


def _change(first: Repeated, last: Repeated) -> Figure:
    """What the figure gains from one size to another.

    Draw sets are paired. Errors over points are taken for independent: points are the same, so that this is more than
    enough wherever a point that ranks high at one size does so at the other.
    """
    points = [one.figure.se for one in (first, last) if one.figure.se is not None]
    pairs = len(first.of_sets) if len(first.of_sets) == len(last.of_sets) else 0
    draws = None
    if pairs > 1:
        with np.errstate(invalid="ignore", over="ignore"):
            draws = float(np.std(last.of_sets - first.of_sets, ddof=1)) / math.sqrt(pairs)
    value = last.figure.value - first.figure.value
    return Figure(value, se=math.hypot(*points) if points else None, mc_se=draws)


def _alike(sweep: Sweep, point: SweepPoint, name: str) -> bool:
    """Whether the mean spread of an OOD set is above that of the test set by no more than two errors."""
    [test, *_] = _names(sweep, "test")
    held = point.figures.get(_spread(sweep), {})
    if test not in held or name not in held:
        return False
    ours, theirs = held[name], held[test]
    change = _change(theirs, ours)
    errors = [error for error in (ours.figure.se, theirs.figure.se, change.mc_se) if error is not None]
    return bool(errors) and not change.value > 2 * math.hypot(*errors)


def _recommended_in_words(sweep: Sweep) -> Iterator[str]:
    chosen = sweep.recommended
    if chosen is None:
        yield "No size is recommended: " + (
            "nothing is random at any of them."
            if all(point.degenerate for point in sweep.points)
            else "there are not two that could be compared."
        )
        return
    several = chosen.protocol == "single" and len(sweep.models) > 1
    whose = f" for {sweep.models[chosen.model].name}" if several else ""
    text = f"Recommended{whose}: b = {chosen.batch_size:,}, where {_criterion(sweep, chosen)} is highest"
    if chosen.protocol == "matched":
        text += f" (that is the network {sweep.models[chosen.model].name})"
    within = sorted({chosen.batch_size, *chosen.within})
    text += "; within one standard error of it " + (
        f"lie {_listed([f'{size:,}' for size in within])}." if len(within) > 1 else "lies no other size."
    )
    yield f"{text}{_flatness(chosen)}"
    if chosen.decided_by == "prior":
        yield (
            "The likelihood changes over the sizes by less than its error: it is the prior that decides, by the KL, "
            "and another prior may decide otherwise."
        )
    if chosen.at_end:
        which, other = (
            ("largest", "at or beyond it: sweep larger ones")
            if chosen.at_end == "largest"
            else ("smallest", "at or below it: sweep smaller ones")
        )
        yield f"It is the {which} of the sizes that were compared, and the optimum lies {other}."
    if (predicted := chosen.predicted_batch_size) is not None:
        sizes = [point.batch_size for point in sweep.points]
        beyond = not min(sizes) <= predicted.value <= max(sizes)
        yield (
            f"The asymptotic rule b* = 2Nc/P + mean(1/ρ) puts the optimum of the ELBO at {_with_error(predicted)}"
            f"{', outside of the sizes that were swept' if beyond else ''}."
        )


def _criterion(sweep: Sweep, chosen: Recommended) -> str:
    if chosen.criterion == "elbo":
        return "the ELBO"
    if chosen.criterion == "pll":
        return f"PLL on the {chosen.of} set"
    ood = _names(sweep, "ood")
    mean = "the mean " if len(ood) > 1 else ""
    return f"{mean}AUROC by {_score(sweep)} of {_listed(ood)} against the {chosen.of} set"


def _listed(words: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(words[:-1]), *words[-1:])))


def _flatness(chosen: Recommended) -> str:
    """How far the neighbours lie behind, and the worst of all."""
    sizes = sorted({*chosen.behind, chosen.batch_size})
    at = sizes.index(chosen.batch_size)
    told = sizes[max(0, at - 1) : at] + sizes[at + 1 : at + 2]
    others = [size for size in sizes if size != chosen.batch_size and math.isfinite(chosen.behind[size].value)]
    if others:
        worst = min(others, key=lambda size: chosen.behind[size].value)
        told += [worst] if worst not in told else []
    unit = {"elbo": " (nats of the whole training set)", "pll": " (nats a point)", "auroc": ""}[chosen.criterion]
    words = [f"b = {size:,} by {_with_error(_negated(chosen.behind[size]))}" for size in told]
    return f" Behind it{unit}: {', '.join(words)}." if words else ""


def _negated(figure: Figure) -> Figure:
    return Figure(0.0 if figure.value == 0 else -figure.value, figure.se, figure.mc_se)


def _with_error(figure: Figure) -> str:
    """Value and error with two digits of the error."""
    error = _error(figure)
    if error is None or not (math.isfinite(error) and error > 0):
        return _brief(figure.value)
    digits = min(9, max(0, 1 - _power(error)))
    return f"{_grouped(figure.value, digits)} ± {_grouped(error, digits)}"


def _grouped(value: float, digits: int) -> str:
    if not 1000 <= abs(value) < 1e9:
        return number(value, digits)
    return f"{value:,.{digits}f}".replace("-", "−")


def _brief(value: float) -> str:
    """Three digits."""
    if not math.isfinite(value) or value == 0:
        return number(value, 0)
    return _grouped(value, min(9, max(0, 2 - _power(abs(value)))))


# ── tables ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def _table(sweep: Sweep, line: _Line) -> Table:
    """A row a size."""
    columns: dict[str, list[Cell]] = {}
    if line.model is None:
        columns["network"] = [Cell(short(sweep.models[point.model].name, 20)) for point in line.points]
        if any(map(_other_size, line.points)):
            trained = [point.train_batch_size for point in line.points]
            columns["M"] = [Cell("–" if size is None else f"{size:,}") for size in trained]
    spread, [test, *_], ood = _spread(sweep), _names(sweep, "test"), _names(sweep, "ood")
    wanted = [(metric, test, NAMES[metric][1]) for metric in _OF_TEST.get(sweep.task, ())]
    of_sets = [(spread, name, f"{_column_name(sweep)} {short(name, 18)}".strip()) for name in (test, *ood)]
    wanted += of_sets
    wanted += [(metric, test, NAMES[metric][1]) for metric in _AFTER.get(sweep.task, ())]
    for metric, name, header in wanted:
        figures = [_figure(point, metric, name) for point in line.points]
        if any(figure is not None for figure in figures):
            every = (_figure(point, spread, of) for point in line.points for _, of, _ in of_sets)
            digits = _digits(metric, every if metric == spread else figures)
            columns[f"{ARROWS[METRICS[metric].direction].strip()} {header}".strip()] = [
                Cell("0") if point.degenerate and metric == spread else with_error(figure, digits)
                for point, figure in zip(line.points, figures, strict=True)
            ]
    for name in ood:
        found = [_auroc(sweep, point, name) for point in line.points]
        if any(found):
            columns[f"↑ AUROC {short(name, 18)}"] = [
                with_error(None if one is None else one.figure, 3) for one in found
            ]
    rows = [
        (f"{point.batch_size:,}{'*' if point.degenerate else ''}", tuple(column[row] for column in columns.values()))
        for row, point in enumerate(line.points)
    ]
    return _by_size(tuple(columns), rows)


def _other_size(point: SweepPoint) -> bool:
    return point.train_batch_size != point.batch_size


def _by_size(header: tuple[str, ...], rows: Sequence[Row]) -> Table:
    """Sizes to the right, below a "b"."""
    room = max(len(label) for label, _ in rows)
    return Table(header, tuple((f"{label:>{room}}", cells) for label, cells in rows), stacks=True)


def _column_name(sweep: Sweep) -> str:
    return "MI" if sweep.task == "classification" else "variance"


def _digits(metric: str, figures: Iterable[Figure | None]) -> int:
    """Decimals of a column: four of what has a fixed scale, else so many that the smallest is seen and its error is."""
    if METRICS[metric].unit not in ("nats", "target unit", "target unit²") or metric == "pll":
        return 4
    known = [one for one in figures if one is not None and math.isfinite(one.value) and one.value != 0]
    if not known:
        return 4
    values = [abs(one.value) for one in known]
    errors = [error for one in known if 0 < (error := total(one) or 0.0) < math.inf]
    finest = max(1 - _power(min(values)), -_power(min(errors)) if errors else 0)
    return min(7, max(0, decimals(values) - 1, finest))


def _power(value: float) -> int:
    """That of ten in the first digit."""
    return math.floor(math.log10(value))


def _behind(sweep: Sweep, line: _Line) -> dict[int, Figure]:
    """How far the ELBO of each size lies from the best, by place in the line; empty where none is known."""
    found = {
        place: point.elbo
        for place, point in enumerate(line.points)
        if point.elbo is not None and math.isfinite(point.elbo.elbo.value)
    }
    if not found:
        return {}
    chosen = sweep.recommended
    if chosen is not None and _by_elbo_of(chosen, line):
        own = {place: chosen.behind.get(line.points[place].batch_size) for place in found}
        if None not in own.values():
            return {place: figure for place, figure in own.items() if figure is not None}
    best = max(found, key=lambda place: found[place].elbo.value)
    behind = {}
    for place, one in found.items():
        terms = sweep.models[line.points[place].model].elbo
        ours, theirs = one.log_likelihood, found[best].log_likelihood
        error = None
        if terms is not None and len(ours) == len(theirs) > 1:
            with np.errstate(invalid="ignore", over="ignore"):
                error = terms.train_size * float(np.std(ours - theirs, ddof=1)) / math.sqrt(len(ours))
        behind[place] = Figure(one.elbo.value - found[best].elbo.value, mc_se=error)
    return behind


def _by_elbo_of(chosen: Recommended, line: _Line) -> bool:
    """Whether a size was recommended by the ELBO of this line, so that its differences have their errors in full."""
    first = line.points[0]
    of_it = chosen.protocol == first.protocol and (line.model is None or chosen.model == first.model)
    return chosen.criterion == "elbo" and of_it


def _elbo_parts(sweep: Sweep, line: _Line) -> Iterator[Part]:
    bounded = [(place, point, point.elbo) for place, point in enumerate(line.points) if point.elbo is not None]
    if not bounded:
        return
    behind = _behind(sweep, line)
    figures = [one for _, _, elbo in bounded for one in (elbo.elbo, elbo.expected_log_likelihood)]
    digits = min(2, max(0, decimals([abs(one.value) for one in figures] + [abs(e.kl) for _, _, e in bounded]) - 1))
    rows: list[Row] = []
    for place, point, elbo in bounded:
        away = behind.get(place)
        cells = (
            _cell(elbo.expected_log_likelihood, digits),
            Cell(number(elbo.kl, digits)),
            _cell(elbo.elbo, digits),
            Cell("–") if away is None else Cell("best") if away.value == 0 else _cell(away, digits),
        )
        rows.append((f"{point.batch_size:,}", cells))
    yield from (GAP, title(f"ELBO, nats. {line.title}"))
    yield _by_size(("exp. log-lik.", "KL", "↑ ELBO", "from best"), rows)
    if len(behind) > 1 and (sweep.recommended is None or not _by_elbo_of(sweep.recommended, line)):
        yield Paragraph("From best: ± over draws alone, which sizes share.", "dim")
    if line.model is None:
        yield Paragraph(
            "Of networks with different weights: their likelihoods are different terms, and the prior of the weights "
            "is left out."
        )
    elif line.model.elbo is not None:
        yield Paragraph(_asymptotics(line.model.elbo))


def _cell(figure: Figure, digits: int) -> Cell:
    error = _error(figure)
    return Cell(number(figure.value, digits), "" if error is None else f"±{number(error, digits)}")


def _asymptotics(terms: ElboTerms) -> str:
    if terms.c is None or terms.predicted is None:
        return f"No asymptotic optimum b*{': ' + terms.why_none if terms.why_none else ''}."
    return (
        f"A mini-batch costs c = {_with_error(terms.c)} nats × b an example; the asymptotic optimum is b* = 2Nc/P + "
        f"mean(1/ρ) = {_with_error(terms.predicted)}, with P = {2 * terms.units:,} statistics."
    )


_PRIORS = {
    "unit": "unit information (q at one value, around the population's own statistics)",
    "gaussian": "Gaussian",
    "weight_decay": "that of weight decay, flat in means and N(0, 1/(2Nτλ)) in deviations",
    "flat": "flat",
    "gamma": "unit information with a Gamma distribution of S², at two values",
}
_IMPROPER = ("weight_decay", "flat")


def _assumed(sweep: Sweep, line: _Line) -> str:
    """What the ELBO of the networks of a line rests on."""
    models = [sweep.models[number] for number in dict.fromkeys(point.model for point in line.points)]
    terms = [model.elbo for model in models if model.elbo is not None]
    if not terms:
        return ""
    first = terms[0]
    parameters = ", ".join(f"{key} = {_brief(value)}" for key, value in first.prior_parameters.items())
    prior = _PRIORS.get(first.prior, first.prior) + (f" ({parameters})" if parameters else "")
    improper = "; it is improper, so that only differences between sizes mean anything" * (first.prior in _IMPROPER)
    weight = "" if first.kl_weight == 1 else f"; the KL was given the weight {first.kl_weight:g}"
    noise = "" if first.tau is None else f", observation precision τ = {_brief(first.tau)}"
    return (
        f"Assumed: q factorises over the means and deviations of {first.units:,} channels, each Gaussian. Channels are "
        f"taken for independent, which counts the KL too high where they are not{weight}. {_counted(terms)} The prior "
        f"is {prior}{improper}. Weights are as they are{noise}. The likelihood is that of {first.points:,} training "
        f"points, times N = {first.train_size:,}. The KL leaves out that a finite reference of "
        f"{first.reference_points:,} is drawn from without replacement."
    )


def _counted(terms: Sequence[ElboTerms]) -> str:
    if terms[0].counts == "nominal":
        return "Each position of a channel counts as an independent value."
    shares = [
        value / layer.nominal
        for one in terms
        for layer in one.layers
        for value in (layer.mean, layer.sd)
        if layer.nominal > 0 and math.isfinite(value)
    ]
    text = "How many independent values a channel has was measured"
    if not shares:
        return f"{text}."
    return f"{text}: {_brief(min(shares))} to {_brief(max(shares))} of its positions."


def _decay_parts(sweep: Sweep, lines: Sequence[_Line]) -> Iterator[Part]:
    told = [line.model for line in lines if line.model is not None and line.model.decay]
    if not told:
        return
    rows: list[Row] = []
    for model in told:
        if len(told) > 1:
            rows.append((model.name, ()))
        for name, decay in model.decay.items():
            low, high = _interval(decay.slope)
            sizes = f"{min(decay.sizes):,}–{max(decay.sizes):,}" if decay.sizes else "–"
            interval = "–" if math.isnan(low) else f"{number(low, 2)} to {number(high, 2)}"
            cells = (Cell(number(decay.slope.value, 3)), Cell(interval), Cell(number(decay.residual, 3)), Cell(sizes))
            rows.append((short(name, 30), cells))
    yield from (GAP, title(f"Log-log slope of mean {_named(sweep).removeprefix('the ')} against b; −1 is the law 1/b"))
    yield Table(("slope", "95 % interval", "off by at most", "sizes"), tuple(rows))


def _legend(sweep: Sweep, lines: Sequence[_Line]) -> Iterator[str]:
    yield (
        "± standard error over points and draws together; over draws it is that of the mean over "
        f"{sweep.draw_sets} draw sets. ↑ more is better, ↓ less is better, else neither. b: mini-batch size"
        + (", M: that of training." if any(map(_other_size, sweep.matched)) else ".")
    )
    if sweep.task == "classification":
        yield (
            "PLL: log probability given to the true label, in nats, as is MI, mutual information: how far the passes "
            "disagree. ECE: gap between stated confidence and accuracy."
        )
    else:
        yield "Variance: how far the passes disagree, in squared target units; CRPS and RMSE are in target units."
    if _names(sweep, "ood"):
        yield (
            f"AUROC: chance that a point of the OOD set has more {_score(sweep)} than one of the test set; 0.5 is a "
            "guess."
        )
    if any(line.model is not None and line.model.decay for line in lines):
        yield (
            "Slopes: what a finite reference takes off is put back; off by at most: the largest distance from the "
            "line, in ln units."
        )


# ── small curves ─────────────────────────────────────────────────────────────────────────────────────────────────────


def _drawn(sweep: Sweep, line: _Line, columns: int, between: str) -> Iterator[str]:
    """Mean spread against the size, both logarithmic, in rows of characters; nothing for fewer than three sizes."""
    curves = {
        name: one
        for name in _names(sweep, "test", "ood")[: len(_MARKS)]
        if len(one := _positive(sweep, line, name)) > 2
    }
    if not curves:
        return
    sizes = sorted({size for one in curves.values() for size in one})
    ends = [math.log(value) for one in curves.values() for value in one.values()]
    low, high = min(ends), max(ends)
    if not (high > low and len(sizes) > 2):
        return
    labels = {
        0: _brief(math.exp(high)), _ROWS // 2: _brief(math.exp((low + high) / 2)), _ROWS - 1: _brief(math.exp(low)),
    }  # fmt: skip
    margin = 1 + max(map(len, labels.values()))
    room = min(64, columns - margin - 4)
    reach = math.log(sizes[-1] / sizes[0])

    def column(size: float) -> float:
        return math.log(size / sizes[0]) / reach * (room - 1)

    canvas = np.full((_ROWS, room), " ", dtype="<U1")
    places = {
        mark: (
            np.rint([(high - math.log(value)) / (high - low) * (_ROWS - 1) for value in one.values()]).astype(int),
            np.rint([column(size) for size in one]).astype(int),
        )
        for mark, one in zip(_MARKS, curves.values(), strict=False)
    }
    for rows, at in places.values():
        every = np.arange(at[0], at[-1] + 1)
        canvas[np.rint(np.interp(every, at, rows)).astype(int), every] = between
    hidden = False
    for mark, where in reversed(places.items()):
        hidden = hidden or bool(np.isin(canvas[where], list(_MARKS)).any())
        canvas[where] = mark
    for row, text in enumerate(canvas):
        yield f"{labels.get(row, ''):>{margin}} |{''.join(text)}".rstrip()
    ticks = [" "] * (room + 6)
    free = 0
    for size in sizes:
        text = f"{size:,}"
        start = max(0, round(column(size)) - (len(text) - 1) // 2)
        if start >= free and start + len(text) <= len(ticks):
            ticks[start : start + len(text)] = text
            free = start + len(text) + 1
    yield f"{'b':>{margin}}  {''.join(ticks)}"[:columns].rstrip()
    keys = ", ".join(f"{mark} {short(name, 18)}" for mark, name in zip(_MARKS, curves, strict=False))
    first = "; the first of them where they coincide" if hidden else ""
    yield f"Mean {_named(sweep).removeprefix('the ')}, both axes logarithmic: {keys}{first}."


def _positive(sweep: Sweep, line: _Line, name: str) -> dict[int, float]:
    """The mean spread of a set by size, where it is one and has a logarithm."""
    found = {point.batch_size: _figure(point, _spread(sweep), name) for point in line.random}
    return {size: one.value for size, one in found.items() if one is not None and 0 < one.value < math.inf}


# ── the picture ──────────────────────────────────────────────────────────────────────────────────────────────────────


def save_figures(sweep: Sweep, folder: Path, kind: drawing.Format = "svg") -> tuple[Path, ...]:
    """Draw `folder`/sweep.svg or sweep.png, and make the folder where it is missing; the path of the picture.

    Mean mutual information (variance, of a regression) against the size, below it the AUROC and the ELBO, where there
    are any; the two protocols beside each other. Raises RequestError without matplotlib, or where `folder` is a file,
    ResultError where it cannot be written. Source: the layout is that of Teye, Azizpour & Smith 2018, Fig. 1.
    """
    drawing.check()
    drawing.make_folder(folder)
    path = folder / f"sweep.{kind}"
    lines = _lines(sweep)
    single, matched = ([line for line in lines if (line.model is None) is own] for own in (False, True))
    columns = [column for column in (single, matched) if column]
    ood = [name for name in _names(sweep, "ood") if any(_auroc(sweep, point, name) for point in sweep.points)]
    bounded = any(len(_behind(sweep, line)) > 1 for line in lines)
    rows = [_draw_spread, *([_draw_auroc] if ood else []), *([_draw_elbo] if bounded else [])]
    networks = sweep.models[0].name if len(sweep.models) == 1 else f"{len(sweep.models)} networks"
    about = f"{networks}, {sweep.draw_sets} × {sweep.samples} draws a size; bars: 1 standard error"
    with drawing.picture(
        path,
        title="Uncertainty over the mini-batch size",
        about=about,
        columns=len(columns),
        heights=(1.0, 0.8, 0.8)[: len(rows)],
        size=(5.6, 3.4),
    ) as panels:
        for row, draw_row in enumerate(rows):
            ours = panels[row * len(columns) : (row + 1) * len(columns)]
            for axes, column in zip(ours, columns, strict=True):
                _size_axis(axes, sweep, column)
                draw_row(axes, sweep, column)
                if row == len(rows) - 1:
                    axes.set_xlabel("mini-batch size b" if column[0].model else "mini-batch size b, that of training")
            if draw_row is not _draw_elbo:  # two scales of what is compared would mislead
                low, high = min(axes.get_ylim()[0] for axes in ours), max(axes.get_ylim()[1] for axes in ours)
                for axes in ours:
                    axes.set_ylim(low, high)
        for axes, column in zip(panels, columns, strict=False):
            axes.set_title(column[0].title if len(column) == 1 else "One network at several sizes")
    return (path,)


def _size_axis(axes: Axes, sweep: Sweep, column: Sequence[_Line]) -> None:
    sizes = sorted({point.batch_size for point in sweep.points})
    axes.set_xscale("log", base=2)
    axes.set_xticks(sizes[:: math.ceil(len(sizes) / 9)])
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.minorticks_off()
    axes.set_xlim(sizes[0] / 1.25, sizes[-1] * 1.25)
    if sweep.recommended is not None and _chosen_in(sweep.recommended, column[0]):
        size = sweep.recommended.batch_size
        label = f"recommended: b = {size:,}"
        axes.axvline(size, color=drawing.PALE, linewidth=5, alpha=0.6, zorder=0, label=label)


def _chosen_in(chosen: Recommended, line: _Line) -> bool:
    """Whether a size was recommended of points of this protocol."""
    return (line.model is None) == (chosen.protocol == "matched")


def _logarithmic(axes: Axes, low: float, high: float) -> None:
    """A y axis from `low` to `high` by factors, its numbers written out."""
    from matplotlib.ticker import LogLocator, NullFormatter

    axes.set_yscale("log")
    axes.set_ylim(low, high)
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0,) if high > 1000 * low else (1.0, 2.0, 5.0), numticks=20))
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:.6g}")
    axes.yaxis.set_minor_formatter(NullFormatter())


def _looks(sweep: Sweep, column: Sequence[_Line]) -> dict[tuple[int, str], drawing.Line]:
    """How a line of a column and a set are drawn: its colour tells the set, dashes and marker too if they can."""
    of_sets = drawing.lines_of(["", *_names(sweep, "test", "ood")])
    of_lines = list(drawing.lines_of(["", *map(str, range(len(column)))]).values())[1:]
    return {
        (number, name): look if len(column) == 1 else drawing.Line(look.colour, of_line.dashes, of_line.marker)
        for number, of_line in enumerate(of_lines)
        for name, look in of_sets.items()
    }


def _label(column: Sequence[_Line], line: _Line, what: str) -> str:
    if len(column) == 1 or line.model is None:
        return short(what, 30)
    return short(f"{line.model.name}, {what}" if what else line.model.name, 40)


def _draw_bars(
    axes: Axes, points: Sequence[SweepPoint], figures: Sequence[Figure | None], look: drawing.Line, label: str
) -> None:
    known = [
        (point.batch_size, figure.value, _error(figure) or 0.0)
        for point, figure in zip(points, figures, strict=True)
        if figure is not None and math.isfinite(figure.value)
    ]
    if not known:
        return
    sizes, values, errors = (np.array(column) for column in zip(*known, strict=True))
    errors = np.where(np.isfinite(errors), errors, 0.0)
    axes.errorbar(sizes, values, yerr=errors, **look.plotted, capsize=2.5, elinewidth=1, label=label)


def _draw_spread(axes: Axes, sweep: Sweep, column: Sequence[_Line]) -> None:
    metric, looks = _spread(sweep), _looks(sweep, column)
    names = _names(sweep, "test", "ood")
    every = [
        figure.value
        for line in _lines(sweep)
        for point in line.random
        for name in names
        if (figure := _figure(point, metric, name)) is not None and math.isfinite(figure.value)
    ]
    logarithmic = bool(every) and min(every) > 0
    for place, line in enumerate(column):
        for name in names:
            figures = [_figure(point, metric, name) for point in line.random]
            _draw_bars(axes, line.random, figures, looks[place, name], _label(column, line, name))
    if logarithmic:
        _logarithmic(axes, min(every) / 1.8, max(every) * 1.8)
    whole = sorted({point.batch_size for line in column for point in line.points if point.degenerate})
    if whole:
        at_bottom = axes.get_xaxis_transform()
        axes.plot(
            whole, [0.0] * len(whole), linestyle="", marker="o", markerfacecolor="white", color=drawing.GREY,
            transform=at_bottom, clip_on=False, zorder=5, label="exactly 0: nothing is random",
        )  # fmt: skip
    unit = METRICS[metric].unit
    axes.set_ylabel(f"mean {NAMES[metric][0]} ({unit})")
    handles, labels = axes.get_legend_handles_labels()
    if handles:
        bare = len(handles) - len(axes.containers)  # matplotlib has what has no bars first
        order = [*range(bare, len(handles)), *range(bare)]
        axes.legend([handles[place] for place in order], [labels[place] for place in order], loc="best")


def _draw_auroc(axes: Axes, sweep: Sweep, column: Sequence[_Line]) -> None:
    looks = _looks(sweep, column)
    axes.axhline(0.5, color=drawing.GREY, linewidth=1, linestyle=":", zorder=1)
    for place, line in enumerate(column):
        for name in _names(sweep, "ood"):
            found = [_auroc(sweep, point, name) for point in line.random]
            figures = [None if one is None else one.figure for one in found]
            _draw_bars(axes, line.random, figures, looks[place, name], _label(column, line, name))
    axes.set_ylabel(f"AUROC by {_score(sweep)}, against test")


def _draw_elbo(axes: Axes, sweep: Sweep, column: Sequence[_Line]) -> None:
    """How far each size lies behind the best of its line, the size that was recommended, and b*."""
    lowest, highest = axes.get_xlim()
    looks = list(drawing.lines_of(["", *map(str, range(len(column)))]).values())[1:]
    for line, look in zip(column, looks, strict=True):
        look = drawing.Line(drawing.INK, "-", "o") if len(column) == 1 else look
        behind = _behind(sweep, line)
        points = [line.points[place] for place in behind]
        _draw_bars(axes, points, list(behind.values()), look, _label(column, line, "") or "_")
        predicted = None if line.model is None or line.model.elbo is None else line.model.elbo.predicted
        if predicted is not None and math.isfinite(predicted.value):
            at = f"b* = {_brief(predicted.value)}"
            if lowest < predicted.value < highest:
                colour = drawing.GREY if len(column) == 1 else look.colour
                axes.axvline(predicted.value, color=colour, linestyle="--", linewidth=1.2, label=at)
            else:
                axes.plot([], [], " ", label=f"{at}, outside")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.6g}".replace("-", "−"))
    axes.set_ylabel("ELBO − its best (nats)")
    if axes.get_legend_handles_labels()[0]:
        axes.legend(loc="best")
