"""Evaluates many points and many classes, and prints what `bnuq evaluate`, `report` and `check` take: peak memory above
the start, and CPU time.

python benchmarks/large.py [--only n=10000] [--quick]
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import re
import resource
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
PAGE = HERE.parent / "docs" / "measured" / "benchmarks.md"
FEATURES, SAMPLES, HELD_OUT, REFERENCE = 128, 8, 5_000, 20_000
CASES = {  # points, classes and samples
    **{f"n={10**power}": (10**power, 10, SAMPLES) for power in (4, 5, 6)},
    "T=64": (10_000, 10, 8 * SAMPLES),
    "K=1000": (10_000, 1000, SAMPLES),
}
QUICK = {"n=10000": (10_000, 10, SAMPLES), "K=1000": (1_000, 1000, SAMPLES)}
_VARIED = ("points", "classes", "samples")
NETWORK = """
from torch import nn


def network(classes):
    def layer(given, width):
        return nn.Linear(given, width), nn.BatchNorm1d(width), nn.ReLU()

    return nn.Sequential(*layer({features}, 32), *layer(32, 32), nn.Linear(32, classes))
"""


@dataclass(frozen=True)
class Measured:
    """One command: bytes of memory at the start, its peak above that, and seconds of CPU time."""

    start: int
    peak: int
    cpu: float


def main(arguments: list[str] | None = None) -> None:
    """Run the cases, print them, and write `results/large/MACHINE.json`; a whole run also writes the page's table."""
    parser = argparse.ArgumentParser(prog="benchmarks/large.py", description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--quick", action="store_true", help="a minute: 10,000 points, and 1,000 of 1,000 classes")
    parser.add_argument("--only", action="append", choices=CASES, help="this case alone; may be given again")
    parser.add_argument("--threads", type=int, default=1, metavar="K", help="threads of torch (1)")
    parser.add_argument("--out", type=Path, metavar="FILE", help="the JSON file")
    options = parser.parse_args(arguments)
    cases = QUICK if options.quick else {name: CASES[name] for name in options.only or CASES}

    from measuring import machine

    about, rows = machine("cpu") | {"threads": options.threads}, []
    print(_HEADING)
    for name, sizes in cases.items():
        row = {"case": name, **dict(zip(_VARIED, sizes, strict=True))}
        with tempfile.TemporaryDirectory() as folder:
            rows.append(row | _case(Path(folder), *sizes, options))
        print(_line(rows[-1]), flush=True)
    print_growth(rows)
    whole = not (options.quick or options.only)
    name = re.sub(r"\W+", "-", f"{about['cpu']} {about['cores']} cores".lower()).strip("-")
    out = options.out or HERE / "results" / "large" / f"{name}{'' if whole else '.part'}.json"
    out.parent.mkdir(parents=True, exist_ok=True)
    known = {"features": FEATURES, "validation": HELD_OUT, "reference": REFERENCE}
    out.write_text(json.dumps({"machine": about, "sizes": known, "rows": rows}, indent=1) + "\n")
    print(f"Figures: {out}")
    if whole:
        write_table(PAGE, about, rows)


def print_growth(rows: list[dict[str, Any]]) -> None:
    """By which power memory and CPU time of evaluate grow between cases that differ in one size alone."""
    for a, b in itertools.combinations(rows, 2):
        if len(varied := [name for name in _VARIED if a[name] != b[name]]) == 1:
            ratio, of_a, of_b = b[varied[0]] / a[varied[0]], a["evaluate"], b["evaluate"]
            memory, cpu = (math.log(of_b[taken] / of_a[taken], ratio) for taken in ("peak", "cpu"))
            print(f"{a['case']} → {b['case']}: memory ∝ {varied[0]}^{memory:.2f}, CPU time ^{cpu:.2f}")


def _case(folder: Path, points: int, classes: int, samples: int, options: argparse.Namespace) -> dict[str, Any]:
    """Make the inputs, evaluate, report and check."""
    _make_inputs(folder, points, classes)
    result = str(folder / "result.h5")
    sets = ["--train", "train.npy:train_y.npy", "--validation", "held=held.npy:held_y.npy"]
    sets += ["--test", "test.npy:test_y.npy", "--ood", "far=far.npy"]
    network = ["model.pt", "--arch", "network.py:network", "--arch-arg", f"classes={classes}"]
    how = ["--method", "mcbn", "--samples", str(samples), "--batch-size", "64", "--threads", str(options.threads)]
    commands = {
        "evaluate": ["evaluate", *network, *sets, *how, "--out", result, "--quiet"],
        "report": ["report", result, "--json"],
        "check": ["check", result, result],
    }
    taken = {name: asdict(_measured(words, folder, options.threads)) for name, words in commands.items()}
    return {**taken, "file": Path(result).stat().st_size}


def _make_inputs(folder: Path, points: int, classes: int) -> None:
    """A small trained network, and clusters of points: evaluated, held out, of the reference, and moved away."""
    import numpy as np
    import torch

    (folder / "network.py").write_text(NETWORK.replace("{features}", str(FEATURES)))
    centres = 0.5 * np.random.default_rng(0).normal(size=(classes, FEATURES)).astype(np.float32)

    def make(name: str, count: int, seed: int, away: float = 0.0) -> tuple[Any, Any]:
        rng = np.random.default_rng(seed)
        y = rng.integers(0, classes, count)
        x = centres[y] + rng.standard_normal((count, FEATURES), dtype=np.float32) + np.float32(away)
        np.save(folder / f"{name}.npy", x)
        np.save(folder / f"{name}_y.npy", y)
        return x, y

    x, y = (torch.from_numpy(values) for values in make("train", REFERENCE, 1))
    make("held", HELD_OUT, 2)
    make("test", points, 3)
    make("far", points // 2, 4, away=0.3)
    torch.manual_seed(0)
    space: dict[str, Any] = {}
    exec((folder / "network.py").read_text(), space)
    model = space["network"](classes)
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    for _ in range(300):
        rows = torch.randint(0, REFERENCE, (64,))
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x[rows]), y[rows]).backward()
        optimizer.step()
    torch.save(model.state_dict(), folder / "model.pt")


