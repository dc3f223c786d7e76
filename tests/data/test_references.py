"""What a REF means: paths, factories, known names, in that order; and what its set is called."""

import pickle
import re

import numpy as np
import pytest
from findings_of import noted
from hostile_pickles import NESTED, Evil, encoded_again_and_again
from making_points import idx, png, save_mat, tar_gz

from bnuq.data import check_labels, known_sets, load_points, parse_reference, points_in_memory, set_name
from bnuq.data.readers import cifar as cifar_reader
from bnuq.errors import DataError, RequestError, UntrustedCodeError
from bnuq.trust import NamedBy


@pytest.fixture(autouse=True)
def own_folders(tmp_path, monkeypatch):
    """No set of this machine's user is found by accident, and none is remembered."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("BNUQ_DATA", raising=False)


def refusal(*args, **options) -> str:
    with pytest.raises(DataError) as error:
        load_points(*args, **options)
    return str(error.value)


# --- names of sets


@pytest.mark.parametrize("name", ["pcbdigits32", "a-b_C", "0"])
def test_letters_digits_underscores_and_hyphens_make_a_name(name):
    assert set_name(name, reference="r", reserved=True) == name


@pytest.mark.parametrize(
    ("name", "shown"), [("a b", "a_b=r.npz"), ("v1.2", "v1_2=r.npz"), ("é", "other=r.npz"), ("", "other=r.npz")]
)
def test_other_names_are_refused_with_what_to_type(name, shown):
    with pytest.raises(RequestError) as error:
        set_name(name, reference="r.npz")
    assert str(error.value).endswith(f"Give it a name: {shown}")


def test_a_shell_runs_nothing_of_what_is_to_be_typed():
    with pytest.raises(RequestError, match=r"Give it a name: 'a=\$\(touch b\)`c`\.npz'$"):
        set_name("a.", reference="$(touch b)`c`.npz")


def test_the_names_of_the_main_sets_are_kept_from_the_others(tmp_path):
    np.save(tmp_path / "test.npy", np.zeros((2, 3)))
    assert load_points("test.npy", base=tmp_path).name == "test"
    with pytest.raises(RequestError, match=r"Give it a name: test_set=test\.npy"):
        load_points("test.npy", base=tmp_path, ood=True)
    with pytest.raises(RequestError, match="expected another name, which has no meaning yet"):
        load_points("test.npy", base=tmp_path, ood=True, name="train")


def test_a_set_is_called_by_its_given_name_or_the_stem_of_its_file(tmp_path):
    np.save(tmp_path / "my set (1).npy", np.zeros((2, 3)))
    np.save(tmp_path / "digits32.npy", np.zeros((2, 3)))
    assert load_points("digits32.npy", base=tmp_path).name == "digits32"
    assert load_points("my set (1).npy", base=tmp_path, name="test").name == "test"
    with pytest.raises(RequestError, match=r"'my_set_1=my set \(1\)\.npy'"):
        load_points("my set (1).npy", base=tmp_path, ood=True)
    assert load_points("my set (1).npy", base=tmp_path).name == "my set (1)"


def test_a_reference_may_carry_a_name(tmp_path):
    assert parse_reference("digits=ood/x.npz") == ("digits", "ood/x.npz")
    assert parse_reference("ood/x.npz") == (None, "ood/x.npz")
    assert parse_reference("runs/lr=0.1/x.npz") == (None, "runs/lr=0.1/x.npz")
    np.save(tmp_path / "lr=0.1.npy", np.zeros((2, 3)))
    assert parse_reference("lr=0.1.npy", base=tmp_path) == (None, "lr=0.1.npy")
    with pytest.raises(RequestError, match="names nothing after the ="):
        parse_reference("a=")
    with pytest.raises(RequestError, match=r"Give it a name: my_digits=x\.npz"):
        parse_reference("my digits=x.npz")


# --- factories

FACTORIES = """
import numpy as np
from helper_beside import size
class Squares:
    def __len__(self): return size
    def __getitem__(self, index):
        if index >= size: raise IndexError
        return np.full((1, 4, 4), index / 10, np.float32), index
