"""Every estimate of the table, in results of every task: its value, its errors and its range follow from the points.

The estimates of a result come from streaming sums; here each is computed once more by the formula of its row.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import small_regression
import small_run
import small_segmentation
from eight_results import multilabel

from bnuq import metrics
from bnuq.evaluation.estimates import interval
from bnuq.evaluation.tasks.classification import limits_of
from bnuq.metrics.registry import estimates_of_task, metric_of
from bnuq.records.addresses import estimates_of
from bnuq.records.contributions import PointContributions
from bnuq.records.evaluation import Result
from bnuq.store.table import Row


def classification(folder: Path) -> Result:
    small_run.write(folder)
    with np.load(folder / "test.npz") as test:
        x, y = test["x"], test["y"]
    np.savez(folder / "held_out.npz", x=x[:20], y=y[:20])
    np.savez(folder / "test.npz", x=x[20:], y=y[20:], group=np.arange(40) // 2)
    given: dict[str, Any] = {"validation": "held_out.npz", "methods": ("mcbn", "mcdo"), "risk": 0.4, "confidence": 0.6}
    return small_run.evaluated(folder, out=folder / "out.h5", **given)


def regression(folder: Path) -> Result:
    small_regression.write(folder)
    return small_regression.evaluated(folder, out=folder / "out.h5", methods=("mcbn", "mcdo"), risk=0.2)


def segmentation(folder: Path) -> Result:
    small_segmentation.write(folder)
    return small_segmentation.evaluated(folder)


RESULTS = {made.__name__: made for made in (classification, multilabel, regression, segmentation)}


@pytest.fixture(scope="module", params=RESULTS)
def result(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Result:
    return RESULTS[request.param](tmp_path_factory.mktemp("every") / "run")


def rows(result: Result) -> Iterator[tuple[str, Row]]:
    return ((address, row) for address, row in estimates_of(result).items() if not metric_of(row["metric"]).is_fitted)


def test_the_interval_of_a_log_probability_ends_at_0() -> None:
    assert interval("pll", -0.001, 0.01, None, limits=limits_of("pll", "plug-in"))[1] == 0


def test_a_value_is_that_of_its_formula(result: Result) -> None:
    points = PointContributions(result)
    for address, row in rows(result):
        expected = points.value(row)
        assert expected is not None, address
        assert row.estimate.value == pytest.approx(expected, rel=1e-9, abs=1e-9, nan_ok=True), address


def test_an_error_over_points_is_that_of_what_the_points_contribute(result: Result) -> None:
    points, checked = PointContributions(result), set()
    for address, row in rows(result):
        parts = points.contributions(row)
        if row.estimate.se is None or parts is None or metric_of(row["metric"]).resampled:
            continue
        groups = {name: None if row["group"] else result.sets[name].group for name in parts}
        part = points.rows(row)
        if part is not None:  # of a class or group: the other points contribute nothing
            parts = {name: each[part] * (len(part) / len(each)) for name, each in parts.items()}
            groups = {name: None if group is None else group[part] for name, group in groups.items()}
        error = math.hypot(*(metrics.standard_error(each, group=groups[name]) for name, each in parts.items()))
        at_bound = row["metric"] == "auroc" and error == 0  # where it is by the bootstrap
        if math.isfinite(error) and not at_bound:
            assert row.estimate.se == pytest.approx(error, rel=1e-6, abs=1e-12), address
            checked.add(row["metric"])
    assert len(checked) > 5


def test_values_intervals_and_replicates_stay_in_range(result: Result) -> None:
    for address, row in estimates_of(result).items():
        estimate, (low, high) = row.estimate, metric_of(row["metric"]).limits
        replicates = [values for values in (estimate.jackknife, estimate.bootstrap) if values is not None]
        values = np.concatenate([[estimate.value], *replicates])
        values = values[np.isfinite(values)]
        assert ((values >= low - 1e-9) & (values <= high + 1e-9)).all(), address
        if estimate.low is not None and estimate.high is not None:
            assert low <= estimate.low <= estimate.high <= high, address


def test_a_result_has_the_estimates_of_its_task(result: Result) -> None:
    """All that are required; of points with one label or with targets all but those of several labels and of checks."""
    present, task = {row["metric"] for row in estimates_of(result).values()}, result.model["task"]
    is_whole = task != "segmentation" and not result.model.get("labels")
    for name, estimand in estimates_of_task(task).items():
        is_of_check = name == "label_auroc" or name.startswith("threshold_")
        assert name in present or is_of_check or not (is_whole or task in estimand.required), name
