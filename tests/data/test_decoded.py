"""Pictures and items are read when they are needed, whatever their sizes, and damaged ones are named then."""

import threading
import warnings
import zipfile
from pathlib import Path

import numpy as np
import pytest
from findings_of import noted
from making_points import png

from bnuq.data import Fit, ahead, fitted, labelled, load_points
from bnuq.data.decoded import each
from bnuq.data.points import sample_of
from bnuq.data.readers.images import PictureFiles
from bnuq.errors import DataError, RequestError


def write(folder: Path, sizes: dict[str, tuple[int, ...]]) -> Path:
    """Pictures of these shapes, random but the same for the same name."""
    for name, shape in sizes.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        rng = np.random.default_rng(sum(name.encode()))
        (folder / name).write_bytes(png(rng.integers(0, 256, shape, dtype=np.uint8)))
    return folder


@pytest.fixture
def mixed(tmp_path):
    """Six colour pictures of different sizes in two classes."""
    return write(tmp_path / "mixed", {f"{'ab'[k % 2]}/{k}.png": (8 + k, 14 - k, 3) for k in range(6)})


@pytest.fixture
def reads(monkeypatch):
    """The names of the files that are read."""
    names, content = [], PictureFiles.content
    monkeypatch.setattr(PictureFiles, "content", lambda self, at: names.append(self.files[at]) or content(self, at))
    return names


def test_pictures_of_several_sizes_become_one_size(mixed):
    with pytest.raises(DataError, match=r"--resize 256 --crop 224"):
        load_points(str(mixed))
    for fit, shape in [(Fit(resize=6, crop=(5, 6)), (5, 6)), (Fit(resize=(4, 7)), (4, 7)), (Fit(crop=(3, 3)), (3, 3))]:
        points = fitted(load_points(str(mixed), look=False), fit)
        assert points.point_shape == (3, *shape)
        raw = points.raw(slice(None))
        for row, name in enumerate(points.inputs.source.files):
            alone = points.inputs.source.item(row, 3)
            np.testing.assert_array_equal(raw[row], (fit(alone) / np.float32(255)), err_msg=name)
    with pytest.raises(DataError, match=r"pixels then, and a/0\.png is"):
        fitted(load_points(str(mixed), look=False), Fit(resize=6))


def test_resizing_changes_no_digest_and_one_size_no_pixel(mixed, tmp_path):
    points = fitted(load_points(str(mixed), look=False), Fit(resize=(4, 4)))
    assert points.sha256 == fitted(load_points(str(mixed), look=False), Fit(resize=(5, 5))).sha256
    x = np.random.default_rng(0).integers(0, 256, (5, 3, 8, 8), dtype=np.uint8)
    np.save(tmp_path / "x.npy", x)
    array = load_points(str(tmp_path / "x.npy"))
    assert fitted(array, Fit(resize=8, crop=(8, 8))).inputs is array.inputs
    np.testing.assert_array_equal(
        fitted(array, Fit(resize=10, crop=(8, 8))).inputs[2], Fit(resize=10, crop=(8, 8))(x[2])
    )
    small = fitted(array, Fit(resize=4))
    assert small.sha256 == array.sha256
    assert small.subset([3, 1]).sha256 == array.subset([3, 1]).sha256
    np.testing.assert_array_equal(small.raw([2])[0], Fit(resize=4)(x[2]) / np.float32(255))
    np.save(tmp_path / "rows.npy", np.zeros((4, 3)))
    with pytest.raises(RequestError, match=r"data\.resize needs images"):
        fitted(load_points(str(tmp_path / "rows.npy")), Fit(resize=4))


