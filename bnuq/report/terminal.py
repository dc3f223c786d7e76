"""The report on a terminal: what was evaluated, what it means in words, the tables, and what to be careful about."""

from __future__ import annotations

import io
import math
import os
import shutil
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

import numpy as np
from jaxtyping import Int64
from rich.console import Console
from rich.text import Text

from bnuq.metrics import METRICS, SCORES, standard_error
from bnuq.records import Direction, Figure
from bnuq.report.plain import printable
from bnuq.results.result import MethodResult, Result
from bnuq.run import DETERMINISTIC

_ARROWS: dict[Direction, str] = {"higher": "↑", "lower": "↓", "none": " "}
_NAMES = {  # in the order of the table: as shown, and where there is little room
    "accuracy": ("accuracy", "accuracy"),
    "pll": ("PLL", "PLL"),
    "brier": ("Brier score", "Brier score"),
    "ece": ("ECE", "ECE"),
    "mutual_information": ("mutual information", "mutual info."),
    "predictive_entropy": ("predictive entropy", "pred. entropy"),
    "expected_entropy": ("expected entropy", "exp. entropy"),
    "variation_ratio": ("variation ratio", "var. ratio"),
    "max_probability": ("max. probability", "max. prob."),
    "aurc": ("AURC", "AURC"),
    "least_confidence": ("least confidence", "least conf."),
}
_OOD_COLUMNS = {
    "aupr_out": "AUPR-out",
    "aupr_in": "AUPR-in",
    "fpr95": "FPR95",
    "fpr95_id_positive": "FPR95*",
}
_IN_ASCII = {
    "±": "+/-", "−": "-", "·": "*", "↑": "^", "↓": "v", "–": "-", "→": "->", "×": "x", "≥": ">=", "…": "..."
} | dict(zip("▁▂▃▄▅▆▇█", "_.,-=+*#", strict=True))  # fmt: skip
_ASCII = str.maketrans(_IN_ASCII)
_ROOMY = 60  # columns from which names are written out


def print_report(result: Result, stream: TextIO, *, width: int | None = None) -> None:
    """Draw the report on `stream`: in colour on a terminal, plain in a pipe, in ASCII where the encoding needs it."""
    terminal = stream.isatty()
    columns = width or (shutil.get_terminal_size((80, 24)).columns if terminal else 80)
    columns = max(40, min(columns, 100))
    styled = terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") not in ("dumb", "unknown")
    buffer = io.StringIO()
    console = Console(
        file=buffer,
        width=columns,
        force_terminal=styled,
        color_system="auto" if styled else None,
        highlight=False,
        emoji=False,
        legacy_windows=False,
    )
    for part in _report(result, roomy=columns >= _ROOMY):
        for line in part.lines(columns, _cleaner(getattr(stream, "encoding", None) or "utf-8")):
            line.rstrip()
            console.print(line, soft_wrap=True)
    stream.write(buffer.getvalue())


def _cleaner(encoding: str) -> Callable[[str], str]:
    """What makes a text fit for the stream: without control characters, and in ASCII where it cannot take ours."""

    def cleaned(text: str) -> str:
        text = printable(text, lines=False)
        return text if plain else text.translate(_ASCII).encode(encoding, "replace").decode(encoding)

    try:
        "".join(_IN_ASCII).encode(encoding)
        plain = encoding.lower().replace("-", "").startswith("utf")
    except (UnicodeEncodeError, LookupError):
        plain = False
    return cleaned


# ── parts, each of which knows how to fill a width ───────────────────────────────────────────────────────────────────

Clean = Callable[[str], str]


@dataclass(frozen=True)
class _Paragraph:
    """Wrapped text; an empty one is an empty line."""

    text: str = ""
    style: str = ""

    def lines(self, width: int, clean: Clean) -> Iterator[Text]:
        for line in _wrapped(clean(self.text), width) or [""]:
            yield Text(line, style=self.style)


@dataclass(frozen=True)
class _Items:
    """A list, each entry behind a mark."""

    texts: tuple[str, ...]

    def lines(self, width: int, clean: Clean) -> Iterator[Text]:
        for text in self.texts:
            for row, line in enumerate(_wrapped(clean(text), width - 3)):
                yield Text(f" {clean('·') if row == 0 else ' '} {line}")


