"""Small results to draw."""

from __future__ import annotations

from pathlib import Path

import pytest
import small_run

from bnuq.results.result import Result


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("small")
    small_run.write(place)
    return place


@pytest.fixture(scope="session")
def four_methods(folder: Path) -> Result:
    """Deterministic, mcbn, mcdo and both, against one OOD set."""
    return small_run.evaluated(folder, out=Path("four.h5"))


@pytest.fixture(scope="session")
def two_sets(folder: Path) -> Result:
    """Two OOD sets of long names."""
    names = ("pictures_of_something_else_entirely", "even_stranger_things_seen_at_night_from_far")
    return small_run.evaluated(
        folder, out=Path("two.h5"), methods=("mcbn",), ood=tuple(f"{name}=other.npz" for name in names)
    )


@pytest.fixture(scope="session")
def deterministic(tmp_path_factory: pytest.TempPathFactory) -> Result:
    """A network in which nothing is stochastic, and no OOD set."""
    place = tmp_path_factory.mktemp("plain")
    text = small_run.RUN.replace("[data]", "arch_args = { norm = false, rate = 0.0 }\n[data]")
    small_run.write(place, text=text.replace('ood = ["other.npz"]\n', ""), norm=False, rate=0.0)
    return small_run.evaluated(place)
