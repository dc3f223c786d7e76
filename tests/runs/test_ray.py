"""Units on Ray's actors, one of which is killed: bitwise those of one process. Slow, and skipped without ray."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import pytest
from disturbed import SMALL, assert_same, computing_nothing, evaluated, figures

ray = pytest.importorskip("ray")
pytestmark = [pytest.mark.nightly, pytest.mark.held(False), pytest.mark.filterwarnings("ignore")]


def kill_an_actor(folder: Path, killed: list[int]) -> None:
    """Kill the process of an actor that has begun a unit, by the note that it left."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and not killed:
        for note in folder.glob("*.try0"):
            try:
                process = int(note.read_text().partition('"process": ')[2].partition("}")[0])
                os.kill(process, signal.SIGKILL)
            except (OSError, ValueError):
                continue
            killed.append(process)
            break
        time.sleep(0.001)


@pytest.mark.parametrize("kind", SMALL)
def test_actors_give_the_figures_of_one_process_though_one_is_killed(tmp_path: Path, kind: str) -> None:
    make, options = SMALL[kind]
    make(tmp_path)
    options = options | {"samples": 64, "chunk_size": 1}
    killed: list[int] = []
    killer = threading.Thread(target=kill_an_actor, args=(tmp_path / "ray.h5.work", killed), daemon=True)
    killer.start()
    with computing_nothing():
        found = evaluated(tmp_path, "ray.h5", on="ray", **options)
    killer.join(1)
    assert killed
    assert_same(figures(found), figures(evaluated(tmp_path, "one.h5", **options)))
