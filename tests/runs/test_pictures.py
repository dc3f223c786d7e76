"""Whole runs on folders of pictures: resized, augmented as in training, and read as they are needed."""

import shutil
from pathlib import Path

import at_night
import numpy as np
import pytest
import small_run
import torch
from findings_of import noted
from making_points import png
from PIL import Image

import bnuq
from bnuq.config import Options, PointSettings, resolve
from bnuq.data.readers.images import PictureFiles
from bnuq.data.resizing import resized
from bnuq.errors import DataError
from bnuq.evaluation import datasets
from bnuq.evaluation.datasets import load_data
from bnuq.evaluation.pipeline import Pipeline
from bnuq.evaluation.setup import prepare
from bnuq.sampling import counter_rng
from bnuq.store.table import rows_of
from bnuq.workflows.evaluate import evaluate

RUN = (
    small_run.RUN.replace("train.npz", "train").replace("test.npz", "test").replace("other.npz", "other")
    + """batch_size = 4

[data.augment]
resized_crop = 6
flip = true
jitter = { brightness = 0.4, contrast = 0.4 }
"""
)


def write(folder: Path, name: str, count: int, *, channels: int = 1, classes: bool = True) -> None:
    rng = np.random.default_rng(len(name))
    for at in range(count):
        path = folder / name / (f"{'abc'[at % 3]}/{at}.png" if classes else f"{at}.png")
        path.parent.mkdir(parents=True, exist_ok=True)
        shape = (*rng.integers(8, 14, 2), 3)[: 2 if channels == 1 else 3]
        path.write_bytes(png(rng.integers(0, 256, shape, dtype=np.uint8)))


@pytest.fixture
def folder(tmp_path):
    """A run of folders: grey pictures of 8 to 13 pixels, and colour ones as OOD set."""
    small_run.write(tmp_path, text=RUN)
    write(tmp_path, "train", 200)
    write(tmp_path, "test", 24)
    write(tmp_path, "other", 20, channels=3, classes=False)
    return tmp_path


@pytest.mark.nightly
def test_folders_of_several_sizes_are_evaluated_with_a_resize_and_a_crop(folder):
    with pytest.raises(DataError, match=r"--resize 256 --crop 224"):
        small_run.evaluated(folder)
    options = {"samples": 3, "methods": ("mcbn",), "post_hoc": False}
    result = small_run.evaluated(folder, resize=7, crop=6, **options)
    assert "set-adapted" in noted(result)
    assert result.provenance["reference_digest"] == "listing"
    assert result.run["data"]["resize"] == 7
    assert result.run["data"]["crop"] == [6, 6]
    chunked = small_run.evaluated(folder, resize=7, crop=6, chunk_size=5, ood=(), out="chunked.h5", **options)
    a, b = (value.methods["mcbn"].sets["test"].estimates["pll"].value for value in (result, chunked))
    assert a == pytest.approx(b, abs=1e-5)
    alone = small_run.evaluated(folder, resize="6x6", interpolation="nearest", ood=(), out="alone.h5", **options)
    assert alone.run["data"]["interpolation"] == "nearest"
    assert alone.methods["mcbn"].sets["test"].estimates["pll"].value != a


RGB_NET = small_run.NET.replace("nn.Conv2d(1,", "nn.Conv2d(3,")


@pytest.mark.parametrize("coloured", at_night.but({"train"}, ["nothing", "train"]))
@pytest.mark.nightly
def test_grey_pictures_are_repeated_to_the_channels_that_the_network_takes(folder, coloured):
    (folder / "net.py").write_text(RGB_NET)
    weights = torch.load(folder / "model.pt")
    weights["0.weight"] = weights["0.weight"].repeat(1, 3, 1, 1)
    torch.save(weights, folder / "model.pt")
    results = []
    for as_saved in ("grey", "colour"):
        for path in folder.glob("t*/*/*.png"):
            if as_saved == "colour" or path.parts[-3] == coloured:
                Image.open(path).convert("RGB").save(path)
        results.append(small_run.evaluated(folder, resize=7, crop=6, samples=3, methods=("mcbn",), post_hoc=False))
    grey, colour = ({row.path: row.estimate.value for row in rows_of(result)} for result in results)
    assert grey == colour and "grey-as-rgb" in noted(results[0]) and "grey-as-rgb" not in noted(results[1])
    write(folder, "grey", 6)
    inspected = bnuq.inspect(folder / "model.pt", arch=f"{folder}/net.py:net", test=str(folder / "grey"), resize="6x6")
    assert "grey-as-rgb" in noted(inspected.record)


