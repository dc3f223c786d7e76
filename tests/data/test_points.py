"""Points are in one layout whatever they came in, and what cannot be scored is refused at once."""

import numpy as np
import pytest
from findings_of import noted, values_of

from bnuq.data import check_labels, check_targets, points_of
from bnuq.data.points import Contents
from bnuq.errors import DataError


def points(x, y=None, group=None):
    return points_of(Contents(np.asarray(x), None if y is None else np.asarray(y), group), name="s", reference="s.npz")


def refusal(call, *args) -> str:
    with pytest.raises(DataError) as error:
        call(*args)
    return str(error.value)


@pytest.mark.parametrize(
    ("shape", "point", "code"),
    [
        ((5,), (1,), "no-feature-axis"),
        ((5, 7), (7,), None),
        ((5, 28, 28), (28, 28), "floats-without-channel-axis"),
        ((5, 8, 9, 3), (3, 8, 9), "channel-last"),
        ((5, 8, 8, 1), (1, 8, 8), "channel-last"),
        ((5, 3, 8, 9), (3, 8, 9), None),
        ((5, 4, 4, 4), (4, 4, 4), "ambiguous-layout"),
        ((5, 1, 1, 3), (3, 1, 1), "ambiguous-layout"),
        ((5, 3, 8, 3), (3, 8, 3), "ambiguous-layout"),
        ((5, 16, 8, 8), (16, 8, 8), "no-axis-like-channels"),
    ],
)
def test_channels_come_first_and_how_they_were_found_is_said(shape, point, code):
    actual = points(np.zeros(shape, np.float32))
    assert actual.point_shape == point
    assert len(actual) == 5
    assert noted(actual) == ([code] if code else [])


def test_bytes_without_a_channel_axis_are_pictures_of_one_channel():
    actual = points(np.zeros((5, 28, 28), np.uint8))
    assert actual.point_shape == (1, 28, 28)
    assert noted(actual) == ["no-channel-axis"]


def test_the_pixels_are_the_same_in_either_layout_and_so_is_the_hash():
    x = np.random.default_rng(0).integers(0, 256, (6, 5, 4, 3), dtype=np.uint8)
    last, first = points(x, range(6)), points(np.ascontiguousarray(np.moveaxis(x, 3, 1)), range(6))
    np.testing.assert_array_equal(last.raw([4, 1]), first.raw([4, 1]))
    assert last.sha256 == first.sha256
    assert last.sha256 != points(x, range(1, 7)).sha256
    assert last.sha256 != last.subset([0, 1]).sha256 == first.subset(np.array([0, 1])).sha256
    assert last.sha256 != points(x[::-1], range(6)).sha256


def test_uint8_is_scaled_and_float_is_taken_as_it_is():
    x = np.array([[0, 51, 255]], np.uint8)
    np.testing.assert_allclose(points(x).raw([0]), [[0, 0.2, 1]], rtol=1e-6)
    assert points(x).raw([0]).dtype == np.float32
    for dtype, stored in [("f2", "f4"), ("f4", "f4"), (">f4", "f4"), ("f8", "f8"), (">f8", "f8"), ("?", "f4")]:
        actual = points(np.array([[0, 1, 1]]).astype(dtype)).raw([0])
        assert actual.dtype == stored
        np.testing.assert_array_equal(actual, [[0, 1, 1]])


def test_other_whole_numbers_are_features_but_no_pictures():
    actual = points(np.array([[1, 300]], np.int64))
    assert values_of(actual, "inputs-as-they-are") == {"dtype": "int64"}
    np.testing.assert_array_equal(actual.raw([0]), [[1, 300]])
    message = refusal(points, np.full((2, 4, 4, 3), 255, np.int64))
    assert "x holds int64 images of values from 255 to 255; expected uint8" in message


def test_what_is_no_set_of_numbers_is_refused():
    assert "holds no examples (x has shape (0, 3))" in refusal(points, np.zeros((0, 3)))
    assert "holds no examples" in refusal(points, np.float64(3))
    assert "x holds <U1 values" in refusal(points, np.array([["a"]]))
    assert "x holds complex128 values" in refusal(points, np.zeros((2, 3), complex))
    message = refusal(points, np.zeros((2, 3)), np.array([["cat"], ["dog"]]))
    assert "y holds texts or objects in an array of shape (2, 1); expected whole numbers from 0 or the name" in message
    assert "row 1 (counted from 0) has no label" in refusal(points, np.zeros((2, 3)), np.array(["cat", " "]))


@pytest.mark.parametrize("dtype", ["U3", "S3", object])
def test_words_are_classes_in_sorted_order(dtype):
    actual = points(np.zeros((3, 2)), np.array(["dog", "cat", "dog"], dtype))
    assert actual.targets.tolist() == [1, 0, 1]
    assert (actual.classes, actual.classes_sorted) == (("cat", "dog"), True)
    assert points(np.zeros((2, 2)), np.array(["7", "3"], dtype)).targets.tolist() == [7, 3]
    named = points_of(
        Contents(np.zeros((2, 2)), np.array(["a", "b"], dtype), classes=("b", "a")), name="s", reference="s"
    )
    assert (named.targets.tolist(), named.classes, named.classes_sorted) == ([1, 0], ("b", "a"), False)


