"""Test-time augmentation of whole evaluations, against a plain loop in float64 with its own random words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import small_run
import torch
from findings_of import noted
from report_text import rendered
from torch import nn
from written import folder_of

import bnuq
from bnuq.config import Augment, Normalize, PointSettings
from bnuq.data import points_in_memory
from bnuq.errors import BnuqError
from bnuq.evaluation.pipeline import Pipeline
from bnuq.gate import check
from bnuq.gate.pairing import pairing
from bnuq.records.evaluation import Result
from bnuq.report.evaluation import report
from bnuq.sampling import counter_rng

SAMPLES, METHODS = 8, ("tta", "mcbn+tta")
PURPOSE = 23  # of test-time augmentation, never to be renumbered


def evaluated(folder: Path, name: str, **options: Any) -> Result:
    given = {"methods": METHODS, "augment": "pad=1,crop=6,flip", "samples": SAMPLES, "out": folder / f"{name}.h5"}
    given |= {"post_hoc": False}
    return small_run.evaluated(folder, **given | options)


folder = folder_of(small_run)


@pytest.fixture(scope="module")
def whole(folder: Path) -> Result:
    return evaluated(folder, "whole", precision="float64", save_samples=True)


def augmented(pictures: np.ndarray, draw: int) -> torch.Tensor:
    """Each picture (1, 6, 6) padded by 1, cropped and flipped by its own three words of the draw."""
    philox = np.random.Philox(key=np.array([0, draw], np.uint64), counter=np.array([0, 0, 0, PURPOSE], np.uint64))
    made = []
    for picture, (down, right, flip) in zip(pictures, philox.random_raw((len(pictures), 3)), strict=True):
        canvas = np.zeros((1, 8, 8))
        canvas[:, 1:7, 1:7] = picture
        window = canvas[:, down % 3 : down % 3 + 6, right % 3 : right % 3 + 6]
        made.append(window[:, :, ::-1] if flip >= 2**63 else window)
    return torch.from_numpy(np.stack(made))


@pytest.mark.parametrize("precision", ["float32", "float64"])
@pytest.mark.parametrize(
    "augment",
    [
        Augment(pad=1, crop=6, flip=True),
        Augment(pad=2, crop=5, pad_value=0.5),
        Augment(flip=True),
        Augment(pad=2, pad_mode="reflect", flip=True),
    ],
)
def test_parts_of_normalised_pictures_are_the_normalised_parts_to_the_bit(augment: Augment, precision: Any) -> None:
    x, y = np.random.default_rng(0).integers(0, 256, (5, 3, 6, 6), np.uint8), np.zeros(5, np.int64)
    settings = PointSettings(augment=augment, channel_order="bgr", precision=precision)
    pipeline = Pipeline(settings, torch.device("cpu"), Normalize(mean=(0.4, 0.5, 0.6), std=(0.3, 0.2, 0.1)))
    points, rows = points_in_memory((x, y), name="test"), np.arange(2, 5)
    key: dict[str, int] = {"purpose": PURPOSE, "first": 2}
    parts, flipped = pipeline.parts(pipeline.padded(points, rows), x.shape[1:], draws=range(1, 4), **key)
    assert torch.equal(parts, torch.cat([pipeline.trained(points, rows, draw=draw, **key) for draw in range(1, 4)]))
    assert flipped.tolist() == torch.cat([pipeline.flips(3, draw=draw, **key) for draw in range(1, 4)]).tolist()


def test_every_sample_is_the_network_on_points_that_are_augmented_for_its_draw(folder: Path, whole: Result) -> None:
    model = small_run.stored(folder).double()
    norm: Any = model[1]
    for name in ("test", "other"):
        pictures = np.load(folder / f"{name}.npz")["x"]
        with torch.no_grad(), h5py.File(folder / "whole.h5") as file:
            for t in range(SAMPLES):
                inputs = augmented(pictures, t)
                np.testing.assert_allclose(file[f"posterior_predictive/tta_{name}"][0, t], model(inputs), rtol=1e-9)
                drawn = small_run.stored(folder).double()
                assert whole.bank is not None
                layer = whole.bank.layers[0]
                drawn[1].running_mean[:] = torch.from_numpy(layer.mean[t])  # type: ignore
                drawn[1].running_var[:] = torch.from_numpy(layer.var[t])  # type: ignore
                assert not np.allclose(layer.mean[t], norm.running_mean)
                of_both = file[f"posterior_predictive/mcbn+tta_{name}"][0, t]
                np.testing.assert_allclose(of_both, drawn(inputs), rtol=1e-7)


def test_estimates_are_those_of_the_mean_probability(folder: Path, whole: Result) -> None:
    y = np.load(folder / "test.npz")["y"]
    pictures = np.load(folder / "test.npz")["x"]
    with torch.no_grad():
        p = torch.stack(
            [small_run.stored(folder).double()(augmented(pictures, t)).softmax(-1) for t in range(SAMPLES)]
        ).numpy()
    mean = p.mean(0)
    test = whole.methods["tta"].sets["test"]
    assert test.estimates["pll"].value == pytest.approx(np.log(mean[np.arange(len(y)), y]).mean(), rel=1e-9)
    information = -(mean * np.log(mean)).sum(-1) + (p * np.log(p)).sum(-1).mean(0)
    np.testing.assert_allclose(test.points["mutual_information"], information, atol=1e-9)
    assert test.estimates["pll"].mc_se is not None
    assert set(whole.methods["tta"].ood["other"]) >= {"mutual_information", "energy"}


@pytest.mark.nightly  # two settings at once
def test_a_point_of_a_bank_has_the_augmentations_of_its_draws(folder: Path) -> None:
    options: dict[str, Any] = {"methods": ("mcbn+tta",), "save_samples": True, "precision": "float64", "ood": ()}
    evaluated(folder, "all", samples=12, **options)
    evaluated(folder, "banked", bank=12, **options)
    draws = counter_rng.draws_of_tile(0, 0, bank=12, samples=SAMPLES)
    with h5py.File(folder / "all.h5") as every, h5py.File(folder / "banked.h5") as banked:
        expected, found = (file["posterior_predictive/mcbn+tta_test"][0] for file in (every, banked))
        np.testing.assert_allclose(found, expected[draws], rtol=1e-9)


def test_its_table_takes_the_place_of_the_augmentation_of_the_training(folder: Path, whole: Result) -> None:
    (folder / "own.toml").write_text(small_run.RUN + "\n[tta]\nflip = true\n")
    own = evaluated(folder, "own", run_file="own.toml", precision="float64", ood=())
    pictures = torch.from_numpy(np.load(folder / "test.npz")["x"].astype(np.float64))
    with torch.no_grad():
        straight, flipped = (small_run.stored(folder).double()(x).numpy() for x in (pictures, pictures.flip(-1)))
    flips = np.array([[row[2] >= 2**63 for row in words(t)] for t in range(SAMPLES)])
    p = np.where(flips[..., None], flipped, straight)
    p = np.exp(p - p.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    np.testing.assert_allclose(own.methods["tta"].sets["test"].points["max_probability"], p.mean(0).max(-1), rtol=1e-9)
    assert own.bank is not None and whole.bank is not None  # mini-batches keep the augmentation of the training
    np.testing.assert_array_equal(own.bank.layers[0].mean, whole.bank.layers[0].mean)
    assert "settings flip True" in " ".join(rendered(report, own, full=True).split())
    for method in METHODS:
        assert method in pairing(whole, whole).draws
        assert method in dict(pairing(own, whole).why_not)
    assert check(whole, whole).passed


def words(draw: int) -> np.ndarray:
    philox = np.random.Philox(key=np.array([0, draw], np.uint64), counter=np.array([0, 0, 0, PURPOSE], np.uint64))
    return philox.random_raw((small_run.TEST, 3))


def test_a_network_without_batchnorm_and_dropout_has_it_on_request_alone(tmp_path: Path) -> None:
    text = small_run.RUN.replace("train_batch_size", "arch_args = { norm = false, rate = 0.0 }\ntrain_batch_size")
    folder = small_run.write(tmp_path / "plain", text=text, norm=False, rate=0.0).parent
    options: dict[str, Any] = {"augment": "flip", "train": None, "post_hoc": False}
    assert list(evaluated(folder, "usual", **options | {"methods": None}, ood=()).methods) == ["deterministic"]
    result = evaluated(folder, "asked", **options | {"methods": ("tta",), "calibrate": "cross"})
    assert list(result.methods) == [name + end for name in ("deterministic", "tta") for end in ("", "+temperature")]
    assert result.work.methods["tta"].passes == SAMPLES * (small_run.TEST + small_run.OTHER)
    assert "setting-ignored" not in noted(result)


@pytest.mark.parametrize("task", ["regression", "multilabel"])
def test_every_task_has_it(task: str) -> None:
    random = np.random.default_rng(0)
    x = random.random((40, 1, 5, 5)).astype(np.float32)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Flatten(), nn.Linear(25, 3)).eval()
    y = random.normal(size=(40, 3)) if task == "regression" else random.integers(0, 2, (40, 3))
    kind = {"task": task} if task == "regression" else {"outputs": task}
    result = bnuq.evaluate(model, test=(x, y), methods=["tta"], samples=SAMPLES, augment="flip", **kind)
    with torch.no_grad():
        outputs = torch.stack([model(torch.from_numpy(np.ascontiguousarray(picture))) for picture in (x, x[..., ::-1])])
    flips = np.array([[row[2] >= 2**63 for row in words(t)[:40]] for t in range(SAMPLES)]).astype(int)
    samples = outputs.double().numpy()[flips, np.arange(40)]
    test = result.methods["tta"].sets["test"]
    if task == "regression":
        rmse = np.sqrt(((samples.mean(0) - y) ** 2).sum(1).mean())
        assert test.estimates["rmse"].value == pytest.approx(rmse, rel=1e-5)
    else:
        p = (1 / (1 + np.exp(-samples))).mean(0)
        pll = np.log(np.where(y == 1, p, 1 - p)).mean()
        assert test.estimates["pll"].value == pytest.approx(pll, rel=1e-5)


BAD: dict[str, tuple[str, dict[str, Any], str]] = {
    "no augmentation": ("", {"augment": None}, "method tta cannot be drawn: there is no augmentation; add --augment"),
    "another size": ("", {"augment": "pad=1,crop=7"}, r"makes examples of shape \(1, 7, 7\) from test"),
    "no change": ("[tta]\n", {}, r"samples of tta are identical.*\[tta\]"),
    "too large a crop": ("[tta]\ncrop = 9\n", {}, "tta.crop is 9; expected 1 to 6"),
    "unknown key": ("[tta]\nflips = true\n", {}, "tta.flips is not known. Did you mean flip?"),
    "pixels of another scale": ("[tta]\njitter = [0.1, 0, 0, 0]\n", {}, "tta.jitter needs pixels from 0 to 1"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_be_augmented_is_refused(folder: Path, case: str) -> None:
    table, options, message = BAD[case]
    (folder / "bad.toml").write_text(f"{small_run.RUN}\n{table}")
    with pytest.raises(BnuqError, match=message):
        evaluated(folder, "bad", run_file="bad.toml", **{"methods": ("tta",)} | options)