@dataclass(frozen=True)
class _Facts:
    """Names and what they are."""

    rows: tuple[tuple[str, str], ...]

    def lines(self, width: int, clean: Clean) -> Iterator[Text]:
        room = max(len(name) for name, _ in self.rows) + 2
        for name, text in self.rows:
            for row, line in enumerate(_wrapped(clean(text), width - room)):
                yield Text.assemble((f"{name if row == 0 else '':{room}}", "dim"), line)


@dataclass(frozen=True)
class _Cell:
    """A value, and its error where it has one."""

    value: str
    error: str = ""
    style: str = ""


_Row = tuple[str, tuple[_Cell, ...]]


@dataclass(frozen=True)
class _Table:
    """Rows under a header, numbers to the right; a row without cells is a heading among them.

    Nothing is ever cut: where the columns do not fit side by side, errors go below their values (`stacks`), and where
    that is not enough, the columns go into several tables below each other.
    """

    header: tuple[str, ...]
    rows: tuple[_Row, ...]
    stacks: bool = False

    def lines(self, width: int, clean: Clean) -> Iterator[Text]:
        rows = [
            (clean(label), tuple(_Cell(clean(c.value), clean(c.error), c.style) for c in cells))
            for label, cells in self.rows
        ]
        header = [clean(title) for title in self.header]
        labels = max(len(label) for label, cells in rows if cells)
        room = width - 1 - labels
        beside = [self._width(header, rows, column, stacked=False) for column in range(len(header))]
        stacked = self.stacks and sum(beside) > room
        widths = [self._width(header, rows, column, stacked=True) for column in range(len(header))]
        widths = widths if stacked else beside
        for number, block in enumerate(_blocks(widths, room)):
            if number:
                yield Text()
            if any(header[column] for column in block):
                titles = "".join(f"{header[column]:>{widths[column]}}" for column in block)
                yield Text(f" {'':{labels}}{titles}", style="dim")
            for label, cells in rows:
                if not cells:
                    yield Text(f" {label}", style="bold")
                    continue
                values, errors = Text(f" {label:{labels}}"), Text(f" {'':{labels}}")
                for column in block:
                    cell, size = cells[column], widths[column]
                    value = cell.value if stacked or not cell.error else f"{cell.value} "
                    error = "" if stacked else cell.error
                    values.append(f"{value:>{size - len(error)}}", style=cell.style).append(error, style="dim")
                    errors.append(f"{cell.error:>{size}}", style="dim")
                yield values
                if stacked and errors.plain.strip():
                    yield errors

    @staticmethod
    def _width(header: Sequence[str], rows: Sequence[_Row], column: int, *, stacked: bool) -> int:
        cells = [cells[column] for _, cells in rows if cells]
        sizes = [
            max(len(c.value), len(c.error)) if stacked or not c.error else len(c.value) + 1 + len(c.error)
            for c in cells
        ]
        return 2 + max(len(header[column]), *sizes)


def _blocks(widths: Sequence[int], room: int) -> Iterator[list[int]]:
    """Columns that fit side by side, as many as can."""
    block: list[int] = []
    for column, width in enumerate(widths):
        if block and sum(widths[c] for c in block) + width > room:
            yield block
            block = []
        block.append(column)
    yield block


def _wrapped(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, width, break_on_hyphens=False)


@dataclass(frozen=True)
class _Path:
    """Where the result lies, whole on one line of its own, so that it can be copied."""

    path: Path

    def lines(self, width: int, clean: Clean) -> Iterator[Text]:
        path = clean(str(self.path))
        if len("Result: " + path) <= width:
            yield Text(f"Result: {path}")
        else:
            yield from (Text("Result:"), Text(path))


_Part = _Paragraph | _Items | _Facts | _Table | _Path
_GAP = _Paragraph()


def _title(text: str, style: str = "bold") -> _Paragraph:
    return _Paragraph(text, style)


# ── the report ───────────────────────────────────────────────────────────────────────────────────────────────────────


