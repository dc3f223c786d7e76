"""An inspection from the request to the file: with data and without, healthy and ill."""

from __future__ import annotations

import math
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import small_run
import torch
from findings_of import noted, values_of, warned
from torch import nn
from written import folder_of

from bnuq.config import Named, Options, Run, resolve
from bnuq.errors import BnuqError, DataError, ModelError, RequestError
from bnuq.studies.inspect.compute import Settings, inspect
from bnuq.studies.inspect.record import Inspection, read
from bnuq.workflows.evaluate import evaluate

FEW = Settings(draws=12)

MLP = """from torch import nn


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 20), nn.BatchNorm1d(20), nn.ReLU(), nn.Linear(20, 3))
"""


folder = folder_of(small_run)


def resolved(folder: Path, name: str = "run.toml", **options: Any) -> Run:
    return resolve(name, Options(device="cpu", **options), folder=folder)


@pytest.fixture(scope="module")
def record(folder: Path) -> Inspection:
    return inspect(replace(resolved(folder), out=folder / "model.inspect.h5"), FEW)


def without_data(folder: Path, out: str = "bare.h5", **changes: Any) -> Run:
    return replace(resolved(folder), train=None, test=None, ood=(), out=folder / out, **changes)


def test_an_inspection_holds_sites_gap_and_noise(record):
    assert [(row.name, row.kind, row.stochastic) for row in record.sites] == [
        ("1", "batchnorm", True), ("6", "dropout", True),
    ]  # fmt: skip
    assert record.gap is not None and record.noise is not None
    assert (record.gap.points, record.gap.batch_size, [layer.name for layer in record.gap.layers]) == (96, 16, ["1"])
    assert (record.noise.batch_size, record.noise.draws, record.noise.layers[0].nominal) == (16, 12, 16 * 16)
    assert record.domains is None and record.pipelines is None
    assert record.model["parameters"] == 591 and record.model["train_batch_size"] == 16


def test_the_file_gives_the_same_back(record):
    again = read(record.path)
    assert again.sites == record.sites and again.findings == record.findings
    assert again.gap is not None and again.noise is not None
    np.testing.assert_allclose(again.gap.layers[0].shift, record.gap.layers[0].shift)
    np.testing.assert_allclose(again.noise.layers[0].spread, record.noise.layers[0].spread)


def test_averages_of_the_very_reference_lag_by_no_more_than_chance(record):
    """The tiny network's statistics are plain averages over 24 mini-batches of 16 of the same 96 points."""
    [layer] = record.gap.layers
    assert layer.rms_shift < 3 * record.noise.layers[0].sigma_v / math.sqrt(24)
    assert record.gap.passed is True and warned(record) == []
    assert record.gap.worth == pytest.approx(16 * 19)
    assert layer.rms_shift < 3 * layer.explained_shift and layer.ratio_mean < 3


def test_too_small_a_reference_is_said(record):
    assert "noise-on-the-same-points" in noted(record)


def test_the_same_seed_gives_the_same_estimates(folder, record):
    again = inspect(replace(resolved(folder), out=folder / "again.h5"), FEW)
    np.testing.assert_array_equal(again.noise.layers[0].spread, record.noise.layers[0].spread)
    np.testing.assert_array_equal(again.gap.layers[0].shift, record.gap.layers[0].shift)


def test_a_large_reference_is_parted(tmp_path):
    small_run.write(tmp_path)
    np.savez(tmp_path / "train.npz", x=np.random.default_rng(0).normal(0.5, 0.3, (900, 1, 6, 6)).astype(np.float32))
    record = inspect(resolved(tmp_path), Settings(points=300, draws=8))
    assert "noise-on-the-same-points" not in noted(record)
    assert record.gap is not None and record.gap.points == 300


# ── without data ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_without_data_the_sites_are_told_and_what_a_reference_would_add(folder):
    record = inspect(without_data(folder), Settings(input_shape=(1, 6, 6)))
    assert [row.name for row in record.sites] == ["1", "6"]
    assert record.gap is None and record.noise is None
    assert "--train REF" in values_of(record, "unmeasured")["reason"]
    assert values_of(record, "random-points") == {"shape": [1, 6, 6], "requested": True}


@pytest.mark.parametrize(("normalize", "told"), [("0.5/0", "std is"), ("0.5,0.4/0.3,0.3", "mean has 2 numbers")])
def test_without_data_a_normalisation_that_cannot_be_is_refused(folder, normalize, told):
    run = without_data(folder, normalize=resolved(folder, normalize=normalize).normalize)
    with pytest.raises(RequestError, match=told):
        inspect(run, Settings(input_shape=(1, 6, 6)))


