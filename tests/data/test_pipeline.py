"""Padding comes before normalisation, and a row depends on its own picture and random words alone."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bnuq.config import Augment, Normalize
from bnuq.data import augmented, normalized
from bnuq.errors import RequestError


def drawn(seed: int, b: int, shape: tuple[int, ...] = (3, 8, 6)) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.random((b, *shape), dtype=np.float32), rng.integers(0, 2**64, (b, 3), dtype=np.uint64)


def one_by_one(raw, augment, words):
    """The same with a loop over pictures and Python integers."""
    out = []
    for picture, (up, across, flip) in zip(raw, words, strict=True):
        p = augment.pad
        height, width = picture.shape[1:]
        rows, columns = np.arange(-p, height + p), np.arange(-p, width + p)
        if augment.pad_mode == "reflect":
            rows = np.where(rows < 0, -rows, np.where(rows >= height, 2 * height - 2 - rows, rows))
            columns = np.where(columns < 0, -columns, np.where(columns >= width, 2 * width - 2 - columns, columns))
            padded = picture[:, rows][:, :, columns]
        else:
            padded = np.full((len(picture), height + 2 * p, width + 2 * p), augment.pad_value, picture.dtype)
            padded[:, p : p + height, p : p + width] = picture
        h, w = (augment.crop, augment.crop) if augment.crop else (height, width)
        top, left = int(up) % (padded.shape[1] - h + 1), int(across) % (padded.shape[2] - w + 1)
        cut = padded[:, top : top + h, left : left + w]
        out.append(cut[:, :, ::-1] if augment.flip and int(flip) >> 63 else cut)
    return np.stack(out)


augments = st.builds(
    Augment, pad=st.integers(0, 5), crop=st.none() | st.integers(1, 6), flip=st.booleans(),
    pad_value=st.sampled_from([0.0, 0.5]), pad_mode=st.sampled_from(["constant", "reflect"]),
)  # fmt: skip


@given(augments, st.integers(0, 2**31), st.integers(1, 5))
def test_augmentation_is_that_of_a_loop_over_pictures(augment, seed, b):
    raw, words = drawn(seed, b)
    actual = augmented(raw, augment, words)
    assert actual.dtype == raw.dtype
    np.testing.assert_array_equal(actual, one_by_one(raw, augment, words))


@given(augments, st.integers(0, 2**31), st.integers(1, 6))
def test_the_first_rows_alone_give_the_same_rows(augment, seed, k):
    raw, words = drawn(seed, 6)
    np.testing.assert_array_equal(augmented(raw[:k], augment, words[:k]), augmented(raw, augment, words)[:k])


def test_no_augmentation_leaves_the_pixels():
    raw, words = drawn(0, 4)
    np.testing.assert_array_equal(augmented(raw, Augment(), words), raw)


def test_padding_is_of_raw_pixels_and_so_differs_from_padding_the_normalised_ones():
    raw, words = drawn(0, 4)
    words[:, :2] = 0  # the upper left corner: all padding
    affine = Normalize(mean=(0.4, 0.5, 0.6), std=(0.2, 0.2, 0.3))
    augment = Augment(pad=4, flip=True)
    through_pipeline = normalized(augmented(raw, augment, words), affine)
    np.testing.assert_allclose(through_pipeline[:, :, 0, 0], [[-2.0, -2.5, -2.0]] * 4, rtol=1e-6)  # black, normalised
    assert np.all(augmented(normalized(raw, affine), augment, words)[:, :, 0, 0] == 0)  # grey: the mistake


def test_normalisation_is_per_channel_and_keeps_the_dtype():
    raw, _ = drawn(0, 2)
    affine = Normalize(mean=(0.1, 0.2, 0.3), std=(1.0, 2.0, 4.0))
    np.testing.assert_allclose(normalized(raw, affine)[:, 2], (raw[:, 2] - 0.3) / 4, rtol=1e-6)
    assert normalized(raw, affine).dtype == np.float32
    assert normalized(raw.astype(np.float64), affine).dtype == np.float64
    assert normalized(raw, None) is raw
    rows = np.arange(6.0).reshape(2, 3)
    np.testing.assert_allclose(normalized(rows, Normalize(mean=(1.0,), std=(2.0,))), (rows - 1) / 2)


@pytest.mark.parametrize(
    ("augment", "message"),
    [
        (Augment(pad=1, crop=9), "data.augment.crop is 9; expected 1 to 8"),
        (Augment(crop=0), "data.augment.crop is 0"),
        (Augment(pad=-1), "data.augment.pad is -1"),
        (Augment(pad=6, pad_mode="reflect"), 'data.augment.pad is 6; with pad_mode = "reflect" expected less'),
    ],
)
def test_an_impossible_augmentation_names_its_key(augment, message):
    raw, words = drawn(0, 2)
    with pytest.raises(RequestError) as error:
        augmented(raw, augment, words)
    assert message in str(error.value)


def test_rows_of_features_are_not_augmented():
    with pytest.raises(RequestError, match=r"data\.augment needs images"):
        augmented(np.zeros((2, 5)), Augment(flip=True), np.zeros((2, 3), np.uint64))


@pytest.mark.parametrize(
    ("mean", "std", "message"),
    [
        ((0.1, 0.2), (1.0,), "data.normalize.mean has 2 numbers, and the examples have 3 channels"),
        ((0.1,), (1.0,) * 4, "data.normalize.std has 4 numbers"),
        ((0.1,), (0.0,), "data.normalize.std is [0.0]; expected positive numbers"),
        ((0.1,), (-1.0,), "data.normalize.std is [-1.0]"),
        ((float("nan"),), (1.0,), "data.normalize.mean is [nan]"),
    ],
)
def test_an_impossible_normalisation_names_its_key(mean, std, message):
    raw, _ = drawn(0, 2)
    with pytest.raises(RequestError) as error:
        normalized(raw, Normalize(mean=mean, std=std))
    assert message in str(error.value)


def test_a_deviation_too_small_for_the_numbers_gives_infinities_without_a_warning():
    assert np.isinf(normalized(np.ones((2, 1, 2, 2), np.float32), Normalize((0.0,), (1e-42,)))).all()