def _measured(words: list[str], folder: Path, threads: int) -> Measured:
    """A command in a process of its own, which says what it took."""
    environment = os.environ | {"OMP_NUM_THREADS": str(threads), "OPENBLAS_NUM_THREADS": str(threads)}
    command = [sys.executable, str(HERE / "large.py"), "--measure", str(folder / "taken.json"), *words]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"bnuq {' '.join(words)} failed:\n{done.stderr}")
    return Measured(**json.loads((folder / "taken.json").read_text()))


def measure(out: Path, words: list[str]) -> int:
    """Run a command here, and write what it took; its exit code. Memory is what no file backs, as far as the system
    tells it, seen fifty times a second."""
    from bnuq.cli.main import main as command

    if words[0] == "evaluate":
        import bnuq.workflows.evaluate  # noqa: F401 - torch is not what is measured
    start = peak = _memory()
    ended = threading.Event()

    def watch() -> None:
        nonlocal peak
        while not ended.wait(0.02):
            peak = max(peak, _memory())

    watching = threading.Thread(target=watch, daemon=True)
    before = time.process_time()
    watching.start()
    try:
        command(words)
        code = 0
    except SystemExit as ending:
        code = int(ending.code or 0)
    ended.set()
    watching.join()
    cpu = time.process_time() - before
    out.write_text(json.dumps(asdict(Measured(start, max(peak, _memory()) - start, cpu))))
    return code


def _memory() -> int:
    try:
        status = Path("/proc/self/status").read_text()
        return int(re.search(r"RssAnon:\s+(\d+) kB", status)[1]) * 1024  # type: ignore[index]
    except (OSError, TypeError):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


_HEADING = (
    "| points, classes | evaluate: peak memory | a point | CPU time | a point | file | report | check |\n"
    "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"
)


def _line(row: dict[str, Any]) -> str:
    points, taken = row["points"], row["evaluate"]
    others = (f"{row[name]['cpu']:.0f} s, {row[name]['peak'] / 1e6:,.0f} MB" for name in ("report", "check"))
    return (
        f"| {points:,}, {row['classes']:,} | {taken['peak'] / 1e6:,.0f} MB | {taken['peak'] / points:,.0f} B | "
        f"{taken['cpu']:,.0f} s | {1e6 * taken['cpu'] / points:,.0f} µs | {row['file'] / 1e6:,.0f} MB | "
        f"{' | '.join(others)} |"
    )


def write_table(page: Path, about: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    """Put the table into the page, between its marks."""
    processor = re.sub(r"\s+\d+-Core.*", "", str(about["cpu"]))
    threads = f"{about['threads']} thread{'s' * (about['threads'] != 1)}"
    said = f"{processor}, {threads}, torch {about['torch']}, {str(about['date'])[:10]}."
    table = "\n".join((_HEADING, *map(_line, rows), "", said))
    text = page.read_text(encoding="utf-8")
    head, mark, remainder = text.partition("<!-- large -->\n")
    _, end, tail = remainder.partition("<!-- /large -->")
    if not (mark and end):
        raise SystemExit(f"{page}: has no place for the table between <!-- large --> and <!-- /large -->.")
    page.write_text(f"{head}{mark}{table}\n\n{end}{tail}", encoding="utf-8")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--measure"]:
        sys.exit(measure(Path(sys.argv[2]), sys.argv[3:]))
    main()
