"""A checkpoint whose running averages lag, or were never taken, mended: what changes, what helps, what is refused."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import small_run
import torch
from findings_of import noted, values_of
from report_text import rendered
from small_regression import write as write_regression

import bnuq
from bnuq import catalogue
from bnuq.config import Options, resolve
from bnuq.errors import BnuqError, ModelError
from bnuq.estimates import Estimate
from bnuq.records.as_json import json_of as summary
from bnuq.studies.precise_bn.compute import precise_bn
from bnuq.studies.precise_bn.record import EstimateChange, PreciseBN
from bnuq.studies.precise_bn.view import findings, report

MEAN, VAR = "1.running_mean", "1.running_var"


def mended(folder: Path, *, run_file: str = "run.toml", out: str | Path = "new.pt", **asked: Any) -> PreciseBN:
    """`precise_bn` of the run file in `folder`: settings of its own among `asked`, the others are options."""
    settings = {name: asked.pop(name) for name in ("estimator", "points", "batch_size") if name in asked}
    return precise_bn(resolve(run_file, Options(out=Path(out), **asked), folder=folder), **settings)


def state(path: Path) -> dict[str, torch.Tensor]:
    return torch.load(path, weights_only=True)


def write_reset(folder: Path) -> Path:
    """The tiny network with its running statistics as they were made, far from those that it needs."""
    small_run.write(folder)
    weights = state(folder / "model.pt")
    weights["0.weight"] *= 20  # which its BatchNorm takes out again
    torch.save(weights | {MEAN: torch.zeros(4), VAR: torch.ones(4)}, folder / "model.pt")
    return folder


@pytest.fixture
def reset(tmp_path: Path) -> Path:
    return write_reset(tmp_path)


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, PreciseBN]:
    """A folder in which it was mended, and what that gave. Not to be changed."""
    folder = write_reset(tmp_path_factory.mktemp("done"))
    return folder, mended(folder)


def test_a_network_that_never_kept_statistics_is_mended_and_evaluates_with_the_same_run_file(reset):
    result = mended(reset)
    assert result.test is not None
    accuracy = result.test.estimates["accuracy"]
    assert accuracy.after.value > accuracy.before.value + 0.05
    assert result.test.estimates["pll"].verdict == "better"
    assert [layer.never_trained for layer in result.layers] == [True]
    (reset / "again.toml").write_text(small_run.RUN.replace("model.pt", "new.pt"))
    again = small_run.evaluated(reset, run_file="again.toml", methods=("deterministic",), out=Path("r.h5"))
    for name in ("accuracy", "pll"):
        actual = again.methods["deterministic"].sets["test"].estimates[name].value
        assert actual == pytest.approx(result.test.estimates[name].after.value, abs=1e-9)


def test_statistics_that_are_not_finite_are_mended_and_weights_that_are_not_are_refused(tmp_path):
    small_run.write(tmp_path)
    whole = mended(tmp_path, out="whole.pt")
    weights = state(tmp_path / "model.pt")
    broken = weights[MEAN].clone()
    broken[1] = float("nan")
    torch.save(weights | {MEAN: broken}, tmp_path / "model.pt")
    result = mended(tmp_path)
    assert result.test is None and values_of(result, "not-finite-before")["tensors"] == [MEAN]
    assert [(layer.dead, layer.not_finite) for layer in (*result.layers, *whole.layers)] == [(0, 1), (0, 0)]
    for name in (MEAN, VAR):
        assert torch.equal(state(tmp_path / "new.pt")[name], state(tmp_path / "whole.pt")[name])
    weights["4.bias"][0] = float("inf")
    torch.save(weights, tmp_path / "model.pt")
    with pytest.raises(ModelError, match=r"4\.bias holds NaN"):
        mended(tmp_path, out="other.pt")
    assert not (tmp_path / "other.pt").exists()


def test_the_statistics_alone_are_new_and_are_those_of_the_reference(done):
    reset, result = done
    old, new = state(reset / "model.pt"), state(reset / "new.pt")
    assert {name for name in old if not torch.equal(old[name], new[name])} == {MEAN, VAR}
    with np.load(reset / "train.npz") as arrays:
        images = torch.from_numpy(arrays["x"])
    seen = torch.conv2d(images, old["0.weight"]).movedim(1, -1).flatten(0, -2).double()
    torch.testing.assert_close(new[MEAN].double(), seen.mean(0), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(new[VAR].double(), seen.var(0, correction=0), rtol=1e-5, atol=0)
    assert (result.points, result.reference_points, result.batch_size, result.batches) == (96, 96, 16, 6)


def test_a_layer_is_told_by_how_far_it_moved(done):
    reset, result = done
    (layer,) = result.layers
    new = {name: value.double().numpy() for name, value in state(reset / "new.pt").items()}
    assert layer.shift == pytest.approx(np.sqrt(np.mean(new[MEAN] ** 2 / new[VAR])), rel=1e-6)
    assert layer.log_variance == pytest.approx(np.abs(np.log(new[VAR])).mean(), rel=1e-6)
    assert (layer.name, layer.channels, layer.dead) == ("1", 4, 0)


def test_a_constant_channel_is_counted_and_left_out(reset):
    weights = state(reset / "model.pt")
    weights["0.weight"][2] = 0
    torch.save(weights, reset / "model.pt")
    (layer,) = mended(reset).layers
    assert layer.dead == 1 and np.isfinite([layer.shift, layer.log_variance]).all()
    assert state(reset / "new.pt")[VAR][2] == 0


def test_the_error_of_the_change_is_paired(done):
    reset, result = done
    assert result.test is not None
    with np.load(reset / "test.npz") as arrays:
        images, labels = torch.from_numpy(arrays["x"]), torch.from_numpy(arrays["y"])
    right = []
    for name in ("model.pt", "new.pt"):
        net = small_run.network().eval()
        net.load_state_dict(state(reset / name))
        with torch.no_grad():
            right.append((net(images).argmax(1) == labels).double().numpy())
    apart = right[1] - right[0]
    change = result.test.estimates["accuracy"].change
    assert change.value == pytest.approx(apart.mean())
    assert change.se == pytest.approx(apart.std(ddof=1) / np.sqrt(len(apart)))


def test_of_few_points_no_change_is_judged(reset):
    with np.load(reset / "test.npz") as arrays:
        np.savez(reset / "test.npz", x=arrays["x"][:19], y=arrays["y"][:19])
    test = mended(reset).test
    assert test is not None and {change.verdict for change in test.estimates.values()} == {"unknown"}


def test_the_estimators_differ_as_they_say(reset):
    actual = {}
    for estimator in ("population", "mean_of_var", "full"):
        mended(reset, out=f"{estimator}.pt", estimator=estimator)
        actual[estimator] = state(reset / f"{estimator}.pt")[VAR].numpy()
    np.testing.assert_allclose(actual["population"], actual["full"], rtol=1e-5)
    assert 0 < np.abs(actual["population"] / actual["mean_of_var"] - 1).max() < 0.1


def test_same_seed_same_statistics_and_another_seed_other_points(reset):
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        mended(reset, out=f"{name}.pt", points=40, seed=seed)
    a, b, c = (state(reset / f"{name}.pt")[MEAN] for name in "abc")
    assert torch.equal(a, b) and not torch.equal(a, c)


def test_what_was_left_to_a_default_or_could_not_be_had_is_said(reset):
    result = mended(reset)
    assert values_of(result, "few-points")["points"] == 96
    assert "default-batch-size" not in noted(result)
    (reset / "run.toml").write_text(small_run.RUN.replace("train_batch_size = 16\n", ""))
    result = mended(reset, points=96)
    assert values_of(result, "default-batch-size") == {"batch_size": 128}
    assert any(text.startswith("mini-batches of at most 128: the default") for text in catalogue.noted(result.findings))
    assert values_of(result, "file-replaced") == {"file": "new.pt"}


def test_without_a_test_set_nothing_is_scored_and_the_statistics_are_the_same(reset):
    mended(reset)
    (reset / "bare.toml").write_text(small_run.RUN.replace('test = "test.npz"\nood = ["other.npz"]\n', ""))
    with np.load(reset / "train.npz") as arrays:
        np.savez(reset / "train.npz", x=arrays["x"])  # labels are not needed
    result = mended(reset, run_file="bare.toml", out="bare.pt")
    assert result.test is None and summary(result)["test"] is None
    assert torch.equal(state(reset / "new.pt")[MEAN], state(reset / "bare.pt")[MEAN])


def test_of_a_regression_the_rmse_is_told(tmp_path):
    write_regression(tmp_path)
    result = mended(tmp_path)
    assert result.test is not None
    assert list(result.test.estimates) == ["rmse", "mae"]
    assert result.test.estimates["rmse"].direction == "lower"


def halved(folder: Path) -> None:
    """The network's weights in float16."""
    weights = state(folder / "model.pt")
    halves = {name: value.half() if value.is_floating_point() else value for name, value in weights.items()}
    torch.save(halves, folder / "model.pt")