def test_a_resized_crop_begins_at_the_original_picture_and_leaves_crop_and_flip(folder):
    ready = prepare(resolve("run.toml", Options(resize=7, crop=6), folder=folder))
    train = ready.data.train
    rows = np.array([3, 100, 7])
    pixels = ready.pipeline.pixels(train, rows, draw=2, purpose=counter_rng.AUGMENT)
    assert pixels.shape == (3, 1, 6, 6)
    whole = ready.pipeline.trained(train, rows, draw=2, purpose=counter_rng.AUGMENT)
    first = ready.pipeline.trained(train, rows[:2], draw=2, purpose=counter_rng.AUGMENT)
    np.testing.assert_array_equal(whole[:2], first)
    later = ready.pipeline.pixels(train, rows[1:], draw=2, purpose=counter_rng.AUGMENT, first=1)
    np.testing.assert_array_equal(pixels[1:], later)
    assert not np.allclose(pixels, train.raw(rows))
    # a part that is all of a picture, resized at once rather than twice
    augment = {"resized_crop": 6, "scale": [1.0, 1.0], "ratio": [1.0, 1.0]}
    (folder / "run.toml").write_text(RUN.partition("[data.augment]")[0] + f"[data.augment]\n{as_lines(augment)}")
    source = train.inputs.source
    square = next(at for at in range(200) if len(set(source.item(at, 1).shape[1:])) == 1)
    run = resolve("run.toml", Options(resize=7, crop=6), folder=folder)
    pipeline = Pipeline(PointSettings.of(run), ready.pipeline.device)
    found = pipeline.pixels(train, np.array([square]), draw=0, purpose=counter_rng.AUGMENT)
    expected = resized(source.item(square, 1), (6, 6), "bilinear") / np.float32(255)
    np.testing.assert_array_equal(found[0], expected)


def as_lines(table: dict) -> str:
    return "".join(f"{key} = {value}\n" for key, value in table.items())


def test_a_validation_part_of_a_listed_reference_has_the_digest_of_its_bytes(folder):
    text = RUN.replace("[sampling]", 'validation = { split_of = "train", held_out = true }\n[sampling]')
    (folder / "run.toml").write_text(text)
    data = load_data(resolve("run.toml", Options(resize=7, crop=6), folder=folder))
    assert data.train.listed
    assert not data.validation.listed
    part = data.validation.inputs
    before = data.validation.sha256
    (folder / "train" / part.source.files[part.rows[0]]).write_bytes(png(np.full((9, 9), 7, np.uint8)))
    assert load_data(resolve("run.toml", Options(resize=7, crop=6), folder=folder)).validation.sha256 != before


def test_a_test_folder_without_a_class_is_scored_by_the_classes_of_train(folder):
    options = {"resize": 6, "crop": 6, "methods": ("deterministic",), "post_hoc": False, "ood": ()}
    whole = small_run.evaluated(folder, **options)
    shutil.rmtree(folder / "test" / "a")
    (folder / "test" / "a").mkdir()  # and one of which nothing is left
    part = small_run.evaluated(folder, out="part.h5", **options)
    assert part.sets["test"].classes == ("a", "b", "c")
    assert set(part.sets["test"].labels.tolist()) == {1, 2}
    assert "classes-by-name" in noted(part)
    correct = [result.methods["deterministic"].sets["test"].points["accuracy"] for result in (whole, part)]
    np.testing.assert_array_equal(correct[1], correct[0][whole.sets["test"].labels > 0])
    (folder / "alone.toml").write_text(RUN.replace('train = "train"\n', ""))
    alone = small_run.evaluated(folder, run_file="alone.toml", out="alone.h5", **options)
    warned = {finding.code: finding.values for finding in alone.findings if finding.severity == "warning"}
    assert warned["fewer-classes-than-outputs"] == {"names": ["b", "c"], "outputs": 3}
    (folder / "test" / "d").mkdir()
    shutil.copy(folder / "test" / "b" / "1.png", folder / "test" / "d")
    with pytest.raises(
        DataError, match=r"test has the class 'd', which train .* b, c, d; those of train .* are a, b, c"
    ):
        small_run.evaluated(folder, **options)