def dataset(): return Squares()
def batches(): return [(np.zeros((3, 2)), np.arange(3)), (np.ones((2, 2)), np.arange(2))]
def stream():
    for k in range(3): yield np.full((2, 2), k)
def uneven(): return [np.zeros((3, 2)), np.zeros((3, 4))]
def half(): return [(np.zeros((3, 2)), np.arange(3)), np.zeros((3, 2))]
def arrays(): return np.arange(6.0).reshape(3, 2), np.array([2, 1, 0])
def named(): return {"x": np.arange(6.0).reshape(3, 2), "y": np.array([2, 1, 0])}
def pairs(): return [(np.array([0.0, 1.0]), 2), (np.array([2.0, 3.0]), 1), (np.array([4.0, 5.0]), 0)]
def nothing(): return []
def number(): return 3
def broken(): return [1 / 0]
def torch_set():
    import torch
    return torch.utils.data.TensorDataset(torch.arange(6.).reshape(3, 2), torch.tensor([2, 1, 0]))
def loader():
    import torch
    return torch.utils.data.DataLoader(torch_set(), batch_size=2)
"""


@pytest.fixture
def factories(tmp_path):
    (tmp_path / "points.py").write_text(FACTORIES)
    (tmp_path / "helper_beside.py").write_text("size = 5")
    return tmp_path


def test_a_factory_gives_a_dataset_or_batches(factories):
    points = load_points("points.py:dataset", base=factories)
    assert (points.name, len(points), points.point_shape) == ("dataset", 5, (1, 4, 4))
    assert points.targets is not None
    assert points.targets.tolist() == [0, 1, 2, 3, 4]
    points = load_points("points.py:batches", base=factories)
    assert (len(points), points.point_shape) == (5, (2,))
    points = load_points("points.py:stream", base=factories)
    assert points.raw(slice(None))[:, 0].tolist() == [0, 0, 1, 1, 2, 2]
    assert points.targets is None


def test_datasets_loaders_pairs_and_whole_arrays_become_points(factories):
    for name in ("torch_set", "loader", "arrays", "named", "pairs"):
        points = load_points(f"points.py:{name}", base=factories)
        assert points.raw(slice(None)).tolist() == [[0, 1], [2, 3], [4, 5]]
        assert points.targets is not None
        assert points.targets.tolist() == [2, 1, 0]


@pytest.mark.parametrize("shape", [(5,), (5, 1), (5, 4)])
@pytest.mark.parametrize("form", ["numpy", "torch", "list", "dataset", "subset", "drawn"])
def test_a_pair_of_equal_shapes_is_inputs_and_targets(form, shape):
    import torch
    from torch.utils.data import Subset, TensorDataset

    from bnuq.sampling.inputs import tensor_of

    x = np.arange(np.prod(shape), dtype=float).reshape(shape)
    y = np.where(x % 3 == 0, 1.0, 0.0)
    tensors = torch.from_numpy(x), torch.from_numpy(y)
    if form == "drawn":
        assert np.array_equal(tensor_of((x, y)), x) and np.array_equal(tensor_of(tensors), x)
        return
    pairs = {"numpy": (x, y), "torch": tensors, "list": (x, y.tolist()), "dataset": TensorDataset(*tensors)}
    pairs["subset"] = Subset(TensorDataset(*tensors), [0, 1, 2, 3, 4])
    for whole in (True, False):
        points = points_in_memory(pairs[form], name="train", whole=whole)
        assert isinstance(points.inputs, np.ndarray) and np.array_equal(points.inputs, x.reshape(5, -1))
        assert points.targets is not None and np.array_equal(points.targets.reshape(shape), y)
    assert np.array_equal(points_in_memory(pairs["torch"][0], name="ood", whole=False).inputs, x.reshape(5, -1))


def test_a_list_of_arrays_is_batches_and_a_tuple_of_several_lengths_is_refused():
    batches = [np.zeros((5, 2)), np.ones((5, 2))]
    points = points_in_memory(batches, name="train")
    assert (len(points), points.targets, [finding.code for finding in points.findings]) == (
        10,
        None,
        ["list-is-batches"],
    )
    assert len(points_in_memory(iter(batches), name="train")) == 10
    with pytest.raises(
        DataError, match=r"is \(inputs, targets\), and these have 5, 4 examples.*are a list or an iterator"
    ):
        points_in_memory((batches[0], batches[1][:4]), name="train")


def test_a_factory_that_gives_something_else_is_told(factories):
    for name, message in [
        ("uneven", "examples of different shapes, (2,) and (4,)"),
        ("half", "targets with some examples and not with others"),
        ("nothing", "gave no examples"),
        ("number", "gave a int; expected a torch Dataset or an iterable of batches"),
    ]:
        assert message in refusal(f"points.py:{name}", base=factories)
    with pytest.raises(
        RequestError, match=r"points\.py:broken: calling it failed with ZeroDivisionError at .*points\.py"
    ):
        load_points("points.py:broken", base=factories)


def test_a_factory_that_a_found_file_names_does_not_run(factories):
    (factories / "model.toml").write_text("")
    loaded = NamedBy(factories / "model.toml")
    with pytest.raises(UntrustedCodeError, match="--trust-code"):
        load_points("points.py:dataset", base=factories, named_by=loaded)
    assert len(load_points("points.py:dataset", base=factories, named_by=loaded, trust_code=True)) == 5
    assert len(load_points("points.py:dataset", base=factories, named_by=loaded)) == 5


def test_a_factory_may_be_in_a_module(factories):
    (factories / "package_beside").mkdir()
    (factories / "package_beside" / "sets.py").write_text("import numpy\ndef two(): return [numpy.zeros((2, 3))]")
    assert len(load_points("package_beside.sets:two", base=factories)) == 2


# --- known sets


def cifar_batch(n: int, seed: int) -> tuple[bytes, np.ndarray, list[int]]:
    """A batch like the published ones, (file, pixels, labels): protocol 2 with byte strings for keys."""
    rng = np.random.default_rng(seed)
    x, y = rng.integers(0, 256, (n, 3072), dtype=np.uint8), rng.integers(0, 10, n).tolist()
    return pickle.dumps({b"batch_label": b"x", b"labels": y, b"data": x, b"filenames": [b"a.png"] * n}, 2), x, y


@pytest.fixture
def cifar(tmp_path):
    batches = {f"data_batch_{i}": cifar_batch(4, i) for i in range(1, 6)} | {"test_batch": cifar_batch(3, 9)}
    folder = tmp_path / "root" / "cifar-10-batches-py"
    folder.mkdir(parents=True)
    for name, (data, _, _) in batches.items():
        (folder / name).write_bytes(data)
    return folder, batches


def test_cifar10_is_read_from_its_python_batches_its_archive_and_its_binary_ones(cifar, tmp_path):
    folder, batches = cifar
    expected_x = np.concatenate([x for name, (_, x, _) in batches.items() if name != "test_batch"])
    expected_y = np.concatenate([y for name, (_, _, y) in batches.items() if name != "test_batch"])
    archive, binary = tmp_path / "archive", tmp_path / "binary" / "cifar-10-batches-bin"
    archive.mkdir()
    tar_gz(
        archive / "cifar-10-python.tar.gz",
        {f"cifar-10-batches-py/{name}": data for name, (data, _, _) in reversed(batches.items())},
    )
    binary.mkdir(parents=True)
    for name, (_, x, y) in batches.items():
        (binary / f"{name}.bin").write_bytes(np.column_stack([np.array(y, np.uint8), x]).tobytes())
    loaded = [load_points("cifar10:train", data_root=root) for root in (folder.parent, archive, binary.parent)]
    for points in loaded:
        assert points.name == "cifar10"
        assert points.targets is not None
        assert points.targets.tolist() == expected_y.tolist()
        expected = expected_x.reshape(-1, 3, 32, 32) / np.float32(255)
        np.testing.assert_allclose(points.raw(slice(None)), expected, rtol=1e-6)
    assert len({points.sha256 for points in loaded}) == 1
    assert len(load_points("cifar10", data_root=folder.parent)) == 3
    assert len(load_points("cifar10", data_root=folder.parent, split_default="train")) == 20


def test_cifar100_has_its_fine_labels_in_every_form(tmp_path):
    """Its own binary version: one byte of the coarse label, one of the fine label, the pixels."""
    x = np.random.default_rng(0).integers(0, 256, (4, 3072), dtype=np.uint8)
    fine, coarse = [7, 99, 0, 55], [1, 19, 0, 3]
    batch = pickle.dumps({b"data": x, b"fine_labels": fine, b"coarse_labels": coarse, b"filenames": [b"a.png"] * 4}, 2)
    rows = np.column_stack([np.array([coarse, fine], np.uint8).T, x]).tobytes()
    folders = {"python": ("cifar-100-python", "", batch), "binary": ("cifar-100-binary", ".bin", rows)}
    digests = set()
    for root, (folder, suffix, content) in folders.items():
        (tmp_path / root / folder).mkdir(parents=True)
        (tmp_path / root / folder / f"test{suffix}").write_bytes(content)
        (tmp_path / f"{root}-archive" / "cifar100").mkdir(parents=True)
        archive = tmp_path / f"{root}-archive" / "cifar100" / f"{folder}.tar.gz"
        tar_gz(archive, {f"{folder}/meta": b"", f"{folder}/test{suffix}": content})
        for place in (root, f"{root}-archive"):
            points = load_points("cifar100", data_root=tmp_path / place)
            assert points.targets is not None
            assert (points.reference, points.targets.tolist()) == ("cifar100:test", fine)
            np.testing.assert_allclose(points.raw([3]).ravel(), x[3] / 255, rtol=1e-6)
            digests.add(points.sha256)
    assert len(digests) == 1
    (tmp_path / "binary" / "cifar-100-binary" / "test.bin").write_bytes(rows[:-1])
    assert "expected a multiple of 3074" in refusal("cifar100", data_root=tmp_path / "binary")
    (tmp_path / "python" / "cifar-100-python" / "test").write_bytes(pickle.dumps({b"data": x, b"labels": fine}, 2))
    assert "no data and fine_labels; expected a batch of CIFAR-100" in refusal(
        "cifar100", data_root=tmp_path / "python"
    )


def test_medmnist_is_read_by_its_splits(tmp_path):
    """The layout of medmnist 3.0.2: {split}_images and {split}_labels, labels in a column; val is validation."""
    (tmp_path / "medmnist").mkdir()
    arrays = {}
    for number, split in enumerate(("train", "val", "test"), 3):
        arrays[f"{split}_images"] = np.full((number, 28, 28, 3), number, np.uint8)
        arrays[f"{split}_labels"] = np.arange(number, dtype=np.uint8)[:, None]
    np.savez_compressed(tmp_path / "medmnist" / "bloodmnist.npz", **arrays)
    for split, count in (("train", 3), ("validation", 4), ("test", 5)):
        points = check_labels(load_points(f"bloodmnist:{split}", data_root=tmp_path), 8)
        assert points.targets is not None
        assert points.targets.tolist() == list(range(count))
        assert points.point_shape == (3, 28, 28)
        assert [finding.code for finding in points.findings] == ["channel-last"]
    assert "expected bloodmnist:train, bloodmnist:validation" in refusal("bloodmnist:val", data_root=tmp_path)


def test_notmnist_and_textures_are_folders_of_classes_of_one_split(tmp_path):
    folder = tmp_path / "notMNIST_small"
    for number, letter in enumerate("ABF"):
        (folder / letter).mkdir(parents=True)
        (folder / letter / "x.png").write_bytes(png(np.full((28, 28), number, np.uint8)))
    for empty in ("A/RGVtb2NyYXRpY2FCb2xkT2xkc3R5bGUgQm9sZC50dGY=.png", "F/Q3Jvc3NvdmVyIEJvbGRPYmxpcXVlLnR0Zg==.png"):
        (folder / empty).write_bytes(b"")  # as in the published archive
    points = load_points("notmnist", data_root=tmp_path)
    assert points.targets is not None
    assert (points.reference, points.targets.tolist()) == ("notmnist:small", [0, 1, 2])
    (tmp_path / "dtd" / "images" / "banded").mkdir(parents=True)
    (tmp_path / "dtd" / "images" / "banded" / "banded_0002.png").write_bytes(png(np.zeros((9, 12, 3), np.uint8)))
    for name in ("textures", "dtd"):
        assert load_points(name, data_root=tmp_path, ood=True).reference == "textures:all"
    assert "expected textures:all" in refusal("textures:test", data_root=tmp_path)


def test_a_batch_of_python_2_is_read(tmp_path):
    """Its byte strings are of an opcode that Python 3 no longer writes; put together by hand."""
    x = np.arange(3072, dtype=np.uint8)
    pickled = (
        b"\x80\x02}q\x01(U\x04dataq\x02cnumpy.core.multiarray\n_reconstruct\nq\x03cnumpy\nndarray\nq\x04K\x00\x85q\x05"
        b"U\x01bq\x06\x87q\x07Rq\x08(K\x01K\x01M\x00\x0c\x86q\x09cnumpy\ndtype\nq\x0aU\x02u1q\x0bK\x00K\x01\x87q\x0cRq\x0d"
        b"(K\x03U\x01|q\x0eNNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tq\x0fb\x89T\x00\x0c\x00\x00"
        + x.tobytes()
        + b"q\x10"
        b"tq\x11bU\x06labelsq\x12]q\x13K\x07au."
    )
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    (folder / "test_batch").write_bytes(pickled)
    points = load_points("cifar10:test", data_root=tmp_path)
    np.testing.assert_allclose(points.raw([0]).ravel(), x / 255, rtol=1e-6)
    assert points.targets is not None
    assert points.targets.tolist() == [7]


def test_a_batch_with_code_in_it_does_not_run(cifar, tmp_path):
    folder, _ = cifar
    mark = tmp_path / "ran"
    _, x, y = cifar_batch(3, 0)
    for content in [Evil(mark), {b"data": x, b"labels": y, b"more": Evil(mark)}, {b"data": Evil(mark), b"labels": y}]:
        (folder / "test_batch").write_bytes(pickle.dumps(content, 2))
        assert "which no CIFAR batch needs" in refusal("cifar10:test", data_root=folder.parent)
    (folder / "test_batch").write_bytes(b"\x80\x02cbuiltins\neval\nX\x01\x00\x00\x001\x85R.")
    assert "builtins.eval" in refusal("cifar10:test", data_root=folder.parent)
    assert not mark.exists()


@pytest.mark.parametrize(
    ("pickled", "text"),
    [
        (b"}" + NESTED + b"Ns.", "tuple"),
        (b"}(U\x04data" + NESTED + b"Nu.", "tuple"),
        (b"c_codecs\nencode\n" + NESTED + b"X\x00\x00\x00\x00\x86R.", "tuple"),
        (b"}r" + (2**29).to_bytes(4, "little") + b".", "it numbers its objects up to 536870912"),
        (encoded_again_and_again(2000), "copies the same values"),
    ],
)
def test_a_batch_that_would_take_endless_time_or_memory_is_refused(cifar, pickled, text):
    folder, _ = cifar
    (folder / "test_batch").write_bytes(b"\x80\x02" + pickled)
    assert re.search(
        f"test_batch: cannot be read as a CIFAR-10 batch.*{text}", refusal("cifar10:test", data_root=folder.parent)
    )


def test_an_archive_that_unpacks_to_more_than_cifar10_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(cifar_reader, "_LARGEST_ARCHIVE", 10**6)
    tar_gz(tmp_path / "cifar-10-python.tar.gz", {"cifar-10-batches-py/more": bytes(10**6)})
    assert "unpacks to more than any archive of CIFAR-10" in refusal("cifar10:test", data_root=tmp_path)


@pytest.mark.parametrize("share", [0, 10, 100, 0.5, -30])
def test_a_batch_that_was_cut_short_is_refused(cifar, share):
    folder, batches = cifar
    data = batches["test_batch"][0]
    (folder / "test_batch").write_bytes(data[: int(len(data) * share) if isinstance(share, float) else share])
    assert "test_batch: cannot be read as a CIFAR-10 batch" in refusal("cifar10:test", data_root=folder.parent)


def test_a_batch_of_something_else_is_refused(cifar):
    folder, _ = cifar
    x = np.zeros((2, 3072), np.uint8)
    for content in [
        [],
        {b"data": x},
        {b"data": x, b"labels": [1]},
        {b"data": x.astype(np.float32), b"labels": [1, 2]},
        {b"data": x[:, :5], b"labels": [1, 2]},
        {b"data": np.array([None, None]), b"labels": [1, 2]},
        {b"data": x, b"labels": ["a", "b"]},
    ]:
        (folder / "test_batch").write_bytes(pickle.dumps(content, 2))
        assert "test_batch: " in refusal("cifar10:test", data_root=folder.parent)


def test_svhn_and_mnist_are_found_under_their_published_names(tmp_path, monkeypatch):
    root = tmp_path / "root"
    (root / "svhn").mkdir(parents=True)
    (root / "MNIST" / "raw").mkdir(parents=True)
    save_mat(root / "svhn" / "test_32x32.mat", X=np.zeros((32, 32, 3, 4), np.uint8), y=np.array([[10], [1], [2], [9]]))
    (root / "MNIST" / "raw" / "t10k-images-idx3-ubyte").write_bytes(idx(np.zeros((3, 28, 28), np.uint8)))
    (root / "MNIST" / "raw" / "t10k-labels-idx1-ubyte").write_bytes(idx(np.array([7, 2, 1], np.uint8)))
    svhn = load_points("svhn", data_root=root)
    assert svhn.targets is not None
    assert (svhn.name, svhn.reference, svhn.targets.tolist()) == ("svhn", "svhn:test", [0, 1, 2, 9])
    monkeypatch.setenv("BNUQ_DATA", str(root))
    mnist = load_points("mnist:test")
    assert mnist.targets is not None
    assert mnist.targets.tolist() == [7, 2, 1]
    monkeypatch.delenv("BNUQ_DATA")
    root.rename(tmp_path / "cache_of_another_name")
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache_of_another_name").rename(tmp_path / "cache" / "bnuq")
    assert len(load_points("mnist:test")) == 3


def test_a_known_set_that_is_nowhere_lists_where_it_was_looked_for(tmp_path):
    message = refusal("svhn:test", data_root=tmp_path / "root")
    assert str(tmp_path / "root" / "svhn" / "test_32x32.mat") in message
    assert str(tmp_path / "cache" / "bnuq" / "svhn" / "test_32x32.mat") in message
    assert "--data-root" in message
    assert "BNUQ_DATA" in message


def test_splits_and_names_that_do_not_exist_are_told():
    assert "expected cifar10:train, cifar10:test." in refusal("cifar10:validation")
    assert "expected cifar10:train" in refusal("cifar10:test:1")
    assert "Did you mean fashion-mnist?" in refusal("fashion_mnist")
    assert "there is no such file or folder" in refusal("nowhere/x.npz")
    assert "Names that are known: cifar10, svhn" in refusal("nowhere")
    assert "Did you mean cifar100?" in refusal("cifar-100")
    for name in ("cifar100-c", "CIFAR-10-C:test", "kmnist"):
        message = refusal(name)
        assert "Did you mean" not in message
        assert "Name its path (a folder or .zip of class folders" in message
    for suite in ("openood:cifar10", "openood:cifar10:near:tin"):  # of version 0.2
        assert "Name OOD sets one by one, svhn or NAME=LIST.txt" in refusal(suite)
    assert "Did you mean svhn?" in refusal("svnh", beside=["cifar10:train", "cifar10"])
    assert "Did you mean" not in refusal("cifra10", beside=["cifar10:train"])  # the run's own set
    with pytest.raises(RequestError, match="there is no module 'cifar11'"):
        load_points("cifar11:test")


def test_a_path_comes_before_a_known_name_which_is_said_with_what_names_the_set(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("mnist", "test"):
        (tmp_path / name).mkdir()
    message = "It hides the known set of that name: name mnist:train."
    assert refusal("mnist", split_default="train").endswith(message)
    assert "mnist:test: not found" in refusal("mnist:test")  # no pictures with masks
    for digit in "01":
        (tmp_path / "mnist" / digit).mkdir()
        (tmp_path / "mnist" / digit / "a.png").write_bytes(png(np.zeros((2, 2), np.uint8)))
    points = load_points("MNIST" if (tmp_path / "MNIST").exists() else "mnist")
    assert len(points) == 2 and "known-set-hidden" in noted(points)
    assert "known-set-hidden" not in noted(load_points("./mnist"))


def test_uci_sets_are_split_as_their_files_say(tmp_path):
    folder = tmp_path / "uci" / "boston"
    (folder / "splits").mkdir(parents=True)
    (folder / "data.csv").write_text("a,y\n" + "".join(f"{i},{10 * i}\n" for i in range(6)))
    (folder / "splits" / "test_00.txt").write_text("1\n4\n")
    (folder / "splits" / "test_03.txt").write_text("0\n")
    for reference, rows in [
        ("uci/boston", [1, 4]),
        ("uci-boston:test", [1, 4]),
        ("uci/boston:train", [0, 2, 3, 5]),
        ("uci-boston:train:3", [1, 2, 3, 4, 5]),
    ]:
        points = load_points(reference, data_root=tmp_path)
        assert points.name == "uci-boston"
        assert points.raw(slice(None))[:, 0].tolist() == rows
    assert "test_07.txt: there is no such file" in refusal("uci-boston:test:7", data_root=tmp_path)
    (folder / "splits" / "test_00.txt").write_text("1\n6\n")
    assert "expected different row numbers from 0 to 5" in refusal("uci-boston", data_root=tmp_path)
    (folder / "splits" / "test_00.txt").write_text("one\n")
    assert "cannot be read as row numbers" in refusal("uci-boston", data_root=tmp_path)


def test_the_eight_uci_sets_have_their_rows(data_pack):
    rows = {"boston": (455, 51), "concrete": (927, 103), "kin8nm": (7373, 819), "protein": (41157, 4573)}
    for name, (train, test) in rows.items():
        assert len(load_points(f"uci/{name}:train", data_root=data_pack)) == train
        assert len(load_points(f"uci/{name}:test", data_root=data_pack)) == test


def test_the_list_of_known_sets_says_where_and_whose():
    names = [known.name for known in known_sets()]
    assert names[:4] == ["cifar10", "svhn", "mnist", "fashion-mnist"]
    assert len(names) == len(set(names)) == 26
    assert all(known.source.endswith(".") and known.splits and known.layouts for known in known_sets())