def test_the_estimates_after_are_those_of_the_file_with_the_digits_that_it_keeps(reset):
    halved(reset)
    result = mended(reset)
    (reset / "again.toml").write_text(small_run.RUN.replace("model.pt", "new.pt"))
    again = small_run.evaluated(reset, run_file="again.toml", methods=("deterministic",), out=Path("r.h5"))
    assert result.test is not None
    actual = again.methods["deterministic"].sets["test"].estimates["pll"].value
    assert actual == pytest.approx(result.test.estimates["pll"].after.value, abs=1e-12)
    new = {name: value.double().numpy() for name, value in state(reset / "new.pt").items()}
    assert result.layers[0].shift == pytest.approx(np.sqrt(np.mean(new[MEAN] ** 2 / new[VAR])), rel=1e-9)


def test_a_variance_that_float16_makes_0_is_said_and_refused_where_it_counts(reset):
    weights = state(reset / "model.pt")
    weights["0.weight"][2] = 5e-5
    torch.save(weights, reset / "model.pt")
    halved(reset)
    lost = values_of(mended(reset), "variances-too-small")
    assert (lost["tensor"], lost["small"], lost["channels"]) == (VAR, 1, 4)
    (reset / "net.py").write_text(small_run.NET.replace("nn.BatchNorm2d(4)", "nn.BatchNorm2d(4, eps=1e-12)"))
    refused(reset, r"model.pt: 1.running_var: 1 of 4 variances .* would be 0. Save the checkpoint in float32 first")