def test_an_ood_set_takes_the_channels_and_the_size_of_the_test_set(mixed, tmp_path):
    adapted = fitted(load_points(str(mixed), look=False), like=(1, 5, 4), adapt=True)
    assert adapted.raw(slice(None)).shape == (6, 1, 5, 4)
    assert "set-adapted" in noted(adapted)
    np.testing.assert_array_equal(adapted.inputs[2], Fit(size=(5, 4))(adapted.inputs.source.item(2, 1)))
    np.save(tmp_path / "x.npy", np.random.default_rng(0).integers(0, 256, (5, 1, 8, 8), dtype=np.uint8))
    grey = load_points(str(tmp_path / "x.npy"))
    colour = fitted(grey, like=(3, 8, 8), adapt=True)
    np.testing.assert_array_equal(colour.raw(slice(None)), np.repeat(grey.raw(slice(None)), 3, 1))
    assert fitted(colour, Fit(crop=(6, 6)), like=(3, 6, 6), adapt=True).point_shape == (3, 6, 6)
    same = fitted(grey, like=(1, 8, 8), adapt=True)
    assert same.inputs is grey.inputs
    assert "set-adapted" not in noted(same)


def test_a_reference_reads_one_picture_and_then_those_that_are_drawn(mixed, reads):
    points = fitted(load_points(str(mixed), look=False), Fit(resize=(4, 4)), whole=False)
    assert len(set(reads)) == 1
    points.raw(np.array([4, 2]))
    assert set(reads) == {"a/0.png", "a/4.png", "b/3.png"}
    assert len(points.sha256) == 64
    assert len(set(reads)) == 3  # the digest is of the listing


def test_the_digest_of_a_listing_sees_names_sizes_and_labels(mixed):
    def digest() -> str:
        return fitted(load_points(str(mixed), look=False), Fit(resize=(4, 4)), whole=False).sha256

    first = digest()
    assert first == digest()
    (mixed / "a/0.png").rename(mixed / "b/0.png")
    second = digest()
    assert second != first
    (mixed / "b/0.png").write_bytes((mixed / "b/0.png").read_bytes() + b" ")
    assert digest() not in (first, second)


@pytest.mark.parametrize("form", ["folder", "zip"])
def test_a_damaged_reference_picture_is_named_when_it_is_read(mixed, form, tmp_path):
    path = mixed / "b/3.png"
    content = bytearray(path.read_bytes())
    content[content.index(b"IDAT") - 2 + 12] ^= 1
    path.write_bytes(content)
    if form == "zip":
        with zipfile.ZipFile(tmp_path / "set.zip", "w") as archive:
            for file in sorted(mixed.rglob("*.png")):
                archive.write(file, file.relative_to(mixed))
        mixed = tmp_path / "set.zip"
    points = fitted(load_points(str(mixed), look=False), Fit(resize=(4, 4)), whole=False)
    bad = points.inputs.source.files.index("b/3.png")
    points.raw([at for at in range(6) if at != bad])
    with pytest.raises(DataError, match=r"b/3\.png: cannot be read as an image"):
        points.raw(slice(None))


def test_a_reference_takes_its_colour_from_the_test_set(tmp_path):
    folder = write(tmp_path / "set", {"a/0.png": (8, 8), "a/1.png": (8, 8, 3)})
    grey = fitted(load_points(str(folder), look=False), whole=False, like=(1, 8, 8))
    grey.raw([0])
    with pytest.raises(DataError, match=r"1\.png: is 8 × 8 pixels of 3 channels, and a/0\.png is 8 × 8"):
        grey.raw([1])
    with pytest.raises(DataError, match=r"1\.png: is 8 × 8 pixels of 3 channels"):
        grey.changed([0, 1], (8, 8), lambda _, picture: picture)
    colour = fitted(load_points(str(folder), look=False), whole=False, like=(3, 8, 8))
    np.testing.assert_array_equal(colour.raw(slice(None)), load_points(str(folder)).raw(slice(None)))


def test_threads_leave_the_order_the_errors_and_the_warnings(tmp_path):
    assert list(each(lambda value: value**2, range(700), parallel=True)) == [value**2 for value in range(700)]
    assert list(ahead([lambda value=value: value for value in range(5)])) == list(range(5))

    def fail() -> int:
        raise DataError("an image")

    results = ahead([lambda: 1, fail, lambda: 3])
    assert next(results) == 1
    with pytest.raises(DataError, match="an image"):
        next(results)
    folder = write(tmp_path / "set", {f"a/{at}.png": (6, 6) for at in range(40)})
    points, before = load_points(str(folder)), warnings.filters[:]
    several = [threading.Thread(target=lambda: points.raw(slice(None))) for _ in range(4)]
    for thread in several:
        thread.start()
    for thread in several:
        thread.join()
    assert warnings.filters == before


