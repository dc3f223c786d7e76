"""A regression from checkpoint to result file: what is found out, what is fitted, and what bad input is told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import small_regression as small
import torch
from findings_of import values_of, warned
from report_text import rendered

import bnuq
from bnuq import metrics
from bnuq.errors import BnuqError, DataError, RequestError, SamplingError
from bnuq.gate import check
from bnuq.records import evaluation_file as result_file
from bnuq.records.evaluation import Result
from bnuq.records.summary import summary
from bnuq.report.evaluation import report

NAMES = ("train", "test", "validation")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    small.write(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Result:
    """Of the run file as it is. Not to be changed."""
    place = tmp_path_factory.mktemp("whole")
    small.write(place)
    return evaluated(place, ood=("far=far.npz",), save_samples=True)


def evaluated(folder: Path, **options: Any) -> Result:
    """The result of the run file in `folder`, of MCBN on the test set where no more is asked for."""
    return small.evaluated(folder, **{"methods": ("mcbn",), "ood": (), "samples": 8} | options)


def text(*, without: str = "", instead: dict[str, str] | None = None) -> str:
    """The run file without the lines that begin with a word, or with others in their place."""
    lines = [line for line in small.RUN.splitlines() if not (without and line.startswith(without))]
    for start, line in (instead or {}).items():
        lines = [line if old.startswith(start) else old for old in lines]
    return "\n".join(lines) + "\n"


def arrays(folder: Path, name: str) -> tuple[np.ndarray, np.ndarray]:
    with np.load(folder / f"{name}.npz") as data:
        return data["x"], data["y"]


def rewritten(folder: Path, name: str, change) -> None:
    x, y = change(*arrays(folder, name))
    np.savez(folder / f"{name}.npz", x=x, y=y)


@pytest.mark.held
def test_the_estimates_are_those_of_the_library_by_hand(folder: Path) -> None:
    result = evaluated(folder, samples=12)
    (x, y), (x_test, y_test), (x_val, y_val) = (arrays(folder, name) for name in NAMES)
    mean, std, low, height = x.mean(0), x.std(0), y.mean(0), y.std(0)

    def inputs(values: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(((values - mean) / std).astype(np.float32))

    model = bnuq.load(str(folder / "model.pt"), arch=f"{folder}/net.py:net")
    omega = bnuq.draw(model, inputs(x), samples=12, batch_size=16, seed=0)
    f, g = (bnuq.predict(model, inputs(v), omega).double().numpy() * height + low for v in (x_test, x_val))
    (centre, spread), (centre_val, spread_val) = (metrics.predictive_moments(v) for v in (f, g))
    tau = metrics.optimal_tau(y_val - centre_val, spread_val).tau
    sigma = metrics.constant_sigma(y_val - centre_val)
    outcome = result.methods["mcbn"]
    estimates = outcome.sets["test"].estimates
    assert estimates["tau"].value == pytest.approx(tau, rel=1e-3)
    assert estimates["rmse"].value == pytest.approx(metrics.rmse(centre, y_test), rel=1e-5)
    crps = metrics.crps_gaussian(centre, np.sqrt(spread + 1 / tau), y_test).mean()
    assert estimates["crps"].value == pytest.approx(crps, rel=1e-4)
    assert estimates["pll"].value == pytest.approx(metrics.pll_regression(f, y_test, tau=tau).mean(), rel=1e-4)
    constant = metrics.crps_gaussian(centre, sigma, y_test).mean()
    share = metrics.normalized(crps, constant, metrics.crps_optimum(centre, y_test).mean())
    assert outcome.normalized["crps"].value == pytest.approx(share, abs=0.1)
    plain = result.methods["deterministic"].sets["test"].estimates["rmse"].value
    with torch.inference_mode():
        alone = model(inputs(x_test)).double().numpy() * height + low
    assert plain == pytest.approx(metrics.rmse(alone, y_test), rel=1e-5)


def test_the_task_is_found_out_from_the_targets(folder: Path) -> None:
    (folder / "run.toml").write_text(text(without="task"))
    assert evaluated(folder, methods=("deterministic",)).model["task"] == "regression"


def test_whole_numbers_are_targets_of_a_network_of_one_output(folder: Path) -> None:
    for name in NAMES:
        rewritten(folder, name, lambda x, y: (x, np.round(y[:, 0]).astype(np.int64)))
    (folder / "run.toml").write_text(text(without="task"))
    result = evaluated(folder)
    assert result.model["task"] == "regression"
    assert result.methods["mcbn"].sets["test"].predicted.shape == (small.TEST, 1)


def test_a_network_that_gives_a_number_and_no_column_is_one_of_one_output(folder: Path, whole: Result) -> None:
    before = whole.methods["mcbn"].sets["test"].estimates["crps"].value
    net = small.NET + "\n\nclass Flat(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
    net += "        self.net = net()\n\n    def forward(self, x):\n        return self.net(x).squeeze(-1)\n"
    (folder / "net.py").write_text(net)
    weights = torch.load(folder / "model.pt", weights_only=True)
    torch.save({f"net.{key}": value for key, value in weights.items()}, folder / "model.pt")
    (folder / "run.toml").write_text(text(instead={"arch": 'arch = "net.py:Flat"'}))
    assert evaluated(folder).methods["mcbn"].sets["test"].estimates["crps"].value == pytest.approx(before, rel=1e-5)


@pytest.mark.held
def test_several_outputs_are_scored_together(tmp_path: Path) -> None:
    small.write(tmp_path, outputs=3)
    (tmp_path / "run.toml").write_text(text(instead={"arch": 'arch = "net.py:net"\narch_args = { outputs = 3 }'}))
    result = evaluated(tmp_path, methods=("mcbn+mcdo",), samples=8)
    outcome = result.methods["mcbn+mcdo"].sets["test"]
    assert result.model["outputs"] == 3 and outcome.sigma.shape == (small.TEST, 3)
    y = arrays(tmp_path, "test")[1]
    assert outcome.estimates["rmse"].value == pytest.approx(metrics.rmse(outcome.predicted, y), rel=1e-6)
    assert outcome.estimates["crps"].value == pytest.approx(
        metrics.crps_gaussian(outcome.predicted, outcome.sigma, y).mean(), rel=1e-6
    )


def test_statistics_that_are_written_out_are_those_of_the_reference(folder: Path, whole: Result) -> None:
    x, y = arrays(folder, "train")
    written = {
        "normalize =": f"normalize = {{ mean = {x.mean(0).tolist()}, std = {x.std(0).tolist()} }}",
        "normalize_targets": f"normalize_targets = {{ mean = {y.mean(0).tolist()}, std = {y.std(0).tolist()} }}",
    }
    (folder / "run.toml").write_text(text(instead=written))
    after = evaluated(folder)
    for name, estimate in whole.methods["mcbn"].sets["test"].estimates.items():
        assert after.methods["mcbn"].sets["test"].estimates[name].value == pytest.approx(estimate.value, rel=1e-3)


def test_the_result_is_read_as_it_was_written(whole: Result) -> None:
    again = result_file.read(whole.path)
    assert summary(again) == summary(whole)
    for method, outcome in whole.methods.items():
        other = again.methods[method]
        np.testing.assert_array_equal(other.sets["test"].sigma, outcome.sets["test"].sigma)
        for curve in ("uncertainty_error", "calibration", "convergence", "risk"):
            assert set(getattr(other, curve)) == set(getattr(outcome, curve))
        assert other.bounds["constant"]["sigma"].value == outcome.bounds["constant"]["sigma"].value
    np.testing.assert_array_equal(again.sets["test"].targets, whole.sets["test"].targets)


@pytest.mark.nightly
def test_draws_that_are_kept_and_joined_give_the_same(folder: Path) -> None:
    result = evaluated(folder, samples="auto", max_samples=32, save_samples=True)
    again = evaluated(folder, samples=result.sampling["samples"], chunk_size=7)
    for name, estimate in result.methods["mcbn"].sets["test"].estimates.items():
        other = again.methods["mcbn"].sets["test"].estimates[name]
        assert other.value == pytest.approx(estimate.value, rel=1e-4) and other.mc_se == pytest.approx(
            estimate.mc_se, rel=1e-2
        )


@pytest.mark.held
@pytest.mark.nightly
def test_a_bank_gives_every_tile_its_own_draws(folder: Path, whole: Result) -> None:
    part, other = (r.methods["mcbn"].sets["test"].estimates for r in (evaluated(folder, bank=64), whole))
    assert part["crps"].value == pytest.approx(other["crps"].value, rel=0.1)
    assert len(part["crps"].jackknife) == 64


def test_raw_samples_are_kept_in_the_unit_of_the_targets(whole: Result) -> None:
    with h5py.File(whole.path) as file:
        samples = file["posterior_predictive/mcbn_test"]
        assert samples.shape == (1, 8, small.TEST, 1) and samples.attrs["units"] == "target unit"
        assert samples.dims[3].keys() == ["output"]
        np.testing.assert_allclose(samples[0].mean(0), whole.methods["mcbn"].sets["test"].predicted, rtol=1e-4)


def test_a_score_of_the_draws_alone_needs_no_noise_and_is_not_put_between_bounds_that_hold_it(folder: Path) -> None:
    result = evaluated(folder, crps="fair")
    outcome = result.methods["mcbn"]
    assert "crps" not in outcome.normalized and "pll" in outcome.normalized
    plain = result.methods["deterministic"].sets["test"].estimates
    assert plain["crps"].value == pytest.approx(plain["mae"].value)
    (folder / "run.toml").write_text(text(without="validation"))
    alone = evaluated(folder, crps="fair").methods["mcbn"].sets["test"].estimates
    assert alone["crps"].value == pytest.approx(outcome.sets["test"].estimates["crps"].value)
    assert "pll" not in alone and "tau" not in alone


def test_targets_and_errors_that_are_not_of_one_size_are_a_warning(folder: Path, whole: Result) -> None:
    assert not warned(whole)
    (folder / "run.toml").write_text(
        text(instead={"normalize_targets": "normalize_targets = { mean = [0], std = [9e3] }"})
    )
    assert "worse-than-the-mean" in warned(evaluated(folder, methods=("deterministic",)))
    (folder / "run.toml").write_text(small.RUN)
    rewritten(folder, "validation", lambda x, y: (x, 1000 * y))
    assert values_of(evaluated(folder, methods=("deterministic",)), "targets-of-another-scale")["set"] == "validation"


def test_few_validation_points_are_a_warning(folder: Path) -> None:
    rewritten(folder, "validation", lambda x, y: (x[:5], y[:5]))
    assert "few-validation-points" in warned(evaluated(folder, methods=("deterministic",)))


# ── validation ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_without_validation_points_what_needs_them_is_absent_and_the_notes_say_why(folder: Path) -> None:
    (folder / "run.toml").write_text(text(without="validation"))
    result = evaluated(folder)
    outcome = result.methods["mcbn"]
    assert set(outcome.sets["test"].estimates) == {"rmse", "mae", "spearman", "variance"}
    assert outcome.bounds == {} and outcome.normalized == {}
    why = values_of(result, "no-validation")
    assert (why["task"], why["tau"]) == ("regression", False) and "held out of training" in why["reason"]


def cross_fitted(folder: Path, **options: Any) -> Result:
    (folder / "run.toml").write_text(text(without="validation"))
    return evaluated(folder, ood=("far=far.npz",), out="crossed.h5", **options)


@pytest.mark.less(False)
def test_without_validation_points_tau_and_the_constant_are_those_of_the_other_half(folder: Path) -> None:
    result = cross_fitted(folder, samples=12)
    assert (result.run["sampling"]["calibrate"], result.is_cross_fitted) == ("cross", True)
    method, y = result.methods["mcbn"], result.sets["test"].targets
    test = method.sets["test"]
    variance = test.points["variance"][:, None]
    noise = test.sigma**2 - variance
    [first, second] = values_of_method(result, "tau-cross-fitted", "mcbn")["tau"]
    is_second = np.isclose(noise[:, 0], 1 / first)
    assert np.isclose(noise[~is_second, 0], 1 / second).all()
    assert is_second.sum() == small.TEST / 2
    for fitted_to, tau, other in ((~is_second, first, is_second), (is_second, second, ~is_second)):
        error = (y - test.predicted)[fitted_to]
        assert tau == pytest.approx(metrics.optimal_tau(error, variance[fitted_to]).tau, rel=1e-4)
        constant = np.full((other.sum(), 1), metrics.constant_sigma(error))
        rows = test.predicted[other], y[other]
        expected = metrics.crps_gaussian(rows[0], constant, rows[1])
        np.testing.assert_allclose(test.points["crps_constant"][other], expected, rtol=1e-6)
        np.testing.assert_allclose(
            test.points["crps"][other], metrics.crps_gaussian(rows[0], test.sigma[other], rows[1]), rtol=1e-6
        )
    assert test.estimates["tau"].value == pytest.approx(1 / noise.mean(), rel=1e-5)
    assert "pll" in test.estimates and "crps" in method.normalized and method.bounds["constant"]["sigma"].value > 0
    whole = metrics.optimal_tau(y - test.predicted, variance).tau
    far = method.sets["far"]
    np.testing.assert_allclose(far.sigma**2, far.points["variance"][:, None] + 1 / whole, rtol=1e-4)


@pytest.mark.nightly
@pytest.mark.less(False)
def test_a_cross_fit_is_read_again_and_passes_the_gate_but_for_another_fit(folder: Path) -> None:
    by_validation = evaluated(folder, out="validation.h5", ood=("far=far.npz",))
    result = cross_fitted(folder, save_samples=True)
    read = result_file.read(folder / "crossed.h5")
    assert summary(read)["methods"] == summary(result)["methods"]
    assert check(read, read).passed
    with pytest.raises(BnuqError, match="calibrate is cross now, validation in the baseline"):
        check(read, by_validation)
    assert cross_fitted(folder, chunk_size=7).methods["mcbn"].sets["test"].estimates["pll"].value == pytest.approx(
        result.methods["mcbn"].sets["test"].estimates["pll"].value, rel=1e-6
    )


@pytest.mark.less(False)
def test_what_a_cross_fit_would_give_is_said_where_there_is_none(folder: Path) -> None:
    off = cross_fitted(folder, calibrate="off")
    assert "tau" not in off.methods["mcbn"].sets["test"].estimates
    for said, result in ((False, cross_fitted(folder)), (True, off)):
        page = " ".join(rendered(report, result, full=True).split())
        assert ("`--calibrate cross` fits that to each half of the test set" in page) == said
        assert ("each half of the test examples, for the other half" in page) != said


def values_of_method(result: Result, code: str, method: str) -> dict[str, Any]:
    [values] = [f.values for f in result.findings if f.code == code and f.values["of"] == method]
    return values


def test_a_tau_that_is_given_takes_their_place_for_the_scores(folder: Path) -> None:
    (folder / "run.toml").write_text(text(without="validation") + "\n[scoring]\ntau = 0.04\n")
    outcome = evaluated(folder).methods["mcbn"]
    assert outcome.sets["test"].estimates["tau"].value == 0.04 and "crps" in outcome.sets["test"].estimates
    assert set(outcome.bounds) == {"optimum"}
    option = evaluated(folder, tau=0.05)
    assert option.methods["mcbn"].sets["test"].estimates["tau"].value == 0.05
    assert option.run["scoring"] == {"tau": 0.05}


@pytest.mark.parametrize(("held_out", "absent"), [("true", False), ("false", True)])
def test_a_part_of_the_reference_validates_only_if_it_was_held_out(folder: Path, held_out: str, absent: bool) -> None:
    split = f'validation = {{ split_of = "train", fraction = 0.25, seed = 3, held_out = {held_out} }}'
    (folder / "run.toml").write_text(text(instead={"validation": split}))
    result = evaluated(folder)
    assert ("crps" not in result.methods["mcbn"].sets["test"].estimates) == absent
    if absent:
        assert "its estimates on them would be too optimistic" in values_of(result, "no-validation")["reason"]
    else:
        assert result.sets["validation"].n == 24
        assert "validation-in-reference" not in warned(result)


def test_whole_groups_are_held_out(folder: Path) -> None:
    x, y = arrays(folder, "train")
    group = np.repeat(np.arange(24), 4)
    np.savez(folder / "train.npz", x=x, y=y, group=group)
    split = 'validation = { split_of = "train", fraction = 0.25, seed = 3, held_out = true }'
    (folder / "run.toml").write_text(text(instead={"validation": split}))
    result = evaluated(folder, methods=("deterministic",))
    rows = bnuq.held_out_rows(96, fraction=0.25, seed=3, group=group)
    assert result.sets["validation"].n == len(rows) == 24
    assert not set(group[rows]) & set(np.delete(group, rows))


def test_validation_points_of_the_test_set_are_a_warning(folder: Path) -> None:
    (folder / "run.toml").write_text(text(instead={"validation": 'validation = "test.npz"'}))
    result = evaluated(folder, methods=("deterministic",))
    shared = values_of(result, "validation-in-test")
    assert (shared["shared"], shared["points"]) == (60, 60) and "validation-in-test" in warned(result)


def test_a_part_of_the_test_set_validates_and_is_not_tested(folder: Path) -> None:
    split = 'validation = { split_of = "test", fraction = 0.5 }'
    (folder / "run.toml").write_text(text(instead={"validation": split}))
    result = evaluated(folder, methods=("deterministic",))
    assert (result.sets["validation"].n, result.sets["test"].n) == (30, 30)


def test_validation_points_of_the_reference_are_a_warning(folder: Path) -> None:
    (folder / "run.toml").write_text(text(instead={"validation": 'validation = "train.npz"'}))
    shared = values_of(evaluated(folder, methods=("deterministic",)), "validation-in-reference")
    assert (shared["shared"], shared["points"]) == (96, 96)


@pytest.mark.held
def test_points_held_out_bound_a_classification_too(tmp_path: Path) -> None:
    import small_run

    small_run.write(tmp_path, text=small_run.RUN.replace("ood =", 'validation = "validation.npz"\nood ='))
    with np.load(tmp_path / "test.npz") as data:
        x, y = data["x"], data["y"]
    np.savez(tmp_path / "validation.npz", x=x[:30], y=y[:30])
    np.savez(tmp_path / "test.npz", x=x[30:], y=y[30:])
    result = small_run.evaluated(tmp_path, methods=("mcbn",), ood=())
    for outcome in result.methods.values():
        accuracy = outcome.sets["test"].estimates["accuracy"].value
        low = metrics.constant_pll(accuracy, outcome.bounds["constant"]["confidence"].value, small_run.CLASSES)
        high = metrics.optimum_pll(accuracy, small_run.CLASSES)
        assert outcome.bounds["constant"]["pll"].value == pytest.approx(low)
        assert outcome.bounds["optimum"]["pll"].value == pytest.approx(high)
        pll = outcome.sets["test"].estimates["pll"].value
        assert outcome.normalized["pll"].value == pytest.approx(100 * (pll - low) / (high - low))
    assert summary(result_file.read(result.path)) == summary(result)


# ── bad input ────────────────────────────────────────────────────────────────────────────────────────────────────────


def refused(folder: Path, kind: type[BnuqError], message: str, **options) -> None:
    with pytest.raises(kind, match=message):
        evaluated(folder, **options)
    assert not (folder / "model.bnuq.h5").exists()


def test_one_output_and_targets_of_0_and_1_may_be_a_classifier_and_are_asked_about(folder: Path) -> None:
    for name in NAMES:
        rewritten(folder, name, lambda x, y: (x, (y[:, 0] > y.mean()).astype(np.int64)))
    (folder / "run.toml").write_text(text(without="task"))
    refused(folder, DataError, "one output and the targets of test.npz are all 0 or 1")
    (folder / "run.toml").write_text(small.RUN)
    assert evaluated(folder, methods=("deterministic",)).model["task"] == "regression"


def test_a_bank_does_not_go_with_a_mixture_that_is_fitted_to(folder: Path) -> None:
    refused(folder, RequestError, "--bank and fit", bank=64, fit="pll")
    refused(folder, RequestError, "--bank and fit", bank=64, crps="mixture")
    outcome = evaluated(folder, bank=64, fit="pll", pll="moment").methods["mcbn"]
    assert np.isfinite(outcome.sets["test"].estimates["pll"].mc_se)


def test_targets_that_are_not_finite_are_refused(folder: Path) -> None:
    rewritten(folder, "test", lambda x, y: (x, np.where(np.arange(len(y))[:, None] == 4, np.nan, y)))
    refused(folder, DataError, r"test.npz: y holds NaN or infinity, first in row 4")


def test_targets_of_another_width_are_refused(folder: Path) -> None:
    rewritten(folder, "test", lambda x, y: (x, np.repeat(y, 2, axis=1)))
    refused(folder, DataError, r"1 outputs and the targets of test.npz have shape \(60, 2\)")
    small.write(folder)
    rewritten(folder, "validation", lambda x, y: (x, np.repeat(y, 2, axis=1)))
    refused(folder, DataError, r"targets of 'validation' have shape \(40, 2\); expected \(40, 1\)")


def test_validation_points_without_targets_are_refused(folder: Path) -> None:
    np.savez(folder / "validation.npz", x=arrays(folder, "validation")[0])
    refused(folder, DataError, "validation set validation.npz has no targets")


def test_statistics_of_the_reference_need_one(folder: Path) -> None:
    (folder / "run.toml").write_text(text(without="train ="))
    refused(folder, RequestError, 'data.normalize is "train", and there is no training set to take mean and std of')
    np.savez(folder / "train.npz", x=arrays(folder, "train")[0])
    (folder / "run.toml").write_text(small.RUN)
    refused(folder, RequestError, 'data.normalize_targets is "train".*no training set with targets')


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("{ mean = [1.0], std = [0.0] }", r"normalize_targets.std is \[0.0\]; expected positive numbers"),
        ("{ mean = [1.0, 2.0], std = [1.0] }", "normalize_targets.mean is .*; expected 1 finite number"),
    ],
)
def test_statistics_that_do_not_fit_are_refused(folder: Path, wrong: str, message: str) -> None:
    (folder / "run.toml").write_text(text(instead={"normalize_targets": f"normalize_targets = {wrong}"}))
    refused(folder, RequestError, message)


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ("tau = 0", "scoring.tau is 0; expected a number above 0"),
        ('pll = "mean"', 'scoring.pll is "mean"; expected one of mixture, moment, moment_full'),
        ("tau_range = [5.0, 1.0]", r"scoring.tau_range is \[5.0, 1.0\]; expected two finite numbers, the lower first"),
        ("tau_range = [5.0, inf]", r"scoring.tau_range is \[5.0, inf\]; expected two finite numbers"),
    ],
)
def test_wrong_keys_of_scoring_are_told(folder: Path, section: str, message: str) -> None:
    (folder / "run.toml").write_text(f"{small.RUN}\n[scoring]\n{section}\n")
    refused(folder, RequestError, message)


def test_constant_inputs_and_repeated_rows_are_evaluated(folder: Path) -> None:
    for name in NAMES:
        rewritten(folder, name, lambda x, y: (np.r_[x, x] * [1, 1, 0] + [0, 0, 7], np.r_[y, y]))
    result = evaluated(folder)
    assert result.sets["test"].n == 2 * small.TEST
    assert all(np.isfinite(estimate.value) for estimate in result.methods["mcbn"].sets["test"].estimates.values())


def test_a_constant_target_is_divided_by_one_and_evaluated(folder: Path) -> None:
    for name in NAMES:
        rewritten(folder, name, lambda x, y: (x, np.full_like(y, 5.0)))
    outcome = evaluated(folder).methods["mcbn"].sets["test"]
    assert outcome.estimates["rmse"].value == pytest.approx(np.sqrt(np.mean((outcome.predicted - 5) ** 2)))


def test_two_points_have_estimates_and_no_error_is_claimed_for_one(folder: Path) -> None:
    rewritten(folder, "validation", lambda x, y: (x[:2], y[:2]))
    rewritten(folder, "test", lambda x, y: (x[:2], y[:2]))
    assert np.isfinite(evaluated(folder).methods["mcbn"].sets["test"].estimates["crps"].value)
    rewritten(folder, "test", lambda x, y: (x[:1], y[:1]))
    part = evaluated(folder)
    assert part.methods["mcbn"].sets["test"].estimates["crps"].se is None
    assert "too-few-points" in warned(part)


def test_passes_that_agree_are_an_error(folder: Path) -> None:
    rewritten(folder, "train", lambda x, y: (np.repeat(x[:1], len(x), 0), y))
    (folder / "run.toml").write_text(text(without="normalize ="))
    refused(folder, SamplingError, "the samples of mcbn are identical")


def test_targets_of_the_whole_set_are_checked_under_a_limit(tmp_path: Path) -> None:
    small.write(tmp_path)
    sampled = evaluated(tmp_path, limit=4, methods=("deterministic",)).sets["test"].index
    with np.load(tmp_path / "test.npz") as file:
        arrays = dict(file)
    outside = np.setdiff1d(np.arange(len(arrays["y"])), sampled)[0]
    arrays["y"] = arrays["y"].astype(np.float64)
    arrays["y"][outside] = 1e200
    np.savez(tmp_path / "test.npz", **arrays)
    with pytest.raises(DataError, match=r"go up to 1e\+200"):
        evaluated(tmp_path, limit=4)
