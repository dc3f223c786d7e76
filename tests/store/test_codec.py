"""Files of every kind of record: they give back what went in, and are refused where they are damaged."""

from __future__ import annotations

import io
import json
import math
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import at_night
import h5py
import made_up_inspection
import made_up_monitor
import numpy as np
import pytest
import small_run
import small_sweep
from records_at_rest import without_digest

from bnuq.errors import ResultError
from bnuq.findings import note, warning
from bnuq.records import evaluation_file as result_file
from bnuq.records.as_json import json_of
from bnuq.records.evaluation import Result
from bnuq.records.summary import summary as result_summary
from bnuq.report import evaluation as evaluation_report
from bnuq.report.render import print_record
from bnuq.store.codec import kind_of_result, write
from bnuq.studies.inspect import record as inspection
from bnuq.studies.inspect import view as inspection_report
from bnuq.studies.inspect.record import Inspection
from bnuq.studies.monitor import record as monitor
from bnuq.studies.monitor import view as monitor_report
from bnuq.studies.sweep import record as sweep
from bnuq.studies.sweep import view as sweep_report
from bnuq.studies.sweep.record import Sweep


@dataclass(frozen=True)
class Kind:
    """A kind of record: made-up ones by name, a small one to damage, and what reads and shows it."""

    examples: dict[str, Callable[[], Any]]
    lean: Callable[[], Any]
    read: Callable[[Path], Any]
    summary: Callable[[Any], Any]
    show: Callable[[Any, Any], object]
    write: Callable[[Any, Path], object] = write


def lean_inspection() -> Inspection:
    """Everything that there is, of few layers."""
    made = made_up_inspection.whole()
    assert made.domains is not None and made.pipelines is not None
    domains = tuple(
        replace(
            domain,
            layers=domain.layers[:2],
            shift=domain.shift[:2],
            log_ratio=domain.log_ratio[:2],
            ratio=domain.ratio[:2],
        )
        for domain in made.domains.domains
    )
    return replace(
        made,
        sites=made_up_inspection.sites(0),
        gap=made_up_inspection.gap(0),
        noise=made_up_inspection.noise(0),
        domains=replace(made.domains, domains=domains),
        pipelines=replace(made.pipelines, first_round=()),
        findings=(
            warning("never-trained", layers=["1", "bn.2"], evaluated=True),
            replace(note("counts-measured", mini_batches=64, means=[0.5, 1.0], deviations=[2, 3e300]), subject="net"),
            replace(warning("reference-mismatch", run_file=None, odd=math.inf, rows=[["a", 1], ["b", 2]]), runs=3),
        ),
    )


def lean_evaluation() -> Result:
    """One sampled method, one OOD set and few points."""
    with tempfile.TemporaryDirectory() as folder:
        small_run.write(Path(folder))
        return small_run.evaluated(Path(folder), out=Path("lean.h5"), methods=("mcbn",), limit=12, post_hoc=False)


def lean_sweep() -> Sweep:
    """Two sizes of one network, with everything that a point may have."""
    made = small_sweep.single()
    return replace(made, points=made.points[:2], recommended=None)


KINDS = {
    "sweep": Kind(small_sweep.ALL, lean_sweep, sweep.read, json_of, partial(print_record, sweep_report.report)),
    "evaluation": Kind(
        {},
        lean_evaluation,
        result_file.read,
        result_summary,
        partial(print_record, evaluation_report.report),
        result_file.write,
    ),
    "inspection": Kind(
        made_up_inspection.ALL,
        lean_inspection,
        inspection.read,
        json_of,
        partial(print_record, inspection_report.report),
    ),
    "monitor": Kind(
        made_up_monitor.ALL,
        made_up_monitor.alarmed,
        monitor.read,
        json_of,
        partial(print_record, monitor_report.report),
    ),
}


@pytest.fixture(
    scope="module", params=[pytest.param(name, marks=pytest.mark.run if name == "evaluation" else ()) for name in KINDS]
)
def kind(request: pytest.FixtureRequest) -> Kind:
    return KINDS[request.param]


