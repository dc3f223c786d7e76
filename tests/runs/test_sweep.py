"""Sweeps over mini-batch sizes, whole: against evaluations of one size, by hand, interrupted, and refused."""

from __future__ import annotations

import contextlib
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import at_night
import numpy as np
import pytest
import small_regression
import small_run
import torch
from findings_of import noted, values_of, warned

import bnuq
from bnuq import metrics
from bnuq.config import Options, Run, SweepSection, resolve, resolve_sweep
from bnuq.errors import BnuqError, DataError, RequestError, SamplingError
from bnuq.evaluation import setup
from bnuq.progress import Advance
from bnuq.sampling import counter_rng
from bnuq.studies.sweep import record as sweep_file
from bnuq.studies.sweep.compute import sweep
from bnuq.studies.sweep.record import Sweep
from bnuq.workflows.evaluate import evaluate


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return small_run.write(tmp_path).parent


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> Sweep:
    """The sweep of the run file as it is."""
    return swept(small_run.write(tmp_path_factory.mktemp("sweep")).parent, counts=None)


def swept(folder: Path, *models: str, sizes: tuple[int, ...] | None = (8, 16), **changes: Any) -> Sweep:
    """The sweep of these run files; what is no setting of a sweep is an option, and None is what the run file says."""
    keys = SweepSection.__struct_fields__
    given: dict[str, Any] = {"draw_sets": 2, "counts": "nominal", "batch_sizes": sizes}
    given |= {key: changes.pop(key) for key in list(changes) if key in keys}
    settings = {key: value for key, value in given.items() if value is not None}
    options = Options(**{"samples": 8, "ood": (), "out": Path("s.h5")} | changes)
    runs, chosen = resolve_sweep(models or ("run.toml",), options, settings, folder=folder)
    return sweep(runs, chosen)


def value(record: Sweep, size: int, metric: str, name: str = "test") -> float:
    return point_at(record, size).estimates[metric][name].estimate.value


def point_at(record: Sweep, size: int) -> Any:
    return next(point for point in record.points if point.batch_size == size)


# ── what it gives ────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.held
def test_the_first_draw_set_is_the_evaluation_at_that_size(folder: Path) -> None:
    record = swept(folder, sizes=(8, 48), ood=None)
    for size in (8, 48):
        result = small_run.evaluated(folder, batch_size=size, samples=8, methods=("mcbn",), post_hoc=False)
        alone = result.methods["mcbn"]
        point = point_at(record, size)
        for metric in ("accuracy", "pll", "brier", "ece", "mutual_information", "predictive_entropy"):
            for name, of_set in alone.sets.items():
                if metric in of_set.estimates:
                    first = point.estimates[metric][name].of_sets[0]
                    assert first == pytest.approx(of_set.estimates[metric].value, rel=1e-5, abs=1e-7)
        for score, by_set in point.auroc.items():
            assert by_set["other"].of_sets[0] == pytest.approx(alone.ood["other"][score]["auroc"].value, abs=2e-3)


@pytest.mark.held
@pytest.mark.nightly
def test_a_regressions_first_draw_set_is_the_evaluation_at_that_size(tmp_path: Path) -> None:
    small_regression.write(tmp_path)
    [point] = swept(tmp_path, sizes=(8,), ood=None).points
    run = resolve("run.toml", Options(batch_size=8, samples=8, methods=("mcbn",)), folder=tmp_path)
    alone = evaluate(run).methods["mcbn"]
    for metric in ("rmse", "mae", "pll", "crps", "coverage95", "variance", "tau"):
        first = point.estimates[metric]["test"].of_sets[0]
        assert first == pytest.approx(alone.sets["test"].estimates[metric].value, rel=1e-4)
    first = point.auroc["variance"]["far"].of_sets[0]
    assert first == pytest.approx(alone.ood["far"]["variance"]["auroc"].value, abs=1e-3)


def test_a_estimate_is_the_mean_over_draw_sets_and_its_error_their_spread(record: Sweep) -> None:
    estimate = point_at(record, 16).estimates["mutual_information"]["test"]
    assert estimate.of_sets.shape == (2,)
    assert estimate.estimate.value == pytest.approx(estimate.of_sets.mean())
    assert estimate.estimate.mc_se == pytest.approx(estimate.of_sets.std(ddof=1) / 2**0.5)
    assert estimate.estimate.se > 0


def test_a_size_gives_the_same_whatever_is_swept_beside_it_and_however_points_are_cut(folder, record):
    alone = swept(folder, sizes=(16,), chunk_size=7, counts=None)
    for metric, by_set in point_at(alone, 16).estimates.items():
        for name, estimate in by_set.items():
            assert point_at(record, 16).estimates[metric][name].of_sets == pytest.approx(
                estimate.of_sets, rel=1e-5, abs=1e-7
            )
    found, expected = (point_at(each, 16).elbo for each in (record, alone))
    assert found.kl == expected.kl and found.elbo.value == pytest.approx(expected.elbo.value, rel=1e-6)


