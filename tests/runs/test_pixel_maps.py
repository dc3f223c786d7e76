"""The maps of all images of a segmentation: in the result, from there one by one, and as files."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import at_night
import h5py
import numpy as np
import pytest
import small_segmentation
import torch
import xarray
from PIL import Image
from scipy.special import logsumexp, softmax
from written import folder_of

import bnuq
from bnuq import metrics
from bnuq.errors import RequestError, ResultError
from bnuq.records.evaluation import Result
from bnuq.records.pixel_maps import maps_of
from bnuq.report.map_files import write_maps

SAMPLES, CLASSES = small_segmentation.SAMPLES, small_segmentation.CLASSES
IMAGES, SHAPE = small_segmentation.TEST, (small_segmentation.HEIGHT, small_segmentation.WIDTH)
OF_SAMPLES = {"predicted", "mutual_information", "predictive_entropy", "expected_entropy", "max_probability"}
OF_LOGITS = {"max_logit", "energy"}


folder = folder_of(small_segmentation)


@pytest.fixture(scope="module")
def result(folder: Path) -> Result:
    small_segmentation.evaluated(folder, methods=("mcbn",), ood=("strange.npz",), save_maps=True, calibrate="cross")
    return bnuq.open(folder / "out.h5").record


@pytest.fixture(scope="module")
def logits(folder: Path, result: Result) -> np.ndarray:  # noqa: ARG001 - its file
    """Of the test images under the drawn statistics, (T, n, K, H, W), in float64."""
    model = small_segmentation.network()
    names = sorted((folder / "test").iterdir())
    images = np.stack([np.asarray(Image.open(name)) for name in names]).transpose(0, 3, 1, 2)
    x = (torch.from_numpy(images).double() / 255 - 0.5) / 0.3
    draws = []
    with h5py.File(folder / "out.h5") as file, torch.no_grad():
        bank: Any = file["statistics/layer000"]
        for mean, var in zip(bank["mean"][()], bank["var"][()], strict=True):
            model.double()[1].running_mean.copy_(torch.from_numpy(mean))
            model[1].running_var.copy_(torch.from_numpy(var))
            draws.append(model(x).numpy())
    return np.stack(draws)


def at_once(logits: np.ndarray) -> dict[str, np.ndarray]:
    p = softmax(logits, axis=2)
    mean, expected = p.mean(0), -(p * np.log(p)).sum(2).mean(0)
    predictive = -(mean * np.log(mean)).sum(1)
    return {
        "predicted": mean.argmax(1), "max_probability": mean.max(1), "predictive_entropy": predictive,
        "expected_entropy": expected, "mutual_information": predictive - expected, "max_logit": -logits.max(2).mean(0),
        "energy": -logsumexp(logits, axis=2).mean(0),
    }  # fmt: skip


def test_maps_are_the_scores_of_all_draws_at_once(result, logits):
    expected, maps = at_once(logits), maps_of(result, method="mcbn")
    assert len(maps) == IMAGES and set(maps[0]) == set(expected) == OF_SAMPLES | OF_LOGITS
    for row, image in enumerate(maps):
        for name, plane in image.items():
            assert plane.shape == SHAPE and plane.dtype == (np.uint8 if name == "predicted" else np.float32)
            np.testing.assert_allclose(plane, expected[name][row], rtol=0, atol=3e-5, err_msg=name)


def test_maps_with_a_temperature_are_those_of_the_divided_logits(result, logits):
    """Fitted to the other half of the test images, whose maps are thus of a further pass."""
    tau = result.methods["mcbn+temperature"].sets["test"].points["temperature"]
    assert len(np.unique(tau)) == 2
    expected, maps = at_once(logits / tau[None, :, None, None, None]), maps_of(result, method="mcbn+temperature")
    for row, image in enumerate(maps):
        assert set(image) == OF_SAMPLES
        for name, plane in image.items():
            np.testing.assert_allclose(plane, expected[name][row], rtol=0, atol=3e-5, err_msg=name)


def test_pixels_are_ranked_against_those_of_ood_sets_at_the_same_temperature(folder, result, logits):
    method = result.methods["mcbn+temperature"]
    [tau] = np.unique(method.sets["strange"].points["temperature"])
    entropy = at_once(logits / tau)["predictive_entropy"]
    names = sorted((folder / "masks").iterdir())
    scored = np.stack([np.asarray(Image.open(name)) for name in names]) != small_segmentation.IGNORE
    assert not scored.all()
    means = [each[valid if valid.any() else ...].mean() for each, valid in zip(entropy, scored, strict=True)]
    np.testing.assert_allclose(method.sets["test"].ranked["predictive_entropy"], means, rtol=1e-5)
    maps = maps_of(result, set="strange", method="mcbn+temperature")
    outside = np.concatenate([image["predictive_entropy"].ravel() for image in maps])
    pixels = method.pixel_ood["strange"]["predictive_entropy"]["pixel_auroc"].value
    assert pixels == pytest.approx(metrics.auroc(entropy[scored], outside), abs=2e-3)


def test_every_method_and_set_but_validation_has_maps_whose_means_are_the_points(result):
    assert len(result.methods) == 4
    for method, of_method in result.methods.items():
        for name, of_set in of_method.sets.items():
            maps = maps_of(result, set=name, method=method)
            assert len(maps) == result.sets[name].n
            single = {"expected_entropy", "mutual_information"} & set(maps[0])
            assert bool(single) == (not method.startswith("deterministic"))
            if name == "strange":  # which has no masks: all pixels are scored
                means = [image["predictive_entropy"].mean(dtype=np.float64) for image in maps]
                np.testing.assert_allclose(means, of_set.points["predictive_entropy"], rtol=1e-6)


def test_an_image_is_found_by_its_row_and_by_its_name(result):
    maps = maps_of(result)
    np.testing.assert_array_equal(maps["07.png"]["predicted"], maps[7]["predicted"])
    np.testing.assert_array_equal(maps[-1]["energy"], maps[18:][1]["energy"])
    with pytest.raises(IndexError):
        maps[IMAGES]
    with pytest.raises(RequestError, match=r"image 7.png is not in the set test; expected numbers from 0 to 19 or"):
        maps["7.png"]


def test_xarray_reads_maps_with_their_coordinates(folder, result):
    with xarray.open_dataset(folder / "out.h5", group="maps/mcbn/test", engine="h5netcdf") as opened:
        assert opened.mutual_information.dims == ("image", "y", "x")
        assert opened.mutual_information.attrs["units"] == "nats"
        assert opened.max_probability.attrs["units"] == "1" and opened.energy.attrs["long_name"] == "Free energy"
        assert opened.predicted.attrs["flag_meanings"] == "class_0 class_1 class_2"
        np.testing.assert_array_equal(opened.predicted.attrs["flag_values"], [0, 1, 2])
        assert list(opened.name.values) == [f"{number:02}.png" for number in range(IMAGES)]
        assert set(opened.coords) == {"image", "name", "y", "x"}
        image = maps_of(result, method="mcbn")[4]
        np.testing.assert_array_equal(opened.energy.sel(image=4).values, image["energy"])
        assert opened.energy.encoding["chunksizes"] == (1, *SHAPE)


@pytest.fixture(scope="module")
def without_maps(folder: Path) -> Result:
    return small_segmentation.evaluated(folder, methods=("mcdo",), ood=(), out="none.h5")


def test_without_save_maps_there_are_none_and_the_error_says_how_to_have_them(folder, without_maps):  # noqa: ARG001
    with h5py.File(folder / "none.h5") as file:
        assert "maps" not in file
    with pytest.raises(RequestError, match=r"holds no maps of mcdo on test.*bnuq evaluate … --save-maps"):
        bnuq.open(folder / "none.h5").maps()


@pytest.mark.parametrize(
    ("damage", "reason"),
    at_night.every_third(
        [
            (lambda group: group.move("predicted", "other"), "predicted is missing"),
            (
                lambda group: group.__delitem__("energy") or group.create_dataset("energy", data=np.zeros(3)),
                "not a map",
            ),
            (lambda group: group.__delitem__("energy") or group.create_group("energy"), "shape"),
        ]
    ),
)
def test_damaged_maps_are_one_message(folder, result, tmp_path, damage, reason):  # noqa: ARG001 - its file
    path = shutil.copy(folder / "out.h5", tmp_path)
    with h5py.File(path, "r+") as file:
        damage(file["maps/mcbn/test"])
    with pytest.raises(ResultError, match=f"the maps of mcbn on test are damaged .*{reason}"):
        bnuq.open(path).maps(method="mcbn")


def test_a_disk_that_maps_do_not_fit_on_is_refused_at_once(folder, monkeypatch):
    monkeypatch.setattr("bnuq.evaluation.resources._free_on", lambda _: 1000)
    with pytest.raises(RequestError, match="--save-maps: the maps of 32 images by 3 methods would take about"):
        small_segmentation.evaluated(folder, save_maps=True, out="full.h5")


# ── files ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_pictures_share_a_scale_and_hold_the_classes(result, tmp_path):
    paths = write_maps(result, tmp_path / "maps", method="mcbn")
    scales = json.loads((tmp_path / "maps/scales.json").read_text())
    assert len(paths) == 1 + IMAGES * 7 and all(path.is_file() for path in paths)
    assert [each["number"] for each in scales["classes"]] == [0, 1, 2]
    maps = maps_of(result, method="mcbn")
    highest = max(np.quantile(image["mutual_information"].astype(float), 0.998) for image in maps)
    assert scales["scores"]["mutual_information"]["highest"] == pytest.approx(highest)
    for row, image in enumerate(maps):
        classes = Image.open(tmp_path / f"maps/{row:02}_predicted.png")
        np.testing.assert_array_equal(np.asarray(classes), image["predicted"])
        colour = np.asarray(classes.convert("RGB"))[0, 0]
        assert "#{:02x}{:02x}{:02x}".format(*colour) == scales["classes"][image["predicted"][0, 0]]["colour"]
        for name, scale in scales["scores"].items():
            low, high = scale["lowest"], scale["highest"]
            indices = np.asarray(Image.open(tmp_path / f"maps/{row:02}_{name}.png")).astype(float)
            expected = np.clip(image[name], low, high)
            np.testing.assert_allclose(low + indices / 255 * (high - low), expected, atol=0.51 * (high - low) / 255)


def test_arrays_hold_the_values_of_an_image(result, tmp_path):
    paths = write_maps(result, tmp_path, "npz", set="strange", method="mcbn")
    assert [path.name for path in paths] == [f"image_{number:06}.npz" for number in range(small_segmentation.OTHER)]
    for path, image in zip(paths, maps_of(result, set="strange", method="mcbn"), strict=True):
        with np.load(path) as arrays:
            assert set(arrays) == set(image)
            for name, plane in image.items():
                np.testing.assert_array_equal(arrays[name], plane)


def test_a_folder_that_is_a_file_is_refused(result, tmp_path):
    (tmp_path / "maps").write_text("")
    with pytest.raises(RequestError, match="maps cannot be put there: it is a file"):
        write_maps(result, tmp_path / "maps", "npz")


# ── images by name ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_named_images_are_shown_beside_the_others(folder, without_maps):
    chosen = without_maps.image_maps
    assert chosen is not None
    other = [row for row in range(IMAGES) if row not in chosen.points][:2]
    named = (other[0], f"{other[1]:02}.png", int(chosen.points[0]))
    options = {"methods": ("mcdo",), "ood": (), "out": "more.h5"}
    more = small_segmentation.evaluated(folder, **options, show_images=named).image_maps
    assert more is not None and list(more.points) == [*chosen.points, *other]
    np.testing.assert_array_equal(more.predicted[: len(chosen.points)], chosen.predicted)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"show_images": ("3.png",)}, r"image 3.png is not in the set test; .*such as 13.png, 03.png"),
        ({"show_images": (20,)}, "image 20 is not in the set test; expected numbers from 0 to 19"),
        ({"show_images": (1,), "images": False}, "--no-images keeps none"),
    ],
)
def test_unknown_images_are_refused_before_anything_is_drawn(folder, settings, message):
    with pytest.raises(RequestError, match=message):
        small_segmentation.evaluated(folder, methods=("mcdo",), out="unknown.h5", **settings)
