"""What the package promises as a whole: its names, its records, and that it is light."""

import inspect
import subprocess
import sys

from bnuq import metrics
from bnuq.metrics.registry import ESTIMANDS, metric_of


def test_the_table_names_every_estimate_and_score_once_and_in_words():
    names = [estimand.name for estimand in ESTIMANDS]
    assert len(names) == len({*names}) and {*names} == metrics.METRICS.keys() | metrics.SCORES.keys()
    assert all(estimand.title and estimand.label and estimand.unit and estimand.source for estimand in ESTIMANDS)
    assert all(estimand.limits[0] < estimand.limits[1] for estimand in ESTIMANDS)
    of_sources = metrics.CLASSIFICATION_SCORES, metrics.REGRESSION_SCORES, metrics.LOGIT_SCORES, metrics.FEATURE_SCORES
    assert sorted(name for names in of_sources for name in names) == sorted(metrics.SCORES)


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


def test_only_what_is_compared_with_the_truth_or_with_the_test_set_has_a_direction():
    assert {estimand.direction for estimand in metrics.SCORES.values()} == {"none"}
    for estimand in ESTIMANDS:
        is_directed, is_of_ood = (
            estimand.direction != "none",
            estimand.name.startswith(("pixel_", *metrics.SEPARATIONS)),
        )
        assert estimand.needs_truth or is_of_ood or not is_directed, estimand.name
        assert bool(estimand.worse and estimand.better) == is_directed, estimand.name
        assert estimand.direction == "lower" or " error" not in f" {estimand.label.lower()}", estimand.name


def test_detection_scores_are_named_as_their_metrics():
    assert set(inspect.signature(metrics.DetectionScores).parameters) < set(metrics.METRICS)


def test_every_public_function_says_where_it_comes_from():
    functions = {name: value for name, value in vars(metrics).items() if inspect.isfunction(value)}
    assert len(functions) > 100
    assert not [name for name, function in functions.items() if "Source: " not in (inspect.getdoc(function) or "")]


def test_importing_metrics_imports_neither_torch_nor_scipy():
    check = "import sys, bnuq.metrics; assert not {'torch', 'scipy', 'h5py'} & set(sys.modules), 'heavy'"
    subprocess.run([sys.executable, "-c", check], check=True)
