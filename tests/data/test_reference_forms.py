"""A REF may name arrays, sets or columns of a file, a pair of files, and a function with arguments."""

import sys

import h5py
import numpy as np
import pytest
from findings_of import noted
from making_points import save_mat

from bnuq.cli.paths import split_values
from bnuq.config.request import Named, _absolute
from bnuq.data import load_points, parse_reference
from bnuq.errors import BnuqError, RequestError, UntrustedCodeError
from bnuq.report.numbers import of_reference
from bnuq.trust import NamedBy

X = np.random.default_rng(0).integers(0, 256, (6, 5, 4, 3), dtype=np.uint8)
Y = np.array([2, 0, 1, 1, 0, 2])


def refusal(reference: str, **options) -> str:
    with pytest.raises(BnuqError) as error:
        load_points(reference, **options)
    return str(error.value)


def assert_same(points, x=X, y: np.ndarray | None = Y) -> None:
    np.testing.assert_array_equal(points.raw(slice(None)), np.moveaxis(x, 3, 1) / np.float32(255))
    assert (None if points.targets is None else points.targets.tolist()) == (None if y is None else y.tolist())


# --- parts of files


@pytest.fixture
def files(tmp_path):
    """The same arrays under other names, in every file that holds several."""
    splits = {"train_images": X[:4], "train_labels": Y[:4, None], "test_images": X, "test_labels": Y[:, None]}
    np.savez(tmp_path / "medmnist.npz", **splits)
    np.savez(tmp_path / "keras.npz", x_train=X[:4], y_train=Y[:4], x_test=X, y_test=Y)
    np.savez(tmp_path / "own.npz", pictures=X, kinds=Y, more=np.zeros(3))
    save_mat(tmp_path / "own.mat", pictures=X, kinds=Y)
    with h5py.File(tmp_path / "own.h5", "w") as file:
        file["pictures"], file["kinds"] = X, Y
        file["test/data"], file["test/target"] = X, Y
        file["deep/er/px"], file["deep/er/lb"] = X, Y
    with h5py.File(tmp_path / "own73.mat", "w", userblock_size=512) as file:
        file["set/pictures"], file["set/kinds"] = X.T, Y[None].T
    return tmp_path


@pytest.mark.parametrize(
    "part",
    [
        "own.npz:pictures,kinds", "own.npz: pictures , kinds", "own.mat:pictures,kinds", "own.h5:pictures,kinds",
        "own.h5:/pictures,/kinds", "own.h5:/deep/er/px,/deep/er/lb", "own.h5:deep/er/px,kinds", "own.h5:test",
        "own.h5:/test", "own73.mat:/set/pictures,/set/kinds", "medmnist.npz:test", "keras.npz:test",
        "medmnist.npz:test_images,test_labels",
    ],
)  # fmt: skip
def test_inputs_and_labels_are_read_by_their_names(files, part):
    points = load_points(part, base=files)
    assert_same(points)
    assert (points.name, points.reference) == (part.partition(".")[0], part)
    assert "arrays-unused" not in noted(points)


def test_one_name_gives_inputs_alone(files):
    for part in ("own.npz:pictures", "own.mat:pictures", "own.h5:/deep/er/px", "medmnist.npz:test_images"):
        assert_same(load_points(part, base=files), y=None)
    assert len(load_points("medmnist.npz:train", base=files)) == 4


@pytest.mark.parametrize(
    ("part", "message"),
    [
        (
            "own.npz:images,kinds",
            "own.npz: holds nothing called 'images'; it has 'pictures', 'kinds', 'more'. Expected",
        ),
        ("own.npz:pictures,labels", "holds nothing called 'labels'"),
        ("own.mat:x,y", "own.mat: holds nothing called 'x'; it has 'pictures', 'kinds'"),
        ("own.h5:/test/images", "nothing called 'test/images'; it has 'kinds', 'pictures', "),
        ("medmnist.npz:val", "'test_labels' and, of inputs and labels, 'train', 'test'. Expected medmnist.npz:INPUTS"),
        ("medmnist.npz", "Name one of its sets: medmnist.npz:train or medmnist.npz:test."),
        ("own.npz", "or name both: own.npz:INPUTS,LABELS"),
        ("own.npz:", "expected the names of the inputs and, at most, the labels after the colon"),
        ("own.npz:a,b,c", "expected the names of the inputs and, at most, the labels after the colon"),
        ("own.npz:pictures,more", "x has 6 examples and y has 3"),
        ("gone.npz:test", "there is no such file or folder"),
        ("gone/x.h5:/a/b", "gone/x.h5)"),
        ("gone.npy,labels.npy", "A pair of files is named with a colon: gone.npy:labels.npy."),
    ],
)
def test_a_part_that_is_not_there_is_told_with_those_that_are(files, part, message):
    assert message in refusal(part, base=files)


