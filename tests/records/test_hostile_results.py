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
from records_at_rest import edited, read_text, without_digest, write_text

from bnuq.errors import ResultError
from bnuq.records import evaluation_file as result_file
from bnuq.records.summary import summary
from bnuq.report.evaluation import report
from bnuq.report.render import print_record


@pytest.fixture(scope="module")
def lean(folder: Path) -> Path:
    """A result with one sampled method, one OOD set and few points."""
    result = small_run.evaluated(folder, out=Path("lean.h5"), methods=("mcbn",), limit=12)
    assert result.path is not None
    return without_digest(result.path)


def outcome(path: Path) -> str:
    """Whether a report and a summary can be made of the file; anything but that or a ResultError escapes."""
    try:
        result = result_file.read(path)
    except ResultError as refused:
        assert str(refused).startswith(str(path))
        assert len(str(refused).splitlines()) == 1
        return "refused"
    stream = io.StringIO()
    print_record(report, result, stream, full=True)
    json.dumps(summary(result), allow_nan=False)
    assert not [c for c in stream.getvalue() if not c.isprintable() and c != "\n"]
    return "shown"


EVIL = "\x1b[2J\x1b]0;owned\x07\x9b31m[bold red]\u202e[/]\r\n<b>"


@pytest.mark.nightly
def test_names_and_texts_cannot_drive_the_terminal_or_the_markup(lean, tmp_path):
    path = Path(shutil.copy(lean, tmp_path / "spoiled.h5"))
    with edited(path) as record:
        record["model"]["path"] = f"/x/{EVIL}.pt"
        record["run"]["data"] = {"train": f"/x/{EVIL}"}
        record["sampling"]["device"] = EVIL
        record["findings"] = [
            {"code": code, "severity": severity, "subject": EVIL, "values": {name: EVIL}}
            for severity in ("warning", "note")
            for code, name in ((EVIL, EVIL), ("setting-ignored", "key"), ("few-samples", "samples"))
        ]
        record["provenance"]["bnuq"] = EVIL
        record["sets"]["test"]["reference"] = EVIL
    stream = io.StringIO()
    print_record(report, result_file.read(path), stream, full=True)
    text = stream.getvalue()
    assert "\\x1b[2J" in text and "[bold red]\\u202e[/]" in "".join(text.split("\n"))
    assert not [c for c in text if not c.isprintable() and c != "\n"]


def test_a_set_or_method_of_an_evil_name_is_shown_harmlessly_or_refused(lean, tmp_path):
    path = Path(shutil.copy(lean, tmp_path / "spoiled.h5"))
    evil = "\x1b[31mowned[bold]"
    with h5py.File(path, "r+") as file:
        for method in ("deterministic", "mcbn"):
            if f"{method}_other" in file["log_likelihood"]:
                file.move(f"log_likelihood/{method}_other", f"log_likelihood/{method}_{evil}")
    with edited(path) as record:
        record["sets"][evil] = record["sets"].pop("other") | {"name": evil}
        for method in record["methods"].values():
            method["sets"][evil], method["ood"][evil] = method["sets"].pop("other"), method["ood"].pop("other")
    assert outcome(path) == "shown"


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-1e999"])
def test_a_text_with_a_number_that_no_summary_can_repeat_is_refused(lean, tmp_path, number):
    path = Path(shutil.copy(lean, tmp_path / "spoiled.h5"))
    write_text(path, json.dumps(read_text(path) | {"seconds": {"total": 0.125}}).replace("0.125", number))
    assert outcome(path) == "refused"


def test_groups_that_are_not_as_many_as_the_points_are_refused(lean, tmp_path):
    path = Path(shutil.copy(lean, tmp_path / "spoiled.h5"))
    with h5py.File(path, "r+") as file:
        file["sets/test/group"] = np.zeros(3, dtype=np.int64)
    with edited(path) as record:
        record["sets"]["test"]["group"] = {"array": "/sets/test/group"}
    assert outcome(path) == "refused"