def test_the_shape_is_that_of_the_test_set_where_that_can_be_read(folder):
    record = inspect(replace(resolved(folder), train=None, out=folder / "bare.h5"))
    assert [row.positions for row in record.sites] == [16, None]
    assert "random-points" not in noted(record)


def test_a_shape_is_found_by_trying(tmp_path):
    (tmp_path / "net.py").write_text(MLP)
    torch.save(small_network().state_dict(), tmp_path / "model.pt")
    record = inspect(resolve("model.pt", Options(arch="net.py:net"), folder=tmp_path))
    assert [row.positions for row in record.sites] == [1]
    assert values_of(record, "random-points") == {"shape": [6], "requested": False}


def test_where_no_shape_fits_the_option_is_named(folder):
    with pytest.raises(RequestError, match=r"accepts none of 1,32,32, 1,28,28.*--input-shape 3,32,32"):
        inspect(without_data(folder))
    with pytest.raises(RequestError, match=r"--input-shape is 3,6,6: the network's forward fails"):
        inspect(without_data(folder), Settings(input_shape=(3, 6, 6)))


def test_a_shape_against_the_data_is_refused(folder):
    with pytest.raises(RequestError, match=r"--input-shape is 1,8,8, and the examples of .*train.npz have shape 1,6,6"):
        inspect(resolved(folder), Settings(input_shape=(1, 8, 8)))


def test_a_reference_that_cannot_be_read_is_a_warning_unless_it_was_asked_for(folder):
    absent = resolved(folder, train="absent.npz", out=folder / "x.h5")
    record = inspect(absent)
    assert (
        warned(record) == ["reference-unreadable"]
        and "absent.npz" in values_of(record, "reference-unreadable")["reason"]
    )
    assert record.gap is None and [row.positions for row in record.sites] == [16, None]
    for settings in (Settings(needs_reference=True), Settings(suggest_pipeline=True)):
        with pytest.raises(DataError, match=r"absent\.npz"):
            inspect(absent, settings)
    with pytest.raises(RequestError, match=r"(?s)there is no training set.* --train REF.*\[data\]"):
        inspect(without_data(folder), Settings(suggest_pipeline=True))


# ── ill networks ─────────────────────────────────────────────────────────────────────────────────────────────────────


def small_network() -> nn.Module:
    namespace: dict[str, Any] = {}
    exec(MLP, namespace)
    return namespace["net"]()


def changed(tmp_path: Path, **changes: float) -> Run:
    """The tiny run, some tensors of its checkpoint set to a value."""
    small_run.write(tmp_path)
    state = torch.load(tmp_path / "model.pt")
    for name, value in changes.items():
        state[name.replace("_of_", ".")].flatten()[0] = value
    torch.save(state, tmp_path / "model.pt")
    return resolved(tmp_path)


def test_weights_that_are_not_finite_are_named_and_evaluation_still_refuses_them(tmp_path):
    run = changed(tmp_path, **{"1_of_running_var": math.nan, "4_of_weight": math.inf})
    record = inspect(run, FEW)
    assert record.sites[0].flags == ("not-finite",) and record.gap is None and record.noise is None
    assert warned(record) == ["not-finite"]
    assert values_of(record, "not-finite")["tensors"] == ["4.weight", "1.running_var"]
    assert values_of(record, "unmeasured")["reason"] == "the checkpoint's weights are not finite"
    with pytest.raises(ModelError, match="NaN or infinite"):
        evaluate(run)
    with pytest.raises(ModelError, match=r"4\.weight is not finite"):
        inspect(run, Settings(suggest_pipeline=True))


def test_a_network_without_batchnorm_has_sites_and_nothing_to_measure(tmp_path):
    small_run.write(tmp_path, norm=False)
    text = small_run.RUN.replace("[data]", "arch_args = { norm = false }\n[data]")
    (tmp_path / "run.toml").write_text(text)
    record = inspect(resolved(tmp_path), FEW)
    assert [row.kind for row in record.sites] == ["dropout"] and record.gap is None and record.noise is None
    assert "no BatchNorm layer that could be sampled" in values_of(record, "unmeasured")["reason"]


def test_the_model_is_left_as_it_was(folder, monkeypatch):
    module = import_module("bnuq.studies.inspect.compute")
    seen = []
    was = module.load_network

    def watched(*args: Any, **options: Any) -> Any:
        ready = was(*args, **options)
        seen.append((ready.model, {name: value.clone() for name, value in ready.model.state_dict().items()}))
        return ready

    monkeypatch.setattr(module, "load_network", watched)
    inspect(replace(resolved(folder), out=folder / "left.h5"), Settings(draws=8))
    [(model, before)] = seen
    assert not model.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


