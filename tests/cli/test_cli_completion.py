"""`bnuq --completion SHELL`, and the words that a shell is given behind a command line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from bnuq.cli.completion import SCRIPTS


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("bnuq ev", ["evaluate"]),
        ("bnuq sw", ["sweep-batch-size"]),
        ("bnuq evaluate --calib", ["--calibrate"]),
        ("bnuq evaluate --quiet --device cu", ["cuda"]),
        ("bnuq evaluate --method=mcbn,ten", []),
        ("bnuq evaluate --method=mcbn,la", ["--method=mcbn,laplace"]),
        ("bnuq evaluate --ood far=svhn:t", ["far=svhn:train", "far=svhn:test"]),
        ("bnuq report a.h5 --by mut", ["mutual_information"]),
        ("bnuq report --by 'mut", []),  # an open quotation: words that do not begin so
        ("bnuq evaluate no/such/", []),
        ("bnuq evaluate one", ["one.toml"]),
        ("bnuq evaluate ", ["one.toml", "two.pt", "sub/"]),
        ("bnuq evaluate sub/", ["sub/three.safetensors"]),
        ("bnuq report ", []),  # the shell's own names of files
    ],
)
def test_words_that_may_follow(cli, tmp_path, monkeypatch, line: str, words: list[str]) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sub").mkdir()
    for name in ("one.toml", "two.pt", "result.h5", "sub/three.safetensors", "sub/notes.txt"):
        (tmp_path / name).touch()
    shown = [word for word in cli("--complete", "zsh", line).out.splitlines() if word and word != "config/"]
    assert shown == words


@pytest.mark.parametrize(("line", "words"), [("--test cifar10:te", ["test"]), ("--ood a=svhn:te", ["test"])])
def test_bash_is_given_what_follows_its_breaks_of_words(cli, line: str, words: list[str]) -> None:
    assert cli("--complete", "bash", f"bnuq evaluate {line}").out.split() == words


def test_bash_completes_by_the_script(cli, tmp_path: Path) -> None:
    asked = f"{cli('--completion', 'bash').out}\nCOMP_LINE='bnuq evaluate --method mcbn+m' COMP_POINT=29\n_bnuq\n"
    command = f'bnuq() {{ {sys.executable} -m bnuq "$@"; }}\n{asked}printf "%s\\n" "${{COMPREPLY[@]}}"'
    done = subprocess.run(["bash", "-c", command], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["mcbn+mcdo", "mcbn+mcdo+learned"]


@pytest.mark.parametrize("shell", SCRIPTS)
def test_every_shell_has_a_script_that_asks_bnuq(cli, shell: str) -> None:
    done = cli("--completion", shell)
    assert done.code == 0 and f"bnuq --complete {shell} " in done.out


def test_other_shells_are_refused_and_clicks_variable_changes_nothing(cli, monkeypatch) -> None:
    assert cli("--completion", "tcsh").message == "--completion is 'tcsh'; expected one of bash, zsh, fish."
    monkeypatch.setenv("_BNUQ_COMPLETE", "bash_source")
    assert cli("--version").out.startswith("bnuq 0.2.0, torch ")