def test_a_part_declares_no_more_than_its_file_can_hold(tmp_path):
    with h5py.File(tmp_path / "big.h5", "w") as file:
        file.create_dataset("in/x", (2**40,), "u1", chunks=(2**20,), compression="gzip")
    assert "declares 1.1e+12 bytes" in refusal("big.h5:/in/x", base=tmp_path)


def test_a_npy_file_has_its_labels_in_another_beside_it(tmp_path):
    (tmp_path / "in").mkdir()
    np.save(tmp_path / "in/x.npy", X)
    np.save(tmp_path / "in/y.npy", Y)
    (tmp_path / "in/y.txt").write_text("0 1 2")
    assert_same(load_points("in/x.npy:y.npy", base=tmp_path))
    assert_same(load_points(f"{tmp_path}/in/x.npy:{tmp_path}/in/y.npy"))
    assert_same(load_points("in/x.npy", base=tmp_path), y=None)
    message = refusal("in/x.npy:in/y.npy", base=tmp_path)
    assert "in/in/y.npy: there is no such file. Check the path. The labels of x.npy are looked for from" in message
    assert "y.txt: is not .npy" in refusal("in/x.npy:y.txt", base=tmp_path)


def test_a_single_file_has_no_parts(tmp_path):
    (tmp_path / "t.csv").write_text("a,y\n1,2\n")
    assert "has no parts that could be named after a colon ('a')" in refusal("t.csv:a", base=tmp_path)


def test_known_names_and_modules_mean_what_they_meant(files, monkeypatch):
    (files / "svhn").write_text("a,y\n1,2\n")
    (files / "sets").write_text("")
    (files / "sets.py").write_text("import numpy\ndef two(): return [numpy.zeros((2, 3))]")
    monkeypatch.delenv("BNUQ_DATA", raising=False)
    assert "svhn:test: not found" in refusal("svhn:test", base=files, data_root=files)
    assert len(load_points("sets:two", base=files)) == 2


def test_commas_between_references_separate_them_and_those_within_do_not(files, monkeypatch):
    monkeypatch.chdir(files)
    for value, expected in [
        ("a.npz,svhn", ("a.npz", "svhn")),
        ("own.npz:pictures,kinds", ("own.npz:pictures,kinds",)),
        ("n=own.npz:pictures,kinds,svhn:test", ("n=own.npz:pictures,kinds", "svhn:test")),
        ("medmnist.npz:test,other=own.npz:pictures,kinds", ("medmnist.npz:test", "other=own.npz:pictures,kinds")),
        ("medmnist.npz:test,own.mat", ("medmnist.npz:test", "own.mat")),
        ("own.h5:/a/b,/c/d,own.npz", ("own.h5:/a/b,/c/d", "own.npz")),
        ("sets.py:make((1, 2), size=3),svhn", ("sets.py:make((1, 2), size=3)", "svhn")),
        ("a (1,b", ("a (1", "b")),
    ]:
        assert split_values([value]) == expected


def test_a_report_shows_the_file_and_its_part_without_folders():
    for reference, shown in [
        ("n=/a/b/own.h5:/test/data,/test/label", "own.h5:/test/data,/test/label"),
        ("noise=/a/sets.py:noise(20, seed=3)", "sets.py:noise(20, seed=3)"),
        ("uci/boston:test", "boston:test"),
        ("runs/lr=0.1/x.npz", "x.npz"),
    ]:
        assert of_reference(reference) == shown
    assert of_reference("camvid/test:camvid/testannot") == "test:testannot"


def test_a_recorded_part_has_an_absolute_path(files):
    for text, recorded in [
        ("own.npz:pictures,kinds", f"{files}/own.npz:pictures,kinds"),
        ("n=own.h5:/test", f"n={files}/own.h5:/test"),
        ("svhn:test", "svhn:test"),
        ("own.npz", f"{files}/own.npz"),
    ]:
        assert _absolute(Named(text, files)) == recorded


# --- functions with arguments