def test_mutual_information_falls_as_one_over_b(folder: Path) -> None:
    slope = swept(folder, sizes=(4, 16, 64), samples=16).models[0].decay["test"].slope
    assert -1.35 < slope.value < -0.75
    assert slope.low is not None and slope.high is not None and slope.low < slope.value < slope.high


def test_without_sizes_powers_of_two_up_to_half_the_reference_are_swept(folder: Path) -> None:
    assert [point.batch_size for point in swept(folder, sizes=None).points] == [16, 32]


def test_sizes_are_put_in_order_each_once(folder: Path) -> None:
    record = swept(folder, sizes=(48, 8, 48))
    assert [point.batch_size for point in record.points] == [8, 48]


def test_one_size_alone_is_reported_and_not_recommended_and_the_generator_is_left_alone(folder: Path) -> None:
    state = torch.random.get_rng_state()
    record = swept(folder, sizes=(16,))
    assert torch.equal(state, torch.random.get_rng_state())
    assert record.recommended is None and record.models[0].decay == {}
    assert "no-recommendation" not in warned(record)
    assert record.points[0].elbo is not None


def test_the_whole_reference_is_kept_as_degenerate_with_exactly_no_information(folder: Path) -> None:
    record = swept(folder, sizes=(16, 32, small_run.TRAIN), ood=None)
    point = point_at(record, small_run.TRAIN)
    assert point.degenerate and not point_at(record, 16).degenerate
    assert [point_at.estimate.value for point_at in point.estimates["mutual_information"].values()] == [0.0, 0.0]
    assert point.auroc["mutual_information"]["other"].estimate.value == 0.5
    assert point.elbo is None
    assert record.recommended is not None and small_run.TRAIN not in record.recommended.behind
    assert small_run.TRAIN not in record.models[0].decay["test"].sizes


def test_sizes_of_nothing_but_the_whole_reference_are_a_warning(folder: Path) -> None:
    record = swept(folder, sizes=(small_run.TRAIN,))
    assert "nothing-random" in warned(record)
    assert record.points[0].degenerate and record.recommended is None


# ── the ELBO ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.held
def test_the_elbo_is_that_of_draws_by_hand(folder: Path) -> None:
    record = swept(folder, sizes=(8, 32), train_points=40)
    model = bnuq.load(folder / "model.pt", arch=f"{folder / 'net.py'}:net")
    with np.load(folder / "train.npz") as arrays:
        x, y = torch.from_numpy(arrays["x"]), torch.from_numpy(arrays["y"])
    rows = np.sort(counter_rng.batch_indices(0, 0, population=len(x), batch_size=40, purpose=counter_rng.SUBSET))
    for size in (8, 32):
        batches = torch.stack(
            [x[counter_rng.batch_indices(0, t, population=len(x), batch_size=size)] for t in range(16)]
        )
        outputs = bnuq.predict(model, x[rows], bnuq.statistics_of(model, batches))
        by_draw = metrics.log_likelihood(outputs.double(), y[rows]).mean(1).numpy()
        elbo = point_at(record, size).elbo
        assert elbo.log_likelihood == pytest.approx(by_draw, rel=1e-4)
        assert elbo.expected_log_likelihood.value == pytest.approx(len(x) * by_draw.mean(), rel=1e-4)
        assert elbo.expected_log_likelihood.mc_se == pytest.approx(len(x) * by_draw.std(ddof=1) / 4, rel=1e-3)
        n = 16 * size  # 4 × 4 positions, 4 channels
        assert elbo.kl == pytest.approx(4 * (1 / n - 1 + np.log(n)))
        assert elbo.elbo.value == pytest.approx(elbo.expected_log_likelihood.value - elbo.kl)


def test_the_predicted_size_is_two_n_c_over_p_plus_the_inverse_density(folder: Path) -> None:
    record = swept(folder, sizes=(4, 8, 16, 32))
    terms = record.models[0].elbo
    assert terms is not None and terms.c is not None
    x = np.array([(96 - b) / 95 / b for b in (4, 8, 16, 32)])
    y = [point_at(record, b).elbo.log_likelihood for b in (4, 8, 16, 32)]
    line = np.polyfit(x, [v.mean() for v in y], 1, w=1 / np.array([v.std(ddof=1) / np.sqrt(len(v)) for v in y]))
    assert terms.c.value == pytest.approx(-line[0], rel=1e-6)
    assert terms.units == 4
    if terms.c.value > 0:
        assert terms.predicted is not None
        assert terms.predicted.value == pytest.approx(2 * 96 * terms.c.value / 8 + 1 / 16)


