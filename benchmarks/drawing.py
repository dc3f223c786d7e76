"""Reports the measurements: tables on the terminal, a JSON file, and the figure of docs/measured/benchmarks.md."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from comparing import TOTAL_POINTS, Compared, Entry
from contestants import torch_uncertainty_version
from measuring import Spread, spread
from rich.console import Console
from rich.table import Table
from targets import Verdict
from whole import EndToEnd, Peak, Scaled

import bnuq

CLOCK = {"cpu": "cpu", "cuda": "wall"}  # the compared clock: CPU time is meaningful on a CPU only


class Terminal:
    """Prints each table as soon as it is complete."""

    def __init__(self, machine: Mapping[str, Any]) -> None:
        self._console = Console(width=max(128, Console().width))
        self._clock = "wall" if "gpu" in machine else "cpu"
        version = torch_uncertainty_version() or "not installed"
        self.print(f"bnuq {bnuq.__version__} against TorchUncertainty ({version}) and plain loops")
        self.print(", ".join(f"{key} {value}" for key, value in machine.items() if value))
        clock = "CPU time" if self._clock == "cpu" else "the clock"
        self.print(
            "T plain eval-mode forwards of the same points are 1. Median (least–largest) over the rounds.\n"
            f"passes: per sample and point, by {clock}; clock: the same by the clock. draws: per training image.\n"
            "first call: seconds beyond a later one (planning). off: largest difference from the loop that swaps "
            "statistics, in probabilities.\n"
        )

    def print(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False)

    def absent(self, name: str, reason: str) -> None:
        self.print(f"{name}: not timed: {reason}\n")

    def row(self, row: Compared) -> None:
        drawn = f", b = {row.batch_size}" if row.batch_size else ""
        method = "MC dropout" if row.method == "mcdo" else "MCBN"
        title = (
            f"{row.title}: {method}, {row.weights} weights, T = {row.samples}, "
            f"n = {row.points}{drawn}, {row.rounds} rounds; plain: {1e3 * row.plain[self._clock].median:.3g} ms a point"
        )
        heads = ["passes", "clock", "draws, per image", f"total at n = {TOTAL_POINTS}", "first call", "off"]
        table = _table(title, ["", *heads, *(["samples·points/s", "of peak", "of bound"] if row.speed else [])])
        for name, entry in row.entries.items():
            cells = [
                entry.label,
                str(spread(entry.passes[self._clock])),
                f"{spread(entry.passes['wall']).median:.3g}",
                str(spread(entry.draws[self._clock])) if entry.draws else "–",
                str(spread(entry.total(self._clock, row.batch_size, TOTAL_POINTS))),
                f"+{entry.first:.2g} s",
                "–" if entry.difference is None else f"{entry.difference:.1g}",
            ]
            if row.speed:
                speed = row.speed[name]
                cells.append(f"{speed['samples_points_per_second']:.4g}")
                cells += [f"{speed[key]:.2f}" if key in speed else "–" for key in ("of_matrix_peak", "of_bound")]
            table.add_row(*cells)
        self._console.print(table)
        for name, reason in row.absent.items():
            self.print(f"  {name}: skipped: {reason}")
        for entry in row.entries.values():
            if entry.note:
                self.print(f"  {entry.label}: by its plain loop: {entry.note}")
        self.print("")

    def scaling(self, rows: Sequence[Scaled]) -> None:
        heads = ["", "", "T", "n", "b", "chunk", "passes", "draws, per image", "total at this n"]
        table = _table("How bnuq's cost grows: one size varied at a time", heads)
        for row in rows:
            sizes = (row.samples, row.points, row.batch_size, row.chunk)
            table.add_row(
                row.varied, str(row.value), *map(str, sizes), *(str(s) for s in (row.passes, row.draws, row.total))
            )
        self._console.print(table, "")

    def memory(self, rows: Sequence[Peak]) -> None:
        heads = ["", "network", "T", "n", "b", "MB", "plain forward of max(128, b), MB", "ratio"]
        table = _table("Peak memory above the network and its points (draws and passes)", heads)
        for row in rows:
            sizes = (str(size) for size in (row.samples, row.points, row.batch_size))
            table.add_row(
                row.contestant,
                row.network,
                *sizes,
                f"{row.bytes / 1e6:.1f}",
                f"{row.plain / 1e6:.1f}",
                f"{row.ratio:.2f}",
            )
        self._console.print(table, "")

    def end_to_end(self, run: EndToEnd) -> None:
        table = _table(
            f"bnuq evaluate from start to finish: ResNet-20, T = {run.samples}, {run.images} images", ["", "s"]
        )
        table.add_row("whole process, CPU time", str(run.total))
        table.add_row("its passes, timed by themselves", str(run.passes))
        table.add_row("import of torch", str(run.torch_import))
        table.add_row("the rest, passes being 1", str(spread(run.overhead)))
        for stage, seconds in run.stages.items():
            table.add_row(f"  by the clock, in the process: {stage}", f"{seconds:.3g}")
        self._console.print(table, "")

    def targets(self, verdicts: Iterable[Verdict]) -> None:
        table = _table("What to reach", ["", "reach", "aim", "floor", "measured", ""])
        for verdict in verdicts:
            table.add_row(
                verdict.text,
                f"{verdict.sense} {verdict.reach:.3g}" if verdict.reach is not None else "–",
                f"{verdict.aim:g}" if verdict.aim is not None else "",
                str(verdict.floor) if verdict.floor is not None else "",
                str(verdict.measured) if verdict.measured else "not measured",
                {None: "", True: "reached", False: "NOT reached"}[verdict.reached],
            )
        self._console.print(table, "")


def _table(title: str, heads: Sequence[str]) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False)
    for number, head in enumerate(heads):
        table.add_column(head, justify="left" if number == 0 else "right", no_wrap=number > 0)
    return table


def write_json(
    path: Path,
    *,
    machine: Mapping[str, Any],
    settings: Mapping[str, Any],
    rows: Mapping[str, Compared],
    absent: Mapping[str, str],
    scaling: Sequence[Scaled],
    memory: Sequence[Peak],
    evaluate: EndToEnd | None,
    targets: Sequence[Verdict],
) -> None:
    """Write all results, in the format described by README.md in this folder."""
    content = {
        "bnuq": bnuq.__version__,
        "torch_uncertainty": torch_uncertainty_version(),
        "machine": machine,
        "settings": settings,
        "rows": {name: _row(item) for name, item in rows.items()},
        "absent": absent,
        "scaling": [asdict(item) for item in scaling],
        "memory": [asdict(item) | {"ratio": item.ratio} for item in memory],
        "evaluate": None if evaluate is None else asdict(evaluate) | {"overhead": asdict(spread(evaluate.overhead))},
        "targets": [asdict(item) for item in targets],
    }
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def _row(row: Compared) -> dict[str, Any]:
    plain = {f"seconds_per_point_{clock}": asdict(value) for clock, value in row.plain.items()}
    sizes = {key: getattr(row, key) for key in ("points", "samples", "batch_size", "batch", "chunk", "rounds")}
    return {
        **{key: getattr(row, key) for key in ("title", "network", "method", "weights")},
        **sizes,
        "plain": plain,
        "contestants": {name: _entry(row, entry) for name, entry in row.entries.items()},
        "absent": row.absent,
        "speed": row.speed,
    }


def _entry(row: Compared, entry: Entry) -> dict[str, Any]:
    both = ("cpu", "wall")
    return {
        "label": entry.label,
        "passes": {clock: asdict(spread(entry.passes[clock])) for clock in both},
        "draws": {clock: asdict(spread(entry.draws[clock])) for clock in both} if entry.draws else None,
        f"total_at_{TOTAL_POINTS}": {
            clock: asdict(spread(entry.total(clock, row.batch_size, TOTAL_POINTS))) for clock in both
        },
        "first_call_seconds": entry.first,
        "difference_from_plain_loop": entry.difference,
        "note": entry.note,
    }


COLOURS = {  # contestants of the figure, from top to bottom, and their colours
    "bnuq_bfloat16": "#1b7f5c",
    "bnuq_tf32": "#2fa579",
    "bnuq_float16": "#55bd96",
    "bnuq": "#4cc38f",
    "swap_loop": "#9aa5b1",
    "dropout_loop": "#9aa5b1",
    "torch_uncertainty": "#e08e45",
    "redone": "#b0574f",
    "redone_128": "#7d3a38",
}
LEGEND = {  # labels that are shortened for the figure
    "torch_uncertainty": "TorchUncertainty",
    "redone": "loop, statistics redone per test batch of 128",
    "redone_128": "the same, mini-batches of 128 instead of 32",
    "swap_loop": "loop that swaps statistics per pass",
}
MAX_BAR = 3.0  # bars end here; longer bars are labelled with their length


def draw_figure(path: Path, rows: Mapping[str, Compared], machine: Mapping[str, Any], *, device: str) -> None:
    """Horizontal bars: the cost of MCBN and MC dropout over 10 000 points, T plain forwards being 1."""
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt
    from matplotlib.patches import Patch

    clock = CLOCK[device]
    style: Any = {"svg.hashsalt": "bnuq", "svg.fonttype": "path", "font.size": 9.5, "font.family": "sans-serif"}
    labels: dict[str, str] = {}
    with plt.rc_context(style):
        groups = [(row, [name for name in COLOURS if name in row.entries]) for row in rows.values()]
        height = sum(0.17 * len(names) + 0.22 for _, names in groups) + 2.2
        figure, axes = plt.subplots(figsize=(8.2, height), facecolor="white")
        position, ticks = 0.0, []
        for row, names in groups:
            start = position
            for name in names:
                values = spread(row.entries[name].total(clock, row.batch_size, TOTAL_POINTS))
                labels.setdefault(name, LEGEND.get(name) or row.entries[name].label)
                _bar(axes, position, values, COLOURS[name])
                position += 1
            ticks.append(((start + position - 1) / 2, f"{row.title}\n{_method_words(row)}"))
            position += 1.2
        axes.axvline(1, color="#333333", linewidth=1, linestyle=(0, (4, 3)), zorder=0)
        axes.set_yticks([place for place, _ in ticks], [text for _, text in ticks])
        axes.set_xlim(0, MAX_BAR * 1.12)
        axes.set_ylim(position - 1.0, -1.0)
        axes.tick_params(left=False)
        axes.spines[["top", "right", "left"]].set_visible(False)
        measure = "CPU time" if clock == "cpu" else "time"
        axes.set_xlabel(f"{measure}, T plain forwards of the network = 1 (dashed); less is better")
        axes.set_title("What Bayesian predictions cost: 10 000 points, drawing included", loc="left", fontsize=11.5)
        handles = [Patch(color=COLOURS[name], label=labels[name]) for name in COLOURS if name in labels]
        figure.legend(
            handles=handles,
            loc="lower center",
            ncol=2,
            frameon=False,
            fontsize=8.5,
            bbox_to_anchor=(0.5, 0.25 / height),
        )
        figure.text(0.01, 0.005, _foot(machine), fontsize=6.5, color="#666666", va="bottom")
        figure.tight_layout(rect=(0, (0.35 + 0.2 * ((len(labels) + 1) // 2)) / height, 1, 1))
        figure.savefig(path, format="svg", metadata={"Date": None}, facecolor="white")
        plt.close(figure)


def _bar(axes: Any, position: float, values: Spread, colour: str) -> None:
    """A bar that ends at the median, and a line from the smallest to the largest value."""
    shown = min(values.median, MAX_BAR)
    axes.barh(position, shown, height=0.86, color=colour)
    if values.max < MAX_BAR:
        axes.plot([values.min, values.max], [position, position], color="#222222", linewidth=0.8)
    place = max(shown, min(values.max, MAX_BAR)) + 0.03
    text = f"{values.median:.2f}" if values.median < MAX_BAR else f"{values.median:.1f} →"
    axes.text(place, position, text, va="center", fontsize=7.5, color="#222222").set_bbox(
        {"facecolor": "white", "alpha": 0.8, "edgecolor": "none", "pad": 0.6}
    )


def _method_words(row: Compared) -> str:
    if row.method == "mcdo":
        return f"MC dropout, T = {row.samples}"
    return f"MCBN, b = {row.batch_size}"


def _foot(machine: Mapping[str, Any]) -> str:
    version = torch_uncertainty_version()
    peers = f", TorchUncertainty {version}" if version else ""
    where = machine.get("gpu") or f"{machine['cpu']}, {machine['threads']} thread(s)"
    return f"{where}; torch {machine['torch']}{peers}. Bars: median over the rounds; lines: least to largest."