def _report(result: Result, *, roomy: bool) -> Iterator[_Part]:
    yield _title(f"bnuq evaluate  {result.provenance['bnuq']}")
    yield _Facts(tuple(_facts(result)))
    yield from (_GAP, _title("In short"), _Items(tuple(_in_words(result))))
    yield from (_GAP, _title(f"Test set, {result.sets['test'].n} points"), _test_table(result, roomy=roomy))
    yield from _curves(result)
    for name in _ood_names(result):
        yield from (_GAP, _title(f"{name}, {result.sets[name].n} points, against the test set"))
        yield _ood_table(result, name, roomy=roomy)
        yield from _information_table(result, name)
    if work := tuple(_work_in_words(result)):
        yield from (_GAP, _title("What it took"), _Items(work))
    yield _GAP
    yield from (_Paragraph(text, "dim") for text in _legend(result))
    if result.cautions:
        yield from (_GAP, _title("Warnings", "bold yellow"))
        yield _Items(tuple(f"{caution.text} [{caution.code}]" for caution in result.cautions))
    if result.notes:
        yield from (_GAP, _title("Notes"), _Items(result.notes))
    if result.path is not None:
        yield from (_GAP, _Path(result.path))


def _facts(result: Result) -> Iterator[tuple[str, str]]:
    model, sampling = result.model, result.sampling
    facts = (
        f"{model['parameters']:,} parameters",
        _count(model["batchnorm_layers"], "BatchNorm layer"),
        _count(model["dropout_layers"], "dropout layer"),
        f"{model['classes']} classes",
    )
    yield "model", f"{Path(model['path']).name}: {', '.join(facts)}"
    for name, one in result.sets.items():
        yield ("test" if name == "test" else "ood"), f"{_shown(name, one.reference)}, {one.n} points"
    if len(result.methods) > 1:
        reference = result.run.get("data", {}).get("train")
        batch = sampling["batch_size"]
        drawn = f", mini-batches of {batch} from {_base(reference)}" if batch is not None and reference else ""
        bank = sampling.get("bank")
        own = f"{sampling['samples']} of a bank of {bank}" if bank is not None else f"{sampling['samples']}"
        yield "passes", f"{own} a point{drawn}, seed {sampling['seed']}"
    yield "on", f"{sampling['device']}, {sampling['precision']}, {result.seconds['total']:.1f} s"


def _count(number: int, what: str) -> str:
    return f"{number or 'no'} {what}{'' if number == 1 else 's'}"


def _shown(name: str, reference: str) -> str:
    base = _base(reference)
    return base if name == "test" or Path(base).stem == name else f"{name} ({base})"


def _base(reference: str) -> str:
    return Path(reference.rpartition("=")[2]).name


# ── in words ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _in_words(result: Result) -> Iterator[str]:
    sampled = {name: method for name, method in result.methods.items() if name != DETERMINISTIC}
    plain = result.methods[DETERMINISTIC]
    check = result.reference_check
    if check is not None and not check.passed:
        yield (
            "Careful: the reference, or its pipeline, does not look like what the network was trained on. What follows "
            "may be said of another network than yours; see the warnings below."
        )
    accuracy, pll = (plain.sets["test"].figures[m] for m in ("accuracy", "pll"))
    yield f"The network as it is: accuracy {_percent(accuracy)}, PLL {_number(pll.value)} nats."
    for name, method in sampled.items():
        yield _likelihood_in_words(name, method, plain, group=result.sets["test"].group)
    for name in _ood_names(result):
        yield _ood_in_words(result, name)
    if check is not None and check.passed:
        ratios = [getattr(check, quantity) / check.expected for quantity in ("mean", "log_variance")]
        median, worst = max(float(np.median(r)) for r in ratios), max(float(r.max()) for r in ratios)
        yield (
            "Nothing speaks against the reference: its batch statistics agree with the checkpoint's running ones "
            f"({median:.1f} times what batch noise explains in the median layer, {worst:.1f} times in the worst; 3 and "
            "6 would be too much)."
        )


def _likelihood_in_words(
    name: str, method: MethodResult, plain: MethodResult, *, group: Int64[np.ndarray, " point"] | None
) -> str:
    test, alone = method.sets["test"], plain.sets["test"]
    ours, theirs = test.figures["pll"], alone.figures["pll"]
    change = ours.value - theirs.value
    paired = standard_error(test.points["pll"] - alone.points["pll"], group=group)
    figures = f"PLL {_number(theirs.value)} → {_number(ours.value)} nats"
    ece = f"ECE {100 * alone.figures['ece'].value:.1f} → {100 * test.figures['ece'].value:.1f} %"
    if ours.se is None or ours.mc_se is None or not math.isfinite(change):
        return f"{name}: {figures}; {ece}; too few points or passes to say whether that is a difference."
    error = math.hypot(paired, ours.mc_se)
    verdict = "explains the labels better than the network as it is" if change > 0 else "explains the labels worse"
    if abs(change) < 2 * error:
        verdict = "explains the labels about as well as the network as it is"
    return f"{name} {verdict}: {figures} ({_signed(change)} ± {error:.4f}); {ece}."


