"""The report on a terminal: what was evaluated, what it means in words, the tables, and what to be careful about."""

from __future__ import annotations

import io
import math
import os
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TextIO

import numpy as np
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from bnuq.metrics import METRICS, SCORES, standard_error
from bnuq.records import Direction, Figure
from bnuq.results.result import MethodResult, Result

_ARROWS: dict[Direction, str] = {"higher": "↑", "lower": "↓", "none": " "}
_SHORT = {
    "accuracy": "accuracy",
    "pll": "PLL",
    "brier": "Brier score",
    "ece": "ECE",
    "mutual_information": "mutual inform.",
    "predictive_entropy": "pred. entropy",
    "expected_entropy": "exp. entropy",
    "variation_ratio": "variation ratio",
    "max_probability": "max. probability",
    "aurc": "AURC",
}
_OOD_COLUMNS = {
    "aupr_out": "AUPR-out",
    "aupr_in": "AUPR-in",
    "fpr95": "FPR95",
    "fpr95_id_positive": "FPR95*",
}
_DETERMINISTIC = "deterministic"
_NEEDS_SAMPLES = ("mutual_information", "variation_ratio")
_IN_ASCII = {
    "±": "+/-", "−": "-", "·": "*", "↑": "^", "↓": "v", "–": "-", "→": "->", "×": "x", "≥": ">=", "…": "..."
} | dict(zip("▁▂▃▄▅▆▇█", "_.,-=+*#", strict=True))  # fmt: skip
_ASCII = str.maketrans(_IN_ASCII)


def print_report(result: Result, stream: TextIO, *, width: int | None = None) -> None:
    """Draw the report on `stream`: in colour on a terminal, plain in a pipe, in ASCII where the encoding needs it."""
    terminal = stream.isatty()
    columns = width or (shutil.get_terminal_size((80, 24)).columns if terminal else 80)
    buffer = io.StringIO()
    console = Console(
        file=buffer,
        width=max(40, min(columns, 100)),
        force_terminal=terminal,
        color_system="auto" if terminal else None,
        no_color=bool(os.environ.get("NO_COLOR")) or not terminal,
        highlight=False,
        emoji=False,
        legacy_windows=False,
    )
    console.print(_report(result))
    text = "\n".join(line.rstrip() for line in buffer.getvalue().splitlines()) + "\n"
    encoding = getattr(stream, "encoding", None) or "utf-8"
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        text = text.translate(_ASCII).encode(encoding, "replace").decode(encoding)
    stream.write(text)


def _report(result: Result) -> RenderableType:
    parts: list[RenderableType] = [*_heading(result), Text()]
    parts += [_title("In short"), *_in_words(result), Text()]
    parts += [_title(f"Test set, {result.sets['test'].n} points"), _test_table(result)]
    curves = list(_curves(result))
    if curves:
        parts += [Text(), *curves]
    for name in _ood_names(result):
        parts += [Text(), _title(f"{name} against test, {result.sets[name].n} points"), _ood_table(result, name)]
    parts += [Text(), *_legend(result)]
    if result.cautions:
        parts += [Text(), _title("Warnings", "bold yellow"), *_items(f"{c.text} [{c.code}]" for c in result.cautions)]
    if result.notes:
        parts += [Text(), _title("Notes"), *_items(result.notes)]
    if result.path is not None:
        parts += [Text(), Text(f"Result: {result.path}")]
    return Group(*parts)


def _title(text: str, style: str = "bold") -> Text:
    return Text(text, style=style)


def _items(texts: Iterable[str]) -> list[RenderableType]:
    rows = Table.grid(padding=(0, 1))
    rows.add_column(width=1)
    rows.add_column()
    for text in texts:
        rows.add_row("·", Text(text))
    return [Padding(rows, (0, 0, 0, 1))]


