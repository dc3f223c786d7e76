"""`bnuq` as a process: signals, pipes, terminals, limits of the system."""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import small_run

from bnuq.cli import progress
from bnuq.records.evaluation_file import read
from bnuq.records.summary import summary

ROOT = Path(__file__).resolve().parents[2]
BNUQ = [sys.executable, "-m", "bnuq"]
ALL = ("--method", "mcbn,mcdo,mcbn+mcdo", "--ood", "other.npz")
SLOW = ("-T", "400", "--chunk-size", "1", "--limit", "60")


def environment(**changes: str) -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"} | changes


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A result of one method."""
    folder = tmp_path_factory.mktemp("made")
    small_run.write(folder)
    small_run.evaluated(folder, methods=("mcdo",), ood=())
    return folder / "model.bnuq.h5"


@pytest.fixture
def result(made: Path, small: Path) -> Path:
    return Path(shutil.copy(made, small))


def test_no_warning_of_numpy_stands_beside_a_message(small: Path, cli) -> None:
    """Here a warning is an error, and the command would end with code 3."""
    text = (small / "run.toml").read_text()
    (small / "run.toml").write_text(text.replace("[data]", "[data]\nnormalize = { mean = [0.5], std = [1e-40] }"))
    done = cli("evaluate", "run.toml")
    assert done.code == 2 and re.fullmatch(r"bnuq: the network's outputs on test are NaN .*\n", done.err)


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


def test_a_signal_ends_the_run_with_its_code_and_leaves_the_old_result(small, cli):
    old = small_run.old_result(small / "model.bnuq.h5")
    child = started(small, "--save-samples")
    second = cli("evaluate", "run.toml", "--seed", "1")
    assert second.code == 2 and "a run with other settings is at work on this result" in second.message
    child.send_signal(signal.SIGINT)
    out, err = child.communicate(timeout=20)
    assert child.returncode == 130
    assert out == ""
    kept = f"finished parts are kept in {small / 'model.bnuq.h5.work'}: the same command resumes from them."
    assert err in ("bnuq: interrupted; an unfinished result is not saved.\n", f"bnuq: interrupted; {kept}\n")
    assert (small / "model.bnuq.h5").read_bytes() == old
    assert not list(small.glob(".*"))


@pytest.mark.nightly
def test_a_killed_run_leaves_the_old_result_and_no_more_than_its_lock(small):
    old = small_run.old_result(small / "model.bnuq.h5")
    child = started(small, "--save-samples")
    child.kill()
    child.communicate(timeout=20)
    assert (small / "model.bnuq.h5").read_bytes() == old
    assert {path.name for path in small.glob(".*")} <= {".model.bnuq.h5.lock"}  # which the next run removes


INTERRUPTED_AT = """
import os, runpy, signal, sys
class Interrupting:
    def find_spec(self, name, path, target=None):
        if name == "bnuq.surroundings":
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupting())
sys.argv = ["bnuq", "metrics"]
"""
RUN = "runpy.run_module('{}', {{}}, '__main__')"


@pytest.mark.parametrize("start", [*map(RUN.format, ("bnuq", "experiments")), "from bnuq.__main__ import main; main()"])
def test_a_signal_during_the_first_imports_is_answered_in_one_line(start):
    command = [sys.executable, "-c", INTERRUPTED_AT + start]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(), check=False, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "bnuq: interrupted.\n")


# ── pipes and closed streams ─────────────────────────────────────────────────────────────────────────────────────────


def shell(command: str, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    whole = ["bash", "-o", "pipefail", "-c", command.replace("bnuq", f"{sys.executable} -m bnuq", 1)]
    return subprocess.run(
        whole, capture_output=True, text=True, env=environment(**variables), cwd=folder, check=False, timeout=60
    )


def test_a_closed_pipe_is_no_error(small, result):
    done = shell(f"bnuq report {result.name} --json | true", small)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.nightly
def test_closed_standard_streams_are_no_error_and_another_process_gives_the_same_estimates(small):
    before = (small / "model.pt").read_bytes()
    done = shell("bnuq evaluate run.toml --limit 20 -T 2 --method mcbn,mcdo --calibrate off <&- >&- 2>&-", small)
    assert done.returncode == 0, done
    here = small_run.evaluated(
        small, out=small / "here.h5", limit=20, samples=2, methods=("mcbn", "mcdo"), calibrate="off"
    )
    assert summary(read(small / "model.bnuq.h5"))["methods"] == summary(here)["methods"]
    assert (small / "model.pt").read_bytes() == before


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_an_output_that_is_full_is_one_message(small, result):
    done = shell(f"bnuq report {result.name} > /dev/full", small)
    assert done.returncode == 2
    assert done.stderr == "bnuq: the output could not be written: No space left on device. Free some space.\n"


@pytest.mark.nightly
def test_a_piped_ascii_report_has_only_ascii_and_a_closed_standard_input_is_no_error(small, result):
    done = shell(f"bnuq report {result.name} <&-", small, PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stderr) == (0, "") and "--full" in done.stdout
    assert done.stdout.isascii() and "+/-" in done.stdout
    assert "?" not in done.stdout and "\x1b" not in done.stdout  # as it is no terminal


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
        (4_000, ("--save-samples",), ".part: could not be written: the file would be larger than this system allows"),
        (
            600_000,
            (*ALL, "--save-samples", "-T", "64"),
            "model.bnuq.h5: could not be written: the file would be larger",
        ),
    ],
    ids=["result", "unit", "samples"],
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


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(
    ("options", "said"),
    [
        ((), r"(the disk is full|No space left on device)\. Free some space.*"),
        (
            ("--save-samples", "-T", "64"),
            r"the raw samples would take about 92 kB of disk .* Run without --save-samples.*",
        ),
    ],
    ids=["result", "samples"],
)
def test_a_full_disk_is_one_message_and_leaves_nothing(cli, tiny_disk, options, said):
    (tiny_disk / "filler").write_bytes(bytes(380_000))
    done = cli("evaluate", "run.toml", "-o", tiny_disk / "r.h5", *options)
    assert done.code == 2
    assert re.fullmatch(rf".*{said}", done.message)
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


# ── what user code prints, and how it ends a process ─────────────────────────────────────────────────────────────────

PRINTING = """
import ctypes, os, sys
print("at import")
ctypes.CDLL(None).puts(b"from C")  # buffered where standard output is no terminal: written when the process ends
sys.__stdout__.write("by the saved stream\\n")