def _ood_in_words(result: Result, name: str) -> str:
    ranked = [
        (method, score, figures["auroc"])
        for method, one in result.methods.items()
        for score, figures in one.ood[name].items()
    ]
    method, score, best = max(ranked, key=lambda row: row[2].value)
    plain = max((row for row in ranked if row[0] == DETERMINISTIC), key=lambda row: row[2].value)
    of = "the network as it is" if method == DETERMINISTIC else method
    interval = "" if best.low is None else f" ({_number(best.low, 2)}–{_number(best.high, 2)})"
    text = f"{name} {_told_apart(best)}: AUROC {_number(best.value, 3)}{interval} by the {_words(score)} of {of}"
    text += f", the best of {len(ranked)} scores"
    if method == DETERMINISTIC:
        return f"{text}."
    return f"{text}; {_number(plain[2].value, 3)} by the {_words(plain[1])} of the network as it is."


def _told_apart(auroc: Figure) -> str:
    if auroc.low is None or auroc.high is None:
        return "cannot be judged from so few points"
    if auroc.high < 0.5:
        return "is taken for more familiar than the test set"
    if auroc.low <= 0.5:
        return "is not told apart from the test set"
    if auroc.value >= 0.9:
        return "is told apart well from the test set"
    return "is partly told apart from the test set" if auroc.value >= 0.7 else "is hardly told apart from the test set"


def _words(score: str) -> str:
    return SCORES[score].title.partition(" (")[0].lower()


# ── tables ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def _test_table(result: Result, *, roomy: bool) -> _Table:
    known = {name for method in result.methods.values() for name in method.sets["test"].figures}
    rows = tuple(
        (
            f"{_ARROWS[METRICS[name].direction]} {_name(name, roomy=roomy)}",
            tuple(_cell(name, found) for found in result.methods.values()),
        )
        for name in _NAMES
        if name in known
    )
    return _Table(tuple(result.methods), rows, stacks=True)


def _name(metric: str, *, roomy: bool) -> str:
    return _NAMES[metric][0 if roomy else 1]


def _cell(metric: str, result: MethodResult) -> _Cell:
    figure = result.sets["test"].figures.get(metric)
    if figure is None:
        return _Cell("–")
    return _with_error(figure)


def _with_error(figure: Figure) -> _Cell:
    error = _total(figure)
    if error is None or not math.isfinite(figure.value):
        return _Cell(_number(figure.value))
    return _Cell(_number(figure.value), f"±{_number(error)}")


def _total(figure: Figure) -> float | None:
    """Over points and draws together; None where that over points is unknown: the other alone would mislead."""
    return None if figure.se is None else math.hypot(figure.se, figure.mc_se or 0.0)


def _ood_table(result: Result, name: str, *, roomy: bool) -> _Table:
    rows: list[_Row] = []
    for method, one in result.methods.items():
        rows.append((method, ()))
        for score, figures in one.ood[name].items():
            auroc = figures["auroc"]
            interval = f"{_number(auroc.low)}–{_number(auroc.high)}" if auroc.low is not None else ""
            others = (_Cell(_number(figures[key].value)) for key in _OOD_COLUMNS)
            rows.append((f"  {_name(score, roomy=roomy)}", (_Cell(_number(auroc.value)), _Cell(interval), *others)))
    return _Table(("AUROC", "95 % interval", *_OOD_COLUMNS.values()), tuple(rows))


def _information_table(result: Result, name: str) -> Iterator[_Part]:
    rows = tuple(
        (method, tuple(_with_error(found.sets[s].figures["mutual_information"]) for s in (name, "test")))
        for method, found in result.methods.items()
        if "mutual_information" in found.sets[name].figures
    )
    if not rows:
        return
    yield from (_GAP, _Table(("mean MI here", "on the test set"), rows, stacks=True))