@pytest.fixture(scope="module")
def kept(kind: Kind, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("kept") / "lean.h5"
    kind.write(kind.lean(), path)
    return without_digest(path)


def outcome(kind: Kind, path: Path) -> str:
    """Whether a report and a summary can be made of the file; anything but that or a ResultError escapes."""
    try:
        record = kind.read(path)
    except ResultError as refused:
        assert str(refused).startswith(str(path))
        assert len(str(refused).splitlines()) == 1
        return "refused"
    stream = io.StringIO()
    kind.show(record, stream)
    json.dumps(kind.summary(record), allow_nan=False)
    assert not [c for c in stream.getvalue() if not c.isprintable() and c != "\n"]
    return "shown"


def spoiled(kept: Path, folder: Path) -> Path:
    return Path(shutil.copy(kept, folder / "spoiled.h5"))


# ── the SHA-256 ───────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("turn", at_night.but({0}, range(4)))
def test_one_changed_value_of_any_array_or_estimate_is_found(kind, tmp_path, turn):
    kind.write(kind.lean(), written := tmp_path / "written.h5")
    assert kind.read(written).path == written
    with h5py.File(written) as file:
        paths = set(_arrays(json.loads(file["record"][()])))
        paths |= {f"/estimates/{name}" for name in file["estimates"]}
        paths = sorted(path for path in paths if file[path].size)
    for path in paths[turn::4]:
        copy = spoiled(written, tmp_path)
        with h5py.File(copy, "r+") as file:
            data, place = file[path], (0,) * file[path].ndim
            value = data[place]
            data[place] = (
                "other"
                if isinstance(value, bytes)
                else np.bitwise_xor(np.atleast_1d(value).view(np.uint8), 1).view(data.dtype)[0]
            )
        with pytest.raises(ResultError, match=r"spoiled\.h5: the result file is incomplete or damaged \("):
            kind.read(copy)
    copy = without_digest(spoiled(written, tmp_path))
    added = kind.read(copy).findings[len(kind.read(written).findings) :]  # of an earlier version, or edited
    assert [finding.code for finding in added] == ["without-digest"]


def _arrays(tree: Any) -> list[str]:
    """The paths of the arrays that a record's JSON names."""
    if isinstance(tree, dict) and tree.keys() == {"array"}:
        return [tree["array"]]
    items = tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list) else ()
    return [path for item in items for path in _arrays(item)]


def test_the_digest_covers_values_that_nothing_else_contradicts(kind, tmp_path):
    kind.write(kind.lean(), path := tmp_path / "x.h5")
    with h5py.File(path, "r+") as file:
        file["estimates/value"][0] *= 1 + 1e-12
    with pytest.raises(ResultError, match=r"\(its estimates or arrays do not match their SHA-256\)\. Fetch it again"):
        kind.read(path)


# ── what went in ─────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("name", "example"), [(name, example) for name in KINDS for example in KINDS[name].examples])
def test_a_file_gives_back_every_field_of_what_was_written(name, example, tmp_path):
    kind = KINDS[name]
    record, path = kind.examples[example](), tmp_path / "x.h5"
    write(record, path)
    np.testing.assert_equal(asdict(kind.read(path)), asdict(replace(record, path=path)))
    assert kind_of_result(path) == record.KIND


def test_float32_stays_what_it_is_and_no_rows_at_all_are_rows(tmp_path):
    made = made_up_inspection.whole()
    assert made.noise is not None and made.gap is not None
    assert made.domains is not None and made.pipelines is not None
    layers = tuple(replace(layer, spread=layer.spread.astype(np.float32)) for layer in made.noise.layers)
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
    found = inspection.read(tmp_path / "x.h5")
    np.testing.assert_equal(asdict(found), asdict(replace(made, path=tmp_path / "x.h5")))
    assert found.noise is not None and found.noise.layers[0].spread.dtype == np.float32


def test_names_of_any_letters_and_many_layers_are_kept(tmp_path):
    made = made_up_inspection.long()
    sites = (replace(made.sites[0], name="网络.bn"), replace(made.sites[1], name="a\0b\udcff"), *made.sites[2:])
    write(replace(made, sites=sites, findings=(note("long", text="a note " * 20_000),)), tmp_path / "x.h5")
    found = inspection.read(tmp_path / "x.h5")
    assert [site.name for site in found.sites[:2]] == ["网络.bn", "a\0b\udcff"]
    assert len(found.sites) == len(made.sites) and len(found.findings[0].values["text"]) == 140_000


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
    assert len(seen) > 10


def test_the_axes_of_an_inspection_are_named_and_its_estimates_have_coordinates(tmp_path):
    write(lean_inspection(), path := tmp_path / "x.h5")
    with h5py.File(path) as file:
        assert [axis.keys()[0] for axis in file["noise/layers/0/spread"].dims] == ["draw", "channel"]
        assert file["noise/layers/0/variances"].dims[0][0] == file["noise/size"]
        table = file["estimates"]
        rows = list(zip(*(table[key].asstr()[()] for key in ("domain", "statistics", "metric", "unit")), strict=True))
        assert ("jpeg", "digits", "mutual_information", "nats") in rows
        row = rows.index(("jpeg", "digits", "accuracy", "1"))
        assert table["value"][row] == pytest.approx(0.83)
        assert table["path"].asstr()[row].startswith("/domains/crossings/")