# ── requests ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (Settings(points=4), "--points is 4; expected a whole number of at least 8"),
        (Settings(draws=4), "--draws is 4; expected a whole number of at least 8"),
        (Settings(batch_size=1), "--batch-size is 1; expected a whole number of at least 2"),
        (Settings(samples=1), "--samples is 1; expected a whole number of at least 2"),
    ],
)
def test_settings_out_of_range_are_refused_by_name(folder, settings, message):
    with pytest.raises(RequestError, match=message):
        inspect(resolved(folder), settings)


@pytest.mark.parametrize("suggest", [False, True])
def test_a_batch_beyond_half_the_reference_is_refused_before_anything_passes(folder, suggest, monkeypatch):
    for module, name in (
        ("bnuq.studies.inspect.health", "batch_statistics"),
        ("bnuq.studies.inspect.compute", "suggest"),
    ):
        monkeypatch.setattr(import_module(module), name, lambda *_, **__: pytest.fail("something passed"))
    settings = Settings(batch_size=49, suggest_pipeline=suggest)
    with pytest.raises(RequestError, match=r"--batch-size is 49, and .* has 96 examples; expected at most 48, half"):
        inspect(resolved(folder), settings)


def test_half_the_reference_is_a_batch(folder):
    record = inspect(resolved(folder, out=Path("half.h5")), Settings(draws=8, batch_size=48))
    assert record.noise is not None and record.noise.batch_size == 48 and 48 in record.noise.sizes


def test_what_is_assumed_of_the_training_batches_is_said_where_they_are_not_known(folder, record):
    assumed = "training-batch-size-assumed"
    run = replace(resolved(folder, out=Path("m.h5")), train_batch_size=None)
    assert values_of(inspect(run, FEW), assumed) == {"batch_size": 128}
    assert assumed not in noted(record)
    assert assumed not in noted(inspect(run, replace(FEW, noise_only=True)))


def test_a_test_set_of_another_shape_is_named(tmp_path):
    small_run.write(tmp_path)
    np.savez(tmp_path / "test.npz", x=np.zeros((20, 1, 7, 7), np.float32), y=np.zeros(20, int))
    asked = Settings(draws=8, domains=(Named("lab=other.npz", tmp_path),))
    with pytest.raises(DataError, match=r"test set \(test\.npz\) has examples of shape \(1, 7, 7\), the training set"):
        inspect(resolved(tmp_path), asked)


def test_a_reference_of_equal_points_is_not_called_healthy(tmp_path):
    small_run.write(tmp_path)
    np.savez(tmp_path / "train.npz", x=np.full((96, 1, 6, 6), 40.0, np.float32))
    record = inspect(resolved(tmp_path), FEW)
    assert record.gap is not None and record.gap.passed is None and "reference-unchecked" in warned(record)
    assert record.gap.layers[0].rms_shift > 6 and math.isnan(record.gap.layers[0].ratio_mean)


def test_the_result_takes_the_place_of_no_file_that_is_read(folder):
    for out in ("model.pt", "run.toml"):
        with pytest.raises(BnuqError, match=out):
            inspect(resolved(folder, out=Path(out)), FEW)
    with pytest.raises(RequestError, match=r"folder .* does not exist"):
        inspect(resolved(folder, out=Path("absent/x.h5")), FEW)


# ── domains and pipelines ────────────────────────────────────────────────────────────────────────────────────────────


def test_domains_are_told_where_they_are_asked_for(tmp_path):
    small_run.write(tmp_path)
    both = Settings(draws=8, samples=4, domains=(Named("lab=other.npz", tmp_path),))
    record = inspect(resolved(tmp_path, limit=20), both)
    assert record.domains is not None and [layer.name for layer in record.domains.domains] == ["lab"]
    assert {layer.statistics for layer in record.domains.crossings} >= {"running", "train", "lab", "mixed"}
    assert read(record.path).domains is not None and record.run["inspect"]["domains"] == ["lab=other.npz"]


def test_a_network_that_tells_nothing_of_its_pipeline_is_inspected_all_the_same(tmp_path):
    small_run.write(tmp_path)
    state = torch.load(tmp_path / "model.pt")
    state |= {"1.running_mean": torch.zeros_like(state["1.running_mean"])}
    state |= {"1.running_var": torch.ones_like(state["1.running_var"])}
    torch.save(state, tmp_path / "model.pt")
    record = inspect(resolved(tmp_path), Settings(draws=8, suggest_pipeline=True))
    assert record.pipelines is None and record.gap is not None and record.noise is not None
    assert "mean 0 and variance 1" in values_of(record, "no-pipeline-suggested")["reason"]


def test_layers_that_are_not_there_are_refused(tmp_path):
    small_run.write(tmp_path)
    asked = Settings(draws=8, domains=(Named("lab=other.npz", tmp_path),))
    with pytest.raises(RequestError, match='"head" matches no stochastic BatchNorm layer'):
        inspect(replace(resolved(tmp_path), layers=("head",)), asked)
