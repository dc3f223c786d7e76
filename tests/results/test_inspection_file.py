"""The file of an inspection: it gives back what went in, and is refused where it is damaged."""

from __future__ import annotations

import io
import json
import math
import shutil
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import h5py
import made_up_inspection
import numpy as np
import pytest

from bnuq.errors import ResultError
from bnuq.records import Caution
from bnuq.report.inspection import print_inspection
from bnuq.results import file as result_file
from bnuq.results.inspection import Inspection, read, summary, write
from bnuq.results.reading import kind_of_result


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of an inspection with everything that there is, of few layers."""
    path = tmp_path_factory.mktemp("kept") / "x.inspect.h5"
    made = made_up_inspection.whole()
    assert made.domains is not None and made.pipelines is not None
    pipelines = made.pipelines
    domains = replace(
        made.domains,
        domains=tuple(
            replace(one, layers=one.layers[:2], shift=one.shift[:2], log_ratio=one.log_ratio[:2], ratio=one.ratio[:2])
            for one in made.domains.domains
        ),
    )
    lean = replace(
        made,
        sites=made_up_inspection.sites(0),
        gap=made_up_inspection.gap(0),
        noise=made_up_inspection.noise(0),
        domains=domains,
        pipelines=replace(pipelines, first_round=()),
        cautions=(Caution("never-trained", "a text"),),
        notes=("a note",),
    )
    write(lean, path)
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
    print_inspection(found, stream)
    json.dumps(summary(found), allow_nan=False)
    assert not [c for c in stream.getvalue() if not c.isprintable() and c != "\n"]
    return "shown"


def spoiled(kept: Path, folder: Path) -> Path:
    return Path(shutil.copy(kept, folder / "spoiled.h5"))


# ── what went in ─────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", made_up_inspection.ALL)
def test_a_file_gives_back_every_field_of_what_was_written(name, tmp_path):
    made, path = made_up_inspection.ALL[name](), tmp_path / "x.inspect.h5"
    write(made, path)
    found = read(path)
    np.testing.assert_equal(asdict(found), asdict(replace(made, path=path)))
    assert kind_of_result(path) == "inspection"
    if made.noise is not None and found.noise is not None:
        types = [one.spread.dtype for one in made.noise.layers]
        assert [one.spread.dtype for one in found.noise.layers] == types


def test_float32_stays_what_it_is_and_no_rows_at_all_are_rows(tmp_path):
    made = made_up_inspection.whole()
    assert made.noise is not None and made.gap is not None
    assert made.domains is not None and made.pipelines is not None
    layers = tuple(replace(one, spread=one.spread.astype(np.float32)) for one in made.noise.layers)
    empty = replace(made.domains.domains[0], layers=(), shift=np.zeros(0), log_ratio=np.zeros(0), ratio=np.zeros(0))
    made = replace(
        made,
        sites=(),
        gap=replace(made.gap, layers=(), worth=None, passed=None),
        noise=replace(made.noise, layers=layers, spatial_slope=None),
        domains=replace(made.domains, domains=(empty,), crossings=()),
        pipelines=replace(made.pipelines, candidates=(), first_round=()),
    )
    write(made, tmp_path / "x.h5")
    found = read(tmp_path / "x.h5")
    np.testing.assert_equal(asdict(found), asdict(replace(made, path=tmp_path / "x.h5")))
    assert found.noise is not None and found.noise.layers[0].spread.dtype == np.float32
    assert outcome(tmp_path / "x.h5") == "shown"
    without = replace(made, gap=None, noise=replace(made.noise, layers=(), sizes=()))
    write(without, tmp_path / "x.h5")
    np.testing.assert_equal(asdict(read(tmp_path / "x.h5").noise), asdict(without.noise))  # type: ignore[call-overload]


def test_names_of_any_letters_and_many_layers_find_room(tmp_path):
    made = made_up_inspection.long()
    sites = (replace(made.sites[0], name="网络.bn"), replace(made.sites[1], name="a\0b\udcff"), *made.sites[2:])
    write(replace(made, sites=sites, notes=("a note " * 20_000,)), tmp_path / "x.h5")
    found = read(tmp_path / "x.h5")
    assert [site.name for site in found.sites[:2]] == ["网络.bn", "a\\x00b\\udcff"]
    assert len(found.sites) == len(made.sites) and len(found.notes[0]) == 140_000


# ── other people's readers ───────────────────────────────────────────────────────────────────────────────────────────


def test_h5py_finds_axes_and_units_on_every_set_of_numbers(kept):
    seen = []

    def look(name: str, item: Any) -> None:
        if not isinstance(item, h5py.Dataset):
            return
        seen.append(name)
        if item.dtype.kind in "fi":
            assert item.attrs["units"], name
        assert item.is_scale or all(len(axis) == 1 for axis in item.dims), name

    with h5py.File(kept) as file:
        file.visititems(look)
        assert [axis.keys()[0] for axis in file["noise/spread"].dims] == ["draw", "channel"]
        assert [axis.keys()[0] for axis in file["noise/variances"].dims] == ["layer", "size"]
        assert file["domains/crossings/mutual_information"].attrs["units"] == "nats"
        assert list(file["gap/layer"].asstr()) == ["bn1", "head.bn"]
        assert file["gap/channels"][()].sum() == len(file["gap/shift"])
    assert len(seen) > 80


@pytest.mark.filterwarnings("ignore")
def test_xarray_opens_it_as_a_tree(kept):
    xarray = pytest.importorskip("xarray")
    pytest.importorskip("h5netcdf")
    with xarray.open_datatree(kept, engine="h5netcdf") as tree:
        assert int(tree["noise"]["nominal"].sel(layer="head.bn")) == 128
        assert list(tree["sites"]["site"].values) == ["bn1", "head.bn", "drop", "drop2"]
        assert float(tree["domains/d1"]["ratio"].sel(layer="bn1")) == 40.0


# ── files that somebody spoiled ──────────────────────────────────────────────────────────────────────────────────────

TEXTS = ["a", "b", "c"]
OBJECTS = (None, TEXTS, np.full(12, np.nan), "a group")  # None: there is nothing
VALUES = {"i": (-3, 2**40), "f": (-1.0, np.inf, 1e308)}
ATTRIBUTES = (None, 7, "not json", "[1]", '{"a": 1}', "1e999", b"\xff\xfe")
INSIDE = (None, 7, "text", [], {"a": {}}, 1e308, "\x1b[31mowned\r\n")
ROUNDS = [0, *(pytest.param(number, marks=pytest.mark.slow) for number in range(1, 8))]  # each spoils otherwise


@pytest.mark.parametrize("turn", ROUNDS)
def test_any_object_may_be_missing_or_another(kept, tmp_path, turn):
    names: list[str] = []
    with h5py.File(kept) as file:
        file.visit(names.append)
    seen = {}
    for number, name in enumerate(names[turn % 2 :: 2], turn):
        replacement = OBJECTS[number % len(OBJECTS)]
        path = spoiled(kept, tmp_path)
        with h5py.File(path, "r+") as file:
            del file[name]
            if isinstance(replacement, str):
                file.create_group(name)
            elif replacement is not None:
                file[name] = replacement
        seen[name] = outcome(path)
    shown = {name for name, one in seen.items() if one == "shown"}
    assert {name.rpartition("/")[2] for name in shown} <= {"draw", "channel"}, shown  # numbers that say nothing


@pytest.mark.parametrize("turn", ROUNDS[:6])
def test_numbers_may_be_any(kept, tmp_path, turn):
    """Negative, infinite and huge numbers of the right shape are shown or refused."""
    with h5py.File(kept) as file:
        names: list[str] = []
        file.visititems(lambda name, item: names.append(name) if isinstance(item, h5py.Dataset) else None)
        kinds = {name: kind for name in names if (kind := file[name].dtype.kind) in VALUES}
    seen = set()
    for number, (name, kind) in enumerate(list(kinds.items())[turn % 2 :: 2], turn // 2):
        path = spoiled(kept, tmp_path)
        with h5py.File(path, "r+") as file:
            file[name][...] = VALUES[kind][number % len(VALUES[kind])]
        seen.add(outcome(path))
    assert seen == {"shown", "refused"}


@pytest.mark.parametrize("turn", ROUNDS[:7])
def test_any_attribute_may_be_missing_or_another(kept, tmp_path, turn):
    with h5py.File(kept) as file:
        rooms = ("/", "gap", "noise", "domains", "domains/d0", "pipelines")
        names = [(room, name) for room in rooms for name in file[room].attrs]
    for number, (room, name) in enumerate(names, turn):
        value = ATTRIBUTES[number % len(ATTRIBUTES)]
        path = spoiled(kept, tmp_path)
        with h5py.File(path, "r+") as file:
            del file[room].attrs[name]
            if value is not None:
                file[room].attrs[name] = value
        # which command made it is read nowhere, where its kind is known, and a request may hold anything
        harmless = {"command", "kind"} if value is None else {"command", "bnuq", "run", "worth"}
        assert outcome(path) == "refused" or name in harmless, (room, name, value)


@pytest.mark.parametrize("turn", ROUNDS[:7])
def test_anything_inside_the_texts_may_be_missing_or_another(kept, tmp_path, turn):
    with h5py.File(kept) as file:
        texts = {name: json.loads(file.attrs[name]) for name in ("run", "model", "warnings", "seconds", "provenance")}
    number = turn
    for name, text in texts.items():
        for key in list(text) if isinstance(text, dict) else range(len(text)):
            changed = json.loads(json.dumps(text))
            changed[key] = INSIDE[number % len(INSIDE)]
            number += 1
            path = spoiled(kept, tmp_path)
            with h5py.File(path, "r+") as file:
                file.attrs[name] = json.dumps(changed)
            outcome(path)


def test_names_cannot_drive_the_terminal(kept, tmp_path):
    path, evil = spoiled(kept, tmp_path), "\x1b[31mowned[bold]\r\n"
    with h5py.File(path, "r+") as file:
        file["sites/site"][0] = file["gap/layer"][0] = file["pipelines/candidates/augment"][0] = evil
        file["domains/domain"][0] = file["domains/crossings/domain"][0] = evil
        file["pipelines"].attrs["lines"] = json.dumps(evil)
        file["pipelines"].attrs["undetermined"] = file.attrs["notes"] = json.dumps([evil])
    assert outcome(path) == "shown"


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("sites/kind", "wat", "Invalid enum value 'wat"),
        ("sites/flags", '["new-flag"]', "Invalid enum value 'new-flag"),
        ("gap/channels", 0, "a layer has no channels|has shape"),
        ("noise/size", 0, "a batch size is not a positive number"),
        ("pipelines/candidates/scale", 7, "Invalid enum value 7"),
        ("domains/n", -4, "counts -4"),
    ],
)
def test_what_no_inspection_holds_is_refused(kept, tmp_path, name, value, said):
    path = spoiled(kept, tmp_path)
    with h5py.File(path, "r+") as file:
        file[name][0] = value
    with pytest.raises(ResultError, match=said):
        read(path)


def test_newer_cut_and_other_files_are_refused(kept, tmp_path):
    path = spoiled(kept, tmp_path)
    with h5py.File(path, "r+") as file:
        file.attrs["format"] = 99
    with pytest.raises(ResultError, match=r"written by bnuq 0\.1\.0 in format 99; this version reads up to format 1"):
        read(path)
    with h5py.File(path, "r+") as file:
        file.attrs["kind"] = "sweep"
    with pytest.raises(ResultError, match="is not a result file of bnuq inspect, but of bnuq sweep-batch-size"):
        read(path)
    path.write_bytes(kept.read_bytes()[:5000])
    with pytest.raises(ResultError, match="cut short or damaged"):
        read(path)
    with pytest.raises(ResultError, match="is not a result file of bnuq evaluate, but of bnuq inspect"):
        result_file.read(kept)


def test_a_file_that_is_no_result_is_not_replaced(tmp_path):
    path = tmp_path / "thesis.h5"
    path.write_text("years of work")
    with pytest.raises(ResultError, match="not a result"):
        write(made_up_inspection.bare(), path)
    assert path.read_text() == "years of work"


# ── the summary ──────────────────────────────────────────────────────────────────────────────────────────────────────


def told(made: Inspection) -> dict[str, Any]:
    return json.loads(json.dumps(summary(made), allow_nan=False))


def test_the_summary_has_every_site_with_what_its_kind_has():
    found = told(made_up_inspection.ill())
    assert (found["command"], found["kind"], found["schema"]) == ("inspect", "inspection", 1)
    frozen, drop = found["sites"][1], found["sites"][-2]
    assert frozen == {
        "name": "layer1.0.bn1", "kind": "batchnorm", "order": 1, "channels": 8, "positions": 1024, "eps": 1e-5,
        "momentum": 0.0, "vanishing": 0, "stochastic": False,
        "reason": "it is frozen: it normalises by its running statistics in training", "flags": ["frozen"],
    }  # fmt: skip
    assert drop == {
        "name": "drop", "kind": "dropout", "order": 20, "p": 0.5, "variety": "dropout", "stochastic": True,
        "reason": "", "flags": [],
    }  # fmt: skip
    assert found["unreachable"] == [{"name": "rnn", "reason": "dropout inside an LSTM cannot be reached"}]
    assert [one["code"] for one in found["warnings"]] == ["reference-mismatch", "never-trained"]
    assert len(told(made_up_inspection.long())["sites"]) == 58  # none is left out


def test_the_summary_has_layers_domains_and_pipelines():
    made = made_up_inspection.whole()
    assert made.gap is not None and made.noise is not None
    found = told(made)
    layer, noise = found["gap"]["layers"][0], found["noise"]["layers"][-1]
    assert layer["rms_shift"] == made.gap.layers[0].rms_shift and layer["channels"] == 8
    assert (noise["name"], noise["nominal"], len(noise["variances"])) == ("head.bn", 128, 4)
    assert noise["slope"]["mc_se"] == 0.012 and found["noise"]["spatial_slope"]["value"] == -0.41
    crossing = next(one for one in found["domains"]["crossings"] if one["statistics"] == "digits")
    assert (crossing["domain"], crossing["accuracy"]["value"]) == ("jpeg", pytest.approx(0.83))
    best, *_ = found["pipelines"]["candidates"]
    assert (best["normalize"], best["augment"], best["tied"]) == ("imagenet", "pad 4, crop 32", True)
    assert found["pipelines"]["lines"] == made_up_inspection.LINES
    assert found["pipelines"]["first_round"][0]["normalize"] is None
    bare = told(made_up_inspection.bare())
    assert bare["gap"] is bare["noise"] is bare["domains"] is bare["pipelines"] is None


def test_what_is_not_finite_is_told_in_words():
    found = told(made_up_inspection.unfinite())
    assert found["gap"]["layers"][0]["ratio_log_variance"] == "inf"
    assert found["noise"]["layers"][0]["sigma_u"] == "nan"
    assert math.isnan(float(found["pipelines"]["candidates"][0]["median"]))


def test_reading_and_telling_an_inspection_needs_no_torch(kept):
    script = (
        "import sys; from pathlib import Path; from bnuq.results.inspection import read, summary; "
        "from bnuq.report.inspection import print_inspection; found = read(Path(sys.argv[1])); summary(found); "
        "print_inspection(found, sys.stdout); assert not {'torch', 'scipy.stats', 'matplotlib'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script, str(kept)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
