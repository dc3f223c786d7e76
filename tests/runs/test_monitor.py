"""A small real network, watched: alarms on shifted batches and not on clean ones, from a file that needs no data."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import small_run
import torch
from findings_of import noted, values_of, warned
from torch import nn

import bnuq
from bnuq.config import Options, resolve
from bnuq.errors import BnuqError, DataError, RequestError, ResultError
from bnuq.studies.export.compute import export
from bnuq.studies.monitor.baseline import LEAST
from bnuq.studies.monitor.program import Drift, law_of, threshold, thresholds
from bnuq.studies.monitor.record import STEPS


def pictures(seed: int, count: int, shift: float = 0.0) -> np.ndarray:
    """As the points of the tiny network, which are normal; moved by a part of their deviation of 0.3."""
    return np.random.default_rng(seed).normal(0.5 + 0.3 * shift, 0.3, (count, 1, 6, 6)).astype(np.float32)


def network(**arguments: Any) -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        made = small_run.network(**arguments)
        if arguments.get("norm", True):
            small_run.settle(made, torch.from_numpy(pictures(0, 96)))
    return made.eval()


@pytest.fixture(scope="module")
def watched() -> nn.Sequential:
    return network()


def monitor(model: nn.Module, **asked: Any) -> bnuq.Monitor:
    return bnuq.Monitor(model, **{"reference": pictures(1, 600), "resamples": 199, "train_batch_size": 16} | asked)


def test_clean_batches_pass_and_a_shifted_one_is_found_with_its_layers_and_its_size(watched):
    clean = [monitor(watched).take(pictures(100 + seed, 40)).p_value for seed in range(20)]
    assert min(clean) > 0.005 and np.mean(clean) > 0.25
    found = monitor(watched).take(pictures(3, 200, shift=0.5))
    assert found.p_value == 1 / 200
    [layer] = found.layers
    assert (layer.name, layer.p_value) == ("1", 1 / 200)
    # A mean over 16 positions and 9 pixels of a picture, of 16 pictures, moves by 0.15 × Σ weights: by hand below.
    conv, inputs = watched[0], torch.from_numpy(pictures(5, 4000))
    with torch.no_grad():
        of_points = conv(inputs).double().mean((2, 3))
        moved = conv(inputs + 0.15).double().mean((0, 2, 3)) - of_points.mean(0)
    expected = float(((moved / of_points.std(0)) ** 2).mean().sqrt() * 16**0.5)
    assert layer.mean_shift == pytest.approx(expected, rel=0.15)


def test_a_stream_raises_the_alarm_after_the_change_and_then_stands_still(watched):
    watching = monitor(watched)
    for seed in range(5):
        assert watching.take(pictures(200 + seed, 40), name=f"day {seed}").alarm is None
    assert watching.e_value < 20
    for seed in range(5):
        found = watching.take(pictures(300 + seed, 40, shift=0.8), name=f"later {seed}")
        if found.alarm is not None:
            break
    assert found.alarm in (6, 7, 8, 9) and found.e_value >= 100
    assert watching.alarm == found.alarm
    after = watching.take(pictures(400, 40))
    assert noted(after) == ["stream-stopped"] and after.names == found.names
    assert values_of(after, "stream-stopped") == {"batch": found.alarm, "name": found.names[-1]}
    assert after.p_value > 1 / 200  # still against the reference


def test_settings_that_the_baseline_decides_are_noted_where_they_are_others(watched, tmp_path):
    monitor(watched, reference={"x": pictures(1, 600)}, normalize="0.5/0.3").save(tmp_path / "base.h5")
    np.savez(tmp_path / "other.npz", x=pictures(2, 60))
    again = {"baseline": tmp_path / "base.h5", "resamples": 199, "train_batch_size": 16}
    assert not noted(bnuq.Monitor(watched, normalize="0.5/0.3", **again).take(pictures(7, 50)))
    in_memory = bnuq.Monitor(watched, reference={"x": pictures(1, 600)}, normalize="0.5/0.3", **again)
    assert not noted(in_memory.take(pictures(7, 50)))
    other = bnuq.Monitor(watched, normalize="0/1", test=str(tmp_path / "other.npz"), **again).take(pictures(7, 50))
    assert values_of(other, "monitor-settings-ignored")["keys"] == ["normalize", "test"]


def test_a_baseline_is_small_and_gives_the_same_answers_without_any_data(watched, tmp_path):
    first = monitor(watched)
    first.save(tmp_path / "base.h5")
    assert (tmp_path / "base.h5").stat().st_size < 1_000_000
    again = bnuq.Monitor(watched, baseline=tmp_path / "base.h5", resamples=199, train_batch_size=16)
    batches = [pictures(7, 50), pictures(8, 50, shift=0.3), pictures(9, 50)]
    for batch in batches[:2]:
        one, other = first.take(batch), again.take(batch)
        assert (one.p_value, one.e_value) == (other.p_value, other.e_value)
        assert one.blocks == other.blocks
    again.save(stream=tmp_path / "stream.h5")
    later = bnuq.Monitor(
        watched, baseline=tmp_path / "base.h5", stream=tmp_path / "stream.h5", resamples=199, train_batch_size=16
    )
    assert later.e_value == first.e_value
    assert later.take(batches[2]).e_value == first.take(batches[2]).e_value


@pytest.mark.nightly  # others have small networks
def test_a_large_network_still_has_a_baseline_below_a_megabyte(tmp_path):
    parts: list[nn.Module] = []
    for width, channels in zip([1, *[160] * 40], [160] * 41, strict=True):
        parts += [nn.Conv2d(width, channels, 1), nn.BatchNorm2d(channels), nn.ReLU()]
    large = nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(160, 40)).eval()
    large_monitor = monitor(large, reference=pictures(0, 3500))
    large_monitor.save(tmp_path / "base.h5")
    assert (tmp_path / "base.h5").stat().st_size < 1_000_000
    assert len(large_monitor.take(pictures(1, 20)).layers) >= 30  # what random weights leave varying


def test_nothing_of_the_network_is_changed(watched):
    before = {name: value.clone() for name, value in watched.state_dict().items()}
    training = network().train()
    monitor(training).take(pictures(0, 20))
    monitor(watched).take(pictures(0, 20))
    assert training.training
    assert all(torch.equal(value, before[name]) for name, value in watched.state_dict().items())


def test_without_batchnorm_it_watches_the_last_layer_and_says_so():
    found = monitor(network(norm=False)).take(pictures(3, 200, shift=1.0))
    assert "monitor-without-batchnorm" in noted(found)
    assert [layer.name for layer in found.layers] == ["features of the last layer"]
    assert found.p_value == 1 / 200


def test_a_regression_is_watched_too(watched):
    found = monitor(watched, task="regression").take(pictures(3, 100, shift=1.0))
    assert [block.name for block in found.blocks if block.kind != "layer"] == ["outputs"]
    assert found.p_value == 1 / 200 and found.scores == {"reference": {}, "batch": {}}


def test_the_training_set_as_reference_is_a_warning(tmp_path):
    run_file = small_run.write(tmp_path, text=small_run.RUN.replace('test = "test.npz"\n', ""))
    assert warned(bnuq.Monitor(run_file, resamples=199).take(pictures(1, 20))) == ["reference-trained-on"]


def test_inputs_are_normalised_as_when_the_baseline_was_made(watched, tmp_path):
    """By the training data, which is not there any more."""
    first = monitor(watched, normalize={"mean": [0.5], "std": [0.3]})
    first.save(tmp_path / "base.h5")
    again = bnuq.Monitor(watched, baseline=tmp_path / "base.h5", resamples=199, train_batch_size=16)
    assert again.take(pictures(1, 30)).blocks == first.take(pictures(1, 30)).blocks


def not_a_number(batch: np.ndarray) -> np.ndarray:
    batch[3, 0, 0, 0] = np.nan
    return batch


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (lambda: pictures(0, 1), r"the batch .* has 1 example; batch statistics need at least 2"),
        (lambda: pictures(0, 20)[:, :, :5], r"examples of shape \(1, 5, 6\), the reference .* of \(1, 6, 6\)"),
        (lambda: not_a_number(pictures(0, 20)), "NaN"),
    ],
)
def test_a_batch_that_cannot_be_compared_is_refused_and_not_added(watched, batch: Callable[[], np.ndarray], message):
    watching = monitor(watched)
    with pytest.raises(DataError, match=message):
        watching.take(batch())
    assert watching.e_value == 1.0 and watching.alarm is None


def test_a_level_that_the_resamples_cannot_reach_is_refused(watched):
    with pytest.raises(RequestError, match=r"at least 1/101; expected --resamples 199 or more"):
        monitor(watched, resamples=100, level=0.005)
    assert monitor(watched, resamples=199, level=0.005)


def test_references_that_say_nothing_are_refused_and_small_ones_are_noted(watched):
    with pytest.raises(DataError, match="39 examples; expected at least 40"):
        monitor(watched, reference=pictures(0, 39))
    with pytest.raises(DataError, match="nothing varies between the examples of the reference"):
        monitor(watched, reference=np.ones((60, 1, 6, 6), np.float32))
    with pytest.raises(RequestError, match="no reference is given"):
        monitor(watched, reference=None)
    few = monitor(watched, reference=pictures(0, 40)).take(pictures(1, 10))  # 13 points for 8 statistics
    assert "few-reference-points" not in noted(few)
    wide = nn.Sequential(nn.Flatten(), nn.Linear(36, 50), nn.BatchNorm1d(50), nn.Linear(50, 3)).eval()
    found = monitor(wide, reference=pictures(0, 60)).take(pictures(1, 30, shift=2.0))
    assert values_of(found, "few-reference-points") == {"points": 20, "statistics": 100, "directions": 5}
    assert found.p_value == 1 / 200


def test_a_layer_that_never_varies_is_left_out_and_named():
    dead = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(64, 3)).eval()
    with torch.no_grad():
        dead[0].weight.abs_()  # of any start, the first channel varies once its bias is 0
        dead[0].bias.fill_(-100.0)
    with pytest.raises(DataError, match="nothing varies"):
        monitor(dead)
    with torch.no_grad():
        dead[0].bias[0] = 0.0
    assert values_of(monitor(dead).take(pictures(1, 20)), "constant-statistics") == {"layers": ["2"]}


def test_files_of_other_networks_and_streams_are_refused(watched, tmp_path):
    monitor(watched).save(tmp_path / "base.h5", stream=tmp_path / "stream.h5")
    with torch.no_grad():
        other = network()
        other[0].weight += 0.1
    with pytest.raises(ResultError, match="other weights"):
        bnuq.Monitor(other, baseline=tmp_path / "base.h5").take(pictures(1, 20))
    with pytest.raises(ResultError, match="the stream of another baseline"):
        monitor(watched, reference=pictures(2, 600), stream=tmp_path / "stream.h5")
    with pytest.raises(ResultError, match=r"at the level 0\.01, and --level is 0\.05"):
        monitor(watched, stream=tmp_path / "stream.h5", level=0.05)
    with pytest.raises(ResultError, match="not a result file of bnuq monitor"):
        small_run.old_result(tmp_path / "old.h5")
        bnuq.Monitor(watched, baseline=tmp_path / "old.h5")
    with pytest.raises(BnuqError, match="expected a number between 0 and 1"):
        monitor(watched, level=1.5)
    first, second = (monitor(watched, stream=tmp_path / "stream.h5") for _ in range(2))
    for number, each in enumerate((first, second)):
        each.take(pictures(3 + number, 60))
    first.save(stream=tmp_path / "stream.h5")
    with pytest.raises(ResultError, match=r"stream.h5 has other batches by now; open that stream again"):
        second.save(stream=tmp_path / "stream.h5")


def test_the_file_of_a_batch_is_shown_again(watched, tmp_path: Path):
    from bnuq.studies.monitor.record import write

    found = monitor(watched).take(pictures(3, 60, shift=1.0), name="tuesday")
    write(found.record, tmp_path / "tuesday.h5")
    again = bnuq.open(tmp_path / "tuesday.h5")
    assert (again.p_value, again.e_value, again.layers) == (found.p_value, found.e_value, found.layers)
    assert "This batch differs from the reference: a difference of this size occurs" in again.text()
    assert again.summary()["blocks"][0]["name"] == "1" and again.summary()["blocks"][1]["mean_shift"] is None


# ── in a program ─────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.nightly  # an export of a whole network
def test_a_program_says_when_its_points_have_left(tmp_path):
    run_file = small_run.write(tmp_path)
    np.savez(tmp_path / "many.npz", x=pictures(1, 600), y=np.zeros(600, int))
    bnuq.Monitor(run_file, reference=str(tmp_path / "many.npz"), resamples=199).save(tmp_path / "base.h5")
    run = resolve(str(run_file), Options(methods=("mcbn",)), folder=tmp_path)
    exported = export(run, tmp_path / "net.pt2", monitor=tmp_path / "base.h5")
    assert exported.metadata["outputs"][-1] == "drift"
    limits = exported.metadata["monitor"]["thresholds"]
    program = torch.export.load(tmp_path / "net.pt2").module()
    clean = np.array([float(program(torch.from_numpy(pictures(500 + n, 40)))["drift"][0]) for n in range(60)])
    assert (clean > limits["0.05"]).mean() <= 0.15 and clean.max() < limits["0.001"] + 1.5
    moved = program(torch.from_numpy(pictures(3, 200, shift=0.5)))["drift"]
    assert moved.shape == (200,) and float(moved.min()) == float(moved.max()) > limits["0.001"]


def test_a_program_compares_the_codes_that_the_baseline_keeps_and_rates_hold_for_any_tail(watched):
    def heavy(seed: int, count: int) -> np.ndarray:
        scale = np.random.default_rng(seed).standard_cauchy((count, 1, 1, 1))
        return (pictures(seed, count) * scale).astype(np.float32)

    session = monitor(watched, reference=heavy(1, 3000))._session
    batches = torch.from_numpy(heavy(2, 16_000))
    drift = Drift(watched, session._opened.watch, session.baseline, batches[:3])
    steps = torch.cat(drift._coordinates(batches[:500]), 1) * STEPS
    assert torch.equal(steps, steps.round())
    scores = np.array([float(drift(batch)[0]) for batch in batches.split(20)])
    limits = drift.summary()["thresholds"]
    for level, most in (("0.05", 0.065), ("0.01", 0.02), ("0.001", 0.006)):  # of 800 clean batches
        assert (scores > limits[level]).mean() <= most


def test_the_law_of_a_program_is_that_of_normal_points():
    random = np.random.default_rng(0)
    turn = np.eye(12) + 0.2 * random.normal(size=(12, 12))
    rows = np.round(16 * random.normal(size=(4000, 12)) @ turn).astype(np.int8)
    law, starts = law_of(rows[:1500], [0, 8]), [0, 8]
    batches = [rows[1500:][random.choice(2500, 30, replace=False)] / 16 for _ in range(1500)]
    scores = np.array([law.scores(batch.mean(0), 30, starts) for batch in batches])
    assert np.abs(scores.mean(0)).max() < 0.12 and scores.std(0) == pytest.approx(1.0, abs=0.1)
    assert (scores.max(1) > threshold(2, 0.05)).mean() == pytest.approx(0.05, abs=0.02)


def test_the_thresholds_of_a_program_hold_where_tails_are_heavy():
    random, starts = np.random.default_rng(0), [0, 8]
    rows = np.clip(np.round(9 * random.standard_t(3, size=(6000, 12))), -127, 127).astype(np.int8)
    law, limits = law_of(rows[:1500], starts), thresholds(rows[:1500], starts, 0)
    batches = [rows[1500:][random.choice(4500, 10, replace=False)].mean(0) / 16 for _ in range(4000)]
    scores = np.max(law.scores(np.array(batches), 10, starts), axis=0)
    rates = {level: (scores > limit).mean() for level, limit in limits.items()}
    assert (scores > threshold(2, 0.01)).mean() > 0.02  # by the law alone
    assert rates[0.05] < 0.06 and rates[0.01] < 0.015 and rates[0.001] < 0.004
    fewest = thresholds(rows[: LEAST - LEAST // 3], starts, 0)
    assert all(fewest[level] >= threshold(2, level) for level in limits)


def test_a_program_with_the_baseline_of_another_network_is_refused(tmp_path):
    run_file = small_run.write(tmp_path)
    monitor(network(classes=4)).save(tmp_path / "base.h5")
    run = resolve(str(run_file), Options(methods=("mcbn",)), folder=tmp_path)
    with pytest.raises(ResultError, match="other weights"):
        export(run, tmp_path / "net.pt2", monitor=tmp_path / "base.h5")
    assert not (tmp_path / "net.pt2").exists()