def test_n_is_the_training_sets_size_where_it_is_said(folder: Path, record: Sweep) -> None:
    text = (folder / "run.toml").read_text()
    (folder / "run.toml").write_text(text.replace("[data]", "[data]\ntrain_size = 960"))
    large = swept(folder, limit=50)
    value = point_at(large, 16).elbo.expected_log_likelihood.value
    assert value == pytest.approx(10 * point_at(record, 16).elbo.expected_log_likelihood.value)
    assert values_of(record, "elbo-of-reference-size") == {"points": 96}
    assert "elbo-of-reference-size" not in noted(large)


def test_a_training_set_cannot_be_smaller_than_the_reference(folder: Path) -> None:
    path = folder / "run.toml"
    path.write_text(path.read_text().replace("[data]", "[data]\ntrain_size = 95"))
    with pytest.raises(RequestError, match=r"data\.train_size is 95, and train alone has 96 examples"):
        swept(folder)


def test_a_prior_on_the_command_line_replaces_that_of_the_run_file_whole(folder: Path) -> None:
    with (folder / "run.toml").open("a") as file:
        file.write('\n[sweep]\nprior = "weight_decay"\nprior_precision = 2.0\n')
    assert swept(folder, sizes=(8,)).models[0].elbo.prior_parameters == {"precision": 2.0}
    assert swept(folder, sizes=(8,), prior="unit").models[0].elbo.prior_parameters == {}


def test_a_heavy_prior_decides_and_it_is_said(folder: Path) -> None:
    (folder / "run.toml").write_text((folder / "run.toml").read_text().replace("[data]", "[data]\ntrain_size = 96"))
    record = swept(folder, sizes=(40, 48), samples=4, draw_sets=None, kl_weight=100.0)
    assert record.recommended is not None
    assert record.recommended.batch_size == 40 and record.recommended.decided_by == "prior"


def test_differences_are_taken_on_common_draws(folder: Path) -> None:
    record = swept(folder, sizes=(16, 32), samples=16)
    best = record.recommended
    assert best is not None
    other = next(size for size in (16, 32) if size != best.batch_size)
    apart = 96 * (point_at(record, other).elbo.log_likelihood - point_at(record, best.batch_size).elbo.log_likelihood)
    assert best.behind[other].mc_se == pytest.approx(apart.std(ddof=1) / np.sqrt(len(apart)), rel=1e-6)
    gap = point_at(record, other).elbo.elbo.value - point_at(record, best.batch_size).elbo.elbo.value
    assert best.behind[other].value == pytest.approx(gap) and gap < 0
    assert best.behind[best.batch_size].value == 0 and best.batch_size in best.within