def test_the_front_door_gives_the_function_every_time():
    assert bnuq.precise_bn is precise_bn and bnuq.precise_bn is precise_bn


ALIASED = """
from torch import nn

class Frozen(nn.BatchNorm2d):
    def train(self, mode=True):
        return super().train(False)

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.frozen, self.last = nn.Conv2d(1, 4, 3), Frozen(4), nn.Linear(64, 3)
        self.bn = nn.BatchNorm2d(4)
        self.alias = self.bn

    def forward(self, x):
        return self.last(self.alias(self.frozen(self.conv(x))).flatten(1))

def net():
    return Net()
"""


def test_a_layer_of_two_names_has_both_mended_and_a_frozen_one_stays_and_is_named(reset):
    (reset / "net.py").write_text(ALIASED)
    names: dict[str, Any] = {}
    exec(ALIASED, names)
    torch.save(names["net"]().state_dict(), reset / "model.pt")
    result = mended(reset)
    old, new = state(reset / "model.pt"), state(reset / "new.pt")
    assert torch.equal(new["bn.running_var"], new["alias.running_var"])
    assert not torch.equal(new["bn.running_var"], old["bn.running_var"])
    assert torch.equal(new["frozen.running_var"], old["frozen.running_var"])
    left = [finding.values for finding in result.findings if finding.code == "statistics-unchanged"]
    assert any(v["layer"] == "BatchNorm frozen" and v["reason"].startswith("frozen") for v in left)
    assert len(result.layers) == 1


# ── the report ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_report_fits_every_width_and_says_whether_it_helped(reset):
    result = mended(reset)
    for width in (40, 60, 100):
        for encoding in ("utf-8", "ascii"):
            lines = rendered(report, result, width=width, encoding=encoding).splitlines()
            assert all(len(line) <= width or line == str(result.path) for line in lines)
            assert all(line == line.rstrip() for line in lines)
    text = " ".join(rendered(report, result).split())
    assert "Use new.pt: accuracy is higher by" in text and "(1 of them had never been trained), most in" in text
    assert [finding.code for finding in findings(result)] == ["test-better", "statistics-replaced"]
    back = mended(reset, run_file="new.pt", train="train.npz", test="test.npz", arch="net.py:net", out="third.pt")
    assert "test-same" in [finding.code for finding in findings(back)]


