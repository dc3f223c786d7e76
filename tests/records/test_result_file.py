"""The result file: laid out as its page says, for h5py, xarray and ArviZ; read back as it was; whole or not at all."""

from __future__ import annotations

import dataclasses
import os
import re
import resource
import shutil
from pathlib import Path

import h5py
import numpy as np
import pytest
import small_run
import torch
from records_at_rest import edited

import bnuq
from bnuq.config import Options, resolve
from bnuq.errors import ResultError
from bnuq.estimates import Estimate
from bnuq.records import evaluation_file as result_file
from bnuq.records.evaluation import Result
from bnuq.store import codec

METHODS = ("deterministic", "mcbn", "mcdo", "mcbn+mcdo")
SAMPLED = METHODS[1:]
SETS = {"test": small_run.TEST, "other": small_run.OTHER, "again": small_run.OTHER}
T, K = small_run.SAMPLES, small_run.CLASSES


def tree(path: Path) -> dict[str, tuple[int, ...]]:
    found: dict[str, tuple[int, ...]] = {}
    with h5py.File(path) as file:
        file.visititems(lambda name, item: found.update({name: item.shape} if isinstance(item, h5py.Dataset) else {}))
    return found


# ── layout ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_tree_is_the_documented_one(written):
    found = tree(written.path)
    expected = {"sets/test/labels": (60,), "sets/test/point": (60,), "observed_data/test": (60,)}
    expected |= {f"sets/{name}/index": (n,) for name, n in SETS.items()}
    for name, n in SETS.items():
        for method in METHODS:
            scores = ("predictive_entropy", "expected_entropy", "max_probability")
            scores += ("mutual_information",) if method in SAMPLED else ()
            expected |= {f"methods/{method}/sets/{name}/points/{score}": (n,) for score in scores}
            expected |= {f"methods/{method}/sets/{name}/predicted": (n,)}
        expected |= {f"posterior_predictive/{method}_{name}": (1, T, n, K) for method in SAMPLED}
    for method in METHODS:
        expected |= {f"methods/{method}/calibration/{key}": (15,) for key in ("bin", "count", "confidence", "accuracy")}
        expected |= {f"methods/{method}/risk/{key}": (60,) for key in ("coverage", "risk")}
    for method in SAMPLED:
        expected |= {f"methods/{method}/convergence/{key}": (4,) for key in ("samples", "pll", "accuracy")}
        expected |= {f"log_likelihood/{method}_test": (1, T, 60)}
    expected |= {
        "statistics/layer000/mean": (T, 4),
        "statistics/layer000/var": (T, 4),
        "statistics/layer000/count": (T,),
    }
    expected |= {f"reference_check/{key}": (1,) for key in ("layer", "mean", "log_variance", "expected")}
    rows = found["estimates/value"]
    expected |= {
        f"estimates/{key}": rows
        for key in ("path", "method", "set", "score", "metric", "unit", "se", "mc_se", "low", "high")
    }
    expected |= {"estimates/jackknife": (*rows, T), "estimates/bootstrap": (*rows, 100)}
    assert expected.items() <= found.items()
    assert not any(f"log_likelihood/deterministic_{name}" in found for name in SETS)
    groups = {name.partition("/")[0] for name in found}
    documented = set(re.findall(r"^    /([a-z_]+)", f"{result_file.__doc__}{codec.__doc__}", flags=re.MULTILINE))
    assert groups == documented - {"maps"}  # of a segmentation alone: tests/runs/test_pixel_maps.py


def test_every_data_set_has_scales_on_all_its_axes_and_every_number_has_units(written):
    with h5py.File(written.path) as file:
        bare = []

        def look(name: str, item: object) -> None:
            if isinstance(item, h5py.Dataset) and not item.is_scale:
                bare.extend(f"{name}[{axis}]" for axis in range(item.ndim) if not len(item.dims[axis]))
            if isinstance(item, h5py.Dataset) and item.dtype.kind in "fiu" and "units" not in item.attrs:
                bare.append(name)

        file.visititems(look)
        assert bare == []
        assert file["methods/mcbn/sets/test/points/mutual_information"].attrs["units"] == "nats"
        assert file["methods/mcbn/sets/test/points/max_probability"].attrs["units"] == "1"
        assert file["methods/mcbn/sets/test/points/brier"].attrs["units"] == "squared probability"
        assert file["statistics/layer000/mean"].attrs["units"] == "activation units"
        rows = zip(file["estimates/metric"].asstr()[()], file["estimates/unit"].asstr()[()], strict=True)
        assert {("pll", "nats"), ("accuracy", "1"), ("brier", "squared probability"), ("auroc", "1")} <= set(rows)
        assert file["log_likelihood/mcbn_test"].attrs["units"] == "nats"
        assert file["log_likelihood/mcbn_test"].dims[1][0].name == "/log_likelihood/draw"


