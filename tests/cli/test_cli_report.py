"""`bnuq report`: the report again, its pictures, and what is refused."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import small_regression
import small_run
import small_sweep

from bnuq.studies.sweep import record as sweep_file

RESULT = "model.bnuq.h5"
pytestmark = pytest.mark.usefixtures("there")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a regression that was evaluated."""
    folder = tmp_path_factory.mktemp("made")
    small_regression.write(folder)
    small_regression.evaluated(folder, methods=("mcbn",))
    return folder


@pytest.fixture(scope="module")
def plain(made: Path) -> Path:
    """The result of the deterministic network alone, without an OOD set, which has few pictures."""
    path = made / "plain.h5"
    small_regression.evaluated(made, out=path, methods=("deterministic",), ood=())
    return path


@pytest.fixture
def there(made: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(made)
    return made


@pytest.mark.nightly
def test_pictures_are_drawn_into_a_folder_that_is_made(cli, tmp_path):
    folder = tmp_path / "new" / "pictures"
    outcome = cli("report", RESULT, "--figures", folder)
    assert outcome.code == 0
    names = re.findall(r"^ · (\S+\.svg)$", outcome.out, flags=re.MULTILINE)
    assert sorted(names) == sorted(path.name for path in folder.iterdir()) and len(names) == 6
    assert all((folder / name).read_bytes().startswith(b"<?xml") for name in names)
    assert f"Figures: {folder}" in outcome.out.replace("Figures:\n", "Figures: ")


def test_json_stays_alone_beside_pictures_of_the_format_asked_for(cli, plain, tmp_path):
    outcome = cli("report", plain, "--figures", tmp_path, "--format", "png", "--json")
    assert json.loads(outcome.out)["model"]["task"] == "regression"
    assert [path.read_bytes()[:4] for path in tmp_path.glob("*.png")] == [b"\x89PNG"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--figures", "x", "--format", "pdf"), "--format is pdf; expected svg or png, or of maps png, npz"),
        (("--format", "svg"), "--format svg is a format of figures, and none are written; add --figures DIR."),
        (("--format", "npz"), "--format npz is a format of maps, and none are written; add --maps DIR."),
        (("--maps", "x"), "Those of the pixels of a segmentation are kept where that is requested"),
        (("--figures", RESULT), f"{RESULT}: figures cannot be put there: it is a file. Name a folder."),
        (("--figures", f"{RESULT}/x"), "figures cannot be put there: Not a directory. Name a folder."),
    ],
)
def test_what_cannot_be_drawn_is_refused_in_one_message(cli, there, arguments, message):
    outcome = cli("report", RESULT, *arguments)
    assert outcome.code == 2 and message in outcome.message and outcome.out == ""
    assert not (there / "x").exists()


@pytest.mark.parametrize("more", [pytest.param((), marks=pytest.mark.nightly), ("--no-images", "--full")])
def test_a_page_without_a_name_has_that_of_the_result(cli, there, monkeypatch, tmp_path, more):
    monkeypatch.chdir(tmp_path)
    outcome = cli("report", there / RESULT, *more[:1], "--html", *more[1:])
    assert outcome.code == 0
    assert (tmp_path / "model.html").read_bytes().startswith(b"<!DOCTYPE html>")
    assert "model.html" in outcome.out


# ── as Markdown ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_markdown_goes_to_a_file_and_may_be_written_again(cli, tmp_path):
    file = tmp_path / "report.md"
    for _ in range(2):
        outcome = cli("report", RESULT, "--markdown", file)
        assert outcome.code == 0 and f"Markdown: {file}" in outcome.out.replace("Markdown:\n", "Markdown: ")
    assert file.read_text(encoding="utf-8").startswith("# bnuq evaluate")