def _heading(result: Result) -> list[RenderableType]:
    model, sampling = result.model, result.sampling
    layers = [
        f"{model['batchnorm_layers']} BatchNorm",
        f"{model['dropout_layers']} dropout layers",
    ]
    rows = Table.grid(padding=(0, 2))
    rows.add_column(style="dim")
    rows.add_column()
    rows.add_row(
        "model",
        Text(
            f"{Path(model['path']).name}: {model['parameters']:,} parameters, {' and '.join(layers)}, "
            f"{model['classes']} classes"
        ),
    )
    for name, one in result.sets.items():
        rows.add_row("test" if name == "test" else "ood", Text(f"{_shown(name, one.reference)}, {one.n} points"))
    if len(result.methods) > 1:
        reference = result.run.get("data", {}).get("train")
        batch = sampling["batch_size"]
        drawn = f", mini-batches of {batch} from {_base(reference)}" if batch is not None and reference else ""
        rows.add_row("samples", Text(f"{sampling['samples']}{drawn}, seed {sampling['seed']}"))
    rows.add_row("on", Text(f"{sampling['device']}, {sampling['precision']}, {result.seconds['total']:.1f} s"))
    return [Text.assemble(("bnuq evaluate", "bold"), f"  {result.provenance['bnuq']}"), rows]


def _shown(name: str, reference: str) -> str:
    base = _base(reference)
    return base if name == "test" or Path(base).stem == name else f"{name} ({base})"


def _base(reference: str) -> str:
    return Path(reference.rpartition("=")[2]).name


# ── in words ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _in_words(result: Result) -> list[RenderableType]:
    sampled = {name: method for name, method in result.methods.items() if name != _DETERMINISTIC}
    plain = result.methods[_DETERMINISTIC]
    found = []
    if not sampled:
        accuracy, pll = (plain.sets["test"].figures[m] for m in ("accuracy", "pll"))
        found.append(f"The network as it is: accuracy {_percent(accuracy)}, PLL {_number(pll.value)} nats.")
    for name, method in sampled.items():
        found.append(_likelihood_in_words(name, method, plain))
    for name in _ood_names(result):
        found.append(_ood_in_words(result, name))
    if result.reference_check is not None and result.reference_check.passed:
        check = result.reference_check
        worst = max(float((getattr(check, q) / check.expected).max()) for q in ("mean", "log_variance"))
        found.append(
            "The reference looks like what the network was trained on: its batch statistics agree with the "
            f"checkpoint's running ones ({worst:.1f} times the expected noise in the worst layer; 6 is too much)."
        )
    return _items(found)


def _likelihood_in_words(name: str, method: MethodResult, plain: MethodResult) -> str:
    test, alone = method.sets["test"], plain.sets["test"]
    ours, theirs = test.figures["pll"], alone.figures["pll"]
    change = ours.value - theirs.value
    paired = standard_error(test.points["pll"] - alone.points["pll"])
    error = math.hypot(paired, ours.mc_se or 0.0)
    ece = f"ECE {100 * alone.figures['ece'].value:.1f} → {100 * test.figures['ece'].value:.1f} %"
    if not math.isfinite(change) or not math.isfinite(error):
        return f"{name}: PLL {_number(theirs.value)} → {_number(ours.value)} nats; {ece}."
    verdict = "explains the labels better than the network as it is" if change > 0 else "explains the labels worse"
    if abs(change) < 2 * error:
        verdict = "explains the labels about as well as the network as it is"
    return (
        f"{name} {verdict}: PLL {_number(theirs.value)} → {_number(ours.value)} "
        f"(by {_signed(change)} ± {error:.4f} nats); {ece}."
    )


def _ood_in_words(result: Result, name: str) -> str:
    ranked = [
        (method, score, figures["auroc"])
        for method, one in result.methods.items()
        for score, figures in one.ood[name].items()
    ]
    method, score, best = max(ranked, key=lambda row: row[2].value)
    plain = max((row for row in ranked if row[0] == _DETERMINISTIC), key=lambda row: row[2].value)
    told = (
        "is told apart well" if best.value >= 0.9 else "is told apart in part" if best.value >= 0.7 else
        "is hardly told apart" if best.value >= 0.55 else "is not told apart"
    )  # fmt: skip
    text = f"{name} {told}: AUROC {_number(best.value, 3)} by the {_words(score)} of {method}"
    if method != _DETERMINISTIC:
        text += f" ({_number(plain[2].value, 3)} by the {_words(plain[1])} of the network as it is)"
    return text + "."


def _words(score: str) -> str:
    return SCORES[score].title.partition(" (")[0].lower()


