"""Every format gives the same points, and no damaged or hostile file gives any, or runs anything."""

import gzip
import os
import pickle
import re
import shutil
import zipfile
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from findings_of import noted, values_of
from hostile_pickles import Evil
from making_points import idx, png, save_mat, save_parquet
from numpy.lib import format as npy_format
from PIL import Image

from bnuq.catalogue import text_of
from bnuq.data import check_labels, load_points
from bnuq.data.readers.columns import read_columns
from bnuq.errors import DataError
from bnuq.files import limits

PICTURES = ("npz", "npy", "h5", "mat", "mat73", "zip", "folder")
FILES = ("npz", "npy", "h5", "mat", "mat73", "csv", "parquet", "zip", "idx", "idx.gz")


def refusal(reference, **options) -> str:
    with pytest.raises(DataError) as error:
        load_points(str(reference), **{"name": "s", **options})
    return str(error.value)


@pytest.mark.parametrize("form", PICTURES)
def test_the_pictures_are_the_same_in_every_format(every_format, pictures, form):
    x, y = pictures
    points = load_points(str(every_format[form]))
    assert points.point_shape == (3, 8, 8)
    np.testing.assert_allclose(points.raw(slice(None)), np.moveaxis(x, 3, 1) / np.float32(255), rtol=1e-6)
    np.testing.assert_array_equal(points.raw([7, 3]), points.raw(slice(None))[[7, 3]])
    if form == "npy":
        assert points.targets is None
    else:
        assert points.targets is not None
        assert points.targets.tolist() == y.tolist()


def test_the_hash_does_not_depend_on_the_container(every_format):
    assert len({load_points(str(every_format[form])).sha256 for form in ("npz", "h5", "mat", "mat73")}) == 1
    assert load_points(str(every_format["zip"])).sha256 == load_points(str(every_format["folder"])).sha256


@pytest.mark.parametrize("form", ["idx", "idx.gz"])
def test_idx_files_find_their_labels(every_format, pictures, form):
    points = load_points(str(every_format[form]), name="digits")
    assert points.point_shape == (1, 8, 8)
    np.testing.assert_allclose(points.raw([3])[0, 0], pictures[0][3, ..., 0] / 255, rtol=1e-6)
    assert points.targets is not None
    assert points.targets.tolist() == pictures[1].tolist()


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_the_last_column_of_a_table_is_the_target(every_format, form):
    points = load_points(str(every_format[form]))
    table = np.random.default_rng(1).standard_normal((20, 4))
    np.testing.assert_allclose(points.raw(slice(None)), table[:, :3])
    assert points.targets is not None
    np.testing.assert_allclose(points.targets, table[:, 3:])
    assert values_of(points, "target-column") == {"column": "price", "last": True}


@pytest.mark.parametrize("form", FILES)
@pytest.mark.parametrize("share", [0, 10, 100, 0.5, -30])
def test_a_file_that_was_cut_short_is_refused(every_format, form, share):
    path = every_format[form]
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * share) if isinstance(share, float) else share])
    if form == "csv" and share != 0:
        # A table that ends early is a shorter table where the cut leaves a number in every column.
        path.write_text(path.read_text().rpartition(",")[0])
    message = refusal(path)
    assert str(path) in message
    assert "Traceback" not in message


@pytest.mark.parametrize("form", FILES)
def test_a_git_lfs_pointer_is_told_from_the_file(every_format, form):
    path = every_format[form]
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n")
    assert f"{path}: is a git-lfs pointer" in refusal(path)


@pytest.mark.parametrize("form", ["npz", "npy", "h5", "mat", "csv", "parquet", "zip"])
def test_the_format_is_told_by_the_content(every_format, form):
    path = every_format[form].with_suffix(".dat")
    shutil.copy(every_format[form], path)
    assert len(load_points(str(path))) == 20


