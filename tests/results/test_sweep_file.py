"""The file of a sweep over mini-batch sizes: it gives back what went in, and is refused where it is damaged."""

from __future__ import annotations

import io
import json
import math
import shutil
from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import small_sweep

from bnuq.errors import ResultError
from bnuq.metrics import METRICS
from bnuq.records import Figure
from bnuq.report.sweep import print_sweep
from bnuq.results import file as result_file
from bnuq.results.reading import kind_of_result
from bnuq.results.sweep import Elbo, Sweep, read, summary, write


@pytest.fixture(params=small_sweep.ALL)
def made(request: pytest.FixtureRequest) -> Sweep:
    return small_sweep.ALL[request.param]()


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of a sweep of both protocols."""
    path = tmp_path_factory.mktemp("kept") / "sweep.h5"
    write(small_sweep.both(), path)
    return path


def agree(one: Any, other: Any, where: str = "sweep") -> None:
    """Every field of two records is the same, to the last bit; a NaN is one."""
    if is_dataclass(one):
        assert type(one) is type(other), where
        for field in fields(one):
            agree(getattr(one, field.name), getattr(other, field.name), f"{where}.{field.name}")
    elif isinstance(one, np.ndarray):
        assert one.dtype == other.dtype, where
        np.testing.assert_array_equal(one, other, where)
    elif isinstance(one, Mapping):
        assert list(one) == list(other), where
        for key, value in one.items():
            agree(value, other[key], f"{where}[{key!r}]")
    elif isinstance(one, tuple):
        assert isinstance(other, tuple) and len(one) == len(other), where
        for number, (a, b) in enumerate(zip(one, other, strict=True)):
            agree(a, b, f"{where}[{number}]")
    elif isinstance(one, float) and math.isnan(one):
        assert math.isnan(other), where
    else:
        assert type(one) is type(other) and one == other, (where, one, other)


# ── what went in ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_file_gives_back_every_field_of_what_was_written(made, tmp_path):
    path = tmp_path / "sweep.h5"
    write(made, path)
    agree(replace(made, path=path), read(path))
    assert kind_of_result(path) == "sweep"


def test_numbers_that_are_none_or_not_finite_come_back_as_they_were(tmp_path):
    plain = small_sweep.single()
    first, second, *others = plain.points
    bare = small_sweep.repeated(0.0, np.random.default_rng(0), mc=0.0, se=0.0)
    spoiled = replace(
        first,
        train_batch_size=None,
        figures={
            **first.figures,
            "pll": {"test": replace(bare, figure=Figure(-math.inf), of_sets=np.full(5, -np.inf))},
            "ece": {"test": replace(bare, figure=Figure(math.nan), of_sets=np.full(5, np.nan))},
            "accuracy": {"test": replace(bare, of_sets=np.array([0.5, 0.25]))},
        },
        auroc={"mutual_information": {"pcbdigits32": bare}},
        elbo=Elbo(Figure(math.nan), Figure(-3.0, se=1.0, mc_se=0.5), math.inf, np.zeros(0)),
    )
    figures = {metric: by for metric, by in second.figures.items() if metric != "predictive_entropy"}
    lean = replace(second, figures=figures, auroc={}, elbo=None)
    made = replace(
        plain,
        points=(lean, *others, spoiled),
        models=(small_sweep.network(name="网络.pt", trained=None),),
        recommended=None,
    )
    path = tmp_path / "sweep.h5"
    write(made, path)
    again = read(path)
    assert [point.batch_size for point in again.points] == [64, 128, 256, 512, 1024, 4096, 32]
    assert "predictive_entropy" not in again.points[0].figures and again.points[0].auroc == {}
    for one, other in zip(made.points, again.points, strict=True):
        assert set(one.figures) == set(other.figures)
        for metric, by in one.figures.items():
            agree(by, other.figures[metric], f"{one.batch_size} {metric}")
        agree(one.auroc, other.auroc)
        agree(one.elbo, other.elbo)
    agree(made.models, again.models)
    json.dumps(summary(again), allow_nan=False)


def test_a_recommendation_keeps_what_is_not_finite_and_what_is_unknown(tmp_path):
    made = small_sweep.single()
    assert made.recommended is not None
    chosen = replace(
        made.recommended,
        behind={64: Figure(0.0), 32: Figure(-math.inf), 128: Figure(math.nan, mc_se=math.inf)},
        within=(),
        predicted_batch_size=Figure(math.inf),
    )
    write(replace(made, recommended=chosen), tmp_path / "sweep.h5")
    agree(read(tmp_path / "sweep.h5").recommended, chosen)


def test_long_records_and_many_layers_find_room(tmp_path):
    """HDF5 has no room for an attribute of more than 64 kB in an object's header."""
    layer = small_sweep.terms().layers[0]
    layers = tuple(replace(layer, name=f"stage.{n}.block.with.a.long.name.bn{n % 3}") for n in range(600))
    long = small_sweep.network(
        elbo=small_sweep.terms(layers=layers),
        layers=tuple(one.name for one in layers),
        record={"data": {"train": "x"}, "long": ["word" * 20] * 3000},
    )
    made = small_sweep.single()
    made = replace(made, models=(long,), notes=("a note " * 20_000,))
    write(made, tmp_path / "sweep.h5")
    agree(read(tmp_path / "sweep.h5").models, made.models)


