"""What a mini-batch may be, by option and by run file: done, recorded, told, and never compared with another."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import at_night
import h5py
import numpy as np
import pytest
import small_regression
import small_run
from report_text import rendered

from bnuq.config import Options, resolve, resolve_again, resolve_sweep
from bnuq.errors import BnuqError, RequestError, ResultError, SamplingError
from bnuq.gate import GateSettings
from bnuq.gate.compatibility import check_comparable
from bnuq.gate.pairing import pairing
from bnuq.records.evaluation import Result
from bnuq.records.evaluation_file import read
from bnuq.report import comparison
from bnuq.report.evaluation import report
from bnuq.studies.sweep.compute import sweep

OPTIONS: dict[str, dict[str, Any]] = {
    "unbiased": {"variance": "unbiased"},
    "stratified": {"batches": "stratified"},
    "group": {"batches": "group"},
    "replacement": {"replacement": True},
}
T = 4


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small run; its reference comes from four laboratories."""
    folder = tmp_path_factory.mktemp("sampler")
    small_run.write(folder)
    with np.load(folder / "train.npz") as arrays:
        np.savez(folder / "train.npz", **arrays, laboratory=np.arange(small_run.TRAIN) % 4)
    return folder


def run(folder: Path, name: str, *, sampler: dict[str, Any], **options: Any) -> Result:
    given = {"methods": ("mcbn",), "samples": T, "out": Path(f"{name}.h5"), "save_samples": True, "limit": 12}
    given |= {"post_hoc": False} | options
    given |= {"group": "laboratory"} if sampler.get("batches") == "group" else {}
    return small_run.evaluated(folder, **sampler, **given)


@pytest.fixture(scope="module")
def results(folder: Path) -> dict[str, Result]:
    every = {"usual": {}} | OPTIONS
    return {name: run(folder, name.replace(" ", "-"), sampler=sampler) for name, sampler in every.items()}


def raw(result: Result, name: str = "test") -> np.ndarray:
    with h5py.File(result.path) as file:
        return file[f"posterior_predictive/mcbn_{name}"][0]


@pytest.mark.parametrize("name", OPTIONS)
def test_each_option_changes_the_samples_and_is_in_the_record_and_the_report(results, folder, name):
    result, usual = results[name], results["usual"]
    assert not np.array_equal(raw(result), raw(usual))
    assert np.isfinite(raw(result)).all()
    recorded = {key: value for key, value in read(result.path).run["sampling"].items() if key in ("variance", *_KEYS)}
    assert recorded == OPTIONS[name] and not set(_KEYS) & set(usual.run["sampling"])
    again = resolve_again(dict(read(result.path).run), result.path, Options(), folder=folder)
    assert {key: getattr(again.sampler, key) for key in recorded} == recorded
    text = rendered(report, result, full=True)
    assert "\nsettings  " in text and all(f"{key} {value}" in text for key, value in OPTIONS[name].items())
    assert "\nsettings  " not in rendered(report, usual, full=True)


_KEYS = ("batches", "replacement")


def test_what_was_drawn_is_what_was_asked_for(results, folder):
    labels = np.load(folder / "train.npz")["y"]
    share = np.bincount(labels) * 16 / small_run.TRAIN
    for rows in results["stratified"].bank.indices:
        assert (np.abs(np.bincount(labels[rows], minlength=3) - share) < 1).all()
        assert len(set(rows.tolist())) == 16
    assert [len(set((rows % 4).tolist())) for rows in results["group"].bank.indices] == [1] * T
    assert any(len(set(rows.tolist())) < 16 for rows in results["replacement"].bank.indices)
    unbiased, usual = results["unbiased"].bank, results["usual"].bank
    np.testing.assert_array_equal(unbiased.indices, usual.indices)
    np.testing.assert_allclose(unbiased.layers[0].var, usual.layers[0].var * 256 / 255, rtol=1e-6)  # n = 16 · 4 · 4
    assert unbiased.variance == "unbiased"


def test_the_reference_is_checked_on_the_same_batches_whatever_is_asked(results):
    checks = [result.reference_check for result in results.values()]
    assert all(np.array_equal(check.mean, checks[0].mean) for check in checks)


@pytest.mark.parametrize("name", at_night.but({"group"}, ["stratified", "group"]))
def test_fewer_samples_are_the_beginning_of_more(results, folder, name):
    fewer = run(folder, "fewer", sampler=OPTIONS[name], samples=2, ood=())
    np.testing.assert_array_equal(raw(fewer), raw(results[name])[:2])


@pytest.mark.parametrize(
    ("sampler", "options", "message"),
    [
        ({}, {"batch_size": 97}, "--batch-size is 97; expected 1 to 96"),
        ({}, {"batch_size": 96}, "batch_size 96 is the whole training set"),
        (
            {"counts": "nominal"},
            {"batch_size": 96, "samples": 1, "methods": ("mcbn-chi2",)},
            "is the whole training set",
        ),
        ({"batches": "group"}, {"batch_size": 25}, "group 0 of the training set (train.npz) has 24 examples"),
        ({"covariance": "diagonal"}, {}, "--covariance is diagonal; expected channel, layer, layer:k"),
        ({"noise_model_draws": 3}, {}, "--noise-model-draws is 3; expected a whole number of at least 8."),
        ({"variance": "half"}, {}, "--variance is half; expected biased or unbiased."),
    ],
)
def test_what_does_not_go_together_is_refused_in_the_users_words(folder, sampler, options, message):
    with pytest.raises(BnuqError) as refused:
        run(folder, "refused", sampler=sampler, **options)
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('covariance = "layer:0"', 'sampling.covariance is "layer:0"; expected channel, layer, layer:k (of k'),
        ('batches = "classes"', 'sampling.batches is "classes"; expected one of random, stratified, group.'),
        ("replacement = 1", "sampling.replacement is 1; expected true or false."),
    ],
)
def test_a_run_file_is_refused_in_the_same_words(tmp_path, line, message):
    path = small_run.write(tmp_path / "run", text=f"{small_run.RUN}{line}\n")
    with pytest.raises(RequestError) as refused:
        resolve(str(path), Options(), folder=path.parent)
    assert message in str(refused.value)


