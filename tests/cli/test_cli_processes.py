"""`bnuq` as a process: signals, pipes, terminals, limits of the system."""

from __future__ import annotations

import os
import pty
import re
import resource
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import small_run

ROOT = Path(__file__).resolve().parents[2]
BNUQ = [sys.executable, "-m", "bnuq"]
SLOW = ("-T", "400", "--chunk-size", "1", "--limit", "60")


def environment(**changes: str) -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"} | changes


@pytest.fixture
def result(small: Path) -> Path:
    small_run.evaluated(small)
    return small / "model.bnuq.h5"


# ── signals ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def started(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    """A `bnuq evaluate` that has begun to sample: its factory leaves a mark when it is called, and the rest is slow."""
    code = (folder / "net.py").read_text()
    slow = "    import pathlib; pathlib.Path(__file__).with_name('loaded').touch()\n    return nn.Sequential("
    (folder / "net.py").write_text(code.replace("    return nn.Sequential(", slow))
    command = [*BNUQ, "evaluate", "run.toml", *SLOW, *arguments]
    child = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(), cwd=folder
    )
    deadline = time.monotonic() + 30
    while not (folder / "loaded").exists():
        assert child.poll() is None, child.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)
    time.sleep(0.3)
    assert child.poll() is None, "the evaluation was over before it could be interrupted"
    return child


@pytest.mark.parametrize(
    ("number", "code", "word", "options"),
    [(signal.SIGINT, 130, "interrupted", ()), (signal.SIGTERM, 143, "terminated", ("--save-samples",))],
    ids=["SIGINT", "SIGTERM"],
)
def test_a_signal_ends_the_run_with_its_code_and_leaves_the_old_result(small, number, code, word, options):
    old = small_run.old_result(small / "model.bnuq.h5")
    child = started(small, *options)
    child.send_signal(number)
    out, err = child.communicate(timeout=20)
    assert child.returncode == code
    assert out == ""
    assert err == f"bnuq: {word}; an unfinished result is not kept.\n"
    assert (small / "model.bnuq.h5").read_bytes() == old
    assert not list(small.glob(".*"))


def test_a_killed_run_leaves_the_old_result_and_nothing_beside_it(small):
    old = small_run.old_result(small / "model.bnuq.h5")
    child = started(small, "--save-samples")
    child.kill()
    child.communicate(timeout=20)
    assert (small / "model.bnuq.h5").read_bytes() == old
    assert not list(small.glob(".*"))


# ── pipes and closed streams ─────────────────────────────────────────────────────────────────────────────────────────