def test_markdown_to_standard_output_is_alone_there_and_the_same(cli, plain, tmp_path):
    outcome = cli("report", plain, "--markdown", "-", "--html", tmp_path / "page.html")
    cli("report", plain, "--markdown", tmp_path / "report.md")
    assert outcome.code == 0 and outcome.out == (tmp_path / "report.md").read_text(encoding="utf-8")
    assert (tmp_path / "page.html").exists()


def test_markdown_does_not_replace_another_file(cli, tmp_path):
    (tmp_path / "notes.md").write_text("# dear diary")
    outcome = cli("report", RESULT, "--markdown", tmp_path / "notes.md")
    assert outcome.code == 2 and "exists and is not a report written by bnuq; name another file." in outcome.message
    assert (tmp_path / "notes.md").read_text() == "# dear diary"


def test_two_things_do_not_go_to_standard_output(cli):
    outcome = cli("report", RESULT, "--markdown", "-", "--json")
    assert outcome.code == 2 and outcome.out == "" and "both go to standard output" in outcome.message


# ── side by side ─────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def copies(there, tmp_path):
    """The result under three names, two of which differ by their folder alone."""
    for folder in ("old", "new"):
        (tmp_path / folder).mkdir()
        shutil.copy(there / RESULT, tmp_path / folder / "model.bnuq.h5")
    shutil.copy(there / RESULT, tmp_path / "third.h5")
    return tmp_path


def test_results_are_named_by_file_by_folder_where_that_is_not_enough_or_as_asked(cli, copies):
    paths = (copies / "old" / RESULT, copies / "new" / RESULT, copies / "third.h5")
    outcome = cli("report", *paths, "--json")
    assert outcome.code == 0 and list(json.loads(outcome.out)["results"]) == ["old/model", "new/model", "third"]
    outcome = cli("report", f"mine={paths[0]}", paths[1], "--json")
    assert list(json.loads(outcome.out)["results"]) == ["mine", "model"]


def test_a_file_with_an_equals_sign_in_its_name_is_that_file(cli, copies):
    shutil.copy(copies / "third.h5", copies / "b=32.h5")
    outcome = cli("report", copies / "b=32.h5", copies / "third.h5", "--json")
    assert list(json.loads(outcome.out)["results"]) == ["b=32", "third"]


def test_results_side_by_side_go_everywhere_that_one_goes(cli, copies, plain):
    asked = ("report", plain, copies / "old" / RESULT)
    outcome = cli(*asked, *("--html", copies / "p.html", "--markdown", copies / "r.md"))
    assert outcome.code == 0 and outcome.err == ""
    printed = " ".join(outcome.out.split())
    assert "2 results side by side" in printed and "bnuq check CURRENT BASELINE" in printed
    assert "Estimates that differ" in (copies / "p.html").read_text(encoding="utf-8")
    assert "|  | plain | model | SE |" in (copies / "r.md").read_text(encoding="utf-8")
    refused = cli(*asked, "--figures", copies / "f")
    assert refused.code == 2 and "side by side has no figures" in " ".join(refused.message.split())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("{third}", "{third}"), "is named twice; name each result once."),
        (("x={third}", "x={old}"), "x is the name of two results; give each its own, as NAME=FILE."),
        (("{third}", "{sweep}"), "is not a result of bnuq evaluate for one run; only those can be shown side by side."),
        (("{third}", "nowhere.h5"), "nowhere.h5"),
        (("{third}", "{text}"), "letter.h5"),
    ],
)
def test_what_cannot_stand_side_by_side_is_refused_in_one_message(cli, copies, arguments, message):
    sweep_file.write(small_sweep.single(), copies / "sweep.h5")
    (copies / "letter.h5").write_text("dear")
    places = {"third": copies / "third.h5", "old": copies / "old" / RESULT, "sweep": copies / "sweep.h5"}
    outcome = cli("report", *(argument.format(**places, text=copies / "letter.h5") for argument in arguments))
    assert outcome.code == 2 and outcome.out == "" and message in " ".join(outcome.message.split())