def test_an_option_wins_over_the_run_file_also_to_switch_off(tmp_path):
    text = f'{small_run.RUN}replacement = true\nbatches = "stratified"\n'.replace("[data]\n", '[data]\ngroup = "a"\n')
    path = small_run.write(tmp_path / "run", text=text)
    actual = resolve(str(path), Options(replacement=False, group="b"), folder=path.parent)
    assert (actual.sampler.replacement, actual.sampler.batches, actual.group) == (False, "stratified", "b")


def test_groups_are_found_by_the_name_that_is_given_and_one_that_nobody_has_is_refused(folder):
    actual = run(folder, "grouped", sampler={}, group="laboratory", ood=())
    assert actual.run["data"]["group"] == "laboratory"
    assert actual.sets["test"].group is None  # the test set has no such array
    with pytest.raises(RequestError, match=r'data.group is "camera", and no set has an array or a column .*train\.npz'):
        run(folder, "refused", sampler={}, group="camera")


@pytest.mark.parametrize("name", ["unbiased", "stratified"])
def test_results_of_other_mini_batches_are_not_compared_unless_that_is_allowed(results, name):
    current, baseline = results[name], results["usual"]
    key, value = next(iter(OPTIONS[name].items()))
    said = str(value).lower()
    with pytest.raises(ResultError, match=f"sampling: {key} is {said} now, .* in the baseline. Use the same sampling"):
        check_comparable(current, baseline, GateSettings())
    check_comparable(current, baseline, GateSettings.of(allow=["sampling"]))
    assert pairing(current, baseline).draws == ()
    assert pairing(current, current).draws == ("mcbn",)
    (row,) = [row for row in comparison.compared({"a": current, "b": baseline}) if row.what == f"sampling.{key}"]
    assert dict(row.values)["a"] == said and row.differs


def test_batches_of_one_group_pair_only_where_the_very_groups_are_the_same(tmp_path, results):
    """The same points under the same name, grouped otherwise: every draw is another."""
    small_run.write(tmp_path)
    with np.load(tmp_path / "train.npz") as arrays:
        np.savez(tmp_path / "train.npz", **arrays, laboratory=np.arange(small_run.TRAIN) // 24)
    other, usual = run(tmp_path, "other", sampler=OPTIONS["group"]), results["group"]
    assert other.provenance["reference_sha256"] == usual.provenance["reference_sha256"]
    check_comparable(other, usual, GateSettings())
    assert pairing(other, usual).why_not == (("mcbn", "the grouping of the training set differs"),)
    assert pairing(read(usual.path), usual).draws == ("mcbn",)
    recorded = {name for name, result in results.items() if "reference_groups_sha256" in result.provenance}
    assert recorded == {"group"}  # nothing depends on it elsewhere


@pytest.mark.parametrize("said", [True, False])
def test_a_regression_is_not_stratified_by_its_targets_though_they_be_whole(tmp_path, said):
    text = small_regression.RUN if said else small_regression.RUN.replace('task = "regression"\n', "")
    small_regression.write(tmp_path, text=text)
    with np.load(tmp_path / "train.npz") as arrays:
        np.savez(tmp_path / "train.npz", x=arrays["x"], y=np.round(arrays["y"], -1))
    with pytest.raises(SamplingError, match=r'batches is "stratified".*this is a regression'):
        small_regression.evaluated(tmp_path, methods=("mcbn",), samples=4, **OPTIONS["stratified"])


def test_other_mini_batches_do_not_matter_to_dropout(folder):
    how = {"methods": ("mcdo",), "ood": ()}
    first, other = run(folder, "d1", sampler={}, **how), run(folder, "d2", sampler={"variance": "unbiased"}, **how)
    check_comparable(first, other, GateSettings())
    assert pairing(first, other).draws == ("mcdo",)


@pytest.mark.parametrize("name", OPTIONS)
def test_a_sweep_refuses_what_it_does_not_honour(folder, name):
    runs, settings = resolve_sweep(["run.toml"], Options(OPTIONS[name]), {"batch_sizes": (8,)}, folder=folder)
    with pytest.raises(RequestError, match=rf"sampling\.({'|'.join(OPTIONS[name])}) is \w+; a sweep compares"):
        sweep(runs, settings)


def test_replacing_nothing_keeps_the_record_of_a_run_as_it_was(folder):
    usual = resolve("run.toml", Options(), folder=folder)
    assert not set(usual.record()["sampling"]) & {"variance", *_KEYS, "counts", "covariance", "noise_model_draws"}
    assert "group" not in usual.record()["data"] and replace(usual, group="a").record()["data"]["group"] == "a"