def shell(command: str, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    line = command.replace("bnuq", f"{sys.executable} -m bnuq", 1)
    whole = ["bash", "-o", "pipefail", "-c", line]
    return subprocess.run(
        whole, capture_output=True, text=True, env=environment(**variables), cwd=folder, check=False, timeout=60
    )


def test_a_closed_pipe_is_no_error(small, result):
    done = shell(f"bnuq report {result.name} | head -1", small)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "bnuq evaluate  0.1.0\n"
    done = shell(f"bnuq report {result.name} --json | true", small)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("closed", ["<&-", "<&- >&- 2>&-"])
def test_closed_standard_streams_are_no_error(small, closed):
    done = shell(f"bnuq evaluate run.toml --limit 20 -T 2 {closed}", small)
    assert done.returncode == 0, done
    assert done.stderr == ""
    small_run_result = (small / "model.bnuq.h5").read_bytes()
    assert small_run_result.startswith(b"\x89HDF")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_an_output_that_is_full_is_one_message(small, result):
    done = shell(f"bnuq report {result.name} > /dev/full", small)
    assert done.returncode == 2
    assert done.stderr == "bnuq: the output could not be written: No space left on device. Free some space.\n"


def test_a_piped_report_has_no_escape_codes_and_an_ascii_one_only_ascii(small, result):
    plain = shell(f"bnuq report {result.name}", small)
    assert "\x1b" not in plain.stdout
    ascii_only = shell(f"bnuq report {result.name}", small, PYTHONIOENCODING="ascii")
    assert (ascii_only.returncode, ascii_only.stderr) == (0, "")
    assert ascii_only.stdout.isascii() and "+/-" in ascii_only.stdout
    assert "?" not in ascii_only.stdout


# ── terminals ────────────────────────────────────────────────────────────────────────────────────────────────────────


def on_a_terminal(folder: Path, *arguments: str, **variables: str) -> tuple[int, str]:
    """Exit code and everything that a terminal of 80 columns was sent."""
    screen, line = pty.openpty()
    child = subprocess.Popen(
        [*BNUQ, *arguments],
        stdin=line,
        stdout=line,
        stderr=line,
        env=environment(TERM="xterm-256color", COLUMNS="80", LINES="40", **variables),
        cwd=folder,
    )
    os.close(line)
    sent = b""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if not select.select([screen], [], [], 1)[0]:
            continue
        try:
            block = os.read(screen, 65536)
        except OSError:  # the other side is closed
            break
        if not block:
            break
        sent += block
    os.close(screen)
    return child.wait(timeout=20), sent.decode()


def test_on_a_terminal_there_are_colours_and_a_bar_that_is_gone_at_the_end(small):
    code, sent = on_a_terminal(small, "evaluate", "run.toml", "-T", "32", "--chunk-size", "4")
    assert code == 0
    assert "\x1b[1m" in sent  # bold
    bar, _, report = sent.rpartition("bnuq evaluate")
    assert "Evaluating 110 points" in bar and "/s" in bar
    assert "\x1b[2K" in bar  # its line was erased
    assert "Evaluating" not in report
    assert max(len(re.sub(r"\x1b\[[0-9;]*m", "", row)) for row in report.splitlines() if "/" not in row) <= 80


def test_no_color_is_obeyed_on_a_terminal(small, result):
    code, sent = on_a_terminal(small, "report", result.name, NO_COLOR="1")
    assert code == 0
    assert "\x1b" not in sent


# ── limits of the system ─────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def size_limit():
    """Sets how large a file this process may write."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda size: resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize(
    ("size", "options", "message"),
    [
        (20_000, (), "model.bnuq.h5: could not be written: the file would be larger than this system allows"),
        (4_000, ("--save-samples",), "the raw samples could not be kept: File too large. Free some space, or run "),
        (300_000, ("--save-samples", "-T", "64"), "model.bnuq.h5: could not be written: the file would be larger"),
    ],
    ids=["result", "spool", "samples"],
)
def test_a_file_size_limit_is_one_message_and_leaves_nothing(small, cli, size_limit, size, options, message):
    old = small_run.old_result(small / "model.bnuq.h5")
    size_limit(size)
    done = cli("evaluate", "run.toml", *options)
    assert done.code == 2
    assert message in done.message
    assert done.out == ""
    assert (small / "model.bnuq.h5").read_bytes() == old
    assert not list(small.glob(".*"))


@pytest.fixture
def tiny_disk(tmp_path: Path):
    """A file system of 400 kB."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=400k", "tmpfs", str(place)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("a file system cannot be mounted here")
    yield place
    subprocess.run(["umount", str(place)], check=True)


@pytest.mark.parametrize("options", [(), ("--save-samples",)], ids=["result", "samples"])
def test_a_full_disk_is_one_message_and_leaves_nothing(small, tiny_disk, options):
    (tiny_disk / "filler").write_bytes(bytes(380_000))
    command = [*BNUQ, "evaluate", "run.toml", "-o", str(tiny_disk / "r.h5"), *options]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(), cwd=small, check=False)
    assert done.returncode == 2, done
    assert re.fullmatch(r"bnuq: .*(the disk is full|No space left on device)\. Free some space.*\n", done.stderr)
    assert [path.name for path in tiny_disk.iterdir()] == ["filler"]


def test_a_read_only_folder_is_one_message(small, cli):
    if os.geteuid() == 0:
        pytest.skip("nothing is read-only to the superuser")
    small.chmod(0o500)
    try:
        done = cli("evaluate", "run.toml", "-T", "2")
    finally:
        small.chmod(0o700)
    assert done.code == 2
    assert "permission denied" in done.message.lower()
