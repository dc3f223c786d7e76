"""What the package promises as a whole: its names, its records, and that it is light."""

import inspect
import subprocess
import sys

import pytest

from bnuq import metrics

FUNCTIONS = [name for name in metrics.__all__ if inspect.isfunction(getattr(metrics, name))]


def test_the_registry_names_every_estimate_once():
    assert list(metrics.METRICS) == [
        "accuracy", "pll", "brier", "ece",
        "mutual_information", "predictive_entropy", "expected_entropy", "variation_ratio", "max_probability",
        "aurc", "auroc", "aupr_out", "aupr_in", "fpr95", "fpr95_id_positive",
        "rmse", "mae", "crps", "normalized_pll", "normalized_crps", "coverage50", "coverage95", "spearman", "variance",
        "tau", "sigma",
    ]  # fmt: skip
    assert metrics.CLASSIFICATION_SCORES == (
        "mutual_information", "predictive_entropy", "expected_entropy", "least_confidence",
    )  # fmt: skip
    assert metrics.REGRESSION_SCORES == ("variance",)
    assert list(metrics.SCORES) == [*metrics.CLASSIFICATION_SCORES, *metrics.REGRESSION_SCORES]
    for records in (metrics.METRICS, metrics.SCORES):
        for name, metric in records.items():
            assert metric.name == name
            assert metric.title
            assert metric.unit
            assert metric.source


def test_uncertainties_have_no_direction_and_errors_are_better_lower():
    directions = {name: metric.direction for name, metric in metrics.METRICS.items()}
    assert {name for name, direction in directions.items() if direction == "none"} == {
        "mutual_information", "predictive_entropy", "expected_entropy", "variation_ratio", "max_probability",
        "coverage50", "coverage95", "variance", "tau", "sigma",
    }  # fmt: skip
    assert {name for name, direction in directions.items() if direction == "lower"} == {
        "brier", "ece", "aurc", "fpr95", "fpr95_id_positive", "rmse", "mae", "crps",
    }  # fmt: skip
    assert {metric.direction for metric in metrics.SCORES.values()} == {"none"}


def test_detection_scores_are_named_as_their_metrics():
    assert set(inspect.signature(metrics.DetectionScores).parameters) < set(metrics.METRICS)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_public_function_says_where_it_comes_from(name):
    assert "Source: " in (inspect.getdoc(getattr(metrics, name)) or "")


def test_importing_metrics_imports_neither_torch_nor_scipy():
    check = "import sys, bnuq.metrics; assert not {'torch', 'scipy', 'h5py'} & set(sys.modules), 'heavy'"
    subprocess.run([sys.executable, "-c", check], check=True)
