"""What is missing around the process is exit code 2 with the cause: it is no fault of bnuq."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest
import small_run

resource = pytest.importorskip("resource")


@pytest.mark.parametrize(
    "arguments",
    [
        ("evaluate", "{}/run.toml"),
        ("evaluate", "{}/run.toml", "--out", "r.h5"),
        ("inspect", "{}/run.toml"),
        ("precise-bn", "{}/run.toml", "--out", "new.pt"),
        ("sweep-batch-size", "{}/run.toml"),
        ("check", "r.h5"),
    ],
    ids=" ".join,
)
def test_a_working_folder_that_is_gone(small, cli, tmp_path, monkeypatch, arguments):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    done = cli(*(word.format(small) for word in arguments))
    assert (done.code, done.out) == (2, "")
    assert done.message == "the working folder no longer exists. Change to an existing folder."


def test_an_address_space_too_small_for_torch(small):
    done = subprocess.run(
        [sys.executable, "-m", "bnuq", "evaluate", "run.toml"],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])},
        cwd=small,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (500 * 10**6, 500 * 10**6)),
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "bnuq: out of memory. The address space of this process is limited to 0.5 GB, too little for torch: raise the "
        "limit (ulimit -v).\n"
    )


def test_a_library_that_cannot_be_loaded(small, cli, monkeypatch):
    error = ImportError("libtorch_cpu.so: failed to map segment from shared object", name="torch")
    monkeypatch.setattr("bnuq.evaluation.setup.load_model", Mock(side_effect=error))
    done = cli("evaluate", small / "run.toml")
    assert done.code == 2
    assert "cannot be loaded: libtorch_cpu.so: failed to map segment from shared object. Reinstall" in done.message


def test_no_folder_for_temporary_files(small, cli, monkeypatch):
    small_run.evaluated(small, samples=2, limit=20)
    error = FileNotFoundError(2, "No usable temporary directory found in ['/tmp']")
    monkeypatch.setattr("tempfile.TemporaryDirectory", Mock(side_effect=error))
    done = cli("report", "model.bnuq.h5", "--html", "page.html")
    assert done.code == 2
    assert done.message == "there is no folder for temporary files. Set TMPDIR to a writable folder."


@pytest.mark.parametrize(("given", "policy"), [(None, "PASSIVE"), ("ACTIVE", "ACTIVE")])
def test_threads_that_wait_do_not_spin_unless_the_user_says_so(given, policy):
    stand_in = (
        "import os, sys, types\n"
        "command = types.ModuleType('bnuq.cli.main')\n"
        "command.main = lambda: print(os.environ['OMP_WAIT_POLICY'], 'torch' in sys.modules)\n"
        "sys.modules |= {'bnuq.cli': types.ModuleType('bnuq.cli'), 'bnuq.cli.main': command}\n"
        "from bnuq.__main__ import main\n"
        "main()\n"
    )
    environment = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
    environment |= {} if given is None else {"OMP_WAIT_POLICY": given}
    done = subprocess.run([sys.executable, "-c", stand_in], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == f"{policy} False\n"