@pytest.mark.parametrize("form", ["npz", "zip", "idx.gz"])
def test_a_flipped_bit_is_noticed_where_the_format_has_a_checksum(every_format, form):
    path = every_format[form]
    data = bytearray(path.read_bytes())
    data[len(data) // 3] ^= 0x10
    path.write_bytes(data)
    with pytest.raises(DataError):
        load_points(str(path), name="s").raw(slice(None))


def test_object_arrays_are_refused_and_nothing_is_unpickled(tmp_path):
    evil = np.array([Evil(tmp_path / "ran")] * 3, dtype=object)
    np.save(tmp_path / "evil.npy", evil)
    np.savez(tmp_path / "evil.npz", x=evil)
    save_mat(tmp_path / "evil.mat", x=np.array([[1], "a"], dtype=object))
    assert "holds Python objects, which bnuq does not unpickle" in refusal(tmp_path / "evil.npy")
    assert "x: holds Python objects" in refusal(tmp_path / "evil.npz")
    assert "x holds a MATLAB cell" in refusal(tmp_path / "evil.mat")
    assert not (tmp_path / "ran").exists()


def test_a_pickle_is_no_set_of_points(tmp_path):
    (tmp_path / "evil.npz").write_bytes(pickle.dumps(Evil(tmp_path / "ran")))
    assert "a pickle, which is never unpickled here" in refusal(tmp_path / "evil.npz")
    assert not (tmp_path / "ran").exists()


def test_a_header_that_lies_is_not_believed(tmp_path):
    with (tmp_path / "lie.npy").open("wb") as file:
        npy_format.write_array_header_1_0(file, {"descr": "<f8", "fortran_order": False, "shape": (10**6, 10**6)})
        file.write(bytes(800))
    assert "declares 8000000000000 bytes and 800 follow" in refusal(tmp_path / "lie.npy")
    with zipfile.ZipFile(tmp_path / "lie.npz", "w") as archive:
        archive.write(tmp_path / "lie.npy", "x.npy")
    assert "declares 8000000000000 bytes and 800 follow" in refusal(tmp_path / "lie.npz")
    lie = bytes([0, 0, 8, 3]) + np.array([10**6, 10**3, 10**3], ">u4").tobytes() + bytes(100)
    (tmp_path / "lie-idx3").write_bytes(lie)
    (tmp_path / "lie-idx3.gz").write_bytes(gzip.compress(lie))
    for name in ("lie-idx3", "lie-idx3.gz"):
        assert "declares 1e+12 bytes of data" in refusal(tmp_path / name)
    with h5py.File(tmp_path / "lie.h5", "w") as file:
        file.create_dataset("x", (10**6, 10**6), "f8", chunks=(100, 100))
    assert "declares 8e+12 bytes" in refusal(tmp_path / "lie.h5")


def test_hostile_hdf5_is_refused_as_data_too(tmp_path):
    np.save(tmp_path / "secret.npy", np.zeros(3))
    for name in ("evil.h5", "evil.mat"):
        with h5py.File(tmp_path / name, "w") as file:
            file["x"] = h5py.ExternalLink("/etc/other.h5", "/x")
        assert "a link to another file" in refusal(tmp_path / name)


def test_arrays_have_their_usual_names_and_others_are_said(tmp_path):
    for x, y in [("x", "y"), ("X", "y"), ("images", "labels"), ("data", "target"), ("x", "labels")]:
        np.savez(tmp_path / "p.npz", **{x: np.zeros((3, 2)), y: np.arange(3), "photo": np.arange(3)})
        points = load_points(str(tmp_path / "p.npz"))
        assert points.targets is not None
        assert values_of(points, "arrays-unused") == {"names": ["photo"]}
    np.savez(tmp_path / "p.npz", arr_0=np.zeros((3, 2)), z=np.zeros(3))
    assert "has no array called x (or X, images, data); it has 'arr_0', 'z'." in refusal(tmp_path / "p.npz")
    np.savez(tmp_path / "p.npz", x=np.zeros((3, 2)), group=np.array(["a", "a", "b"]))
    group = load_points(str(tmp_path / "p.npz")).group
    assert group is not None
    assert group.tolist() == [0, 0, 1]


def test_fortran_order_and_every_version_of_npy_are_read(tmp_path):
    x = np.asfortranarray(np.arange(6.0).reshape(3, 2))
    for version in [(1, 0), (2, 0)]:
        with (tmp_path / "p.npy").open("wb") as file:
            npy_format.write_array(file, x, version=version)
        np.testing.assert_array_equal(load_points(str(tmp_path / "p.npy")).raw(slice(None)), x)


def test_svhn_calls_the_digit_0_by_label_10(tmp_path):
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 256, (32, 32, 3, 12), dtype=np.uint8), np.array([10, *range(1, 10), 10, 1])
    save_mat(tmp_path / "test_32x32.mat", X=x, y=y[:, None].astype(np.uint8))
    points = load_points(str(tmp_path / "test_32x32.mat"))
    assert points.targets is not None
    assert points.targets.tolist() == [0, *range(1, 10), 0, 1]
    np.testing.assert_allclose(points.raw([5])[0], x[..., 5].transpose(2, 0, 1) / 255, rtol=1e-6)
    assert "svhn-label-10" in noted(points)


