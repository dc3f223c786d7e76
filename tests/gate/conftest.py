"""Small evaluations, made once: the same network twice by one seed, by another, and on an OOD set."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import small_regression
import small_run
import torch

from bnuq.records.evaluation import Result
from bnuq.records.evaluation_file import read

Evaluated = Callable[..., Result]


@pytest.fixture(scope="session")
def evaluated(tmp_path_factory: pytest.TempPathFactory) -> Evaluated:
    """`evaluated(NAME, **options)`: the tiny network, evaluated once for each name, as its file has it; by
    `run_file="changed.toml"` one with other weights."""
    folder = tmp_path_factory.mktemp("gate")
    small_run.write(folder)
    shutil.copy(folder / "test.npz", folder / "other_test.npz")  # to validate on: no point of it was trained on
    weights, x = torch.load(folder / "model.pt", weights_only=True), np.load(folder / "test.npz")["x"]
    model = small_run.network()
    model.load_state_dict(weights)
    np.savez(folder / "learned.npz", x=x, y=model.eval()(torch.from_numpy(x)).argmax(1).numpy())
    weights["7.weight"] = 0.9 * weights["7.weight"]  # of the last layer: a little less sure of everything
    torch.save(weights, folder / "changed.pt")
    (folder / "changed.toml").write_text(small_run.RUN.replace("model.pt", "changed.pt"))

    found: dict[str, Result] = {}

    def once(name: str, **options: Any) -> Result:
        if name not in found:
            path = folder / f"{name}.h5"
            given = {"samples": 16, "methods": ("mcbn", "mcdo"), "post_hoc": False} | options
            small_run.evaluated(folder, out=path, **given)
            found[name] = read(path)
        return found[name]

    return once


@pytest.fixture(scope="session")
def regression(tmp_path_factory: pytest.TempPathFactory) -> Evaluated:
    """The same with a tiny regression."""
    folder = tmp_path_factory.mktemp("regression")
    small_regression.write(folder)

    found: dict[str, Result] = {}

    def once(name: str, **options: Any) -> Result:
        if name not in found:
            path = folder / f"{name}.h5"
            small_regression.evaluated(folder, out=path, **({"samples": 16, "methods": ("mcbn",)} | options))
            found[name] = read(path)
        return found[name]

    return once