CODE = """
import numpy as np
class Squares:
    def __init__(self, size=2, split="train"):
        self.size, self.split = size, split
    def __len__(self): return self.size
    def __getitem__(self, index):
        if index >= self.size: raise IndexError
        return np.full((1, 4, 4), index / 10, np.float32), 7 if self.split == "test" else index
def make(split, *, size=2, shape=None): return Squares(size, split)
ready = Squares(5)
batches = [(np.zeros((3, 2)), np.arange(3))]
empty = None
"""


@pytest.fixture
def code(tmp_path):
    (tmp_path / "sets.py").write_text(CODE)
    return tmp_path


@pytest.mark.parametrize(
    ("spec", "labels"),
    [
        ('make("test", size=3)', [7, 7, 7]),
        ("make('train', shape=[(1, 2), {'a:b(c)': -1.5}])", [0, 1]),
        ("make(split='x=y')", [0, 1]),
        ("Squares(3)", [0, 1, 2]),
        ("Squares()", [0, 1]),
        ("Squares", [0, 1]),
        ("ready", [0, 1, 2, 3, 4]),
        ("batches", [0, 1, 2]),
    ],
)
def test_functions_take_literals_and_objects_are_points(code, spec, labels):
    assert parse_reference(f"sets.py:{spec}", base=code) == (None, f"sets.py:{spec}")
    assert parse_reference(f"some=sets.py:{spec}", base=code) == ("some", f"sets.py:{spec}")
    points = load_points(f"sets.py:{spec}", base=code)
    assert points.targets is not None
    assert (points.name, points.targets.tolist()) == (spec.partition("(")[0], labels)
    assert _absolute(Named(f"sets.py:{spec}", code)) == f"{code}/sets.py:{spec}"


def test_classes_of_packages_take_arguments(code, monkeypatch):
    (code / "package").mkdir()
    (code / "package/__init__.py").write_text("")
    (code / "sets.py").rename(code / "package/datasets.py")
    points = load_points('package.datasets:Squares(4, split="test")', base=code)
    assert points.targets is not None
    assert points.targets.tolist() == [7] * 4
    monkeypatch.delitem(sys.modules, "package.datasets", raising=False)
    (code / "found.toml").write_text("")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(code))
    with pytest.raises(UntrustedCodeError, match="--trust-code"):
        load_points("package.datasets:Squares(4)", base=code, named_by=NamedBy(code / "found.toml"))


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ("(__import__('os').system('touch ran'))", "malformed node or string"),
        ("(open('ran', 'w'))", "malformed node"),
        ("(size)", "malformed node"),
        ("(*[1])", "malformed node"),
        ("(**{'size': 1})", "a keyword is given twice, or by **"),
        ("(1)(2)", "this is not a single call"),
        ("(1) + g(2)", "this is not a single call"),
        ("(size=1, size=2)", "a keyword is given twice"),
        ("('test'", "no function \"make('test'\""),
        ("(" + "(" * 3000 + ")" * 3000 + ")", ""),
        ("(" + "-" * 100_000 + "1)", ""),
        ("(1 if)", ""),
        ("('\0')", ""),
    ],
)
def test_nothing_but_literals_is_read_and_nothing_runs(code, arguments, reason, monkeypatch):
    monkeypatch.chdir(code)
    with pytest.raises(RequestError) as error:
        load_points(f"sets.py:make{arguments}", base=code)
    if reason and "function" not in reason:
        assert f"its arguments cannot be read ({reason}" in str(error.value)
        assert 'expected literals, as in file.py:function("test", size=3)' in str(error.value)
    assert not (code / "ran").exists()


def test_arguments_that_do_not_fit_are_told(code):
    assert "calling it failed with TypeError" in refusal("sets.py:make(1, 2)", base=code)
    assert "has no function 'mak'" in refusal("sets.py:mak(1)", base=code)
    assert "has no function 'empty'" in refusal("sets.py:empty", base=code)
    assert "calling it failed with TypeError" in refusal("sets.py:ready(1)", base=code)
    assert "or give arguments: sets.py:make(…), with quotes" in refusal("sets.py:make", base=code)


def test_an_array_called_label_holds_the_labels_of_a_file_and_of_a_group(tmp_path):
    x, y = np.zeros((3, 2), np.float32), np.array([2, 0, 1])
    np.savez(tmp_path / "set.npz", x=x, label=y)
    with h5py.File(tmp_path / "set.h5", "w") as file:
        file["test/data"], file["test/label"] = x, y
    for reference in ("set.npz", "set.h5:test"):
        targets = load_points(reference, base=tmp_path).targets
        assert targets is not None and targets.tolist() == [2, 0, 1], reference
