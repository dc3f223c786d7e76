"""Several processes compute the units of a run, are killed, and the result is bitwise that of one process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import small_regression
import small_run
import small_segmentation

from bnuq.config import Options, resolve
from bnuq.records.evaluation import Result
from bnuq.records.evaluation_file import read
from bnuq.workflows.evaluate import evaluate

pytestmark = pytest.mark.held(False)
SMALL: dict[str, tuple[Callable[[Path], Path], dict[str, Any]]] = {
    "classification": (small_run.write, {"methods": ("mcbn", "mcdo"), "chunk_size": 10, "validation": "test.npz"}),
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
        "sets": dict(result.sets),
        "bank": result.bank,
        "units": dict(result.units),
        "root": result.provenance["units"],
        "gallery": list(result.gallery),
        "findings": [str(finding) for finding in result.findings],
    }


@pytest.mark.parametrize("kind", SMALL)
def test_two_processes_give_the_figures_of_one(tmp_path: Path, kind: str) -> None:
    write, options = SMALL[kind]
    write(tmp_path)
    one = evaluated(tmp_path, "one.h5", **options)
    two = evaluated(tmp_path, "two.h5", on="local:2", **options)
    assert_same(figures(two), figures(one))
    assert len(one.units) > 10 and not (tmp_path / "two.h5.work").exists()
