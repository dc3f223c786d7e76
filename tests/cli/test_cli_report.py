"""`bnuq report`: the report again, its pictures, and what is refused."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import small_regression

RESULT = "model.bnuq.h5"
pytestmark = pytest.mark.usefixtures("there")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a regression that was evaluated."""
    folder = tmp_path_factory.mktemp("made")
    small_regression.write(folder)
    small_regression.evaluated(folder)
    return folder


@pytest.fixture
def there(made: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(made)
    return made


def test_a_regression_is_shown_again(cli):
    outcome = cli("report", RESULT)
    assert outcome.code == 0 and "Between a constant uncertainty and the best one a point" in outcome.out
    assert "Figures:" not in outcome.out and outcome.err == ""


@pytest.mark.parametrize(("form", "start"), [(None, b"<?xml"), ("svg", b"<?xml"), ("png", b"\x89PNG")])
def test_pictures_are_drawn_into_a_folder_that_is_made(cli, tmp_path, form, start):
    folder = tmp_path / "new" / "pictures"
    outcome = cli("report", RESULT, "--figures", folder, *(() if form is None else ("--format", form)))
    assert outcome.code == 0
    told = re.findall(r"^ · (\S+\.(?:svg|png))$", outcome.out, flags=re.MULTILINE)
    assert sorted(told) == sorted(path.name for path in folder.iterdir()) and len(told) == 7
    assert all((folder / name).read_bytes().startswith(start) for name in told)
    assert f"Figures: {folder}" in outcome.out.replace("Figures:\n", "Figures: ")


def test_json_stays_alone_beside_pictures(cli, tmp_path):
    outcome = cli("report", RESULT, "--figures", tmp_path, "--json")
    assert json.loads(outcome.out)["model"]["task"] == "regression"
    assert len(list(tmp_path.iterdir())) == 7


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--figures", "x", "--format", "pdf"), "--format is pdf; expected svg or png."),
        (("--format", "png"), "--format png says how pictures are drawn, and none are; add --figures DIR."),
        (("--figures", RESULT), f"{RESULT}: figures cannot be put there: it is a file. Name a folder."),
        (("--figures", f"{RESULT}/x"), "figures cannot be put there: Not a directory. Name a folder."),
    ],
)
def test_what_cannot_be_drawn_is_refused_in_one_message(cli, there, arguments, message):
    outcome = cli("report", RESULT, *arguments)
    assert outcome.code == 2 and message in outcome.message and outcome.out == ""
    assert not (there / "x").exists()


def test_without_matplotlib_the_report_is_shown_and_pictures_are_refused(cli, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert cli("report", RESULT).code == 0
    outcome = cli("report", RESULT, "--figures", tmp_path / "x")
    assert outcome.code == 2
    assert 'matplotlib, which is not installed. Install it: pip install "bnuq[figures]"' in outcome.message
    assert not (tmp_path / "x").exists()


def test_matplotlib_is_loaded_for_pictures_alone_and_torch_for_none(there, tmp_path):
    def loaded(*arguments: str) -> set[str]:
        script = (
            "import sys\nfrom bnuq.cli import main\n"
            f"try:\n    main({['report', RESULT, *arguments]!r})\n"
            "except SystemExit as leave:\n    assert not leave.code\n"
            "print('\\n'.join(sys.modules), file=sys.stderr)"
        )
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=there)
        return set(done.stderr.split()) & {"matplotlib", "matplotlib.pyplot", "torch"}

    assert loaded() == set()
    assert loaded("--figures", str(tmp_path)) == {"matplotlib"}
