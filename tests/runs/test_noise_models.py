"""Analytic methods of evaluations: held against MCBN where there is a reference, always told to be approximations."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace

import numpy as np
import pytest
import small_run
import torch
from findings_of import noted, warned
from report_text import rendered

from bnuq import metrics
from bnuq.errors import RequestError, SamplingError
from bnuq.estimates import Estimate
from bnuq.evaluation.noise_models import layer_counts
from bnuq.records.approximation import approximations
from bnuq.records.evaluation_file import read
from bnuq.records.summary import summary
from bnuq.report.comparison import compared
from bnuq.report.evaluation import report
from bnuq.sampling.batch_statistics import BatchStatistics, LayerStatistics

MODELS = ("mcbn-chi2", "mcbn-gaussian", "mcbn-empirical")
ALONE = small_run.RUN.replace('train = "train.npz"\n', "")  # no reference


def run(folder, text=small_run.RUN, **options):
    small_run.write(folder, text=text)
    return small_run.evaluated(folder, **options)


@pytest.fixture(scope="module")
def beside(tmp_path_factory):
    """An evaluation of all three noise models on the small network, MCBN having come by itself."""
    return run(tmp_path_factory.mktemp("noise-models"), methods=MODELS, samples=32, post_hoc=False)


@pytest.mark.held
def test_mcbn_runs_beside_the_noise_models_where_there_is_a_reference(beside):
    assert list(beside.methods) == ["deterministic", "mcbn", *MODELS]
    assert "mcbn-added" in noted(beside)


def test_each_noise_model_is_compared_with_mcbn_by_ratio_rank_pll_and_auroc(beside):
    real = beside.methods["mcbn"]
    for approximation in approximations(beside):
        model = beside.methods[approximation.method]
        for name in ("test", "other"):
            modelled, theirs = (m.sets[name].points["mutual_information"] for m in (model, real))
            assert approximation.ratio[name].value == pytest.approx(modelled.mean() / theirs.mean(), rel=1e-5)
            assert approximation.rank[name] == pytest.approx(metrics.spearman(modelled, theirs))
        estimates = model.sets["test"].estimates["pll"], real.sets["test"].estimates["pll"]
        assert approximation.pll.value == pytest.approx(estimates[0].value - estimates[1].value)
        assert approximation.pll.mc_se == pytest.approx(math.hypot(estimates[0].mc_se, estimates[1].mc_se))
        assert set(approximation.auroc) == {"other"}


def test_the_measured_noise_models_come_near_mcbn_on_a_network_of_one_layer(beside):
    for approximation in approximations(beside):
        assert 0.4 < approximation.ratio["test"].value < 2.5
        assert approximation.rank["test"] > 0.5  # of 32 draws: mcbn with others would not reach 1 either


def test_the_comparison_is_in_the_report_the_page_and_the_summary(beside):
    text = rendered(report, beside, full=True)
    assert "Analytic noise models compared with mcbn" in text and "≈ mcbn-chi2" in text
    ratios = summary(beside)["approximations"]
    assert list(ratios) == list(MODELS)
    assert ratios["mcbn-chi2"]["ratio"]["test"]["value"] == pytest.approx(approximations(beside)[0].ratio["test"].value)
    json.dumps(ratios)


def test_what_the_noise_models_were_fitted_to_is_in_the_report_and_beside_others(beside):
    sampling = beside.run["sampling"] | {"covariance": "network", "noise_model_draws": 16}
    results = {"one": beside, "other": replace(beside, run={**beside.run, "sampling": sampling})}
    text = rendered(report, results["other"], full=True)
    assert re.search(r"^settings .*covariance network, noise_model_draws 16", text, re.M)
    rows = {row.what: [*row.values.values()] for row in compared(results) if row.differs}
    assert rows["sampling.noise_model_draws"] == ["64", "16"]
    assert rows["sampling.covariance"] == ["layer", "network"]


def test_the_comparison_can_be_made_from_the_file_alone(beside):
    again = read(beside.path)
    for approximation, other in zip(approximations(again), approximations(beside), strict=True):
        assert approximation.ratio["test"].value == pytest.approx(other.ratio["test"].value, rel=1e-5)
        assert approximation.rank["test"] == pytest.approx(other.rank["test"], abs=1e-3)
    assert again.run["sampling"]["methods"] == ["mcbn", *MODELS]


def test_without_a_reference_the_running_statistics_are_enough_and_the_noise_model_is_told_to_be_unchecked(tmp_path):
    result = run(tmp_path, text=ALONE, methods=("mcbn-chi2", "mcbn-gaussian"), ood=())
    assert list(result.methods) == ["deterministic", "mcbn-chi2", "mcbn-gaussian"]
    assert warned(result) == ["noise-model-unchecked"]
    assert result.methods["mcbn-chi2"].sets["test"].estimates["mutual_information"].value > 0
    assert approximations(result) == () and "approximations" not in summary(result)


def test_what_needs_a_reference_says_so_without_one(tmp_path):
    with pytest.raises(SamplingError, match="mcbn-empirical cannot be drawn: there is no training set"):
        run(tmp_path, text=ALONE, methods=("mcbn-empirical",))
    with pytest.raises(SamplingError, match="mcbn-chi2 cannot be drawn: there is no training set"):
        run(tmp_path, text=ALONE, methods=("mcbn-chi2",), counts="measured")


def test_statistics_that_were_never_trained_are_no_centre_of_a_noise_model(tmp_path):
    small_run.write(tmp_path)
    state = torch.load(tmp_path / "model.pt")
    state["1.running_mean"].zero_()
    state["1.running_var"].fill_(1)
    torch.save(state, tmp_path / "model.pt")
    with pytest.raises(SamplingError, match="initial running statistics"):
        small_run.evaluated(tmp_path, methods=("mcbn-chi2",))


def test_a_noise_model_that_is_badly_off_is_a_warning(tmp_path):
    # 16 positions that are nearly one value each: nominal counts take them for independent
    small_run.write(tmp_path)
    train = np.repeat(np.repeat(np.random.default_rng(0).normal(0.5, 0.3, (96, 1, 1, 1)), 6, 2), 6, 3)
    np.savez(tmp_path / "train.npz", x=train.astype(np.float32), y=np.zeros(96, dtype=int))
    result = small_run.evaluated(tmp_path, methods=("mcbn-chi2",), samples=32, counts="nominal", ood=())
    assert approximations(result)[0].understates
    assert "noise-model-understates" in warned(result)


@pytest.mark.parametrize("covariance", ["nothing", "layer:0", "layer:x"])
def test_a_covariance_that_is_none_is_refused(tmp_path, covariance):
    with pytest.raises(RequestError, match="covariance"):
        run(tmp_path, methods=("mcbn-empirical",), covariance=covariance)


@pytest.mark.nightly  # two runs of three methods
def test_auto_doubles_the_draws_of_noise_models_too(tmp_path):
    methods = ("mcbn-chi2", "mcbn-empirical")
    result = run(tmp_path, methods=methods, samples="auto", max_samples=32, ood=())
    whole = run(tmp_path / "whole", methods=methods, samples=result.sampling["samples"], ood=())
    for name in ("mcbn", *methods):
        stopped, other = (r.methods[name].sets["test"].estimates["mutual_information"].value for r in (result, whole))
        assert stopped == pytest.approx(other, rel=1e-6)


def test_the_counts_of_the_factorised_noise_models_are_in_the_record_and_told(beside, tmp_path):
    assert beside.run["sampling"]["counts"] == "measured"
    assert run(tmp_path, text=ALONE, methods=("mcbn-gaussian",), ood=()).run["sampling"]["counts"] == "nominal"


def test_an_unbiased_variance_is_that_of_the_noise_models_too(tmp_path):
    means = []
    for variance in ("biased", "unbiased"):
        result = run(tmp_path / variance, text=ALONE, methods=("mcbn-chi2",), variance=variance, batch_size=2, ood=())
        means.append(result.methods["mcbn-chi2"].sets["test"].estimates["pll"].value)
    assert means[0] != means[1]


def test_counts_do_not_depend_on_the_divisor_of_the_variance():
    draws, count, found = np.random.default_rng(0).normal(size=(200, 4, 30)), np.full(200, 4), []
    for divisor, variance in enumerate(("biased", "unbiased")):
        layer = LayerStatistics("bn", 1e-5, draws.mean(1), draws.var(1, ddof=divisor), count)
        found.append(layer_counts(BatchStatistics((layer,), "f", 4, variance=variance), math.inf)[0])
    assert found[1].mean == pytest.approx(found[0].mean) and found[1].sd == pytest.approx(found[0].sd)


def test_options_that_no_method_draws_by_are_told(tmp_path):
    sampler = {"covariance": "network", "replacement": True, "counts": "nominal"}
    result = run(tmp_path, methods=("mcdo",), ood=(), **sampler)
    ignored = [finding.values["key"] for finding in result.findings if finding.code == "setting-ignored"]
    assert ignored == ["replacement", "counts", "covariance"]
    assert "setting-ignored" not in noted(run(tmp_path / "mcbn", methods=("mcbn",), ood=()))


def test_no_verdict_is_given_where_the_error_is_not_known(beside):
    (approximation, *_) = approximations(beside)
    for value in (0.01, 100.0):
        unknown = replace(approximation, ratio={"test": Estimate(value)})
        assert not unknown.understates and not unknown.overstates
    loose = replace(approximation, ratio={"test": Estimate(0.3, mc_se=0.01)}, fit=0.5)
    assert not loose.understates and replace(loose, fit=0.1).understates


def test_a_report_says_which_layers_were_sampled_and_with_which_mini_batches(beside, tmp_path):
    alone = run(tmp_path, text=ALONE, methods=("mcbn-chi2",), ood=())
    assert "mini-batches of 16, seed 0" in rendered(report, alone, full=True)
    assert "BatchNorm layers:" not in rendered(report, beside, full=True)
    part = replace(beside, model={**beside.model, "batchnorm_layers": 3})
    assert "1 of 3 BatchNorm layers: 1" in rendered(report, part, full=True)
