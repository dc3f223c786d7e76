"""Which array, or column, tells the groups: `group`, or the one that is named."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest
from findings_of import values_of
from making_points import save_mat, save_parquet

from bnuq.data import load_points
from bnuq.errors import DataError

PHOTO = np.array([3, 3, 10, 1])
X, Y = np.arange(12.0).reshape(4, 3), np.array([0, 1, 0, 1])


def write(path: Path, photo: np.ndarray = PHOTO) -> str:
    """Four points, and their photo, in the format of the suffix."""
    arrays = {"x": X, "y": Y, "photo": photo, "group": np.arange(4)}
    if path.suffix == ".npz":
        np.savez(path, **arrays)
    elif path.suffix == ".h5":
        with h5py.File(path, "w") as file:
            for name, values in arrays.items():
                file[name] = values.astype(h5py.string_dtype()) if values.dtype.kind == "U" else values
    elif path.suffix == ".mat":
        save_mat(path, **arrays)
    elif path.suffix == ".csv":
        rows = (",".join(map(str, (*x, p, y))) for x, p, y in zip(X, photo, Y, strict=True))
        path.write_text("\n".join(["a,b,c,photo,y", *rows]) + "\n")
    else:
        save_parquet(path, {"a": X[:, 0], "photo": photo, "b": X[:, 1], "c": X[:, 2], "y": Y})
    return str(path)


FORMATS = pytest.mark.parametrize("suffix", ["npz", "h5", "mat", "csv", "parquet"])


@FORMATS
def test_the_array_or_column_that_is_named_tells_the_groups(tmp_path, suffix):
    points = load_points(write(tmp_path / f"set.{suffix}"), group="photo")
    assert points.group is not None
    assert points.group.tolist() == [1, 1, 2, 0]
    assert points.group_names == ("1", "3", "10")
    np.testing.assert_array_equal(points.raw(slice(None)), X)
    assert points.targets is not None and points.targets.ravel().tolist() == Y.tolist()


@pytest.mark.parametrize("suffix", ["npz", "h5", "csv", "parquet"])
def test_groups_may_have_words_for_names(tmp_path, suffix):
    labs = np.array(["Uppsala", "Göttingen", "Uppsala", "Bern"])
    points = load_points(write(tmp_path / f"set.{suffix}", labs), group="photo")
    assert points.group is not None
    assert points.group_names == ("Bern", "Göttingen", "Uppsala")
    assert [points.group_names[code] for code in points.group] == labs.tolist()
    assert points.subset([1, 3]).group_names == points.group_names


@pytest.mark.parametrize("suffix", ["npz", "h5", "mat"])
def test_unless_one_is_named_it_is_the_array_called_group(tmp_path, suffix):
    path = write(tmp_path / f"set.{suffix}")
    usual, other = load_points(path), load_points(path, group="camera")
    assert usual.group is not None and usual.group.tolist() == [0, 1, 2, 3]
    assert other.group is None and other.group_names == ()
    assert "group" in values_of(other, "arrays-unused")["names"]


def test_a_column_that_is_not_named_is_a_feature_like_others(tmp_path):
    assert load_points(write(tmp_path / "set.csv")).point_shape == (4,)
    with pytest.raises(DataError, match=r"column 'photo' holds words, first 'a', in lines 2, 3, .*--group COLUMN"):
        load_points(write(tmp_path / "words.csv", np.array(["a", "b", "c", "d"])))


def test_a_row_without_its_group_is_refused(tmp_path):
    (tmp_path / "set.csv").write_text("a,photo,y\n1,3,0\n2,,1\n")
    with pytest.raises(DataError, match=r"no value in line 3"):
        load_points(str(tmp_path / "set.csv"), group="photo")
    save_parquet(tmp_path / "set.parquet", {"a": [1.0, 2.0], "photo": ["x", None], "y": [0, 1]})
    with pytest.raises(DataError, match=r"row 1 \(counted from 0\) has no photo"):
        load_points(str(tmp_path / "set.parquet"), group="photo")


@pytest.mark.parametrize(
    ("photo", "names"),
    [
        (["1", "01", "1", "1.0"], ("01", "1", "1.0")),
        (["nan", "NaN", "nan", "2"], ("2", "NaN", "nan")),
        ([str(2**53), str(2**53 + 1), "3", "20"], ("3", "20", str(2**53), str(2**53 + 1))),
        ([str(2**64), str(2**64 + 1), "3", "20"], (str(2**64), str(2**64 + 1), "20", "3")),  # words, in their order
    ],
)
@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_groups_that_are_written_otherwise_stay_apart(tmp_path, suffix, photo, names):
    points = load_points(write(tmp_path / f"set.{suffix}", np.array(photo)), group="photo")
    assert points.group is not None
    assert [points.group_names[code] for code in points.group] == photo
    assert sorted(points.group_names) == sorted(names)
    if suffix == "csv":
        assert points.group_names == names


@pytest.mark.parametrize(
    "photo",
    [
        np.array([2**53, 2**53 + 1, 2**53, 7]),
        np.array([2**64 - 1, 2**64 - 2, 1, 2**64 - 1], dtype=np.uint64),
        np.array([-1, 3, -1, 127], dtype=np.int8),
        np.array([0.5, 0.25, 0.5, 3.5]),
    ],
)
def test_numbers_of_a_parquet_column_are_groups_as_they_are(tmp_path, photo):
    points = load_points(write(tmp_path / "set.parquet", photo), group="photo")
    assert points.group is not None
    assert points.group_names == tuple(str(value) for value in sorted(set(photo.tolist())))
    assert [points.group_names[code] for code in points.group] == [str(value) for value in photo.tolist()]


def test_a_number_that_is_none_is_no_group(tmp_path):
    path = write(tmp_path / "set.parquet", np.array([0.5, np.nan, 0.5, 3.5]))
    with pytest.raises(DataError, match=r"row 1 \(counted from 0\) has no photo"):
        load_points(path, group="photo")


def test_the_groups_of_the_published_cells_are_their_photos(data_pack):
    """pcbdigits32.npz calls them photo."""
    points = load_points(str(data_pack / "ood" / "pcbdigits32.npz"), group="photo")
    assert points.group is not None and len(points.group_names) == len(np.unique(points.group)) > 1