def test_a_result_without_samples_has_no_posterior_predictive(folder):
    found = tree(small_run.evaluated(folder, out=Path("without.h5"), limit=10, methods=("mcdo",), ood=()).path)
    assert not any(name.startswith(("posterior_predictive", "statistics")) for name in found)
    assert "methods/mcdo/sets/test/points/pll" in found


# ── other people's readers ───────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.filterwarnings("ignore")
@pytest.mark.nightly
def test_xarray_opens_it_as_a_tree(written):
    xarray = pytest.importorskip("xarray")
    pytest.importorskip("h5netcdf")
    with xarray.open_datatree(written.path, engine="h5netcdf") as opened:
        information = opened["methods/mcbn/sets/test/points"]["mutual_information"]
        assert information.dims == ("point",)
        assert information.attrs["units"] == "nats"
        np.testing.assert_array_equal(information, written.methods["mcbn"].sets["test"].points["mutual_information"])
        assert opened["posterior_predictive"]["mcdo_other"].dims == ("chain", "draw", "other_point", "class")
        assert opened["estimates"]["jackknife"].dims == ("estimate", "draw")
        assert opened["statistics/layer000"]["mean"].dims == ("draw", "channel")


@pytest.mark.filterwarnings("ignore")
def test_arviz_opens_it_as_inference_data(written):
    data = pytest.importorskip("arviz").from_netcdf(str(written.path))
    assert {"log_likelihood", "observed_data", "posterior_predictive"} <= set(data.groups())
    assert data.log_likelihood["mcbn_test"].dims == ("chain", "draw", "test_point")
    np.testing.assert_array_equal(data.observed_data["test"], written.sets["test"].labels)
    assert data.posterior_predictive["mcbn_test"].shape == (1, T, 60, K)
    pointwise = data.log_likelihood["mcbn+mcdo_test"].values
    pll = (np.logaddexp.reduce(pointwise[0].astype(np.float64), axis=0) - np.log(T)).mean()
    assert pll == pytest.approx(written.methods["mcbn+mcdo"].sets["test"].estimates["pll"].value, abs=1e-6)


# ── what is kept ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_kept_samples_are_the_raw_outputs_of_predict(written, folder):
    model = bnuq.load(folder / "model.pt", arch="net.py:net", base=folder)
    test, train = (np.load(folder / f"{name}.npz")["x"] for name in ("test", "train"))
    omega = bnuq.draw(model, train, samples=T, batch_size=16, seed=0)
    inputs, dropout = torch.from_numpy(test), bnuq.Dropout(T, seed=0)
    expected = {
        "mcbn": bnuq.predict(model, inputs, omega),
        "mcdo": bnuq.predict(model, inputs, dropout=dropout),
        "mcbn+mcdo": bnuq.predict(model, inputs, omega, dropout=dropout),
    }
    with h5py.File(written.path) as file:
        for method, outputs in expected.items():
            np.testing.assert_array_equal(file[f"posterior_predictive/{method}_test"][0], outputs.numpy())
        np.testing.assert_array_equal(file["statistics/layer000/mean"], omega.layers[0].mean)


def test_the_kept_samples_do_not_depend_on_the_chunks(written, folder):
    again = small_run.evaluated(folder, out=Path("chunks.h5"), save_samples=True, chunk_size=7, ood=())
    with h5py.File(written.path) as one, h5py.File(again.path) as two:
        for method in SAMPLED:
            name = f"posterior_predictive/{method}_test"
            np.testing.assert_allclose(one[name], two[name], rtol=1e-5, atol=1e-5)


# ── read back ────────────────────────────────────────────────────────────────────────────────────────────────────────


def same_arrays(one, two) -> bool:
    return (one is None) == (two is None) and (one is None or np.array_equal(one, two, equal_nan=True))


def assert_same_estimate(one: Estimate, two: Estimate) -> None:
    for field in dataclasses.fields(Estimate):
        a, b = getattr(one, field.name), getattr(two, field.name)
        if field.name in ("jackknife", "bootstrap"):
            a = None if a is None or len(a) == 0 else a
            assert same_arrays(a, b), field.name
        else:
            assert a == b, field.name