def test_one_picture_in_a_mat_file_is_a_set(tmp_path):
    save_mat(tmp_path / "one.mat", X=np.zeros((32, 32, 3, 1), np.uint8), y=np.array([[3]]))
    # MATLAB drops the last axis of one point, and scipy writes what it is given.
    assert len(load_points(str(tmp_path / "one.mat"))) == 1


def test_tables_in_words_with_gaps_or_without_rows_are_refused(tmp_path):
    path = tmp_path / "t.csv"
    for text, message in [
        ("a,b,y\n", "holds no rows"),
        (
            "a,b,y\n1,2,3\n1,cat,3\n",
            "column 'b' holds words, first 'cat', in line 3. Leave a",
        ),
        (
            "a,b,y\n1,2,3\n1,cat,3\n",
            "as in training (one-hot) in a function that gives (x, y): --test file.py:function",
        ),
        ("1,2,3\n1,cat,3\n", "column 1 holds words, first 'cat', in line 2"),
        ("a,b,c,y\n1,2,3,4\n\n,x,nan,2\n", "no value in line 4\n  - column 'b' holds words, first 'x', in line 4\n"),
        (
            "a,b,y\nnan,inf,3\n",
            ": 2 problems:\n  - column 'a' has no value in line 2\n  - column 'b' has inf",
        ),
        ("a,y\n" + ",1\n" * 5, "column 'a' has no value in lines 2, 3, 4 and 2 more"),
        ("1,2,3\n1,2\n", "line 2 with 2 cells, where the first has 3"),
        ("a,b,y\n1,2\n", "the header names 3 columns and the rows have 2"),
        ("1,2,3\n1,nan,3\n", "column 1 has no value in line 2"),
        (
            "a,b,y\n1,2,3\n1,NA,3\n",
            "column 'b' has no value in line 3. Fill in what",
        ),
        ("1\n2\n", "no comma, semicolon or tab"),
        ("a;y\n1,5;2\n", "column 'a' has '1,5' in line 2. A decimal comma"),
        ("1,5;2,5\n3,5;4,5\n", "column 0 has '1,5' in lines 1, 2"),
        ('a,y\n1,2\n"1,5",2\n', "column 'a' has '1,5' in line 3"),
        ("a,y\n1,5,2,5\n", "columns and the rows have 4. Is a comma a decimal one? Write numbers with a point."),
        (",a,y\n0,cat,3\n", "column 'a' holds words, first 'cat', in line 2"),
        ("0,1,2\n1,5,3\n", "its first line numbers the columns from 0 to 2, as pandas does"),
        ("a,group,group,y\n1,5,5,3\n", "has 2 columns called 'group'; expected one"),
        ("a,y,y\n1,5,5\n", "has 2 columns called 'y', a target's name; expected one"),
    ]:
        path.write_text(text)
        assert message in refusal(path)


@pytest.mark.parametrize("form", ["csv", "quoted", "group", "parquet"])
def test_the_index_of_pandas_is_left_out_and_named(tmp_path, form):
    path = tmp_path / ("t.parquet" if form == "parquet" else "t.csv")
    if form == "parquet":
        columns = {"a": np.array([1.0, 2.0]), "y": np.array([3, 4]), "__index_level_0__": np.array(["p", "q"])}
        save_parquet(path, columns)
    else:
        group = form == "group"
        header = '"","a","group","y"' if group else {"csv": ",a,y", "quoted": '"Unnamed: 0",a,y'}[form]
        path.write_text(f"{header}\np,1,{'7,' * group}3\nq,2,{'8,' * group}4\n")
    points = load_points(str(path))
    assert points.inputs[:].tolist() == [[1], [2]] and points.targets.ravel().tolist() == [3, 4]
    [left_out] = [finding.values["column"] for finding in points.findings if finding.code == "index-column"]
    assert left_out == {"csv": "", "group": "", "quoted": "Unnamed: 0", "parquet": "__index_level_0__"}[form]
    assert load_points(str(path), target="y", ood=True, name="o").point_shape == (1,)


def test_tables_in_another_encoding_are_refused_as_such(tmp_path):
    path = tmp_path / "t.csv"
    path.write_bytes("größe,b,y\n1,2,3\n".encode("latin-1"))
    assert "a text in another encoding than UTF-8" in refusal(path)
    path.write_bytes(("a,b,y\n" + "1,2,3\n" * 2000 + "ö,2,3\n").encode("latin-1"))
    assert "is not a text in UTF-8" in refusal(path)


def test_an_npz_that_lists_an_array_twice_is_refused(tmp_path):
    np.savez(tmp_path / "set.npz", x=np.zeros((2, 3)))
    with zipfile.ZipFile(tmp_path / "set.npz", "a") as archive, pytest.warns(UserWarning, match="Duplicate name"):
        archive.writestr("x.npy", archive.read("x.npy"))
    assert "lists an array twice" in refusal(tmp_path / "set.npz")