@pytest.mark.nightly
def test_the_kl_grows_under_each_prior_and_a_wide_one_is_flat(folder: Path) -> None:
    of_prior: dict[str, Any] = {"gaussian": {"prior_mean": (0.0, 1e6), "prior_deviation": (0.0, 1e6)}}
    steps = {}
    for prior in ("gaussian", "flat", "gamma"):  # "unit" is that of the tests above
        record = swept(folder, prior=prior, **of_prior.get(prior, {}))
        assert record.models[0].elbo is not None and record.models[0].elbo.prior == prior
        steps[prior] = np.diff([point.elbo.kl for point in record.points if point.elbo])
        assert steps[prior] > 0
    assert steps["gaussian"] == pytest.approx(steps["flat"], rel=1e-4)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"prior": "gaussian"}, "needs --prior-mean MEAN,VARIANCE"),
        ({"prior": "weight_decay"}, "needs --prior-precision NUMBER"),
        ({"prior_mean": (0.0, 1.0)}, '"unit" takes no --prior-mean'),
    ],
)
def test_a_priors_parameters_must_fit_it(folder: Path, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        swept(folder, **settings)


def test_a_reference_without_labels_has_no_elbo_and_says_so(folder: Path) -> None:
    with np.load(folder / "train.npz") as arrays:
        np.savez(folder / "train.npz", x=arrays["x"])
    record = swept(folder)
    assert record.recommended is None and record.models[0].elbo is None
    assert values_of(record, "no-elbo")["reason"] == "the training set has no labels"
    assert "no-recommendation" in warned(record)


def test_a_regression_without_tau_has_no_elbo_and_says_so(tmp_path: Path) -> None:
    path = small_regression.write(tmp_path)
    path.write_text(path.read_text().replace('validation = "validation.npz"\n', ""))
    assert "a regression's likelihood needs τ" in values_of(swept(tmp_path, sizes=(8, 32)), "no-elbo")["reason"]
    known = swept(tmp_path, sizes=(8, 32), tau=4.0)
    assert known.models[0].elbo is not None and known.models[0].elbo.tau == 4.0


@pytest.mark.nightly
def test_errors_of_the_elbo_are_over_points_and_draws_and_none_where_all_points_are_there(folder: Path) -> None:
    whole, part = swept(folder, sizes=(8, 32)), swept(folder, sizes=(8, 32), train_points=48)
    assert point_at(whole, 8).elbo.elbo.se == 0.0 and point_at(part, 8).elbo.elbo.se > 0
    for record in (whole, part):
        terms = record.models[0].elbo
        assert terms is not None and terms.c is not None and terms.c.mc_se is not None and terms.c.mc_se > 0
    assert whole.models[0].elbo.c.se == 0.0 and part.models[0].elbo.c.se > 0
    with np.load(folder / "train.npz") as arrays:
        np.savez(folder / "train.npz", x=arrays["x"], y=arrays["y"], group=np.arange(small_run.TRAIN) // 8)
    grouped = swept(folder, sizes=(8, 32), train_points=48)
    assert point_at(grouped, 8).elbo.elbo.se != pytest.approx(point_at(part, 8).elbo.elbo.se, rel=1e-6)
    assert point_at(grouped, 8).elbo.elbo.mc_se == pytest.approx(point_at(part, 8).elbo.elbo.mc_se)


@pytest.mark.nightly  # a spread over repeats
def test_the_errors_of_c_and_of_the_decay_are_those_of_other_points_and_draws(folder: Path) -> None:
    found = []
    for seed in range(6):
        [model] = swept(folder, sizes=(4, 16), samples=4, limit=20, train_points=20, seed=seed).models
        for estimate in (model.elbo.c, model.decay["test"].slope):
            found.append((estimate.value, np.hypot(estimate.se, estimate.mc_se)))
    for of_seeds in (found[::2], found[1::2]):
        values, errors = zip(*of_seeds, strict=True)
        assert 0.4 < np.mean(errors) / np.std(values, ddof=1) < 2.5


# ── the choice ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_best_pll_may_choose_on_the_test_points_with_a_warning(folder: Path) -> None:
    record = swept(folder, criterion="pll")
    best = record.recommended
    assert best is not None and best.of == "test" and best.decided_by == "data"
    assert best.batch_size == max((8, 16), key=lambda size: value(record, size, "pll"))
    assert "chosen-on-test" in warned(record)


@pytest.mark.parametrize(("network", "metrics"), [(small_run, "accuracy pll ece"), (small_regression, "rmse pll crps")])
def test_a_size_is_compared_with_the_best_other_one_by_each_metric_of_the_table(
    tmp_path: Path, network: Any, metrics: str
) -> None:
    network.write(tmp_path)
    record = swept(tmp_path, criterion="pll", sizes=(8, 16, 32))
    chosen = record.recommended
    assert chosen is not None and {*chosen.on_test} == {*metrics.split()}
    for metric, other in chosen.on_test.items():
        sign = 1 if metric in ("accuracy", "pll") else -1
        others = {size: sign * value(record, size, metric) for size in (8, 16, 32) if size != chosen.batch_size}
        assert others[other.batch_size] == max(others.values())
        apart = value(record, chosen.batch_size, metric) - value(record, other.batch_size, metric)
        assert other.difference == pytest.approx(apart)
        assert other.se is not None and other.se > 0


def test_validation_points_choose_where_there_are_any(folder: Path) -> None:
    shutil.copy(folder / "test.npz", folder / "held.npz")
    with np.load(folder / "held.npz") as arrays:
        np.savez(folder / "held.npz", x=arrays["x"] + np.float32(0.01), y=arrays["y"])
    record = swept(folder, criterion="pll", validation="held.npz")
    assert record.recommended is not None and record.recommended.of == "validation"
    assert "chosen-on-test" not in warned(record)
    assert "validation" in point_at(record, 16).estimates["pll"]


def test_the_best_auroc_chooses_and_says_that_the_ood_set_is_seen(folder: Path) -> None:
    record = swept(folder, criterion="auroc", ood=None)
    best = record.recommended
    assert best is not None
    scores = {size: point_at(record, size).auroc["mutual_information"]["other"].estimate.value for size in (8, 16)}
    assert scores[best.batch_size] == max(scores.values())
    assert "chosen-on-ood" in warned(record)


# ── several networks ─────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def pair(folder: Path) -> Path:
    """Two networks, trained with batches of 16 and of 32."""
    text = (folder / "run.toml").read_text()
    state = torch.load(folder / "model.pt", weights_only=True)
    torch.save(state | {"7.bias": state["7.bias"] + 0.1}, folder / "other.pt")
    (folder / "second.toml").write_text(
        text.replace("model.pt", "other.pt").replace("train_batch_size = 16", "train_batch_size = 32")
    )
    return folder


def test_several_networks_are_each_sampled_at_their_own_size(pair: Path) -> None:
    record = swept(pair, "run.toml", "second.toml", sizes=None)
    points = [(point.protocol, point.batch_size, point.train_batch_size, point.model) for point in record.points]
    assert points == [("matched", 16, 16, 0), ("matched", 32, 32, 1)]
    assert [model.name for model in record.models] == ["model", "other"]
    assert record.recommended is not None and record.recommended.protocol == "matched"
    assert record.recommended.predicted_batch_size is None
    assert "elbo-of-several-networks" in warned(record)


def test_with_sizes_each_network_is_swept_too_and_protocols_stay_apart(pair: Path) -> None:
    record = swept(pair, "second.toml", "run.toml", sizes=(8, 32))
    assert [point.batch_size for point in record.line(0)] == [8, 32]
    assert [point.batch_size for point in record.line(1)] == [8, 32]
    assert [(point.batch_size, point.model) for point in record.matched] == [(16, 1), (32, 0)]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("", r"Add to second.toml:\n\n\[model\]\ntrain_batch_size = 128"),
        ("train_batch_size = 16", "were both trained with batches of 16"),
    ],
)
def test_networks_need_training_batch_sizes_that_differ(pair: Path, line: str, message: str) -> None:
    path = pair / "second.toml"
    path.write_text(path.read_text().replace("train_batch_size = 32", line))
    with pytest.raises(RequestError, match=message):
        swept(pair, "run.toml", "second.toml", sizes=None)