# ── other people's readers ───────────────────────────────────────────────────────────────────────────────────────────


def test_h5py_finds_axes_and_units_on_every_set_of_numbers(made, tmp_path):
    path = tmp_path / "sweep.h5"
    write(made, path)
    seen = []

    def look(name: str, item: Any) -> None:
        if not isinstance(item, h5py.Dataset):
            return
        seen.append(name)
        if item.dtype.kind in "fi":
            assert item.attrs["units"], name
        assert item.is_scale or all(len(axis) == 1 for axis in item.dims), name

    with h5py.File(path) as file:
        file.visititems(look)
        line = file["matched" if "matched" in file else "single/m0"]
        metric = "mutual_information" if made.task == "classification" else "variance"
        assert [axis.keys()[0] for axis in line[metric].dims] == ["batch_size", "set"]
        assert [axis.keys()[0] for axis in line[f"{metric}_of_sets"].dims] == ["batch_size", "set", "draw_set"]
        assert line[metric].attrs["units"] == METRICS[metric].unit
        assert line["elbo"].attrs["units"] == line["log_likelihood"].attrs["units"] == "nats"
    assert len(seen) > 60


@pytest.mark.filterwarnings("ignore")
def test_xarray_opens_a_line_of_it_and_the_whole_as_a_tree(kept):
    xarray = pytest.importorskip("xarray")
    pytest.importorskip("h5netcdf")
    made = small_sweep.both()
    with xarray.open_dataset(kept, group="single/m0", engine="h5netcdf") as line:
        assert list(line["batch_size"].values) == list(small_sweep.SIZES)
        told = line["mutual_information"].sel(set="svhn", batch_size=64)
        assert float(told) == made.points[1].figures["mutual_information"]["svhn"].figure.value
        assert line["auroc"].dims == ("batch_size", "score", "ood")
        assert np.isnan(line["elbo"].sel(batch_size=4096)) and int(line["degenerate"].sum()) == 1
        assert line["log_likelihood"].dims == ("batch_size", "draw")
    with xarray.open_datatree(kept, engine="h5netcdf") as tree:
        assert list(tree["matched"]["batch_size"].values) == [32, 128, 512]
        assert list(tree["models"]["name"].values) == ["resnet.pt", "m32.pt", "m128.pt", "m512.pt"]
        assert float(tree["models/m0"]["mean"].sel(layer="conv1")) == 97.5


# ── files that somebody spoiled ──────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def lean(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small file with something of everything but the other protocol, which is laid out alike."""
    path = tmp_path_factory.mktemp("lean") / "sweep.h5"
    made = small_sweep.single()
    points = tuple(
        replace(point, figures={"mutual_information": point.figures["mutual_information"]})
        for point in made.points
        if point.batch_size in (64, 128, 4096)
    )
    write(replace(made, points=points, notes=("a note",)), path)
    return path


def outcome(path: Path) -> str:
    """Whether a report and a summary can be made of the file; anything but that or a ResultError escapes."""
    try:
        found = read(path)
    except ResultError as refused:
        assert str(refused).startswith(str(path))
        assert len(str(refused).splitlines()) == 1
        return "refused"
    stream = io.StringIO()
    print_sweep(found, stream)
    json.dumps(summary(found), allow_nan=False)
    assert not [c for c in stream.getvalue() if not c.isprintable() and c != "\n"]
    return "shown"


def spoiled(kept: Path, folder: Path) -> Path:
    return Path(shutil.copy(kept, folder / "spoiled.h5"))