def test_tables_may_have_no_header_other_separators_and_one_row(tmp_path):
    path = tmp_path / "t.csv"
    for text in (
        "1,2,3\n",
        "\ufeff1;2;3",
        "a\tb\ty\r\n1\t2\t3\r\n\r\n",
        '"a","b","y"\n1,2,3',
        '"a, b",c,y\n1,2,3',
        '"a\n b",c,y\n1,2,3',
        "a, b\tc; d\ty\n1\t2\t3",
    ):
        path.write_bytes(text.encode())
        points = load_points(str(path))
        assert points.raw([0]).tolist() == [[1, 2]]
        assert points.targets is not None
        assert points.targets.tolist() == [[3]]


@pytest.mark.parametrize(
    ("header", "target"),
    [
        ("label,a,b", 0), ("a,Class,b", 1), ("y,a,b", 0), ("y,x,b", 0), ("x,y,strength", 2), ("x,y,label", 2),
        ("target,a,y", 2), ("a,b,c", 2), ('"label";"a";"b"', 0),
    ],
)  # fmt: skip
@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_the_column_that_has_a_targets_name_is_the_target(tmp_path, header, target, form):
    path, row = tmp_path / f"t.{form}", [7, 8, 9]
    if form == "csv":
        path.write_text(f"{header}\n" + (";" if ";" in header else ",").join(map(str, row)) + "\n")
    else:
        names = re.split("[,;]", header.replace('"', ""))
        save_parquet(path, {name: np.array([value]) for name, value in zip(names, row, strict=True)})
    points = load_points(str(path))
    assert points.targets is not None
    assert points.targets.ravel().tolist() == [row[target]]
    assert points.raw([0]).tolist() == [[value for at, value in enumerate(row) if at != target]]


@pytest.mark.parametrize(
    ("text", "labels"),
    [
        ("a,b,species\n1,2,ape\n3,4,ant\n5,6,ape\n", [1, 0, 1]),
        ("label,a,b\nape,1,2\nant,3,4\n", [1, 0]),
        ("a,label,group\n1,ape,x\n2,ant,y\n", [1, 0]),
        ("1,2,ape\n3,4,ant\n", [1, 0]),  # without a header
        ("0,1,2\n1,2,ant\n", None),  # columns that pandas numbered, or a point
        ("0,1,label\n1,2,ape\n3,4,ant\n", [1, 0]),
        ('1,"x"\n2,"ant"\n', [1, 0]),
    ],
)
def test_words_in_the_column_of_the_target_are_classes(tmp_path, text, labels):
    path = tmp_path / "t.csv"
    path.write_text(text)
    if labels is None:
        assert "its first line numbers the columns" in refusal(path)
        return
    points = load_points(str(path))
    assert points.targets.tolist() == labels
    assert points.classes_sorted
    assert points.point_shape == ((1,) if "group" in text or "x" in text else (2,))
    assert np.isfinite(points.raw([0])).all()


def test_a_row_without_its_word_is_refused(tmp_path):
    (tmp_path / "t.csv").write_text("a,y\n1,ape\n2,\n")
    assert "column 'y' has no value in line 3" in refusal(tmp_path / "t.csv")


def test_two_columns_with_a_targets_name_are_refused(tmp_path):
    (tmp_path / "t.csv").write_text("label,target,a\n1,2,3\n")
    assert "columns 'label', 'target' all have the name of a target" in refusal(tmp_path / "t.csv")


def label_first(last: Any, header: str = "") -> str:
    return header + "".join(f"{label},{0.1 * row:.1f},{last[row]}\n" for row, label in enumerate(np.arange(40) % 3))


@pytest.mark.parametrize("header", ["", "digit,p0,p1\n"])
@pytest.mark.parametrize("last", [[0] * 40, [0, 1] * 20, [0, 17] * 20, [0.5, 0.25] * 20])
def test_a_label_first_table_is_not_scored_by_its_last_feature(tmp_path, last, header):
    path = tmp_path / "t.csv"
    path.write_text(label_first(last, header))
    with pytest.raises(DataError, match=r"last column was taken for the label .* --target COLUMN"):
        check_labels(load_points(str(path)), 3)
    for name, target in (("label", None), ("digit", "digit")):
        path.write_text(label_first(last, f"{name},p0,p1\n"))
        labels = check_labels(load_points(str(path), target=target), 3).targets
        assert labels is not None
        assert labels.tolist() == [row % 3 for row in range(40)]