@pytest.mark.parametrize(
    ("before", "after", "change", "direction", "verdict"),
    [
        (0.5, 0.7, Estimate(0.2, se=0.05), "higher", "better"),
        (0.5, 0.7, Estimate(0.2, se=0.05), "lower", "worse"),
        (0.5, 0.7, Estimate(0.2, se=0.15), "higher", "same"),
        (0.5, 0.5, Estimate(0.0, se=0.0), "higher", "same"),
        (0.5, 0.7, Estimate(0.2), "higher", "unknown"),
        (0.5, 0.7, Estimate(0.2, se=np.nan), "higher", "unknown"),
        (0.5, 0.7, Estimate(0.2, se=np.inf), "higher", "unknown"),
        (-np.inf, -1.0, Estimate(np.inf, se=np.nan), "higher", "better"),
        (-1.0, -np.inf, Estimate(-np.inf, se=np.nan), "higher", "worse"),
        (1.0, np.inf, Estimate(np.inf, se=np.nan), "lower", "worse"),
        (-np.inf, -np.inf, Estimate(np.nan, se=np.nan), "higher", "unknown"),
    ],
)
def test_a_change_is_judged_by_its_error_where_that_is_known(before, after, change, direction, verdict):
    assert EstimateChange(Estimate(before), Estimate(after), change, direction).verdict == verdict


def test_a_change_whose_error_is_not_known_is_not_told_to_be_chance(done):
    _, result = done
    assert result.test is not None
    known = EstimateChange(Estimate(0.5), Estimate(0.5), Estimate(0.0, se=0.01), "higher")
    unknown = EstimateChange(Estimate(-np.inf), Estimate(-np.inf), Estimate(np.nan, se=np.nan), "higher")
    test = replace(result.test, estimates={"accuracy": known, "pll": unknown})
    text = " ".join(rendered(report, replace(result, test=test)).split())
    assert "new.pt is better: accuracy stays at 50.00 % and predictive log-likelihood stays at −inf." in text
    assert "chance" not in text
    gone = EstimateChange(Estimate(-1.0), Estimate(-np.inf), Estimate(-np.inf, se=np.nan), "higher")
    text = " ".join(rendered(report, replace(result, test=replace(test, estimates={"pll": gone}))).split())
    assert "Keep the old file, new.pt is worse: predictive log-likelihood is lower by inf" in text


def test_of_many_layers_the_ten_largest_are_shown_worst_first(done):
    _, result = done
    many = tuple(replace(result.layers[0], name=f"bn{i}", shift=i / 10, log_variance=0.0) for i in range(25))
    text = rendered(report, replace(result, layers=many), full=True)
    shown = [line.split()[0] for line in text.splitlines() if line.startswith(" bn")]
    assert shown == [f"bn{i}" for i in range(24, 14, -1)]
    assert "15 more, none of them above 1.400." in text


def test_the_summary_is_json_and_holds_what_the_report_tells(done):
    reset, result = done
    content = json.loads(json.dumps(summary(result), allow_nan=False))
    assert content["command"] == "precise-bn" and content["estimator"] == "population"
    assert (content["points"], content["batch_size"], content["batches"]) == (96, 16, 6)
    assert content["result"] == str(reset / "new.pt") == str(result.path)
    assert content["layers"][0]["name"] == "1"
    accuracy = content["test"]["estimates"]["accuracy"]
    assert accuracy["after"]["value"] - accuracy["before"]["value"] == pytest.approx(accuracy["change"]["value"])