REPLACEMENTS = {
    "nothing": None,
    "three texts": ["a", "b", "c"],
    "records": np.zeros(2, dtype=[("a", "i4"), ("b", "f8")]),
    "NaN": np.full(12, np.nan),
    "no rows": np.zeros(0),
    "a group": "group",
}


@pytest.mark.parametrize("replacement", REPLACEMENTS)
def test_any_object_may_be_missing_or_another(lean, tmp_path, replacement):
    names: list[str] = []
    with h5py.File(lean) as file:
        file.visit(names.append)
    seen = {}
    for name in names:
        path = spoiled(lean, tmp_path)
        with h5py.File(path, "r+") as file:
            del file[name]
            if replacement == "a group":
                file.create_group(name)
            elif replacement != "nothing":
                file[name] = REPLACEMENTS[replacement]
        seen[name] = outcome(path)
    shown = {name for name, one in seen.items() if one == "shown"}
    # Numbers along these axes say nothing that a report tells.
    assert {name.rpartition("/")[2] for name in shown} <= {"draw", "draw_set", "model"}, shown


def test_numbers_may_be_any(lean, tmp_path):
    """Zero, negative, infinite and huge numbers of the right shape are shown or refused."""
    with h5py.File(lean) as file:
        names = []
        file.visititems(lambda name, item: names.append(name) if isinstance(item, h5py.Dataset) else None)
        kinds = {name: file[name].dtype.kind for name in names}
    for name in (name for name in names if kinds[name] in "fi"):
        for value in (0, -3, 2**40) if kinds[name] == "i" else (-1.0, np.inf, np.nan, 1e308):
            path = spoiled(lean, tmp_path)
            with h5py.File(path, "r+") as file:
                file[name][...] = value
            outcome(path)


@pytest.mark.parametrize(
    "value", [None, 7, "not json", "[]", "{}", "null", "[1]", '{"a": 1}', "1e999", np.zeros(3), b"\xff\xfe"]
)
def test_any_attribute_may_be_missing_or_another(lean, tmp_path, value):
    with h5py.File(lean) as file:
        names = [("/", name) for name in file.attrs]
        names += [("single/m0", name) for name in file["single/m0"].attrs]
    for room, name in names:
        path = spoiled(lean, tmp_path)
        with h5py.File(path, "r+") as file:
            del file[room].attrs[name]
            if value is not None:
                file[room].attrs[name] = value
        outcome(path)


@pytest.mark.parametrize("replaced", [None, 7, "text", [], {"a": {}}, -1, 1e308, "nan"])
def test_anything_inside_the_texts_may_be_missing_or_another(lean, tmp_path, replaced):
    with h5py.File(lean) as file:
        texts = {name: json.loads(file.attrs[name]) for name in ("sets", "recommended", "warnings", "seconds")}
        columns = {key: json.loads(file["models"][key].asstr()[0]) for key in ("layers", "elbo", "decay", "record")}
    for name, text in (texts | columns).items():
        for key in list(text) if isinstance(text, dict) else range(len(text)):
            changed = json.loads(json.dumps(text))
            changed[key] = replaced
            path = spoiled(lean, tmp_path)
            with h5py.File(path, "r+") as file:
                if name in columns:
                    file["models"][name][0] = json.dumps(changed)
                else:
                    file.attrs[name] = json.dumps(changed)
            outcome(path)


def test_names_cannot_drive_the_terminal(lean, tmp_path):
    path = spoiled(lean, tmp_path)
    evil = "\x1b[31mowned[bold]\r\n"
    with h5py.File(path, "r+") as file:
        file["models/name"][0] = evil
        file.attrs["notes"] = json.dumps([evil])
        file.attrs["provenance"] = json.dumps({"bnuq": evil})
    assert outcome(path) == "shown"


@pytest.mark.parametrize("line", ["single", "single/m0", "matched"])
def test_a_file_that_has_lost_a_line_of_points_is_refused(kept, tmp_path, line):
    path = Path(shutil.copy(kept, tmp_path / "spoiled.h5"))
    with h5py.File(path, "r+") as file:
        del file[line]
    with pytest.raises(ResultError, match="points of it are missing"):
        read(path)


