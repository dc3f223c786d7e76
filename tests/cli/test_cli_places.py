"""Where a command may write is known before it computes; and no place makes it hang."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import small_run


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A result, and of one method."""
    folder = tmp_path_factory.mktemp("evaluated")
    small_run.write(folder)
    small_run.evaluated(folder, methods=("mcdo",), limit=20, ood=())
    return folder / "model.bnuq.h5"


needs_sys = pytest.mark.skipif(not Path("/sys/kernel").exists(), reason="no file system here that refuses every file")
REFUSING = "/sys/kernel"  # even to the superuser


@needs_sys
@pytest.mark.parametrize(
    "arguments",
    [
        ("evaluate", "run.toml", "--out", f"{REFUSING}/r.h5"),
        ("sweep-batch-size", "run.toml", "--out", f"{REFUSING}/r.h5"),
        ("sweep-batch-size", "run.toml", "--figures", REFUSING),
        ("inspect", "run.toml", "--out", f"{REFUSING}/r.h5"),
        ("inspect", "run.toml", "--figures", REFUSING),
        ("precise-bn", "run.toml", "--out", f"{REFUSING}/new.pt"),
    ],
    ids=" ".join,
)
def test_a_place_that_refuses_is_told_before_any_code_runs(small, cli, arguments):
    (small / "net.py").write_text("import pathlib\ndef net(): pathlib.Path('ran').touch()\n")
    done = cli(*arguments)
    assert (done.code, done.out) == (2, "")
    assert "could not be written: permission denied" in done.message
    assert not (small / "ran").exists()
    assert not list(small.glob("*.h5"))


@needs_sys
@pytest.mark.parametrize(
    "arguments",
    [
        ("check", "model.bnuq.h5", "no.h5", "--junit", f"{REFUSING}/j.xml"),
        ("check", "model.bnuq.h5", "no.h5", "--markdown", f"{REFUSING}/m.md"),
        ("report", "model.bnuq.h5", "--html", f"{REFUSING}/p.html"),
        ("report", "model.bnuq.h5", "--markdown", f"{REFUSING}/p.md"),
        ("report", "model.bnuq.h5", "--figures", REFUSING),
    ],
    ids=" ".join,
)
def test_a_report_that_cannot_be_written_is_one_message(small, evaluated, cli, arguments):
    shutil.copy(evaluated, small)
    done = cli(*arguments)
    assert (done.code, done.out) == (2, "")
    assert "could not be written: permission denied" in done.message


@pytest.mark.parametrize("place", ["pipe", "/dev/null", "/dev/stdout"])
def test_a_pipe_or_a_device_to_write_to_is_one_message_and_no_hang(small, evaluated, cli, place):
    os.mkfifo(small / "pipe")
    done = cli("evaluate", "run.toml", "--out", place)
    assert (done.code, done.out) == (2, "")
    assert "is not a " in done.message
    shutil.copy(evaluated, small)
    for option in ("--junit", "--markdown"):
        done = cli("check", "model.bnuq.h5", "model.bnuq.h5", option, place)
        assert (done.code, done.out) == (2, "")
        assert done.message


@pytest.mark.parametrize("read", [True, False], ids=["that somebody reads", "that nobody reads"])
def test_a_step_summary_that_is_a_pipe_does_not_hang_a_check(small, evaluated, cli, monkeypatch, read):
    shutil.copy(evaluated, small)
    os.mkfifo(small / "pipe")
    reader = os.open(small / "pipe", os.O_RDONLY | os.O_NONBLOCK) if read else None
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(small / "pipe"))
    done = cli("check", "model.bnuq.h5", "model.bnuq.h5")
    assert done.code == 0
    assert f"the step summary {small / 'pipe'} could not be written" in done.err
    if reader is not None:
        os.close(reader)


@pytest.mark.nightly
@pytest.mark.parametrize("backend", ["module://matplotlib_inline.backend_inline", "nonsense"])
def test_the_backend_that_the_environment_names_does_not_matter(evaluated, backend):
    small = evaluated.parent
    done = subprocess.run(
        [sys.executable, "-m", "bnuq", "report", "model.bnuq.h5", "--figures", "drawn"],
        capture_output=True,
        text=True,
        env=os.environ | {"MPLBACKEND": backend, "PYTHONPATH": str(Path(__file__).parents[2])},
        cwd=small,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert list((small / "drawn").glob("*.svg"))


WRITING = (
    ("evaluate", "run.toml", "--save-samples"),
    ("evaluate", "run.toml", "-o", "base.h5", "--work", "units"),
    ("report", "model.bnuq.h5", "--html", "page.html", "--csv", "a.csv", "--markdown", "a.md", "--figures", "drawn"),
    ("check", "model.bnuq.h5", "base.h5", "--update", "--junit", "junit.xml", "--markdown", "check.md"),
    ("monitor", "run.toml", "--baseline", "law.h5", "--batch", "test.npz", "--stream", "s.h5", "--resamples", "99"),
    ("inspect", "run.toml"),
    ("precise-bn", "run.toml", "-o", "precise.pt"),
    ("init", "model.pt", "--arch", "net.py:net", "--test", "test.npz", "--force"),
    ("demo", "demo"),
)
_heard: list[tuple[Path, int | None]] | None = None  # files that are opened to be written, and renamed ones


def _hear(event: str, given: tuple[Any, ...]) -> None:
    if _heard is not None and event == "open" and isinstance(given[0], str) and given[2] & (os.O_WRONLY | os.O_RDWR):
        _heard.append((Path(given[0]).absolute(), given[2]))
    if _heard is not None and event == "os.rename":
        _heard.append((Path(given[1]).absolute(), None))


@pytest.mark.nightly  # 27 commands
@pytest.mark.skipif(os.name != "posix", reason="links of files")
def test_a_link_at_a_name_that_commands_write_leads_them_nowhere(small, cli, monkeypatch):
    """What is opened is a new file or no link; a link under a name that the user did not give is replaced itself."""
    monkeypatch.setattr(f"{__name__}._heard", heard := [])
    sys.addaudithook(_hear)
    outside = small.parent / "outside"
    outside.mkdir()
    for words in WRITING:
        heard.clear()
        assert cli(*words).code == 0, words
        here = [(path, flags) for path, flags in heard if {small, small.parent / "config"} & {*path.parents}]
        assert here and not [path for path, flags in here if flags and not flags & (os.O_EXCL | os.O_NOFOLLOW)]
        fixed = {path for path, flags in here if flags is None or not flags & os.O_EXCL or path.suffix == ".lock"}
        for path in fixed:
            path.unlink(missing_ok=True)
            path.parent.mkdir(exist_ok=True)
            path.symlink_to(outside / path.name)  # which it would make
        cli(*words)
        named = {Path(word).name for each in WRITING for word in each} | {
            "model.bnuq.h5",
            "model.monitor.h5",
            "model.inspect.h5",
        }
        assert {path.name for path in outside.iterdir()} <= named, words
        for path in fixed:
            path.unlink(missing_ok=True)
        cli(*words)
