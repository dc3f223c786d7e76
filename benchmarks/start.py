"""What bnuq costs before and beside its samples: CPU time of small commands, in units of a bare `import torch`.

Every command is a process of its own on one core, with all its children; rounds are interleaved, so that a load of the
machine by others cancels in the ratios of a round. `--bnuq PATH` measures another checkout in the same rounds.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
from measuring import file_name, machine, spread

ROOT = Path(__file__).resolve().parent.parent
NET = """from torch import nn

def net():
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Dropout(0.4), nn.Linear(64, 3)
    )
"""
RUN = """[model]
checkpoint = "model.pt"
arch = "net.py:net"
train_batch_size = 16
[data]
train = "train.npz"
test = "test.npz"
ood = ["other.npz"]
[sampling]
samples = 2
"""
START = "from bnuq.__main__ import main; main()"
EVALUATE = "evaluate, 20 points, T = 2"
COMMANDS = {
    "--version": "--version",
    "--help": "--help",
    "evaluate --help": "evaluate --help",
    "an error in the request": "evaluate run.toml --samples many",
    "a missing file": "evaluate run.toml --test missing.npz",
    EVALUATE: "evaluate run.toml --quiet --out result.h5",
    "report": "report result.h5",
    "check": "check result.h5 result.h5",
    "check of another seed": "check seed0.h5 seed1.h5",
    "report --html": "report result.h5 --html page.html",
}
SEEDS = tuple(f"evaluate run.toml --quiet --samples 8 --seed {seed} --out seed{seed}.h5" for seed in (0, 1))
REFUSED = ("an error in the request", "a missing file")


def small_inputs(folder: Path) -> None:
    """A small network with BatchNorm, and 20 points of it, in the folder."""
    random = np.random.default_rng(0)
    (folder / "net.py").write_text(NET)
    (folder / "run.toml").write_text(RUN)
    names: dict[str, object] = {}
    exec(NET, names)
    torch.manual_seed(0)
    torch.save(names["net"]().state_dict(), folder / "model.pt")  # type: ignore[operator]
    for name, count in (("train", 64), ("test", 20), ("other", 20)):
        points = random.normal(0.5, 0.3, (count, 1, 6, 6)).astype(np.float32)
        np.savez(folder / f"{name}.npz", x=points, y=random.integers(0, 3, count))


def seconds(code: str, words: str, folder: Path, checkout: Path, *, code_expected: int = 0) -> float:
    """The CPU seconds of a Python process in the folder, with its children; RuntimeError where it fails."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    environment |= {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(checkout), "XDG_CACHE_HOME": str(folder / "cache")}
    with (folder / "said").open("wb") as said:
        command = [sys.executable, "-c", code, *words.split()]
        child = subprocess.Popen(command, stdout=said, stderr=said, cwd=folder, env=environment)
        _, status, used = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode != code_expected:
        raise RuntimeError(f"{words or code} failed:\n{(folder / 'said').read_text()}")
    return used.ru_utime + used.ru_stime


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print a table, and write the file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="interleaved rounds (default: 5)")
    parser.add_argument("--bnuq", type=Path, help="another checkout, which is measured in the same rounds")
    parser.add_argument("--only", action="append", choices=COMMANDS, help="time this command alone; may be repeated")
    parser.add_argument("--out", type=Path, help="the file of results (default: results/start/MACHINE.json)")
    options = parser.parse_args(arguments)
    about = machine("cpu") | {"threads": 1}
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(cores)})
    checkouts = {"this": ROOT} | ({str(options.bnuq): options.bnuq.resolve()} if options.bnuq else {})
    wanted = options.only or list(COMMANDS)
    found: dict[str, dict[str, list[float]]] = {name: {each: [] for each in wanted} for name in checkouts}
    units: list[float] = []
    with tempfile.TemporaryDirectory() as place:
        folders = {name: Path(place) / str(number) for number, name in enumerate(checkouts)}
        for name, folder in folders.items():
            folder.mkdir()
            small_inputs(folder)
            for words in SEEDS:
                seconds(START, words, folder, checkouts[name])

        def timed(name: str, each: str) -> float:
            expected = 2 if each in REFUSED else 0
            return seconds(START, COMMANDS[each], folders[name], checkouts[name], code_expected=expected)

        for turn in range(options.rounds + 1):  # the first compiles, and writes the result
            unit = seconds("import torch", "", folders["this"], ROOT)
            row = {n: {e: timed(n, e) for e in COMMANDS if turn == 0 or e in wanted} for n in checkouts}
            unit = (unit + seconds("import torch", "", folders["this"], ROOT)) / 2
            if turn:
                units.append(unit)
                for name in checkouts:
                    for each in wanted:
                        found[name][each].append(row[name][each] / unit)
    os.sched_setaffinity(0, cores)
    ratios = {name: {each: spread(values) for each, values in rows.items()} for name, rows in found.items()}
    print(f"CPU time in units of `import torch` ({spread(units)} s): median (minimum–maximum) of {options.rounds}\n")
    for each in wanted:
        print(f"{each:28}" + "".join(f"{ratios[name][each]!s:>24}" for name in checkouts))
    out = options.out or ROOT / "benchmarks" / "results" / "start" / f"{file_name(about)}.json"
    out.parent.mkdir(parents=True, exist_ok=True)
    rows = {name: {each: asdict(value) for each, value in table.items()} for name, table in ratios.items()}
    document = {"machine": about, "rounds": options.rounds, "torch_seconds": asdict(spread(units)), "ratios": rows}
    out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