def test_what_is_read_is_what_was_written(written):
    read = result_file.read(written.path)
    for name in ("model", "sampling", "seconds", "provenance", "findings", "path"):
        assert getattr(read, name) == getattr(written, name), name
    assert list(read.methods) == list(written.methods)
    assert list(read.sets) == list(written.sets)
    for name, one in written.sets.items():
        for field in ("name", "kind", "reference", "sha256", "n", "classes"):
            assert getattr(read.sets[name], field) == getattr(one, field)
        assert same_arrays(read.sets[name].labels, one.labels)
    for name, method in written.methods.items():
        back = read.methods[name]
        for set_name, one in method.sets.items():
            two = back.sets[set_name]
            assert one.estimates.keys() == two.estimates.keys()
            for metric, estimate in one.estimates.items():
                assert_same_estimate(estimate, two.estimates[metric])
            assert one.points.keys() == two.points.keys()
            assert all(same_arrays(one.points[key], two.points[key]) for key in one.points)
            assert same_arrays(one.predicted, two.predicted)
            if name != "deterministic":
                assert same_arrays(one.log_likelihood, two.log_likelihood)
        for set_name, scores in method.ood.items():
            for score, estimates in scores.items():
                for metric, estimate in estimates.items():
                    assert_same_estimate(estimate, back.ood[set_name][score][metric])
        for curve in ("convergence", "calibration", "risk"):
            one, two = getattr(method, curve), getattr(back, curve)
            assert one.keys() == two.keys()
            assert all(same_arrays(one[key], two[key]) for key in one)
    assert written.reference_check is not None and read.reference_check is not None
    assert same_arrays(read.reference_check.mean, written.reference_check.mean)
    assert read.reference_check.passed == written.reference_check.passed


def test_the_run_is_held_whole_and_says_what_was_resolved(written, folder):
    run = result_file.read(written.path).run
    assert run["model"]["checkpoint"] == str(folder / "model.pt")
    assert run["model"]["arch"] == f"{folder / 'net.py'}:net"
    assert run["data"]["train"] == str(folder / "train.npz")
    assert run["data"]["ood"] == [str(folder / "other.npz"), f"again={folder / 'other.npz'}"]
    assert run["sampling"] == {
        "methods": list(SAMPLED), "samples": T, "batch_size": 16, "layers": "all", "seed": 0,
        "mutual_information": "plug-in", "post_hoc": False,
    }  # fmt: skip
    assert run["options"]["save_samples"] is True


def test_errors_over_points_go_by_group(tmp_path):
    """Every point twice, as two crops of one photograph: by group the error is that of half as many points."""
    small_run.write(tmp_path)
    with np.load(tmp_path / "test.npz") as held:
        x, y = held["x"][:30], held["y"][:30]
    np.savez(tmp_path / "once.npz", x=x, y=y)
    np.savez(tmp_path / "twice.npz", x=np.repeat(x, 2, 0), y=np.repeat(y, 2))
    np.savez(tmp_path / "grouped.npz", x=np.repeat(x, 2, 0), y=np.repeat(y, 2), group=np.repeat(np.arange(30), 2))
    found = {
        name: small_run.evaluated(
            tmp_path, test=f"{name}.npz", ood=(), methods=("deterministic",), out=Path(f"{name}.h5")
        )
        for name in ("once", "twice", "grouped")
    }
    errors = {n: r.methods["deterministic"].sets["test"].estimates["pll"].se for n, r in found.items()}
    assert errors["grouped"] == pytest.approx(errors["once"], rel=1e-9)
    assert errors["twice"] < 0.75 * errors["grouped"]
    np.testing.assert_array_equal(
        result_file.read(found["grouped"].path).sets["test"].group, np.repeat(np.arange(30), 2)
    )


# ── whole, or not at all ─────────────────────────────────────────────────────────────────────────────────────────────


def test_a_writer_that_dies_leaves_the_old_file(written, tmp_path, monkeypatch):
    path = tmp_path / "r.h5"
    old = small_run.old_result(path)

    def dies(*_):
        raise KeyboardInterrupt

    for stage in ("_lay_out", "_add_samples", "_reserve"):
        with monkeypatch.context() as patch:
            patch.setattr(result_file, stage, dies)
            result = written if stage == "_lay_out" else with_samples(written)
            with pytest.raises(KeyboardInterrupt):
                result_file.write(result, path)
        assert path.read_bytes() == old
        assert list(tmp_path.iterdir()) == [path]