def test_a_first_feature_that_looks_like_labels_does_not_matter_where_the_last_column_holds_them(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text(label_first([2, 1, 0, 1] * 10))
    check_labels(load_points(str(path)), 3)
    path.write_text(label_first([1] * 40, "a,b,label\n"))  # of one class, and said to be it
    check_labels(load_points(str(path)), 3)


def test_a_column_called_group_is_the_group(tmp_path):
    (tmp_path / "t.csv").write_text("a,group,y\n1,7,3\n2,5,4\n")
    points = load_points(str(tmp_path / "t.csv"))
    assert points.group is not None
    assert points.group.tolist() == [1, 0]
    assert points.point_shape == (1,)


def test_parquet_columns_that_are_no_numbers_are_named(tmp_path):
    save_parquet(tmp_path / "t.parquet", {"a": np.arange(3), "kind": np.array(["x", "y", "z"]), "y": np.arange(3)})
    assert "column 'kind' does not hold numbers" in refusal(tmp_path / "t.parquet")


def test_parquet_without_pyarrow_says_what_to_install(every_format, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pyarrow.parquet", None)
    assert 'pip install "bnuq[parquet]"' in refusal(every_format["parquet"])


@pytest.mark.parametrize("form", ["h5", "mat"])
def test_data_sets_within_groups_are_named(tmp_path, form):
    with h5py.File(tmp_path / f"s.{form}", "w") as file:
        file["train/x"], file["train/y"] = np.zeros((3, 2)), np.arange(3)
    message = refusal(tmp_path / f"s.{form}")
    assert "its data sets lie within groups (train/x, train/y); expected x and y at the top" in message


def test_a_class_folder_behind_a_link_is_read_like_others(every_format, tmp_path):
    folder = every_format["folder"]
    first = sorted(path for path in folder.iterdir() if path.is_dir())[0]
    shutil.copytree(folder, tmp_path / "linked")
    shutil.rmtree(tmp_path / "linked" / first.name)
    (tmp_path / "linked" / first.name).symlink_to(first)
    assert load_points(str(tmp_path / "linked")).sha256 == load_points(str(folder)).sha256


@pytest.mark.parametrize("what", ["a link to nothing", "no regular file", "is a link to a folder that is read already"])
def test_a_picture_that_cannot_be_read_is_not_left_out(tmp_path, what):
    (tmp_path / "set" / "a").mkdir(parents=True)
    (tmp_path / "set" / "a" / "1.png").write_bytes(png(np.zeros((6, 6), np.uint8)))
    odd = tmp_path / "set" / "a" / "2.png"
    if what == "no regular file":
        os.mkfifo(odd)
    else:
        odd.symlink_to(tmp_path / ("nothing" if what == "a link to nothing" else "set"))
    message = refusal(tmp_path / "set")
    assert str(odd) in message and what in message


def test_a_file_much_larger_than_its_picture_is_refused(tmp_path):
    (tmp_path / "set" / "a").mkdir(parents=True)
    path = tmp_path / "set" / "a" / "1.png"
    path.write_bytes(png(np.zeros((6, 6), np.uint8)))
    os.truncate(path, 2**25)
    assert "has 33,554,432 bytes for 6 × 6 pixels" in refusal(tmp_path / "set")
    os.truncate(path, 2**40)
    assert "expected an image of at most 536,870,912" in refusal(tmp_path / "set")


def test_a_zip_that_lists_a_picture_twice_is_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / "d.zip", "w") as archive, pytest.warns(UserWarning, match="Duplicate name"):
        for _ in range(2):
            archive.writestr("a/1.png", png(np.zeros((6, 6), np.uint8)))
    assert "lists an image twice" in refusal(tmp_path / "d.zip")


def test_a_zip_with_a_nul_in_a_name_is_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / "d.zip", "w") as archive:
        for name in ("a/1.png", "b/1.png", "a/x_y.png"):
            archive.writestr(name, png(np.zeros((6, 6), np.uint8)))
    (tmp_path / "d.zip").write_bytes((tmp_path / "d.zip").read_bytes().replace(b"x_y.png", b"x\0y.png"))
    assert "the name that begins with 'a/x' has a NUL" in refusal(tmp_path / "d.zip")


@pytest.mark.parametrize("outside", ["../../x.png", "a/../../y.png"])
def test_a_zip_with_a_picture_outside_of_it_is_refused(tmp_path, outside):
    with zipfile.ZipFile(tmp_path / "d.zip", "w") as archive:
        for name in ("a/1.png", "b/1.png", outside):
            archive.writestr(name, png(np.zeros((6, 6), np.uint8)))
    assert f"{outside} lies outside the archive" in refusal(tmp_path / "d.zip")


