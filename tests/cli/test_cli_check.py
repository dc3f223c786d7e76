"""`bnuq check`: exit codes, outputs, and what is never written over."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock
from xml.etree import ElementTree

import h5py
import pytest
import small_run
import torch
from records_at_rest import edited, without_digest

from bnuq.errors import ResultError
from bnuq.records.evaluation_file import read

Cli = Callable[..., Any]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the tiny network, a baseline, another seed's result, and that of a network that lost its mind."""
    folder = tmp_path_factory.mktemp("checked")
    text = f'{small_run.RUN}methods = ["mcbn"]\npost_hoc = false\n'
    small_run.write(folder, text=text)
    weights = torch.load(folder / "model.pt", weights_only=True)
    weights["7.weight"] = -weights["7.weight"]
    torch.save(weights, folder / "broken.pt")
    (folder / "broken.toml").write_text(text.replace("model.pt", "broken.pt"))
    for name, options in {
        "base": {},
        "seed1": {"seed": 1},
        "fewer": {"samples": 16},
        "worse": {"run_file": "broken.toml"},
    }.items():
        small_run.evaluated(folder, out=folder / f"{name}.h5", **options)
    return folder


@pytest.fixture
def there(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of that folder, as the working folder, and no CI around."""
    folder = tmp_path / "there"
    folder.mkdir()
    for file in made.iterdir():
        if file.is_file():
            (folder / file.name).write_bytes(file.read_bytes())
    monkeypatch.chdir(folder)
    for variable in ("GITHUB_ACTIONS", "GITHUB_STEP_SUMMARY"):
        monkeypatch.delenv(variable, raising=False)
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir() if file.is_file()}


@pytest.mark.usefixtures("there")
def test_a_result_against_itself_or_another_seed_passes(cli: Cli) -> None:
    for name in ("base", "seed1"):
        outcome = cli("check", f"{name}.h5", "base.h5")
        assert outcome.code == 0, outcome.err
        assert outcome.out.startswith("No regression")


@pytest.mark.usefixtures("there")
def test_a_regression_is_exit_code_1_and_named(cli: Cli) -> None:
    outcome = cli("check", "worse.h5", "base.h5")
    assert outcome.code == 1
    assert outcome.err == ""
    assert outcome.out.startswith("Worse: ")
    assert "accuracy" in outcome.out


@pytest.mark.usefixtures("there")
def test_the_json_is_that_of_the_contract(cli: Cli) -> None:
    outcome = cli("check", "worse.h5", "base.h5", "--json")
    assert outcome.code == 1
    summary = json.loads(outcome.out)
    assert {"passed", "comparisons", "bnuq", "schema", "command", "warnings"} <= set(summary)
    assert summary["passed"] is False
    first = summary["comparisons"][0]
    assert first["outcome"] == "worse"
    keys = {"method", "set", "metric", "baseline", "current", "change", "se", "p_value", "p_adjusted", "tolerance"}
    assert keys <= set(first)
    assert first["change"] == pytest.approx(first["current"] - first["baseline"])
    result = read(Path("worse.h5"))
    place = next(comparison for comparison in summary["comparisons"] if comparison["address"] == "mcbn.sets.test.pll")
    assert place["current"] == result.methods["mcbn"].sets["test"].estimates["pll"].value


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["fewer.h5", "base.h5"], "samples: 16 now, 8 in the baseline"),
        (["none.h5", "base.h5"], "none.h5: there is no such file"),
        (["base.h5", "none.h5"], "none.h5: there is no such baseline. Check the path, or make a first one by --update"),
        (["continued.h5", "base.h5", "--strict"], "continued.h5 was continued from finished parts"),
        (["base.h5"], "nothing to check it against"),
        (["base.h5", "base.h5", "--baseline", "base.h5"], "named twice"),
        (["base.h5", "--update"], "name the BASELINE"),
        (["base.h5", "base.h5", "--tolerance", "pll"], "expected METRIC=AMOUNT"),
        (["base.h5", "base.h5", "--junit", "base.h5"], "--junit base.h5 exists and is not a report written by bnuq"),
        (["base.h5", "base.h5", "--markdown", "seed1.h5"], "--markdown seed1.h5 exists and is not a report"),
        (["base.h5", "base.h5", "--markdown", "nowhere/a.md"], "folder does not exist"),
        (["model.pt", "base.h5"], "is not an HDF5 file"),
        (["base.h5", "base.h5", "--config", "net.py"], "net.py is not a TOML file"),
        (["base.h5", "base.h5", "--config", "run.toml"], "--config run.toml has no [check]"),
        (["base.h5", "base.h5", "--config", "loose.toml", "--markdown", "./loose.toml"], "exists and is not a"),
        (["base.h5", "base.h5", "--junit", "a", "--markdown", "./a"], "--markdown a would replace the other report"),
        (["base.h5", "new.h5", "--update", "--junit", "../there/new.h5"], "an input file"),
        (["seed1.h5", "base.h5", "--require", "mcbn.sets.test.pl>=0"], "has no estimate mcbn.sets.test.pl"),
    ],
)
def test_what_cannot_be_compared_is_exit_code_2_and_one_message(there, cli, arguments, complaint):
    Path("loose.toml").write_text("[check]\n")
    Path("continued.h5").write_bytes(Path("base.h5").read_bytes())
    with edited(Path("continued.h5")) as record:
        record["findings"].append({"code": "evaluation-continued", "severity": "note", "values": {"parts": 3}})
    before = contents(there)
    outcome = cli("check", *arguments)
    assert outcome.code == 2
    assert complaint in outcome.message
    assert outcome.out == ""
    assert contents(there) == before


def damaged(path: Path, how: str) -> None:
    data = path.read_bytes()
    if how == "truncated":
        path.write_bytes(data[: len(data) // 2])
    elif how == "empty":
        path.write_bytes(b"")
    elif how == "foreign":
        with h5py.File(path, "w") as file:
            file["x"] = [1, 2, 3]
    else:
        without_digest(path)
        with h5py.File(path, "r+") as file:
            if how == "newer":
                file.attrs["format"] = 99
            elif how == "hostile":
                del file["estimates/value"]
                file["estimates/value"] = h5py.ExternalLink("/etc/passwd", "/x")
            elif how == "nan":
                file["estimates/value"][:] = float("nan")
            elif how == "no error":
                file["estimates/mc_se"][:] = float("inf")
            elif how == "score of nan":
                file["methods/mcbn/sets/other/points/mutual_information"][0] = float("nan")
            elif how == "score missing":
                del file["methods/mcbn/sets/other/points/mutual_information"]
            elif how == "odd run":
                record = json.loads(file["record"][()])
                del file["record"]
                file["record"] = json.dumps(record | {"run": record["run"] | {"sampling": [1, 2]}})


HOW = (
    "truncated", "empty", "foreign", "newer", "hostile", "nan", "no error", "score of nan", "score missing", "odd run",
)  # fmt: skip


@pytest.mark.parametrize("how", HOW)
@pytest.mark.usefixtures("there")
def test_files_that_are_no_good_are_exit_code_2_and_a_sentence(cli: Cli, how: str) -> None:
    damaged(Path("seed1.h5"), how)
    for pair in (("base.h5", "seed1.h5"), ("seed1.h5", "base.h5")):
        outcome = cli("check", *pair)
        assert outcome.code == 2
        assert "seed1.h5" in outcome.message


@pytest.mark.parametrize(
    "place",
    ["bnuq.gate.check", "bnuq.studies.check.ci.junit", "bnuq.gate.baseline.accept", "bnuq.report.render.print_record"],
)
def test_a_fault_in_the_command_is_exit_code_3_and_never_1(there, cli, monkeypatch, place):
    monkeypatch.setattr(place, Mock(side_effect=ZeroDivisionError("a slip")))
    outcome = cli("check", "worse.h5", "base.h5", "--junit", "junit.xml", *(["--update"] if "accept" in place else []))
    assert outcome.code == 3
    assert "a bug in bnuq: ZeroDivisionError: a slip" in outcome.message
    assert (there / "junit.xml").exists() == ("print" in place)


@pytest.mark.parametrize(
    ("on_github", "reader"),
    [
        (True, "true"),
        *(pytest.param(*case, marks=pytest.mark.nightly) for case in ((False, "true"), (False, "head -1"))),
        pytest.param(True, "head -1", marks=pytest.mark.nightly),
    ],
)
@pytest.mark.nightly
def test_a_closed_pipe_makes_no_pass_of_a_regression(there: Path, on_github: bool, reader: str) -> None:
    check = f'"{sys.executable}" -m bnuq check worse.h5 base.h5'
    line = f'{check} 2> said | {reader} > /dev/null; echo "${{PIPESTATUS[0]}}"'
    environment = {**os.environ, "GITHUB_ACTIONS": str(on_github).lower()}
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=True, cwd=there, env=environment)
    assert done.stdout.strip() == "1", (there / "said").read_text()


def test_a_report_that_cannot_be_written_leaves_the_verdict_told(there, cli, monkeypatch):
    def full(*_: object) -> None:
        raise ResultError("junit.xml: could not be written: the disk is full.")

    monkeypatch.setattr("bnuq.files.writing.write_bytes", full)
    outcome = cli("check", "worse.h5", "base.h5", "--junit", "junit.xml")
    assert outcome.code == 2
    assert "the disk is full" in outcome.message
    assert outcome.out.startswith("Worse: ")
    assert not (there / "junit.xml").exists()


def test_text_of_a_file_is_no_command_to_github_in_an_error_either(there, cli, monkeypatch):
    with edited(there / "seed1.h5") as record:
        record["model"]["task"] = "x\n::error title=pwned::hello"
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    outcome = cli("check", "seed1.h5", "base.h5")
    assert outcome.code == 2
    mark, first, *_, last = outcome.err.splitlines()
    assert mark.startswith("::error title=bnuq check%3A nothing was checked::")
    assert last == f"::{first.removeprefix('::stop-commands::')}::"


def test_json_holds_no_command_to_a_runner(there: Path, cli: Cli) -> None:
    text = "##[stop-commands]pwn"
    with edited(there / "seed1.h5") as record:
        record["findings"] = [{"code": "odd", "severity": "warning", "values": {"text": text}}]
    outcome = cli("check", "seed1.h5", "base.h5", "--json")
    assert "##[" not in outcome.out
    assert text in json.loads(outcome.out)["warnings"][-1]["text"]


def test_update_writes_where_it_compared_with(there: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    home = there / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    (home / "base.h5").write_bytes((there / "base.h5").read_bytes())
    assert cli("check", "seed1.h5", "--baseline", "~/base.h5", "--update").code == 0
    assert (home / "base.h5").read_bytes() == (there / "seed1.h5").read_bytes()


@pytest.mark.usefixtures("there")
def test_floors_stand_alone(cli: Cli) -> None:
    value = read(Path("base.h5")).methods["mcbn"].sets["test"].estimates["accuracy"].value
    assert cli("check", "base.h5", "--require", f"mcbn.sets.test.accuracy>={value}").code == 0
    broken = cli("check", "base.h5", "--require", f"mcbn.sets.test.accuracy>={value + 0.001}")
    assert broken.code == 1
    assert "mcbn.sets.test.accuracy" in broken.out


@pytest.mark.usefixtures("there")
def test_tolerances_and_floors_come_from_bnuq_toml_or_the_file_that_is_named(cli: Cli) -> None:
    loose = '[check]\nallow = ["samples"]\nrequire = ["mcbn.sets.test.accuracy>=0.01"]\n[check.tolerance]\n'
    loose += (
        "\n".join(f'"{key}" = "off"' for key in ("*.ood.*", "*.at_threshold.*", "pll", "ece", "aurc"))
        + '\naccuracy = "100%"'
    )
    Path("loose.toml").write_text(loose)
    assert cli("check", "worse.h5", "base.h5", "--config", "loose.toml").code == 0
    assert cli("check", "fewer.h5", "base.h5", "--config", "loose.toml").code == 0
    Path("loose.toml").rename("bnuq.toml")
    outcome = cli("check", "worse.h5", "base.h5", "--json")
    assert outcome.code == 0
    assert any("[check] in bnuq.toml" in note for note in json.loads(outcome.out)["notes"])
    assert cli("check", "worse.h5", "base.h5", "--tolerance", "accuracy=0").code == 1  # an option wins
    Path("bnuq.toml").write_text("[check]\ntolerances = {}\n")
    assert "check.tolerances is not known. Did you mean tolerance?" in cli("check", "worse.h5", "base.h5").message


def test_junit_and_markdown_are_written(there: Path, cli: Cli) -> None:
    assert cli("check", "worse.h5", "base.h5", "--junit", "junit.xml", "--markdown", "change.md").code == 1
    suite = ElementTree.parse(there / "junit.xml").getroot()
    suite = suite if suite.tag == "testsuite" else suite[0]
    failed = {case.get("name") for case in suite.iter("testcase") if case.find("failure") is not None}
    summary = json.loads(cli("check", "worse.h5", "base.h5", "--json").out)
    assert len(failed) > 0
    assert int(suite.get("failures", "0")) == sum(
        comparison["outcome"] == "worse" for comparison in summary["comparisons"]
    )
    text = (there / "change.md").read_text(encoding="utf-8")
    assert "Worse" in text.splitlines()[0]
    assert "| " in text


def test_reports_of_an_earlier_check_do_not_outlive_one_that_could_not_be_carried_out(there: Path, cli: Cli) -> None:
    reports = ("--junit", "junit.xml", "--markdown", "change.md")
    assert cli("check", "base.h5", "base.h5", *reports).code == 0
    assert cli("check", "fewer.h5", "base.h5", *reports).code == 2
    suites = ElementTree.parse(there / "junit.xml").getroot()
    (error,) = suites.iter("error")
    assert (suites.get("errors"), suites.get("failures")) == ("1", "0")
    assert "samples: 16 now, 8 in the baseline" in (error.text or "")
    assert "nothing was checked" in (there / "change.md").read_text(encoding="utf-8").splitlines()[0]


def test_reports_replace_reports_and_nothing_else(there: Path, cli: Cli) -> None:
    (there / "notes.md").write_text("mine")
    (there / "link.md").symlink_to("notes.md")
    for name in ("notes.md", "link.md", "net.py"):
        outcome = cli("check", "base.h5", "base.h5", "--markdown", name)
        assert outcome.code == 2
        assert "exists and is not a report written by bnuq" in outcome.message
    assert (there / "notes.md").read_text() == "mine"
    for _ in "ab":
        assert cli("check", "base.h5", "base.h5", "--markdown", "new.md", "--junit", "new.xml").code == 0


@pytest.mark.parametrize(
    "arguments",
    [
        ("base.h5", "base.h5", "--tolerance", "plll=1"),
        ("base.h5", "base.h5", "--config", "nope.toml"),
        ("base.h5", "base.h5", "--baseline", "base.h5"),
        ("seed1.h5", "base.h5", "--strict", "--config", "unused.toml"),
        ("base.h5", "nowhere/base.h5", "--update"),
    ],
)
def test_no_refusal_leaves_a_green_report(there: Path, cli: Cli, arguments: tuple[str, ...]) -> None:
    reports = ("--junit", "junit.xml", "--markdown", "change.md")
    Path("unused.toml").write_text("[check.tolerance]\ncrps = 1.0\n")
    assert cli("check", "base.h5", "base.h5", *reports).code == 0
    assert cli("check", *arguments, *reports).code == 2
    assert ElementTree.parse(there / "junit.xml").getroot().get("errors") == "1"
    assert "❌" in (there / "change.md").read_text(encoding="utf-8").splitlines()[0]


def test_what_is_no_regular_file_is_said_to_be_none(there: Path, cli: Cli) -> None:
    os.mkfifo(there / "pipe")
    for name in ("pipe", "."):
        assert f"--junit {name} is not a regular file" in cli("check", "base.h5", "base.h5", "--junit", name).message


def test_files_that_only_speak_of_bnuq_check_are_no_reports(there: Path, cli: Cli) -> None:
    for name in ("gate.sh", "notes.md"):
        (there / name).write_text("# bnuq check: how we use it\n")
        for option in ("--junit", "--markdown"):
            assert "exists and is not a report" in cli("check", "base.h5", "base.h5", option, name).message
    assert "names no file" in cli("check", "base.h5", "base.h5", "--junit", "-").message


@pytest.mark.parametrize("digest", [True, False], ids=["digest", "of an earlier version"])
def test_a_damaged_result_is_neither_accepted_nor_meets_a_floor(there: Path, cli: Cli, digest: bool) -> None:
    if not digest:
        without_digest(there / "seed1.h5")
    address = "mcbn.ood.other.mutual_information.auroc"
    with h5py.File(there / "seed1.h5", "r+") as file:
        columns = (file[f"estimates/{key}"].asstr()[()] for key in ("method", "score", "metric"))
        row = list(zip(*columns, strict=True)).index(("mcbn", "mutual_information", "auroc"))
        file["estimates/value"][row] = 0.05
    before = contents(there)
    current = ["base.h5", "--update"], ["--require", f"{address}>=0"], ["--require", f"{address}<=1"], ["base.h5"]
    for arguments in (*(["seed1.h5", *more] for more in current), ["base.h5", "seed1.h5"]):
        outcome = cli("check", *arguments)
        assert outcome.code == 2
        recomputed = f"damaged: {address} is 0.05; recomputed from its examples it is"
        assert ("do not match their SHA-256" if digest else recomputed) in outcome.message
    assert contents(there) == before


@pytest.mark.parametrize("gone", ["log_likelihood/mcbn_test", "sets/test/labels"])
def test_a_result_without_what_its_estimates_are_recomputed_from_is_refused(there: Path, cli: Cli, gone: str) -> None:
    with h5py.File(there / "seed1.h5", "r+") as file:
        del file[gone]
    outcome = cli("check", "seed1.h5", "base.h5")
    assert outcome.code == 2
    assert "incomplete or damaged" in outcome.message


@pytest.mark.usefixtures("there")
def test_printed_markdown_stays_alone_on_github(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    outcome = cli("check", "worse.h5", "base.h5", "--markdown", "-")
    assert outcome.out.startswith("## ❌ bnuq check: ")
    assert "::" not in outcome.out.splitlines()[0] and "\n::" not in outcome.out
    assert outcome.err.startswith("::error ")
    refused = cli("check", "worse.h5", "none.h5", "--markdown", "-")
    assert refused.err.startswith("::error title=bnuq check%3A nothing was checked::")


def test_markdown_goes_to_standard_output_where_asked(there: Path, cli: Cli) -> None:  # noqa: ARG001
    outcome = cli("check", "worse.h5", "base.h5", "--markdown", "-")
    assert outcome.code == 1
    assert outcome.out.startswith("## ❌ bnuq check: Worse")
    quiet = cli("check", "worse.h5", "base.h5", "--markdown", "-", "--quiet")
    assert quiet.out.splitlines()[0] == outcome.out.splitlines()[0]
    assert cli("check", "worse.h5", "base.h5", "--markdown", "-", "--json").code == 2
    assert "above 0 and below 1, such as 0.8" in cli("check", "worse.h5", "base.h5", "--power", "8").message


def test_what_is_wrong_in_a_run_file_is_said_with_its_name(there: Path, cli: Cli) -> None:
    for text, complaint in (
        ('require = ["mcbn.sets.test.pll"]', "bnuq.toml: check.require mcbn.sets.test.pll: expected ADDRESS>=NUMBER"),
        ('allow = ["dat"]', "bnuq.toml: check.allow dat: expected samples"),
        ("tolerance = { pll = -1.0 }", "bnuq.toml: check.tolerance pll is -1.0; expected a number"),
    ):
        (there / "bnuq.toml").write_text(f"[check]\n{text}\n")
        assert complaint in cli("check", "base.h5", "base.h5").message


def test_github_gets_annotations_and_a_step_summary(there: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(there / "summary.md"))
    outcome = cli("check", "worse.h5", "base.h5")
    assert outcome.code == 1
    first, *_ = outcome.out.splitlines()
    word = first.removeprefix("::stop-commands::")
    report, _, marks = outcome.out.partition(f"\n::{word}::\n")
    assert first != word and "Worse" in report  # no text of a file is a command in there
    assert marks.startswith("::error ")
    summary = cli("check", "worse.h5", "base.h5", "--json")
    json.loads(summary.out)  # and nothing else there
    assert summary.err.startswith("::error ")
    assert (there / "summary.md").read_text(encoding="utf-8").count("Worse") >= 2  # each appended its own
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(there / "nowhere" / "summary.md"))
    unwritten = cli("check", "base.h5", "base.h5", "--quiet")
    assert unwritten.code == 0
    assert "could not be written" in unwritten.err


def test_update_accepts_and_keeps_the_old_one_beside(there: Path, cli: Cli) -> None:
    old, new = (there / "base.h5").read_bytes(), (there / "worse.h5").read_bytes()
    outcome = cli("check", "worse.h5", "base.h5", "--update")
    assert outcome.code == 0
    assert (there / "base.h5").read_bytes() == new
    (backup,) = there.glob("base.2*Z.h5")
    assert backup.read_bytes() == old
    assert backup.name in outcome.out
    assert cli("check", "worse.h5", "base.h5").code == 0
    assert cli("check", "seed1.h5", "base.h5", "--update").code == 0
    assert backup.read_bytes() == old
    assert {file.read_bytes() for file in there.glob("base.2*Z*.h5")} == {old, new}


def test_update_makes_the_first_baseline_and_one_that_could_not_be_compared(there: Path, cli: Cli) -> None:
    assert cli("check", "base.h5", "first.h5", "--update").code == 0
    assert (there / "first.h5").read_bytes() == (there / "base.h5").read_bytes()
    outcome = cli("check", "fewer.h5", "first.h5", "--update")
    assert outcome.code == 0
    assert "[not-compared]" in outcome.out
    assert (there / "first.h5").read_bytes() == (there / "fewer.h5").read_bytes()


def test_update_replaces_nothing_but_a_result_and_not_itself(there: Path, cli: Cli) -> None:
    before = contents(there)
    assert "not a result of bnuq" in cli("check", "base.h5", "model.pt", "--update").message
    assert "is the baseline itself" in cli("check", "base.h5", "base.h5", "--update").message
    assert cli("check", "base.h5", "seed1.h5", "--update", "--require", "mcbn.sets.test.accuracy>=1.1").code == 1
    assert contents(there) == before


@pytest.mark.usefixtures("there")
def test_swapped_files_are_a_warning_and_strict_refuses_warnings(cli: Cli) -> None:
    for name, time in (("seed1", "2026-01-01T00:00:00+00:00"), ("base", "2026-01-02T00:00:00+00:00")):
        with edited(Path(f"{name}.h5")) as record:
            record["provenance"]["time"] = time
    outcome = cli("check", "seed1.h5", "base.h5")
    assert outcome.code == 0
    assert "older-than-baseline" in outcome.out
    strict = cli("check", "seed1.h5", "base.h5", "--strict")
    assert strict.code == 2
    assert "older-than-baseline" in strict.message
    assert strict.out.splitlines()[0] == outcome.out.splitlines()[0]
    assert cli("check", "seed1.h5", "base.h5", "--strict", "--json").out == ""
    assert cli("check", "worse.h5", "base.h5", "--strict").code == 1  # new warnings, and a regression


def test_quiet_says_nothing_and_the_code_tells(there: Path, cli: Cli) -> None:  # noqa: ARG001
    for name, code in (("base", 0), ("worse", 1)):
        outcome = cli("check", f"{name}.h5", "base.h5", "--quiet")
        assert (outcome.code, outcome.out, outcome.err) == (code, "", "")


def test_check_imports_neither_torch_nor_scipy_stats(there: Path) -> None:
    script = (
        "import sys\nfrom bnuq.cli import main\ntry:\n    main(['check', 'worse.h5', 'base.h5', '--junit', 'j.xml', "
        "'--markdown', 'm.md'])\nexcept SystemExit as left:\n    assert left.code == 1\n"
        "print('\\n'.join(sys.modules), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=there)
    loaded = set(done.stderr.split())
    assert "bnuq.gate.checking" in loaded
    assert not loaded & {"torch", "scipy.stats", "pandas", "matplotlib"}