# ── tables ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def _test_table(result: Result) -> RenderableType:
    table = _plain_table()
    table.add_column("", no_wrap=True)
    for method in result.methods:
        table.add_column(Text(method), justify="right", no_wrap=True)
    names = [name for name in _SHORT if any(name in m.sets["test"].figures for m in result.methods.values())]
    for name in names:
        label = Text(f"{_ARROWS[METRICS[name].direction]} {_SHORT[name]}")
        table.add_row(label, *(_cell(name, method, "test", m) for method, m in result.methods.items()))
    for ood in _ood_names(result):
        cells = (_cell("mutual_information", method, ood, m) for method, m in result.methods.items())
        table.add_row(Text(f"  MI on {ood}"[:18]), *cells)
    return Padding(table, (0, 0, 0, 1))


def _cell(metric: str, method: str, set_name: str, result: MethodResult) -> Text:
    figure = result.sets[set_name].figures.get(metric)
    if figure is None or (method == _DETERMINISTIC and metric in _NEEDS_SAMPLES):
        return Text("–")
    return _with_error(figure)


def _with_error(figure: Figure) -> Text:
    error = _total(figure)
    if error is None or not math.isfinite(figure.value):
        return Text(_number(figure.value))
    return Text.assemble(_number(figure.value), (f" ±{_number(error).lstrip('0')}", "dim"))


def _total(figure: Figure) -> float | None:
    known = [error for error in (figure.se, figure.mc_se) if error is not None and math.isfinite(error)]
    return math.hypot(*known) if known else None


def _ood_table(result: Result, name: str) -> RenderableType:
    table = _plain_table()
    table.add_column("", no_wrap=True)
    table.add_column("AUROC", justify="right", no_wrap=True)
    table.add_column("95 % interval", justify="right", no_wrap=True)
    for title in _OOD_COLUMNS.values():
        table.add_column(Text(title), justify="right", no_wrap=True)
    for method, one in result.methods.items():
        table.add_row(Text(method, style="bold"))
        for score, figures in one.ood[name].items():
            auroc = figures["auroc"]
            table.add_row(
                Text(f"  {_words(score)}"),
                _number(auroc.value),
                f"{_number(auroc.low)}–{_number(auroc.high)}" if auroc.low is not None else "",
                *(_number(figures[key].value) for key in _OOD_COLUMNS),
            )
    return Padding(table, (0, 0, 0, 1))


def _plain_table() -> Table:
    return Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim", show_edge=False)


def _curves(result: Result) -> Iterable[RenderableType]:
    rows = Table.grid(padding=(0, 2))
    drawn = {name: m.convergence["pll"] for name, m in result.methods.items() if "pll" in m.convergence}
    finite = {name: np.asarray(v) for name, v in drawn.items() if np.isfinite(v).all() and len(v) > 1}
    if not finite:
        return
    sizes = next(m.convergence["samples"] for m in result.methods.values() if "pll" in m.convergence)
    low, high = min(v.min() for v in finite.values()), max(v.max() for v in finite.values())
    for name, values in finite.items():
        ends = f"{_number(float(values[0]))} → {_number(float(values[-1]))}"
        rows.add_row(Text(name), Text(sparkline(values, low=low, high=high), style="cyan"), Text(ends))
    yield _title(f"PLL over the first {', '.join(map(str, sizes[:3]))}, … {sizes[-1]} samples")
    yield Padding(rows, (0, 0, 0, 1))


def sparkline(values: Sequence[float] | np.ndarray, *, low: float, high: float) -> str:
    """The values as a row of bars between `low` and `high`."""
    bars = "▁▂▃▄▅▆▇█"
    if high <= low:
        return bars[3] * len(values)
    return "".join(bars[min(7, max(0, int(8 * (value - low) / (high - low))))] for value in values)


def _legend(result: Result) -> list[RenderableType]:
    sampled = len(result.methods) > 1
    error = "over points and draws together" if sampled else "over points"
    texts = [f"± is the standard error {error}. ↑ more is better, ↓ less is better. PLL, MI and entropies in nats."]
    if _ood_names(result):
        texts.append(
            "AUROC .5 is chance. FPR95: OOD points count as positive; FPR95*: test points do. "
            "AUPR-out and AUPR-in likewise."
        )
    return [Text(text, style="dim") for text in texts]


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
