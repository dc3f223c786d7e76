"""The toy regression: what its networks say where there are no data, and that its file, report and picture say so."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import h5py
import numpy as np
import pytest
import torch
from records_at_rest import replace_in_record
from report_text import rendered
from small_experiments import Finished

from bnuq.cli.main import main as bnuq_main
from bnuq.errors import RequestError, ResultError
from bnuq.store import codec
from experiments import toy as experiment
from experiments.toy import Toy, read, report, reproduce, summary

pytestmark = pytest.mark.nightly  # not installed; test_commands.py runs four whole experiments


@pytest.fixture(scope="module")
def toy(ran: Callable[[str], Finished]) -> Toy:
    return read(ran("toy").path)


@pytest.fixture
def few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(experiment, "STEPS", 5)


def test_there_are_mcbn_at_two_batch_sizes_and_mcdo(toy):
    assert [(c.method, c.batch_size, c.dropout_rate) for c in toy.curves.values()] == [
        ("mcbn", 32, None),
        ("mcbn", 128, None),
        ("mcdo", None, 0.1),
    ]


def test_the_networks_have_learnt_the_curve_where_the_data_are(toy):
    for curve in toy.curves.values():
        assert experiment.NOISE * 0.9 < curve.scores["rmse"].value < experiment.NOISE * 1.4
        assert curve.places["inside"].error < 0.7 * experiment.NOISE


@pytest.mark.parametrize("place", ["gap", "outside"])
def test_samples_spread_more_where_there_are_no_data(toy, place):
    for curve in toy.curves.values():
        assert curve.places[place].mc_sd > 1.5 * curve.places["inside"].mc_sd


def test_larger_mini_batches_spread_less(toy):
    small, large = (curve.places["inside"].mc_sd for curve in toy.curves.values() if curve.method == "mcbn")
    assert 1.5 < small / large < 3.5  # 1/√b alone would be 2; the networks are two as well


def test_bands_hold_the_share_of_test_points_that_they_promise(toy):
    for curve in toy.curves.values():
        assert curve.scores["coverage50"].value == pytest.approx(0.5, abs=0.08)
        assert curve.scores["coverage95"].value == pytest.approx(0.95, abs=0.04)


def test_estimates_of_places_are_those_of_the_curve(toy):
    away = np.abs(toy.x)
    where = {"inside": (away >= 1) & (away <= 3), "gap": away < 1, "outside": away > 3}
    assert sum(mask.sum() for mask in where.values()) == len(toy.x)
    for curve in toy.curves.values():
        np.testing.assert_allclose(curve.sd**2, curve.mc_sd**2 + 1 / curve.tau, rtol=1e-12)
        for place, mask in where.items():
            assert curve.places[place].mc_sd == pytest.approx(np.sqrt(np.mean(curve.mc_sd[mask] ** 2)))
            assert curve.places[place].error == pytest.approx(
                np.sqrt(np.mean((curve.mean - np.sin(2 * toy.x) - 0.3 * toy.x)[mask] ** 2))
            )


def test_normalised_scores_have_the_errors_of_a_ratio_of_means(toy):
    """By the jackknife over points, which knows nothing of the formula."""
    rng = np.random.default_rng(0)
    low, high = rng.normal(1, 0.2, 400), rng.normal(2, 0.3, 400)
    score = 0.5 * (low + high) + rng.normal(0, 0.1, 400)
    estimate = experiment._normalized(score, low, high)

    def without(values: np.ndarray) -> np.ndarray:
        return (values.sum() - values) / (len(values) - 1)

    left_out = 100 * (without(score) - without(low)) / (without(high) - without(low))
    jackknife = np.sqrt((len(score) - 1) * np.mean((left_out - left_out.mean()) ** 2))
    assert estimate.value == pytest.approx(100 * (score - low).mean() / (high - low).mean())
    assert estimate.se == pytest.approx(jackknife, rel=0.01)
    for curve in toy.curves.values():
        assert curve.scores["normalized_crps"].value < 20  # the noise is constant: so is the best uncertainty, nearly


@pytest.mark.usefixtures("few_steps")
def test_same_seed_same_estimates_and_another_seed_others():
    first, again, other = (reproduce(samples=5, seed=seed) for seed in (3, 3, 4))
    for name in first.curves:
        np.testing.assert_array_equal(first.curves[name].mean, again.curves[name].mean)
        np.testing.assert_array_equal(first.curves[name].mc_sd, again.curves[name].mc_sd)
        assert first.curves[name].scores == again.curves[name].scores
        assert not np.array_equal(first.curves[name].mean, other.curves[name].mean)
    np.testing.assert_array_equal(first.train_y, again.train_y)


@pytest.mark.usefixtures("few_steps")
def test_every_step_is_counted_and_the_global_generators_and_threads_are_left_as_they_were():
    before, threads, counted = torch.get_rng_state(), torch.get_num_threads(), []

    class Bar:
        def __init__(self, _title: str, total: int) -> None:
            counted.append(-total)

        def __enter__(self):
            return counted.append

        def __exit__(self, *_: object) -> None: ...

    reproduce(samples=2, progress=Bar)
    assert counted[0] == -3 * 5
    assert sum(counted) == 0
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.get_num_threads() == threads


@pytest.mark.parametrize(
    ("request_changes", "message"),
    [
        ({"samples": 1}, "samples is 1; expected at least 2"),
        ({"batch_size": 3}, "batch_size is 3; expected 4 to 74"),
        ({"batch_size": 75}, "batch_size is 75; expected 4 to 74"),
    ],
)
def test_an_impossible_request_is_refused(request_changes, message):
    with pytest.raises(RequestError, match=message):
        reproduce(**request_changes)


@pytest.mark.usefixtures("few_steps")
@pytest.mark.parametrize("batch_size", [4, 74])
def test_the_extreme_batch_sizes_work(batch_size):
    assert all((curve.mc_sd > 0).any() for curve in reproduce(samples=2, batch_size=batch_size).curves.values())


def test_the_file_is_readable_without_bnuq(toy, tmp_path):
    codec.write(toy, tmp_path / "toy.h5")
    with h5py.File(tmp_path / "toy.h5") as file:
        assert (file.attrs["kind"], file.attrs["command"]) == ("toy", "experiments toy")
        for name, curve in toy.curves.items():
            group = file[f"curves/{name}"]
            assert group["mean"].dims[0][0] == file["x"]
            assert group["sd"].attrs["units"] == "target unit"
            np.testing.assert_array_equal(group["sd"][()], curve.sd)
        rows = file["estimates"]
        (row,) = np.flatnonzero((rows["network"].asstr()[()] == "mcdo") & (rows["metric"].asstr()[()] == "pll"))
        assert rows["value"][row] == toy.curves["mcdo"].scores["pll"].value
        assert rows["unit"].asstr()[row] == "nats"


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda file: file.__delitem__("curves/mcdo/mean"), "incomplete or damaged"),
        # an axis without an end to its marks
        (lambda file: replace_in_record(file, '"end": 5.0', '"end": 1e300'), "end: Expected `float` <= 100"),
    ],
)
def test_a_damaged_file_is_refused_in_one_message(toy, tmp_path, damage, message):
    codec.write(toy, tmp_path / "toy.h5")
    with h5py.File(tmp_path / "toy.h5", "r+") as file:
        damage(file)
    with pytest.raises(ResultError, match=message):
        read(tmp_path / "toy.h5")


def test_words_follow_the_estimates(toy):
    curve = toy.curves["mcdo"]
    inside = curve.places["inside"]
    flat = replace(curve, places={name: replace(inside, error=1.0) for name in curve.places})
    text = " ".join(rendered(report, replace(toy, curves={"mcdo": flat})).split())
    assert "does not grow where there are no data" in text
    assert "which is too sure" in text


def test_a_network_that_needs_no_noise_is_told_and_kept(toy, tmp_path):
    curve = replace(toy.curves["mcdo"], tau=np.inf, tau_at_end="infinite", sd=toy.curves["mcdo"].mc_sd)
    sure = replace(toy, curves={"mcdo": curve}, experiment={**toy.experiment, "curves": ["mcdo"]})
    codec.write(sure, tmp_path / "toy.h5")
    read_back = read(tmp_path / "toy.h5")
    assert read_back.curves["mcdo"].tau == np.inf
    assert json.loads(json.dumps(summary(read_back), allow_nan=False))["networks"]["mcdo"]["tau"] == "inf"
    assert "its samples spread enough for the noise too" in " ".join(rendered(report, read_back).split())


@pytest.mark.usefixtures("few_steps")
def test_the_command_prints_the_summary_of_its_file_and_nothing_when_quiet(called, tmp_path, capsys):
    code, printed, errors = called("toy", "--samples", "5", "--batch-size", "16", "--json", "--out", "t.h5")
    assert (code, errors.count("\n")) == (0, 1) and errors.startswith("3 networks, ")
    printed_summary = json.loads(printed)
    assert printed_summary["experiment"]["samples"] == 5
    assert set(printed_summary["networks"]) == {"mcbn_b16", "mcbn_b64", "mcdo"}
    assert printed_summary == summary(read(tmp_path / "t.h5"))
    with pytest.raises(SystemExit):
        bnuq_main(["report", "t.h5"])
    expected = "bnuq: t.h5 is a result of bnuq experiments toy (toy); expected one of a kind that is read here"
    assert capsys.readouterr().err.startswith(expected)
    assert called("toy", "--samples", "5", "--quiet") == (0, "", "")
    assert (tmp_path / "reproduce-toy.h5").is_file()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--samples", "1"], "samples is 1; expected at least 2, since a single one has no spread."),
        (["--seed", "-1"], "--seed is -1; expected a whole number of at least 0."),
        (["--out", "nowhere/t.h5"], "--out nowhere/t.h5: its folder does not exist. Make the folder first."),
        (["--out", "mine.txt"], "mine.txt is not a result of bnuq; name another file to write."),
        (["--figures", "mine.txt"], "mine.txt: figures cannot be put there: it is a file. Name a folder."),
    ],
)
def test_the_command_refuses_in_one_message(called, tmp_path, arguments, message):
    (tmp_path / "mine.txt").write_text("notes")
    assert called("toy", *arguments) == (2, "", f"bnuq: {message}\n")
    assert (tmp_path / "mine.txt").read_text() == "notes"
    assert not (tmp_path / "reproduce-toy.h5").exists()