class Loud(nn.Sequential):
    def forward(self, x):
        print("in forward")
        os.system("echo from a child")
        os.write(1, b"by number\\n")
        return super().forward(x)

_net = net
def net():
    os.kill(os.getpid(), 15)
    os.kill(os.getpid(), 2)
    return Loud(*_net())
"""


@pytest.mark.nightly
@pytest.mark.parametrize(
    "command",
    [
        "evaluate run.toml -T 2 --limit 20",
        "inspect run.toml --draws 8",
        "sweep-batch-size run.toml -T 2 --draw-sets 2 --batch-sizes 8,16",
        "precise-bn run.toml --out new.pt",
    ],
)
def test_what_user_code_prints_goes_to_standard_error_and_signals_that_are_ignored_stay_so(small, command):
    (small / "net.py").write_text((small / "net.py").read_text() + PRINTING)
    done = shell(f"trap '' INT TERM; bnuq {command} --json", small)
    assert done.returncode in (0, 1), done.stderr
    assert json.loads(done.stdout)
    for word in ("at import", "from C", "by the saved stream", "in forward", "from a child", "by number"):
        assert word in done.stderr


# ── signals while modules are imported, and signals that somebody swallows ───────────────────────────────────────────

AT_IMPORT = """
import os, runpy, sys
from importlib.abc import MetaPathFinder