def test_one_network_under_two_names_is_refused(pair: Path) -> None:
    shutil.copy(pair / "model.pt", pair / "other.pt")
    with pytest.raises(RequestError, match="model and other are the same network"):
        swept(pair, "run.toml", "second.toml", sizes=None)


@pytest.mark.nightly
def test_warnings_of_one_network_alone_name_it(pair: Path) -> None:
    state = torch.load(pair / "other.pt", weights_only=True)
    torch.save(state | {"1.running_mean": state["1.running_mean"] + 9.0}, pair / "other.pt")
    record = swept(pair, "run.toml", "second.toml", sizes=None)
    (mismatch,) = (finding for finding in record.findings if finding.code == "reference-mismatch")
    assert mismatch.subject == "other"


@pytest.mark.parametrize(
    ("name", "message"),
    [("test", "set test of other is not that of model"), ("train", "the training set of other is not that of model")],
)
def test_networks_are_compared_on_the_same_points_and_one_reference(pair: Path, name: str, message: str) -> None:
    with np.load(pair / f"{name}.npz") as arrays:
        np.savez(pair / "reversed.npz", x=arrays["x"][::-1], y=arrays["y"][::-1])
    path = pair / "second.toml"
    path.write_text(path.read_text().replace(f'"{name}.npz"', '"reversed.npz"'))
    with pytest.raises(DataError, match=message):
        swept(pair, "run.toml", "second.toml", sizes=None)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("[sampling]\nseed = 1", "seed is 1, but 0 in model"),
        ("[sampling]\nsamples = 6", "samples is 6, but 8 in model"),
        ("[data]\ntrain_size = 9600", "train_size is 9600, but 96 in model"),
        ('[sampling]\nmutual_information = "corrected"', "mutual_information is corrected, but plug-in in model"),
    ],
)
def test_networks_are_compared_draw_by_draw(pair: Path, line: str, message: str) -> None:
    path, (table, key) = pair / "second.toml", line.split("\n")
    for name in ("run.toml", "second.toml"):
        (pair / name).write_text((pair / name).read_text().replace("samples = 8\n", ""))
    runs_with = "samples" not in line
    (pair / "run.toml").write_text((pair / "run.toml").read_text().replace("[sampling]", "[sampling]\nsamples = 8"))
    text = path.read_text().replace("[sampling]", "[sampling]\nsamples = 8") if runs_with else path.read_text()
    path.write_text(text.replace(table, f"{table}\n{key}"))
    with pytest.raises(RequestError, match=message):
        swept(pair, "run.toml", "second.toml", sizes=None, samples=None)


def test_settings_of_what_no_sweep_does_may_differ(pair: Path) -> None:
    path, lines = pair / "second.toml", 'methods = ["mcbn"]\nmc_error = 0.2\nlaplace = "diag"\nbank = 24'
    path.write_text(path.read_text().replace("[sampling]", f"[sampling]\n{lines}"))
    assert len(swept(pair, "run.toml", "second.toml", sizes=None).models) == 2