def test_the_free_memory_is_looked_at_once_for_a_zip_of_many_pictures(tmp_path, monkeypatch):
    with zipfile.ZipFile(tmp_path / "d.zip", "w") as archive:
        for at in range(50):
            archive.writestr(f"a/{at}.png", png(np.zeros((6, 6), np.uint8)))
    looked = []
    monkeypatch.setattr(limits, "available_memory", lambda: looked.append(1))
    assert len(load_points(str(tmp_path / "d.zip"))) == 50
    assert len(looked) == 1


def test_pictures_of_several_sizes_are_refused_by_name(tmp_path):
    for name, size in [("a/1.png", 8), ("a/2.png", 8), ("b/3.png", 9)]:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(png(np.zeros((size, size, 3), np.uint8)))
    assert "3.png: is 9 × 9 pixels, and a/1.png is 8 × 8" in refusal(tmp_path)


def test_grey_pictures_have_one_channel_unless_one_of_them_has_colour(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "1.png").write_bytes(png(np.full((4, 4), 51, np.uint8)))
    assert load_points(str(tmp_path), name="s").raw([0]).tolist() == np.full((1, 1, 4, 4), np.float32(0.2)).tolist()
    (tmp_path / "a" / "2.png").write_bytes(png(np.zeros((4, 4, 3), np.uint8)))
    assert load_points(str(tmp_path), name="s").point_shape == (3, 4, 4)
    (tmp_path / "a" / "3.png").write_bytes(png(np.zeros((4, 4), np.uint16)))
    message = refusal(tmp_path)
    assert "3.png: has 16 bits or more a channel; expected 8 bits" in message and "astype(np.uint8)" in message


def test_a_table_beside_pictures_without_class_folders_is_hinted_at_and_is_read_by_that(tmp_path):
    for number in range(3):
        (tmp_path / f"{number}.png").write_bytes(png(np.zeros((4, 5, 3), dtype=np.uint8)))
    (tmp_path / "labels.csv").write_text("file,label\n0.png,cat\n1.png,dog\n2.png,cat\n")
    points = load_points(str(tmp_path), base=tmp_path, name="test")
    [text] = [text_of(finding) for finding in points.findings if finding.code == "no-class-folders"]
    table = tmp_path / "labels.csv"
    assert text.endswith(f"if {table} lists the images and their labels, name it in place of the folder")
    assert load_points(str(table), base=tmp_path, name="test").targets.tolist() == [0, 1, 0]


def test_the_entries_of_a_flat_folder_are_not_looked_at_for_every_other_entry(tmp_path, monkeypatch):
    for number in range(30):
        (tmp_path / f"{number}.png").write_bytes(png(np.zeros((4, 4), np.uint8)))
    is_dir, asked = Path.is_dir, list[Path]()
    monkeypatch.setattr(Path, "is_dir", lambda path: asked.append(path) or is_dir(path))
    assert len(load_points(str(tmp_path), name="s")) == 30
    assert len(asked) < 30 * 30


def test_a_flat_folder_has_no_labels_and_an_uneven_one_is_refused(tmp_path):
    picture = png(np.zeros((4, 4), np.uint8))
    assert "contains no images; expected class folders" in refusal(tmp_path)
    (tmp_path / "1.png").write_bytes(picture)
    (tmp_path / ".hidden.png").write_bytes(b"")
    (tmp_path / "notes.txt").write_text("text")
    assert load_points(str(tmp_path), name="s").targets is None
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "1.png").write_bytes(picture)
    assert "different depths (1.png, a/1.png)" in refusal(tmp_path)
    (tmp_path / "1.png").unlink()
    for part in ("train", "test"):
        (tmp_path / "both" / part / "a").mkdir(parents=True)
        (tmp_path / "both" / part / "a" / "1.png").write_bytes(picture)
    assert "class folders in several folders (test, train)" in refusal(tmp_path / "both")