def test_one_row_is_a_set():
    assert len(points(np.zeros((1, 3)), [0])) == 1


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_numbers_that_are_not_finite_are_refused_with_their_row(bad):
    x = np.zeros((9, 3, 2, 2), np.float32)
    x[6, 1, 0, 1] = bad
    assert refusal(points, x).startswith("s.npz: x holds NaN or infinity, first in row 6")
    assert "y holds NaN or infinity, first in row 1" in refusal(points, np.zeros((2, 3)), [0.5, bad])


def test_targets_take_one_form():
    x = np.zeros((4, 2))
    for y, dtype, shape in [
        (np.array([0, 1, 2, 3], np.uint8), np.int64, (4,)),
        (np.array([[0], [1], [2], [3]]), np.int64, (4,)),
        (np.array([0.0, 1, 2, 3]), np.int64, (4,)),
        (np.array([0.5, 1, 2, 3]), np.float64, (4, 1)),
        (np.array([[0.0], [1], [2], [3]], np.float32), np.float64, (4, 1)),
        (np.zeros((4, 3)), np.float64, (4, 3)),
        (np.zeros((4, 5, 5), np.uint8), np.int64, (4, 5, 5)),
        (np.zeros((4, 5, 5, 1), np.uint8), np.int64, (4, 5, 5)),
    ]:
        actual = points(x, y).targets
        assert actual is not None
        assert (actual.dtype, actual.shape) == (dtype, shape)
    assert "x has 4 examples and y has 3." in refusal(points, x, [0, 1, 2])
    assert "expected labels" in refusal(points, x, np.zeros((4, 2, 2, 2)))


def test_groups_become_codes():
    actual = points(np.zeros((4, 2)), group=np.array(["b", "a", "b", "c"])).group
    assert actual is not None
    assert actual.tolist() == [1, 0, 1, 2]
    assert "group has shape (3,)" in refusal(points, np.zeros((4, 2)), None, np.arange(3))


@pytest.mark.parametrize("group", [[0.5, np.nan], ["a", ""], [b"a", b" "]])
def test_a_point_without_its_group_is_refused_with_its_row(group):
    assert "row 1 (counted from 0) has no group" in refusal(points, np.zeros((2, 2)), None, np.array(group))


def test_targets_whose_squares_are_infinite_are_refused():
    large = points(np.zeros((2, 3)), [0.5, 1e200])
    assert "go up to 1e+200, whose square float64 does not hold" in refusal(check_targets, large, 1)


def test_a_subset_keeps_rows_together():
    actual = points(np.arange(8.0).reshape(4, 2), [3, 2, 1, 0], np.arange(4)).subset([2, 0])
    assert actual.raw(slice(None)).tolist() == [[4, 5], [0, 1]]
    assert actual.targets is not None
    assert actual.targets.tolist() == [1, 3]
    assert len(actual) == 2


def test_labels_are_checked_against_the_classes():
    x = np.zeros((3, 2))
    actual = check_labels(points(x, [[0.0], [1.0], [2.0]]), 3).targets
    assert actual is not None
    assert (actual.dtype, actual.tolist()) == (np.int64, [0, 1, 2])
    one_based = refusal(check_labels, points(x, [1, 2, 3]), 3)
    assert "run from 1 to 3; expected 0 to 2 for 3 classes. They look one-based: subtract 1." in one_based
    assert "They look one-based: subtract 1." in refusal(check_labels, points(x, [2, 3, 3]), 3)
    assert "mark examples without a label: leave these out." in refusal(check_labels, points(x, [0, -100, 2]), 3)
    assert "run from 0 to 7" in refusal(check_labels, points(x, [0, 7, 1]), 3)
    assert "run from -1 to 1" in refusal(check_labels, points(x, [0, -1, 1]), 3)
    assert "are missing" in refusal(check_labels, points(x), 3)
    assert "Is this a regression set?" in refusal(check_labels, points(x, [0.5, 1, 2]), 3)
    masks = points(np.zeros((1, 1, 2, 2)), np.array([[[0, 1], [2, 1]]]))
    assert "have shape (1, 2, 2); expected a whole number from 0 to 2 per example" in refusal(check_labels, masks, 3)


def test_one_hot_rows_are_labels_where_their_width_is_the_number_of_classes():
    actual = check_labels(points(np.zeros((3, 2)), np.eye(3)), 3)
    assert actual.targets is not None
    assert actual.targets.tolist() == [0, 1, 2]
    assert noted(actual)[-1] == "one-hot-targets"
    assert "one-hot rows of 4" in refusal(check_labels, points(np.zeros((3, 2)), np.eye(3)), 4)
