"""Result files that somebody spoiled: read, reported and summed up, or refused in one sentence; never a fault."""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path

import h5py
import numpy as np
import pytest
import small_run

from bnuq.errors import ResultError
from bnuq.report.terminal import print_report
from bnuq.results import file as result_file
from bnuq.results.summary import summary


@pytest.fixture(scope="module")
def lean(folder: Path) -> Path:
    """A result with one sampled method, one OOD set and few points."""
    result = small_run.evaluated(folder, out=Path("lean.h5"), methods=("mcbn",), limit=12)
    assert result.path is not None
    return result.path


def outcome(path: Path) -> str:
    """Whether a report and a summary can be made of the file; anything but that or a ResultError escapes."""
    try:
        result = result_file.read(path)
    except ResultError as refused:
        assert str(refused).startswith(str(path))
        assert len(str(refused).splitlines()) == 1
        return "refused"
    stream = io.StringIO()
    print_report(result, stream, full=True)
    json.dumps(summary(result), allow_nan=False)
    assert not [c for c in stream.getvalue() if not c.isprintable() and c != "\n"]
    return "shown"


def objects(path: Path) -> list[str]:
    names: list[str] = []
    with h5py.File(path) as file:
        file.visit(names.append)
    return names


# what an object is replaced by
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
    seen = set()
    for name in objects(lean):
        path = Path(shutil.copy(lean, tmp_path / "spoiled.h5"))
        with h5py.File(path, "r+") as file:
            del file[name]
            if replacement == "a group":
                file.create_group(name)
            elif replacement != "nothing":
                file[name] = REPLACEMENTS[replacement]
        seen.add(outcome(path))
    assert "refused" in seen


@pytest.mark.parametrize(
    "value", [None, 7, "not json", "[]", "{}", "null", "[1]", '{"a": 1}', np.zeros(3), b"\xff\xfe"]
)
def test_any_attribute_may_be_missing_or_another(lean, tmp_path, value):
    with h5py.File(lean) as file:
        names = list(file.attrs)
    for name in names:
        path = Path(shutil.copy(lean, tmp_path / "spoiled.h5"))
        with h5py.File(path, "r+") as file:
            del file.attrs[name]
            if value is not None:
                file.attrs[name] = value
        outcome(path)


@pytest.mark.parametrize("replaced", [None, 7, "text", [], {"a": {}}, -1, 1e308])
def test_anything_inside_the_texts_may_be_missing_or_another(lean, tmp_path, replaced):
    with h5py.File(lean) as file:
        texts = {name: json.loads(file.attrs[name]) for name in result_file._TEXTS}
    for name, text in texts.items():
        for key in list(text) if isinstance(text, dict) else range(len(text)):
            spoiled = json.loads(json.dumps(text))
            spoiled[key] = replaced
            path = Path(shutil.copy(lean, tmp_path / "spoiled.h5"))
            with h5py.File(path, "r+") as file:
                file.attrs[name] = json.dumps(spoiled)
            outcome(path)


EVIL = "\x1b[2J\x1b]0;owned\x07\x9b31m[bold red]\u202e[/]\r\n<b>"


def test_names_and_texts_cannot_drive_the_terminal_or_the_markup(lean, tmp_path):
    path = Path(shutil.copy(lean, tmp_path / "spoiled.h5"))
    with h5py.File(path, "r+") as file:
        for attribute, change in {
            "model": lambda held: held | {"path": f"/x/{EVIL}.pt"},
            "run": lambda held: held | {"data": {"train": f"/x/{EVIL}"}},
            "sampling": lambda held: held | {"device": EVIL},
            "notes": lambda _: [EVIL],
            "warnings": lambda _: [{"code": EVIL, "text": EVIL}],
            "provenance": lambda held: held | {"bnuq": EVIL},
            "sets": lambda held: {"test": held["test"] | {"reference": EVIL}, "other": held["other"]},
        }.items():
            file.attrs[attribute] = json.dumps(change(json.loads(file.attrs[attribute])))
    stream = io.StringIO()
    print_report(result_file.read(path), stream, full=True)
    report = stream.getvalue()
    assert "\\x1b[2J" in report and "[bold red]\\u202e[/]" in "".join(report.split("\n"))
    assert not [c for c in report if not c.isprintable() and c != "\n"]


def test_a_set_or_method_of_an_evil_name_is_shown_harmlessly_or_refused(lean, tmp_path):
    path = Path(shutil.copy(lean, tmp_path / "spoiled.h5"))
    evil = "\x1b[31mowned[bold]"
    with h5py.File(path, "r+") as file:
        sets = json.loads(file.attrs["sets"])
        sets[evil] = sets.pop("other") | {"name": evil}
        file.attrs["sets"] = json.dumps(sets)
        file.move("sets/other", f"sets/{evil}")
        for method in ("deterministic", "mcbn"):
            file.move(f"methods/{method}/other", f"methods/{method}/{evil}")
        held = file["figures/set"].asstr()[()]
        file["figures/set"][...] = [evil if name == "other" else name for name in held]
    assert outcome(path) == "shown"


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-1e999"])
def test_a_text_with_a_number_that_no_summary_can_repeat_is_refused(lean, tmp_path, number):
    path = Path(shutil.copy(lean, tmp_path / "spoiled.h5"))
    with h5py.File(path, "r+") as file:
        file.attrs["seconds"] = f'{{"total": {number}}}'
    assert outcome(path) == "refused"


def test_groups_that_are_not_as_many_as_the_points_are_refused(lean, tmp_path):
    path = Path(shutil.copy(lean, tmp_path / "spoiled.h5"))
    with h5py.File(path, "r+") as file:
        file["sets/test/group"] = np.zeros(3, dtype=np.int64)
    assert outcome(path) == "refused"


@pytest.mark.parametrize("value", [1e308, -np.inf, np.nan])
def test_curves_of_any_numbers_are_shown(lean, tmp_path, value):
    path = Path(shutil.copy(lean, tmp_path / "spoiled.h5"))
    with h5py.File(path, "r+") as file:
        for data in file["methods/mcbn/convergence"].values():
            data[...] = value if data.dtype.kind == "f" else 2**62
            if data.dtype.kind == "f":
                data[0] = -value
    assert outcome(path) == "shown"
