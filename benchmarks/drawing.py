"""What was measured: tables on the terminal, a JSON file, and the picture that docs/benchmarks.md shows."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from comparing import MANY, Compared, Entry
from contestants import torch_uncertainty_version
from measuring import Spread, spread
from rich.console import Console
from rich.table import Table
from targets import Verdict
from whole import Peak, Scaled, Whole

import bnuq

CLOCK = {"cpu": "cpu", "cuda": "wall"}  # what is compared: elsewhere than on a CPU its time says nothing


class Terminal:
    """Prints each table as soon as it is known."""

    def __init__(self, machine: Mapping[str, Any]) -> None:
        self._console = Console(width=max(128, Console().width))
        self._clock = "wall" if "gpu" in machine else "cpu"
        version = torch_uncertainty_version() or "not installed"
        self.say(f"bnuq {bnuq.__version__} against TorchUncertainty ({version}) and plain loops")
        self.say(", ".join(f"{key} {value}" for key, value in machine.items() if value))
        what = "CPU time" if self._clock == "cpu" else "the clock"
        self.say(
            "T plain eval-mode forwards of the same points are 1. Median (least–largest) over the rounds.\n"
            f"passes: per sample and point, by {what}; clock: the same by the clock. draws: per training image.\n"
            "first call: seconds beyond a later one (planning). off: largest difference from the loop that swaps "
            "statistics, in probabilities.\n"
        )

    def say(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False)

    def absent(self, name: str, why: str) -> None:
        self.say(f"{name}: not timed: {why}\n")

    def row(self, one: Compared) -> None:
        drawn = f", b = {one.batch_size}" if one.batch_size else ""
        method = "MC dropout" if one.method == "mcdo" else "MCBN"
        title = (
            f"{one.title}: {method}, {one.weights} weights, T = {one.samples}, "
            f"n = {one.points}{drawn}, {one.rounds} rounds; plain: {1e3 * one.plain[self._clock].median:.3g} ms a point"
        )
        heads = ["passes", "clock", "draws, per image", f"total at n = {MANY}", "first call", "off"]
        table = _table(title, ["", *heads, *(["samples·points/s", "of peak", "of bound"] if one.speed else [])])
        for name, entry in one.entries.items():
            cells = [
                entry.label,
                str(spread(entry.passes[self._clock])),
                f"{spread(entry.passes['wall']).median:.3g}",
                str(spread(entry.draws[self._clock])) if entry.draws else "–",
                str(spread(entry.total(self._clock, one.batch_size, MANY))),
                f"+{entry.first:.2g} s",
                "–" if entry.difference is None else f"{entry.difference:.1g}",
            ]
            if one.speed:
                speed = one.speed[name]
                cells.append(f"{speed['samples_points_per_second']:.4g}")
                cells += [f"{speed[key]:.2f}" if key in speed else "–" for key in ("of_matrix_peak", "of_bound")]
            table.add_row(*cells)
        self._console.print(table)
        for name, why in one.absent.items():
            self.say(f"  {name}: skipped: {why}")
        for entry in one.entries.values():
            if entry.note:
                self.say(f"  {entry.label}: by its plain loop: {entry.note}")
        self.say("")

    def scaling(self, rows: Sequence[Scaled]) -> None:
        heads = ["", "", "T", "n", "b", "chunk", "passes", "draws, per image", "total at this n"]
        table = _table("How bnuq's cost grows: one size varied at a time", heads)
        for one in rows:
            sizes = (one.samples, one.points, one.batch_size, one.chunk)
            table.add_row(
                one.varied, str(one.value), *map(str, sizes), *(str(s) for s in (one.passes, one.draws, one.total))
            )
        self._console.print(table, "")

    def memory(self, rows: Sequence[Peak]) -> None:
        heads = ["", "network", "T", "n", "b", "MB", "plain forward of max(128, b), MB", "ratio"]
        table = _table("Peak memory above the network and its points (draws and passes)", heads)
        for one in rows:
            sizes = (str(size) for size in (one.samples, one.points, one.batch_size))
            table.add_row(
                one.contestant,
                one.network,
                *sizes,
                f"{one.bytes / 1e6:.1f}",
                f"{one.plain / 1e6:.1f}",
                f"{one.ratio:.2f}",
            )
        self._console.print(table, "")

    def whole(self, one: Whole) -> None:
        table = _table(
            f"bnuq evaluate from start to finish: ResNet-20, T = {one.samples}, {one.images} images", ["", "s"]
        )
        table.add_row("whole process, CPU time", str(one.total))
        table.add_row("its passes, timed by themselves", str(one.passes))
        table.add_row("import of torch", str(one.torch_import))
        table.add_row("the rest, passes being 1", str(spread(one.overhead)))
        for stage, seconds in one.stages.items():
            table.add_row(f"  by the clock, in the process: {stage}", f"{seconds:.3g}")
        self._console.print(table, "")

    def targets(self, verdicts: Iterable[Verdict]) -> None:
        table = _table("What to reach", ["", "reach", "aim", "floor", "measured", ""])
        for one in verdicts:
            table.add_row(
                one.text,
                f"{one.sense} {one.reach:.3g}" if one.reach is not None else "–",
                f"{one.aim:g}" if one.aim is not None else "",
                str(one.floor) if one.floor is not None else "",
                str(one.measured) if one.measured else "not measured",
                {None: "", True: "reached", False: "NOT reached"}[one.reached],
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
    evaluate: Whole | None,
    targets: Sequence[Verdict],
) -> None:
    """Everything that was found, in the shape that README.md in this folder describes."""
    known = {
        "bnuq": bnuq.__version__,
        "torch_uncertainty": torch_uncertainty_version(),
        "machine": machine,
        "settings": settings,
        "rows": {name: _row(one) for name, one in rows.items()},
        "absent": absent,
        "scaling": [asdict(one) for one in scaling],
        "memory": [asdict(one) | {"ratio": one.ratio} for one in memory],
        "evaluate": None if evaluate is None else asdict(evaluate) | {"overhead": asdict(spread(evaluate.overhead))},
        "targets": [asdict(one) for one in targets],
    }
    path.write_text(json.dumps(known, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def _row(one: Compared) -> dict[str, Any]:
    plain = {f"seconds_per_point_{clock}": asdict(value) for clock, value in one.plain.items()}
    sizes = {key: getattr(one, key) for key in ("points", "samples", "batch_size", "batch", "chunk", "rounds")}
    return {
        **{key: getattr(one, key) for key in ("title", "network", "method", "weights")},
        **sizes,
        "plain": plain,
        "contestants": {name: _entry(one, entry) for name, entry in one.entries.items()},
        "absent": one.absent,
        "speed": one.speed,
    }


def _entry(one: Compared, entry: Entry) -> dict[str, Any]:
    both = ("cpu", "wall")
    return {
        "label": entry.label,
        "passes": {clock: asdict(spread(entry.passes[clock])) for clock in both},
        "draws": {clock: asdict(spread(entry.draws[clock])) for clock in both} if entry.draws else None,
        f"total_at_{MANY}": {clock: asdict(spread(entry.total(clock, one.batch_size, MANY))) for clock in both},
        "first_call_seconds": entry.first,
        "difference_from_plain_loop": entry.difference,
        "note": entry.note,
    }


SHOWN = {  # contestants of the figure, from top to bottom, and their colours
    "bnuq_bfloat16": "#1b7f5c",
    "bnuq_tf32": "#2fa579",
    "bnuq": "#4cc38f",
    "swap_loop": "#9aa5b1",
    "dropout_loop": "#9aa5b1",
    "torch_uncertainty": "#e08e45",
    "redone": "#b0574f",
    "redone_128": "#7d3a38",
}
LEGEND = {  # where a label says more than the figure has use for
    "torch_uncertainty": "TorchUncertainty",
    "redone": "loop, statistics redone per test batch of 128",
    "redone_128": "the same, mini-batches of 128 instead of 32",
    "swap_loop": "loop that swaps statistics per pass",
}
CAP = 3.0  # bars end here; longer ones say how long they are


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
        groups = [(one, [name for name in SHOWN if name in one.entries]) for one in rows.values()]
        height = sum(0.17 * len(names) + 0.22 for _, names in groups) + 2.2
        figure, axes = plt.subplots(figsize=(8.2, height), facecolor="white")
        position, ticks = 0.0, []
        for one, names in groups:
            start = position
            for name in names:
                values = spread(one.entries[name].total(clock, one.batch_size, MANY))
                labels.setdefault(name, LEGEND.get(name) or one.entries[name].label)
                _bar(axes, position, values, SHOWN[name])
                position += 1
            ticks.append(((start + position - 1) / 2, f"{one.title}\n{_what(one)}"))
            position += 1.2
        axes.axvline(1, color="#333333", linewidth=1, linestyle=(0, (4, 3)), zorder=0)
        axes.set_yticks([place for place, _ in ticks], [text for _, text in ticks])
        axes.set_xlim(0, CAP * 1.12)
        axes.set_ylim(position - 1.0, -1.0)
        axes.tick_params(left=False)
        axes.spines[["top", "right", "left"]].set_visible(False)
        what = "CPU time" if clock == "cpu" else "time"
        axes.set_xlabel(f"{what}, T plain forwards of the network = 1 (dashed); less is better")
        axes.set_title("What Bayesian predictions cost: 10 000 points, drawing included", loc="left", fontsize=11.5)
        handles = [Patch(color=SHOWN[name], label=labels[name]) for name in SHOWN if name in labels]
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
    """One bar with its median at the end, and a line from the least to the largest value."""
    shown = min(values.median, CAP)
    axes.barh(position, shown, height=0.86, color=colour)
    if values.max < CAP:
        axes.plot([values.min, values.max], [position, position], color="#222222", linewidth=0.8)
    place = max(shown, min(values.max, CAP)) + 0.03
    text = f"{values.median:.2f}" if values.median < CAP else f"{values.median:.1f} →"
    axes.text(place, position, text, va="center", fontsize=7.5, color="#222222").set_bbox(
        {"facecolor": "white", "alpha": 0.8, "edgecolor": "none", "pad": 0.6}
    )


def _what(one: Compared) -> str:
    if one.method == "mcdo":
        return f"MC dropout, T = {one.samples}"
    return f"MCBN, b = {one.batch_size}"


def _foot(machine: Mapping[str, Any]) -> str:
    version = torch_uncertainty_version()
    peers = f", TorchUncertainty {version}" if version else ""
    where = machine.get("gpu") or f"{machine['cpu']}, {machine['threads']} thread(s)"
    return f"{where}; torch {machine['torch']}{peers}. Bars: median over the rounds; lines: least to largest."