def _curves(result: Result) -> Iterator[_Part]:
    drawn = {name: m.convergence["pll"] for name, m in result.methods.items() if "pll" in m.convergence}
    finite = {name: np.asarray(v) for name, v in drawn.items() if np.isfinite(v).all() and len(v) > 1}
    if not finite:
        return
    sizes = [int(k) for k in next(m.convergence["samples"] for m in result.methods.values() if m.convergence)]
    counted = ", ".join(map(str, sizes)) if len(sizes) < 5 else f"{sizes[0]}, {sizes[1]}, {sizes[2]}, … {sizes[-1]}"
    low, high = min(v.min() for v in finite.values()), max(v.max() for v in finite.values())
    rows = tuple(
        (
            name,
            (
                _Cell(sparkline(values, low=low, high=high), style="cyan"),
                _Cell(f"{_number(float(values[0]))} → {_number(float(values[-1]))}"),
            ),
        )
        for name, values in finite.items()
    )
    yield from (_GAP, _title(f"PLL of the first {counted} passes"), _Table(("", ""), rows))


def sparkline(values: Sequence[float] | np.ndarray, *, low: float, high: float) -> str:
    """The values as a row of bars between `low` and `high`."""
    bars = "▁▂▃▄▅▆▇█"
    if high <= low:
        return bars[3] * len(values)
    return "".join(bars[min(7, max(0, int(8 * (value - low) / (high - low))))] for value in values)


_ESTIMATORS = {
    "corrected": ("MI is corrected for finitely many passes, by T/(T−1).",),
    "jackknife": ("MI is corrected for finitely many passes, by the jackknife; that of a point may be below 0.",),
}


def _work_in_words(result: Result) -> Iterator[str]:
    """What was computed once and what T times, at what speed, in which memory."""
    for method, took in result.work.methods.items():
        if method == DETERMINISTIC:
            continue
        text = f"{method}: {took.passes:,} passes, {took.passes / max(took.seconds, 1e-9):,.0f} a second"
        if took.ratio is not None:
            text += f", {took.ratio:.2f} of the cost of as many plain forwards"
        if took.once is not None and took.each is not None:
            share = took.once / max(1, took.once + took.each)
            text += f"; {100 * share:.3g} % of a pass's arithmetic was done once for all samples"
        if took.folded:
            text += f", {_count(took.folded, 'BatchNorm')} went into the weights before them"
        if (took.stacked or 1) > 1:
            text += f", up to {took.stacked} samples passed together"
        if took.why_plain:
            text += f". The network was run whole for every sample: {took.why_plain}"
        yield text + "."
    if result.work.peak_bytes:
        held = "GPU memory" if str(result.sampling["device"]).startswith("cuda") else "memory"
        yield f"{result.work.peak_bytes / 1e9:.2g} GB of {held} at most, the network and torch itself included."


def _legend(result: Result) -> Iterator[str]:
    sampled = len(result.methods) > 1
    over = "points and draws together" if sampled else "points"
    if sampled and int(result.sampling["samples"]) < 8:
        over = "points alone: too few passes to tell that over draws"
    yield f"± standard error over {over}. ↑ more is better, ↓ less is better, else neither."
    yield (
        "PLL: log probability given to the true label, in nats, as are MI and entropies. ECE: gap between stated "
        "confidence and accuracy. AURC: mean error rate when the points of largest predictive entropy are left to "
        "somebody else."
    )
    if sampled:
        yield "Mutual information (MI): how far the passes disagree, which is what the network does not know."
        yield from _ESTIMATORS.get(str(result.sampling.get("mutual_information")), ())
    if _ood_names(result):
        yield (
            "AUROC: chance that a point of the OOD set looks more uncertain than one of the test set; 0.5 is a guess. "
            "FPR95: share of test points taken for OOD when 95 % of OOD points are found; FPR95*: the other way round. "
            "AUPR-out: precision over recall for OOD points, AUPR-in: for test points."
        )


def _ood_names(result: Result) -> list[str]:
    return [name for name, one in result.sets.items() if one.kind == "ood"]


def _percent(figure: Figure) -> str:
    error = _total(figure)
    return f"{100 * figure.value:.2f} %" + (f" ± {100 * error:.2f}" if error is not None else "")


def _number(value: float | None, digits: int = 4) -> str:
    if value is None:
        return ""
    if not math.isfinite(value):
        return str(value).replace("-", "−")
    small = 0 < abs(value) < 10.0**-digits / 2
    text = f"{value:.1e}" if small else f"{value:.{digits}f}"
    return text.replace("-", "−")


def _signed(value: float) -> str:
    return ("+" if value >= 0 else "") + _number(value)
