"""Segmentations: the maps of chosen images, and how failing ones are found."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from records_at_rest import without_digest
from torch import nn

import bnuq
from bnuq.errors import ResultError
from bnuq.evaluation.tasks.failing_images import chosen_images
from bnuq.records.evaluation import LARGEST_MAP, NOT_SCORED, Result
from bnuq.records.evaluation_file import read, write
from bnuq.report.evaluation import report
from bnuq.report.render.pictures import draw_pictures

CLASSES, IMAGES, SAMPLES, IGNORE, SHAPE = 3, 6, 8, 255, (20, 24)


@pytest.fixture(scope="module")
def data() -> SimpleNamespace:
    random = np.random.default_rng(0)
    x = random.integers(0, 256, (IMAGES, 3, *SHAPE), dtype=np.uint8)
    y = np.zeros((IMAGES, *SHAPE), np.int64)
    for image, mask in enumerate(y):
        mask[:, 4 + 2 * image :] = 1
        mask[12:, 10:] = 2
        mask[:2, :5] = IGNORE
    return SimpleNamespace(x=x, y=y, train=random.integers(0, 256, (32, 3, *SHAPE), dtype=np.uint8))


@pytest.fixture(scope="module")
def network() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layers = nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(), nn.Dropout(0.3), nn.Conv2d(6, CLASSES, 1)
        model = nn.Sequential(*layers)
        model[1].running_mean.normal_(0, 0.1)
    return model.eval()


def evaluated(network: nn.Module, data: SimpleNamespace, out, **settings) -> Result:
    given = {"samples": SAMPLES, "batch_size": 4, "train_batch_size": 4, "methods": ["mcdo"], "task": "segmentation"}
    sets = {"train": (data.train, np.zeros(len(data.train), np.int64)), "test": (data.x, data.y)}
    return bnuq.evaluate(network, **sets, out=out, **given | settings).record


@pytest.fixture(scope="module")
def result(network, data, tmp_path_factory) -> Result:
    return evaluated(network, data, tmp_path_factory.mktemp("maps") / "result.h5")


def test_the_maps_are_those_whose_means_were_scored(result, data):
    shown, points = result.image_maps, result.methods["mcdo"].sets["test"].points
    assert shown.method == "mcdo"
    assert list(shown.points) == list(chosen_images(points))
    assert shown.points[0] == np.argmin(points["dice"])
    for at, row in enumerate(shown.points):
        scored = data.y[row] != IGNORE
        np.testing.assert_array_equal(shown.truth[at], np.where(scored, data.y[row], NOT_SCORED))
        np.testing.assert_array_equal(shown.pixels[at], np.moveaxis(data.x[row], 0, 2))
        mi = shown.scores["mutual_information"][at].astype(np.float64)[scored].mean()
        assert mi == pytest.approx(points["mutual_information"][row], rel=2e-3)
        assert (shown.predicted[at] == data.y[row])[scored].mean() == pytest.approx(points["accuracy"][row])


def test_dice_and_iou_of_an_image_are_means_over_the_classes_in_it(result, data):
    shown, points = result.image_maps, result.methods["mcdo"].sets["test"].points
    for at, row in enumerate(shown.points):
        scored = data.y[row] != IGNORE
        truth, called = data.y[row][scored], shown.predicted[at][scored]
        present = [k for k in range(CLASSES) if (truth == k).any() or (called == k).any()]
        common = [((truth == k) & (called == k)).sum() for k in present]
        sizes = [(truth == k).sum() + (called == k).sum() for k in present]
        assert points["dice"][row] == pytest.approx(np.mean([2 * c / s for c, s in zip(common, sizes, strict=True)]))
        ious = [c / (s - c) for c, s in zip(common, sizes, strict=True)]
        assert points["iou"][row] == pytest.approx(np.mean(ious))


def test_images_are_chosen_once_each():
    points = {"dice": np.array([0.9, 0.1, 0.5, 0.2]), "mutual_information": np.array([0.1, 0.9, 0.3, 0.2])}
    assert list(chosen_images(points)) == [1, 2, 0, 3]
    assert list(chosen_images({"predictive_entropy": np.array([0.1, 0.3, 0.2])})) == [1, 2]
    assert list(chosen_images({"dice": np.array([0.5]), "mutual_information": np.array([0.1])})) == [0]


def test_the_file_keeps_them_unless_no_images_are_kept(result, network, data, tmp_path):
    again = read(result.path).image_maps
    for name in ("points", "predicted", "truth", "pixels"):
        np.testing.assert_array_equal(getattr(again, name), getattr(result.image_maps, name))
    assert again.scores.keys() == {"mutual_information", "predictive_entropy"}
    assert evaluated(network, data, tmp_path / "without.h5", images=False).image_maps is None


@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("points", lambda array: array + IMAGES),
        ("predicted", lambda array: array + np.int16(CLASSES)),
        ("truth", lambda array: array - np.int16(1)),
        ("pixels", lambda array: array[:, 1:]),
        ("predicted", lambda array: np.repeat(array, LARGEST_MAP, axis=2)),
    ],
)
def test_damaged_maps_are_named(result, tmp_path, field, change):
    maps = replace(result.image_maps, **{field: change(getattr(result.image_maps, field))})
    write(replace(result, image_maps=maps, path=None), path := tmp_path / "damaged.h5")
    with pytest.raises(ResultError, match="damaged"):
        read(without_digest(path))  # the bytes of a file that another machine wrote


def test_the_report_says_and_draws_it(result, tmp_path):
    made = report(result)
    kinds = [picture.kind[0] for picture in made.pictures]
    assert kinds.count("maps") == len(result.image_maps.points)
    assert "class_reliability" in kinds
    of_each = {picture.kind[0]: picture for picture in made.pictures}
    chosen = tuple(of_each[kind] for kind in ("maps", "class_reliability"))
    drawn = draw_pictures(replace(made, sections=(replace(made.sections[0], parts=chosen),)), tmp_path / "figures")
    texts = [path.read_text(encoding="utf-8") for path in drawn]
    assert len(drawn) == len(chosen)
    assert all("<svg" in text for text in texts)


def test_images_are_judged_by_the_uncertainty_of_their_pixels(result, network, data):
    with torch.no_grad():
        p = network(torch.from_numpy(data.x / np.float32(255))).double().softmax(1).numpy()
    entropy, scored = -(p * np.log(p)).sum(1), data.y != IGNORE
    test = result.methods["deterministic"].sets["test"]
    risk = 1 - test.points["dice"]
    quantile = np.quantile(entropy[scored], 0.9)
    assert 1.01 < quantile < np.log(CLASSES)
    steps = 1 + np.arange(1, 33) / 32 - 1 / 2048  # of the bins between 1 and 2
    threshold = steps[steps >= quantile][0]
    expected: dict[str, list[float]] = {"mean": [], "upper_tail": []}
    for h, seen in zip(entropy, scored, strict=True):
        values = np.sort(h[seen])
        expected["mean"].append(values.mean())
        expected["upper_tail"].append(values[-int(np.ceil(0.05 * len(values))) :].mean())
    for name, values in expected.items():
        found = test.points["predictive_entropy" if name == "mean" else f"map_{name}"]
        np.testing.assert_allclose(found, values, rtol=1e-4)
        tied = np.array([risk[np.array(values) == value].mean() for value in values])
        curve = np.cumsum(tied[np.argsort(values)]) / np.arange(1, IMAGES + 1)
        estimate = test.estimates[f"image_aurc_{name}"]
        assert estimate.value == pytest.approx(curve.mean())
        assert estimate.se > 0
    share = np.array([(h[seen] > threshold).mean() for h, seen in zip(entropy, scored, strict=True)])
    np.testing.assert_allclose(test.points["map_share_above"], share, atol=0.005)
    assert "map_foreground" not in test.points  # class 0 is no background


def test_the_report_compares_the_aggregations(result):
    section = next(each for each in report(result).sections if each.title == "Finding failing images")
    rows = dict(section.parts[0].rows)
    assert {"mean", "upper tail", "in random order", "by Dice itself"} <= rows.keys()
    dice = result.methods["deterministic"].sets["test"].points["dice"]
    assert rows["in random order"][0].value == f"{1 - dice.mean():.4f}"
