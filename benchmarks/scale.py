"""One evaluation by one process, by several and on Ray: wall-clock and CPU time of all processes of each.

ResNet-20, CIFAR-10's test part and the circuit boards, from start to finish. Results stand in results/, where a later
call with the same work and machine adds to them.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from measuring import file_name, machine

from bnuq.records.evaluation_file import read

ROOT = Path(__file__).resolve().parent.parent
WAYS = ("one", "local", "ray")
_MARK, _PAUSE = "BNUQ_BENCHMARK_OF", 0.05
_TICK = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Took:
    """The seconds of one way: on the clock, and of the processors in all its processes; `root` is that of its units."""

    wall: float
    cpu: float
    root: str


class Watch:
    """Counts the processor time of all processes that have a mark in their environment, whoever their parent is."""

    def __init__(self, mark: str) -> None:
        self._mark, self._seconds = f"{_MARK}={mark}".encode(), dict[tuple[int, int], float]()
        self._others, self._over = set[int](), threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    @property
    def seconds(self) -> float:
        return sum(self._seconds.values())

    def _watch(self) -> None:
        while not self._over.wait(_PAUSE):
            for place in Path("/proc").glob("[0-9]*"):
                if (number := int(place.name)) not in self._others:
                    with contextlib.suppress(OSError):
                        self._look(place, number)

    def _look(self, place: Path, number: int) -> None:
        fields = (place / "stat").read_text().rpartition(")")[2].split()
        name = number, int(fields[19])  # when it was started
        if name not in self._seconds and self._mark not in (place / "environ").read_bytes().split(b"\0"):
            if time.clock_gettime(time.CLOCK_BOOTTIME) - name[1] / _TICK > 1:
                self._others.add(number)  # not one that is about to become another program
            return
        self._seconds[name] = sum(map(int, fields[11:13])) / _TICK


def took(way: str, command: list[str], folder: Path) -> Took:
    """The seconds of a command; RuntimeError where it fails."""
    mark = f"{os.getpid()}-{way}"
    environment = os.environ | {"OMP_NUM_THREADS": "1", _MARK: mark, "PYTHONPATH": os.pathsep.join(sys.path)}
    whole = [sys.executable, "-m", "bnuq", *command]
    with Watch(mark) as watch:
        start = time.perf_counter()
        done = subprocess.run(whole, env=environment, stderr=subprocess.PIPE, text=True, cwd=ROOT, check=False)
        if done.returncode:
            raise RuntimeError(f"{way} failed:\n{done.stderr}")
        wall = time.perf_counter() - start
    return Took(wall, watch.seconds, read(folder / f"{way}.h5").provenance["units"])


def measured(way: str, options: Any, pack: Path) -> Took:
    """The seconds of one way to do the work."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        place = folder / "sample_configs"
        shutil.copytree(ROOT / "sample_configs", place, ignore=shutil.ignore_patterns("data"))
        (place / "data").symlink_to(pack)
        evaluate = ["evaluate", str(place / "cifar_resnet20.toml"), "--samples", str(options.samples), "--quiet"]
        evaluate += ["--out", str(folder / f"{way}.h5"), *(["--limit", str(options.limit)] if options.limit else [])]
        count = options.workers
        threads, on = {"one": (1, "local"), "local": (count, f"local:{count}"), "ray": (1, "ray")}[way]
        return took(way, [*evaluate, "--threads", str(threads), "--on", on], folder)


def main() -> None:
    """Measure the ways that were asked for, and print all that is known of this machine."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=32, help="T (default: 32)")
    parser.add_argument("--limit", type=int, default=0, help="points of each set (default: all)")
    parser.add_argument("--workers", type=int, default=2, help="processes (default: 2); Ray uses all cores")
    parser.add_argument("--only", action="append", choices=WAYS, help="measure this way alone; may be repeated")
    parser.add_argument("--again", action="store_true", help="measure again what is in the file already")
    parser.add_argument("--out", type=Path, help="the file of results (default: results/scale/MACHINE.json)")
    options = parser.parse_args()
    if not (named := os.environ.get("BNUQ_TEST_DATA")) or platform.system() != "Linux":
        raise SystemExit("benchmarks/scale.py: set $BNUQ_TEST_DATA (sample_configs/README.md), on Linux.")
    about = machine("cpu") | {"threads": 1}
    out = options.out or ROOT / "benchmarks" / "results" / "scale" / f"{file_name(about)}.json"
    out.parent.mkdir(parents=True, exist_ok=True)
    work = {"samples": options.samples, "limit": options.limit, "workers": options.workers}
    known = json.loads(out.read_text(encoding="utf-8")) if out.exists() else {}
    same = known.get("work") == work and known.get("machine", {}).get("cpu") == about["cpu"]
    ways = known["ways"] if same else {}
    for way in options.only or WAYS:
        if way == "ray" and importlib.util.find_spec("ray") is None:
            print("ray: not installed (pip install 'bnuq[ray]'), left out")
        elif way not in ways or options.again or options.only:
            print(f"{way} …", flush=True)
            ways[way] = asdict(measured(way, options, Path(named).resolve())) | {"load": os.getloadavg()[0]}
            text = json.dumps({"machine": about, "work": work, "ways": ways}, indent=1)
            out.write_text(text + "\n", encoding="utf-8")
    print_table(ways, options.workers)


def print_table(ways: dict[str, Any], count: int) -> None:
    """Seconds, and ratios to one process and to --on local:N."""
    titles = {"one": "one process", "local": f"--on local:{count}", "ray": "--on ray"}
    print(
        f"\n{'':16}{'wall s':>8}{'CPU s':>8}{'wall ÷ one':>12}{'CPU ÷ one':>12}{'wall ÷ local':>14}{'CPU ÷ local':>14}"
    )
    for way in (way for way in WAYS if way in ways):
        row = f"{titles[way]:16}{ways[way]['wall']:8.1f}{ways[way]['cpu']:8.1f}"
        for other, width in (("one", 12), ("local", 14)):
            for clock in ("wall", "cpu"):
                ratio = f"{ways[way][clock] / ways[other][clock]:.2f}" if other in ways else "–"
                row += f"{ratio:>{width}}"
        print(row)
    if len({each["root"] for each in ways.values()}) > 1:
        raise SystemExit(
            "The units of these ways differ: " + ", ".join(f"{w} {e['root'][:12]}" for w, e in ways.items())
        )
    print("The units of all are bitwise the same. A load of the machine by others changes wall-clock times above all.")


if __name__ == "__main__":
    main()
