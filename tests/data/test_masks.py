"""Pictures with a mask each: paired by name, read when they are needed, in the pictures' geometry, and checked."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from findings_of import noted, warned
from making_points import png
from PIL import Image

from bnuq.config import PointSettings, Run
from bnuq.data import Fit, Masks, check_labels, check_masks, fitted, load_points, points_in_memory
from bnuq.data.readers.classes import read_classes
from bnuq.data.readers.images import PictureFiles
from bnuq.data.readers.items import MasksOfItems
from bnuq.data.readers.masks import MaskFiles, partners
from bnuq.errors import DataError, RequestError
from bnuq.evaluation.datasets import load_data
from bnuq.evaluation.pipeline import Pipeline

COLOURS = {"sky": (128, 128, 128), "road": (128, 64, 128), "car": (64, 0, 128)}


def pixels(seed: int, *shape: int, below: int = 256) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, below, shape, dtype=np.uint8)


def save(path: Path, values: np.ndarray | bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(values if isinstance(values, bytes) else png(values))


def make(folder: Path, sizes: list[tuple[int, int]], *, classes: int = 3) -> tuple[str, list[np.ndarray]]:
    """Pictures of these sizes in `folder`/test and their masks in `folder`/testannot: the REF, and the masks."""
    masks = [pixels(100 + at, *size, below=classes) for at, size in enumerate(sizes)]
    for at, (size, mask) in enumerate(zip(sizes, masks, strict=True)):
        save(folder / f"test/{at}.png", pixels(at, *size, 3))
        save(folder / f"testannot/{at}.png", mask)
    return f"{folder}/test:{folder}/testannot", masks


@pytest.fixture
def reads(monkeypatch):
    """The masks that are read."""
    names, content = [], PictureFiles.content

    def read(self, at):
        if isinstance(self, MaskFiles):
            names.append(self.files[at])
        return content(self, at)

    monkeypatch.setattr(PictureFiles, "content", read)
    return names


def test_masks_are_read_by_rows_and_are_no_array(tmp_path, reads):
    ref, masks = make(tmp_path, [(6, 8)] * 5)
    points = load_points(ref, look=False)
    assert reads == []
    assert isinstance(points.masks, Masks)
    assert points.targets is points.masks
    assert (points.masks.shape, points.masks.ndim, points.masks.dtype, len(points.masks)) == ((5, 6, 8), 3, np.int64, 5)
    np.testing.assert_array_equal(points.masks[[3, 1]], np.stack([masks[3], masks[1]]))
    assert reads == ["3.png", "1.png"]
    assert points.masks[2].dtype == points.masks[1:2].dtype == np.int64
    np.testing.assert_array_equal(points.masks[-1], masks[4])
    part = points.subset([4, 0])
    np.testing.assert_array_equal(part.masks[:], np.stack([masks[4], masks[0]]))
    assert (part.names.tolist(), part.index.tolist(), part.masks.name(0)) == (
        ["4.png", "0.png"],
        [4, 0],
        str(tmp_path / "testannot/4.png"),
    )
    assert points.name == "test"
    assert "masks" in noted(points)


def test_the_second_folder_is_beside_the_first_or_relative_to_the_run_file(tmp_path):
    _, masks = make(tmp_path / "set", [(4, 4)] * 2)
    for ref in ("set/test:testannot", "set/test:set/testannot", f"{tmp_path}/set/test:testannot"):
        np.testing.assert_array_equal(load_points(ref, base=tmp_path).masks[:], np.stack(masks))
    (tmp_path / "test").mkdir()
    with pytest.raises(DataError, match=r"no folder of masks 'nowhere', neither beside it nor in .*IMAGES:MASKS"):
        load_points("set/test:nowhere", base=tmp_path)


@pytest.mark.parametrize(
    ("pictures", "masks"),
    [
        (["a.jpg", "b.JPG"], ["a.png", "b.png"]),
        (["a.jpg", "a_1.jpg"], ["a_mask.png", "a_1_mask.png"]),
        (["a 1.jpg", "a 10.jpg"], ["a 1_labelIds.png", "a 10_labelIds.png"]),
        (["x/1_leftImg8bit.png", "y/1_leftImg8bit.png"], ["x/1_gtFine_labelIds.png", "y/1_gtFine_labelIds.png"]),
        (["x/1.png", "y/2.png"], ["1_gt.png", "2_gt.png"]),
        (["frame_001.png"], ["frame_001_L.png"]),
    ],
)
def test_masks_are_paired_by_name(pictures, masks):
    assert partners(pictures, masks, Path("images"), Path("masks")) == tuple(masks)


@pytest.mark.parametrize(
    ("pictures", "masks", "message"),
    [
        (["a.jpg", "b.jpg", "c.jpg"], ["a.png", "c.png"], r"images/b\.jpg: has no mask in masks; expected b\.png"),
        (["a.jpg", "c.jpg"], ["a_m.png", "b_m.png", "c_m.png"], r"masks/b_m\.png: has no image in images"),
        (["a.jpg", "b.jpg"], ["c.png", "d.png"], r"images/a\.jpg: has no mask in masks, and 1 more"),
        (
            ["a_rgb.png", "b_rgb.png", "c_rgb.png"],
            ["a_m.png", "b_m.png"],
            r"c_rgb\.png: has no mask .* expected c_m\.png",
        ),
        (["a.jpg", "a.png"], ["a.png"], r"images/a\.jpg: has the same name as a\.png"),
        (["a.jpg"], ["a_color.png", "a_ids.png"], r"images/a\.jpg: has 2 masks .*images:masks/\*_color\.png"),
        (["a.jpg", "b.jpg"], ["a_m.png", "b_n.png"], r"images/b\.jpg: .* none has the ending of all others"),
        (["a_1.jpg", "b_1.jpg"], ["a_2.png", "b_2.png"], r"images/a_1\.jpg: has no mask"),  # frames of other numbers
        (["x/1.png", "y/1.png"], ["1.png"], r"images/x/1\.png: has no mask"),
        (["a.jpg", "a_2.jpg"], ["a_2_mask.png", "a_2_3_mask.png"], r"images/a_2\.jpg: has 2 masks"),
    ],
)
def test_what_has_no_partner_is_named(pictures, masks, message):
    with pytest.raises(DataError, match=message):
        partners(pictures, masks, Path("images"), Path("masks"))


def test_a_pattern_says_which_files_are_masks(tmp_path):
    for at in range(3):
        save(tmp_path / f"city/{at}_leftImg8bit.png", pixels(at, 4, 4, 3))
        save(tmp_path / f"gt/{at}_gtFine_color.png", pixels(at, 4, 4, 3))
        save(tmp_path / f"gt/{at}_gtFine_labelIds.png", np.full((4, 4), at, np.uint8))
        save(tmp_path / f"one/{at}.png", pixels(at, 4, 4, 3))
        save(tmp_path / f"one/{at}_mask.png", np.full((4, 4), at + 3, np.uint8))
    with pytest.raises(DataError, match=r"has 2 masks in .* \(0_gtFine_color\.png, 0_gtFine_labelIds\.png\)"):
        load_points("city:gt", base=tmp_path)
    for ref in ("city:gt/*_labelIds.png", "city:gt/**/*_labelIds.png"):
        assert load_points(ref, base=tmp_path).masks[:][:, 0, 0].tolist() == [0, 1, 2]
    points = load_points("one:one/*_mask.png", base=tmp_path)
    assert points.names.tolist() == ["0.png", "1.png", "2.png"]
    assert points.masks[:][:, 0, 0].tolist() == [3, 4, 5]
    with pytest.raises(DataError, match=r"of the images and of the masks"):
        load_points("one:one", base=tmp_path)
    with pytest.raises(DataError, match=r"contains no masks whose names match \*_labels\.png"):
        load_points("one:one/*_labels.png", base=tmp_path)
    save(tmp_path / "below/1.png", pixels(0, 4, 4, 3))
    save(tmp_path / "below/masks/1.png", pixels(0, 4, 4, below=3))
    assert load_points("below:below/masks", base=tmp_path).names.tolist() == ["1.png"]


def test_class_folders_and_single_folders_stay_what_they_are(tmp_path):
    save(tmp_path / "set/images/1.png", pixels(0, 4, 4, 3))
    save(tmp_path / "set/masks/1.png", pixels(0, 4, 4, 3))
    classes = load_points("set", base=tmp_path)
    assert (classes.classes, classes.targets.tolist(), classes.masks) == (("images", "masks"), [0, 1], None)
    alone = load_points("set/images", base=tmp_path)
    assert alone.targets is None
    assert len(alone) == 1
    for points, found in ((alone, "are missing"), (classes, r"are labels of shape \(2,\)")):
        with pytest.raises(DataError, match=rf"{found}; expected a mask for each image.*IMAGES:MASKS"):
            check_masks(points, 2, 255)


@pytest.mark.parametrize(
    ("resize", "crop"), [(5, None), ((7, 4), None), (6, (4, 9)), (None, (12, 5)), ((9, 11), (3, 3))]
)
def test_masks_are_resized_to_the_nearest_and_cropped_like_the_pictures(tmp_path, resize, crop):
    sizes = [(8, 11), (9, 10), (13, 7)] if resize is None or crop or isinstance(resize, tuple) else [(8, 11)] * 3
    ref, masks = make(tmp_path, sizes, classes=200)
    points = fitted(load_points(ref, look=False), Fit(resize, crop), ignore=11)
    assert points.masks.shape == (3, *points.point_shape[1:])
    for row, (size, mask) in enumerate(zip(sizes, masks, strict=True)):
        expected = mask
        if resize is not None:
            height, width = Fit(resize).size_of(*size)
            expected = np.asarray(Image.fromarray(mask).resize((width, height), Image.Resampling.NEAREST))
        if crop is not None:
            # an offset of a coordinate picture says where each pixel came from
            places = np.arange(1, expected.size + 1, dtype=np.float32).reshape(1, *expected.shape)
            places = Fit(crop=crop)(places)[0].astype(int)
            expected = np.where(places > 0, expected.ravel()[places - 1], 11)
        np.testing.assert_array_equal(points.masks[row], expected)


def test_padding_holds_any_ignored_value_and_wide_masks_are_resized_exactly(tmp_path):
    ref, masks = make(tmp_path, [(4, 4)] * 2)
    for ignore in (-1, 300, -(2**31)):
        padded = fitted(load_points(ref, look=False), Fit(crop=(6, 6)), ignore=ignore).masks[:]
        np.testing.assert_array_equal(padded[:, 1:5, 1:5], np.stack(masks))
        assert (padded[:, 0] == ignore).all()
    wide = 2**40 + np.arange(48).reshape(1, 6, 8)
    points = points_in_memory((np.zeros((1, 3, 6, 8), np.float32), wide), name="test")
    np.testing.assert_array_equal(
        fitted(points, Fit((3, 4))).masks[0] - 2**40,
        np.asarray(
            Image.fromarray(np.arange(48, dtype=np.int32).reshape(6, 8)).resize((4, 3), Image.Resampling.NEAREST)
        ),
    )


def test_sizes_are_checked_where_a_set_is_evaluated(tmp_path, reads):
    ref, _ = make(tmp_path, [(6, 8), (7, 8)])
    with pytest.raises(DataError, match=r"1\.png: is 8 × 7 pixels, and 0\.png is 8 × 6.*--resize 256 --crop 224"):
        load_points(ref)
    save(tmp_path / "testannot/1.png", pixels(0, 7, 9, below=3))
    with pytest.raises(DataError, match=r"testannot/1\.png: is 9 × 7 pixels, and its image 1\.png is 8 × 7; expected"):
        fitted(load_points(ref, look=False), Fit((4, 4)))
    reads.clear()
    reference = fitted(load_points(ref, look=False), Fit((4, 4)), whole=False)
    assert reference.raw([0, 1]).shape == (2, 3, 4, 4)
    assert len(reference.sha256) == 64
    assert reads == []  # the masks of a reference


def test_digests_are_of_the_bytes_of_pictures_and_masks(tmp_path):
    ref, masks = make(tmp_path, [(4, 4)] * 3)
    before = load_points(ref).sha256
    assert fitted(load_points(ref, look=False), Fit((3, 3))).sha256 == before
    assert load_points(f"{tmp_path}/test").sha256 != before
    classes = tmp_path / "classes.txt"
    classes.write_text("a 0 0 0\nb 1 1 1\nc 2 2 2\n")
    assert load_points(ref, palette=classes).sha256 != before
    save(tmp_path / "testannot/1.png", 2 - masks[1])
    assert load_points(ref).sha256 != before
    assert load_points(ref).subset([0, 2]).sha256 == points_without(ref, 1)
    listed = fitted(load_points(ref, look=False), whole=False).sha256
    save(tmp_path / "testannot/1.png", png(masks[1]) + b"more")  # whose size is listed
    before = fitted(load_points(ref, look=False), whole=False)
    assert before.sha256 != listed
    identity = before.identity  # of the files as they are now
    content = bytearray((picture := tmp_path / "test/1.png").read_bytes())
    content[-20] ^= 1  # of the same size
    picture.write_bytes(content)
    now = fitted(load_points(ref, look=False), whole=False)
    assert now.sha256 == before.sha256
    assert now.identity != identity


def test_masks_of_a_class_file_take_the_order_of_the_listed_classes(tmp_path):
    ref, masks = make(tmp_path, [(4, 4)] * 2)
    (tmp_path / "classes.txt").write_text("a 0 0 0\nb 1 1 1\nc 2 2 2\n")
    as_it_is, renumbered = (
        load_data(run_of(tmp_path, test=ref, palette="classes.txt", classes=order, normalize=None)).test
        for order in (("a", "b", "c"), ("c", "a", "b"))
    )
    np.testing.assert_array_equal(as_it_is.masks[:], masks)
    np.testing.assert_array_equal(renumbered.masks[:], np.array([1, 2, 0])[masks])
    assert renumbered.classes == ("c", "a", "b")
    assert load_points(ref, palette=tmp_path / "classes.txt").sha256 == as_it_is.sha256 != renumbered.sha256


def points_without(ref: str, row: int) -> str:
    """The digest of the set from which a picture and its mask were removed."""
    for folder in ref.split(":"):
        kept = Path(folder) / f"{row}.png"
        kept.rename(kept.with_suffix(".away"))
    digest = load_points(ref).sha256
    for folder in ref.split(":"):
        (Path(folder) / f"{row}.away").rename(Path(folder) / f"{row}.png")
    return digest


# What files of masks hold


def decoded(
    tmp_path: Path, content: np.ndarray | bytes, *, classes: Path | None = None, suffix: str = "png"
) -> np.ndarray:
    """The one mask whose file has this content."""
    for old in (tmp_path / "masks").glob("*"):
        old.unlink()
    save(tmp_path / f"masks/a.{suffix}", content)
    with Image.open(tmp_path / f"masks/a.{suffix}") as picture:
        width, height = picture.size
    save(tmp_path / "images/a.png", pixels(0, height, width, 3))
    return load_points("images:masks", base=tmp_path, palette=classes).masks[0]


def test_grey_and_paletted_masks_are_numbers_of_any_depth(tmp_path):
    values = pixels(1, 5, 7, below=16)
    np.testing.assert_array_equal(decoded(tmp_path, values), values)
    paletted = Image.fromarray(values, "P")
    paletted.putpalette(pixels(2, 48).tolist())
    for options in ({}, {"bits": 4}):
        paletted.save(tmp_path / "p.png", **options)
        np.testing.assert_array_equal(decoded(tmp_path, (tmp_path / "p.png").read_bytes()), values)
    wide = values.astype(np.uint16) * 1000
    np.testing.assert_array_equal(decoded(tmp_path, png(wide)), wide)
    np.testing.assert_array_equal(decoded(tmp_path, png(values > 7)), values > 7)
    for bits in (2, 4):  # grey, which Pillow reads as values up to 255
        np.testing.assert_array_equal(decoded(tmp_path, grey_png(values % 2**bits, bits)), values % 2**bits)


def grey_png(values: np.ndarray, bits: int) -> bytes:
    """A grey PNG of 2 or 4 bits a pixel, which Pillow does not write."""
    import struct
    import zlib

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    height, width = values.shape
    digits = (values[..., None] >> np.arange(bits)[::-1] & 1).reshape(height, -1)
    rows = b"".join(b"\0" + np.packbits(row).tobytes() for row in digits)
    header = struct.pack(">IIBBBBB", width, height, bits, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


CLASS_FILES = {
    "rgb.txt": "".join(f"{name} {r} {g} {b}\n" for name, (r, g, b) in COLOURS.items()),
    "rgb_first.txt": "# CamVid\n" + "".join(f"{r} {g} {b}\t\t{name}\n" for name, (r, g, b) in COLOURS.items()),
    "header.csv": "name,r,g,b\n" + "".join(f"{name},{r},{g},{b}\n" for name, (r, g, b) in COLOURS.items()),
    "index.csv": "".join(
        f"{at}, {name}, {r}, {g}, {b}\n" for at, (name, (r, g, b)) in reversed(list(enumerate(COLOURS.items())))
    ),
    "list.json": json.dumps([{"name": name, "color": colour} for name, colour in COLOURS.items()]),
    "object.json": json.dumps(COLOURS),
}


@pytest.mark.parametrize("name", CLASS_FILES)
def test_colours_become_numbers_by_a_class_file(tmp_path, name):
    (tmp_path / name).write_text(CLASS_FILES[name])
    numbers = pixels(3, 6, 5, below=3)
    coloured = np.array(list(COLOURS.values()), np.uint8)[numbers]
    assert read_classes(tmp_path / name).names == tuple(COLOURS)
    np.testing.assert_array_equal(decoded(tmp_path, coloured, classes=tmp_path / name), numbers)
    paletted = Image.fromarray(5 - numbers, "P")  # other numbers, but the same colours
    paletted.putpalette([0] * 9 + [part for colour in reversed(COLOURS.values()) for part in colour])
    paletted.save(tmp_path / "p.png")
    np.testing.assert_array_equal(
        decoded(tmp_path, (tmp_path / "p.png").read_bytes(), classes=tmp_path / name), numbers
    )
    np.testing.assert_array_equal(decoded(tmp_path, numbers, classes=tmp_path / name), numbers)  # grey: numbers already


def test_class_files_may_have_an_ignored_number_names_alone_or_grey_values(tmp_path):
    path = tmp_path / "classes.txt"
    path.write_text("0 traffic light 1 2 3\n255 void 0 0 0\n255 other 9 9 9\n1 road 4 5 6\n")
    assert read_classes(path).names == ("traffic light", "road")
    coloured = np.array([[[1, 2, 3], [9, 9, 9]], [[0, 0, 0], [4, 5, 6]]], np.uint8)
    np.testing.assert_array_equal(decoded(tmp_path, coloured, classes=path), [[0, 255], [255, 1]])
    path.write_text("sky\ntraffic light\n\nroad\n")
    assert read_classes(path).names == ("sky", "traffic light", "road")
    np.testing.assert_array_equal(decoded(tmp_path, np.eye(2, dtype=np.uint8), classes=path), np.eye(2))
    path.write_text('["sky", "road"]')
    assert read_classes(path).names == ("sky", "road")
    path.write_text("background 0 0 0\nforeground 255 255 255\n")
    np.testing.assert_array_equal(decoded(tmp_path, 255 * np.eye(3, dtype=np.uint8), classes=path), np.eye(3))
    np.testing.assert_array_equal(decoded(tmp_path, np.eye(3) > 0, classes=path), np.eye(3))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sky 1 2 3\nroad\n", r"'road' has no colour, and other classes have one"),
        ("sky 1 2 300\nroad 4 5 6\n", r"\[1, 2, 300\] is not a class"),
        ("sky 1 2 3\nroad 1 2 3\n", r"colour \(1, 2, 3\) is that of 'sky' and of 'road'"),
        ("# nothing\n", r"lists no class; expected a line for each class"),
        ('[{"name": 3}]', r"is not a class"),
        ('[{"name": "a", "color": [1, 2, 3]}, "b"]', r"'b' has no colour and others have one"),
        ('["a"', r"cannot be read as a list of classes"),
        ("70000 sky 1 2 3\n", r"an index of 70000"),
        ("\0\1", r"is not a text file"),
    ],
)
def test_class_files_that_do_not_fit_are_refused(tmp_path, text, message):
    ref, _ = make(tmp_path, [(4, 4)])
    (tmp_path / "classes.txt").write_bytes(text.encode())
    with pytest.raises(DataError, match=message):
        load_points(ref, palette=tmp_path / "classes.txt")
    with pytest.raises(DataError, match=r"there is no such file"):
        load_points(ref, palette=tmp_path / "missing.txt")


def test_masks_in_another_form_are_refused_by_name(tmp_path):
    coloured = pixels(0, 4, 4, 3)
    with pytest.raises(DataError, match=r"masks/a\.png: is in colour \(RGB\).*--palette FILE"):
        decoded(tmp_path, coloured)
    names = tmp_path / "names.txt"
    names.write_text("a\nb\n")
    with pytest.raises(DataError, match=r"is in colour"):
        decoded(tmp_path, coloured, classes=names)
    colours = tmp_path / "colours.txt"
    colours.write_text("a 1 2 3\n")
    two = np.array([[[1, 2, 3], [7, 8, 9], [7, 8, 9]]], np.uint8)
    with pytest.raises(
        DataError, match=r"a\.png: has 2 pixels of colour \(7, 8, 9\), which colours\.txt does not list"
    ):
        decoded(tmp_path, two, classes=colours)
    Image.fromarray(coloured[..., 0]).save(tmp_path / "a.jpg")
    with pytest.raises(DataError, match=r"a\.jpg: is a JPEG"):
        decoded(tmp_path, (tmp_path / "a.jpg").read_bytes(), suffix="jpg")
    Image.fromarray(np.zeros((4, 4), np.float32)).save(tmp_path / "a.tif")
    with pytest.raises(DataError, match=r"a\.tif: has pixels of mode F"):
        decoded(tmp_path, (tmp_path / "a.tif").read_bytes(), suffix="tif")
    ref, masks = make(tmp_path, [(40, 40)] * 2)
    save(tmp_path / "testannot/1.png", png(masks[1])[:-30])
    with pytest.raises(DataError, match=r"testannot/1\.png: cannot be read as an image: it is cut short or damaged"):
        load_points(ref)


# Checks of the values


def with_masks(*masks: np.ndarray, **fields) -> object:
    y = np.stack(masks)
    return replace(points_in_memory((np.zeros((len(y), 3, *y.shape[1:]), np.float32), y), name="test"), **fields)


def test_values_are_checked_and_counted(tmp_path):
    ref, masks = make(tmp_path, [(5, 6)] * 4)
    points = load_points(ref)
    assert check_masks(points, 3, 255).masks is points.masks
    masks[2][0] = [11, 11, 7, 0, 0, 0]
    masks[3][1, 1] = 7
    for at in (2, 3):
        save(tmp_path / f"testannot/{at}.png", masks[at])
    found = (
        r"testannot/2\.png: has 1 pixel of 7, 2 pixels of 11; 1 more of 4 masks have such values; expected 0 to 2, or"
    )
    with pytest.raises(DataError, match=found + r" 255 \(ignored\).*--ignore N"):
        check_masks(load_points(ref), 3, 255)
    with pytest.raises(DataError, match=r"has 1 pixel of 7; 1 more .* or 11 \(ignored\).*--ignore 7"):
        check_masks(load_points(ref), 3, 11)
    check_masks(load_points(ref), 12, 255)
    assert len(check_masks(load_points(ref).subset([0, 1]), 3, 255)) == 2
    with pytest.raises(DataError, match=r"test \(in memory\): mask 1: has 4 pixels of -3; expected 0 to 1"):
        check_masks(with_masks(np.zeros((2, 2), int), np.full((2, 2), -3)), 2, 255)
    with pytest.raises(DataError, match=r"mask 0: has 2 pixels of 1099511627776"):
        check_masks(with_masks(np.array([[0, 2**40, 2**40]])), 2, 255)
    with pytest.raises(DataError, match=r"have shape \(4, 5, 6\)"):
        check_labels(points, 3)


def test_ignored_masks_are_named_and_a_set_of_them_is_refused(tmp_path):
    ref, _ = make(tmp_path, [(5, 6)] * 3)
    save(tmp_path / "testannot/1.png", np.full((5, 6), 11, np.uint8))
    checked = check_masks(load_points(ref), 3, 11)
    finding = next(finding for finding in checked.findings if finding.code == "masks-ignored")
    assert finding.values == {"count": 1, "names": [str(tmp_path / "testannot/1.png")], "ignore": 11}
    assert "masks-ignored" in warned(checked)
    with pytest.raises(DataError, match=r"the masks of 'test' are all 11, which is ignored: no pixel can be scored"):
        check_masks(load_points(ref).subset([1]), 3, 11)
    binary = np.array([[0, 255], [255, 0]])
    with pytest.raises(DataError, match=r"hold 0 and 255 alone.*foreground 255 255 255"):
        check_masks(with_masks(binary, binary), 2, 255)
    check_masks(with_masks(binary, binary % 2), 2, 255)


def test_there_are_as_many_names_as_classes():
    mask = np.array([[0, 1, 2]])
    assert check_masks(with_masks(mask, classes=("a", "b", "c", "void")), 3, 255).classes == ("a", "b", "c")
    assert check_masks(with_masks(mask), 3, 255).classes is None
    with pytest.raises(DataError, match=r"2 classes are named \(a, b\), and the network has 3"):
        check_masks(with_masks(mask, classes=("a", "b")), 3, 255)


# Arrays, factories and runs


def test_masks_in_arrays_are_held_as_they_are_and_equal_those_in_files(tmp_path):
    import h5py

    ref, masks = make(tmp_path, [(4, 6)] * 5)
    x, y = load_points(ref).inputs[:], np.stack(masks)
    np.savez(tmp_path / "set.npz", x=x, y=y.astype(np.int64), group=[0, 0, 1, 1, 2])
    np.savez(tmp_path / "named.npz", image=x, mask=y[:, None])
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "y.npy", y)
    with h5py.File(tmp_path / "set.h5", "w") as file:
        file["x"], file["y"] = x, y.astype(np.float32)
    names = ("set.npz", "named.npz:image,mask", "x.npy:y.npy", "set.h5", "set.h5:x,y")
    sets = [load_points(name, base=tmp_path) for name in names]
    for points in sets:
        assert isinstance(points.masks, Masks)
        np.testing.assert_array_equal(points.masks[[4, 2]], y[[4, 2]])
        np.testing.assert_array_equal(points.subset([4, 2]).masks[:], y[[4, 2]])
        np.testing.assert_array_equal(
            fitted(points, Fit((2, 3))).masks[:], fitted(load_points(ref), Fit((2, 3))).masks[:]
        )
    assert len({points.sha256 for points in sets}) == 1
    assert fitted(sets[0], Fit((2, 3))).sha256 == sets[0].sha256
    assert sets[0].subset([3, 0]).group.tolist() == [1, 0]
    with pytest.raises(DataError, match=r"the images are 6 × 4 pixels and their masks 5 × 4"):
        points_in_memory((x, y[:, :, :5]), name="test")


class Pairs(torch.utils.data.Dataset):
    """Pictures with masks, as floats, of which every read is counted."""

    def __init__(self, n: int = 4, kind: type = np.int64) -> None:
        self.n, self.kind, self.read = n, kind, []

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, at: int) -> tuple[torch.Tensor, torch.Tensor]:
        self.read.append(at)
        return torch.full((3, 4, 5), at / 10.0), torch.from_numpy(np.full((4, 5), at).astype(self.kind))


@pytest.mark.parametrize("kind", [np.int64, np.uint8, np.float32])
def test_a_dataset_gives_pictures_with_masks(kind, monkeypatch):
    whole = points_in_memory(Pairs(kind=kind), name="test")
    np.testing.assert_array_equal(whole.masks[:][:, 1, 1], range(4))
    batches = points_in_memory(torch.utils.data.DataLoader(Pairs(kind=kind), batch_size=3), name="test")
    np.testing.assert_array_equal(batches.masks[:], whole.masks[:])
    monkeypatch.setattr("bnuq.data.readers.items._KEPT", 100)
    data = Pairs(kind=kind)
    large = points_in_memory(data, name="test")
    assert isinstance(large.masks.items.source, MasksOfItems)
    assert set(data.read) == {0}
    np.testing.assert_array_equal(large.masks[[2, 3]], whole.masks[[2, 3]])
    assert set(data.read) == {0, 2, 3}
    assert points_in_memory(Pairs(kind=kind), name="train", whole=False).masks.shape == (4, 4, 5)
    np.testing.assert_array_equal(fitted(large, Fit((2, 5)), ignore=255).masks[:], whole.masks[:][:, :2])
    assert len(large.sha256) == 64
    with pytest.raises(DataError, match=r"item 3: has 20 pixels of 3"):
        check_masks(large, 3, 255)


def run_of(tmp_path: Path, **settings) -> Run:
    from bnuq.config import Options, resolve_checkpoint

    (tmp_path / "model.pt").touch()
    return resolve_checkpoint(tmp_path / "model.pt", Options(settings), folder=tmp_path)


def test_a_run_reads_masks_of_evaluated_sets_in_their_geometry(tmp_path, reads):
    ref, masks = make(tmp_path, [(8, 10)] * 4)
    for at in range(3):
        save(tmp_path / f"odd/{at}.jpg.png", pixels(at, 12 + at, 9, 3))
        save(tmp_path / f"odd_gt/{at}.jpg_anomaly.png", pixels(at, 12 + at, 9, below=2))
    classes = tmp_path / "classes.txt"
    classes.write_text("a\nb\nc\nvoid\n")
    run = run_of(
        tmp_path, train=ref, test=ref, ood=("odd:odd_gt",), crop=(12, 10), ignore=11, palette="classes.txt",
        normalize=None,
    )  # fmt: skip
    assert (run.ignore, run.palette) == (11, classes)
    record = run.record()["data"]
    assert (record["ignore"], record["palette"]) == (11, str(classes))
    assert record["ood"] == [f"{tmp_path}/odd:{tmp_path}/odd_gt"]
    data = load_data(run)
    pipeline = Pipeline(PointSettings.of(run), torch.device("cpu"))
    found = data.test.masks[[2, 0]]
    assert found.dtype == np.int64
    np.testing.assert_array_equal(found[:, 2:10], np.stack([masks[2], masks[0]]))
    assert (found[:, :2] == 11).all()
    assert (found[:, 10:] == 11).all()
    assert data.test.classes == ("a", "b", "c", "void")
    assert data.ood["odd"].classes is None
    assert data.ood["odd"].masks[:].shape == (3, 12, 10)
    assert set(np.unique(data.ood["odd"].masks[:])) == {0, 1, 11}
    reads.clear()
    pipeline.trained(data.train, np.arange(3), draw=0, purpose=1)
    assert reads == []
    assert len(data.test.masks[[2, 0]]) == 2
    assert reads == []  # kept, as its pictures are
    data.test.masks[[1]]
    assert reads == ["1.png"]


def test_an_ood_set_with_masks_takes_the_size_of_the_test_set(tmp_path):
    ref, masks = make(tmp_path, [(8, 10), (6, 7)])
    points = fitted(load_points(ref, look=False), like=(3, 4, 5), adapt=True, ignore=9)
    assert points.masks.shape == (2, 4, 5)
    for row, mask in enumerate(masks):
        expected = Image.fromarray(mask).resize((5, 4), Image.Resampling.NEAREST)
        np.testing.assert_array_equal(points.masks[row], np.asarray(expected))


@pytest.mark.parametrize("value", ["void", 1.5, 2**31, -(2**31) - 1])
def test_ignore_is_a_whole_number(tmp_path, value):
    assert run_of(tmp_path, ignore=-1).ignore == -1
    with pytest.raises(RequestError, match=r"--ignore is .*; expected a whole number"):
        run_of(tmp_path, ignore=value)


def test_camvid(data_pack):
    """The share of pixels in each class of the full pictures, and what is void, by PIL."""
    camvid = data_pack / "camvid"
    points = load_points(f"{camvid}/test:testannot", palette=camvid / "classes.txt")
    assert (len(points), points.point_shape) == (60, (3, 192, 256))
    assert check_masks(points, 11, 11).classes[-1] == "bicyclist"
    for row in (0, 59):
        with Image.open(camvid / "testannot" / points.names[row]) as mask:
            np.testing.assert_array_equal(points.masks[row], np.asarray(mask))
    with pytest.raises(DataError, match=r"has 2,831 pixels of 11; 59 more of 60 masks"):
        check_masks(points, 11, 255)
