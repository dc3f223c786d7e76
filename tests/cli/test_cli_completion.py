"""Completion by typer: its script, the words that it is given, and what cannot be installed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


def test_bash_completes_commands_and_options_by_the_script(cli, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("typer.completion._get_shell_name", lambda: "bash")
    (tmp_path / "bnuq").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m bnuq "$@"\n')
    (tmp_path / "bnuq").chmod(0o755)
    asked = 'COMP_CWORD=$((${#COMP_WORDS[@]} - 1))\n_bnuq_completion ./bnuq\nprintf "%s\\n" "${COMPREPLY[@]}"\n'
    lines = f"COMP_WORDS=(bnuq ev)\n{asked}COMP_WORDS=(bnuq evaluate --calib)\n{asked}"
    script = f"{cli('--show-completion').out}\n{lines}"
    done = subprocess.run(["bash", "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["evaluate", "--calibrate"] and done.stderr == ""


def test_what_is_asked_for_a_completion_imports_no_torch(tmp_path: Path) -> None:
    script = (
        "import os, sys\nos.environ |= {'_BNUQ_COMPLETE': 'complete_bash', 'COMP_WORDS': 'bnuq ', 'COMP_CWORD': '1'}\n"
        "from bnuq.cli.main import main\ntry:\n    main([])\nexcept SystemExit as left:\n    assert left.code == 0\n"
        "assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "") and {"evaluate", "check"} <= {*done.stdout.split()}


@pytest.mark.parametrize(
    ("shell", "complaint"),
    [("bash", "bnuq: completion cannot be installed: 'utf-8'"), ("tcsh", "tcsh is not supported")],
)
def test_what_cannot_be_installed_is_refused(cli, tmp_path: Path, monkeypatch, shell: str, complaint: str) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr("typer._completion_shared._get_shell_name", lambda: shell)
    (tmp_path / ".bashrc").write_bytes(b"# caf\xe9\n")
    done = cli("--install-completion")
    assert done.code == 2 and complaint in done.out + done.err
    assert (tmp_path / ".bashrc").read_bytes() == b"# caf\xe9\n"


def test_typers_variable_with_anything_else_is_refused(cli, monkeypatch) -> None:
    monkeypatch.setenv("_BNUQ_COMPLETE", "bash_source")
    assert cli("--version").code == 2