@pytest.mark.parametrize("form", ["PNG", "JPEG", "BMP", "WEBP", "TIFF", "PPM"])
def test_a_picture_cut_short_anywhere_is_refused_by_name(tmp_path, form):
    """Without its last 20 bytes a PNG still gives Pillow every pixel."""
    (tmp_path / "a").mkdir()
    path = (tmp_path / "a" / "1.png").with_suffix(f".{form.lower()}")
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (24, 24, 3), dtype=np.uint8)).save(path, form)
    whole = path.read_bytes()
    assert len(load_points(str(tmp_path)).raw(slice(None))) == 1
    for cut in [1, 4, 12, 13, 20, 21, 200, len(whole) // 2, len(whole)]:
        path.write_bytes(whole[:-cut])
        with pytest.raises(DataError, match=rf"{path.name}: cannot be read as an image"):
            load_points(str(tmp_path)).raw(slice(None))


def test_a_png_whose_pixels_do_not_match_their_checksum_is_refused(tmp_path):
    (tmp_path / "a").mkdir()
    content = bytearray(png(np.zeros((8, 8, 3), np.uint8)))
    content[content.index(b"IDAT") - 2 + 12] ^= 1
    (tmp_path / "a" / "1.png").write_bytes(content)
    assert "1.png: cannot be read as an image" in refusal(tmp_path)


def test_a_data_set_that_is_declared_empty_is_said_to_be_so(tmp_path):
    for empty in ("x", "y"):
        with h5py.File(tmp_path / "e.h5", "w") as file:
            arrays = {"x": np.zeros((3, 2), np.float32), "y": np.arange(3)} | {empty: h5py.Empty("f4")}
            for name, values in arrays.items():
                file[name] = values
            file.attrs["nothing"] = h5py.Empty("f4")
        assert f"e.h5: {empty} is declared empty and holds nothing" in refusal(tmp_path / "e.h5")


@pytest.mark.skipif(os.name == "nt", reason="the stand-in for Ghostscript is a shell script")
@pytest.mark.parametrize("suffix", ["png", "jpg", "tif"])
def test_postscript_called_a_picture_starts_nothing(tmp_path, monkeypatch, suffix):
    mark, programs = tmp_path / "ran", tmp_path / "programs"
    programs.mkdir()
    (programs / "gs").write_text(f"#!/bin/sh\ntouch '{mark}'\n")
    (programs / "gs").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr("PIL.EpsImagePlugin.gs_binary", None)
    script = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\n%%EOF\n"
    (tmp_path / "set" / "a").mkdir(parents=True)
    (tmp_path / "set" / "a" / f"1.{suffix}").write_bytes(script)
    with pytest.raises(DataError, match=rf"1\.{suffix}: cannot be read as an image.*of none of these formats: PNG"):
        load_points(str(tmp_path / "set")).raw(slice(None))
    assert not mark.exists()


def test_a_picture_or_folder_that_changes_while_it_is_in_use_is_named(tmp_path):
    (tmp_path / "a").mkdir()
    path = tmp_path / "a" / "1.png"
    path.write_bytes(png(np.zeros((8, 8, 3), np.uint8)))
    points = load_points(str(tmp_path))
    path.write_bytes(png(np.zeros((9, 8, 3), np.uint8)))
    with pytest.raises(DataError, match=r"1\.png: is 8 × 9 pixels, and was 8 × 8 when it was looked at first"):
        points.raw([0])
    path.unlink()
    os.mkfifo(path)  # it would never be read to its end
    with pytest.raises(DataError, match=r"1\.png: was replaced during the run"):
        points.raw([0])
    shutil.rmtree(tmp_path / "a")
    for use in (lambda: points.raw([0]), lambda: points.sha256):
        with pytest.raises(DataError, match=r"1\.png: cannot be read: No such file or directory"):
            use()


def test_a_subset_of_pictures_is_decoded_alone(every_format):
    points = load_points(str(every_format["zip"]))
    np.testing.assert_array_equal(points.subset([12, 3]).raw(slice(None)), points.raw([12, 3]))
    assert points.subset([12, 3]).sha256 != points.sha256
    assert points.classes == ("cat", "dog")


def test_labels_alone_and_labels_that_do_not_fit_are_refused(tmp_path):
    (tmp_path / "t-labels-idx1-ubyte").write_bytes(idx(np.zeros(4, np.uint8)))
    assert "holds labels (one axis)" in refusal(tmp_path / "t-labels-idx1-ubyte")
    (tmp_path / "t-images-idx3-ubyte").write_bytes(idx(np.zeros((5, 3, 3), np.uint8)))
    assert "x has 5 examples and y has 4" in refusal(tmp_path / "t-images-idx3-ubyte")
    (tmp_path / "t-labels-idx1-ubyte").unlink()
    assert load_points(str(tmp_path / "t-images-idx3-ubyte")).targets is None


def test_what_holds_no_points_is_told(tmp_path):
    (tmp_path / "noise").write_bytes(bytes(range(128, 256)) * 10)
    assert "is not a readable format of examples" in refusal(tmp_path / "noise")
    with zipfile.ZipFile(tmp_path / "model.pt", "w") as archive:
        archive.writestr("model/data.pkl", b"")
    assert "is a torch checkpoint" in refusal(tmp_path / "model.pt")
    (tmp_path / "t.csv.gz").write_bytes(gzip.compress(b"1,2,3\n"))
    assert "is gzipped text; only idx files are read gzipped" in refusal(tmp_path / "t.csv.gz")


@pytest.mark.nightly  # real data; made-up files above
def test_the_real_sets_are_read(data_pack):
    """Shapes, counts and pixels as their README states them."""
    lossless = load_points(str(data_pack / "cifar10/lossless_test.npz"))
    assert (len(lossless), lossless.point_shape) == (846, (3, 32, 32))
    jpeg = load_points(str(data_pack / "cifar10/jpeg_test.zip"))
    assert jpeg.classes == tuple((data_pack / "cifar10/classes.txt").read_text().split())
    assert jpeg.targets is not None
    assert np.bincount(jpeg.targets).tolist() == [500] * 10
    folder = load_points(str(data_pack / "cifar10/sample_folder"))
    np.testing.assert_array_equal(folder.raw(slice(0, 12)), jpeg.raw(slice(0, 12)))
    samples = load_points(str(data_pack / "ood/svhn_samples"))
    assert (len(samples), samples.targets) == (4, None)
    digits = load_points(str(data_pack / "mnist/t10k-images-idx3-ubyte.gz"))
    assert (len(digits), digits.point_shape) == (10_000, (1, 28, 28))
    clothes = load_points("fashion-mnist:train", data_root=data_pack)
    assert len(clothes) == 60_000
    assert np.mean(clothes.raw(slice(None))) == pytest.approx(0.2860, abs=5e-5)


# --- columns of any file, such as predictions


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("key,p\n9007199254740993,1\n9007199254740992,1e300", {"key": ["9007199254740993", "9007199254740992"]}),
        ("key,p\n1234,1\n12e4,1\n5aB1,1", {"key": ["1234", "12e4", "5aB1"]}),
        ("key,p\n1e999,1\n2e999,1", {"key": ["1e999", "2e999"]}),
        ("Id,p\n007,1\n7,1", {"Id": ["007", "7"]}),
        ("id,p\n1e5,1\n100000,1", {"id": ["1e5", "100000"]}),
        ("id,p\n1.0,1\n7.0,1", {"id": ["1", "7"]}),
        ('"prob, a";label\n.5;x, y', {"label": ["x, y"]}),
        ("name, all\tlabel\nLee, A\t1\nRay, B\t0", {"name, all": ["Lee, A", "Ray, B"], "label": ["1", "0"]}),
        ('{"id": 9007199254740993, "p": [1, 2]}\n{"id": 2, "p": [3, 4]}', {"id": ["9007199254740993", "2"]}),
        ('{"id": "a"}\n{"id": 5}', {"id": ["a", "5"]}),
        ('{"id": null}\n{"id": "a"}', {"id": ["", "a"]}),
    ],
)
def test_the_texts_of_a_column_are_what_is_written(tmp_path, text, values):
    (tmp_path / "t").write_text(text)
    columns = read_columns(tmp_path / "t")
    assert {name: columns.texts(name).tolist() for name in values} == values