@pytest.mark.parametrize("kind", at_night.but({"evaluation"}, KINDS), indirect=True)
@pytest.mark.filterwarnings("ignore")
def test_xarray_opens_it_as_a_tree(kept, tmp_path):
    xarray = pytest.importorskip("xarray")
    pytest.importorskip("h5netcdf")
    with xarray.open_datatree(kept, engine="h5netcdf") as tree:
        assert {"metric", "value", "se", "unit"} <= set(tree["estimates"].variables)
    write(lean_inspection(), path := tmp_path / "x.h5")
    with xarray.open_datatree(path, engine="h5netcdf") as tree:
        assert float(tree["domains/domains/1"]["ratio"].sel(layer="bn1")) == 40.0


# ── files that somebody spoiled ──────────────────────────────────────────────────────────────────────────────────────

TEXTS = ["a", "b", "c"]
OBJECTS = (None, TEXTS, np.full(13, np.nan), "a group")  # None: there is nothing
VALUES = {"i": (-3, 2**40), "f": (-1.0, np.inf, 1e308)}
ATTRIBUTES = (None, 7, "not json", "[1]", '{"a": 1}', "1e999", b"\xff\xfe")
INSIDE = (None, 7, "text", [], {"a": {}}, 1e308, "\x1b[31mowned\r\n", {"array": "/record"}, {"estimate": 10**9}, -1)
ROUNDS = at_night.but({0}, range(24))  # each spoils otherwise


@pytest.mark.parametrize("turn", ROUNDS[:16])
def test_any_object_may_be_missing_or_another(kind, kept, tmp_path, turn):
    names: list[str] = []
    with h5py.File(kept) as file:
        file.visit(names.append)
        free = ("observed_data", "statistics", "log_likelihood/")  # what bnuq does not read back
        scales = {name for name in names if name.startswith(free)}
        scales |= {name for name in names if isinstance(file[name], h5py.Dataset) and file[name].is_scale}
    shown = set()
    for number, name in enumerate(names[turn::16], turn):
        replacement = OBJECTS[number % len(OBJECTS)]
        path = spoiled(kept, tmp_path)
        with h5py.File(path, "r+") as file:
            del file[name]
            if isinstance(replacement, str):
                file.create_group(name)
            elif replacement is not None:
                file[name] = replacement
        if outcome(kind, path) == "shown":
            shown.add(name)
    columns = {f"estimates/{name}" for name in ("path", "unit", *COORDINATES)}  # for other readers
    assert shown <= scales | columns, shown - scales - columns


COORDINATES = {
    *("method", "set", "score", "metric", "batch_size", "layer", "domain", "statistics", "bound", "model", "protocol")
}


