"""Pictures are resized, cropped and changed in colour as PIL and torchvision do it."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from bnuq.config import Augment, Jitter
from bnuq.data import fitted, load_points
from bnuq.data.pipeline import (
    check_ranges,
    jitter_of,
    jittered,
    with_brightness,
    with_contrast,
    with_hue,
    with_saturation,
)
from bnuq.data.resizing import WORDS, Fit, center_cropped, random_part, resized, resized_crop, with_channels
from bnuq.errors import RequestError
from bnuq.sampling import counter_rng

INTERPOLATIONS = ("bilinear", "bicubic", "nearest")


def picture(height: int, width: int, channels: int = 3, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (channels, height, width), dtype=np.uint8)


def as_pil(pixels: np.ndarray) -> Image.Image:
    return Image.fromarray(np.ascontiguousarray(np.moveaxis(pixels, 0, 2)))


@pytest.mark.parametrize("interpolation", INTERPOLATIONS)
def test_a_picture_is_resized_as_pil_resizes_it(interpolation):
    pixels = picture(37, 51)
    expected = as_pil(pixels).resize((20, 64), Image.Resampling[interpolation.upper()])
    np.testing.assert_array_equal(resized(pixels, (64, 20), interpolation), np.moveaxis(np.asarray(expected), 2, 0))
    for band in range(3):  # every channel alone, also where there are four of them
        grey = resized(pixels[band : band + 1], (64, 20), interpolation)
        np.testing.assert_array_equal(grey[0], np.asarray(expected)[..., band])
    assert resized(picture(8, 8, 4), (4, 4), interpolation).shape == (4, 4, 4)


def test_floats_are_resized_like_bytes_without_their_rounding():
    pixels = picture(40, 30)
    floats = resized((pixels / 255).astype(np.float64), (10, 12), "bilinear")
    assert floats.dtype == np.float64
    np.testing.assert_allclose(255 * floats, resized(pixels, (10, 12), "bilinear"), atol=1.01)


@pytest.mark.parametrize(
    ("size", "side", "expected"),
    [
        # torchvision.transforms.functional._compute_resized_output_size: int(side · long / short)
        ((480, 640), 256, (256, 341)),
        ((640, 480), 256, (341, 256)),
        ((375, 500), 256, (256, 341)),
        ((333, 500), 256, (256, 384)),
        ((100, 100), 7, (7, 7)),
    ],
)
def test_the_shorter_side_is_given_and_the_longer_is_rounded_down(size, side, expected):
    assert Fit(resize=side).size_of(*size) == expected
    assert Fit(resize=side)(picture(*size)).shape == (3, *expected)


@pytest.mark.parametrize(("size", "crop", "first"), [(5, 4, 0), (7, 4, 2), (9, 4, 2), (8, 4, 2), (11, 4, 4), (4, 4, 0)])
def test_the_centre_begins_at_the_rounded_half_of_the_rest(size, crop, first):
    """torchvision.transforms.functional.center_crop: int(round((size − crop) / 2)), halves to even."""
    rows = np.broadcast_to(np.arange(size, dtype=np.uint8)[:, None], (size, size))[None]
    assert center_cropped(rows, (crop, crop))[0, :, 0].tolist() == list(range(first, first + crop))
    assert center_cropped(rows.transpose(0, 2, 1), (crop, crop))[0, 0].tolist() == list(range(first, first + crop))


def test_a_smaller_picture_is_padded_with_black():
    np.testing.assert_array_equal(center_cropped(np.ones((1, 1, 2), np.uint8), (4, 2))[0, :, 0], [0, 1, 0, 0])


@pytest.mark.parametrize(
    ("fit", "padded"),
    [
        (Fit(crop=(8, 8)), True),
        (Fit(crop=(6, 6)), False),
        (Fit(crop=(8, 8), resize=8), False),
        (Fit(crop=(8, 8), resize=4), True),
    ],
)
@pytest.mark.parametrize("in_files", [True, False])
def test_padding_to_the_crop_is_noted(tmp_path, fit, padded, in_files):
    if in_files:
        for name in ("a", "b"):
            (tmp_path / name).mkdir()
            Image.fromarray(np.moveaxis(picture(6, 7), 0, 2)).save(tmp_path / name / "1.png")
        points = load_points(str(tmp_path))
    else:
        np.savez(tmp_path / "set.npz", x=np.stack([picture(6, 7)] * 4), y=np.zeros(4, np.int64))
        points = load_points(str(tmp_path / "set.npz"))
    found = [finding.values for finding in fitted(points, fit).findings if finding.code == "crop-pads"]
    assert bool(found) == padded
    if padded:
        assert found[0]["crop"] == "8 × 8"


def test_grey_is_repeated_and_the_luma_is_that_of_pil():
    grey = picture(6, 5, 1)
    np.testing.assert_array_equal(with_channels(grey, 3), np.repeat(grey, 3, 0))
    colour = picture(60, 50)
    np.testing.assert_array_equal(with_channels(colour, 1)[0], np.asarray(as_pil(colour).convert("L")))
    np.testing.assert_allclose(255 * with_channels(colour / 255, 1), with_channels(colour, 1), atol=0.51)


def words_of(seed: int, count: int = WORDS) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 2**64, count, dtype=np.uint64)


@given(st.integers(1, 90), st.integers(1, 90), st.integers(0, 2**31))
def test_a_random_part_lies_in_the_picture_and_has_its_share_and_ratio(height, width, seed):
    top, left, h, w = random_part(height, width, Augment(resized_crop=8), words_of(seed))
    assert 0 <= top <= height - h
    assert 0 <= left <= width - w
    assert min(h, w) >= 1
    if min(height, width) > 40 and 0.75 <= width / height <= 4 / 3:  # what is rounded matters little
        assert 0.07 < h * w / (height * width) <= 1
        assert 0.7 < w / h < 1.43


def test_where_no_part_fits_it_is_the_centre_of_the_nearest_ratio():
    """torchvision.transforms.RandomResizedCrop.get_params, its last lines."""
    whole = Augment(resized_crop=8, scale=(1.0, 1.0))
    assert random_part(100, 10, whole, words_of(0)) == (43, 0, 13, 10)
    assert random_part(10, 100, whole, words_of(0)) == (0, 43, 10, 13)


def test_parts_are_spread_over_the_picture_and_shares_are_uniform():
    parts = np.array([random_part(200, 200, Augment(resized_crop=8), words_of(seed)) for seed in range(600)])
    share = parts[:, 2] * parts[:, 3] / 40_000
    assert 0.4 < np.mean(share < 0.5) < 0.57  # (0.5 − 0.08) / 0.92 = 0.46, and a little more as large ones fit less
    rest = 200 - parts[:, 2]
    assert abs(np.mean((parts[:, 0] / np.maximum(rest, 1))[rest > 20]) - 0.5) < 0.06
    assert abs(np.mean(np.log(parts[:, 3] / parts[:, 2]))) < 0.03


def test_streams_of_words_are_prefixes_and_differ_from_each_other():
    for words in (lambda b: counter_rng.part_words(1, 2, b, WORDS), lambda b: counter_rng.jitter_words(1, 2, b)):
        np.testing.assert_array_equal(words(3), words(7)[:3])
    for made in (
        counter_rng.augmentation_words,
        counter_rng.jitter_words,
        lambda seed, draw, rows, first: counter_rng.part_words(seed, draw, rows, WORDS, first=first),
    ):
        for first in (1, 3, 6):
            np.testing.assert_array_equal(made(1, 2, 2, first=first), made(1, 2, 9, first=0)[first : first + 2])
    streams = [
        counter_rng.augmentation_words(1, 2, 30).ravel(),
        counter_rng.part_words(1, 2, 30, 3).ravel(),
        counter_rng.jitter_words(1, 2, 18).ravel(),
    ]
    assert len(np.unique(np.concatenate(streams))) == 270


pictures = np.random.default_rng(3).random((6, 3, 9, 7)).astype(np.float32)
FULL = Jitter(brightness=0.4, contrast=0.4, saturation=0.4, hue=0.1)


def test_jitter_of_nothing_leaves_the_pixels_and_a_row_depends_on_its_own_words_alone():
    words = counter_rng.jitter_words(0, 0, 6)
    np.testing.assert_array_equal(jittered(pictures, Jitter(), words), pictures)
    changed = jittered(pictures, FULL, words)
    assert changed.dtype == np.float32
    assert 0 <= changed.min() < changed.max() <= 1
    np.testing.assert_array_equal(jittered(pictures[2:4], FULL, words[2:4]), changed[2:4])
    assert np.abs(changed - pictures).max(axis=(1, 2, 3)).min() > 0.01


def test_colours_change_as_their_names_say():
    p = pictures[0]
    np.testing.assert_allclose(with_brightness(p, 0.5), p / 2, rtol=1e-6)
    assert np.ptp(with_contrast(p, 0)) < 1e-6
    np.testing.assert_allclose(np.ptp(with_saturation(p, 0), axis=0), 0, atol=1e-6)
    np.testing.assert_allclose(with_hue(p, 1 / 3), p[[2, 0, 1]], atol=1e-5)  # red becomes green
    np.testing.assert_allclose(with_hue(with_hue(p, 0.2), -0.2), p, atol=1e-5)
    grey = p[:1]
    np.testing.assert_array_equal(with_hue(grey, 0.3), grey)
    np.testing.assert_allclose(with_saturation(grey, 1.7), grey, atol=1e-6)


def test_factors_stay_within_their_ranges():
    half = np.full((200, 1, 1, 1), 0.25)
    factors = jittered(half, Jitter(brightness=0.4), counter_rng.jitter_words(0, 0, 200)).ravel() / 0.25
    assert 0.6 <= factors.min() < 0.63
    assert 1.37 < factors.max() <= 1.4


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda: jittered(pictures * 3, FULL, words_of(0, 30).reshape(6, 5)), "needs pixels from 0 to 1"),
        (lambda: jittered(np.zeros((2, 5)), FULL, words_of(0, 10).reshape(2, 5)), "needs grey or RGB images"),
        (lambda: jitter_of(Augment(jitter=(0.1, 0.1, 0.1, 0.6))), "expected a hue, the last, of at most 0.5"),
        (lambda: check_ranges(Augment(scale=(0.5, 0.1))), "data.augment.scale is [0.5, 0.1]"),
        (lambda: check_ranges(Augment(ratio=(0.0, 1.0))), "data.augment.ratio is [0.0, 1.0]"),
    ],
)
def test_impossible_changes_name_their_key(act, message):
    with pytest.raises(RequestError) as error:
        act()
    assert message in str(error.value)


def test_torchvision_gives_the_same():
    try:
        import torch
        from torchvision import transforms
        from torchvision.transforms import functional
    except (ImportError, RuntimeError) as error:  # RuntimeError: made for another torch
        pytest.skip(f"torchvision cannot be imported: {error}")
    for height, width, side, crop in np.random.default_rng(0).integers(5, 60, (12, 4)).tolist():
        pixels = picture(height, width)
        for name in INTERPOLATIONS:
            mode = transforms.InterpolationMode[name.upper()]
            both = transforms.Compose([transforms.Resize(side, mode), transforms.CenterCrop(crop)])
            found = Fit(resize=side, crop=(crop, crop), interpolation=name)(pixels)
            np.testing.assert_array_equal(found, np.moveaxis(np.asarray(both(as_pil(pixels))), 2, 0))
        augment, words = Augment(resized_crop=16), words_of(side)
        part = functional.resized_crop(as_pil(pixels), *random_part(height, width, augment, words), [16, 16])
        np.testing.assert_array_equal(
            resized_crop(pixels, augment, words, "bilinear"), np.moveaxis(np.asarray(part), 2, 0)
        )
        floats = (pixels / 255).astype(np.float32)
        for change, same, factor in (
            (functional.adjust_brightness, with_brightness, 1.3),
            (functional.adjust_contrast, with_contrast, 0.6),
            (functional.adjust_saturation, with_saturation, 1.7),
            (functional.adjust_hue, with_hue, -0.23),
        ):
            expected = change(torch.from_numpy(floats), factor).numpy()
            np.testing.assert_allclose(same(floats, factor), expected, atol=2e-6)