# ── Datasets ─────────────────────────────────────────────────────────────────────────────────────────────────────────

SETS = """
import random
import numpy as np
seen = []
class Plain:
    def __len__(self): return 20_000
    def __getitem__(self, index):
        seen.append(index)
        return np.full((1, 4, 4), index % 7, np.float32), index % 3
class Labelled(Plain):
    targets = [index % 3 for index in range(20_000)]
class Wrong(Plain):
    targets = [9] * 20_000
class Corrected(Plain):
    targets = [(index % 3 + (index % 10 == 9)) % 3 for index in range(20_000)]
class Random(Plain):
    def __getitem__(self, index): return np.full((1, 4, 4), random.random(), np.float32), 0
class Sizes(Plain):
    def __getitem__(self, index): return np.full((9 + index % 5, 8, 3), 200, np.uint8), index % 3
class Broken(Plain):
    def __getitem__(self, index): return np.full((1, 2, 2), 1 / (index - 5), np.float32), 0
def plain(): return Plain()
def labelled(): return Labelled()
def wrong(): return Wrong()
def corrected(): return Corrected()
def randomly(): return Random()
def sizes(): return Sizes()
def broken(): return Broken()
"""


@pytest.fixture
def sets(tmp_path):
    (tmp_path / "sets.py").write_text(SETS)

    def load(name: str):
        points = load_points(f"sets.py:{name}", base=tmp_path, whole=False)
        return points, type(points.inputs.source.data).__getitem__.__globals__["seen"]

    return load


def test_a_reference_of_20000_items_is_read_as_it_is_drawn(sets):
    points, seen = sets("plain")
    assert (len(points), points.point_shape, points.targets) == (20_000, (1, 4, 4), None)
    assert points.raw(np.array([8, 15]))[:, 0, 0, 0].tolist() == [1, 1]
    assert set(seen) == {0, 8, 15}
    assert labelled(points.subset([5, 4])).targets.tolist() == [2, 1]
    assert set(seen) == {0, 4, 5, 8, 15}


def test_labels_come_from_the_datasets_list_if_it_agrees_with_a_sample_of_the_items(sets):
    points, seen = sets("labelled")
    assert points.targets[:4].tolist() == [0, 1, 2, 0]
    assert set(seen) == {0, *sample_of(20_000)}
    assert sets("wrong")[0].targets is None
    corrected = sets("corrected")[0]
    assert corrected.targets is None and labelled(corrected.subset([9, 19])).targets.tolist() == [0, 1]


def test_a_torch_subset_has_the_labels_of_its_items(tmp_path):
    (tmp_path / "sets.py").write_text(
        "import torch\nfrom torch.utils.data import Subset, TensorDataset\n"
        "def part(): return Subset(TensorDataset(torch.arange(12.).reshape(6, 2), torch.arange(6)), [4, 1])\n"
    )
    points = load_points("sets.py:part", base=tmp_path, whole=False)
    assert points.targets.tolist() == [4, 1]
    assert points.raw([1]).tolist() == [[2, 3]]


def test_an_item_is_the_same_whenever_it_is_read(sets):
    points, _ = sets("randomly")
    together = points.raw([3, 7])
    np.testing.assert_array_equal(points.raw([7, 3]), together[::-1])
    assert together[0, 0, 0, 0] != together[1, 0, 0, 0]


def test_items_of_several_sizes_are_resized_and_broken_ones_are_named(sets):
    points, _ = sets("sizes")
    with pytest.raises(DataError, match=r"sets\.py:sizes: item 1: is 8 × 10 pixels, and item 0 is 8 × 9"):
        points.raw([0, 1])
    assert fitted(points, Fit(resize=(6, 6)), whole=False).raw([0, 1, 2]).shape == (3, 3, 6, 6)
    with pytest.raises(RequestError, match=r"sets\.py:broken: reading item 5 failed with ZeroDivisionError"):
        sets("broken")[0].raw([4, 5])