@pytest.mark.nightly
def test_sidecars_of_one_data_set_have_it_read_once(pair: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for toml, model in (("run.toml", "model.toml"), ("second.toml", "other.toml")):
        (pair / toml).rename(pair / model)
    read, really = [], setup.load_data
    monkeypatch.setattr(
        setup, "load_data", lambda run, *rest, **options: read.append(run) or really(run, *rest, **options)
    )
    swept(pair, "model.pt", "other.pt", sizes=None, arch="net.py:net")
    assert len(read) == 1


def test_run_files_must_agree_on_how_they_are_swept(pair: Path) -> None:
    with (pair / "second.toml").open("a") as file:
        file.write("\n[sweep]\ndraw_sets = 7\n")
    with pytest.raises(RequestError, match=r"sweep\.draw_sets is 7 for other\.pt, and 5 for model\.pt"):
        swept(pair, "run.toml", "second.toml", draw_sets=None)
    assert swept(pair, "run.toml", "second.toml", sizes=None, draw_sets=2).draw_sets == 2


def test_the_run_file_says_how_to_sweep_and_options_win(folder: Path) -> None:
    with (folder / "run.toml").open("a") as file:
        file.write('\n[sweep]\nbatch_sizes = [8, 24]\ncriterion = "pll"\n')
    record = swept(folder, sizes=None)
    assert [point.batch_size for point in record.points] == [8, 24]
    assert record.recommended is not None and record.recommended.criterion == "pll"
    assert [point.batch_size for point in swept(folder, sizes=(12,)).points] == [12]


# ── interrupted ──────────────────────────────────────────────────────────────────────────────────────────────────────


class _Interrupting:
    """A progress that is interrupted after so many steps of the passes."""

    def __init__(self, after: int) -> None:
        self.after, self.done, self.titles = after, 0, []

    @contextlib.contextmanager
    def __call__(self, title: str, total: int) -> Iterator[Advance]:
        assert total > 0
        self.titles.append(title)

        def advance(steps: int) -> None:
            self.done += steps if "examples," in title else 0
            if self.done > self.after:
                raise KeyboardInterrupt

        yield advance


def request(folder: Path, sizes: tuple[int, ...]) -> tuple[tuple[Run, ...], SweepSection]:
    options = Options(samples=8, out=Path("s.h5"), chunk_size=10)
    return resolve_sweep(("run.toml",), options, {"batch_sizes": sizes, "draw_sets": 2}, folder=folder)


def interrupt(folder: Path) -> tuple[tuple[Run, ...], SweepSection]:
    """The request of a sweep over 8 and 16 that was interrupted in its second half."""
    runs, settings = request(folder, (8, 16))
    with pytest.raises(KeyboardInterrupt) as stopped:
        sweep(runs, settings, progress=_Interrupting(small_run.TEST * 32))
    assert "finished parts are kept in" in stopped.value.__notes__[0]
    return runs, settings


@pytest.fixture(scope="module")
def halfway(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an interrupted sweep. Not to be changed."""
    folder = small_run.write(tmp_path_factory.mktemp("halfway")).parent
    interrupt(folder)
    return folder


@pytest.fixture
def interrupted(halfway: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    return shutil.copytree(halfway, tmp_path, dirs_exist_ok=True)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Sweep:
    return sweep(*request(small_run.write(tmp_path_factory.mktemp("whole")).parent, (8, 16)))


def test_an_interrupted_sweep_goes_on_from_what_was_done(interrupted: Path, whole: Sweep) -> None:
    assert not (interrupted / "s.h5").exists()
    work = interrupted / "s.h5.work"
    kinds = [path.name.split("-")[1] for path in work.glob("*.part")]
    assert kinds.count("mcbn") == 2 and {*kinds} == {"mcbn", "omega"}
    again = _Interrupting(10**9)
    record = sweep(*request(interrupted, (8, 16)), progress=again)
    assert not any(title.startswith("Drawing") for title in again.titles)
    assert values_of(record, "sweep-continued")["parts"] == len(kinds)
    assert not work.exists()
    for size in (8, 16):
        for metric, by_set in point_at(whole, size).estimates.items():
            for name, estimate in by_set.items():
                assert np.array_equal(point_at(record, size).estimates[metric][name].of_sets, estimate.of_sets)


ADAPTIVE = {"draw_sets": 5, "counts": "nominal"}


def test_a_killed_adaptive_sweep_goes_on_as_undisturbed(folder: Path, tmp_path_factory: Any, monkeypatch: Any) -> None:
    def asked(place: Path) -> Any:
        options = Options(samples=4, out=Path("s.h5"), chunk_size=10)
        return resolve_sweep(("run.toml",), options, ADAPTIVE, folder=place)

    said: list[str] = []
    monkeypatch.setattr("bnuq.progress._FIRST", 0.0)
    undisturbed = sweep(*asked(small_run.write(tmp_path_factory.mktemp("other")).parent), announce=said.append)
    with pytest.raises(KeyboardInterrupt):
        sweep(*asked(folder), progress=_Interrupting(int(said[0].split()[-4].replace(",", ""))))  # in the second round
    record = sweep(*asked(folder))
    assert "sweep-continued" in noted(record) and record.stopped == undisturbed.stopped != "full-grid"
    for point, other in zip(record.points, undisturbed.points, strict=True):
        assert (point.batch_size, point.draw_sets) == (other.batch_size, other.draw_sets)
        for metric, by_set in point.estimates.items():
            for name, estimate in by_set.items():
                assert np.array_equal(other.estimates[metric][name].of_sets, estimate.of_sets)
    assert re.search(r"20 draws × 2 sizes: [\d,]+ to [\d,]+ passes\. .*: about \d.* s of passes", " ".join(said))


def test_an_adaptive_sweep_stays_within_its_budget_and_its_draws_are_those_of_the_full_grid(folder: Path) -> None:
    few = swept(folder, sizes=None, budget=1, **ADAPTIVE)
    grid = swept(folder, sizes=None, full_grid=True, **ADAPTIVE)
    assert (few.stopped, grid.stopped, few.draw_sets, grid.draw_sets) == ("budget", "full-grid", 2, 5)
    for first, every in zip(few.points, grid.points, strict=True):
        pll = first.estimates["pll"]["test"].of_sets
        assert pll == pytest.approx(every.estimates["pll"]["test"].of_sets[:2], rel=1e-6)
        assert first.elbo.log_likelihood == pytest.approx(every.elbo.log_likelihood[:16], rel=1e-6)


@pytest.mark.nightly
def test_sizes_that_were_done_are_not_drawn_again_when_one_is_added(interrupted: Path) -> None:
    again = _Interrupting(10**9)
    sweep(*request(interrupted, (8, 16, 32)), progress=again)
    assert [title for title in again.titles if title.startswith("Drawing")] == ["Drawing 16 mini-batches of 32"]


def test_a_smaller_chunk_takes_the_parts_of_a_larger_one(interrupted: Path) -> None:
    runs, settings = request(interrupted, (8, 16))
    record = sweep([replace(run, chunk_size=5) for run in runs], settings)
    assert values_of(record, "sweep-continued")["parts"] == 6  # 2 of the draws and one of the points at each size


@pytest.mark.parametrize(
    "changed",
    at_night.but(
        [{"seed": 1}, {"layers": ("first:1",)}],
        [{"seed": 1}, {"samples": 9}, {"layers": ("first:1",)}, {"mutual_information": "corrected"}],
    ),
)
def test_parts_of_another_request_are_left(interrupted: Path, changed: dict[str, Any]) -> None:
    runs, settings = request(interrupted, (8, 16))
    assert "sweep-continued" not in noted(sweep([replace(run, **changed) for run in runs], settings))


@pytest.mark.nightly
def test_parts_of_code_that_hardly_changes_the_outputs_are_left(folder: Path) -> None:
    (folder / "scale.py").write_text("SCALE = 1.0\n")
    (folder / "act.py").write_text(
        "from scale import SCALE\nfrom torch import nn\n\n\n"
        "class Act(nn.Module):\n    def forward(self, x):\n        return SCALE * x.relu()\n"
    )
    code = (folder / "net.py").read_text()
    (folder / "net.py").write_text("from act import Act\n" + code.replace("nn.ReLU()", "Act()"))
    runs, settings = interrupt(folder)
    (folder / "scale.py").write_text("SCALE = 1.00001\n")
    assert "sweep-continued" not in noted(sweep(runs, settings))


def test_a_damaged_part_is_made_again(interrupted: Path, whole: Sweep) -> None:
    for path in (interrupted / "s.h5.work").iterdir():
        path.write_bytes(path.read_bytes()[:100])
    assert value(sweep(*request(interrupted, (8, 16))), 8, "pll") == value(whole, 8, "pll")


def test_nothing_else_in_the_work_folder_is_removed(folder: Path) -> None:
    work = folder / "mine"
    work.mkdir()
    other = f"{'0' * 24}-b8-omega.part"  # of another sweep that shares the folder
    for name in ("film.mkv.part", "letter.txt", other):
        (work / name).write_text("dear")
    sweep(*request(folder, (8,)), work=work)
    assert {path.name for path in work.iterdir()} == {"film.mkv.part", "letter.txt", other}


# ── refused ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"sizes": (16, 97)}, "batch_size is 97; expected 2 to 96, the number of training examples"),
        ({"sizes": (1, 16)}, "batch_size is 1; expected 2 to 96"),
        ({"samples": 1}, "--samples is 1; expected at least 2"),
        ({"samples": "auto"}, 'samples is "auto", which a sweep does not support'),
        ({"mutual_information": "jackknife"}, "--mutual-information jackknife is not available in a sweep"),
        ({"criterion": "auroc", "ood": ()}, "no OOD set, which --criterion auroc needs"),
        ({"out": Path("run.toml")}, "run.toml"),
        ({"out": Path("nowhere/s.h5")}, "does not exist"),
        ({"layers": ("nothing.*",)}, "matches no stochastic BatchNorm layer"),
        ({"full_grid": True, "budget": 9}, "--budget limits an adaptive sweep"),
    ],
)
def test_what_cannot_be_swept_is_told_in_one_message(folder: Path, changes: dict[str, Any], expected: str) -> None:
    before = (folder / "run.toml").read_bytes()
    with pytest.raises(BnuqError) as error:
        swept(folder, **changes)
    assert expected in str(error.value)
    assert (folder / "run.toml").read_bytes() == before and not (folder / "s.h5").exists()


def test_a_network_without_batchnorm_is_refused(tmp_path: Path) -> None:
    small_run.write(
        tmp_path, norm=False, text=small_run.RUN.replace("train_batch", "arch_args = { norm = false }\ntrain_batch")
    )
    with pytest.raises(SamplingError, match="the network has no BatchNorm layer"):
        swept(tmp_path)


def test_a_sweep_needs_a_reference(folder: Path) -> None:
    path = folder / "run.toml"
    path.write_text(path.read_text().replace('train = "train.npz"\n', ""))
    with pytest.raises(RequestError, match=r"there is no training set: .*\nAdd to the command: --train REF"):
        swept(folder)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("batch_sizes = []", "sweep.batch_sizes is []"),
        ("prior = 'gaussian'\nprior_mean = [0.0, inf]\nprior_deviation = [0.0, 1.0]", "variance of mean"),
        ("kl_weight = inf", "sweep.kl_weight is inf"),
        ("sizes = [8]", "sweep.sizes is not known"),
        ("draw_sets = 1", "sweep.draw_sets is 1"),
    ],
)
def test_what_the_run_file_says_of_sweeps_is_checked(folder: Path, line: str, message: str) -> None:
    with (folder / "run.toml").open("a") as file:
        file.write(f"\n[sweep]\n{line}\n")
    with pytest.raises(RequestError) as error:
        swept(folder, sizes=None)
    assert message in str(error.value)


@pytest.mark.nightly
def test_the_elbo_of_outputs_of_other_sizes_does_not_depend_on_their_units(tmp_path: Path) -> None:
    elbos = []
    text = small_regression.RUN.replace('"regression"\n', '"regression"\narch_args = { outputs = 2 }\n')
    for last_unit in (100.0, 1000.0):
        folder = small_regression.write(tmp_path / f"{last_unit}", text=text, outputs=2, last_unit=last_unit).parent
        elbos.append(np.array([point.elbo.elbo.value for point in swept(folder, sizes=(8, 32), samples=8).points]))
    assert elbos[1] - elbos[0] == pytest.approx(small_regression.TRAIN * np.log(10.0), rel=1e-4)


@pytest.mark.nightly
def test_no_tau_in_some_draw_sets_leaves_pll_out_and_says_so(tmp_path: Path) -> None:
    small_regression.write(tmp_path)
    record = swept(tmp_path, sizes=(4, 8, 32), samples=8, draw_sets=5)
    for point in record.points:
        infinite = np.isinf(point.estimates["tau"]["test"].of_sets)
        assert ("pll" in point.estimates) == (not infinite.any())
        at_size = (finding for finding in record.findings if finding.code == "tau-infinite")
        of = [finding.values["of"].partition(",")[0] for finding in at_size]
        assert (f"b = {point.batch_size}" in of) == infinite.any()
    assert any(np.isinf(point.estimates["tau"]["test"].of_sets).any() for point in record.points)


def test_a_network_that_no_draw_changes_is_degenerate(folder: Path) -> None:
    state = torch.load(folder / "model.pt", weights_only=True)
    torch.save(state | {"1.weight": torch.zeros(4)}, folder / "model.pt")
    record = swept(folder, draw_sets=3, full_grid=True)
    for point in record.points:
        assert point.degenerate and point.estimates["mutual_information"]["test"].of_sets.tolist() == [0.0] * 3
    assert "nothing-random" in warned(record) and record.recommended is None


def test_layers_with_too_few_values_a_channel_are_named(tmp_path: Path) -> None:
    small_regression.write(tmp_path)
    record = swept(tmp_path, sizes=(3, 32), samples=4, tau=4.0)
    assert values_of(record, "few-values") == {"batch_size": 3, "layer": "1", "values": 3}


def test_an_earlier_result_is_replaced_and_that_is_said(folder: Path) -> None:
    first = swept(folder, sizes=(8,))
    assert values_of(swept(folder, sizes=(8,)), "result-replaced") == {"file": "s.h5"}
    assert first.path is not None and sweep_file.read(first.path).points[0].batch_size == 8


# ── real networks ────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("criterion", "name", "chosen"),
    [
        *(("elbo", "test", True), ("auroc", "other", False)),
        *(
            pytest.param(*case, marks=pytest.mark.nightly)
            for case in (("pll", "test", False), ("auroc", "test", False), ("pll", "other", True))
        ),
    ],
)
@pytest.mark.nightly
def test_no_size_is_chosen_by_a_set_on_another_scale_than_the_reference(folder, criterion, name, chosen):
    for each in ("train", "test", "other"):
        with np.load(folder / f"{each}.npz") as file:
            arrays = dict(file)
        arrays["x"] = np.clip(arrays["x"], 0, 1) * np.float32(255 if each == name else 1)
        np.savez(folder / f"{each}.npz", **arrays)
        if each == "train":
            model = small_run.network()
            model.load_state_dict(torch.load(folder / "model.pt"))
            small_run.settle(model, torch.from_numpy(arrays["x"]))
            torch.save(model.state_dict(), folder / "model.pt")
    record = swept(folder, criterion=criterion, ood=None)
    assert values_of(record, "inputs-of-another-scale")["set"] == name
    assert not {"reference-mismatch", "no-recommendation"} & {*warned(record)}
    assert (record.recommended is not None) == chosen