def test_results_of_two_tasks_do_not_stand_side_by_side(cli, copies):
    small_run.write(copies)
    path = small_run.evaluated(copies, out=Path("labels.h5"), methods=("deterministic",), ood=()).path
    outcome = cli("report", copies / "third.h5", path)
    assert outcome.code == 2 and outcome.out == ""
    assert "third of a regression, labels of a classification" in " ".join(outcome.message.split())


# ── what is loaded ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_matplotlib_is_loaded_for_pictures_alone_and_torch_for_none(there, plain, tmp_path):
    script = (
        "import sys\nfrom bnuq.cli import main\n"
        f"for arguments in ([], ['--markdown', '-'], ['--figures', {str(tmp_path)!r}]):\n"
        f"    try:\n        main(['report', {str(plain)!r}, *arguments])\n"
        "    except SystemExit as leave:\n        assert not leave.code\n"
        "    print({*sys.modules} & {'matplotlib', 'matplotlib.pyplot', 'torch'}, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=there)
    assert done.stderr.splitlines() == ["set()", "set()", "{'matplotlib'}"]


# ── points ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_points_of_largest_score_are_listed(cli):
    outcome = cli("report", RESULT, "--points", "3", "--by", "squared_error")
    title, header, *rows = outcome.out.splitlines()[2:7]
    assert (outcome.code, title) == (0, "3 examples of test with the largest squared error, mcbn")
    assert header.split() == ["target", "mean", "sd", "error", "squared", "error"]
    errors = [[float(word.replace("−", "-")) for word in row.split()[-2:]] for row in rows]
    assert all(error**2 == pytest.approx(squared, rel=1e-2) for error, squared in errors)
    squares = [squared for _, squared in errors]
    assert squares == sorted(squares, reverse=True) and "In short" not in outcome.out


def test_the_points_are_a_section_of_a_page(cli):
    outcome = cli("report", RESULT, "--points", "2", "--markdown", "-")
    assert "## 2 examples of test with the largest variance of samples, mcbn" in outcome.out
    assert "## In short" in outcome.out


def test_all_points_are_written_as_csv_beside_the_report_and_replaced(cli, tmp_path):
    path = tmp_path / "points.csv"
    outcomes = [cli("report", RESULT, "--csv", path) for _ in range(2)]
    assert [outcome.code for outcome in outcomes] == [0, 0] and str(path) in outcomes[0].out
    header, *rows = path.read_text().splitlines()
    assert header.startswith("set,method,index,target,mean,sd,error,") and len(rows) % 2 == 0
    assert json.loads(cli("report", RESULT, "--csv", path, "--json").out)["command"] == "evaluate"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("--points", "3", "--by", "entropy"),
            "the score 'entropy' is not known of these examples; expected one of vari",
        ),
        (("--points", "3", "--set", "svhn"), "examples of 'svhn' are not in the result; expected one of test, far."),
        (("--points", "3", "--method", "laplace"), "the method 'laplace' is not in the result; expected one of"),
        (("--points", "0"), "--points is 0; expected"),
        (("--by", "pll"), "--by says which examples are listed, and none are; add --points N."),
        (("--points", "3", "--json"), "--json prints the summary, which has no examples; write them with --csv FILE"),
        (("--csv", RESULT), f"--csv {RESULT} exists and is not a table of examples written by bnuq; name another"),
        (("--csv", "none/points.csv"), "--csv none/points.csv: its folder does not exist. Make the folder first."),
        ((f"again={RESULT}", "--points", "3"), "--points is for examples of one result of bnuq evaluate; name one"),
    ],
)
def test_points_that_cannot_be_shown_are_refused_in_one_message(cli, tmp_path, arguments, message):
    copy = shutil.copy(RESULT, tmp_path / "other.h5") if arguments[0].startswith("again") else RESULT
    page = tmp_path / "page.md"
    outcome = cli("report", copy, *arguments, *(() if "--json" in arguments else ("--markdown", page)))
    assert outcome.code == 2 and message in outcome.message and outcome.out == "" and not page.exists()
