"""Small results to draw."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import small_regression
import small_run
from written import folder_of

from bnuq.records.evaluation import Result

folder = folder_of(small_run, "session")


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


@pytest.fixture(scope="session")
def validated(folder: Path) -> Result:
    """A classification with validation points, and so with bounds."""
    test = np.load(folder / "test.npz")
    np.savez(folder / "held_out.npz", x=test["x"] + 0.1, y=test["y"])
    return small_run.evaluated(folder, out=Path("validated.h5"), validation="held_out.npz", methods=("mcbn", "mcdo"))


regression_folder = folder_of(small_regression, "session")


@pytest.fixture(scope="session")
def regression(regression_folder: Path) -> Result:
    """A regression with all methods, validation points and an OOD set."""
    return small_regression.evaluated(regression_folder, out=Path("regression.h5"))


def without_validation(folder: Path, **options: Any) -> Result:
    (folder / "run.toml").write_text(small_regression.RUN.replace('validation = "validation.npz"\n', ""))
    result = small_regression.evaluated(folder, **options)
    (folder / "run.toml").write_text(small_regression.RUN)
    return result


@pytest.fixture(scope="session")
def given_tau(regression_folder: Path) -> Result:
    """τ is given and there are no validation points: scores, but no constant baseline."""
    return without_validation(regression_folder, out=Path("given.h5"), tau=0.02, methods=("mcdo",))


@pytest.fixture(scope="session")
def without_tau(regression_folder: Path) -> Result:
    """Neither validation points nor τ."""
    return without_validation(regression_folder, out=Path("without.h5"), methods=("mcbn", "mcdo"))


@pytest.fixture(scope="session")
def two_outputs(tmp_path_factory: pytest.TempPathFactory) -> Result:
    """A regression of two outputs."""
    place = tmp_path_factory.mktemp("two_outputs")
    text = small_regression.RUN.replace("task =", "arch_args = { outputs = 2 }\ntask =")
    small_regression.write(place, text=text, outputs=2)
    return small_regression.evaluated(place, methods=("mcdo",))
