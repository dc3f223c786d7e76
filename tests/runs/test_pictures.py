"""Whole runs on folders of pictures: resized, augmented as in training, and read as they are needed."""

from pathlib import Path

import numpy as np
import pytest
import small_run
from findings_of import noted
from making_points import png

from bnuq.config import Options, resolve
from bnuq.data.readers.factory import Items
from bnuq.data.readers.images import PictureFiles
from bnuq.data.resizing import resized
from bnuq.errors import DataError
from bnuq.evaluation import draws
from bnuq.evaluation.datasets import Pipeline, load_material
from bnuq.evaluation.setup import prepare
from bnuq.sampling import counter_rng

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


def test_folders_of_several_sizes_are_evaluated_with_a_resize_and_a_crop(folder, monkeypatch):
    with pytest.raises(DataError, match=r"--resize 256 --crop 224"):
        small_run.evaluated(folder)
    monkeypatch.setattr(draws, "BATCHES", 2)
    monkeypatch.setattr(draws, "BATCH_SIZE", 8)
    read, content = [], PictureFiles.content
    monkeypatch.setattr(PictureFiles, "content", lambda self, at: read.append(self.files[at]) or content(self, at))
    result = small_run.evaluated(folder, resize=7, crop=6, samples=3)
    of_train = {file for file in read if file in set(file_names(folder / "train"))} - set(file_names(folder / "test"))
    assert len(of_train) <= 3 * 4 + 2 * 8 + 4 + 2  # T·b, the reference check, that MCBN is exact, and the first two
    assert "set-adapted" in noted(result)
    assert result.provenance["reference_digest"] == "listing"
    assert result.run["data"]["resize"] == 7
    assert result.run["data"]["crop"] == [6, 6]
    chunked = small_run.evaluated(folder, resize=7, crop=6, samples=3, chunk_size=5, out="chunked.h5")
    a, b = (value.methods["mcbn"].sets["test"].estimates["pll"].value for value in (result, chunked))
    assert a == pytest.approx(b, abs=1e-5)
    alone = small_run.evaluated(folder, resize="6x6", interpolation="nearest", ood=(), samples=3, out="alone.h5")
    assert alone.run["data"]["interpolation"] == "nearest"
    assert alone.methods["mcbn"].sets["test"].estimates["pll"].value != a


def file_names(folder: Path) -> list[str]:
    return [path.relative_to(folder).as_posix() for path in folder.rglob("*.png")]


def test_a_resized_crop_begins_at_the_original_picture_and_leaves_crop_and_flip(folder):
    run = resolve("run.toml", Options(resize=7, crop=6), folder=folder)
    ready = prepare(run)
    train = ready.material.train
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
    pipeline = Pipeline(resolve("run.toml", Options(resize=7, crop=6), folder=folder), ready.pipeline.device)
    found = pipeline.pixels(train, np.array([square]), draw=0, purpose=counter_rng.AUGMENT)
    expected = resized(source.item(square, 1), (6, 6), "bilinear") / np.float32(255)
    np.testing.assert_array_equal(found[0], expected)


def as_lines(table: dict) -> str:
    return "".join(f"{key} = {value}\n" for key, value in table.items())


def test_a_validation_part_of_a_listed_reference_has_the_digest_of_its_bytes(folder):
    text = RUN.replace("[sampling]", 'validation = { split_of = "train", held_out = true }\n[sampling]')
    (folder / "run.toml").write_text(text)
    material = load_material(resolve("run.toml", Options(resize=7, crop=6), folder=folder))
    assert material.train.listed
    assert not material.validation.listed
    part = material.validation.inputs
    before = material.validation.sha256
    file = folder / "train" / part.source.files[part.rows[0]]
    file.write_bytes(png(np.full((9, 9), 7, np.uint8)))
    again = load_material(resolve("run.toml", Options(resize=7, crop=6), folder=folder))
    assert again.validation.sha256 != before


COUNTED = """import numpy as np
seen = []
class Counted:
    def __len__(self): return 20_000
    def __getitem__(self, index):
        seen.append(index)
        return np.random.default_rng(index).normal(0.5, 0.3, (1, 6, 6)).astype(np.float32), index % 3
def counted(): return Counted()
"""


def test_20000_items_are_not_read_to_use_eight(tmp_path, monkeypatch):
    path = small_run.write(tmp_path)
    (tmp_path / "sets.py").write_text(COUNTED)
    path.write_text(small_run.RUN.replace("train.npz", "sets.py:counted") + "batch_size = 4\n")
    sources, read = [], Items.parts
    monkeypatch.setattr(Items, "parts", lambda self, index: sources.append(self) or read(self, index))
    result = small_run.evaluated(tmp_path, samples=2)
    assert result.provenance["reference_digest"] == "listing"
    assert len(sources[0].data) == 20_000
    assert (
        len(set(type(sources[0].data).__getitem__.__globals__["seen"]))
        <= 2 * 4 + draws.BATCHES * draws.BATCH_SIZE + 4 + 2
    )