def test_ids_of_parquet_beyond_the_whole_numbers_of_floats_are_texts(tmp_path):
    ids = np.array([2**53 + 1, 2**53])
    save_parquet(tmp_path / "t.parquet", {"id": ids, "p": np.array([0.5, 1e300])})
    columns = read_columns(tmp_path / "t.parquet")
    assert columns.texts("id").tolist() == [*map(str, ids)] and columns["p"].tolist() == [0.5, 1e300]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (
            '{"p": [[1, 2], [3, 4]]}\n{"p": [1, 2, 3, 4]}',
            "p in line 2 has shape (4,); expected (2, 2), as in the first",
        ),
        ('{"p": [1, 2]}\n\n{"p": [[1], [2, 3]]}', "p in line 3 is [[1], [2, 3]]; expected numbers"),
        ('{"p": [1]}\n{"p": ["1"]}', 'p in line 2 is ["1"]; expected numbers'),
        ('{"p": 1}\n{"p": [1]}', "p in line 2 is [1]; expected a number"),
        ('{"p": 1}\n{"p": "1"}', 'p in line 2 is "1"; expected a number'),
        ('{"id": "a"}\n{"id": [1]}', "id in line 2 is [1]; expected a text"),
        ('{"p": 1}\n[1]', "line 2 and the first differ in"),
    ],
)
def test_json_lines_of_another_shape_than_the_first_are_refused_by_their_number(tmp_path, rows, message):
    (tmp_path / "t.jsonl").write_text(rows)
    with pytest.raises(DataError, match=re.escape(message)):
        read_columns(tmp_path / "t.jsonl")
