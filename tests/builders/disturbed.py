"""Random small evaluations in several processes that are killed at random: bitwise those of one undisturbed process.

`make soak` runs this file for minutes.
"""

from __future__ import annotations

import contextlib
import json
import random
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import small_regression
import small_run
import small_segmentation
import torch

from bnuq.config import Options, resolve
from bnuq.errors import ResultError
from bnuq.evaluation import scoring
from bnuq.evaluation.setup import threads
from bnuq.records.evaluation import Result
from bnuq.records.evaluation_file import read
from bnuq.workflows import processes
from bnuq.workflows.evaluate import evaluate

SMALL: dict[str, tuple[Callable[[Path], Path], dict[str, Any]]] = {
    "classification": (small_run.write, {"methods": ("mcbn", "mcdo"), "chunk_size": 20, "validation": "test.npz"}),
    "regression": (small_regression.write, {"chunk_size": 10}),
    "segmentation": (small_segmentation.write, {"chunk_size": 4, "save_maps": True}),
}


def evaluated(folder: Path, name: str, work: Path | str | None = None, **options: Any) -> Result:
    evaluate(resolve("run.toml", Options(out=folder / name, **options), folder=folder), work=work)
    return read(folder / name)


def assert_same(found: Any, expected: Any, place: str = "") -> None:
    """Bitwise, NaN included; seconds and what it took aside."""
    if isinstance(expected, dict):
        assert list(found) == list(expected), place
        for name, value in expected.items():
            assert_same(found[name], value, f"{place}.{name}")
    elif isinstance(expected, np.ndarray):
        assert found.dtype == expected.dtype, place
        np.testing.assert_array_equal(found, expected, err_msg=place)
    elif isinstance(expected, list | tuple):
        assert_same(dict(enumerate(found)), dict(enumerate(expected)), place)
    elif hasattr(expected, "__dict__"):
        assert_same(vars(found), vars(expected), place)
    else:
        assert found == expected or (found != found and expected != expected), place


def figures(result: Result) -> dict[str, Any]:
    """All of a result but times, paths and the machine."""
    maps = {
        (method, name): list(each.maps)
        for method, of_method in result.methods.items()
        for name, each in of_method.sets.items()
        if each.maps is not None
    }
    estimates = {
        method: {
            name: value if name != "sets" else {key: vars(each) | {"maps": None} for key, each in value.items()}
            for name, value in vars(of_method).items()
        }
        for method, of_method in result.methods.items()
    }
    return {
        "methods": estimates,
        "maps": maps,
        "sets": {name: vars(each) | {"reference": None} for name, each in result.sets.items()},
        "bank": result.bank,
        "units": dict(result.units),
        "root": result.provenance["units"],
        "gallery": list(result.gallery),
        "findings": [finding.code for finding in result.findings],
    }


@contextlib.contextmanager
def computing_nothing() -> Iterator[None]:
    """A block in which this process computes no unit: others have to."""
    plain = scoring.run_unit

    def refused(_: Any, unit: Any) -> Any:
        raise AssertionError(f"{unit.name} was computed by this process")

    scoring.run_unit = refused
    try:
        yield
    finally:
        scoring.run_unit = plain


@contextlib.contextmanager
def killing(chance: random.Random, work: Path, most: int) -> Iterator[list[int]]:
    """A block in which processes that compute units are killed at random, at most so many, each in one of the first
    units that it has begun, by the notes that it leaves at `work`; whom it killed."""
    started: list[Any] = []
    killed: list[int] = []
    plain, over = processes.Processes._started, threading.Event()

    def noted(*given: Any) -> Any:
        started.append((found := plain(*given)).process)
        return found

    def kill() -> None:
        limits: dict[int, int] = {}
        begun: dict[int, set[str]] = {}
        while len(killed) < most and not over.wait(0.002):
            for note in work.glob("*.try?"):
                with contextlib.suppress(OSError, ValueError):  # it has just been finished
                    begun.setdefault(json.loads(note.read_bytes())["process"], set()).add(note.stem)
            for process in started:
                limit = limits.setdefault(process.pid, chance.randint(1, 20))
                if len(begun.get(process.pid, ())) >= limit and process.poll() is None and len(killed) < most:
                    process.kill()
                    killed.append(process.pid)

    killer = threading.Thread(target=kill, daemon=True)
    processes.Processes._started = noted
    killer.start()
    try:
        yield killed
    finally:
        over.set()
        killer.join()
        processes.Processes._started = plain


def soak(folder: Path, seed: int, *, samples: int = 0, most: int = 8) -> tuple[str, int]:
    """Compare one random evaluation under kills with the undisturbed one; what it was, and how many were killed."""
    chance = random.Random(seed)
    kind = chance.choice([*SMALL])
    write, options = SMALL[kind]
    write(folder)
    options = options | {"seed": seed, "samples": samples or chance.choice([32, 128, 256])}
    options |= {"chunk_size": chance.choice([1, 2, 5])}
    if kind != "segmentation":
        options |= chance.choice([{}, {"save_samples": True}, {"bank": 300}])
    count = chance.choice([2, 2, 3])
    with threads(max(1, torch.get_num_threads() // count)):  # the number of threads changes the rounding
        expected = figures(evaluated(folder, "undisturbed.h5", **options))
    with killing(chance, folder / "disturbed.h5.work", most) as killed, computing_nothing():
        while True:
            try:
                found = evaluated(folder, "disturbed.h5", on=f"local:{count}", **options)
                break
            except ResultError as error:  # by chance the same unit was killed three times: the same command goes on
                assert "after 3 attempts" in str(error) and len(killed) > 2
    assert_same(figures(found), expected)
    assert not (folder / "disturbed.h5.work").exists()
    return f"{kind}, {count} processes, {len(expected['units'])} units", len(killed)


def main(minutes: float) -> None:
    """Soak for so long, and say what was killed."""
    until, seed, total = time.monotonic() + 60 * minutes, int(time.time()), 0
    while time.monotonic() < until:
        with tempfile.TemporaryDirectory() as folder:
            what, killed = soak(Path(folder), seed)
        total += killed
        print(f"seed {seed}: {what}, {killed} killed, {total} in all: bitwise equal", flush=True)
        seed += 1


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 5.0)