def test_classes_are_listed_in_the_run_file_in_a_file_or_as_an_option(folder):
    (folder / "sub").mkdir()
    (folder / "sub" / "names.txt").write_text("c\nb\na\n")

    def labels(run_file: str, **options) -> list[int]:
        """Those of the reference and of the test set, of a picture in each folder."""
        run = resolve(run_file, Options(resize=6, crop=6, **options), folder=folder)
        data = load_data(run)
        assert run.record()["data"].get("classes") in (None, ["c", "b", "a"], str(folder / "sub" / "names.txt"))
        return [*data.train.targets[[0, -1]].tolist(), *data.test.targets[[0, 8, 16]].tolist()]

    assert labels("run.toml") == [0, 2, 0, 1, 2]
    for value in ('["c", "b", "a"]', '"sub/names.txt"'):
        (folder / "listed.toml").write_text(RUN.replace("[sampling]", f"classes = {value}\n[sampling]"))
        assert labels("listed.toml") == [2, 0, 2, 1, 0]
    for option in ("sub/names.txt", ("c", "b", "a"), ("sub/names.txt",)):
        assert labels("run.toml", classes=option) == [2, 0, 2, 1, 0]
    (folder / "sub" / "names.txt").write_text("c\nb\nc\n")
    with pytest.raises(DataError, match=r"data\.classes names 'c' twice"):
        labels("run.toml", classes="sub/names.txt")
    for names in ("abcde", "ab"):
        with pytest.raises(DataError, match=rf"(lists {len(names)} names, and the network has 3 outputs|class 'c')"):
            evaluate(resolve("run.toml", Options(resize=6, crop=6, classes=tuple(names)), folder=folder))


class Counted:
    """A Dataset without a list of its labels that notes which items are read."""

    def __init__(self, count: int) -> None:
        self.count, self.seen = count, []

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int):
        self.seen.append(index)
        return np.random.default_rng(index).normal(0.5, 0.3, (1, 6, 6)).astype(np.float32), index % 3


@pytest.mark.parametrize(
    ("reference", "samples", "draws"), at_night.but({(20_000, "auto", 32)}, [(40, 16, 16), (20_000, "auto", 32)])
)
def test_a_run_reads_no_more_items_than_it_draws_and_each_evaluated_one_once(reference, samples, draws):
    network = small_run.network()
    small_run.settle(network, torch.rand(96, 1, 6, 6))
    train, test, other = Counted(reference), Counted(60), Counted(30)
    result = bnuq.evaluate(
        network, train=train, test=test, ood={"other": other}, samples=samples, max_samples=32, batch_size=4
    )
    assert list(result.methods) == ["deterministic", "deterministic+population", "mcbn", "mcdo", "mcbn+mcdo"]
    assert result.sampling["samples"] <= draws
    sample = 256  # which stands for the reference in its digest
    assert len({*train.seen}) <= 4 * result.sampling["samples"] + 1 + sample  # the first item tells their shape
    assert len(train.seen) <= reference
    assert sorted(test.seen) == list(range(60))
    assert sorted(other.seen) == list(range(30))
    assert result.provenance["reference_digest"] == "listing"


@pytest.mark.nightly
def test_what_is_not_kept_is_decoded_again_and_changes_nothing(folder, monkeypatch):
    decoded, item = [], PictureFiles.item
    monkeypatch.setattr(
        PictureFiles, "item", lambda self, at, channels: decoded.append(self.where.name) or item(self, at, channels)
    )
    options = {"resize": 7, "crop": 6, "samples": 3, "methods": ("mcbn", "mcdo"), "post_hoc": False}
    kept = small_run.evaluated(folder, **options)
    assert {name: decoded.count(name) for name in ("test", "other")} == {"test": 24, "other": 20}
    assert decoded.count("train") <= 2 * 3 * 4  # for mini-batches, whose resized crops begin at originals, and whole
    monkeypatch.setattr(datasets, "_BUDGETS", (10 * 36, 0))
    again = small_run.evaluated(folder, out="again.h5", **options)
    assert decoded.count("test") > 2 * 24
    for method, of_method in kept.methods.items():
        estimates = again.methods[method].sets["test"].estimates
        for name, estimate in of_method.sets["test"].estimates.items():
            assert estimates[name].value == pytest.approx(estimate.value, rel=0, abs=0, nan_ok=True)