def test_foreign_newer_and_other_files_are_refused(kept, tmp_path):
    path = spoiled(kept, tmp_path)
    with h5py.File(path, "r+") as file:
        file.attrs["format"] = 99
    with pytest.raises(ResultError, match=r"written by bnuq 0\.1\.0 in format 99; this version reads up to format 1"):
        read(path)
    with h5py.File(path, "r+") as file:
        file.attrs["kind"] = "several"
    with pytest.raises(ResultError, match="is not a result file of bnuq sweep-batch-size"):
        read(path)
    path.write_bytes(kept.read_bytes()[:5000])
    with pytest.raises(ResultError, match="cut short or damaged"):
        read(path)


def test_a_size_that_is_recommended_and_was_not_swept_is_refused(tmp_path):
    made = small_sweep.single()
    assert made.recommended is not None
    write(replace(made, recommended=replace(made.recommended, batch_size=48)), tmp_path / "sweep.h5")
    with pytest.raises(ResultError, match="the size that it recommends is none of its own"):
        read(tmp_path / "sweep.h5")


def test_a_file_that_is_no_result_is_not_replaced(tmp_path):
    path = tmp_path / "thesis.h5"
    path.write_text("years of work")
    with pytest.raises(ResultError, match="not a result"):
        write(small_sweep.single(), path)
    assert path.read_text() == "years of work"


# ── the summary ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_summary_has_every_point_with_its_figures_by_set(kept):
    made = small_sweep.both()
    told = json.loads(json.dumps(summary(read(kept)), allow_nan=False))
    assert (told["command"], told["kind"], told["schema"]) == ("sweep-batch-size", "sweep", 1)
    assert told["result"] == str(kept)
    sizes = [32, 64, 128, 256, 512, 1024, 4096]
    of_sampling = {"samples": 20, "draw_sets": 5, "batch_sizes": sizes, "layers": ["conv1", "bn.2"], "seed": 0}
    assert told["sampling"] == of_sampling
    assert told["sets"]["svhn"] == {"role": "ood", "n": 900, "sha256": "bb"}
    first, *_, last = told["points"]
    assert len(told["points"]) == 10
    assert (first["batch_size"], first["train_batch_size"], first["protocol"]) == (32, 128, "single")
    assert first["model"] == "resnet.pt" and not first["degenerate"]
    figure = made.points[0].figures["mutual_information"]["svhn"].figure
    keys = ("value", "se", "mc_se", "low", "high")
    assert first["mutual_information"]["svhn"] == {key: getattr(figure, key) for key in keys}
    assert first["auroc"] == first["auroc_by"]["mutual_information"] and set(first["auroc"]) == set(small_sweep.OOD)
    elbo = made.points[0].elbo
    assert elbo is not None and first["kl"] == elbo.kl
    assert first["elbo"] == {"value": elbo.elbo.value, "mc_se": elbo.elbo.mc_se}
    whole = told["points"][6]
    assert whole["degenerate"] and whole["elbo"] is None and whole["kl"] is None
    assert last["protocol"] == "matched" and last["model"] == "m512.pt"


def test_the_summary_tells_the_recommendation_and_what_it_rests_on(kept):
    told = summary(read(kept))
    chosen = told["recommended"]
    assert (chosen["batch_size"], chosen["criterion"], chosen["range"]) == (64, "elbo", [32, 64])
    assert chosen["predicted_batch_size"] == {"value": 88.4, "mc_se": 2.9}
    assert chosen["decided_by"] == "likelihood and prior" and chosen["model"] == "resnet.pt"
    assert set(chosen["behind"]) == {"32", "64", "128", "256", "512", "1024"}
    assert chosen["behind"]["64"]["value"] == 0
    model, other, *_ = told["models"]
    assert model["elbo"]["prior"] == "unit" and model["elbo"]["train_size"] == 50_000
    assert model["elbo"]["layers"][1] == {
        "name": "bn.2", "channels": 64, "nominal": 64.0, "mean": 8.5, "sd": "nan",
    }  # fmt: skip
    assert model["decay"]["test"]["slope"]["low"] == -1.04 and other["decay"] == {}
    without = replace(small_sweep.single(), recommended=None)
    assert summary(without)["recommended"] is None


def test_a_sweep_that_is_taken_for_an_evaluation_is_told_as_what_it_is(tmp_path: Path) -> None:
    path = tmp_path / "s.h5"
    write(small_sweep.single(), path)
    with pytest.raises(ResultError, match="is not a result file of bnuq evaluate, but of bnuq sweep-batch-size"):
        result_file.read(path)