class Kept:
    """Raw samples in memory."""

    shape = (T, small_run.TEST, K)
    dtype = np.dtype(np.float32)

    def blocks(self):
        yield 0, np.zeros(self.shape, np.float32)


def with_samples(result: Result) -> Result:
    """The result, with raw samples of one set that can still be read (those of the run itself are gone)."""
    methods = {name: dataclasses.replace(m, sets=dict(m.sets)) for name, m in result.methods.items()}
    for method in methods.values():
        for name, one in method.sets.items():
            method.sets[name] = dataclasses.replace(one, samples=None)
    sets = methods["mcbn"].sets
    sets["test"] = dataclasses.replace(sets["test"], samples=Kept())
    return dataclasses.replace(result, methods=methods)


def test_the_room_for_samples_is_taken_before_hdf5_writes_and_given_back(written, tmp_path):
    result = with_samples(written)
    path = tmp_path / "r.h5"
    result_file.write(result, path)
    whole = path.stat().st_size
    assert path.stat().st_blocks * 512 < whole + 65536
    with h5py.File(path) as file:
        assert file["posterior_predictive/mcbn_test"].shape == (1, *Kept.shape)
    before = path.read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (whole + 1000, limits[1]))  # the file would fit, its worst case would not
    try:
        with pytest.raises(ResultError, match="could not be written: the file would be larger"):
            result_file.write(result, path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


# ── files that are no results, or hostile ones ───────────────────────────────────────────────────────────────────────


@pytest.fixture
def copy(written, tmp_path) -> Path:
    """A result file to spoil."""
    return Path(shutil.copy(written.path, tmp_path / "copy.h5"))


def test_a_newer_format_is_refused_by_name(copy):
    with h5py.File(copy, "r+") as file:
        file.attrs["format"], file.attrs["bnuq"] = 7, "3.1.4"
    message = (
        r"copy\.h5 was written by bnuq 3\.1\.4 in format 7; this version reads up to format 1\. Please update bnuq"
    )
    with pytest.raises(ResultError, match=message):
        result_file.read(copy)


@pytest.mark.parametrize("share", [0, 0.1, 0.5, 0.9, 0.999])
def test_a_truncated_file_is_refused(copy, share):
    whole = copy.read_bytes()
    copy.write_bytes(whole[: int(share * len(whole))])
    with pytest.raises(ResultError, match=r"copy\.h5"):
        result_file.read(copy)


def test_a_foreign_file_and_other_hdf5_are_refused(tmp_path, folder):
    (tmp_path / "a.h5").write_text("hello")
    with pytest.raises(ResultError, match=r"a\.h5: is not an HDF5 file \(it looks like text\); expected a result file"):
        result_file.read(tmp_path / "a.h5")
    with pytest.raises(ResultError, match="is not an HDF5 file"):
        result_file.read(folder / "test.npz")
    with h5py.File(tmp_path / "b.h5", "w") as file:
        file["x"] = np.arange(3)
    with pytest.raises(ResultError, match=r"b\.h5 is not a result file of bnuq"):
        result_file.read(tmp_path / "b.h5")
    with pytest.raises(ResultError, match="there is no such file"):
        result_file.read(tmp_path / "c.h5")


def test_links_to_other_files_and_huge_declarations_are_refused(copy, written):
    with h5py.File(copy, "r+") as file:
        del file["methods/mcbn/sets/test/points/pll"]
        file["methods/mcbn/sets/test/points/pll"] = h5py.ExternalLink(
            str(written.path), "/methods/mcbn/sets/test/points/pll"
        )
    with pytest.raises(ResultError, match="is a link to another file"):
        result_file.read(copy)
    with h5py.File(copy, "r+") as file:
        del file["methods/mcbn/sets/test/points/pll"]
        file.create_dataset("methods/mcbn/sets/test/points/pll", shape=(10**12,), dtype="f8", chunks=(1000,))
    with pytest.raises(ResultError, match=r"declares 8e\+12 bytes of data in"):
        result_file.read(copy)


def test_a_result_may_lie_in_a_read_only_place(copy):
    copy.chmod(0o400)
    copy.parent.chmod(0o500)
    try:
        assert result_file.read(copy).path == copy
    finally:
        copy.parent.chmod(0o700)


def test_options_in_a_result_file_cannot_give_leave_to_run_code(copy, tmp_path):
    """A result file that says of itself that its code is trusted."""
    from bnuq.config import resolve_again
    from bnuq.errors import RequestError

    with edited(copy) as record:
        record["run"]["options"]["trust_code"] = True
    with pytest.raises(RequestError, match=r"copy\.h5: options\.trust_code is not known"):
        resolve_again(dict(result_file.read(copy).run), copy, Options(), folder=tmp_path)


def test_what_is_no_result_is_never_replaced(written, tmp_path):
    """Neither data, nor HDF5 of somebody else's, nor a bank of bnuq's own."""
    with h5py.File(tmp_path / "foreign.h5", "w") as file:
        file["x"] = np.arange(3)
        file.attrs["format"] = 1
    np.save(tmp_path / "x.npy", np.zeros(3))
    (tmp_path / "empty.h5").touch()
    for name in ("foreign.h5", "x.npy", "empty.h5"):
        before = (tmp_path / name).read_bytes()
        with pytest.raises(ResultError, match=f"{name} is not a result of bnuq; name another file to write"):
            result_file.write(written, tmp_path / name)
        assert (tmp_path / name).read_bytes() == before


def test_a_path_that_is_not_utf_8_comes_back_as_it_was(written, tmp_path):
    odd = os.fsdecode(b"/home/caf\xe9/model.pt")
    model, run = dict(written.model) | {"path": odd}, dict(written.run) | {"model": {"checkpoint": odd}}
    result = dataclasses.replace(written, model=model, run=run, methods=without_samples(written))
    result_file.write(result, tmp_path / "r.h5")
    read = result_file.read(tmp_path / "r.h5")
    assert read.model["path"] == read.run["model"]["checkpoint"] == odd


def without_samples(result: Result):
    return {
        name: dataclasses.replace(m, sets={s: dataclasses.replace(o, samples=None) for s, o in m.sets.items()})
        for name, m in result.methods.items()
    }


def test_samples_are_kept_in_the_precision_they_were_computed_in(folder):
    options = {"precision": "float64", "methods": ("mcdo",), "save_samples": True, "limit": 10, "ood": ()}
    with h5py.File(small_run.evaluated(folder, out=Path("wide.h5"), **options).path) as file:
        assert file["posterior_predictive/mcdo_test"].dtype == np.float64


def test_a_result_of_a_single_pass_has_no_mutual_information_and_is_read(folder):
    result = small_run.evaluated(folder, out=Path("single.h5"), methods=("mcdo",), samples=1, limit=10, ood=())
    for method in result_file.read(result.path).methods.values():
        assert not {"mutual_information"} & {*method.sets["test"].estimates, *method.sets["test"].points}


# ── memory ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def peak_of(folder: Path, points: int, *, keep: bool) -> int:
    import tracemalloc

    from bnuq.workflows.evaluate import evaluate

    random = np.random.default_rng(1)
    np.savez(
        folder / "many.npz", x=random.normal(size=(points, 1, 6, 6)).astype(np.float32), y=random.integers(0, 3, points)
    )
    run = resolve(
        "run.toml",
        Options(
            test="many.npz", ood=(), methods=("mcdo",), samples=16, post_hoc=False, chunk_size=16, save_samples=keep
        ),
        folder=folder,
    )
    tracemalloc.start()
    try:
        evaluate(run)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("keep", "classes"), [pytest.param(False, 3000, marks=pytest.mark.nightly), (True, 500)], ids=["scores", "samples"]
)
@pytest.mark.nightly
def test_memory_does_not_grow_with_points_times_samples_times_classes(tmp_path, monkeypatch, keep, classes):
    """What grows with n are scores, log-likelihoods and replicates, a few kB a point; never the outputs (T × K)."""
    # What is bounded is bounded below what these few points take: replicates, and units kept in memory.
    monkeypatch.setattr("bnuq.evaluation.tasks.class_probabilities._REPLICATED", 2**20)
    monkeypatch.setattr("bnuq.files.journal._LATEST", 2**16)
    text = small_run.RUN.replace("[data]", f"arch_args = {{ classes = {classes} }}\n[data]")
    small_run.write(tmp_path, text=text, classes=classes)
    few, many = (peak_of(tmp_path, n, keep=keep) for n in (128, 320))  # above the 64 of a chunk of the file
    assert (many - few) / 192 < 0.25 * (16 * classes * 4)
