"""`python -m experiments`: every experiment runs, its result is shown again, and nothing heavy is loaded for help."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import at_night
import h5py
import pytest
from report_text import rendered
from small_experiments import ALL, EXPERIMENTS, Finished, run
from small_run import old_result

from bnuq.cli import progress
from bnuq.errors import ResultError
from bnuq.report.render import draw_pictures
from experiments.__main__ import _kind
from experiments.uci import protocol

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(
    scope="module",
    # bn-in-vi goes through the same code as the first of these, with four networks instead of thirteen
    params=at_night.but(EXPERIMENTS.keys() - {"stochastic-normalization", "batch-size", "toy"}, EXPERIMENTS),
)
def finished(request: pytest.FixtureRequest, ran: Callable[[str], Finished]) -> Finished:
    return ran(request.param)


def test_every_experiment_is_shown_again_as_it_was_printed(finished, called, monkeypatch):
    monkeypatch.chdir(finished.folder)
    assert called("report", finished.path.name) == (0, finished.printed, "")
    assert EXPERIMENTS[finished.name][1] in finished.printed
    kind = _kind(finished.kind)
    code, printed, _ = called("report", finished.path.name, "--json")
    assert code == 0
    assert json.loads(printed) == json.loads(json.dumps(kind.summary(kind.read(finished.path)), allow_nan=False))


def test_its_pictures_are_drawn_in_both_forms_and_are_the_same_bytes_again(finished: Finished, tmp_path: Path) -> None:
    kind = _kind(finished.kind)
    svgs = draw_pictures(kind.report(kind.read(finished.path)), tmp_path)
    assert [path.name for path in svgs] == (
        [f"{finished.name}.svg"] if "--figures" in EXPERIMENTS[finished.name][0] else []
    )
    for path in svgs:
        first = finished.folder / "pictures" / path.name
        assert path.read_bytes() == first.read_bytes()
        assert path.read_bytes().startswith(b"<?xml")
        assert first.with_suffix(".png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(("width", "encoding"), [(40, "utf-8"), (40, "ascii"), (80, "ascii"), (100, "utf-8")])
def test_its_report_fits_every_width_in_either_encoding(finished: Finished, width: int, encoding: str) -> None:
    kind = _kind(finished.kind)
    lines = rendered(kind.report, kind.read(finished.path), width=width, encoding=encoding).splitlines()
    assert len(lines) > 20
    assert all(len(line) <= width and line == line.rstrip() for line in lines if line != str(finished.path))
    assert not {"?", "{", "}"} & set("".join(lines))


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [("format", 99, "in format 99"), ("kind", "predict", "is not a result file of bnuq"), ("record", None, "damaged")],
)
def test_a_newer_another_and_a_damaged_result_are_refused(finished, tmp_path, key, value, message):
    path = tmp_path / "changed.h5"
    path.write_bytes(finished.path.read_bytes())
    with h5py.File(path, "r+") as file:
        if value is None:
            del file[key]
        else:
            file.attrs[key] = value
    with pytest.raises(ResultError, match=message):
        _kind(finished.kind).read(path)


@pytest.mark.nightly  # a second run of uci
def test_the_methods_whose_noise_is_learned_stand_beside_the_published_column(called, small_root, tiny, monkeypatch):
    pytest.importorskip("zuko")
    monkeypatch.setattr(protocol, "SMOKE", replace(tiny, weight_decays=(1e-3,), max_epochs=5, samples=8))
    arguments = ("--sets", "smoke", "--method", "mnf,vi", "--data-root", small_root, "--workers", "1")
    code, printed, errors = called("uci", *arguments, "--device", "cpu", "--markdown", "page.md")
    assert code == 0 and errors.startswith("6 searches of settings") and "the same command resumes" in errors
    assert called("report", "reproduce-uci.h5") == (0, printed, "")
    assert "MNF, VI, VI with BN 2 splits × 1 seed; λ 0.001" in " ".join(printed.split())
    assert "(MCBN)" not in printed
    page = Path("page.md").read_text()
    assert page.count("\n| boston MNF |") == page.count("\n| yacht VI with BN |") == 5
    (crps,) = (line for line in page.splitlines() if line.startswith("| yacht MNF |") and "24.92" in line)
    assert any(f"| {verdict} |" in crps for verdict in ("agrees", "inconclusive", "same sign", "differs"))
    code, summary, _ = called("report", "reproduce-uci.h5", "--json")
    methods = json.loads(summary)["sets"]["boston"]["methods"]
    assert list(methods) == ["mnf", "vi", "vi-bn"]
    assert methods["mnf"]["crps"]["published"] == 5.88
    assert "published" not in methods["vi"]["crps"]


@pytest.mark.parametrize(("number", "word"), [(signal.SIGINT, "interrupted"), (signal.SIGTERM, "terminated")])
@pytest.mark.parametrize("name", ALL)
def test_a_stopped_experiment_says_what_is_kept(name, number, word, small_root, tiny, tmp_path, monkeypatch, capsys):
    def stop_in_the_middle(_: progress.Bars, title: str, *__: object) -> None:
        if title.split()[0] not in ("Reading", "Checking", "Drawing"):
            os.kill(os.getpid(), number)

    monkeypatch.setattr(progress.Bars, "_write_line", stop_in_the_middle)
    stopped = run(name, tmp_path, small_root, tiny, code=128 + number)
    said = capsys.readouterr().err.splitlines()[-1].removeprefix(f"bnuq: {word}; ")
    place = said.removeprefix("finished parts are kept in ").removesuffix(": the same command resumes from them.")
    kept = [*tmp_path.glob("*.work/*.part")]
    assert kept == [*(tmp_path / place).glob("*.part")] and (kept or said == "an unfinished result is not saved.")
    assert (stopped.path.read_bytes(), stopped.printed) == (old_result(tmp_path / "old.h5"), "")


def test_help_does_not_import_torch() -> None:
    asked = [["--help"], ["report", "--help"], *([name, "--help"] for name in EXPERIMENTS)]
    script = (
        f"import sys\nfrom experiments.__main__ import main\nfor arguments in {asked!r}:\n"
        "    try:\n        main(arguments)\n    except SystemExit:\n        pass\n"
        "print('\\n'.join(sys.modules), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.lower().count("usage: python -m experiments") == len(asked)
    assert not {"torch", "scipy.stats"} & set(done.stderr.split())


def test_a_working_folder_that_is_gone(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    script = f"import os\nfrom experiments.__main__ import main\nos.mkdir({str(gone)!r})\nos.chdir({str(gone)!r})\n"
    script += f"os.rmdir({str(gone)!r})\nmain(['toy'])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, cwd=ROOT)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "bnuq: the working folder no longer exists. Change to an existing folder.\n"