@pytest.mark.parametrize("kind", at_night.but({"sweep", "monitor"}, KINDS), indirect=True)
@pytest.mark.parametrize("turn", ROUNDS[:12])
def test_numbers_may_be_any(kind, kept, tmp_path, turn):
    """Negative, infinite and huge numbers of the right shape are shown or refused."""
    with h5py.File(kept) as file:
        names: list[str] = []
        file.visititems(lambda name, item: names.append(name) if isinstance(item, h5py.Dataset) else None)
        kinds = {name: letter for name in names if (letter := file[name].dtype.kind) in VALUES}
    for number, (name, letter) in enumerate(list(kinds.items())[turn % 8 :: 8], turn // 2):
        path = spoiled(kept, tmp_path)
        with h5py.File(path, "r+") as file, np.errstate(over="ignore"):
            file[name][...] = VALUES[letter][number % len(VALUES[letter])]
        outcome(kind, path)


@pytest.mark.parametrize("turn", ROUNDS[:7])
def test_any_attribute_may_be_missing_or_another(kind, kept, tmp_path, turn):
    with h5py.File(kept) as file:
        names = list(file.attrs)
    for number, name in enumerate(names, turn):
        value = ATTRIBUTES[number % len(ATTRIBUTES)]
        path = spoiled(kept, tmp_path)
        with h5py.File(path, "r+") as file:
            del file.attrs[name]
            if value is not None:
                file.attrs[name] = value
        # which command made it is read nowhere, where its kind is known
        assert outcome(kind, path) == "refused" or name == "command" or (name == "bnuq" and value is not None)


def places(tree: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where there is a value in a JSON text, at most two of each list."""
    items = tree.items() if isinstance(tree, dict) else enumerate(tree[:2]) if isinstance(tree, list) else ()
    return [path] + [place for key, value in items for place in places(value, (*path, key))]


@pytest.mark.parametrize("kind", at_night.but({"sweep", "monitor"}, KINDS), indirect=True)
@pytest.mark.parametrize("turn", ROUNDS)
def test_anything_inside_the_record_may_be_missing_or_another(kind, kept, tmp_path, turn):
    with h5py.File(kept) as file:
        record = json.loads(file["record"][()])
    outcomes = set()
    for number, place in enumerate(places(record)[turn::24], turn):
        *above, last = place or (None,)
        if last is None:
            continue
        changed = json.loads(json.dumps(record))
        home = changed
        for key in above:
            home = home[key]
        home[last] = INSIDE[number % len(INSIDE)]
        path = spoiled(kept, tmp_path)
        with h5py.File(path, "r+") as file:
            del file["record"]
            file["record"] = json.dumps(changed)
        outcomes.add(outcome(kind, path))
    assert "refused" in outcomes


def test_names_cannot_drive_the_terminal(kind, kept, tmp_path):
    evil = "\x1b[31mowned[bold]\r\n"

    def hexed(tree: Any) -> Any:
        if isinstance(tree, dict):
            return {key: hexed(value) for key, value in tree.items()}
        if isinstance(tree, list):
            return [hexed(value) for value in tree]
        return f"{tree}{evil}" if isinstance(tree, str) and " " in tree else tree

    with h5py.File(kept) as file:
        record = json.loads(file["record"][()])
    path = spoiled(kept, tmp_path)
    with h5py.File(path, "r+") as file:
        del file["record"]
        file["record"] = json.dumps(hexed(record))
    assert outcome(kind, path) == "shown"


def test_a_record_nested_deep_or_cut_short_is_refused(kind, kept, tmp_path):
    for text in ("[" * 100_000 + "]" * 100_000, '{"run": {', "", "null", "[]"):
        path = spoiled(kept, tmp_path)
        with h5py.File(path, "r+") as file:
            del file["record"]
            file["record"] = text
        assert outcome(kind, path) == "refused"


@pytest.mark.parametrize(
    ("place", "value", "said"),
    [
        (("sites", 0, "kind"), "wat", "Invalid enum value 'wat"),
        (("sites", 0, "flags"), ["new-flag"], "Invalid enum value 'new-flag"),
        (("gap", "layers", 0, "shift"), {"array": "/noise/layers/0/spread"}, r"gap\.layers\[0\]\.shift"),
        (("noise", "sizes", 0), 0, "Expected `int` >= 1"),
        (("pipelines", "candidates", 0, "scale"), 7, "Invalid enum value 7"),
        (("domains", "domains", 0, "n"), -4, "Expected `int` >= 0"),
    ],
)
def test_what_no_inspection_holds_is_refused_by_its_place(tmp_path, place, value, said):
    write(lean_inspection(), path := tmp_path / "x.h5")
    with h5py.File(path, "r+") as file:
        record = json.loads(file["record"][()])
        *above, last = place
        home = record
        for key in above:
            home = home[key]
        home[last] = value
        del file["record"]
        file["record"] = json.dumps(record)
    with pytest.raises(ResultError, match=said):
        inspection.read(path)


def test_newer_cut_and_other_files_are_refused(kind, kept, tmp_path):
    path = spoiled(kept, tmp_path)
    with h5py.File(path, "r+") as file:
        file.attrs["format"] = 99
    with pytest.raises(ResultError, match=r"written by bnuq [\d.]+ in format 99; this version reads up to format 1"):
        kind.read(path)
    with h5py.File(path, "r+") as file:
        file.attrs["kind"], file.attrs["command"] = "another", "predict"
    with pytest.raises(ResultError, match=r"is a result of bnuq predict \(another\); expected one of a kind"):
        kind_of_result(path)
    with h5py.File(path, "r+") as file:
        file.attrs["format"] = 1
    with pytest.raises(ResultError, match=r"result (file )?of bnuq .*predict"):
        kind.read(path)
    path.write_bytes(kept.read_bytes()[:5000])
    with pytest.raises(ResultError, match="cut short or damaged"):
        kind.read(path)


def test_a_file_that_is_no_result_is_not_replaced(tmp_path):
    path = tmp_path / "thesis.h5"
    path.write_text("years of work")
    with pytest.raises(ResultError, match="not a result"):
        write(made_up_inspection.bare(), path)
    assert path.read_text() == "years of work"


def test_reading_an_inspection_needs_no_torch(tmp_path):
    write(lean_inspection(), path := tmp_path / "x.h5")
    script = (
        "import sys; from pathlib import Path; from bnuq.studies.inspect.record import read; "
        "from bnuq.records.as_json import json_of; "
        "from bnuq.studies.inspect.view import report; from bnuq.report.render import print_record; "
        "found = read(Path(sys.argv[1])); json_of(found); "
        "print_record(report, found, sys.stdout); assert not {'torch', 'scipy.stats', 'matplotlib'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script, str(path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