# ── refusals ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def refused(folder: Path, text: str, **asked: Any) -> None:
    """One message with `text`, and no file in the folder is another than before."""
    before = {path: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    with pytest.raises(BnuqError, match=text):
        mended(folder, **asked)
    assert {path: path.read_bytes() for path in folder.iterdir() if path.is_file()} == before


def test_no_input_of_the_run_is_written_over(reset):
    (reset / "link.pt").symlink_to("model.pt")
    os.link(reset / "model.pt", reset / "hard.pt")
    (reset / "folder").mkdir()
    for out in ("model.pt", "./folder/../model.pt", "link.pt", "hard.pt", "run.toml"):
        refused(reset, r"is a file that this run reads", out=out)
    for out in ("train.npz", "test.npz", "net.py"):
        refused(reset, "exists and is not a checkpoint", out=out)
    refused(reset, "it is a folder", out="folder")
    refused(reset, "the folder .*absent does not exist", out="absent/new.pt")
    refused(reset, r"in the format that was read; name it new.pt", out="new.safetensors")


OF_WEIGHTS = """
import torch
from torch import nn
from torch.nn import functional as F

class OfWeights(nn.Conv2d):
    def __init__(self):
        super().__init__(1, 4, 3)
        self.register_buffer("m", torch.zeros(4))
        self.register_buffer("v", torch.ones(4))

    def forward(self, x):
        weight = F.batch_norm(self.weight.view(1, 4, 9), self.m, self.v, training=self.training)
        return F.conv2d(x, weight.view(4, 1, 3, 3), self.bias)
"""


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ("nn.Conv2d(1, 4, 3, bias=False), nn.ReLU()", "the network has no BatchNorm layer"),
        (
            "nn.Conv2d(1, 4, 3, bias=False), nn.BatchNorm2d(4, track_running_stats=False)",
            "its only BatchNorm layer has no running statistics",
        ),
        ("nn.Conv2d(1, 4, 3, bias=False), (bn := nn.BatchNorm2d(4)), nn.ReLU(), bn", "BatchNorm 1 is called 2 times"),
        (
            "OfWeights()",
            r"its only BatchNorm layer has no statistics that depend on data \(it normalises weights, not data\)",
        ),
    ],
)
def test_a_network_without_a_population_is_refused(reset, body, text):
    source = f"{OF_WEIGHTS}\n\ndef net():\n    return nn.Sequential({body}, nn.Flatten(), nn.Linear(64, 3))\n"
    (reset / "net.py").write_text(source)
    names: dict[str, Any] = {}
    exec(source, names)
    torch.save(names["net"]().state_dict(), reset / "model.pt")
    refused(reset, text)


def test_a_request_that_cannot_be_met_is_one_message(reset):
    refused(reset, "--points is 1; expected a whole number of at least 2", points=1)
    refused(reset, "--batch-size is 1; expected a whole number of at least 2", batch_size=1)
    (reset / "bare.toml").write_text('[model]\ncheckpoint = "model.pt"\narch = "net.py:net"\n')
    refused(reset, "there is no training set", run_file="bare.toml")
    grouped = small_run.RUN.replace("[data]", '[data]\ngroup = "patient"')
    for text in (grouped, grouped.replace('test = "test.npz"\n', "")):
        (reset / "grouped.toml").write_text(text)
        refused(reset, 'data.group is "patient", and no set has an array or a column of that', run_file="grouped.toml")
    (reset / "empty.toml").write_text(small_run.RUN.replace("model.pt", "absent.pt"))
    with pytest.raises(ModelError, match="there is no such file"):
        mended(reset, run_file="empty.toml")
    with np.load(reset / "train.npz") as arrays:
        np.savez(reset / "train.npz", x=arrays["x"][:1], y=arrays["y"][:1])
    refused(reset, "a single example")


def test_a_failure_after_the_passes_leaves_the_old_file(reset, monkeypatch):
    (reset / "new.pt").write_bytes((reset / "model.pt").read_bytes())

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    refused(reset, "the disk is full")


# ── real networks ────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.nightly  # the tiny network, mended, has the exact statistics and better estimates, see above
def test_a_published_network_without_its_statistics_is_within_half_a_point_of_its_accuracy(
    data_pack: Path, sample_configs: Path, tmp_path: Path
) -> None:
    arrays = torch.load(data_pack / "checkpoints" / "resnet20-12fca82f.th", map_location="cpu", weights_only=True)
    for name, value in arrays["state_dict"].items():
        if name.endswith(("running_mean", "running_var")):
            value.fill_(float(name.endswith("running_var")))
    torch.save(arrays, tmp_path / "reset.th")
    text = (sample_configs / "cifar_resnet20.toml").read_text()
    text = text.replace("data/checkpoints/resnet20-12fca82f.th", str(tmp_path / "reset.th"))
    text = text.replace('"data/', f'"{data_pack}/').replace('"arch', f'"{sample_configs}/arch')
    (tmp_path / "run.toml").write_text(text)
    result = mended(tmp_path, out="new.th", points=1000)
    assert result.test is not None
    accuracy = result.test.estimates["accuracy"]
    assert accuracy.before.value < 0.2
    assert accuracy.after.value == pytest.approx(0.9173, abs=0.005)  # published, of all 10 000
    assert state(tmp_path / "new.th")["best_prec1"] == arrays["best_prec1"]