class Signals(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name == sys.argv[1]:
            sys.meta_path.remove(self)
            os.kill(os.getpid(), int(sys.argv[2]))

sys.meta_path.insert(0, Signals())
runpy.run_module("bnuq", {}, "__main__")
"""


@pytest.mark.parametrize(
    ("module", "number", "code", "word"),
    [
        pytest.param("bnuq.cli.main", 2, 130, "interrupted", marks=pytest.mark.nightly),  # like those after it
        ("typer", 15, 143, "terminated"),
        pytest.param("msgspec", 2, 130, "interrupted", marks=pytest.mark.nightly),
        ("torch.nn", 2, 130, "interrupted"),
        pytest.param("h5py", 15, 143, "terminated", marks=pytest.mark.nightly),  # torch was imported before it
    ],
)
def test_a_signal_while_modules_are_imported_is_one_line_and_its_code(small, module, number, code, word):
    script = AT_IMPORT.replace("sys.argv[1]", repr(module)).replace("sys.argv[2]", str(number))
    script = script.replace("runpy.run", "sys.argv = ['bnuq', 'evaluate', 'run.toml', '-T', '2']\nrunpy.run")
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env=environment(), cwd=small, check=False
    )
    assert (done.returncode, done.stdout) == (code, "")
    assert re.fullmatch(rf"bnuq: {word}[^\n]*\.\n", done.stderr)
    assert not (small / "model.bnuq.h5").exists()


@pytest.fixture
def terminated():
    """What a signal does that bnuq does not answer: no end of the tests."""

    def unanswered(*_):
        raise AssertionError("the signal was not answered")

    before = signal.signal(signal.SIGTERM, unanswered)
    yield "bnuq: terminated; an unfinished result is not saved.\n"
    signal.signal(signal.SIGTERM, before)


def test_a_signal_that_user_code_swallows_ends_the_run_all_the_same(small, cli, terminated):
    body = "        try: os.kill(os.getpid(), 15)\n        except BaseException: raise ValueError\n"
    loud = PRINTING[PRINTING.index("class") :].split("        print")[0].replace("Loud", "Deaf") + body
    loud += "        return super().forward(x)\n\n_net = net\ndef net():\n    return Deaf(*_net())\n"
    (small / "net.py").write_text("import os\n" + (small / "net.py").read_text() + loud)
    done = cli("evaluate", "run.toml", "-T", "2")
    assert (done.code, done.out, done.err) == (143, "", terminated)
    assert not (small / "model.bnuq.h5").exists()


STOPPING = """
import os, pathlib
class Stopping(nn.Sequential):
    def forward(self, x):
        if pathlib.Path("number").exists():
            os.kill(os.getpid(), int(pathlib.Path("number").read_text()))
        return super().forward(x)

_net = net
def net():
    return Stopping(*_net())
"""


@pytest.mark.parametrize(
    "command",
    [
        "evaluate run.toml -T 8 -o new",
        "sweep-batch-size run.toml -T 2 --draw-sets 2 --batch-sizes 8,16 -o new",
        "inspect run.toml --draws 8 -o new",
        "shift run.toml -T 2 --family gaussian --severities 1 -o new",
        "monitor run.toml test.npz -o new",
        "export run.toml -o new.pt2",
        "precise-bn run.toml -o new",
        "init model.pt --arch net.py:net --train train.npz --test test.npz -o new.toml",
    ],
)
@pytest.mark.usefixtures("terminated")
def test_each_command_that_is_stopped_says_what_is_kept_and_leaves_nothing_half_written(small, cli, command):
    (small / "net.py").write_text((small / "net.py").read_text() + STOPPING)
    before = {path.name for path in small.iterdir()} | {"number", "__pycache__"}
    for number, code, word in ((2, 130, "interrupted"), (15, 143, "terminated")):
        (small / "number").write_text(str(number))
        done = cli(*command.split())
        assert (done.code, done.out.count("\n") > 1) == (code, False)
        kept = {path.name for path in small.iterdir()} - before
        place = f"finished parts are kept in {small / 'new.work'}: the same command resumes from them."
        note = place if kept else "an unfinished result is not saved."
        assert kept <= {"new.work"} and done.err.endswith(f"bnuq: {word}; {note}\n")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_signal_that_is_lost_in_a_finaliser_ends_the_run_before_its_result_is_written(small, cli, terminated):
    dies = "import os\nclass Dies:\n    def __del__(self): os.kill(os.getpid(), 15)\n\n"
    (small / "net.py").write_text(dies + (small / "net.py").read_text().replace("    return", "    Dies()\n    return"))
    done = cli("evaluate", "run.toml", "-T", "2")
    assert (done.code, done.out) == (143, "") and done.err.endswith(terminated)
    assert not (small / "model.bnuq.h5").exists()


@pytest.mark.parametrize(
    "words",
    """evaluate run.toml; sweep-batch-size run.toml; shift run.toml; inspect run.toml; precise-bn run.toml -o new.pt
export run.toml -o new.pt2; monitor run.toml --batch test.npz; score predictions.csv; report model.bnuq.h5 --csv new.csv
check model.bnuq.h5 model.bnuq.h5; init model.pt --arch net.py:net --train train.npz --channel-order rgb
demo""".replace("\n", "; ").split("; "),
)
@pytest.mark.usefixtures("terminated")
def test_a_signal_during_any_work_ends_the_command(small, result, cli, monkeypatch, words):
    (small / "predictions.csv").write_text("p_cat,p_dog,label\n.6,.4,cat\n.3,.7,dog\n")
    before = {path.name for path in small.iterdir()}
    for number, code, word in ((2, 130, "interrupted"), (15, 143, "terminated")):
        monkeypatch.setattr(progress.Bars, "_write_line", lambda *_, sent=number: os.kill(os.getpid(), sent))
        done = cli(*words.split())
        assert (done.code, done.out.count("\n") > 1) == (code, False)  # init says first where it will write
        assert done.err.endswith(f"bnuq: {word}; an unfinished result is not saved.\n")
        assert {path.name for path in small.iterdir()} - {"bnuq-demo"} == before >= {result.name}
