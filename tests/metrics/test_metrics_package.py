"""What the package promises as a whole: its names, its records, and that it is light."""

import inspect
import subprocess
import sys

from bnuq import metrics
from bnuq.metrics.registry import metric_of
from bnuq.records.evaluation import AGGREGATIONS, OF_COMPONENTS

AT_BOUNDARIES = [
    f"{score}_{place}" for score in ("mutual_information", "predictive_entropy") for place in ("boundary", "interior")
]


def test_the_registry_names_every_estimate_once():
    assert list(metrics.METRICS) == [
        "accuracy", "rmse", "mae", "crps", "pll", "brier", "ece", "ece_adaptive", "ece_classwise", "ece_debiased",
        "mce", "label_auroc", "mutual_information", "predictive_entropy", "expected_entropy", "variation_ratio",
        "max_probability", *metrics.SELECTIVE, "set_size", "set_coverage", "set_size_aps", "set_coverage_aps",
        "auroc", "aupr_out", "aupr_in", "fpr95", "fpr95_id_positive", "mean_iou", "iou", "dice", *AT_BOUNDARIES,
        "ece_boundary", *(f"component_{name}" for name in OF_COMPONENTS),
        *(f"image_aurc_{name}" for name in AGGREGATIONS), "pixel_auroc", "pixel_aupr_out",
        "pixel_aupr_in", "pixel_fpr95", "pixel_fpr95_id_positive",
        "pixel_auroc_per_image", "pixel_aupr_out_per_image", "pixel_fpr95_per_image",
        "pixel_segment_f1", "pixel_segment_siou", "pixel_segment_ppv",
        "normalized_pll", "normalized_crps",
        "coverage50", "coverage95",
        "spearman", "variance", "count", "temperature", "tau", "sigma",
    ]  # fmt: skip
    assert metrics.CLASSIFICATION_SCORES == (
        "mutual_information", "predictive_entropy", "expected_entropy", "least_confidence",
    )  # fmt: skip
    assert metrics.REGRESSION_SCORES == ("variance",)
    assert metrics.LOGIT_SCORES == ("max_logit", "energy")
    assert sorted(metrics.FEATURE_SCORES) == ["gen", "knn", "mahalanobis", "react", "relative_mahalanobis", "vim"]
    assert set(metrics.SCORES) == {
        *metrics.CLASSIFICATION_SCORES, *metrics.REGRESSION_SCORES, *metrics.LOGIT_SCORES, *metrics.FEATURE_SCORES,
    }  # fmt: skip
    for records in (metrics.METRICS, metrics.SCORES):
        for name, metric in records.items():
            assert metric.name == name
            assert metric.title
            assert metric.label
            assert metric.unit
            assert metric.source


def test_no_two_metrics_are_called_the_same_and_no_name_is_shorter_than_its_short_form():
    known = [*metrics.METRICS.values(), metrics.SCORES["least_confidence"]]
    for names in ({metric.label for metric in known}, {metric.short or metric.label for metric in known}):
        assert len(names) == len(known)
    assert all(len(metric.short) < len(metric.label) for metric in known)


def test_a_name_that_is_no_metric_has_its_words_and_neither_unit_nor_direction():
    unknown = metric_of("effective_sample_size")
    assert (unknown.label, unknown.unit, unknown.direction) == ("effective sample size", "1", "none")
    assert metric_of("least_confidence") is metrics.SCORES["least_confidence"]


def test_the_names_of_selective_prediction_are_those_of_its_scores():
    assert tuple(inspect.signature(metrics.SelectiveScores).parameters) == metrics.SELECTIVE


def test_uncertainties_have_no_direction_and_errors_are_better_lower():
    directions = {name: metric.direction for name, metric in metrics.METRICS.items()}
    assert {name for name, direction in directions.items() if direction == "none"} == {
        "mutual_information", "predictive_entropy", "expected_entropy", "variation_ratio", "max_probability",
        "set_coverage", "set_coverage_aps", "coverage50", "coverage95", "variance", "count", "temperature", "tau",
        "sigma", *AT_BOUNDARIES, *(f"component_{name}" for name in OF_COMPONENTS),
    }  # fmt: skip
    assert {name for name, direction in directions.items() if direction == "lower"} == {
        "set_size", "set_size_aps", "brier", "ece", "ece_adaptive", "ece_classwise", "ece_debiased", "mce", "aurc",
        "augrc", "risk_at_80", "fpr95", "fpr95_id_positive", "rmse", "mae", "crps", "pixel_fpr95",
        "pixel_fpr95_id_positive", "pixel_fpr95_per_image", "ece_boundary",
        *(f"image_aurc_{name}" for name in AGGREGATIONS),
    }  # fmt: skip
    assert {metric.direction for metric in metrics.SCORES.values()} == {"none"}


def test_detection_scores_are_named_as_their_metrics():
    assert set(inspect.signature(metrics.DetectionScores).parameters) < set(metrics.METRICS)


def test_every_public_function_says_where_it_comes_from():
    functions = {name: value for name, value in vars(metrics).items() if inspect.isfunction(value)}
    assert len(functions) > 100
    assert not [name for name, function in functions.items() if "Source: " not in (inspect.getdoc(function) or "")]


def test_importing_metrics_imports_neither_torch_nor_scipy():
    check = "import sys, bnuq.metrics; assert not {'torch', 'scipy', 'h5py'} & set(sys.modules), 'heavy'"
    subprocess.run([sys.executable, "-c", check], check=True)
